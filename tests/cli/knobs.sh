# Every setting of the server by flag, environment and file: its value, its effective value and its source in
# `tern config show` and in /status, and effects that can be seen from outside. A new row of the table needs a case.
. tests/cli/lib.inc
command -v python3 >/dev/null || { skip "knobs: python3 is not installed"; exit 0; }
for v in $(env | sed -n 's/^\(TERN_[A-Z_]*\)=.*/\1/p'); do case $v in TERN_BUILD | TERN_ROOT) ;; *) unset "$v" ;; esac done
python3 tests/cli/knobs.py "$TERN" "$TMP" || failed=1
exit $failed
