#!/usr/bin/perl
# Pages that are slow to build, behind a cache.
#
#   REDIS_URL=redis://127.0.0.1 CACHE_DIR=/tmp/pages perl app.pl prefork -w 4
#   REDIS_URL=redis://127.0.0.1 CACHE_DIR=/tmp/pages hypnotoad app.pl
use Mojolicious::Lite -signatures;
use lib app->home->child('lib')->to_string;
use CHI;
use Mojolicious::Plugin::Buffer::Lock::Buflock;
use Time::HiRes qw(sleep);

app->config(hypnotoad => {
    listen   => [$ENV{LISTEN} // 'http://127.0.0.1:8080'],
    workers  => 4,
    pid_file => "$ENV{CACHE_DIR}/hypnotoad.pid",
});
app->log->path($ENV{LOG}) if $ENV{LOG};

plugin PageCache => {
    cache      => CHI->new(driver => 'File', root_dir => "$ENV{CACHE_DIR}/pages"),
    cache_lock => Mojolicious::Plugin::Buffer::Lock::Buflock->new(
        redis     => $ENV{REDIS_URL},
        namespace => 'mojo-cache:',
        ttl       => 30,
    ),
};

get '/page/:name' => sub ($c) {
    $c->cached(sub ($c) {
        sleep 0.3;    # the slow part
        my $page = $c->param('name');
        open my $builds, '>>', "$ENV{CACHE_DIR}/builds" or die "builds: $!";
        syswrite $builds, "$page\n";
        return "The page $page.\n";
    });
};

app->start;
