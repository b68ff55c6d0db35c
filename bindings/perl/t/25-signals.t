# Signal handlers run during waits, and may die.
use strict;
use warnings;
use lib 't/lib';
use Buflock;
use Test::Buflock qw(backend in_child redis_server shm_url sleep time wait_for);
use Test::More;
use Time::HiRes qw(setitimer ITIMER_REAL);

my $server = redis_server(optional => 1);

sub signals {
    my ($name, $url, $pause, $resume) = @_;
    my ($lock, $other) = map { Buflock->new($url, on_notice => sub { }) } 1, 2;

    for my $wait (['acquire', sub { $lock->acquire('k', wait => 1) }], ['await', sub { $lock->await('k', wait => 1) }]) {
        subtest "$name: $wait->[0]" => sub {
            my $guard = $other->acquire('k');
            my @late;
            local $SIG{ALRM} = sub { push @late, time };
            my $begin = time;
            setitimer ITIMER_REAL, 0.05, 0.05;
            my $got = $wait->[1]->();
            setitimer ITIMER_REAL, 0;
            my $took = time - $begin;
            ok !$got, 'busy';
            ok $took >= 1 && $took < 1.3, 'the wait is as long as ever';
            ok @late >= 15, 'handlers ran meanwhile: ' . @late;
            my @gaps = sort { $a <=> $b } map { $late[$_] - $late[$_ - 1] - 0.05 } 1 .. $#late;
            my $most = $gaps[@gaps * 3 / 4];    # the rest is the scheduler's, on a machine with other work
            ok $most < 0.05, sprintf '... within 50 ms: most in %.1f ms, all in %.1f ms', map { $_ * 1000 } $most, $gaps[-1];
            $begin = time;
            $SIG{ALRM} = sub { die "enough\n" };
            ok !eval { setitimer ITIMER_REAL, 0.1; $wait->[1]->(); 1 }, 'a handler that dies';
            is $@, "enough\n", '... ends it';
            ok time - $begin < 0.2, '... at once';
            $guard->release;
            is $other->inspect('k'), undef, 'nothing is held';
            ok $other->acquire('k')->release, '... and it can be acquired';
        };
    }

    subtest "$name: a storm" => sub {
        local $SIG{ALRM} = sub { };
        my $bad = 0;
        setitimer ITIMER_REAL, 0.0005, 0.0005;
        for (1 .. 500) {
            my ($guard, $error) = $lock->acquire('s', wait => 1);
            $bad++ if !$guard || ($guard->release)[1];
        }
        setitimer ITIMER_REAL, 0;
        is $bad, 0, '500 pairs under 2000 signals a second';
    };

    subtest "$name: handlers that die anywhere" => sub {
        plan skip_all => 'see LIMITATIONS of Buflock::FFI' if backend() eq 'ffi';
        my ($died, $got) = (0, 0);
        local $SIG{ALRM} = sub { die "now\n" };
        for my $try (1 .. 400) {
            eval {
                setitimer ITIMER_REAL, 0.00002 + 0.000001 * $try;
                for (1 .. 50) { my $guard = $lock->acquire('s'); $got++ if $guard }
                1;
            } or $died++;
            setitimer ITIMER_REAL, 0;
        }
        ok $died > 200, "$died times, and $got times it was held";
        $other->acquire('flush')->release;
        ok $lock->acquire('flush2')->release, '... then';
        is $other->inspect('s'), undef, 'nothing is held by accident';
    };
    return;
}

signals('shm', shm_url());
if ($server) {
    signals('redis', $server->url('breaker=off'));

    subtest 'a server that is stopped' => sub {
        my $lock = Buflock->new($server->url('breaker=off&budget=0.5'), on_notice => sub { });
        my $guard = $lock->acquire('warm');
        $server->pause;
        my $begin = time;
        my ($none, $error) = $lock->acquire('k');
        my $took = time - $begin;
        ok $error && $took < 0.7, sprintf 'an error within the budget: %.0f ms', $took * 1000;
        ok $error->retryable, "... that may pass: $error";
        my @late;
        local $SIG{ALRM} = sub { push @late, time };
        setitimer ITIMER_REAL, 0.05, 0.05;
        ($none, $error) = $lock->acquire('k');
        setitimer ITIMER_REAL, 0;
        ok @late >= 4, 'handlers ran meanwhile: ' . @late;
        $SIG{ALRM} = sub { die "enough\n" };
        $begin = time;
        ok !eval { setitimer ITIMER_REAL, 0.1; $lock->acquire('stalled'); 1 }, 'one that dies';
        ok time - $begin < 0.2, '... ends it at once';
        $server->resume;
        ok $guard->release, 'the first call after it goes on';
        is $lock->inspect('stalled'), undef, 'nothing is held by accident';
        is $lock->inspect('k'), undef, '...';
    };

    subtest 'a server that is started anew' => sub {
        my $lock = Buflock->new($server->url('breaker=off'), on_notice => sub { });
        ok $lock->acquire('k')->release, 'before';
        $server->stop;
        $server->start;
        my ($guard, $error) = $lock->acquire('k');
        is $error, undef, 'the first call after';
        ok $guard && $guard->release, '... and the next';
    };
}

done_testing;
