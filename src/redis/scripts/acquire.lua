-- KEYS  the lock; or the lock, its waiters' flag, the signals of acquirers and of awaiters, the last fence
-- ARGV  value (it begins with the token), lease in ms, 1: the caller will wait; with fences the life of the last one in ms
-- > 0   held by another for so many ms;  <= 0  acquired, and without its sign this is the fence
-- more keys than one:
local fenced = KEYS[5]
local time
if fenced then
  if redis.replicate_commands then redis.replicate_commands() end
  time = redis.call('TIME') -- before any write: older servers refuse writes behind it
end
-- any keys:
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
-- more keys than one:
  if fenced then
    local fence = math.max(time[1] * 1000000 + time[2], (tonumber(redis.pcall('GET', KEYS[5])) or 0) + 1)
    local kept = redis.pcall('SET', KEYS[5], string.format('%.0f', fence), 'PX', ARGV[4])
    if kept.err then
      redis.call('DEL', KEYS[1])
      return kept
    end
    return -fence
  end
-- any keys:
  return 0
end
local value = redis.call('GET', KEYS[1])
if not value then return 1 end
if string.sub(value, 1, 32) == string.sub(ARGV[1], 1, 32) then -- an earlier try of ours, whose reply was lost
  local extended = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if type(extended) == 'table' then redis.call('SET', KEYS[1], value, 'XX', 'PX', ARGV[2]) end
-- more keys than one:
  if fenced then return -(tonumber(redis.pcall('GET', KEYS[5])) or 0) end
-- any keys:
  return 0
end
local left = redis.pcall('PTTL', KEYS[1])
if type(left) == 'table' or left < 0 then left = 2147483647 end
-- more keys than one:
if KEYS[2] and ARGV[3] == '1' then
  redis.pcall('DEL', KEYS[3]) -- of a release before this hold
  redis.pcall('SET', KEYS[2], '1', 'PX', math.min(left, 60000) + 2000)
end
-- any keys:
return math.max(left, 1)
