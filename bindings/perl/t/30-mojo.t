# Locks in an event loop: nothing blocks it, and nothing stays held by accident.
use strict;
use warnings;
use lib 't/lib';
use Test::More;

BEGIN { eval { require Mojo::IOLoop; 1 } or plan skip_all => 'no Mojolicious (package libmojolicious-perl)' }
use Buflock::Mojo;
use Mojo::IOLoop;
use Mojo::Promise;
use Mojo::Reactor::Poll;
use Mojo::Transaction::HTTP;
use Scalar::Util qw(weaken);
use Test::Buflock qw(free_port in_child redis_server shm_url sleep time wait_for warnings_of);

my $server = redis_server(optional => 1);
my @quiet  = (on_notice => sub { });

sub new_lock { return Buflock::Mojo->new(shift, @quiet, @_) }

# What a promise comes to: how, and value.
sub settled {
    my ($promise, $loop) = @_;
    my @settled;
    $promise->then(sub { @settled = (ok => @_) }, sub { @settled = (error => @_) });
    my $ends = ($loop //= Mojo::IOLoop->singleton)->timer(10 => sub { @settled = ('never') });
    $loop->one_tick while !@settled;
    $loop->remove($ends);
    return @settled;
}

# The largest pause of the loop, in seconds, while a promise is pending.
sub gap_during {
    my ($promise) = @_;
    my ($last, $gap) = (time, 0);
    my $ticks = Mojo::IOLoop->recurring(0.002 => sub { my $now = time; $gap = $now - $last if $now - $last > $gap; $last = $now });
    my @settled = settled($promise);
    Mojo::IOLoop->remove($ticks);
    return ($gap, @settled);
}

sub turn { settled(Mojo::Promise->timer($_[0] // 0.05)) }

sub all_of_it {
    my ($name, $url, %is) = @_;
    my $lock  = new_lock($url);
    my $other = Buflock->new($url, @quiet);
    my $free  = sub { !defined $other->inspect($_[0] // 'k') };

    subtest "$name: acquire_p, extend_p, release_p, await_p" => sub {
        my ($how, $guard) = settled($lock->acquire_p('k', ttl => 5));
        isa_ok $guard, 'Buflock::Guard', 'acquire_p';
        ok $guard->left > 4, '... with a lease';
        is_deeply [settled($lock->acquire_p('k'))], [ok => undef], 'busy is undef';
        is_deeply [settled($lock->await_p('k'))], [ok => 0], 'await_p of what is held';
        is_deeply [settled($lock->extend_p($guard, 20))], [ok => 1], 'extend_p';
        ok $guard->left > 19, '... from now on';
        my @twice = ($lock->release_p($guard), $lock->release_p($guard));
        is_deeply [settled(Mojo::Promise->all(@twice))], [ok => [1], [1]], 'release_p, twice at once';
        is_deeply [settled($lock->release_p($guard))], [ok => 1], '... and once more';
        ok $free->(), '... is released';
        is_deeply [settled($lock->await_p('k', wait => 5))], [ok => 1], 'await_p of what is free';
        my $plain = $other->acquire('k')->detach;
        is_deeply [settled($lock->release_p($plain))], [ok => 1], 'release_p of a plain guard';
        ($how, my $error) = settled($lock->release_p($plain));
        is $how, 'error', '... that holds nothing';
        is $error->kind, 'expired', '... says so';
        $guard = $other->acquire('k');
        ($how, $error) = settled($lock->extend_p({ key => 'k', token => $plain->{token} }, 5));
        is $error->kind, 'taken', "extend_p of another's";
        for my $bad ([acquire_p => undef], [acquire_p => k => ttl => 0], [acquire_p => k => timeout => 1], [release_p => {}], [fetch_p => 'k']) {
            my ($method, @arguments) = @$bad;
            ok !eval { $lock->$method(@arguments); 1 }, "$method with wrong arguments dies";
            like $@, qr/ at \Q$0\E line \d+\.\n\z/, '... and says where';
        }
    };

    subtest "$name: waits" => sub {
        my $guard = $other->acquire('k', ttl => 5);
        my $begin = time;
        is_deeply [settled($lock->acquire_p('k', wait => 0.2))], [ok => undef], 'busy in the end';
        my $took = time - $begin;
        ok $took >= 0.2 && $took < 0.4, sprintf '... after the wait: %.0f ms', $took * 1000;
        is_deeply [settled($lock->await_p('k', wait => 0.2))], [ok => 0], 'await_p';
        $guard->release;

        for my $kind (qw(acquire_p await_p)) {
            my @late;
            for (1 .. 3) {
                my $plain = $other->acquire('k', ttl => 5)->detach;
                pipe my $from, my $to or die;
                my $pid = in_child(sub {
                    my $own = Buflock->new($url, @quiet);
                    $own->inspect('k');
                    sleep 0.2;
                    my $now = time;
                    $own->release($plain) or return 1;
                    syswrite $to, $now;
                    return 0;
                });
                my ($gap, $how, $got) = gap_during($lock->$kind('k', wait => 8));
                my $now = time;
                sysread $from, my $released, 100;
                waitpid $pid, 0;
                ok $got, "$kind is woken";
                push @late, ($now - $released) * 1000;
                $got->release if ref $got;
            }
            my ($best) = sort { $a <=> $b } @late;
            ok $best < 20, sprintf '... within ms: %s', join ' ', map { sprintf '%.1f', $_ } @late;
        }
    };

    subtest "$name: many at once" => sub {
        my $inside = 0;
        my @promises = map {
            $lock->acquire_p('many', wait => 8)->then(sub {
                my ($guard) = @_;
                die "two holders\n" if $inside++;
                return Mojo::Promise->timer(0.002)->then(sub { $inside--; $lock->release_p($guard) });
            });
        } 1 .. 50;
        my ($how, @results) = settled(Mojo::Promise->all(@promises));
        is $how, 'ok', '50 who wait for one lock have it, one after the other' or diag "@results";
        is scalar @results, 50, '... all of them';
        my @keys = map { $lock->acquire_p("key $_") } 1 .. 50;
        ($how, my @guards) = settled(Mojo::Promise->all(@keys));
        is scalar(grep { $_->[0] } @guards), 50, '50 locks at once';
        ($how) = settled(Mojo::Promise->all(map { $lock->release_p($_->[0]) } @guards));
        is $how, 'ok', '... and back';
        my $holder = $other->acquire('many');
        my ($short, $long) = map { $lock->acquire_p('many', wait => $_) } 0.1, 8;
        is_deeply [settled($short)], [ok => undef], 'a short wait beside a long one';
        $holder->release;
        ok +(settled($long))[1], '... which goes on';
    };

    subtest "$name: the loop goes on" => sub {
        my $guard = $other->acquire('k', ttl => 5);
        my @gaps;
        for (1 .. 3) {    # the best of three, for the machine has other work
            my ($gap) = gap_during($lock->acquire_p('k', wait => 0.3));
            push @gaps, $gap;
        }
        my ($gap) = sort { $a <=> $b } @gaps;
        ok $gap < 0.03, sprintf 'its longest pause in a wait: %.1f ms', $gap * 1000;
    };

    subtest "$name: a client that goes" => sub {
        my $guard = $other->acquire('k', ttl => 5);
        for my $how ('closed', 'dropped') {
            my $tx = Mojo::Transaction::HTTP->new;
            my $promise = $lock->acquire_p('k', wait => 8, tx => $tx);
            Mojo::IOLoop->timer(0.1 => sub { $how eq 'closed' ? $tx->closed : undef $tx });
            my $begin = time;
            is_deeply [settled($promise)], [ok => undef], "a transaction that is $how ends the wait";
            ok time - $begin < 1, '... at once';
            is_deeply [settled($lock->acquire_p('k', wait => 8, tx => $tx))], [ok => undef], '... and none begins' if $how eq 'closed';
        }
        # At every moment of an acquire that succeeds.
        $guard->release;
        for my $moment (0, 0.0005, 0.001, 0.002, 0.004) {
            my $tx = Mojo::Transaction::HTTP->new;
            my ($got) = (undef);
            $lock->acquire_p('k', tx => $tx, wait => $moment ? 1 : 0)->then(sub { $got = shift });
            Mojo::IOLoop->timer($moment => sub { $tx->closed });
            turn();
            $got->release if $got;
            turn(0.02);
            ok $free->(), "nothing is held after $moment s";
        }
        my $tx = Mojo::Transaction::HTTP->new;
        ok +(settled($lock->acquire_p('k', tx => $tx)))[1], 'one that stays';
        ok !$tx->has_subscribers('finish'), '... is not watched any longer';
        turn();
    };

    subtest "$name: what is dropped" => sub {
        $lock->acquire_p('k');
        turn();
        ok $free->(), 'a promise that nobody listens to holds nothing';
        my $guard = $other->acquire('k');
        $lock->acquire_p('k', wait => 5);
        turn();
        $guard->release;
        turn();
        ok $free->(), '... also after a wait';
        $lock->acquire_p('k')->then(sub { my ($guard) = @_; $guard or die; return });
        turn();
        ok $free->(), 'a guard that is dropped in the loop is released at once';
        {
            my $short = new_lock($url);
            $guard = $other->acquire('k');
            $short->acquire_p('k', wait => 5);
            weaken(my $weak = $short);
            undef $short;
            turn();
            $guard->release;
            turn();
            ok $free->(), 'a lock that is dropped meanwhile';
            is $weak, undef, '... goes when its waits are over';
        }
        my @warnings = warnings_of(sub { turn() });
        is_deeply \@warnings, [], 'no words';
    };

    subtest "$name: the end of the loop" => sub {
        my $loop = Mojo::IOLoop->new;
        $loop->reactor(Mojo::Reactor::Poll->new);
        my $own = new_lock($url, ioloop => $loop);
        is $own->ioloop, $loop, 'a loop of its own';
        my $guard = $other->acquire('k');
        $loop->timer(0.1 => sub { $loop->stop_gracefully });
        my $keep = $loop->stream(do { pipe my $from, my $to or die; $own->{keep} = $to; Mojo::IOLoop::Stream->new($from) });
        my $begin = time;
        is_deeply [settled($own->acquire_p('k', wait => 8), $loop)], [ok => undef], 'a wait ends when it finishes';
        is_deeply [settled($own->acquire_p('k', wait => 8), $loop)], [ok => undef], '... and no other begins';
        ok time - $begin < 1, '... at once';
        $loop->reset;
        $guard->release;
        $begin = time;
        ok +(settled($own->acquire_p('k'), $loop))[1], 'after a reset it goes on';
        $own->acquire_p('k', wait => 8);
        $loop->reset;
        ok $own->acquire('flush'), 'a wait that is forgotten by a reset';
        sleep 0.05;
        ok $free->() || $free->(), '... holds nothing' or diag explain $other->inspect('k');
    };

    subtest "$name: fork" => sub {
        my $guard = $other->acquire('k', ttl => 20);
        my $pending = $lock->acquire_p('k', wait => 8);
        my $idle = (settled($lock->acquire_p('mine')))[1];
        my $pid = in_child(sub {
            my ($how, $got) = settled($lock->acquire_p('child', wait => 1));
            return 1 if !$got;
            ($how) = settled($lock->release_p($got));
            return 2 if $how ne 'ok';
            return 3 if (settled($lock->acquire_p('k', wait => 0.2)))[1];
            return 4 if eval { $lock->release_p($idle); 1 };
            turn(0.3);
            return 0;
        });
        is_deeply [(settled(Mojo::Promise->timer(0.3)))[0]], ['ok'], 'the loop of both goes on';
        waitpid $pid, 0;
        is $?, 0, 'a child has connections and a bell of its own';
        # One that goes on with the loop and does not use the lock.
        $pid = in_child(sub { turn(0.3); return 0 });
        sleep 0.1;
        $guard->release;
        my ($how, $got) = settled($pending);
        ok $got, 'what the parent waits for comes to the parent';
        waitpid $pid, 0;
        is $?, 0, '...';
        is_deeply [settled($lock->release_p($_))], [ok => 1], '... which goes on' for $got, $idle;
    };

    subtest "$name: the end of the program" => sub {
        for my $code (
            '$lock->acquire_p("end")->then(sub { our $guard = shift; exit 3 }); Mojo::IOLoop->start',
            '$lock->acquire_p("end")->then(sub { our $guard = shift; Mojo::IOLoop->stop }); Mojo::IOLoop->start; exit 3',
            '$lock->acquire_p("end"); exit 3',
            '$lock->acquire_p("end"); Mojo::IOLoop->one_tick; exit 3',
            '$lock->acquire_p("end"); Mojo::IOLoop->one_tick for 1 .. 2; exit 3',
            '$lock->acquire_p("end")->then(sub { $lock->release_p(shift); exit 3 }); Mojo::IOLoop->start',
            '$lock->acquire_p("end", wait => 5) for 1 .. 3; Mojo::IOLoop->timer(0.2 => sub { exit 3 }); Mojo::IOLoop->start',
        ) {
            my $status = system $^X, (map { "-I$_" } @INC), '-MBuflock::Mojo', '-e',
                "my \$lock = Buflock::Mojo->new('$url', on_notice => sub { }); $code";
            is $status >> 8, 3, $code;
            ok $free->('end'), '... leaves nothing held';
        }
    };

    subtest "$name: fetch_p" => sub {
        my (%cache, $builds);
        my @cache = (
            get   => sub { $cache{ $_[0] } },
            build => sub { my ($key) = @_; $builds++; return Mojo::Promise->timer(0.05)->then(sub { "page of $key" }) },
            set   => sub { $cache{ $_[0] } = $_[1] },
        );
        my ($how, @pages) = settled(Mojo::Promise->all(map { $lock->fetch_p('a', @cache, wait => 8) } 1 .. 20));
        is_deeply [map { $_->[0] } @pages], [('page of a') x 20], '20 have the page' or diag explain [$how, @pages];
        is $builds, 1, '... which was built once';
        turn(0.02);
        ok $free->('a'), '... and the lock is free';
        is_deeply [settled($lock->fetch_p('a', @cache))], [ok => 'page of a'], 'a hit';
        my $guard = $other->acquire('b', ttl => 5);
        is_deeply [settled($lock->fetch_p('b', @cache))], [ok => undef], 'another builds';
        is_deeply [settled($lock->fetch_p('b', @cache, stale => sub { Mojo::Promise->resolve('old') }, wait => 5))], [ok => 'old'], '... stale is taken';
        my $begin = time;
        is_deeply [settled($lock->fetch_p('b', @cache, wait => 0.2))], [ok => undef], '... or waited for';
        ok time - $begin >= 0.2 && time - $begin < 0.5, '... so long';
        my $tx = Mojo::Transaction::HTTP->new;
        Mojo::IOLoop->timer(0.1 => sub { $guard->release; $tx->closed });
        $builds = 0;
        settled($lock->fetch_p('b', @cache, wait => 5, tx => $tx));
        ok $builds <= 1, 'a client that goes';
        turn();
        ok $free->('b'), '... leaves nothing held';
        for my $die (sub { die "no database\n" }, sub { Mojo::Promise->reject("no database\n") }) {
            is_deeply [settled($lock->fetch_p('c', @cache, build => $die))], [error => "no database\n"], 'a build that dies';
            ok $free->('c'), '... leaves it free';
            is_deeply [settled($lock->fetch_p('d', @cache, build => $die, cool => 0.2))], [error => "no database\n"], 'with cool';
            ok !$free->('d'), '... it cools down';
            is_deeply [settled($lock->fetch_p('d', @cache, wait => 5))], [ok => 'page of d'], '... and then is built';
            delete $cache{d};
            is_deeply [settled($lock->fetch_p('e', @cache, set => $die, cool => 5))], [error => "no database\n"], 'a set that dies';
            ok $free->('e'), '... leaves it free';
        }
        is_deeply [settled($lock->fetch_p('f', @cache, get => sub { die "no cache\n" }))], [error => "no cache\n"], 'a get that dies';
    };
    return;
}

all_of_it('shm', shm_url());
all_of_it('redis', $server->url('breaker=off')) if $server;

subtest 'nothing keeps a loop running' => sub {
    for my $url (shm_url(), $server ? $server->url : ()) {
        my $loop = Mojo::IOLoop->new;
        $loop->reactor(Mojo::Reactor::Poll->new);
        my $lock = new_lock($url, ioloop => $loop);
        my $done;
        $lock->acquire_p('k')->then(sub { $lock->acquire_p('k', wait => 0.05) })->then(sub { $done = 1 });
        local $SIG{ALRM} = sub { die "it runs for ever\n" };
        alarm 5;
        ok eval { $loop->start; 1 }, 'it ends' or diag $@;
        alarm 0;
        ok $done, '... when all is done';
    }
};

subtest 'URLs' => sub {
    ok !eval { Buflock::Mojo->new('redis:'); 1 }, 'no server';
    like $@, qr/\Aa redis: URL without a server .* at \Q$0\E line/, '... dies';
    ok !eval { Buflock::Mojo->new('shm:', tll => 1); 1 }, 'an unknown option';
    like $@, qr/\Aunknown option "tll": did you mean "ttl"\? at \Q$0\E line/, '... dies';
    my $off = new_lock('off:');
    ok +(settled($off->acquire_p('k', wait => 1)))[1], 'off: grants';
    my $lock = new_lock('redis://127.0.0.1:' . free_port() . '?breaker=off');
    for my $call (sub { $lock->acquire_p('k') }, sub { $lock->acquire_p('k', wait => 5) }, sub { $lock->await_p('k', wait => 1) },
        sub { $lock->fetch_p('k', get => sub { }, build => sub { }) }) {
        my ($how, $error) = settled($call->());
        is $how, 'error', 'a server that is not there';
        is $error->kind, 'unreachable', '... is an error';
        ok $error->retryable, '... that may pass';
    }
    $lock = new_lock('shm:', dir => '/nowhere');
    is +(settled($lock->acquire_p('k')))[1]->kind, 'segment', 'a table that cannot be';
    is +(settled($lock->acquire_p('k', wait => 1)))[1]->kind, 'segment', '...';
    $lock = new_lock('redis://no-such-host.invalid?breaker=off&connect_timeout=5&budget=5');
    my ($gap, $how, $error) = gap_during($lock->acquire_p('k'));
    like "$error", qr/resolving no-such-host\.invalid failed|took more than/, 'a name that is none';
    ok $gap < 0.2, sprintf '... does not stop the loop: %.0f ms', $gap * 1000;
};

if ($server) {
    my $url = $server->url('breaker=off');

    subtest 'other ways to the server' => sub {
        my %way = (
            'a name'       => "redis://localhost:$server->{port}?breaker=off&connect_timeout=5&budget=5",
            'a socket'     => 'unix://' . $server->path . '?breaker=off',
            'another base' => 'redis://' . $server->address . '/3?breaker=off',
        );
        for my $way (sort keys %way) {
            my $lock = new_lock($way{$way});
            my ($how, $guard) = settled($lock->acquire_p('way'));
            ok ref $guard, $way or diag $guard;
            ($how) = settled(Mojo::Promise->all(map { $lock->acquire_p("$way $_") } 1 .. 10));
            is $how, 'ok', '... for many at once';
        }
    };

    subtest 'a server that is stopped' => sub {
        my $lock = new_lock($url);
        my $warm = (settled($lock->acquire_p('warm')))[1];
        my $held = Buflock->new($url, @quiet)->acquire('held', ttl => 20)->detach;
        my @waits = map { $lock->acquire_p('held', wait => 30) } 1 .. 3;
        turn();
        $server->pause;
        my @calls = (sub { $lock->acquire_p('k') }, sub { $lock->acquire_p('k', wait => 5) }, sub { $lock->release_p({ key => 'k', token => 'x' }) });
        my @gaps;
        for my $call (@calls) {
            my $begin = time;
            my ($gap, $how, $error) = gap_during($call->());
            my $took = time - $begin;
            push @gaps, $gap;
            is $how, 'error', 'an error';
            ok $took < 0.75, sprintf '... within the budget: %.0f ms', $took * 1000;
            ok $error->retryable, "... that may pass: $error";
        }
        is +(settled($_))[0], 'error', 'a wait ends with an error' for @waits;
        my ($gap) = sort { $a <=> $b } @gaps;
        ok $gap < 0.03, sprintf "the loop's longest pause: %.1f ms", $gap * 1000;
        my $ticks = 0;
        my $tx = Mojo::Transaction::HTTP->new;
        $lock->acquire_p('gone', tx => $tx)->catch(sub { });
        turn(0.02);
        $tx->closed;
        turn(0.02);
        $server->resume;
        is_deeply [settled($lock->release_p($warm))], [ok => 1], 'the first call after it is right';
        is_deeply [settled($lock->release_p($held))], [ok => 1], '... and so is the next';
        turn(0.1);
        my $looks = Buflock->new($url, @quiet);
        is $looks->inspect($_), undef, "nothing is held by accident: $_" for qw(k gone held);
    };

    subtest 'a server that is started anew' => sub {
        my $lock = new_lock($url);
        settled($lock->release_p((settled($lock->acquire_p('k')))[1])) for 1 .. 3;
        my $wait = do { my $guard = Buflock->new($url, @quiet)->acquire('w')->detach; $lock->acquire_p('w', wait => 8) };
        turn();
        $server->stop;
        $server->start;
        my ($how, $guard) = settled($lock->acquire_p('k'));
        ok ref $guard && $how eq 'ok', 'the first call after it' or diag $guard;
        ok +(settled($wait))[1], 'a wait survives it, or says so';
    };

    subtest 'a reply that is swallowed' => sub {
        my $swallow = 0;
        my $loop = Mojo::IOLoop->singleton;
        my ($lost, $port) = (0);
        my $id = $loop->server({ address => '127.0.0.1' } => sub {
            my (undef, $stream) = @_;
            $loop->next_tick(sub { $stream->stop });
            $loop->client({ port => $server->{port} } => sub {
                my (undef, $error, $up) = @_;
                $stream->on(read => sub { $up->write($_[1]) });
                $stream->start;
                $up->on(read => sub { $swallow && $_[1] =~ /\A[+:]/ ? $swallow-- && $lost++ : $stream->write($_[1]) });
                $stream->on(close => sub { $up->close });
                $up->on(close => sub { $stream->close });
            });
        });
        $port = $loop->acceptor($id)->port;
        my $lock  = new_lock("redis://127.0.0.1:$port?breaker=off");
        my $looks = Buflock->new($url, @quiet);
        my $warm = (settled($lock->acquire_p('warm')))[1];
        for my $count (1, 2, 5) {
            $swallow = $count;
            my ($how, $got) = settled($lock->acquire_p("lost $count"));
            $swallow = 0;
            ok $lost, "$count swallowed";
            if ($how eq 'ok') { ok $got, '... and it has the lock all the same'; is $looks->inspect("lost $count") ? 1 : 0, 1, '...'; $got->release }
            else              { like $got->kind, qr/unreachable|uncertain/, "... or an error: $got" }
            settled($lock->release_p((settled($lock->acquire_p('next')))[1]));
            turn(0.1);
            is $looks->inspect("lost $count"), undef, '... nothing is held by accident';
            $lost = 0;
        }
        $loop->remove($id);
    };

    subtest 'the breaker' => sub {
        my $lock = new_lock('redis://127.0.0.1:' . free_port());
        settled($lock->acquire_p('k')) for 1 .. 3;
        my $begin = time;
        is +(settled($lock->acquire_p('k')))[1]->kind, 'unavailable', 'after three failures nothing is tried';
        ok time - $begin < 0.1, '... at once';
    };
}

done_testing;
