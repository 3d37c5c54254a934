#!/usr/bin/env bash
# clang-format over all C and C++ of the repository: rewrites it, or with --check only says what differs.
set -euo pipefail
cd "$(dirname "$0")/.."

formatter=$(command -v clang-format || compgen -c clang-format- | grep -E '^clang-format-[0-9]+$' | sort -V | tail -1 || true)
if [[ -z $formatter ]]; then
  echo "clang-format is not installed: the format is not checked"
  exit 0
fi
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.h' '*.cc' '*.c' '*.cu' '*.cuh')
if [[ ${1:-} == --check ]]; then
  "$formatter" --dry-run --Werror "${files[@]}"
  echo "${#files[@]} files are formatted"
else
  "$formatter" -i "${files[@]}"
fi
