# Every method is documented.
use strict;
use warnings;
use Test::More;

BEGIN {
    eval { require Test::Pod::Coverage; Test::Pod::Coverage->VERSION(1.08); require Test::Pod; 1 }
        or plan skip_all => 'no Test::Pod::Coverage and Test::Pod (packages libtest-pod-coverage-perl libtest-pod-perl)';
}

my %needs = (
    'Buflock::FFI' => 'FFI::Platypus',
    map { $_ => 'Mojolicious' } qw(Buflock::Mojo Buflock::Mojo::Driver Mojolicious::Plugin::Buffer::Lock::Buflock),
);
Test::Pod::pod_file_ok($_) for Test::Pod::all_pod_files('lib');
for my $module (Test::Pod::Coverage::all_modules('lib')) {
    SKIP: {
        skip "no $needs{$module}", 1 if $needs{$module} && !eval "require $needs{$module}; 1";
        next if $module =~ /::Manual::/;
        Test::Pod::Coverage::pod_coverage_ok($module, { also_private => [qr/\A(?:[A-Z_]+|ABI|has|import)\z/] });
    }
}

done_testing;
