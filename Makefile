# SPDX-License-Identifier: MIT
# Short wrappers around meson; `meson setup build && meson test -C build` works too.
.DEFAULT_GOAL := help
# Values of user settings are literal text: neither make nor the shell expands them.
SETTINGS := ARCHS BATCH CLASSES DATA DEVICE HARNESS OUT OVERWRITE RESUME SECONDS SEED SIZE STEPS WIDTH
$(foreach name,$(SETTINGS),$(eval override $(name) := $$(value $(name))))
export $(SETTINGS)
.PHONY: help setup build train unet study test test-quick test-full sanitize sanitize-quick tsan aarch64 \
    aarch64-quick clang clang-quick compile-cuda fuzz bench rooms budgets docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' \
	    $(firstword $(MAKEFILE_LIST))

setup: ## install missing packages to build, test, document and package (Debian 12)
	@tools/setup build test docs package

build: build/build.ninja ## build the library, examples and benchmarks (release) in build/
	@ninja -C build

RUN_OPTIONS = $${DEVICE:+--device "$$DEVICE"} $${STEPS:+--steps "$$STEPS"} $${SEED:+--seed "$$SEED"} \
    $${COMPILE:+--compile} $${RESUME:+--resume} $${OVERWRITE:+--overwrite}

# A resumed run needs its original training text, so RESUME=1 does not collect the text again. A new
# run replaces the run in the default folder; in a folder that OUT names, only with OVERWRITE=1.
train: build/build.ninja ## train a GPT; STEPS= OUT= SEED= DATA= DEVICE=cpu|cuda COMPILE=1 RESUME=1 OVERWRITE=1
	@ninja -C build trainer
	@if [ -z "$$DATA" ] && ! { [ -n "$$RESUME" ] && [ -f build/corpus.txt ]; }; then \
	    tools/collect-text build/corpus.txt; fi
	@if [ -z "$$OUT$$RESUME" ]; then OVERWRITE=1; fi; \
	    set -x; build/examples/train_gpt --data "$${DATA:-build/corpus.txt}" \
	    --out "$${OUT:-runs/gpt}" $(RUN_OPTIONS)

unet: build/build.ninja ## train a U-Net; DATA= CLASSES= SIZE= WIDTH= BATCH= AMP=1, and the settings of train
	@ninja -C build trainer
	@if [ -z "$$OUT$$RESUME" ]; then OVERWRITE=1; fi; \
	    set -x; build/examples/unet --out "$${OUT:-runs/unet}" $(RUN_OPTIONS) $${AMP:+--amp} \
	    $${DATA:+--data "$$DATA"} $${CLASSES:+--classes "$$CLASSES"} $${SIZE:+--size "$$SIZE"} \
    $${WIDTH:+--width "$$WIDTH"} $${BATCH:+--batch "$$BATCH"}

test: build-for-tests build-asan/build.ninja ## run all tests but the slow ones
# Omits the op suite in the baseline variant, which `make sanitize-quick` runs, and interrupted runs of
# the GPT example; `make test-quick` keeps an interrupted run of the U-Net.
test-quick: OMITTED := --no-suite repeated ## run the part of `make test` that .ci/run runs
test test-quick: build-for-tests build-asan/build.ninja
	@tools/gpu-suite current
	@tools/run-tests --no-suite slow $(OMITTED) --also $(DRAWN_CALLS)

test-full: build-for-tests ## run all tests, slow ones too, sanitize, tsan, aarch64, clang, compile-cuda
	@ninja -C build bench/bench_dispatch_notimers
	@tools/run-tests
	@$(MAKE) --no-print-directory sanitize tsan aarch64 clang compile-cuda

# gcc 12 takes "&thread_local == NULL" from the flags of an add that the linker turns into a lea,
# which sets none: in programs that link the library's objects UBSan then reports false NULLs.
# AddressSanitizer still reports accesses through NULL.
NO_FALSE_NULL := -fno-sanitize=null

# Source locations in traces need only line numbers. Compared with -Og, a sanitizer's code takes 1.5
# times as long to compile at -O1, and as long to run.
CHECKED := -Doptimization=g -Ddebug=false -Db_ndebug=false -Db_lundef=false -Dbench=false

# Options of `make sanitize-quick`: most tests are compiled without sanitizers; there is one variant of
# the CPU kernels, and there are no examples.
CHECKED_BRIEFLY := -Dsanitize_tests=false -Dwide_variants=false -Dexamples=false

# `make test` runs one program of that build: 100,000 drawn calls.
DRAWN_CALLS := build-asan:tests/misuse/misuse

sanitize: build-asan/build.ninja ## run the tests under AddressSanitizer and UBSan, in build-asan/
	@meson configure build-asan -Dsanitize_tests=true -Dwide_variants=true -Dexamples=true
	@tools/run-tests -C build-asan --no-suite slow

# Runs the baseline variant. Omits example programs, tools, calls with NULL, large samples and drawn
# calls, which `make test` makes, and three quarters of the drawn programs and layouts. Only tests with
# hostile files are compiled for sanitizers; the other tests call the checked library.
sanitize-quick: build-asan/build.ninja ## run the part of `make sanitize` that .ci/run runs
	@meson configure build-asan $(CHECKED_BRIEFLY)
	@TS_TEST_BRIEF=1 TS_TEST_SMALL=1 TS_TEST_PROGRAMS=25 \
	    tools/run-tests -C build-asan --no-suite slow --no-suite thorough

build-asan/build.ninja:
	@tools/setup build test
	@meson setup build-asan $(CHECKED) $(CHECKED_BRIEFLY) -Db_sanitize=address,undefined \
	    -Dc_args='-g1 -fno-sanitize-recover=all $(NO_FALSE_NULL)'

# At -Og gcc warns of variables that functions set only when they return true.
tsan: ## run the cases with several threads under ThreadSanitizer, in build-tsan/
	@tools/setup build test
	@test -f build-tsan/build.ninja || meson setup build-tsan $(CHECKED) -Db_sanitize=thread \
	    -Dc_args='-g1 -Wno-maybe-uninitialized' -Dexamples=false -Dwide_variants=false
	@tools/run-tests -C build-tsan

aarch64: ARM_TESTS := --suite ops ## run the op suite as arm64 code in qemu-user, in build-aarch64/
aarch64-quick: ARM_TESTS := samples_values emit variants ## run the part that .ci/run runs
aarch64-quick: export TS_TEST_BRIEF := 1
# The emulated code must compute the same bits as this machine.
aarch64 aarch64-quick: build-for-tests
	@tools/setup build test aarch64
	@test -f build-aarch64/build.ninja || meson setup build-aarch64 --cross-file tools/aarch64.ini \
	    -Dcuda=disabled -Dexamples=false -Dbench=false
	@ninja -C build tests/bits && build/tests/bits >build-aarch64/bits.txt
	@TS_TEST_BITS='$(CURDIR)/build-aarch64/bits.txt' tools/run-tests -C build-aarch64 $(ARM_TESTS)

# Compiles objects and links the library, but no programs. Warnings come from clang's front end, so the
# build does not optimise.
clang: ## compile everything with clang, in build-clang/
clang-quick: OR_TESTS := |^tests/ ## compile what `make clang` does, without tests
clang clang-quick:
	@if ! command -v clang >/dev/null; then echo "clang: skipped: needs clang"; exit; fi; \
	rm -rf build-clang && CC=clang meson setup build-clang -Dwerror=true --buildtype=plain -Dcuda=disabled && \
	ninja -C build-clang -t targets all | \
	    sed -nE '\,notimers$(strip $(OR_TESTS)),d; s/^(libtessera\.so\.[0-9.]+|.*\.o): c_(LINKER|COMPILER).*/\1/p' | \
	    xargs ninja -C build-clang --quiet

compile-cuda: build/build.ninja ## compile the CUDA backend without a GPU; ARCHS=90a: Hopper only
	@if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then \
	    tools/compile-cuda $${ARCHS:+"$$ARCHS"}; else echo "compile-cuda: skipped: needs nvcc"; fi

FUZZ_FLAGS := --buildtype=debugoptimized -Db_ndebug=false -Db_sanitize=address,undefined \
    -Db_lundef=false -Dcuda=disabled -Dwide_variants=false -Dexamples=false -Dbench=false

fuzz: ## run the fuzzers, in build-fuzz/; SECONDS=n each, HARNESS=name
	@tools/setup build test fuzz
	@test -f build-fuzz/build.ninja || CC=clang meson setup build-fuzz -Dfuzz=true $(FUZZ_FLAGS)
	@ninja -C build-fuzz harnesses
	@tools/fuzz $${SECONDS:+--seconds "$$SECONDS"} $${HARNESS:+"$$HARNESS"}

study: build/build.ninja ## run the lessons of docs/regimes.md; DEVICE=cpu|cuda OUT=runs/study
	@ninja -C build
	@bench/study/run build "$${DEVICE:-cpu}" "$${DEVICE:-cpu}" "$${OUT:-runs/study}"

bench: build/build.ninja ## run the benchmarks
	@ninja -C build
	@for program in build/bench/bench_*; do \
	    if [ -f "$$program" ] && [ -x "$$program" ]; then "$$program" || exit 1; fi; done

budgets: build-for-tests ## compare instructions per call with bench/budgets.tsv
	@ninja -C build
	@tools/budgets

rooms: ## print the include graph of the rooms; fail on a forbidden include or call
	@tools/rooms

docs: ## build the site in build/docs/html; a warning or a dead link is an error
	@tools/setup docs
	@tools/make-site

clean: ## remove what was built; keeps runs/
	@rm -rf build build-aarch64 build-asan build-clang build-cuda build-fuzz build-tsan

build/build.ninja:
	@tools/setup build
	@meson setup build

# Reconfigures a build folder that was set up before the test library was installed.
.PHONY: build-for-tests
build-for-tests:
	@tools/setup build test
	@test -f build/build.ninja || meson setup build
	@grep -q tests/libharness.a build/build.ninja || meson setup --reconfigure build
