# A Redis server of its own for a test, on a free port of 127.0.0.1, ended with the object.
package RedisServer;
use strict;
use warnings;
use File::Temp qw(tempdir);
use IO::Socket::INET;
use Scalar::Util qw(weaken);
use Time::HiRes qw(sleep time);
use Nginx;

our ($BINARY) = grep { -x } map { "$_/redis-server" } split(/:/, $ENV{PATH});

# Why there are no tests; undef: there are.
sub missing {
    my $why = Nginx::missing();
    return $why if $why;
    return 'no redis-server (package redis-server)' if !$BINARY;
    return;
}

my @running;
END { $_->DESTROY for grep { $_ } @running }

# options: arguments of redis-server, as a list.
sub new {
    my ($class, @options) = @_;
    my $self = bless { maker => $$, port => Nginx::free_port(), options => \@options,
        dir => tempdir('buflock-redis.XXXXXX', DIR => '/dev/shm', CLEANUP => 1) }, $class;
    chmod 0755, $self->{dir};
    weaken($running[@running] = $self);
    return $self->start;
}

sub start {
    my ($self) = @_;
    my $pid = fork // die $!;
    if (!$pid) {
        open STDOUT, '>', "$self->{dir}/log";
        no warnings 'exec'; # what follows is for when it fails
        exec $BINARY, '--port', $self->{port}, '--bind', '127.0.0.1', '--save', '', '--dir', $self->{dir},
          '--unixsocket', "$self->{dir}/socket", '--unixsocketperm', '777', @{ $self->{options} };
        kill 'KILL', $$;
    }
    $self->{pid} = $pid;
    Nginx->wait_for(sub { $self->connect }) or die 'redis-server does not start';
    return $self;
}

sub url { return "redis://127.0.0.1:$_[0]{port}" }

sub connect {
    my ($self) = @_;
    return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}, Timeout => 5);
}

# The answer to a command: text, undef for nil, a reference to the text of an error, a reference to a list.
sub ask {
    my ($self, @command) = @_;
    my $socket = $self->{socket} //= $self->connect // die "connecting: $!";
    $socket->syswrite(join '', '*', scalar @command, "\r\n", map { '$' . length($_) . "\r\n$_\r\n" } @command);
    return _reply($socket);
}

sub _reply {
    my ($socket) = @_;
    my $line = <$socket> // die 'the server has gone';
    my ($kind, $rest) = $line =~ /^(.)(.*)\r\n/ or die "no reply: $line";
    return $rest if $kind =~ /[+:]/;
    return \$rest if $kind eq '-';
    return if $rest < 0;
    return [ map { _reply($socket) } 1 .. $rest ] if $kind eq '*';
    read $socket, my $text, $rest + 2;
    return substr $text, 0, $rest;
}

# How many connections it has, but for that of `ask`.
sub clients {
    my ($self) = @_;
    my $list = $self->ask('CLIENT', 'LIST');
    return grep { !/cmd=client/ } split /\n/, $list;
}

sub signal {
    my ($self, $signal) = @_;
    kill $signal, $self->{pid};
}

sub stop {
    my ($self) = @_;
    my $pid = delete $self->{pid} or return;
    delete $self->{socket};
    kill 'CONT', $pid;
    kill 'KILL', $pid;
    waitpid $pid, 0;
}

sub DESTROY {
    my ($self) = @_;
    return if $self->{maker} != $$;
    local ($?, $!, $@);
    $self->stop;
}

1;
