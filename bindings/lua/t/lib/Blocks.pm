# Runs the blocks behind __DATA__ of a test, each in an nginx of its own. It knows what these tests use of the format of
# Test::Nginx::Socket; with TEST_NGINX_COMMON=1 that one runs them.
package Blocks;
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Test::More;
use Time::HiRes qw(sleep);
use Nginx;

my $workers = 1;

sub import {
    my $caller = caller;
    no strict 'refs';
    if ($ENV{TEST_NGINX_COMMON}) {
        my $lua = abs_path(dirname(__FILE__) . '/../..');
        $ENV{TEST_NGINX_LUA} //= "$lua/lib";
        $ENV{TEST_NGINX_COMPAT} //= "$lua/compat";
        $ENV{TEST_NGINX_SO} //= abs_path("$lua/../../target/dist/release");
        eval "package $caller; use Test::Nginx::Socket::Lua 'no_plan'; 1" or die $@;
        return;
    }
    *{"${caller}::run_tests"} = \&run_tests;
    *{"${caller}::workers"} = sub { $workers = shift };
}

sub blocks {
    my ($text) = @_;
    my @blocks;
    for my $part (split /^(?==== )/m, $text) {
        my ($name) = $part =~ /^=== (.*)$/m or next;
        my %section = (name => $name);
        while ($part =~ /^--- ([a-z_A-Z]+)((?: [a-z]+)*)(?::[ ]?(.*))?\n((?:(?!^---).*\n?)*)/mg) {
            my ($key, $filters, $line, $lines) = ($1, $2, $3, $4);
            $lines =~ s/\n+\z/\n/;
            my $value = defined $line ? $line : $lines;
            chomp $value if $filters =~ /chop|chomp/;
            $value = eval $value if $filters =~ /eval/;
            die "$name, $key: $@" if $@;
            $section{$key} = $value;
        }
        push @blocks, \%section;
    }
    return @blocks;
}

sub run_tests {
    my $why = Nginx::missing();
    if ($why) {
        die "$why\n" if $ENV{CI};
        plan(skip_all => $why);
    }
    local $/;
    my @blocks = blocks(scalar <main::DATA>);
    @blocks = grep { exists $_->{ONLY} } @blocks if grep { exists $_->{ONLY} } @blocks;
    my $place = Nginx::place();
    my $number = 0;
    for my $block (@blocks) {
        subtest($block->{name}, sub { run_block($block, $place, ++$number) });
    }
    done_testing();
}

sub expanded {
    my ($text, $place) = @_;
    my %value = (%ENV, TEST_NGINX_LUA => "$place/lib", TEST_NGINX_COMPAT => "$place/compat", TEST_NGINX_SO => "$place/so");
    $text =~ s/\$(TEST_NGINX_\w+)/$value{$1}/g if defined $text;
    return $text // '';
}

sub run_block {
    my ($block, $place, $number) = @_;
    my $nginx = Nginx->new(
        place => $place, prefix => "$place/nginx$number", workers => $workers, paths => '',
        main => expanded($block->{main_config}, $place), http => expanded($block->{http_config}, $place),
        server => expanded($block->{config}, $place),
    );
    $nginx->start;
    my ($method, $path, $body) = $block->{request} =~ /^\s*(\w+)\s+(\S+)\n?(.*)/s;
    my ($text, $code) = $nginx->get($path, method => $method, body => $body =~ /\S/ ? $body : '',
        timeout => $block->{timeout} // 10);
    sleep $block->{wait} if $block->{wait};
    is($code, ($block->{error_code} // 200) + 0, 'code');
    is($text, $block->{response_body}, 'body') if defined $block->{response_body};
    if (defined(my $like = $block->{response_body_like})) {
        chomp $like;
        like($text, qr/$like/sm, 'body');
    }
    my $log = Nginx::read_file($nginx->{log});
    for my $line (grep { /\S/ } split /\n/, $block->{error_log} // '') {
        ok(index($log, $line) >= 0, "log has: $line") or diag($log);
    }
    for my $line (grep { /\S/ } split /\n/, $block->{no_error_log} // '') {
        ok(index($log, $line) < 0, "log has no: $line") or diag(join "\n", grep { index($_, $line) >= 0 } split /\n/, $log);
    }
    ok($nginx->stop, 'it ends');
    my @bad = grep { /\[(?:alert|emerg)\]|signal \d+ \(core|exited on signal/ } split /\n/, Nginx::read_file($nginx->{log});
    is("@bad", '', 'no crash');
}

1;
