# Callers' own clients that stall, die and come back.
use strict;
use warnings;
use lib 't/lib';
use Test::Buflock qw(in_child redis_server sleep time);
use Test::More;
use Time::HiRes qw(setitimer ITIMER_REAL);

BEGIN { eval { require Mojolicious; 1 } or plan skip_all => 'no Mojolicious (package libmojolicious-perl)' }
use Mojolicious::Plugin::Buffer::Lock::Buflock;

my $server = redis_server();
my @modules = grep { eval "require $_; 1" } qw(Redis Redis::Fast) or plan skip_all => 'no Redis client (package libredis-perl)';
my $class = 'Mojolicious::Plugin::Buffer::Lock::Buflock';

for my $module (@modules) {
    my @timeouts = (cnx_timeout => 1, read_timeout => 2, write_timeout => 2);
    my $factory = sub { $module->new(server => $server->address, @timeouts) };
    my $holder = $class->new(redis => $factory, namespace => "$module:");

    for my $of ('a factory', 'an object') {
        subtest "$module, $of: SIGALRM and die in a stalled acquire" => sub {
            my $lock = $class->new(redis => $of eq 'an object' ? $factory->() : $factory, namespace => "$module:");
            my ($held) = $holder->acquire('held');
            my ($free) = $lock->acquire('warm');
            $lock->release($free);
            $server->pause;
            my ($guard, $error, $got);
            my $ok = eval {
                local $SIG{ALRM} = sub { die "alarm\n" };
                setitimer ITIMER_REAL, 0.3;
                ($guard, $error) = $lock->acquire("stalled by $of");
                1;
            };
            setitimer ITIMER_REAL, 0;
            $server->resume;
            ok !$guard, 'it got no guard';
            like $error // $@, qr/alarm/, '... but the reason' if !$ok || defined $error;
            sleep 0.1;
            # The reply to the first acquire is a success. It is nobody's.
            for my $try (1 .. 4) {
                ($guard, $error) = $lock->acquire('held');
                is $guard, undef, 'what another holds is not given';
            }
            is_deeply [$lock->release($held)]->[0], 1, 'the first is right again' if $of eq 'a factory';
            my ($right) = $lock->acquire("free after $of");
            if ($of eq 'a factory') {
                ok $right, 'so is the next';
                $lock->release($right);
            } else {
                my ($fresh) = $lock->redis($factory->())->acquire("fresh after $of");
                ok $fresh, 'another object is right at once';
            }
            $holder->release($held);
        };
    }

    subtest "$module: a server that is stopped" => sub {
        my $lock = $class->new(redis => sub { $module->new(server => $server->address, cnx_timeout => 0.3, read_timeout => 0.3, write_timeout => 0.3) });
        my ($guard) = $lock->acquire('k');
        $server->pause;
        my $begin = time;
        my ($none, $error) = $lock->acquire('other');
        ok defined $error && time - $begin < 1.5, "its own time limit holds: $error";
        $server->resume;
        is_deeply [$lock->release($guard)], [1, undef], 'the first call after it is right';
    };

    subtest "$module: a server that is started anew" => sub {
        my $calls = 0;
        my $lock = $class->new(redis => sub { $calls++; $factory->() });
        $lock->release($lock->acquire('k'));
        $server->stop;
        my ($guard, $error) = $lock->acquire('k');
        like $error, qr/\ARedis lock failed: /, 'an error while it is gone';
        $server->start;
        ($guard, $error) = $lock->acquire('k');
        is $error, undef, 'the first call after it is right';
        is_deeply [$lock->release($guard)], [1, undef], '... and the next';
        $holder = $class->new(redis => $factory, namespace => "$module:");
    };
}

for my $url ($server->url('breaker=off')) {
    subtest 'redis://: a server that is stopped, and started anew' => sub {
        my $lock = $class->new(redis => $url);
        my ($held) = $lock->acquire('held');
        $server->pause;
        my $begin = time;
        my ($none, $error) = $lock->acquire('k');
        ok defined $error && time - $begin < 0.7, "within the budget: $error";
        $server->resume;
        is_deeply [$lock->release($held)], [1, undef], 'the first call after it is right';
        $lock->release($lock->acquire('k'));
        $server->stop;
        $server->start;
        my ($guard) = $lock->acquire('k');
        ok $guard, 'so it is after a start';
        my $pid = in_child(sub { return (($lock->acquire('k'))[1] || ($lock->acquire('mine'))[1]) ? 1 : 0 });
        waitpid $pid, 0;
        is $?, 0, 'a child has a connection of its own';
        is_deeply [$lock->release($guard)], [1, undef], '... and the parent keeps its';
    };
}

subtest 'clients that leave in strange ways' => sub {
    { package Leaves; sub new { bless { how => $_[1] }, $_[0] } sub eval { $_[0]{how}->() } }
    no warnings 'exiting';
    my $lock = $class->new(redis => Leaves->new(sub { last }));
    my $rounds = 0;
    for (1) { $rounds++; $lock->acquire('k') }
    is $rounds, 1, 'last';
    my $pid = in_child(sub { $class->new(redis => Leaves->new(sub { exit 7 }))->acquire('k') });
    waitpid $pid, 0;
    is $? >> 8, 7, 'exit';
    my $inner = $class->new(redis => $server->url);
    my $nests = $class->new(redis => Leaves->new(sub { my ($guard) = $inner->acquire('inner'); $inner->release($guard); undef }));
    is_deeply [$nests->acquire('k')], [undef, 'Redis lock command returned no result'], 'another lock inside';
};

done_testing;
