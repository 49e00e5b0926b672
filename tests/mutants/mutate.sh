# shellcheck shell=bash
# Sourced by the scripts that try mutants: how a mutated copy is made.

# Write a mutated copy of FILE to OUT; the two texts are separated by lines that hold only ---.
mutate() { # MUTANT FILE OUT
    local content find replace rest text
    content=$(cat "$2"; echo x) content=${content%x}
    text=$(cat "$1"; echo x) text=${text%x}
    rest=${text#*$'\n---\n'}
    find=${rest%%$'\n---\n'*}
    replace=${rest#*$'\n---\n'} replace=${replace%$'\n'}
    [ -n "$find" ] && [ "$find" != "$rest" ] || { echo "# $1: needs two lines of ---"; return 1; }
    rest=${content#*"$find"}
    [ "$rest" != "$content" ] || { echo "# $1: its text is not in $2"; return 1; }
    [ "${rest#*"$find"}" = "$rest" ] || { echo "# $1: its text is in $2 more than once"; return 1; }
    printf '%s%s%s' "${content%%"$find"*}" "$replace" "$rest" >"$3"
}
