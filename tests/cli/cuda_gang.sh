# One model over members with GPUs: two processes on one card over CUDA IPC and through the host, a GPU and a CPU as a pipeline, against
# one process; and what is refused by name. Without a GPU only the refusals run.
. tests/cli/lib.inc
M=models/tern-tales.gguf
DIRS=${TERN_GANG_DIRS:-"tests/golden/hf/qwen2 tests/golden/hf/phi3 tests/golden/hf/gemma3_text tests/golden/hf/gpt2 tests/golden/hf/bitnet tests/golden/hf/mamba2 tests/golden/hf/glm4_moe tests/golden/hf/deepseek_v3 tests/golden/hf/qwen3_next"}

# wrong NAME WORD flags...: wrong usage that names the flag's value.
wrong() {
  local name=$1 word=$2
  shift 2
  timeout 60 "$TERN" "$@" >"$TMP/out" 2>"$TMP/err" </dev/null
  if [ $? -eq 2 ] && grep -qF -- "$word" "$TMP/err"; then ok "cuda gang: $name"; else not_ok "cuda gang: $name: $(cat "$TMP/err")"; fi
}
wrong "a device that is none" "devices tpu,cpu" bench -m $M --tp 2 --devices tpu,cpu
wrong "a list of another length" "3 devices for 4 members" bench -m $M --tp 2 --pp 2 --devices cpu,cpu,cpu
wrong "devices without members" "devices cuda" bench -m $M --devices cuda
wrong "a way that is none" "comm pigeon" bench -m $M --tp 2 --comm pigeon
wrong "sums of one member" "members of tp" bench -m $M --pp 2 --comm ipc
wrong "an 8-bit wire over ipc" "wire q8" bench -m $M --tp 2 --comm ipc --wire q8
fails_with "cuda gang: ipc between CPUs is refused by name" "comm ipc: member 0 (cpu" "no GPU" -- "$TERN" bench -m $M -p 8 -n 2 --threads 1 --tp 2 --comm ipc
TERN_CUDA_LIB=/nonexistent fails_with "cuda gang: a member without its library is named" "member 1: the CUDA library was not found" -- \
  "$TERN" bench -m $M -p 8 -n 2 --threads 1 --tp 2 --devices cpu,cuda

if ! timeout 120 "$TERN" bench -m $M -p 8 -n 2 -r 1 --device cuda >"$TMP/out" 2>"$TMP/err" </dev/null; then
  skip "cuda gang: no GPU here: $(tail -n 1 "$TMP/err")"
  exit $failed
fi

# agrees NAME FOLDER flags...: logits within the bound of the reference, and the greedy tokens of one process on the GPU.
agrees() {
  local name=$1 dir=$2
  shift 2
  if ! timeout 300 "$TERN" eval logits "$dir" --threads 1 "$@" >"$TMP/out" 2>"$TMP/err" </dev/null; then
    not_ok "$name: $(tail -c 400 "$TMP/err")"
    return
  fi
  python3 - "$TMP/out" "$TMP/one" <<'PY' && ok "$name: $(python3 -c 'import json,sys; r = json.load(open(sys.argv[1])); print("rel_err %.2e" % r["rel_err"])' "$TMP/out")" || not_ok "$name: $(cat "$TMP/out"), one process: $(cat "$TMP/one")"
import json, sys
r, one = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
# Sums in another order: within twice the error of one process on the same device, and never far from it.
bound = max(3e-3, 2 * one["rel_err"])
sys.exit(not (r["rel_err"] <= bound and r["greedy_match"] >= one["greedy_match"] - (one["greedy_n"] > 0 and r["rel_err"] > 1e-3)))
PY
}
for dir in $DIRS; do
  [ -e "$dir/golden.safetensors" ] || continue
  name=$(basename "$dir")
  if ! timeout 300 "$TERN" eval logits "$dir" --device cuda >"$TMP/one" 2>"$TMP/err" </dev/null; then
    skip "cuda gang: $name: one process does not run it on the GPU: $(tail -n 1 "$TMP/err")"
    continue
  fi
  agrees "cuda gang: $name tp 2 through the host" "$dir" --tp 2 --devices cuda,cuda --comm host
  agrees "cuda gang: $name tp 2 over ipc" "$dir" --tp 2 --devices cuda,cuda --comm ipc
  agrees "cuda gang: $name pp 2 cuda,cpu" "$dir" --pp 2 --devices cuda,cpu
  agrees "cuda gang: $name pp 2 cpu,cuda" "$dir" --pp 2 --devices cpu,cuda
done
dir=tests/golden/hf/qwen2
timeout 300 "$TERN" eval logits $dir --device cuda >"$TMP/one" 2>"$TMP/err" </dev/null
agrees "cuda gang: tp 2 pp 2 on one card" $dir --tp 2 --pp 2 --devices cuda
agrees "cuda gang: a GPU and a CPU in one stage" $dir --tp 2 --devices cuda,cpu
agrees "cuda gang: over tcp" $dir --tp 2 --devices cuda,cuda --transport tcp
fails_with "cuda gang: experts over a GPU and a CPU are refused" "member 0 (cuda" "member 1 (cpu" "experts" -- \
  "$TERN" eval logits tests/golden/hf/glm4_moe --threads 1 --tp 2 --devices cuda,cpu
fails_with "cuda gang: nccl on one card is refused" "comm nccl" "share one GPU" -- \
  "$TERN" eval logits $dir --threads 1 --tp 2 --devices cuda,cuda --comm nccl
fails_with "cuda gang: whole experts on GPUs are refused" "ep: member 0 (cuda" -- \
  "$TERN" eval logits tests/golden/hf/glm4_moe --threads 1 --tp 2 --ep --devices cuda,cuda
fails_with "cuda gang: a card that is not there" "member 1: device \"cuda:99\" does not exist" -- \
  "$TERN" eval logits $dir --threads 1 --tp 2 --devices cuda,cuda:99
for way in host ipc; do
  works "cuda gang: bench over $way" -- "$TERN" bench -m $M -p 64 -n 8 -r 1 --tp 2 --devices cuda,cuda --comm $way -o json
  python3 - "$TMP/out" $way <<'PY' && ok "cuda gang: bench says $way: $(cat "$TMP/said")" || not_ok "cuda gang: bench: $(cat "$TMP/out")"
import json, sys
r = json.load(open(sys.argv[1]))
open(sys.argv[1].replace("/out", "/said"), "w").write("decode %.1f tok/s, comm_share %.2f" % (r["decode_tok_s"], r["comm_share"]))
sys.exit(not (r["members"] == 2 and r["sums"] == sys.argv[2] and 0 < r["comm_share"] <= 1 and r["comm_bytes"] > 0))
PY
done
exit $failed
