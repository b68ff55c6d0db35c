# Where the table is, and what happens where it cannot be. Some need root, for a mount namespace of their own.
use strict;
use warnings;
use lib 't/lib';
use Nginx;
use Test::More;

if (my $why = Nginx::missing()) {
    die "$why\n" if $ENV{CI};
    plan(skip_all => $why);
}

my $server = <<'LUA';
location = /try {
    content_by_lua_block {
        local lock = require("resty.buflock.lock"):new("locks")
        local elapsed, err, detail = lock:lock("key")
        ngx.say(elapsed or err, ": ", detail)
        lock:unlock()
    }
}
location = /wait {
    content_by_lua_block {
        local locks = require("resty.buflock.lock")
        local first, second = locks:new("locks"), locks:new("locks")
        first:lock("wait")
        ngx.thread.spawn(function() ngx.sleep(0.1) first:unlock() end)
        ngx.say(second:lock("wait"), " ", second.waited < 0.2)
    }
}
LUA
my $dict = "lua_shared_dict locks 100k;\n";

sub used {
    my @files = glob '/run/buflock/*';
    return scalar @files;
}

# As `unshare -m`, then the shell's lines, then this file with the name of a test.
my %inside = (
    closed => ['mount -t tmpfs -o mode=755 none /run; mkdir -m 700 /run/buflock', sub {
        my $nginx = Nginx->new(http => $dict, server => $server)->start;
        print scalar $nginx->get('/try');
        print -e $nginx->table ? "private\n" : "not private\n";
        print used() ? "used\n" : "not used\n";
    }],
    open => ['mount -t tmpfs -o mode=755 none /run; mkdir /run/buflock; chgrp www-data /run/buflock; chmod 3770 /run/buflock', sub {
        my $nginx = Nginx->new(http => $dict, server => $server)->start;
        print scalar $nginx->get('/try');
        print -e $nginx->table ? "private\n" : "not private\n";
        print used() ? "used\n" : "not used\n";
    }],
    missing => ['mount -t tmpfs -o mode=755 none /dev/shm', sub {
        my $nginx = Nginx->new(http => $dict, server => $server, place => Nginx::place('/tmp'))->start;
        print scalar $nginx->get('/try');
        chmod 01777, '/dev/shm';
        print scalar $nginx->get('/try');
        system 'rm', '-r', '/dev/shm/buflock-' . $nginx->uid;
        sleep 2;
        print scalar $nginx->get('/try');
        print map { "$_\n" } $nginx->errors;
    }],
    readonly => ['mount -t tmpfs -o ro none /dev/shm', sub {
        my $nginx = Nginx->new(http => $dict, server => $server, place => Nginx::place('/tmp'))->start;
        print scalar $nginx->get('/try');
        print map { "$_\n" } $nginx->errors;
    }],
    # The table is there, but the bell's socket cannot be made.
    nosocket => ['mount -t tmpfs none /dev/shm; chmod 1777 /dev/shm', sub {
        my $nginx = Nginx->new(http => $dict, server => $server, place => Nginx::place('/tmp'))->start;
        print scalar $nginx->get('/try');
        system 'mount', '-o', 'bind', '/dev/shm/buflock-' . $nginx->uid, '/dev/shm/buflock-' . $nginx->uid;
        chown 0, 0, '/dev/shm/buflock-' . $nginx->uid;
        chmod 0755, '/dev/shm/buflock-' . $nginx->uid;
        print scalar $nginx->get('/wait');
        print map { "$_\n" } $nginx->errors;
        print Nginx::read_file($nginx->{log}) =~ /\[warn\].*waiting goes by steps/ ? "said\n" : "not said\n";
    }],
);

if (@ARGV) {
    $inside{ $ARGV[0] }[1]->();
    exit;
}

sub inside {
    my ($name) = @_;
    my $command = "$inside{$name}[0]; exec $^X $0 $name";
    return scalar qx{unshare -m sh -c '$command' 2>&1 </dev/null};
}

SKIP: {
    if ($< != 0 || system('unshare -m true 2>/dev/null') != 0) {
        die "no mount namespaces\n" if $ENV{CI};
        skip 'needs root and mount namespaces', 1;
    }
    is(inside('closed'), "0: nil\nprivate\nnot used\n", '/run/buflock that is closed changes nothing');
    is(inside('open'), "0: nil\nprivate\nnot used\n", 'nor does one that is open');
    like(inside('missing'), qr{\Aunavailable: /dev/shm/buflock-\d+.*\n0: nil\n0: nil\n\z}, 'a directory that cannot be made; then it can');
    like(inside('readonly'), qr{\Aunavailable: .*(?:Read-only|No such file).*\n\z}, 'a read-only /dev/shm');
    is(inside('nosocket'), "0: nil\n0.127 true\nsaid\n", 'no socket for the bell: waiting goes by steps');
}

# Relative prefixes of two instances are two places.
{
    my ($one, $two) = map { Nginx->new(http => $dict, server => $server) } 1, 2;
    for my $nginx ($one, $two) {
        $nginx->write_config;
        system("cd $nginx->{prefix} && $Nginx::BINARY -p . -c nginx.conf") == 0 or die;
        $nginx->wait_for(sub { $nginx->workers });
        is($nginx->get('/try'), "0: nil\n", 'with a relative prefix');
    }
    my @tables = map { Nginx::tables_of($_) } $one, $two;
    is(scalar @tables, 2, 'each has a table of its own');
    $_->stop for $one, $two;
    unlink @tables;
}

# The library.
{
    my $no = Nginx->new(http => $dict, server => $server);
    unlink "$no->{place}/so/libbuflock.so";
    $no->start;
    is(($no->get('/try'))[1], 500, 'no library');
    like(Nginx::read_file($no->{log}), qr{no libbuflock.so in lua_package_cpath \(tried \Q$no->{place}\E/so/libbuflock.so.*\), and libbuflock.so.0 is not installed: run make install}, 'what was tried is said');

    my %wrong = (
        'has ABI 99 (version 9.9.9), these Lua files need ABI 1' =>
          'int buflock_abi(void) { return 99; } const char *buflock_version(void) { return "9.9.9"; }',
        'is no libbuflock' => 'int other;',
    );
    for my $words (sort keys %wrong) {
        my $nginx = Nginx->new(http => $dict, server => $server);
        open my $cc, '|-', "cc -shared -fPIC -x c - -o $nginx->{place}/so/libbuflock.so.new" or die;
        print $cc $wrong{$words};
        close $cc or die 'cc';
        rename "$nginx->{place}/so/libbuflock.so.new", "$nginx->{place}/so/libbuflock.so";
        $nginx->start;
        is(($nginx->get('/try'))[1], 500, 'a wrong library');
        like(Nginx::read_file($nginx->{log}), qr/\Q$words\E/, $words);
    }

    my $relative = Nginx->new(http => $dict, server => $server);
    $relative->{paths} = qq{lua_package_path "$relative->{place}/lib/?.lua;;"; lua_package_cpath "./?.so;so/?.so;?.so";};
    $relative->start;
    like(($relative->get('/try'))[0] . Nginx::read_file($relative->{log}), qr/tried nothing/, 'relative entries are passed over');
}

done_testing();
