# Guards: whose they are, and how they end.
use strict;
use warnings;
use lib 't/lib';
use Buflock;
use Test::Buflock qw(in_child redis_server shm_url sleep time warnings_of);
use Test::More;

my $server = redis_server(optional => 1);

sub guards {
    my ($name, $url) = @_;
    my $new  = sub { Buflock->new($url, on_notice => sub { }, @_) };
    my $lock = $new->();
    my $looks = $new->();
    my $held = sub { defined $looks->inspect($_[0]) };
    my $script = sub {
        my ($code) = @_;
        open my $out, '-|', $^X, (map { "-I$_" } @INC), '-MBuflock', '-e',
            "my \$lock = Buflock->new('$url', on_notice => sub { }); $code" or die "perl: $!";
        my $text = join '', readline $out;
        close $out;
        return ($? >> 8, $? & 127, $text);
    };

    subtest "$name: scopes" => sub {
        { my $guard = $lock->acquire('k'); ok $held->('k'), 'held' }
        ok !$held->('k'), 'the scope ends, and it is free';
        my $guard = $lock->acquire('k');
        is_deeply [$guard->release], [1, undef], 'release';
        is_deeply [$guard->release], [1, undef], '... again';
        is $guard->left, 0, '... nothing left';
        ok !$guard->lost, '... nothing lost';
        my $other = $new->()->acquire('k');
        undef $guard;
        ok $held->('k'), "a guard that was released does not touch the next holder's";
        is $other->key, 'k', 'key';
        like $other->token, qr/\A[0-9a-f]{32}\z/, 'token';
        like $other->fence, qr/\A[0-9]+\z/, 'fence';
        my $keeps = $other->lock;
        isa_ok $keeps, 'Buflock', 'lock';
    };

    subtest "$name: extend, keep, detach, adopt" => sub {
        my $guard = $lock->acquire('k', ttl => 0.3);
        is_deeply [$guard->extend], [1, undef], 'extend by its own lease';
        ok $guard->left > 0.2 && $guard->left <= 0.3, '...';
        is_deeply [$guard->extend(30)], [1, undef], 'extend';
        ok $guard->left > 29 && $guard->left <= 30, '...';
        my $plain = $guard->detach;
        is_deeply [sort keys %$plain], [qw(key token)], 'detach gives a plain hash';
        undef $guard;
        ok $held->('k'), '... and releases nothing any more';
        my $pid = in_child(sub {
            my $adopted = $new->()->adopt($plain);
            return 1 if defined $adopted->left || !$adopted->extend(20) || $adopted->left < 19;
            $adopted->detach;
            return 0;
        });
        waitpid $pid, 0;
        is $?, 0, 'another process adopts it';
        ok $held->('k'), '... and hands it on';
        my $adopted = $lock->adopt($plain);
        undef $adopted;
        ok !$held->('k'), 'an adopted guard releases at its end';
        $guard = $lock->acquire('k');
        is_deeply [$guard->keep(0.3)], [1, undef], 'keep';
        undef $guard;
        ok $held->('k'), '... holds on';
        sleep 0.35;
        ok !$held->('k'), '... for so long';
        $guard = $lock->acquire('k');
        $lock->break('k');
        is_deeply [map { "$_" } $guard->keep(5)], [0, 'the lease of "k" ended before its extend'], 'keep of what is lost';
        undef $guard;
        $guard = $lock->acquire('k');
        $guard->release;
        ok !eval { $guard->extend; 1 }, 'extend of what was released';
        like $@, qr/\Athis guard was released before at \Q$0\E/, '... dies';
    };

    subtest "$name: fork" => sub {
        my $guard = $lock->acquire('k');
        for my $end ('exit 0', 'undef $guard', 'POSIX::_exit(0)', 'die') {
            my $pid = fork // die;
            if (!$pid) {
                open STDERR, '>', '/dev/null';
                $end eq 'exit 0' ? do { Test::More->builder->no_ending(1); exit 0 } : $end eq 'die' ? do { Test::More->builder->no_ending(1); die "x\n" } : undef $guard;
                POSIX::_exit(0);
            }
            waitpid $pid, 0;
            ok $held->('k'), "a child's $end releases nothing";
        }
        my $pid = in_child(sub {
            return 1 if eval { $guard->release; 1 } || $@ !~ /\Athis guard belongs to process \d+: detach it there/;
            my $own = $lock->acquire('child') or return 2;
            return $lock->acquire('k') ? 3 : 0;
        });
        waitpid $pid, 0;
        is $?, 0, 'a child may lock, but not release that of another';
        $pid = in_child(sub { my $own = $lock->acquire('tokens'); $own ? 0 : 1 });
        waitpid $pid, 0;
        is_deeply [$guard->release], [1, undef], 'the parent still holds it';
    };

    subtest "$name: the end of a program" => sub {
        for my $code (
            [0, 'our $g = $lock->acquire("end")'],
            [0, 'my $g = $lock->acquire("end")'],
            [3, 'my $g = $lock->acquire("end"); exit 3'],
            [9, 'our $g = $lock->acquire("end"); $! = 9; close STDERR; die'],
            [0, 'our $g = $lock->acquire("end"); our %c; $c{g} = $g; $c{c} = \\%c; $c{l} = $lock; undef $lock'],
            [4, '$SIG{TERM} = sub { exit 4 }; our $g = $lock->acquire("end"); kill TERM => $$; sleep 5'],
            [5, 'our $g = $lock->acquire("end"); END { $? = 5 }'],
        ) {
            my ($want, $text) = @$code;
            my ($exit, $signal, $out) = $script->($text);
            is $exit, $want, "exit status of $text";
            ok !$held->('end'), '... and nothing is held';
        }
        my ($exit, $signal) = $script->('our $g = $lock->acquire("end", ttl => 0.5); kill KILL => $$; sleep 5');
        is $signal, 9, 'kill -9';
        ok $held->('end'), '... leaves it held';
        my $begin = time;
        my $guard = $lock->acquire('end', wait => 5);
        ok $guard && time - $begin < 0.8, '... until its lease ends';
    };

    subtest "$name: \$\@, \$!, \$?" => sub {
        my $guard = $lock->acquire('k');
        (local $@, local $!, local $?) = ('kept', 7, 8);
        undef $guard;
        is_deeply [$@, $! + 0, $?], ['kept', 7, 8], 'kept by the end of a guard';
        $guard = $lock->acquire('k');
        $lock->acquire('k', wait => 0.01);
        $guard->extend;
        $lock->inspect('k');
        $lock->await('k', wait => 0.01);
        $lock->with('k', sub { });
        $lock->with('other', sub { });
        $lock->stats;
        $guard->release;
        is_deeply [$@, $! + 0, $?], ['kept', 7, 8], 'kept by calls';
        my $bad = Buflock->new('redis://127.0.0.1:' . Test::Buflock::free_port());
        ($@, $!, $?) = ('kept', 7, 8);
        ok !$bad->acquire('k'), 'a failure';
        is_deeply [$@, $! + 0, $?], ['kept', 7, 8], '... keeps them too';
    };

    subtest "$name: a lease that ended, at the end of a scope" => sub {
        my $loud = Buflock->new($url, on_notice => sub { });
        my @notices;
        $loud->{on_notice} = sub { push @notices, @_ };
        { my $guard = $loud->acquire('gone', ttl => 0.02); sleep 0.05 }
        is_deeply [grep { /lease/ } @notices], ['the lease of "gone" ended before its release'], 'is said';
        is $loud->stats->{leases_lost}, 1, '... and counted';
    };
    return;
}

guards('shm', shm_url());
guards('redis', $server->url) if $server;

subtest 'threads' => sub {
    plan skip_all => 'this perl has no threads' if !eval { require Config; $Config::Config{useithreads} && require threads };
    my $lock  = Buflock->new(my $url = shm_url(), on_notice => sub { });
    my $guard = $lock->acquire('k');
    my $saw = threads->create(sub {
        my $own = Buflock->new($url, on_notice => sub { });
        return join ' ', eval { $lock->acquire('k'); 1 } // 'gone', $own->inspect('k') ? 'held' : 'free', $own->acquire('t') ? 'ok' : 'no';
    })->join;
    is $saw, 'gone held ok', 'a thread has no guards of others, and may make its own lock';
    ok $lock->inspect('k'), 'its end releases nothing';
};

done_testing;
