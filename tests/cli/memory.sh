# Memory that /status accounts for a model against /proc/PID/smaps: tests/api/memory.py. TERN_BIG_MODEL=FILE measures that one, too.
. tests/cli/lib.inc
case $B in *asan* | *tsan*) skip "memory accounting: a sanitizer takes memory of its own"; exit 0 ;; esac
export PYTHONDONTWRITEBYTECODE=1
timeout 1500 python3 tests/api/memory.py || failed=1
exit $failed
