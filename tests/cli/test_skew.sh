#!/bin/bash
# Real skew: prompts in Chinese alone make some experts of tiny-moe hot. A plan from their trace lowers
# what the ranks measure, and by as much as it says, on these prompts and on others in Chinese. All
# figures tested are counts, and the same in every run; times are only told.
. tests/tap.sh
model=examples/tiny-moe
serve() { # TIMES OPTION...
    local times=$1
    shift
    "$ballast" run -n 4 --model $model --batch 4 --max-tokens 48 --repeat "$times" --json "$@" 2>/dev/null
}

printf '%s\n---\n' 使用这个命令可以查看系统的状态 文件的权限由下面的选项决定 如果发生错误，返回值为 \
    该函数用来打开一个目录并 默认情况下，输出将会写到标准 注意：本手册页只是描述了 可以指定多个参数，它们之间用空格 |
    sed '$d' >"$work/other.txt"
serve 6 --slots 40 --prompts $model/prompts/chinese.txt --record "$work/chinese.blt" >"$work/start.json"
serve 1 --slots 40 --prompts $model/prompts/c.txt --record "$work/c.blt" >"$work/c.json"
"$ballast" stat --json "$work/chinese.blt" >"$work/chinese.stat"
"$ballast" stat --json "$work/c.blt" >"$work/c.stat"
"$ballast" plan --trace "$work/chinese.blt" --model $model/config.json --topology local:ranks=4 \
    --slots 40 --phase all -o "$work/plan.json" 2>"$work/plan.err"
serve 6 --plan "$work/plan.json" --prompts $model/prompts/chinese.txt >"$work/planned.json"
serve 6 --slots 40 --prompts "$work/other.txt" --record "$work/other.blt" >"$work/other.start.json"
serve 6 --plan "$work/plan.json" --prompts "$work/other.txt" >"$work/other.planned.json"
"$ballast" replay --trace "$work/other.blt" --topology local:ranks=4 "$work/plan.json" --json \
    >"$work/replay.json" 2>/dev/null

# holds EXPRESSION: of the answers by name, and of what the functions below make of them.
holds() {
    # shellcheck disable=SC2317
    python3 - "$work" "$1" <<'END'
import json, sys
load = lambda name: json.load(open("%s/%s" % (sys.argv[1], name)))
start, planned, plan = load("start.json"), load("planned.json"), load("plan.json")
other, other_planned, replay = load("other.start.json"), load("other.planned.json"), load("replay.json")
def hot(stat):       # of each layer how far its hottest expert lies above the mean
    return [l["max_over_mean_experts"] for l in load(stat)["layers"]]
def mean(run):       # measured max/mean over ranks, of steps and layers
    return run["imbalance"]["mean"]
def slowest(run):    # rows computed by the slowest rank, summed over steps: what experts wait for
    return sum(s["imbalance"] * s["tokens"] for s in run["per_step"])
def predicted(plan): # of the same, by the plan
    phases = plan["predicted"].values()
    return sum(p["steps"] * p["imbalance"]["mean"] for p in phases) / sum(p["steps"] for p in phases)
off = lambda got, want: abs(got / want - 1)
if eval(sys.argv[2]):
    sys.exit(0)
print("# %s: hot %s, %s; start %.4f, planned %.4f, predicted %.4f; others %.4f, %.4f; slowest %.4f" % (
    sys.argv[2], hot("chinese.stat"), hot("c.stat"), mean(start), mean(planned), predicted(plan),
    mean(other), mean(other_planned), slowest(planned) / slowest(start)))
sys.exit(1)
END
}
check "prompts in Chinese have hot experts: in most layers one gets over four times its share" \
    holds 'sorted(hot("chinese.stat"))[1] > 4'
check "more so than prompts about C" holds 'sum(hot("chinese.stat")) > sum(hot("c.stat"))'
check "the plan lowers the measured max/mean" holds 'mean(planned) < mean(start) - 0.2'
check "and the tokens on the slowest rank, which experts' time follows" \
    holds 'slowest(planned) < 0.9 * slowest(start)'
check "by what it said, within 5 %" holds 'off(mean(planned), predicted(plan)) < 0.05'
check "other prompts in Chinese: lowered as well" \
    holds 'mean(other_planned) < mean(other) - 0.2 and slowest(other_planned) < 0.9 * slowest(other)'
check "by what the plan said of those it was made from, within 10 %" \
    holds 'off(mean(other_planned), predicted(plan)) < 0.1'
check "by what a replay of their own traffic says, within 1 %" \
    holds 'off(mean(other_planned), replay["plans"][0]["imbalance"]["mean"]) < 0.01'
check "no token changes" holds 'start["tokens"] == planned["tokens"] and other["tokens"] == other_planned["tokens"]'
python3 - "$work" <<'END'
import json, sys
for name in ("start", "planned"):
    d = json.load(open("%s/%s.json" % (sys.argv[1], name)))
    print("# %s: experts %.0f us of a rank and step, step %.0f us (median); not tested" % (
        name, d["stage_us"]["experts"], d["step_us"]["p50"]))
END
finish
