package Buflock;
use strict;
use warnings;
use 5.020;
use Buflock::Error;
use Buflock::Guard;
use Carp qw(carp croak);
use Scalar::Util qw(blessed);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);
use XSLoader;

our $VERSION = '0.001000';
our @CARP_NOT = qw(Buflock::Guard);

use constant ABI     => 1;
use constant DEFAULT => 4_294_967_295;          # BUFLOCK_DEFAULT
use constant MAX_MS  => 30 * 86_400 * 1_000;
use constant { OK => 0, BUSY => 1, EXPIRED => 2, TAKEN => 3, ARGUMENT => -1 };

my %SAID;                                       # notices, once in a process

sub _now { return clock_gettime(CLOCK_MONOTONIC) }

# The class whose methods are the C API.
sub _backend {
    my ($name) = @_;
    state %backend;
    return $backend{$name} //= do {
        my $class = $name eq 'xs' ? 'Buflock::XS' : $name eq 'ffi' ? 'Buflock::FFI' : croak qq{no backend "$name": xs or ffi};
        if   ($name eq 'xs') { XSLoader::load('Buflock', $VERSION) }
        else                 { require Buflock::FFI }
        my $abi = $class->can('abi')->();
        croak "libbuflock has ABI $abi, this module is made for " . ABI if $abi != ABI;
        $class;
    };
}

# Opens a URL with the options of the C API. What failed, it says as (undef, text).
sub _open {
    my ($backend, $url, %options) = @_;
    my $class = _backend($backend // $ENV{BUFLOCK_BACKEND} || 'xs');
    my @texts = ($url, %options);
    for my $text (@texts) {
        return (undef, 'an option has no value') if !defined $text;
        return (undef, 'a URL or an option holds a NUL') if $text =~ /\0/;
        utf8::encode($text);
    }
    my ($status, $opened) = $class->open(@texts);
    return $status == OK ? ($opened, undef) : (undef, _decoded($opened));
}

sub _decoded {
    my ($text) = @_;
    utf8::decode($text);
    return $text;
}

# Seconds in ms, rounded up: the digits are counted, for 0.07 * 1000 is more than 70. Undefined: no length of time from
# 0 to 30 days.
sub _milliseconds {
    my ($seconds) = @_;
    return $seconds * 1_000 if $seconds =~ /\A[0-9]{1,6}\z/;
    my ($whole, $fraction, $exponent) = $seconds =~ /\A\+?([0-9]*)(?:\.([0-9]*))?(?:[eE]([-+]?[0-9]{1,9}))?\z/
        or return;
    my $digits = $whole . ($fraction // '');
    return if $digits eq '';
    return 0 if $digits !~ /[1-9]/;
    my $point = length($whole) + ($exponent // 0) + 3;
    return 1 if $point <= 0;
    $digits =~ s/\A(0*)//;
    $point -= length $1;
    return 1 if $point <= 0;
    return   if $point > 10;
    $digits .= '0' x ($point - length $digits) if $point > length $digits;
    my $ms = substr $digits, 0, $point, '';
    $ms++ if $digits =~ /[1-9]/;
    return $ms <= MAX_MS ? $ms + 0 : undef;
}

sub _time {
    my ($name, $seconds) = @_;
    croak "$name is not defined" if !defined $seconds;
    return _milliseconds($seconds)
        // croak qq{$name is "$seconds": it must be a number of seconds from 0 to 2592000 (30 days)};
}

# In ms.
sub _wait {
    my ($self, $options) = @_;
    return exists $options->{wait} ? _time(wait => $options->{wait}) : $self->{wait_ms};
}

sub _lease {
    my ($seconds) = @_;
    return DEFAULT if !defined $seconds;
    return _time(ttl => $seconds) || croak 'ttl is 0: a lease lasts at least 0.001 s';
}

sub _known {
    my ($options, @names) = @_;
    my %known = map { $_ => 1 } @names;
    my ($unknown) = grep { !$known{$_} } sort keys %{$options};
    croak qq{unknown option "$unknown": there are } . join ', ', @names if defined $unknown;
    return;
}

sub new {
    my ($class, $url, %options) = @_;
    croak 'new takes a URL' if !defined $url;
    my %self = (look_at => 0, lost => 0);
    for my $name (qw(bytes on_notice)) {
        $self{$name} = delete $options{$name};
    }
    my ($wait, $backend) = delete @options{qw(wait backend)};
    croak 'unknown option "timeout": did you mean "wait"?' if exists $options{timeout};
    $self{wait_ms} = defined $wait ? _time(wait => $wait) : 0;
    my ($handle, $error) = _open($backend, $url, %options);
    croak $error if !$handle;
    my $guards = $handle->isa('Buflock::XS') ? 'Buflock::XS::Guard' : 'Buflock::Guard';
    return bless { %self, handle => $handle, guards => $guards }, $class;
}

# The bytes of a key. A copy is encoded, so that a string is the same key however Perl holds it.
sub _bytes {
    my ($self, $key) = @_;
    croak 'key is not defined' if !defined $key;
    my $bytes = "$key";
    if (!$self->{bytes}) {
        utf8::encode($bytes);
    } elsif (!utf8::downgrade($bytes, 1)) {
        croak 'key has a character above U+00FF: with bytes => 1 a key must be encoded';
    }
    return $bytes;
}

sub _error {
    my ($self, $status, $text, $cause) = @_;
    $text = _decoded($text // '');
    croak $text if $status == ARGUMENT;
    return $self->{error} = Buflock::Error->new(code => $status, message => $text, cause => $cause);
}

sub error { return $_[0]{error} }

sub acquire {
    my ($self, $key, %options) = @_;
    _known(\%options, qw(ttl wait)) if %options;
    my $ttl  = _lease($options{ttl});
    my $wait = $self->_wait(\%options);
    my $guard = $self->{guards}->_new($self, $key, $self->_bytes($key), '');
    $wait = $self->_wait_in_loop($guard->{bytes}, $wait) if $wait && $self->_loop_runs;
    my ($held, $error) =
        $self->_acquired($guard, $ttl, $self->{handle}->acquire($guard->{bytes}, $ttl, $wait, $guard->{token}));
    return wantarray ? ($held, $error) : $held if !$held || defined wantarray;
    carp 'acquire in void context: nobody could release the lock, so it is released';
    $guard->release;
    return;
}

# The guard, if it holds now, and the error.
sub _acquired {
    my ($self, $guard, $ttl, $status, $left, undef, undef, $fence) = @_;
    undef $self->{error};
    return (undef, $status < 0 ? $self->_error($status, $left) : undef) if $status != OK;
    my $now = _now();
    $guard->_hold($ttl, $fence, $now, $left / 1_000);
    $self->_look($now) if $now >= $self->{look_at};
    return ($guard, undef);
}

# What releases and extends is about: bytes and token; and a guard, unless it is plain.
sub _held {
    my ($self, $guard) = @_;
    if (blessed $guard && $guard->isa('Buflock::Guard')) {
        return @{$guard}{qw(bytes token)}, $guard if $guard->{pid} == $$;
        croak "this guard belongs to process $guard->{pid}: detach it there, and adopt it here";
    }
    croak 'guard must be one that acquire gave, or {key, token}'
        if ref $guard ne 'HASH' || !defined $guard->{token} || $guard->{token} =~ /\0/;
    return ($self->_bytes($guard->{key}), $guard->{token}, undef);
}

sub release {
    my ($self, $of) = @_;
    my ($bytes, $token, $guard) = $self->_held($of);
    return $self->_verdict(OK) if $guard && $guard->{done};
    $guard->{ending} = 1 if $guard;    # a signal handler may die behind the release
    return $self->_released($of, $self->{handle}->release($bytes, $token));
}

sub _released {
    my ($self, $of, $status, $text) = @_;
    $of->_let_go if blessed $of && $status >= OK;
    return $self->_verdict($status, $text, $of, 'release');
}

sub extend {
    my ($self, $of, $ttl) = @_;
    my ($bytes, $token, $ms) = $self->_to_extend($of, $ttl);
    my $now = _now();
    return $self->_extended($of, $ms, $now, $self->{handle}->extend($bytes, $token, $ms));
}

sub _to_extend {
    my ($self, $of, $ttl) = @_;
    my ($bytes, $token, $guard) = $self->_held($of);
    my $ms = defined $ttl || !$guard ? _lease($ttl) : $guard->{ttl};
    croak 'this guard was released before' if $guard && $guard->{done};
    return ($bytes, $token, $ms);
}

sub _extended {
    my ($self, $of, $ms, $asked, $status, $text) = @_;
    if (blessed $of && $status == OK) {
        my $length = $ms == DEFAULT ? $of->{length} : $ms / 1_000;
        $of->{until} = defined $length ? $asked + $length : undef;
    }
    return $self->_verdict($status, $text, $of, 'extend');
}

# The answer of a release or an extend. A lease that ended before is counted, and said once in a minute for each key.
sub _verdict {
    my ($self, $status, $text, $of, $what) = @_;
    undef $self->{error};
    return wantarray ? (1, undef) : 1 if $status == OK;
    $text = $self->_lost($status, $of, $what) if $status > OK;
    my $error = $self->_error($status, $text);
    return wantarray ? (0, $error) : 0;
}

sub _lost {
    my ($self, $status, $of, $what) = @_;
    $of->{gone} = 1 if blessed $of;
    $self->{lost}++;
    my $text = sprintf 'the lease of %s ended before its %s%s', _shown($of->{key}), $what,
        $status == TAKEN ? ', and another holds the lock' : '';
    my ($said, $now) = ($self->{said} //= {}, _now());
    if ($now >= ($said->{ $of->{key} } // 0)) {
        %{$said} = () if keys %{$said} > 1_000;
        $said->{ $of->{key} } = $now + 60;
        $self->_say($text);
    }
    return $text;
}

sub _shown {
    my ($key) = @_;
    my $shown = length $key > 60 ? substr($key, 0, 60) . '...' : $key;
    return '"' . $shown =~ s/([^ -~])/sprintf '\\x{%x}', ord $1/ger . '"';
}

# A guard that goes away: no signal handler runs meanwhile, and in a running event loop there is no network I/O.
sub _drop {
    my ($self, $guard) = @_;
    my $method = $self->_loop_runs ? 'drop' : 'release_now';
    return $self->_dropped($guard, $self->{handle}->$method($guard->{bytes}, $guard->{token} =~ s/\0.*//sr));
}

sub _dropped {
    my ($self, $guard, $status, $text) = @_;
    $self->_lost($status, $guard, 'release') if $status > OK && !$guard->{ending}++;
    $self->_say("a lock was not released, and ends with its lease: $text") if $status < OK;
    return;
}

sub adopt {
    my ($self, $plain) = @_;
    return Buflock::Guard->adopt($self, $plain);
}

sub with {
    my ($self, $key, @options) = @_;
    my $code = pop @options;
    croak 'with takes a code reference last' if ref $code ne 'CODE';
    my ($guard, $error) = $self->acquire($key, @options);
    return wantarray ? (0, $error // ()) : 0 if !$guard;
    my @result = $code->($guard);    # a die goes on, and the guard ends with it
    $guard->release;
    return wantarray ? (1, @result) : 1;
}

sub fetch {
    my ($self, $key, %options) = @_;
    my ($value, $error) = $self->_fetch($key, $self->_to_fetch(\%options), \%options);
    return wantarray ? ($value, $error) : $value;
}

# When the wait is over.
sub _to_fetch {
    my ($self, $options, @more) = @_;
    _known($options, qw(get build set stale ttl wait cool), @more);
    for my $name (qw(get build)) {
        croak "fetch needs $name, a code reference" if ref $options->{$name} ne 'CODE';
    }
    return _now() + $self->_wait($options) / 1_000;
}

sub _fetch {
    my ($self, $key, $until, $options) = @_;
    while (1) {
        my $value = $options->{get}->($key);
        return ($value, undef) if defined $value;
        my ($guard, $error) = $self->acquire($key, ttl => $options->{ttl}, wait => 0);
        return (undef, $error) if $error;
        return ($self->_build($guard, $options), undef) if $guard;
        $value = $options->{stale} ? $options->{stale}->($key) : undef;
        return ($value, undef) if defined $value;
        my $left = $until - _now();
        return (undef, undef) if $left <= 0;
        (undef, $error) = $self->await($key, wait => sprintf '%.3f', $left);
        return (undef, $error) if $error;
    }
}

# By the one who holds the lock. A build that fails leaves it held for a while, so that not all try one after another.
sub _build {
    my ($self, $guard, $options) = @_;
    my $key   = $guard->key;
    my $value = $options->{get}->($key);    # built since the first look
    if (!defined $value) {
        my ($built, $died);
        {
            local $@;
            $built = eval { $value = $options->{build}->($key, $guard); 1 };
            $died  = $@;
        }
        $guard->keep($options->{cool}) if $options->{cool} && !defined $value;
        die $died if !$built;
        $options->{set}->($key, $value, $guard) if $options->{set} && defined $value;
    }
    $guard->release;
    return $value;
}

sub await {
    my ($self, $key, %options) = @_;
    _known(\%options, 'wait');
    my $bytes = $self->_bytes($key);
    my $wait = $self->_wait(\%options);
    $wait = $self->_wait_in_loop($bytes, $wait) if $wait && $self->_loop_runs;
    my ($status, $text) = $self->{handle}->await($bytes, $wait);
    return $self->_yes_or_no($status, $text);
}

sub break {
    my ($self, $key) = @_;
    return $self->_yes_or_no($self->{handle}->break($self->_bytes($key)));
}

sub _yes_or_no {
    my ($self, $status, $text) = @_;
    undef $self->{error};
    my $error = $status < OK ? $self->_error($status, $text) : undef;
    my $yes = $status == OK ? 1 : 0;
    return wantarray ? ($yes, $error) : $yes;
}

sub inspect {
    my ($self, $key) = @_;
    my ($status, $left, undef, $pid, undef, $holder) = $self->{handle}->inspect($self->_bytes($key));
    undef $self->{error};
    my $error = $status < OK ? $self->_error($status, $left) : undef;
    my $hold;
    $hold = { left => $left / 1_000, holder => _decoded($holder), pid => $pid || undef } if $status == BUSY;
    return wantarray ? ($hold, $error) : $hold;
}

sub stats {
    my ($self) = @_;
    my ($status, $json) = $self->{handle}->stats;
    undef $self->{error};
    if ($status < OK) {
        my $error = $self->_error($status, $json);
        return wantarray ? (undef, $error) : undef;
    }
    local ($@, $!);
    require JSON::PP;
    my $stats = JSON::PP->new->utf8->decode($json);
    $stats->{leases_lost} = $self->{lost};
    $self->_notice($_) for @{ $stats->{notices} };
    return wantarray ? ($stats, undef) : $stats;
}

# Looks once in a minute whether there is something to be said.
sub _look {
    my ($self, $now) = @_;
    $self->{look_at} = $now + 60;
    my ($status, $json) = $self->{handle}->stats;
    return if $status < OK;
    my ($notices) = $json =~ /"notices":\[(.*)\]\}\z/s or return;
    while ($notices =~ /"((?:[^"\\]|\\.)*)"/g) {
        $self->_notice(_decoded($1 =~ s/\\u([0-9a-f]{4})/chr hex $1/ger =~ s/\\(.)/$1/gr));
    }
    return;
}

sub _notice {
    my ($self, $text) = @_;
    $self->_say($text) if !$SAID{$text}++;
    return;
}

sub _say {
    my ($self, $text) = @_;
    if   ($self->{on_notice}) { $self->{on_notice}->($text) }
    else                      { carp "buflock: $text" }
    return;
}

# Once the program ends, by an exit in the loop, nobody waits for it any more.
sub _loop_runs { return ${^GLOBAL_PHASE} eq 'RUN' && $INC{'Mojo/IOLoop.pm'} && Mojo::IOLoop->is_running }

# A wait that stops an event loop: nobody in this process could release meanwhile.
sub _wait_in_loop {
    my ($self, $bytes, $wait) = @_;
    $self->_notice('a wait blocks the running Mojo::IOLoop');
    my @own = grep { $_->{pid} == $$ && $_->{lock} == $self && $_->{bytes} eq $bytes } values %Buflock::Guard::LIVE;
    return @own ? 0 : $wait;
}

# Threads make their own.
sub CLONE_SKIP { return 1 }

1;

__END__

=encoding UTF-8

=head1 NAME

Buflock - locks that end by themselves, in shared memory or through Redis

=head1 SYNOPSIS

    use Buflock;

    my $lock = Buflock->new('shm:pages', ttl => 30);

    my ($guard, $error) = $lock->acquire('page 42', wait => 2);
    if ($guard) {
        build();
        $guard->release;
    } elsif ($error) {
        warn $error;
    }    # else another holds it

    $lock->with('nightly report', sub { build_report() });

    my $page = $lock->fetch('page 42', wait => 5,
        get   => sub { $cache->get($_[0]) },
        build => sub { render($_[0]) },
        set   => sub { $cache->set($_[0], $_[1]) },
    );

=head1 DESCRIPTION

A lock that all processes of a machine can take by name, or, through a Redis server, all machines. It has a lease, so it
ends by itself when its holder dies, hangs or forgets it, and a token, so that nobody can give back another's lock. Perl, C
and Rust programs share locks, if they use the same URL.

=head2 URLs

    shm:NAME                                        the table NAME in shared memory; no server
    redis://[USER:PASSWORD@]HOST[:PORT][/DB]        a Redis server
    rediss://...                                    the same through TLS
    unix:///PATH                                    the same through its Unix socket
    off:                                            every acquire is granted, nothing is locked

Options ride behind a C<?>, as in C<shm:pages?ttl=30>, or are given to L</new>. What the URL says wins.

=head2 Answers

In list context there are two values, the last of which is a L<Buflock::Error> or undef. In scalar context there is the
first alone, and the error is in L</error>. Methods die for wrong arguments only, such as an undefined key or a C<ttl> that
is no number.

    acquire            ($guard, undef)  (undef, undef) busy     (undef, $error)
    release, extend    (1, undef)                               (0, $error)
    await              (1, undef)       (0, undef) still held   (0, $error)
    break              (1, undef)       (0, undef) nobody       (0, $error)
    inspect            ($hold, undef)   (undef, undef) nobody   (undef, $error)
    fetch              ($value, undef)  (undef, undef) busy     (undef, $error)
    with               (1, @result)     (0) busy                (0, $error)

All times are in seconds, and may have fractions; they are rounded up to milliseconds.

=head1 METHODS

=head2 new

    my $lock = Buflock->new($url, %options);

=head3 Purpose

A lock service. Make it once, and keep it.

=head3 Arguments

A URL, and options by name. Those of the library are in its README; these are the most used:

    ttl        60          the lease where acquire does not say one
    namespace  'buflock:'  what all keys are under
    dir, size              shm: where the table is, and how large
    budget     0.5         Redis: how long a call that does not wait may take
    fencing    'off'       Redis: whether holds are numbered
    label                  Redis: what others are shown of this holder

and these are the module's own:

    wait       0           how long acquire, await and fetch wait where they do not say it
    bytes      0           1: keys are bytes, not characters; see ENCODING
    on_notice              a code reference that gets what would be a warning
    backend    'xs'        or 'ffi'; the environment variable BUFLOCK_BACKEND says it for all

=head3 Returns

The object.

=head3 Side effects

None. Nothing is opened or connected before the first use.

=head3 Example

    my $lock = Buflock->new('redis://redis.internal', namespace => 'shop:', ttl => 30, wait => 2);

=head3 API SPECIFICATION

Input

    url     => { type => 'string', position => 0 }
    options => { type => 'hash' }    # names and values are texts

Output

    { type => 'object', isa => 'Buflock' }

=head3 MESSAGES

    Message                                       Resolution
    --------------------------------------------  ------------------------------------------
    new takes a URL                               Pass one
    the URL begins with "X": it must begin with   Correct the URL
    unknown option "X": did you mean "Y"?         Correct the option
    option X is "Y": it must be Z                 Correct its value
    an option has no value                        Leave it out, or say one
    a URL or an option holds a NUL                Write %00 in a URL
    libbuflock has ABI N, this module is made     Install the library and the module of the
    for M                                         same version

All die.

=head2 acquire

    my ($guard, $error) = $lock->acquire($key, ttl => 30, wait => 2);

=head3 Purpose

Takes the lock, if need be after waiting for it.

=head3 Arguments

C<$key>, any defined string, of any length; and by name C<ttl>, the lease, above 0 and up to 30 days, and C<wait>, how long
to wait at most. Without C<wait> (here or in L</new>) it is tried once.

=head3 Returns

C<($guard, undef)>: it is held, see L<Buflock::Guard>. C<(undef, undef)>: another holds it, and the wait is over.
C<(undef, $error)>: it could not be asked.

=head3 Side effects

The lock is held until the guard goes out of scope, is released, or the lease ends. In void context there is no guard: it
warns, and the lock is released.

=head3 Example

    my $guard = $lock->acquire('page 42') or return;

=head3 API SPECIFICATION

Input

    { key  => { type => 'string', position => 0 },
      ttl  => { type => 'number', min => 0, max => 2592000, optional => 1 },    # and > 0
      wait => { type => 'number', min => 0, max => 2592000, optional => 1 } }

Output

    # list of two
    { type => 'arrayref', schema => [ { type => 'object', isa => 'Buflock::Guard', optional => 1 },
                                      { type => 'object', isa => 'Buflock::Error', optional => 1 } ] }

=head3 MESSAGES

    Message                                      Resolution
    -------------------------------------------  ----------------------------------------------
    key is not defined                           Pass a key. It dies
    key has a character above U+00FF: with       Encode it. It dies
    bytes => 1 a key must be encoded
    ttl is "X": it must be a number of seconds   Correct it. It dies
    unknown option "X": there are ttl, wait      Correct it. It dies
    acquire in void context                      Keep the guard. A warning
    a wait blocks the running Mojo::IOLoop       Do not wait there. A warning, once

and those of L<Buflock::Error>.

=head2 release

    my ($ok, $error) = $lock->release($guard);

=head3 Purpose

Gives a lock back.

=head3 Arguments

A guard, or a plain C<{key, token}>.

=head3 Returns

C<(1, undef)>; C<(0, $error)>, where C<< $error->kind >> is C<expired> or C<taken> if it was not held any more.

=head3 Side effects

Wakes those who wait for it. Another's lock is never touched.

=head3 Example

    $lock->release($guard) or warn $lock->error;

=head3 API SPECIFICATION

Input

    { guard => { type => ['object', 'hashref'], position => 0 } }

Output

    { type => 'arrayref', schema => [ { type => 'boolean' }, { type => 'object', isa => 'Buflock::Error', optional => 1 } ] }

=head3 MESSAGES

As of L<Buflock::Guard/release>, and

    guard must be one that acquire gave, or {key, token}    Pass that. It dies

=head2 extend

    my ($ok, $error) = $lock->extend($guard, $ttl);

=head3 Purpose

Gives a hold a new lease from now on.

=head3 Arguments

A guard, or a plain C<{key, token}>; and seconds. Without these, as long as the guard's first lease, or the option C<ttl>.

=head3 Returns

As L</release>.

=head3 Side effects

None but that.

=head3 Example

    $lock->extend($guard, 30) or die $lock->error;

=head3 API SPECIFICATION

Input

    { guard => { type => ['object', 'hashref'], position => 0 }, ttl => { type => 'number', optional => 1, position => 1 } }

Output

As of L</release>.

=head3 MESSAGES

As of L<Buflock::Guard/extend>.

=head2 with

    my ($ran, @result) = $lock->with($key, %options, sub { ... });

=head3 Purpose

Runs code while the lock is held.

=head3 Arguments

As of L</acquire>, and a code reference, which gets the guard.

=head3 Returns

C<(1, @result)>, where the code ran; C<(0)> where the lock was busy; C<(0, $error)>. In scalar context whether it ran.

=head3 Side effects

The code's. Where it dies the lock is released, and it goes on dying.

=head3 Example

    my ($ran, $count) = $lock->with('import', ttl => 600, sub { import_all() });

=head3 API SPECIFICATION

Input

As of L</acquire>; C<< code => { type => 'coderef', position => -1 } >>

Output

    { type => 'array' }    # the first is a boolean

=head3 MESSAGES

    with takes a code reference last    Pass one. It dies

=head2 fetch

    my ($value, $error) = $lock->fetch($key, get => sub { ... }, build => sub { ... }, %options);

=head3 Purpose

A cache in front of which only one builds what is missing, and the others wait for it, or take what is stale.

=head3 Arguments

The key, and by name

    get    code: what the cache has of the key, or undef. It is asked again behind the lock
    build  code: gets key and guard, gives the value
    set    code: gets key, value and guard; optional
    stale  code: what others take while one builds, or undef; optional
    ttl    the lease; longer than a build takes
    wait   how long others wait for the one who builds
    cool   how long the lock is kept after a build that died or gave undef, so that not all fail one after another

=head3 Returns

C<($value, undef)>. C<(undef, undef)>: another builds, and the wait is over. C<(undef, $error)>: the lock could not be
asked. In the last two nothing was built: who wants to build without the lock does it, and knows it.

=head3 Side effects

Those of the code. A build that dies goes on dying.

=head3 Example

    my ($page, $error) = $lock->fetch($url, wait => 5, cool => 1,
        get => sub { $cache->get($_[0]) }, build => sub { render($_[0]) }, set => sub { $cache->set(@_[0, 1]) });
    $page //= render($url);

=head3 API SPECIFICATION

Input

    { key   => { type => 'string', position => 0 },
      get   => { type => 'coderef' }, build => { type => 'coderef' },
      set   => { type => 'coderef', optional => 1 }, stale => { type => 'coderef', optional => 1 },
      ttl   => { type => 'number', optional => 1 }, wait => { type => 'number', optional => 1 },
      cool  => { type => 'number', optional => 1 } }

Output

    { type => 'arrayref', schema => [ { optional => 1 }, { type => 'object', isa => 'Buflock::Error', optional => 1 } ] }

=head3 MESSAGES

    fetch needs NAME, a code reference    Pass it. It dies

=head2 await

    my ($over, $error) = $lock->await($key, wait => 2);

=head3 Purpose

Waits without taking the lock.

=head3 Arguments

The key, and C<wait>.

=head3 Returns

C<(1, undef)>: it is free, or was released or changed hands since the call began. C<(0, undef)>: the same hold still stands.
C<(0, $error)>.

=head3 Side effects

None.

=head3 Example

    $lock->await('page 42', wait => 5) and return $cache->get('page 42');

=head3 API SPECIFICATION

Input

    { key => { type => 'string', position => 0 }, wait => { type => 'number', optional => 1 } }

Output

As of L</release>.

=head3 MESSAGES

Those of L</acquire>.

=head2 inspect

    my ($hold, $error) = $lock->inspect($key);

=head3 Purpose

Looks who holds it.

=head3 Arguments

The key.

=head3 Returns

A hash: C<left>, what is left of the lease in seconds, 0 unknown; C<holder>, who, as text; C<pid>, in shared memory, or
undef. Or undef: nobody.

=head3 Side effects

None. Signal handlers run behind it: over Redis after the option C<budget> at the latest.

=head3 Example

    my $hold = $lock->inspect('page 42');
    say $hold ? "$hold->{holder}, for $hold->{left} s" : 'free';

=head3 API SPECIFICATION

Input

    { key => { type => 'string', position => 0 } }

Output

    { type => 'arrayref', schema => [ { type => 'hashref', optional => 1 },
                                      { type => 'object', isa => 'Buflock::Error', optional => 1 } ] }

=head3 MESSAGES

Those of L<Buflock::Error>.

=head2 break

    my ($freed, $error) = $lock->break($key);

=head3 Purpose

An operator's act: frees a lock, whoever holds it.

=head3 Arguments

The key.

=head3 Returns

C<(1, undef)> freed, C<(0, undef)> nobody held it, C<(0, $error)>.

=head3 Side effects

The holder is not told. Signal handlers run behind it, as of L</inspect>.

=head3 Example

    $lock->break('page 42');

=head3 API SPECIFICATION

Input

    { key => { type => 'string', position => 0 } }

Output

As of L</release>.

=head3 MESSAGES

Those of L<Buflock::Error>.

=head2 stats

    my ($stats, $error) = $lock->stats;

=head3 Purpose

What there is to know about the lock service.

=head3 Arguments

None.

=head3 Returns

A hash, whose fields are in the library's F<docs/operations.md>; and C<leases_lost>, how many leases this object saw end
before their release.

=head3 Side effects

What is new in C<notices> is warned of, once in a process. (An acquire looks there too, once in a minute.)

=head3 Example

    say $lock->stats->{held};

=head3 API SPECIFICATION

Output

    { type => 'arrayref', schema => [ { type => 'hashref', optional => 1 },
                                      { type => 'object', isa => 'Buflock::Error', optional => 1 } ] }

=head3 MESSAGES

Those of L<Buflock::Error>.

=head2 adopt

    my $guard = $lock->adopt($plain);

=head3 Purpose

Makes a guard of what L<Buflock::Guard/detach> gave, perhaps in another process.

=head3 Arguments

That: C<{key, token}>.

=head3 Returns

A L<Buflock::Guard>.

=head3 Side effects

None. It is not asked whether the lock is still held.

=head3 Example

    my $guard = $lock->adopt(decode_json($job));
    $guard->extend(60) or return;

=head3 API SPECIFICATION

Input

    { plain => { type => 'hashref', position => 0 } }

Output

    { type => 'object', isa => 'Buflock::Guard' }

=head3 MESSAGES

As of L<Buflock::Guard/adopt>.

=head2 error

    my $error = $lock->error;

=head3 Purpose

The error of the last call, for those in scalar context.

=head3 Arguments

None.

=head3 Returns

A L<Buflock::Error>, or undef.

=head3 Side effects

None.

=head3 Example

    my $guard = $lock->acquire('k');
    warn $lock->error if !$guard && $lock->error;

=head3 API SPECIFICATION

Output

    { type => 'object', isa => 'Buflock::Error', optional => 1 }

=head3 MESSAGES

None.

=head1 COMMON PITFALLS

=over

=item * B<Forgetting the guard.> C<< $lock->acquire($key) or die; work() >> releases at once, before the work: nothing
keeps the guard. Write C<my $guard = ...>.

=item * B<A lease that is too short.> When it ends under its holder another may take the lock. Make C<ttl> longer than the
work, or L<extend|Buflock::Guard/extend> in between; where a late write would do harm, let the resource refuse old
L<fences|Buflock::Guard/fence>.

=item * B<Busy is not an error.> C<< if ($error) >> does not see it; look at C<$guard>.

=item * B<It is not re-entrant.> Who acquires a key twice waits for itself.

=item * B<Milliseconds.> All times are seconds.

=item * B<A wait in an event loop> stops everything else there. It warns once; and for a lock that the same process holds it
answers busy at once, since nobody could release it meanwhile.

=back

=head1 FORK AND THREADS

A lock may be made before a fork, and used on both sides; each process gets connections of its own. Guards stay with the
process that acquired: the end of a child, of whatever kind, releases nothing, and C<release> in a child dies. Tokens are
plain text: L<detach|Buflock::Guard/detach>, and L</adopt> on the other side.

Threads do not see the locks and guards of others. Make one in each.

=head1 SIGNALS

While L</acquire>, L</await>, L</release> and L</extend> wait, signal handlers run as usual, at once or within 50 ms. A
handler may die: then the call is over, and nothing is held by accident.

    my $guard = eval {
        local $SIG{ALRM} = sub { die "too long\n" };
        alarm 3;
        my $guard = $lock->acquire('k', wait => 60);
        alarm 0;
        $guard;
    };

A program that a signal ends without a handler releases nothing; C<$SIG{TERM} = sub { exit }> is a handler that does.
C<$!>, C<$@> and C<$?> are kept by all calls.

=head1 ENCODING

Keys are characters, and encoded as UTF-8: any string is safe, and is the same key however Perl holds it. Where keys are
bytes already, say C<< bytes => 1 >>; otherwise those above 127 are encoded once more, which does no harm unless other
programs are to use the same locks. Options are characters too. Texts of errors are characters: print them through an
encoding layer.

=head1 LIMITATIONS

=over

=item * Linux only. Shared memory does not go beyond a kernel.

=item * Through Redis it is a lock of one server: a fail-over can lose a lock that was just taken.

=item * L</inspect> and L</break> block for up to C<budget> seconds without running signal handlers.

=item * No lease without end: 30 days are the most. Not first come, first served. No shared (reader) locks.

=back

=head1 SEE ALSO

L<Buflock::Guard>, L<Buflock::Error>, L<Buflock::FFI>, L<Mojolicious::Plugin::Buffer::Lock::Buflock>,
L<Buflock::Manual::Moving>; the library's README and F<docs/operations.md>.

=head1 COPYRIGHT AND LICENSE

MIT or Apache-2.0, as you like.

=cut
