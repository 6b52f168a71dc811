#!/usr/bin/env bash
# The tokenizer as a user runs it: what it writes, what it says, and how it fails.
set -euo pipefail
tokenize() { "$PERIGEE_BIN/perigee" tokenize "$@"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() { echo "FAILED: $*" >&2; exit 1; }
bytes() { od -An -v -tu1 -w1 "$1" | tr -s ' \n' ' '; }
expect_failure() {  # exit code, pattern of the message, command...
    local code=$1 pattern=$2 status=0
    shift 2
    "$@" >out 2>err || status=$?
    [ "$status" -eq "$code" ] || fail "exit code $status instead of $code: $*: $(cat err)"
    grep -q "$pattern" err || fail "no '$pattern' in: $(cat err)"
}

mkdir -p docs/sub
printf 'ab' >docs/a.txt
printf '  \n' >docs/empty.txt
printf 'c\n' | gzip >docs/sub/c.txt.gz
printf '<p>skipped' >docs/sub/page.html

summary=$(tokenize docs --suffix .txt --output made/set)
expected='made/set.bin, .idx: 2 documents, 6 tokens (u16, bytes tokenizer) from 3 files, 0.00 MB of text; '
expected+='1 empty documents skipped; '
[[ $summary == "$expected"*' M tokens/s on '*' threads' ]] || fail "summary: $summary"
[ "$(bytes made/set.bin)" = " 97 0 98 0 0 1 99 0 10 0 0 1 " ] || fail "tokens: $(bytes made/set.bin)"
[ "$(head -c 7 made/set.idx)" = MMIDIDX ] || fail "no index"
[ "$(ls made | tr '\n' ' ')" = "set.bin set.idx set.tokenizer.json " ] || fail "left over: $(ls made)"

# Files that hold no text are refused by name; those of folders are skipped, listed and counted.
mkdir strange
printf 'abc' >strange/text.txt
printf '{"text": "x"}\n' >strange/plain.jsonl
printf '\xfd7zXZ\0\0' >strange/set.jsonl.xz
printf 'PAR1\x15\x04\x15' >strange/table.data
printf '\x89PNG\r\n\x1a\n\0\0' >strange/image.png
for ((i = 0; i < 4000; ++i)); do printf "\\x$(printf %02x $((i * i * 7919 / 13 % 256)))"; done >strange/random.bin
gzip -kc strange/random.bin >strange/random.gz
for name in set.jsonl.xz:xz table.data:Parquet image.png:PNG random.bin:'no UTF-8 text' random.gz:'no UTF-8 text'; do
    expect_failure 3 "strange/${name%%:*}: expected UTF-8 text.*${name#*:}" tokenize "strange/${name%%:*}" -o refused
    [ ! -e refused.idx ] || fail "${name%%:*} became tokens"
done
ln -s nowhere strange/link.txt
tokenize strange -o mixed >out 2>err || fail "a folder with binary files: $(cat err)"
grep -q ': 2 documents' out && grep -q '6 files are skipped' err &&
    grep -q '^  strange/random.gz: no UTF-8 text' err && grep -q '^  strange/link.txt: a link to nothing$' err ||
    fail "skipped files: $(cat out err)"

printf '{"text": "x"}\n{"text": "yz"}\n' >two.jsonl
tokenize two.jsonl -o two >/dev/null
[ "$(bytes two.bin)" = " 120 0 0 1 121 0 122 0 0 1 " ] || fail "jsonl: $(bytes two.bin)"
zstd -q two.jsonl -o two.jsonl.zst
tokenize two.jsonl.zst -o zstd >/dev/null
cmp two.bin zstd.bin && cmp two.idx zstd.idx || fail "zstd is not the same"
head -c 20 two.jsonl.zst >cut.jsonl.zst
expect_failure 3 'cut.jsonl.zst: the compressed file is truncated' tokenize cut.jsonl.zst -o cut
printf 'one\n\n\ntwo\n' >blank.txt
tokenize blank.txt --split-on-blank-lines 2 -o blank | grep -q ': 2 documents' || fail "blank lines do not split"

# Documents keep their order, however many threads work on them: 5 MB in documents of all lengths.
for i in {1..400}; do
    printf '{"text": "%s %s"}\n' "$i" "$(head -c $((i * 997 % 25000)) /dev/zero | tr '\0' "${i: -1}")"
done >many.jsonl
for threads in 1 3; do tokenize many.jsonl --threads $threads -o "many$threads" >/dev/null; done
cmp many1.bin many3.bin && cmp many1.idx many3.idx || fail "threads change the result"
[ "$(tr -d '\0' <many3.bin | tr '\1' '\n' | cut -d ' ' -f 1 | tr -d '\n')" = "$(seq 400 | tr -d '\n')" ] ||
    fail "documents out of order"

# Several data sets by patterns, with their weights, in one command.
tokenize --mix web=0.7:'docs/*.txt' --mix web='docs/sub/*.gz' --mix books=3:two.jsonl -o mix >said 2>err || fail "mix: $(cat err)"
tail -n 1 said | grep -qF "'data.train=[{path: mix_web, weight: 0.7}, {path: mix_books, weight: 3}]'" || fail "mix: $(cat said)"
cmp mix_books.bin two.bin && cmp mix_web.bin made/set.bin || fail "a data set of a mix is not what it is alone"

# No file of a data set takes the place of an input.
printf 'ab' >same.bin
printf 'cd' >mix_b.weights
expect_failure 2 '^perigee: .*--output same (same.bin): writing it would replace same.bin' tokenize same.bin -o same
expect_failure 2 'would replace mix_b.weights' tokenize --mix a=1:docs/a.txt --mix b=1:mix_b.weights -o mix
[ "$(cat same.bin mix_b.weights)" = abcd ] && [ ! -e mix_a.bin ] || fail "an input is gone: $(ls)"

# Parquet, through pyarrow where it is installed, and said where it is not.
printf 'PAR1' >empty.parquet
if python3 -c 'import pyarrow' 2>/dev/null; then
    expect_failure 3 'empty.parquet: ' tokenize empty.parquet -o x
else
    expect_failure 2 'empty.parquet: the helper that reads Parquet needs the library pyarrow of python3' tokenize empty.parquet -o x
fi
PERIGEE_PYTHON=/nowhere expect_failure 2 'needs Python, but /nowhere does not start' tokenize empty.parquet -o x

# A pattern that takes too long is told with its document. The tokenizer knows one character; the rest is dropped.
mkdir slow
cat >slow/tokenizer.json <<'EOF'
{"version": "1.0", "added_tokens": [{"id": 1, "content": "<e>", "special": true}], "normalizer": null, "post_processor": null,
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{N}(?=\\p{N}*\\p{Lu})|\\p{N}"},
 "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
 "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"7": 0}, "merges": []}}
EOF
echo '{"eos_token": "<e>"}' >slow/tokenizer_config.json
printf '{"text": "77"}\n{"text": "%s"}\n' "$(head -c 300000 /dev/zero | tr '\0' 7)" >digits.jsonl
expect_failure 3 'digits.jsonl: document 2: .*the pattern .*takes too long' tokenize digits.jsonl --tokenizer slow -o digits

# Conversations: template, weights beside the tokens, what was left out and why.
cat >chat.yaml <<'EOF'
data: {tokenizer: bytes, sequence_length: 23}
chat:
  template: custom
  roles: [{role: user, prefix: "Q ", suffix: "\n"}, {role: assistant, prefix: "A ", suffix: "!\n"}]
  stop: "!"
EOF
cat >chat.jsonl <<'EOF'
{"prompt": "one", "completion": "1"}
{"messages": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "2", "weight": 1}]}
{"prompt": "more than twenty-four tokens", "completion": "3"}
{"messages": [{"role": "user", "content": "nobody answers"}]}
EOF
tokenize chat.jsonl --chat chat.yaml -o chat >said
printf '%s\n' 'chat.bin, .idx: 2 conversations, 22 tokens (u16, bytes tokenizer, template custom), of which 18.18% carry loss' \
    '  1 longer than chat.max_tokens, dropped' \
    '  1 without a token that carries loss, dropped (some have no message of role assistant; roles found: user)' |
    diff - said ||
    fail "chat summary"
[ "$(tr -d '\0' <chat.bin | tr '\n' ' ')" = "Q one A 1! Q two A 2! " ] || fail "chat: $(tr -d '\0' <chat.bin)"
[ "$(tail -c 3 chat.mask | od -An -v -tu1 | tr -s ' ')" = " 0 3 24" ] || fail "mask: $(od -An -v -tu1 chat.mask)"
sed -i 's/"weight": 1/"weight": 0.5/' chat.jsonl
echo '{"prompt": "four"}' >>chat.jsonl
expect_failure 3 'chat.jsonl:5: "prompt" without "completion"' tokenize chat.jsonl --chat chat.yaml -o chat
grep -q '"template": "{% for message in messages %}' chat.chat.json || fail "the template is not beside: $(cat chat.chat.json)"
[ -e chat.mask ] || fail "a failed run removed the old weights"
tokenize chat.jsonl --chat chat.yaml --set chat.malformed=skip -o chat | grep -q '1 malformed, skipped' ||
    fail "the malformed line is not counted"
[ -e chat.weights ] && [ ! -e chat.mask ] || fail "weights beside 0 and 1 take another file: $(ls chat.*)"
echo '{"prompt": "four"}' >bad.jsonl
expect_failure 3 'none: no conversation is left to write: 1 malformed, skipped; the first malformed one is bad.jsonl:1: "prompt"' \
    tokenize bad.jsonl --chat chat.yaml --set chat.malformed=skip -o none
expect_failure 2 'need --set: --set chat.malformed=skip' tokenize chat.jsonl --chat chat.yaml -o none chat.malformed=skip
expect_failure 3 'no=key: no such file or folder$' tokenize chat.jsonl --chat chat.yaml -o none no=key
expect_failure 2 'chat.roles: none is "assistant"' tokenize chat.jsonl --chat chat.yaml --set 'chat.roles=[]' -o x

sed -n 4p chat.jsonl >silent.jsonl
expect_failure 3 'to write: 1 without .*dropped (some have no message of role assistant; roles found: user)' \
    tokenize silent.jsonl --chat chat.yaml -o none
expect_failure 2 'chat.jinja.date: "2026-02-30" is no day' tokenize chat.jsonl --chat chat.yaml --set chat.jinja.date=2026-02-30 -o x

# With --chat, --tokenizer is that of the data, and options of text mode are refused.
head -n 1 chat.jsonl >one.jsonl
echo 'data: {tokenizer: bytes, sequence_length: 23}' >auto.yaml
tokenize one.jsonl --chat auto.yaml -o plain >said 2>err
grep -q '(u16, bytes tokenizer, template none)' said && [ ! -e plain.chat.json ] || fail "no template: $(cat said)"
grep -q 'warning: chat.template: auto found no chat template beside the tokenizer bytes, so none is used: .*Set chat.template to chatml' err || fail "no warning: $(cat err)"
for template in none chatml; do
    tokenize one.jsonl --chat auto.yaml --set chat.template=$template --set chat.max_tokens=99 -o plain >said 2>err
    grep -q "template $template)" said && ! grep -q warning err || fail "a template that was asked for: $(cat said err)"
done
echo '{"prompt": "7", "completion": "77"}' >seven.jsonl
tokenize seven.jsonl --chat chat.yaml --tokenizer slow -o other >said
grep -q '(u16, slow/tokenizer.json tokenizer, template custom)' said || fail "--tokenizer with --chat: $(cat said)"
tokenize seven.jsonl --chat chat.yaml --set data.tokenizer=slow -o by_key >/dev/null
cmp other.bin by_key.bin && cmp other.tokenizer.json by_key.tokenizer.json || fail "--tokenizer is not data.tokenizer"
if python3 -c 'import jinja2' 2>/dev/null; then
    cp -r slow talks
    echo "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}<e>{% endif %}{% endfor %}" >talks/chat_template.jinja
    tokenize seven.jsonl --chat auto.yaml --tokenizer talks -o talk >said 2>err
    grep -q 'talks/tokenizer.json tokenizer, template talks/chat_template.jinja)' said && [ ! -s err ] || fail "Jinja: $(cat said err)"
fi
# Answers that later turns write otherwise have documents of their own, and a conversation is held out as a whole.
if python3 -c 'import jinja2' 2>/dev/null; then
    echo "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% if m.role == 'assistant' %}{{ '!' if loop.last else '.' }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}" >rewrites.jinja
    for i in 1 2 3 4 5 6; do
        turns=$(for turn in 1 2 3 4; do printf ', {"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}' $i $turn; done)
        echo "{\"messages\": [${turns#, }]}"
    done >turns.jsonl
    tokenize turns.jsonl --chat auto.yaml --set chat.jinja.file=rewrites.jinja --set data.sequence_length=200 -o turns >said
    grep -q '^turns.bin, .idx: 6 conversations in 24 documents, 1,[0-9]* tokens' said || fail "documents: $(cat said)"
    grep -q '"continued": "011101110111011101110111"' turns.chat.json || fail "the record: $(cat turns.chat.json)"
    "$PERIGEE_BIN/perigee" train "$PERIGEE_SOURCE/configs/sft.yaml" data.train.0.path=turns data.validation_fraction=0.3 train.steps=1 schedule.warmup_steps=0 train.global_batch_size=1 \
        data.sequence_length=256 eval.samples=1 model.hidden_size=64 device=cpu log.progress=false output_dir=turned >out 2>err || fail "turns: $(cat err)"
    grep -q 'turns: 16 training documents' err || fail "a conversation is on both sides: $(cat err)"
fi
# The recipe leaves the tokenizer to the model that a run begins with.
cp -r slow model
cat >model/config.json <<'EOF'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
 "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-6}
EOF
for override in model.init_from=model model.hidden_size=64; do
    tokenize seven.jsonl --chat "$PERIGEE_SOURCE/configs/sft.yaml" --set chat.template=none --set $override -o recipe
done >said
[ "$(grep -o '(u16, .* tokenizer' said | tr '\n' ';')" = '(u16, model/tokenizer.json tokenizer;(u16, bytes tokenizer;' ] || fail "the recipe's tokenizer: $(cat said)"

for option in '--key text' '--format jsonl' --append-eod --no-append-eod --prepend-bos --special '--split-on-blank-lines 1'; do
    name=${option% *} name=${name#--}
    # shellcheck disable=SC2086  # an option and its value
    expect_failure 2 "${name#no-} excludes --chat" tokenize one.jsonl --chat chat.yaml $option -o x
done

# Data of one tokenizer are refused under another: by what it is, not by where it lies.
cp -r slow moved
cat >run.yaml <<'EOF'
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 1, vocab_size: 320}
data: {train: [{path: two}], sequence_length: 4}
train: {steps: 1, global_batch_size: 1}
log: {progress: false}
threads: 1
output_dir: run
EOF
for _ in 1 2 3; do echo '{"text": "7777777777777777"}'; done >sevens.jsonl
tokenize sevens.jsonl --tokenizer slow -o sevens >/dev/null
tokenize sevens.jsonl -o as_bytes >/dev/null
"$PERIGEE_BIN/perigee" train run.yaml data.tokenizer=moved data.train.0.path=sevens >out 2>err || fail "moved: $(cat err)"
for command in train eval 'view --weights none'; do
    # shellcheck disable=SC2086  # a command and its options
    expect_failure 2 'as_bytes: tokenized with bytes (257 tokens), but data.tokenizer is moved (2 tokens)' \
        "$PERIGEE_BIN/perigee" $command run.yaml data.tokenizer=moved data.train.0.path=as_bytes data.validation_fraction=0.3
done
"$PERIGEE_BIN/perigee" train run.yaml data.train.0.path=sevens data.validation_fraction=0.3 train.epochs=1 \
    output_dir=unset >out 2>err || fail "no tokenizer chosen: $(cat err)"
grep -q 'warning: data.tokenizer is bytes; sevens was tokenized with slow: set data.tokenizer=slow to' err ||
    fail "the default is not said: $(cat err)"
for _ in 1 2 3 4; do cat seven.jsonl; done >twenty.jsonl
tokenize twenty.jsonl --chat chat.yaml --tokenizer slow -o sevens_chat >/dev/null
expect_failure 2 'sevens_chat: tokenized with slow (2 tokens), but data.tokenizer is bytes (257 tokens)' \
    "$PERIGEE_BIN/perigee" train run.yaml data.train.0.path=sevens_chat
# Conversations of two templates, for training and for validation.
for template in chatml llama3; do
    tokenize chat.jsonl --chat auto.yaml --set chat.template=$template --set chat.max_tokens=200 --set chat.malformed=skip \
        -o by_$template >/dev/null
done
for file in by_chatml.*; do cp "$file" "again.${file#by_chatml.}"; done
two_templates=(run.yaml data.train.0.path=by_chatml output_dir=talked data.sequence_length=64 eval.samples=16)
"$PERIGEE_BIN/perigee" train "${two_templates[@]}" 'data.validation=[{path: by_llama3}, {path: again}]' >out 2>err || fail "chats: $(cat err)"
grep -q 'several chat templates rendered the data: checkpoints carry that of by_chatml, and by_llama3 has another one' err ||
    fail "another template in the validation data is not said: $(cat err)"
"$PERIGEE_BIN/perigee" eval "${two_templates[@]}" 'data.validation=[{path: by_llama3}, {path: again}]' >out 2>err || fail "chats: $(cat err)"
[ "$(grep -c 'trained with another chat template than the one that rendered by_llama3' err)" = 1 ] && ! grep -q 'rendered again' err ||
    fail "another template in the validation data is not said by eval: $(cat err)"
expect_failure 2 'two: tokenized with bytes (257 tokens), but data.tokenizer is moved (2 tokens)' \
    "$PERIGEE_BIN/perigee" train run.yaml data.tokenizer=moved 'data.train=[{path: sevens}, {path: two}]'
rm two.tokenizer.json
"$PERIGEE_BIN/perigee" view run.yaml --weights none data.tokenizer=moved >out 2>err || fail "data from elsewhere: $(cat err)"
tokenize two.jsonl -o two >/dev/null

# Arrays of JSON are told from lines of it, and a folder from a prefix.
printf '[\n{"prompt": "a", "completion": "b", "text": "c"}\n]\n' >array.json
cp array.json array.jsonl
expect_failure 3 "array.jsonl: begins with .*jq -c '.\[\]' FILE > FILE.jsonl" tokenize array.jsonl -o x
expect_failure 3 "array.json: begins with .*jq -c" tokenize array.json --chat chat.yaml --set chat.malformed=skip -o x
expect_failure 3 "array.json: a .json file: give --format text to read it as text" tokenize array.json -o x
tokenize array.json --format text -o as_text | grep -q ': 1 documents' || fail "--format text"
mkdir some && cp array.json docs/a.txt some
for input in some 'some/*'; do
    tokenize "$input" -o some_set >out 2>err || fail "a .json file in $input: $(cat err)"
    grep -q ': 1 documents' out && grep -q '^perigee: 1 files are skipped:$' err &&
        grep -q '^  some/array.json: a .json file: give --format text .*, --format jsonl' err || fail "a .json file: $(cat out err)"
done
expect_failure 3 "array.json: a .json file" tokenize --mix a=1:docs/a.txt --mix b=1:some/array.json -o parts
[ -z "$(ls | grep parts)" ] || fail "a mix with a part that is refused wrote $(ls | grep parts)"

# The output may lie in a folder that is read: what tokenize wrote there is skipped.
mkdir own && cp docs/a.txt one.jsonl own
for format in auto text; do
    for run in first second; do tokenize own -o own/set --format $format --key prompt >"$run" 2>err || fail "$run run: $(cat err)"; done
    cmp <(sed 's/; [0-9.]* M tokens.*//' first) <(sed 's/; [0-9.]* M tokens.*//' second) || fail "its own output: $(cat second)"
    grep -q '3 files are skipped' err && grep -q '  own/set.tokenizer.json: by its name, of a tokenized' err || fail "own: $(cat err)"
done
tokenize own/one.jsonl --chat chat.yaml -o own/set >/dev/null
tokenize 'own/*' -o own/set --format text 2>err | cmp -n 60 - second || fail "after --chat: $(cat err)"
grep -q '  own/set.chat.json: by its name' err || fail "the record of chats: $(cat err)"
rm own/set.*
for run in first second; do
    tokenize --mix a=0.5:own/a.txt --mix b=0.5:own -o own/m >"$run" 2>err --key prompt || fail "a mix in its input: $(cat err)"
    grep -q 'own/m_b.bin, .idx: 2 documents' "$run" || fail "a mix in its input: $(cat "$run")"
done
for folder in docs/ . docs/..; do
    expect_failure 2 'a folder, where the prefix of the files is expected, such as .*data' tokenize two.jsonl -o "$folder"
done
for name in own/m.bin own/m.idx; do
    expect_failure 2 "the prefix of the files is expected, without .${name##*.}" tokenize two.jsonl -o "$name"
done

# A failure keeps the old files and leaves no others.
printf '{"text": "x"}\n{"text": 5}\n' >bad.jsonl
before=$(cat two.bin two.idx | cksum)
expect_failure 3 'bad.jsonl:2: "text" is a number' tokenize bad.jsonl -o two
[ "$(cat two.bin two.idx | cksum)" = "$before" ] || fail "a failed run changed the old files"
[ -z "$(ls -- *.tmp 2>/dev/null)" ] || fail "a failed run left $(ls -- *.tmp)"

expect_failure 3 'nowhere: no such' tokenize nowhere -o x
expect_failure 3 'no tokens' tokenize docs/empty.txt -o x
expect_failure 2 'tokenizer "words": no such' tokenize docs --tokenizer words -o x
expect_failure 2 'output is required' tokenize docs
expect_failure 2 'give inputs, or --mix' tokenize -o x
expect_failure 3 'the pattern matches nothing' tokenize 'docs/*.md' -o x
expect_failure 2 'expected NAME=WEIGHT:INPUT' tokenize --mix docs -o x
expect_failure 2 'web has the weight 1 already' tokenize --mix web=1:a --mix web=2:b -o x
expect_failure 2 'format' tokenize docs --format pdf -o x
tokenize --help | grep -q -- '--split-on-blank-lines' || fail "no help"

# The text cap on a JSONL line: 64 MiB.
{ printf '{"text": "'; head -c 67108864 /dev/zero | tr '\0' a; printf '"}\n'; } >long.jsonl
expect_failure 3 'long.jsonl:1: a line of more than 67108864 bytes' tokenize long.jsonl -o x
[ ! -e x.bin ] || fail "output of a failed run"
echo "tokenize: all as expected"
