# The calls of a lock, in shared memory and over Redis.
use strict;
use warnings;
use lib 't/lib';
use Buflock;
use Test::Buflock qw(redis_server shm_url sleep time warnings_of);
use Test::More;

my $server = redis_server(optional => 1);

sub dies_like {
    my ($code, $text, $name) = @_;
    my $ok = eval { $code->(); 1 };
    ok !$ok, "$name dies";
    like $@, qr/\A\Q$text\E.* at \Q$0\E line \d+\.\n\z/, '... and says why and where';
    return;
}

sub all_calls {
    my ($name, $url) = @_;
    my @quiet = (on_notice => sub { });
    my $lock  = Buflock->new($url, @quiet);
    my $other = Buflock->new($url, @quiet);

    subtest "$name: acquire, release" => sub {
        my @answer = $lock->acquire('k');
        is scalar @answer, 2, 'two values';
        my ($guard, $error) = @answer;
        isa_ok $guard, 'Buflock::Guard';
        is $error, undef, 'no error';
        is_deeply [$_->acquire('k')], [undef, undef], 'busy' for $lock, $other;
        is_deeply [$lock->release($guard)], [1, undef], 'release';
        is_deeply [$lock->release($guard)], [1, undef], '... again';
        my $scalar = $other->acquire('k', ttl => 0.5, wait => 0);
        isa_ok $scalar, 'Buflock::Guard', 'scalar context';
        ok !defined $lock->acquire('k'), '... busy';
        ok !defined $lock->error, '... is no error';
        my $plain = { key => 'k', token => $scalar->token };
        is_deeply [$lock->release({ %$plain, token => 'x' x 32 })]->[0], 0, "another's token";
        is $lock->error->kind, 'taken', '... says so';
        is $lock->error->code, 3,       '... as a number';
        is_deeply [$lock->release($plain)], [1, undef], 'a plain guard';
        my ($ok, $why) = $lock->release($plain);
        is $ok, 0, 'released before';
        is $why->kind, 'expired', '... expired';
        like "$why", qr/\Athe lease of "k" ended before its release\z/, '... in words';
        ok !$why->retryable, '... for good';
    };

    subtest "$name: extend, inspect, break, await" => sub {
        my ($guard) = $lock->acquire('k', ttl => 0.3);
        my $left = $guard->left;
        ok $left > 0.2 && $left <= 0.3, 'left';
        is_deeply [$lock->extend($guard, 20)], [1, undef], 'extend';
        ok $guard->left > 19 && $guard->left <= 20, '... and what is left';
        my ($hold, $error) = $other->inspect('k');
        ok $hold->{left} > 18 && $hold->{left} <= 20, 'inspect';
        is_deeply [$other->await('k')], [0, undef], 'await, without waiting';
        my $begin = time;
        is_deeply [$other->await('k', wait => 0.2)], [0, undef], 'await';
        ok time - $begin >= 0.2, '... waits';
        is_deeply [$other->break('k')], [1, undef], 'break';
        is_deeply [$other->break('k')], [0, undef], '... again: nobody held it';
        is_deeply [$other->inspect('k')], [undef, undef], 'nobody';
        is_deeply [$other->await('k', wait => 5)], [1, undef], 'await of a free lock';
        is(($lock->extend($guard))[1]->kind, 'expired', 'extend of what was broken');
        ok $guard->lost, '... and the guard knows';
        is(($lock->release($guard))[1]->kind, 'expired', 'release of it');
    };

    subtest "$name: wait" => sub {
        my ($guard) = $lock->acquire('k', ttl => 0.3);
        my $begin = time;
        ok !$other->acquire('k', wait => 0.1), 'busy in the end';
        my $took = time - $begin;
        ok $took >= 0.1 && $took < 0.2, '... after the wait';
        my $next = $other->acquire('k', wait => 5);
        $took = time - $begin;
        ok $next && $took >= 0.25 && $took < 0.5, 'taken when the lease has ended';
        $next->release;
        my $waits = Buflock->new($url, wait => 0.1, @quiet);
        $next = $lock->acquire('k');
        $begin = time;
        ok !$waits->acquire('k') && time - $begin >= 0.1, 'a wait for all';
        $begin = time;
        ok !$waits->acquire('k', wait => 0) && time - $begin < 0.09, '... but for those that say another';
    };

    subtest "$name: with" => sub {
        is_deeply [$lock->with('w', sub { isa_ok $_[0], 'Buflock::Guard'; return (7, 8) })], [1, 7, 8], 'results';
        my @busy = $lock->with('w', ttl => 5, sub { $other->with('w', sub { die }) });
        is_deeply \@busy, [1, 0], 'busy';
        my $ok = eval { $lock->with('w', sub { die { reason => 1 } }); 1 };
        ok !$ok && $@->{reason}, 'a die goes on';
        is $lock->inspect('w'), undef, '... and the lock is free';
        is scalar $lock->with('w', sub { 0 }), 1, 'scalar context: whether it ran';
        dies_like(sub { $lock->with('w') }, 'with takes a code reference last', 'with without code');
    };

    subtest "$name: void context, warnings" => sub {
        my @warnings = warnings_of(sub { $lock->acquire('v') });
        is scalar @warnings, 1, 'void context warns';
        like $warnings[0], qr/\Aacquire in void context: .* at \Q$0\E line/, '... about the caller';
        is $lock->inspect('v'), undef, '... and releases';
        my $loud = Buflock->new($url);
        warnings_of(sub { $loud->acquire('x') });
        my @late = warnings_of(sub {
            for (1 .. 3) {
                my ($guard) = $loud->acquire('late', ttl => 0.02);
                sleep 0.05;
                ok $guard->lost, 'late';
                is $guard->left, 0, '... nothing left';
                is(($guard->release)[0], 0, '... and the release says so');
            }
        });
        is scalar @late, 1, 'it is said once';
        like $late[0], qr/\Abuflock: the lease of "late" ended before its release at \Q$0\E line/, '... with the key';
        is $loud->stats->{leases_lost}, 3, '... and counted each time';
    };

    subtest "$name: stats" => sub {
        my ($stats, $error) = $lock->stats;
        is $stats->{abi}, 1, 'stats';
        is ref $stats->{notices}, 'ARRAY', '... have notices';
    };

    subtest "$name: wrong arguments" => sub {
        dies_like(sub { $lock->acquire }, 'key is not defined', 'no key');
        dies_like(sub { $lock->acquire('k', ttl => $_) }, qq{ttl is "$_": it must be a number of seconds}, "ttl $_")
            for -1, 'x', 'inf', 'nan', 2_592_001;
        dies_like(sub { $lock->acquire('k', ttl => 0) }, 'ttl is 0: a lease lasts at least', 'ttl 0');
        dies_like(sub { $lock->acquire('k', wait => undef) }, 'wait is not defined', 'an undefined wait');
        dies_like(sub { $lock->acquire('k', timeout => 1) }, 'unknown option "timeout": there are ttl, wait', 'another option');
        dies_like(sub { $lock->release($_) }, 'guard must be one that acquire gave', 'no guard') for undef, 'x', {}, [];
        dies_like(sub { $lock->release({ token => 'x' }) }, 'key is not defined', 'half a guard');
        dies_like(sub { $lock->adopt({ key => 'k' }) }, 'adopt: no key and token in it', 'half a guard to adopt');
        is $lock->inspect('k'), undef, 'nothing was taken';
    };
    return;
}

all_calls('shm', shm_url());
if ($server) {
    all_calls('redis', $server->url);
    all_calls('unix', 'unix://' . $server->path);
}

subtest 'new' => sub {
    dies_like(sub { Buflock->new }, 'new takes a URL', 'no URL');
    dies_like(sub { Buflock->new('ftp://x') }, 'the URL begins with "ftp:"', 'another URL');
    dies_like(sub { Buflock->new('shm:', tll => 3) }, 'unknown option "tll": did you mean "ttl"?', 'another option');
    dies_like(sub { Buflock->new('shm:', timeout => 3) }, 'unknown option "timeout": did you mean "wait"?', 'timeout');
    dies_like(sub { Buflock->new('shm:', ttl => undef) }, 'an option has no value', 'an undefined value');
    dies_like(sub { Buflock->new("shm:x\0y") }, 'a URL or an option holds a NUL', 'a NUL');
    dies_like(sub { Buflock->new('shm:', wait => 'long') }, 'wait is "long"', 'a wait');
    my $lock = Buflock->new('shm:' , dir => '/nowhere');
    my ($guard, $error) = $lock->acquire('k');
    is $guard, undef, 'a table that cannot be';
    is $error->kind, 'segment', '... is an error';
    like "$error", qr{\A/nowhere: opening the directory failed}, '... with its text';
    is $lock->error, $error, '... that is kept';
    ok !defined $lock->acquire('k') && $lock->error, 'scalar context';
    is_deeply [$lock->inspect('k')]->[0], undef, 'inspect';
    is_deeply [$lock->await('k')]->[0], 0, 'await';
    is_deeply [$lock->break('k')]->[0], 0, 'break';
    is_deeply [$lock->stats]->[0], undef, 'stats';
    is(($lock->with('k', sub { die }))[1]->code, -8, 'with');
    is(($lock->fetch('k', get => sub { }, build => sub { die }))[1]->code, -8, 'fetch');
};

subtest 'notices' => sub {
    my $url = shm_url();
    { my $first = Buflock->new($url, on_notice => sub { }); $first->acquire('k')->release }
    my @warnings = warnings_of(sub { my $lock = Buflock->new('off:'); $lock->acquire('k')->release for 1 .. 3; $lock->stats });
    is scalar @warnings, 1, 'a notice is said once';
    like $warnings[0], qr/\Abuflock: off: is in use/, '... in words';
    my @notices;
    my $lock = Buflock->new($url =~ s/size=64k/size=128k/r, on_notice => sub { push @notices, @_ });
    $lock->acquire('k')->release for 1 .. 3;
    is_deeply \@notices, [grep { /so the size 131072 was ignored/ } @notices], '... to whom it concerns';
    is scalar @notices, 1, '... once';
};

subtest 'a server that is not there' => sub {
    my $lock = Buflock->new('redis://127.0.0.1:' . Test::Buflock::free_port() . '?breaker=off');
    my ($guard, $error) = $lock->acquire('k', wait => 1);
    is $error->kind, 'unreachable', 'an error';
    ok $error->retryable, '... that may pass';
    like $error->message, qr{\Aredis://127\.0\.0\.1:\d+/0: }, '... and says which server';
    ok $error, '... and is true';
};

done_testing;
