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
