# resty.buflock over a Redis server.
use lib 't/lib';
use Blocks;
use RedisServer;
use Test::More;

if (my $why = RedisServer::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}
my $redis = RedisServer->new('--requirepass', 'geheim');
$redis->ask('AUTH', 'geheim');
$redis->ask('ACL', 'SETUSER', 'shop', 'on', '>laden', '~shop:*', '+@all');
$redis->ask('ACL', 'SETUSER', 'old', 'on', '>alt', '~buflock:*', '+set', '+get', '+del', '+eval');
$ENV{TEST_NGINX_AT}     = "127.0.0.1:$redis->{port}";
$ENV{TEST_NGINX_SOCKET} = "$redis->{dir}/socket";
run_tests();

__DATA__

=== TEST 1: acquire, extend, release
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = assert(lock:acquire("page", { ttl = 10 }))
            ngx.say(guard.key, " ", guard:left() > 9.5 and guard:left() <= 10, " ", guard:lost())
            ngx.say(lock:acquire("page"))
            ngx.say(guard:extend(20), " ", guard:left() > 19.5)
            ngx.say(guard:extend(), " ", guard:left() > 59 and guard:left() <= 60)
            ngx.say(guard:release())
            ngx.say(guard:release())
            ngx.say(guard:extend(1))
            ngx.say(lock:acquire("\0"):release())
            ngx.say(lock:acquire(""):release())
            ngx.say(lock:acquire(("x"):rep(100000)):release())
        }
    }
--- request
GET /t
--- response_body
page true false
nilbusy
true true
true true
true
nilreleased
nilreleased
true
true
true
--- no_error_log
[error]
[warn]

=== TEST 2: waiting, and await, which takes nothing
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            ngx.say(lock:await("page", 1))
            local guard = lock:acquire("page")
            ngx.say(lock:await("page"))
            ngx.say(lock:await("page", 0.05))
            ngx.thread.spawn(function() ngx.sleep(0.1) guard:release() end)
            local second = assert(lock:acquire("page", { wait = 2 }))
            ngx.say(second.waited > 0.05 and second.waited < 0.3)
            local third, err = lock:acquire("page", { wait = 0.05 })
            ngx.say(third, " ", err)
            local woken, threads = 0, {}
            for i = 1, 50 do
                threads[i] = ngx.thread.spawn(function() if lock:await("page", 5) then woken = woken + 1 end end)
            end
            ngx.sleep(0.1)
            second:release()
            for i = 1, 50 do ngx.thread.wait(threads[i]) end
            ngx.say(woken, " ", lock:acquire("page"):release())
            ngx.sleep(0.7) -- a wait that nobody waits for ends quietly
        }
    }
--- request
GET /t
--- response_body
true
nilbusy
nilbusy
true
nil busy
50 true
--- no_error_log
[error]
[warn]

=== TEST 3: those who wait are served in their order
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard, order, threads = lock:acquire("order"), {}, {}
            for i = 1, 20 do
                threads[i] = ngx.thread.spawn(function()
                    local mine = assert(lock:acquire("order", { wait = 5 }))
                    order[#order + 1] = i
                    mine:release()
                end)
                ngx.sleep(0.005)
            end
            guard:release()
            for i = 1, 20 do ngx.thread.wait(threads[i]) end
            ngx.say(table.concat(order, " "))
        }
    }
--- request
GET /t
--- response_body
1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20
--- no_error_log
[error]
[warn]

=== TEST 4: a lock that was lost
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = lock:acquire("lost\1", { ttl = 0.05 })
            ngx.sleep(0.1)
            ngx.say(guard:lost(), " ", guard:left())
            ngx.say(guard:extend(1))
            guard = lock:acquire("lost\1", { ttl = 0.05 })
            ngx.sleep(0.1)
            local other = lock:acquire("lost\1")
            ngx.say(guard:release())
            ngx.say(other:release())
            ngx.say(lock:stats():match('"leases_lost":%d+'))
        }
    }
--- request
GET /t
--- response_body
true 0
nilexpired
niltaken
true
"leases_lost":2
--- error_log
buflock: the lease of "lost\x01" ended before its extend
--- no_error_log
ended before its release
[error]

=== TEST 5: detach, adopt, keep
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local detached = lock:acquire("page", { ttl = 10 }):detach()
            collectgarbage()
            ngx.say(lock:acquire("page"))
            local guard = lock:adopt(detached)
            ngx.say(guard:left() > 9 and guard:left() <= 10)
            ngx.say(guard:keep(0.3))
            ngx.say(guard:release())
            ngx.say(lock:acquire("page"))
            ngx.sleep(0.35)
            ngx.say(lock:acquire("page"):release())
            ngx.say(lock:adopt({ key = "page", token = "none" }):release())
        }
    }
--- request
GET /t
--- response_body
nilbusy
true
true
nilkept
nilbusy
true
nilexpired
--- no_error_log
[error]

=== TEST 6: inspect, break, stats, with
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT", { label = "me" })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            ngx.say(lock:inspect("page"))
            local guard = lock:acquire("page", { ttl = 10 })
            local hold = lock:inspect("page")
            ngx.say(hold.holder, " ", hold.left > 9 and hold.left <= 10)
            ngx.say(lock["break"](lock, "page"))
            ngx.say(lock["break"](lock, "page"))
            ngx.say(guard:release())
            ngx.say(lock:stats():match('"backend":"redis"'), not lock:stats():find("geheim"))
            ngx.say(lock:with("page", nil, function(held, a, b)
                ngx.say(held.key, a, b, lock:acquire("page"))
                return 1, 2
            end, 3, 4))
            ngx.say(pcall(lock.with, lock, "page", nil, function() error("oh", 0) end))
            ngx.say(lock:acquire("page"):release())
        }
    }
--- request
GET /t
--- response_body
nilfree
me true
true
nilexpired
nilexpired
"backend":"redis"true
page34nilbusy
true12
falseoh
true
--- no_error_log
[error]

=== TEST 7: fetch: one builds, the others wait, or take what is stale
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock, cache, builds = pages(), {}, 0
            local opts = {
                wait = 2, cool = 0.2,
                get = function(key) return cache[key] end,
                set = function(key, value) cache[key] = value end,
                build = function(key, guard)
                    builds = builds + 1
                    assert(guard:left() > 0)
                    ngx.sleep(0.1)
                    return "page " .. key
                end,
            }
            local threads, got = {}, 0
            for i = 1, 30 do
                threads[i] = ngx.thread.spawn(function() if lock:fetch("a", opts) == "page a" then got = got + 1 end end)
            end
            ngx.sleep(0.05)
            local stale = { get = opts.get, build = opts.build, stale = function() return "old" end }
            ngx.say(lock:fetch("a", stale))
            ngx.say(lock:fetch("a", { get = opts.get, build = opts.build }))
            for i = 1, 30 do ngx.thread.wait(threads[i]) end
            ngx.say(got, " ", builds)
            opts.build = function() error("cannot", 0) end
            ngx.say(pcall(lock.fetch, lock, "b", opts))
            opts.wait = 0.05
            ngx.say(lock:fetch("b", opts))
            ngx.sleep(0.2)
            opts.build = function() end
            ngx.say(lock:fetch("b", opts))
            ngx.say(lock:fetch("b", { get = opts.get }))
        }
    }
--- request
GET /t
--- response_body
old
nilbusy
30 1
falsecannot
nilbusy
nil
nilargumentfetch needs get and build, which are functions
--- no_error_log
[error]
[warn]

=== TEST 8: databases and users of one server have connections and locks of their own
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local other = ngx.socket.tcp()
            other:connect("127.0.0.1", (("$TEST_NGINX_AT"):match("%d+$")))
            other:send("AUTH geheim\r\n")
            other:receive()
            local function calls(name)
                other:send("INFO commandstats\r\n")
                local size = tonumber(other:receive():sub(2))
                return tonumber(other:receive(size + 2):match("cmdstat_" .. name .. ":calls=(%d+)") or 0)
            end
            local auths, selects = calls("auth"), calls("select")
            local services = {
                buflock.new("redis://:geheim@$TEST_NGINX_AT"),
                buflock.new("redis://:geheim@$TEST_NGINX_AT/1"),
                buflock.new("redis://:geheim@$TEST_NGINX_AT/2"),
                buflock.new("redis://shop:laden@$TEST_NGINX_AT/3?namespace=shop:"),
                buflock.new("unix://$TEST_NGINX_SOCKET?password=geheim&db=4"),
            }
            for round = 1, 3 do
                local guards = {}
                for i, service in ipairs(services) do guards[i] = assert(service:acquire("same")) end
                for _, service in ipairs(services) do assert(select(2, service:acquire("same")) == "busy") end
                for _, guard in ipairs(guards) do assert(guard:release()) end
            end
            ngx.say(calls("auth") - auths, " ", calls("select") - selects) -- once for each connection
            -- What a user may not do is refused, whoever was connected before.
            ngx.say((select(2, buflock.new("redis://shop:laden@$TEST_NGINX_AT"):acquire("other"))))
            ngx.say((select(2, buflock.new("redis://shop:laden@$TEST_NGINX_AT"):acquire("other"))))
            ngx.say((select(2, buflock.new("redis://shop:falsch@$TEST_NGINX_AT/3?namespace=shop:"):acquire("same"))))
        }
    }
--- request
GET /t
--- response_body
5 4
refused
refused
refused
--- no_error_log
[error]
geheim
laden

=== TEST 9: few rights: waits go by steps
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://old:alt@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = assert(lock:acquire("few"))
            ngx.say(lock:acquire("few", { wait = 0.2 }))
            ngx.thread.spawn(function() ngx.sleep(0.1) guard:release() end)
            local second = assert(lock:acquire("few", { wait = 2 }))
            ngx.say(second.waited > 0.05 and second.waited < 0.4)
            ngx.say(second:extend(5), second:release())
        }
    }
--- request
GET /t
--- response_body
nilbusy
true
truetrue
--- no_error_log
[error]

=== TEST 10: wait = "step" starts no timer for a wait
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT", { wait = "step" })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = assert(lock:acquire("step"))
            ngx.thread.spawn(function()
                ngx.sleep(0.1)
                ngx.say(next(lock.handle.lines))
                guard:release()
            end)
            local second = assert(lock:acquire("step", { wait = 2 }))
            ngx.say(second.waited > 0.05 and second.waited < 0.4)
        }
    }
--- request
GET /t
--- response_body
nil
true
--- no_error_log
[error]
[warn]

=== TEST 11: fences
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT", { fencing = true })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local first = lock:acquire("fence")
            first:release()
            ngx.say(first.fence > 0, lock:acquire("fence").fence > first.fence)
            ngx.say(buflock.new("redis://:geheim@$TEST_NGINX_AT"):acquire("none").fence)
        }
    }
--- request
GET /t
--- response_body
truetrue
0
--- no_error_log
[error]
[warn]

=== TEST 12: what cannot be used says so
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_socket_log_errors off;
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("redis://:geheim@$TEST_NGINX_AT")) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local function say(service, err, detail)
                if not service then return ngx.say(err, ": ", detail) end
                local guard
                guard, err, detail = service:acquire("k")
                ngx.say(tostring(guard), " ", err, ": ", detail)
            end
            say(buflock.new("redis://127.0.0.1:1"))
            say(buflock.new("unix:///nowhere/redis"))
            say(buflock.new("redis://no-such-host.invalid"))
            say(buflock.new("redis:"))
            say(buflock.new("rediss://redis.internal"))
            say(buflock.new("redis://127.0.0.1/x"))
        }
    }
--- request
GET /t
--- response_body_like chomp
nil unavailable: redis://127.0.0.1:1/0: connecting failed: connection refused
nil unavailable: unix:///nowhere/redis, db 0: connecting failed: no such file or directory
nil unavailable: redis://no-such-host.invalid:6379/0: connecting failed: no resolver defined to resolve "no-such-host.invalid"
config: redis: without a host is for programs that carry the commands; say redis://HOST
config: .*TLS.*
config: .*
--- no_error_log
[error]
