# The front door. `make test` takes a fresh machine from clone to green, `make demo` shows what the library does.
#
# Everything is CMake behind these targets (CMakePresets.json); build/ is the release build, build-<preset>/ the others.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
# Warnings stop CI, not users whose compiler knows newer ones.
WERROR ?= OFF
FUZZ_SECONDS ?= 600
TIERKV_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tierkv

# ccache when it is there; its files stay in TIERKV_CACHE unless CCACHE_DIR says otherwise.
ifneq ($(shell command -v ccache 2>/dev/null),)
  export CCACHE_DIR ?= $(TIERKV_CACHE)/ccache
  # Paths count from the clone, so that the next clone finds what this one compiled.
  export CCACHE_BASEDIR ?= $(CURDIR)
  export CCACHE_NOHASHDIR ?= 1
  export CCACHE_MAXSIZE ?= 10G
  LAUNCHER := -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
endif

CTEST := ctest --output-on-failure -j $(JOBS)
# GCC's ThreadSanitizer wants the address space it knows; where the kernel lets us, switch its randomisation off.
NO_ASLR = $(shell setarch "$$(uname -m)" -R true 2>/dev/null && echo "setarch $$(uname -m) -R")

define build_preset
	cmake --preset $(1) $(LAUNCHER) -DTIERKV_WERROR=$(WERROR) $(CMAKE_ARGS) $(if $(V),,--log-level=NOTICE)
	cmake --build --preset $(1) -j $(JOBS)
endef

.PHONY: help deps deps-fuzz deps-neon deps-lint build fetch test demo demo-synthetic bench bench-report plots install
.PHONY: soak cuda test-cuda bench-cuda debug asan tsan test-neon test-python fuzz fuzz-brief lint format clean

help:  ## this list
	@echo "tierkv: a tiered, compressed KV cache for language models"
	@echo
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1|\2/' | column -t -s '|'
	@echo
	@echo "  JOBS=$(JOBS)  PREFIX=$(PREFIX)  CMAKE_ARGS=...  FUZZ_SECONDS=$(FUZZ_SECONDS)  V=1 for CMake's own messages"

deps:  ## install what the build needs and is not there yet (apt; asks nothing)
	@tools/install_deps.sh

deps-fuzz: deps
	@tools/install_deps.sh --fuzz

deps-neon: deps
	@tools/install_deps.sh --neon

deps-lint:
	@tools/install_deps.sh --lint

build: deps  ## the library and every program, optimised, in build/ (programs in build/bin)
	$(call build_preset,release)

soak: build  ## 64 clients on a server for 30 minutes: every answer a lone client's, memory that does not grow
	python3 tests/cli/serve_load.py --program build/bin/tierkv --model build/tiny_models/llama.gguf --clients 64 --seconds 1800

fetch:  ## the default model (SmolLM2-135M-Instruct, Apache-2.0) and wikitext-2 into TIERKV_CACHE, once
	@python3 tools/fetch.py smollm2
	@python3 tools/fetch.py wikitext2

test: build fetch  ## build, then every test
	cd build && $(CTEST) --no-tests=error

test-python:  ## the Python package: virtual environments in TIERKV_CACHE (5.5 GB, once), a wheel, its tests
	@tools/python_env.sh
	@JOBS=$(JOBS) tools/test_python.sh

demo: build fetch  ## a real model reads a story with a fraction of the memory, and answers questions about it
	@build/bin/tierkv demo

demo-synthetic: build  ## no model: a long synthetic decode through four presets, side by side
	@build/bin/tierkv-demo

bench: build  ## every benchmark, each checked before it is timed; JSON lines go to build/bench.jsonl
	build/bin/tierkv-bench --json-file build/bench.jsonl

bench-report: build fetch  ## the grid against ggml into docs/use/performance.md (half an hour, 10 GiB, a quiet machine)
	build/bin/tierkv-bench --grid --filter _t --filter graduate --filter unpack --json-file build/bench-report.jsonl
	build/bin/tierkv bench --depths 0,2048,4096,8192 --kv fp16 --kv kivi4 --kv balanced --json build/bench-model.json
	python3 tools/bench_report.py build/bench-report.jsonl --model build/bench-model.json

plots:  ## the pictures of docs/plots from docs/build/data, with matplotlib in a virtual environment of build/
	test -x build/plots/bin/python || python3 -m venv build/plots
	build/plots/bin/pip install --quiet --disable-pip-version-check -r tools/plots_requirements.txt
	build/plots/bin/python tools/plots.py

install: build  ## headers, library, CMake package and tierkv.pc under PREFIX
	cmake --install build --prefix $(PREFIX)

debug: deps  ## the tests without optimisation, assertions on
	$(call build_preset,debug)
	cd build-debug && $(CTEST) --no-tests=error

asan: deps  ## every test under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call build_preset,asan)
	cd build-asan && $(CTEST) --no-tests=error

tsan: deps  ## the tests that use threads, and a device's kernels on the processor, under ThreadSanitizer
	$(call build_preset,tsan)
	cd build-tsan && $(NO_ASLR) $(CTEST) -L '^threads$$' --no-tests=error

# qemu's default processor has every extension, so the contract tests meet every instruction set; the first line fails when the best
# was not found. Then what only runs on the chosen one, and a processor without the dot product, where a stray one would be fatal.
test-neon: deps-neon  ## the AArch64 kernels, cross-compiled, and their contract tests under qemu
	$(call build_preset,neon)
	cd build-neon && $(CTEST) --no-tests=error -R 'PassTheCheckAtStart/neon_dotprod( |$$)'
	cd build-neon && $(CTEST) --no-tests=error -LE '^examples$$'
	cd build-neon && TIERKV_FORCE_ISA=neon $(CTEST) --no-tests=error -R '^attn/|TheForcedOneRuns'
	cd build-neon && TIERKV_FORCE_ISA=scalar $(CTEST) --no-tests=error -R '^attn/|TheForcedOneRuns'
	cd build-neon && QEMU_CPU=cortex-a53 $(CTEST) --no-tests=error -R 'IsaKernels.*/neon( |$$)' -E BlocksAndDecodedRows

# The library, the device tests and the benchmark's library; the processor's tests of the same room run with every `make test`.
cuda: deps  ## the kernels for CUDA devices, compiled with nvcc (fetched from PyPI where there is none); needs no GPU
	cmake --preset cuda $(LAUNCHER) -DTIERKV_WERROR=$(WERROR) $(CMAKE_ARGS) $(if $(V),,--log-level=NOTICE)
	cmake --build --preset cuda -j $(JOBS) --target tierkv cuda_device_test tierkv_bench_cuda tierkv_steps_cuda tierkv_encode_cuda

test-cuda: cuda  ## the device tests, and a short run of them under compute-sanitizer where there is one; needs a GPU
	build-cuda/bin/cuda_device_test
	if command -v compute-sanitizer > /dev/null; then \
	  TIERKV_CUDA_BRIEF=1 compute-sanitizer --tool memcheck --error-exitcode 1 build-cuda/bin/cuda_device_test && \
	  TIERKV_CUDA_BRIEF=2 compute-sanitizer --tool racecheck --error-exitcode 1 build-cuda/bin/cuda_device_test; fi

bench-cuda: cuda  ## attention on the device beside torch's SDPA; needs a GPU and a python3 with torch
	python3 bench/cuda/bench.py build-cuda/libtierkv_bench_cuda.so --json build-cuda/bench.json
	python3 bench/cuda/prompt.py build-cuda/libtierkv_bench_cuda.so --json build-cuda/prompt.json

fuzz-brief: deps  ## every fuzzer for a few seconds under ASan and UBSan, no clang needed
	$(call build_preset,asan)
	cd build-asan && $(CTEST) -L '^fuzz$$' --no-tests=error

fuzz: deps-fuzz  ## every fuzzer under libFuzzer for FUZZ_SECONDS each (clang)
	$(call build_preset,fuzz)
	tools/fuzz_long.sh build-fuzz $(TIERKV_CACHE)/fuzz $(FUZZ_SECONDS)

lint: deps-lint  ## include directions, the map of rooms, file lengths, columns, conflict markers, dead links, and the format
	python3 tools/check_includes.py
	python3 tools/check_text.py
	@tools/format.sh --check

format: deps-lint  ## clang-format over everything
	@tools/format.sh

clean:  ## remove every build directory
	rm -rf build build-debug build-asan build-tsan build-fuzz build-neon build-cuda build-python build-py-*
