# Ollama's /api/pull, /api/delete and /api/copy: tests/api/pulls.py starts its servers and a hub itself.
. tests/cli/lib.inc
[ -e "$B/tern-pull.so" ] || { skip "pulls: libcurl4-openssl-dev is not installed, so there is no tern-pull.so"; exit 0; }
export TERN TMP PYTHONDONTWRITEBYTECODE=1
timeout 1500 python3 tests/api/pulls.py "$@" || failed=1
exit $failed
