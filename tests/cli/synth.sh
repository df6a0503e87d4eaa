# tools/synth and tools/synth_hf. Every preset, with small widths, is a model that loads and runs.
. tests/cli/lib.inc
S=$B/tools/synth
for p in llama-3.2-1b qwen2.5-0.5b bitnet-2b qwen3.5-0.8b mamba2-1.3b qwen3-30b-a3b qwen3-moe-7b-a1b gpt-oss-20b; do
  works "$p is written" -- "$S" $p Q4_K_M "$TMP/m.gguf" --tiny
  works "$p is shown" -- "$TERN" inspect "$TMP/m.gguf" --json
  works "$p runs" -- "$TERN" run -m "$TMP/m.gguf" -p "the one" -n 2 --raw --temp 0 --ctx 64
  works "$p has finite logits" -- "$TERN" eval ppl -m "$TMP/m.gguf" -f tests/cli/synth.sh --ctx 64 --chunks 2
done
"$S" no-such-model Q8_0 "$TMP/x.gguf" 2>"$TMP/err" && not_ok "an unknown preset is accepted"
grep -q "presets:.*qwen3.5-0.8b" "$TMP/err" && ok "an unknown preset: the presets are listed" || not_ok "unknown preset: $(cat "$TMP/err")"
# tools/synth_hf: every scheme is a folder that loads and runs.
for q in gptq4 gptq4-actorder gptq4-g32 awq4 fp8; do
  works "$q is written" -- "$B/tools/synth_hf" tiny $q "$TMP/$q"
  works "$q is shown" -- "$TERN" inspect "$TMP/$q" --json
  works "$q runs" -- "$TERN" bench -m "$TMP/$q" -p 8 -n 2 -r 1 -o json
done
"$B/tools/synth_hf" tiny no-such-scheme "$TMP/x" 2>"$TMP/err" && not_ok "an unknown scheme is accepted"
grep -q "schemes:.*gptq4" "$TMP/err" && ok "an unknown scheme: the schemes are listed" || not_ok "unknown scheme: $(cat "$TMP/err")"
exit $failed
