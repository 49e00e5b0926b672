#!/bin/bash
# libballast-plan.so from another language: it loads by itself, without GLPK, and plans.
. tests/tap.sh
library=${BUILD:?}/libballast-plan.so
no_glpk() { ! ldd "$library" | grep -q glpk && ! nm -D "$library" | grep -q glp_; }
check "needs no GLPK" no_glpk
if [[ $BUILD == *address* || $BUILD == *undefined* || $BUILD == *thread* ]]; then
    skip "rebalance from Python" "the sanitizer's run time is not in the interpreter"
    finish
fi
rebalance() {
    python3 - "$library" <<'END'
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL)
L, E, P, G = 2, 5, 6, 2
weight = (ctypes.c_double * (L * E))(16, 12, 11, 15, 0, 1, 1, 1, 1, 1)
phy, cnt = (ctypes.c_int32 * (L * P))(), (ctypes.c_int32 * (L * E))()
log = (ctypes.c_int32 * (L * E * (P - E + 1)))()
text = ctypes.create_string_buffer(200)
def call(old):
    return lib.bl_plan_rebalance(weight, L, E, P, G, old, None, phy, log, cnt, text, ctypes.c_size_t(200))
assert call(None) == 0, text.value
# The one placement of load 27 copies the coldest expert.
assert sorted(sorted(phy[i:i + 3]) for i in (0, 3)) == [[0, 2, 4], [1, 3, 4]], list(phy)
assert list(cnt[:E]) == [1, 1, 1, 1, 2] and sum(cnt) == L * P
assert sorted(log[8:10]) == [p for p in range(P) if phy[p] == 4]
first = list(phy)
assert call((ctypes.c_int32 * (L * P))(*first)) == 0 and list(phy) == first
weight[7] = float("nan")
assert call(None) < 0 and b"layer 1" in text.value, text.value
END
}
check "rebalance from Python" rebalance
finish
