# One model over several processes: tern eval and tern bench with --tp and --pp, every transport, and members that are killed.
. tests/cli/lib.inc
M=models/tern-tales.gguf
SHARED=${TERN_SHARED:-../shared}

# agrees NAME FOLDER flags...: within the bounds of one process, and the same greedy tokens.
agrees() {
  local name=$1 dir=$2
  shift 2
  if ! timeout 300 "$TERN" eval logits "$dir" --threads 1 "$@" >"$TMP/out" 2>"$TMP/err" </dev/null; then
    if grep -q "is missing or not a list of token ids\|has no logits" "$TMP/err"; then skip "$name: no logits"
    else not_ok "$name: $(tail -c 300 "$TMP/err")"; fi
    return
  fi
  python3 - "$TMP/out" <<'PY' && ok "$name" || not_ok "$name: $(cat "$TMP/out")"
import json, sys
r = json.load(open(sys.argv[1]))
sys.exit(not (r["rel_err"] <= 3e-3 and r["greedy_match"] == r["greedy_n"]))
PY
}

# some: every case with TERN_ALL_CASES=1; else every eleventh, which meets all three divisions and all kinds of layers.
some() { n_some=$((${n_some:-0} + 1)); [ -n "${TERN_ALL_CASES:-}" ] || [ $((n_some % 11)) -eq 1 ]; }
for dir in tests/golden/hf/*/ "$SHARED"/fixtures/hf/*/; do
  [ -e "$dir/golden.safetensors" ] || continue
  for flags in "--tp 2" "--pp 2" "--tp 2 --pp 2"; do
    sampled && agrees "parallel: $(basename "$dir") $flags" "$dir" $flags
  done
done
# refused NAME FOLDER WHERE flags...: refused by name before anything is loaded; the message ends with the modes that it allows.
refused() {
  local name=$1 dir=$2 where=$3
  shift 3
  fails_with "$name: refused by name" "tern: tp " "it runs $where" -- "$TERN" eval logits "$dir" --threads 1 "$@"
}
# Architectures of 2025 and 2026 that cannot be divided by heads, and those that cannot be divided at all.
for dir in "$SHARED"/fixtures/hf-2026/*/; do
  [ -e "$dir/golden.safetensors" ] || continue
  name=$(basename "$dir")
  case $name in *-embed | *-rerank) continue ;; esac
  sampled || continue
  case $name in
  gemma3n* | gemma4 | gemma4_text | deepseek_v4 | glm_moe_dsa | longcat_flash)
    refused "parallel: $name --tp 2" "$dir" "in one process only" --tp 2
    refused "parallel: $name --pp 2" "$dir" "in one process only" --pp 2
    ;;
  afmoe | bamba | cohere2_moe | deepseek_v32 | falcon_h1 | falcon_mamba | gemma4* | granitemoehybrid* | jamba | minimax_m3_vl | nemotron_h* | olmo_hybrid | qwen3_5*)
    refused "parallel: $name --tp 2" "$dir" "in one process, or with --pp" --tp 2
    agrees "parallel: $name --pp 2" "$dir" --pp 2
    ;;
  *)
    agrees "parallel: $name --tp 2" "$dir" --tp 2
    agrees "parallel: $name --pp 2" "$dir" --pp 2
    some && agrees "parallel: $name --tp 2 --pp 2" "$dir" --tp 2 --pp 2
    ;;
  esac
done
# Quantized folders: rows and columns of packed layers are cut between groups; act-order, and a cut inside a code's bytes, are widened.
for dir in tests/golden/quant/*/ "$SHARED"/fixtures/quant/*/; do
  [ -e "$dir/golden.safetensors" ] || continue
  for flags in "--tp 2" "--pp 2" "--tp 2 --pp 2"; do
    case "$(basename "$dir") $flags" in llama-ragged*--pp*) continue ;; esac # it has one layer
    some && agrees "parallel: $(basename "$dir") $flags" "$dir" $flags
  done
done
agrees "parallel: over tcp" tests/golden/hf/qwen2 --tp 2 --pp 2 --transport tcp
agrees "parallel: whole experts" tests/golden/hf/glm4_moe --tp 2 --ep
agrees "parallel: uneven shares" tests/golden/hf/phi3 --tp 2 --split 3,1
agrees "parallel: four members of a stage" tests/golden/hf/phi3 --tp 4
agrees "parallel: parts by a measurement" tests/golden/hf/qwen2 --tp 2 --pp 2 --split auto
# Parts by speeds that are given in place of the measurement.
parts() { # NAME SPEEDS PYTHON flags...: an expression over the list of the members' parts
  local name=$1 speeds=$2 want=$3
  shift 3
  TERN_GANG_SPEEDS=$speeds works "$name" -- "$TERN" bench -m $M -p 32 -n 4 -r 1 --threads 1 -o json "$@"
  python3 - "$TMP/out" "$want" <<'PY' && ok "$name: as fast members have more" || not_ok "$name: $(cat "$TMP/out")"
import json, sys
g = json.load(open(sys.argv[1]))["gang"]
sys.exit(not eval(sys.argv[2]))
PY
}
parts "parallel: auto by heads" 3,1 'g[0]["share"] > 1.6 * g[1]["share"] and abs(g[0]["share"] + g[1]["share"] - 1) < 1e-6' --tp 2 --split auto
parts "parallel: auto by layers" 3,1 'g[0]["layers"] == [0, 10] and g[1]["layers"] == [10, 12]' --pp 2 --split auto
parts "parallel: auto by both" 3,1,1,1 'g[0]["layers"] == g[1]["layers"] == [0, 9] and g[0]["share"] > g[1]["share"] and g[2]["share"] == g[3]["share"]' --tp 2 --pp 2 --split auto
parts "parallel: alike members have equal parts" 3,1 'g[0]["share"] == g[1]["share"]' --tp 2
TERN_GANG_SPEEDS=3,1 agrees "parallel: logits of uneven automatic parts" tests/golden/hf/phi3 --tp 2 --split auto
TERN_GANG_SPEEDS=1,3,2,1 agrees "parallel: logits of automatic parts of four members" tests/golden/hf/qwen2 --tp 2 --pp 2 --split auto --transport tcp
TERN_GANG_MEMORY=1,1 fails_with "parallel: a model that fits no member" "do not fit into what is free" "member 1: 1 MiB" -- \
  "$TERN" bench -m $M -p 32 -n 4 -r 1 --threads 1 --tp 2 --split auto
# A host that an agent reaches: here a shell that runs the command on this machine.
cat >"$TMP/agent" <<'SH'
#!/bin/sh
echo "$1" >>"$(dirname "$0")/asked"
shift
exec "$@"
SH
chmod +x "$TMP/agent"
agrees "parallel: a host by its agent" tests/golden/hf/qwen2 --tp 2 --hosts 127.0.0.1,other --agent "$TMP/agent %h" --remote-tern "$TERN" --gang-listen 127.0.0.1
rm -f "$TMP/asked"
agrees "parallel: two members on each of two hosts" tests/golden/hf/qwen2 --tp 2 --pp 2 --hosts 127.0.0.1,other --agent "$TMP/agent %h" --remote-tern "$TERN" --gang-listen 127.0.0.1
[ "$(sort "$TMP/asked" | uniq -c | tr -s ' ')" = " 2 other" ] && ok "parallel: the other host has half of the members" || not_ok "parallel: hosts of members: $(cat "$TMP/asked")"
if command -v mpirun >/dev/null && [ -e "$B/tern-mpi.so" ]; then
  # Open MPI keeps memory until its process ends.
  ASAN_OPTIONS=detect_leaks=0 agrees "parallel: over mpi" tests/golden/hf/qwen2 --tp 2 --transport mpi
else
  skip "parallel: no MPI here"
fi
TERN_MPI_LIB=/nonexistent OMPI_COMM_WORLD_SIZE=2 fails_with "parallel: without tern-mpi.so it says so" "tern-mpi.so is not here" -- \
  "$TERN" eval logits tests/golden/hf/qwen2 --tp 2 --transport mpi

# The bench names the members and what communication takes.
works "parallel: bench" -- "$TERN" bench -m $M -p 32 -n 8 -r 1 --threads 1 --tp 2 -o json
python3 - "$TMP/out" <<'PY' && ok "parallel: bench has members and comm_share" || not_ok "parallel: bench: $(cat "$TMP/out")"
import json, sys
r = json.load(open(sys.argv[1]))
sys.exit(not (r["members"] == 2 and 0 < r["comm_share"] <= 1 and r["decode_tok_s"] > 0 and r["comm_bytes"] > 0))
PY

# Refused by name, before anything is loaded.
fails_with "parallel: too many stages" "pp 13" "12 layers" -- "$TERN" bench -m $M -p 64 -n 8 --pp 13
fails_with "parallel: no experts" "no experts" -- "$TERN" bench -m $M -p 64 -n 8 --tp 2 --ep
wrong() {
  local name=$1 word=$2
  shift 2
  timeout 60 "$TERN" "$@" >"$TMP/out" 2>"$TMP/err" </dev/null
  if [ $? -eq 2 ] && grep -qF -- "$word" "$TMP/err"; then ok "parallel: $name"; else not_ok "parallel: $name: $(cat "$TMP/err")"; fi
}
wrong "--tp 0 is wrong usage" "tp 0" bench -m $M --tp 0
wrong "--wire is f32 or q8" "wire f16" bench -m $M --tp 2 --wire f16
wrong "--split has as many shares as members" "split 1,2,3" bench -m $M --tp 2 --split 1,2,3
wrong "an unknown transport" "pigeon" bench -m $M --tp 2 --transport pigeon
wrong "shared memory is of one host" "several hosts" bench -m $M --tp 2 --transport shm --hosts a,b

# children PID: processes that it has started
# Waits until a process has computed for half a second: it has joined its gang by then.
wait_busy() {
  for _ in $(seq 1200); do
    [ "$(awk '{print $14}' /proc/"$1"/stat 2>/dev/null || echo 50)" -ge 50 ] && return
    sleep 0.1
  done
}
children() { cat /proc/"$1"/task/*/children 2>/dev/null; }
# A member that is killed ends the command with the reason, and the other members with it.
"$TERN" bench -m $M -p 512 -n 4096 -r 64 --threads 1 --tp 2 --pp 2 >"$TMP/out" 2>"$TMP/err" </dev/null &
leader=$!
for _ in $(seq 600); do
  kids=$(children $leader)
  [ "$(echo $kids | wc -w)" -eq 3 ] && break
  sleep 0.1
done
set -- $kids
if [ $# -eq 3 ]; then
  for k in $kids; do wait_busy "$k"; done
  kill -9 "$2"
  wait $leader
  rc=$?
  if [ $rc -eq 1 ] && grep -q "gang has ended: member . (process $2) has gone" "$TMP/err"; then
    ok "parallel: a killed member ends the command with the reason"
  else
    not_ok "parallel: a killed member: exit $rc: $(tail -c 400 "$TMP/err")"
  fi
  left=
  for k in "$@"; do [ -e "/proc/$k" ] && left="$left $k"; done
  if [ -z "$left" ]; then ok "parallel: no member is left"; else not_ok "parallel: members are left:$left"; fi
else
  not_ok "parallel: expected three members, found: $kids"
  kill $leader
fi
# A leader that is killed takes its members with it.
"$TERN" bench -m $M -p 512 -n 4096 -r 64 --threads 1 --tp 2 --transport tcp >"$TMP/out" 2>"$TMP/err" </dev/null &
leader=$!
for _ in $(seq 600); do
  kids=$(children $leader)
  [ -n "$kids" ] && break
  sleep 0.1
done
for k in $kids; do wait_busy "$k"; done
kill -9 $leader
wait $leader 2>/dev/null
left=x
for _ in $(seq 300); do
  left=
  for k in $kids; do [ -e "/proc/$k" ] && left="$left $k"; done
  [ -z "$left" ] && break
  sleep 0.1
done
if [ -n "$kids" ] && [ -z "$left" ]; then ok "parallel: members end with their leader"; else not_ok "parallel: members $kids, left:$left"; fi
exit $failed
