--- Those of a worker who wait for one key. One watch outside looks for all of them; they themselves queue on
--- semaphores, whose order and number nginx keeps right also where light threads are killed.
local semaphore = require "ngx.semaphore"
local system = require "resty.buflock.system"
local phase = require "resty.buflock.phase"

local now = system.now
local min, max = math.min, math.max
local sleep = ngx.sleep
local setmetatable = setmetatable

local BUSY = 1
-- The first pause of those whom nobody wakes, in seconds; nginx sleeps no shorter.
local STEP = 0.001
-- How long those sleep who have others to look for them.
local SLICE = 0.5

-- For an await that ends with the hold only: 30 days, in ms.
local LONG = 2592000000

local _M = { STEP = STEP, SLICE = SLICE, LONG = LONG }

---@class buflock.line
---@field head table the semaphore of one who was woken and came too late
---@field tail table the semaphore of the others
---@field over table the semaphore of those who only wait for the end of a hold
---@field ends integer how many ends of holds were seen
---@field watch buflock.watch
local line = {}
line.__index = line

--- What wakes a line: its class is a backend's.
---@class buflock.watch
---@field handle buflock.handle
---@field key string
---@field line buflock.line
---@field max_step number the longest pause of those whom nobody wakes
---@field start fun(self, pause: number): number? looks out; how long to sleep at most, nil: the hold is over already
---@field stands fun(self): boolean whether it was started
---@field rings fun(self): boolean whether it is sure to wake somebody
---@field suffices fun(self): boolean whether who was not woken need not look himself
---@field stop fun(self)

--- The line of a key; nil: there is no room for one.
---@param watch table the class of its watch
---@return buflock.line?
function _M.of(handle, key, watch)
  local self = handle.lines[key]
  if not self then
    local head, tail, over = semaphore.new(0), semaphore.new(0), semaphore.new(0)
    if not (head and tail and over) then return nil end
    self = setmetatable({ handle = handle, key = key, head = head, tail = tail, over = over, ends = 0 }, line)
    self.watch = setmetatable({ handle = handle, key = key, line = self }, watch)
    handle.lines[key] = self
  end
  return self
end

--- Whether others of this worker are waiting for a key: who comes now, and may wait, goes behind them.
---@return boolean
function _M.is_waited_for(handle, key)
  local self = handle.lines[key]
  return self ~= nil and self.watch:rings() and self:waits()
end

--- Whether anybody waits in it to acquire.
function line:waits()
  return self.head:count() < 0 or self.tail:count() < 0
end

--- Whether anybody waits in it at all.
function line:matters()
  return self:waits() or self.over:count() < 0
end

--- Has one of those who wait look again.
function line:wake()
  if self.head:count() < 0 then
    self.head:post(1)
  elseif self.tail:count() < 0 then
    self.tail:post(1)
  end
end

--- Has those who wait for the end of a hold look again. `ended`: it is over.
function line:wake_awaiters(ended)
  if ended then self.ends = self.ends + 1 end
  local count = -self.over:count()
  if count > 0 then self.over:post(count) end
end

--- One who waited goes. The others must still be woken by somebody.
function line:leave()
  if self:waits() then
    if not self.watch:stands() and not self.watch:start(SLICE) then self:wake() end
  elseif self.over:count() >= 0 then
    self.watch:stop()
    self:forget()
  end
end

--- It is of no use any more, unless its watch still stands.
function line:forget()
  if not self.watch:stands() and self.handle.lines[self.key] == self then self.handle.lines[self.key] = nil end
end

--- Waits until `try` answers something else than BUSY, or until the deadline.
function line:wait(try, begun, deadline)
  local watch = self.watch
  local place, pause, hurry = self.tail, STEP, 0
  -- Those who wait come first.
  local others = watch:rings() and self:waits()
  while true do
    local left, longest, rung = deadline - now(), SLICE, nil
    if left <= 0 then
      self:leave()
      return BUSY, now() - begun
    end
    if not others then
      longest = watch:start(pause)
      pause = min(2 * pause, watch.max_step)
      if not longest then -- over already; but don't spin where it is taken again and again
        hurry = hurry + 1
        longest = hurry % 8 == 0 and STEP or 0
      end
    end
    others = false
    if longest > 0 then
      local err
      rung, err = place:wait(max(STEP, min(longest, left)))
      if rung then
        place = self.head
      elseif err ~= "timeout" then
        self:leave()
        return BUSY, now() - begun, err
      end
    end
    if rung or not watch:suffices() then
      local status, why = try()
      if status ~= BUSY then
        self:leave()
        return status, now() - begun, why
      end
    end
  end
end

--- As a fallback, and for those who want no thread in their workers.
local function wait_by_steps(try, max_step, begun, deadline)
  local pause = STEP
  while true do
    local left = deadline - now()
    if left <= 0 then return BUSY, now() - begun end
    sleep(max(STEP, min(pause, left)))
    pause = min(2 * pause, max_step)
    local status, why = try()
    if status ~= BUSY then return status, now() - begun, why end
  end
end

--- Waits at most `wait` seconds, after a try that was told BUSY.
---@param self buflock.line? nil: by steps
---@return integer status
---@return number waited in seconds
---@return string? why it did not wait, or what failed
function _M.wait(self, try, max_step, wait)
  local why_not = phase.why_not()
  if why_not then return BUSY, 0, why_not end
  local begun = now()
  if not self then return wait_by_steps(try, max_step, begun, begun + wait) end
  return self:wait(try, begun, begun + wait)
end

return _M
