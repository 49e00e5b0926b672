#!/bin/bash
# llama.sh [fetch]: build examples/capture/llama_capture.c against a real llama.cpp and check it (make
# llama). Headers and libraries are those of LLAMA_HOME (default build/llama): include/{llama,ggml*}.h and
# lib/libllama*.so, lib/libggml*.so. `fetch` puts those of the npm packages node-llama-cpp 3.21.1 there (llama.cpp
# v0.4.0, MIT, 46 MB): nothing is installed, nothing else is built.
set -eu
home=${LLAMA_HOME:-build/llama} version=3.21.1
build=${BUILD:-build/release}

fetch() {
    local work
    work=$(mktemp -d)
    trap 'rm -rf "$work"' RETURN
    (cd "$work" && npm pack --silent "node-llama-cpp@$version" "@node-llama-cpp/linux-x64@$version" >/dev/null &&
        tar xzf node-llama-cpp-$version.tgz package/llama/gitRelease.bundle &&
        git clone -q package/llama/gitRelease.bundle source 2>/dev/null &&
        tar xzf node-llama-cpp-linux-x64-$version.tgz package/bins) || return 1
    mkdir -p "$home/include" "$home/lib"
    cp "$work"/source/include/llama.h "$work"/source/ggml/include/*.h "$home/include/"
    cp "$work"/package/bins/linux-x64/*.so "$home/lib/"
}

library() { # NAME: the file of that library, whatever its version
    local files=("$home/lib/lib$1".so "$home/lib/lib$1".v*.so)
    for file in "${files[@]}"; do
        [ -e "$file" ] && basename "$file" && return
    done
    return 1
}

if [ "${1:-}" = fetch ] && [ ! -e "$home/include/llama.h" ]; then
    fetch || { echo "cannot fetch llama.cpp from npm" >&2; exit 77; }
fi
[ -e "$home/include/llama.h" ] && llama=$(library llama) && ggml=$(library ggml) && base=$(library ggml-base) || exit 77

mkdir -p "$build/tests/llama"
${CC:-cc} -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Iinclude -Iexamples/capture -Itests/llama \
    -isystem "$home/include" -o "$build/tests/llama/trace_llama" tests/llama/*.c examples/capture/llama_capture.c \
    "$build/libballast-trace.a" -L"$home/lib" -Wl,-rpath,"$(realpath "$home/lib")" -Wl,--allow-shlib-undefined \
    "-l:$llama" "-l:$ggml" "-l:$base" -lrt -lm
