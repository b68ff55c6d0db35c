--- Lock services of this worker: one per URL and options, made once.
local ffi = require "ffi"
local library = require "resty.buflock.library"

local concat, sort = table.concat, table.sort
local tostring, type, pairs = tostring, type, pairs
local newproxy, getmetatable, setmetatable = newproxy, getmetatable, setmetatable

local _M = {}

---@class buflock.handle
---@field lock ffi.cdata*
---@field url string
---@field lines table the queues of those who wait in this worker, by key
---@field lost integer how many leases were found to have ended before their time
---@field drop (fun(self, key: string, token: string))? what a hold that is collected does, where the library is not to
---@field folder string? a directory that this worker's user may make, if it is missing
local handles = {}

---@return string
function _M.error()
  return ffi.string(library.buflock_last_error())
end

local function text(value)
  if value == true then return "on" end
  if value == false then return "off" end
  return tostring(value)
end

---@param url string
---@param opts table? options of the library, by name
---@return buflock.handle?
---@return string? err
function _M.new(url, opts)
  local parts = {}
  for name, value in pairs(opts or {}) do
    if type(name) ~= "string" then return nil, "options have names: { ttl = 30 }" end
    parts[#parts + 1] = name .. "=" .. text(value)
  end
  sort(parts)
  local id = url .. "\n" .. concat(parts, "\n")
  if handles[id] then return handles[id] end

  local config = ffi.gc(library.buflock_config_new(), library.buflock_config_free)
  for name, value in pairs(opts or {}) do
    if library.buflock_config_set(config, name, text(value)) ~= 0 then return nil, _M.error() end
  end
  local out = ffi.new("buflock_t *[1]")
  if library.buflock_new(url, config, out) ~= 0 then return nil, _M.error() end

  local lock = out[0]
  -- A userdata, since these are finalized after all cdata: holds and ops use the lock while they go.
  local anchor = newproxy(true)
  getmetatable(anchor).__gc = function() library.buflock_free(lock) end
  local handle = { lock = lock, url = url, anchor = anchor, lost = 0, lines = setmetatable({}, { __mode = "v" }) }
  handles[id] = handle
  return handle
end

return _M
