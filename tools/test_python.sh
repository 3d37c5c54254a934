#!/usr/bin/env bash
# Builds the Python package as a wheel and tests it as people get it: installed in a folder of its own, outside the clone's.
#
#   tools/test_python.sh [FOLDER] [pytest arguments]     FOLDER: where the wheel and the install go, build-python when not given
#
# Exit status 77: the virtual environments are not there (tools/python_env.sh makes them), and nothing was tested.
set -euo pipefail
cd "$(dirname "$0")/.."
export TIERKV_CACHE=${TIERKV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierkv}
out=$(realpath -m "${1:-build-python}")
shift || true
tools/python_env.sh --check || exit 77
base=$TIERKV_CACHE/python
# The ccache of the main build has the library's objects already, and the program's, if both were compiled with the same flags.
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_DIR=${CCACHE_DIR:-$TIERKV_CACHE/ccache} CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
fi
# By the names that CMake finds; Python's own would be others, and a compiler cache goes by names.
export CC=${CC:-cc} CXX=${CXX:-c++}
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
export PATH=$base/common/bin:$PATH

rm -rf "$out/wheel" "$out/site"
mkdir -p "$out"
python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$out/wheel" \
  --config-settings=cmake.define.TIERKV_WERROR="${WERROR:-OFF}" .
python -m pip install --quiet --disable-pip-version-check --no-deps --no-index --target "$out/site" "$out"/wheel/tierkv-*.whl
export PYTHONPATH=$out/site TIERKV_WHEEL_DIR=$out/wheel
# Where libllama can be had, the program is in the wheel, and its tests must not be skipped.
if python tools/fetch.py llama.cpp >/dev/null 2>&1; then export TIERKV_WHEEL_HAS_PROGRAM=1; fi
# All of it beside the newest transformers; what depends on the generation again beside the last of the other.
"$base/transformers5/bin/python" -m pytest -q -p no:cacheprovider "$@"
"$base/transformers4/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_hf_*.py "$@"
# And beside other people's caches, where they are set up (tools/python_env.sh peers).
if tools/python_env.sh --check peers >/dev/null; then
  "$base/peers/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_chunks.py python/tests/test_example.py "$@"
fi
