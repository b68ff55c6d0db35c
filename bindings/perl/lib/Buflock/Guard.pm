package Buflock::Guard;
use strict;
use warnings;
use 5.020;
use Carp qw(croak);
use Scalar::Util qw(blessed refaddr weaken);

our $VERSION = '0.001000';

# The guards of this process that hold a lock, so that they can be released while there is something to do it with.
our %LIVE;

# Made before the lock is asked for: who dies between the answer and the next statement leaves nothing held.
sub _new {
    my ($class, $lock, $key, $bytes, $token) = @_;
    return bless { lock => $lock, key => $key, bytes => $bytes, token => $token, pid => $$ }, $class;
}

sub _hold {
    my ($self, $until, $fence) = @_;
    @{$self}{qw(until fence)} = ($until, $fence);
    weaken($LIVE{ refaddr $self } = $self);
    return $self;
}

# From now on nothing is released for it.
sub _let_go {
    my ($self) = @_;
    delete $LIVE{ refaddr $self };
    $self->{done} = 1;
    return;
}

sub adopt {
    my ($class, $lock, $plain) = @_;
    croak 'adopt takes a lock and what detach gave'
        if !(blessed $lock && $lock->can('acquire') && ref $plain eq 'HASH');
    my ($key, $token) = @{$plain}{qw(key token)};
    croak 'adopt: no key and token in it' if !defined $token || $token !~ /\A[!-~]{1,63}\z/;
    return $class->_new($lock, $key, $lock->_bytes($key), $token)->_hold(undef, 0);
}

sub key   { return $_[0]{key} }
sub token { return $_[0]{token} }
sub fence { return $_[0]{fence} }

sub release {
    my ($self) = @_;
    return wantarray ? (1, undef) : 1 if $self->{done};
    return $self->{lock}->release($self);
}

sub extend {
    my ($self, $ttl) = @_;
    return $self->{lock}->extend($self, $ttl);
}

sub keep {
    my ($self, $ttl) = @_;
    my ($ok, $error) = $self->{lock}->extend($self, $ttl);
    $self->_let_go if $ok;
    return wantarray ? ($ok, $error) : $ok;
}

sub left {
    my ($self) = @_;
    return 0 if $self->{done} || $self->{gone};
    return if !defined $self->{until};
    my $left = $self->{until} - Buflock::_now();
    return $left > 0 ? $left : 0;
}

sub lost {
    my ($self) = @_;
    return $self->{gone} || defined $self->{until} && $self->{until} <= Buflock::_now() ? 1 : 0;
}

sub detach {
    my ($self) = @_;
    $self->_let_go;
    return { key => $self->{key}, token => $self->{token} };
}

sub _is_held {
    my ($self) = @_;
    return !$self->{done} && $self->{pid} == $$ && $self->{token} =~ /\A[!-~]/;
}

sub DESTROY {
    my ($self) = @_;
    return if $self->{token} eq '' || ${^GLOBAL_PHASE} eq 'DESTRUCT' || !$self->_is_held;
    local ($., $@, $!, $^E, $?);
    eval { $self->{lock}->_drop($self); 1 } or warn "buflock: $@";
    return;
}

END {
    local ($., $@, $!, $^E, $?);
    for my $guard (grep { $_ && $_->_is_held } values %LIVE) {
        eval { $guard->{lock}->_drop($guard); 1 } or warn "buflock: $@";
    }
}

# Threads are born with no guards.
sub CLONE_SKIP { return 1 }

sub CLONE {
    %LIVE = ();
    return;
}

1;
