# MANIFEST names what there is, and the versions agree.
use strict;
use warnings;
use ExtUtils::Manifest qw(filecheck manicheck);
use Test::More;

plan skip_all => 'not in the source tree' if !-d '../../src';
local ($ExtUtils::Manifest::Quiet, $ExtUtils::Manifest::Verbose) = (1, 0);
is_deeply [manicheck()], [], 'nothing is missing';
is_deeply [filecheck()], [], 'nothing is left out';

my %version;
for my $file (grep { /\.pm\z/ } keys %{ ExtUtils::Manifest::maniread() }) {
    next if $file !~ m{\Alib/};
    open my $module, '<', $file or die "$file: $!";
    my ($version) = map { /^our \$VERSION\s*= '([^']+)';/ ? $1 : () } readline $module;
    push @{ $version{ $version // "none in $file" } }, $file;
}
is scalar keys %version, 1, 'one version' or diag explain \%version;

open my $cargo, '<', '../../Cargo.toml' or die "Cargo.toml: $!";
my ($library) = map { /^version = "([^"]+)"/ ? $1 : () } readline $cargo;
open my $makefile, '<', 'Makefile.PL' or die "Makefile.PL: $!";
my ($wanted) = map { /^my \$version = '([^']+)'/ ? $1 : () } readline $makefile;
is $wanted, $library, "the library's version in Makefile.PL";

done_testing;
