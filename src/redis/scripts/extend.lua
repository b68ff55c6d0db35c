-- KEYS  the lock
-- ARGV  token, lease in ms
-- 1     extended;  0  nobody holds it;  -1  another holds it
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if string.sub(value, 1, 32) ~= ARGV[1] then return -1 end
local extended = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
if type(extended) == 'table' then redis.call('SET', KEYS[1], value, 'XX', 'PX', ARGV[2]) end
return 1
