# The same tokens over HTTP, with and without --isolate, and from the command line: tests/api/same.py.
. tests/cli/lib.inc
export PYTHONDONTWRITEBYTECODE=1
timeout 900 python3 tests/api/same.py || failed=1
exit $failed
