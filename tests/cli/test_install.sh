#!/bin/bash
# What `make install` leaves is enough for somebody who has nothing else: headers in C and C++, the example
# by pkg-config against the shared library and the static one, a first program in C++.
. tests/tap.sh
CC=${CC:-cc} CXX=${CXX:-c++} root=$work/root
san=
[[ ${BUILD:?} == *address* ]] && san=-fsanitize=address,undefined
[[ $BUILD == *undefined* ]] && san=-fsanitize=undefined
[[ $BUILD == *thread* ]] && san=-fsanitize=thread
check "installs under DESTDIR" env BUILD="$BUILD" DESTDIR="$root" PREFIX=/opt/ballast scripts/install.sh
prefix=$root/opt/ballast
mkdir "$work/away" && cp examples/embed.c "$work/away/"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root LD_LIBRARY_PATH=$prefix/lib
flags() { pkg-config "$@" ballast; }

headers() { # each by itself, as strict as compilers are
    local header
    for header in "$prefix"/include/*.h; do
        echo "#include \"${header##*/}\"" | "$CC" -std=c99 -pedantic -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only -xc - || return 1
        ! command -v "$CXX" >/dev/null ||
            echo "#include \"${header##*/}\"" | "$CXX" -std=c++11 -pedantic -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only -xc++ - || return 1
    done
}
check "every header stands alone in C99 and C++11" headers
# It runs as far as to say how it is called.
usage() { "$@" 2>"$work/usage"; [ $? -eq 2 ] && grep -q '^usage:' "$work/usage"; }
shared_library() {
    # shellcheck disable=SC2046
    cd "$work/away" && "$CC" $san -Wall -Wextra -Werror embed.c $(flags --cflags --libs) -o embed && usage ./embed
}
static_library() {
    local libs
    libs=$(flags --libs --static | sed "s|-lballast|$prefix/lib/libballast.a|")
    # shellcheck disable=SC2046,SC2086
    cd "$work/away" && "$CC" $san embed.c $(flags --cflags) $libs -o embed_static && usage ./embed_static
}
check "examples/embed.c by pkg-config" shared_library
check "and with the static library" static_library
cplusplus() { # alone with one layer by pointers: declare, start, step
    cat >"$work/away/first.cc" <<'END'
#include "ballast_embed.h"
#include <cstdio>
#include <vector>
int main() {
    std::vector<float> memory(3 * 8);
    void *at[3] = {&memory[0], &memory[8], &memory[16]};
    const int32_t expert[2] = {0, 1};
    bl_embed *embed = nullptr;
    char text[256];
    bl_embed_options o = BL_EMBED_OPTIONS_INIT;
    o.rank = 0; o.n_ranks = 1; o.model = "first"; o.n_experts = 2; o.top_k = 1; o.socket = "";
    bl_tensor t = BL_TENSOR_INIT;
    t.name = "w"; t.pointers = at; t.entries = 2; t.row_bytes = 8 * sizeof(float);
    bl_layer l = BL_LAYER_INIT;
    l.layer = 0; l.n_slots = 2; l.expert = expert; l.tensors = &t; l.n_tensors = 1; l.n_spares = 1;
    bl_step_news news = BL_STEP_NEWS_INIT;
    bl_trace_map map = BL_TRACE_MAP_INIT;
    if (bl_embed_open(&o, &embed, text, sizeof text) < 0) return std::puts(text), 1;
    if (bl_embed_add_layer(embed, &l) < 0 || bl_embed_start(embed) < 0 || bl_step(embed, &news) < 0)
        return std::puts(bl_embed_error(embed)), 1;
    const int st = bl_map(embed, 0, &map);
    std::printf("step %d, slot 1 holds %d, status %d\n", (int)news.step, (int)map.expert[1], st);
    bl_embed_close(embed);
}
END
    # shellcheck disable=SC2046
    cd "$work/away" && "$CXX" $san -std=c++11 -Wall -Wextra first.cc $(flags --cflags --libs) -o first &&
        ./first | diff - <(echo "step 1, slot 1 holds 1, status 0")
}
if command -v "$CXX" >/dev/null; then
    check "a first program in C++" cplusplus
else
    skip "a first program in C++" "no C++ compiler"
fi
finish
