package Buflock::Guard;
use strict;
use warnings;
use 5.020;
use Carp qw(croak);
use Scalar::Util qw(blessed refaddr);

our $VERSION = '0.001000';
our @CARP_NOT = qw(Buflock);
@Buflock::XS::Guard::ISA = __PACKAGE__;

# What the guards of this process hold, so that it can be released while there is something to do it with.
our %LIVE;

# Made before the lock is asked for, and C writes the token into it: who dies between the answer and the next statement
# leaves nothing held.
sub _new {
    my ($class, $lock, $key, $bytes, $token) = @_;
    return bless { lock => $lock, key => $key, bytes => $bytes, token => $token, pid => $$ }, $class;
}

sub _hold {
    my ($self, $ttl, $fence, $now, $length) = @_;
    @{$self}{qw(ttl fence length)} = ($ttl, $fence, $length);
    $self->{until} = $now + $length if defined $length;
    $LIVE{ refaddr $self } = { map { $_ => $self->{$_} } qw(lock key bytes token pid) };
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
    return $lock->{guards}->_new($lock, $key, $lock->_bytes($key), $token)->_hold(Buflock::DEFAULT(), 0);
}

sub lock  { return $_[0]{lock} }    ## no critic (ProhibitBuiltinHomonyms)
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
    return undef if !defined $self->{until};    ## no critic (ProhibitExplicitReturnUndef)
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

# The end of a guard. Buflock::XS::Guard has this one run with signals held back: a handler that died in it would be the
# end of it.
sub DESTROY {
    my ($self) = @_;
    local ($., $@, $!, $^E, $?);
    eval { $self->_end; 1 } or warn "buflock: $@";
    return;
}

sub _end {
    my ($self) = @_;
    return if $self->{done} || $self->{token} eq '' || $self->{pid} != $$ || ${^GLOBAL_PHASE} eq 'DESTRUCT';
    $self->{lock}->_drop($self);
    $self->_let_go;
    return;
}

END {
    local ($., $@, $!, $^E, $?);
    for my $hold (grep { $_->{pid} == $$ } values %LIVE) {
        eval { $hold->{lock}->_drop($hold); 1 } or warn "buflock: $@";
    }
    %LIVE = ();
}

# Threads are born with no guards.
sub CLONE_SKIP { return 1 }

sub CLONE {
    %LIVE = ();
    return;
}

1;
