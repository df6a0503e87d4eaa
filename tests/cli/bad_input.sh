# Bad model files: exit code 1, one line on stderr, no files left behind. Bad devices: exit code 2.
. tests/cli/lib.inc
M=models/tern-tales.gguf
HF=tests/golden/hf/qwen2
run() { echo "$TERN run -m $1 -p hi -n 1 --raw"; }

size=$(stat -c %s $M)
for n in 0 1 3 4 7 8 12 15 16 20 23 24 25 32 100 1000 50000 150000 $((size / 2)) $((size - 1)); do
  head -c "$n" $M >"$TMP/cut-$n.gguf"
  fails_with "truncated at $n bytes" "cut-$n.gguf" -- $(run "$TMP/cut-$n.gguf")
done
{ printf 'GGML'; tail -c +5 $M | head -c 1000; } >"$TMP/magic.gguf"
fails_with "wrong magic" magic.gguf GGUF -- $(run "$TMP/magic.gguf")
fails_with "no such file" nowhere.gguf -- $(run "$TMP/nowhere.gguf")
for device in metal hip:1 zorkmid cuda:x; do
  $(run $M) --device $device >"$TMP/out" 2>"$TMP/err" </dev/null
  [ $? -eq 2 ] && grep -q "\"$device\".*cuda" "$TMP/err" && ok "--device $device is refused, exit 2" || not_ok "--device $device: $(cat "$TMP/err")"
done
mkdir "$TMP/empty"
fails_with "a directory without config" config.json -- $(run "$TMP/empty")

python3 - "$TMP" <<'P'
import struct, sys
d = sys.argv[1]
def w(name, *parts): open(f"{d}/{name}", "wb").write(b"".join(parts))
u32, u64 = lambda v: struct.pack("<I", v), lambda v: struct.pack("<Q", v)
s = lambda t: u64(len(t)) + t.encode()
arch = s("general.architecture") + u32(8) + s("llama")
head = lambda nt, nk: b"GGUF" + u32(3) + u64(nt) + u64(nk)
tensor = lambda name, dims, typ, off: s(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(typ) + u64(off)
def pad(b): return b + bytes(-len(b) % 32)
w("huge-keys.gguf", head(0, 2**63), arch)
w("huge-tensors.gguf", head(2**63, 1), arch)
w("huge-string.gguf", head(0, 1), u64(2**63), b"x" * 64)
w("huge-array.gguf", head(0, 1), s("a") + u32(9) + u32(4) + u64(2**63))
w("huge-dim.gguf", pad(head(1, 1) + arch + tensor("t", [2**63, 2], 0, 0)), bytes(64))
w("past-end.gguf", pad(head(1, 1) + arch + tensor("t", [1024, 1024], 0, 0)), bytes(64))
w("overlap.gguf", pad(head(2, 1) + arch + tensor("a", [32], 0, 0) + tensor("b", [32], 0, 32)), bytes(512))
w("bad-type.gguf", pad(head(1, 1) + arch + tensor("t", [32], 77, 0)), bytes(256))
w("nested.gguf", head(0, 1), s("a"), u32(9), (u32(9) + u64(1)) * 100000)
P
for f in huge-keys huge-tensors huge-string huge-array huge-dim past-end overlap bad-type nested; do
  fails_with "hostile file: $f" "$f.gguf" -- $(run "$TMP/$f.gguf")
done

copy() { rm -rf "$TMP/$1"; cp -r $HF "$TMP/$1"; chmod -R u+w "$TMP/$1"; }
copy missing
sed -i 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 9/' "$TMP/missing/config.json"
fails_with "a missing tensor is named" layers. -- "$TERN" eval logits "$TMP/missing"
copy unknown
sed -i 's/"model_type": *"qwen2"/"model_type": "zorkmid"/; s/Qwen2ForCausalLM/ZorkmidForCausalLM/' "$TMP/unknown/config.json"
fails_with "an unknown architecture is named, with the nearest known ones" zorkmid "nearest names are" -- "$TERN" eval logits "$TMP/unknown"
copy badjson
echo '{"model_type": ' >"$TMP/badjson/config.json"
# changed NAME KEY=JSON...: a copy of a folder with other keys; null removes one
changed() {
  local to=$TMP/$1; shift
  rm -rf "$to"; cp -r tests/golden/hf-2026/nemotron_h-latent "$to"
  python3 - "$to/config.json" "$@" <<'P'
import json, sys
c = json.load(open(sys.argv[1]))
for k, v in (a.split("=", 1) for a in sys.argv[2:]):
    c[k] = json.loads(v)
    if c[k] is None: del c[k]
json.dump(c, open(sys.argv[1], "w"))
P
}
changed letters 'layers_block_type=null' 'hybrid_override_pattern="MEX*E"'
fails_with "a letter that is no block" "what layer 2 is" -- "$TERN" eval logits "$TMP/letters"
changed short 'layers_block_type=["mamba","moe"]'
fails_with "too few blocks" "what layer 2 is" -- "$TERN" eval logits "$TMP/short"
changed latent moe_latent_size=31
fails_with "a latent of another width" "expected [48, 31]" -- "$TERN" eval logits "$TMP/latent"
changed heads mamba_num_heads=7
fails_with "heads that do not fit the groups and the projection" mixer.in_proj.weight -- "$TERN" eval logits "$TMP/heads"
changed used num_experts_per_tok=9
fails_with "more experts than there are" "9 of 8 experts" -- "$TERN" eval logits "$TMP/used"
fails_with "config.json is not JSON" config.json -- "$TERN" eval logits "$TMP/badjson"
copy shape
sed -i 's/"intermediate_size": *[0-9]*/"intermediate_size": 96/' "$TMP/shape/config.json"
fails_with "a wrong shape is named" 96 -- "$TERN" eval logits "$TMP/shape"
copy shard
rm "$TMP/shard/model.safetensors"
echo '{"weight_map": {"model.norm.weight": "../../etc/passwd"}}' >"$TMP/shard/model.safetensors.index.json"
fails_with "a shard outside the folder" passwd -- "$TERN" eval logits "$TMP/shard"

copy nan
python3 - "$TMP/nan/model.safetensors" <<'P'
import json, struct, sys
f = open(sys.argv[1], "r+b")
n = struct.unpack("<Q", f.read(8))[0]
h = json.loads(f.read(n))
t = h["model.norm.weight"]
f.seek(8 + n + t["data_offsets"][0])
f.write(b"\xc0\x7f" if t["dtype"] == "BF16" else b"\x00\x00\xc0\x7f")
P
fails_with "NaN weights" model.norm.weight "NaN or an infinite number in element 0" -- "$TERN" eval logits "$TMP/nan"
fails_with "NaN weights, verify" "1 of 38 tensors" -- "$TERN" verify "$TMP/nan"
"$TERN" eval logits "$TMP/nan" --allow-nan >"$TMP/out" 2>"$TMP/err"
if grep -qi 'warning.*nan' "$TMP/err"; then ok "NaN weights cause a warning where they are allowed"; else not_ok "NaN weights cause a warning where they are allowed: $(cat "$TMP/err")"; fi
if "$TERN" verify $M >"$TMP/out" 2>&1 && grep -q sound "$TMP/out"; then ok "verify of a sound model"; else not_ok "verify of a sound model: $(cat "$TMP/out")"; fi

cp $M "$TMP/locked.gguf"
chmod 000 "$TMP/locked.gguf"
chmod 755 "$TMP"
if [ "$(id -u)" -ne 0 ]; then
  fails_with "no permission" locked.gguf "ermission" -- $(run "$TMP/locked.gguf")
elif setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$TERN" 2>/dev/null; then
  fails_with "no permission" locked.gguf "ermission" -- setpriv --reuid=65534 --regid=65534 --clear-groups $(run "$TMP/locked.gguf")
else
  skip "no permission: cannot switch to another user"
fi

# Out of memory: at every limit the command either works or fails with one line.
case $B in *asan* | *tsan*) skip "out of memory: sanitizers need more address space" ;;
*)
  seen=0
  for mb in 30 40 50 60 80 100 150; do
    (ulimit -v $((mb * 1024)); exec "$TERN" run -m $M -p hi -n 1 --raw -c 512 -t 1) >"$TMP/out" 2>"$TMP/err" </dev/null
    rc=$?
    grep -q 'error while loading shared' "$TMP/err" && continue
    if [ $rc -eq 1 ]; then
      seen=1
      [ "$(wc -l <"$TMP/err")" -eq 1 ] || not_ok "out of memory at $mb MB, lines on stderr: $(cat "$TMP/err")"
      [ ! -s "$TMP/out" ] || not_ok "out of memory at $mb MB, on stdout: $(head -c 200 "$TMP/out")"
    elif [ $rc -ne 0 ]; then
      not_ok "out of memory at $mb MB: exit $rc: $(tail -c 200 "$TMP/err")"
    fi
  done
  (ulimit -v 2000000; exec "$TERN" run -m $M -p hi -n 1 --raw -c 16000000 -t 1) >"$TMP/out" 2>"$TMP/err" </dev/null
  rc=$?
  [ $rc -eq 1 ] && [ "$(grep -vc warning "$TMP/err")" -eq 1 ] && grep -q 'no memory' "$TMP/err" && ok "a context that does not fit into memory fails with one line" ||
    not_ok "a context that does not fit into memory: exit $rc: $(cat "$TMP/err")"
  [ $seen -eq 1 ] && ok "out of memory fails with one line" || skip "out of memory: no limit was low enough"
  ;;
esac
ls "$TMP" | grep -q part && not_ok "partial files are left" || ok "no partial files are left"
exit $failed
