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

__END__

=encoding UTF-8

=head1 NAME

Buflock::Error - why a lock could not be taken, extended or released

=head1 SYNOPSIS

    my ($guard, $error) = $lock->acquire('page 42');
    if ($error) {
        warn $error;                       # its text
        retry_later() if $error->retryable;
    }

=head1 DESCRIPTION

What the methods of L<Buflock> give as their last value when something went wrong. It stringifies to its text, and is
always true. A busy lock is not an error.

=head1 METHODS

=head2 new

    my $error = Buflock::Error->new(code => -3, message => 'redis://h:6379/0: Connection refused');

=head3 Purpose

Makes an error. L<Buflock> does it; a program has no need to, but in its tests.

=head3 Arguments

C<code> (a number, see L</code>), C<message> (a text), C<cause> (anything; optional), by name.

=head3 Returns

The object.

=head3 Side effects

None.

=head3 Example

    my $error = Buflock::Error->new(code => -3, message => 'no route');

=head3 API SPECIFICATION

Input

    { code => { type => 'integer' }, message => { type => 'string' }, cause => { optional => 1 } }

Output

    { type => 'object', isa => 'Buflock::Error' }

=head3 MESSAGES

None.

=head2 message

=head3 Purpose

The text.

=head3 Arguments

None.

=head3 Returns

Which value, file or server, what is wrong, and what would be right. Character string. It never holds a password.

=head3 Side effects

None.

=head3 Example

    warn $error->message;    # as: warn "$error"

=head3 API SPECIFICATION

Output

    { type => 'string' }

=head3 MESSAGES

Those of the library; its F<docs/operations.md> has each with its cure.

=head2 code

=head3 Purpose

The number of the library's status.

=head3 Arguments

None.

=head3 Returns

The number. See L</kind> for the list.

=head3 Side effects

None.

=head3 Example

    exit 75 if $error->code == -3;

=head3 API SPECIFICATION

Output

    { type => 'integer' }

=head3 MESSAGES

None.

=head2 kind

=head3 Purpose

The same as a word.

=head3 Arguments

None.

=head3 Returns

    code  kind         meaning
    ----  -----------  -----------------------------------------------------------------
       2  expired      release, extend: the lease had ended, and nobody holds the lock
       3  taken        release, extend: the lease had ended, and another holds the lock
      -3  unreachable  the server cannot be reached, and nothing was done there
      -4  uncertain    sent, not answered: act as not holding it
      -5  refused      the server answered with an error
      -6  unavailable  too many failures: nothing was tried
      -7  no_memory    the lock table is full, or the process gets no memory
      -8  segment      the table's file or its directory cannot be used
      -9  panic        a bug in the library

C<busy> (1), C<argument> (-1) and C<config> (-2) exist too, but no method gives them: busy is no error, and the others are
died of.

=head3 Side effects

None.

=head3 Example

    rebuild() if $error->kind eq 'taken';

=head3 API SPECIFICATION

Output

    { type => 'string' }

=head3 MESSAGES

None.

=head2 retryable

=head3 Purpose

Whether the same call may work later without anybody doing something to this program.

=head3 Arguments

None.

=head3 Returns

1 for C<unreachable>, C<uncertain>, C<unavailable>, C<no_memory>, and C<refused> where the server said that it cannot work
now (LOADING, READONLY, BUSY and the like); else 0.

=head3 Side effects

None.

=head3 Example

    sleep 1, redo if $error->retryable;

=head3 API SPECIFICATION

Output

    { type => 'boolean' }

=head3 MESSAGES

None.

=head2 cause

=head3 Purpose

What was below it: the exception of a caller's own client, where one was the reason.

=head3 Arguments

None.

=head3 Returns

That, or undef.

=head3 Side effects

None.

=head3 Example

    log_it($error->cause // $error);

=head3 API SPECIFICATION

Output

    { optional => 1 }

=head3 MESSAGES

None.

=head1 SEE ALSO

L<Buflock>

=cut
