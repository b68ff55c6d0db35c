--- Locks that end by themselves, shared by nginx workers and other programs.
local ffi = require "ffi"
local library = require "resty.buflock.library"
local system = require "resty.buflock.system"
local handles = require "resty.buflock.handle"
local holds = require "resty.buflock.hold"
local instance = require "resty.buflock.instance"
local phase = require "resty.buflock.phase"
local shm = require "resty.buflock.shm"

local ceil, max = math.ceil, math.max
local type, tonumber, setmetatable, pairs, pcall, error =
  type, tonumber, setmetatable, pairs, pcall, error
local now, get_phase = system.now, ngx.get_phase

-- By the URL's scheme. A backend has the functions of shm: try, wait, await, extend, release.
local BACKENDS = { shm = shm, off = shm }
local WORDS = {
  [1] = "busy", [2] = "expired", [3] = "taken", [-1] = "argument", [-2] = "config", [-3] = "unavailable",
  [-4] = "uncertain", [-5] = "refused", [-6] = "unavailable", [-7] = "no memory", [-8] = "unavailable", [-9] = "panic",
}
local OK, BUSY = 0, 1
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
---@param url string such as shm:pages
---@param opts table? options of the library, and wait = "step" for no thread in the worker
---@return resty.buflock.service?
---@return string? err
---@return string? detail
function _M.new(url, opts)
  if type(url) ~= "string" then return nil, "argument", "the URL is a string" end
  local scheme = url:match("^(%a+):")
  local backend = BACKENDS[scheme]
  if not backend and (scheme == "redis" or scheme == "rediss" or scheme == "unix") then
    return nil, "config", "Redis is not supported in nginx yet"
  end
  local for_library, by_steps = {}, false
  for name, value in pairs(opts or {}) do
    if name == "wait" then by_steps = value == "step" else for_library[name] = value end
  end
  local handle, err = handles.new(url, for_library)
  if not handle then return nil, "config", err end
  return setmetatable({ handle = handle, backend = backend, by_steps = by_steps }, service)
end

local function refused(word, detail)
  if detail then return nil, word, detail end
  return nil, word
end

local function failed(status)
  return refused(WORDS[status] or "unavailable", status < 0 and handles.error())
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
  holds.begin(hold, self.handle.lock, key)
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
    status = backend.try(handle, key, ttl, hold.token, info)
  end
  if status == BUSY and wait > 0 then
    status, waited, detail = backend.wait(handle, key, ttl, wait, hold.token, info, self.by_steps)
  end
  if status == OK then return new_guard(self, key, hold, waited) end
  holds.done(hold)
  if status == BUSY then return refused("busy", detail) end
  return failed(status)
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
  local status, why_not = self.backend.await(self.handle, key, max(0, tonumber(wait) or 0))
  if status == OK then return true end
  if status == BUSY then return refused("busy", why_not) end
  return failed(status)
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

--- Who holds a key.
---@return { holder: string, left: number }? nil, "free": nobody
---@return string? err
---@return string? detail
function service:inspect(key)
  local ok, err, detail = usable(key)
  if not ok then return nil, err, detail end
  local holder = ffi.new("char[128]")
  local status = library.buflock_inspect(self.handle.lock, key, #key, info, holder, 128)
  if status == OK then return nil, "free" end
  if status == BUSY then return { holder = ffi.string(holder), left = info.left_ms / 1000 } end
  return failed(status)
end

--- An operator's act: frees a key, whoever holds it.
---@return true? nil, "expired": nobody held it
service["break"] = function(self, key)
  local ok, err, detail = usable(key)
  if not ok then return nil, err, detail end
  local status = library.buflock_break(self.handle.lock, key, #key)
  if status == OK then return true end
  return failed(status)
end

--- The library's statistics: a JSON object in a line.
---@return string? json
---@return string? err
---@return string? detail
function service:stats()
  local room, len = ffi.new("char[4096]"), ffi.new("size_t[1]")
  local status = library.buflock_stats(self.handle.lock, room, 4096, len)
  if status == OK then return ffi.string(room, len[0]) end
  return failed(status)
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
  info.fence = 0
  if library.buflock_inspect(self.handle.lock, key, #key, info, nil, 0) ~= BUSY then info.left_ms = 0 end
  info.fence = 0
  return new_guard(self, key, hold, 0)
end

-- Over: this guard holds nothing any more.
local function let_go(self, why)
  holds.done(self.hold)
  self.hold, self.why = nil, why
end

--- Gives the lock back.
---@return true?
---@return string? err "expired", "taken": it was lost before; "released": by this guard
---@return string? detail
function guard:release()
  local hold = self.hold
  if not hold then return nil, self.why end
  local status = self.service.backend.release(self.service.handle, self.key, hold.token)
  let_go(self, "released")
  if status == OK then return true end
  return failed(status)
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
  local handle = self.service.handle
  local status = self.service.backend.extend(handle, self.key, hold.token, ms)
  if status == OK then
    if ms == DEFAULT and library.buflock_inspect(handle.lock, self.key, #self.key, info, nil, 0) == BUSY then
      ms = info.left_ms
    end
    self.ends = now() + ms / 1000
    return true
  end
  if status > 0 then let_go(self, WORDS[status]) end
  return failed(status)
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
  local detached = { key = self.key, token = ffi.string(hold.token) }
  let_go(self, "detached")
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
  let_go(self, "kept")
  return true
end

return _M
