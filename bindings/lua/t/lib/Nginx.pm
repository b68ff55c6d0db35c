# An nginx of its own for a test: in a temporary directory, on a free port of 127.0.0.1, ended with the object.
package Nginx;
use strict;
use warnings;
use Cwd qw(abs_path);
use Digest::MD5 qw(md5_hex);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use File::Temp qw(tempdir);
use IO::Socket::INET;
use Scalar::Util qw(weaken);
use Time::HiRes qw(sleep time);

my $lua  = abs_path(dirname(__FILE__) . '/../..');
my $root = abs_path("$lua/../..");
my $so   = $ENV{BUFLOCK_LIBRARY} || "$root/target/dist/release/libbuflock.so";

# A whole path: by it a master finds its successor.
our ($BINARY) = grep { -x } $ENV{TEST_NGINX_BINARY} // (), map { "$_/nginx" } split(/:/, $ENV{PATH}), '/usr/sbin';
our $MODULES = $ENV{TEST_NGINX_MODULES} || '/usr/lib/nginx/modules';

# A test that is broken off ends its nginx too.
$SIG{$_} = sub { exit 1 } for qw(HUP INT TERM PIPE);

# Why there are no tests; undef: there are.
sub missing {
    return 'no nginx (package nginx-light)' if !$BINARY;
    return "no ngx_http_lua_module.so (package libnginx-mod-http-lua)" if !-e "$MODULES/ngx_http_lua_module.so";
    return "no $so (make lib)" if !-e $so;
    return;
}

sub free_port {
    return IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1', ReuseAddr => 1)->sockport;
}

# A place for one or more instances, with the library and the Lua files in it: workers of another user must reach them.
sub place {
    my ($where) = @_;
    my $dir = tempdir('buflock-nginx.XXXXXX', DIR => $where // '/dev/shm', CLEANUP => 1);
    chmod 0755, $dir;
    mkdir "$dir/$_" for qw(so);
    copy($so, "$dir/so/libbuflock.so") or die "copying $so: $!";
    chmod 0755, "$dir/so/libbuflock.so";
    system('cp', '-R', "$lua/lib", "$lua/compat", $dir) == 0 or die 'copying the Lua files';
    system('chmod', '-R', 'a+rX', $dir);
    return $dir;
}

# Those that still run, to be ended before their directories go.
my @running;
END { $_->DESTROY for grep { $_ } @running }

# main, http, server: texts of configuration; workers, user, prefix, place, port, paths, level, connections.
sub new {
    my ($class, %o) = @_;
    my $self = bless { maker => $$, workers => 1, port => free_port(), main => '', http => '', server => '', %o }, $class;
    $self->{place} //= place();
    $self->{prefix} //= "$self->{place}/nginx" . (++$self->{place_count});
    mkdir $self->{prefix};
    chown $self->uid, -1, $self->{prefix} if $< == 0; # for tables in it
    mkdir "$self->{prefix}/logs";
    weaken($running[@running] = $self);
    $self->{log} = "$self->{prefix}/logs/error.log";
    return $self;
}

sub paths {
    my ($self) = @_;
    return qq{lua_package_path "$self->{place}/lib/?.lua;;";\n    lua_package_cpath "$self->{place}/so/?.so";};
}

sub write_config {
    my ($self) = @_;
    my $temp = join "\n    ", map { "${_}_temp_path $self->{prefix}/logs/$_;" } qw(client_body proxy fastcgi uwsgi scgi);
    my $user = $< == 0 ? 'user ' . ($self->{user} // 'www-data') . ';' : '';
    my $paths = $self->{paths} // $self->paths;
    my $level = $self->{level} // 'info';
    my $connections = $self->{connections} // 512;
    open my $file, '>', "$self->{prefix}/nginx.conf" or die $!;
    print $file <<"CONF";
load_module $MODULES/ndk_http_module.so;
load_module $MODULES/ngx_http_lua_module.so;
worker_processes $self->{workers};
daemon on; master_process on; pid logs/nginx.pid; $user
error_log logs/error.log $level;
$self->{main}
events { worker_connections $connections; }
http {
    access_log off;
    lua_http10_buffering off;
    $temp
    $paths
    $self->{http}
    server {
        listen 127.0.0.1:$self->{port} backlog=1024;
        $self->{server}
    }
}
CONF
    close $file;
}

sub start {
    my ($self) = @_;
    $self->write_config;
    my @command = ($BINARY, '-p', "$self->{prefix}/", '-c', "$self->{prefix}/nginx.conf");
    my $said = `@command 2>&1`;
    die "nginx does not start: $said" if $?;
    $self->wait_for(sub { $self->master && $self->workers >= $self->{workers} }) or die 'nginx has no workers';
    return $self;
}

sub read_file {
    my ($name) = @_;
    open my $file, '<', $name or return '';
    local $/;
    return scalar <$file>;
}

sub master {
    my ($self, $name) = @_;
    my ($pid) = (read_file("$self->{prefix}/logs/" . ($name // 'nginx.pid')) // '') =~ /(\d+)/;
    return $pid;
}

# Whether a process runs; a zombie does not.
sub runs {
    my ($pid) = @_;
    return read_file("/proc/$pid/stat") =~ /^\d+ \(.*\) (?![ZX])/s;
}

sub children {
    my ($pid) = @_;
    return grep { runs($_) } split ' ', read_file("/proc/$pid/task/$pid/children");
}

sub workers {
    my ($self) = @_;
    return $self->master ? children($self->master) : ();
}

sub wait_for {
    my ($self, $condition, $seconds) = @_;
    my $end = time + ($seconds // 5);
    until ($condition->()) {
        return 0 if time > $end;
        sleep 0.01;
    }
    return 1;
}

sub signal {
    my ($self, $signal) = @_;
    kill $signal, $self->master;
}

# Reloads the configuration, and waits until the new workers are there.
sub hup {
    my ($self) = @_;
    my %old = map { $_ => 1 } $self->workers;
    $self->write_config;
    $self->signal('HUP');
    return $self->wait_for(sub { (grep { !$old{$_} } $self->workers) >= $self->{workers} });
}

# A request that was sent, to be finished by `finish`.
sub send {
    my ($self, $path, %o) = @_;
    my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $o{port} // $self->{port}, Timeout => 10)
      or die "connecting: $!";
    my $method = $o{method} // 'GET';
    my $body = $o{body} // '';
    my $headers = $o{headers} // '';
    $headers .= 'Content-Length: ' . length($body) . "\r\n" if length $body;
    print $socket "$method $path HTTP/1.0\r\nHost: localhost\r\n$headers\r\n$body";
    $socket->flush;
    return $socket;
}

# (body, code)
sub finish {
    my ($self, $socket, $seconds) = @_;
    my $text = '';
    local $SIG{ALRM} = sub { die "no answer\n" };
    alarm($seconds // 30);
    while (sysread $socket, my $part, 65536) { $text .= $part }
    alarm 0;
    my ($code) = $text =~ m{^HTTP/1\.\d (\d+)};
    my ($body) = $text =~ /\r?\n\r?\n(.*)\z/s;
    $body //= $text; # the head was read before
    return wantarray ? ($body, $code // 0) : $body;
}

sub get {
    my ($self, $path, %o) = @_;
    return $self->finish($self->send($path, %o), $o{timeout});
}

sub errors {
    my ($self) = @_;
    return grep { /\[(?:error|crit|alert|emerg)\]/ } split /\n/, read_file($self->{log});
}

sub uid {
    my ($self) = @_;
    return $< == 0 ? scalar getpwnam($self->{user} // 'www-data') : $<;
}

# The table of this instance's locks.
sub table {
    my ($self) = @_;
    return '/dev/shm/buflock-' . $self->uid . '/nginx-' . md5_hex("$self->{prefix}/");
}

# Tables that its workers have in their memory.
sub tables_of {
    my ($self) = @_;
    my %tables = map { $_ => 1 } map { read_file("/proc/$_/maps") =~ m{(/dev/shm/buflock-\d+/nginx-\w+)}g } $self->workers;
    return sort keys %tables;
}

sub stop {
    my ($self, $signal) = @_;
    my $master = $self->master or return;
    my @all = ($master, $self->workers);
    kill $signal // 'QUIT', $master;
    my $gone = $self->wait_for(sub { !grep { runs($_) } @all }, 10);
    kill 'KILL', grep { runs($_) } @all if !$gone;
    unlink "$self->{prefix}/logs/nginx.pid";
    return $gone;
}

sub DESTROY {
    my ($self) = @_;
    return if $self->{maker} != $$;
    local ($?, $!, $@);
    $self->stop('TERM');
    unlink $self->table;
}

1;
