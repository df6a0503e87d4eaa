# The commands from the command line.
. tests/cli/lib.inc
M=models/tern-tales.gguf
"$TERN" >"$TMP/out" 2>&1
[ $? -eq 2 ] && grep -q 'usage: tern COMMAND' "$TMP/out" && ok "no command: help and exit 2" || not_ok "no command"
"$TERN" frobnicate >"$TMP/out" 2>&1
[ $? -eq 2 ] && grep -q frobnicate "$TMP/out" && ok "an unknown command is named, exit 2" || not_ok "unknown command"
"$TERN" --version >"$TMP/out" 2>&1 && grep -qE '^tern [0-9]+\.[0-9]+\.[0-9]+ \(([0-9a-f]{7,}|unknown)\)$' "$TMP/out" &&
  ok "--version prints the version and the commit" || not_ok "--version: $(cat "$TMP/out")"
for v in run chat inspect tokenize embed classify rerank eval bench convert; do
  "$TERN" $v --help >"$TMP/out" 2>&1 && grep -q "usage: tern $v" "$TMP/out" && ok "$v --help" || not_ok "$v --help"
  "$TERN" $v --no-such-flag >"$TMP/out" 2>&1 </dev/null
  [ $? -eq 2 ] && grep -q -- '--no-such-flag' "$TMP/out" && ok "$v: an unknown flag is named, exit 2" || not_ok "$v: unknown flag"
done
works "inspect" -- "$TERN" inspect $M
grep -q 'architecture  llama' "$TMP/out" && ok "inspect names the architecture" || not_ok "inspect architecture"
works "inspect --json" -- "$TERN" inspect $M --json
python3 -c "import json;j=json.load(open('$TMP/out'));assert j['layers']==12 and j['tensors'] and j['keys']" &&
  ok "inspect --json is JSON" || not_ok "inspect --json"
works "run, greedy" -- "$TERN" run -p "Tell me a story about a frog." -n 24 --temp 0
cp "$TMP/out" "$TMP/first"
works "run again" -- "$TERN" run -p "Tell me a story about a frog." -n 24 --temp 0
cmp -s "$TMP/out" "$TMP/first" && [ -s "$TMP/out" ] && ok "greedy is reproducible" || not_ok "greedy is reproducible"
works "run, seeded" -- "$TERN" run -p "Tell me a story." -n 24 --seed 5
cp "$TMP/out" "$TMP/first"
works "run, seeded, again" -- "$TERN" run -p "Tell me a story." -n 24 --seed 5
cmp -s "$TMP/out" "$TMP/first" && ok "the same seed gives the same text" || not_ok "the same seed gives the same text"
grep -q 'tok/s' "$TMP/err" && ok "statistics on stderr" || not_ok "statistics on stderr: $(cat "$TMP/err")"
echo "Once upon a time" | "$TERN" run -n 8 --temp 0 --raw >"$TMP/out" 2>/dev/null && [ -s "$TMP/out" ] &&
  ok "stdin is a prompt" || not_ok "stdin is a prompt"
"$TERN" run -p "Once" -n 5 --raw --ids --temp 0 >"$TMP/out" 2>/dev/null
grep -qE '^([0-9]+ ?)+$' "$TMP/out" && ok "--ids prints ids" || not_ok "--ids: $(cat "$TMP/out")"
echo '{"type":"object","properties":{"n":{"type":"integer","maximum":9,"minimum":1}},"required":["n"]}' >"$TMP/schema.json"
works "run --json-schema" -- "$TERN" run -p "A number" --temp 1.5 --json-schema "$TMP/schema.json"
grep -qE '^\{ ?"n": ?[1-9] ?\}$' "$TMP/out" && ok "the output matches the schema" || not_ok "the output does not match the schema: $(cat "$TMP/out")"
printf 'root ::= [a-c]{3}\nx ::= y\n' >"$TMP/bad.gbnf"
"$TERN" run -p x --grammar "$TMP/bad.gbnf" >"$TMP/out" 2>&1
[ $? -eq 2 ] && grep -q "line 2, column 7: there is no rule 'y'" "$TMP/out" && ok "a bad grammar: line and column" || not_ok "a bad grammar: $(cat "$TMP/out")"
"$TERN" run -p "Tell me a story." -n 400 2>/dev/null | head -c 10 >/dev/null
rc=${PIPESTATUS[0]}
[ "$rc" -lt 128 ] && ok "a closed pipe is not a crash" || not_ok "a closed pipe: exit $rc"
echo "The frog sat" | "$TERN" tokenize -m $M >"$TMP/ids" && "$TERN" tokenize -m $M --decode <"$TMP/ids" >"$TMP/out" &&
  [ "$(cat "$TMP/out")" = "The frog sat" ] && ok "tokenize and --decode" || not_ok "tokenize and --decode: $(cat "$TMP/ids" "$TMP/out")"
"$TERN" embed -m $M --similarity "Once upon a time there was a frog." "Once there was a frog." "7 + 8 = 15" >"$TMP/out" 2>"$TMP/err" &&
  python3 -c "v=[float(l.split()[0]) for l in open('$TMP/out')];assert abs(v[0]-1)<1e-3 and v[1]>v[2]" &&
  ok "embed: similar texts have similar vectors" || not_ok "embed --similarity: $(cat "$TMP/out" "$TMP/err")"
printf 'one\n\ntwo\n' | "$TERN" embed -m $M -d 8 >"$TMP/out" 2>/dev/null
python3 -c "
import json
l=[json.loads(x) for x in open('$TMP/out')]
assert [x['index'] for x in l]==[0,1] and all(len(x['embedding'])==8 and abs(sum(a*a for a in x['embedding'])-1)<1e-4 for x in l)" &&
  ok "embed: one text per line, vectors of length 1" || not_ok "embed from stdin: $(head -c 300 "$TMP/out")"
G=tests/golden/onnx
printf 'the dog\ta cat\n' | "$TERN" classify -m $G/classify --pairs >"$TMP/out" 2>"$TMP/err" && grep -q '"label":"' "$TMP/out" &&
  "$TERN" classify -m $G/classify/model.onnx "the dog" | grep -q '"label":"bad","score":0.5844' &&
  ok "classify: texts and pairs, by folder and by file" || not_ok "classify: $(cat "$TMP/out" "$TMP/err")"
cp -r tests/golden/hf-2026/bert-rerank "$TMP/rerank" && chmod -R u+w "$TMP/rerank" && cp $G/classify/tokenizer*.json "$TMP/rerank"
printf 'a cat\nthe dog\na\n' | "$TERN" rerank -m "$TMP/rerank" "the dog" --json --top-n 2 >"$TMP/out" 2>"$TMP/err" &&
  "$TERN" rerank -m "$TMP/rerank" "the dog" "a cat" "the dog" a >"$TMP/text" 2>>"$TMP/err" && python3 -c "
import json
r=json.load(open('$TMP/out'))['results']
lines=[l.split(None,1) for l in open('$TMP/text').read().splitlines()]
docs=['a cat','the dog','a']
assert len(r)==2 and r[0]['relevance_score']>r[1]['relevance_score'] and all(x['document']['text']==docs[x['index']] for x in r)
assert len(lines)==3 and [l[1] for l in lines[:2]]==[x['document']['text'] for x in r]
assert abs(float(lines[0][0])-r[0]['relevance_score'])<1e-3" &&
  ok "rerank: the best documents first, as text and as JSON" || not_ok "rerank: $(cat "$TMP/out" "$TMP/err")"
mkdir "$TMP/rankers" && python3 tests/rankers.py "$TMP/rankers"
works "convert of a generative reranker" -- "$TERN" convert "$TMP/rankers/gen-head" "$TMP/rankers/gen-gguf.gguf" --type F32
"$TERN" inspect "$TMP/rankers/gen-gguf.gguf" --json >"$TMP/out" && python3 -c "
import json
j = json.load(open('$TMP/out'))
k, t = j['keys'], {x['name']: x['shape'] for x in j['tensors']}
assert k['qwen2.pooling_type'] == 4 and k['qwen2.classifier.output_labels'] == ['yes', 'no'] and t['cls.output.weight'] == [2, 64], k
assert '{query}' in k['tokenizer.chat_template.rerank'] and '{document}' in k['tokenizer.chat_template.rerank']" &&
  ok "a generative reranker has the keys and tensors of llama.cpp" || not_ok "keys of a generative reranker: $(cut -c1-300 "$TMP/out")"
for m in "gen-score" "gen-head" "gen-gguf.gguf" "gen-plain --rerank generative"; do
  "$TERN" rerank -m "$TMP/rankers/"$m "what no" "yes it is" "a dog" "no" --json >"$TMP/r-${m%%[ .]*}" 2>>"$TMP/err" || not_ok "rerank with $m: $(tail -1 "$TMP/err")"
done
python3 -c "
import json
a = [{r['index']: r['relevance_score'] for r in json.load(open('$TMP/r-gen-' + n))['results']} for n in ('score', 'head', 'gguf', 'plain')]
assert len(a[0]) == 3 and all(abs(x[i] - a[0][i]) < 1e-3 * a[0][i] for x in a for i in range(3)), a
assert all(0 < v < 1 for v in a[0].values()) and len(set(a[0].values())) == 3, a" && ok "generative rerankers: one score, wherever it comes from" ||
  not_ok "generative rerankers: $(cat "$TMP"/r-gen-*)"
for m in gen-score gen-head gen-gguf.gguf gen-plain; do
  works "eval rerank of $m" -- "$TERN" eval rerank "$TMP/rankers/$m" --golden "$TMP/rankers/rank.safetensors"
  python3 -c "import json; j = json.load(open('$TMP/out')); assert j['rel_err'] <= 3e-3 and j['sequences'] == 4, j" &&
    ok "$m agrees with the golden logits" || not_ok "$m and the golden logits: $(cat "$TMP/out")"
done
fails_with "eval rerank without a token for yes" 'no token "yes"' -- "$TERN" eval rerank "$TMP/rankers/gen-mute" --golden "$TMP/rankers/rank.safetensors"
set_rank_template() {
  python3 -c "
import json, sys
j = json.load(open(sys.argv[1]))
j['chat_template'][1]['template'] = sys.argv[2]
json.dump(j, open(sys.argv[1], 'w'))" "$TMP/rankers/gen-head/tokenizer_config.json" "$1"
}
set_rank_template "$(printf '{query}%.0s' $(seq 20))"
fails_with "a template with too many places" "more than 8 places" -- "$TERN" rerank -m "$TMP/rankers/gen-head" x y
set_rank_template "{query}: {document}? "
fails_with "an instruction that a template has no place for" "no place for one" -- "$TERN" rerank -m "$TMP/rankers/gen-head" --instruction z x y
"$TERN" rerank -m "$TMP/rankers/gen-chat" --rerank generative --instruction "Say no" "the dog" a b >"$TMP/out" 2>"$TMP/err" && [ "$(wc -l <"$TMP/out")" -eq 2 ] &&
  ok "rerank by the chat template of a model without ChatML" || not_ok "rerank with gen-chat: $(cat "$TMP/err")"
fails_with "rerank with a model that nobody called a reranker" "its task is generate" -- "$TERN" rerank -m "$TMP/rankers/gen-plain" x y
fails_with "rerank without a token for yes" 'no token "yes"' -- "$TERN" rerank --rerank generative -m "$TMP/rankers/gen-mute" x y
fails_with "an instruction for a cross-encoder" "--instruction" -- "$TERN" rerank -m "$TMP/rerank" --instruction x y z
sed -i 's/257/320/' "$TMP/rankers/gen-score/1_LogitScore/config.json"
fails_with "an answer outside of the vocabulary" "true_token_id is 320" -- "$TERN" rerank -m "$TMP/rankers/gen-score" x y
"$TERN" rerank -m "$TMP/rerank" --rerank maybe x y >"$TMP/out" 2>&1
[ $? -eq 2 ] && grep -q 'must be auto or generative' "$TMP/out" && ok "--rerank with another word: exit 2" || not_ok "--rerank maybe: $(cat "$TMP/out")"
fails_with "rerank with a classifier of three classes" "3 classes" -- "$TERN" rerank -m $G/classify x y
fails_with "rerank with a model that embeds" "its task is embed" -- "$TERN" rerank -m $G/embed x y
fails_with "rerank without a tokenizer" tokenizer -- "$TERN" rerank -m tests/golden/hf-2026/bert-rerank x y
"$TERN" rerank -m "$TMP/rerank" >"$TMP/out" 2>&1
[ $? -eq 2 ] && grep -q 'no query' "$TMP/out" && ok "rerank without a query: exit 2" || not_ok "rerank without a query"
"$TERN" inspect $G/embed | grep -q 'embed: 16 dimensions from last_hidden_state, pooling: mean' &&
  ! "$TERN" classify -m $G/embed x 2>"$TMP/err" && grep -q 'its task is embed' "$TMP/err" &&
  ok "inspect shows the task of an ONNX model, and classify checks it" || not_ok "inspect of a graph: $(cat "$TMP/err")"
"$TERN" embed -m $M -d 100000 x >"$TMP/out" 2>&1
[ $? -eq 1 ] && grep -q 256 "$TMP/out" && ok "embed: too many dimensions are rejected" || not_ok "embed -d: $(cat "$TMP/out")"
works "bench" -- "$TERN" bench -m $M -p 32 -n 8 -r 2 --batch 1,2 -o json
python3 - "$TMP/out" <<'P' && ok "bench -o json has all fields" || not_ok "bench json: $(tail -c 300 "$TMP/out")"
import json, sys
j = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
for k in "prompt_tok_s decode_tok_s weight_gb_s bandwidth_share load_ms first_token_ms peak_rss_bytes".split():
    assert j[k] > 0, k
assert [b["n"] for b in j["batch"]] == [1, 2] and all(b["decode_tok_s"] > 0 for b in j["batch"])
P
for t in F32 F16 BF16 Q8_0; do
  works "convert to $t" -- "$TERN" convert tests/golden/hf/qwen2 "$TMP/l-$t.gguf" --type $t
  works "eval the $t file" -- "$TERN" eval logits -m "$TMP/l-$t.gguf" --golden tests/golden/hf/qwen2/golden.safetensors
  python3 -c "
import json; j=json.load(open('$TMP/out'))
assert j['rel_err'] < (0.05 if '$t' == 'Q8_0' else 2e-3), j" && ok "$t agrees with the golden logits" || not_ok "$t agrees: $(cat "$TMP/out")"
done
for m in gpt2 bloom falcon-mq glm4_moe; do
  works "convert $m" -- "$TERN" convert tests/golden/hf/$m "$TMP/$m.gguf" --type BF16
  works "eval $m with an F32 KV cache" -- "$TERN" eval logits -m "$TMP/$m.gguf" --golden tests/golden/hf/$m/golden.safetensors --kv-type f32
done
# Encoders: vectors and scores of reference data; a head whose tensors are missing or of another shape.
vectors() { # vectors WHAT FOLDER MODE...: the worst relative error is at most 1e-4 (--ref) or 3e-3
  local what=$1 folder=$2 most=3e-3; shift 2
  [ "$*" = --ref ] && most=1e-4
  works "eval $what ${folder##*/} $*" -- "$TERN" eval $what "$folder" "$@"
  python3 -c "import json; j = json.load(open('$TMP/out')); assert j['rel_err'] <= $most and j['sequences'] > 0, j" &&
    ok "$what ${folder##*/} $* agrees" || not_ok "$what ${folder##*/} $*: $(cat "$TMP/out")"
}
vectors rerank tests/golden/hf-2026/bert-rerank --ref
vectors rerank tests/golden/hf-2026/bert-rerank
for d in "${TERN_SHARED:-../shared}"/fixtures/hf-2026/*-embed; do [ -d "$d" ] && vectors embed "$d" --ref && vectors embed "$d"; done
for d in "${TERN_SHARED:-../shared}"/fixtures/hf-2026/*-rerank; do [ -d "$d" ] && vectors rerank "$d" --ref && vectors rerank "$d"; done
fails_with "eval rerank of a model without scores" scores -- "$TERN" eval rerank tests/golden/hf/qwen2 --golden tests/golden/hf-2026/bert-rerank/golden.safetensors
fails_with "eval rerank without sequences" input_ids.0 -- "$TERN" eval rerank tests/golden/hf-2026/bert-rerank --golden tests/golden/hf/qwen2/golden.safetensors
cp -r tests/golden/hf-2026/bert-rerank "$TMP/headless"
python3 - "$TMP/headless/model.safetensors" <<'P'
import struct, sys
b = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", b[:8])[0]
open(sys.argv[1], "wb").write(b[:8] + b[8:8 + n].replace(b'"classifier.weight"', b'"clossifier.weight"') + b[8 + n:])
P
fails_with "a classifier without its matrix" classifier.weight -- "$TERN" eval rerank "$TMP/headless"
# The same scores from a GGUF file: the head has llama.cpp's names, and stays F32 whatever the rest becomes.
for d in tests/golden/hf-2026/bert-rerank "${TERN_SHARED:-../shared}"/fixtures/hf-2026/*-rerank; do
  [ -d "$d" ] || continue
  name=${d##*/}
  rm -f "$TMP/$name.gguf" "$TMP/$name-q.gguf"
  works "convert $name" -- "$TERN" convert "$d" "$TMP/$name.gguf" --type BF16
  works "eval rerank of $name.gguf" -- "$TERN" eval rerank "$TMP/$name.gguf" --golden "$d/golden.safetensors"
  python3 -c "import json; j = json.load(open('$TMP/out')); assert j['rel_err'] <= 3e-3 and j['sequences'] > 0, j" &&
    ok "the GGUF file of $name agrees" || not_ok "the GGUF file of $name: $(cat "$TMP/out")"
  works "quantize $name" -- "$TERN" quantize "$d" "$TMP/$name-q.gguf" --type Q8_0
  "$TERN" inspect "$TMP/$name-q.gguf" --json >"$TMP/out" && python3 -c "
import json
t = {x['name']: x['type'] for x in json.load(open('$TMP/out'))['tensors']}
assert t['cls.output.weight'] == t['cls.weight'] == 'F32' and 'Q8_0' in t.values(), t" &&
    ok "quantize leaves the head of $name" || not_ok "quantize of $name: $(cat "$TMP/out")"
done
# A GGUF file has no form of pairs: it follows from the architecture.
for d in "$TMP/rerank" "${TERN_SHARED:-../shared}"/fixtures/hf-2026/{xlm_roberta,modernbert}-rerank; do
  [ -d "$d" ] || continue
  name=${d##*/}-pairs
  if [ "$d" = "$TMP/rerank" ]; then cp -r "$d" "$TMP/$name"; else python3 tests/rankers.py --pairs "$d" "$TMP/$name"; fi
  "$TERN" convert "$TMP/$name" "$TMP/$name.gguf" --type F32 >"$TMP/out" 2>&1 &&
    "$TERN" rerank -m "$TMP/$name" "the dog" "a cat" "a" "the dog" >"$TMP/folder" 2>"$TMP/err" &&
    "$TERN" rerank -m "$TMP/$name.gguf" "the dog" "a cat" "a" "the dog" >"$TMP/file" 2>"$TMP/err" && [ -s "$TMP/file" ] &&
    cmp "$TMP/folder" "$TMP/file" >>"$TMP/err" && ok "texts are paired alike: $name" || not_ok "pairs of $name: $(cat "$TMP/err" "$TMP/folder" "$TMP/file")"
done
python3 - "$TMP/bert-rerank.gguf" "$TMP" <<'P'
import sys
b = open(sys.argv[1], "rb").read()
gone = b.replace(b"cls.output.weight", b"cls_output.weight").replace(b"cls.weight", b"cls_weight")
open(sys.argv[2] + "/no-head.gguf", "wb").write(gone)
key = b"bert.pooling_type" + (4).to_bytes(4, "little") # the key, its type
assert key + (4).to_bytes(4, "little") in b
open(sys.argv[2] + "/pool-5.gguf", "wb").write(b.replace(key + (4).to_bytes(4, "little"), key + (5).to_bytes(4, "little")))
P
G2="--golden tests/golden/hf-2026/bert-rerank/golden.safetensors"
fails_with "a GGUF reranker without its head" "cls.output.weight" -- "$TERN" eval rerank "$TMP/no-head.gguf" $G2
fails_with "a GGUF file with another pooling" "pooling_type is 5" -- "$TERN" eval rerank "$TMP/pool-5.gguf" $G2
fails_with "convert of a missing folder" nowhere -- "$TERN" convert "$TMP/nowhere" "$TMP/x.gguf"
[ ! -e "$TMP/x.gguf" ] && ok "a failed convert leaves no file" || not_ok "a failed convert leaves a file"
exit $failed
