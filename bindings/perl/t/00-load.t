use strict;
use warnings;
use lib 't/lib';
use Test::Buflock qw(backend);
use Test::More;

for my $module (qw(Buflock Buflock::Error Buflock::Guard Buflock::Messages)) {
    require_ok $module;
}
plan skip_all => 'no FFI::Platypus (package libffi-platypus-perl)'
    if backend() eq 'ffi' && !eval { require FFI::Platypus; 1 };

my $class = Buflock::_backend(backend());
is $class->can('abi')->(), 1, 'the ABI';
like $class->can('version')->(), qr/\A[0-9]+\.[0-9]+\.[0-9]+\z/, 'the library says its version';
diag sprintf 'Buflock %s over libbuflock %s by %s', Buflock->VERSION, $class->can('version')->(), $class;

my $ok = eval { Buflock->new('shm:', backend => 'xyz'); 1 };
ok !$ok, 'another backend';
like $@, qr/\Ano backend "xyz": xs or ffi at /, '... is refused';

done_testing;
