-- KEYS  the lock; or the lock, its waiters' flag, the signals of acquirers and of awaiters
-- ARGV  token of the hold whose end is waited for, empty: any; 1: the caller will wait
-- '0'   nobody holds it, or another hold has begun;  'ms value'  what is left of the hold, and its value
local value = redis.call('GET', KEYS[1])
if not value or ARGV[1] ~= '' and string.sub(value, 1, 32) ~= ARGV[1] then return '0' end
local left = redis.pcall('PTTL', KEYS[1])
if type(left) == 'table' or left < 0 then left = 2147483647 end
-- more keys than one:
if KEYS[2] and ARGV[2] == '1' then
  redis.pcall('DEL', KEYS[4]) -- of a release before this hold
  redis.pcall('SET', KEYS[2], '1', 'PX', math.min(left, 60000) + 2000)
end
-- any keys:
return math.max(left, 1) .. ' ' .. string.sub(value, 1, 97) -- a token and a label
