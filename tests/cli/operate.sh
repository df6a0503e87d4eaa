# The operator's commands against a running server: TCP, Unix socket, TLS; keys; exit codes; bad replies.
. tests/cli/lib.inc
M=models/tern-tales.gguf
unset TERN_MODEL TERN_PORT TERN_CONFIG TERN_URL TERN_API_KEY
server= stub=
stop_server() { [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; server=; }
trap 'stop_server; [ -n "$stub" ] && kill $stub 2>/dev/null; rm -rf "$TMP"' EXIT
# start flags...: a server on a free port and a Unix socket; waits with tern ready
start() {
  "$TERN" serve --port 0 --socket "$TMP/sock" -c 512 -t 1 "$@" >/dev/null 2>"$TMP/log" &
  server=$!
  "$TERN" ready --socket "$TMP/sock" --wait 120 -q $key || { not_ok "the server starts: $(tail -n 3 "$TMP/log")"; exit 1; }
  url=$(sed -n 's|.*listens on \(https\{0,1\}://[^/]*\)/.*|\1|p' "$TMP/log" | head -n 1)
}
# code WANT NAME command...: the exit code; output in $TMP/out and $TMP/err
code() {
  local want=$1 name=$2 rc
  shift 2
  timeout 300 "$@" >"$TMP/out" 2>"$TMP/err" </dev/null
  rc=$?
  [ $rc -eq "$want" ] && ok "$name" || not_ok "$name: exit $rc, expected $want: $(head -c 300 "$TMP/out" "$TMP/err")"
}
has() { grep -qF -- "$2" "$TMP/${3:-out}" && ok "$1" || not_ok "$1: no '$2' in: $(head -c 500 "$TMP/${3:-out}")"; }
holds() { # NAME EXPRESSION over j, the JSON of $TMP/out
  python3 -c 'import json,sys; j = json.load(open(sys.argv[1])); assert eval(sys.argv[2]), "found: " + json.dumps(j)[:800]' "$TMP/out" "$2" 2>"$TMP/why" &&
    ok "$1" || not_ok "$1: $(tail -n 1 "$TMP/why")"
}

for v in status models ps infer cancel health live ready config completion manual; do
  code 0 "$v --help" "$TERN" $v --help
  has "$v --help has its usage" "usage: tern $v"
done
for v in status "models list" ps "cancel x" health live ready "infer -p x" "config show"; do
  code 3 "$v: no server, exit 3" "$TERN" $v --url http://127.0.0.1:1
  code 3 "$v: no Unix socket, exit 3" "$TERN" $v --url "unix:$TMP/nowhere"
  [ "$(wc -l <"$TMP/err")" -eq 1 ] && ok "$v: one line says so" || not_ok "$v: $(cat "$TMP/err")"
  code 2 "$v: not a URL, exit 2" "$TERN" $v --url ftp://x
done
code 3 "a host that does not exist" "$TERN" status --url http://no-such-host.invalid
code 2 "--url and --socket exclude each other" "$TERN" status --url http://127.0.0.1:1 --socket "$TMP/sock"
for port in 0 99999 99999999999999999999 8o80 ""; do
  code 2 "a URL with the port '$port'" "$TERN" status --url "http://127.0.0.1:$port"
done
code 2 "a URL with a blank" "$TERN" status --url "http://127.0.0.1:1/a b"
code 2 "a URL with a line end" "$TERN" status --url "http://127.0.0.1:1/a
X: y"
code 2 "a key file that is not there" "$TERN" status --api-key-file "$TMP/none"
printf '# only a comment\n' >"$TMP/empty.key"
code 2 "a key file without a key" "$TERN" status --api-key-file "$TMP/empty.key"
code 2 "cancel without an id" "$TERN" cancel
code 2 "models: an unknown word" "$TERN" models lsit --url http://127.0.0.1:1
has "models: did you mean" "did you mean list" err
code 2 "models load without a name" "$TERN" models load --url http://127.0.0.1:1
code 2 "an unknown command" "$TERN" staus
has "a mistyped command: did you mean" "did you mean status?" err
code 2 "an unknown flag" "$TERN" status --jsno
has "a mistyped flag: did you mean" "did you mean --json?" err
code 2 "a mistyped flag of run" "$TERN" run --tmep 1
has "run: did you mean" "did you mean --temp?" err
code 2 "a mistyped flag by another program's name" "$TERN" run --ctx-sise 3
has "run: did you mean, by that name" "did you mean --ctx-size?" err
code 2 "a mistyped flag of serve by another program's name" "$TERN" serve --max-modle-len 3
has "serve: did you mean, by that name" "did you mean --max-model-len?" err
for device in metal zorkmid cuda:x; do
  code 2 "serve --device $device is refused before it listens" "$TERN" serve -m $M --port 0 --device $device
  grep -q 'listens' "$TMP/err" && not_ok "serve --device $device listened" || ok "serve --device $device did not listen"
done
printf 'models:\n- {path: %s, device: metal}\n' $M >"$TMP/device.yaml"
code 2 "serve: a model of the file with a device that is not there" "$TERN" serve --config "$TMP/device.yaml" --port 0
code 2 "serve --vram-only on the CPU" "$TERN" serve -m $M --vram-only --port 0
code 2 "config check refuses the same" "$TERN" config check --device metal
for v in serve "run -p x"; do
  code 2 "$v -ngl 9 on the CPU is refused" "$TERN" $v -m $M -ngl 9
  has "$v -ngl 9: the message says what to do" "--device cuda" err
done
# Settings that this machine refuses: exit 2 with the setting's name, before anything listens; config check says the same.
printf '{%% for m in messages %%}' >"$TMP/open.jinja"
printf 'no key\n' >"$TMP/bad.key"
printf '%064d\n' 0 >"$TMP/good.key"
refused() { # TEXT flags...
  local text=$1 v
  shift
  for v in "serve --port 0" "config check"; do
    code 2 "$v $* is refused" "$TERN" $v -m $M "$@"
    has "$v $1: the message names it" "$text" err
    grep -q 'listens' "$TMP/err" && not_ok "$v $* listened" || ok "$v $1 did not listen"
  done
}
refused "gpu-layers is 9" -ngl 9
refused "'exps' is not PATTERN=DEVICE" --place exps
refused "the pattern '(' is wrong" --place '(=cpu'
refused "must be cpu or the one that computes, cpu" -ot exps=cuda
refused "n-cpu-moe" --n-cpu-moe -1
refused "chat-template" --chat-template "$TMP/none"
refused "chat-template" --chat-template "$TMP/open.jinja"
refused "model-key-file" --model-key-file "$TMP/none"
refused "model-key-file" --model-key-file "$TMP/bad.key"
refused "model-key-command" --model-key-file "$TMP/good.key" --model-key-command "cat $TMP/good.key"
refused "is not a folder" --data-dir "$TMP/bad.key/data"
refused "is not a folder" --park file --park-dir "$TMP/bad.key"
refused "does not exist" --park file --park-dir "$TMP/none/park"
refused "tp" --tp 65
refused "too few for 5 members" --tp 5
refused "tp" --tp 16 --pp 16
for line in "model-key-file: $TMP/none" "chat-template: $TMP/open.jinja" "device: metal"; do
  printf 'models:\n- path: %s\n  %s\n' $M "$line" >"$TMP/one.yaml"
  code 2 "a model of the file with $line" "$TERN" serve --config "$TMP/one.yaml" --port 0
  has "the message names the line: ${line%%:*}" "one.yaml" err
done
for flag in "--peers http://127.0.0.1:1" "--peer-ca $M" "--policy least" "--policy-script $M" "--heartbeat-ms 30" "--detect-ms 80" "--stall-ms 500"; do
  code 2 "serve $flag is refused" "$TERN" serve -m $M --port 0 $flag
  has "serve ${flag%% *}: the message names tern gateway" "tern gateway" err
done
code 2 "serve: the same by a variable" env TERN_PEERS=http://127.0.0.1:1 "$TERN" serve -m $M --port 0
for flag in --peer-ca --policy-script --tls-key --api-key-file; do
  code 2 "gateway $flag of a file that is not there" "$TERN" gateway --port 0 --peers http://127.0.0.1:1 $flag "$TMP/none"
done
for v in "run -p x" bench "eval ppl -f $M"; do
  code 2 "$v -ngl -2 is refused" "$TERN" $v -m $M -ngl -2
  has "$v: -ngl means the same" "must be -1 (as many as fit), 0 (the CPU) or more" err
done
# Experts that lie apart: flags of every command, refused by the name of the option.
for v in "run -p x -n 1" "bench -p 4 -n 4 -r 1" "eval ppl -f README.md --chunks 1"; do
  case $v in run*) rc=2 ;; *) rc=1 ;; esac
  for flag in "--cpu-moe" "-cmoe" "--n-cpu-moe 1" "-ncmoe 1" "--place exps=cpu" "-ot exps=cpu" "--override-tensor exps=cpu"; do
    code $rc "$v $flag of a model without experts" "$TERN" $v -m $M $flag
    has "$v $flag: the message says so" "model has no experts" err
  done
  code 2 "$v --place without a device is refused" "$TERN" $v -m $M --place exps
  has "$v --place: the message" "is not PATTERN=DEVICE" err
  code 2 "$v --n-cpu-moe -1 is refused" "$TERN" $v -m $M --n-cpu-moe -1
  has "$v --n-cpu-moe: the message" "n-cpu-moe is -1" err
done
MOE=tests/golden/hf/glm4_moe
code 1 "more layers than the model has" "$TERN" eval logits $MOE --n-cpu-moe 99
has "their number is told" "n-cpu-moe is 99, but the model has 3 layers" err
code 1 "a pattern that matches nothing" "$TERN" eval logits $MOE --place nothing=cpu
has "it is told" "the pattern 'nothing' matches no tensor" err
code 0 "on the CPU, experts on the CPU are no change" "$TERN" eval logits $MOE --cpu-moe --place 'ffn_.*_exps=cpu'
code 0 "bench tells the placement" "$TERN" bench -m $M -p 4 -n 4 -r 1 -o json
has "layers, experts and weights" '"devices":[{"name":"cpu","layers":' out
has "of every device" '"experts":0,"weight_bytes":' out
code 0 "run -ngl 0 is the CPU" "$TERN" run -m $M -p x -n 1 -ngl 0 --n-gpu-layers 0

key=
mkdir "$TMP/dir"
printf 'GGUF' >"$TMP/cut.gguf"
cp $M "$TMP/dir/second.gguf"
start -m $M -a tales --models-dir "$TMP/dir"
TERN_URL=$url code 0 "health, by TERN_URL" env TERN_URL="$url" "$TERN" health
has "health says ok" ok
code 0 "live over the Unix socket" "$TERN" live --socket "$TMP/sock"
code 0 "ready" "$TERN" ready --url "$url" --json
holds "ready --json" 'j["status"] == "ready"'
code 0 "ready for one model" "$TERN" ready --url "$url" --model tales
code 1 "ready for a model that there is not" "$TERN" ready --url "$url" --model nobody
code 0 "models list" "$TERN" models list --url "$url"
has "models list shows the model" tales
code 0 "models list --json" "$TERN" models list --url "$url" --json
holds "models list --json has the server's reply" 'j["data"][0]["id"] == "tales" and j["data"][0]["status"]["value"] == "loaded"'
code 0 "status --json" "$TERN" status --url "$url" --json
holds "status --json is /status" 'j["state"] == "ready" and j["models"][0]["id"] == "tales" and j["settings"]["port"]["effective"] > 0'
code 0 "status" "$TERN" status --socket "$TMP/sock"
for word in "ready, up" "queue  " "scheduler" "latency" "memory  " "limits" "tales"; do has "status shows '$word'" "$word"; done
code 0 "status --watch --count 2" "$TERN" status --url "$url" --watch --count 2 --interval 0.01 --json
[ "$(wc -l <"$TMP/out")" -eq 2 ] && ok "--watch --json: one line each time" || not_ok "--watch: $(wc -l <"$TMP/out") lines"
code 0 "ps" "$TERN" ps --url "$url"
has "ps shows the model, its size and its device" "tales"
has "ps: a model of -m stays" forever
code 0 "ps --json" "$TERN" ps --url "$url" --json
holds "ps --json" 'j["models"][0]["name"] == "tales" and j["models"][0]["size"] > 1e6 and j["models"][0]["device"].startswith("cpu")'

code 0 "infer" "$TERN" infer --url "$url" -p "Tell me a story." -n 12 --temp 0
cp "$TMP/out" "$TMP/streamed"
code 0 "infer --json" "$TERN" infer --url "$url" "Tell me a story." -n 12 --temp 0 --json
python3 -c "
import json; j = json.load(open('$TMP/out')); t = open('$TMP/streamed').read().rstrip('\n')
assert j['choices'][0]['message']['content'].rstrip('\n') == t and len(t) > 10, (j, t)" && ok "infer streams what the reply has" || not_ok "infer --json"
"$TERN" run -p "Tell me a story." -n 12 --temp 0 -c 512 -t 1 -q >"$TMP/local" 2>/dev/null
cmp -s "$TMP/local" "$TMP/streamed" && ok "infer and run give the same text" || not_ok "infer: '$(cat "$TMP/streamed")', run: '$(cat "$TMP/local")'"
code 0 "infer --raw with names of other programs" "$TERN" infer --url "$url" --raw -p "Once" --n-predict 4 --temperature 0
printf 'Tell me' | "$TERN" infer --url "$url" -n 3 --temp 0 -q >"$TMP/out" 2>"$TMP/err" && [ -s "$TMP/out" ] && ok "infer reads a pipe" || not_ok "infer: $(cat "$TMP/err")"
code 1 "infer: an error of the server" "$TERN" infer --url "$url" -m nobody -p x
has "infer: its message is shown" "nobody" err
code 1 "cancel: an id that there is not" "$TERN" cancel no-such-id --url "$url"
# Eight choices of as many tokens as fit, that no end token ends: the id is known while they are computed.
python3 - "$url" "$TMP/id" >"$TMP/long" 2>&1 <<'PY' &
import http.client, json, sys, threading, time, urllib.parse
at = urllib.parse.urlsplit(sys.argv[1]).netloc
def ask(path, body=None):
    c = http.client.HTTPConnection(at, timeout=300)
    c.request("POST" if body else "GET", path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    r = c.getresponse()
    return r.status, r.read().decode()
def long():
    print("reply", *ask("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 480, "n": 8, "ignore_eos": True}))
t = threading.Thread(target=long)
t.start()
while t.is_alive():
    ids = [c["id"] for c in json.loads(ask("/status")[1])["calls"] if c["state"] in ("prefill", "decode")]
    if ids:
        open(sys.argv[2], "w").write(ids[0])
        break
    time.sleep(0.005)
t.join()
PY
long=$!
for _ in $(seq 3000); do [ -s "$TMP/id" ] || ! kill -0 $long 2>/dev/null && break; sleep 0.02; done
if [ -s "$TMP/id" ]; then
  code 0 "cancel ends a running request" "$TERN" cancel "$(cat "$TMP/id")" --url "$url"
  has "cancel says so" cancelled
  wait $long
  grep -q '^reply 499' "$TMP/long" && ok "cancel: the client has its reply" || not_ok "cancel: the reply is: $(head -c 300 "$TMP/long")"
  code 0 "status after the cancel" "$TERN" status --url "$url" --json
  holds "status counts the cancelled choices" 'j["requests"]["finished"]["cancelled"] == 8 and j["calls"] == []'
else not_ok "cancel: the request was not seen while it ran: $(head -c 300 "$TMP/long")"; fi

code 0 "models load" "$TERN" models load second --url "$url" --keep-alive 10m
code 0 "ps shows both" "$TERN" ps --url "$url" --json
holds "ps: the second one expires" 'len(j["models"]) == 2 and 0 < j["models"][1]["expires_ms"] <= 600000'
code 0 "models unload" "$TERN" models unload second --socket "$TMP/sock"
code 0 "ps after the unload" "$TERN" ps --url "$url" --json
holds "ps: one is left" 'len(j["models"]) == 1'
code 1 "models load of an unknown model" "$TERN" models load nobody --url "$url"
has "models load: the message names it" nobody err
code 0 "models reload NAME" "$TERN" models reload tales --url "$url"
cp $M "$TMP/dir/third.gguf"
code 0 "models reload looks at the folder again" "$TERN" models reload --url "$url"
has "models reload: the new model is listed" third
code 0 "models verify" "$TERN" models verify tales --url "$url"
has "models verify checks the file" sound
code 0 "models verify --json" "$TERN" models verify tales --url "$url" --json
holds "models verify --json" 'j["model"] == "tales" and j["path"].endswith("tern-tales.gguf") and j["sound"] and j["tensors"] > 100 and j["not_finite"] == [] and j["error"] == ""'
code 1 "verify --json of a damaged file" "$TERN" verify --json "$TMP/cut.gguf"
holds "verify --json says why" 'not j["sound"] and "cut.gguf" in j["error"]'
code 0 "models verify of a model that is not loaded" "$TERN" models verify second --socket "$TMP/sock"
"$TERN" manifest "$TMP/dir/third.gguf" -q >/dev/null
python3 -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(-40, 2); f.write(b"\1\2\3")' "$TMP/dir/third.gguf"
code 1 "models verify of a damaged model" "$TERN" models verify third --url "$url"
has "models verify names the file" third.gguf err
code 1 "models verify --json of a damaged model" "$TERN" models verify third --url "$url" --json
holds "models verify --json says why" 'not j["sound"] and "third.gguf" in j["error"]'
rm -f "$TMP/dir/third.gguf.sha256"
code 1 "models verify of an unknown model" "$TERN" models verify nobody --url "$url"
code 0 "config show of a running server" "$TERN" config show --url "$url" --json
holds "effective values of a running server are numbers" 'j["ctx"] == {"value": 512, "effective": 512, "from": "flag"} and j["max-seqs"]["effective"] > 0 and j["kv-tokens"]["effective"] >= 512 and j["port"]["value"] == 0 and j["port"]["effective"] > 0'
stop_server
code 3 "ready after the end: exit 3" "$TERN" ready --url "$url"

printf '# keys\nsk-first name=ops admin\nsk-user name=u\n' >"$TMP/keys"
key="--api-key-file $TMP/keys"
start -m $M --api-key-file "$TMP/keys"
code 1 "no key: exit 1" "$TERN" status --url "$url"
code 0 "the key of a file" "$TERN" status --url "$url" --api-key-file "$TMP/keys"
code 0 "TERN_API_KEY" env TERN_API_KEY=sk-first,other "$TERN" models list --url "$url"
code 1 "status needs an admin's key" "$TERN" status --url "$url" --api-key sk-user
stop_server

if command -v openssl >/dev/null; then
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$TMP/key.pem" -out "$TMP/cert.pem" -days 30 -subj /CN=localhost \
    -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' 2>/dev/null
  key=
  start -m $M --tls-cert "$TMP/cert.pem" --tls-key "$TMP/key.pem"
  code 3 "TLS: a certificate that is not trusted: exit 3" "$TERN" health --url "$url"
  has "TLS: the message names --ca-file" "--ca-file" err
  code 0 "TLS with --ca-file" "$TERN" health --url "$url" --ca-file "$TMP/cert.pem"
  code 0 "TLS with --insecure" "$TERN" models list --url "$url" --insecure
  code 2 "TLS: a CA file without certificates" "$TERN" health --url "$url" --ca-file "$TMP/keys"
  stop_server
else skip "TLS: openssl is not installed"; fi

python3 tests/cli/remote_stub.py >"$TMP/port" &
stub=$!
for _ in $(seq 300); do [ -s "$TMP/port" ] && break; sleep 0.1; done
bad=http://127.0.0.1:$(cat "$TMP/port")
for kind in cut text html big types deep refuse; do
  for v in status "models list" ps "config show" ready "cancel x"; do
    timeout 300 "$TERN" $v --url "$bad/$kind" >"$TMP/out" 2>"$TMP/err" </dev/null
    rc=$?
    case $v:$kind in "cancel x:types") want=0 ;; *) want=1 ;; esac
    [ $rc -eq $want ] && ! grep -q $'\x1b' "$TMP/out" "$TMP/err" || { not_ok "$v of a server that answers $kind: exit $rc: $(head -c 300 "$TMP/err")"; continue; }
    [ $want -eq 0 ] || [ "$(wc -l <"$TMP/err")" -eq 1 ] && ok "$v of a server that answers $kind" || not_ok "$v, $kind: $(head -c 400 "$TMP/err")"
  done
done
for v in status "models list" ps "config show"; do
  code 0 "$v of a server with control characters in its texts" "$TERN" $v --url "$bad/escape"
  LC_ALL=C grep -q $'[\x1b\x07]\|\xc2\x9b' "$TMP/out" && not_ok "$v passes control characters on" || ok "$v shows no control characters"
done
code 1 "a server that does not answer: --timeout" "$TERN" status --url "$bad/slow" --timeout 1
has "the message names --timeout" "--timeout" err
exit $failed
