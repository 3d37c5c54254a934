#!/usr/bin/env bash
# usage: fuzz_long.sh BUILD_DIR WORK_DIR SECONDS
# Runs every libFuzzer program of BUILD_DIR for SECONDS. What it learns stays in WORK_DIR and is where the next run starts.
set -euo pipefail
build=$1 work=$2 seconds=$3
root=$(cd "$(dirname "$0")/.." && pwd)

for fuzzer in "$build"/bin/fuzz/*_fuzzer; do
  name=$(basename "$fuzzer" _fuzzer)
  mkdir -p "$work/$name/corpus" "$work/$name/crashes"
  arguments=(-max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$work/$name/crashes/")
  [[ -f $root/fuzz/$name.dict ]] && arguments+=(-dict="$root/fuzz/$name.dict")
  corpora=("$work/$name/corpus")
  [[ -d $root/fuzz/corpus/$name ]] && corpora+=("$root/fuzz/corpus/$name")
  echo "== $name for $seconds s"
  "$fuzzer" "${arguments[@]}" "${corpora[@]}"
done
