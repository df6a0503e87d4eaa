# Names of models: every command and serve understand the same ones; what run takes as a model or as a prompt.
. tests/cli/lib.inc
M=$PWD/models/tern-tales.gguf
C=$(printf 'c%.0s' $(seq 40))
unset TERN_MODEL TERN_CONFIG HF_HOME XDG_CACHE_HOME TERN_PORT
export HF_HUB_CACHE=$TMP/hub XDG_CONFIG_HOME=$TMP/conf
# put REPO FILE SOURCE: a file of a snapshot, as Hugging Face's tools store it
put() {
  local repo=$TMP/hub/models--$1 sum up=../..
  sum=$(sha256sum <"$3" | cut -d' ' -f1)
  mkdir -p "$repo/blobs" "$repo/refs" "$repo/snapshots/$C/$(dirname "$2")"
  cp "$3" "$repo/blobs/$sum"
  printf %s "$C" >"$repo/refs/main"
  case $2 in */*) up=../../.. ;; esac
  ln -s "$up/blobs/$sum" "$repo/snapshots/$C/$2"
}
put Org--Tales-GGUF tales-Q8_0.gguf "$M"
put Org--Deep gguf/deep-Q8_0.gguf "$M"
"$TERN" convert "$M" "$TMP/tales" >/dev/null 2>&1
for f in "$TMP"/tales/*; do put Org--Folder "$(basename "$f")" "$f"; done
for f in tests/golden/onnx/classify/*; do put Org--Graph "$(basename "$f")" "$f"; done
for f in tests/golden/hf-2026/bert-rerank/* tests/golden/onnx/classify/tokenizer*.json; do put Org--Rank "$(basename "$f")" "$f"; done
python3 - "$TMP/golden.safetensors" <<'P'
import json, struct, sys
data = struct.pack("<3q", 5, 6, 7) + struct.pack("<256f", *[0.0625] * 256)
head = json.dumps({"input_ids.0": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]},
                   "embedding.0": {"dtype": "F32", "shape": [256], "data_offsets": [24, 24 + 1024]}}).encode()
head += b" " * (-len(head) % 8)
open(sys.argv[1], "wb").write(struct.pack("<Q", len(head)) + head + data)
P
for f in "$TMP"/tales/* "$TMP/golden.safetensors"; do put Org--Vectors "$(basename "$f")" "$f"; done
(umask 077; for k in old new; do python3 -c 'import os; print(os.urandom(32).hex())' >"$TMP/$k.key"; done)
"$TERN" encrypt "$M" "$TMP/sealed.gguf" --key-file "$TMP/old.key" -q >/dev/null 2>&1
put Org--Sealed sealed.gguf "$TMP/sealed.gguf"
mkdir -p "$TMP/conf/tern"
cat >"$TMP/conf/tern/tern.yaml" <<Y
models:
  - {path: hf:Org/Tales-GGUF, alias: [tales, story]}
  - {path: hf:Org/None, alias: none}
  - {path: hf:Org/Rank, alias: rank}
  - {path: hf:Org/Vectors, alias: vectors}
  - {path: hf:Org/Sealed, alias: sealed}
Y

# ---- every command ----
for i in 1 2 3 4 5; do echo "Once upon a time there was a frog."; done >"$TMP/text"
for name in hf:Org/Tales-GGUF hf.co/Org/Tales-GGUF hf:Org/Tales-GGUF@main:Q8_0 "file:$M" Org/Tales-GGUF tales; do
  sampled || continue
  for verb in "inspect $name" "show $name" "verify $name" "run -m $name -p Hi -n 1 -q" "run $name Hi -n 1 -q" "tokenize -m $name --file $TMP/text" \
    "embed -m $name hello" "template -m $name --json {\"messages\":[]}" "eval ppl -m $name --file $TMP/text --ctx 16" \
    "bench -m $name -p 8 -n 2 -r 1" "quantize $name $TMP/q.gguf --type Q8_0" "convert $name $TMP/folder" "imatrix -m $name -f $TMP/text -o $TMP/i --ctx 8"; do
    rm -rf "$TMP/q.gguf" "$TMP/folder" "$TMP/i"
    timeout 300 "$TERN" $verb >"$TMP/out" 2>"$TMP/err" </dev/null ||
      { not_ok "$verb: $(tail -n 2 "$TMP/err")"; continue 2; }
  done
  ok "names: all commands take $name"
done
fails_with "names: rm takes an alias" "hf:Org/None is not in the cache" -- "$TERN" rm none --yes
HF_ENDPOINT=http://127.0.0.1:1 "$TERN" pull none --retries 0 >"$TMP/out" 2>"$TMP/err"
[ $? -eq 3 ] && grep -q 'Org/None' "$TMP/err" && ok "names: pull takes an alias" || not_ok "names: pull of an alias: $(cat "$TMP/err")"
printf '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 2}}\n' >"$TMP/in.jsonl"
works "names: batch takes an alias" -- "$TERN" batch -m tales "$TMP/in.jsonl" "$TMP/out.jsonl" -q
for name in hf:Org/Rank hf.co/Org/Rank@main Org/Rank rank; do
  works "names: rerank takes $name" -- "$TERN" rerank -m $name "the dog" "the cat" "a dog"
  works "names: eval rerank takes $name" -- "$TERN" eval rerank $name
  grep -q '"rel_err"' "$TMP/out" || not_ok "names: eval rerank $name: $(cat "$TMP/out")"
done
for name in hf:Org/Vectors "file:$TMP/hub/models--Org--Vectors/snapshots/$C" vectors; do
  works "names: eval embed takes $name" -- "$TERN" eval embed $name
  grep -q '"rel_err"' "$TMP/out" || not_ok "names: eval embed $name: $(cat "$TMP/out")"
done
for name in hf:Org/Tales-GGUF hf:Org/Rank "file:$TMP/models.gguf" story; do
  case $name in file:*) cp "$M" "$TMP/models.gguf" ;; esac
  works "names: manifest takes $name" -- "$TERN" manifest $name -q
  works "names: manifest --check takes $name" -- "$TERN" manifest $name --check -q
  rm -rf "$TMP/out.sealed"
  works "names: encrypt takes $name" -- "$TERN" encrypt $name "$TMP/out.sealed" --key-file "$TMP/old.key" -q
done
find "$TMP/hub" -name SHA256SUMS -delete -o -name '*.sha256' -delete
rm -rf "$TMP/models.gguf" "$TMP/models.gguf.sha256"
works "names: rekey takes hf:" -- "$TERN" rekey hf:Org/Sealed --key-file "$TMP/old.key" --new-key-file "$TMP/new.key"
works "names: the new key opens it" -- "$TERN" run -m sealed --model-key-file "$TMP/new.key" -p Hi -n 1 -q
works "names: rekey takes an alias" -- "$TERN" rekey sealed --key-file "$TMP/new.key" --new-key-file "$TMP/old.key"
works "names: rekey --list takes an alias" -- "$TERN" rekey sealed --list
works "names: classify takes a name of the cache" -- "$TERN" classify -m hf:Org/Graph "the dog"
works "names: a folder of the cache" -- "$TERN" run hf:Org/Folder Hi -n 1 --raw -q
echo /exit | timeout 300 "$TERN" chat tales >"$TMP/out" 2>"$TMP/err" && ok "names: chat NAME" || not_ok "names: chat NAME: $(cat "$TMP/err")"
for verb in "inspect hf:Org/None" "run hf:Org/None hi" "chat none" "embed -m hf:Org/None x" "classify -m hf:Org/None x" "template -m hf:Org/None --json {}" \
  "serve -m hf:Org/None --port 0" "verify none" "show Org/None" "convert hf:Org/None $TMP/x" "rerank -m hf:Org/None a b" "manifest none" "eval embed none" \
  "eval rerank hf:Org/None" "eval logits Org/None" "encrypt none $TMP/x --key-file $TMP/old.key" "rekey none --list"; do
  fails_with "names: a missing model: $verb" "Org/None" "$TMP/hub" "tern pull hf:Org/None" -- "$TERN" $verb
done
for bad in hf:../x hf:Org/.. hf:Org/Tales-GGUF@../../x hf:Org/Tales-GGUF:../../x hf:Org/Tales-GGUF:/etc/passwd hf: hf:a/b/c hf:Org/Tales-GGUF: "hf:$(printf 'a%.0s' $(seq 3000))"; do
  for verb in "inspect $bad" "run $bad hi" "serve -m $bad --port 0"; do
    timeout 300 "$TERN" $verb >"$TMP/out" 2>"$TMP/err" </dev/null
    rc=$?
    { [ $rc -eq 1 ] || [ $rc -eq 2 ]; } && [ "$(wc -l <"$TMP/err")" -eq 1 ] || { not_ok "names: ${verb:0:60}: exit $rc: $(head -c 300 "$TMP/err")"; continue 2; }
  done
  ok "names: ${bad:0:40} is refused"
done

# ---- run: a model or a prompt ----
refuses() { # NAME WORDS... -- command: exit 2 and one line with every word
  local name=$1 words=() rc
  shift
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  timeout 300 "$@" >"$TMP/out" 2>"$TMP/err" </dev/null
  rc=$?
  [ $rc -eq 2 ] && [ "$(wc -l <"$TMP/err")" -eq 1 ] || { not_ok "$name: exit $rc: $(head -c 300 "$TMP/err")"; return; }
  for w in "${words[@]}"; do grep -qF -- "$w" "$TMP/err" || { not_ok "$name: no '$w' in: $(cat "$TMP/err")"; return; }; done
  ok "$name"
}
want=$("$TERN" run -m "$M" -p "Tell me a story." -n 8 --temp 0 -q 2>/dev/null)
is() { # NAME -- command: prints what -m and -p give
  local name=$1
  shift 2
  got=$("$@" 2>"$TMP/err") && [ "$got" = "$want" ] && ok "$name" || not_ok "$name: '$got', not '$want': $(cat "$TMP/err")"
}
f="-n 8 --temp 0 -q"
is "run: a prompt alone" -- "$TERN" run "Tell me a story." $f </dev/null
is "run: a model and a prompt" -- "$TERN" run "$M" "Tell me a story." $f </dev/null
is "run: the words behind a model are the prompt" -- "$TERN" run tales Tell me a story. $f </dev/null
is "run: a prompt behind -m" -- "$TERN" run -m tales Tell me a story. $f </dev/null
is "run: flags before the model" -- "$TERN" run $f story "Tell me a story." </dev/null
echo "Tell me a story." >"$TMP/question"
is "run: a model, and the prompt from a pipe" -- "$TERN" run tales $f <"$TMP/question"
is "run: a model with -p" -- "$TERN" run tales -p "Tell me a story." $f </dev/null
refuses "run: a file that is not there is no prompt" "model.gguf" "tern pull" "-p" -- "$TERN" run model.gguf
refuses "run: a word that could be a name is no prompt" "Hello" "tern pull" "-p" -- "$TERN" run Hello
refuses "run: a path that is not there is no prompt" "my model.gguf" -- "$TERN" run "my model.gguf" hi
refuses "run: two prompts" "two prompts" -- "$TERN" run tales hi -p hello
refuses "run: two prompts without a model" "too many" -- "$TERN" run "Tell me" "a story."
refuses "chat: two models" "two models" -- "$TERN" chat tales -m "$M"
works "run: -p takes any word" -- "$TERN" run -p Hello -n 1 -q

# ---- list and show ----
"$TERN" list --json >"$TMP/out" && python3 - "$TMP/out" <<'P' && ok "list: the cache, aliases and the default model" || not_ok "list: $(cat "$TMP/out")"
import json, sys
m = {x["name"]: x for x in json.load(open(sys.argv[1]))["models"]}
assert set(m) == {"hf:Org/Tales-GGUF:tales-Q8_0.gguf", "hf:Org/Deep:gguf/deep-Q8_0.gguf", "hf:Org/Folder", "hf:Org/Graph", "hf:Org/Rank", "hf:Org/Vectors",
                  "hf:Org/Sealed:sealed.gguf", "tales", "story", "rank", "vectors", "sealed", "tern-tales"}, set(m)
assert m["hf:Org/Folder"]["type"] == "safetensors" and m["hf:Org/Graph"]["type"] == "onnx" and m["tales"]["source"] == "alias"
assert all(x["bytes"] > 0 and x["modified"] > 0 and x["path"] for x in m.values())
P
"$TERN" list | grep -q '^hf:Org/Folder ' && ok "list: a table" || not_ok "list as a table"
"$TERN" show tales --json >"$TMP/out" && python3 -c "
import json; j = json.load(open('$TMP/out'))
assert j['architecture'] == 'llama' and j['context'] == 512 and 'Q8_0' in j['quantization'] and j['template'] and j['parameters'] > 1e7, j" &&
  ok "show --json" || not_ok "show --json: $(cat "$TMP/out")"

# ---- serve ----
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
cat >"$TMP/list.yaml" <<Y
models:
  - hf:Org/Tales-GGUF
  - {path: "hf:Org/Deep:gguf/deep-Q8_0.gguf", alias: deep}
  - {path: hf:Org/Folder, preload: true}
  - {path: "hf:Org/Graph", preload: true}
  - {path: "file:$M", alias: plain}
Y
mkdir -p "$TMP/models" && cp "$M" "$TMP/models/inside.gguf"
cat >"$TMP/dir.yaml" <<Y
models-dir: $TMP/models
models:
  - {path: hf:Org/Tales-GGUF, alias: cached, preload: true}
  - {path: "file:inside.gguf", alias: inside, preload: true}
Y
# serves NAME IDS -- flags: the server becomes ready with these models, and the generative ones answer
serves() {
  local name=$1 ids=$2 p pid
  shift 3
  p=$(free_port)
  TERN_API_KEY= "$TERN" serve --port "$p" --threads 1 --ctx 128 --max-seqs 2 "$@" >"$TMP/log" 2>&1 &
  pid=$!
  if python3 - "http://127.0.0.1:$p" "$ids" $pid <<'P' 2>"$TMP/err"; then ok "$name"; else not_ok "$name: $(tail -n 3 "$TMP/err") / $(grep -v access "$TMP/log" | tail -n 4)"; fi
import json, os, sys, time, urllib.request as u
url, ids, pid = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
end = time.time() + 120
while True:
    try:
        u.urlopen(url + "/ready", timeout=5)
        break
    except OSError:
        os.kill(pid, 0)
        assert time.time() < end, "not ready"
        time.sleep(0.1)
got = [m["id"] for m in json.load(u.urlopen(url + "/v1/models"))["data"]]
assert sorted(got) == sorted(ids), got
for m in ids:
    if m == "Graph":
        body, path = {"model": m, "input": "the dog"}, "/v1/classify"
    else:
        body, path = {"model": m, "prompt": "Once", "max_tokens": 2}, "/v1/completions"
    r = u.urlopen(u.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=120)
    assert r.status == 200
P
  kill $pid 2>/dev/null && wait $pid
}
for iso in "" --isolate; do
  serves "serve -m hf: $iso" tales-Q8_0 -- -m hf:Org/Tales-GGUF $iso
  serves "serve: all kinds of names in the list $iso" tales-Q8_0,deep,Folder,Graph,plain -- --config "$TMP/list.yaml" $iso
  serves "serve: an alias, a name of the cache and a path $iso" tales,Folder,tern-tales -- -m tales -m Org/Folder -m "$M" $iso
  serves "serve: names of the cache beside a folder of models $iso" cached,inside -- --config "$TMP/dir.yaml" $iso
done
printf 'models-dir: %s\nmodels: ["file:../x.gguf"]\n' "$TMP/models" >"$TMP/bad.yaml"
fails=$("$TERN" serve --config "$TMP/bad.yaml" --port 0 2>&1) && not_ok "serve: file: leaves the folder of models" ||
  { case $fails in *"$TMP/models"*) ok "serve: file: does not leave the folder of models" ;; *) not_ok "serve: file:../x: $fails" ;; esac; }
exit $failed
