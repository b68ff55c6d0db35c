# The drop-in, section by section of the documentation of the class that it stands in for.
use strict;
use warnings;
use utf8;
use lib 't/lib';
use Digest::MD5 qw(md5_hex);
use Test::Buflock qw(redis_server in_child warnings_of sleep time);
use Test::More;

BEGIN { eval { require Mojolicious; 1 } or plan skip_all => 'no Mojolicious (package libmojolicious-perl)' }
use Mojolicious::Plugin::Buffer::Lock::Buflock;

binmode Test::More->builder->$_, ':encoding(UTF-8)' for qw(output failure_output);

my $class  = 'Mojolicious::Plugin::Buffer::Lock::Buflock';
my $server = redis_server();
my @never  = (redis => sub { die "never asked\n" });

my %client;
for my $module (qw(Redis Redis::Fast)) {
    eval "require $module; 1" or next;
    $client{$module} = sub { $module->new(server => $server->address, @_) };
}
my ($raw_class) = sort keys %client or plan skip_all => 'no Redis client (package libredis-perl)';
my $raw = $client{$raw_class}->();    # looks what is in the server

# A client that gives what a test wants.
my (@calls, $answer);
{ package Mock; sub new { bless {}, shift } sub eval { my $self = shift; push @calls, [@_]; return $answer->(@_) } }

sub croaks {
    my ($code, $text, $name) = @_;
    my $ok = eval { $code->(); 1 };
    my $died = $@;
    ok !$ok, "$name croaks";
    like $died, qr/\A\Q$text\E at \Q$0\E line \d+\.\n\z/, '... with the text, and says where';
    return;
}

subtest 'ATTRIBUTES' => sub {
    my $lock = $class->new(@never);
    isa_ok $lock, 'Mojo::Base';
    is $lock->namespace, 'buffer:lock:', 'namespace by default';
    is $lock->ttl, 60, 'ttl by default';
    is $lock->messages, undef, 'no messages by default';
    is ref $lock->redis, 'CODE', 'redis reads';
    is $lock->ttl(0), $lock, 'a writer gives the object, and skips the checks';
    is $lock->ttl, 0, '... and has written';
    is $lock->namespace('')->redis(undef)->messages({})->namespace, '', 'writers chain';
};

subtest 'new' => sub {
    my $client_text = 'cache_lock redis must be an object with an eval() method or a code reference returning one';
    my $namespace_text = 'cache_lock namespace must be a non-empty string';
    my $ttl_text       = 'cache_lock ttl must be a positive number of seconds';
    croaks(sub { $class->new }, $client_text, 'no redis');
    for my $bad (undef, '', 'x', 1, {}, [], \1, bless({}, 'Nothing'), 'shm:x', 'redis:') {
        croaks(sub { $class->new(redis => $bad) }, $client_text, 'redis ' . ($bad // 'undef'));
    }
    croaks(sub { $class->new(@never, namespace => $_) }, $namespace_text, 'namespace ' . ($_ // 'undef'))
        for undef, '', [];
    croaks(sub { $class->new(@never, ttl => $_) }, $ttl_text, 'ttl ' . ($_ // 'undef'))
        for undef, '', 0, '0.0', -1, 'x', '1e3', 'inf', 'nan', "5\n", ' 5', '.5', '5.', '٣', 1e-9, [];
    ok $class->new(@never, ttl => $_), "ttl $_" for 0.5, 1, '0.0004', 60, 86_400 * 365;
    ok $class->new({@never}), 'a hash reference will do, as Mojo::Base has it';
    {
        package WithEval; sub new { bless {}, shift } sub eval { }
        package WithAutoload; our $AUTOLOAD; sub new { bless {}, shift } sub AUTOLOAD { }
    }
    ok $class->new(redis => $_->new), "an object of $_" for qw(WithEval WithAutoload);
    my $calls = 0;
    ok $class->new(redis => sub { $calls++; undef }) && !$calls, 'no connection is made';
    croaks(sub { $class->new(messages => { redis_client_invalid => '客户端 🔒 %d %' }) }, '客户端 🔒 %d %', 'an override');
    croaks(sub { $class->new(@never, ttl => 0, messages => { redis_ttl_invalid => 'ttl?' }) }, 'ttl?', 'another');
};

sub everything {
    my ($name, $redis) = @_;
    my $new = sub { $class->new(redis => $redis->(), @_) };

    subtest "$name: acquire, release, STATE DIAGRAM" => sub {
        my ($lock, $other) = ($new->(), $new->());
        my $stored = 'buffer:lock:' . md5_hex('buffer:0123abcd');
        $raw->del($stored);
        my @answer = $lock->acquire('buffer:0123abcd');
        is scalar @answer, 2, 'two values';
        my ($guard, $error) = @answer;
        is ref $guard, 'HASH', '(1) acquired: the guard is a plain hash';
        is $error, undef, '... and there is no error';
        is_deeply [sort keys %$guard], [qw(key token)], '... of key and token';
        is $guard->{key}, $stored, 'the key is the namespace and the MD5 digest';
        like $guard->{token}, qr/\A.{32}\z/, 'the token has 32 characters';
        is $raw->get($stored), $guard->{token}, 'the server holds the token';
        my $left = $raw->pttl($stored);
        ok $left > 55_000 && $left <= 60_000, 'for 60 s';
        is_deeply [$_->acquire('buffer:0123abcd')], [undef, undef], '(5) present: busy' for $lock, $other;
        is $raw->get($stored), $guard->{token}, '... and nothing changes';
        is_deeply [$other->release({ %$guard, token => 'x' x 32 })], [1, undef], "(6) another's token: released nothing";
        is $raw->get($stored), $guard->{token}, '... and the lock stands';
        is_deeply [$lock->release($guard)], [1, undef], '(2) released';
        is $raw->exists($stored), 0, '... and the key is gone';
        is_deeply [$lock->release($guard)], [1, undef], 'again: it had expired';
        my ($second) = $other->acquire('buffer:0123abcd');
        isnt $second->{token}, $guard->{token}, 'a token is fresh';
        is_deeply [$lock->release($guard)], [1, undef], '(6) an old guard';
        is $raw->get($stored), $second->{token}, '... deletes nothing';
        my $travelled = { key => "$second->{key}", token => "$second->{token}" };
        is_deeply [$lock->release($travelled)], [1, undef], 'a guard is data, and may travel';
        is_deeply [warnings_of(sub { $lock->release($guard) })], [], 'no words about it';
    };

    subtest "$name: beside the class that it stands in for" => sub {
        my $lock  = $new->();
        my $name  = 'buffer:lock:' . md5_hex('both');
        my $theirs = { key => $name, token => 'Z' x 32 };
        my $delete = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
        $raw->set($name, $theirs->{token}, 'NX', 'PX', 60_000);
        is_deeply [$lock->acquire('both')], [undef, undef], 'a lock of its is busy';
        is_deeply [$lock->release($theirs)], [1, undef], '... and is released by its guard';
        is $raw->exists($name), 0, '... whole';
        my ($guard) = $lock->acquire('both');
        ok !defined $raw->set($name, $theirs->{token}, 'NX', 'PX', 60_000), 'a lock of ours is busy for it';
        is $raw->eval($delete, 1, @{$guard}{qw(key token)}), 1, '... and released by our guard';
    };

    subtest "$name: ttl" => sub {
        my $lock = $new->(ttl => 0.5);
        my ($guard) = $lock->acquire('t');
        my $left = $raw->pttl($guard->{key});
        ok $left > 300 && $left <= 500, 'fractions';
        sleep 0.6;
        is $raw->exists($guard->{key}), 0, '(3) the TTL runs out';
        my ($second) = $lock->acquire('t');
        ok $second, '... and a second worker takes it';
        is_deeply [$lock->release($guard)], [1, undef], '... whose lock the first does not touch';
        is $raw->get($second->{key}), $second->{token}, '...';
        $lock->release($second);
        $lock->ttl(90);
        ($guard) = $lock->acquire('t');
        ok $raw->pttl($guard->{key}) > 85_000, 'attributes are read at each call';
        $lock->release($guard);
        for my $ttl (0, -1, 'x', undef, 0.0004, 'nan') {
            is_deeply [warnings_of(sub { ($guard) = $lock->ttl($ttl)->acquire('t') })], [], 'ttl ' . ($ttl // 'undef');
            ok $guard, '... is 1 ms';
            sleep 0.01;
            is $raw->exists($guard->{key}), 0, '... and protects nothing';
        }
        for my $ttl (86_400 * 31, 'inf') {
            ($guard) = $lock->ttl($ttl)->acquire('t');
            my $left = $raw->pttl($guard->{key});
            ok $left > 2_591_000_000 && $left <= 2_592_000_000, "ttl $ttl is 30 days";
            $lock->release($guard);
        }
    };

    subtest "$name: namespace, _key" => sub {
        my $lock = $new->(namespace => 'shop:');
        my ($guard) = $lock->acquire('k');
        is $guard->{key}, 'shop:' . md5_hex('k'), 'a namespace of its own';
        ok +($new->()->acquire('k'))[0], 'the default one is another';
        $raw->flushall;
        $lock->namespace("caf\xe9:");
        ($guard) = $lock->acquire('k');
        is $raw->exists("caf\xe9:" . md5_hex('k')), 1, 'bytes stay bytes';
        is_deeply [$lock->release($guard)], [1, undef], '... to the end';
        $lock->namespace('鎖:');
        is_deeply [warnings_of(sub { ($guard) = $lock->acquire('k') })], [], 'a wide one neither dies nor warns';
        is_deeply [$lock->release($guard)], [1, undef], '... to the end';
        {
            package MyApp::Lock;
            use Mojo::Base 'Mojolicious::Plugin::Buffer::Lock::Buflock';
            use Mojo::Util qw(encode md5_sum);

            sub _key {
                my ($self, $key) = @_;
                return '{' . $self->namespace . '}' . md5_sum(encode('UTF-8', $key));
            }
        }
        my $tagged = MyApp::Lock->new(redis => $redis->(), namespace => 'a:');
        ($guard) = $tagged->acquire('é');
        is $guard->{key}, '{a:}' . md5_hex("\xc3\xa9"), 'the hash-tag example';
        is $raw->get('{a:}' . md5_hex("\xc3\xa9")), $guard->{token}, '... is what the server holds';
        is_deeply [$tagged->acquire('é')], [undef, undef], '... and is busy';
        is_deeply [$tagged->release($guard)], [1, undef], '... and released';
        is $raw->dbsize, 0, '... whole';
    };

    subtest "$name: ENCODING" => sub {
        my $lock = $new->();
        my $latin = "caf\xe9";
        utf8::upgrade(my $twin = $latin);
        utf8::downgrade($latin);
        my ($guard) = $lock->acquire($latin);
        is $guard->{key}, 'buffer:lock:' . md5_hex("caf\xc3\xa9"), 'UTF-8 and MD5';
        is_deeply [$lock->acquire($twin)], [undef, undef], 'the same string is the same key, however Perl holds it';
        $lock->release($guard);
        for my $key ('', '0', '🔒 ключ', "a\0b", "\x{10ffff}", 'x' x (1024 * 1024)) {
            my ($guard, $error) = $lock->acquire($key);
            is $error, undef, 'key of ' . length($key) . ' characters';
            is length $guard->{key}, 12 + 32, '... only a digest is sent';
            is_deeply [$lock->acquire($key)], [undef, undef], '... busy';
            is_deeply [$lock->release($guard)], [1, undef], '... released';
        }
    };

    subtest "$name: COMMON PITFALLS" => sub {
        my $lock  = $new->();
        my $guard = $lock->acquire('k');
        is ref $guard, 'HASH', 'scalar context gives the guard (a difference)';
        my $busy = $lock->acquire('k');
        is $busy, undef, '... or undef';
        ok scalar $lock->release($guard), '... and whether it was released';
        is_deeply [$lock->acquire(undef)], [undef, 'cache key is not defined'], 'acquire(undef)';
        is_deeply [$lock->acquire], [undef, 'cache key is not defined'], 'acquire()';
        for my $bad (undef, 1, '', 'x', [], {}, { key => 1 }, { token => 1 }, { key => undef, token => 1 },
            { key => [], token => 1 }, bless({ key => 1, token => 1 }, 'Guard')) {
            is_deeply [$lock->release($bad)], [0, 'invalid lock guard'], 'release(' . ($bad // 'undef') . ')';
        }
        is_deeply [$lock->release({ key => 'k', token => $_ })], [1, undef], "nobody's token" for '', "\0", 'é', '鎖', 'x';
    };

    subtest "$name: the server is gone" => sub {
        my $lock = $new->(messages => { redis_unlock_failed => '解锁 [_1]' });
        my ($guard, $error) = $lock->acquire('gone');
        $server->stop;
        local $@ = 'kept';
        ($guard, $error) = ($guard, ($lock->acquire('other'))[1]);
        like $error, qr/\ARedis lock failed: ./, '(4) acquire: an error';
        is ref \$error, 'SCALAR', '... a plain string';
        my ($ok, $why) = $lock->release($guard);
        is $ok, 0, 'release: 0';
        like $why, qr/\A解锁 ./, '... and an error, overridden';
        is $@, 'kept', '$@ is kept';
        $server->start;
        ($guard, $error) = $lock->acquire('gone');
        is $error, undef, 'the first call after it is back works';
        ok $guard, '... and has the lock';
        $lock->release($guard);
        $raw = $client{$raw_class}->();
    };
    return;
}

for my $module (sort keys %client) {
    everything("$module, by a factory", sub { $client{$module} });
}
everything('redis://', sub { $server->url('breaker=off') });
everything('unix://', sub { 'unix://' . $server->path . '?breaker=off' });

subtest 'a URL that cannot be used' => sub {
    my $ok = eval { $class->new(redis => 'redis://h?tll=3'); 1 };
    ok !$ok, 'croaks';
    like $@, qr/\Acache_lock redis: unknown option "tll": did you mean "ttl"\?/, '... with the reason';
};

for my $module (sort keys %client) {
    subtest "$module, an object" => sub {
        my $lock = $class->new(redis => $client{$module}->());
        my ($guard, $error) = $lock->acquire('object');
        ok $guard, 'acquire';
        is_deeply [$lock->acquire('object')], [undef, undef], 'busy';
        is_deeply [$lock->release($guard)], [1, undef], 'release';
    };
}

subtest 'the factory' => sub {
    my ($calls, @clients) = (0);
    my $lock = $class->new(redis => sub { $calls++; shift @clients });
    is_deeply [$lock->acquire('k')], [undef, 'Redis lock failed: Redis client factory returned no client'], 'undef';
    is_deeply [$lock->release({ key => 'k', token => 't' })], [0, 'Redis unlock failed: Redis client factory returned no client'],
        '... of a release';
    is $calls, 2, '... is asked again';
    push @clients, $client{$raw_class}->();
    my ($guard) = $lock->acquire('k');
    ok $guard, 'a client at last';
    $lock->release($guard);
    $lock->acquire('k');
    is $calls, 3, '... is asked once';
    $raw->flushall;
    my $pid = in_child(sub { push @clients, $client{$raw_class}->(); return ($lock->acquire('k'))[0] && $calls == 4 ? 0 : 1 });
    waitpid $pid, 0;
    is $?, 0, 'once in each process';
    $lock->redis(sub { die "no route\n" });
    is_deeply [$lock->acquire('k')], [undef, "Redis lock failed: no route\n"], 'another factory is asked; it dies';
    my $died = bless { text => 'an object' }, 'Exception';
    { package Exception; use overload '""' => sub { $_[0]{text} }, bool => sub { 0 } }
    $lock->redis(sub { die $died });
    is_deeply [$lock->acquire('k')], [undef, 'Redis lock failed: an object'], '... with an object that is false';
    my $once = $class->new(redis => sub { undef }, messages =>
            { redis_lock_failed => '{error} — échec 🔒 100%', redis_no_client => 'aucun client' });
    is_deeply [$once->acquire('k')], [undef, 'aucun client — échec 🔒 100%'], 'overrides, one in the other';
};

subtest 'what the client gets and gives' => sub {
    @calls = ();
    my $lock = $class->new(redis => Mock->new, ttl => 0.25);
    $answer = sub { undef };
    is_deeply [$lock->acquire('k')], [undef, 'Redis lock command returned no result'], 'nothing';
    is scalar @calls, 1, 'one eval for a call';
    my ($script, $count, $key, $token, $ttl) = @{ $calls[0] };
    like $script, qr/redis\.call\('SET'/, '... with a script';
    is $count, 1, '... one key';
    is $key, 'buffer:lock:' . md5_hex('k'), '... the stored one';
    like $token, qr/\A[0-9a-f]{32}\z/, '... the token';
    is $ttl, 250, '... the ttl in ms';
    is_deeply [$lock->release({ key => $key, token => $token })], [0, 'Redis unlock failed: Redis lock command returned no result'],
        'nothing, of a release';
    is scalar @calls, 2, '... one eval';
    $answer = sub { die "ERR busy: 100% {error} [_1] %s\n" };
    is_deeply [$lock->acquire('k')], [undef, "Redis lock failed: ERR busy: 100% {error} [_1] %s\n"],
        "the client's own text, unchanged";
    $answer = sub { return };
    is_deeply [$lock->acquire('k')], [undef, 'Redis lock command returned no result'], 'an empty list';
    is scalar @calls, 4, 'no call was tried again';
    for my $reply (1, 0, 'OK', [], {}, '', 'é鎖') {
        my $fresh = $class->new(redis => Mock->new);
        $answer = sub { $reply };
        is_deeply [$fresh->acquire('k')], [undef, "Redis lock failed: out-of-step reply: it is not this call's"],
            "a reply must echo: $reply does not";
        @calls = ();
        is_deeply [$fresh->acquire('k')], [undef, 'Redis lock failed: out-of-step reply: this client is not used any more'],
            '... and the client is dropped';
        is scalar @calls, 0, '... whole';
    }
    $lock->redis(Mock->new);
    $answer = sub { my $number = $_[-1]; return "$number:0" };
    ok +($lock->acquire('k'))[0], 'another client may be given';
    $answer = sub { my $number = $_[-1]; return "$number:5000" };
    is_deeply [$lock->acquire('k')], [undef, undef], 'busy';
};

done_testing;
