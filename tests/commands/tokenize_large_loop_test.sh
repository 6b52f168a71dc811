#!/usr/bin/env bash
# A large tokenization that is killed three times ends with the same bytes as one that is not: `ctest --preset cpu -L long`.
# GIGABYTES=10 of text, with three times that much of disk.
set -euo pipefail
gigabytes=${GIGABYTES:-10}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "FAILED: $*" >&2; exit 1; }

python3 - "$gigabytes" "$PERIGEE_SOURCE" <<'END'
import json, pathlib, random, re, sys
rng, left, number = random.Random(1), float(sys.argv[1]) * 1e9, 0
words = re.findall(r"\S+\s*", "".join(path.read_text() for path in sorted(pathlib.Path(sys.argv[2]).glob("docs/*.md"))))
pages = ["".join(rng.choices(words, k=300)) for _ in range(2000)]
files = [open(f"part{i}.jsonl", "w") for i in range(4)]
while left > 0:
    text = f"{number} " + "".join(rng.choices(pages, k=rng.randint(1, 8)))
    left -= files[min(3, number // 50000)].write(json.dumps({"text": text}) + "\n")
    number += 1
END
start=$SECONDS
"$PERIGEE_BIN/perigee" tokenize 'part*.jsonl' -o whole >whole.said
whole=$((SECONDS - start))
for kill in 1 2 3; do
    "$PERIGEE_BIN/perigee" tokenize 'part*.jsonl' -o parts --save-every 2 >/dev/null 2>err &
    sleep "$(awk -v s=$whole -v r=$RANDOM 'BEGIN { print 3 + s / 5 * r / 32767 }')"
    kill -9 $! 2>/dev/null || fail "run $kill ended before it was killed: $(cat err)"
    wait $! 2>/dev/null || true
    [ $kill = 1 ] || grep 'going on after' err || fail "run $kill began anew: $(cat err)"
done
"$PERIGEE_BIN/perigee" tokenize 'part*.jsonl' -o parts >parts.said 2>err
grep 'going on after' err || fail "the last run began anew: $(cat err)"
cmp whole.bin parts.bin && cmp whole.idx parts.idx || fail "another result after three kills"
echo "$(du -cb part*.jsonl | tail -1 | cut -f 1) bytes in $whole s; killed three times, equal: $(cat parts.said)"
