# tern quantize and tern imatrix.
. tests/cli/lib.inc
M=models/tern-tales.gguf
printf 'The frog sat on a log. %.0s' $(seq 400) >"$TMP/text"
works "to F16" -- "$TERN" quantize $M "$TMP/f16.gguf" --type F16
works "imatrix" -- "$TERN" imatrix -m "$TMP/f16.gguf" -f "$TMP/text" -o "$TMP/im.gguf" --ctx 128 --chunks 8
works "imatrix in the older format" -- "$TERN" imatrix -m "$TMP/f16.gguf" -f "$TMP/text" -o "$TMP/im.dat" --ctx 128 --chunks 8
for t in Q2_K Q3_K_M Q4_K_S Q4_K_M Q5_K_M Q6_K Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 BF16 F32; do
  case $t in Q4_0 | Q4_K_M | Q6_K) ;; *) sampled || continue ;; esac
  works "to $t" -- "$TERN" quantize "$TMP/f16.gguf" "$TMP/$t.gguf" $t --json
  works "$t runs" -- "$TERN" run -m "$TMP/$t.gguf" -p "Once" -n 4 --raw --temp 0
done
"$TERN" run -m "$TMP/f16.gguf" -p "Once upon a time" -n 24 --raw --temp 0 >"$TMP/a" 2>/dev/null
"$TERN" run -m "$TMP/Q6_K.gguf" -p "Once upon a time" -n 24 --raw --temp 0 >"$TMP/b" 2>/dev/null
[ "$(head -c 40 "$TMP/a")" = "$(head -c 40 "$TMP/b")" ] && ok "Q6_K gives the same text" || not_ok "Q6_K: $(cat "$TMP/a" "$TMP/b")"
for im in im.gguf im.dat; do
  works "with $im" -- "$TERN" quantize "$TMP/f16.gguf" "$TMP/i.gguf" --type Q4_K_M --imatrix "$TMP/$im" --json
  python3 -c "import json;assert json.load(open('$TMP/out'))['imatrix_tensors']>80" && ok "$im has the tensors" || not_ok "$im: $(cat "$TMP/out")"
done
"$TERN" inspect "$TMP/i.gguf" --json | grep -q quantize.imatrix.entries_count && ok "the file has the keys of the imatrix" || not_ok "imatrix keys are missing"
works "dry run" -- "$TERN" quantize "$TMP/f16.gguf" "$TMP/none.gguf" --dry-run --json
[ ! -e "$TMP/none.gguf" ] && ok "a dry run writes nothing" || not_ok "a dry run wrote a file"
python3 - "$TMP/out" "$TMP/Q4_K_M.gguf" <<'P' && ok "a dry run predicts the size" || not_ok "dry run: $(head -c 300 "$TMP/out")"
import json, os, sys
j = json.load(open(sys.argv[1]))
assert j["dry_run"] and abs(os.path.getsize(sys.argv[2]) - j["bytes"]) < 1.5e6 and len(j["items"]) == j["tensors"]
P
works "--report and --ppl" -- "$TERN" quantize "$TMP/f16.gguf" "$TMP/r.gguf" --report --json --ppl "$TMP/text" --ctx 128 --chunks 4 --tensor-type 'ffn_down=q8_0'
python3 - "$TMP/out" <<'P' && ok "the report has errors and perplexities" || not_ok "report: $(head -c 300 "$TMP/out")"
import json, sys
j = json.load(open(sys.argv[1]))
assert j["ppl_before"] > 1 and j["ppl_after"] > 1
t = {i["name"]: i for i in j["items"]}
assert t["blk.3.ffn_down.weight"]["type"] == "Q8_0" and 0 < t["blk.3.ffn_down.weight"]["relative"] < 0.01
assert 0.01 < t["blk.3.attn_q.weight"]["relative"] < 0.15
P
works "--split-size" -- "$TERN" quantize "$TMP/f16.gguf" "$TMP/parts.gguf" --type Q8_0 --split-size 3M
works "the parts run" -- "$TERN" run -m "$TMP/parts-00001-of-00004.gguf" -p "Once" -n 4 --raw
works "parts as input" -- "$TERN" quantize "$TMP/parts-00001-of-00004.gguf" "$TMP/whole.gguf" --type F16
works "a folder as input" -- "$TERN" quantize tests/golden/hf/qwen2 "$TMP/hf.gguf" --type Q8_0
[ -z "$(ls "$TMP" | grep -E 'part-|full-')" ] && ok "no partial files are left" || not_ok "left: $(ls "$TMP" | grep -E 'part-|full-')"

# A mixture of experts with a synthetic vocabulary: the imatrix has columns for each expert.
cp -r tests/golden/hf/glm4_moe "$TMP/moe" && python3 - "$TMP/moe" <<'P'
import json, sys
n = json.load(open(sys.argv[1] + "/config.json"))["vocab_size"]
order = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
rest = [b for b in range(256) if b not in order]
vocab = {chr(b): b for b in order}
vocab.update({chr(256 + i): b for i, b in enumerate(rest)})
vocab.update({f"<{i}>": i for i in range(256, n)})
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
           "model": {"type": "BPE", "vocab": vocab, "merges": []}}, open(sys.argv[1] + "/tokenizer.json", "w"))
P
works "imatrix of experts" -- "$TERN" imatrix -m "$TMP/moe" -f "$TMP/text" -o "$TMP/moe.im" --ctx 64 --chunks 8
works "experts with that imatrix" -- "$TERN" quantize "$TMP/moe" "$TMP/moe.gguf" --type Q8_0 --tensor-type 'ffn_(gate|up|down)_exps=iq4_nl' --imatrix "$TMP/moe.im" --json --report
python3 - "$TMP/out" <<'P' && ok "the imatrix is used for experts" || not_ok "experts: $(head -c 300 "$TMP/out")"
import json, sys
j = json.load(open(sys.argv[1]))
exps = [i for i in j["items"] if "_exps" in i["name"]]
assert exps and all(i["type"] == "IQ4_NL" and 0 < i["relative"] < 0.2 for i in exps), exps[:2]
assert j["imatrix_tensors"] >= len(exps)
P
works "the quantized experts run" -- "$TERN" run -m "$TMP/moe.gguf" -p "Once" -n 4 --raw --temp 0

fails_with "a quantized input" --requantize -- "$TERN" quantize "$TMP/Q4_0.gguf" "$TMP/x.gguf" --type Q4_K_M
fails_with "another model's imatrix" "another model" -- "$TERN" quantize "$TMP/hf.gguf" "$TMP/x.gguf" --type Q4_0 --requantize --imatrix "$TMP/im.gguf"
echo nonsense >"$TMP/bad.im"
fails_with "not an imatrix" bad.im -- "$TERN" quantize "$TMP/f16.gguf" "$TMP/x.gguf" --imatrix "$TMP/bad.im"
fails_with "no such model" nowhere -- "$TERN" quantize "$TMP/nowhere" "$TMP/x.gguf"
[ ! -e "$TMP/x.gguf" ] && ok "a failure leaves no file" || not_ok "a failure leaves a file"
"$TERN" quantize "$TMP/f16.gguf" "$TMP/x.gguf" --type Q9 >"$TMP/out" 2>&1
[ $? -eq 2 ] && grep -q -- --types "$TMP/out" && ok "an unknown type points to --types" || not_ok "Q9: $(cat "$TMP/out")"

exit $failed
