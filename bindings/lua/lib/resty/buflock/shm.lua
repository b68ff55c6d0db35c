--- Acquiring and awaiting in shared memory without blocking the worker. Of all who wait here for one key one op is
--- outside, with the bell.
local ffi = require "ffi"
local semaphore = require "ngx.semaphore"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"
local phase = require "resty.buflock.phase"
local bells = require "resty.buflock.bell"
local lines = require "resty.buflock.line"

local min, max, ceil = math.min, math.max, math.ceil
local setmetatable, tonumber = setmetatable, tonumber
local gc = ffi.gc

local OK, SEGMENT = 0, -8
local DONE, BELL = 0, 5
local STEP, MAX_STEP = lines.STEP, 0.01

local step = ffi.new("buflock_step", { size = ffi.sizeof("buflock_step") })
local out = ffi.new("buflock_op *[1]")

local _M = { is_waited_for = lines.is_waited_for }

local function private_folder()
  return "/dev/shm/buflock-" .. system.euid()
end

local function bell_of(handle)
  return handle.bell or bells.of(handle, handle.folder or private_folder())
end

---@class buflock.shm_watch: buflock.watch
---@field op ffi.cdata*? an await for the end of the present hold
---@field id integer? by which the bell calls it
---@field armed boolean? whether the bell will ring for it
local watch = { max_step = MAX_STEP }
watch.__index = watch

function watch:stands()
  return self.op ~= nil
end

function watch:rings()
  return self.armed == true
end

--- A look costs next to nothing, and rings are only hints.
function watch.suffices()
  return false
end

function watch:stop()
  local op = self.op
  if op then
    if self.id then self.handle.bell.waits[self.id] = nil end
    self.op, self.armed, self.id = nil, nil, nil
    library.buflock_op_free(gc(op, nil))
  end
end

--- Has one of those who wait look again, if the hold is over or nobody rings any more.
function watch:ring()
  if self.op and library.buflock_op_next(self.op, step) == OK and step.kind == BELL and self.handle.bell:rings() then
    return
  end
  self:stop()
  self.line:wake()
end

function watch:start(pause)
  if not self.op then
    if library.buflock_op_await(self.handle.lock, self.key, #self.key, lines.LONG, out) ~= OK then return pause end
    self.op = gc(out[0], library.buflock_op_free)
  end
  if library.buflock_op_next(self.op, step) ~= OK then return pause end
  local kind, id, longest = step.kind, step.id, tonumber(step.ms) / 1000
  if kind == DONE then
    self:stop()
    return nil
  end
  local bell = bell_of(self.handle)
  self.armed = bell:rings() and kind == BELL
  if kind == BELL then
    self.id = id
    bell.waits[id] = self
  end
  return self.armed and longest or min(longest, pause)
end

local function try(handle, key, ttl, token, info)
  return library.buflock_acquire(handle.lock, key, #key, ttl, 0, token, info)
end

--- Tries once, without waiting. `token` has room for one; `info` may be nil, or is written.
---@return integer status
function _M.try(handle, key, ttl, token, info)
  local status = try(handle, key, ttl, token, info)
  if status == SEGMENT and handle.folder then -- somebody removed it, or it is the first time
    system.mkdir(handle.folder)
    status = try(handle, key, ttl, token, info)
  end
  return status
end

--- Waits at most `wait` seconds, after a try that was told BUSY.
---@return integer status
---@return number waited in seconds
---@return string? why it did not wait
function _M.wait(handle, key, ttl, wait, token, info, by_steps)
  local function again() return try(handle, key, ttl, token, info) end
  return lines.wait(not by_steps and lines.of(handle, key, watch) or nil, again, MAX_STEP, wait)
end

local awaiter = {}
awaiter.__index = awaiter

function awaiter:ring()
  self.semaphore:post(1)
end

--- Waits at most `wait` seconds for the end of the present hold.
---@return integer status
---@return string? why it did not wait
function _M.await(handle, key, wait)
  local ms = max(0, min(ceil(wait * 1000), lines.LONG))
  local why_not = ms > 0 and phase.why_not()
  local status = library.buflock_op_await(handle.lock, key, #key, why_not and 0 or ms, out)
  if status ~= OK then return status end
  local op = gc(out[0], library.buflock_op_free)
  local self, pause, bell, id = nil, STEP, nil, nil
  while true do
    status = library.buflock_op_next(op, step)
    local kind, longest = step.kind, tonumber(step.ms) / 1000
    if status ~= OK or kind == DONE then break end
    self = self or setmetatable({ semaphore = semaphore.new(0) }, awaiter)
    bell = bell or bell_of(handle)
    if kind == BELL then
      id = step.id
      bell.waits[id] = self
    end
    if not bell:rings() or kind ~= BELL then
      longest = min(longest, pause)
      pause = min(2 * pause, MAX_STEP)
    end
    self.semaphore:wait(max(STEP, longest))
  end
  if id then bell.waits[id] = nil end
  if status == OK then status = library.buflock_op_finish(op, nil, nil) end
  library.buflock_op_free(gc(op, nil))
  return status, why_not or nil
end

---@return integer status
function _M.extend(handle, key, token, ttl)
  return library.buflock_extend(handle.lock, key, #key, token, ttl)
end

---@return integer status
function _M.release(handle, key, token)
  return library.buflock_release(handle.lock, key, #key, token)
end

--- Who holds a key. `holder` is nil, or has room for 128 bytes.
---@return integer status BUSY: somebody
function _M.inspect(handle, key, info, holder)
  return library.buflock_inspect(handle.lock, key, #key, info, holder, 128)
end

---@return integer status
_M["break"] = function(handle, key)
  return library.buflock_break(handle.lock, key, #key)
end

return _M
