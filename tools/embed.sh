#!/bin/sh
# embed.sh - turns the files of a folder into C arrays, and a table of them.
#
#     tools/embed.sh web > build/web.inc        included by src/server/web.c
set -eu
LC_ALL=C
export LC_ALL

type_of() {
    case $1 in
    *.html) echo 'text/html; charset=utf-8' ;;
    *.css) echo 'text/css; charset=utf-8' ;;
    *.js) echo 'text/javascript; charset=utf-8' ;;
    *.svg) echo 'image/svg+xml' ;;
    *) echo "embed.sh: no type is known for $1" >&2; exit 1 ;;
    esac
}

cd "$1"
echo "/* Made by tools/embed.sh from $1/: change those files, not this one. */"
table=
n=0
for f in *; do
    type=$(type_of "$f")
    hash=$(sha256sum <"$f" | cut -c1-16)
    size=$(($(wc -c <"$f")))
    echo "static const unsigned char web_data_$n[] = {"
    od -An -v -tu1 "$f" | sed 's/  */,/g; s/^,//; s/$/,/'
    echo "};"
    table="$table    { \"/$f\", \"$type\", web_data_$n, $size, \"\\\"$hash\\\"\" },
"
    n=$((n + 1))
done
printf 'static const struct web_file web_files[] = {\n%s};\n' "$table"
