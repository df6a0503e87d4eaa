#!/usr/bin/env bash
# The documents name what is there: functions of docs/a-request.md are symbols of the program, paths and links exist.
set -u
cd "${TERN_ROOT:-.}" || exit 1
build=${TERN_BUILD:-build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
report() { # NAME FILE: the file lists what is wrong
  if [ -s "$2" ]; then
    echo "not ok $1"
    sed 's/^/    /' "$2" | head -20
    failed=1
  else
    echo "ok $1"
  fi
}
docs=$(git ls-files --cached --others --exclude-standard '*.md' 2>/dev/null | grep -v '^tests/golden/.*/README' || find . -name '*.md' -not -path './build/*')

{
  find "$build/src" -name '*.o' -exec nm {} +
  # A static function may be inlined everywhere and leave no symbol.
  grep -rhoE '^static .*\b[a-z0-9_]+\(' src --include='*.[ch]' | sed -E 's/.*\b([a-z0-9_]+)\($/0 t \1/'
} 2>/dev/null | awk '$2 ~ /^[tTwW]$/ { sub(/\..*/, "", $3); print $3 }' | sort -u >"$dir/symbols"
grep -ohE '\b[a-z][a-z0-9_]*\(\)' docs/a-request.md | sed 's/()//' | sort -u >"$dir/named"
comm -23 "$dir/named" "$dir/symbols" >"$dir/missing"
[ "$(wc -l <"$dir/named")" -ge 40 ] || echo "only $(wc -l <"$dir/named") functions are named" >>"$dir/missing"
report "functions named in docs/a-request.md are in the program" "$dir/missing"

for f in $docs; do
  grep -oE '\b(src|include|tests|tools|bench|docs|web|models)/[A-Za-z0-9_./*{},\[\]-]*[A-Za-z0-9_*}\]]' "$f" | sort -u | while read -r p; do
    case $p in
    */\[ch\]) continue ;;
    esac
    glob=$(printf '%s' "$p" | sed 's/\.\[ch\]$/.[ch]/; s/\.{c,h,cu}$/.*/')
    compgen -G "$glob" >/dev/null || eval "compgen -G \"$glob\"" >/dev/null 2>&1 || ls -d $(eval echo "$glob") >/dev/null 2>&1 || echo "$f: $p"
  done
done >"$dir/paths"
report "paths named in the documents exist" "$dir/paths"

for f in $docs; do
  at=$(dirname "$f")
  grep -oE '\]\([^)# ]+' "$f" | sed 's/^](//' | grep -vE '^(https?|mailto):' | while read -r link; do
    [ -e "$at/$link" ] || echo "$f: $link"
  done
done >"$dir/links"
report "relative links in the documents resolve" "$dir/links"
exit $failed
