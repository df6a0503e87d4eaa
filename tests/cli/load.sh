# tern load against a stub server that works, rejects requests or truncates streams.
. tests/cli/lib.inc
command -v python3 >/dev/null || { skip "load: python3 is not installed"; exit 0; }

stubs=
serve() { # KIND: sets url
  python3 tests/cli/load_stub.py "$1" >"$TMP/port-$1" 2>/dev/null &
  stubs="$stubs $!"
  for _ in $(seq 1200); do [ -s "$TMP/port-$1" ] && break; sleep 0.05; done
  url=http://127.0.0.1:$(cat "$TMP/port-$1")
}
trap 'kill $stubs 2>/dev/null; rm -rf "$TMP"' EXIT

# holds NAME EXIT PYTHON-EXPRESSION -- flags: runs tern load; r is the JSON report
holds() {
  local name=$1 want=$2 expr=$3 rc
  shift 4
  timeout 300 "$TERN" load "$url" -q --json "$TMP/r.json" "$@" >"$TMP/out" 2>"$TMP/err" </dev/null
  rc=$?
  if [ $rc -ne "$want" ]; then not_ok "$name: exit $rc, expected $want: $(cat "$TMP/err")"; return; fi
  python3 -c 'import json, sys
r = json.load(open(sys.argv[1]))
sys.exit(0 if eval(sys.argv[2]) else "found: " + json.dumps(r)[:1500])' "$TMP/r.json" "$expr" >"$TMP/out" 2>&1 &&
    ok "$name" || not_ok "$name: $(cat "$TMP/out")"
}

serve good
holds "closed loop: all requests are counted" 0 \
  'r["completed"] == 30 and r["failed"] == 0 and r["running_max"] == 5 and r["output_tokens"] == 300' -- \
  -c 5 -n 30 --output-tokens 10 --warmup 7
holds "prompts have the requested tokens" 0 \
  'r["config"]["tokens_per_word"] == 2 and r["input_tokens"] == 10 * 40 + 10 * 60' -- \
  -c 2 -n 10 --prompt-tokens 80 --shared-prefix 120 --output-tokens 2
holds "--ids gives exact lengths" 0 'r["input_tokens"] == 4 * 150' -- -n 4 --ids 5-9 --prompt-tokens 50 --shared-prefix 100 --output-tokens 2
holds "every gap is recorded" 0 \
  'r["itl_ms"]["n"] == 5 * 19 and r["ttft_ms"]["n"] == 5 and r["gap_max_ms"]["max"] == r["itl_ms"]["max"]' -- \
  -c 1 -n 5 --output-tokens 20
holds "open loop: arrivals have the requested rate" 0 '0 < r["completed"] < 200 and r["failed"] == 0' -- \
  --rate 100 -d 1 --output-tokens 3
holds "replies without streaming" 0 'r["completed"] == 8 and r["ttft_ms"]["n"] == 0 and r["e2e_ms"]["n"] == 8' -- -n 8 --no-stream
holds "cancels and disconnects are not errors" 0 \
  'r["failed"] == 0 and r["cancelled"] > 0 and r["disconnected"] > 0 and r["completed"] > 0 and \
   r["cancelled"] + r["disconnected"] + r["completed"] == 80' -- \
  -c 8 -n 80 --output-tokens 30 --cancel-rate 0.3 --disconnect-rate 0.3
holds "goodput counts requests within the goals" 0 'r["goodput"]["good"] == 0 and r["completed"] == 6' -- \
  -n 6 --output-tokens 10 --goodput ttft:1000,e2e:1
holds "the same seed gives the same load" 0 'r["output_tokens"] == 390' -- -n 10 --output-tokens 8-64 --seed 3
works "--html" -- "$TERN" load "$url" -n 6 --output-tokens 5 --html "$TMP/r.html"
grep -q '<svg' "$TMP/r.html" && ! grep -qE 'src=|href=|<script' "$TMP/r.html" && ok "the HTML report is self-contained" ||
  not_ok "the HTML report refers to other files"
grep -q '^Mean TTFT (ms): ' "$TMP/out" && grep -q '^Output token throughput (tok/s): ' "$TMP/out" && ok "the text report has the labels of vllm bench" ||
  not_ok "the text report has the labels of vllm bench: $(cat "$TMP/out")"

holds "a slow reply is a timeout" 1 'r["errors"] == {"timeout": 3} and r["failed"] == 3' -- -n 3 -c 3 --output-tokens 5000 --timeout 1
serve refuse
holds "rejections are counted by kind" 1 'r["errors"] == {"429 queue_full": 10} and r["completed"] == 10' -- -n 20 --output-tokens 3
holds "--max-error-rate allows errors" 0 'abs(r["error_rate"] - 0.5) < 0.1' -- -n 20 --output-tokens 3 --max-error-rate 0.6
serve cut
holds "truncated streams are errors" 1 'r["errors"] == {"truncated stream": 10} and r["completed"] == 10' -- \
  -c 1 -n 20 --output-tokens 6

for nowhere in http://127.0.0.1:1 unix:/nowhere/at/all; do
  "$TERN" load $nowhere >"$TMP/out" 2>"$TMP/err"
  [ $? -eq 3 ] && grep -qF "$nowhere: no HTTP server" "$TMP/err" && ok "no server at $nowhere: exit 3" || not_ok "no server: $(cat "$TMP/err")"
done
for wrong in "" "ftp://x" "http://127.0.0.1:1 --prompt-tokens 9-3" "http://127.0.0.1:1 --goodput speed:3" \
  "http://127.0.0.1:1 --cancel-rate 0.7 --disconnect-rate 0.7" "http://127.0.0.1:1 --clients -1"; do
  "$TERN" load $wrong >"$TMP/out" 2>"$TMP/err"
  rc=$?
  [ $rc -eq 2 ] && [ "$(wc -l <"$TMP/err")" -eq 1 ] && ok "usage: '$wrong'" || not_ok "usage '$wrong': exit $rc: $(cat "$TMP/err")"
done
exit $failed
