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
    $self->{ttl}    = $ttl;
    $self->{fence}  = $fence;
    $self->{length} = $length;
    $self->{until}  = $now + $length if defined $length;
    $LIVE{ refaddr $self } = { %{$self}{qw(lock key bytes token pid)} };
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
    return if $self->{done};
    local ($., $@, $!, $^E, $?);
    eval { $self->_end; 1 } or warn "buflock: $@";
    return;
}

sub _end {
    my ($self) = @_;
    return if $self->{token} eq '' || $self->{pid} != $$ || ${^GLOBAL_PHASE} eq 'DESTRUCT';
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

__END__

=encoding UTF-8

=head1 NAME

Buflock::Guard - a lock that is held

=head1 SYNOPSIS

    {
        my $guard = $lock->acquire('report') or return;
        while (work()) {
            $guard->extend or die $lock->error;
        }
    }    # released

=head1 DESCRIPTION

What L<Buflock/acquire> gives. The lock is released when the guard goes out of scope, by L</release>, or when the program
ends, whatever comes first; by C<exit> and C<die> too, but not by a signal without handler: then its lease ends it.

A guard belongs to the process that has it. A forked child's end releases nothing, and neither does a thread's; to hand a
lock on, L</detach> it on one side and L<adopt|Buflock/adopt> it on the other.

At the end of a scope no signal handler runs, and inside a running Mojo::IOLoop there is no network I/O: the release over
Redis then goes ahead of the next command of this process. Where that matters, call L</release>.

=head1 METHODS

=head2 release

    my ($ok, $error) = $guard->release;

=head3 Purpose

Gives the lock back.

=head3 Arguments

None.

=head3 Returns

C<(1, undef)>, also where it was released before. C<(0, $error)> where it could not be, or was not held any more: then
C<< $error->kind >> is C<expired> or C<taken>. In scalar context the first.

=head3 Side effects

Wakes those who wait for it. A lease that ended before is counted (C<leases_lost> of L<Buflock/stats>), and warned of
once in a minute for each key.

=head3 Example

    $guard->release or warn $guard->lock->error;

=head3 API SPECIFICATION

Output

    # list of two
    { type => 'arrayref', schema => [ { type => 'boolean' }, { type => 'object', isa => 'Buflock::Error', optional => 1 } ] }

=head3 MESSAGES

    Message                                        Resolution
    ---------------------------------------------  -----------------------------------------------
    the lease of "KEY" ended before its release    A longer ttl, or extend during the work
    this guard belongs to process N: detach it     See detach. It dies
    there, and adopt it here

=head2 extend

    my ($ok, $error) = $guard->extend;
    my ($ok, $error) = $guard->extend($ttl);

=head3 Purpose

A new lease from now on.

=head3 Arguments

Its length in seconds; without it as long as the first.

=head3 Returns

As L</release>.

=head3 Side effects

A lease that had ended is counted and warned of.

=head3 Example

    $guard->extend(30) or die 'another may have taken it: ', $guard->lock->error;

=head3 API SPECIFICATION

Input

    { ttl => { type => 'number', min => 0, optional => 1, position => 0 } }    # and > 0

Output

As of L</release>.

=head3 MESSAGES

    Message                                       Resolution
    --------------------------------------------  -------------------------------------
    the lease of "KEY" ended before its extend    A longer ttl, or extend earlier
    this guard was released before                A bug of the program. It dies

=head2 keep

    my ($ok, $error) = $guard->keep($seconds);

=head3 Purpose

Lets the lock be held for some time still, and by nobody: so that a job runs once an hour, or what has failed is not tried
at once by the next.

=head3 Arguments

Seconds.

=head3 Returns

As L</extend>.

=head3 Side effects

The guard releases nothing any more, unless it failed.

=head3 Example

    $guard->keep(3600);

=head3 API SPECIFICATION

Input

    { seconds => { type => 'number', min => 0, position => 0 } }    # and > 0

Output

As of L</release>.

=head3 MESSAGES

As of L</extend>.

=head2 left

    my $seconds = $guard->left;

=head3 Purpose

What is left of the lease, by this process's clock.

=head3 Arguments

None.

=head3 Returns

Seconds; 0 where it has ended or was released; undef where it is not known, as of a guard that was adopted.

=head3 Side effects

None. The server is not asked.

=head3 Example

    $guard->extend if $guard->left < 5;

=head3 API SPECIFICATION

Output

    { type => 'number', min => 0, optional => 1 }

=head3 MESSAGES

None.

=head2 lost

    die 'too late' if $guard->lost;

=head3 Purpose

Whether the lease is known to have ended under this guard.

=head3 Arguments

None.

=head3 Returns

1 or 0. A 0 is no promise: ask L</extend> for one.

=head3 Side effects

None.

=head3 Example

    $cache->set($key, $page) if !$guard->lost;

=head3 API SPECIFICATION

Output

    { type => 'boolean' }

=head3 MESSAGES

None.

=head2 detach

    my $plain = $guard->detach;

=head3 Purpose

Makes data of the lock, that can go to another process, as JSON for one.

=head3 Arguments

None.

=head3 Returns

C<< { key => $key, token => $token } >>.

=head3 Side effects

The guard releases nothing any more.

=head3 Example

    $queue->push(encode_json($guard->detach));

=head3 API SPECIFICATION

Output

    { type => 'hashref', schema => { key => { type => 'string' }, token => { type => 'string' } } }

=head3 MESSAGES

None.

=head2 adopt

    my $guard = Buflock::Guard->adopt($lock, $plain);

=head3 Purpose

The other way round. L<Buflock/adopt> is the same.

=head3 Arguments

A L<Buflock> for the same URL and namespace, and what L</detach> gave.

=head3 Returns

A guard. It is not asked whether the lock is still held; L</extend> does.

=head3 Side effects

None.

=head3 Example

    my $guard = Buflock::Guard->adopt($lock, decode_json($queue->shift));
    $guard->extend or return;

=head3 API SPECIFICATION

Input

    [ { type => 'object', isa => 'Buflock' },
      { type => 'hashref', schema => { key => { type => 'string' }, token => { type => 'string' } } } ]

Output

    { type => 'object', isa => 'Buflock::Guard' }

=head3 MESSAGES

    Message                                 Resolution
    --------------------------------------  ----------------------------
    adopt takes a lock and what detach gave Pass these. It dies
    adopt: no key and token in it           Pass what detach gave. It dies

=head2 key

=head3 Purpose

The caller's key.

=head3 Arguments

None.

=head3 Returns

It, as it was given.

=head3 Side effects

None.

=head3 Example

    say $guard->key;

=head3 API SPECIFICATION

Output

    { type => 'string' }

=head3 MESSAGES

None.

=head2 token

=head3 Purpose

What the lock is held by: text, fresh for each hold. Who has it owns the lock.

=head3 Arguments

None.

=head3 Returns

It.

=head3 Side effects

None.

=head3 Example

    my $token = $guard->token;

=head3 API SPECIFICATION

Output

    { type => 'string' }

=head3 MESSAGES

None.

=head2 fence

=head3 Purpose

A number that grows with each holder of the key, so that a resource can refuse what comes late from an earlier one.

=head3 Arguments

None.

=head3 Returns

It; 0 for none: over Redis without the option C<fencing>, and of a guard that was adopted.

=head3 Side effects

None.

=head3 Example

    $db->query('update t set v = ?, fence = ? where id = ? and fence <= ?', $v, $guard->fence, $id, $guard->fence);

=head3 API SPECIFICATION

Output

    { type => 'integer', min => 0 }

=head3 MESSAGES

None.

=head2 lock

=head3 Purpose

The lock service that it is of.

=head3 Arguments

None.

=head3 Returns

A L<Buflock>.

=head3 Side effects

None.

=head3 Example

    warn $guard->lock->error if !$guard->release;

=head3 API SPECIFICATION

Output

    { type => 'object', isa => 'Buflock' }

=head3 MESSAGES

None.

=head1 SEE ALSO

L<Buflock>

=cut
