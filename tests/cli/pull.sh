# tern pull, list, show and rm against a hub on this machine.
. tests/cli/lib.inc
command -v python3 >/dev/null || { skip "pull: python3 is not installed"; exit 0; }
[ -e "$B/tern-pull.so" ] || { skip "pull: libcurl4-openssl-dev is not installed, so there is no tern-pull.so"; exit 0; }
for f in "$B/tern" "$B/lib/libtern.so"; do
  [ -e "$f" ] || continue
  if readelf -d "$f" | grep -q 'NEEDED.*libcurl'; then not_ok "${f##*/} links libcurl"; else ok "${f##*/} does not link libcurl"; fi
done
export TERN TMP PYTHONDONTWRITEBYTECODE=1
timeout 1500 python3 tests/pull/pull.py || failed=1
exit $failed
