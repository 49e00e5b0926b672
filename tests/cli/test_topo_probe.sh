#!/bin/bash
# ballast topo probe: measures what is there, and planning uses it.
. tests/tap.sh
. tests/hosts.sh
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE \
    BALLAST_RENDEZVOUS
model=examples/tiny-moe

check "four ranks of this host" "$ballast" topo probe -n 4 --seconds 0.01 -o "$work/here.json" 2>"$work/here.err"
check "what was done is said" grep -q "6 pairs measured over ucx in 6 rounds" "$work/here.err"
check "the result is a topology" eval '"$ballast" topo show "$work/here.json" | grep -q "probe: 4 ranks on 1 host"'
check "every pair has been measured" python3 - "$work/here.json" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
for key in ("latency_s", "bytes_per_s"):
    m = d["pairs"][key]
    assert m["source"] == "measured"
    for a in range(4):
        for b in range(4):
            assert (m["values"][a][b] is None) == (a == b) and (a == b or m["values"][a][b] > 0)
assert all(r["host"] == d["ranks"][0]["host"] for r in d["ranks"])
assert all(level[key]["source"] == "measured" and level[key]["value"] > 0 for level in d["levels"]
           for key in ("latency_s", "message_s", "out_bytes_per_s", "in_bytes_per_s"))
P
check "the device may come from a base" "$ballast" topo probe -n 2 --seconds 0.01 --base hgx-h100 -o "$work/base.json" 2>/dev/null
check "and is its" grep -q '"name": "H100' "$work/base.json"
check "planning takes it" eval '"$ballast" synth --model $model/config.json --steps 8 --tokens-per-step 64 --ranks 4 -o "$work/t.blt" &&
    "$ballast" plan --trace "$work/t.blt" --model $model/config.json --topology "$work/here.json" --slots 40 \
        --objective time -o "$work/p.json" >/dev/null'
check "neither -n nor a launcher" fails_with "probe needs -n N" "$ballast" topo probe -o "$work/x.json"
check "nowhere to write" fails_with "probe needs -o OUT" "$ballast" topo probe -n 2
check "nothing half-written is left" [ ! -e "$work/x.json" ]

# Five ranks on four hosts, two of them on the last, on links of 400, 200, 100 and 400 Mbit/s.
rates=(50e6 25e6 12.5e6 50e6 50e6)
on_shaped_links() {
    local rank pids=() bad=0
    for rank in 4 3 2 1 0; do
        ip netns exec "$(hosts_name $((rank < 4 ? rank : 3)))" env RANK=$rank WORLD_SIZE=5 \
            MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 "$ballast" topo probe --seconds 0.15 \
            -o "$work/four.json" 2>>"$work/four.err" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || bad=1
    done
    [ $bad -eq 0 ] || sed 's/^/# /' "$work/four.err"
    return $bad
}
# A pair gets the slower of its two links, within 15 %.
as_shaped() {
    python3 - "$work/four.json" "${rates[@]}" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
rates = [float(r) for r in sys.argv[2:]]
m, host = d["pairs"]["bytes_per_s"]["values"], [r["host"] for r in d["ranks"]]
bad = 0
for a in range(5):
    for b in range(5):
        if a != b and host[a] != host[b]:
            off = m[a][b] / min(rates[a], rates[b]) - 1
            print("# %d to %d: %.2f MB/s, %+.1f %%" % (a, b, m[a][b] / 1e6, 100 * off))
            bad += abs(off) > 0.15
sys.exit(bad > 0)
P
}
five_on_four() {
    python3 - "$work/four.json" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
host = [r["host"] for r in d["ranks"]]
assert len(set(host)) == 4 and host[3] == host[4], host
assert [level["name"] for level in d["levels"]] == ["host", "network"]
assert d["pairs"]["bytes_per_s"]["values"][3][4] > 200e6  # inside one host no link counts
P
}
if hosts_work; then
    trap 'hosts_down; rm -rf "$work"' EXIT
    hosts_up 400mbit 200mbit 100mbit 400mbit
    check "five ranks on four hosts with shaped links" on_shaped_links
    check "every link within 15 % of its shape" as_shaped
    check "hosts are told apart" five_on_four
    hosts_down
else
    for name in "five ranks on four hosts with shaped links" "every link within 15 % of its shape" \
        "hosts are told apart"; do
        skip "$name" "needs root and network namespaces"
    done
fi
finish
