package Buflock::FFI;
use strict;
use warnings;
use 5.020;
use Carp qw(croak);
use FFI::Platypus 2.00;
use FFI::Platypus::Buffer qw(scalar_to_pointer);
use File::Spec;

our $VERSION = '0.001000';

use constant { OK => 0, BUSY => 1, INTERRUPTED => 4, ARGUMENT => -1 };
use constant { TOKEN => 64, STEP => 64, SLICE_MS => 50 };
use constant INFO => 'L4 Q';

# The library: the one that BUFLOCK_LIB names, the one that was installed with this module, the one that it was made
# with, or any.
sub _library {
    return $ENV{BUFLOCK_LIB} if $ENV{BUFLOCK_LIB};
    for my $dir (map { File::Spec->catdir($_, qw(auto Buflock)) } grep { !ref } @INC) {
        my $own = File::Spec->catfile($dir, 'libbuflock.so');
        return $own if -f $own;
        open my $file, '<', File::Spec->catfile($dir, 'library') or next;
        chomp(my $library = readline $file // '');
        return $library if $library ne '';
    }
    return 'libbuflock.so.0';
}

my $ffi = FFI::Platypus->new(api => 2, lib => [ _library() ]);
my %FUNCTION = (
    abi              => [ [] => 'int' ],
    version          => [ [] => 'string' ],
    status_name      => [ ['int'] => 'string' ],
    last_error       => [ [] => 'string' ],
    config_new       => [ [] => 'opaque' ],
    config_set       => [ [qw(opaque string string)] => 'int' ],
    config_free      => [ ['opaque'] => 'void' ],
    new              => [ [qw(string opaque opaque*)] => 'int' ],
    free             => [ ['opaque'] => 'void' ],
    release          => [ [qw(opaque string size_t string)] => 'int' ],
    drop             => [ [qw(opaque string size_t string)] => 'int' ],
    inspect          => [ [qw(opaque string size_t opaque opaque size_t)] => 'int' ],
    break            => [ [qw(opaque string size_t)] => 'int' ],
    stats            => [ [qw(opaque opaque size_t size_t*)] => 'int' ],
    op_acquire       => [ [qw(opaque string size_t uint32 uint32 opaque*)] => 'int' ],
    op_extend        => [ [qw(opaque string size_t string uint32 opaque*)] => 'int' ],
    op_release       => [ [qw(opaque string size_t string opaque*)] => 'int' ],
    op_await         => [ [qw(opaque string size_t uint32 opaque*)] => 'int' ],
    op_next          => [ [qw(opaque opaque)] => 'int' ],
    op_connected     => [ [qw(opaque int)] => 'int' ],
    op_feed          => [ [qw(opaque string size_t)] => 'int' ],
    op_fail          => [ [qw(opaque string)] => 'int' ],
    op_argument      => [ [qw(opaque uint32 opaque* size_t*)] => 'int' ],
    op_reply         => [ [qw(opaque int sint64 string size_t)] => 'int' ],
    op_cancel        => [ ['opaque'] => 'int' ],
    op_run           => [ [qw(opaque uint32)] => 'int' ],
    op_finish        => [ [qw(opaque opaque opaque)] => 'int' ],
    op_error         => [ ['opaque'] => 'string' ],
    op_free          => [ ['opaque'] => 'void' ],
    bell_fd          => [ [qw(opaque int*)] => 'int' ],
    bell_read        => [ [qw(opaque opaque size_t size_t*)] => 'int' ],
);
$ffi->attach([ "buflock_$_" => "_$_" ] => @{ $FUNCTION{$_} }) for keys %FUNCTION;

sub abi         { return _abi() }
sub version     { return _version() }
sub status_name { return _status_name($_[0]) }

# Memory that C may write to: made anew, for Perl shares the bytes of constants.
sub _room {
    my ($size) = @_;
    return "\0" x $size;
}

sub _answer {
    my ($status, @more) = @_;
    return $status < OK ? ($status, _last_error()) : ($status, @more);
}

sub open {    ## no critic (ProhibitBuiltinHomonyms)
    my ($class, $url, @options) = @_;
    my $config = _config_new();
    my $status = OK;
    while ($status == OK && @options) {
        $status = _config_set($config, splice @options, 0, 2);
    }
    my $lock;
    $status = _new($url, $config, \$lock) if $status == OK;
    my @answer = _answer($status);
    _config_free($config);
    return @answer if $status != OK;
    return (OK, bless \$lock, $class);
}

sub acquire {
    my ($self, $key, $ttl, $wait) = @_;
    my ($status, $op) = $self->op_acquire($key, $ttl, $wait);
    return $status == OK ? $op->_to_the_end($_[4]) : ($status, $op);
}

sub extend {
    my ($self, @arguments) = @_;
    my ($status, $op) = $self->op_extend(@arguments);
    return $status == OK ? $op->_to_the_end : ($status, $op);
}

sub release {
    my ($self, @arguments) = @_;
    my ($status, $op) = $self->op_release(@arguments);
    return $status == OK ? $op->_to_the_end : ($status, $op);
}

sub await {
    my ($self, @arguments) = @_;
    my ($status, $op) = $self->op_await(@arguments);
    return $status == OK ? $op->_to_the_end : ($status, $op);
}

sub release_now {
    my ($self, $key, $token) = @_;
    return _answer(_release($$self, $key, length $key, $token));
}

sub drop {
    my ($self, $key, $token) = @_;
    return _answer(_drop($$self, $key, length $key, $token));
}

sub inspect {
    my ($self, $key) = @_;
    my ($info, $holder) = (pack(INFO, 24, 0, 0, 0, 0), _room(128));
    my $status = _inspect($$self, $key, length $key, scalar_to_pointer($info), scalar_to_pointer($holder), 128);
    my (undef, @info) = unpack INFO, $info;
    return _answer($status, @info, $status == BUSY ? unpack 'Z*', $holder : ());
}

sub break {
    my ($self, $key) = @_;
    return _answer(_break($$self, $key, length $key));
}

sub stats {
    my ($self) = @_;
    my ($status, $size) = (ARGUMENT, 4_095);
    my $json;
    for (1 .. 3) {
        my $room = $size + 1;
        $json   = _room($room);
        $status = _stats($$self, scalar_to_pointer($json), $room, \$size);
        last if $status != ARGUMENT;
    }
    return _answer($status, substr $json, 0, $size);
}

sub _op {
    my ($status, $op) = @_;
    return $status == OK ? (OK, bless \$op, 'Buflock::FFI::Op') : _answer($status);
}

sub op_acquire {
    my ($self, $key, $ttl, $wait) = @_;
    my $op;
    return _op(_op_acquire($$self, $key, length $key, $ttl, $wait, \$op), $op);
}

sub op_extend {
    my ($self, $key, $token, $ttl) = @_;
    my $op;
    return _op(_op_extend($$self, $key, length $key, $token, $ttl, \$op), $op);
}

sub op_release {
    my ($self, $key, $token) = @_;
    my $op;
    return _op(_op_release($$self, $key, length $key, $token, \$op), $op);
}

sub op_await {
    my ($self, $key, $wait) = @_;
    my $op;
    return _op(_op_await($$self, $key, length $key, $wait, \$op), $op);
}

sub bell_fd {
    my ($self) = @_;
    my $fd;
    return _answer(_bell_fd($$self, \$fd), $fd);
}

sub bell_read {
    my ($self) = @_;
    my ($ids, $count) = (_room(4 * 64), 0);
    my $status = _bell_read($$self, scalar_to_pointer($ids), 64, \$count);
    return _answer($status, unpack "L$count", $ids);
}

sub DESTROY {
    my ($self) = @_;
    return if ${^GLOBAL_PHASE} eq 'DESTRUCT';
    _free($$self);
    return;
}

sub CLONE_SKIP { return 1 }

package Buflock::FFI::Op;    ## no critic (ProhibitMultiplePackages)

BEGIN { *_room = \&Buflock::FFI::_room }
use FFI::Platypus::Buffer qw(scalar_to_pointer);
use constant { OK => 0, BUSY => 1, INTERRUPTED => 4 };

sub _answer {
    my ($self, $status, @more) = @_;
    return $status < OK ? ($status, Buflock::FFI::_op_error($$self)) : ($status, @more);
}

# Between slices signal handlers run, and may die: then the op is freed, as it goes out of scope. With a place for the
# token what finish answers, else only the status.
sub _to_the_end {
    my ($self) = @_;
    my $status;
    1 while ($status = Buflock::FFI::_op_run($$self, Buflock::FFI::SLICE_MS)) == INTERRUPTED;
    return $self->finish($_[1]) if $status == OK && @_ > 1;
    $status = Buflock::FFI::_op_finish($$self, undef, undef) if $status == OK;
    return $self->_answer($status);
}

sub run {
    my ($self, $slice) = @_;
    return $self->_answer(Buflock::FFI::_op_run($$self, $slice));
}

sub next {    ## no critic (ProhibitBuiltinHomonyms)
    my ($self) = @_;
    my $step = pack 'L x60', Buflock::FFI::STEP;
    my $status = Buflock::FFI::_op_next($$self, scalar_to_pointer($step));
    return $self->_answer($status) if $status != OK;
    my (undef, $kind, $ms, $id, $keep, $tls, $port, $count, $host, $pool, $data, $size) = unpack 'L l L L l l L L p p J J',
        $step;
    return (OK, $kind, $ms, $id, $keep, $tls, $port, $count, $host, $pool, $data ? _bytes_at($data, $size) : undef);
}

sub _bytes_at {
    my ($pointer, $size) = @_;
    return $size ? unpack "P$size", pack 'J', $pointer : '';
}

sub connected {
    my ($self, $fresh) = @_;
    return $self->_answer(Buflock::FFI::_op_connected($$self, $fresh));
}

sub feed {
    my ($self, $data) = @_;
    return $self->_answer(Buflock::FFI::_op_feed($$self, $data, length $data));
}

sub fail {
    my ($self, $why) = @_;
    return $self->_answer(Buflock::FFI::_op_fail($$self, $why));
}

sub command {
    my ($self) = @_;
    my ($status, @more) = $self->next;
    return ($status, @more) if $status != OK;
    my ($data, $size, @command);
    push @command, _bytes_at($data, $size)
        while Buflock::FFI::_op_argument($$self, scalar @command, \$data, \$size) == OK;
    return (OK, @command);
}

sub reply {
    my ($self, $kind, $number, $text) = @_;
    return $self->_answer(Buflock::FFI::_op_reply($$self, $kind, $number, $text, length $text));
}

sub cancel {
    my ($self) = @_;
    return $self->_answer(Buflock::FFI::_op_cancel($$self));
}

# The token is written by C to where the caller wants it, so that it is there as soon as the lock is held.
sub finish {
    my ($self) = @_;
    my $info = pack Buflock::FFI::INFO, 24, 0, 0, 0, 0;
    $_[1] = _room(Buflock::FFI::TOKEN);
    my $status = Buflock::FFI::_op_finish($$self, scalar_to_pointer($_[1]), scalar_to_pointer($info));
    $_[1] = $status == OK ? unpack 'Z*', $_[1] : '';
    my (undef, @info) = unpack Buflock::FFI::INFO, $info;
    return $self->_answer($status, $status == OK || $status == BUSY ? @info : ());
}

sub DESTROY {
    my ($self) = @_;
    return if ${^GLOBAL_PHASE} eq 'DESTRUCT';
    Buflock::FFI::_op_free($$self);
    return;
}

sub CLONE_SKIP { return 1 }

1;

__END__

=encoding UTF-8

=head1 NAME

Buflock::FFI - libbuflock for Buflock, by FFI::Platypus

=head1 SYNOPSIS

    BUFLOCK_BACKEND=ffi perl program          # for all of a program
    my $lock = Buflock->new($url, backend => 'ffi');    # for one

=head1 DESCRIPTION

The C API as methods, for L<Buflock>; not to be used by itself. What C<Buflock::XS> does by compiled code, this does by
L<FFI::Platypus>, and a bit slower. The library is the one that the environment variable C<BUFLOCK_LIB> names, or the one
that was installed with this module, or that it was made with, or the system's F<libbuflock.so.0>.

Each method answers a list: the status; then, below 0, the text of the failure, and else what is said here. Keys are bytes.
An info is what is left of a lease in ms, how long was waited in ms, the holder's process id, and the fence.

=head1 METHODS

They have no other purpose, side effects or messages than the C functions of their names, which F<buflock.h> describes.

=over

=item open(URL, OPTION, VALUE...)

The lock service, an object.

=item acquire(KEY, TTL_MS, WAIT_MS, TOKEN)

An info. TOKEN is written to. Between slices of 50 ms of this and the next three signal handlers run.

=item extend(KEY, TOKEN, TTL_MS)

=item release(KEY, TOKEN)

=item await(KEY, WAIT_MS)

=item release_now(KEY, TOKEN)

As release, without slices.

=item drop(KEY, TOKEN)

=item inspect(KEY)

An info, and the holder as text where the status is 1.

=item break(KEY)

=item stats

JSON.

=item op_acquire(KEY, TTL_MS, WAIT_MS), op_extend(KEY, TOKEN, TTL_MS), op_release(KEY, TOKEN), op_await(KEY, WAIT_MS)

An op, an object with the methods below.

=item op_acquire

=item op_extend

=item op_release

=item op_await

=item bell_fd

A file descriptor.

=item bell_read

Ids.

=item abi

=item version

=item status_name(STATUS)

Functions.

=back

Of an op:

=over

=item next

kind, ms, id, keep, tls, port, count, host, pool, data.

=item connected(FRESH), feed(DATA), fail(WHY), reply(KIND, NUMBER, TEXT), cancel, run(SLICE_MS)

=item arguments

Those of the command that the caller's client is to carry, and no status before them.

=item finish(TOKEN)

An info. TOKEN is written to.

=back

=head1 LIMITATIONS

A signal handler that dies in the microseconds around a call, or at the end of a guard, may leave a lock held until its
lease ends. Compiled code has no such gap.

=head1 SEE ALSO

L<Buflock>

=cut
