# tern serve: settings, keys, routes, health, metrics, signals, shutdown.
. tests/cli/lib.inc
M=models/tern-tales.gguf
unset TERN_MODEL TERN_PORT TERN_CONFIG
server=
stop_server() { [ -n "$server" ] && kill -9 "$server" 2>/dev/null && wait "$server" 2>/dev/null; server=; }
trap 'stop_server; rm -rf "$TMP"' EXIT
# start NAME flags...: starts a server on a free port and waits until it is ready; log in $TMP/NAME.log, address in $url
start() {
  local log=$TMP/$1.log
  : >"$log"
  shift
  "$TERN" serve -m $M --port 0 -c 512 -t 1 "$@" >/dev/null 2>"$log" &
  server=$!
  for _ in $(seq 600); do
    url=$(sed -n 's|.*listens on \(https\{0,1\}://[^/]*\)/.*|\1|p' "$log" | head -n 1)
    [ -n "$url" ] && [ "$(curl -sk -o /dev/null -w '%{http_code}' "$url/ready")" = 200 ] && return 0
    kill -0 $server 2>/dev/null || break
    sleep 0.1
  done
  not_ok "the server starts with '$*': $(tail -n 3 "$log")"
  exit 1
}
# status WANT NAME curl-args...: the reply has status WANT; body in $TMP/body, headers in $TMP/head
status() {
  local want=$1 name=$2 got
  shift 2
  got=$(curl -sk -m 60 -o "$TMP/body" -D "$TMP/head" -w '%{http_code}' "$@")
  [ "$got" = "$want" ] && ok "$name" || not_ok "$name: $got, expected $want: $(head -c 300 "$TMP/body")"
}
body_has() { grep -qF -- "$2" "$TMP/body" && ok "$1" || not_ok "$1: no '$2' in: $(head -c 400 "$TMP/body")"; }
head_has() { grep -qi -- "$2" "$TMP/head" && ok "$1" || not_ok "$1: no '$2' in: $(cat "$TMP/head")"; }
log_has() { grep -q -- "$3" "$TMP/$2.log" && ok "$1" || not_ok "$1: no '$3' in: $(tail -n 5 "$TMP/$2.log")"; }
# begin_stream BODY [KEY]: starts a stream into $TMP/stream in the background; returns when the first bytes arrived
begin_stream() {
  : >"$TMP/stream"
  curl -sN -m 100 -H "x-api-key: ${2:-sk-new}" -d "$1" "$url/v1/completions" >"$TMP/stream" &
  long=$!
  until_true [ -s "$TMP/stream" ]
}
# until_true COMMAND...: repeats the command until it succeeds, for at most 30 s
until_true() { for _ in $(seq 1500); do "$@" && return 0; sleep 0.02; done; return 1; }
logged() { grep -q -- "$2" "$TMP/$1.log"; }
drains() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$url/ready")" = 503 ]; }
# refused NAME WORD flags...: exit code 2, and one line on stderr that contains WORD
refused() {
  local name=$1 word=$2
  shift 2
  timeout 300 "$TERN" serve "$@" >"$TMP/out" 2>"$TMP/err" </dev/null
  local rc=$?
  [ $rc -eq 2 ] && [ "$(wc -l <"$TMP/err")" -eq 1 ] && grep -qF -- "$word" "$TMP/err" && ok "$name" ||
    not_ok "$name: exit $rc: $(cat "$TMP/err")"
}

works "serve --help" -- "$TERN" serve --help
grep -q 'TERN_MAX_BATCH; default: 0' "$TMP/out" && grep -q '^engine:' "$TMP/out" && ok "--help has groups, variables and defaults" || not_ok "serve --help"
works "serve --help=tls" -- "$TERN" serve --help=tls
grep -q tls-cert "$TMP/out" && ! grep -q max-batch "$TMP/out" && ok "--help=WORD filters" || not_ok "serve --help=tls"
works "--print-config" -- env TERN_AGE_MS=7 "$TERN" serve -b 64 --print-config
python3 - "$TMP/out" <<'P' && ok "--print-config shows values and their origin" || not_ok "--print-config"
import json, sys
j = json.load(open(sys.argv[1]))
assert j["max-batch"] == {"value": 64, "effective": 64, "from": "flag"} and j["age-ms"] == {"value": 7, "effective": 7, "from": "env"}, j
assert j["port"] == {"value": 8080, "effective": 8080, "from": "default"} and j["model"]["value"][0].endswith("tern-tales.gguf"), j
P
refused "an unknown flag" "did you mean --max-batch" --max-bacth 3
refused "a value out of range" "from 0 to 65535" --port 70000
printf 'port: 1\nmax-batch: lots\n' >"$TMP/bad.yaml"
refused "a bad YAML value: file and line" "bad.yaml:2: max-batch is 'lots'" --config "$TMP/bad.yaml"
refused "another address than loopback without a key" "--allow-open" -m $M --host 0.0.0.0 --port 0
fails_with "a missing model" nowhere.gguf -- "$TERN" serve -m "$TMP/nowhere.gguf" --port 0
printf 'GGUF' >"$TMP/cut.gguf"
timeout 300 "$TERN" serve -m "$TMP/cut.gguf" --port 0 >"$TMP/out" 2>"$TMP/err"
[ $? -eq 1 ] && tail -n 1 "$TMP/err" | grep -q cut.gguf && ok "no model can be loaded: exit 1" || not_ok "bad model: $(cat "$TMP/err")"
timeout 300 "$TERN" serve -m $M --port 0 --memory-limit 1M >"$TMP/out" 2>"$TMP/err"
[ $? -eq 1 ] && grep -q 'memory-limit is 1.0' "$TMP/err" && ok "over --memory-limit: the error has the numbers" || not_ok "memory limit: $(cat "$TMP/err")"

start plain -c 8192 --kv-tokens 8192 --metrics-compat vllm,llamacpp --log-format json
status 200 "/health" "$url/health"
body_has "/health: body" '{"status":"ok"}'
status 200 "/ready" "$url/ready"
head_has "a correlation id is generated" '^x-correlation-id: req-'
status 200 "/ready with an id" -H 'X-Correlation-Id: my.id:1' "$url/ready"
head_has "a correlation id is returned" '^x-correlation-id: my.id:1'
status 200 "/ready with a bad id" -H 'X-Correlation-Id: <script>' "$url/ready"
head_has "a bad correlation id is replaced" '^x-correlation-id: req-'
status 404 "an unknown path" "$url/nowhere"
body_has "404: error object" '"error":{"message":'
status 405 "a wrong method" -X DELETE "$url/v1/chat/completions"
head_has "405: allow header" '^allow: POST'
status 405 "POST to /health" -X POST -d x "$url/health"
status 200 "HEAD" -I "$url/health"
status 200 "the page" -H "Accept: text/html" "$url/"
head_has "the page has a Content-Security-Policy" '^content-security-policy:'
etag=$(sed -n 's/^[Ee][Tt]ag: *\(.*\)\r$/\1/p' "$TMP/head")
status 304 "the page with If-None-Match" -H "Accept: text/html" -H "If-None-Match: $etag" "$url/"
status 405 "OPTIONS without --cors" -X OPTIONS "$url/v1/models"
status 403 "a POST from another origin" -H 'Origin: http://evil.example' -d '{}' "$url/v1/chat/completions"
status 200 "a POST from the same origin" -H "Origin: $url" -d '{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}' "$url/v1/chat/completions"
status 200 "traceparent" -H 'traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' -d '{"prompt":"Once","max_tokens":4}' "$url/v1/completions"
head_has "traceparent is returned" '^traceparent: 00-0af7651916cd43dd8448eb211c80319c'
status 200 "/execute with messages" -d '{"messages":[{"role":"user","content":"hi"}],"max_tokens":4}' "$url/execute"
body_has "/execute with messages: a chat completion" '"message":'
status 200 "/v2/execute with a prompt" -d '{"prompt":"Once","max_tokens":4}' "$url/v2/execute"
body_has "/v2/execute with a prompt: a text completion" '"text":'
status 404 "/cancel of an unknown id" -d '{"id":"nothing"}' "$url/cancel"
curl -sN -m 60 -H 'X-Correlation-Id: to-cancel' -d '{"prompt":"Once","max_tokens":8000,"ignore_eos":true}' "$url/v1/completions" >"$TMP/cancelled" &
long=$!
submitted() { curl -s "$url/status" | grep -q "\"submitted\":$1"; }
until_true submitted 5                # cancelled earlier, it would never reach the engine and not be counted
for _ in $(seq 100); do
  curl -s -d '{"id":"to-cancel"}' "$url/cancel" >"$TMP/body"
  grep -q '"cancelled":' "$TMP/body" && break
  sleep 0.01
done
wait $long
grep -q '"cancelled":true' "$TMP/body" && grep -q cancelled "$TMP/cancelled" && ok "/cancel with an id" || not_ok "/cancel: $(cat "$TMP/body"): $(head -c 200 "$TMP/cancelled")"
status 200 "/status" "$url/status"
python3 - "$TMP/body" docs/serving.md <<'P' && ok "/status has every field of docs/serving.md" || not_ok "/status"
import json, re, sys
got = json.load(open(sys.argv[1]))
blocks = [json.loads(b) for b in re.findall(r"```json\n(.*?)```", open(sys.argv[2]).read(), re.S)]
want = next(b for b in blocks if "uptime_s" in b and "models" in b)
def check(w, g, at):
    if isinstance(w, dict):
        for k in w:
            assert k in g, f"{at}.{k} is missing"
            check(w[k], g[k], f"{at}.{k}")
    elif isinstance(w, list) and w and isinstance(w[0], dict):
        for x in g: check(w[0], x, at)
    else:
        num = lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)
        assert type(w) is type(g) or (num(w) and num(g)), f"{at}: {w!r} but {g!r}"
check(want, got, "status")
assert got["models"][0]["state"] == "ready" and got["tokens"]["generated"] > 0 and got["requests"]["submitted"] == 5, got
P
status 200 "/metrics" "$url/metrics"
python3 - "$TMP/body" <<'P' && ok "/metrics is valid and complete" || not_ok "/metrics"
import re, sys
text = open(sys.argv[1]).read()
types, seen, series = {}, set(), set()
for l in text.splitlines():
    if l.startswith("# TYPE "):
        name, kind = l[7:].split()
        assert name not in types, "twice: " + name
        types[name] = kind
    elif not l.startswith("#"):
        m = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*\})? (\S+)', l)
        assert m, l
        float(m[3])
        assert m[1] + (m[2] or "") not in series, l
        series.add(m[1] + (m[2] or ""))
        base = re.sub(r"_(bucket|sum|count)$", "", m[1])
        assert m[1] in types or types.get(base) == "histogram", l
        seen.add(m[1] if m[1] in types else base)
for n in """deadline_check_duration_us client_disconnect_detection_ms per_token_emission_latency_us model_load_duration_ms
cuda_init_duration_ms http_server_start_duration_ms cancellation_detection_latency_ms refused_total
graceful_shutdown_duration_ms cuda_stream_utilization requests_total admission_rejections_total
queue_depth queue_wait_seconds requests_running requests_waiting kv_blocks_used kv_blocks_total
prefix_cache_queried_tokens_total prefix_cache_hit_tokens_total preemptions_total prompt_tokens_total generated_tokens_total
time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds prefill_time_seconds decode_time_seconds
memory_bytes build_info""".split(): assert "tern_" + n in seen, n
for n in """num_requests_running num_requests_waiting kv_cache_usage_perc time_to_first_token_seconds inter_token_latency_seconds
e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
prompt_tokens_total generation_tokens_total request_success_total prefix_cache_queries_total prefix_cache_hits_total
num_preemptions_total cache_config_info""".split(): assert "vllm:" + n in seen, n
assert "llamacpp:requests_processing" in seen and 'model_name="tern-tales",engine="0"' in text
assert sum(float(l.split()[-1]) for l in text.splitlines() if l[0] != "#" and "running" in l.split()[0]) == 0
P
kill -TERM $server
wait $server
[ $? -eq 0 ] && ok "SIGTERM: exit 0" || not_ok "SIGTERM"
server=
python3 - "$TMP/plain.log" <<'P' && ok "JSON log: every line is an object, access lines have the time split" || not_ok "JSON log: $(tail -n 3 "$TMP/plain.log")"
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
assert all({"time", "level", "msg"} <= set(l) for l in lines)
a = [l for l in lines if l["msg"] == "access" and l.get("path") == "/v1/completions" and "traceparent" in l]
assert len(a) == 1 and {"id", "tenant", "peer", "method", "model", "status", "finish", "prompt_tokens", "cached_tokens", "output_tokens",
                        "queue_ms", "prefill_ms", "decode_ms", "total_ms"} <= set(a[0]), a
assert not any("Once" in json.dumps(l) for l in lines)
assert any("ready after" in l["msg"] for l in lines) and any("shut down in" in l["msg"] for l in lines)
P

printf 'sk-adm name=root admin\nsk-one name=one rate=2/min\nsk-two name=two concurrency=1\n' >"$TMP/keys"
chmod 600 "$TMP/keys"
printf 'rate-per-min: 100\n' >"$TMP/tern.yaml"
start keys -c 8192 --kv-tokens 8192 --api-key-file "$TMP/keys" --config "$TMP/tern.yaml" --socket "$TMP/sock" --cors --log-prompts
chat='{"messages":[{"role":"user","content":"secret words"}],"max_tokens":4}'
status 200 "/health without a key" "$url/health"
status 200 "the page without a key" -H "Accept: text/html" "$url/"
status 401 "/v1/models without a key" "$url/v1/models"
body_has "401: error code" '"code":"unauthorized"'
status 401 "a wrong key" -H 'Authorization: Bearer sk-wrong' "$url/v1/models"
status 200 "Bearer" -H 'Authorization: Bearer sk-one' "$url/v1/models"
status 200 "x-api-key" -H 'x-api-key: sk-one' "$url/v1/models"
status 401 "/metrics without an admin key" -H 'x-api-key: sk-one' "$url/metrics"
status 200 "/metrics with an admin key" -H 'x-api-key: sk-adm' "$url/metrics"
status 200 "/status with an admin key" -H 'x-api-key: sk-adm' "$url/status"
status 200 "over the Unix socket" --unix-socket "$TMP/sock" -H 'x-api-key: sk-adm' http://x/v1/models
[ "$(stat -c %a "$TMP/sock")" = 600 ] && ok "the socket has mode 600" || not_ok "mode of the socket"
status 200 "rate 2/min: first request" -H 'x-api-key: sk-one' -d "$chat" "$url/v1/chat/completions"
status 200 "rate 2/min: second request" -H 'x-api-key: sk-one' -d "$chat" "$url/v1/chat/completions"
status 429 "rate 2/min: third request" -H 'x-api-key: sk-one' -d "$chat" "$url/v1/chat/completions"
body_has "rate limit: error code" '"code":"rate_limited"'
head_has "rate limit: retry-after" '^retry-after: [0-9]'
begin_stream '{"prompt":"Once","max_tokens":8000,"ignore_eos":true,"stream":true}' sk-two
status 429 "concurrency 1: second request" -H 'x-api-key: sk-two' -d "$chat" "$url/v1/chat/completions"
body_has "concurrency limit: error code" '"code":"concurrency_limit"'
kill $long 2>/dev/null
wait $long 2>/dev/null
for _ in $(seq 600); do
  got=$(curl -s -o /dev/null -w '%{http_code}' -H 'x-api-key: sk-two' -d "$chat" "$url/v1/chat/completions")
  [ "$got" = 200 ] && break
  sleep 0.1
done
[ "$got" = 200 ] && ok "a disconnect releases the concurrency" || not_ok "the concurrency was not released: $got"
status 400 "a bad body" -H 'x-api-key: sk-two' -d '{' "$url/v1/chat/completions"
status 200 "a bad body releases the concurrency" -H 'x-api-key: sk-two' -d "$chat" "$url/v1/chat/completions"
status 204 "CORS preflight" -X OPTIONS -H 'Origin: http://a.example' -H 'Access-Control-Request-Headers: authorization' "$url/v1/chat/completions"
head_has "CORS preflight: allowed headers" '^access-control-allow-headers: authorization'
status 200 "another origin with --cors" -H 'Origin: http://a.example' -H 'x-api-key: sk-adm' -d "$chat" "$url/v1/chat/completions"
head_has "CORS: allow-origin" '^access-control-allow-origin: \*'
log_has "--log-prompts logs prompts" keys 'prompt="secret words"'
printf 'sk-new name=one rate=0\n' >"$TMP/keys"
printf 'rate-per-min: 200\nmax-batch: 9\n' >"$TMP/tern.yaml"
kill -HUP $server
until_true logged keys 'changed: rate-per-min'
status 401 "SIGHUP: the old key is rejected" -H 'x-api-key: sk-one' "$url/v1/models"
status 200 "SIGHUP: the new key is accepted" -H 'x-api-key: sk-new' -d "$chat" "$url/v1/chat/completions"
log_has "SIGHUP: changes are logged" keys 'changed: rate-per-min, max-batch (needs a restart)'
printf 'sk-x rate=bad\n' >"$TMP/keys"
kill -HUP $server
until_true logged keys 'API keys are unchanged'
status 200 "SIGHUP: a bad file changes nothing" -H 'x-api-key: sk-new' "$url/v1/models"
log_has "SIGHUP: the bad file is logged" keys 'API keys are unchanged'

# Shutdown: streams continue while the server drains; a second signal ends them.
begin_stream '{"prompt":"Once","max_tokens":300,"ignore_eos":true,"stream":true}'
kill -TERM $server
wait $server
rc=$?
server=
wait $long
[ $rc -eq 0 ] && grep -q '\[DONE\]' "$TMP/stream" && grep -q '"finish_reason":"length"' "$TMP/stream" &&
  ok "SIGTERM: a stream runs to its end" || not_ok "SIGTERM: exit $rc, $(tail -c 200 "$TMP/stream")"
[ -f "$B/tests/fake_nvml.so" ] && export TERN_NVML_LIB=$B/tests/fake_nvml.so
start twice -c 8192 --kv-type f8
unset TERN_NVML_LIB
curl -s "$url/status" >"$TMP/status"
curl -s "$url/metrics" >"$TMP/metrics"
python3 - "$TMP/status" "$TMP/metrics" "$B/tests/fake_nvml.so" <<'P' && ok "/status shows an F8 KV cache, and GPUs by NVML" || not_ok "/status with NVML"
import json, os, sys
s, m = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
assert s["models"][0]["kv_type"] == "F8_E4M3", s["models"]
assert s["devices"] == [] and s["device_utilization"] == 0
assert [(d["name"], d["experts"], d["weight_bytes"] > 0) for d in s["models"][0]["devices"]] == [("cpu", 0, True)], s["models"]
if os.path.exists(sys.argv[3]):
    assert [g["temperature_c"] for g in s["gpus"]] == [51, 52] and s["gpus"][0]["power_w"] == 250.5, s["gpus"]
    assert 'tern_gpu_temperature_celsius{gpu="1"' in m
else:
    assert "gpus" not in s and "tern_gpu_" not in m
P
begin_stream '{"prompt":"Once","max_tokens":8000,"ignore_eos":true,"stream":true}'
kill -TERM $server
until_true drains && kill -0 $server 2>/dev/null && ok "SIGTERM drains" || not_ok "the server did not wait for the stream"
kill -TERM $server
wait $server
rc=$?
server=
wait $long
[ $rc -eq 0 ] && ! grep -q '"finish_reason":"length"' "$TMP/stream" && ok "a second SIGTERM ends running requests" ||
  not_ok "second SIGTERM: exit $rc: $(tail -n 3 "$TMP/twice.log")"
start timeout -c 8192 --drain-timeout 300ms
begin_stream '{"prompt":"Once","max_tokens":8000,"ignore_eos":true,"stream":true}'
kill -TERM $server
wait $server
rc=$?
server=
wait $long
[ $rc -eq 0 ] && log_has "the drain timeout ends running requests" timeout 'the drain timeout has passed' || not_ok "drain timeout: exit $rc"

if openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout "$TMP/key.pem" -out "$TMP/cert.pem" 2>/dev/null; then
  start tls --tls-cert "$TMP/cert.pem" --tls-key "$TMP/key.pem"
  case $url in https://*) status 200 "TLS" "$url/v1/models" ;; *) not_ok "TLS: $url" ;; esac
  kill -TERM $server; wait $server; server=
else
  skip "TLS: openssl is not installed"
fi
exit $failed
