--- Puts buflock in the place of lua-resty-lock, for programs that are not to be changed: with the directory that this
--- is in at the front of lua_package_path, require "resty.lock" finds it.
return require "resty.buflock.lock"
