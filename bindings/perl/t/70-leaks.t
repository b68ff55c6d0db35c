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
