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
    my $count = ($op->next)[7];
    my @command = map { ($op->argument($_))[1] } 1 .. $count - 1;    # the first is EVAL
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
