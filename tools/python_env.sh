#!/usr/bin/env bash
# The virtual environments that build and test the Python package, under TIERKV_CACHE, once: 5.5 GB and some minutes the first time.
#
#   python/common         torch, pytest, nanobind, …: python/requirements/common.txt
#   python/transformers4  the last 4.x; sees what common has
#   python/transformers5  the newest 5.x, likewise
#   python/peers          other people's caches beside it, likewise; made only when asked for
#
#   tools/python_env.sh                 makes what is missing or was made from other requirements
#   tools/python_env.sh peers           and peers too
#   tools/python_env.sh --check [peers] only says whether they are there (exit status 1: they are not)
set -euo pipefail
cd "$(dirname "$0")/.."
TIERKV_CACHE=${TIERKV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierkv}
base=$TIERKV_CACHE/python
python=${PYTHON:-python3}

# An environment is as its requirements say when it holds a copy of them.
ready() { cmp -s "python/requirements/$1.txt" "$base/$1/requirements.txt" && [[ -x $base/$1/bin/python ]]; }

names=(common transformers4 transformers5)
[[ ${!#} == peers ]] && names+=(peers)
if [[ ${1:-} == --check ]]; then
  for name in "${names[@]}"; do
    ready "$name" || { echo "$base/$name is not there or was made from other requirements: make test-python sets it up"; exit 1; }
  done
  exit 0
fi

mkdir -p "$base"
exec 9>"$base/lock"
flock 9
for name in "${names[@]}"; do
  ready "$name" && continue
  echo "setting up $base/$name"
  [[ -x $base/$name/bin/python ]] || "$python" -m venv "$base/$name"
  if [[ $name != common ]]; then
    # What common has is seen from here, and pip does not install it again.
    site=$("$base/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    "$base/common/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/common.pth"
  fi
  "$base/$name/bin/python" -m pip install --quiet --disable-pip-version-check -r "python/requirements/$name.txt"
  # Packages whose own requirements are left out.
  for package in $(sed -n 's/^# alone: //p' "python/requirements/$name.txt"); do
    "$base/$name/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$package"
  done
  cp "python/requirements/$name.txt" "$base/$name/requirements.txt"
done
