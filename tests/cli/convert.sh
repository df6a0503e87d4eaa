# tern convert in both directions, and names of models.
. tests/cli/lib.inc
M=models/tern-tales.gguf
works "to F16" -- "$TERN" quantize $M "$TMP/f16.gguf" --type F16
"$TERN" run -m "$TMP/f16.gguf" -p "Once upon a time" -n 24 --raw --temp 0 >"$TMP/a" 2>/dev/null
works "to a folder" -- "$TERN" convert "$TMP/f16.gguf" "$TMP/folder" --json
works "the folder runs" -- "$TERN" run -m "$TMP/folder" -p "Once upon a time" -n 24 --raw --temp 0
cmp -s "$TMP/out" "$TMP/a" && ok "the folder gives the same text" || not_ok "the folder gives another text: $(cat "$TMP/out" "$TMP/a")"
(cd "$TMP/folder" && sha256sum -c --quiet SHA256SUMS) >"$TMP/out" 2>&1 && ok "SHA256SUMS is correct" || not_ok "SHA256SUMS: $(cat "$TMP/out")"
works "in shards" -- "$TERN" convert "$TMP/f16.gguf" "$TMP/shards" --shard-size 4M
rm "$TMP"/shards/model-00002-of-*
works "resumed" -- "$TERN" convert "$TMP/f16.gguf" "$TMP/shards" --shard-size 4M --resume
works "shards run" -- "$TERN" run -m "$TMP/shards" -p "Once upon a time" -n 24 --raw --temp 0
cmp -s "$TMP/out" "$TMP/a" && ok "the shards give the same text" || not_ok "shards: $(cat "$TMP/out")"
cat >"$TMP/round.py" <<'P'
# round.py TERN FOLDER TMP: converts to GGUF in the folder's type and back; tensors and JSON files must be equal.
import json, os, shutil, struct, subprocess, sys
tern, src, tmp = sys.argv[1:]
def load(p):
    b = open(p, "rb").read(); n = struct.unpack("<Q", b[:8])[0]; h = json.loads(b[8:8 + n]); h.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in h.items()}
a = load(src + "/model.safetensors")
kinds = [v[0] for v in a.values() if v[0] != "U8"]
shutil.rmtree(tmp + "/back", ignore_errors=True)
r = subprocess.run([tern, "convert", src, tmp + "/there.gguf", "--type", max(set(kinds), key=kinds.count), "-q"], capture_output=True, text=True)
if r.returncode and ("known are" in r.stderr or "not supported" in r.stderr): sys.exit(77)
assert r.returncode == 0, r.stderr
subprocess.run([tern, "convert", tmp + "/there.gguf", tmp + "/back", "-q"], check=True, stderr=subprocess.DEVNULL)
b = load(tmp + "/back/model.safetensors")
assert set(a) - set(b) <= {"lm_head.weight"} and set(b) <= set(a), (set(a) ^ set(b))
assert all(b[k] == a[k] for k in b), [k for k in b if b[k] != a[k]]
for f in "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json":
    if os.path.exists(f"{src}/{f}"): assert open(f"{src}/{f}").read() == open(f"{tmp}/back/{f}").read(), f
P
golden() { # FOLDER: converts with --bare and back, then compares with the golden logits
  rm -rf "$TMP/back"
  works "$1: to GGUF" -- "$TERN" convert "$1" "$TMP/there.gguf" --type F32 --bare
  works "$1: back to a folder" -- "$TERN" convert "$TMP/there.gguf" "$TMP/back"
  works "$1: evaluated" -- "$TERN" eval logits "$TMP/back" --golden "$1/golden.safetensors" --ref
  python3 -c "import json;assert json.load(open('$TMP/out'))['rel_err']<1e-4" && ok "$1: the derived config.json describes the same model" || not_ok "$1: $(cat "$TMP/out")"
}
for d in tests/golden/hf/*/; do
  sampled || continue
  python3 "$TMP/round.py" "$TERN" "$d" "$TMP" && ok "$d: equal bytes" || not_ok "$d: different bytes"
  golden "${d%/}"
done
if [ -d ../shared/fixtures/hf ]; then
  for d in ../shared/fixtures/hf/*/ ../shared/models/tern-tales-main/; do
    sampled || continue
    python3 "$TMP/round.py" "$TERN" "$d" "$TMP"
    case $? in 0) ok "$d: equal bytes" ;; 77) skip "$d: unsupported architecture" ;; *) not_ok "$d: different bytes" ;; esac
  done
else
  skip "../shared/fixtures/hf does not exist"
fi
# GGUF has the value heads of Qwen 3.5 in another order; the derived config.json has the keys and the class of the family.
for d in qwen3_5_text qwen3_5_moe_text dots1 ernie4_5_moe exaone_moe falcon_mamba flex_olmo granite_swa granitemoeshared hunyuan_v1_moe hy_v3 jais2 lfm2_moe minimax_m2 vaultgemma; do
  d=../shared/fixtures/hf-2026/$d
  [ -d "$d" ] || { skip "$d does not exist"; continue; }
  python3 "$TMP/round.py" "$TERN" "$d" "$TMP" && ok "$d: equal bytes" || not_ok "$d: different bytes"
  golden "$d"
  python3 -c "import json,sys;a,b=(json.load(open(p+'/config.json'))['architectures'] for p in sys.argv[1:]);assert a==b,(a,b)" "$d" "$TMP/back" && ok "$d: its class" || not_ok "$d: another class"
done
# Of a family whose config.json is not derived, only files of tern's own become folders.
d=../shared/fixtures/hf-2026/qwen3_vl
if [ -d "$d" ]; then
  works "$d: to GGUF" -- "$TERN" convert "$d" "$TMP/there.gguf" --type F32 --bare
  fails_with "$d: refused by name" "config.json of qwen3_vl_text" -- "$TERN" convert "$TMP/there.gguf" "$TMP/none"
else skip "$d does not exist"; fi
# Families with keys of their own in GGUF files: the golden logits hold through GGUF and back.
for d in gemma4_text gemma4_text-moe gemma4 gemma3n_text gemma3n llama4_text llama4 ministral3 mistral3 mistral4 mistral3-mistral4 afmoe granitemoehybrid granitemoehybrid-dense bamba falcon_h1 jamba nemotron_h nemotron_h-latent falcon_mamba apertus minicpm3 cohere2_moe mimo_v2_flash deepseek_v32 glm_moe_dsa minimax_m3_vl glm4_moe_lite solar_open nanochat longcat_flash olmo_hybrid; do
  d=../shared/fixtures/hf-2026/$d
  [ -d "$d" ] || { skip "$d does not exist"; continue; }
  rm -rf "$TMP/back"
  works "$d: to GGUF" -- "$TERN" convert "$d" "$TMP/there.gguf" --type F32
  works "$d: to a folder" -- "$TERN" convert "$TMP/there.gguf" "$TMP/back"
  for m in "$TMP/there.gguf" "$TMP/back"; do
    works "$d: evaluated" -- "$TERN" eval logits "$m" --golden "$d/golden.safetensors" --ref
    python3 -c "import json;assert json.load(open('$TMP/out'))['rel_err']<1e-4" && ok "$d: the same logits" || not_ok "$d: $(cat "$TMP/out")"
  done
done
d=../shared/fixtures/hf-2026/gemma3_text-embed
if [ -d "$d" ]; then
  works "EmbeddingGemma with its dense layers: to GGUF" -- "$TERN" convert "$d" "$TMP/both.gguf" --type F32
  works "EmbeddingGemma: evaluated" -- "$TERN" eval embed "$TMP/both.gguf" --golden "$d/golden.safetensors" --ref
  python3 -c "import json;assert json.load(open('$TMP/out'))['rel_err']<1e-4" && ok "EmbeddingGemma: the same vectors" || not_ok "EmbeddingGemma: $(cat "$TMP/out")"
  fails_with "EmbeddingGemma's dense layers have no place in the folder" "dense_2.weight" -- "$TERN" convert "$TMP/both.gguf" "$TMP/both"
else skip "$d does not exist"; fi
cat >"$TMP/encoders.py" <<'P'
# encoders.py TERN TMP: converts small encoders with --bare and back; tensors must be equal, config.json must have the
# same values.
import json, os, random, struct, subprocess, sys
tern, tmp = sys.argv[1:]
E, F, V, L = 16, 24, 40, 2
norm = lambda n: {n + ".weight": [E], n + ".bias": [E]}
lin = lambda n, o, i, bias=True: {n + ".weight": [o, i], **({n + ".bias": [o]} if bias else {})}
def bert():
    t = {"embeddings.word_embeddings.weight": [V, E], "embeddings.position_embeddings.weight": [32, E], "embeddings.token_type_embeddings.weight": [2, E], **norm("embeddings.LayerNorm")}
    for l in range(L):
        p = f"encoder.layer.{l}."
        for n in "query", "key", "value": t.update(lin(p + "attention.self." + n, E, E))
        t.update({**lin(p + "attention.output.dense", E, E), **norm(p + "attention.output.LayerNorm"), **lin(p + "intermediate.dense", F, E), **lin(p + "output.dense", E, F), **norm(p + "output.LayerNorm")})
    return t, dict(model_type="bert", hidden_size=E, num_hidden_layers=L, num_attention_heads=2, intermediate_size=F, vocab_size=V, max_position_embeddings=32, type_vocab_size=2, layer_norm_eps=1e-12, hidden_act="gelu")
def nomic():
    t = {"embeddings.word_embeddings.weight": [V, E], "embeddings.token_type_embeddings.weight": [2, E], **norm("emb_ln")}
    for l in range(L):
        p = f"encoder.layers.{l}."
        t.update({**lin(p + "attn.Wqkv", 3 * E, E, False), **lin(p + "attn.out_proj", E, E, False), **norm(p + "norm1"), **norm(p + "norm2")})
        t.update({**lin(p + "mlp.fc11", F, E, False), **lin(p + "mlp.fc12", F, E, False), **lin(p + "mlp.fc2", E, F, False)})
    return t, dict(model_type="nomic_bert", n_embd=E, n_layer=L, n_head=2, n_inner=F, vocab_size=V, n_positions=64, type_vocab_size=2, layer_norm_epsilon=1e-12, rotary_emb_base=500, activation_function="swiglu", qkv_proj_bias=False)
def modern():
    t = {"embeddings.tok_embeddings.weight": [V, E], "embeddings.norm.weight": [E], "final_norm.weight": [E]}
    for l in range(L):
        p = f"layers.{l}."
        if l: t[p + "attn_norm.weight"] = [E]
        t.update({**lin(p + "attn.Wqkv", 3 * E, E, False), **lin(p + "attn.Wo", E, E, False), p + "mlp_norm.weight": [E], **lin(p + "mlp.Wi", 2 * F, E, False), **lin(p + "mlp.Wo", E, F, False)})
    return t, dict(model_type="modernbert", hidden_size=E, num_hidden_layers=L, num_attention_heads=2, intermediate_size=F, vocab_size=V, max_position_embeddings=64, norm_eps=1e-5, local_attention=6, layer_types=["full_attention", "sliding_attention"], global_rope_theta=900.0, local_rope_theta=70.0)
def load(p):
    b = open(p, "rb").read(); n = struct.unpack("<Q", b[:8])[0]; h = json.loads(b[8:8 + n]); h.pop("__metadata__", None)
    return {k: (v["shape"], b[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in h.items()}
for make in bert, nomic, modern:
    tensors, config = make()
    src, head, data = f"{tmp}/{config['model_type']}", {}, b""
    os.makedirs(src)
    for k, s in tensors.items():
        x = struct.pack(f"<{s[0] * (s + [1])[1]}f", *[random.uniform(-1, 1) for _ in range(s[0] * (s + [1])[1])])
        head[k] = {"dtype": "F32", "shape": s, "data_offsets": [len(data), len(data) + len(x)]}
        data += x
    j = json.dumps(head).encode()
    open(src + "/model.safetensors", "wb").write(struct.pack("<Q", len(j)) + j + data)
    json.dump(config, open(src + "/config.json", "w"))
    subprocess.run([tern, "convert", src, src + ".gguf", "--type", "F32", "--bare", "-q"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([tern, "convert", src + ".gguf", src + "-back", "-q"], check=True, stdout=subprocess.DEVNULL)
    assert load(src + "/model.safetensors") == load(src + "-back/model.safetensors"), src
    derived = json.load(open(src + "-back/config.json"))
    assert {k: derived.get(k) for k in config} == config, (derived, config)
P
works "encoders are equal after a round trip" -- python3 "$TMP/encoders.py" "$TERN" "$TMP"
cat >"$TMP/tokenizers.py" <<'P'
# tokenizers.py TERN TMP TOKENIZERS: converts each tokenizer to GGUF and back; both must give the golden ids.
import gzip, json, os, shutil, subprocess, sys
tern, tmp, shared = sys.argv[1:]
for name in sorted(os.listdir(shared)):
    src = f"{tmp}/tok-{name}"
    shutil.copytree("tests/golden/hf/qwen2", src)
    for f in os.listdir(f"{shared}/{name}"):
        if f == "tokenizer.json.gz": open(f"{src}/tokenizer.json", "wb").write(gzip.open(f"{shared}/{name}/{f}").read())
        if f == "tokenizer_config.json": shutil.copy(f"{shared}/{name}/{f}", src)
    cases = json.load(open(f"{shared}/{name}/golden.json"))["cases"]
    text = "".join(json.dumps(c["text"]) + "\n" for c in cases)
    subprocess.run([tern, "convert", src, src + ".gguf", "--bare", "-q"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([tern, "convert", src + ".gguf", src + "-back", "-q"], check=True, stdout=subprocess.DEVNULL)
    for m in src + ".gguf", src + "-back":
        r = subprocess.run([tern, "tokenize", "-m", m, "--jsonl"], input=text, capture_output=True, text=True, check=True)
        got = [json.loads(x) for x in r.stdout.splitlines()]
        bad = [c["text"] for c, ids in zip(cases, got) if ids != c["ids"]]
        assert len(got) == len(cases) and not bad, (m, len(bad), bad[:3])
    shutil.rmtree(src), shutil.rmtree(src + "-back"), os.remove(src + ".gguf")
P
if [ -d ../shared/fixtures/tokenizers ]; then
  works "tokenizers are exact after a round trip" -- python3 "$TMP/tokenizers.py" "$TERN" "$TMP" ../shared/fixtures/tokenizers
else
  skip "../shared/fixtures/tokenizers does not exist"
fi
cat >"$TMP/marked.py" <<'P'
# marked.py TERN TMP TOKENIZER: a GGUF file with the tokenizer model "gemma4" (merges, marks for spaces, byte fallback), made
# from a tokenizer.json of that form, must give the golden ids.
import gzip, json, struct, subprocess, sys
tern, tmp, src = sys.argv[1:]
tok = json.load(gzip.open(src + "/tokenizer.json.gz"))
vocab, added = tok["model"]["vocab"], {a["id"]: a for a in tok["added_tokens"]}
words = {i: p for p, i in vocab.items()} | {i: a["content"] for i, a in added.items()}
tokens = [words.get(i, f"<hole{i}>") for i in range(max(words) + 1)]
kinds = [(3 if added[i]["special"] else 4) if i in added else 6 if len(p) == 6 and p.startswith("<0x") else 1 for i, p in enumerate(tokens)]
merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
text = lambda x: (lambda b: struct.pack("<Q", len(b)) + b)(x.encode())
strs = lambda k, v: text(k) + struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
keys = [text("general.architecture") + struct.pack("<I", 8) + text("gemma4"), text("tokenizer.ggml.model") + struct.pack("<I", 8) + text("gemma4"),
        strs("tokenizer.ggml.tokens", tokens), strs("tokenizer.ggml.merges", merges),
        text("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds),
        text("tokenizer.ggml.add_space_prefix") + struct.pack("<IB", 7, 0), text("tokenizer.ggml.add_bos_token") + struct.pack("<IB", 7, 1)]
open(tmp + "/marked.gguf", "wb").write(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys)) + b"".join(keys))
cases = json.load(open(src + "/golden.json"))["cases"]
r = subprocess.run([tern, "tokenize", "-m", tmp + "/marked.gguf", "--jsonl"], input="".join(json.dumps(c["text"]) + "\n" for c in cases), capture_output=True, text=True)
assert r.returncode == 0, r.stderr
got = [json.loads(x) for x in r.stdout.splitlines()]
bad = [(c["text"], c["ids"][:9], g[:9]) for c, g in zip(cases, got) if g != c["ids"]]
assert len(got) == len(cases) and not bad, (len(bad), len(cases), bad[:3])
P
if [ -d ../shared/fixtures/tokenizers ]; then
  works "a gemma4 tokenizer of GGUF is exact" -- python3 "$TMP/marked.py" "$TERN" "$TMP" ../shared/fixtures/tokenizers/gemma2
else
  skip "../shared/fixtures/tokenizers does not exist"
fi
mkdir -p "$TMP/conf/tern" && printf 'models:\n  - path: %s\n    alias: tales\n' "$PWD/$M" >"$TMP/conf/tern/tern.yaml"
XDG_CONFIG_HOME="$TMP/conf" works "an alias of the settings file" -- "$TERN" run -m tales -p Once -n 2 --raw
fails_with "an hf: model that is not in the cache" "tern pull hf:org/none" -- "$TERN" run -m hf:org/none -p Once
exit $failed
