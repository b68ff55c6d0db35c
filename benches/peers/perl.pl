#!/usr/bin/perl
# perl.pl WHO CLIENT HOST PORT
#   WHO     backend: a lock backend in Perl alone, as Mojolicious programs have it
#           plugin: buflock in its place, CLIENT carries its commands
#           xs, ffi: Buflock with a connection of its own, by that backend
#   CLIENT  Redis or Redis::Fast; "" for those who need none
# "ready"; then for each line N it does N pairs and says how many ns they took, and how many of its CPU time.
use strict;
use warnings;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID);

my ($who, $class, $host, $port) = @ARGV;
use constant KEY => 'cache:my_key:42';

# One key, a random token as its value, a script to take it and one to give it back.
package Backend {
    use Digest::MD5 qw(md5_hex);
    use Encode qw(encode);

    my $take = <<~'LUA';
        if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
          return 1
        end
        return 0
        LUA
    my $give = <<~'LUA';
        if redis.call('GET', KEYS[1]) == ARGV[1] then
          return redis.call('DEL', KEYS[1])
        end
        return 0
        LUA

    sub new {
        my ($self, %attributes) = @_;
        open my $random, '<:raw:unix', '/dev/urandom' or die "no random numbers: $!";
        return bless { namespace => 'peer:', ttl => 60, random => $random, %attributes }, $self;
    }

    sub redis     { return $_[0]{redis} }
    sub namespace { return $_[0]{namespace} }
    sub ttl       { return $_[0]{ttl} }
    sub _key      { return $_[0]->namespace . md5_hex(encode 'UTF-8', $_[1]) }

    sub acquire {
        my ($self, $key) = @_;
        return (undef, 'no key') if !defined $key;
        my $name = $self->_key($key);
        sysread($self->{random}, my $bytes, 16) == 16 or return (undef, 'too few random numbers');
        my $token = unpack 'H*', $bytes;
        my $ms    = int($self->ttl * 1_000) || 1;
        my $reply;
        eval { $reply = $self->redis->eval($take, 1, $name, $token, $ms); 1 } or return (undef, "lock failed: $@");
        return (undef, 'no result') if !defined $reply;
        return $reply eq '1' ? ({ key => $name, token => $token }, undef) : (undef, undef);
    }

    sub release {
        my ($self, $guard) = @_;
        return (0, 'no guard') if ref $guard ne 'HASH' || !defined $guard->{key} || !defined $guard->{token};
        my $reply;
        eval { $reply = $self->redis->eval($give, 1, @{$guard}{qw(key token)}); 1 } or return (0, "unlock failed: $@");
        return defined $reply ? (1, undef) : (0, 'no result');
    }
}

sub client {
    eval "require $class; 1" or die $@;
    return $class->new(server => "$host:$port");
}

sub as_backend {
    my ($lock) = @_;
    return sub {
        my ($guard, $why) = $lock->acquire(KEY);
        die $why // 'busy' if !$guard;
        (my $ok, $why) = $lock->release($guard);
        die $why if !$ok;
    };
}

sub as_library {
    my ($lock) = @_;
    return sub {
        my ($guard, $error) = $lock->acquire(KEY);
        die $error // 'busy' if !$guard;
        die $lock->error if !$guard->release;
    };
}

my %pair = (
    backend => sub { as_backend(Backend->new(redis => client())) },
    plugin  => sub {
        require Mojolicious::Plugin::Buffer::Lock::Buflock;
        as_backend(Mojolicious::Plugin::Buffer::Lock::Buflock->new(redis => client()));
    },
    map { my $backend = $_; $backend => sub {
        require Buflock;
        as_library(Buflock->new("redis://$host:$port", backend => $backend));
    } } qw(xs ffi),
);
my $pair = ($pair{$who} // die "no $who\n")->();

$| = 1;
print "ready\n";
while (defined(my $pairs = <STDIN>)) {
    my ($wall, $cpu) = (clock_gettime(CLOCK_MONOTONIC), clock_gettime(CLOCK_PROCESS_CPUTIME_ID));
    $pair->() for 1 .. $pairs;
    my @took = (clock_gettime(CLOCK_MONOTONIC) - $wall, clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $cpu);
    printf "%.0f %.0f\n", map { $_ * 1e9 } @took;
}
