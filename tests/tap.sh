# shellcheck shell=bash
# tap.sh: sourced by shell tests. `check NAME COMMAND...` runs a command and reports it in TAP; `eventually` waits;
# `skip NAME WHY` reports a skipped one; `finish` prints the plan and exits.
n=0 bad=0
check() {
    local name=$1
    shift
    n=$((n + 1))
    if "$@"; then
        echo "ok $n - $name"
    else
        echo "not ok $n - $name"
        bad=$((bad + 1))
    fi
}
skip() {
    n=$((n + 1))
    echo "ok $n - $1 # SKIP $2"
}
finish() {
    echo "1..$n"
    [ "$bad" -eq 0 ]
    exit
}
# fails_with TEXT COMMAND...: the command exits 1 or 2 and its standard error is one line that holds TEXT.
fails_with() {
    local text=$1 err rc
    shift
    err=$("$@" 2>&1 >/dev/null)
    rc=$?
    if { [ $rc -eq 1 ] || [ $rc -eq 2 ]; } && [ "$(printf '%s\n' "$err" | wc -l)" -eq 1 ] && [[ $err == *"$text"* ]]; then
        return 0
    fi
    echo "# exit $rc, stderr: $err"
    return 1
}
# eventually COMMAND...: tries the command until it succeeds; a machine may be slow, so long: two minutes.
eventually() {
    local end=$((SECONDS + 120))
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}
ballast=$(realpath "${BALLAST:?}") # scripts may change their directory
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
shared=${BALLAST_TEST_DATA:-../shared/data}
