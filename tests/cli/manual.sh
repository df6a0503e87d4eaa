# The manual page, the completions of shells and the systemd service: made from the tables of flags, and complete.
. tests/cli/lib.inc
M=models/tern-tales.gguf
unset TERN_MODEL TERN_PORT TERN_CONFIG TERN_URL TERN_API_KEY
"$TERN" --help | sed -n '/^Each command/q; s/^  \([a-z]*\)  *[a-z].*/\1/p' >"$TMP/verbs"
[ "$(wc -l <"$TMP/verbs")" -ge 20 ] && ok "tern --help lists the commands" || not_ok "commands: $(cat "$TMP/verbs")"

# flags VERB: every flag that its help shows, one a line
flags() { "$TERN" "$1" --help | sed -n '/^flags:/,$p; /^models:/,$p' | grep -oE '^  (-[a-zA-Z]+, )*--[a-z0-9-]+|^  --[a-z0-9-]+[^.]*$' | grep -oE -- '--[a-z0-9-]+' | grep -vx -e --help | sort -u; }

works "tern manual" -- "$TERN" manual
cp "$TMP/out" "$TMP/tern.1"
for v in $(cat "$TMP/verbs"); do
  grep -q "^\.SS tern $v\$" "$TMP/tern.1" || { not_ok "the manual page has tern $v"; continue; }
  sed -n "/^\.SS tern $v\$/,/^\.S[SH] /p" "$TMP/tern.1" | sed 's/\\-/-/g' >"$TMP/section"
  missing=$(for f in $(flags "$v"); do grep -qF -- "$f" "$TMP/section" || echo "$f"; done)
  [ -z "$missing" ] && ok "the manual page has tern $v with all its flags" || not_ok "the manual page lacks flags of tern $v: $missing"
done
if command -v groff >/dev/null; then
  groff -man -Tutf8 -ww "$TMP/tern.1" >"$TMP/page" 2>"$TMP/err" && [ ! -s "$TMP/err" ] && sed 's/.\x08//g' "$TMP/page" | grep -q 'EXIT STATUS' &&
    ok "groff formats the page without warnings" || not_ok "groff: $(head -n 3 "$TMP/err")"
else skip "groff is not installed: the page is not formatted"; fi

for s in bash zsh fish; do works "tern completion $s" -- "$TERN" completion $s && cp "$TMP/out" "$TMP/tern.$s"; done
"$TERN" completion csh >"$TMP/out" 2>"$TMP/err"
[ $? -eq 2 ] && ok "another shell is refused, exit 2" || not_ok "completion csh"
bash -n "$TMP/tern.bash" && ok "bash parses its script" || not_ok "bash -n"
for s in zsh fish; do
  if command -v $s >/dev/null; then
    $s -n "$TMP/tern.$s" 2>"$TMP/err" && ok "$s parses its script" || not_ok "$s -n: $(head -n 3 "$TMP/err")"
  else skip "$s is not installed: its script is not parsed"; fi
done
# complete WORD...: what bash offers after these words; the last one is being typed
complete_words() {
  PATH=$(dirname "$TERN"):$PATH bash --norc -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
    compopt() { :; }
    _tern; printf "%s\n" "${COMPREPLY[@]}"' "$TMP/tern.bash" "$@"
}
offers() { # NAME WANT WORD...
  local name=$1 want=$2
  shift 2
  complete_words "$@" >"$TMP/out" 2>"$TMP/err"
  grep -qxF -- "$want" "$TMP/out" && [ ! -s "$TMP/err" ] && ok "bash completes $name" || not_ok "bash completes $name: $(head -c 300 "$TMP/out" "$TMP/err")"
}
offers "commands" status tern sta
offers "all commands" serve tern ""
offers "flags" --max-batch tern serve --max-b
offers "flags of other programs" --max-model-len tern serve --max-m
offers "flags behind others" --url tern status --json --u
offers "words of a flag" tenant tern serve --prefix-scope t
offers "words of --flag=" tenant tern serve --prefix-scope = t
offers "words of a flag of bench" json tern bench -o j
offers "words of a command" unload tern models un
offers "words of config" defaults tern config ""
offers "shells" fish tern completion f
offers "files" $M tern serve -m models/tern-t
offers "files of a command" $M tern inspect models/tern-t
missing=$(for v in $(cat "$TMP/verbs"); do for f in $(flags "$v"); do complete_words tern "$v" "$f" | grep -qxF -- "$f" || echo "$v $f"; done; done)
[ -z "$missing" ] && ok "bash completes every flag of every command" || not_ok "bash does not complete: $missing"

# The service: READY and STOPPING for the manager, and the unit file.
cat >"$TMP/manager.py" <<'P'
import os, signal, socket, subprocess, sys
path = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(path)
s.settimeout(120)
env = {**os.environ, "NOTIFY_SOCKET": path, "WATCHDOG_USEC": "60000000"}
p = subprocess.Popen(sys.argv[2:], env=env, stderr=subprocess.DEVNULL)
seen = []
def until(word):
    while not any(word in t for t in seen):
        seen.append(s.recv(4096).decode())
until("READY=1")
assert "STATUS=ready" in seen[-1], seen
until("WATCHDOG=1")
p.send_signal(signal.SIGTERM)
until("STOPPING=1")
assert p.wait(120) == 0
assert sum("READY=1" in t for t in seen) == 1, seen
P
python3 "$TMP/manager.py" "$TMP/notify" "$TERN" serve -m $M --port 0 -c 512 -t 1 2>"$TMP/err" && ok "the service manager is told READY, STATUS, WATCHDOG and STOPPING" ||
  not_ok "sd_notify: $(tail -n 2 "$TMP/err")"
sed "s|@PREFIX@/bin/tern|$TERN|" packaging/tern.service.in >"$TMP/tern.service"
grep -q '@' "$TMP/tern.service" && ! grep -q '@PREFIX@' "$TMP/tern.service" && ok "the unit has no placeholder left" || not_ok "the unit: $(grep -n @PREFIX@ "$TMP/tern.service")"
for line in RestartPreventExitStatus=2 HF_HOME=/var/lib/tern; do
  grep -q "$line" "$TMP/tern.service" && ok "the unit has $line" || not_ok "the unit has no $line"
done
for v in run serve gateway models config; do
  "$TERN" help $v >"$TMP/out" 2>&1 && "$TERN" $v --help | cmp -s - "$TMP/out" && ok "help $v is $v --help" || not_ok "help $v: $(head -n 2 "$TMP/out")"
done
"$TERN" help staus >"$TMP/out" 2>&1
[ $? -eq 2 ] && grep -q 'did you mean status' "$TMP/out" && ok "help of an unknown command" || not_ok "help staus: $(head -n 2 "$TMP/out")"
if command -v systemd-analyze >/dev/null; then
  systemd-analyze verify --man=no "$TMP/tern.service" >"$TMP/out" 2>&1
  rc=$?
  if [ $rc -eq 0 ] && ! grep -q 'tern.service' "$TMP/out"; then ok "systemd-analyze verify"
  elif grep -qiE 'failed to (connect|initialize|create)|not been booted|permission denied' "$TMP/out"; then skip "systemd-analyze verify does not work here: $(head -n 1 "$TMP/out")"
  else not_ok "systemd-analyze verify: $(head -n 5 "$TMP/out")"; fi
else skip "systemd-analyze is not installed: the unit is not verified"; fi
exit $failed
