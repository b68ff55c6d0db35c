# Locks over Redis: light threads that are killed, and servers that stop, stall, restart and answer nonsense.
use strict;
use warnings;
use lib 't/lib';
use Nginx;
use RedisServer;
use IO::Socket::INET;
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

if (my $why = RedisServer::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}

my $redis = RedisServer->new;
my $safe  = RedisServer->new('--requirepass', 'geheim');
my $init  = <<"LUA";
lua_check_client_abort on;
    lua_socket_log_errors off;
    init_by_lua_block {
        local buflock = require "resty.buflock"
        PORT = $redis->{port}
        local urls = {
            right = "redis://:geheim\@127.0.0.1:$safe->{port}", wrong = "redis://:falsch\@127.0.0.1:$safe->{port}",
            none = "redis://127.0.0.1:$safe->{port}",
        }
        function service()
            return assert(buflock.new(urls[ngx.var.arg_to] or ngx.var.arg_url or "${\ $redis->url}"))
        end
    }
LUA
my $server = <<'LUA';
location = /quick { return 200 ok; }
location = /gc { content_by_lua_block { collectgarbage() collectgarbage() ngx.say("ok") } }
location = /acquire {
    content_by_lua_block {
        local guard, err, detail = service():acquire(ngx.var.arg_key, { wait = tonumber(ngx.var.arg_wait), ttl = 30 })
        ngx.say(guard and "got it" or err .. ": " .. tostring(detail))
        ngx.flush(true)
        if not guard then return end
        ngx.sleep(tonumber(ngx.var.arg_hold) or 0)
        local ok, why = guard:release()
        if not ok then ngx.say(why) end
    }
}
location = /await {
    content_by_lua_block {
        local over, err = service():await(ngx.var.arg_key, tonumber(ngx.var.arg_wait))
        ngx.say(over and "over" or err)
    }
}
location = /log {
    content_by_lua_block {
        ngx.ctx.guard = service():acquire(ngx.var.arg_key, { ttl = 30 })
        ngx.say(ngx.ctx.guard ~= nil)
    }
    log_by_lua_block { if ngx.ctx.guard then ngx.ctx.guard:release() end }
}
location = /kill {
    content_by_lua_block {
        -- Killed after each of its yields in turn.
        local lock, killed, other = service(), 0, ngx.socket.tcp()
        other:connect("127.0.0.1", PORT)
        local function pause()
            other:send("PING\r\n")
            other:receive()
        end
        for step = 1, 40 do
            local thread = ngx.thread.spawn(function()
                local guard = lock:acquire("kill" .. step)
                if guard then guard:release() end
            end)
            for _ = 1, step % 8 do pause() end
            if ngx.thread.kill(thread) then killed = killed + 1 end
        end
        ngx.say(killed > 0)
    }
}
location = /killed_waiters {
    content_by_lua_block {
        local lock = service()
        local guard, threads, got = assert(lock:acquire("waiters")), {}, 0
        for i = 1, 20 do
            threads[i] = ngx.thread.spawn(function() if lock:acquire("waiters", { wait = 10 }) then got = got + 1 end end)
        end
        local last = ngx.thread.spawn(function()
            local mine = lock:acquire("waiters", { wait = 10 })
            ngx.say(mine and mine.waited < 0.6 and "the last got it in time" or mine and mine.waited)
            mine:release()
        end)
        ngx.sleep(0.2)
        for i = 1, 20 do ngx.thread.kill(threads[i]) end
        guard:release()
        ngx.thread.wait(last)
        ngx.say("the others: ", got)
    }
}
location = /killed_holder {
    content_by_lua_block {
        local thread = ngx.thread.spawn(function()
            local guard = service():acquire("holder")
            ngx.sleep(100)
            guard:release()
        end)
        ngx.sleep(0.05)
        ngx.thread.kill(thread)
    }
}
location = /cycles {
    content_by_lua_block {
        local lock, missed = service(), 0
        for i = 1, tonumber(ngx.var.arg_n) do
            local guard = lock:acquire("cycle" .. i % 1000)
            if not guard or not guard:release() then missed = missed + 1 end
        end
        collectgarbage()
        collectgarbage()
        ngx.say(missed)
    }
}
location = /contended {
    content_by_lua_block {
        local lock = service()
        for i = 1, tonumber(ngx.var.arg_n) do
            local first, second = assert(lock:acquire("k" .. i)), nil
            local thread = ngx.thread.spawn(function() second = lock:acquire("k" .. i, { wait = 5 }) end)
            ngx.sleep(0.001)
            first:release()
            ngx.thread.wait(thread)
            second:release()
        end
        ngx.sleep(1)
        collectgarbage()
        collectgarbage()
        local count = 0
        for _ in pairs(lock.handle.lines) do count = count + 1 end
        for _ in pairs(lock.handle.jobs) do count = count + 1 end
        ngx.say(count, " ", lock.handle.queue.last - lock.handle.queue.first + 1)
    }
}
location = /stats { content_by_lua_block { ngx.say(service():stats()) } }
LUA

sub rss { return Nginx::read_file("/proc/$_[0]/statm") =~ /^\d+ (\d+)/ ? $1 * 4 : 0 } # kB
sub locks { return grep { !/\{/ } @{ $redis->ask('KEYS', 'buflock:*') } }
sub stat_of { my ($nginx, $name) = @_; return $nginx->get('/stats') =~ /"$name":(\d+)/ ? $1 : 'none' }

my $nginx = Nginx->new(http => $init, server => $server)->start;
my ($worker) = $nginx->workers;

# Killed light threads.
is($nginx->get('/kill'), "true\n", 'an acquire is killed in any of its steps') for 1 .. 3;
ok(Nginx->wait_for(sub { !locks() }, 6), 'no lock is left') or diag join ' ', locks();
is($nginx->get('/killed_waiters'), "the last got it in time\nthe others: 0\n", 'waiters that are killed hold up nobody');
ok(Nginx->wait_for(sub { !locks() }, 6), 'no lock is left');
$nginx->get('/killed_holder');
is(scalar locks(), 1, 'a holder that was killed');
$nginx->get('/gc');
ok(Nginx->wait_for(sub { !locks() }, 4), 'gives it back when it is collected');
for my $round (1 .. 20) { # clients that go away
    my $client = $nginx->send("/acquire?key=abort&hold=10&wait=3");
    sleep 0.002 * $round;
    close $client;
}
for my $round (1 .. 20) {
    my $client = $nginx->send("/acquire?key=abort$round&hold=0");
    sleep 0.0002 * $round;
    close $client;
}
$nginx->get('/gc');
ok(Nginx->wait_for(sub { $nginx->get('/gc'); !locks() }, 6), 'clients that went away leave no lock') or diag join ' ', locks();
cmp_ok(scalar(my @all = $redis->clients), '<=', 30, 'and no connection that grows in number');

# Releases in log, many at once.
my @logs = map { $nginx->send("/log?key=log$_") } 1 .. 300;
is(scalar(grep { $nginx->finish($_) eq "true\n" } @logs), 300, '300 locks that are released in log');
ok(Nginx->wait_for(sub { !locks() }, 3), 'all are released');

# Of all who wait for a key one is outside.
{
    my $holder = $nginx->send('/acquire?key=crowd&hold=0.7');
    sleep 0.1;
    my @waiters = map { $nginx->send('/acquire?key=crowd&wait=5') } 1 .. 50;
    my @awaiters = map { $nginx->send('/await?key=crowd&wait=5') } 1 .. 50;
    sleep 0.3;
    my @blocked = grep { /cmd=brpoplpush|cmd=blpop/ } $redis->clients;
    is(scalar @blocked, 1, 'a hundred waiters have one connection');
    is(scalar(grep { $nginx->finish($_) eq "over\n" } @awaiters), 50, 'all awaiters are told');
    is(scalar(grep { $nginx->finish($_) eq "got it\n" } @waiters), 50, 'all waiters get it');
    $nginx->finish($holder);
    ok(Nginx->wait_for(sub { !grep { /cmd=brpoplpush|cmd=blpop/ && /flags=\w*b/ } $redis->clients }, 3), 'nobody waits any more');
}

# Somebody who knows the protocol and no more: SET NX PX, DEL.
{
    use Digest::MD5 qw(md5_hex);
    my $key = 'buflock:' . md5_hex('hand');
    is($redis->ask('SET', $key, 'x' x 32, 'NX', 'PX', 30000), 'OK', 'locked by hand');
    is($nginx->get('/acquire?key=hand'), "busy: nil\n", 'is busy');
    my $waiter = $nginx->send('/acquire?key=hand&wait=5');
    sleep 0.2;
    my $begun = time;
    $redis->ask('DEL', $key);
    is($nginx->finish($waiter), "got it\n", 'and freed by hand');
    cmp_ok(time - $begun, '<', 1.2, 'is seen by the next look');
    my $holder = $nginx->send('/acquire?key=hand&hold=0.3');
    sleep 0.1;
    is($redis->ask('SET', $key, 'x' x 32, 'NX', 'PX', 30000), undef, 'held by nginx is held by hand');
    $nginx->finish($holder);
    is($redis->ask('SET', $key, 'x' x 32, 'NX', 'PX', 400), 'OK', 'and free then');
    $begun = time;
    is($nginx->get('/acquire?key=hand&wait=5'), "got it\n", 'a lease of somebody who died');
    cmp_ok(time - $begun, '<', 0.9, 'is over with its time');
}

# NOSCRIPT.
$redis->ask('SCRIPT', 'FLUSH');
is($nginx->get('/acquire?key=noscript'), "got it\n", 'scripts that the server has forgotten');

# The server stalls: other requests go on.
sub latencies {
    my ($count) = @_;
    my @all;
    for (1 .. $count) {
        my $begun = time;
        $nginx->get('/quick');
        push @all, time - $begun;
        sleep 0.002;
    }
    return sort { $a <=> $b } @all;
}
{
    my @idle = latencies(100);
    $redis->signal('STOP');
    my @stuck = map { $nginx->send("/acquire?key=stall$_&wait=1") } 1 .. 20;
    my @busy = latencies(100);
    cmp_ok($busy[94], '<', $idle[94] + 0.02, 'a stalled server holds up no other request');
    my @answers = map { $nginx->finish($_) } @stuck;
    is(scalar(grep { /^(unavailable|uncertain): \S/ } @answers), 20, 'an answer for all who asked it') or diag @answers;
    my $begun = time;
    like($nginx->get('/acquire?key=open'), qr/^unavailable: .* not asked again for/, 'then it is not asked for a while');
    cmp_ok(time - $begun, '<', 0.05, 'which takes no time');
    $redis->signal('CONT');
    ok(Nginx->wait_for(sub { $nginx->get('/acquire?key=after') eq "got it\n" }, 5), 'it goes on');
    ok(Nginx->wait_for(sub { !locks() }, 8), 'what it did late is released') or diag join ' ', locks();
}

# It dies while somebody waits, and comes back.
{
    my $holder = $nginx->send('/acquire?key=death&hold=1.5');
    sleep 0.1;
    my $waiter = $nginx->send('/acquire?key=death&wait=3');
    sleep 0.2;
    $redis->stop;
    like($nginx->finish($waiter), qr/^(unavailable|uncertain): /, 'a waiter is told');
    like($nginx->finish($holder), qr/^got it\n(unavailable|uncertain)/, 'a holder is told when it releases');
    $redis->start;
    ok(Nginx->wait_for(sub { $nginx->get('/acquire?key=back') eq "got it\n" }, 5), 'it is back');
    ok(Nginx->wait_for(sub { stat_of($nginx, 'orphans') eq '0' }, 40), 'nothing is owed') or diag $nginx->get('/stats');
}

# It answers nonsense, too late, or not at all.
{
    my $listener = IO::Socket::INET->new(Listen => 100, LocalAddr => '127.0.0.1', ReuseAddr => 1);
    my $url = 'redis://127.0.0.1:' . $listener->sockport . '?breaker=off';
    my %replies = (
        garbage => "hello\r\n", surplus => "+OK\r\n+OK\r\n", wrong => "+PONG\r\n", list => "*1\r\n:1\r\n", nothing => '',
        'long' => '$99999999999' . "\r\n",
    );
    for my $name (sort keys %replies) {
        my $pid = fork // die;
        if (!$pid) {
            $SIG{TERM} = sub { POSIX::_exit(0) };
            my @kept;
            while (my $client = $listener->accept) {
                sysread $client, my $command, 4096;
                syswrite $client, $replies{$name} if length $replies{$name};
                push @kept, $client;
            }
            POSIX::_exit(0);
        }
        my $begun = time;
        like($nginx->get("/acquire?key=$name&url=$url"), qr/^(unavailable|uncertain): \S/, "a server that answers: $name");
        cmp_ok(time - $begun, '<', 1, 'in time');
        kill 'TERM', $pid;
        waitpid $pid, 0;
    }
}

# Passwords.
is($nginx->get('/acquire?key=p&to=right'), "got it\n", 'a password');
my $said = $nginx->get('/acquire?key=p&to=wrong');
like($said, qr/^refused: .*WRONGPASS/, 'a wrong one, on a server with connections in a pool');
$said .= $nginx->get('/acquire?key=p&to=none');
like($said, qr/NOAUTH/, 'none');
unlike($said . Nginx::read_file($nginx->{log}), qr/geheim|falsch/, 'no text shows one');

# Memory.
my $many = $ENV{BUFLOCK_LONG} ? 1_000_000 : 20_000;
is($nginx->get('/cycles?n=5000', timeout => 60), "0\n", '5000 locks');
my $before = rss($worker);
is($nginx->get("/cycles?n=$many", timeout => 1000), "0\n", "$many more");
cmp_ok(rss($worker) - $before, '<', 3072, 'in the same memory');
is($nginx->get('/contended?n=300', timeout => 60), "0 0\n", 'waits leave no trace');
$before = rss($worker);
is($nginx->get('/contended?n=2000', timeout => 200), "0 0\n", '2000 more');
cmp_ok(rss($worker) - $before, '<', 3072, 'in the same memory');

is(($nginx->workers)[0], $worker, 'one worker did it all');
is(join("\n", $nginx->errors), '', 'no error in the log');
ok($nginx->stop, 'it ends');
unlike(Nginx::read_file($nginx->{log}), qr/exited on signal|\[alert\]/, 'in peace');
done_testing();
