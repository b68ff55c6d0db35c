package Mojolicious::Plugin::PageCache;
use Mojo::Base 'Mojolicious::Plugin', -signatures;
use Mojo::IOLoop;
use Mojo::Util qw(steady_time);

# A page cache in front of which one worker builds what is missing, and the others wait for it.
#
#   cache               get and set, as CHI has them; shared by all workers
#   cache_lock          acquire($key): (guard, undef) yours, (undef, undef) another's, (undef, $error);
#                       release($guard): (1, undef) or (0, $error)
#   cache_lock_timeout  how long to wait for another's build before building alone, in seconds
#   expires             how long a page is good, in seconds
use constant POLL     => 0.05;
use constant SAY_EACH => 60;

has [qw(app cache lock)];
has timeout => 5;
has expires => 60;

sub register ($self, $app, $config) {
    $self->app($app)->cache($config->{cache})->lock($config->{cache_lock});
    $self->timeout($config->{cache_lock_timeout}) if $config->{cache_lock_timeout};
    $self->expires($config->{expires})            if $config->{expires};
    $app->helper(cached => sub ($c, $build) { $self->serve($c->render_later, $c->tx, $build, steady_time + $self->timeout) });
    return;
}

# Renders what the code builds, or what it once built.
sub serve ($self, $c, $tx, $build, $until) {
    return if $tx->is_finished;    # the client has gone
    my $key  = $c->req->url->path_query;
    my $page = $self->cache->get($key);
    return $c->render(text => $page) if defined $page;
    my ($guard, $error) = $self->lock->acquire($key);
    $self->complain('no lock, so each worker builds' => $error) if defined $error;
    return Mojo::IOLoop->timer(POLL, sub { $self->serve($c, $tx, $build, $until) })
        if !$guard && !defined $error && steady_time < $until;
    my $built = eval { $page = $self->build($c, $key, $build); 1 };
    my $died  = $@;
    if ($guard) {
        my (undef, $why) = $self->lock->release($guard);
        $self->complain('a lock was not released' => $why) if defined $why;
    }
    return $built ? $c->render(text => $page) : $c->reply->exception($died);
}

sub build ($self, $c, $key, $build) {
    my $page = $self->cache->get($key);    # another may have built it meanwhile
    return $page if defined $page;
    $page = $build->($c);
    $self->cache->set($key, $page, { expires_in => $self->expires });
    return $page;
}

# What goes wrong for all pages at once is said once in a minute.
sub complain ($self, $what, $error) {
    my $said = $self->{said}{$what} //= { next => 0, count => 0 };
    $said->{count}++;
    return if steady_time < $said->{next};
    $self->app->log->error("$what: $error" . ($said->{count} > 1 ? " ($said->{count} times)" : ''));
    @{$said}{qw(next count)} = (steady_time + SAY_EACH, 0);
    return;
}

1;
