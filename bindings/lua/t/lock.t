# The documented sentences of lua-resty-lock, in their order, and the edges.
use lib 't/lib';
use Blocks;

run_tests();

__DATA__

=== TEST 1: the synopsis
--- http_config
    lua_package_path "$TEST_NGINX_COMPAT/?.lua;$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua '
            local resty_lock = require "resty.lock"
            for i = 1, 2 do
                local lock, err = resty_lock:new("my_locks")
                if not lock then
                    ngx.say("failed to create lock: ", err)
                end

                local elapsed, err = lock:lock("my_key")
                ngx.say("lock: ", elapsed, ", ", err)

                local ok, err = lock:unlock()
                if not ok then
                    ngx.say("failed to unlock: ", err)
                end
                ngx.say("unlock: ", ok)
            end
        ';
    }
--- request
GET /t
--- response_body
lock: 0, nil
unlock: 1
lock: 0, nil
unlock: 1
--- no_error_log
[error]
[warn]

=== TEST 2: new: a dictionary that nobody declared
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            ngx.say(locks:new("no_such"))
            ngx.say(locks:new())
            ngx.say(locks:new(42))
            ngx.say(locks:new(""))
        }
    }
--- request
GET /t
--- response_body
nildictionary not found
nildictionary not found
nildictionary not found
nildictionary not found
--- no_error_log
[error]
[warn]

=== TEST 3: exptime is 30, timeout 5, step 0.001, ratio 2, max_step 0.5
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks")
            ngx.say(lock.exptime, " ", lock.timeout, " ", lock.step, " ", lock.ratio, " ", lock.max_step)
            lock:lock("key")
            ngx.say(math.floor(lock.dict:ttl("key") + 0.5))
        }
    }
--- request
GET /t
--- response_body
30 5 0.001 2 0.5
30
--- no_error_log
[error]
[warn]

=== TEST 4: exptime: a lock that nobody unlocks ends by itself
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first = locks:new("my_locks", { exptime = 0.1 })
            local second = locks:new("my_locks", { timeout = 1 })
            assert(first:lock("key") == 0)
            local elapsed = second:lock("key")
            ngx.say(elapsed)
            ngx.say(second.waited >= 0.05 and second.waited < 0.125)
        }
    }
--- request
GET /t
--- response_body
0.127
true
--- no_error_log
[error]
[warn]

=== TEST 5: exptime and timeout down to 0.001
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first = locks:new("my_locks", { exptime = 0.001 })
            local second = locks:new("my_locks", { timeout = 0.001 })
            assert(first:lock("key") == 0)
            ngx.sleep(0.003)
            ngx.say(second:lock("key"))
            ngx.say(locks:new("my_locks", { timeout = 0.001 }):lock("key"))
        }
    }
--- request
GET /t
--- response_body
0
niltimeout
--- no_error_log
[error]
[warn]

=== TEST 6: timeout is at most exptime
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            ngx.say(locks:new("my_locks", { timeout = 10, exptime = 3 }).timeout)
            ngx.say(locks:new("my_locks", { timeout = 3, exptime = 10 }).timeout)
            ngx.say(locks:new("my_locks", { timeout = 60 }).timeout)
            ngx.say(locks:new("my_locks", { exptime = 1 }).timeout)
        }
    }
--- request
GET /t
--- response_body
3
3
30
5
--- no_error_log
[error]
[warn]

=== TEST 7: timeout 0 returns at once
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first, second = locks:new("my_locks"), locks:new("my_locks", { timeout = 0 })
            ngx.say(second:lock("key"))
            second:unlock()
            first:lock("key")
            ngx.update_time()
            local begun = ngx.now()
            ngx.say(second:lock("key"))
            ngx.update_time()
            ngx.say(ngx.now() - begun < 0.005)
        }
    }
--- request
GET /t
--- response_body
0
niltimeout
true
--- no_error_log
[error]
[warn]

=== TEST 8: timeout: the limit is kept
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first, second = locks:new("my_locks"), locks:new("my_locks", { timeout = 0.2 })
            first:lock("key")
            ngx.say(second:lock("key"))
            ngx.say(second.waited >= 0.2 and second.waited < 0.23)
            ngx.say(second:unlock())
        }
    }
--- request
GET /t
--- response_body
niltimeout
true
nilunlocked
--- no_error_log
[error]
[warn]

=== TEST 9: step, ratio and max_step make the schedule whose sum is said
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local function elapsed(hold, opts)
                local first, second = locks:new("my_locks"), locks:new("my_locks", opts)
                first:lock("key")
                ngx.thread.spawn(function() ngx.sleep(hold) first:unlock() end)
                local sum = second:lock("key")
                second:unlock()
                return ("%.3f"):format(sum)
            end
            ngx.say(elapsed(0.1))
            ngx.say(elapsed(0.1, { step = 0.03, ratio = 1 }))
            ngx.say(elapsed(0.1, { step = 0.01, ratio = 3, max_step = 0.05 }))
            ngx.say(elapsed(0.1, { step = 0.2 }))
            ngx.say(elapsed(0.1, { max_step = 0.01 }))
            ngx.say(elapsed(0.1, { timeout = 0.12 }))
            ngx.say(elapsed(0.01, { ratio = 0, step = 0 }) + 0 >= 0.01)
        }
    }
--- request
GET /t
--- response_body
0.127
0.120
0.140
0.200
0.105
0.120
true
--- no_error_log
[error]
[warn]

=== TEST 10: lock waits for another light thread
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first = locks:new("my_locks")
            assert(first:lock("key") == 0)
            ngx.thread.spawn(function()
                ngx.sleep(0.1)
                ngx.say("unlock: ", first:unlock("key"))
            end)
            local second = locks:new("my_locks")
            local elapsed, err = second:lock("key")
            ngx.say("elapsed: ", elapsed, ", ", err)
            ngx.say("waited about 0.1 s: ", second.waited > 0.05 and second.waited < 0.127)
            ngx.say("unlock: ", second:unlock())
        }
    }
--- request
GET /t
--- response_body
unlock: 1
elapsed: 0.127, nil
waited about 0.1 s: true
unlock: 1
--- no_error_log
[error]
[warn]

=== TEST 11: elapsed is never 0 where it waited
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first, second = locks:new("my_locks"), locks:new("my_locks")
            first:lock("key")
            ngx.thread.spawn(function() first:unlock() end)
            first:lock("key")
            ngx.thread.spawn(function() ngx.sleep(0) first:unlock() end)
            ngx.say(second:lock("key"))
        }
    }
--- request
GET /t
--- response_body
0.001
--- no_error_log
[error]

=== TEST 12: other keys and other dictionaries are other locks
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local a, b, c = locks:new("my_locks"), locks:new("my_locks"), locks:new("other_locks")
            ngx.say(a:lock("key"), b:lock("key2"), c:lock("key"))
        }
    }
--- request
GET /t
--- response_body
000
--- no_error_log
[error]
[warn]

=== TEST 13: keys: 65535 bytes, and what is no key
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local function try(key)
                local lock = locks:new("my_locks", { timeout = 0 })
                ngx.say(lock:lock(key))
                return lock
            end
            try(("x"):rep(65535))
            try(("x"):rep(65536))
            try("")
            try(nil)
            try("a\0b")
            try("a")
        }
    }
--- request
GET /t
--- response_body
0
nilkey too long
nilempty key
nilnil key
0
0
--- no_error_log
[error]
[warn]

=== TEST 14: numbers and booleans are keys by their text
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local function try(key)
                local lock = locks:new("my_locks", { timeout = 0 })
                local elapsed, err = lock:lock(key)
                ngx.say(elapsed, err)
                return lock
            end
            local held = { try(1), try(true), try(false), try(0.5) }
            try("1")
            try("true")
            try("false")
            try("0.5")
            ngx.say(held[1]:unlock())
            try("1")
        }
    }
--- request
GET /t
--- response_body
0nil
0nil
0nil
0nil
niltimeout
niltimeout
niltimeout
niltimeout
1
0nil
--- no_error_log
[error]
[warn]

=== TEST 15: an object holds one lock
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks")
            ngx.say(lock:lock("key"))
            ngx.say(lock:lock("key"))
            ngx.say(lock:lock("other"))
            ngx.say(lock:unlock())
            ngx.say(lock:lock("other"))
        }
    }
--- request
GET /t
--- response_body
0
nillocked
nillocked
1
0
--- no_error_log
[error]
[warn]

=== TEST 16: an object that is collected gives its lock back
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local function hold() return locks:new("my_locks"):lock("key") end
            ngx.say(hold())
            collectgarbage()
            ngx.say(locks:new("my_locks", { timeout = 0 }):lock("key"))
        }
    }
--- request
GET /t
--- response_body
0
0
--- no_error_log
[error]
[warn]

=== TEST 17: unlock: 1, and "unlocked" where none is held
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks")
            ngx.say(lock:unlock())
            lock:lock("key")
            ngx.say(lock:unlock())
            ngx.say(lock:unlock())
            ngx.say(locks:new("my_locks", { timeout = 0 }):lock("key"))
        }
    }
--- request
GET /t
--- response_body
nilunlocked
1
nilunlocked
0
--- no_error_log
[error]
[warn]

=== TEST 18: unlock of a lock that has expired
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks", { exptime = 0.01 })
            lock:lock("key")
            ngx.sleep(0.03)
            ngx.say(lock:expire(1))
            ngx.say(lock:unlock())
            ngx.say(lock:unlock())
        }
    }
--- request
GET /t
--- response_body
nilnot foundexpired
1
nilunlocked
--- error_log
buflock: the lease of "key" ended before its unlock
--- no_error_log
[error]

=== TEST 19: unlock and expire of a lock that was lost touch nobody else
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first, second = locks:new("my_locks", { exptime = 0.01 }), locks:new("my_locks", { exptime = 5 })
            first:lock("key")
            ngx.sleep(0.03)
            ngx.say(second:lock("key"))
            ngx.say(first:expire(100))
            ngx.say(math.floor(second.dict:ttl("key") + 0.5))
            ngx.say(first:unlock())
            ngx.say(first:unlock())
            ngx.say(locks:new("my_locks", { timeout = 0 }):lock("key"))
            ngx.say(second:unlock())
        }
    }
--- request
GET /t
--- response_body
0
nilunlockedtaken
5
nilunlockedtaken
nilunlocked
niltimeout
1
--- error_log
buflock: the lease of "key" ended before its unlock, and another holds the lock
--- no_error_log
[error]

=== TEST 20: a lost lock that is collected touches nobody else
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local function lose() locks:new("my_locks", { exptime = 0.01 }):lock("key") end
            lose()
            ngx.sleep(0.03)
            local second = locks:new("my_locks")
            ngx.say(second:lock("key"))
            collectgarbage()
            collectgarbage()
            ngx.say(locks:new("my_locks", { timeout = 0 }):lock("key"))
        }
    }
--- request
GET /t
--- response_body
0
niltimeout
--- no_error_log
[error]
[warn]

=== TEST 21: expire: a new lease, of exptime without an argument
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks", { exptime = 10 })
            ngx.say(lock:expire(1))
            lock:lock("key")
            ngx.say(lock:expire(2), " ", math.floor(lock.dict:ttl("key") + 0.5))
            ngx.say(lock:expire(), " ", math.floor(lock.dict:ttl("key") + 0.5))
            ngx.say(lock:expire(0.05))
            ngx.say(locks:new("my_locks", { timeout = 1 }):lock("key"))
        }
    }
--- request
GET /t
--- response_body
nilunlocked
true 2
true 10
true
0.063
--- no_error_log
[error]
[warn]

=== TEST 22: a longer lease keeps others out
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks", { exptime = 0.05 })
            lock:lock("key")
            ngx.say(lock:expire(5))
            ngx.say(locks:new("my_locks", { timeout = 0.1 }):lock("key"))
            ngx.say(lock:unlock())
        }
    }
--- request
GET /t
--- response_body
true
niltimeout
1
--- no_error_log
[error]
[warn]

=== TEST 23: what cannot be a time is said
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            for _, value in ipairs { 0, -1, "x", 0 / 0 } do
                ngx.say(locks:new("my_locks", { exptime = value }))
            end
            for _, name in ipairs { "timeout", "step", "ratio", "max_step" } do
                ngx.say(locks:new("my_locks", { [name] = {} }))
            end
            local lock = locks:new("my_locks")
            lock:lock("key")
            ngx.say(lock:expire(0))
            ngx.say(lock:expire(-1))
            ngx.say(lock:expire("x"))
            ngx.say(lock:expire(1 / 0))
            ngx.say(lock:unlock())
            local long = locks:new("my_locks", { exptime = 1e9, timeout = -1 })
            ngx.say(long:lock("key"))
            ngx.say(long.dict:ttl("key") > 2591999)
        }
    }
--- request
GET /t
--- response_body
nilbad exptime
nilbad exptime
nilbad exptime
nilbad exptime
nilbad timeout
nilbad step
nilbad ratio
nilbad max_step
nilbad exptime
nilbad exptime
nilbad exptime
true
1
0
true
--- no_error_log
[error]
[warn]

=== TEST 24: extra arguments are ignored
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks", nil, 1)
            ngx.say(lock:lock("key", "other", {}))
            ngx.say(lock:unlock("other"))
            ngx.say(locks.new(nil, "my_locks"):lock("key"))
        }
    }
--- request
GET /t
--- response_body
0
1
0
--- no_error_log
[error]
[warn]

=== TEST 25: an unknown option is said once
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            for _ = 1, 3 do
                local lock = locks:new("my_locks", { time_out = 3 })
                ngx.say(lock.timeout)
            end
        }
    }
--- request
GET /t
--- response_body
5
5
5
--- error_log
unknown option time_out is ignored
--- no_error_log
[error]

=== TEST 26: the dictionary may be declared without lua_shared_dict
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
    init_by_lua_block {
        assert(require("resty.buflock").dict("declared"))
    }
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            ngx.say(locks:new("declared"):lock("key"))
            ngx.say(locks:new("declared", { timeout = 0 }):lock("key"))
            ngx.say(locks:new("my_locks", { timeout = 0 }):lock("key"))
        }
    }
--- request
GET /t
--- response_body
0
niltimeout
0
--- no_error_log
[error]
[warn]

=== TEST 27: the field dict
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local lock = locks:new("my_locks")
            ngx.say(lock.dict:ttl("key"))
            lock:lock("key")
            local left = lock.dict:ttl("key")
            ngx.say(left > 29 and left < 30.01, " ", lock.dict:get("key"))
        }
    }
--- request
GET /t
--- response_body
nilnot found
true true
--- no_error_log
[error]
[warn]

=== TEST 28: several light threads: each in turn
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local inside, most, served, longest = 0, 0, 0, 0
            local threads = {}
            for i = 1, 20 do
                threads[i] = ngx.thread.spawn(function()
                    local lock = locks:new("my_locks")
                    assert(lock:lock("key"))
                    inside = inside + 1
                    most = math.max(most, inside)
                    ngx.sleep(0.002)
                    inside = inside - 1
                    served, longest = served + 1, math.max(longest, lock.waited)
                    assert(lock:unlock() == 1)
                end)
            end
            for _, thread in ipairs(threads) do assert(ngx.thread.wait(thread)) end
            ngx.say(most, " ", served, " ", longest < 0.4)
        }
    }
--- request
GET /t
--- response_body
1 20 true
--- no_error_log
[error]
[warn]

=== TEST 29: wait = "step" starts no thread
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local first = locks:new("my_locks")
            first:lock("key")
            ngx.thread.spawn(function() ngx.sleep(0.05) first:unlock() end)
            local second = locks:new("my_locks", { wait = "step" })
            ngx.say(second:lock("key"))
            ngx.say(second.waited >= 0.031 and second.waited < 0.063)
            ngx.say(locks:new("my_locks", { wait = "step", timeout = 0.03 }):lock("key"))
            local threads = 0
            for name in io.popen("ls /proc/" .. ngx.worker.pid() .. "/task"):lines() do threads = threads + 1 end
            ngx.say(threads)
        }
    }
--- request
GET /t
--- response_body
0.063
true
niltimeout
1
--- no_error_log
[error]
[warn]

=== TEST 30: no room: locks of dropped objects are collected first
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
    init_by_lua_block {
        collectgarbage("stop")
        require("resty.buflock").instance("small" .. ngx.md5(ngx.config.prefix()), { size = "64k", dir = ngx.config.prefix() })
    }
    init_worker_by_lua_block { collectgarbage("stop") }
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local opts = { exptime = 60 }
            local refused
            for i = 1, 3000 do
                local elapsed, err = locks:new("my_locks", opts):lock("key" .. i)
                if not elapsed then refused = err break end
            end
            ngx.say(refused)
        }
    }
--- request
GET /t
--- response_body
nil
--- no_error_log
[error]
[warn]

=== TEST 31: no room: "no memory", and held locks stay held
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict other_locks 100k;
    init_by_lua_block {
        require("resty.buflock").instance("small", { size = "64k", dir = ngx.config.prefix() })
    }
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local held = {}
            local refused, detail
            for i = 1, 3000 do
                local lock = locks:new("my_locks")
                local elapsed, err, text = lock:lock("key" .. i)
                if not elapsed then refused, detail = err, text break end
                held[i] = lock
            end
            ngx.say(refused, ": ", detail)
            local lost = 0
            for _, lock in ipairs(held) do
                if lock:unlock() ~= 1 then lost = lost + 1 end
            end
            ngx.say(lost, " ", #held > 500)
        }
    }
--- request
GET /t
--- response_body_like
^no memory: the lock table is full.*
0 true
--- no_error_log
[error]
[warn]
