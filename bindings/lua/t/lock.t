# The documented sentences of lua-resty-lock, in its order.
use lib 't/lib';
use Blocks;

run_tests();

__DATA__

=== TEST 1: the synopsis
--- http_config
    lua_package_path "$TEST_NGINX_COMPAT/?.lua;$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
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

=== TEST 2: lock waits for another light thread, and says the sum of the steps
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
--- config
    location = /t {
        content_by_lua_block {
            local locks = require "resty.buflock.lock"
            local key = "blah"
            local first = locks:new("my_locks")
            assert(first:lock(key) == 0)
            ngx.thread.spawn(function()
                ngx.sleep(0.1)
                ngx.say("unlock: ", first:unlock(key))
            end)
            local second = locks:new("my_locks")
            local elapsed, err = second:lock(key)
            ngx.say("elapsed: ", elapsed, ", ", err)
            ngx.say("waited about 0.1 s: ", second.waited > 0.09 and second.waited < 0.127)
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
