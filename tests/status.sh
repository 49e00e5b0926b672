# shellcheck shell=bash
# status.sh: sourced by what tests of a running cluster share; it answers at $socket.
status() { # KEY: its first value in the cluster's status, "" when nobody answers
    "$ballast" status --socket "$socket" --json 2>/dev/null | tr -d '\n' | grep -oE "\"$1\": ?[^,}]*" | head -1 | sed 's/^[^:]*: *//; s/"//g'
}
is_stable() { [ "$(status state)" = stable ]; }
