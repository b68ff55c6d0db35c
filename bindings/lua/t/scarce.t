# Where nginx has no room for a timer or a connection, and where each request has a Lua state of its own.
# There a bell would keep the state: wait = "step" is what the README says.
use strict;
use warnings;
use lib 't/lib';
use Nginx;
use Test::More;
use Time::HiRes qw(sleep);

if (my $why = Nginx::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}

my $server = <<'LUA';
location = /wait {
    content_by_lua_block {
        local locks = require("resty.buflock.lock")
        local opts = { wait = ngx.var.arg_how }
        local first, second = locks:new("locks", opts), locks:new("locks", opts)
        first:lock("wait" .. (ngx.var.arg_n or ""))
        ngx.thread.spawn(function() ngx.sleep(0.1) first:unlock() end)
        ngx.say(second:lock("wait" .. (ngx.var.arg_n or "")), " ", second.waited < 0.13)
        if not ngx.var.arg_n then second:unlock() end
    }
}
location = /leave { content_by_lua_block { ngx.say(require("resty.buflock.lock"):new("locks"):lock("left")) } }
location = /stats {
    content_by_lua_block {
        local instance = require "resty.buflock.instance"
        ngx.say(instance.attached(instance.scope("locks")).bell.state)
    }
}
LUA
my $dict = 'lua_shared_dict locks 100k;';

{
    my $nginx = Nginx->new(http => "$dict lua_max_running_timers 0;", server => $server)->start;
    is($nginx->get('/wait'), "0.127 true\n", 'no timer: waiting goes by steps') for 1 .. 2;
}
{
    my $nginx = Nginx->new(http => "$dict lua_max_pending_timers 0;", server => $server)->start;
    is($nginx->get('/wait'), "0.127 true\n", 'no pending timer') for 1 .. 2;
    is($nginx->get('/stats'), "off\n", 'the bell is off');
}
{
    # Listening, the channel to the master, the request, and the timer.
    my $nginx = Nginx->new(http => $dict, server => $server, connections => 4)->start;
    is($nginx->get('/wait'), "0.127 true\n", 'no connection') for 1 .. 2;
    ok($nginx->stop, 'it ends');
}
{
    my $nginx = Nginx->new(http => $dict, server => $server)->start;
    is($nginx->get('/wait'), "0.127 true\n", 'else');
    is($nginx->get('/stats'), "on\n", 'the bell is on');
    is(join("\n", $nginx->errors), '', 'no error in the log');
}
{
    my $nginx = Nginx->new(http => "$dict lua_code_cache off;", server => $server)->start;
    for my $round (1 .. 40) {
        my @waits = map { $nginx->send("/wait?n=$_&how=step") } 1 .. 5;
        my @said = map { $nginx->finish($_) } @waits;
        is(scalar(grep { /^0\.\d+ / } @said), 5, 'lua_code_cache off: what is held ends with the state') or diag(@said);
    }
    is($nginx->get('/leave'), "0\n", 'a lock that is left at the end of a state') for 1 .. 10;
    is(join("\n", grep { !/lua_code_cache is off/ } $nginx->errors), '', 'no error in the log');
    my ($worker) = $nginx->workers;
    ok($nginx->wait_for(sub { (my @threads = glob "/proc/$worker/task/*") == 1 }), 'no thread is left');
    my $maps = () = Nginx::read_file("/proc/$worker/maps") =~ m{/dev/shm/buflock-}g;
    cmp_ok($maps, '<=', 6, 'nor are all their mappings') or diag($maps);
    ok($nginx->stop, 'it ends');
    unlike(Nginx::read_file($nginx->{log}), qr/exited on signal/);
}

done_testing();
