--- Locks with the interface of lua-resty-lock: a drop-in for it.
local ffi = require "ffi"
local library = require "resty.buflock.library"
local handles = require "resty.buflock.handle"
local holds = require "resty.buflock.hold"
local instance = require "resty.buflock.instance"
local lost = require "resty.buflock.lost"
local shm = require "resty.buflock.shm"

local min, max, ceil, huge = math.min, math.max, math.ceil, math.huge
local type, tonumber, tostring, setmetatable, pairs = type, tonumber, tostring, setmetatable, pairs
local collectgarbage = collectgarbage
local log, WARN = ngx.log, ngx.WARN
local ngx_time = ngx.time
local acquire, release, extend = library.buflock_acquire, library.buflock_release, library.buflock_extend

local OK, BUSY, EXPIRED, TAKEN, NO_MEMORY = 0, 1, 2, 3, -7
-- 30 days, the longest lease.
local LONGEST = 2592000000
local LONGEST_KEY = 65535
local KNOWN = { exptime = true, timeout = true, step = true, ratio = true, max_step = true, wait = true }

local _M = { _VERSION = "0.1.0" }

---@class resty.buflock.lock
---@field exptime number
---@field timeout number
---@field step number
---@field ratio number
---@field max_step number
---@field waited number? how long the last `lock` really waited, in seconds
---@field dict { ttl: fun(self, key: any): number?, string? }
local lock = {}
local mt = { __index = lock }

-- What `lock.dict` is: the original's field is the dictionary itself, which some look into.
local dict = {}
dict.__index = dict

local function key_text(key)
  if type(key) == "string" then return key end
  if key == nil then return nil end
  return tostring(key)
end

local info = ffi.new("buflock_info", { size = ffi.sizeof("buflock_info") })

--- What is left of the lease of a key that anybody holds.
---@return number? seconds
---@return string? err
function dict:ttl(key)
  local text = key_text(key)
  if not text then return nil, "nil key" end
  local handle, err, detail = instance.attached(self.scope)
  if not handle then return nil, err, detail end
  text = self.scope.before .. text
  local status = library.buflock_inspect(handle.lock, text, #text, info, nil, 0)
  if status == BUSY then return info.left_ms / 1000 end
  if status == OK then return nil, "not found" end
  return nil, handles.error()
end

--- Whether anybody holds a key, as the original has it: true while it does.
function dict:get(key)
  return self:ttl(key) and true or nil
end

local dicts = {}

local function dict_of(scope)
  local self = dicts[scope]
  if not self then
    self = setmetatable({ scope = scope }, dict)
    dicts[scope] = self
  end
  return self
end

local warned = {}

local function warn_of_unknown(opts)
  for name in pairs(opts) do
    if not KNOWN[name] and not warned[name] then
      warned[name] = true
      log(WARN, "buflock: unknown option ", tostring(name), " is ignored")
    end
  end
end

-- Takes over a number; returns its name where it is none.
local function take(self, opts, name)
  local value = opts[name]
  if value == nil then return nil end
  if type(value) ~= "number" then value = tonumber(value) end
  if not value or value ~= value then return name end
  self[name] = value
end

---@param dict_name string declared by lua_shared_dict or `resty.buflock`.dict
---@param opts { exptime: number?, timeout: number?, step: number?, ratio: number?, max_step: number?, wait: string? }?
---@return resty.buflock.lock?
---@return string? err
function _M.new(_, dict_name, opts)
  local scope = instance.scope(dict_name)
  if not scope then return nil, "dictionary not found" end
  local self = {
    scope = scope, dict = dict_of(scope), exptime = 30, timeout = 5, step = 0.001, ratio = 2, max_step = 0.5,
  }
  if type(opts) == "table" then
    warn_of_unknown(opts)
    local bad = take(self, opts, "exptime") or take(self, opts, "timeout") or take(self, opts, "step")
      or take(self, opts, "ratio") or take(self, opts, "max_step")
    if bad then return nil, "bad " .. bad end
    if self.exptime <= 0 then return nil, "bad exptime" end
    -- As the original: only a timeout that was given is capped.
    if opts.timeout then self.timeout = min(self.timeout, self.exptime) end
    self.by_steps = opts.wait == "step"
  end
  return setmetatable(self, mt)
end

local function milliseconds(seconds)
  return min(ceil(seconds * 1000), LONGEST)
end

--- The original's answer is the sum of the sleeps of its schedule, of which the last is cut at the timeout. Here it is
--- the first such sum that is not below the real wait.
local function elapsed(self, waited, timeout)
  local step = max(0.001, self.step)
  local sum = step
  while sum < waited and sum < timeout do
    step = max(0.001, min(step * self.ratio, self.max_step))
    sum = sum + min(step, timeout - sum)
  end
  return sum
end

local vain_collection = 0

--- Locks of objects that were dropped stay held until the collector sees them. Before we say that there is no room, it
--- has a look; where that was of no use, not again in the same second.
local function try_after_collection(handle, key, ttl, token)
  local second = ngx_time()
  if second == vain_collection then return NO_MEMORY end
  collectgarbage()
  local status = shm.try(handle, key, ttl, token)
  if status == NO_MEMORY then vain_collection = second end
  return status
end

local function failed(status)
  if status == NO_MEMORY then return nil, "no memory", handles.error() end
  return nil, "unavailable", handles.error()
end

--- Locks a key for all workers of this instance.
---@param key string|number|boolean
---@return number? elapsed in seconds, by the schedule of steps
---@return string? err "timeout", "locked", "nil key", "empty key", "key too long", "no memory", "unavailable"
---@return string? detail
function lock:lock(key)
  if type(key) ~= "string" then
    key = key_text(key)
    if not key then return nil, "nil key" end
  end
  if self.hold then return nil, "locked" end
  if #key == 0 then return nil, "empty key" end
  if #key > LONGEST_KEY then return nil, "key too long" end
  local scope = self.scope
  local handle, err, detail = instance.attached(scope)
  if not handle then return nil, err, detail end
  local exptime, timeout = self.exptime, self.timeout
  if exptime <= 0 then return nil, "bad exptime" end
  local ttl = milliseconds(exptime)
  key = scope.before .. key

  local hold = holds.new()
  local token = hold.token
  local waits = timeout > 0
  local status, waited = BUSY, 0
  if not (waits and handle.lines[key] and shm.is_waited_for(handle, key)) then
    status = acquire(handle.lock, key, #key, ttl, 0, token, nil)
    if status < 0 then
      status = shm.try(handle, key, ttl, token)
      if status == NO_MEMORY then status = try_after_collection(handle, key, ttl, token) end
    end
  end
  if status == BUSY then
    if waits then
      status, waited, detail = shm.wait(handle, key, ttl, timeout, token, nil, self.by_steps)
      self.waited = waited
    end
    if status == BUSY then
      holds.done(hold)
      if detail then return nil, "timeout", detail end
      return nil, "timeout"
    end
    if status == OK then
      holds.begin(hold, handle, key)
      self.hold = hold
      return elapsed(self, waited, timeout)
    end
  end
  if status ~= OK then
    holds.done(hold)
    return failed(status)
  end
  holds.begin(hold, handle, key)
  self.hold, self.waited = hold, 0
  return 0
end

--- Gives the lock back.
---@return 1?
---@return string? err "unlocked": none is held; also, with detail "taken", where it was lost to another
---@return string? detail
function lock:unlock()
  local hold = self.hold
  if not hold then return nil, "unlocked" end
  local key = holds.key(hold)
  local status = release(self.scope.handle.lock, key, #key, hold.token)
  self.hold = nil
  holds.done(hold)
  if status == OK then return 1 end
  if status == EXPIRED or status == TAKEN then
    lost.note(self.scope.handle, key:sub(#self.scope.before + 1), "unlock", status == TAKEN)
    if status == EXPIRED then return 1 end
    return nil, "unlocked", "taken"
  end
  return failed(status)
end

--- Gives the lock a lease of `time` seconds from now on; without `time`, of exptime.
---@param time number?
---@return true?
---@return string? err "unlocked", "not found", "bad exptime"
---@return string? detail
function lock:expire(time)
  local hold = self.hold
  if not hold then return nil, "unlocked" end
  time = time == nil and self.exptime or tonumber(time)
  if not time or not (time > 0 and time <= huge) then return nil, "bad exptime" end
  local key = holds.key(hold)
  local status = extend(self.scope.handle.lock, key, #key, hold.token, milliseconds(time))
  if status == OK then return true end
  if status == EXPIRED then return nil, "not found", "expired" end
  if status == TAKEN then return nil, "unlocked", "taken" end
  return failed(status)
end

return _M
