#!/bin/bash
# bench.sh PROGRAM...: run the benchmark programs one after another. Each prints CSV rows
# "name,value,unit,n,min,median,max" (value is the median or an exact figure); rows of one program are
# measured side by side in one run. A benchmark whose data is missing says so and prints nothing.
set -u
echo "# $(uname -sm), $(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)"
echo "name,value,unit,n,min,median,max"
status=0
for program in "$@"; do
    "$program" || status=1
done
"$(dirname "$0")/bench_tokens.sh" || status=1
"$(dirname "$0")/bench_record.sh" || status=1
"$(dirname "$0")/bench_predict.sh" || status=1
exit $status
