# No call leaves anything behind, however it ends.
use strict;
use warnings;
use lib 't/lib';
use Test::More;

BEGIN { eval { require Test::LeakTrace; 1 } or plan skip_all => 'no Test::LeakTrace (package libtest-leaktrace-perl)' }
use Buflock;
use Test::Buflock qw(backend free_port redis_server shm_url);
use Test::LeakTrace;

plan skip_all => 'FFI::Platypus keeps things of its own' if backend() eq 'ffi';

my $server = redis_server(optional => 1);
my @quiet  = (on_notice => sub { });

sub leaks {
    my ($name, $url) = @_;
    my ($lock, $other) = map { Buflock->new($url, @quiet) } 1, 2;
    my $held = $other->acquire('held');
    my %case = (
        'a pair'          => sub { my ($guard) = $lock->acquire('k'); $guard->release },
        'a scope'         => sub { my $guard = $lock->acquire('k'); 1 },
        'busy'            => sub { $lock->acquire('held') and die; 1 },
        'a wait'          => sub { $lock->acquire('held', wait => 0.01) and die; 1 },
        'extend, left'    => sub { my $guard = $lock->acquire('k'); $guard->extend(5); $guard->left; $guard->lost },
        'detach, adopt'   => sub { my $plain = $lock->acquire('k')->detach; my $guard = $lock->adopt($plain) },
        'inspect, await'  => sub { $lock->inspect('held'); $lock->await('held'); $lock->await('held', wait => 0.01) },
        'with'            => sub { $lock->with('k', sub { 1 }) },
        'with that dies'  => sub { eval { $lock->with('k', sub { die "x\n" }) } },
        'break'           => sub { my $guard = $lock->acquire('k'); $lock->break('k'); $guard->release },
        'taken'           => sub { $lock->release({ key => 'held', token => 'x' }) },
        'stats'           => sub { $lock->stats },
        'wrong arguments' => sub { eval { $lock->acquire('k', ttl => -1) }; eval { $lock->acquire }; eval { $lock->release(1) } },
        'a new one'       => sub { Buflock->new($url, @quiet)->acquire('k')->release },
        'a bad URL'       => sub { eval { Buflock->new('x:') }; eval { Buflock->new($url, tll => 1) } },
        'a handler'       => sub {
            local $SIG{ALRM} = sub { die "x\n" };
            eval { Time::HiRes::ualarm(5_000); $lock->acquire('held', wait => 1) };
            Time::HiRes::ualarm(0);
        },
        'fetch' => sub { $lock->fetch('k', get => sub { }, build => sub { 1 }) },
    );
    for my $case (sort keys %case) {
        $case{$case}->() for 1, 2;    # what is made once
        no_leaks_ok { $case{$case}->() } "$name: $case";
    }
    return;
}

leaks('shm', shm_url());
leaks('redis', $server->url('breaker=off')) if $server;
{
    my $lock = Buflock->new('redis://127.0.0.1:' . free_port(), @quiet);
    $lock->acquire('k') for 1 .. 5;
    no_leaks_ok { $lock->acquire('k') } 'unreachable';
    $lock = Buflock->new('shm:', dir => '/nowhere', @quiet);
    $lock->acquire('k');
    no_leaks_ok { $lock->acquire('k'); $lock->inspect('k'); $lock->stats; $lock->break('k'); $lock->await('k') } 'no table';
}

# What is waited for in an event loop.
sub settled {
    my ($promise) = @_;
    my @settled;
    $promise->then(sub { @settled = (1, @_) }, sub { @settled = (0, @_) });
    Mojo::IOLoop->one_tick while !@settled;
    Mojo::IOLoop->one_tick for 1 .. 3;    # what is behind it
    return $settled[1];
}

sub mojo_leaks {
    my ($name, $url) = @_;
    my $lock = Buflock::Mojo->new($url, @quiet);
    my $held = Buflock->new($url, @quiet)->acquire('held');
    my $gone = sub { my $tx = Mojo::Transaction::HTTP->new; Mojo::IOLoop->timer(0.01 => sub { $tx->closed }); return (tx => $tx) };
    my %case = (
        'a pair'              => sub { my $guard = settled($lock->acquire_p('k')); settled($lock->release_p($guard)) },
        'a scope'             => sub { my $guard = settled($lock->acquire_p('k')); undef $guard; settled(Mojo::Promise->timer(0.01)) },
        'busy'                => sub { settled($lock->acquire_p('held')) and die; 1 },
        'waits'               => sub { settled(Mojo::Promise->all(map { $lock->acquire_p('held', wait => 0.01) } 1 .. 3)) },
        'await'               => sub { settled($lock->await_p('held', wait => 0.01)); settled($lock->await_p('free', wait => 1)) },
        'extend'              => sub { my $guard = settled($lock->acquire_p('k')); settled($lock->extend_p($guard, 9)); settled($lock->release_p($guard)) },
        'taken'               => sub { settled($lock->release_p({ key => 'held', token => 'x' })) },
        'a client that goes'  => sub { settled($lock->acquire_p('held', wait => 1, $gone->())) },
        'a client that stays' => sub { my $tx = Mojo::Transaction::HTTP->new; my $guard = settled($lock->acquire_p('k', wait => 1, tx => $tx)); settled($lock->release_p($guard)) },
        'fetch'               => sub { settled($lock->fetch_p('k', get => sub { }, build => sub { 1 }, set => sub { })) },
        'a build that dies'   => sub { settled($lock->fetch_p('k', get => sub { }, build => sub { die "x\n" })) },
        'wrong arguments'     => sub { eval { $lock->acquire_p('k', ttl => -1) }; eval { $lock->acquire_p }; eval { $lock->release_p(1) } },
        'a new one'           => sub { my $new = Buflock::Mojo->new($url, @quiet); my $guard = settled($new->acquire_p('new')); settled($new->release_p($guard)) },
        'a new one, dropped'  => sub { Buflock::Mojo->new($url, @quiet)->acquire_p('held', wait => 0.01); settled(Mojo::Promise->timer(0.03)) },
    );
    for my $case (sort keys %case) {
        $case{$case}->() for 1 .. 3;
        no_leaks_ok { $case{$case}->() } "$name in a loop: $case";
    }
    return;
}

SKIP: {
    skip 'no Mojolicious', 1 if !eval { require Buflock::Mojo; require Mojo::Transaction::HTTP; 1 };
    mojo_leaks('shm', shm_url());
    mojo_leaks('redis', $server->url('breaker=off')) if $server;
    my $lock = Buflock::Mojo->new('redis://127.0.0.1:' . free_port() . '?breaker=off', @quiet);
    settled($lock->acquire_p('k')) for 1 .. 3;
    no_leaks_ok { settled($lock->acquire_p('k')); settled($lock->acquire_p('k', wait => 1)) } 'unreachable in a loop';
    if ($server) {
        $lock = Buflock::Mojo->new($server->url('breaker=off'), @quiet);
        $server->pause;
        settled($lock->acquire_p('k')) for 1, 2;
        no_leaks_ok { settled($lock->acquire_p('k')) } 'stalled in a loop';
        $server->resume;
    }
}

SKIP: {
    skip 'no Mojolicious', 1 if !eval { require Mojolicious::Plugin::Buffer::Lock::Buflock; 1 };
    my $class = 'Mojolicious::Plugin::Buffer::Lock::Buflock';
    my $answer;
    { package Mock; sub new { bless [], shift } sub eval { $answer->(@_) } }
    my %answer = (
        success        => sub { "$_[-1]:0" },
        busy           => sub { "$_[-1]:9" },
        nothing        => sub { undef },
        'a die'        => sub { die "x\n" },
        'out of step'  => sub { 1 },
    );
    for my $name (sort keys %answer) {
        my $call = sub {
            $answer = $answer{$name};
            my $lock = $class->new(redis => Mock->new);
            my ($guard) = $lock->acquire('k');
            $answer = sub { "$_[-1]:1" } if $guard;
            $lock->release($guard || { key => 'k', token => 't' });
        };
        $call->() for 1, 2;
        no_leaks_ok { $call->() } "a client: $name";
    }
    if ($server) {
        my $lock = $class->new(redis => $server->url);
        $lock->release($lock->acquire('k')) for 1, 2;
        no_leaks_ok { $lock->release($lock->acquire('k')) } 'redis://';
    }
}

done_testing;
