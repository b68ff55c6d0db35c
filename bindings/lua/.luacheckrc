std = "ngx_lua"
max_line_length = 120
ignore = { "212/self" }
exclude_files = { "**/cdef.lua" }
