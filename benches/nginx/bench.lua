--- What the bench has measured in a worker.
local ffi = require "ffi"
local locks = require "resty.buflock.lock"
local buflock = require "resty.buflock"
local instance = require "resty.buflock.instance"
local library = require "resty.buflock.library"
local now = require("resty.buflock.system").now

local PAIRS = 100000

local _M = {}

local cost = {}

function cost.pair()
  local dict = ngx.shared.pairs
  for _ = 1, PAIRS do
    dict:add("key", true, 30)
    dict:delete("key")
  end
end

function cost.library()
  local lock, token = instance.attached(instance.scope("locks")).lock, ffi.new("char[64]")
  for _ = 1, PAIRS do
    library.buflock_acquire(lock, "key", 3, 30000, 0, token, nil)
    library.buflock_release(lock, "key", 3, token)
  end
end

function cost.reused()
  local lock = locks:new("locks")
  for _ = 1, PAIRS do
    lock:lock("key")
    lock:unlock()
  end
end

function cost.new()
  for _ = 1, PAIRS do
    local lock = locks:new("locks")
    lock:lock("key")
    lock:unlock()
  end
end

--- ns of a pair.
function _M.cost(args)
  local begun = now()
  cost[args.kind]()
  ngx.say((now() - begun) / PAIRS * 1e9)
end

function _M.held(args)
  ngx.say(instance.scope("locks") and locks:new("locks").dict:get(args.key) and 1 or 0)
end

--- When it was given back.
function _M.hold(args)
  local lock = locks:new("locks")
  lock:lock(args.key)
  ngx.sleep(tonumber(args.ms) / 1000)
  local time = now()
  lock:unlock()
  ngx.say(("%.7f"):format(time))
end

local wait = {}

function wait.woken(key)
  local lock = locks:new("locks", { timeout = 10 })
  assert(lock:lock(key))
  return lock
end

--- As lua-resty-lock waits: 1 ms, twice as long each time, up to 0.5 s.
function wait.steps(key)
  local lock, step = locks:new("locks", { timeout = 0 }), 0.001
  while not lock:lock(key) do
    ngx.sleep(step)
    step = math.min(2 * step, 0.5)
  end
  return lock
end

--- When it was had.
function _M.wait(args)
  local lock = wait[args.how](args.key)
  local time = now()
  lock:unlock()
  ngx.say(("%.7f"):format(time))
end

function _M.section()
  local lock = locks:new("locks", { timeout = 1 })
  local elapsed, err = lock:lock("section")
  if elapsed then
    ngx.sleep(0.002)
    lock:unlock()
  end
  ngx.say(elapsed and "ok" or err)
end

function _M.redis(args)
  local guard, err = assert(buflock.new(REDIS)):acquire(args.key)
  if guard then guard:release() end
  ngx.say(err or "ok")
end

return _M
