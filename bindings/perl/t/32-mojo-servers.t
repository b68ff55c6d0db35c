# Real servers of several workers: killed, reloaded and stopped while requests wait.
use strict;
use warnings;
use lib 't/lib';
use Test::More;

BEGIN { eval { require Mojolicious; 1 } or plan skip_all => 'no Mojolicious (package libmojolicious-perl)' }
use Buflock;
use File::Temp;
use IO::Socket::INET;
use Mojo::IOLoop;
use Mojo::Promise;
use Mojo::UserAgent;
use POSIX ();
use Test::Buflock qw(free_port in_child redis_server shm_url sleep time wait_for);

my $server = redis_server(optional => 1);
my @quiet  = (on_notice => sub { });
my ($hypnotoad) = grep { -x } map { "$_/hypnotoad" } split /:/, $ENV{PATH};

# The one that runs; it ends with the test.
my ($pid, $me) = (undef, $$);
END { if ($pid && $$ == $me) { local $?; kill TERM => $pid; waitpid $pid, 0 } }

my $APP = <<'APP';
use Mojolicious::Lite -signatures;
use Buflock::Mojo;
use Mojo::Promise;

app->config(hypnotoad => { listen => [$ENV{LISTEN}], workers => 3, pid_file => "$ENV{DIR}/pid", graceful_timeout => 10 });
app->log->path("$ENV{DIR}/log");

my $lock = Buflock::Mojo->new($ENV{LOCK_URL}, on_notice => sub { });
{   # used before the fork, too
    my $guard;
    $lock->acquire_p('startup')->then(sub { $guard = shift })->wait;
    $guard or die 'startup';
    $lock->release_p($guard)->wait;
}

# The number in the file grows by one under the lock.
get '/count' => sub ($c) {
    my $tx = $c->render_later->tx;
    $lock->acquire_p('count', wait => 20, tx => $tx)->then(sub ($guard) {
        return $c->render(text => 'busy') if !$guard;
        my $number = -e "$ENV{DIR}/number" ? Mojo::File->new("$ENV{DIR}/number")->slurp : 0;
        return Mojo::Promise->timer(0.002)->then(sub {
            Mojo::File->new("$ENV{DIR}/number")->spurt($number + 1);
            return $lock->release_p($guard);
        })->then(sub { $c->render(text => 'done') });
    })->catch(sub ($error) { $c->render(text => $error, status => 500) });
};

my @held;
get '/hold/:key' => sub ($c) {
    my $tx = $c->render_later->tx;
    $lock->acquire_p($c->param('key'), ttl => $c->param('ttl') // 30)->then(sub ($guard) {
        push @held, $guard;
        $c->render(text => $$);
    })->catch(sub ($error) { $c->render(text => $error, status => 500) });
};

get '/wait/:key' => sub ($c) {
    my $tx = $c->render_later->tx;
    $c->inactivity_timeout(60);
    $lock->acquire_p($c->param('key'), wait => 30, tx => $tx)->then(sub ($guard) {
        $c->render(text => $guard ? 'got it' : 'busy') if !$tx->is_finished;
    })->catch(sub ($error) { $c->render(text => $error, status => 500) });
};

app->start;
APP

sub all_servers {
    my ($name, $url) = @_;
    my $dir = File::Temp->newdir;
    my $port = free_port();
    @ENV{qw(LISTEN DIR LOCK_URL MOJO_MODE PERL5LIB)} =
        ("http://127.0.0.1:$port", "$dir", $url, 'production', join ':', map { File::Spec->rel2abs($_) } grep { !ref } @INC);
    { open my $app, '>', "$dir/app.pl" or die; print {$app} $APP; close $app or die }
    my $looks = Buflock->new($url, @quiet);
    my $free  = sub { !defined $looks->inspect($_[0]) };

    my $begin = sub {
        my (@command) = @_;
        $pid = in_child(sub {
            open STDOUT, '>>', "$dir/out" or POSIX::_exit(1);
            open STDERR, '>&', \*STDOUT or POSIX::_exit(1);
            exec @command or POSIX::_exit(127);
        });
        wait_for('server', sub { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") });
    };
    my $agent = Mojo::UserAgent->new(max_connections => 0, request_timeout => 40, inactivity_timeout => 40);
    my $ask = sub { $agent->get_p("http://127.0.0.1:$port/$_[0]")->then(sub { $_[0]->result->body }) };
    my $body = sub { my $body; $ask->(@_)->then(sub { $body = shift }, sub { $body = "failed: $_[0]" })->wait; $body };
    my $turn = sub { Mojo::Promise->timer(shift)->wait };

    subtest "$name: prefork" => sub {
        $begin->($^X, "$dir/app.pl", 'prefork', '-w', 3, '-l', $ENV{LISTEN}, '-P', "$dir/prefork", '-G', 10);
        my @bodies;
        Mojo::Promise->all(map { $ask->('count')->then(sub { push @bodies, shift }) } 1 .. 60)->catch(sub { diag @_ })->wait;
        is_deeply \@bodies, [('done') x 60], '60 requests had the lock';
        my $number = do { open my $file, '<', "$dir/number" or die; readline $file };
        is $number, 60, '... one after the other';

        my $holder = $body->('hold/killed?ttl=1.5');
        like $holder, qr/\A\d+\z/, 'a worker holds a lock';
        my $begin = time;
        my $waits = $ask->('wait/killed');
        $turn->(0.1);
        kill KILL => $holder;
        my $got;
        $waits->then(sub { $got = shift }, sub { $got = 'killed, too' })->wait;
        if ($got eq 'killed, too') {    # it was that worker's
            $waits = $ask->('wait/killed');
            $waits->then(sub { $got = shift }, sub { $got = "failed: @_" })->wait;
        }
        my $took = time - $begin;
        is $got, 'got it', '... is killed, and another takes it over';
        ok $took > 1.3 && $took < 2.5, sprintf '... at the end of the lease: %.2f s', $took;

        $looks->break('gone');
        my $guard = $looks->acquire('gone', ttl => 20);
        my $brief = Mojo::UserAgent->new(request_timeout => 0.2);
        $brief->get_p("http://127.0.0.1:$port/wait/gone")->catch(sub { })->wait;
        undef $brief;
        $turn->(0.1);
        $guard->release;
        $turn->(0.2);
        ok $free->('gone'), 'a client that went away holds nothing';

        $guard = $looks->acquire('stop', ttl => 20);
        my @waiting = map { $ask->('wait/stop') } 1 .. 6;
        $body->('hold/held');
        $turn->(0.3);
        @bodies = ();
        my $all = Mojo::Promise->all_settled(map { $_->then(sub { push @bodies, shift }, sub { push @bodies, "failed: @_" }) } @waiting);
        kill QUIT => $pid;
        $begin = time;
        $all->wait;
        is_deeply \@bodies, [('busy') x 6], 'a graceful stop ends the waits, and they are answered';
        undef $agent;    # its kept connections would hold the workers
        waitpid $pid, 0;
        undef $pid;
        ok time - $begin < 8, sprintf '... and the server: %.2f s', time - $begin;
        $guard->release;
        ok $free->($_), "... nothing is held: $_" for qw(stop held);
        $agent = Mojo::UserAgent->new(max_connections => 0, request_timeout => 40, inactivity_timeout => 40);
    };

    subtest "$name: hypnotoad" => sub {
        plan skip_all => 'no hypnotoad' if !$hypnotoad;
        $begin->($^X, $hypnotoad, '-f', "$dir/app.pl");
        my @bodies;
        Mojo::Promise->all(map { $ask->('count')->then(sub { push @bodies, shift }) } 1 .. 30)->catch(sub { diag @_ })->wait;
        is scalar(grep { $_ eq 'done' } @bodies), 30, '30 requests had the lock';
        my $guard = $looks->acquire('reload', ttl => 20);
        @bodies = ();
        my @waiting = map { $ask->('wait/reload')->then(sub { push @bodies, shift }, sub { push @bodies, "failed: @_" }) } 1 .. 6;
        $body->('hold/held');
        $turn->(0.3);
        kill USR2 => $pid;
        my $begin = time;
        Mojo::Promise->all_settled(@waiting)->wait;
        is_deeply \@bodies, [('busy') x 6], 'a hot deployment ends the waits, and they are answered';
        ok time - $begin < 10, sprintf '... %.2f s later', time - $begin;
        undef $agent;
        $agent = Mojo::UserAgent->new(max_connections => 0, request_timeout => 40, inactivity_timeout => 40);
        $guard->release;
        wait_for('end of the old workers', sub { $free->('held') });
        ok $free->('reload'), '... nothing is held';
        @bodies = ();
        Mojo::Promise->all(map { $ask->('count')->then(sub { push @bodies, shift }) } 1 .. 30)->catch(sub { diag @_ })->wait;
        is scalar(grep { $_ eq 'done' } @bodies), 30, '... and the new ones lock';
        my $new = do { open my $file, '<', "$dir/pid" or die; readline $file };
        undef $agent;
        kill QUIT => $new;
        waitpid $pid, 0;
        undef $pid;
        wait_for('end', sub { !kill 0, $new });
        ok $free->('count'), 'the end leaves nothing held';
    };
    return;
}

all_servers('shm', shm_url());
all_servers('redis', $server->url) if $server;

done_testing;
