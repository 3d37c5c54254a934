#!/bin/sh
# usage: pkg_config.sh PKG_CONFIG PREFIX LIBDIR SOURCE OUTPUT COMPILER [FLAGS...]
# Builds SOURCE with one plain compiler line and what pkg-config says, and runs it.
set -eu
pkg_config=$1 prefix=$2 libdir=$3 source=$4 output=$5
shift 5
export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
"$pkg_config" --print-errors --exists 'tierkv >= 0.1'
set -x
# The flags of pkg-config are words to be split.
# shellcheck disable=SC2046
"$@" -O1 "$source" $("$pkg_config" --cflags tierkv) -o "$output" $("$pkg_config" --libs --static tierkv)
LD_LIBRARY_PATH="$prefix/$libdir" "$output"
