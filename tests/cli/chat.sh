# tern chat, from a pipe and on a terminal.
. tests/cli/lib.inc
M=models/tern-tales.gguf
[ -e $M ] || M=../shared/models/tern-tales-main
[ -e $M ] || { skip "chat: no model"; exit 0; }
export XDG_STATE_HOME=$TMP/state

printf '%s\n' 'Tell me a story about a frog.' 'And then?' '/stats' '/exit' 'never read' |
  timeout 300 "$TERN" chat -m $M --temp 0 -n 40 >"$TMP/out" 2>"$TMP/err"
[ $? -eq 0 ] && [ "$(grep -c . "$TMP/out")" -ge 2 ] && ok "each line of a pipe is a question" || not_ok "pipe: $(cat "$TMP/err")"
grep -q 'cached)' "$TMP/err" && ok "the second question reuses the KV cache of the first" || not_ok "KV cache reuse: $(cat "$TMP/err")"

# The first answer equals the one of `run`.
"$TERN" run -m $M --temp 0 -n 40 -q -p 'Tell me a story about a frog.' >"$TMP/run" 2>/dev/null
n=$(wc -c <"$TMP/run")
cmp -s <(head -c "$n" "$TMP/out") "$TMP/run" && ok "chat and run give the same answer" || not_ok "chat and run give different answers"

printf '%s\n' 'one \' 'two' '"""three' 'four' 'five"""' "/save $TMP/conversation.json" |
  timeout 300 "$TERN" chat -m $M --temp 0 -n 8 --system 'Be kind.' >"$TMP/out" 2>"$TMP/err"
python3 - "$TMP/conversation.json" <<'P' && ok "continued lines, triple quotes and /save" || not_ok "/save: $(cat "$TMP/conversation.json")"
import json, os, sys
t = json.load(open(sys.argv[1]))
assert [m["role"] for m in t] == ["system", "user", "assistant", "user", "assistant"], t
assert t[0]["content"] == "Be kind." and t[1]["content"] == "one \ntwo" and t[3]["content"] == "three\nfour\nfive", t
assert os.stat(sys.argv[1]).st_mode & 0o777 == 0o600
P
printf '%s\n' "/load $TMP/conversation.json" '/set temp 0' '/set temp 9' '/set' '/nonsense' '/help' '/clear' "/save $TMP/clear.json" \
  "/load $TMP/none.json" "/load $M" |
  timeout 300 "$TERN" chat -m $M >"$TMP/out" 2>"$TMP/err"
rc=$?
[ $rc -eq 0 ] && grep -q '5 messages loaded from' "$TMP/err" && ok "/load" || not_ok "/load: $(cat "$TMP/err")"
grep -q 'temp is 9' "$TMP/err" && grep -q '  temp 0,' "$TMP/err" && ok "/set checks values and lists settings" || not_ok "/set: $(cat "$TMP/err")"
grep -q '/nonsense' "$TMP/err" && grep -q '/stats' "$TMP/err" && ok "/help lists commands, unknown commands are named" || not_ok "/help"
grep -q '"Be kind."' "$TMP/clear.json" && ! grep -q three "$TMP/clear.json" && ok "/clear keeps the system message" || not_ok "/clear"
grep -q 'none.json' "$TMP/err" && ok "/load names a file that does not exist" || not_ok "/load of a missing file: $(cat "$TMP/err")"

for i in 1 2 3 4 5 6; do echo "Tell me a long story about a cat and a dog, number $i."; done |
  timeout 300 "$TERN" chat -m $M -c 200 --temp 0 -n 90 --ignore-eos >"$TMP/out" 2>"$TMP/err"
[ $? -eq 0 ] && grep -q 'oldest .* dropped' "$TMP/err" && ok "a full context drops the oldest messages" || not_ok "full context: $(cat "$TMP/err")"
python3 -c "print('word ' * 3000)" | timeout 300 "$TERN" chat -m $M -c 200 >"$TMP/out" 2>"$TMP/err"
[ $? -eq 0 ] && grep -q '200' "$TMP/err" && ok "a question that does not fit is rejected, the chat continues" || not_ok "too long: $(cat "$TMP/err")"

cat >"$TMP/term.py" <<'P'
import os, pty, select, signal, sys, time
class Term:
    def __init__(self, argv):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(argv[0], argv)
        self.seen = b""
    def wait(self, what, seconds=30):
        end = time.time() + seconds
        while what not in self.seen:
            if time.time() > end: raise SystemExit("no %r in %r" % (what, self.seen[-600:]))
            if select.select([self.fd], [], [], 0.1)[0]:
                try: self.seen += os.read(self.fd, 65536)
                except OSError: break
        if what not in self.seen: raise SystemExit("ended without %r: %r" % (what, self.seen[-600:]))
        before, self.seen = self.seen.split(what, 1)
        return before
    def send(self, b): os.write(self.fd, b)
    def end(self, seconds=20):
        stop = time.time() + seconds
        while time.time() < stop:
            pid, st = os.waitpid(self.pid, os.WNOHANG)
            if pid: return os.waitstatus_to_exitcode(st)
            if select.select([self.fd], [], [], 0.05)[0]:
                try: os.read(self.fd, 65536)
                except OSError: pass
        os.kill(self.pid, signal.SIGKILL)
        raise SystemExit("the program did not exit")
tern, model, verb = sys.argv[1:4]
t = Term([tern, verb, "-m", model, "--temp", "0", "--ignore-eos"])
t.wait(b"> ")
t.send(b"\x03")                                       # Ctrl-C at an empty prompt
t.wait(b"Ctrl-D or /exit")
t.wait(b"> ")
t.send(b"half a line\x03")                            # Ctrl-C discards a line
t.wait(b"> ")
t.send(b"Tell me a story about a frog.\r")
t.wait(b"Once")                                       # the answer streams
t.send(b"\x03")                                       # Ctrl-C stops the answer, not the program
t.wait(b"(stopped)")
t.wait(b"> ")
t.send(b"caf\xc3\xa9x\x7f\r")                         # editing: a backspace
t.wait(b"\n")
time.sleep(0.3)
t.send(b"\x03")
t.wait(b"> ")
t.send(b"\x10\x10\r")                                 # history: the first question
t.wait(b"frog")
t.wait(b"Once")
t.send(b"\x03")
t.wait(b"> ")
t.send(b"\x04")                                       # Ctrl-D exits
rc = t.end()
assert rc == 0, rc
P
if timeout 300 python3 "$TMP/term.py" "$TERN" $M chat >"$TMP/out" 2>&1; then ok "chat on a terminal: Ctrl-C, history, Ctrl-D"
else not_ok "chat on a terminal: $(cat "$TMP/out")"; fi
if timeout 300 python3 "$TMP/term.py" "$TERN" $M run >"$TMP/out" 2>&1; then ok "run without a prompt on a terminal is a chat"
else not_ok "run without a prompt: $(cat "$TMP/out")"; fi
[ "$(stat -c %a "$TMP/state/tern/history")" = 600 ] && grep -q frog "$TMP/state/tern/history" &&
  ok "the history is saved with mode 600" || not_ok "history: $(ls -l "$TMP/state/tern")"

# run: Ctrl-C stops the answer, prints statistics and exits with 130.
"$TERN" run -m $M -p "Tell me a story." --ignore-eos -c 20000 >"$TMP/story" 2>"$TMP/err" &
for _ in $(seq 200); do
  [ -s "$TMP/story" ] && break
  sleep 0.1
done
kill -INT $!
wait $!
rc=$?
[ $rc -eq 130 ] && grep -q 'tok/s' "$TMP/err" && ok "Ctrl-C stops run: exit 130, statistics" || not_ok "run and Ctrl-C: exit $rc $(cat "$TMP/err")"
"$TERN" run -m $M -p "Once upon a time" --raw --temp 0 -n 40 --stop little --stop zzz >"$TMP/out" 2>/dev/null
! grep -q little "$TMP/out" && [ -s "$TMP/out" ] && ok "--stop may be given several times" || not_ok "--stop: $(cat "$TMP/out")"
"$TERN" run -m $M -p "Once upon a time" --raw --temp 0 -n 9 --json >"$TMP/out" 2>/dev/null
python3 -c "
import json; j=json.load(open('$TMP/out'))
assert j['finish'] == 'length' and len(j['ids']) == j['tokens'] == 9 and j['text'] and j['prompt_ms'] > 0" &&
  ok "--json prints one object" || not_ok "--json: $(cat "$TMP/out")"
for bad in '--temp 5' '--top-p 0' '-n -1' '-c 1' '--temp x'; do
  # shellcheck disable=SC2086
  "$TERN" run -m $M -p x $bad >"$TMP/out" 2>"$TMP/err" </dev/null
  rc=$?
  [ $rc -eq 2 ] && [ "$(wc -l <"$TMP/err")" -eq 1 ] && ok "run $bad: rejected, exit 2" || not_ok "run $bad: exit $rc: $(cat "$TMP/err")"
done
"$TERN" run -m $M >"$TMP/out" 2>"$TMP/err" </dev/null
[ $? -eq 2 ] && ok "no prompt: exit 2" || not_ok "no prompt: $(cat "$TMP/err")"
exit $failed
