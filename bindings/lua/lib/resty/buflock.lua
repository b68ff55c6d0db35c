--- Locks that end by themselves, shared by nginx workers and other programs.
local ffi = require "ffi"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"
local handles = require "resty.buflock.handle"
local holds = require "resty.buflock.hold"
local instance = require "resty.buflock.instance"
local phase = require "resty.buflock.phase"
local lost = require "resty.buflock.lost"
local shm = require "resty.buflock.shm"
local redis = require "resty.buflock.redis"

local ceil, max = math.ceil, math.max
local type, tonumber, setmetatable, pairs, pcall, error =
  type, tonumber, setmetatable, pairs, pcall, error
local now, get_phase = system.now, ngx.get_phase

-- By the URL's scheme. A backend has the functions of shm: try, wait, await, extend, release, inspect, break.
local BACKENDS = { shm = shm, off = shm, redis = redis, rediss = redis, unix = redis }
local WORDS = {
  [1] = "busy", [2] = "expired", [3] = "taken", [-1] = "argument", [-2] = "config", [-3] = "unavailable",
  [-4] = "uncertain", [-5] = "refused", [-6] = "unavailable", [-7] = "no memory", [-8] = "unavailable", [-9] = "panic",
}
local OK, BUSY, EXPIRED, TAKEN = 0, 1, 2, 3
local DEFAULT, LONGEST = 4294967295, 2592000000

local info = ffi.new("buflock_info", { size = ffi.sizeof("buflock_info") })

local _M = {
  _VERSION = "0.1.0",
  instance = instance.instance,
  dict = instance.dict,
}

---@class resty.buflock.service
local service = {}
service.__index = service

--- A lock that is held. One that is collected gives the lock back.
---@class resty.buflock.guard
---@field key string
---@field fence number grows with every holder of the key; 0 none
---@field waited number how long was waited for it, in seconds
local guard = {}
guard.__index = guard

--- Whether a call may wait here, or can only try.
---@return boolean
function _M.can_wait()
  return phase.why_not() == nil
end

--- A lock service. It is made once per worker and URL with options, so it may be asked for in each request.
---@param url string such as shm:pages, redis://user:password@10.0.0.7/2, unix:///run/redis.sock
---@param opts table? options of the library, and wait = "step" for no thread in the worker
---@return resty.buflock.service?
---@return string? err
---@return string? detail
function _M.new(url, opts)
  if type(url) ~= "string" then return nil, "argument", "the URL is a string" end
  local backend = BACKENDS[url:match("^(%a+):")]
  if backend == redis and not url:find("://", 1, true) then
    return nil, "config", "redis: without a host is for programs that carry the commands; say redis://HOST"
  end
  local for_library, by_steps = {}, false
  for name, value in pairs(opts or {}) do
    if name == "wait" then by_steps = value == "step" else for_library[name] = value end
  end
  if backend == redis and for_library.nudge == nil then
    for_library.nudge = false -- a read that ends by its time would be an error line in nginx's log
  end
  local handle, err = handles.new(url, for_library)
  if not handle then return nil, "config", err end
  if backend == redis and not handle.queue then redis.prepare(handle) end
  return setmetatable({ handle = handle, backend = backend, by_steps = by_steps }, service)
end

local function refused(word, detail)
  if detail then return nil, word, detail end
  return nil, word
end

local function failed(status, text)
  return refused(WORDS[status] or "unavailable", status < 0 and (text or handles.error()))
end

-- Seconds as the library's ms; nil: they are no such time.
local function lease_ms(seconds)
  if seconds == nil then return DEFAULT end
  seconds = tonumber(seconds)
  if not seconds or not (seconds > 0 and seconds * 1000 <= LONGEST) then return nil end
  return ceil(seconds * 1000)
end

local BAD_TTL = "ttl is a number of seconds above 0, up to 30 days"
local BAD_KEY = "the key is a string"

local function usable(key)
  if type(key) ~= "string" then return nil, "argument", BAD_KEY end
  if get_phase() == "init" then return nil, "unavailable", "cannot lock in init phase" end
  return true
end

local function new_guard(self, key, hold, waited)
  holds.begin(hold, self.handle, key)
  return setmetatable({
    key = key, service = self, hold = hold, waited = waited,
    fence = tonumber(info.fence), ends = now() + info.left_ms / 1000,
  }, guard)
end

--- Acquires a key, for `ttl` seconds, waiting at most `wait` seconds; without `wait` it tries once.
---@param key string
---@param opts { ttl: number?, wait: number? }?
---@return resty.buflock.guard?
---@return string? err "busy", or what failed: "unavailable", "no memory", "argument"
---@return string? detail
function service:acquire(key, opts)
  local ok, err, detail = usable(key)
  if not ok then return nil, err, detail end
  local ttl, wait = lease_ms(opts and opts.ttl), opts and tonumber(opts.wait) or 0
  if not ttl then return nil, "argument", BAD_TTL end
  local handle, backend = self.handle, self.backend
  local hold = holds.new()
  local status, waited = BUSY, 0
  if wait <= 0 or not backend.is_waited_for(handle, key) then
    status, detail = backend.try(handle, key, ttl, hold.token, info)
  end
  if status == BUSY and wait > 0 then
    status, waited, detail = backend.wait(handle, key, ttl, wait, hold.token, info, self.by_steps)
  end
  if status == OK then return new_guard(self, key, hold, waited) end
  holds.done(hold)
  if status == BUSY then return refused("busy", detail) end
  return failed(status, detail)
end

--- Waits at most `wait` seconds for the end of the present hold, without taking the lock.
---@param key string
---@param wait number?
---@return true? free now, or released or in other hands since the call began
---@return string? err "busy": the same hold still stands
---@return string? detail
function service:await(key, wait)
  local ok, err, detail = usable(key)
  if not ok then return nil, err, detail end
  local status, text = self.backend.await(self.handle, key, max(0, tonumber(wait) or 0))
  if status == OK then return true end
  if status == BUSY then return refused("busy", text) end
  return failed(status, text)
end

--- Runs `work(guard, ...)` while it holds the key. An error in it releases and goes on.
---@return true? done; then what `work` returned
function service:with(key, opts, work, ...)
  local held, err, detail = self:acquire(key, opts)
  if not held then return refused(err, detail) end
  local function finish(ok, ...)
    held:release()
    if not ok then error((...), 0) end
    return true, ...
  end
  return finish(pcall(work, held, ...))
end

-- By the one who holds the lock. A build that fails leaves it held for a while, so that not all try one after another.
local function build(held, opts)
  local key = held.key
  local function work()
    local value = opts.get(key) -- it may be there since the first look
    if value ~= nil then return value end
    value = opts.build(key, held)
    if value ~= nil and opts.set then opts.set(key, value, held) end
    return value
  end
  local ok, value = pcall(work)
  if opts.cool and (not ok or value == nil) then held:keep(opts.cool) end
  held:release()
  if not ok then error(value, 0) end
  return value
end

---@class resty.buflock.fetching
---@field get fun(key: string): any asks the cache
---@field build fun(key: string, guard: resty.buflock.guard): any makes the value
---@field set (fun(key: string, value: any, guard: resty.buflock.guard))? stores it
---@field stale (fun(key: string): any)? what others take meanwhile
---@field wait number? how long others wait
---@field ttl number? the lease of who builds
---@field cool number? how long nobody tries again after a build that failed or gave nil

--- What a cache has of a key, which only one builds where it is missing; the others wait for it, or take what is stale.
--- An error in a function goes on.
---@param key string
---@param opts resty.buflock.fetching
---@return any value nil, without more: it was built, and is nil
---@return string? err "busy": another builds, and the wait is over; or the lock cannot be asked: nothing was built
---@return string? detail
function service:fetch(key, opts)
  if type(opts) ~= "table" or type(opts.get) ~= "function" or type(opts.build) ~= "function" then
    return nil, "argument", "fetch needs get and build, which are functions"
  end
  local deadline = now() + (tonumber(opts.wait) or 0)
  while true do
    local value = opts.get(key)
    if value ~= nil then return value end
    local held, err, detail = self:acquire(key, { ttl = opts.ttl })
    if held then return build(held, opts) end
    if err ~= "busy" then return nil, err, detail end
    value = opts.stale and opts.stale(key)
    if value ~= nil then return value end
    local left = deadline - now()
    if left <= 0 then return nil, "busy" end
    local over
    over, err, detail = self:await(key, left)
    if not over and err ~= "busy" or detail then return nil, err, detail end
  end
end

--- Who holds a key.
---@return { holder: string, left: number }? nil, "free": nobody
---@return string? err
---@return string? detail
function service:inspect(key)
  local ok, err, detail = usable(key)
  if not ok then return nil, err, detail end
  local holder = ffi.new("char[128]")
  local status, text = self.backend.inspect(self.handle, key, info, holder)
  if status == OK then return nil, "free" end
  if status == BUSY then return { holder = ffi.string(holder), left = info.left_ms / 1000 } end
  return failed(status, text)
end

--- An operator's act: frees a key, whoever holds it.
---@return true? nil, "expired": nobody held it
service["break"] = function(self, key)
  local ok, err, detail = usable(key)
  if not ok then return nil, err, detail end
  local status, text = self.backend["break"](self.handle, key)
  if status == OK then return true end
  return failed(status, text)
end

--- The library's statistics, and how many leases this worker saw end before their time: a JSON object in a line.
---@return string? json
---@return string? err
---@return string? detail
function service:stats()
  local room, len = ffi.new("char[4096]"), ffi.new("size_t[1]")
  local status = library.buflock_stats(self.handle.lock, room, 4096, len)
  if status ~= OK then return failed(status) end
  return (ffi.string(room, len[0]):gsub("}$", (',"leases_lost":%d}'):format(self.handle.lost)))
end

--- Makes a guard of what another detached.
---@param detached { key: string, token: string }
---@return resty.buflock.guard?
---@return string? err
---@return string? detail
function service:adopt(detached)
  local key, token = detached.key, detached.token
  local ok, err, detail = usable(key)
  if not ok then return nil, err, detail end
  if type(token) ~= "string" or #token > 63 then return nil, "argument", "the token is a string of at most 63 bytes" end
  local hold = holds.new()
  ffi.copy(hold.token, token)
  if self.backend.inspect(self.handle, key, info) ~= BUSY then info.left_ms = 0 end
  info.fence = 0
  return new_guard(self, key, hold, 0)
end

-- Over: this guard holds nothing any more.
local function let_go(self, why)
  self.hold, self.why = nil, why
end

-- What a release or an extend came to that is not OK.
local function too_late(self, what, status, text)
  if status == EXPIRED or status == TAKEN then lost.note(self.service.handle, self.key, what, status == TAKEN) end
  return failed(status, text)
end

--- Gives the lock back.
---@return true?
---@return string? err "expired", "taken": it was lost before; "released": by this guard. With true: "deferred", it is
--- sent to the server in a moment
---@return string? detail
function guard:release()
  local hold = self.hold
  if not hold then return nil, self.why end
  let_go(self, "released") -- at once: another light thread may have this guard too
  local status, text = self.service.backend.release(self.service.handle, self.key, hold.token)
  holds.done(hold)
  if status ~= OK then return too_late(self, "release", status, text) end
  if text then return true, text end
  return true
end

-- The lease that the library gives where none is said.
local function default_lease(self)
  return self.service.backend.inspect(self.service.handle, self.key, info) == BUSY and info.left_ms or 0
end

--- Gives it a lease of `ttl` seconds from now on.
---@param ttl number?
---@return true?
---@return string? err as of release
---@return string? detail
function guard:extend(ttl)
  local hold = self.hold
  if not hold then return nil, self.why end
  local ms = lease_ms(ttl)
  if not ms then return nil, "argument", BAD_TTL end
  local begun = now()
  local status, text = self.service.backend.extend(self.service.handle, self.key, hold.token, ms)
  if status == OK then
    self.ends = begun + (ms == DEFAULT and default_lease(self) or ms) / 1000
    return true
  end
  if status > OK and self.hold == hold then
    let_go(self, WORDS[status])
    holds.done(hold)
  end
  return too_late(self, "extend", status, text)
end

--- What is left of the lease, in seconds, by this worker's clock; 0: nothing.
---@return number
function guard:left()
  return self.hold and max(0, self.ends - now()) or 0
end

--- Whether the lease has ended, or was lost to another.
---@return boolean
function guard:lost()
  return self.why == "expired" or self.why == "taken" or self.hold ~= nil and self.ends <= now()
end

--- Hands the lock to somebody else, who adopts it: a plain table, which may travel. This guard holds nothing any more.
---@return { key: string, token: string }?
---@return string? err
function guard:detach()
  local hold = self.hold
  if not hold then return nil, self.why end
  let_go(self, "detached")
  local detached = { key = self.key, token = ffi.string(hold.token) }
  holds.done(hold)
  return detached
end

--- Extends it and lets it go: the lock stays held for so long, and nobody releases it.
---@param seconds number
---@return true?
---@return string? err as of release
---@return string? detail
function guard:keep(seconds)
  local ok, err, detail = self:extend(seconds)
  if not ok then return refused(err, detail) end
  local hold = self.hold
  if hold then
    let_go(self, "kept")
    holds.done(hold)
  end
  return true
end

return _M
