#!/usr/bin/perl
# A page from a cache of files that programs in several languages share.
#
#     page.pl URL DIRECTORY
#
# Each line of the input is a key; the answer is the page, in a line. What is missing one builds, the others wait.
use strict;
use warnings;
use Buflock;
use Time::HiRes qw(sleep);

my ($url, $dir) = @ARGV;
my $lock = Buflock->new($url, ttl => 10);
$| = 1;

sub cached {
    my ($key) = @_;
    open my $file, '<', "$dir/$key" or return;
    return scalar <$file>;
}

sub build {
    my ($key) = @_;
    open my $count, '>>', "$dir/builds" or die "$dir/builds: $!";
    syswrite $count, "$key Perl\n";
    sleep 0.05;
    return "page $key\n";
}

# In one step, so that nobody sees half of it.
sub publish {
    my ($key, $page) = @_;
    open my $file, '>', "$dir/$key.$$" or die "$dir/$key.$$: $!";
    print $file $page;
    close $file and rename "$dir/$key.$$", "$dir/$key" or die "$dir/$key: $!";
}

while (my $key = <STDIN>) {
    chomp $key;
    my ($page, $error) = $lock->fetch($key, wait => 5, get => \&cached, build => \&build, set => \&publish);
    print $page // $error // 'too late', $page ? '' : "\n";
}
