# Calls inside a running event loop.
use strict;
use warnings;
use lib 't/lib';
use Test::More;

BEGIN { eval { require Mojo::IOLoop; 1 } or plan skip_all => 'no Mojolicious (package libmojolicious-perl)' }
use Buflock;
use Test::Buflock qw(redis_server shm_url time);

my $server = redis_server(optional => 1);
my @notices;

sub in_loop {
    my ($code) = @_;
    Mojo::IOLoop->next_tick(sub { eval { $code->(); 1 } or fail $@; Mojo::IOLoop->stop });
    Mojo::IOLoop->start;
    return;
}

for my $url (shm_url(), $server ? $server->url : ()) {
    my ($lock, $other) = map { Buflock->new($url, on_notice => sub { push @notices, @_ }) } 1, 2;
    my $own   = $lock->acquire('own');
    my $held  = $other->acquire('held');
    in_loop(sub {
        my $begin = time;
        ok !$lock->acquire('own', wait => 5), 'a lock of this process is busy';
        is_deeply [$lock->await('own', wait => 5)], [0, undef], '... so it is for await';
        ok time - $begin < 0.2, '... at once';
        ok !$lock->acquire('held', wait => 0.1), 'that of another is waited for';
        ok time - $begin >= 0.1, '... as long as told';
        { my $guard = $lock->acquire('scope'); ok $guard, 'a guard' }
        is $lock->inspect('scope'), undef, '... that ends is released by the next call at the latest';
    });
}
for my $url (shm_url(), $server ? $server->url : ()) {
    my $status = system $^X, (map { "-I$_" } @INC), '-MBuflock', '-MMojo::IOLoop', '-e',
        "my \$lock = Buflock->new('$url', on_notice => sub { });
        Mojo::IOLoop->next_tick(sub { our \$guard = \$lock->acquire('end'); exit 3 }); Mojo::IOLoop->start";
    is $status >> 8, 3, 'a program that ends in the loop';
    is(Buflock->new($url, on_notice => sub { })->inspect('end'), undef, '... leaves nothing held');
}
is scalar(grep { $_ eq 'a wait blocks the running Mojo::IOLoop' } @notices), 1, 'a wait that blocks the loop is told, once';

done_testing;
