#!/usr/bin/env bash
# Installs what tierkv needs to build and is not there yet. Asks nothing; does nothing, and needs no network, when all is there.
#   tools/install_deps.sh          what `make build` and `make test` need
#   tools/install_deps.sh --fuzz   clang and libFuzzer as well
#   tools/install_deps.sh --neon   the cross compiler for AArch64, and qemu to run what it makes
#   tools/install_deps.sh --lint   clang-format, in the version that tools/format.sh asks for
#   tools/install_deps.sh --serve  Prometheus and Chromium, which some tests of `tierkv serve` use when they are there
#   tools/install_deps.sh --ccache ccache, which every build uses when it is there
set -euo pipefail

missing=()
need_program() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_header() { echo "#include <$1>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 || missing+=("$2"); }

libfuzzer_works() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null >/dev/null 2>&1
}

if [[ ${1:-} == --fuzz ]]; then
  # libFuzzer's package is named after the compiler's version: clang first, then the runtime that fits it.
  if ! command -v clang++ >/dev/null 2>&1; then
    missing=(clang)
  elif ! libfuzzer_works; then
    missing=("libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev")
  fi
elif [[ ${1:-} == --neon ]]; then
  need_program aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
  need_program qemu-aarch64 qemu-user
  [[ -e /usr/src/googletest/CMakeLists.txt ]] || missing+=(googletest)
elif [[ ${1:-} == --lint ]]; then
  need_program clang-format-14 clang-format-14
elif [[ ${1:-} == --serve ]]; then
  need_program prometheus prometheus
  need_program chromium chromium
  need_program chromedriver chromium-driver
elif [[ ${1:-} == --ccache ]]; then
  need_program ccache ccache
elif [[ -n ${1:-} ]]; then
  echo "tools/install_deps.sh: unknown option $1" >&2
  exit 1
else
  need_program g++ g++
  need_program cmake cmake
  need_program ninja ninja-build
  need_program pkg-config pkg-config
  need_program python3 python3
  python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)    # tools/fetch.py downloads with it
  python3 -c 'import ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
  need_program column bsdextrautils
  need_program protoc protobuf-compiler
  need_program grpc_cpp_plugin protobuf-compiler-grpc
  if command -v g++ >/dev/null 2>&1; then
    need_header gtest/gtest.h libgtest-dev
    need_header toml++/toml.h libtomlplusplus-dev
    need_header nlohmann/json.hpp nlohmann-json3-dev
    need_header xxhash.h libxxhash-dev
    need_header eigen3/Eigen/Dense libeigen3-dev
    need_header CLI/CLI.hpp libcli11-dev
    need_header histedit.h libedit-dev
    need_header httplib.h libcpp-httplib-dev
    need_header grpcpp/grpcpp.h libgrpc++-dev
  else
    missing+=(libgtest-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev libeigen3-dev libcli11-dev libedit-dev
      libcpp-httplib-dev libgrpc++-dev)
  fi
fi

[[ ${#missing[@]} -eq 0 ]] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "Missing: ${missing[*]} (Debian's names). There is no apt-get here; please install them with this system's own tool." >&2
  exit 1
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! sudo -n true 2>/dev/null; then
    echo "Missing: ${missing[*]}. Please run: sudo apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo -n)
fi

echo "Installing ${missing[*]}"
log=$(mktemp)
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
# The package lists of a fresh image are often empty or old: refresh them only when the first try fails.
if ! install; then
  "${as_root[@]}" apt-get update -qq >"$log" 2>&1 && install || { cat "$log" >&2; rm -f "$log"; exit 1; }
fi
rm -f "$log"
# Clang is there now; its runtime may still be missing.
[[ ${1:-} != --fuzz ]] || libfuzzer_works || exec "$0" --fuzz
