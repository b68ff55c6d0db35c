std = "ngx_lua"
max_line_length = 120
ignore = { "212/self" }
exclude_files = { "lib/resty/buflock/cdef.lua" }
files["compat"] = { std = "ngx_lua" }
