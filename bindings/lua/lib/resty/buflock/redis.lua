--- Locks over a Redis server, by cosockets. Of all who wait here for one key one op is outside, in the light thread of
--- a timer, which no request can take along.
local ffi = require "ffi"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"
local phase = require "resty.buflock.phase"
local lines = require "resty.buflock.line"
local driver = require "resty.buflock.driver"
local deferred = require "resty.buflock.deferred"

local now = system.now
local min, max = math.min, math.max
local timer_at = ngx.timer.at
local text = ffi.string

local OK, BUSY, UNAVAILABLE = 0, 1, -6
local MAX_STEP = 0.1
-- How long a timer may take to begin, and how long to do without where it does not, or where the watch failed.
local PATIENCE, PAUSE = 0.25, 5

local out = ffi.new("buflock_op *[1]")

local _M = { is_waited_for = lines.is_waited_for }

--- Makes a new handle ready.
function _M.prepare(handle)
  deferred.prepare(handle)
  handle.steps_until = 0
end

local function why_not()
  local why = phase.why_not()
  return why and why:gsub("^cannot wait", "cannot ask a server")
end

--- Drives an op that was made with `status`.
local function drive(handle, status, ...)
  if status ~= OK then return status end
  deferred.look_after(handle)
  return driver.run(handle, out[0], ...)
end

---@class buflock.redis_watch: buflock.watch
---@field run table? of a timer that was started
local watch = { max_step = MAX_STEP }
watch.__index = watch

function watch:stands()
  return self.run ~= nil
end

function watch:rings()
  return self.run ~= nil and self.run.begun
end

watch.suffices = watch.rings

--- It ends by itself when nobody waits any more.
function watch.stop()
end

local function look_out(_, self, run)
  if self.run ~= run then return end -- it came too late
  local handle, key, line = self.handle, self.key, self.line
  run.begun = true
  local status = drive(handle, library.buflock_op_await(handle.lock, key, #key, lines.LONG, out), nil, nil, nil,
    function() return line:matters() end)
  self.run = nil
  if status < OK then handle.steps_until = now() + MAX_STEP end
  line:wake_awaiters(status == OK)
  if line:waits() then line:wake() else line:forget() end
end

function watch:start(pause)
  local time, handle, run = now(), self.handle, self.run
  if run then
    if run.begun then return lines.SLICE end
    if time - run.since < PATIENCE then return PATIENCE end
    self.run, handle.steps_until = nil, time + PAUSE
  end
  if time < handle.steps_until then return pause end
  run = { since = time, begun = false }
  if not timer_at(0, look_out, self, run) then
    handle.steps_until = time + PAUSE
    return pause
  end
  self.run = run
  return PATIENCE
end

local function try(handle, key, ttl, token, info)
  return drive(handle, library.buflock_op_acquire(handle.lock, key, #key, ttl, 0, out), token, info)
end

--- Tries once, without waiting. `token` has room for one; `info` may be nil, or is written.
---@return integer status
---@return string? text of a failure
function _M.try(handle, key, ttl, token, info)
  local why = why_not()
  if why then return UNAVAILABLE, why end
  return try(handle, key, ttl, token, info)
end

--- Waits at most `wait` seconds, after a try that was told BUSY.
---@return integer status
---@return number waited in seconds
---@return string? why it did not wait, or what failed
function _M.wait(handle, key, ttl, wait, token, info, by_steps)
  local function again() return try(handle, key, ttl, token, info) end
  return lines.wait(not by_steps and lines.of(handle, key, watch) or nil, again, MAX_STEP, wait)
end

local function look(handle, key)
  return drive(handle, library.buflock_op_await(handle.lock, key, #key, 0, out))
end

--- Waits at most `wait` seconds for the end of the present hold.
---@return integer status
---@return string? text of a failure
function _M.await(handle, key, wait)
  local why = why_not()
  if why then return UNAVAILABLE, why end
  local deadline = now() + wait
  local line = wait > 0 and lines.of(handle, key, watch)
  local ends = line and line.ends
  local status, failure = look(handle, key)
  if not line then return status, failure end
  local pause = lines.STEP
  while status == BUSY do
    local left = deadline - now()
    if left <= 0 then break end
    local longest = line.watch:start(pause)
    pause = min(2 * pause, MAX_STEP)
    line.over:wait(max(lines.STEP, min(longest, left)))
    if line.ends ~= ends then
      -- One that ended while this call began may count: who hears of it too early looks again.
      status = OK
    elseif not line.watch:suffices() then
      status, failure = look(handle, key)
    end
  end
  line:leave()
  return status, failure
end

---@return integer status
---@return string? text of a failure
function _M.extend(handle, key, token, ttl)
  local why = why_not()
  if why then return UNAVAILABLE, why end
  return drive(handle, library.buflock_op_extend(handle.lock, key, #key, token, ttl, out))
end

--- Where it cannot be sent at once, it is sent in a moment.
---@return integer status
---@return string? "deferred", or text of a failure
function _M.release(handle, key, token)
  local why = why_not()
  if not why then return drive(handle, library.buflock_op_release(handle.lock, key, #key, token, out)) end
  deferred.look_after(handle)
  if deferred.release(handle, key, text(token)) then return OK, "deferred" end
  return UNAVAILABLE, why
end

--- Who holds a key. `holder` is nil, or has room for 128 bytes.
---@return integer status BUSY: somebody
---@return string? text of a failure
function _M.inspect(handle, key, info, holder)
  local why = why_not()
  if why then return UNAVAILABLE, why end
  return drive(handle, library.buflock_op_inspect(handle.lock, key, #key, out), nil, info, holder)
end

---@return integer status
---@return string? text of a failure
_M["break"] = function(handle, key)
  local why = why_not()
  if why then return UNAVAILABLE, why end
  return drive(handle, library.buflock_op_break(handle.lock, key, #key, out))
end

return _M
