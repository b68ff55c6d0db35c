# Light threads that are killed leave no lock and no memory, and hold up nobody.
use strict;
use warnings;
use lib 't/lib';
use Nginx;
use Test::More;
use Time::HiRes qw(sleep time);

if (my $why = Nginx::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}

my $nginx = Nginx->new(http => "lua_shared_dict locks 100k;\n    lua_check_client_abort on;", server => <<'LUA')->start;
location = /gc { content_by_lua_block { collectgarbage() collectgarbage() ngx.say("ok") } }
location = /hold {
    content_by_lua_block {
        local lock = require("resty.buflock.lock"):new("locks")
        local elapsed, err = lock:lock(ngx.var.arg_key)
        ngx.say(elapsed and "held by " .. ngx.worker.pid() or err)
        ngx.flush(true)
        ngx.sleep(tonumber(ngx.var.arg_time))
        lock:unlock()
    }
}
location = /try {
    content_by_lua_block {
        local lock = require("resty.buflock.lock"):new("locks", { timeout = tonumber(ngx.var.arg_timeout or 0) })
        local elapsed, err = lock:lock(ngx.var.arg_key)
        ngx.say(elapsed and "got it" or err)
        lock:unlock()
    }
}
location = /kill {
    content_by_lua_block {
        local locks = require "resty.buflock.lock"
        local holder = locks:new("locks")
        holder:lock("kill")
        local got
        local function wait() got = locks:new("locks", { timeout = 10 }):lock("kill") end
        local threads = {}
        for i = 1, 10 do threads[i] = ngx.thread.spawn(wait) end
        local last = ngx.thread.spawn(function()
            local lock = locks:new("locks", { timeout = 10 })
            ngx.say(lock:lock("kill") and "the last got it after " .. (lock.waited < 0.4 and "a moment" or lock.waited))
            lock:unlock()
        end)
        ngx.sleep(0.05)
        for i = 1, 10 do ngx.thread.kill(threads[i]) end -- the first of the queue among them
        if ngx.var.arg_gc then collectgarbage() end
        ngx.sleep(0.05)
        holder:unlock()
        ngx.thread.wait(last)
        ngx.say("the others: ", got)
    }
}
location = /killed_holder {
    content_by_lua_block {
        local locks = require "resty.buflock.lock"
        local thread = ngx.thread.spawn(function()
            local lock = locks:new("locks")
            ngx.say(lock:lock("holder"))
            ngx.sleep(100)
            lock:unlock()
        end)
        ngx.thread.kill(thread)
        thread = nil
        collectgarbage()
        collectgarbage()
        ngx.say(locks:new("locks", { timeout = 0 }):lock("holder"))
    }
}
location = /exit {
    content_by_lua_block {
        local lock = require("resty.buflock.lock"):new("locks")
        ngx.say(lock:lock("exit"))
        ngx.thread.spawn(function() require("resty.buflock.lock"):new("locks"):lock("exit") end)
        ngx.sleep(0.01)
        ngx.exit(200)
    }
}
location = /cycles {
    content_by_lua_block {
        local locks = require "resty.buflock.lock"
        local n, miss = 0, 0
        for i = 1, tonumber(ngx.var.arg_n) do
            if not locks:new("locks"):lock("key" .. i % 1000 .. "." .. i) then miss = miss + 1 end
        end
        collectgarbage()
        collectgarbage()
        ngx.say(miss)
    }
}
location = /contended {
    content_by_lua_block {
        local locks = require "resty.buflock.lock"
        for i = 1, tonumber(ngx.var.arg_n) do
            local first, second = locks:new("locks"), locks:new("locks")
            first:lock("k" .. i)
            local thread = ngx.thread.spawn(function() return second:lock("k" .. i) end)
            first:unlock()
            ngx.thread.wait(thread)
            second:unlock()
        end
        collectgarbage()
        collectgarbage()
        local instance = require "resty.buflock.instance"
        local handle, count = instance.attached(instance.scope("locks")), 0
        for _ in pairs(handle.bell.waits) do count = count + 1 end
        for _ in pairs(handle.lines) do count = count + 1 end
        ngx.say(count)
    }
}
LUA

sub rss { return Nginx::read_file("/proc/$_[0]/statm") =~ /^\d+ (\d+)/ ? $1 * 4 : 0 } # kB

my ($worker) = $nginx->workers;

is($nginx->get('/kill'), "the last got it after a moment\nthe others: nil\n", 'waiters that are killed pass the wake-up on');
is($nginx->get('/kill?gc=1'), "the last got it after a moment\nthe others: nil\n", 'also where they were collected');
is($nginx->get('/killed_holder'), "0\n0\n", 'a holder that was killed gives it back when it is collected');
is($nginx->get('/exit'), "0\n", 'ngx.exit');
$nginx->get('/gc');
is($nginx->get('/try?key=exit'), "got it\n", 'leaves no lock');

# A client goes away while it waits first in the queue; then while it holds.
{
    my $holder = $nginx->send('/hold?key=abort&time=0.5');
    sleep 0.1;
    my $first = $nginx->send('/try?key=abort&timeout=10');
    sleep 0.05;
    my $second = $nginx->send('/try?key=abort&timeout=10');
    sleep 0.05;
    close $first;
    my $begun = time;
    is($nginx->finish($second), "got it\n", 'the next in the queue gets it');
    cmp_ok(time - $begun, '<', 0.8, 'at the unlock');
    $nginx->finish($holder);
    $holder = $nginx->send('/hold?key=abort&time=30');
    sleep 0.1;
    close $holder;
    sleep 0.1;
    $nginx->get('/gc');
    is($nginx->get('/try?key=abort'), "got it\n", 'a holder whose client went leaves no lock');
}

# 10^6 locks that are dropped, and many waits.
my $many = $ENV{BUFLOCK_LONG} ? 10_000_000 : 1_000_000;
is($nginx->get('/cycles?n=200000', timeout => 60), "0\n", 'locks that are dropped always leave room');
my $before = rss($worker);
is($nginx->get("/cycles?n=$many", timeout => 600), "0\n", "$many more");
cmp_ok(rss($worker) - $before, '<', 4096, 'in the same memory');
is($nginx->get('/contended?n=20000', timeout => 60), "0\n", 'waits leave no trace');
$before = rss($worker);
is($nginx->get('/contended?n=100000', timeout => 200), "0\n", '10^5 more');
cmp_ok(rss($worker) - $before, '<', 4096, 'in the same memory');
is(($nginx->workers)[0], $worker, 'one worker did it all');
is(join("\n", $nginx->errors), '', 'no error in the log');
ok($nginx->stop, 'it ends');
done_testing();
