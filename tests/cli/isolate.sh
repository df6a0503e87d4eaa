# tern serve --isolate: tests/api/isolate.py against a server with two models in processes of their own, beside one without.
. tests/cli/lib.inc
M=models/tern-tales.gguf
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
wait_ready() {
  for _ in $(seq 600); do
    kill -0 "$2" 2>/dev/null || return 1
    python3 -c "import urllib.request as u; u.urlopen('$1/ready', timeout=1)" 2>/dev/null && return 0
    sleep 0.1
  done
  return 1
}
p1=$(free_port) p2=$(free_port)
export TERN_URL=http://127.0.0.1:$p1 TERN_URL_LOCAL=http://127.0.0.1:$p2 PYTHONDONTWRITEBYTECODE=1
flags="--threads 1 --ctx 512 --kv-tokens 4096 --max-seqs 8"
TERN_API_KEY= "$TERN" serve -m $M -a alpha -m $M -a beta --isolate --port "$p1" $flags >"$TMP/log" 2>&1 &
export TERN_PID=$!
"$TERN" serve -m $M -a alpha --port "$p2" $flags >"$TMP/log2" 2>&1 &
local_pid=$!
if wait_ready "$TERN_URL" "$TERN_PID" && wait_ready "$TERN_URL_LOCAL" "$local_pid"; then
  timeout 900 python3 tests/api/isolate.py || { failed=1; tail -n 40 "$TMP/log" | grep -v access; }
else
  not_ok "isolate: the servers did not start: $(tail -n 5 "$TMP/log")"
fi
# A server that is killed takes its workers with it.
kids=$(cat /proc/"$TERN_PID"/task/"$TERN_PID"/children 2>/dev/null)
kill -9 "$TERN_PID" && wait "$TERN_PID" 2>/dev/null
kill "$local_pid" && wait "$local_pid"
left=x
for _ in $(seq 300); do
  left=
  for k in $kids; do [ -e "/proc/$k" ] && left="$left $k"; done
  [ -z "$left" ] && break
  sleep 0.1
done
if [ -n "$kids" ] && [ -z "$left" ]; then ok "isolate: workers end with their server"; else not_ok "isolate: workers $kids, left:$left"; fi
# Two models that share a limit get the same sizes with and without processes of their own, and both fit.
sizes_of() {
  p=$(free_port)
  TERN_API_KEY= "$TERN" serve -m $M -a alpha -m $M -a beta --memory-limit 64M --threads 1 --port "$p" "$@" >"$TMP/log" 2>&1 &
  pid=$!
  wait_ready "http://127.0.0.1:$p" $pid && python3 -c "
import json, urllib.request as u
s = json.load(u.urlopen('http://127.0.0.1:$p/status'))
for m in s['models']: print(m['id'], m['state'], m['effective'], m['kv']['total'], m['memory']['total'], m['sizes'])"
  kill $pid && wait $pid
}
sizes_of >"$TMP/sizes_local"
sizes_of --isolate >"$TMP/sizes_isolated"
if [ "$(grep -c ' ready ' "$TMP/sizes_local")" = 2 ] && cmp -s "$TMP/sizes_local" "$TMP/sizes_isolated"; then
  ok "isolate: models get the sizes that they have in one process"
else
  not_ok "isolate: sizes: $(cat "$TMP/sizes_local") / $(cat "$TMP/sizes_isolated") / $(grep -v access "$TMP/log" | tail -n 5)"
fi
exit $failed
