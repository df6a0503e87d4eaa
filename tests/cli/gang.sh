# tern serve --tp 2: the tokens of one process, and a gang that ends and starts again when a member is killed. tests/api/gang.py
. tests/cli/lib.inc
# Values of 16 bits: those of 8 bits round activations, and then a sum in another order may decide a near tie otherwise.
M=$TMP/tales
"$TERN" convert models/tern-tales.gguf "$M" >/dev/null 2>&1 || not_ok "gang: convert"
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
wait_ready() {
  for _ in $(seq 600); do
    kill -0 "$2" 2>/dev/null || return 1
    python3 -c "import urllib.request as u; u.urlopen('$1/ready', timeout=1)" 2>/dev/null && return 0
    sleep 0.1
  done
  return 1
}
flags="--threads 1 --ctx 512 --kv-tokens 4096 --max-seqs 8"
p1=$(free_port) p2=$(free_port)
export TERN_URL=http://127.0.0.1:$p1 TERN_URL_LOCAL=http://127.0.0.1:$p2 PYTHONDONTWRITEBYTECODE=1
"$TERN" serve -m $M -a tales --tp 2 --port "$p1" $flags >"$TMP/log" 2>&1 &
export TERN_PID=$!
"$TERN" serve -m $M -a tales --port "$p2" $flags >"$TMP/log2" 2>&1 &
local_pid=$!
if wait_ready "$TERN_URL" "$TERN_PID" && wait_ready "$TERN_URL_LOCAL" "$local_pid"; then
  timeout 600 python3 tests/api/gang.py || { failed=1; tail -n 30 "$TMP/log" | grep -v access; }
else
  not_ok "gang: the servers did not start: $(tail -n 5 "$TMP/log")"
fi
kids=$(cat /proc/"$TERN_PID"/task/*/children 2>/dev/null)
kill "$TERN_PID" && wait "$TERN_PID"
rc=$?
kill "$local_pid" && wait "$local_pid"
left=
for k in $kids; do [ -e "/proc/$k" ] && left="$left $k"; done
if [ $rc -eq 0 ] && [ -n "$kids" ] && [ -z "$left" ]; then ok "gang: SIGTERM ends the members with the server"; else not_ok "gang: exit $rc, members $kids, left:$left"; fi
timeout 60 "$TERN" serve -m $M --tp 2 --isolate --port "$p1" >"$TMP/out" 2>"$TMP/err" </dev/null
if [ $? -eq 2 ] && grep -q "isolate: a model of several members" "$TMP/err"; then ok "gang: --isolate is refused by name"; else not_ok "gang: --isolate: $(cat "$TMP/err")"; fi
exit $failed
