package Buflock::Mojo::Driver;
use strict;
use warnings;
use 5.020;
use Errno qw(EAGAIN EINTR EWOULDBLOCK);
use Mojo::IOLoop::Client;
use Mojo::IOLoop::TLS;
use Scalar::Util qw(refaddr weaken);
use Socket qw(MSG_DONTWAIT MSG_PEEK NI_NUMERICHOST NIx_NOSERV SOCK_STREAM SOL_SOCKET SO_LINGER);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our $VERSION = '0.001000';

use constant { OK => 0, INTERRUPTED => 4 };
use constant { DONE => 0, CONNECT => 1, SEND => 2, RECV => 3, SLEEP => 4, BELL => 5 };
use constant IDLE     => 8;         # connections kept under one name
use constant NAME_AGE => 30;        # seconds for which an address is good
use constant AT_END   => 1;         # seconds for what is under way when the program ends

# Those with ops under way.
my %BUSY;

sub new {
    my ($class, %self) = @_;
    return bless { %self, pid => $$, tasks => {}, bells => {}, idle => {}, names => {} }, $class;
}

sub is_ours { return $_[0]{pid} == $$ }

# Drives an op; $done gets it when it is over, at once where it needs to wait for nothing.
sub run {
    my ($self, $op, $done) = @_;
    my $task = { op => $op, done => $done };
    $self->{tasks}{ refaddr $task } = $task;
    weaken($BUSY{ refaddr $self } = $self);
    $self->_go($task);
    return $task;
}

# Nobody wants it any more. What it may hold it gives back, and is over then.
sub cancel {
    my ($self, $task) = @_;
    return if !$task->{done};
    $task->{op}->cancel;
    $self->_go($task);
    return;
}

# An fd of our own for the bell of a lock in shared memory, for the library's is not to be closed. It is watched only
# while there is a wait, so that it keeps no loop running.
sub open_bell {
    my ($self) = @_;
    return if $self->{bell};
    my ($status, $fd) = $self->{handle}->bell_fd;
    return if $status != OK;    # then the ops sleep in steps
    open $self->{bell}, '<&', $fd or delete $self->{bell};
    return;
}

# In a forked child, or when the loop has forgotten us: from now on nothing is done any more. Connections are closed
# without a word, for in the child they are the parent's.
sub abandon {
    my ($self) = @_;
    my @tasks = values %{ $self->{tasks} };
    for my $task (@tasks) {
        $self->_ignore($task);
        $self->_hang_up($task);
        $self->_unwatch($task->{link}{handle}) if $task->{link};
        delete @{$task}{qw(link done)};
    }
    $self->_unwatch($self->{bell}) if $self->{bell} && %{ $self->{bells} };
    @{$self}{qw(tasks bells idle)} = ({}, {}, {});
    delete $self->{bell};
    delete $BUSY{ refaddr $self };
    return;
}

sub DESTROY {
    my ($self) = @_;
    return if ${^GLOBAL_PHASE} eq 'DESTRUCT';
    local ($@, $!);
    $self->abandon;
    return;
}

# What is still under way when the program ends is brought to its end without the loop, but not at any price: locks are
# given back, and what was to be released is.
sub _settle {
    my ($self) = @_;
    my $until = clock_gettime(CLOCK_MONOTONIC) + AT_END;
    for my $task (values %{ $self->{tasks} }) {
        my $op = $task->{op};
        $self->_hang_up($task);
        $self->_put_back($task, 0);
        $op->cancel;
        1 while ($op->run(50))[0] == INTERRUPTED && clock_gettime(CLOCK_MONOTONIC) < $until;
    }
    return;
}

END {
    local ($., $@, $!, $^E, $?);
    $_ && $_->is_ours && $_->_settle for values %BUSY;
}

sub CLONE_SKIP { return 1 }

sub _reactor { return $_[0]{loop}->reactor }

sub _unwatch {
    my ($self, $handle) = @_;
    my $reactor = $self->_reactor or return;
    $reactor->remove($handle) if defined fileno $handle;
    return;
}

# Does what the op says until it says to wait.
sub _go {
    my ($self, $task) = @_;
    return $self->abandon if !$self->is_ours;
    $self->_ignore($task);
    while ($task->{done}) {
        my ($status, $kind, $ms, $id, $keep, $tls, $port, undef, $host, $pool, $data) = $task->{op}->next;
        return $self->_over($task, $keep) if $status != OK || $kind == DONE;
        if ($kind == SEND) {
            $task->{link}{out} = $data;
            $self->_write($task);
            next;
        }
        if ($kind == CONNECT && !$task->{client}) {
            $self->_put_back($task, $keep);
            next if $self->_reuse($task, $pool);
            $self->_connect($task, $ms, $tls, $host, $port, $pool);
        }
        $self->_listen($task, $id) if $kind == BELL;
        $task->{timer} = $self->_reactor->timer($ms / 1_000 => sub { delete $task->{timer}; $self->_go($task) });
        return;
    }
    return;
}

# No timer and no bell any more, until the op says so.
sub _ignore {
    my ($self, $task) = @_;
    my $timer = delete $task->{timer};
    $self->_reactor->remove($timer) if defined $timer && $self->_reactor;
    my $id = delete $task->{bell};
    return if !defined $id;
    delete $self->{bells}{$id};
    $self->_unwatch($self->{bell}) if !%{ $self->{bells} };
    return;
}

sub _over {
    my ($self, $task, $keep) = @_;
    $self->_put_back($task, $keep);
    $self->_hang_up($task);
    delete $self->{tasks}{ refaddr $task };
    delete $BUSY{ refaddr $self } if !%{ $self->{tasks} };
    (delete $task->{done})->($task->{op});
    return;
}

sub _fail {
    my ($self, $task, $why) = @_;
    utf8::encode($why) if utf8::is_utf8($why);
    $task->{op}->fail($why =~ s/[\0\n].*//sr);
    return;
}

sub _listen {
    my ($self, $task, $id) = @_;
    my $bell = $self->{bell} or return;
    if (!%{ $self->{bells} }) {
        weaken(my $weak = $self);
        $self->_reactor->io($bell => sub { $weak->_ring })->watch($bell, 1, 0);
    }
    $self->{bells}{ $task->{bell} = $id } = $task;
    return;
}

sub _ring {
    my ($self) = @_;
    return $self->abandon if !$self->is_ours;
    my ($status, @ids) = $self->{handle}->bell_read;
    if ($status != OK) {
        my @tasks = values %{ $self->{bells} };
        $self->_ignore($_), $self->_go($_) for @tasks;    # by their times, without a bell
        return delete $self->{bell};
    }
    for my $id (@ids) {
        my $task = $self->{bells}{$id} or next;    # it is over
        $self->_go($task);
    }
    return;
}

# A connection that was kept: one on which nothing has come, not even its end.
sub _reuse {
    my ($self, $task, $pool) = @_;
    my $idle = $task->{lost} ? [] : $self->{idle}{$pool} // [];
    while (my $link = pop @{$idle}) {
        next if defined recv($link->{handle}, my $byte, 1, MSG_PEEK | MSG_DONTWAIT) || $! != EAGAIN;
        $self->_attach($task, $link);
        $task->{op}->connected(0);
        return 1;
    }
    return 0;
}

# An end of which the op knows more than we: the kernel is not to deliver what is still on its way.
sub _put_back {
    my ($self, $task, $keep) = @_;
    my $link = delete $task->{link} or return;
    $self->_unwatch($link->{handle});
    my $idle = $self->{idle}{ $link->{pool} } //= [];
    return push @{$idle}, $link if $keep && @{$idle} < IDLE;
    $task->{lost} = 1 if !$keep;
    setsockopt $link->{handle}, SOL_SOCKET, SO_LINGER, pack 'ii', 1, 0 if !$keep;
    return;
}

sub _attach {
    my ($self, $task, $link) = @_;
    $task->{link} = $link;
    my $handle = $link->{handle};
    $self->_reactor->io($handle => sub { $self->_ready($task, $_[1]) })->watch($handle, 1, 0);
    return;
}

sub _ready {
    my ($self, $task, $may_write) = @_;
    return $self->abandon if !$self->is_ours;    # before it is read: these bytes are the parent's
    return if !$task->{link};
    if   ($may_write) { return if $self->_write($task) }
    else              { return if !$self->_read($task) }
    $self->_go($task);
    return;
}

# Whether there is something for the op to look at.
sub _read {
    my ($self, $task) = @_;
    my $count = $task->{link}{handle}->sysread(my $bytes, 65_536);
    if ($count) {
        my ($status) = $task->{op}->feed($bytes);
        return 1 if $status == OK;
        $self->_fail($task, 'bytes came that nothing was asked for');
    } elsif (defined $count) {
        $self->_fail($task, 'the server closed the connection');
    } elsif ($! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR) {
        return 0;
    } else {
        $self->_fail($task, "$!");
    }
    $self->_put_back($task, 0);
    return 1;
}

# Whether it went well so far.
sub _write {
    my ($self, $task) = @_;
    my $link = $task->{link};
    if (!$link) {
        $self->_fail($task, 'there is no connection');
        return 0;
    }
    my $count = $link->{handle}->syswrite($link->{out});
    if (!defined $count && $! != EAGAIN && $! != EWOULDBLOCK && $! != EINTR) {
        $self->_fail($task, "$!");
        $self->_put_back($task, 0);
        return 0;
    }
    substr $link->{out}, 0, $count // 0, '';
    $self->_reactor->watch($link->{handle}, 1, $link->{out} ne '');
    return 1;
}

# Connects. The op's own time limits hold for all of it.
sub _connect {
    my ($self, $task, $ms, $tls, $host, $port, $pool) = @_;
    my $failed = sub {
        $self->_hang_up($task);
        $self->_fail($task, $_[-1]);
        $self->_go($task);
    };
    my $connected = sub {
        my $handle = $_[-1];
        $self->_hang_up($task);
        $self->_attach($task, { handle => $handle, pool => $pool, out => '' });
        $task->{op}->connected(1);
        $self->_go($task);
    };
    my $client = $task->{client} = Mojo::IOLoop::Client->new(reactor => $self->_reactor);
    $client->on(error   => $failed);
    $client->on(connect => $tls ? sub { $self->_begin_tls($task, $host, $_[-1], $connected, $failed) } : $connected);
    my @limit = (timeout => $ms / 1_000 + 1);
    return $client->connect(path => $host, @limit) if $port == 0;
    $self->_resolve($host, sub {
        my ($address, $why) = @_;
        return if !$task->{client} || $task->{client} != $client;    # it took too long
        return $failed->($why) if !defined $address;
        $client->connect(address => $address, port => $port, @limit);
    });
    return;
}

# Gives up connecting. The reactor has all that there is of a handshake.
sub _hang_up {
    my ($self, $task) = @_;
    delete $task->{client};
    my $handle = delete $task->{handshake} or return;
    $self->_unwatch($handle);
    return;
}

# Behind the connection, so that the certificate is checked against the name, not the address that it has.
sub _begin_tls {
    my ($self, $task, $host, $handle, $connected, $failed) = @_;
    my $tls = $task->{client} = Mojo::IOLoop::TLS->new($handle)->reactor($self->_reactor);
    $task->{handshake} = $handle;
    $tls->on(upgrade => $connected);
    $tls->on(error   => $failed);
    my %options = (SSL_verify_mode => 1, SSL_verifycn_scheme => 'default', SSL_version => 'SSLv23:!SSLv3:!TLSv1:!TLSv1_1');
    $options{SSL_ca_file} = $self->{ca_file} if defined $self->{ca_file};
    local $@;
    eval { $tls->negotiate(address => $host, tls_options => \%options); 1 } or $failed->($@ =~ s/ at \S+ line \d+\.?\n.*//sr);
    return;
}

# Mojo::IOLoop::Client stops the loop to resolve a name, but with Net::DNS::Native. Then a child does it.
sub _resolve {
    my ($self, $host, $done) = @_;
    return $done->($host) if $host =~ /\A[0-9.]+\z|:/ || Mojo::IOLoop::Client->can_nnr;
    my $name = $self->{names}{$host} //= { at => 0, asked => [] };
    return $done->($name->{address}) if clock_gettime(CLOCK_MONOTONIC) - $name->{at} < NAME_AGE;
    push @{ $name->{asked} }, $done;
    return if @{ $name->{asked} } > 1;
    $self->{loop}->subprocess(
        sub {
            my ($failed, @found) = Socket::getaddrinfo($host, '', { socktype => SOCK_STREAM });
            die "$failed\n" if $failed;
            return (Socket::getnameinfo($found[0]{addr}, NI_NUMERICHOST, NIx_NOSERV))[1];
        },
        sub {
            my (undef, $why, $address) = @_;
            chomp $why;
            @{$name}{qw(address at)} = ($address, clock_gettime(CLOCK_MONOTONIC)) if !$why;
            my @asked = splice @{ $name->{asked} };
            $_->($why ? (undef, "resolving $host failed: $why") : $address) for @asked;
        },
    );
    return;
}

1;

__END__

=encoding UTF-8

=head1 NAME

Buflock::Mojo::Driver - does the I/O of ops with a Mojo reactor

=head1 DESCRIPTION

The inside of L<Buflock::Mojo>; programs have no use for it. An op of the library says what to do next, and this does it:
it connects, sends, receives, sleeps, or waits for the bell. It belongs to the process that made it.

=head1 METHODS

=head2 new

A driver for C<loop>, a L<Mojo::IOLoop>, and C<handle>, an opened lock. C<ca_file>: whom to trust with TLS.

=head2 is_ours

Whether this process made it.

=head2 run

Drives an op; the code gets it when it is over. Gives what L</cancel> takes.

=head2 cancel

Nobody wants an op any more. It is driven on until it holds nothing.

=head2 open_bell

Has waits in shared memory be woken by an fd.

=head2 abandon

Drops all, and closes the connections without a word.

=head1 SEE ALSO

L<Buflock::Mojo>

=head1 COPYRIGHT AND LICENSE

MIT or Apache-2.0, as you like.

=cut
