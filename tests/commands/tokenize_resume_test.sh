#!/usr/bin/env bash
# Tokenization that is killed goes on where it was, with the same bytes in the end; and what a pipe sees of its progress.
set -euo pipefail
tokenize() { "$PERIGEE_BIN/perigee" tokenize "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

# Three files, one of them compressed, with empty documents and documents of all lengths.
for file in 1 2 3; do
    awk -v file=$file 'BEGIN {
        for (i = 1; i <= 2500; ++i) {
            text = sprintf("%*s", i * 997 % 5000, "")
            gsub(" ", i % 10, text)
            printf "{\"text\": \"%s %s %s\"}\n", file, i, text
            if (i % 50 == 0) printf "\n{\"text\": \" \"}\n"
        }
    }' >"$file.jsonl"
done
zstd -q --rm 2.jsonl
for i in $(seq 3000); do
    printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "a", "weight": %s}]}\n' "$i" "0.$((i % 4))"
    ((i % 7)) || echo '{"prompt": "bad"}'
done >chats.jsonl
echo 'chat: {template: chatml, malformed: skip}' >chat.yaml

# Kills a run three times, each right before its second save, and lets the last one finish.
killed_three_times() {  # prefix, arguments...
    local prefix=$1 before code
    shift
    for kill in 1 2 3; do
        before=$(cksum "$prefix.resume.json" 2>/dev/null || true)
        code=0
        { PERIGEE_KILL=create:${prefix##*/}.resume.json:2 "$PERIGEE_BIN/perigee_faulty" tokenize "$@" -o "$prefix" \
            --save-every 0 --threads 1 >/dev/null 2>err; } 2>/dev/null || code=$?
        [ "$code" = 137 ] || fail "run $kill of $prefix was not killed: exit $code: $(cat err)"
        [ "$(cksum "$prefix.resume.json" 2>/dev/null || true)" != "$before" ] || fail "run $kill of $prefix saved nothing"
        [ ! -e "$prefix.idx" ] || fail "$prefix.idx is there before the end"
        [ $kill = 1 ] || grep -q 'going on after [0-9]* documents' err || fail "run $kill of $prefix began anew: $(cat err)"
    done
    echo half >"$(dirname "$prefix")/01234567.${prefix##*/}.resume.json.tmp"  # as of a kill in the middle of a save
    tokenize "$@" -o "$prefix" 2>err >"${prefix##*/}.said"
    grep -q 'going on after [0-9]* documents' err || fail "the last run of $prefix began anew: $(cat err)"
}

tokenize ?.jsonl 2.jsonl.zst -o whole >whole.said
killed_three_times parts ?.jsonl 2.jsonl.zst
cmp whole.bin parts.bin && cmp whole.idx parts.idx || fail "another result after three kills"
[ "$(sed 's/^whole//; s/; [0-9.]* M tokens.*//' whole.said)" = "$(sed 's/^parts//; s/; [0-9.]* M tokens.*//' parts.said)" ] ||
    fail "another summary: $(cat whole.said parts.said)"

tokenize chats.jsonl --chat chat.yaml -o chat >chat.said
killed_three_times again chats.jsonl --chat chat.yaml
cmp chat.bin again.bin && cmp chat.idx again.idx && cmp chat.weights again.weights || fail "chats: another result after three kills"
diff <(sed 's/^chat\.//' chat.said) <(sed 's/^again\.//' again.said) || fail "chats: another summary"
if python3 -c 'import jinja2' 2>/dev/null; then  # conversations of several documents
    echo "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ '!' if loop.last else '.' }}{% endif %}{% endfor %}" >rewrites.jinja
    echo 'chat: {jinja: {file: rewrites.jinja}}' >rewrites.yaml
    for i in $(seq 2000); do
        printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "a"}' "$i"
        ((i % 3)) || printf ', {"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}'
        printf ']}\n'
    done >turns.jsonl
    tokenize turns.jsonl --chat rewrites.yaml -o turns >turns.said
    killed_three_times turned turns.jsonl --chat rewrites.yaml
    cmp turns.bin turned.bin && cmp turns.chat.json turned.chat.json || fail "turns: another result after three kills"
    diff <(sed 's/^turns\.//' turns.said) <(sed 's/^turned\.//' turned.said) || fail "turns: another summary"
    grep -q '2,000 conversations in 2,666 documents' turns.said || fail "turns: $(cat turns.said)"
fi
[ -z "$(ls -- *.tmp *.resume.json *.lock 2>/dev/null)" ] || fail "left over: $(ls)"

# The same where the output lies in the folder that is read.
mkdir inside && cp ?.jsonl inside
tokenize inside -o whole_inside >/dev/null
killed_three_times inside/set inside
cmp whole_inside.bin inside/set.bin && cmp whole_inside.idx inside/set.idx || fail "inside its input: another result after three kills"

# Killed when one of its files has its name already: nothing is left to go on with, so it begins anew.
cp 1.jsonl late.jsonl
tokenize late.jsonl -o late >/dev/null 2>&1
mv late.bin late.bin.tmp && rm late.idx
tokenize late.jsonl -o late >/dev/null 2>err || fail "after a kill between two names: $(cat err)"
[ -e late.idx ] || fail "no index after a kill between two names"

# A state of other inputs or options is not gone on with.
echo '{"inputs": "another", "place": [], "writer": [1, 1, 0, true]}' >other.resume.json
tokenize 1.jsonl -o other 2>err >/dev/null
grep -q 'of other inputs or options: beginning anew' err || fail "another state: $(cat err)"
tokenize 1.jsonl -o one 2>/dev/null >/dev/null
cmp one.bin other.bin || fail "a state of other inputs was used"

# A pipe sees lines; --save-every also says how often.
tokenize ?.jsonl -o lines --save-every 0 2>&1 >/dev/null | cat >err
grep -qE '^perigee: [0-9.]+(B|KiB|MiB) of [0-9.]+MiB \([0-9]+%\), [0-9.]+ M tokens/s, [0-9:]+ left$' err || fail "progress: $(head -3 err)"
echo "tokenize: goes on as if never killed"
