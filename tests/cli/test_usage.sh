#!/bin/bash
# What every verb does alike: errors for machines, full disks, Ctrl-C.
. tests/tap.sh
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac
cd "$work" || exit 1
echo '{"name":"toy","num_hidden_layers":1,"moe_layers":[0],"num_experts":64,"num_experts_per_tok":8,
 "hidden_size":64,"moe_intermediate_size":32}' >model.json

# says_error CODE COMMAND...: fails with one JSON object on standard output, an error of this code.
says_error() {
    local code=$1
    shift
    "$@" >out 2>err && return 1
    [ "$(wc -l <out)" -eq 1 ] && grep -q "^{\"error\":{\"code\":\"$code\"" out && [ "$(wc -l <err)" -eq 1 ]
}
check "--json before the mistake" says_error ERR_USAGE "$ballast" replay --json --bogus
check "--json behind the mistake" says_error ERR_USAGE "$ballast" replay --bogus --json
check "--json behind a value that is none" says_error ERR_USAGE "$ballast" stat --phase nix --json
check "--json behind a missing file" says_error ERR_IO "$ballast" stat missing.blt --json
check "a verb that is none" says_error ERR_USAGE "$ballast" imprt --json
no_json() { ! "$ballast" replay --bogus >out 2>/dev/null && [ ! -s out ]; }
check "no JSON unless asked" no_json
check "a name of two lines" fails_with "a?b.blt" "$ballast" stat $'a\nb.blt'

full() { ! "$ballast" "$@" >/dev/full 2>/dev/null; }
check "the overview on a full disk" full --help
check "a verb's help on a full disk" full plan --help
check "the manual page on a full disk" full help --man
check "a page of help on a full disk" full help plan
check "the version on a full disk" full --version

# A file that may grow no further (SIGXFSZ kills unless told otherwise) is a failed write.
too_large() { (ulimit -f 1 && exec "$ballast" synth --model model.json --steps 4000 -o large.blt); }
check "a file larger than the limit" fails_with 'File too large' too_large
check "and nothing is left of it" test ! -e large.blt

# Exit 124: ended by the signal; 137: it had to be killed.
interrupted() {
    timeout -k 5 -s "$1" 0.2 "$ballast" synth --model model.json --steps 100000000 -o long.blt 2>/dev/null
    [ $? -eq 124 ] && [ ! -e long.blt ]
}
check "Ctrl-C ends a verb that has nothing to save" interrupted INT
check "so does SIGTERM" interrupted TERM
# GLPK would look for hours; 137 is the kill that comes when the interrupt was not heard.
cat >deep.json <<'EOF'
{"name":"deep","num_hidden_layers":1,"moe_layers":[0],"num_experts":16,"num_experts_per_tok":4,
 "hidden_size":64,"moe_intermediate_size":32}
EOF
"$ballast" synth --model deep.json --steps 3 --skew 0.2 -o deep.blt
heard() {
    timeout -k 10 -s INT 1 "$ballast" plan deep.blt --model deep.json --ranks 8 --slots 24 --algorithm exact \
        --over sample -o deep.plan.json --json >out 2>err
    [ $? -eq 124 ] && grep -q '"stopped": true' out && [ -s deep.plan.json ]
}
check "Ctrl-C ends GLPK, too, and keeps the best plan" heard

# ---- a terminal that closes -----------------------------------------------------------------

# hangup IGNORED: a process that waits for its input gets SIGHUP; prints how it ended.
hangup() {
    mkfifo "$work/in.$1"
    (
        [ "$1" = ignored ] && trap '' HUP
        exec "$ballast" size --model - <"$work/in.$1" >/dev/null 2>&1
    ) &
    local pid=$! rc
    exec 9>"$work/in.$1"
    until grep -q '^State:.*S (' /proc/$pid/status && [ "$(cat /proc/$pid/comm)" = ballast ]; do sleep 0.05; done
    sleep 0.2
    kill -HUP $pid
    sleep 0.2
    exec 9>&-
    wait $pid
    rc=$?
    echo $rc
}
ends_on_hangup() { [ "$(hangup plain 2>/dev/null)" -eq 129 ]; }
ignores_hangup() { [ "$(hangup ignored 2>/dev/null)" -eq 1 ]; }
check "a hangup ends the program" ends_on_hangup
check "a hangup that is ignored, as under nohup, does not" ignores_hangup

finish
