# rediss:// in an event loop.
use strict;
use warnings;
use lib 't/lib';
use Test::More;

BEGIN { eval { require Mojo::IOLoop; 1 } or plan skip_all => 'no Mojolicious (package libmojolicious-perl)' }
use Buflock::Mojo;
use File::Temp;
use Mojo::Promise;
use Test::Buflock qw(in_child redis_server time);

my @quiet = (on_notice => sub { });
if (!eval { Buflock::Mojo->new('rediss://127.0.0.1'); 1 }) {
    like $@, qr/\A.*TLS.* at \Q$0\E line \d+\.\n\z/, 'a library without TLS says so';
    done_testing;
    exit;
}
if (!Mojo::IOLoop::TLS->can_tls) {
    my $error;
    Buflock::Mojo->new('rediss://127.0.0.1:' . redis_server()->{port})->acquire_p('k')->catch(sub { $error = shift })->wait;
    like "$error", qr/IO::Socket::SSL/, 'without IO::Socket::SSL it says so';
    done_testing;
    exit;
}
plan skip_all => 'no openssl (package openssl)' if system('command -v openssl >/dev/null 2>&1') != 0;

my $dir = File::Temp->newdir;

sub openssl {
    my ($line) = @_;
    return if system("cd $dir && openssl $line >log 2>&1") == 0;
    plan skip_all => "openssl $line: " . do { local (@ARGV, $/) = "$dir/log"; <> };
}
my $key = '-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes';
openssl("req -x509 $key -keyout $_.key -out $_.pem -days 2 -subj /CN=$_") for qw(ca other);
openssl("req $key -keyout server.key -out server.csr -subj /CN=server");
{ open my $file, '>', "$dir/names" or die; print {$file} "subjectAltName=DNS:localhost,IP:127.0.0.1\n"; close $file or die }
openssl('x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -days 2 -out server.pem');
my $tls_port = Test::Buflock::free_port();
my $server = redis_server(arguments => ['--tls-port', $tls_port, '--tls-cert-file', "$dir/server.pem", '--tls-key-file',
    "$dir/server.key", '--tls-ca-cert-file', "$dir/ca.pem", '--tls-auth-clients', 'no']);
my $looks = Buflock->new($server->url('breaker=off'), @quiet);

sub settled {
    my ($promise) = @_;
    my @settled;
    $promise->then(sub { @settled = (ok => @_) }, sub { @settled = (error => @_) })->wait;
    return @settled;
}
sub new_lock { my ($host, $more) = @_; return Buflock::Mojo->new("rediss://$host:$tls_port?breaker=off&connect_timeout=2&budget=3&$more", @quiet) }

for my $host ('127.0.0.1', 'localhost') {
    my $lock = new_lock($host, "ca_file=$dir/ca.pem");
    my ($how, $guard) = settled($lock->acquire_p('k'));
    ok ref $guard && $how eq 'ok', "$host: acquire_p" or diag $guard;
    ok $looks->inspect('k'), '... is held there';
    is_deeply [settled($lock->acquire_p('k', wait => 0.1))], [ok => undef], '... busy';
    my $pid = in_child(sub {
        my ($how, $own) = settled($lock->acquire_p('child'));
        return $own && (settled($lock->release_p($own)))[0] eq 'ok' ? 0 : 1;
    });
    waitpid $pid, 0;
    is $?, 0, '... a child has a session of its own';
    is_deeply [settled($lock->release_p($guard))], [ok => 1], '... and the parent keeps its';
    my @all = map { $lock->acquire_p("key $_") } 1 .. 20;
    my @guards = map { (settled($_))[1] } @all;
    is scalar(grep { ref } @guards), 20, '... 20 at once';
}
my $lock = Buflock::Mojo->new("rediss://127.0.0.1:$tls_port", @quiet, ca_file => "$dir/ca.pem");
ok ref +(settled($lock->acquire_p('option')))[1], 'ca_file as an option';
for my $bad (["ca_file=$dir/other.pem", 'who is not trusted'], ['', 'who is not known'], ["ca_file=$dir/none", 'a file that is not there']) {
    my ($more, $what) = @$bad;
    my ($how, $error) = settled(new_lock('127.0.0.1', $more)->acquire_p('k'));
    is $how, 'error', $what;
    is $error->kind, 'unreachable', "... is not spoken to: $error";
}
my ($how, $error) = settled(new_lock('127.0.0.2', "ca_file=$dir/ca.pem")->acquire_p('k'));
is $how, 'error', 'another name than that of the certificate' or diag $error;
($how, $error) = settled(Buflock::Mojo->new('rediss://' . $server->address . '?breaker=off', @quiet)->acquire_p('k'));
is $how, 'error', "a server without TLS: $error";
$server->pause;
my ($begin, $ticks) = (time, 0);
my $id = Mojo::IOLoop->recurring(0.01 => sub { $ticks++ });
($how, $error) = settled(Buflock::Mojo->new("rediss://127.0.0.1:$tls_port?breaker=off&ca_file=$dir/ca.pem", @quiet)->acquire_p('k'));
is $how, 'error', "a handshake that stalls: $error";
ok time - $begin < 0.75, '... ends within the budget';
ok $ticks > 10, '... and the loop goes on';
Mojo::IOLoop->remove($id);
$server->resume;

done_testing;
