--- Tells this worker which of its waits in shared memory to look at again: the library's thread writes their ids to a
--- socket that one light thread reads. It starts with the first wait.
local ffi = require "ffi"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"

local timer_at, tcp, exiting = ngx.timer.at, ngx.socket.tcp, ngx.worker.exiting
local log, WARN = ngx.log, ngx.WARN
local now = system.now
local setmetatable, pairs = setmetatable, pairs
local cast = ffi.cast

local DAY = 86400
-- How long to leave it alone where it could not be started, and how long starting may take.
local PAUSE, PATIENCE = 5, 1
-- A read that never ends by itself: nginx would write an error line.
local FOREVER = 2147483647

---@class buflock.bell
---@field state "off"|"starting"|"on"|"over"
local bell = {}
bell.__index = bell

local _M = {}

--- The bell of a handle. `folder` is a directory of this worker's user, for the socket.
function _M.of(handle, folder)
  if not handle.bell then
    handle.bell = setmetatable({
      lock = handle.lock, folder = folder, state = "off", since = -PAUSE,
      waits = setmetatable({}, { __mode = "v" }), -- those of a killed light thread go by themselves
    }, bell)
  end
  return handle.bell
end

function bell:leave(state)
  self.state, self.since = state, now()
  for _, wait in pairs(self.waits) do wait:ring() end
end

--- The reader would keep an exiting worker alive. A pending timer is what is called then.
local function on_exit(premature, self)
  if premature then
    library.buflock_bell_quit(self.lock)
  else
    timer_at(DAY, on_exit, self)
  end
end

local function read(premature, self)
  if premature then return self:leave("over") end
  local socket = tcp()
  socket:settimeouts(1000, 1000, FOREVER)
  local ok, err = socket:connect("unix:" .. self.path)
  if not ok then
    log(WARN, "buflock: waiting goes by steps, since the bell's socket cannot be reached: ", err)
    return self:leave("off")
  end
  self.path, self.state = nil, "on"
  if not self.hooked then self.hooked = timer_at(DAY, on_exit, self) end
  while self.hooked do
    local bytes = socket:receive(4)
    local id = bytes and cast("const uint32_t *", bytes)[0]
    if not id or id == 0 then break end
    local wait = self.waits[id]
    if wait then wait:ring() end
  end
  socket:close()
  self:leave(exiting() and "over" or "off")
end

--- Whether rings can be relied on, now or in a moment; starts it if need be.
function bell:rings()
  if self.state == "on" then return true end
  if self.state == "over" then return false end
  local time = now()
  if self.state == "starting" then
    if time - self.since > PATIENCE then self.state, self.since = "off", time end
    return false
  end
  if time - self.since < PAUSE then return false end
  self.since = time
  if exiting() then self.state = "over" return false end
  if not self.path then
    local path = ("%s/bell.%d.%.0f"):format(self.folder, ngx.worker.pid(), time * 1e6)
    system.mkdir(self.folder)
    if library.buflock_bell_listen(self.lock, path) ~= 0 then
      log(WARN, "buflock: waiting goes by steps: ", ffi.string(library.buflock_last_error()))
      return false
    end
    self.path = path
  end
  if timer_at(0, read, self) then self.state = "starting" end
  return false
end

return _M
