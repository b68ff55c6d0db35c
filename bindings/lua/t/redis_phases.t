# Locks over Redis in each phase: never an error, never a wait where none can be.
use lib 't/lib';
use Blocks;
use RedisServer;
use Test::More;

if (my $why = RedisServer::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}
my $redis = RedisServer->new;
$ENV{TEST_NGINX_AT} = "127.0.0.1:$redis->{port}";
run_tests();

__DATA__

=== TEST 1: all phases
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict seen 1m;
    init_by_lua_block {
        local buflock = require "resty.buflock"
        function service() return assert(buflock.new("redis://$TEST_NGINX_AT")) end
        -- A free key, one that is held for as long as the test, and one to be released and one to be extended.
        function try(phase)
            local lock = service()
            local said = {}
            local function say(ok, err, detail)
                said[#said + 1] = tostring(ok or err) .. (detail and " (" .. detail .. ")" or "")
            end
            local guard, err, detail = lock:acquire("free", { wait = 0.01 })
            say(guard and guard:release(), err, detail)
            say(lock:acquire("held", { wait = 0.01 }))
            say(lock:await("held", 0.01))
            say(lock:inspect("held") and "held", select(2, lock:inspect("held")))
            say(lock["break"](lock, "free"))
            local kept
            kept, err, detail = lock:adopt({ key = "kept in " .. phase, token = ("0"):rep(32) })
            if kept then
                say(kept:extend(1))
                local ok, deferred = kept:release()
                said[#said + 1] = tostring(ok) .. ", " .. tostring(deferred)
            else
                say(kept, err, detail)
            end
            say(lock:fetch("held", { get = function() end, build = function() end }))
            said[#said + 1] = tostring(buflock.can_wait())
            ngx.shared.seen:set(phase, table.concat(said, "; "))
        end
        try("init")
    }
    init_worker_by_lua_block {
        try("init_worker")
        ngx.timer.at(0, function()
            assert(service():acquire("held", { ttl = 600 })):detach()
            try("timer")
        end)
    }
    exit_worker_by_lua_block {
        try("exit_worker")
        ngx.log(ngx.WARN, "exit_worker: ", ngx.shared.seen:get("exit_worker"))
    }
    upstream back {
        server 127.0.0.1:1;
        balancer_by_lua_block {
            try("balancer")
            require("ngx.balancer").set_current_peer("127.0.0.1", ngx.var.server_port)
        }
    }
--- config
    location = /inner { return 200 ok; }
    location = /all {
        set_by_lua_block $x { try("set") return 1 }
        rewrite_by_lua_block { try("rewrite") }
        access_by_lua_block { try("access") }
        proxy_pass http://back/inner;
        header_filter_by_lua_block { try("header_filter") }
        body_filter_by_lua_block { try("body_filter") }
        log_by_lua_block { try("log") }
    }
    location = /t {
        content_by_lua_block {
            require "resty.core"
            ngx.sleep(0.1)
            local socket = ngx.socket.tcp()
            socket:connect("127.0.0.1", ngx.var.server_port)
            socket:send("GET /all HTTP/1.0\r\n\r\n")
            socket:receive("*a")
            ngx.sleep(0.1)
            try("content")
            for _, phase in ipairs { "init", "init_worker", "set", "rewrite", "access", "content", "balancer",
                                     "header_filter", "body_filter", "log", "timer" } do
                local text = ngx.shared.seen:get(phase):gsub("unavailable %(cannot ask a server in " .. phase .. " phase%)", "-")
                ngx.say(phase, ": ", text)
            end
        }
    }
--- request
GET /t
--- response_body
init: unavailable (cannot lock in init phase); unavailable (cannot lock in init phase); unavailable (cannot lock in init phase); unavailable (cannot lock in init phase); unavailable (cannot lock in init phase); unavailable (cannot lock in init phase); unavailable (cannot lock in init phase); false
init_worker: -; -; -; -; -; -; true, deferred; -; false
set: -; -; -; -; -; -; true, deferred; -; false
rewrite: true; busy; busy; held; expired; expired; nil, expired; busy; true
access: true; busy; busy; held; expired; expired; nil, expired; busy; true
content: true; busy; busy; held; expired; expired; nil, expired; busy; true
balancer: -; -; -; -; -; -; true, deferred; -; false
header_filter: -; -; -; -; -; -; true, deferred; -; false
body_filter: -; -; -; -; -; -; true, deferred; -; false
log: -; -; -; -; -; -; true, deferred; -; false
timer: true; busy; busy; held; expired; expired; nil, expired; busy; true
--- no_error_log
[error]

=== TEST 2: where a light thread cannot yield
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
--- config
    location = /t {
        content_by_lua_block {
            local lock = require("resty.buflock").new("redis://$TEST_NGINX_AT")
            local guard = assert(lock:acquire("key"))
            local said
            table.sort({ 1, 2 }, function(a, b)
                said = said or { lock:acquire("other", { wait = 1 }) }
                return a < b
            end)
            ngx.say(said[2], ", ", said[3])
            ;("x"):gsub("x", function() said = { guard:release() } end)
            ngx.say(said[1], ", ", said[2])
            ngx.sleep(0.05)
            ngx.say(coroutine.wrap(function() return lock:acquire("key"):release() end)())
            ngx.say(pcall(function() return lock:acquire("key"):release() end))
        }
    }
--- request
GET /t
--- response_body
unavailable, cannot ask a server below a C function
true, deferred
true
truetrue
--- no_error_log
[error]
[warn]

=== TEST 3: taken in access, released in header_filter and in log
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict seen 1m;
    init_by_lua_block {
        local buflock = require "resty.buflock"
        function service() return assert(buflock.new("redis://$TEST_NGINX_AT")) end
    }
--- config
    location = /inner { return 200 ok; }
    location ~ ^/(header|log)$ {
        set $held_key ""; set $held_token "";
        access_by_lua_block {
            local guard = assert(service():acquire("proxied", { ttl = 60, wait = 5 }))
            local held = guard:detach()
            ngx.var.held_key, ngx.var.held_token = held.key, held.token
        }
        proxy_pass http://127.0.0.1:$server_port/inner;
        header_filter_by_lua_block {
            if ngx.var.uri == "/header" then
                local guard = service():adopt({ key = ngx.var.held_key, token = ngx.var.held_token })
                ngx.shared.seen:set("header", table.concat({ tostring(guard:release()), select(2, guard:release()) }, " "))
            end
        }
        log_by_lua_block {
            if ngx.var.uri == "/log" then
                service():adopt({ key = ngx.var.held_key, token = ngx.var.held_token }):release()
            end
        }
    }
    location = /t {
        content_by_lua_block {
            for i = 1, 20 do
                local socket = ngx.socket.tcp()
                socket:connect("127.0.0.1", ngx.var.server_port)
                socket:send("GET /" .. (i % 2 == 0 and "log" or "header") .. " HTTP/1.0\r\n\r\n")
                local answer = socket:receive("*a")
                if not answer:find("200 OK", 1, true) then ngx.say(answer) end
            end
            ngx.sleep(0.05)
            ngx.say(ngx.shared.seen:get("header"))
            ngx.say(service():inspect("proxied"))
        }
    }
--- request
GET /t
--- response_body
true released
nilfree
--- no_error_log
[error]
