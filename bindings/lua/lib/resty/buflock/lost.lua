--- Leases that ended while somebody still counted on them: said once a minute for each key.
local system = require "resty.buflock.system"

local now = system.now
local log, WARN = ngx.log, ngx.WARN
local format, byte = string.format, string.byte

local MINUTE = 60
-- Of how many keys it is remembered, and how much of a key is shown.
local MOST, SHOWN = 1000, 60

local said, count = {}, 0

local _M = {}

local function shown(key)
  local text = key:sub(1, SHOWN):gsub("[^ -~]", function(char) return format("\\x%02x", byte(char)) end)
  return '"' .. text .. (#key > SHOWN and '..."' or '"')
end

--- Counts one.
---@param handle buflock.handle
---@param what string what came too late: "release", "extend"
---@param taken boolean whether another holds the lock
function _M.note(handle, key, what, taken)
  handle.lost = handle.lost + 1
  local time = now()
  if time < (said[key] or 0) then return end
  if count >= MOST then said, count = {}, 0 end
  said[key], count = time + MINUTE, count + 1
  local more = taken and ", and another holds the lock" or ""
  log(WARN, "buflock: the lease of ", shown(key), " ended before its ", what, more)
end

return _M
