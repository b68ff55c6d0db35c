package Mojolicious::Plugin::Buffer::Lock::Buflock;
use Mojo::Base -base;
use strict;
use warnings;
use Buflock;
use Buflock::Messages qw(message);
use Carp qw(croak);
use Mojo::Util qw(encode md5_sum);
use Scalar::Util qw(blessed);

our $VERSION = '0.001000';

use constant { OK => 0, BUSY => 1, FAILED => -1 };
use constant REPLY_TEXT => 1;

has [qw(redis messages)];
has namespace => 'buffer:lock:';
has ttl       => 60;

sub new {
    my ($class, @attributes) = @_;
    my $self = $class->SUPER::new(@attributes);
    my ($namespace, $ttl) = ($self->namespace, $self->ttl);
    croak $self->_text('redis_client_invalid') if !_is_usable($self->redis);
    croak $self->_text('redis_namespace_invalid') if !defined $namespace || ref $namespace || $namespace eq '';
    croak $self->_text('redis_ttl_invalid')
        if !defined $ttl || $ttl !~ /\A[0-9]+(?:\.[0-9]+)?\z/ || $ttl !~ /[1-9]/;
    if (_is_url($self->redis)) {
        my (undef, $error) = $self->_native;
        croak "cache_lock redis: $error" if defined $error;
    }
    return $self;
}

sub _is_url {
    my ($redis) = @_;
    return defined $redis && !ref $redis && $redis =~ m{\A(?:rediss?|unix)://};
}

sub _is_usable {
    my ($redis) = @_;
    return 1 if ref $redis eq 'CODE' || _is_url($redis);
    return blessed $redis && ($redis->can('eval') || $redis->can('AUTOLOAD'));
}

sub _text {
    my ($self, $key, $error) = @_;
    return message($key, $self->messages, $error);
}

sub _key {
    my ($self, $key) = @_;
    return ($self->namespace // '') . md5_sum(encode 'UTF-8', $key);
}

sub acquire {
    my ($self, $key) = @_;
    my ($guard, $error) = $self->_acquire($key);
    return wantarray ? ($guard, $error) : $guard;
}

sub _acquire {
    my ($self, $key) = @_;
    return (undef, $self->_text('lock_key_undefined')) if !defined $key;
    my $name = $self->_key($key);
    my ($status, $why, $token);
    if (_is_url($self->redis)) {
        (my $lock, $why) = $self->_native;
        ($status, $why) =
            $lock ? $lock->acquire(_octets($name), $self->_ttl_ms, 0, $token) : (FAILED, $why);
    } else {
        ($status, $why) = $self->_carry($token, op_acquire => _octets($name), $self->_ttl_ms, 0);
        return (undef, $self->_text('redis_no_result')) if $status < OK && !defined $why;
    }
    return ({ key => $name, token => $token }, undef) if $status == OK;
    return (undef, undef) if $status == BUSY;
    return (undef, $self->_text(redis_lock_failed => $why));
}

sub release {
    my ($self, $guard) = @_;
    my $error = $self->_release($guard);
    my $ok = defined $error ? 0 : 1;
    return wantarray ? ($ok, $error) : $ok;
}

# Undefined: released, or not held any more.
sub _release {
    my ($self, $guard) = @_;
    return $self->_text('redis_invalid_guard')
        if ref $guard ne 'HASH' || grep { !defined || ref } @{$guard}{qw(key token)};
    my ($name, $token) = map { _octets($_) } @{$guard}{qw(key token)};
    return if $token =~ /\0/;    # nobody holds anything by it
    my ($status, $why);
    if (_is_url($self->redis)) {
        (my $lock, $why) = $self->_native;
        ($status, $why) = $lock ? $lock->release($name, $token) : (FAILED, $why);
    } else {
        ($status, $why) = $self->_carry(my $none, op_release => $name, $token);
        $why //= $self->_text('redis_no_result');
    }
    return $status < OK ? $self->_text(redis_unlock_failed => $why) : undef;
}

# A name as the bytes that Redis gets.
sub _octets {
    my ($name) = @_;
    my $octets = "$name";
    utf8::encode($octets) if !utf8::downgrade($octets, 1);
    return $octets;
}

# Any value that the accessor was given: what is no time is the shortest.
sub _ttl_ms {
    my ($self) = @_;
    my $ttl = $self->ttl // 0;
    my $ms = Buflock::_milliseconds("$ttl");
    if (!defined $ms) {
        no warnings 'numeric';
        $ms = $ttl > Buflock::MAX_MS / 1_000 ? Buflock::MAX_MS : $ttl > 0 ? int $ttl * 1_000 : 0;
    }
    return $ms || 1;
}

# The lock service of a URL. It connects at its first use, anew in each process.
sub _native {
    my ($self) = @_;
    my $url = $self->redis;
    my $native = $self->{_native};
    return ($native->{lock}, undef) if $native && $native->{url} eq $url;
    my ($lock, $error) = Buflock::_open(undef, $url, key => 'raw');
    $self->{_native} = { url => $url, lock => $lock } if $lock;
    return ($lock, $error);
}

# What makes commands for the callers' clients.
my $carrier;

sub CLONE {
    undef $carrier;
    return;
}

# One command, carried by the client. No frame of the library is below the client, so that it may die, or call exit. A
# reply counts only if it carries the number of this call. Without a result there is no reason.
sub _carry {
    my ($self, undef, $make, @arguments) = @_;
    my ($client, $why) = $self->_client;
    return (FAILED, $why) if defined $why;
    ($carrier, $why) = Buflock::_open(undef, 'redis:', key => 'raw') if !$carrier;
    return (FAILED, $why) if !$carrier;
    my ($status, $op) = $carrier->$make(@arguments);
    return ($status, $op) if $status != OK;
    (undef, undef, my @command) = $op->command;    # OK, EVAL, and what eval takes
    my $reply;
    {
        local $@;
        $why = _reason() if !eval { $reply = $client->eval(@command); 1 };
    }
    if (defined $why) {
        delete $self->{_client};
        return (FAILED, $why);
    }
    return (FAILED, undef) if !defined $reply;
    $op->reply(REPLY_TEXT, 0, _octets($reply));
    ($status, $why) = $op->finish($_[1]);
    return ($status, undef) if $status >= OK;
    delete $self->{_client};
    $self->{_refused} = $client if ref $self->redis ne 'CODE';
    return (FAILED, "out-of-step reply: it is not this call's");
}

# $@ as text.
sub _reason { return ref $@ || length $@ ? "$@" : 'unknown error' }

# The client, or why there is none.
sub _client {
    my ($self) = @_;
    my $redis = $self->redis;
    if (ref $redis ne 'CODE') {
        my $refused = $self->{_refused};
        return ($redis, undef) if !$refused || !ref $redis || $refused != $redis;
        return (undef, 'out-of-step reply: this client is not used any more');
    }
    my $kept = $self->{_client};
    return ($kept->{client}, undef) if $kept && $kept->{pid} == $$ && $kept->{factory} == $redis;
    my ($client, $why);
    {
        local $@;
        $why = _reason() if !eval { $client = $redis->(); 1 };
    }
    return (undef, $why // $self->_text('redis_no_client')) if !defined $client;
    $self->{_client} = { client => $client, pid => $$, factory => $redis };
    return ($client, undef);
}

1;

__END__

=encoding UTF-8

=head1 NAME

Mojolicious::Plugin::Buffer::Lock::Buflock - Redis-backed lock backend, by libbuflock

=head1 SYNOPSIS

    use Mojolicious::Lite;
    use CHI;
    use Mojolicious::Plugin::Buffer::Lock::Buflock;

    plugin 'Buffer' => {
        cache      => CHI->new(driver => 'Memcached', servers => ['cache.internal:11211']),
        cache_lock => Mojolicious::Plugin::Buffer::Lock::Buflock->new(
            redis     => 'redis://redis.internal:6379',
            namespace => 'myapp:buffer:',
            ttl       => 60,
        ),
    };

With a client of your own, one for each worker:

    my $lock = Mojolicious::Plugin::Buffer::Lock::Buflock->new(
        redis => sub { Redis::Fast->new(server => 'redis.internal:6379', cnx_timeout => 1, read_timeout => 1) },
    );

By itself, for example so that only one machine runs a job:

    my ($guard, $error) = $lock->acquire('nightly-report');
    if ($guard) {
        build_report();
        $lock->release($guard);
    } elsif (defined $error) {
        warn "Redis problem: $error\n";
    }    # else another machine is already doing it

With a hash tag for Redis Cluster:

    package MyApp::Lock;
    use Mojo::Base 'Mojolicious::Plugin::Buffer::Lock::Buflock';
    use Mojo::Util qw(encode md5_sum);

    sub _key {
        my ($self, $key) = @_;
        return '{' . $self->namespace . '}' . md5_sum(encode('UTF-8', $key));
    }

=head1 DESCRIPTION

A lock backend for C<cache_lock>, by which workers on different machines agree that only one of them builds a missing
cache entry. It takes the place of C<Mojolicious::Plugin::Buffer::Lock::Redis>, has its interface, and uses the same names
and values in Redis, so that both can run at once: see L<Buflock::Manual::Moving>.

The key in Redis is the C<namespace> and the MD5 digest of the cache key; its value is a random token of 32 characters. It
is set only where it does not exist, ends by itself after C<ttl> seconds, and is deleted only by who knows the token.

=head2 What is different

=over

=item * In scalar context C<acquire> gives the guard, and C<release> whether it worked; not the error.

=item * A client that died in a call is dropped: the factory is asked for another at the next call.

=item * Replies must echo: the script has Redis send back a number of this call. A late reply to an earlier command can thus
not be taken for a success. A client whose reply is another's is dropped; if it is an object, not a factory's, it is not
used any more until L</redis> is set to another.

=item * C<redis> may also be a URL. Then no Perl client is needed; a call takes at most half a second (option C<budget>),
and after some failures in a row calls fail at once for a while (option C<breaker>), instead of each waiting for its time
limit.

=item * No lease is longer than 30 days: a C<ttl> above is one of 30 days.

=back

=head1 ATTRIBUTES

Attributes are set with L</new>, which checks them. Each has an accessor, made by L<Mojo::Base>, which skips the checks. All
are read at each call.

=head2 redis

Required. A code reference that returns a client with C<eval($script, $numkeys, @args)>, as L<Redis> and L<Redis::Fast> have
it; such a client itself; or a URL: C<redis://>, C<rediss://> or C<unix://>, with options of L<Buflock/new> behind a C<?>.

Prefer a URL, or the code reference. It is called the first time that this backend is used in each process, and again
after it returned undef or died, or after the client died.

=head3 API SPECIFICATION

Input

    # An object is accepted when it can('eval') or has an AUTOLOAD
    { redis => { type => ['coderef', 'object', 'string'], optional => 1 } }

Output

    # the value when reading, the object when writing
    { type => ['coderef', 'object', 'string'] }

=head2 namespace

What every key in Redis begins with. Defaults to C<buffer:lock:>.

=head3 API SPECIFICATION

Input

    { namespace => { type => 'string', min => 1, optional => 1 } }

Output

    { type => 'string', min => 1 }

=head2 ttl

How long a lock lives, in seconds. Defaults to 60. Fractions are allowed; it is rounded up to milliseconds, at least 1.
Choose it longer than C<cache_lock_timeout>, and than the slowest cached action.

=head3 API SPECIFICATION

Input

    { ttl => { type => 'number', min => 0, optional => 1, matches => qr/\A[0-9]+(?:\.[0-9]+)?\z/ } }    # and > 0

Output

    { type => 'number' }

=head2 messages

A hash of texts instead of those under MESSAGES. In them C<%s>, C<{error}> and C<[_1]> stand for the error. See
L<Buflock::Messages>.

=head3 API SPECIFICATION

Input

    { messages => { type => 'hashref', optional => 1 } }

Output

    { type => 'hashref', optional => 1 }

=head1 METHODS

=head2 new

    my $lock = Mojolicious::Plugin::Buffer::Lock::Buflock->new(redis => 'redis://redis.internal');

=head3 Purpose

Creates the backend and checks its configuration.

=head3 Arguments

The attributes, by name: C<redis> (required), C<namespace>, C<ttl>, C<messages>.

=head3 Returns

The new object.

=head3 Side effects

None. No connection is made.

=head3 Example

    my $lock = Mojolicious::Plugin::Buffer::Lock::Buflock->new(
        redis     => sub { Redis->new(server => 'redis.internal:6379') },
        namespace => 'shop:buffer:',
        ttl       => 30,
    );

=head3 API SPECIFICATION

Input

    {
        redis     => { type => ['coderef', 'object', 'string'] },    # object: eval() or AUTOLOAD; string: a URL
        namespace => { type => 'string', min => 1, optional => 1 },
        ttl       => { type => 'number', min => 0, optional => 1, matches => qr/\A[0-9]+(?:\.[0-9]+)?\z/ },    # and > 0
        messages  => { type => 'hashref', optional => 1 },
    }

Output

    { type => 'object', isa => 'Mojolicious::Plugin::Buffer::Lock::Buflock' }

=head3 MESSAGES

    Key                      Message                                   Resolution
    -----------------------  ----------------------------------------  -------------------------------
    redis_client_invalid     cache_lock redis must be an object with   Pass a URL, or a factory sub
                             an eval() method or a code reference
                             returning one
    redis_namespace_invalid  cache_lock namespace must be a non-empty  Pass e.g. 'myapp:buffer:'
                             string
    redis_ttl_invalid        cache_lock ttl must be a positive number  Pass e.g. 60
                             of seconds
    -                        cache_lock redis: ERROR                   Correct the URL

All croak.

=head2 acquire

    my ($guard, $error) = $lock->acquire($key);

=head3 Purpose

Tries, without waiting, to become the only worker that builds C<$key>.

=head3 Arguments

C<$key>, any defined string. Only its MD5 digest is sent to Redis.

=head3 Returns

C<($guard, undef)> when the lock was acquired, C<(undef, undef)> when another worker holds it, and C<(undef, $error)> when
Redis is unavailable. The guard is a plain hash C<{key, token}>, the error a string. In scalar context the guard.

=head3 Side effects

Connects to Redis on first use, through the factory if there is one. Sets a key that expires after L</ttl>.

=head3 Example

    my ($guard, $error) = $lock->acquire('buffer:0123abcd');
    $lock->release($guard) if $guard;

=head3 API SPECIFICATION

Input

    { key => { type => 'string', position => 0 } }

Output

    # list of two
    { type => 'arrayref', schema => [ { type => 'hashref', optional => 1 },     # guard: {key, token}
                                      { type => 'string',  optional => 1 } ] }  # error

=head3 MESSAGES

    Key                 Message                                   Resolution
    ------------------  ----------------------------------------  ---------------------------
    lock_key_undefined  cache key is not defined                  Pass a defined key
    redis_lock_failed   Redis lock failed: ERROR                  Check the server and client
    redis_no_client     Redis client factory returned no client   Make the factory return one
    redis_no_result     Redis lock command returned no result     Check the client library

These are returned, not thrown.

=head2 release

    my ($ok, $error) = $lock->release($guard);

=head3 Purpose

Deletes the lock, but only if it still holds this guard's token.

=head3 Arguments

A guard returned by L</acquire>.

=head3 Returns

C<(1, undef)> on success, including when the lock had already expired, and C<(0, $error)> on failure. A failed release is
not fatal because the lock expires after L</ttl>. In scalar context the first.

=head3 Side effects

Deletes the Redis key if it still holds the token.

=head3 Example

    my ($ok, $error) = $lock->release($guard);
    warn $error unless $ok;

=head3 API SPECIFICATION

Input

    { guard => { type => 'hashref', position => 0 } }    # {key, token}

Output

    # list of two
    { type => 'arrayref', schema => [ { type => 'boolean' }, { type => 'string', optional => 1 } ] }

=head3 MESSAGES

    Key                  Message                       Resolution
    -------------------  ----------------------------  ------------------------------
    redis_invalid_guard  invalid lock guard            Pass the guard acquire returned
    redis_unlock_failed  Redis unlock failed: ERROR    None needed; the TTL expires it

=head1 COMMON PITFALLS

=over

=item * B<Two values.> In list context C<acquire> always gives two: a hash made of C<< guard => $lock->acquire($key) >> has
more than it seems to. Take both.

=item * B<The TTL is too short.> If the builder is still working when the lock expires, a second worker builds the same
entry.

=item * B<A client object made before the fork.> Pass a URL or a code reference. Both may be used in startup: each process
gets a connection of its own.

=item * B<A slow Redis server slows every cached request.> With a client of your own, set its C<cnx_timeout>,
C<read_timeout> and C<write_timeout>.

=item * B<Changing attributes after new.> C<< $lock->ttl(0) >> is not checked; the lock is then set for 1 millisecond, and
protects nothing.

=item * B<It is not re-entrant.> A second acquire for a key that this worker holds is busy.

=item * B<undef.> C<acquire(undef)> gives C<(undef, 'cache key is not defined')>, C<release(undef)> C<(0, 'invalid lock
guard')>. A factory that returns undef gives C<(undef, 'Redis lock failed: Redis client factory returned no client')>.
C<< new(ttl => undef) >> and C<< new(namespace => undef) >> croak.

=back

=head1 FORK AND THREADS

Connections made by a URL, and clients of a factory, are per process. A guard is data: whoever has it may release it, and
the end of a process releases nothing. Use one object for each thread.

=head1 ENCODING

B<Keys>: any Perl string is safe. It is encoded as UTF-8 and hashed. A subclass that overrides C<_key> must encode before it
calls C<md5_sum>, which dies on a character above U+00FF; that goes through to the caller.

B<namespace>: keep it ASCII. A string without characters above U+00FF is sent as these bytes, any other as UTF-8.

B<messages>: texts may hold any characters. What is returned are character strings. The text after ERROR comes from the
client and is passed on unchanged.

=head1 LIMITATIONS

=over

=item * Acquire and release block the worker until Redis has answered, or the client's time limit, or the URL's C<budget>.

=item * The circuit breaker is for URLs. A client of your own is asked each time, once for each call, and nothing is tried
again.

=item * A passed object cannot be connected anew by this class.

=item * It is a lock of one server, not Redlock. A fail-over can lose a lock that was just set.

=item * A lock that outlives C<ttl> is silently lost.

=back

=head1 SEE ALSO

L<Buflock>, L<Buflock::Manual::Moving>, L<Buflock::Messages>

=head1 COPYRIGHT AND LICENSE

MIT or Apache-2.0, as you like.

=cut
