# --numa: memory nodes. HWLOC_SYNTHETIC describes a machine with two; the results are the same, and a node that is not there is refused.
. tests/cli/lib.inc
M=models/tern-tales.gguf
for i in 1 2 3; do echo "Once upon a time there was a little girl named Lily. On day $i she found a big red ball."; done >"$TMP/text"

for verb in "run -p Hi" "bench" "eval ppl --file $TMP/text" "serve --port 0"; do
  # shellcheck disable=SC2086
  timeout 300 "$TERN" $verb -m $M --numa 999 >"$TMP/out" 2>"$TMP/err"
  [ $? -eq 2 ] && grep -q "numa 999: there is no such node .*; this machine has 0" "$TMP/err" &&
    ok "${verb%% *}: a node that does not exist" || not_ok "${verb%% *}: $(cat "$TMP/err")"
done
"$TERN" bench -m $M --numa all >"$TMP/out" 2>"$TMP/err"
[ $? -eq 2 ] && grep -q 'numa "all": it must be auto, off, spread or the number of a node' "$TMP/err" && ok "an unknown mode is refused" || not_ok "mode: $(cat "$TMP/err")"

# The processors that are described must be ours.
case $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) in
0-*) ;;
*)
  skip "two nodes: processors 0 and 1 are not ours"
  exit $failed ;;
esac
ppl() { "$TERN" eval ppl -m $M --file "$TMP/text" --ctx 64 -t 2 "$@" 2>"$TMP/err" | sed -n 's/.*"ppl":\([0-9.]*\),.*/\1/p'; }
plain=$(ppl --numa off)
for nodes in "numa:2 core:1 pu:1" "numa:1 core:2 pu:1"; do
  export HWLOC_SYNTHETIC=$nodes
  for mode in auto spread 0 off; do
    got=$(ppl --numa $mode)
    [ -n "$got" ] && [ "$got" = "$plain" ] && ok "$nodes, $mode: the same perplexity" || not_ok "$nodes, $mode: '$got' and not '$plain': $(cat "$TMP/err")"
  done
done
HWLOC_SYNTHETIC="numa:2 core:1 pu:1" "$TERN" bench -m $M -p 8 -n 4 -r 1 -o json >"$TMP/out" 2>"$TMP/err"
grep -q '2 NUMA nodes' "$TMP/out" && ok "bench says how many nodes" || not_ok "bench: $(cat "$TMP/out" "$TMP/err")"
