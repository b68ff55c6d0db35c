# What every language's tests run: the project's tests/vectors.txt.
use strict;
use warnings;
use lib 't/lib';
use Buflock;
use Test::Buflock qw(backend shm_url sleep);
use Test::More;

my $file = $ENV{BUFLOCK_VECTORS} || '../../tests/vectors.txt';
open my $vectors, '<', $file or plan skip_all => 'not in the source tree: no vectors';

my $class = Buflock::_backend(backend());
my ($status, $life) = $class->open(shm_url());
my (%token, %count);

sub bytes_of {
    my ($text) = @_;
    return '' if $text eq '-';
    my ($hex, $times) = split /\*/, $text;
    return pack('H*', $hex) x ($times // 1);
}

my %life = (
    acquire => sub {
        my ($key, $name, $ms) = @_;
        my ($status) = $life->acquire($key, $ms, 0, my $token);
        $token{$name} = $token if $status == 0;
        return $status;
    },
    extend  => sub { my ($key, $name, $ms) = @_; return ($life->extend($key, $token{$name} // $name, $ms))[0] },
    release => sub { my ($key, $name) = @_; return ($life->release($key, $token{$name} // $name))[0] },
    await   => sub { return ($life->await($_[0], 0))[0] },
    inspect => sub { return ($life->inspect($_[0]))[0] },
    break   => sub { return ($life->break($_[0]))[0] },
);

my %check = (
    stored => sub {
        my ($namespace, $key, $stored) = map { bytes_of($_) } @_;
        my (undef, $lock) = $class->open('redis:', namespace => $namespace);
        my (undef, $op)   = $lock->op_acquire($key, 1000, 0);
        $op->next;
        return is(($op->command)[4], $stored, "stored $_[1]");
    },
    hash => sub { return 1 },    # inside of the library
    ttl  => sub {
        my ($text, $ms) = @_;
        return is(Buflock::_milliseconds($text) // 'bad', $ms, "ttl $text");
    },
    status => sub {
        my ($number, $name) = @_;
        is $class->can('status_name')->($number), $name, $name;
        return if $number == 0 || $number == 4;
        return is('BUFLOCK_' . uc Buflock::Error->new(code => $number)->kind, $name, '... as an error');
    },
    token => sub {
        my ($text, $form) = @_;
        my ($status) = $life->release('never held', $text eq '-' ? '' : $text);
        return is($status, 2, "token $text holds nothing");
    },
    life => sub {
        my ($what, @words) = @_;
        return sleep $words[0] / 1000 if $what eq 'pause';
        my $answer = pop @words;
        return is($class->can('status_name')->($life{$what}->(@words)), $answer, "life $what @words");
    },
);

while (my $line = readline $vectors) {
    my ($kind, @words) = split ' ', $line =~ s/#.*//sr or next;
    $check{$kind} ? $check{$kind}->(@words) : fail("a kind of vector: $kind");
    $count{$kind}++;
}
ok $count{$_}, "there were vectors of $_" for sort keys %check;

done_testing;
