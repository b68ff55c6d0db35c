# Each phase: never an error, never a wait where none can be.
use lib 't/lib';
use Blocks;

run_tests();

__DATA__

=== TEST 1: all phases
--- http_config
    lua_package_path "$TEST_NGINX_LUA/?.lua;;";
    lua_package_cpath "$TEST_NGINX_SO/?.so;;";
    lua_shared_dict my_locks 100k;
    lua_shared_dict seen 1m;
    init_by_lua_block {
        local locks, buflock = require "resty.buflock.lock", require "resty.buflock"
        -- A free key, then one that is held for as long as the test.
        function try(phase)
            local seen = ngx.shared.seen
            local free, held = locks:new("my_locks"), locks:new("my_locks", { timeout = 0.01 })
            local elapsed, err, detail = free:lock("free")
            local text = tostring(elapsed or err) .. (detail and " (" .. detail .. ")" or "")
            text = text .. ", " .. tostring(free:expire(1)) .. ", " .. tostring(free:unlock())
            elapsed, err, detail = held:lock("held")
            text = text .. "; " .. tostring(elapsed or err) .. (detail and " (" .. detail .. ")" or "")
            local pages = assert(buflock.new("shm:pages", { dir = ngx.config.prefix() }))
            local guard
            guard, err, detail = pages:acquire("free")
            text = text .. "; " .. tostring(guard and guard:release() or err .. ": " .. detail)
            guard, err, detail = pages:acquire("held", { wait = 0.01 })
            text = text .. "; " .. tostring(guard or err) .. (detail and " (" .. detail .. ")" or "")
            guard, err, detail = pages:await("held", 0.01)
            text = text .. "; " .. tostring(guard or err) .. (detail and " (" .. detail .. ")" or "")
            text = text .. "; " .. tostring(buflock.can_wait())
            seen:set(phase, text)
        end
        try("init")
    }
    init_worker_by_lua_block {
        local locks, buflock = require "resty.buflock.lock", require "resty.buflock"
        holder = locks:new("my_locks", { exptime = 600 })
        assert(holder:lock("held"))
        page = assert(assert(buflock.new("shm:pages", { dir = ngx.config.prefix() })):acquire("held", { ttl = 600 }))
        try("init_worker")
        ngx.timer.at(0, function() try("timer") end)
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
            ngx.location.capture("/all")
            local socket = ngx.socket.tcp()
            socket:connect("127.0.0.1", ngx.var.server_port)
            socket:send("GET /all HTTP/1.0\r\n\r\n")
            socket:receive("*a")
            ngx.sleep(0.05)
            try("content")
            for _, phase in ipairs { "init", "init_worker", "set", "rewrite", "access", "content", "balancer",
                                     "header_filter", "body_filter", "log", "timer" } do
                ngx.say(phase, ": ", ngx.shared.seen:get(phase))
            end
        }
    }
--- request
GET /t
--- response_body
init: timeout (cannot lock in init phase), nil, nil; timeout (cannot lock in init phase); unavailable: cannot lock in init phase; unavailable (cannot lock in init phase); unavailable (cannot lock in init phase); false
init_worker: 0, true, 1; timeout (cannot wait in init_worker phase); true; busy (cannot wait in init_worker phase); busy (cannot wait in init_worker phase); false
set: 0, true, 1; timeout (cannot wait in set phase); true; busy (cannot wait in set phase); busy (cannot wait in set phase); false
rewrite: 0, true, 1; timeout; true; busy; busy; true
access: 0, true, 1; timeout; true; busy; busy; true
content: 0, true, 1; timeout; true; busy; busy; true
balancer: 0, true, 1; timeout (cannot wait in balancer phase); true; busy (cannot wait in balancer phase); busy (cannot wait in balancer phase); false
header_filter: 0, true, 1; timeout (cannot wait in header_filter phase); true; busy (cannot wait in header_filter phase); busy (cannot wait in header_filter phase); false
body_filter: 0, true, 1; timeout (cannot wait in body_filter phase); true; busy (cannot wait in body_filter phase); busy (cannot wait in body_filter phase); false
log: 0, true, 1; timeout (cannot wait in log phase); true; busy (cannot wait in log phase); busy (cannot wait in log phase); false
timer: 0, true, 1; timeout; true; busy; busy; true
--- no_error_log
[error]

=== TEST 2: where a light thread cannot yield
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
            local said
            table.sort({ 1, 2 }, function(a, b)
                said = said or { locks:new("my_locks", { timeout = 0.1 }):lock("key") }
                return a < b
            end)
            ngx.say(said[2], ", ", said[3])
            local text = ("x"):gsub("x", function()
                local _, err, detail = locks:new("my_locks", { timeout = 0.1 }):lock("key")
                return err .. ", " .. detail
            end)
            ngx.say(text)
            local co = coroutine.wrap(function() return locks:new("my_locks", { timeout = 0.1 }):lock("key") end)
            ngx.say(co())
            ngx.say(pcall(function() return locks:new("my_locks", { timeout = 0.1 }):lock("key") end))
        }
    }
--- request
GET /t
--- response_body
timeout, cannot wait below a C function
timeout, cannot wait below a C function
niltimeout
trueniltimeout
--- no_error_log
[error]
[warn]
