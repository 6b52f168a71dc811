#!/usr/bin/env bash
# perigee eval --suite: tables, records and picture; the same records on every layout; what cannot be evaluated is
# refused in words. Real processes.
set -euo pipefail
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
export OMP_NUM_THREADS=1

config=("$PERIGEE_SOURCE/configs/debug.yaml" output_dir="$scratch/run" threads=1 log.progress=false)
ranks 1 "$PERIGEE_BIN/perigee" train "${config[@]}" || complain "training"
suites=(eval.samples=3 'eval.suites.lengths=[700]' eval.suites.depths=2 eval.suites.items=1 eval.suites.far_context=2
    eval.suites.far_distance=12)
# evaluate RANKS NAMES [OVERRIDE...]: afterwards the records are in $scratch/records
evaluate() {
    rm -f "$scratch/run/suites.jsonl"
    ranks "$1" "$PERIGEE_BIN/perigee" eval "${config[@]}" --suite "$2" "${suites[@]}" "${@:3}" || complain "suites of $*"
    cp "$scratch/run/suites.jsonl" "$scratch/records" || complain "no records of $*"
}
# refused CODE TEXT [ARGUMENT...]
refused() {
    local code=0
    "$PERIGEE_BIN/perigee" eval "${config[@]}" "${@:3}" >"$scratch/printed" 2>"$scratch/log" || code=$?
    [ "$code" = "$1" ] && grep -qF "$2" "$scratch/log" || complain "$2: exit $code"
}
same() { # records like those of one rank: names and counts the same, sums nearly
    local one=$scratch/one
    grep -q '"suite":"mass"' "$scratch/records" || { one=$scratch/no_mass && grep -v '"suite":"mass"' "$scratch/one" >"$one"; }
    paste -d'\n' "$one" "$scratch/records" | perl -ne '
        s/"(?:nll|weight|mass)":([-0-9.e+]+)/push @n, $1; ""/ge;
        if ($. % 2) { ($text, @before) = ($_, @n) } else {
            die "$_ where one rank has $text" if $_ ne $text;
            for my $i (0 .. $#n) { die "$n[$i] for $before[$i]" if abs($n[$i] - $before[$i]) > 1e-4 * (1 + abs $before[$i]) }
            $lines++;
        }
        @n = (); END { die "$lines lines" if $lines < 20 }' || complain "other records with $*"
}

evaluate 1 position,mass,needle,ruler
mv "$scratch/records" "$scratch/one"
[ "$(grep -c '"suite":"needle"' "$scratch/one")" = 6 ] || complain "3 tasks at 2 depths expected"
[ "$(grep -c '"suite":"ruler"' "$scratch/one")" = 6 ] || complain "6 tasks expected"
layers=$(grep -o '"layer":[0-9]*' "$scratch/one" | sort -u | wc -l)
[ "$layers" -gt 1 ] && [ "$(grep -c '"suite":"mass"' "$scratch/one")" = $((3 * layers * 6)) ] ||
    complain "mass: 3 samples, $layers layers, 6 rules expected"
grep '"suite":"mass"' "$scratch/one" | sed 's/.*"layer":\([0-9]*\),"mass":\([^,]*\),.*/\1 \2/' | awk 'NR % 6 == 1 { least = $2 }
    { if ($2 < least * 0.999999) bad = 1; if (most == "" || $2 > most) most = $2; if (NR % 6 == 0) { if ($2 < most) bad = 1; most = "" } }
    END { exit bad }' || complain "mass: not between the local block and the best choice"
grep '"suite":"position"' "$scratch/one" >"$scratch/position"
for what in '"attention":"moba + 1 full"' '"attention":"full"' '"task":"far"' '"end":128,'; do
    grep -qF "$what" "$scratch/position" || complain "no position record with $what"
done
for title in "loss by position, step 20" "mass, moba + 1 full, step 20" "needle, moba + 1 full, step 20" "ruler, moba + 1 full, step 20"; do
    grep -qF "$title" "$scratch/printed" || complain "no table: $title"
done
[ "$(awk '{ if (length > most) most = length } END { print most }' "$scratch/printed")" -le 79 ] || complain "wide table"
grep -q '^<svg ' "$scratch/run/needle_moba+1full.svg" || complain "no heat map"

# The position records add up to the held-out loss of the same samples.
for kind in moba full; do
    ranks 1 "$PERIGEE_BIN/perigee" eval "${config[@]}" eval.samples=3 attention.kind=$kind || complain "eval of $kind"
    loss=$(sed -n 's/.*"eval_loss":\([0-9.]*\).*/\1/p' "$scratch/printed")
    perplexity=$(sed -n 's/.*"eval_perplexity":\([0-9.]*\).*/\1/p' "$scratch/printed")
    name=full
    [ $kind = full ] || name='moba \+ 1 full'
    grep -E "\"attention\":\"$name\",\"task\":\"(fresh|near|far)\"" "$scratch/one" |
        sed 's/.*"weight":\([^,]*\),"nll":\([^,}]*\).*/\1 \2/' | awk -v loss="$loss" -v perplexity="$perplexity" '
            { weight += $1; nll += $2 }
            END { d = nll / weight / loss - 1; p = exp(loss) / perplexity - 1
                  exit !(weight > 300 && d < 1e-6 && d > -1e-6 && p < 1e-9 && p > -1e-9) }' ||
        complain "position records of $kind do not add up to $loss"
done

for layout in "2" "2 parallel.tensor=2" "2 parallel.context=2" "2 parallel.context=2 parallel.context_mode=allgather" \
    "4 parallel.tensor=2 parallel.context=2"; do
    read -r -a arguments <<<"$layout"
    suites_of_layout=position,mass,needle,ruler
    [[ $layout != *context* ]] || suites_of_layout=position,needle,ruler
    evaluate "${arguments[0]}" $suites_of_layout "${arguments[@]:1}"
    same "$layout"
done

# Generation comes to the same verdicts; later evaluations are added to the file.
evaluate 1 needle,ruler
ranks 1 "$PERIGEE_BIN/perigee" eval "${config[@]}" --suite needle,ruler "${suites[@]}" eval.suites.scorer=generate ||
    complain "by generation"
verdicts() { grep "\"scorer\":\"$1\"" "$scratch/run/suites.jsonl" | grep -o '"task.*"number":[0-9]*\|"passed".*'; }
[ "$(verdicts forced)" = "$(verdicts generate)" ] || complain "generation comes to other verdicts"
[ "$(verdicts generate | wc -l)" = 24 ] || complain "12 items by generation expected"
# Each record names its evaluation, by where its records begin, and what the command line changed of the results.
evaluations=$(sed 's/^{\("eval":[0-9]*\),"overrides":"\([^"]*\)",.*/\1 \2/' "$scratch/run/suites.jsonl" | uniq)
[ "$evaluations" = "\"eval\":0 ${suites[*]}
\"eval\":$(stat -c %s "$scratch/records") ${suites[*]} eval.suites.scorer=generate" ] || complain "evaluations: $evaluations"

evaluate 1 position generate.prompt='"\ "'
python3 -c 'import json, sys; print(*{json.loads(line)["overrides"] for line in open(sys.argv[1])})' "$scratch/records" |
    grep -qF 'generate.prompt="\ "' || complain "an override with quotes"
refused 2 'no suite is called "nedle"; there are position, mass, needle and ruler' --suite needle,nedle
evaluate 1 mass attention.top_k=3
[ "$(grep -c '"task":"gate_first"' "$scratch/records")" = $((3 * layers)) ] || complain "mass: no gate with the first block"
both() { grep "\"task\":\"$1\"" "$scratch/records" | sed 's/.*"mass"://'; }
[ "$(both gate)" != "$(both gate_first)" ] || complain "mass: the gate is the gate with the first block"
evaluate 1 mass attention.top_k=3 attention.force_first=true
[ "$(both gate)" != "$(both gate_first)" ] || complain "mass: the gate takes the first block of the run's options"
evaluate 1 mass attention.selection=random attention.force_first=true
refused 2 'suite mass needs data.sequence_length (128) above 2 blocks of 64' --suite position,mass attention.block_size=64
refused 2 'suite mass is about held-out data, but there is none' --suite mass eval.every=0 data.mock_data=false \
    data.train='[{path: x}]'
refused 2 'suite mass of eval.suites.run needs parallel.context of 1, not 2' --suite mass parallel.context=2
refused 2 'eval.suites.lengths (9000) must be at most model.max_position_embeddings (8192)' \
    --suite needle 'eval.suites.lengths=[64, 9000]'
no_room='without any text around it, but eval.suites.lengths (where it is empty, data.sequence_length) asks for one of'
refused 2 "$no_room 64" --suite ruler 'eval.suites.lengths=[64]'
# That is known before the suites before it run, such as one that fails.
no_loss=(data.mock.task=far_recall data.mock.questions=0 eval.samples=3)
refused 2 'suite mass: no token with loss in the first 3 held-out samples has more than 2 x 16 tokens' --suite mass "${no_loss[@]}"
refused 3 'suite position: no token of the first 3 held-out samples carries loss' --suite position "${no_loss[@]}"
refused 2 "$no_room 128" --suite position,mass,ruler "${no_loss[@]}"
small=(output_dir="$scratch/small" model.vocab_size=96)
ranks 1 "$PERIGEE_BIN/perigee" train "${config[@]}" "${small[@]}" train.steps=5 || complain "training on 96 tokens"
refused 2 'the tokenizer bytes has 257 tokens, more than model.vocab_size, which is 96' --suite needle "${small[@]}"
verdict
