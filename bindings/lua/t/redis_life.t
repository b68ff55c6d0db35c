# Locks over Redis in the life of workers: reloads, and where timers or connections are not to be had.
use strict;
use warnings;
use lib 't/lib';
use Nginx;
use RedisServer;
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

if (my $why = RedisServer::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}

my $redis = RedisServer->new;
my $init  = <<"LUA";
init_by_lua_block {
        local buflock = require "resty.buflock"
        function service() return assert(buflock.new("${\ $redis->url}")) end
    }
LUA
my $server = <<'LUA';
location = /acquire {
    content_by_lua_block {
        local guard, err, detail = service():acquire(ngx.var.arg_key, { wait = tonumber(ngx.var.arg_wait), ttl = 30 })
        ngx.say(guard and "got it" or err .. ": " .. tostring(detail))
        ngx.flush(true)
        if not guard then return end
        ngx.sleep(tonumber(ngx.var.arg_hold) or 0)
        guard:release()
    }
}
location = /log {
    content_by_lua_block {
        ngx.ctx.guard = service():acquire(ngx.var.arg_key, { ttl = 30 })
        ngx.say("got it")
        ngx.flush(true)
        ngx.sleep(tonumber(ngx.var.arg_hold) or 0)
    }
    log_by_lua_block { ngx.ctx.guard:release() }
}
location = /left { content_by_lua_block { left = service():acquire(ngx.var.arg_key, { ttl = 30 }) ngx.say("got it") } }
LUA

sub locks { return grep { !/\{/ } @{ $redis->ask('KEYS', 'buflock:*') } }

# Twenty reloads under load, with waits pending.
{
    my $nginx = Nginx->new(workers => 2, http => $init, server => $server)->start;
    my $load = fork // die;
    if (!$load) {
        my ($end, $bad) = (time + 6, 0);
        while (time < $end) {
            my @some = map { $nginx->send('/acquire?key=load' . $_ % 3 . '&hold=0.003&wait=5') } 1 .. 12;
            push @some, map { $nginx->send("/log?key=log$_") } 1 .. 3;
            $bad += grep { $nginx->finish($_) ne "got it\n" } @some;
        }
        POSIX::_exit($bad > 250 ? 250 : $bad);
    }
    for my $round (1 .. 20) {
        my $holder = $nginx->send("/acquire?key=pending$round&hold=0.4");
        sleep 0.02;
        my $waiter = $nginx->send("/acquire?key=pending$round&wait=5");
        sleep 0.05;
        ok($nginx->hup, "reload $round");
        is($nginx->finish($waiter), "got it\n", 'a wait goes on in the old worker') if $round % 5 == 0;
        sleep 0.1;
    }
    waitpid $load, 0;
    is($? >> 8, 0, 'all who asked under load got it');
    ok($nginx->wait_for(sub { $nginx->workers == 2 }, 10), 'no old worker is left') or diag scalar $nginx->workers;
    ok(Nginx->wait_for(sub { !locks() }, 3), 'no lock is left') or diag join ' ', locks();
    is(join("\n", $nginx->errors), '', 'no error in the log');

    # What is to be released goes before a worker does.
    my @logs = map { $nginx->send("/log?key=last$_&hold=0.3") } 1 .. 50;
    sleep 0.15;
    $nginx->get("/left?key=left");
    my $begun = time;
    ok($nginx->stop, 'it ends');
    cmp_ok(time - $begun, '<', 5, 'soon');
    cmp_ok(scalar(my @left = locks()), '<=', 1, 'nothing but what somebody kept is left');
    unlike(Nginx::read_file($nginx->{log}), qr/exited on signal|\[(?:error|alert)\]/, 'in peace');
}
$redis->ask('FLUSHALL');

# No timers, no connections: waits go by steps, releases with the next command.
{
    my $nginx = Nginx->new(http => "lua_max_pending_timers 0; $init", server => $server)->start;
    my $holder = $nginx->send('/acquire?key=scarce&hold=0.4');
    sleep 0.1;
    is($nginx->get('/acquire?key=scarce&wait=3'), "got it\n", 'no pending timer');
    is($nginx->get('/log?key=scarce'), "got it\n", 'a release in log');
    is($nginx->get('/acquire?key=other'), "got it\n", 'and the next command');
    is($nginx->get('/acquire?key=scarce&wait=1'), "got it\n", 'is its release');
    is(join("\n", $nginx->errors), '', 'no error in the log');
}
$redis->ask('FLUSHALL');
{
    my $nginx = Nginx->new(http => "lua_max_running_timers 0; $init", server => $server)->start;
    my $holder = $nginx->send('/acquire?key=scarce&hold=0.4');
    sleep 0.1;
    my $begun = time;
    is($nginx->get('/acquire?key=scarce&wait=3'), "got it\n", 'no running timer') for 1 .. 2;
    cmp_ok(time - $begun, '<', 2, 'in time');
}
$redis->ask('FLUSHALL');
{
    # Listening, the channel to the master, two requests, and three for timers and the server.
    my $nginx = Nginx->new(http => "lua_socket_log_errors off; $init", server => $server, connections => 7)->start;
    my $holder = $nginx->send('/acquire?key=scarce&hold=0.4');
    sleep 0.1;
    like($nginx->get('/acquire?key=scarce&wait=3'), qr/^(?:got it|(?:unavailable|busy): .*)\n\z/, 'no connection');
    is($nginx->finish($holder), "got it\n", 'others go on');
    ok(Nginx->wait_for(sub { $nginx->get('/acquire?key=scarce') eq "got it\n" }, 5), 'and it does, when there is one');
    ok($nginx->stop, 'it ends');
}

# Each request with a Lua state of its own.
$redis->ask('FLUSHALL');
{
    my $nginx = Nginx->new(http => "lua_code_cache off; $init", server => $server)->start;
    for my $round (1 .. 10) {
        my @some = map { $nginx->send('/acquire?key=state&hold=0.01&wait=5') } 1 .. 5;
        is(scalar(grep { $nginx->finish($_) eq "got it\n" } @some), 5, 'lua_code_cache off');
    }
    ok(!locks(), 'no lock is left');
    ok($nginx->stop, 'it ends');
    unlike(Nginx::read_file($nginx->{log}), qr/exited on signal/, 'in peace');
}
done_testing();
