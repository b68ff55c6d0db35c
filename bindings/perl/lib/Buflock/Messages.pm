package Buflock::Messages;
use strict;
use warnings;
use 5.020;
use Exporter qw(import);

our $VERSION   = '0.001000';
our @EXPORT_OK = qw(message);

our %TEXT = (
    redis_client_invalid => 'cache_lock redis must be an object with an eval() method or a code reference returning one',
    redis_namespace_invalid => 'cache_lock namespace must be a non-empty string',
    redis_ttl_invalid       => 'cache_lock ttl must be a positive number of seconds',
    lock_key_undefined      => 'cache key is not defined',
    redis_lock_failed       => 'Redis lock failed: %s',
    redis_no_client         => 'Redis client factory returned no client',
    redis_no_result         => 'Redis lock command returned no result',
    redis_invalid_guard     => 'invalid lock guard',
    redis_unlock_failed     => 'Redis unlock failed: %s',
);

# A text is nobody's format: but for these three there is nothing in it to be replaced.
sub message {
    my ($key, $overrides, $error) = @_;
    my $text = ref $overrides eq 'HASH' ? $overrides->{$key} // $TEXT{$key} : $TEXT{$key};
    $error //= '';
    return $text =~ s/%s|\{error\}|\[_1\]/$error/gr;
}

1;

__END__

=encoding UTF-8

=head1 NAME

Buflock::Messages - the texts of the lock backend, and how they are overridden

=head1 SYNOPSIS

    use Buflock::Messages qw(message);

    message('redis_lock_failed', undef, 'no route');                        # Redis lock failed: no route
    message('redis_lock_failed', { redis_lock_failed => '锁 {error}' }, 'x'); # 锁 x

=head1 DESCRIPTION

The texts of L<Mojolicious::Plugin::Buffer::Lock::Buflock>. In each, and in what overrides it, the text of an error stands
for C<%s>, C<{error}> and C<[_1]>; nothing else is replaced, so a percent sign is a percent sign, also in the error.

    key                      text
    -----------------------  ----------------------------------------------------------
    redis_client_invalid     cache_lock redis must be an object with an eval() method
                             or a code reference returning one
    redis_namespace_invalid  cache_lock namespace must be a non-empty string
    redis_ttl_invalid        cache_lock ttl must be a positive number of seconds
    lock_key_undefined       cache key is not defined
    redis_lock_failed        Redis lock failed: ERROR
    redis_no_client          Redis client factory returned no client
    redis_no_result          Redis lock command returned no result
    redis_invalid_guard      invalid lock guard
    redis_unlock_failed      Redis unlock failed: ERROR

They are in C<%Buflock::Messages::TEXT>.

=head1 FUNCTIONS

=head2 message

    my $text = message($key, \%overrides, $error);

=head3 Purpose

A text.

=head3 Arguments

Its key; a hash reference of overrides, or anything else for none; the text of an error, optional.

=head3 Returns

The text. An override that is undefined is none, and keys that there are not are ignored.

=head3 Side effects

None.

=head3 Example

    croak message('redis_ttl_invalid', $self->messages);

=head3 API SPECIFICATION

Input

    [ { type => 'string' }, { type => 'hashref', optional => 1 }, { type => 'string', optional => 1 } ]

Output

    { type => 'string' }

=head3 MESSAGES

All of the above.

=head1 SEE ALSO

L<Mojolicious::Plugin::Buffer::Lock::Buflock>

=cut
