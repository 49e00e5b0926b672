#!/bin/sh
# deps.sh [test]: install what Ballast needs and this machine lacks (Debian and its children); with
# `test`, also what only its tests need. Does nothing, and needs no rights, when all of it is there.
set -eu

# header or program : package
deps='
cc:gcc
ar:binutils
pkg-config:pkg-config
/usr/include/glpk.h:libglpk-dev
/usr/include/csv.h:libcsv-dev
/usr/include/jansson.h:libjansson-dev
/usr/include/expat.h:libexpat1-dev
/usr/include/yaml.h:libyaml-dev
/usr/include/zstd.h:libzstd-dev
/usr/include/xxhash.h:libxxhash-dev
/usr/include/ucp/api/ucp.h:libucx-dev
/usr/include/microhttpd.h:libmicrohttpd-dev
/usr/include/cmocka.h:libcmocka-dev
'

# What the tests compare with: an independent JSON reader, and NumPy for the examples in Python.
[ "${1:-}" != test ] || deps="$deps
python3:python3
/usr/lib/python3/dist-packages/numpy:python3-numpy"

missing=
for dep in $deps; do
    what=${dep%%:*} package=${dep##*:}
    case $what in
    /*) [ -e "$what" ] || missing="$missing $package" ;;
    *) command -v "$what" >/dev/null 2>&1 || missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0

echo "installing:$missing" >&2
if ! command -v apt-get >/dev/null 2>&1; then
    echo "no apt-get here: please install the equivalents of$missing" >&2
    exit 1
fi
as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing libc6-dev >/dev/null
