#!/usr/bin/env bash
# Bad input, as a user meets it: the real programs must end with the documented exit code and exactly one message that
# names the place. Run by ctest, which sets PERIGEE_BIN and PERIGEE_SOURCE.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
export TMPDIR=$work/tmp  # as in support/mpi.sh
perigee=$PERIGEE_BIN/perigee
mpirun=$PERIGEE_SOURCE/launch/mpirun.sh
failures=0

# expect CODE PATTERN NAME COMMAND...: exit code, a line of standard error that matches, and one message, not one per rank.
expect() {
    local code=$1 pattern=$2 name=$3
    shift 3
    timeout 300 "$@" >"$work/out" 2>"$work/err"
    local got=$?
    local messages
    messages=$(grep -c '^perigee: ' "$work/err")
    if [ "$got" != "$code" ] || ! grep -qE -- "$pattern" "$work/err" || [ "$messages" != 1 ]; then
        echo "FAILED: $name: exit $got (want $code), $messages messages (want 1), pattern: $pattern"
        sed 's/^/    /' "$work/err"
        failures=$((failures + 1))
    fi
}

cat >"$work/good.yaml" <<'YAML'
output_dir: OUT
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 3, global_batch_size: 4, micro_batch_size: 1}
log: {progress: false}
YAML
sed -i "s|OUT|$work/run|" "$work/good.yaml"
good=$work/good.yaml

printf 'model:\n  hiden_size: 32\n' >"$work/unknown.yaml"
expect 2 'unknown\.yaml:2:3: .*hiden_size.*hidden_size' "unknown key" "$perigee" train "$work/unknown.yaml"
printf 'seed: 1\nseed: 2\n' >"$work/twice.yaml"
expect 2 'twice\.yaml:2:1: .*seed' "duplicate key" "$perigee" train "$work/twice.yaml"
printf 'train:\n  steps: "12"\n' >"$work/type.yaml"
expect 2 'type\.yaml:2:10: ' "ill-typed value" "$perigee" train "$work/type.yaml"
printf 'optimizer:\n  beta1: 1.5\n' >"$work/range.yaml"
expect 2 'range\.yaml:2:10: ' "out of range" "$perigee" train "$work/range.yaml"
expect 2 'missing\.yaml' "no config file" "$perigee" train "$work/missing.yaml"
expect 2 'optimizer\.lr' "bad override" "$perigee" train "$good" optimizer.lr=fast
expect 2 'global_batch_size' "world size that does not fit" "$mpirun" 3 "$perigee" train "$good"
expect 2 'parallel.*2' "data axis that does not fit" "$mpirun" 2 "$perigee" train "$good" parallel.data=4
expect 2 'num_key_value_heads \(1\).*tensor \(2\)' "heads that do not divide" "$mpirun" 2 "$perigee" train "$good" parallel.tensor=2
expect 2 'built without CUDA|host .* has no GPU for its 1 rank' "no GPU" "$perigee" train "$good" device=cuda
expect 2 'proc' "output_dir that cannot be made" "$perigee" train "$good" output_dir=/proc/run

files=(data.mock_data=false data.train.0.path="$work/tokens")
expect 3 'tokens\.idx' "missing token files" "$perigee" train "$good" "${files[@]}"
seq 1 4000 >"$work/text"
"$PERIGEE_BIN/perigee" tokenize "$work/text" --output "$work/tokens" >/dev/null 2>&1 || { echo "tokenize failed"; exit 1; }
cp "$work/tokens.bin" "$work/whole.bin"
truncate -s -1000 "$work/tokens.bin"
expect 3 'tokens' "truncated tokens" "$perigee" train "$good" "${files[@]}"
cp "$work/whole.bin" "$work/tokens.bin"
truncate -s 40 "$work/tokens.idx"
expect 3 'tokens\.idx' "truncated index" "$perigee" train "$good" "${files[@]}"
: >"$work/empty"
"$PERIGEE_BIN/perigee" tokenize "$work/text" --output "$work/tokens" >/dev/null 2>&1
expect 3 'tokens.*vocab' "token id beyond the vocabulary" "$mpirun" 2 "$perigee" train "$good" "${files[@]}" model.vocab_size=50
"$PERIGEE_BIN/perigee" tokenize "$work/empty" --output "$work/nothing" >/dev/null 2>&1
expect 3 'nothing' "empty data set" "$perigee" train "$good" data.mock_data=false data.train.0.path="$work/nothing"
expect 3 'tokens' "no full sample" "$perigee" train "$good" "${files[@]}" data.sequence_length=32768 model.max_position_embeddings=32768

rm -rf "$work/run"
"$perigee" train "$good" >/dev/null 2>&1 || { echo "FAILED: the good config does not train"; exit 1; }
newest=$(ls -d "$work"/run/checkpoints/step_* | tail -1)
printf 'x' | dd of="$newest/manifest.json" bs=1 seek=100 conv=notrunc 2>/dev/null
expect 4 'manifest\.json' "corrupted checkpoint" "$perigee" train "$good" checkpoint.resume="$newest" train.steps=5
mkdir "$work/foreign" && echo '{"format": "else"}' >"$work/foreign/manifest.json"
expect 4 'foreign' "foreign checkpoint" "$perigee" train "$good" checkpoint.resume="$work/foreign"
expect 4 'no checkpoint' "evaluation without a checkpoint" "$perigee" eval "$good" data.validation_fraction=0.1 output_dir="$work/none"
rm -rf "$work/run"
"$perigee" train "$good" >/dev/null 2>&1
expect 2 'model\.hidden_size: 32 -> 64' "checkpoint of another shape" "$mpirun" 2 "$perigee" train "$good" model.hidden_size=64 train.steps=5
expect 2 'never' "resume: never over checkpoints" "$perigee" train "$good" checkpoint.resume=never

exec 9>>"$work/run/.lock"
flock -n 9
expect 2 'in use' "two jobs on one folder" "$mpirun" 2 "$perigee" train "$good" train.steps=6
exec 9>&-

# A full disk: the run ends with the checkpoint code, and what was saved before is still there and still resumes.
if mkdir "$work/small" && mount -t tmpfs -o size=2000k tmpfs "$work/small" 2>/dev/null; then
    trap 'umount "$work/small"; rm -rf "$work"' EXIT
    "$perigee" train "$good" output_dir="$work/small/run" >/dev/null 2>&1 ||
        { echo "FAILED: the first save did not fit"; failures=$((failures + 1)); }
    # Room for the config and the log, not for a checkpoint of 470 kB.
    free=$(df --output=avail -k "$work/small" | tail -1)
    dd if=/dev/zero of="$work/small/filler" bs=1k count=$((free - 200)) 2>/dev/null
    expect 4 "No space left|free" "full disk" "$perigee" train "$good" output_dir="$work/small/run" train.steps=5
    rm "$work/small/filler"
    "$perigee" train "$good" output_dir="$work/small/run" train.steps=4 >/dev/null 2>"$work/err" &&
        grep -q 'resumed at step 3' "$work/err" || { echo "FAILED: no resume after the full disk"; failures=$((failures + 1)); }
else
    echo "note: no tmpfs here; the full disk is covered by the fault tests of the checkpoint layer"
fi

[ "$failures" = 0 ] && echo "all refused as documented"
exit "$((failures > 0))"
