# Keys are characters, or bytes.
use strict;
use warnings;
use utf8;
use lib 't/lib';
use Buflock;
use Test::Buflock qw(redis_server shm_url warnings_of);
use Test::More;

my $server = redis_server(optional => 1);

sub keys_of {
    my ($name, $url) = @_;
    my $lock  = Buflock->new($url, on_notice => sub { });
    my $bytes = Buflock->new($url, on_notice => sub { }, bytes => 1);
    subtest $name => sub {
        my $narrow = "caf\xe9";
        utf8::upgrade(my $twin = $narrow);
        utf8::downgrade($narrow);
        my $guard = $lock->acquire($narrow);
        ok !$lock->acquire($twin), 'however Perl holds it, a string is one key';
        ok utf8::is_utf8($twin) && !utf8::is_utf8($narrow), "... and the caller's strings stay as they are";
        ok !$bytes->acquire("caf\xc3\xa9"), '... in UTF-8';
        my $other = $bytes->acquire($narrow);
        ok $other, 'as bytes it is another';
        ok !$bytes->acquire($twin), '... however Perl holds it';
        ok !eval { $bytes->acquire('鎖'); 1 }, 'a wide character';
        like $@, qr/\Akey has a character above U\+00FF: .* at \Q$0\E/, '... is no byte';
        is_deeply [warnings_of(sub {
            for my $key ('', '0', '鎖 🔒', "a\0b", "\x{d800}", "\x{10ffff}", 'x' x (1024 * 1024)) {
                my $guard = $lock->acquire($key);
                ok $guard, 'a key of ' . length($key) . ' characters';
                ok !$lock->acquire($key), '... busy';
                ok $lock->inspect($key)->{left} > 50, '... seen';
                ok $guard->extend && $guard->release, '... extended and released';
            }
        })], [], 'no warnings';
        my $first  = $lock->acquire("a\0b");
        my $second = $lock->acquire("a\0c");
        ok $first && $second, 'a NUL is no end';
        my $number = $lock->acquire(42);
        ok !$lock->acquire('42'), 'a number is its text';
        { package Named; use overload '""' => sub { 'a name' }, fallback => 1 }
        my $object = $lock->acquire(bless {}, 'Named');
        ok !$lock->acquire('a name'), 'an object is its text';
        tie my $tied, 'Tied';
        { package Tied; sub TIESCALAR { bless [], shift } sub FETCH { 'tied' } }
        my $by_tied = $lock->acquire($tied);
        ok !$lock->acquire('tied'), 'a tied one is its value';
        'match me' =~ /(match)/;
        my $by_match = $lock->acquire($1);
        ok !$lock->acquire('match'), 'so is that of a match';
    };
    return;
}

keys_of('shm', shm_url());
keys_of('redis', $server->url) if $server;

subtest 'options' => sub {
    my $url = shm_url();
    my ($one, $two) = map { Buflock->new($url, namespace => $_, on_notice => sub { }) } '鎖', 'b';
    my $guard = $one->acquire('k');
    ok $two->acquire('k'), 'a namespace in any language';
    ok !$one->acquire('k'), '... is a namespace';
};

done_testing;
