#!/bin/bash
# fuzz.sh: build each tests/fuzz/fuzz_*.c with libFuzzer, AddressSanitizer and UBSan, and run it for
# FUZZ_SECONDS (default 10) from its corpus. Findings are left in build/fuzz/. Prints
# "N passed, N failed, N skipped".
set -u
seconds=${FUZZ_SECONDS:-10}
passed=0 failed=0 skipped=0
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n); int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { (void)d; (void)n; return 0; }' >"$probe/p.c"
if ! clang -fsanitize=fuzzer,address -o "$probe/p" "$probe/p.c" 2>/dev/null; then
    echo "skip fuzzing: clang with libFuzzer is not installed (Debian: clang libclang-rt-14-dev)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
make -s CC=clang VARIANT=fuzz BUILD=build/fuzz build/fuzz/parts.a || exit 1
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    program=build/fuzz/$name found=build/fuzz/found/$name corpus=build/fuzz/corpus/$name
    mkdir -p "$found" "$corpus"
    clang -std=c11 -D_POSIX_C_SOURCE=200809L -g -O1 -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=undefined -I. -Iinclude -o "$program" "$source" build/fuzz/parts.a \
        -lglpk -lcsv -ljansson -lexpat -lyaml -lzstd -lxxhash -lucp -lucs -lrt -lm -pthread || { failed=$((failed + 1)); continue; }
    if "$program" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=20 -max_len=65536 \
        -artifact_prefix="$found/" "$corpus" "tests/fuzz/corpus/$name" >"build/fuzz/$name.log" 2>&1; then
        echo "ok   $name: $(grep -o 'stat::number_of_executed_units: *[0-9]*\|Done [0-9]* runs' "build/fuzz/$name.log" | tail -1)"
        passed=$((passed + 1))
    else
        echo "FAIL $name: see build/fuzz/$name.log"
        grep -E 'ERROR|runtime error|SUMMARY' "build/fuzz/$name.log" | head -5
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
