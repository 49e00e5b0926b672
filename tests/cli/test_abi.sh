#!/bin/bash
# The engine's side of libballast-trace: what it shows, what it needs, and how its structs lie in memory
# are as tests/abi/ says. An addition is entered there; whatever else differs breaks engines.
. tests/tap.sh
library=$BUILD/libballast-trace.so
symbols() { nm -D --defined-only "$library" | awk '{print $3}' | LC_ALL=C sort | diff tests/abi/libballast-trace.symbols - ; }
# Sanitizers bring their own.
libc_only() {
    local needed
    needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(libc|librt|libpthread|ld-linux.*|lib[atu].*san)\.so|^libcudart|^libstdc|^libgcc_s|^libm\.so' )
    [ -z "$needed" ] || { echo "# needs $needed"; return 1; }
}
unversioned() { # a symbol that no library it is linked with defines
    local loose
    loose=$(nm -D --undefined-only "$library" | awk '$1 == "U" {print $2}' | grep -v '@')
    [ -z "$loose" ] || { echo "# undefined: $loose"; return 1; }
}
layout() { "${CC:-cc}" -std=c11 -Iinclude tests/abi/layout.c -o "$work/layout" && "$work/layout" | diff tests/abi/layout.txt -; }
cplusplus() { printf '#include "ballast.h"\nint main() { bl_trace_options o = BL_TRACE_OPTIONS_INIT; return (int)o.flags; }\n' >"$work/a.cc" &&
    "${CXX:-c++}" -Wall -Wextra -Werror -Iinclude -fsyntax-only "$work/a.cc"; }
c99() { printf '#include "ballast.h"\nint main(void) { bl_trace_rows r = BL_TRACE_ROWS_INIT; return r.id_bytes; }\n' >"$work/a.c" &&
    "${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only "$work/a.c"; }
embed_symbols() { nm -D --defined-only "$BUILD/libballast.so" | awk '{print $3}' | LC_ALL=C sort | diff tests/abi/libballast.symbols - ; }
# Neither GLPK nor a server of its own inside an engine; what sanitizers bring aside.
embed_needs() {
    local needed
    needed=$(readelf -d "$BUILD/libballast.so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
        grep -vE '^lib(c|m|rt|pthread|ucp|ucs|jansson|xxhash|zstd|nccl|cudart|stdc\+\+|gcc_s|[atu].*san)\.so|^ld-linux')
    [ -z "$needed" ] || { echo "# needs $needed"; return 1; }
}
embed_layout() { "${CC:-cc}" -std=c11 -Iinclude tests/abi/layout_embed.c -o "$work/layout_embed" && "$work/layout_embed" | diff tests/abi/layout_embed.txt -; }
embed_c99() { printf '#include "ballast_embed.h"\nint main(void) { bl_embed_options o = BL_EMBED_OPTIONS_INIT; bl_tensor t = BL_TENSOR_INIT; bl_layer l = BL_LAYER_INIT; bl_step_news n = BL_STEP_NEWS_INIT; bl_embed_status s = BL_EMBED_STATUS_INIT; return o.rank + t.scope + l.layer + n.layer + s.leads; }\n' >"$work/e.c" &&
    "${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Werror -Iinclude -fsyntax-only "$work/e.c"; }
embed_cplusplus() { cp "$work/e.c" "$work/e.cc" && "${CXX:-c++}" -Wall -Wextra -Werror -Iinclude -fsyntax-only "$work/e.cc"; }
check "exported symbols" symbols
check "needs the C library only" libc_only
if [[ $BUILD == *address* || $BUILD == *undefined* || $BUILD == *thread* ]]; then
    skip "nothing is left undefined" "a sanitizer puts its own in between"
else
    check "nothing is left undefined" unversioned
fi
check "struct layout" layout
check "the header is C99" c99
check "libballast: exported symbols" embed_symbols
check "libballast: what it needs" embed_needs
check "libballast: struct layout" embed_layout
check "libballast: the header is C99" embed_c99
if command -v "${CXX:-c++}" >/dev/null; then
    check "the header is C++" cplusplus
    check "libballast: the header is C++" embed_cplusplus
else
    skip "the header is C++" "no C++ compiler"
fi
finish
