#!/usr/bin/perl
# perl.pl CLASS HOST PORT   CLASS: Redis or Redis::Fast
# A lock as Perl programs have it: one key, a random token, a script to take it and one to give it back.
# "ready"; then for each line N it does N pairs and says how many ns they took, and how many of its CPU time.
use strict;
use warnings;
use Digest::MD5 qw(md5_hex);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID);

my ($class, $host, $port) = @ARGV;
eval "require $class; 1" or die $@;
my $redis = $class->new(server => "$host:$port");
$| = 1;

my $take = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end return 0";
my $give = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
open my $random, '<:raw:unix', '/dev/urandom' or die "no random numbers: $!";

sub pair {
    my $key = 'peer:' . md5_hex('cache:my_key:42');
    sysread($random, my $bytes, 16) == 16 or die 'too few random numbers';
    my $token = unpack 'H*', $bytes;
    $redis->eval($take, 1, $key, $token, 60_000) or die 'not acquired';
    $redis->eval($give, 1, $key, $token) or die 'not released';
}

print "ready\n";
while (defined(my $pairs = <STDIN>)) {
    my ($wall, $cpu) = (clock_gettime(CLOCK_MONOTONIC), clock_gettime(CLOCK_PROCESS_CPUTIME_ID));
    pair() for 1 .. $pairs;
    my @took = (clock_gettime(CLOCK_MONOTONIC) - $wall, clock_gettime(CLOCK_PROCESS_CPUTIME_ID) - $cpu);
    printf "%.0f %.0f\n", map { $_ * 1e9 } @took;
}
