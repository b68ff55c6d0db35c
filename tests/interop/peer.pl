#!/usr/bin/perl
# A lock in Redis as Perl programs have it without buflock: one key, a random token as its value, two scripts.
#
# peer.pl CLASS PORT FORMAT [USER PASSWORD]   CLASS: Redis or Redis::Fast; FORMAT: of stored keys, as buflock:%s
# A line in is a line out; keys and arguments are in hex, empty ones are -.
#   acquire KEY MS      held TOKEN | busy | error WHY
#   release KEY TOKEN   ok | error WHY
#   call ARG...         a command of another's: text HEX | nil | error WHY
#   hurry MS            ok: from now on whatever takes longer is given up, and the connection is used again
use strict;
use warnings;
use Digest::MD5 qw(md5_hex);
use Encode qw(decode encode);
use Time::HiRes qw(setitimer ITIMER_REAL);

my ($class, $port, $format, @credentials) = @ARGV;
eval "require $class" or die $@;
my $redis = $class->new(server => "127.0.0.1:$port");
$redis->auth(@credentials) if @credentials;
my $hurry = 0;
$| = 1;

my $take = <<'LUA';
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0
LUA
my $give = <<'LUA';
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
LUA

sub unhex { $_[0] eq '-' ? '' : pack 'H*', $_[0] }

sub stored {
    my $characters = decode('UTF-8', unhex($_[0]));
    return sprintf $format, md5_hex(encode('UTF-8', $characters));
}

sub token {
    open my $random, '<:raw', '/dev/urandom' or die "no random numbers: $!";
    read($random, my $bytes, 16) == 16 or die 'too few random numbers';
    return unpack 'H*', $bytes;
}

# The client is asked as the module asks it: what dies is an error, and the client is used again.
sub ask {
    my ($code) = @_;
    local $SIG{ALRM} = sub { die "too slow\n" };
    my $reply = eval { setitimer(ITIMER_REAL, $hurry, $hurry) if $hurry; $code->() };
    my $error = $@;
    setitimer(ITIMER_REAL, 0);
    return ($reply, $error eq '' ? undef : 'error ' . join ' ', split ' ', $error);
}

my %verb = (
    acquire => sub {
        my ($key, $ms) = @_;
        my $token = token();
        my ($reply, $error) = ask(sub { $redis->eval($take, 1, stored($key), $token, $ms) });
        return $error // (!defined $reply ? 'error no result' : $reply eq '1' ? "held $token" : 'busy');
    },
    release => sub {
        my ($key, $token) = @_;
        my (undef, $error) = ask(sub { $redis->eval($give, 1, stored($key), $token) });
        return $error // 'ok';
    },
    call => sub {
        my ($name, @arguments) = map { unhex($_) } @_;
        my $method = lc $name;
        my ($reply, $error) = ask(sub { $redis->$method(@arguments) });
        return $error // (defined $reply ? 'text ' . (unpack('H*', $reply) || '-') : 'nil');
    },
    hurry => sub { $hurry = $_[0] / 1000; return 'ok' },
);
while (defined(my $line = <STDIN>)) {
    my ($verb, @arguments) = split ' ', $line;
    print $verb{$verb}->(@arguments), "\n";
}
