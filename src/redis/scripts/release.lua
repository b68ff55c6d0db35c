-- KEYS  the lock; or the lock, its waiters' flag, the signals of acquirers and of awaiters
-- ARGV  token; empty: whoever holds it
-- 1     released;  0  nobody held it;  -1  another holds it
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if ARGV[1] ~= '' and string.sub(value, 1, 32) ~= ARGV[1] then return -1 end
redis.call('DEL', KEYS[1])
-- more keys than one:
-- Released. What follows may be refused, and must not look like a failure of the release.
if KEYS[2] and redis.pcall('GET', KEYS[2]) == '1' then
  for list = 3, 4 do
    redis.pcall('DEL', KEYS[list])
    redis.pcall('RPUSH', KEYS[list], '1')
    redis.pcall('PEXPIRE', KEYS[list], 5000)
  end
end
-- any keys:
return 1
