#!/bin/bash
# ballast report: one page, complete in itself, that escapes what it was told.
. tests/tap.sh
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac
cd "$work" || exit 1

name='<img src=x onerror=alert(1)> & "toy"'
python3 - "$name" <<'END'
import json, sys
json.dump({"name": sys.argv[1], "num_hidden_layers": 3, "moe_layers": [1, 2], "num_experts": 16, "num_experts_per_tok": 2,
           "hidden_size": 2048, "moe_intermediate_size": 1024}, open("model.json", "w"))
END
"$ballast" synth --model model.json --steps 40 --ranks 4 --tokens-per-step 2000 --seed 3 -o t.blt 2>/dev/null
plan() { "$ballast" plan --model model.json --topology hgx-h100 --ranks 4 --slots 20 --trace t.blt "$@" 2>/dev/null; }
evil='a<b>&"c'\''.plan.json'
plan --steps 0:20 -o "$evil"
plan --steps 0:20 --algorithm greedy -o greedy.plan.json
report() { "$ballast" report --trace t.blt --topology hgx-h100 "$@" -o page.html 2>/dev/null; }

# Elements nest, nothing is loaded, no script; prints the text.
cat >check.py <<'END'
import sys
from html.parser import HTMLParser
class P(HTMLParser):
    void = {"meta", "rect", "line", "polyline"}
    def __init__(self): super().__init__(convert_charrefs=True); self.stack = []; self.text = []; self.rects = 0
    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "img", "link", "iframe", "b" "ase"), tag
        assert not any(k.startswith("on") or k in ("src", "href") for k, v in attrs), attrs
        self.rects += tag == "rect"
        if tag not in self.void: self.stack.append(tag)
    def handle_startendtag(self, tag, attrs): self.rects += tag == "rect"; assert tag in self.void, tag
    def handle_endtag(self, tag): assert self.stack.pop() == tag, tag
    def handle_data(self, data): self.text.append(data)
page = open("page.html", encoding="utf-8").read()
assert "url(" not in page and "@import" not in page and "nan" not in page.split("</style>")[1].lower().replace("finance", "")
p = P(); p.feed(page); p.close(); assert not p.stack, p.stack
assert p.rects > 20
open("text", "w").write(" ".join(p.text))
END
one() { report "$evil" greedy.plan.json && python3 check.py; }
check "a page that is whole and loads nothing" one
says() { grep -qF "$1" text; }
check "names are text and nothing else" says "$name"
check "... and so are those of plans" says "a<b>&\"c'.plan.json"
for part in "Plans side by side" "Step by step" "Before: contiguous" "After: a<b>" "max/mean of ranks" "decoder layer" "Gap" "KV cache" "copies travel" "modelled" "noise floor" "within a" "other nodes per token" "20 steps scored, 20 left out"; do
    check "it tells: $part" grep -qiF "$part" text
done
verdict() { grep -qE 'recommend|not worth it' text; }
check "it says what to do" verdict
none() { report "$evil" --steps 0:20 && python3 - <<'END'
page = open("page.html").read()
assert "not enough evidence" in page and "Record more" in page and "nan" not in page.split("</style>")[1]
END
}
check "without unseen steps it says what is missing" none
same() { report "$evil" && cp page.html first.html && report "$evil" && cmp page.html first.html; }
check "the same inputs, the same bytes" same
"$ballast" synth --model model.json --steps 6000 --ranks 4 --tokens-per-step 16 -o long.blt 2>/dev/null
bounded() { "$ballast" report --trace long.blt --topology hgx-h100 "$evil" -o page.html 2>/dev/null && python3 check.py && [ "$(stat -c %s page.html)" -lt 200000 ]; }
check "a long trace makes no long page" bounded
cp t.blt before
check "it does not write over its inputs" fails_with 'would be lost' "$ballast" report --trace t.blt --topology hgx-h100 greedy.plan.json -o t.blt
check "... which stay" cmp t.blt before
check "a full disk" fails_with 'cannot write' "$ballast" report --trace t.blt --topology hgx-h100 greedy.plan.json -o /dev/full
finish
