#!/bin/bash
# ballast topo: the catalogue, a table to read, a file to start from, and mistakes with a hint.
. tests/tap.sh

table() {
    diff - <("$ballast" topo show hgx-h100:nodes=2) <<'END'
hgx-h100:nodes=2: 16 ranks on 2 hosts

device H100 SXM 80GB, 16 ranks
  memory 80 GB d at 3.35 TB/s d, 0.7 of it for experts a
  bf16       989 TFLOP/s d
  f32        67 TFLOP/s d
  fp8-block  1.98 PFLOP/s d
  fp8        1.98 PFLOP/s d

level        domains   ranks  latency      message      out/port       in/port         ports  44 MB in
nvlink             2       8  2 us a       200 ns a     450 GB/s d     450 GB/s d        1 d  100 us
cluster            1      16  5 us a       1 us a       50 GB/s a      50 GB/s a         8 a  887 us

nvlink 0: ranks 0-7 on host0
nvlink 1: ranks 8-15 on host1

m measured, d datasheet, a assumed. A pair of ranks uses one port; the ranks of one
domain share its ports into the next level. 44 MB is one expert of DeepSeek-V3 in FP8.
END
}
listed() { "$ballast" topo list | grep -q "^$1 .*:$2=1\.\."; }
json_list() {
    "$ballast" topo list --json |
        python3 -c 'import json,sys; t={x["name"]: x for x in json.load(sys.stdin)["topologies"]}
assert t["gb200-nvl72"]["ranks"] == 72 and t["hgx-h100"]["parameters"]["nodes"]["max"] == 1024'
}
# What show --json prints is a file that shows the same, name and all.
round_trip() {
    "$ballast" topo show "$1" --json >"$work/t.json" &&
        "$ballast" topo show "$work/t.json" >"$work/again" &&
        "$ballast" topo show "$1" | cmp - "$work/again"
}
interleaved() {
    python3 - "$work" <<'END' && "$ballast" topo show "$work/mixed.json" | grep -q '^nvlink 1: ranks 1,3 on b$'
import json, subprocess, os, sys
t = json.loads(subprocess.check_output([os.environ["BALLAST"], "topo", "show", "hgx-h100", "--json"]))
t["ranks"] = [{"path": h, "host": h} for h in "abab"]
json.dump(t, open(sys.argv[1] + "/mixed.json", "w"))
END
}
exits() { # exits CODE COMMAND...
    local want=$1
    shift
    "$@" >/dev/null 2>&1
    [ $? -eq "$want" ]
}
json_error() {
    "$ballast" topo show none --json 2>/dev/null |
        python3 -c 'import json,sys; assert json.load(sys.stdin)["error"]["code"] == "ERR_USAGE"'
}

check "show prints the tree, its costs and their sources" table
check "list knows hgx-h100" listed hgx-h100 nodes
check "list knows local" listed local ranks
if command -v python3 >/dev/null; then
    check "list --json" json_list
    check "an interleaved map is shown as it is" interleaved
    check "errors are JSON under --json" json_error
else
    for name in "list --json" "an interleaved map is shown as it is" "errors are JSON under --json"; do
        skip "$name" "no python3"
    done
fi
check "show --json is a topology file" round_trip hgx-h100:nodes=3
check "show --json is a topology file, three levels" round_trip pcie-8:nodes=2
check "unknown sub-verb gets a hint" fails_with "did you mean show?" "$ballast" topo sow x
check "unknown sub-verb without a near one" fails_with "list, show, import, probe and calibrate" "$ballast" topo frobnicate
check "no sub-verb" exits 2 "$ballast" topo
check "list takes nothing" fails_with "no argument" "$ballast" topo list x
check "show needs a topology" fails_with "needs a topology" "$ballast" topo show
check "a mistaken name gets a hint" fails_with "did you mean gb200-nvl72?" "$ballast" topo show gb200-nvl7
check "a mistaken parameter gets a hint" fails_with "did you mean nodes?" "$ballast" topo show hgx-h100:node=2
check "a parameter out of range" fails_with "[1, 1024]" "$ballast" topo show hgx-h100:nodes=0
check "usage errors exit 2" exits 2 "$ballast" topo show hgx-h100:nodes=0
echo '{"format":"ballast-topology","version":9}' >"$work/new.json"
check "a newer file" fails_with "version 9" "$ballast" topo show "$work/new.json"
check "failures exit 1" exits 1 "$ballast" topo show "$work/new.json"
check "a directory is no topology" exits 1 "$ballast" topo show "$work"
finish
