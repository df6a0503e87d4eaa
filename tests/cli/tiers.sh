#!/usr/bin/env bash
# Tiers of models: "model": "tier:light" is answered by a loaded model of the tier, or by the cheapest to load.
. tests/cli/lib.inc
M=models/tern-tales.gguf
dir=$TMP/models
mkdir -p "$dir"
"$TERN" quantize $M "$dir/small.gguf" --type Q4_0 --requantize -q >/dev/null 2>&1
"$TERN" quantize $M "$dir/smaller.gguf" --type Q2_K --requantize -q >/dev/null 2>&1
cp $M "$dir/large.gguf"
cat >"$TMP/tern.yaml" <<END
models-dir: $dir
models:
  - path: small.gguf
    tier: light
  - path: smaller.gguf
    tier: light
  - path: large.gguf
    tier: quality
END
serve() {
  "$TERN" serve --config "$TMP/tern.yaml" --port 0 -c 512 -t 1 "$@" >/dev/null 2>"$TMP/log" &
  server=$!
  trap 'kill $server 2>/dev/null; wait; rm -rf "$TMP"' EXIT
  for _ in $(seq 600); do
    url=$(sed -n 's|.*listens on \(http://[^/]*\)/.*|\1|p' "$TMP/log" | head -n 1)
    [ -n "$url" ] && break
    sleep 0.1
  done
}
is() { [ "$2" = "$3" ] && ok "$1" || not_ok "$1: $2"; }
ask() { curl -s "$url/v1/completions" -d "{\"model\": \"$1\", \"prompt\": \"Once\", \"max_tokens\": 2}" |
  python3 -c 'import json, sys; r = json.load(sys.stdin); print(r["model"] if "choices" in r else r["error"]["code"])'; }
for how in "" --isolate; do
  serve $how
  is "tier:light is the smallest file${how:+ ($how)}" "$(ask tier:light)" smaller
  is "tier:quality is its only model${how:+ ($how)}" "$(ask tier:quality)" large
  is "a tier without models${how:+ ($how)}" "$(ask tier:balanced)" model_not_found
  curl -s "$url/models/unload" -d '{"model": "smaller"}' >/dev/null
  is "a model by its name${how:+ ($how)}" "$(ask small)" small
  is "tier:light is the loaded one now${how:+ ($how)}" "$(ask tier:light)" small
  kill $server
  wait $server
done
sed -i 's/tier: quality/tier: best/' "$TMP/tern.yaml"
timeout 60 "$TERN" serve --config "$TMP/tern.yaml" --port 0 >"$TMP/out" 2>&1
grep -q 'one of light, balanced, quality' "$TMP/out" && ok "an unknown tier is refused" || not_ok "unknown tier: $(cat "$TMP/out")"
exit $failed
