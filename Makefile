# buflock. What matters: demo, test, check, bench, lib, install. .ci/run is check and test.

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=
URL     ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
SONAME  := libbuflock.so.0

# TLS=1: rediss:// too.
FEATURES := $(if $(TLS),--features tls)

DIST  := target/dist/release
HOOKS := target/hooks/release

CC     ?= cc
CFLAGS ?= -O2 -g
STRICT := -Wall -Wextra -Wpedantic -Werror

# command:Debian package. gcc is needed for everything in C, the others only by tests.
TOOLS   := gcc:gcc g++:g++ nm:binutils valgrind:valgrind faketime:faketime luajit:luajit2 pkg-config:pkg-config \
           unshare:util-linux mount:mount redis-server:redis-server perl:perl openssl:openssl nginx:nginx-light \
           luacheck:lua-check
# The same of files: never the package luajit, which takes nginx's Lua module away.
FILES   := /usr/lib/nginx/modules/ngx_http_lua_module.so=libnginx-mod-http-lua \
           /usr/share/lua/5.1/resty/core.lua=lua-resty-core
# The same of Perl modules: module=package.
MODULES := Redis=libredis-perl Redis::Fast=libredis-fast-perl Mojolicious=libmojolicious-perl \
           FFI::Platypus=libffi-platypus-perl Test::LeakTrace=libtest-leaktrace-perl Test::Pod=libtest-pod-perl \
           Test::Pod::Coverage=libtest-pod-coverage-perl Perl::Critic=libperl-critic-perl ExtUtils::MakeMaker=perl \
           CHI=libchi-perl IO::Socket::SSL=libio-socket-ssl-perl
MISSING  = $(foreach t,$(TOOLS),$(if $(shell command -v $(firstword $(subst :, ,$(t)))),,$(lastword $(subst :, ,$(t))))) \
           $(shell perl -e 'for (@ARGV) { ($$file, $$package) = split /=/; $$file =~ s{::}{/}g; \
             print "$$package " if !grep { -f "$$_/$$file.pm" } @INC }' $(MODULES)) \
           $(foreach f,$(FILES),$(if $(wildcard $(firstword $(subst =, ,$(f)))),,$(lastword $(subst =, ,$(f)))))

.PHONY: all deps lib hooks demo demo-redis demo-nginx demo-perl demo-all test test-rust test-tls test-c test-model \
        test-loom test-torture test-chaos test-mutants test-servers test-cdef test-install test-perl test-lua check bench \
        bench-nginx bench-peers model loom torture chaos install clean

all: lib

# Installs what is missing, as root; otherwise says the line that does. A test that misses its tool is skipped with the
# reason; with CI=true it fails. RUNLEVEL=1: no daemon is started by a package.
deps:
	@missing="$(strip $(MISSING))"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $$missing"; \
	  apt-get -qq update && \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing >/dev/null </dev/null; \
	else echo "missing: apt-get install $$missing"; fi

# The libraries that are shipped and measured come from here alone. A plain cargo build makes a library too, but without
# link-time optimization (cargo drops that when it makes an rlib beside) and without soname.
lib:
	@$(CARGO) rustc -q --release --lib $(FEATURES) --crate-type cdylib,staticlib --target-dir target/dist -- \
	  -C link-arg=-Wl,-soname,$(SONAME)
	@ln -sf libbuflock.so $(DIST)/$(SONAME)

# The same with test hooks. Never installed.
hooks:
	@RUSTFLAGS="--cfg buflock_test" $(CARGO) rustc -q --release --lib --crate-type cdylib --target-dir target/hooks -- \
	  -C link-arg=-Wl,-soname,$(SONAME)
	@ln -sf libbuflock.so $(HOOKS)/$(SONAME)

# Several processes miss the same cache entry at once. URL=... to try another lock service.
demo: target/c/stampede
	@$< $(URL)

# The same over a Redis server that is there for this only.
demo-redis: target/c/stampede
	@examples/with-redis $< {}

# The same in nginx: two workers under load, with the interface of lua-resty-lock.
demo-nginx: lib
	@examples/nginx/stampede

# A Mojolicious page cache with four workers, over a Redis server that hangs, dies and comes back. SERVER=hypnotoad.
demo-perl: lib
	@tests/perl build
	@PERL5LIB=target/perl/blib/lib:target/perl/blib/arch examples/mojo-cache/demo $(SERVER)

# nginx workers, Perl processes and C programs miss the same page: one builds, in shared memory and over Redis.
demo-all: target/c/page
	@tests/perl build
	@examples/all/stampede target/c/page perl -Mblib=target/perl

target/c/stampede: examples/c/stampede.c
target/c/page: examples/all/page.c
target/c/stampede target/c/page: lib
	@mkdir -p target/c
	@$(CC) $(CFLAGS) -std=c11 $(STRICT) -Iinclude $(filter %.c,$^) -o $@ -L$(DIST) -lbuflock \
	  -Wl,-rpath,'$$ORIGIN/../dist/release'

test: deps test-rust test-tls test-model test-loom test-torture test-mutants test-chaos test-c test-cdef test-install \
      test-perl test-lua

test-rust:
	$(CARGO) test -q $(FEATURES)

# With Redis servers of other versions, which come from the net. Not a part of test. WORDS='5.0 valkey' for some of them.
test-servers:
	@tests/servers $(WORDS)

# With TLS=1 they are among the others.
test-tls:
	$(if $(TLS),,$(CARGO) test -q --features tls --test redis_tls)

# Every state of a small table, and the bugs that must be found there. FULL=1 for the larger tables, some minutes.
model test-model:
	$(CARGO) test -q --release --test model -- $(if $(FULL),full)

# Every execution that the C11 memory model allows.
loom test-loom:
	RUSTFLAGS="--cfg buflock_loom" $(CARGO) test -q --release --test loom --target-dir target/loom

# Processes that are killed and stopped inside every step. SECONDS=3600 for a night.
SECONDS ?= 30
PLANTED := --test redis_machine --test redis_server --test redis_processes
TORTURE := RUSTFLAGS="--cfg buflock_test" $(CARGO) test -q --release --test torture --target-dir target/hooks --
torture:
	$(TORTURE) $(SECONDS)

test-torture:
	$(TORTURE) mutants
	$(TORTURE) $(SECONDS)

# Bugs planted in the Redis backend: each must be found by its test.
test-mutants:
	RUSTFLAGS="--cfg buflock_test" $(CARGO) test -q --release $(PLANTED) --target-dir target/hooks -- planted

# Processes and a proxy before a real Redis server. RESTARTS=1: the server is killed, too.
CHAOS := $(CARGO) test -q --test redis_chaos --
chaos:
	$(CHAOS) $(SECONDS) $(if $(RESTARTS),restarts) $(SEED)

test-chaos:
	$(CHAOS) 15

test-c: lib hooks
	@tests/c/run

# The cdef is what LuaJIT understands.
test-cdef: lib
	@if command -v luajit >/dev/null; then dir=$$(mktemp -d /dev/shm/buflock-cdef.XXXXXX) && \
	  luajit tests/cdef.lua $(DIST)/libbuflock.so "$$dir"; status=$$?; rm -r "$$dir"; exit $$status; \
	else echo "skipped: no luajit (package luajit2)"; [ "$(CI)" != true ]; fi

# What is installed is enough to build a program with.
test-install: lib
	@tests/install

# The Perl module, by both of its backends, and as it is installed.
test-perl: lib
	@tests/perl

# In an nginx of its own for each block. LONG=1 for ten times as many cycles.
test-lua: lib
	@cd bindings/lua && $(if $(LONG),BUFLOCK_LONG=1) prove -It/lib t

check:
	$(CARGO) fmt --check
	$(CARGO) clippy -q --all-targets -- -D warnings
	$(CARGO) clippy -q --features tls --all-targets -- -D warnings
	$(CARGO) clippy -q --test model --test redis_chaos -- -D warnings
	RUSTFLAGS="--cfg buflock_test" $(CARGO) clippy -q --lib --test torture $(PLANTED) --target-dir target/hooks -- -D warnings
	RUSTFLAGS="--cfg buflock_loom" $(CARGO) clippy -q --test loom --target-dir target/loom -- -D warnings
	@! $(CARGO) tree -e normal --prefix none | grep -E '^(rustls|ring) ' || { echo "TLS in a library without it"; exit 1; }
	@! $(CARGO) tree --features tls -e normal --prefix none | grep '^aws-lc' || { echo "a second provider of TLS"; exit 1; }
	@$(MAKE) --no-print-directory deps lib
	@tests/c/header
	@tests/c/exports
	@if command -v luacheck >/dev/null; then luacheck -q --config bindings/lua/.luacheckrc bindings/lua examples/nginx examples/all; \
	else echo "skipped: no luacheck (package lua-check)"; fi
	@if perl -MPerl::Critic -e 1 2>/dev/null; then perlcritic --gentle --quiet bindings/perl/lib bindings/perl/Makefile.PL; \
	else echo "skipped: no perlcritic (package libperl-critic-perl)"; fi
	@git diff --exit-code -- include bindings Cargo.lock || { echo "generated files are stale: commit them"; exit 1; }

# Figures, side by side in one run, into target/bench. Not a test: nothing fails. Peers that are not there are left out.
bench: lib
	@$(CARGO) bench -q --bench bench

# The same in nginx: what locks cost there, how soon they change hands, and what a stalled server holds up.
bench-nginx: lib
	@benches/nginx/bench $(ROUNDS)

# Other lock libraries for Redis, of the versions in benches/peers, into target/peers. From the net; nothing is installed
# outside, so the Perl modules and node are left to the system. One that fails does not keep the others away.
PEERS := target/peers
bench-peers:
	@mkdir -p $(PEERS)/node && cp benches/peers/node/*.js* $(PEERS)/node
	-@python3 -m venv $(PEERS)/venv && \
	  $(PEERS)/venv/bin/pip -q install --disable-pip-version-check --require-hashes -r benches/peers/requirements.txt
	-@cd $(PEERS)/node && npm ci --silent --no-audit --no-fund --ignore-scripts
	-@$(CARGO) build -q --locked --release --manifest-path benches/peers/rslock/Cargo.toml --target-dir $(PEERS)/rslock

# Installs what lib has built, and builds nothing: it may run as another user, without cargo.
LIBDIR     = $(DESTDIR)$(PREFIX)/lib
INCLUDEDIR = $(DESTDIR)$(PREFIX)/include
LUADIR     = $(DESTDIR)$(PREFIX)/share/lua/5.1
# Apart: who has it in lua_package_path gets it for lua-resty-lock.
COMPATDIR  = $(DESTDIR)$(PREFIX)/share/buflock/compat
install:
	@test -f $(DIST)/libbuflock.so || { echo "nothing is built yet: run make lib first"; exit 1; }
	install -d $(LIBDIR)/pkgconfig $(INCLUDEDIR)
	install -m 755 $(DIST)/libbuflock.so $(LIBDIR)/libbuflock.so.$(VERSION)
	ln -sf libbuflock.so.$(VERSION) $(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(LIBDIR)/libbuflock.so
	install -m 644 $(DIST)/libbuflock.a $(LIBDIR)/libbuflock.a
	install -m 644 include/buflock.h $(INCLUDEDIR)/buflock.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' buflock.pc.in > $(LIBDIR)/pkgconfig/buflock.pc
	install -d $(LUADIR)/resty/buflock $(COMPATDIR)/resty
	install -m 644 bindings/lua/lib/resty/buflock.lua $(LUADIR)/resty
	install -m 644 bindings/lua/lib/resty/buflock/*.lua $(LUADIR)/resty/buflock
	install -m 644 bindings/lua/compat/resty/lock.lua $(COMPATDIR)/resty

clean:
	$(CARGO) clean
