package Buflock::Error;
use strict;
use warnings;
use 5.020;
use overload
    '""'     => sub { $_[0]{message} },
    'bool'   => sub { 1 },
    fallback => 1;

our $VERSION = '0.001000';

my %KIND = (
    1  => 'busy',
    2  => 'expired',
    3  => 'taken',
    -1 => 'argument',
    -2 => 'config',
    -3 => 'unreachable',
    -4 => 'uncertain',
    -5 => 'refused',
    -6 => 'unavailable',
    -7 => 'no_memory',
    -8 => 'segment',
    -9 => 'panic',
);
my %RETRYABLE = map { $_ => 1 } qw(unreachable uncertain unavailable no_memory);

# What a server says while it cannot work, which ends by itself or by its operator.
my $STATE = qr/\b(?:LOADING|BUSY|OOM|MISCONF|NOREPLICAS|READONLY|MASTERDOWN|CLUSTERDOWN|max number of clients)\b/;

sub new {
    my ($class, %error) = @_;
    return bless {%error}, $class;
}

sub message { return $_[0]{message} }
sub code    { return $_[0]{code} }
sub kind    { return $KIND{ $_[0]{code} } // 'unknown' }
sub cause   { return $_[0]{cause} }

sub retryable {
    my ($self) = @_;
    my $kind = $self->kind;
    return $RETRYABLE{$kind} || $kind eq 'refused' && $self->{message} =~ $STATE ? 1 : 0;
}

1;
