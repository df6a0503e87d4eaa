# tern serve --tp 2: the tokens of one process, and a gang that is killed and started again as a whole when a member dies or hangs.
# tests/api/gang.py, over shared memory and as an MPI job.
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
# descendants PID: every process below it
descendants() { for k in $(cat /proc/"$1"/task/*/children 2>/dev/null); do echo "$k"; descendants "$k"; done; }
flags="--threads 1 --ctx 512 --kv-tokens 4096 --max-seqs 8"
p1=$(free_port) p2=$(free_port)
export TERN TERN_URL=http://127.0.0.1:$p1 TERN_URL_LOCAL=http://127.0.0.1:$p2 PYTHONDONTWRITEBYTECODE=1
"$TERN" serve -m $M -a tales --port "$p2" $flags >"$TMP/log2" 2>&1 &
local_pid=$!
wait_ready "$TERN_URL_LOCAL" "$local_pid" || not_ok "gang: the server of one process did not start: $(tail -n 5 "$TMP/log2")"
# serve_gang NAME flags...: the tests against a server with these flags, and its end.
serve_gang() {
  local name=$1 rc kids left=
  shift
  "$TERN" serve -m $M -a tales --tp 2 --step-timeout 4s --port "$p1" $flags "$@" >"$TMP/log" 2>&1 &
  export TERN_PID=$! TERN_GANG=$name
  if wait_ready "$TERN_URL" "$TERN_PID"; then
    timeout 600 python3 tests/api/gang.py || { failed=1; grep -v access "$TMP/log" | tail -n 40; }
  else
    not_ok "$name: the server did not start: $(tail -n 5 "$TMP/log")"
  fi
  kids=$(descendants "$TERN_PID")
  kill "$TERN_PID" && wait "$TERN_PID"
  rc=$?
  for _ in $(seq 100); do # mpirun removes its files after its processes have ended
    left=
    for k in $kids; do [ -e "/proc/$k" ] && left="$left $k"; done
    [ -z "$left" ] && break
    sleep 0.1
  done
  if [ $rc -eq 0 ] && [ -n "$kids" ] && [ -z "$left" ]; then ok "$name: SIGTERM ends the members with the server"; else not_ok "$name: exit $rc, processes $kids, left:$left"; fi
}
serve_gang gang
if command -v mpirun >/dev/null && [ -e "$B/tern-mpi.so" ]; then
  # Open MPI keeps memory until its process ends.
  ASAN_OPTIONS=detect_leaks=0 serve_gang "gang over mpi" --transport mpi
else
  skip "gang over mpi: no MPI here"
fi
kill "$local_pid" && wait "$local_pid"
exit $failed
