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
    my $wait = exists $options{wait} ? _time(wait => $options{wait}) : $self->{wait_ms};
    my $guard = $self->{guards}->_new($self, $key, $self->_bytes($key), '');
    $wait = $self->_wait_in_loop($guard->{bytes}, $wait) if $wait && _loop_runs();
    my ($status, $left, undef, undef, $fence) = $self->{handle}->acquire($guard->{bytes}, $ttl, $wait, $guard->{token});
    undef $self->{error};
    if ($status == OK) {
        my $now = _now();
        $guard->_hold($ttl, $fence, $now, $left / 1_000);
        $self->_look($now) if $now >= $self->{look_at};
        return wantarray ? ($guard, undef) : $guard if defined wantarray;
        carp 'acquire in void context: nobody could release the lock, so it is released';
        $guard->release;
        return;
    }
    my $error = $status < 0 ? $self->_error($status, $left) : undef;
    return wantarray ? (undef, $error) : undef;
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
    my ($status, $text) = $self->{handle}->release($bytes, $token);
    $guard->_let_go if $guard && $status >= OK;
    return $self->_verdict($status, $text, $of, 'release');
}

sub extend {
    my ($self, $of, $ttl) = @_;
    my ($bytes, $token, $guard) = $self->_held($of);
    my $ms = defined $ttl || !$guard ? _lease($ttl) : $guard->{ttl};
    return $self->_verdict(ARGUMENT, 'this guard was released before') if $guard && $guard->{done};
    my $now = _now();
    my ($status, $text) = $self->{handle}->extend($bytes, $token, $ms);
    if ($guard && $status == OK) {
        my $length = $ms == DEFAULT ? $guard->{length} : $ms / 1_000;
        $guard->{until} = defined $length ? $now + $length : undef;
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
    my $method = _loop_runs() ? 'drop' : 'release_now';
    my ($status, $text) = $self->{handle}->$method($guard->{bytes}, $guard->{token} =~ s/\0.*//sr);
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
    _known(\%options, qw(get build set stale ttl wait cool));
    for my $name (qw(get build)) {
        croak "fetch needs $name, a code reference" if ref $options{$name} ne 'CODE';
    }
    my $until = _now() + (exists $options{wait} ? _time(wait => $options{wait}) : $self->{wait_ms}) / 1_000;
    my ($value, $error) = $self->_fetch($key, $until, \%options);
    return wantarray ? ($value, $error) : $value;
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
    my $wait = exists $options{wait} ? _time(wait => $options{wait}) : $self->{wait_ms};
    $wait = $self->_wait_in_loop($bytes, $wait) if $wait && _loop_runs();
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

sub _loop_runs { return $INC{'Mojo/IOLoop.pm'} && Mojo::IOLoop->is_running }

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
