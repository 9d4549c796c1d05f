# SPDX-License-Identifier: Apache-2.0 OR MIT
# The one list of developer commands. Anything longer than a few lines is Rust in xtask/.

CARGO ?= cargo
# make demo ARGS='--size 256MiB'
ARGS ?=
# Runs of every simulation test: `make seeds SEEDS=100000`.
SEEDS ?= 20000
KILLS ?= 1000
# Time for each fuzz target; two run at once on two cores.
FUZZ_SECONDS ?= 30
CI_FUZZ_SECONDS ?= 10
# Every build for tests is one of the same packages with the same features: nothing is built twice.
# A build of millpond alone has no features, and so no planted faults.
ALL := --workspace --all-features --locked
# The program under test, which the build of the tests makes.
MILLPOND := $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/millpond
# The tests that run no program: unit tests and simulations. `crash` and `exhaustive` are the longest.
ENGINES := --lib --bin loadgen --bin millpond --bin xtask --test crash --test executor --test exhaustive --test it
# Tests of these programs that take seconds of the processor or of the disk, whatever the seeds.
LONG := flush_sim::tests::the_published_run flush_sim::tests::gap_filling_does_not_slow \
	zeroes::four_gigabytes cost::a_full_cache_takes pacing::a_filling_cache_slows_writers \
	files::random_operations writeback::blocks_of_pages_that_changed device::bios_across_parts_of_two
# Programs that setup.sh takes out of packages that it does not install.
export PATH := $(PATH):$(abspath $(or $(CARGO_TARGET_DIR),target)/tools)
# For a command that starts make: `make -n` runs a line that has MAKE itself.
NESTED_MAKE := $(MAKE) --no-print-directory
# Commands in Rust, built with what all tests are built with.
XTASK := $(or $(CARGO_TARGET_DIR),target)/debug/xtask
# Tests at once in one program. Those that start programs wait more than they compute.
TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n > 6 ? n : 6)))

.PHONY: help setup programs build install uninstall deb try-deb demo attack smoke test test-fast test-s3 guest guest-all guest-or-skip guest-in-ci lint lint-plain lint-workflows fmt fuzz fuzz-in-ci nightly sanitize seeds kills soak soak-guest docs deny clean xtask
.PHONY: release release-build release-compare try-release previous
.PHONY: reproduce bench-cache-scale bench-doors bench-flush bench-flush-sim bench-hop bench-iomap bench-kernel bench-nbd bench-noclone bench-objvol bench-paths bench-peers bench-pmem-copy bench-read-cache bench-ublk bench-wbt bench-wbt-sim bench-zram published

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

setup: ## install what the tests need and is missing, without a question (Debian-like systems)
	@SETUP=yes scripts/setup.sh

# What needs programs of others says which are missing, and asks; SETUP=yes is an answer, too.
programs:
	@scripts/setup.sh

build: ## the program, optimised: target/release/millpond
	$(CARGO) build --release --locked -p millpond

# Where `make install` puts things, as in every Makefile: make install DESTDIR=/tmp/root PREFIX=/usr
# A program that is named is installed as it is, and nothing is built: make install PROGRAM=...
PREFIX ?= /usr/local
DESTDIR ?=
INSTALL := install
PROGRAM := $(or $(CARGO_TARGET_DIR),target)/release/millpond
BUILT = $(if $(filter file,$(origin PROGRAM)),build)
SHARE = $(DESTDIR)$(PREFIX)/share
LIB = $(DESTDIR)$(PREFIX)/lib
DOC = $(SHARE)/doc/millpond
# Pages link to each other: they keep their places.
PAGES := $(wildcard *.md docs/*.md docs/format/*.md docs/decisions/*.md) crates/writecache/writecache.md crates/zram/zram.md \
	crates/pagecache/buffered.md crates/objvol/objvol.md contrib/prometheus/alerts.yml
MAN_PAGES := $(wildcard docs/man/*.[157])
COMPLETIONS = $(SHARE)/bash-completion/completions/millpond $(SHARE)/zsh/site-functions/_millpond \
	$(SHARE)/fish/vendor_completions.d/millpond.fish

install: $(BUILT) ## program, man pages, completions, systemd unit, udev rule, documents (PREFIX=/usr DESTDIR=...)
	$(INSTALL) -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/millpond
	strip --strip-all $(DESTDIR)$(PREFIX)/bin/millpond
	for page in $(MAN_PAGES); do \
		$(INSTALL) -D -m 644 -t $(SHARE)/man/man$${page##*.} $$page || exit; \
	done
	for page in $(PAGES); do \
		$(INSTALL) -D -m 644 $$page $(DOC)/$$page || exit; \
	done
	$(INSTALL) -m 644 packaging/millpond.toml packaging/systemd/millpond.service.d/*.conf $(DOC)
	sed -i 's|/usr/share/|$(PREFIX)/share/|' $(DOC)/millpond.toml
	$(INSTALL) -D -m 644 -t $(LIB)/systemd/system packaging/systemd/millpond.service packaging/systemd/millpond.socket
	sed -i 's|/usr/bin/|$(PREFIX)/bin/|' $(LIB)/systemd/system/millpond.service
	$(INSTALL) -D -m 644 packaging/millpond.sysusers $(LIB)/sysusers.d/millpond.conf
	$(INSTALL) -D -m 644 packaging/millpond.tmpfiles $(LIB)/tmpfiles.d/millpond.conf
	$(INSTALL) -D -m 755 packaging/udev/millpond-export $(LIB)/udev/millpond-export
	$(INSTALL) -D -m 644 packaging/udev/70-millpond.rules $(LIB)/udev/rules.d/70-millpond.rules
	sed -i 's|/usr/lib/|$(PREFIX)/lib/|' $(LIB)/udev/rules.d/70-millpond.rules
	for file in $(COMPLETIONS); do $(INSTALL) -D -m 644 /dev/null $$file || exit; done
	$(PROGRAM) completions bash >$(word 1,$(COMPLETIONS))
	$(PROGRAM) completions zsh >$(word 2,$(COMPLETIONS))
	$(PROGRAM) completions fish >$(word 3,$(COMPLETIONS))

uninstall: ## remove what `make install` put there; configuration and data stay
	rm -f $(DESTDIR)$(PREFIX)/bin/millpond $(COMPLETIONS) $(foreach page,$(MAN_PAGES),$(SHARE)/man/man$(patsubst .%,%,$(suffix $(page)))/$(notdir $(page)))
	rm -f $(LIB)/systemd/system/millpond.service $(LIB)/systemd/system/millpond.socket $(LIB)/sysusers.d/millpond.conf $(LIB)/tmpfiles.d/millpond.conf
	rm -f $(LIB)/udev/millpond-export $(LIB)/udev/rules.d/70-millpond.rules
	rm -rf $(DOC)

deb: build ## a Debian package: target/debian/millpond_VERSION_ARCH.deb
	scripts/deb.sh $(PROGRAM)

try-deb: deb ## install, use, upgrade and purge that package in a Debian of its own (root)
	@scripts/setup.sh deb
	scripts/try-deb.sh

# make release VERSION=0.2.0 KEY=FILE: what it makes is listed in xtask/src/release/mod.rs. KEY is a
# private key of ssh-keygen. RELEASE_CHECKS= leaves out what has passed on this commit already.
VERSION ?= $(error name a version, as in make release VERSION=0.2.0)
RELEASE_CHECKS ?= lint test
RELEASE = RELEASE_TOOLS=$(abspath target/release-tools) $(CARGO) run --quiet --locked -p xtask -- release
release: ## all of a release, in target/release-VERSION: checked, built twice, packed, installed, upgraded (root; VERSION=0.2.0 KEY=FILE)
	@$(RELEASE) check $(VERSION)
	$(if $(RELEASE_CHECKS),$(MAKE) $(RELEASE_CHECKS))
	@scripts/release-tools.sh
	@$(RELEASE) build $(VERSION)
	@$(RELEASE) compare $(VERSION)
	@scripts/try-release.sh $(VERSION)

release-build: ## only what a user downloads, in target/release-VERSION (VERSION=0.2.0)
	@scripts/release-tools.sh
	@$(RELEASE) build $(VERSION)

release-compare: ## builds a clone elsewhere: are its bytes those of target/release-VERSION? (VERSION=0.2.0)
	@$(RELEASE) compare $(VERSION)

try-release: ## installs, uses, kills and upgrades each file of target/release-VERSION in a root of its own (root; VERSION=0.2.0)
	@scripts/try-release.sh $(VERSION)

# With each release, once its tag is set: README.md in that folder says why it is in the repository.
previous: ## keeps the program of target/release-VERSION, and media that it leaves, for the tests of later versions (VERSION=0.2.0)
	$(CARGO) build $(ALL) --bin previous
	tar -xOf target/release-$(VERSION)/millpond-$(VERSION)-$$(uname -m)-linux.tar.gz \
		--wildcards '*/bin/millpond' >target/previous-millpond
	chmod +x target/previous-millpond
	$(or $(CARGO_TARGET_DIR),target)/debug/previous target/previous-millpond

# One build of both: what `make build` has built is not built again, and the other way round.
demo: ## the main job: a write cache absorbs, survives kill -9, flushes in order (ARGS='--size 256M', PROGRAM=...)
	@scripts/setup.sh rust
	@echo "demo: builds $(if $(BUILT),the program and the demo: 10 minutes of one core from nothing,the demo), once"
	$(CARGO) build --release --locked -p e2e --bin demo $(if $(BUILT),-p millpond --bin millpond)
	MILLPOND_BIN=$(abspath $(PROGRAM)) $(or $(CARGO_TARGET_DIR),target)/release/demo $(ARGS)

attack: ## an adversary of the whole program: lossy disks, kill -9, a judge (ARGS='--seconds 3600')
	$(CARGO) build --release --locked -p millpond
	$(CARGO) run --release --locked -p attack -- $(ARGS)

published: programs ## what others have published, run as they wrote it (root; ARGS='--only linear')
	$(CARGO) run --release --locked -p e2e --bin published -- $(ARGS)

# A test for each engine and each door, by its name: kills, recoveries, real clients.
SMOKE := doors:crash::fio_finds_each_write_that_was_answered_before_a_kill \
	doors:crash::a_device_that_forgets_is_noticed \
	doors:clients::nbdinfo_lists_every_export_with_size_flags_and_contexts \
	doors:clients::qemu_io_reads_the_patterns_it_wrote_of_any_alignment \
	doors:fuse::synchronous_and_fsynced_writes_survive_a_kill \
	doors:vhost_user::kills_lose_no_request_of_a_guest_and_repeat_none \
	doors:upgrade::devices_clients_and_settings_are_what_they_were \
	e2e:offline::a_killed_cache_of_every_kind_recovers_all_writes \
	e2e:zram::two_cores_share_a_device \
	e2e:buffered::five_kills_lose_nothing_that_was_flushed \
	e2e:objvol::kills_undo_nothing_flushed_in_a_directory \
	e2e:demo::the_demo_passes_with_its_own_client
smoke: ## a path through each engine and each door: create, write, kill -9, recover, read; under a minute once built
	@scripts/setup.sh smoke
	MILLPOND_BIN=$(MILLPOND) RUST_TEST_THREADS=$(TEST_THREADS) scripts/smoke.sh "$(CARGO) test $(ALL)" $(SMOKE)

test: programs ## all tests, end to end with real clients included; in CI also fuzzing and the guest, if their inputs are new
	$(if $(CI),@$(MAKE) --no-print-directory fuzz-in-ci)
	MILLPOND_BIN=$(MILLPOND) RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test $(ALL) --no-fail-fast
	$(if $(CI),@$(MAKE) --no-print-directory guest-in-ci)

test-fast: ## unit tests, and the simulation with a few seeds; no set-up, no outside programs, no long tests
	MILLPOND_SEEDS=5 RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test $(ALL) $(ENGINES) -- \
		$(addprefix --skip ,$(LONG))

test-s3: programs ## volumes on object stores, against moto, and versitygw where Go is there; or your bucket (MILLPOND_TEST_S3=s3://BUCKET/PREFIX)
	@scripts/setup.sh s3
	@scripts/test-s3.sh $(STORES)

lint: ## formatting, clippy, room direction, circles of imports, style, licences, subjects of commits
	@scripts/setup.sh lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(ALL) --all-targets -- -D warnings
	@$(MAKE) --no-print-directory xtask
	$(XTASK) arch tidy licences examples commits
	@if command -v actionlint; then actionlint -shellcheck= -pyflakes=; \
		else echo 'lint: no actionlint: workflows NOT checked (make lint-workflows does it)'; fi

lint-workflows: ## .github/workflows by actionlint, which Go builds into target/tools if it is missing
	@scripts/setup.sh workflows
	actionlint -shellcheck= -pyflakes=

lint-plain: ## clippy of the program as it ships, without the faults planted for tests
	$(CARGO) clippy -p millpond --locked -- -D warnings

fmt: ## format everything
	$(CARGO) fmt --all

xtask:
	@$(CARGO) build --quiet $(ALL) --bin xtask

# A pass of this length or more is recorded in tests/passed.toml.
FUZZ_SECONDS_RECORDED := 30
fuzz: xtask ## every fuzz target for FUZZ_SECONDS (needs the nightly toolchain)
	$(if $(shell [ $(FUZZ_SECONDS) -lt $(FUZZ_SECONDS_RECORDED) ] || echo yes),$(XTASK) record fuzz) \
		$(XTASK) fuzz $(FUZZ_SECONDS)

fuzz-in-ci: xtask
	$(XTASK) unless-recorded fuzz $(XTASK) fuzz --or-skip $(CI_FUZZ_SECONDS)

sanitize: xtask ## tests under AddressSanitizer, ThreadSanitizer and Miri (needs nightly; ARGS=miri)
	$(XTASK) sanitize $(ARGS)

# Whatever is recorded; after a failure the others still run.
NIGHT_FUZZ_SECONDS ?= 300
NIGHT_SEEDS ?= 2000
nightly: ## everything: lint, all tests, object stores, fuzzing, sanitizers, the guest, packages, more seeds (hours)
	@$(MAKE) --no-print-directory --keep-going CI= FUZZ_SECONDS=$(NIGHT_FUZZ_SECONDS) SEEDS=$(NIGHT_SEEDS) \
		lint lint-plain docs test test-s3 fuzz sanitize guest try-deb seeds

seeds: ## simulation tests with SEEDS seeds each
	MILLPOND_SEEDS=$(SEEDS) $(CARGO) test $(ALL) $(ENGINES)

# Kills of the daemon under fio: for block devices, and for the disk of a virtual machine.
GUEST_KILLS ?= 20
GUEST_UPGRADES ?= 20
GUEST_PARTS ?= ublk ublk-guard ublk-kills ublk-upgrades=$(GUEST_UPGRADES) published power-cut \
	vhost-upgrades=$(GUEST_UPGRADES) vhost-user boot=3
# qemu of another release of Debian, which has other rings than that of Debian 12.
GUEST_QEMU_SUITE ?= trixie
# Only the whole of it, with the numbers that stand here, is recorded in tests/passed.toml.
GUEST_IS_USUAL := $(if $(filter-out file,$(foreach v,KILLS UPGRADES PARTS QEMU_SUITE,$(origin GUEST_$(v)))),,yes)
guest: xtask ## block devices of the kernel, and a vhost-user disk, in a guest of Linux 7 under two versions of qemu (GUEST_KILLS=20 GUEST_UPGRADES=20)
	$(if $(GUEST_IS_USUAL),$(XTASK) record guest) $(NESTED_MAKE) guest-all

guest-all:
	@scripts/setup.sh guest
	$(CARGO) build --locked -p millpond
	$(CARGO) build --locked -p e2e --bin power-cut
	GUEST_SECONDS=1800 scripts/guest.sh $(MILLPOND) $(GUEST_KILLS) $(GUEST_PARTS)
	GUEST_QEMU_SUITE=$(GUEST_QEMU_SUITE) scripts/guest.sh $(MILLPOND) 3 boot vhost-user

guest-in-ci: xtask
	$(XTASK) unless-recorded guest $(NESTED_MAKE) guest-or-skip

# In CI: few kills, one boot. What is missing is named, and is no failure. MILLPOND and power-cut are
# built beside these tests.
guest-or-skip:
	@scripts/setup.sh guest || true
	$(CARGO) test $(ALL) --no-run --quiet --test program --test doors
	GUEST_SECONDS=600 scripts/guest.sh --or-skip $(MILLPOND) 3 ublk ublk-guard ublk-kills ublk-upgrades \
		power-cut=2 vhost-upgrades vhost-user boot
	GUEST_QEMU_SUITE=$(GUEST_QEMU_SUITE) GUEST_SECONDS=300 scripts/guest.sh --or-skip $(MILLPOND) 3 boot \
		vhost-kills

kills: ## the tests of doors::crash with KILLS kills each
	MILLPOND_KILLS=$(KILLS) $(CARGO) test --locked -p e2e --all-features --test doors -- --nocapture crash

# Upgrades, and kills, of each door in the guest; 0: no guest.
SOAK_GUEST ?= 100
soak: programs ## live upgrades and kills under fio with verification; then in a guest (ARGS='--upgrades 1000 --kills 1000' SOAK_GUEST=100)
	$(CARGO) run --release --locked -p e2e --bin soak -- $(ARGS)
	$(if $(filter-out 0,$(SOAK_GUEST)),@$(MAKE) --no-print-directory soak-guest)

soak-guest:
	@scripts/setup.sh guest
	$(CARGO) build --release --locked -p millpond
	GUEST_SECONDS=5400 scripts/guest.sh $(or $(CARGO_TARGET_DIR),target)/release/millpond $(SOAK_GUEST) \
		ublk-upgrades ublk-kills vhost-upgrades vhost-user

docs: ## API documentation of all rooms: target/doc
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked

deny: ## cargo-deny's checks of licences, bans and sources, where cargo-deny is installed
	$(CARGO) deny --locked check licenses bans sources

reproduce: ## published results on this machine, or on models in virtual time (ARGS='--sim', ARGS='--html page.html')
	$(CARGO) build --release --locked -p loadgen
	$(CARGO) run --release --locked -p reproduce -- $(ARGS)

bench-cache-scale: ## what opening a write cache of 25 million blocks costs: CPU, wall, memory
	$(CARGO) run --release --locked -p bench -- cache-scale $(ARGS)

bench-flush: ## flush of a cache on the local disk: LRU, sorted, gaps filled; a reader beside it
	$(CARGO) run --release --locked -p bench -- flush $(ARGS)

bench-flush-sim: ## flush of a cache on HDD models in virtual time: LRU, sorted, gaps filled, bound; a full cache
	$(CARGO) run --release --locked -p bench -- flush-sim $(ARGS)

bench-iomap: ## writeback of a page cache: the mapping called for each page, and once a run
	$(CARGO) run --release --locked -p bench -- iomap $(ARGS)

bench-nbd: programs ## NBD beside nbdkit and qemu-storage-daemon, as ratios of one run
	$(CARGO) build --release --locked -p millpond -p loadgen
	$(CARGO) run --release --locked -p bench -- nbd $(ARGS)

bench-doors: programs ## NBD, FUSE and vhost-user beside qemu-storage-daemon's, ublk beside rublk: requests, CPU, system calls, wake-ups
	$(CARGO) build --release --locked -p millpond -p loadgen
	$(CARGO) run --release --locked -p bench -- doors $(ARGS)
	@$(MAKE) --no-print-directory bench-ublk

# Rounds of each job. The guest counts instructions instead of time: its rounds differ little.
ROUNDS ?= 3
bench-ublk: ## block devices of the kernel beside those of rublk, in one boot of a guest (ROUNDS=3)
	@scripts/setup.sh guest
	$(CARGO) build --release --locked -p millpond
	RUBLK=$$(scripts/rublk.sh $(or $(CARGO_TARGET_DIR),target)/rublk) && export RUBLK && \
		GUEST_ICOUNT=3 GUEST_CPU=max,-erms,-fsrm GUEST_SECONDS=1800 scripts/guest.sh $(or $(CARGO_TARGET_DIR),target)/release/millpond $(ROUNDS) doors

bench-kernel: ## beside the kernel's dm-writecache, zram, dm-linear and bcache, in one boot of a guest (ROUNDS=3)
	@scripts/setup.sh bench-kernel
	$(CARGO) build --release --locked -p millpond
	GUEST_SECONDS=3000 scripts/guest.sh --or-skip $(or $(CARGO_TARGET_DIR),target)/release/millpond $(ROUNDS) kernel bcache

bench-hop: ## a request to a device of another core and back, beside a local one, at depths 1 to 64
	$(CARGO) run --release --locked -p bench -- hop

bench-noclone: programs ## linear and striped in process and through FUSE, beside the raw device
	$(CARGO) build --release --locked -p millpond -p loadgen
	$(CARGO) run --release --locked -p bench -- noclone $(ARGS)

bench-peers: ## nbdkit, qemu-storage-daemon, nbd-server, nbdfuse and the kernel's zram beside ours, by fio
	@scripts/setup.sh peers
	$(CARGO) build --release --locked -p millpond -p loadgen
	$(CARGO) run --release --locked -p bench -- peers $(ARGS)

bench-paths: programs ## what one operation takes on the hot paths of each engine, counted (ARGS=wc-write)
	$(CARGO) run --release --locked -p bench -- paths $(ARGS)

bench-pmem-copy: ## copies into persistent memory: past the caches, or written back line by line
	$(CARGO) run --release --locked -p bench -- pmem-copy

bench-objvol: ## a volume on a model of an object store: bandwidth, flushes, garbage in virtual time; CPU of opening a TiB
	$(CARGO) run --release --locked -p bench -- objvol $(ARGS)

bench-read-cache: ## the read cache beside LRU and S3-FIFO over a model of a disk, in virtual time
	$(CARGO) run --release --locked -p bench -- read-cache $(ARGS)

bench-wbt: ## a reader by the clock beside a buffered writer on the local disk, wbt off and on
	$(CARGO) build --release --locked -p millpond
	$(CARGO) run --release --locked -p bench -- wbt $(ARGS)

bench-zram: programs ## zram: writeback in batches; compressed memory beside nbdkit and the bare compressor
	$(CARGO) build --release --locked -p millpond -p loadgen
	$(CARGO) run --release --locked -p bench -- zram $(ARGS)

bench-wbt-sim: ## a lone writer, and a reader beside a writer, on models of disks in virtual time
	$(CARGO) run --release --locked -p bench -- wbt-sim $(ARGS)

clean: ## remove everything that was built
	$(CARGO) clean
	rm -rf fuzz/target
