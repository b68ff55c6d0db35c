# resty.buflock itself, in shared memory.
use lib 't/lib';
use Blocks;

run_tests();

__DATA__

=== TEST 1: acquire and release
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = assert(lock:acquire("page", { ttl = 10 }))
            ngx.say(guard.key, " ", guard.fence > 0, " ", guard:left() > 9.9 and guard:left() < 10.01, " ", guard:lost())
            local other, err, detail = lock:acquire("page")
            ngx.say(other, " ", err, " ", detail)
            ngx.say(guard:release())
            ngx.say(guard:release())
            ngx.say(guard:extend(1))
            ngx.say(lock:acquire("page").fence > guard.fence)
        }
    }
--- request
GET /t
--- response_body
page true true false
nil busy nil
true
nilreleased
nilreleased
true
--- no_error_log
[error]
[warn]

=== TEST 2: the defaults are those of the library: 60 s, and no wait
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local guard = pages():acquire("page")
            ngx.say(guard:left() > 59.9 and guard:left() < 60.01)
            ngx.say(buflock.new("shm:pages?ttl=5", { dir = ngx.config.prefix() }):acquire("page2"):left() < 5.01)
        }
    }
--- request
GET /t
--- response_body
true
true
--- no_error_log
[error]
[warn]

=== TEST 3: waiting
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = lock:acquire("page")
            ngx.thread.spawn(function() ngx.sleep(0.1) guard:release() end)
            local second = assert(lock:acquire("page", { wait = 1 }))
            ngx.say(second.waited > 0.05 and second.waited < 0.2)
            local third, err = lock:acquire("page", { wait = 0.05 })
            ngx.say(third, " ", err)
        }
    }
--- request
GET /t
--- response_body
true
nil busy
--- no_error_log
[error]
[warn]

=== TEST 4: await wakes all at the end of a hold, and takes nothing
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            ngx.say(lock:await("page", 1))
            local guard = lock:acquire("page")
            ngx.say(lock:await("page"))
            ngx.say(lock:await("page", 0.05))
            local woken, threads = 0, {}
            for i = 1, 50 do
                threads[i] = ngx.thread.spawn(function() if lock:await("page", 2) then woken = woken + 1 end end)
            end
            ngx.sleep(0.05)
            guard:release()
            for i = 1, 50 do ngx.thread.wait(threads[i]) end
            ngx.say(woken)
            ngx.say(lock:inspect("page"))
        }
    }
--- request
GET /t
--- response_body
true
nilbusy
nilbusy
50
nilfree
--- no_error_log
[error]
[warn]

=== TEST 5: await sees a lease end without a release
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = lock:acquire("page", { ttl = 0.1 })
            ngx.say(lock:await("page", 1))
            ngx.say(guard:lost(), " ", guard:left())
            ngx.say(guard:release())
        }
    }
--- request
GET /t
--- response_body
true
true 0
nilexpired
--- error_log
buflock: the lease of "page" ended before its release
--- no_error_log
[error]

=== TEST 6: extend, and a lock that was lost
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = lock:acquire("page", { ttl = 0.05 })
            ngx.say(guard:extend(10), " ", guard:left() > 9.9)
            ngx.say(guard:extend(), " ", guard:left() > 59.9)
            guard:extend(0.01)
            ngx.sleep(0.03)
            local other = lock:acquire("page")
            ngx.say(guard:extend(10))
            ngx.say(guard:lost())
            ngx.say(guard:release())
            ngx.say(other:release())
        }
    }
--- request
GET /t
--- response_body
true true
true true
niltaken
true
niltaken
true
--- error_log
buflock: the lease of "page" ended before its extend, and another holds the lock
--- no_error_log
[error]

=== TEST 7: with
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            ngx.say(lock:with("page", nil, function(guard, a, b) return guard.key, a + b end, 1, 2))
            ngx.say(pcall(lock.with, lock, "page", nil, function() error("boom", 0) end))
            ngx.say(lock:inspect("page"))
            local guard = lock:acquire("page")
            ngx.say(lock:with("page", nil, function() return "never" end))
        }
    }
--- request
GET /t
--- response_body
truepage3
falseboom
nilfree
nilbusy
--- no_error_log
[error]
[warn]

=== TEST 8: detach, adopt, keep
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local detached = lock:acquire("page", { ttl = 20 }):detach()
            collectgarbage()
            ngx.say(detached.key, " ", #detached.token, " ", lock:acquire("page"))
            local guard = lock:adopt(detached)
            ngx.say(guard:left() > 19 and guard:left() < 20.01, " ", guard:release())
            ngx.say(lock:adopt(detached):release())
            ngx.say(lock:adopt({ key = "page", token = "nonsense" }):release())
            ngx.say(lock:acquire("page"):keep(0.1))
            collectgarbage()
            ngx.say(lock:acquire("page"))
            ngx.say(lock:acquire("page", { wait = 1 }) ~= nil)
        }
    }
--- request
GET /t
--- response_body
page 32 nilbusy
true true
nilexpired
nilexpired
true
nilbusy
true
--- error_log
buflock: the lease of "page" ended before its release
--- no_error_log
[error]

=== TEST 9: a guard that is collected gives its lock back
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            lock:acquire("page")
            collectgarbage()
            ngx.say(lock:inspect("page"))
        }
    }
--- request
GET /t
--- response_body
nilfree
--- no_error_log
[error]
[warn]

=== TEST 10: inspect, break, stats
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local guard = lock:acquire("page", { ttl = 10 })
            local who = lock:inspect("page")
            ngx.say(who.holder == "pid " .. ngx.worker.pid(), " ", who.left > 9 and who.left < 10.01)
            ngx.say(lock["break"](lock, "page"))
            ngx.say(lock["break"](lock, "page"))
            ngx.say(guard:release())
            ngx.say(lock:stats():match('"backend":"(%w+)"'))
        }
    }
--- request
GET /t
--- response_body
true true
true
nilexpired
nilexpired
shm
--- error_log
buflock: the lease of "page" ended before its release
--- no_error_log
[error]

=== TEST 11: wrong arguments are answers
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            for _, key in ipairs { 42, true, {} } do ngx.say(lock:acquire(key)) end
            ngx.say(lock:acquire())
            ngx.say(lock:acquire("page", { ttl = 0 }))
            ngx.say(lock:acquire("page", { ttl = "x" }))
            ngx.say(lock:acquire("page", { ttl = 2592001 }))
            ngx.say(buflock.new("http://x"))
            ngx.say(buflock.new("shm:pages", { tll = 3 }))
            ngx.say(buflock.new())
            ngx.say(buflock.new("redis:"))
            ngx.say(lock:acquire("") ~= nil)
        }
    }
--- request
GET /t
--- response_body
nilargumentthe key is a string
nilargumentthe key is a string
nilargumentthe key is a string
nilargumentthe key is a string
nilargumentttl is a number of seconds above 0, up to 30 days
nilargumentttl is a number of seconds above 0, up to 30 days
nilargumentttl is a number of seconds above 0, up to 30 days
nilconfigthe URL begins with "http:": it must begin with shm:, off:, redis://, rediss://, unix:// or redis:
nilconfigunknown option "tll": did you mean "ttl"?
nilargumentthe URL is a string
nilconfigredis: without a host is for programs that carry the commands; say redis://HOST
true
--- no_error_log
[error]
[warn]

=== TEST 12: off: grants all
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = buflock.new("off:")
            ngx.say(lock:acquire("page") ~= nil, lock:acquire("page", { wait = 1 }) ~= nil, lock:await("page", 1))
        }
    }
--- request
GET /t
--- response_body
truetruetrue
--- no_error_log
[error]
[warn]

=== TEST 13: a service is made once per worker
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            local lock = pages()
            local before = lock:stats():match('"members":(%d+)')
            for _ = 1, 1000 do pages():acquire("page"):release() end
            ngx.say(lock:stats():match('"members":(%d+)'))
            ngx.say(pages().handle == lock.handle)
        }
    }
--- request
GET /t
--- response_body
1
true
--- no_error_log
[error]
[warn]

=== TEST 14: a dictionary that is shared with others has their keys
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            assert(buflock.dict("shared", { share = "shm:pages?dir=" .. ngx.config.prefix() }))
            local lock = require("resty.buflock.lock"):new("shared", { timeout = 0 })
            ngx.say(lock:lock("page"))
            ngx.say(pages():acquire("page"))
            lock:unlock()
            local guard = pages():acquire("page")
            ngx.say(lock:lock("page"))
            ngx.say(buflock.dict("bad", { share = "redis://x" }))
        }
    }
--- request
GET /t
--- response_body
0
nilbusy
niltimeout
nilshare is a URL such as shm:NAME
--- no_error_log
[error]
[warn]

=== TEST 15: instance
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        buflock = require "resty.buflock"
        function pages() return assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /t {
        content_by_lua_block {
            ngx.say(buflock.instance("a/b"))
            ngx.say(buflock.instance("x", { sizes = 1 }))
            ngx.say(buflock.instance("mine", { dir = ngx.config.prefix() }))
            buflock.dict("locks")
            ngx.say(require("resty.buflock.lock"):new("locks"):lock("key"))
            ngx.say(buflock.instance("late"))
            local file = io.open(ngx.config.prefix() .. "nginx.mine")
            ngx.say(file ~= nil)
        }
    }
--- request
GET /t
--- response_body
nilbad instance name: it has 1 to 58 of A-Z a-z 0-9 . _ -
nilunknown option sizes
true
0
niltoo late: locks are in use already
true
--- no_error_log
[error]
[warn]

=== TEST 16: taken in access, released in log, around proxy_pass
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    init_by_lua_block {
        function pages() return assert(require("resty.buflock").new("shm:pages", { dir = ngx.config.prefix() })) end
    }
--- config
    location = /backend {
        content_by_lua_block {
            ngx.say(pages():inspect("/page") and "held" or "free")
        }
    }
    location = /page {
        access_by_lua_block {
            local guard, err = pages():acquire(ngx.var.uri, { ttl = 60, wait = 5 })
            if not guard and err == "busy" then return ngx.exit(503) end
            ngx.ctx.guard = guard
        }
        proxy_pass http://127.0.0.1:$server_port/backend;
        log_by_lua_block {
            local guard = ngx.ctx.guard
            if guard then
                collectgarbage()
                local ok, err = guard:release()
                ngx.log(ngx.NOTICE, "released: ", ok, err)
            end
        }
    }
    location = /t {
        content_by_lua_block {
            for _ = 1, 2 do
                local socket = ngx.socket.tcp()
                socket:connect("127.0.0.1", ngx.var.server_port)
                socket:send("GET /page HTTP/1.0\r\n\r\n")
                ngx.say(socket:receive("*a"):match("held") or "no")
            end
            ngx.say(pages():inspect("/page"))
        }
    }
--- request
GET /t
--- response_body
held
held
nilfree
--- error_log
released: truenil
--- no_error_log
[error]

=== TEST 17: waiters that only want the page build it once
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict cache 1m;
--- config
    location = /t {
        content_by_lua_block {
            local pages = require("resty.buflock").new("shm:pages", { dir = ngx.config.prefix() })
            local cache, builds, got = ngx.shared.cache, 0, 0
            local function build_and_store(key)
                builds = builds + 1
                ngx.sleep(0.1)
                cache:set(key, "page")
                return "page"
            end
            local function fetch(key)
                local page = cache:get(key)
                while not page do
                    local guard, err = pages:acquire(key, { ttl = 10 })
                    if not guard and err ~= "busy" then return err end
                    if guard then
                        page = cache:get(key) or build_and_store(key)
                        guard:release()
                    else
                        if not pages:await(key, 5) then return "stale" end
                        page = cache:get(key)
                    end
                end
                return page
            end
            local threads = {}
            for i = 1, 100 do
                threads[i] = ngx.thread.spawn(function() if fetch("key") == "page" then got = got + 1 end end)
            end
            for i = 1, 100 do ngx.thread.wait(threads[i]) end
            ngx.say(builds, " ", got)
        }
    }
--- request
GET /t
--- response_body
1 100
--- no_error_log
[error]
[warn]
