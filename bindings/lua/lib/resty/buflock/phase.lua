--- Where a call may wait.
local system = require "resty.buflock.system"

local get_phase = ngx.get_phase

local WAITS = {
  rewrite = true, server_rewrite = true, access = true, content = true, timer = true, preread = true,
  ssl_cert = true, ssl_client_hello = true, ssl_session_fetch = true,
}

local _M = {}

--- nil: it may wait here; else why not.
---@return string?
function _M.why_not()
  local phase = get_phase()
  if not WAITS[phase] then return "cannot wait in " .. phase .. " phase" end
  if not system.can_yield() then return "cannot wait below a C function" end
end

return _M
