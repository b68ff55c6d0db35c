--- Acquiring and awaiting in shared memory without blocking the worker.
---
--- Of all who wait here for one key one op is outside, with the bell; they themselves queue on semaphores, whose order
--- and number nginx keeps right also where light threads are killed.
local ffi = require "ffi"
local semaphore = require "ngx.semaphore"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"
local phase = require "resty.buflock.phase"
local bells = require "resty.buflock.bell"

local now = system.now
local min, max, ceil = math.min, math.max, math.ceil
local sleep = ngx.sleep
local setmetatable, tonumber = setmetatable, tonumber
local gc = ffi.gc

local OK, BUSY, SEGMENT = 0, 1, -8
local DONE, BELL = 0, 5
-- An await that ends with the hold only: 30 days.
local LONG = 2592000000
-- Pauses of those whom nobody rings, in seconds.
local STEP, MAX_STEP = 0.001, 0.01
-- How long those sleep who have others to look for them.
local SLICE = 0.5

local step = ffi.new("buflock_step", { size = ffi.sizeof("buflock_step") })
local out = ffi.new("buflock_op *[1]")

local _M = {}

---@class buflock.line
---@field head table the semaphore of one who was woken and came too late
---@field tail table the semaphore of the others
---@field op ffi.cdata*? an await for the end of the present hold
---@field id integer? by which the bell calls it
---@field armed boolean? whether the bell will ring for it
local line = {}
line.__index = line

local function private_folder()
  return "/dev/shm/buflock-" .. system.euid()
end

local function bell_of(handle)
  return handle.bell or bells.of(handle, handle.folder or private_folder())
end

local function line_of(handle, key)
  local self = handle.lines[key]
  if not self then
    local head, tail = semaphore.new(0), semaphore.new(0)
    if not (head and tail) then return nil end
    self = setmetatable({ handle = handle, key = key, head = head, tail = tail }, line)
    handle.lines[key] = self
  end
  return self
end

--- Whether anybody waits in it.
function line:waits()
  return self.head:count() < 0 or self.tail:count() < 0
end

function line:disarm()
  local op = self.op
  if op then
    if self.id then self.handle.bell.waits[self.id] = nil end
    self.op, self.armed, self.id = nil, nil, nil
    library.buflock_op_free(gc(op, nil))
  end
end

--- Has one of those who wait look again, if the hold is over or nobody rings any more.
function line:ring()
  if self.op and library.buflock_op_next(self.op, step) == OK and step.kind == BELL and self.handle.bell:rings() then
    return
  end
  self:disarm()
  if self.head:count() < 0 then
    self.head:post(1)
  elseif self.tail:count() < 0 then
    self.tail:post(1)
  end
end

--- Asks for a ring at the end of the present hold. Returns how long to sleep at most; nil: it is over already.
function line:arm(pause)
  if not self.op then
    if library.buflock_op_await(self.handle.lock, self.key, #self.key, LONG, out) ~= OK then return pause end
    self.op = gc(out[0], library.buflock_op_free)
  end
  if library.buflock_op_next(self.op, step) ~= OK then return pause end
  local kind, id, longest = step.kind, step.id, tonumber(step.ms) / 1000
  if kind == DONE then
    self:disarm()
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

--- One who waited goes. The others must still be woken by somebody.
function line:leave()
  if self:waits() then
    if not self.op and not self:arm(SLICE) then self:ring() end
  else
    self:disarm()
    if self.handle.lines[self.key] == self then self.handle.lines[self.key] = nil end
  end
end

local function try(handle, key, ttl, token, info)
  return library.buflock_acquire(handle.lock, key, #key, ttl, 0, token, info)
end

--- As a fallback, and for those who want no thread in their workers.
local function wait_by_steps(handle, key, ttl, token, info, begun, deadline)
  local pause = STEP
  while true do
    local left = deadline - now()
    if left <= 0 then return BUSY, now() - begun end
    sleep(max(STEP, min(pause, left)))
    pause = min(2 * pause, MAX_STEP)
    local status = try(handle, key, ttl, token, info)
    if status ~= BUSY then return status, now() - begun end
  end
end

local function wait_in_line(self, ttl, token, info, begun, deadline)
  local handle, key = self.handle, self.key
  local place, pause, hurry = self.tail, STEP, 0
  -- Those who wait come first.
  local others = self.armed and self:waits()
  while true do
    local left, longest = deadline - now(), SLICE
    if left <= 0 then
      self:leave()
      return BUSY, now() - begun
    end
    if not others then
      longest = self:arm(pause)
      pause = min(2 * pause, MAX_STEP)
      if not longest then -- over already; but don't spin where it is taken again and again
        hurry = hurry + 1
        longest = hurry % 8 == 0 and STEP or 0
      end
    end
    others = false
    if longest > 0 then
      local rung, err = place:wait(max(STEP, min(longest, left)))
      if rung then
        place = self.head
      elseif err ~= "timeout" then
        self:leave()
        return BUSY, now() - begun, err
      end
    end
    local status = try(handle, key, ttl, token, info)
    if status ~= BUSY then
      self:leave()
      return status, now() - begun
    end
  end
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
  local why_not = phase.why_not()
  if why_not then return BUSY, 0, why_not end
  local begun = now()
  local self = not by_steps and line_of(handle, key)
  if not self then return wait_by_steps(handle, key, ttl, token, info, begun, begun + wait) end
  return wait_in_line(self, ttl, token, info, begun, begun + wait)
end

--- Whether others of this worker are waiting for a key: who comes now, and may wait, goes behind them.
function _M.is_waited_for(handle, key)
  local self = handle.lines[key]
  return self ~= nil and self.armed and self:waits()
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
  local ms = max(0, min(ceil(wait * 1000), LONG))
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

return _M
