#!/usr/bin/env bash
# `perigee study` as a person uses it: a grid with seeds, tables that hold what the runs logged, nothing run twice, the same
# tables after the study or its runs were stopped and killed on the way, failing runs named while the others go on.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
export OMP_NUM_THREADS=1

grid() {  # grid FOLDER [sed expression]: a study of two cases, two seeds and what goes before, at $scratch/FOLDER.yaml
    cat <<YAML | sed -E "${2:-}" >"$scratch/$1.yaml"
output_dir: $scratch/$1
run:
  model: {vocab_size: 80, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2}
  attention: {kind: moba, block_size: 16, top_k: 2}
  data: {mock_data: true, mock: {task: far_recall, loss: answers}, sequence_length: 128}
  train: {steps: 12, global_batch_size: 2}
  checkpoint: {every: 4}
  eval: {every: 6, samples: 4, reach: true}
  threads: 1
  log: {progress: false}
before: {train.steps: 6, data.mock.loss: all, eval.every: 0}
grid:
  attention.full_layers.last: [0, 1]
seeds: [3, 4]
metrics: [loss, eval_accuracy, eval_reach_0, eval_gate_recall_1]
figure: eval_loss
YAML
}
study() { "$PERIGEE_BIN/perigee" study "$scratch/$1.yaml" --jobs 2 "${@:2}" >"$scratch/printed" 2>"$scratch/log"; }
check() {
    local what=$1
    shift
    "$@" || complain "$what"
}
says() { grep -qE -- "$1" "$scratch/log"; }
prints() { grep -qE -- "$1" "$scratch/printed"; }
exits() {  # exits CODE COMMAND...
    local code=0
    "${@:2}" || code=$?
    [ "$code" = "$1" ]
}
run() { echo "$scratch/$1/runs/$2"; }
eventually() { for ((i = 0; i < 3000; ++i)); do "$@" && return; sleep 0.02; done; return 1; }
no_process() { ! pgrep -f "$1" >/dev/null; }

grid whole
check "a study runs" study whole
csv=$scratch/whole/table.csv
check "a line for every run of the grid" [ "$(wc -l <"$csv")" = 5 ]
check "its head names keys and metrics" [ "$(head -1 "$csv")" = \
    attention.full_layers.last,seed,loss,eval_accuracy,eval_reach_0,eval_gate_recall_1 ]
last_loss() { grep -oE '"loss":[^,]*' "$1/metrics.jsonl" | tail -1 | cut -d: -f2; }
for last in 0 1; do
    for seed in 3 4; do
        logged=$(last_loss "$(run whole "last=$last,seed=$seed")")
        check "loss of $last, $seed is the logged one" grep -q "^$last,$seed,$logged," "$csv"
    done
done
check "a full layer has no gate" grep -qE '^1,3,[^,]+,[^,]+,[^,]+,$' "$csv"
check "a MoBA layer has one" grep -qE '^0,3,[^,]+,[^,]+,[^,]+,[0-9.e-]+$' "$csv"
check "two cases with two seeds each" [ "$(grep -cE '^\| [01] \| 2 \|' "$scratch/whole/table.md")" = 2 ]
check "the table is printed" prints '^\| last \| seeds \| loss \|'
check "a page of all runs" [ "$(grep -o '"name":"last=[01],seed=[34]"' "$scratch/whole/report.html" | sort -u | wc -l)" = 4 ]
check "whose place is said last" [ "$(tail -1 "$scratch/printed")" = "$scratch/whole/report.html" ]
check "a curve per case" [ "$(grep -c 'full_layers\|last [01] eval_loss\|last [01] ' "$scratch/whole/figure.svg")" -ge 2 ]
check "runs go on from the one before" grep -q "resumed at step 6" "$(run whole last=1,seed=4.out)"

# The run by hand gives the same numbers.
"$PERIGEE_BIN/perigee" train "$(run whole last=1,seed=4.yaml)" output_dir="$scratch/by_hand" >"$scratch/log" 2>&1
check "a run's file is the run" [ "$(last_loss "$scratch/by_hand")" = "$(last_loss "$(run whole last=1,seed=4)")" ]

sed -i '/^log:/,/^[a-z]*:/{/every:/d}' "$(run whole last=0,seed=3.yaml)"  # as before there was such a key
find "$scratch/whole/runs" -name metrics.jsonl -exec stat -c '%n %y' {} + >"$scratch/before"
check "again" study whole
find "$scratch/whole/runs" -name metrics.jsonl -exec stat -c '%n %y' {} + >"$scratch/after"
check "nothing runs twice" cmp -s "$scratch/before" "$scratch/after"
check "which it says" [ "$(grep -c 'has finished before' "$scratch/printed")" = 6 ]

check "more jobs than runs" "$PERIGEE_BIN/perigee" study "$scratch/whole.yaml" --jobs 1000000000000000 >"$scratch/printed" 2>"$scratch/log"

# Told to stop, and killed, while a run is inside its ninth step: the run saves, and goes on from there.
for signal in TERM KILL; do
    grid "$signal"
    export PERIGEE_KILL=write:last=0,seed=4/metrics.jsonl:4 PERIGEE_KILL_BY=wait
    "$PERIGEE_BIN/perigee" study "$scratch/$signal.yaml" --jobs 2 --perigee "$PERIGEE_BIN/perigee_faulty" \
        >"$scratch/printed" 2>"$scratch/log" &
    background=$!
    check "$signal: the run waits" eventually grep -qs "waiting for a signal" "$(run "$signal" last=0,seed=4.out)"
    unset PERIGEE_KILL PERIGEE_KILL_BY
    kill "-$signal" "$background"
    code=0
    { wait "$background"; } 2>/dev/null || code=$?
    [ "$signal" = KILL ] || check "$signal: the study says it was stopped" [ "$code" = 75 ]
    check "$signal: no run is left behind" eventually no_process "$scratch/$signal/runs"
    check "$signal: the run has not finished" [ ! -e "$(run "$signal" last=0,seed=4.finished)" ]
    check "$signal: again" study "$signal"
    check "$signal: the run goes on where it was" grep -qE "resumed at step (9|10)" "$(run "$signal" last=0,seed=4.out)"
    check "$signal: the table is that of the unbroken study" diff "$csv" "$scratch/$signal/table.csv"
done

# A run that dies: named with how and its last words, the others finish; the next time it is tried again.
grid failing
code=0
PERIGEE_KILL=write:last=1,seed=3/metrics.jsonl:4 study failing --perigee "$PERIGEE_BIN/perigee_faulty" || code=$?
check "a failing run fails the study" [ "$code" = 1 ]
check "and is named" says '^perigee: last=1,seed=3 failed: signal 9'
check "the others finish" [ "$(grep -c . "$scratch/failing/table.csv")" = 4 ]
check "then it is done" study failing
check "and nothing is lost" diff "$csv" "$scratch/failing/table.csv"

# One that others go on from dies: they are not started.
grid early
code=0
PERIGEE_KILL=write:before,seed=4/metrics.jsonl:1 PERIGEE_KILL_BY=throw \
    study early --perigee "$PERIGEE_BIN/perigee_faulty" || code=$?
check "a failing run before" [ "$code" = 1 ]
check "is named with its last words" says 'before,seed=4 failed: exit 1: .*thrown by the test'
check "its followers are named" says 'last=0,seed=4 failed: not started: before,seed=4 failed'
check "the other seed finishes" [ "$(grep -c '^[01],3,' "$scratch/early/table.csv")" = 2 ]

# A part of a study, and what it goes on from; the rest makes it whole.
grid part
check "a part" study part --only seed=3 --only last=1,seed=3
check "is what was asked for" [ "$(cd "$scratch/part/runs" && echo *.finished)" = \
    "before,seed=3.finished last=0,seed=3.finished last=1,seed=3.finished" ]
check "of which it counts" prints '^last=1,seed=3 finished after .* \(3 of 3\)|^last=0,seed=3 finished after .* \(3 of 3\)'
check "its table has no others" [ "$(grep -c . "$scratch/part/table.csv")" = 3 ]
check "a part that there is not" exits 2 study part --only seed=3 --only seed=5
check "is named, with what there is" says '^perigee: .*--only seed=5: no run has exactly that in its name.* last=0,seed=4'
check "a part of a value" exits 2 study part --only eed=3
check "or of its end" exits 2 study part --only before,seed
check "the rest" study part
check "makes the table whole" diff "$csv" "$scratch/part/table.csv"

# Named arms, what evaluates them, and a budget that ends in the middle.
arms() {  # arms FOLDER: two arms of one seed, evaluated as they are and under another selection
    grid "$1" '/^grid:/,/^  attention/d; s/^seeds:.*/seeds: [3]/; /^before:/d'
    cat >>"$scratch/$1.yaml" <<YAML
arms:
  gate: {}
  switched: {attention.full_layers.last: 1, attention.schedule: [{step: 8, kind: full}]}
evaluations:
  own: {eval.suites.run: position, eval.suites.far_distance: 16}
  nearest: {eval.suites.run: position, eval.suites.far_distance: 16, attention.kind: moba, attention.selection: nearest}
YAML
}
arms named
check "arms" study named
check "name their rows" [ "$(cut -d, -f1,2 "$scratch/named/table.csv" | paste -sd' ')" = "arm,seed gate,3 switched,3" ]
check "nothing is amiss" [ ! -s "$scratch/log" ]
check "and are applied" grep -q "kind: full" "$(run named arm=switched,seed=3.yaml)"
check "evaluations leave records" [ "$(grep -o '"attention":"[a-z]*"' "$(run named arm=gate,seed=3)/suites.jsonl" | sort -u |
    paste -sd' ')" = '"attention":"full" "attention":"moba" "attention":"nearest"' ]
lines=$(wc -l <"$(run named arm=gate,seed=3)/suites.jsonl")
check "again" study named
check "and are not repeated" [ "$lines" = "$(wc -l <"$(run named arm=gate,seed=3)/suites.jsonl")" ]
sed 's/^metrics: .*/metrics: [loss, eval_acuracy]/; s/^figure: .*/figure: nothing_like_it/' "$scratch/named.yaml" >"$scratch/misspelt.yaml"
check "metrics that no run logged" study misspelt
check "are named, with what they may be" says '^perigee: no run that has finished logged eval_acuracy; did you mean eval_accuracy\?$'
check "or with all there are" says '^perigee: no run that has finished logged nothing_like_it; known are .*eval_loss, .*loss'
check "those that some logged are not" [ "$(grep -c 'no run that has' "$scratch/log")" = 2 ]
cp "$scratch/named.yaml" "$scratch/kept.yaml"
sed -i '/^  own:/s/distance: 16/distance: 24/' "$scratch/named.yaml"
check "a changed evaluation" exits 2 study named
check "is refused" says 'arm=gate,seed=3,eval=own.overrides is of a run with other options'
sed -i '/^  own:/s/eval.suites.far.*24/attention.kind: full/' "$scratch/named.yaml"
check "one with other keys" exits 2 study named
check "is refused too" says 'remove what belongs to arm=gate,seed=3,eval=own'
cp "$scratch/kept.yaml" "$scratch/named.yaml"
sed -i -E '/^  own:/s/(eval.suites.run: position), (.*)\}/\2, \1}/' "$scratch/named.yaml"
rm "$(run named arm=switched,seed=3,eval=own.overrides)"  # as before there was such a file
check "another order, and no record of the options, are no change" study named
check "no line was added" [ "$lines" = "$(wc -l <"$(run named arm=gate,seed=3)/suites.jsonl")" ]
rm "$(run named arm=gate,seed=3,eval=own.finished)"
printf '{"suite":"posi' >>"$(run named arm=gate,seed=3)/suites.jsonl"
check "after an evaluation that was killed within a line" study named
check "its half line is cut off" [ -z "$(grep -v '^{.*}$' "$(run named arm=gate,seed=3)/suites.jsonl")" ]
results() { sed 's/"eval":[0-9]*,//' "$(run named arm=gate,seed=3)/suites.jsonl"; }
check "and no other" [ "$(results | head -n "$lines" | sort -u)" = "$(results | sort -u)" ]
arms order
"$PERIGEE_BIN/perigee" study "$scratch/order.yaml" --jobs 1 >"$scratch/printed" 2>"$scratch/log" || complain "one at a time"
check "a run's evaluations come before the next run" [ "$(sed -n 's/,seed=3\(.*\) started$/\1/p' "$scratch/printed" | paste -sd' ')" = \
    "arm=gate arm=gate,eval=own arm=gate,eval=nearest arm=switched arm=switched,eval=own arm=switched,eval=nearest" ]
arms budget
export PERIGEE_KILL=write:arm=gate,seed=3/metrics.jsonl:4 PERIGEE_KILL_BY=wait
check "a budget ends with 75" exits 75 study budget --budget-minutes 0.25 --perigee "$PERIGEE_BIN/perigee_faulty"
unset PERIGEE_KILL PERIGEE_KILL_BY
check "the run has saved" prints '^stopping: [12] runs save their state'
check "what evaluates it was not started" [ ! -e "$(run budget arm=gate,seed=3,eval=own.out)" ]
check "the next part" study budget
check "goes on" grep -q "resumed at step" "$(run budget arm=gate,seed=3.out)"
check "and finds what an unbroken study finds" diff "$scratch/named/table.csv" "$scratch/budget/table.csv"

# Stages before the arms: each goes on from the one before it, and is evaluated as the arms are.
arms stages
sed -i 's/^arms:/before:\n  - {train.steps: 4, data.sequence_length: 64}\n  - {train.steps: 8}\narms:/; /^  nearest:/d' "$scratch/stages.yaml"
check "stages" study stages
check "the second goes on from the first" grep -q "resumed at step 4 from .*/before=1,seed=3/" "$(run stages before=2,seed=3.out)"
check "an arm goes on from the second" grep -q "resumed at step 8 from .*/before=2,seed=3/" "$(run stages arm=gate,seed=3.out)"
for name in before=1 before=2 arm=gate; do
    check "$name is evaluated" grep -q '"suite":"position"' "$(run stages $name,seed=3)/suites.jsonl"
done
check "the table has arms alone" [ "$(cut -d, -f1,2 "$scratch/stages/table.csv" | paste -sd' ')" = "arm,seed gate,3 switched,3" ]
grid neither '/^grid:/,/^  attention/d'
check "neither arms nor a grid" exits 2 study neither
check "is said" says 'there are no arms and no grid'

sed 's/^  gate: {}/  before 2: {}/' "$scratch/named.yaml" >"$scratch/early.yaml"
check "an arm with the name of a stage" exits 2 study early
check "is refused" says 'early.yaml:[0-9]*:[0-9]*: "before 2" names what is trained before all arms'

# What is wrong with the file is said before anything runs.
grid wrong 's/steps: 12/stepps: 12/; s/^seeds:.*/seeds: [3, 3]/; s/^figure/figures/'
check "a wrong file" exits 2 study wrong
check "unknown keys of a run" says 'wrong.yaml:6:.*"stepps" in train; did you mean "steps"'
check "a seed twice" says 'wrong.yaml:14:.*3 stands there twice'
check "unknown sections" says 'unknown key "figures"'
check "missing ones" says 'figure is missing'
grid impossible 's/last: \[0, 1\]/last: [0, 9]/'
check "an impossible case" exits 2 study impossible
check "names it" says 'last=9,seed=3: attention.full_layers.last = 9 exceeds'
check "nothing was started" [ ! -e "$scratch/impossible" ]
grid stuck 's/steps: 12/steps: 6/'
check "no step after those before" exits 2 study stuck
check "is refused" says 'last=0,seed=3: train.steps .6. must be above the 6 of before,seed=3, which it goes on from'
grid epochs 's/^before: \{train.steps: 6/before: {train.epochs: 1/'
check "epochs before others" exits 2 study epochs
check "are refused" says 'before,seed=3: train.epochs cannot be set where others go on from the last step'
arms hidden
sed -i 's/^before:.*//; s/vocab_size: 80/vocab_size: 80, init_from: nowhere/' "$scratch/hidden.yaml"
check "a wrong run" exits 2 study hidden
check "is named, and not its evaluations" [ "$(grep -c . "$scratch/log")/$(grep -c 'no folder nowhere' "$scratch/log")" = 2/2 ]
grid own 's/^  threads: 1/&\n  seed: 9/; s/^before: \{/&output_dir: elsewhere, /; s/^  attention.full_layers.*/&\n  seed: [1, 2]/'
echo 'arms: {seed: {seed: 7}}
evaluations: {own: {output_dir: elsewhere}}' >>"$scratch/own.yaml"
check "what the study sets itself" exits 2 study own
for place in '10:.*seed in run' '15:.*seed in grid' '[0-9]+:.*seed in arms'; do
    check "is refused: $place" says "own.yaml:$place: seed belongs in .seeds"
done
for place in '12:.*output_dir in before' '[0-9]+:.*output_dir in evaluations'; do
    check "is refused: $place" says "own.yaml:$place: output_dir belongs to the study"
done
check "nothing was started with it" [ ! -e "$scratch/own" ]
arms alike
printf "  'a b': {}\n  a_b: {}\n" >>"$scratch/alike.yaml"
check "evaluations of one name" exits 2 study alike
check "are refused" says 'two runs would be called arm=gate,seed=3,eval=a_b'
arms twice
sed -i 's/^  switched:.*/&\n  gate: {}/; s/^  nearest:.*/&\n  own: {}/; s/^arms:/grid: {train.steps: [12], train.steps: [13]}\narms:/' "$scratch/twice.yaml"
check "keys that stand there twice" exits 2 study twice
for key in gate own train.steps; do
    check "are refused: $key" says "twice.yaml:[0-9]+:.*duplicate key \"$key\""
done
grid absent 's/mock_data: true.*answers\}/train: [{path: absent}], validation: [{path: gone}], tokenizer: nowhere/; /^before/d; s/, reach: true//; s/^metrics.*/metrics: [loss]/'
echo 'evaluations: {own: {data.tokenizer: elsewhere}}' >>"$scratch/absent.yaml"
check "files that are not there" exits 2 study absent
for file in absent.bin absent.idx gone.bin gone.idx nowhere; do
    check "$file is named" says "$file is not there: last=0,seed=3 reads it"
done
check "an evaluation's as well" says 'elsewhere is not there: last=0,seed=3,eval=own reads it'
check "nothing was started without them, and other options may follow" [ ! -e "$scratch/absent" ]
grid held 's/^before.*//; s/, reach: true//; s/^metrics.*/metrics: [loss]/'
mkdir -p "$scratch/held/runs"
exec 9>"$scratch/held/runs/last=1,seed=4.lock"
flock 9
check "a run that another study has started" exits 1 study held
check "is named" grep -qE 'last=1,seed=4 failed: not started: another study is running it' "$scratch/log" "$scratch/printed"
check "its output is left alone" [ ! -e "$scratch/held/runs/last=1,seed=4.out" ]
exec 9>&-
check "and run once that one has ended" study held
check "no lock is left" [ -z "$(ls "$scratch/held/runs" | grep lock)" ]
sed -i 's/steps: 12/steps: 14/' "$scratch/whole.yaml"
check "other options in the same folder" exits 2 study whole
check "are refused" says 'last=0,seed=3.yaml is of a run with other options'

verdict
