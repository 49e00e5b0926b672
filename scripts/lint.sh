#!/bin/bash
# lint.sh: formatting, house rules, arrows between the rooms (by include and by symbol), static
# analysis. Prints "N passed, N failed, N skipped".
set -u
build=${BUILD:-build/release}
passed=0 failed=0 skipped=0
report() { # NAME OUTPUT: passes when there is no output
    if [ -z "$2" ]; then
        echo "ok   $1"
        passed=$((passed + 1))
    else
        echo "FAIL $1"
        printf '%s\n' "$2" | head -20 | sed 's/^/     /'
        failed=$((failed + 1))
    fi
}
pass_by() { # NAME WHY
    echo "skip $1: $2"
    skipped=$((skipped + 1))
}
sources=$(git ls-files '*.c' '*.h')

# ---- arrows: a room may include what stands to its right ----
room_may() {
    case $1 in
    core) echo 'core' ;;
    topologies | tracer) echo "core $1" ;;
    planner) echo 'core topologies tracer planner' ;;
    runtime) echo 'core topologies tracer runtime' ;;
    rebalancer) echo 'core topologies tracer planner runtime rebalancer' ;;
    cli) echo 'core topologies tracer planner runtime rebalancer cli' ;;
    esac
}
rooms='core topologies tracer planner runtime rebalancer cli'
wrong=
for room in $rooms; do
    may=" $(room_may $room) "
    while IFS=: read -r file line include; do
        target=$(printf '%s' "$include" | sed 's/.*"\([a-z]*\)\/.*/\1/')
        case $may in *" $target "*) ;; *) wrong+="$file:$line: $room must not include $target"$'\n' ;; esac
    done < <(grep -nE '^#include "[a-z]+/' $(git ls-files "$room/*.c" "$room/*.h") /dev/null)
done
report 'arrows by include' "$wrong"

# The same by symbol: an object may only need symbols that an allowed room defines.
table=$(mktemp)
trap 'rm -f "$table"' EXIT
objects_of() { # ROOM: of the sources there are now, not of those that were
    for source in $(git ls-files "$1/*.c"); do
        [ -f "$build/${source%.c}.o" ] && echo "$build/${source%.c}.o"
    done
}
for room in $rooms; do
    for object in $(objects_of $room); do
        nm -g --defined-only "$object" | awk -v r="$room" '{print $3, r}'
    done
done | sort -u >"$table"
report 'arrows by symbol' "$([ -s "$table" ] || echo "$build holds no objects: build first"
    for room in $rooms; do
        for object in $(objects_of $room); do
            nm -g --undefined-only "$object" | awk '{print $2}' | sort -u | join - "$table" |
                awk -v may=" $(room_may $room) " -v o="$object" \
                    'index(may, " " $2 " ") == 0 {print o ": needs " $1 " of " $2}'
        done
    done)"

# ---- libraries: GLPK only in the program, libc only in the engine's library ----
report 'no library needs GLPK' "$(nm -A "$build"/lib*.a "$build"/lib*.so 2>&1 | grep -E ' U glp_|No such' | head -3)"
report 'libballast-trace needs libc only' "$(readelf -d "$build/libballast-trace.so" 2>&1 |
    sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p; /Error/p' | grep -vE '^(libc|librt|libpthread)\.so')"
report 'public symbols have the prefix' "$(for lib in "$build"/lib*.so; do
    nm -D --defined-only "$lib" 2>&1 | awk '{print $3}' | grep -vE '^(bl_|_init$|_fini$|__)' | head -5
done)"
report 'only the MILP door includes GLPK' "$(grep -ln 'glpk\.h' $sources | grep -v '^planner/milp_glpk\.c$')"
report 'only the doors include jansson, libcsv, expat, libyaml, xxHash' "$(
    grep -n '#include <jansson.h>' $sources | grep -v '^core/json.h'
    grep -n '#include <csv.h>' $sources | grep -v '^core/csv.c'
    grep -n '#include <expat.h>' $sources | grep -v '^core/xml.c'
    grep -n '#include <yaml.h>' $sources | grep -v '^core/yaml.c'
    grep -n '#include <xxhash.h>' $sources | grep -v '^core/hash.c'
    grep -n '#include <microhttpd.h>' $sources | grep -v '^cli/metrics.c'
    grep -n '#include <uc[pst]/' $sources | grep -v '^runtime/transport_ucx')"

# ---- house rules ----
report 'no file over 800 lines' "$(for f in $(git ls-files '*.c' '*.h'); do
    n=$(wc -l <"$f")
    [ "$n" -le 800 ] || echo "$f: $n lines"
done)"
report 'no unfinished business' "$(grep -nE '\b(TODO|FIXME|XXX)\b|^#if 0' $sources)"
report 'scripts can be run' "$(git ls-files -s scripts/*.sh tests/cli/*.sh | grep -v ^100755)"
report 'every header starts with an essay' "$(for f in $(git ls-files '*.h'); do
    head -1 "$f" | grep -q '^/\*' || echo "$f"
done)"
if command -v clang-format >/dev/null; then
    report 'clang-format' "$(clang-format --dry-run -Werror $sources 2>&1 | grep -E 'error' | head)"
else
    pass_by clang-format 'not installed'
fi
if command -v shellcheck >/dev/null; then
    report shellcheck "$(shellcheck -S error scripts/*.sh tests/*.sh .ci/run 2>&1 | head -20)"
else
    pass_by shellcheck 'not installed'
fi
if command -v cppcheck >/dev/null; then
    report cppcheck "$(cppcheck -q --std=c11 --enable=warning,portability --inline-suppr \
        --suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches \
        --error-exitcode=0 -I. -Iinclude -j2 -DBL_VERSION='"x"' \
        $(git ls-files '*.c' | grep -v '^tests/') 2>&1 | head -20)"
else
    pass_by cppcheck 'not installed'
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
