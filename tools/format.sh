#!/usr/bin/env bash
# clang-format over all C and C++ of the repository: rewrites it, or with --check only says what differs, and exits with 1.
# Other versions format otherwise and would rewrite the tree, so it is this one or none (tools/install_deps.sh --lint installs it).
set -euo pipefail
cd "$(dirname "$0")/.."

version=14
formatter=
for candidate in "clang-format-$version" clang-format; do
  if command -v "$candidate" >/dev/null && [[ $("$candidate" --version) == *"version $version."* ]]; then
    formatter=$candidate
    break
  fi
done
if [[ -z $formatter ]]; then
  echo "clang-format $version is not installed: tools/install_deps.sh --lint" >&2
  exit 1
fi
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.h' '*.hpp' '*.cc' '*.cpp' '*.c' '*.cu' '*.cuh')
if [[ ${1:-} == --check ]]; then
  "$formatter" --dry-run --Werror "${files[@]}"
  echo "${#files[@]} files are formatted"
else
  "$formatter" -i "${files[@]}"
fi
