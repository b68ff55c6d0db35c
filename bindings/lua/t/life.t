# The life of an nginx: workers, reloads, upgrades, deaths.
use strict;
use warnings;
use lib 't/lib';
use Nginx;
use Test::More;
use Time::HiRes qw(sleep time);
use POSIX ();

if (my $why = Nginx::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}

# GET /hold?key=&for=&ttl= holds and says when it has; /try?key= tries; /work is a critical section under watch.
my $server = <<'LUA';
location = /pid { content_by_lua_block { ngx.say(ngx.worker.pid()) } }
location = /hold {
    content_by_lua_block {
        local lock = require("resty.buflock.lock"):new("locks", { exptime = tonumber(ngx.var.arg_ttl or 30) })
        local elapsed, err = lock:lock(ngx.var.arg_key)
        ngx.say(elapsed and "held by " .. ngx.worker.pid() or err)
        ngx.flush(true)
        ngx.sleep(tonumber(ngx.var.arg_time))
        local ok, why, detail = lock:unlock()
        ngx.say(ok or (why .. " " .. (detail or "")))
    }
}
location = /try {
    content_by_lua_block {
        local lock = require("resty.buflock.lock"):new("locks", { timeout = tonumber(ngx.var.arg_timeout or 0) })
        local elapsed, err = lock:lock(ngx.var.arg_key)
        ngx.say(elapsed and "got it after " .. lock.waited or err)
        lock:unlock()
    }
}
location = /work {
    content_by_lua_block {
        local lock = require("resty.buflock.lock"):new("locks", { timeout = 20 })
        local elapsed, err = lock:lock("work")
        if not elapsed then return ngx.say("no: ", err) end
        -- What no reload can reset: a file.
        local name = "$place/inside"
        local inside = io.open(name, "r")
        if inside then inside:close() ngx.log(ngx.ERR, "two holders") end
        io.open(name, "w"):close()
        ngx.sleep(0.002)
        os.remove(name)
        local ok, why = lock:unlock()
        ngx.say(ok and "ok" or why)
    }
}
location = /gc { content_by_lua_block { collectgarbage() collectgarbage() ngx.say(collectgarbage("count")) } }
LUA

sub instance {
    my (%o) = @_;
    my $place = $o{place} // Nginx::place();
    chmod 01777, $place;
    (my $text = $server . ($o{server} // '')) =~ s/\$place/$place/g;
    return Nginx->new(workers => 2, http => "lua_shared_dict locks 100k;\n", %o, place => $place, server => $text);
}

# Holds a key in a request that is still running; says by whom.
sub hold {
    my ($nginx, $key, $time, $ttl, %o) = @_;
    my $socket = $nginx->send("/hold?key=$key&time=$time&ttl=" . ($ttl // 30), %o);
    my ($text, $pid) = '';
    until (($pid) = $text =~ /held by (\d+)\n/) {
        sysread($socket, $text, 4096, length $text) or die "not held: $text";
    }
    return ($socket, $pid);
}

# Clients that work until the file says stop; returns a function that ends them and counts their answers.
sub load {
    my ($nginx, $clients, $path) = @_;
    my $stop = "$nginx->{place}/stop";
    unlink $stop;
    my $parent = $$;
    my @ends = map {
        pipe(my $read, my $write) or die $!;
        my $pid = fork // die $!;
        if (!$pid) {
            my %count;
            close STDOUT; # else who reads it waits for us
            until (-e $stop || getppid != $parent) {
                my $said = eval { $nginx->get($path) } // '';
                chomp $said;
                $count{$said eq '' ? 'refused' : $said}++;
                sleep 0.01 if $said eq '';
            }
            print $write "$_\t$count{$_}\n" for keys %count;
            close $write;
            POSIX::_exit(0);
        }
        [$pid, $read];
    } 1 .. $clients;
    return sub {
        open my $file, '>', $stop;
        my %count;
        for my $end (@ends) {
            my $read = $end->[1];
            while (<$read>) { chomp; my ($word, $n) = split /\t/; $count{$word} += $n }
            waitpid $end->[0], 0;
        }
        return \%count;
    };
}

sub no_errors {
    my ($nginx, $name) = @_;
    is(join("\n", $nginx->errors), '', $name // 'no error in the log');
}

subtest 'two workers' => sub {
    my $nginx = instance()->start;
    my $end = load($nginx, 8, '/work');
    sleep 2;
    my $count = $end->();
    is(join(' ', keys %$count), 'ok', 'all get the lock, one at a time');
    my %pid;
    for (1 .. 20) { $pid{ $nginx->get('/pid') }++ }
    cmp_ok($count->{ok}, '>', 100, 'and many did');
    no_errors($nginx);
};

subtest 'two instances with one dictionary name' => sub {
    my ($one, $two) = (instance()->start, instance()->start);
    my ($socket) = hold($one, 'key', 1);
    is($one->get('/try?key=key'), "timeout\n", 'held in the one');
    like($two->get('/try?key=key'), qr/^got it/, 'free in the other');
    isnt($one->table, $two->table);
    ok(-e $_->table, 'each has its table') for $one, $two;
};

subtest 'the master never has it' => sub {
    my $nginx = instance(http => <<'HTTP')->start;
lua_shared_dict locks 100k;
init_by_lua_block {
    local lock = require("resty.buflock.lock"):new("locks")
    said = { lock:lock("key") }
    assert(lock:unlock() == nil)
}
HTTP
    like($nginx->get('/try?key=key'), qr/^got it/);
    my $table = $nginx->table;
    unlike(Nginx::read_file('/proc/' . $nginx->master . '/maps'), qr/\Q$table/, 'not in its memory');
    my ($uid, $mode) = (stat $table)[4, 2];
    is($uid, $nginx->uid, "the workers' user has it");
    is($mode & 07777, 0600, 'alone');
    is((stat '/dev/shm/buflock-' . $nginx->uid)[2] & 07777, 0700, 'and so its directory');
    no_errors($nginx);
};

subtest 'a reload leaves a held lock held' => sub {
    for my $size (qw(100k 200k)) {
        my $nginx = instance()->start;
        my ($socket, $pid) = hold($nginx, 'key', 1);
        $nginx->{http} = "lua_shared_dict locks $size;\n";
        ok($nginx->hup, 'reloaded');
        ok(!(grep { $_ == $pid } $nginx->workers) || Nginx::runs($pid), 'the holder is of the old ones');
        is($nginx->get('/try?key=key'), "timeout\n", "held, dictionary $size");
        like($nginx->get('/try?key=key&timeout=5'), qr/^got it after 0\.[1-9]/, 'waited for');
        like($nginx->finish($socket), qr/^1$/m, 'unlocked by its holder');
        no_errors($nginx);
    }
};

subtest 'reloads under load: never two holders, and no old worker stays' => sub {
    my $nginx = instance()->start;
    my $end = load($nginx, 6, '/work');
    for my $n (1 .. 15) {
        $nginx->{http} = 'lua_shared_dict locks ' . (100 + $n) . "k;\n" if $n % 3 == 0;
        $nginx->hup or fail('reload');
    }
    my ($wait) = $nginx->send('/try?key=never&timeout=5');
    my $count = $end->();
    delete $count->{refused};
    is(join(' ', keys %$count), 'ok', 'all got the lock');
    ok($nginx->wait_for(sub { $nginx->workers == 2 }, 10), 'two workers are left') or diag(join ' ', $nginx->workers);
    no_errors($nginx);
    unlike(Nginx::read_file($nginx->{log}), qr/exited on signal|exited with code [^0]/, 'all ended well');
};

subtest 'reloads with waits pending' => sub {
    my $nginx = instance()->start;
    my ($holder) = hold($nginx, 'key', 4);
    my @waits = map { my $s = $nginx->send('/try?key=key&timeout=20'); sleep 0.02; $s } 1 .. 8;
    for (1 .. 15) {
        $nginx->hup or fail('reload');
        push @waits, $nginx->send('/try?key=key&timeout=20');
    }
    like($nginx->finish($_), qr/^got it/, 'waits of old workers end well') for @waits;
    ok($nginx->wait_for(sub { $nginx->workers == 2 }, 10), 'two workers are left');
    is(scalar(grep { /^bell/ } map { s{.*/}{}r } glob('/dev/shm/buflock-' . $nginx->uid . "/bell.$$*")), 0, 'no socket is left');
    no_errors($nginx);
};

subtest 'upgrade of the binary' => sub {
    my $nginx = instance()->start;
    my $end = load($nginx, 4, '/work');
    my ($socket) = hold($nginx, 'key', 3);
    my $old = $nginx->master;
    kill 'USR2', $old;
    ok($nginx->wait_for(sub { $nginx->master('nginx.pid.oldbin') && $nginx->master && $nginx->master != $old
        && $nginx->workers >= 2 }), 'a new master runs') or return;
    sleep 0.3;
    kill 'WINCH', $old;
    ok($nginx->wait_for(sub { Nginx::children($old) <= 2 }), "the old one's workers leave");
    is($nginx->get('/try?key=key'), "timeout\n", 'the lock is held on');
    kill 'QUIT', $old;
    is($nginx->get('/try?key=key'), "timeout\n", 'still');
    like($nginx->finish($socket), qr/^1$/m, 'until its holder unlocks');
    like($nginx->get('/try?key=key'), qr/^got it/);
    my $count = $end->();
    delete $count->{refused};
    is(join(' ', keys %$count), 'ok', 'never two holders');
    ok($nginx->wait_for(sub { !Nginx::runs($old) }, 10), 'the old master is gone');
    no_errors($nginx);
};

subtest 'a worker that is killed while it holds' => sub {
    my $nginx = instance()->start;
    my ($socket, $pid) = hold($nginx, 'key', 10, 1);
    my $begun = time;
    kill 'KILL', $pid;
    ok($nginx->wait_for(sub { !Nginx::runs($pid) && $nginx->workers == 2 }), 'it is replaced');
    is($nginx->get('/try?key=key'), "timeout\n", 'held on');
    like($nginx->get('/try?key=key&timeout=5'), qr/^got it/, 'free at the end of its lease');
    my $took = time - $begun;
    ok($took > 0.8 && $took < 1.6, 'just then') or diag($took);
};

subtest 'the directory is removed' => sub {
    my $nginx = instance(http => <<'HTTP')->start;
lua_shared_dict locks 100k;
init_by_lua_block { assert(require("resty.buflock").instance("gone", { dir = ngx.config.prefix() .. "gone" })) }
HTTP
    like($nginx->get('/try?key=key'), qr/^unavailable/, 'one that was named is not made');
    mkdir "$nginx->{prefix}/gone";
    chown $nginx->uid, -1, "$nginx->{prefix}/gone";
    like($nginx->get('/try?key=key'), qr/^got it/, 'it is found when it is there');
    no_errors($nginx);
};

subtest 'exit_worker' => sub {
    my $nginx = instance(http => <<'HTTP')->start;
lua_shared_dict locks 100k;
init_worker_by_lua_block { holder = require("resty.buflock.lock"):new("locks") holder:lock("held" .. ngx.worker.id()) }
exit_worker_by_lua_block {
    local locks = require "resty.buflock.lock"
    local lock = locks:new("locks")
    ngx.log(ngx.WARN, "free: ", table.concat({ tostring(lock:lock("key")), tostring(lock:unlock()) }, " "))
    local _, err, detail = lock:lock("held" .. ngx.worker.id())
    ngx.log(ngx.WARN, "held: ", err, ", ", detail)
}
HTTP
    ok($nginx->stop, 'it ends');
    my $log = Nginx::read_file($nginx->{log});
    like($log, qr/free: 0 1/);
    like($log, qr/held: timeout, cannot wait in exit_worker phase/);
    no_errors($nginx);
};

done_testing();
