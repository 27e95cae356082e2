# The front door: `make run` shows the program at work, `make test` tests it. Both set up, build and fetch what is missing
# first, and say what they are doing. Everything else about building is CMakeLists.txt and CMakePresets.json.
.DEFAULT_GOAL := help
SHELL := /bin/bash
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
PROMPT ?= Why is the sky blue?
NODES ?= 2
BENCH ?=

# .deps/bin holds the Rust of systems that install it under a versioned name (scripts/setup).
export PATH := $(CURDIR)/.deps/bin:$(PATH)

CONFIGURE = cmake --preset $(1) > $(2)/configure.log 2>&1 || { cat $(2)/configure.log; exit 1; }
BUILD = mkdir -p $(2) && { test -f $(2)/build.ninja || { $(call CONFIGURE,$(1),$(2)); }; } && cmake --build $(2) --parallel $(JOBS) $(3)

.PHONY: help setup build model run test test-full test-rdma asan tsan fuzz bench format clean

help:
	@echo "make run         build everything and ask the demo model a question on $(NODES) local nodes"
	@echo "make test        build and run the tests that take minutes"
	@echo "make test-full   also the full matrices, the sanitizers, emulated Arm CPUs, RDMA and the fuzzers (over an hour)"
	@echo "make test-rdma   the verbs transport and the demo model over RDMA, in virtual machines with Soft-RoCE (about three minutes)"
	@echo "make bench       the roofs of this machine, and every goal of speed next to its peer (half an hour the first time, for it builds the peers;"
	@echo "                 BENCH=--quick: one round, about four minutes on two free cores; BENCH=--json: every sample)"
	@echo "make asan|tsan   unit tests under address+undefined / thread sanitizer"
	@echo "make format      clang-format over src, tests and bench"
	@echo "make clean       remove the build folders (.deps and the model stay)"

run:
	@echo "[1/4] packages and tools (a minute or two the first time)"
	@scripts/setup
	@echo "[2/4] building (about 7 minutes on 2 cores the first time, seconds after that)"
	@$(call BUILD,release,build,--target program)
	@echo "[3/4] demo model (98 MB the first time)"
	@scripts/fetch-model
	@echo "[4/4] $(NODES) nodes on this machine answer together"
	@build/verbund run smollm2 "$(PROMPT)" --local $(NODES) --temperature 0 --max-tokens 160

test:
	@rm -rf build/results
	@echo "[1/4] packages and tools (a minute or two the first time)"
	@scripts/setup
	@echo "[2/4] building (about 7 minutes on 2 cores the first time, seconds after that)"
	@$(call BUILD,release,build)
	@echo "[3/4] unit tests"
	@scripts/check-unit build || true
	@echo "[4/4] end-to-end tests on the real program (a few minutes)"
	@scripts/check-e2e -m "not full" || true
	@scripts/check-summary unit e2e

test-full:
	@rm -rf build/results
	@echo "[1/9] packages and tools"
	@scripts/setup --dev
	@echo "[2/9] building"
	@$(call BUILD,release,build)
	@echo "[3/9] include direction and unit tests"
	@scripts/check-step includes scripts/check-includes || true
	@scripts/check-unit build || true
	@echo "[4/9] end-to-end tests with the full matrices (half an hour)"
	@scripts/check-e2e || true
	@echo "[5/9] unit tests under address and undefined-behaviour sanitizers"
	@$(MAKE) --no-print-directory asan || true
	@echo "[6/9] engine and mesh under the thread sanitizer"
	@$(MAKE) --no-print-directory tsan || true
	@echo "[7/9] the kernels on emulated Arm CPUs, and their bits against this machine's (ten minutes)"
	@scripts/check-aarch64 --full || true
	@echo "[8/9] RDMA in virtual machines (three minutes)"
	@scripts/check-rdma || true
	@echo "[9/9] fuzzing, 60 s a target"
	@scripts/check-step fuzz scripts/fuzz 60 || true
	@scripts/check-summary includes unit e2e unit-asan unit-tsan aarch64 aarch64-bits rdma fuzz

test-rdma:
	@scripts/setup --dev
	@$(call BUILD,release,build,--target verbund test_mesh rdma_rank)
	@scripts/check-rdma

asan:
	@$(call BUILD,asan,build-asan)
	@scripts/check-unit build-asan

tsan:
	@$(call BUILD,tsan,build-tsan)
	@scripts/check-unit build-tsan -R '^(engine|mesh)[.]'

fuzz:
	@scripts/setup --dev
	@scripts/fuzz 60

bench: setup build model
	@bench/peers/setup
	@build/bench_roof
	@bench/goals $(BENCH)

setup:
	@scripts/setup

build: setup
	@$(call BUILD,release,build)

model: setup
	@scripts/fetch-model

format:
	@scripts/setup --dev
	@find src tests bench -name '*.h' -o -name '*.cpp' | xargs clang-format -i

clean:
	rm -rf build build-debug build-asan build-tsan build-aarch64 build-fuzz
