#!/usr/bin/env bash
# A CUDA compiler without a CUDA toolkit: NVIDIA's packages from PyPI, pinned, unpacked once under TIERKV_CACHE. Prints the folder
# that has bin/nvcc, include/ and lib/. Nothing is installed; a GPU is not needed.
set -euo pipefail
cache=${TIERKV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierkv}
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-crt==13.0.88
  nvidia-nvvm==13.0.88)
folder=$cache/nvcc-13.0.88
if [ ! -x "$folder/nvidia/cu13/bin/nvcc" ]; then
  mkdir -p "$cache"
  fresh=$(mktemp -d "$folder.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$fresh" "${packages[@]}" >&2
  chmod 755 "$fresh"/nvidia/cu13/bin/* 2>/dev/null || true
  # Two builds at once: the first to finish wins, the other one's copy goes.
  [ -d "$folder" ] || mv -T "$fresh" "$folder" 2>/dev/null || true
fi
echo "$folder/nvidia/cu13"
