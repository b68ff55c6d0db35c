--- libbuflock, found along package.cpath, else by the system's loader. It stays loaded: it is built so.
local ffi = require "ffi"

local open, concat = io.open, table.concat

local ABI = 1
local FILE = "libbuflock.so"
local SONAME = "libbuflock.so.0"

if not pcall(ffi.typeof, "buflock_step") then require "resty.buflock.cdef" end

--- Refuses a library that these files were not made for: a wrong call would crash the worker.
local function checked(path, library)
  local ok, abi = pcall(function() return library.buflock_abi() end)
  if not ok then error("buflock: " .. path .. " is no libbuflock", 0) end
  if abi ~= ABI then
    local version = ffi.string(library.buflock_version())
    error(("buflock: %s has ABI %d (version %s), these Lua files need ABI %d: install both from one release")
      :format(path, abi, version, ABI), 0)
  end
  return library
end

local function load()
  local tried = {}
  for template in package.cpath:gmatch("[^;]+") do
    -- A relative one depends on where nginx was started, and anybody may write there.
    local folder = template:match("^(/.*/)[^/]*%?")
    local path = folder and not folder:find("?", 1, true) and folder .. FILE
    if path and not tried[path] then
      tried[path], tried[#tried + 1] = true, path
      local file = open(path, "rb")
      if file then
        file:close()
        local ok, library = pcall(ffi.load, path)
        if not ok then error("buflock: " .. path .. " cannot be loaded: " .. library, 0) end
        return checked(path, library)
      end
    end
  end
  local ok, library = pcall(ffi.load, SONAME)
  if ok then return checked(SONAME, library) end
  error(("buflock: no %s in lua_package_cpath (tried %s), and %s is not installed: run make install and ldconfig")
    :format(FILE, #tried > 0 and concat(tried, ", ") or "nothing", SONAME), 0)
end

return load()
