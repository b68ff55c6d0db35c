--- Releases that cannot be sent where they are asked for: in phases without cosockets, by the collector, and for light
--- threads that were killed. They go from a timer, many in one round trip.
local ffi = require "ffi"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"
local driver = require "resty.buflock.driver"

local now = system.now
local min = math.min
local timer_at, sleep, get_phase = ngx.timer.at, ngx.sleep, ngx.get_phase
local next, tonumber = next, tonumber
local text = ffi.string

local OK, REFUSED = 0, -5
-- How many are remembered; more end with their leases.
local MOST = 10000
-- How many go at once: the library remembers 64 that it has no reply to.
local BATCH = 32
-- How often a worker looks for what is left over, and how long it leaves alone a server that failed; in seconds.
local TICK, LONGEST_PAUSE = 1, 30
-- How long an exiting worker tries.
local PATIENCE = 2

local out = ffi.new("buflock_op *[1]")
local json = ffi.new("char[4096]")

local _M = {}

---@class buflock.queue
---@field first integer
---@field last integer
---@field forgotten integer how many found no room
---@field sends boolean? whether a light thread empties it
---@field kicked number when a timer was started for that
---@field ticked number when a worker last looked for what is left over
---@field pause number how long a server that failed is left alone
---@field again number when it is asked again

--- Makes a handle ready for it.
function _M.prepare(handle)
  handle.jobs = {}
  handle.queue = {
    first = 1, last = 0, keys = {}, tokens = {}, forgotten = 0,
    kicked = -1 / 0, ticked = -1 / 0, pause = TICK, again = 0,
  }
  handle.drop = _M.add
end

--- Remembers one. It is called by the garbage collector, too, so there is nothing in it but tables.
---@param token string
function _M.add(handle, key, token)
  local queue = handle.queue
  if queue.last - queue.first + 1 >= MOST then
    queue.forgotten = queue.forgotten + 1
    return
  end
  local last = queue.last + 1
  queue.last, queue.keys[last], queue.tokens[last] = last, key, token
end

--- Hands some to the library, which sends them ahead of its next command.
local function hand_over(handle, queue)
  local count = min(BATCH, queue.last - queue.first + 1)
  for at = queue.first, queue.first + count - 1 do
    local key, token = queue.keys[at], queue.tokens[at]
    queue.keys[at], queue.tokens[at] = nil, nil
    library.buflock_drop(handle.lock, key, #key, token)
  end
  queue.first = queue.first + count
  return count
end

--- How many the library has.
local function orphans(handle)
  local len = ffi.new("size_t[1]")
  if library.buflock_stats(handle.lock, json, 4096, len) ~= OK then return 0 end
  return tonumber(text(json, len[0]):match('"orphans":(%d+)')) or 0
end

--- Sends what is to be sent. A command that asks for nothing takes it along.
local function send(handle)
  local queue = handle.queue
  if queue.sends or now() < queue.again then return end
  queue.sends = true
  local left = orphans(handle)
  local due = left > 0
  while due or queue.last >= queue.first and left <= BATCH do
    if left <= BATCH then hand_over(handle, queue) end
    local status = library.buflock_op_inspect(handle.lock, "", 0, out)
    if status == OK then status = driver.run(handle, out[0]) end
    if status < OK and status ~= REFUSED then
      queue.again, queue.pause = now() + queue.pause, min(2 * queue.pause, LONGEST_PAUSE)
      break
    end
    queue.pause, due, left = TICK, false, orphans(handle)
  end
  queue.sends = nil
end

local function on_timer(_, handle)
  handle.queue.kicked = -1 / 0
  send(handle)
end

--- Remembers one, and sends it from a timer.
---@param token string
---@return boolean whether it can be sent
function _M.release(handle, key, token)
  -- Nothing runs behind exit_worker.
  if get_phase() == "exit_worker" then return false end
  _M.add(handle, key, token)
  local queue, time = handle.queue, now()
  if time - queue.kicked > TICK and timer_at(0, on_timer, handle) then queue.kicked = time end
  return true
end

local function tick(exiting, handle)
  local queue = handle.queue
  queue.ticked = now()
  driver.sweep(handle)
  send(handle)
  if not exiting and timer_at(TICK, tick, handle) then return end
  -- The worker ends. Its requests go on, and may be killed still.
  local deadline = now() + PATIENCE
  while next(handle.jobs) or queue.last >= queue.first and now() < deadline do
    sleep(TICK / 10)
    driver.sweep(handle)
    send(handle)
  end
end

--- Before a command: sees to it that somebody looks for what is left over, as long as this worker runs. Where no timer
--- can be had, the command takes it along.
function _M.look_after(handle)
  local queue = handle.queue
  local time = now()
  if queue.last >= queue.first and not queue.sends and time - queue.kicked > TICK then hand_over(handle, queue) end
  if time - queue.ticked > 3 * TICK and timer_at(TICK, tick, handle) then queue.ticked = time end
end

return _M
