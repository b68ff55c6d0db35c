# A cache in front of which only one builds.
use strict;
use warnings;
use lib 't/lib';
use Buflock;
use Test::Buflock qw(in_child shm_url sleep time);
use Test::More;

my $lock = Buflock->new(my $url = shm_url(), on_notice => sub { });
my (%cache, @asked);
my @cache = (
    get   => sub { push @asked, 'get'; $cache{ $_[0] } },
    set   => sub { my ($key, $value, $guard) = @_; push @asked, 'set'; $cache{$key} = $value; $guard->isa('Buflock::Guard') or die },
    build => sub { push @asked, 'build'; "page of $_[0]" },
);

is_deeply [$lock->fetch('a', @cache)], ['page of a', undef], 'a miss';
is "@asked", 'get get build set', '... looks twice, builds, keeps';
@asked = ();
is scalar $lock->fetch('a', @cache), 'page of a', 'a hit';
is "@asked", 'get', '... only looks';
is $lock->inspect('a'), undef, 'the lock is free';

{
    my $guard = Buflock->new($url, on_notice => sub { })->acquire('b', ttl => 5);
    my $begin = time;
    is_deeply [$lock->fetch('b', @cache)], [undef, undef], 'another builds';
    is_deeply [$lock->fetch('b', @cache, stale => sub { "old $_[0]" }, wait => 5)], ['old b', undef], '... stale is taken at once';
    ok time - $begin < 0.1, '... all without waiting';
    is_deeply [$lock->fetch('b', @cache, stale => sub { undef }, wait => 0.1)], [undef, undef], '... waits where nothing is stale';
    ok time - $begin >= 0.1, '... as long as it was told';
}
{
    my $looks = 0;
    my $guard = Buflock->new($url, on_notice => sub { })->acquire('c', ttl => 0.1);
    is_deeply [$lock->fetch('c', @cache, get => sub { $looks++ ? 'theirs' : undef }, wait => 5)], ['theirs', undef],
        'what another has built';
}
{
    my $begin = time;
    my $ok = eval { $lock->fetch('d', @cache, build => sub { die "no database\n" }, cool => 0.3); 1 };
    is $@, "no database\n", 'a build that dies goes on dying';
    is_deeply [$lock->fetch('d', @cache)], [undef, undef], '... and cools down';
    is_deeply [$lock->fetch('d', @cache, wait => 5)], ['page of d', undef], '... before the next try';
    my $took = time - $begin;
    ok $took >= 0.3 && $took < 0.6, '... as long as told';
    is $lock->fetch('e', @cache, build => sub { }, cool => 5), undef, 'one that builds nothing';
    ok $lock->inspect('e'), '... cools down too';
    is eval { $lock->fetch('f', @cache, build => sub { die "no\n" }); 1 }, undef, 'without cooling';
    is $lock->inspect('f'), undef, '... it is free at once';
    is eval { $lock->fetch('f', @cache, set => sub { die "full\n" }); 1 }, undef, 'a set that dies';
    is $@, "full\n", '... goes on dying';
    is $lock->inspect('f'), undef, '... and leaves nothing held';
}
for my $missing (qw(get build)) {
    my %cache = @cache;
    delete $cache{$missing};
    ok !eval { $lock->fetch('g', %cache); 1 }, "without $missing";
    like $@, qr/\Afetch needs $missing, a code reference at \Q$0\E/, '... it dies';
}

# Processes that miss the same page at the same moment.
my $dir = File::Temp->newdir;
my @children = map {
    in_child(sub {
        my $own  = Buflock->new($url, on_notice => sub { });
        my $page = $own->fetch('page', wait => 10,
            get   => sub { -e "$dir/page" ? 'page' : undef },
            build => sub { sleep 0.3; open my $log, '>>', "$dir/builds" or die; syswrite $log, "x"; 'page' },
            set   => sub { open my $file, '>', "$dir/page" or die },
        );
        return defined $page && $page eq 'page' ? 0 : 1;
    })
} 1 .. 8;
my $failed = grep { waitpid $_, 0; $? } @children;
is $failed, 0, '8 processes have the page';
is -s "$dir/builds", 1, '... which was built once';

done_testing;
