# What is needed to build and try this project. Every target first makes the machine ready (scripts/bootstrap), and hands
# ARGS on: make demo ARGS=--check, make test ARGS='-p percale-core'

ARGS ?=
export PATH := $(if $(PERCALE_TEST_TOOLS),$(PERCALE_TEST_TOOLS),$(CURDIR)/.tools)/bin:$(PATH)

.PHONY: help demo test lint advisories bench
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; do \
	    printf 'make %-11s %s\n' "$$target" "$$text"; done

demo: ## three sites on this machine with a network between them and real scientific files, put through their paces
	@scripts/bootstrap demo
	@cargo build --release --package percale-cli
	@"$${CARGO_TARGET_DIR:-target}/release/percale" demo $(ARGS)

test: ## every check and every test; ARGS go to cargo nextest
	@scripts/bootstrap test
	@scripts/test $(ARGS)

lint: ## format, clippy, licences and sources of dependencies, the rules of the house
	@scripts/bootstrap lint
	@scripts/lint

advisories: ## known faults of dependencies; asks github.com, so it is not part of the tests
	@scripts/bootstrap lint
	@cargo deny check advisories

bench: ## the benchmarks, some hours; ARGS go to bench/run, ARGS=quick takes some minutes
	@scripts/bootstrap bench
	@bench/run $(ARGS)
