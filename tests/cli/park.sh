# KV blocks of models that are unloaded or sleep: tests/api/park.py starts its servers itself.
. tests/cli/lib.inc
export TERN PYTHONDONTWRITEBYTECODE=1
timeout 1500 python3 tests/api/park.py || failed=1
exit $failed
