# tern template: exact output, and errors with exit code 1, line and column.
. tests/cli/lib.inc
M=models/tern-tales.gguf
same() { # NAME WANT: the last command wrote exactly WANT
  if [ "$(cat "$TMP/out"; echo .)" = "$2." ]; then ok "$1"; else not_ok "$1: $(head -c 200 "$TMP/out")"; fi
}
printf '{{ bos_token }}{%% for m in messages %%}[{{ m.role }}] {{ m.content }}{%% endfor %%}' >"$TMP/t.jinja"
V='{"bos_token": "<s>", "messages": [{"role": "user", "content": "Zürich 😀"}]}'
works "--file" -- "$TERN" template --file "$TMP/t.jinja" --json "$V"
same "--file: exact output" "<s>[user] Zürich 😀"
echo "$V" >"$TMP/v.json"
works "variables from a file" -- "$TERN" template -f "$TMP/t.jinja" --json "@$TMP/v.json"
same "variables from a file: exact output" "<s>[user] Zürich 😀"
printf "{{ strftime_now('%%d %%B %%Y') }}" >"$TMP/now.jinja"
works "strftime_now sets the clock" -- "$TERN" template -f "$TMP/now.jinja" --json '{"strftime_now": "2026-01-02 03:04:05"}'
same "strftime_now: exact output" "02 January 2026"
works "the template of a model" -- "$TERN" template -m $M --json '{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}'
same "the template of a model, with special tokens" "<|bos|><|user|>
Hi<|end|>
<|assistant|>
"
printf 'a\n{{ raise_exception("roles must alternate") }}' >"$TMP/no.jinja"
fails_with "raise_exception" no.jinja "line 2, column" "roles must alternate" -- "$TERN" template -f "$TMP/no.jinja" --json '{}'
printf '{%% if x %%}' >"$TMP/open.jinja"
fails_with "a tag without an end" "line 1" endif -- "$TERN" template -f "$TMP/open.jinja" --json '{}'
printf '\xff' >"$TMP/bytes.jinja"
fails_with "bytes that are not UTF-8" "line 1, column 1" UTF-8 -- "$TERN" template -f "$TMP/bytes.jinja" --json '{}'
printf '{%% for a in range(99999) %%}{%% for b in range(99999) %%}{%% endfor %%}{%% endfor %%}' >"$TMP/long.jinja"
fails_with "a template without end" steps -- "$TERN" template -f "$TMP/long.jinja" --json '{}'
fails_with "variables that are not JSON" "--json" "line 1" -- "$TERN" template -f "$TMP/t.jinja" --json '{'
fails_with "variables that are not an object" object -- "$TERN" template -f "$TMP/t.jinja" --json '[]'
fails_with "strftime_now without a date" strftime_now -- "$TERN" template -f "$TMP/t.jinja" --json '{"strftime_now": "noon"}'
fails_with "no such template" nowhere.jinja -- "$TERN" template -f nowhere.jinja --json '{}'
timeout 300 "$TERN" template -f "$TMP/t.jinja" >/dev/null 2>&1
[ $? -eq 2 ] && ok "without variables: exit 2" || not_ok "without variables: not exit 2"
fails_with "run with a wrong template" open.jinja "line 1" -- "$TERN" run -m $M --chat-template "$TMP/open.jinja" -p hi -n 1
works "run with --chat-template" -- "$TERN" run -m $M --chat-template "$TMP/t.jinja" -p hi -n 1 --quiet
exit $failed
