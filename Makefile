# buflock. The targets that matter: demo, test, check, bench, lib, install; .ci/run is check and test.

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
SONAME  := libbuflock.so.0

DIST  := target/dist/release
HOOKS := target/hooks/release
C     := target/c

CFLAGS   ?= -O2 -g
WARNINGS := -Wall -Wextra -Wpedantic -Werror
# What a program needs to link the static library.
STATIC_LIBS := -lpthread -ldl -lgcc_s

# Debian packages that make what: cc for all of it, the rest only for tests.
PACKAGES := gcc:gcc g++:g++ valgrind:valgrind faketime:faketime luajit:luajit2 pkg-config:pkg-config unshare:util-linux
MISSING   = $(foreach p,$(PACKAGES),$(if $(shell command -v $(firstword $(subst :, ,$(p)))),,$(lastword $(subst :, ,$(p)))))

.PHONY: all lib hooks demo test check bench install deps clean

all: lib

# Installs what is missing, as root; otherwise says what to do. Tests that need a missing tool are skipped with the
# reason, or fail where CI=true.
deps:
	@missing="$(strip $(MISSING))"; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $$missing"; \
	  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$missing >/dev/null; \
	else echo "missing, install with: apt-get install $$missing"; fi

# The libraries that are shipped and measured. They come from here alone: a plain cargo build makes a library too, but
# without link-time optimization and soname.
lib:
	@$(CARGO) rustc -q --release --lib --crate-type cdylib,staticlib --target-dir target/dist -- -C link-arg=-Wl,-soname,$(SONAME)
	@ln -sf libbuflock.so $(DIST)/$(SONAME)

# The same with test hooks, never installed.
hooks:
	@RUSTFLAGS="--cfg buflock_test" $(CARGO) rustc -q --release --lib --crate-type cdylib --target-dir target/hooks -- -C link-arg=-Wl,-soname,$(SONAME)
	@ln -sf libbuflock.so $(HOOKS)/$(SONAME)

bench: lib
	@$(CARGO) bench -q --bench bench

clean:
	$(CARGO) clean
