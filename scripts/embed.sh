#!/bin/sh
# embed.sh NAME FILE...: print a C array NAME of {name, text} for the given text files; the name is
# the file's base name without its ending. Strings are written as bytes: no length limit applies.
set -eu
name=$1
shift
echo "#include \"core/embed.h\""
i=0
for file in "$@"; do
    printf 'static const char text_%d[] = {' $i
    od -An -v -tu1 "$file" | sed 's/  */,/g; s/^,//; s/$/,/'
    echo '0};'
    i=$((i + 1))
done
echo "const bl_embedded ${name}[] = {"
i=0
for file in "$@"; do
    base=$(basename "$file")
    printf '    {"%s", text_%d},\n' "${base%.*}" $i
    i=$((i + 1))
done
echo '    {0, 0}};'
