# Manifests: written by convert, quantize and tern manifest; checked by verify, at load, and by isolated workers.
. tests/cli/lib.inc
M=models/tern-tales.gguf
cp $M "$TMP/m.gguf"
works "a manifest is written" -- "$TERN" manifest "$TMP/m.gguf"
(cd "$TMP" && sha256sum -c --quiet m.gguf.sha256) >"$TMP/out" 2>&1 && ok "sha256sum accepts it" || not_ok "sha256sum: $(cat "$TMP/out")"
works "and checked" -- "$TERN" manifest "$TMP/m.gguf" --check --json
grep -q '"files":1,' "$TMP/out" && ok "the result says so" || not_ok "manifest --json: $(cat "$TMP/out")"
works "verify checks it" -- "$TERN" verify "$TMP/m.gguf"
grep -q 'm.gguf.sha256: 1 file as listed' "$TMP/out" && ok "verify says so" || not_ok "verify: $(cat "$TMP/out")"
works "run requires it" -- "$TERN" run -m "$TMP/m.gguf" --verify-manifest require -p Once -n 2 --raw --temp 0
works "quantize writes one" -- "$TERN" quantize "$TMP/m.gguf" "$TMP/parts.gguf" --type Q8_0 --requantize --split-size 3M
first=$(ls "$TMP"/parts-00001-of-*.gguf)
works "for all parts" -- "$TERN" verify "$first" --verify-manifest require
works "convert writes one" -- "$TERN" convert "$TMP/m.gguf" "$TMP/folder" -q
works "for the folder" -- "$TERN" verify "$TMP/folder" --verify-manifest require

# One byte of the weights is another: only the manifest knows.
size=$(stat -c %s "$TMP/m.gguf")
printf '\001' | dd of="$TMP/m.gguf" bs=1 seek=$((size - 40)) conv=notrunc status=none
sum=$(sha256sum <"$TMP/m.gguf" | cut -c1-64)
want=$(sha256sum <$M | cut -c1-64)
fails_with "verify names line, file and both sums" "m.gguf.sha256: line 2: m.gguf: expected SHA-256 $want, found $sum" -- "$TERN" verify "$TMP/m.gguf"
fails_with "manifest --check, too" "found $sum" -- "$TERN" manifest "$TMP/m.gguf" --check
fails_with "run refuses it" "found $sum" -- "$TERN" run -m "$TMP/m.gguf" --verify-manifest require -p Once -n 2
works "run warns" -- "$TERN" run -m "$TMP/m.gguf" --verify-manifest warn -p Once -n 2 --raw
grep -q "found $sum" "$TMP/err" && ok "with the sums" || not_ok "no warning: $(cat "$TMP/err")"
TERN_VERIFY_MANIFEST=require fails_with "by the environment" "found $sum" -- "$TERN" run -m "$TMP/m.gguf" -p Once -n 2
truncate -s $((size - 1)) "$TMP/m.gguf"
fails_with "a size" "line 2: m.gguf: expected $size bytes, found $((size - 1))" -- "$TERN" verify "$TMP/m.gguf"
fails_with "a model without a manifest" "the model has no manifest" -- "$TERN" verify $M --verify-manifest require
works "which it need not have" -- "$TERN" verify $M
"$TERN" verify $M --verify-manifest always >/dev/null 2>"$TMP/err"
[ $? -eq 2 ] && ok "another word is wrong usage" || not_ok "verify-manifest always: $(cat "$TMP/err")"
printf '0000000000000000000000000000000000000000000000000000000000000000  ../m.gguf\n' >"$TMP/m.gguf.sha256"
fails_with "a name that leads out" "m.gguf.sha256: line 1: expected the name of a file inside the folder" -- "$TERN" verify "$TMP/m.gguf"

# A server with a folder of models: one as listed, one changed, one without a manifest; in this process and in workers.
mkdir "$TMP/models"
for name in good bad none; do cp $M "$TMP/models/$name.gguf"; done
"$TERN" manifest -q "$TMP/models/good.gguf" >/dev/null && "$TERN" manifest -q "$TMP/models/bad.gguf" >/dev/null
printf '\001' | dd of="$TMP/models/bad.gguf" bs=1 seek=$((size - 40)) conv=notrunc status=none
for isolate in --no-isolate --isolate; do
  "$TERN" serve --models-dir "$TMP/models" --verify-manifest require $isolate --port 0 -c 256 -t 1 >/dev/null 2>"$TMP/log" &
  server=$!
  trap 'kill $server 2>/dev/null; wait; rm -rf "$TMP"' EXIT
  url=
  for _ in $(seq 600); do
    url=$(sed -n 's|.*listens on \(http://[^/]*\)/.*|\1|p' "$TMP/log" | head -n 1)
    [ -n "$url" ] && break
    sleep 0.1
  done
  ask() { curl -s "$url/v1/completions" -d "{\"model\": \"$1\", \"prompt\": \"Once\", \"max_tokens\": 2}"; }
  case $(ask good) in *'"text"'*) ok "$isolate: a model as listed is served" ;; *) not_ok "$isolate: good: $(ask good) $(tail -3 "$TMP/log")" ;; esac
  case $(ask bad) in *"found $sum"*) ok "$isolate: a changed one is refused by name" ;; *) not_ok "$isolate: bad: $(ask bad)" ;; esac
  case $(ask none) in *"no manifest"*) ok "$isolate: one without a manifest, too" ;; *) not_ok "$isolate: none: $(ask none)" ;; esac
  case $(curl -s "$url/status") in *'"verify-manifest":{"value":"require"'*) ok "$isolate: /status shows the setting" ;; *) not_ok "$isolate: /status has no verify-manifest" ;; esac
  kill $server
  wait $server
done
exit $failed
