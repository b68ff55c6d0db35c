package Buflock::Mojo;
use strict;
use warnings;
use 5.020;
use parent 'Buflock';
use Buflock::Mojo::Driver;
use Carp qw(croak);
use Mojo::IOLoop;
use Mojo::Promise;
use Mojo::Util qw(scope_guard url_unescape);
use Scalar::Util qw(weaken);

our $VERSION = '0.001000';

use constant OK => 0;

sub new {
    my ($class, $url, %options) = @_;
    my $loop = delete $options{ioloop} // Mojo::IOLoop->singleton;
    my $self = $class->SUPER::new($url, %options);
    croak 'a redis: URL without a server needs a client of its own, which Buflock::Mojo has not' if $url =~ /\Aredis:(?!\/\/)/;
    my ($ca_file) = map { url_unescape $_ } $url =~ /[?&]ca_file=([^&]*)/;
    return bless { %{$self}, ioloop => $loop, groups => {}, is_shm => scalar $url =~ /\Ashm:/,
        ca_file => $ca_file // $options{ca_file} }, $class;
}

sub ioloop { return $_[0]{ioloop} }

sub acquire_p {
    my ($self, $key, %options) = @_;
    Buflock::_known(\%options, qw(ttl wait tx));
    return $self->_ask({ kind => 'acquire', key => $key, ttl => Buflock::_lease($options{ttl}) }, \%options);
}

sub await_p {
    my ($self, $key, %options) = @_;
    Buflock::_known(\%options, qw(wait tx));
    return $self->_ask({ kind => 'await', key => $key }, \%options);
}

sub release_p {
    my ($self, $of) = @_;
    my ($bytes, $token, $guard) = $self->_held($of);
    return $self->_promise->resolve(1) if $guard && $guard->{done};
    return $guard->{releases} if $guard && $guard->{releases};
    my $promise = $self->_tell([ op_release => $bytes, $token ], sub {
        delete $guard->{releases} if $guard;
        return $self->_released($of, @_);
    });
    @{$guard}{qw(ending releases)} = (1, $promise) if $guard && !$guard->{done};
    return $promise;
}

sub extend_p {
    my ($self, $of, $ttl) = @_;
    my ($bytes, $token, $ms) = $self->_to_extend($of, $ttl);
    my $now = Buflock::_now();
    return $self->_tell([ op_extend => $bytes, $token, $ms ], sub { $self->_extended($of, $ms, $now, @_) });
}

sub fetch_p {
    my ($self, $key, %options) = @_;
    return $self->_fetch_p($key, $self->_to_fetch(\%options, 'tx'), \%options);
}

sub _fetch_p {
    my ($self, $key, $until, $options) = @_;
    return $self->_call($options->{get}, $key)->then(sub {
        my ($value) = @_;
        return $value if defined $value;
        return $self->acquire_p($key, ttl => $options->{ttl}, wait => 0, tx => $options->{tx})->then(sub {
            my ($guard) = @_;
            return $guard ? $self->_build_p($guard, $options) : $self->_stale_p($key, $until, $options);
        });
    });
}

# While another builds.
sub _stale_p {
    my ($self, $key, $until, $options) = @_;
    return $self->_call($options->{stale} // sub { undef }, $key)->then(sub {
        my ($value) = @_;
        return $value if defined $value;
        my $left = $until - Buflock::_now();
        return undef if $left <= 0;    ## no critic (ProhibitExplicitReturnUndef)
        return $self->await_p($key, wait => sprintf('%.3f', $left), tx => $options->{tx})->then(sub {
            my ($over) = @_;
            return defined $over ? $self->_fetch_p($key, $until, $options) : undef;
        });
    });
}

# By the one who holds the lock. A build that fails leaves it held for a while.
sub _build_p {
    my ($self, $guard, $options) = @_;
    my $key  = $guard->key;
    my $cool = 0;
    my $build = sub {
        $cool = $options->{cool};
        return $self->_call($options->{build}, $key, $guard)->then(sub {
            my ($value) = @_;
            return undef if !defined $value;    ## no critic (ProhibitExplicitReturnUndef)
            $cool = 0;
            return $value if !$options->{set};
            return $self->_call($options->{set}, $key, $value, $guard)->then(sub { $value });
        });
    };
    my $end = sub {
        my $end = $cool ? $self->extend_p($guard, $cool)->then(sub { $guard->_let_go }) : $self->release_p($guard);
        return $end->catch(sub { });    # it was told, and what was built is good
    };
    return $self->_call($options->{get}, $key)->then(sub { $_[0] // $build->() })->then(
        sub { my ($value) = @_; $end->()->then(sub { $value }) },
        sub { my ($died) = @_; $end->()->then(sub { $self->_promise->reject($died) }) },
    );
}

sub _promise { return Mojo::Promise->new->ioloop($_[0]{ioloop}) }

# What code gives, now or later.
sub _call {
    my ($self, $code, @arguments) = @_;
    return $self->_promise->resolve->then(sub { scalar $code->(@arguments) });
}

# The driver of this process. What the parent of a forked child waits for is not the child's.
sub _driver {
    my ($self) = @_;
    my $driver = $self->{driver};
    return $driver if $driver && $driver->is_ours;
    $self->_forget;
    $self->_subscribe if !$self->{events};
    $driver = Buflock::Mojo::Driver->new(loop => $self->{ioloop}, handle => $self->{handle}, ca_file => $self->{ca_file});
    $driver->open_bell if $self->{is_shm};
    return $self->{driver} = $driver;
}

sub _forget {
    my ($self) = @_;
    my $driver = delete $self->{driver};
    $driver->abandon if $driver;
    $self->{groups} = {};
    return;
}

# Waits end when the loop is asked to end. A loop that is reset forgets us, and we forget what it did.
sub _subscribe {
    my ($self) = @_;
    weaken(my $weak = $self);
    my %event = (
        finish => sub {
            $weak->{finishes} = 1;
            $weak->_cancel($_) for map { @{ $_->{askers} } } values %{ $weak->{groups} };
        },
        reset => sub {
            $weak->_forget;
            delete @{$weak}{qw(events finishes)};
        },
    );
    $self->{ioloop}->on($_ => $event{$_}) for keys %event;
    $self->{events} = \%event;
    return;
}

sub DESTROY {
    my ($self) = @_;
    my $events = delete $self->{events};
    return if !$events || ${^GLOBAL_PHASE} eq 'DESTRUCT';
    $self->{ioloop}->unsubscribe($_ => $events->{$_}) for keys %{$events};
    return;
}

# One who asks for a lock, or for its end. An acquire is told a guard, an await whether it is over, and both undef when
# it was cancelled.
sub _ask {
    my ($self, $asker, $options) = @_;
    my $wait = $self->_wait($options);
    my $promise = $self->_promise;
    @{$asker}{qw(bytes promise pid)} = ($self->_bytes($asker->{key}), $promise, $$);
    $self->_driver;
    if (my $tx = $options->{tx}) {
        return $promise->resolve(undef) if $tx->is_finished;
        $self->_follow($asker, $tx);
    }
    $wait && !$self->{finishes} ? $self->_join($asker, $wait) : $self->_begin({ askers => [$asker] });
    return $promise;
}

# When the client goes, the asker does: when the transaction ends, or is dropped.
sub _follow {
    my ($self, $asker, $tx) = @_;
    weaken(my $lock = $self);
    weaken(my $weak = $asker);
    my $gone = scope_guard sub { $lock->_cancel($weak) if $lock && $weak };
    weaken($asker->{finish} = $tx->on(finish => sub { undef $gone }));    # it is the transaction's
    weaken($asker->{tx}     = $tx);
    return;
}

# Those of this process who wait for the same are one to the outside.
sub _join {
    my ($self, $asker, $wait) = @_;
    $asker->{timer} = $self->{ioloop}->timer($wait / 1_000 => sub { $self->_end_of_wait($asker) });
    my $name  = join ' ', $asker->{kind}, $asker->{ttl} // 0, $asker->{bytes};
    my $group = $self->{groups}{$name};
    return $self->_begin({ name => $name, askers => [$asker] }) if !$group;
    push @{ $group->{askers} }, $asker;
    $asker->{group} = $group;
    return;
}

sub _begin {
    my ($self, $group) = @_;
    my ($first) = @{ $group->{askers} };
    $_->{group} = $group for @{ $group->{askers} };
    $self->{groups}{ $group->{name} } = $group if defined $group->{name};
    my $wait = defined $group->{name} ? Buflock::MAX_MS : 0;    # each has a timer of its own
    my @asked = $first->{kind} eq 'acquire' ? ('op_acquire', $first->{bytes}, $first->{ttl}) : ('op_await', $first->{bytes});
    $self->_run([ @asked, $wait ], sub { $self->_tell_all($group, $_[0]) }, \$group->{task});
    return;
}

# Makes an op and has it driven; $done gets it in the end, or the status and text of why there is none.
sub _run {
    my ($self, $asked, $done, $task) = @_;
    my ($make, @arguments) = @{$asked};
    my ($status, $op) = $self->{handle}->$make(@arguments);
    if ($status == OK) { $$task = $self->_driver->run($op, sub { $done->(sub { $op->finish($_[0]) }) }) }
    else               { $done->(sub { ($status, $op) }) }
    return;
}

# A call that does not wait, as a promise: true, or an error.
sub _tell {
    my ($self, $asked, $judge) = @_;
    my $promise = $self->_promise;
    $self->_run($asked, sub {
        my ($finish) = @_;
        my ($ok, $error) = eval { $judge->($finish->(my $none)) };
        $ok ? $promise->resolve(1) : $promise->reject($error // $@);
    }, \my $task);
    return $promise;
}

sub _tell_all {
    my ($self, $group, $finish) = @_;
    my @askers = @{ $group->{askers} };
    $self->_close($group);
    return if !@askers;    # what it got it has given back
    local $@;
    my @answer = eval { $self->_answer($askers[0], $finish) };
    @answer = (reject => $@) if !@answer;
    if (ref $answer[1] && $answer[0] eq 'resolve') {    # a guard is for one of them
        $self->_settle(shift @askers, @answer);
        $self->_begin({ name => $group->{name}, askers => \@askers }) if @askers;
        return;
    }
    $self->_settle($_, @answer) for @askers;
    return;
}

sub _answer {
    my ($self, $asker, $finish) = @_;
    my ($answer, $error);
    if ($asker->{kind} eq 'acquire') {
        my $guard = $self->{guards}->_new($self, @{$asker}{qw(key bytes)}, '');
        ($answer, $error) = $self->_acquired($guard, $asker->{ttl}, $finish->($guard->{token}));
    } else {
        ($answer, $error) = $self->_yes_or_no($finish->(my $none));
    }
    return $error ? (reject => $error) : (resolve => $answer);
}

sub _close {
    my ($self, $group) = @_;
    delete $_->{group} for @{ $group->{askers} };
    my $name = $group->{name};
    delete $self->{groups}{$name} if defined $name && ($self->{groups}{$name} // 0) == $group;
    return;
}

# The last one that leaves puts out the light.
sub _leave {
    my ($self, $asker) = @_;
    my $group = delete $asker->{group} or return;
    @{ $group->{askers} } = grep { $_ != $asker } @{ $group->{askers} };
    return if @{ $group->{askers} };
    $self->_close($group);
    $self->{driver}->cancel($group->{task}) if $group->{task};
    return;
}

# A last look: what stood when the wait began need not be what stands now, and maybe it could not be asked at all.
sub _end_of_wait {
    my ($self, $asker) = @_;
    return if $asker->{pid} != $$ || !$asker->{promise};
    delete $asker->{timer};
    $self->_leave($asker);
    $self->_begin({ askers => [$asker] });
    return;
}

sub _cancel {
    my ($self, $asker) = @_;
    return if $asker->{pid} != $$ || !$asker->{promise};
    $self->_leave($asker);
    $self->_settle($asker, resolve => undef);
    return;
}

sub _settle {
    my ($self, $asker, $how, $answer) = @_;
    my $promise = delete $asker->{promise};
    my $timer   = delete $asker->{timer};
    $self->{ioloop}->remove($timer) if defined $timer;
    $asker->{tx}->unsubscribe(finish => $asker->{finish}) if $asker->{tx};
    delete @{$asker}{qw(tx finish)};
    $promise->$how($answer);
    return;
}

sub _loop_runs {
    my ($self) = @_;
    return $self->SUPER::_loop_runs || ${^GLOBAL_PHASE} eq 'RUN' && $self->{ioloop}->is_running;
}

# A guard that goes away in the running loop: others are not to wait for our next command.
sub _drop {
    my ($self, $guard) = @_;
    return $self->SUPER::_drop($guard) if $self->{is_shm} || !$self->_loop_runs;
    my %hold = map { $_ => $guard->{$_} } qw(key bytes token ending);
    $hold{token} =~ s/\0.*//s;
    $self->_run([ op_release => @hold{qw(bytes token)} ], sub { $self->_dropped(\%hold, $_[0]->(my $none)) }, \my $task);
    return;
}

1;

__END__

=encoding UTF-8

=head1 NAME

Buflock::Mojo - locks for programs that run in Mojo::IOLoop

=head1 SYNOPSIS

    use Mojolicious::Lite -signatures;
    use Buflock::Mojo;

    my $lock = Buflock::Mojo->new('redis://redis.internal', ttl => 30);

    get '/page/:id' => sub ($c) {
        my $key = 'page ' . $c->param('id');
        $c->render_later;
        $lock->fetch_p($key, wait => 5, tx => $c->tx,
            get   => sub { $cache->get($key) },
            build => sub { build_page_p($key) },
            set   => sub { $cache->set($key, $_[1]) },
        )->then(sub ($page) { $c->render(data => $page // build_page($key)) })
         ->catch(sub ($error) { $c->render(data => build_page($key)) });
    };

    $lock->acquire_p('k', wait => 2, tx => $c->tx)->then(sub ($guard) {
        return $c->render(text => 'busy') if !$guard;
        return work_p()->then(sub { $lock->release_p($guard) });
    });

=head1 DESCRIPTION

L<Buflock> with promises. It has all that L<Buflock> has, and a method ending in C<_p> for each call that may have to wait.
These never block the loop: Redis is spoken to over connections of the loop's, of which a few are kept, and locks in shared
memory are waited for by an fd that the loop watches.

=head2 Answers

A promise is resolved with the first value of L<Buflock>'s answer, and rejected with a L<Buflock::Error>.

    acquire_p              a guard    undef: busy
    release_p, extend_p    1
    await_p                1          0: still held
    fetch_p                a value    undef: busy

Methods die for wrong arguments, as those of L<Buflock> do.

=head2 How waits end

By their time; when the client goes, if C<tx> is given; when the loop is asked to end (its C<finish> event, as in a graceful
stop or a hot deployment): they are busy then, C<await_p> with undef, and nothing is held. While the loop finishes no wait
begins. When the loop is reset, promises stay as they are, as all do then, and nothing is held.

Those in this process who wait for the same lock are one to the outside, and get it in the order in which they came.

=head2 Guards

A guard that goes out of scope in the running loop is released, without blocking it. So a promise that nobody listens to
leaves nothing held. C<< $guard->release >> blocks for the time of a round trip; L</release_p> does not.

=head1 METHODS

Those of L<Buflock>, and

=head2 new

    my $lock = Buflock::Mojo->new($url, %options);

=head3 Purpose

A lock service for a loop.

=head3 Arguments

As of L<Buflock/new>, and C<ioloop>: a L<Mojo::IOLoop>. Without it the singleton.

=head3 Returns

The object.

=head3 Side effects

None. Nothing is opened before the first use.

=head3 Example

    my $lock = Buflock::Mojo->new('shm:pages', ioloop => $ua->ioloop);

=head3 API SPECIFICATION

Input

    url     => { type => 'string', position => 0 }
    options => { type => 'hash' }

Output

    { type => 'object', isa => 'Buflock::Mojo' }

=head3 MESSAGES

Those of L<Buflock/new>, and

    a redis: URL without a server needs a client    Say the server. It dies
    of its own, which Buflock::Mojo has not

=head2 ioloop

=head3 Purpose

The loop.

=head3 Arguments

None.

=head3 Returns

A L<Mojo::IOLoop>.

=head3 Side effects

None.

=head3 Example

    $lock->ioloop->timer(1 => sub { ... });

=head3 API SPECIFICATION

Output

    { type => 'object', isa => 'Mojo::IOLoop' }

=head3 MESSAGES

None.

=head2 acquire_p

    my $promise = $lock->acquire_p($key, ttl => 30, wait => 2, tx => $c->tx);

=head3 Purpose

Takes the lock, if need be after waiting for it.

=head3 Arguments

As of L<Buflock/acquire>; and C<tx>: a L<Mojo::Transaction> at whose end, or when it is dropped, nobody wants the lock any
more.

=head3 Returns

A promise of a L<Buflock::Guard>, or undef: another holds it, and the wait is over.

=head3 Side effects

The lock is held until the guard goes out of scope, is released, or the lease ends. Where the client goes before the promise
is resolved, nothing is held.

=head3 Example

    $lock->acquire_p('page 42')->then(sub ($guard) { $guard or return; ... });

=head3 API SPECIFICATION

Input

    { key  => { type => 'string', position => 0 },
      ttl  => { type => 'number', min => 0, max => 2592000, optional => 1 },    # and > 0
      wait => { type => 'number', min => 0, max => 2592000, optional => 1 },
      tx   => { type => 'object', isa => 'Mojo::Transaction', optional => 1 } }

Output

    { type => 'object', isa => 'Mojo::Promise' }

=head3 MESSAGES

Those of L<Buflock/acquire>.

=head2 release_p

    my $promise = $lock->release_p($guard);

=head3 Purpose

Gives a lock back.

=head3 Arguments

A guard, or a plain C<{key, token}>.

=head3 Returns

A promise of 1. It is rejected if it could not be, or was not held any more: then C<< $error->kind >> is C<expired> or
C<taken>.

=head3 Side effects

As of L<Buflock/release>.

=head3 Example

    $lock->release_p($guard)->catch(sub ($error) { warn $error });

=head3 API SPECIFICATION

Input

    { guard => { type => ['object', 'hashref'], position => 0 } }

Output

    { type => 'object', isa => 'Mojo::Promise' }

=head3 MESSAGES

Those of L<Buflock/release>.

=head2 extend_p

    my $promise = $lock->extend_p($guard, $ttl);

=head3 Purpose

Gives a hold a new lease from now on.

=head3 Arguments

As of L<Buflock/extend>.

=head3 Returns

As L</release_p>.

=head3 Side effects

None but that.

=head3 Example

    Mojo::IOLoop->recurring(10 => sub { $lock->extend_p($guard, 30)->catch(sub ($error) { stop_it($error) }) });

=head3 API SPECIFICATION

Input

    { guard => { type => ['object', 'hashref'], position => 0 }, ttl => { type => 'number', optional => 1, position => 1 } }

Output

    { type => 'object', isa => 'Mojo::Promise' }

=head3 MESSAGES

Those of L<Buflock/extend>.

=head2 await_p

    my $promise = $lock->await_p($key, wait => 2, tx => $c->tx);

=head3 Purpose

Waits without taking the lock.

=head3 Arguments

The key; C<wait>; C<tx>, as of L</acquire_p>.

=head3 Returns

A promise of 1: it is free, or was released or changed hands; 0: the same hold still stands; or undef: the wait was ended.

=head3 Side effects

None.

=head3 Example

    $lock->await_p('page 42', wait => 5)->then(sub { $c->render(data => $cache->get('page 42') // '') });

=head3 API SPECIFICATION

Input

    { key  => { type => 'string', position => 0 }, wait => { type => 'number', optional => 1 },
      tx   => { type => 'object', isa => 'Mojo::Transaction', optional => 1 } }

Output

    { type => 'object', isa => 'Mojo::Promise' }

=head3 MESSAGES

Those of L<Buflock/acquire>.

=head2 fetch_p

    my $promise = $lock->fetch_p($key, get => sub { ... }, build => sub { ... }, %options);

=head3 Purpose

A cache in front of which only one builds what is missing, and the others wait for it, or take what is stale.

=head3 Arguments

As of L<Buflock/fetch>, and C<tx>, as of L</acquire_p>. The code may give its value, or a promise of it.

=head3 Returns

A promise of the value; or of undef: another builds, and the wait is over. It is rejected if the lock could not be asked, and
with what the code died of.

=head3 Side effects

Those of the code. A build that has begun goes on when its client goes, for others wait for it.

=head3 Example

See L</SYNOPSIS>.

=head3 API SPECIFICATION

Input

    { key   => { type => 'string', position => 0 },
      get   => { type => 'coderef' }, build => { type => 'coderef' },
      set   => { type => 'coderef', optional => 1 }, stale => { type => 'coderef', optional => 1 },
      ttl   => { type => 'number', optional => 1 }, wait => { type => 'number', optional => 1 },
      cool  => { type => 'number', optional => 1 },
      tx    => { type => 'object', isa => 'Mojo::Transaction', optional => 1 } }

Output

    { type => 'object', isa => 'Mojo::Promise' }

=head3 MESSAGES

Those of L<Buflock/fetch>.

=head1 PREFORKING SERVERS

Make the lock in startup, and use it in all workers: each has connections and a bell of its own, and uses none of its
parent's. What a worker holds when it is killed is held until its lease ends. A worker that ends gracefully ends its waits,
and releases what it holds at the end.

=head1 LIMITATIONS

=over

=item * A Redis host that is a name is resolved in a subprocess, at most twice in a minute; with L<Net::DNS::Native> by
that. A host in digits needs neither.

=item * C<rediss://> needs L<IO::Socket::SSL>, besides a library that has TLS. The certificate and its name are checked as
L<IO::Socket::SSL> does, against C<ca_file> or the system's.

=item * The methods without C<_p> block, here too. L<Buflock/inspect>, L<Buflock/break> and L<Buflock/stats> have no others.

=back

=head1 SEE ALSO

L<Buflock>, L<Buflock::Guard>, L<Buflock::Error>, L<Mojo::Promise>

=head1 COPYRIGHT AND LICENSE

MIT or Apache-2.0, as you like.

=cut
