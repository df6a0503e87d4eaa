# Encrypted models: encrypt, decrypt, rekey, and loading in run, verify, inspect, a server and its isolated workers.
. tests/cli/lib.inc
M=models/tern-tales.gguf
HF=tests/golden/hf/qwen2
umask 077
for k in a b c; do python3 -c 'import os; print(os.urandom(32).hex())' >"$TMP/$k.key"; done
S=$TMP/sealed.bin # no name of a format: the first bytes tell
want=$("$TERN" run -m $M -p "Once upon a time" -n 12 --raw --temp 0 2>/dev/null)
same() { # NAME -- command: prints the text of the plain model
  local name=$1
  shift 2
  [ "$("$@" -p "Once upon a time" -n 12 --raw --temp 0 2>"$TMP/err")" = "$want" ] && ok "$name" || not_ok "$name: $(tail -c 300 "$TMP/err")"
}

works "encrypt" -- "$TERN" encrypt $M "$S" --key-file "$TMP/a.key"
cmp -s "$S" $M && not_ok "the file is not encrypted" || ok "the file is another one"
grep -qa 'tokenizer.ggml' "$S" && not_ok "keys of the model are readable" || ok "nothing of it is readable"
same "run with a key file" -- "$TERN" run -m "$S" --model-key-file "$TMP/a.key"
same "run with a key command" -- "$TERN" run -m "$S" --model-key-command "cat '$TMP/a.key'"
TERN_MODEL_KEY_FILE=$TMP/a.key same "run by the environment" -- "$TERN" run -m "$S"
head -c 32 /dev/urandom >"$TMP/raw.key"
works "a key of 32 bytes" -- "$TERN" encrypt $M "$TMP/raw.bin" --key-file "$TMP/raw.key" --chunk 64K
same "opens it" -- "$TERN" run -m "$TMP/raw.bin" --model-key-file "$TMP/raw.key"
fails_with "no key" "sealed.bin: is encrypted, for the key" "--model-key-file" -- "$TERN" run -m "$S" -p hi -n 1
fails_with "a wrong key" "sealed.bin: wrong key" -- "$TERN" run -m "$S" --model-key-file "$TMP/b.key" -p hi -n 1
fails_with "a wrong key in verify" "sealed.bin: wrong key" -- "$TERN" verify "$S" --model-key-file "$TMP/b.key"
fails_with "a wrong key in inspect" "sealed.bin: wrong key" -- "$TERN" inspect "$S" --model-key-file "$TMP/b.key"
fails_with "a command that fails" "the key command exited with code 7" -- "$TERN" run -m "$S" --model-key-command "exit 7" -p hi -n 1
fails_with "a file without a key" "expected a key of 64 hex digits" -- "$TERN" run -m "$S" --model-key-file $M -p hi -n 1
works "verify" -- "$TERN" verify "$S" --model-key-file "$TMP/a.key" --verify-manifest require
works "inspect" -- "$TERN" inspect "$S" --model-key-file "$TMP/a.key" --tensors
cut -d: -f2- "$TMP/out" >"$TMP/sealed.txt"
works "tokenize" -- sh -c "echo hello | '$TERN' tokenize -m '$S' --model-key-file '$TMP/a.key'"
# Every other command that reads a model: with the key it works, without one it names the flags that it has.
printf 'Once upon a time there was a little bird who lived in a tree. %.0s' 1 2 3 4 >"$TMP/text"
printf '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 2}}\n' >"$TMP/in.jsonl"
each() { # NAME command...: S is the model
  timeout 300 "${@:2}" >"$TMP/out" 2>"$TMP/err" </dev/null
  [ $? -eq 1 ] && grep -q 'is encrypted.*--model-key-file' "$TMP/err" && ok "$1 without the key" || not_ok "$1 without the key: $(tail -n 2 "$TMP/err")"
  rm -f "$TMP/out.jsonl"
  works "$1 of an encrypted model" -- "${@:2}" --model-key-file "$TMP/a.key"
  "$TERN" "${1%% *}" --help | grep -q -- --model-key-command && ok "$1 has the flags of keys" || not_ok "$1 --help names no key"
}
each show "$TERN" show "$S"
each template "$TERN" template -m "$S" --json '{"messages": [{"role": "user", "content": "hi"}]}'
each imatrix "$TERN" imatrix -m "$S" -f "$TMP/text" -o "$TMP/imatrix" -c 16 -q
each batch "$TERN" batch -m "$S" "$TMP/in.jsonl" "$TMP/out.jsonl" -q
each bench "$TERN" bench -m "$S" -p 4 -n 2 -r 1
each "eval" "$TERN" eval ppl -m "$S" -f "$TMP/text" -c 16
works "decrypt" -- "$TERN" decrypt "$S" "$TMP/back.gguf" --key-file "$TMP/a.key"
cmp -s "$TMP/back.gguf" $M && ok "gives the same bytes" || not_ok "decrypt gives other bytes"
works "quantize from an encrypted model" -- "$TERN" quantize "$S" "$TMP/q.gguf" --type Q8_0 --requantize --model-key-file "$TMP/a.key"
"$TERN" quantize $M "$TMP/q2.gguf" --type Q8_0 --requantize -q 2>/dev/null
cmp -s "$TMP/q.gguf" "$TMP/q2.gguf" && ok "which gives the same file" || not_ok "quantize reads other numbers"
"$TERN" encrypt $M "$TMP/x" >/dev/null 2>&1
[ $? -eq 2 ] && ok "encrypt without a key is wrong usage" || not_ok "encrypt without a key"
fails_with "encrypt twice" "is encrypted already" -- "$TERN" encrypt "$S" "$TMP/x" --key-file "$TMP/a.key"
[ -z "$(ls "$TMP" | grep part-)" ] && ok "no partial file is left" || not_ok "left: $(ls "$TMP")"

# Changed bytes, by place: header, its copy, the mark, a chunk, a tag, the end.
size=$(stat -c %s "$S")
for at in 20 300 4090 5000 9000 12288 600000 1060864 $((size - 1)); do
  cp "$S" "$TMP/changed.bin"
  python3 - "$TMP/changed.bin" $at <<'P'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2])); x = f.read(1)[0]; f.seek(int(sys.argv[2])); f.write(bytes([x ^ 1]))
P
  for c in "run -p hi -n 1 -m" verify; do
    fails_with "$c: byte $at changed" changed.bin -- "$TERN" $c "$TMP/changed.bin" --model-key-file "$TMP/a.key"
  done
done
head -c $((size - 5000)) "$S" >"$TMP/changed.bin"
fails_with "truncated" changed.bin "truncated or extended" -- "$TERN" run -m "$TMP/changed.bin" --model-key-file "$TMP/a.key" -p hi -n 1

# Other keys: only headers change, and the manifest follows.
works "rekey" -- "$TERN" rekey "$S" --key-file "$TMP/a.key" --new-key-file "$TMP/b.key"
fails_with "the old key" "wrong key" -- "$TERN" run -m "$S" --model-key-file "$TMP/a.key" -p hi -n 1
same "the new key" -- "$TERN" run -m "$S" --model-key-file "$TMP/b.key" --verify-manifest require
works "a second key" -- "$TERN" rekey "$S" --key-file "$TMP/b.key" --new-key-file "$TMP/c.key" --keep
same "which opens it, too" -- "$TERN" run -m "$S" --model-key-file "$TMP/c.key"
works "ids" -- "$TERN" rekey "$S" --list
id=$(awk '{ print $2 }' "$TMP/out")
works "remove the first" -- "$TERN" rekey "$S" --key-file "$TMP/c.key" --remove "$id"
fails_with "which opens it no more" "wrong key" -- "$TERN" run -m "$S" --model-key-file "$TMP/b.key" -p hi -n 1
fails_with "rekey needs a key" "wrong key" -- "$TERN" rekey "$S" --key-file "$TMP/a.key" --new-key-file "$TMP/a.key"
fails_with "rekey of a plain file" "has no encrypted file" -- "$TERN" rekey $M --list

# A folder: weights, configuration and tokenizer.
works "encrypt a folder" -- "$TERN" encrypt $HF "$TMP/folder" --key-file "$TMP/a.key"
grep -qa hidden_size "$TMP/folder/config.json" && not_ok "config.json is readable" || ok "config.json is encrypted"
works "the folder is verified" -- "$TERN" verify "$TMP/folder" --model-key-file "$TMP/a.key" --verify-manifest require
works "and evaluated" -- "$TERN" eval logits "$TMP/folder" --golden $HF/golden.safetensors --ref --model-key-file "$TMP/a.key"
mv "$TMP/folder/config.json" "$TMP/folder/c.json"; cp "$TMP/folder/generation_config.json" "$TMP/folder/config.json" 2>/dev/null ||
  cp "$TMP/folder/model.safetensors" "$TMP/folder/config.json"
fails_with "a file under another name" "config.json: was encrypted as" -- "$TERN" verify "$TMP/folder" --model-key-file "$TMP/a.key" --verify-manifest off
mv "$TMP/folder/c.json" "$TMP/folder/config.json"
works "rekey of a folder" -- "$TERN" rekey "$TMP/folder" --key-file "$TMP/a.key" --new-key-file "$TMP/b.key"
works "opens by the new key" -- "$TERN" verify "$TMP/folder" --model-key-file "$TMP/b.key" --verify-manifest require
works "decrypt a folder" -- "$TERN" decrypt "$TMP/folder" "$TMP/plain" --key-file "$TMP/b.key"
diff -r -x SHA256SUMS $HF "$TMP/plain" >"$TMP/out" && ok "gives the same files" || not_ok "decrypted folder: $(cat "$TMP/out")"

# A server: in this process and isolated, with keys by file, by command, and of a single model.
mkdir "$TMP/models"
"$TERN" encrypt $M "$TMP/models/one.gguf" --key-file "$TMP/a.key" -q 2>/dev/null
"$TERN" encrypt $M "$TMP/models/two.gguf" --key-file "$TMP/b.key" -q 2>/dev/null
"$TERN" encrypt $M "$TMP/models/bad.gguf" --key-file "$TMP/a.key" -q 2>/dev/null
printf 'x' | dd of="$TMP/models/bad.gguf" bs=1 seek=6000000 conv=notrunc status=none
rm "$TMP"/models/*.sha256
cat >"$TMP/tern.yaml" <<Y
models-dir: $TMP/models
model-key-file: $TMP/a.key
models:
  - path: two.gguf
    model-key-command: cat $TMP/b.key
Y
a=$(cat "$TMP/a.key") b=$(cat "$TMP/b.key")
for isolate in --no-isolate --isolate; do
  "$TERN" serve --config "$TMP/tern.yaml" $isolate --port 0 -c 256 -t 1 --log-level debug >"$TMP/log" 2>&1 &
  server=$!
  trap 'kill $server 2>/dev/null; wait; rm -rf "$TMP"' EXIT
  url=
  for _ in $(seq 600); do
    url=$(sed -n 's|.*listens on \(http://[^/]*\)/.*|\1|p' "$TMP/log" | head -n 1)
    [ -n "$url" ] && break
    sleep 0.1
  done
  ask() { curl -s "$url/v1/completions" -d "{\"model\": \"$1\", \"prompt\": \"Once upon a time\", \"max_tokens\": 12, \"temperature\": 0}"; }
  text() { python3 -c 'import json, sys; r = json.load(sys.stdin); print(r["choices"][0]["text"] if "choices" in r else r["error"]["message"])'; }
  for m in one two; do
    got=$(ask $m | text)
    [ "Once upon a time$got" = "$want" ] || [ "$got" = "$want" ] && ok "$isolate: model $m answers" || not_ok "$isolate: $m: $got; $(tail -3 "$TMP/log")"
  done
  got=$(ask bad | text)
  case $got in *"bad.gguf: chunk"*"does not match"*) ok "$isolate: a changed one is refused by name" ;; *) not_ok "$isolate: bad: $got" ;; esac
  curl -s "$url/status" >"$TMP/status"
  grep -q "\"model-key-file\":{\"value\":\"$TMP/a.key\"" "$TMP/status" && ok "$isolate: /status shows the settings" || not_ok "$isolate: /status"
  for p in $server $(cat /proc/$server/task/*/children); do cat /proc/$p/cmdline /proc/$p/environ >>"$TMP/seen" 2>/dev/null; done
  cat "$TMP/log" "$TMP/status" >>"$TMP/seen"
  grep -qaF -e "$a" -e "$b" "$TMP/seen" && not_ok "$isolate: a key is in an argument, a variable, the log or /status" || ok "$isolate: keys are nowhere to be seen"
  # Sleeping and waking, unloading and loading again.
  curl -s "$url/models/unload" -d '{"model": "one"}' >/dev/null
  got=$(ask one | text)
  [ "Once upon a time$got" = "$want" ] || [ "$got" = "$want" ] && ok "$isolate: loaded again" || not_ok "$isolate: again: $got"
  # The key of the file is another one: running models go on, the next load reads it.
  curl -s "$url/models/unload" -d '{"model": "one"}' >/dev/null
  cp "$TMP/a.key" "$TMP/a.sav"; cp "$TMP/c.key" "$TMP/a.key"
  got=$(ask one | text)
  case $got in *"wrong key"*) ok "$isolate: a wrong key is refused" ;; *) not_ok "$isolate: wrong key: $got" ;; esac
  cp "$TMP/a.sav" "$TMP/a.key"
  kill $server
  wait $server
done

# Memory: the peak of a load with an encrypted model is that of the plain one and at most 64 MB more. A copy of the
# model would be 200 MB more.
"$B/tools/synth" tiny F32 "$TMP/large.gguf" --layers 90 >/dev/null 2>&1
works "encrypt a large model" -- "$TERN" encrypt "$TMP/large.gguf" "$TMP/large.bin" --key-file "$TMP/a.key" -q
cat >"$TMP/peak.py" <<'P'
import os, sys
def peak(*argv):  # VmHWM of the process, in KiB
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(argv[0], argv)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, (argv, status)
    return usage.ru_maxrss
tern, tmp = sys.argv[1:]
size = os.path.getsize(tmp + "/large.gguf") // 1024
assert size > 150 << 10, size
for verb in (["run", "-p", "hi", "-n", "4", "--raw", "-c", "256", "-t", "1", "-q", "-m"], ["verify", "-q"]):
    a = peak(tern, *verb, tmp + "/large.gguf")
    b = peak(tern, *verb, tmp + "/large.bin", "--model-key-file", tmp + "/a.key")
    print(verb[0], "plain", a, "encrypted", b, "KiB")
    assert b <= a + (64 << 10), (verb[0], a, b)
P
case $B in *asan* | *tsan*) ;; *)
  python3 "$TMP/peak.py" "$TERN" "$TMP" >"$TMP/out" 2>&1 && ok "peak memory: $(tr '\n' ' ' <"$TMP/out")" || not_ok "peak memory: $(tail -3 "$TMP/out")" ;;
esac
exit $failed
