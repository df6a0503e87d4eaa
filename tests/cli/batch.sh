# tern batch: results, wrong input, resuming after kill -9 and Ctrl-C, and against a server.
. tests/cli/lib.inc
M=models/tern-tales.gguf
unset TERN_MODEL TERN_PORT TERN_CONFIG TERN_URL TERN_API_KEY
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null; rm -rf "$TMP"' EXIT
code() { # WANT NAME command...
  local want=$1 name=$2 rc
  shift 2
  timeout 300 "$@" >"$TMP/out" 2>"$TMP/err" </dev/null
  rc=$?
  [ $rc -eq "$want" ] && ok "$name" || not_ok "$name: exit $rc, expected $want: $(head -c 300 "$TMP/out" "$TMP/err")"
}
has() { grep -qF -- "$2" "$TMP/${3:-out}" && ok "$1" || not_ok "$1: no '$2' in: $(head -c 500 "$TMP/${3:-out}")"; }
# lines N TOKENS FILE: the third has a wrong temperature with TOKENS 0
lines() {
  python3 - "$@" <<'P'
import json, sys
n, tokens = int(sys.argv[1]), int(sys.argv[2])
with open(sys.argv[3], "w") as f:
    for i in range(n):
        body = {"prompt": f"Once {i}", "max_tokens": tokens or 2, "temperature": 0, "ignore_eos": True}
        if not tokens and i == 2:
            body["temperature"] = 99
        f.write(json.dumps({"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
P
}
# once NAME N FILE...: the files together have N results, each custom_id once
once() {
  local name=$1 n=$2
  shift 2
  python3 - "$n" "$@" 2>"$TMP/why" <<'P' && ok "$name" || not_ok "$name: $(tail -n 1 "$TMP/why")"
import json, sys
ids = [json.loads(x)["custom_id"] for p in sys.argv[2:] for x in open(p)]
want = [f"c{i}" for i in range(int(sys.argv[1]))]
assert sorted(ids) == sorted(want), (len(ids), len(set(ids)))
P
}

code 0 "batch --help" "$TERN" batch --help
has "its usage" "usage: tern batch"
lines 6 0 "$TMP/in"
code 2 "two files are needed" "$TERN" batch "$TMP/in"
code 2 "a model and a server" "$TERN" batch "$TMP/in" "$TMP/o" -m $M --url http://127.0.0.1:1
code 2 "the input is not the output" "$TERN" batch "$TMP/in" "$TMP/in" -m $M
code 1 "no input" "$TERN" batch "$TMP/none" "$TMP/o" -m $M
code 3 "no server" "$TERN" batch "$TMP/in" "$TMP/o3" --url http://no-such-host.invalid
printf '{"custom_id":"a"}\n' >"$TMP/bad"
fails_with "a wrong line is named" "bad:1" "method" -- "$TERN" batch "$TMP/bad" "$TMP/o" -m $M
{ cat "$TMP/in"; head -n 1 "$TMP/in"; } >"$TMP/twice"
fails_with "a custom_id twice" "twice:7" "c0" -- "$TERN" batch "$TMP/twice" "$TMP/o" -m $M
printf 'not JSON\n' >"$TMP/foreign"
fails_with "an output that is no result is kept" "foreign:1" "not a result" -- "$TERN" batch "$TMP/in" "$TMP/foreign" -m $M
[ "$(cat "$TMP/foreign")" = "not JSON" ] && ok "and unchanged" || not_ok "the foreign file was changed"
printf '{"custom_id":"x","response":null}\n' >"$TMP/other"
fails_with "results of another input" "'x'" "another input" -- "$TERN" batch "$TMP/in" "$TMP/other" -m $M

code 1 "a batch with a failed line, exit 1" "$TERN" batch "$TMP/in" "$TMP/o1" -m $M --error-file "$TMP/e1" --json -t 1 -c 256
has "the summary" '"total":6,"completed":5,"failed":1,"left":0,"resumed":0'
once "results and errors" 6 "$TMP/o1" "$TMP/e1"
code 1 "a batch without --threads" "$TERN" batch "$TMP/in" "$TMP/o1t" -m $M --error-file "$TMP/e1t"
once "its results and errors" 6 "$TMP/o1t" "$TMP/e1t"
grep -q '"status_code":400' "$TMP/e1" && [ "$(wc -l <"$TMP/e1")" -eq 1 ] && ok "the error file" || not_ok "the error file: $(cat "$TMP/e1")"
code 1 "again: nothing is run" "$TERN" batch "$TMP/in" "$TMP/o1" -m $M --error-file "$TMP/e1" --json -t 1 -c 256
has "all were there" '"resumed":6'
printf '{"id":"batch_req_9","custom_' >>"$TMP/o1"
sed -i '2d' "$TMP/o1"
code 1 "a cut line goes, and a missing one is run" "$TERN" batch "$TMP/in" "$TMP/o1" -m $M --error-file "$TMP/e1" --json -t 1 -c 256
has "five were there" '"resumed":5'
once "all results again" 6 "$TMP/o1" "$TMP/e1"

lines 120 24 "$TMP/long"
for signal in KILL INT KILL; do
  "$TERN" batch "$TMP/long" "$TMP/ol" -m $M -q -t 1 -c 256 --at-once 4 2>"$TMP/err" &
  p=$!
  for _ in $(seq 300); do [ "$(wc -l <"$TMP/ol" 2>/dev/null || echo 0)" -gt "${had:-0}" ] && break; sleep 0.05; done
  had=$(wc -l <"$TMP/ol")
  kill -$signal $p 2>/dev/null
  wait $p 2>/dev/null; rc=$?
  [ $signal = INT ] && { [ $rc -eq 130 ] || [ $rc -eq 0 ] && ok "Ctrl-C: exit 130" || not_ok "Ctrl-C: exit $rc: $(cat "$TMP/err")"; }
done
code 0 "it goes on after kill -9" "$TERN" batch "$TMP/long" "$TMP/ol" -m $M --json -t 1 -c 256
once "every line once" 120 "$TMP/ol"

"$TERN" serve --port 0 --socket "$TMP/sock" -m $M -c 256 -t 1 --data-dir "$TMP/data" >/dev/null 2>"$TMP/log" &
server=$!
"$TERN" ready --socket "$TMP/sock" --wait 120 -q || not_ok "the server starts: $(tail -n 3 "$TMP/log")"
lines 30 4 "$TMP/in30"
code 0 "against a server" "$TERN" batch "$TMP/in30" "$TMP/or" --socket "$TMP/sock" --json
has "its summary" '"completed":30,"failed":0'
once "all of them once" 30 "$TMP/or"
exit $failed
