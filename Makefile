# `make` prints the list of targets.

CARGO ?= cargo
BENCH_FLAGS := $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(PROFILE),--profile)
SECONDS ?= 60
MINUTES ?= 5
TARGETS ?= event payload subject signal cli_json replay
FUZZ_FLAGS := -max_len=4096 -timeout=10 -rss_limit_mb=1024 -verbosity=0 -print_final_stats=1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-compose check soak bench fuzz doc fmt lint audit clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install the programs of PostgreSQL and NATS, if they are missing (Debian, Ubuntu)
	@scripts/setup.sh

demo: setup ## Run the demo: workflows survive the death of their worker
	@echo "demo: building and running the orders example on private servers"
	@$(CARGO) run -q -p continuum-examples --bin orders -- demo

test: setup ## Run all tests: unit, integration, documentation
	@scripts/setup.sh --tests
	@echo "test: all tests of the workspace"
	@$(CARGO) test --workspace

test-compose: setup ## Run the compose cluster under fire, on a container engine (OFFICIAL=1: official images)
	@tests/compose/run.sh

check: ## Run the whole gate: format, lints, tests, documentation
	@.ci/run

# Episodes of 40 s, each with the plan of one seed: SEED=7 SEED=7,8,9 or, without, from 1 on.
soak: ## Run worker processes under random faults (MINUTES=5, SEED=n to repeat one plan)
	@scripts/setup.sh --tests
	@echo "soak: five workers under random faults on private servers, for $(MINUTES) min"
	@$(CARGO) run -q -p continuum-tests --bin soak -- --minutes $(MINUTES) $(if $(SEED),--seeds $(SEED))

bench: setup ## Run the benchmarks (QUICK=1 for a short round, ONLY=w5,held, SCALE=0.1, PROFILE=1)
	@echo "bench: building for release and measuring on private servers"
	@$(CARGO) run --release -p continuum-benches -- $(BENCH_FLAGS)

# Without a sanitizer, since the tree has no unsafe code of its own, cargo-fuzz needs no nightly compiler. What libFuzzer
# breeds stays below target/; an input that finds a fault is printed, and belongs into fuzz/corpus with the mend.
fuzz: ## Let libFuzzer breed inputs (SECONDS=60 a target, TARGETS="event replay")
	@command -v cargo-fuzz >/dev/null || { echo "fuzz: installing cargo-fuzz"; $(CARGO) install --quiet --locked cargo-fuzz; }
	@cp Cargo.lock fuzz/Cargo.lock
	@cd fuzz && for target in $(TARGETS); do \
		echo "fuzz: $$target, for $(SECONDS) s"; \
		mkdir -p ../target/fuzz/corpus/$$target; \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --fuzz-dir . --target-dir ../target/fuzz --sanitizer none $$target \
			../target/fuzz/corpus/$$target corpus/$$target -- -max_total_time=$(SECONDS) $(FUZZ_FLAGS) || exit 1; \
	done

doc: ## Build the documentation of the crates
	@echo "doc: the crates' documentation, into target/doc"
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

fmt: ## Format the code
	@echo "fmt: formatting all crates"
	@$(CARGO) fmt --all

lint: ## Run clippy; any warning is an error
	@echo "lint: clippy on all targets"
	@$(CARGO) clippy --workspace --all-targets -- -D warnings

audit: ## Check the dependencies' licences and sources (ADVISORIES=1: known faults too)
	@command -v cargo-deny >/dev/null || { echo "audit: installing cargo-deny"; $(CARGO) install --quiet --locked cargo-deny; }
	@echo "audit: bans, licences and sources of the dependencies"
	@$(CARGO) deny check bans licenses sources
ifdef ADVISORIES
	@echo "audit: known faults, from the advisory database"
	@$(CARGO) deny check advisories
else
	@echo "audit: known faults were not looked up, since that needs the network: make audit ADVISORIES=1"
endif

clean: ## Remove everything that was built
	@echo "clean: removing target/"
	@$(CARGO) clean
