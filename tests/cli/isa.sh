# --isa and TERN_ISA: every kernel set of this CPU computes the same model; those it lacks are refused by name.
. tests/cli/lib.inc
M=models/tern-tales.gguf
for i in 1 2 3 4 5 6; do
  echo "Once upon a time there was a little girl named Lily. She liked to play in the garden with her dog. On day $i the dog
found a big red ball under the tree. Lily was very happy, and they played all day. Then her mom said it was time to go home."
done >"$TMP/text"

"$TERN" bench -m $M -p 8 -n 4 -r 1 -o json --isa nothing >"$TMP/out" 2>"$TMP/err"
[ $? -eq 2 ] && grep -q '"nothing" is not known; this CPU has .*ref' "$TMP/err" && ok "an unknown set is refused" || not_ok "unknown: $(cat "$TMP/err")"
have=$(sed -n 's/.*this CPU has \(.*\) (see.*/\1/p' "$TMP/err" | tr -d ',')
foreign=neon
[ "$(uname -m)" = aarch64 ] && foreign=avx2
for verb in "run -p Hi" "bench" "eval ppl --file $TMP/text" "serve --port 0"; do
  # shellcheck disable=SC2086
  timeout 300 "$TERN" $verb -m $M --isa $foreign >"$TMP/out" 2>"$TMP/err"
  [ $? -eq 2 ] && grep -q "isa \"$foreign\": this CPU lacks .*; it has $(echo "$have" | sed 's/ /, /g')" "$TMP/err" &&
    ok "${verb%% *}: a set that the CPU lacks" || not_ok "${verb%% *}: $(cat "$TMP/err")"
done
case " $have " in
*" avxvnni "*) ;;
*)
  "$TERN" bench -m $M --isa avxvnni >"$TMP/out" 2>"$TMP/err"
  [ $? -eq 2 ] && grep -q 'isa "avxvnni": this CPU lacks AVX-VNNI' "$TMP/err" && ok "avxvnni is known where the CPU lacks it" || not_ok "avxvnni: $(cat "$TMP/err")" ;;
esac
TERN_ISA=$foreign "$TERN" run -m $M -p Hi >"$TMP/out" 2>"$TMP/err"
[ $? -eq 2 ] && grep -q "isa \"$foreign\"" "$TMP/err" && ok "TERN_ISA is checked, too" || not_ok "TERN_ISA: $(cat "$TMP/err")"

ppl() { "$TERN" eval ppl -m $M --file "$TMP/text" --ctx 64 "$@" 2>"$TMP/err" | sed -n 's/.*"ppl":\([0-9.]*\),.*/\1/p'; }
ref=$(ppl --isa ref)
[ -n "$ref" ] || not_ok "eval ppl --isa ref: $(cat "$TMP/err")"
for isa in $have; do
  got=$(ppl --isa "$isa")
  [ -n "$got" ] && [ "$(echo "d = $got / $ref - 1; if (d < 0) d = -d; d < 0.02" | bc -l)" = 1 ] &&
    ok "$isa: perplexity $got, reference $ref" || not_ok "$isa: perplexity '$got', reference '$ref': $(cat "$TMP/err")"
  "$TERN" bench -m $M -p 8 -n 4 -r 1 -o json --isa "$isa" >"$TMP/out" 2>"$TMP/err"
  grep -q "\"device\":\"$isa, " "$TMP/out" && ok "$isa: bench names it" || not_ok "$isa: bench: $(cat "$TMP/out" "$TMP/err")"
  TERN_ISA=$isa "$TERN" bench -m $M -p 8 -n 4 -r 1 -o json >"$TMP/out" 2>"$TMP/err"
  grep -q "\"device\":\"$isa, " "$TMP/out" && ok "$isa: by TERN_ISA" || not_ok "$isa: TERN_ISA: $(cat "$TMP/out" "$TMP/err")"
done
exit $failed
