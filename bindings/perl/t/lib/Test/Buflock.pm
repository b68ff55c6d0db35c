package Test::Buflock;
use strict;
use warnings;
use Exporter qw(import);
use File::Temp ();
use IO::Socket::INET;
use POSIX ();
use Test::More ();
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(shm_url redis_server in_child wait_for time sleep backend warnings_of free_port);

my @KEEP;

# Locks of a test's own, in shared memory.
sub shm_url {
    my ($options) = @_;
    my $dir = File::Temp->newdir(DIR => '/dev/shm', CLEANUP => 1);
    push @KEEP, $dir;
    return "shm:test?dir=$dir&size=64k" . ($options ? "&$options" : '');
}

sub backend { return $ENV{BUFLOCK_BACKEND} || 'xs' }

# A Redis server that ends with the test.
sub redis_server {
    my (%options) = @_;
    if (system('command -v redis-server >/dev/null 2>&1') != 0) {
        Test::More::plan(skip_all => 'no redis-server (package redis-server)') if !$options{optional};
        return;
    }
    my @arguments = @{ $options{arguments} // [] };
    my $server = bless { port => free_port(), dir => File::Temp->newdir, maker => $$, arguments => \@arguments }, 'Test::Buflock::Server';
    return $server->start;
}

sub free_port {
    my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die "no port: $@";
    return $socket->sockport;
}

# Runs code in a child; what it gives is the child's exit status. In the parent: its pid.
sub in_child {
    my ($code) = @_;
    my $pid = fork // die "fork: $!";
    return $pid if $pid;
    my $status = eval { $code->() };
    warn $@ if $@;
    POSIX::_exit($@ ? 99 : $status // 0);
}

sub wait_for {
    my ($what, $code) = @_;
    my $until = time + 10;
    while (time < $until) {
        return 1 if $code->();
        sleep 0.01;
    }
    die "no $what within 10 s";
}

# The warnings of a piece of code.
sub warnings_of {
    my ($code) = @_;
    my @warnings;
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    $code->();
    return @warnings;
}

package Test::Buflock::Server;

sub start {
    my ($self) = @_;
    my $pid = fork // die "fork: $!";
    if (!$pid) {
        open STDOUT, '>', "$self->{dir}/log" or POSIX::_exit(1);
        open STDERR, '>&', \*STDOUT or POSIX::_exit(1);
        exec 'redis-server', '--bind', '127.0.0.1', '--port', $self->{port}, '--unixsocket', $self->path, '--save', '',
            '--dir', "$self->{dir}", @{ $self->{arguments} }
            or POSIX::_exit(127);
    }
    $self->{pid} = $pid;
    Test::Buflock::wait_for('Redis server', sub { IO::Socket::INET->new(PeerAddr => $self->address) });
    return $self;
}

sub address { return "127.0.0.1:$_[0]{port}" }
sub path    { return "$_[0]{dir}/socket" }
sub url     { return 'redis://' . $_[0]->address . ($_[1] ? "?$_[1]" : '') }
sub pause   { return kill STOP => $_[0]{pid} }
sub resume  { return kill CONT => $_[0]{pid} }

sub stop {
    my ($self) = @_;
    my $pid = delete $self->{pid} or return;
    kill KILL => $pid;
    waitpid $pid, 0;
    return;
}

sub DESTROY {
    my ($self) = @_;
    local ($?, $!, $@);
    $self->stop if $self->{maker} == $$;
    return;
}

1;
