#!/usr/bin/env bash
# tern serve --models-dir: models that come and go, as README and docs/serving.md show it.
. tests/cli/lib.inc
M=models/tern-tales.gguf
dir=$TMP/models
mkdir -p "$dir"
"$TERN" serve --models-dir "$dir" --models-max 2 --port 0 -c 512 -t 1 >/dev/null 2>"$TMP/log" &
server=$!
trap 'kill $server 2>/dev/null; wait; rm -rf "$TMP"' EXIT
for _ in $(seq 600); do
  url=$(sed -n 's|.*listens on \(http://[^/]*\)/.*|\1|p' "$TMP/log" | head -n 1)
  [ -n "$url" ] && break
  sleep 0.1
done
states() { curl -s "$url/models$1" | python3 -c 'import json, sys; print(*(m["id"] + "=" + m["status"]["value"] for m in json.load(sys.stdin)["data"]))'; }
# is NAME GOT WANTED
is() { [ "$2" = "$3" ] && ok "$1" || not_ok "$1: $2"; }
ask() { curl -s "$url/v1/completions" -d "{\"model\": \"$1\", \"prompt\": \"Once\", \"max_tokens\": 4, \"temperature\": 0}" |
  python3 -c 'import json, sys; r = json.load(sys.stdin); print(r["model"] + ":" + r["choices"][0]["text"] if "choices" in r else r["error"]["code"])'; }

is "an empty folder is served" "$(states '')" ""
kill -HUP $server
is "and can be looked at again" "$(states '?reload=1')" ""
is "a model that is not there" "$(ask ada)" model_not_found
for name in ada bob cleo; do cp $M "$dir/$name.gguf"; done
is "models that were added are listed, not loaded" "$(states '?reload=1')" "ada=unloaded bob=unloaded cleo=unloaded"
want=$("$TERN" run -m $M -p Once --raw --temp 0 -n 4 -c 512 2>/dev/null)
for name in ada bob cleo; do is "$name is loaded when it is asked for" "$(ask $name)" "$name:$want"; done
is "two are loaded at most" "$(states '')" "ada=unloaded bob=loaded cleo=loaded"
is "a model is loaded by request" "$(curl -s "$url/models/load" -d '{"model": "ada"}')" '{"success":true}'
is "and unloaded" "$(curl -s "$url/models/unload" -d '{"model": "ada"}')" '{"success":true}'
is "which others see" "$(states '' | tr ' ' '\n' | grep ada)" "ada=unloaded"
rm "$dir/bob.gguf"
states '?reload=1' >/dev/null
is "a model whose file is gone is not found" "$(ask bob)" model_not_found
is "the others are there" "$(ask cleo)" "cleo:$want"
kill $server
wait $server
is "the server ends" $? 0
exit $failed
