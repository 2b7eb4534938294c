# The way in. Everything here is one line around a script or CMake; each target first installs what is missing (scripts/setup).

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Ninja where it is; a build folder that exists keeps what it was made with. Asked when the commands of a target begin: those of
# another target, with-%, may just have installed it.
ifeq ($(origin CMAKE_GENERATOR),undefined)
export CMAKE_GENERATOR = $(if $(shell command -v ninja 2>/dev/null),Ninja)
endif
export JOBS

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all build bench lint install uninstall sim soak coverage clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: with-build ## what Weft does, on one screen: messages, their speed, remote memory, calls, Python, a program in elements
	@scripts/demo

with-%: # what the groups of scripts/setup need, as in with-build-test
	@scripts/setup $(subst -, ,$*)

test: with-build-test ## the plain build and all of its tests but the longest, in a few minutes
	@scripts/test

test-all: with-build-test ## every test: the longest too, with sanitizers, and the fuzzers
	@scripts/test --all

build: with-build ## the library and the command, optimised: build/release/weft
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release -j $(JOBS)

bench: build with-bench ## side by side with raw UCX, Redis, gRPC and ZeroMQ, in tables with the ratios
	@cmake --preset release -DWEFT_PEERS=ON --log-level=WARNING >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@bench/run

lint: with-build-lint ## formatting, clang-tidy, cppcheck
	@scripts/lint

install: build ## into PREFIX (default /usr/local); DESTDIR is honoured
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install

uninstall: ## what make install with the same PREFIX and DESTDIR has put there, and nothing else
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install --uninstall

sim: with-build-test ## SEEDS seeds (default 1000000) of every simulation, from FIRST on
	@scripts/sim

soak: build ## servers, clients and elements for MINUTES (default 30), while processes are killed and stopped at random, by SEED
	@scripts/soak

coverage: with-build-test ## which lines the tests run, per room
	@scripts/coverage

clean: ## remove build/
	@rm -rf build
