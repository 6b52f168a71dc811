#!/usr/bin/env bash
# `perigee plot` as a person uses it: curves of whole, torn and tiny runs, and what it says when there is nothing to draw.
# Run by ctest, which sets PERIGEE_BIN.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
plot=("$PERIGEE_BIN/perigee" plot)
failures=0

check() {
    local name=$1
    shift
    if ! "$@"; then
        echo "FAILED: $name"
        sed 's/^/    /' "$work/out" "$work/err"
        failures=$((failures + 1))
    fi
}
draw() { "${plot[@]}" "$@" >"$work/out" 2>"$work/err"; }
fails_with() {
    local code=$1 pattern=$2
    shift 2
    draw "$@"
    [[ $? == "$code" ]] && grep -qE -- "$pattern" "$work/err" && [[ ! -s $work/out ]]
}
shows() { grep -qF -- "$1" "$work/out"; }
# The braille cells of a terminal drawing, and the rows they stand in, from the top.
rows_with_dots() { grep -nP '[\x{2801}-\x{28ff}]' "$work/out" | cut -d: -f1; }
export LC_ALL=C.UTF-8

mkdir "$work/falling" "$work/rising" "$work/torn" "$work/single" "$work/none"
for ((i = 1; i <= 200; ++i)); do
    echo "{\"step\":$i,\"loss\":$((1000 - 4 * i)).5,\"lr\":0.001,\"grad_norm\":null}"
    ((i % 50)) || echo "{\"step\":$i,\"eval_loss\":$((1100 - 4 * i))}"
done >"$work/falling/metrics.jsonl"
for ((i = 1; i <= 200; ++i)); do echo "{\"step\":$i,\"loss\":$((4 * i))}"; done >"$work/rising/metrics.jsonl"

check "draws a run" draw "$work/falling" --width 60 --height 15
check "names the run, its last loss and its last evaluation" shows "falling  $(printf '\u2501') loss 200.5"
check "marks every evaluation" [ "$(grep -o "$(printf '\u25c6')" "$work/out" | wc -l)" = 5 ] # four and the legend's
check "fills the asked height" [ "$(wc -l <"$work/out")" = 15 ]
check "keeps within the asked width" [ "$(wc -L <"$work/out")" = 60 ]
check "no colour codes outside a terminal" bash -c "! grep -q $'\x1b' '$work/out'"
starts_at_top() { sed -n 2p "$work/out" | grep -qP '^.{0,9}[\x{2801}-\x{28ff}]'; }
starts_low() { ! starts_at_top; }
check "a falling loss starts at the top left" starts_at_top
draw "$work/rising" --width 60 --height 15
check "a rising one does not" starts_low
check "a curve over the whole height" [ "$(rows_with_dots | wc -l)" -ge 11 ]

mkdir "$work/tiny_values"
printf '{"step":1,"loss":0}\n{"step":2,"loss":5e-124}\n' >"$work/tiny_values/metrics.jsonl"
check "draws values near nothing" draw "$work/tiny_values" --width 60 --height 15
check "keeps within the asked width" [ "$(wc -L <"$work/out")" = 60 ]

# A run that was killed while it wrote, resumed, and hit values that are no numbers.
cat >"$work/torn/metrics.jsonl" <<'JSON'
{"step":1,"loss":5.0}
{"step":2,"loss":4.0}
{"step":3,"loss":77.0}
not json
{"step":2,"loss":3.0}
{"step":3,"loss":null}
{"step":4,"loss":2.25}
JSON
printf '{"step":5,"lo' >>"$work/torn/metrics.jsonl"
check "draws a torn file" draw "$work/torn"
check "uses its last whole line" shows "loss 2.25"
check "forgets the steps that a resume did again" bash -c "! grep -qE '^ *(40|50|60|70|80) ' '$work/out'"
check "tells of the unreadable line, and not of the one being written" grep -q ': 1 unreadable lines' "$work/err"

echo '{"step":1,"loss":2.5}' >"$work/single/metrics.jsonl"
check "draws a single point" draw "$work/single" --output "$work/single.svg" --terminal
check "the point is there" [ "$(rows_with_dots | wc -l)" = 1 ]
check "and in the SVG" grep -q '<circle' "$work/single.svg"

mkdir -p "$work/other/falling"
cp "$work/rising/metrics.jsonl" "$work/other/falling"
check "runs of one name" draw "$work/falling" "$work/other/falling" --output "$work/alike.svg"
check "are told apart by their paths" grep -qF ">$work/other/falling loss " "$work/alike.svg"
check "overlays runs as SVG" draw "$work/falling" "$work/rising" --output "$work/two.svg"
check "an SVG alone prints nothing" [ ! -s "$work/out" ]
check "two trends, two raw lines, one line of evaluations" [ "$(grep -c '<polyline' "$work/two.svg")" = 5 ]
check "the SVG is well formed" python3 -c "import sys, xml.dom.minidom as x; x.parse(sys.argv[1])" "$work/two.svg"
check "no coordinate is lost" bash -c "! grep -qE '(nan|inf)[ ,\"]' '$work/two.svg'"

check "a folder without metrics" fails_with 3 "none/metrics.jsonl: no such file" "$work/none"
check "an unknown key, with those that exist" \
    fails_with 3 "'los'; found: eval_loss, loss, lr, step" "$work/falling" --key los
check "a key without any number" fails_with 3 "'grad_norm'" "$work/falling" --key grad_norm
mkdir "$work/huge"
printf '{"step":1,"loss":1e308}\n{"step":2,"loss":-1e308}\n' >"$work/huge/metrics.jsonl"
check "values too large to draw" \
    fails_with 3 "no value of 'loss' can be drawn: expected one between -1e\+200 and 1e\+200, found none in 2 lines" "$work/huge"
echo '{"step":3,"loss":2.5}' >>"$work/huge/metrics.jsonl"
check "values too large to draw are skipped if there are others" draw "$work/huge"
check "an output that cannot be written" \
    fails_with 3 "cannot create .*no/[0-9a-f]{8}.such.svg.tmp" "$work/falling" --output "$work/no/such.svg"

# What is read is not written over, by whatever name; another file is replaced whole, and a device stays one.
cp "$work/single/metrics.jsonl" "$work/kept"
ln -s "$work/single/metrics.jsonl" "$work/link"
ln "$work/single/metrics.jsonl" "$work/name"
for output in "$work/single/metrics.jsonl" "$work/single/../single/metrics.jsonl" "$work/link" "$work/name"; do
    check "an output that is the input, $output" \
        fails_with 2 "config error: --output .*: writing it would replace .*metrics.jsonl" "$work/single" --output "$output"
    check "keeps the input" cmp "$work/single/metrics.jsonl" "$work/kept"
done
mv "$work/single/metrics.jsonl" "$work/a.svg.tmp"
check "--output works when an input is named like it, with .tmp" draw "$work/a.svg.tmp" --output "$work/a.svg"
check "keeps that as well" cmp "$work/a.svg.tmp" "$work/kept"
echo old >"$work/old.svg"
ln -s old.svg "$work/old_link.svg"
ln "$work/old.svg" "$work/old_name.svg"
check "an output that is there" draw "$work/falling" --output "$work/old_link.svg"
check "is replaced where the link leads" grep -q '<svg' "$work/old.svg"
check "and the link stays" [ -L "$work/old_link.svg" ]
check "not written into" [ "$(cat "$work/old_name.svg")" = old ]
check "nothing temporary is left" [ -z "$(ls "$work" | grep 'old.svg.tmp$')" ]
check "a device" draw "$work/falling" --output /dev/null
check "stays a device" [ -c /dev/null ]

# Numbers that no loss should be: every drawing ends at once, on the terminal and as SVG.
quickly() { timeout 60 "${plot[@]}" "$@" --terminal --output "$work/odd.svg" >"$work/out" 2>"$work/err"; }
mkdir "$work/odd"
numbers=(0 -0.0 1 -1 null 5e-324 1e-310 2.2250738585072014e-308 1e-9 1e16 10000000000000002 1e199 -1e199 1e308 -1e308 1.7976931348623157e308)
[ -z "${PERIGEE_BRIEF:-}" ] || numbers=(0 -1 null 5e-324 1e16 1e199 -1e308)
for first in "${numbers[@]}"; do
    for second in "${numbers[@]}"; do
        printf '{"step":1,"loss":1}\n{"step":2,"loss":%s,"eval_loss":%s}\n{"step":3,"loss":%s}\n' "$first" "$second" "$second"
    done
done >"$work/pairs"
while read -r a && read -r b && read -r c; do
    printf '%s\n%s\n%s\n' "$a" "$b" "$c" >"$work/odd/metrics.jsonl"
    quickly "$work/odd" || { check "draws $b $c" false; break; }
done <"$work/pairs"
for steps in "1 2" "0 0" "1e15 999999999999999" "-1 5" "1e300 1e301" "5e-324 1e-323" "0.5 0.25"; do
    read -r first second <<<"$steps"
    printf '{"step":%s,"loss":1}\n{"step":%s,"loss":2}\n{"step":7,"loss":3}\n' "$first" "$second" >"$work/odd/metrics.jsonl"
    check "draws steps $steps" quickly "$work/odd"
done
yes '{"step":1,"loss":2,"more":"' | head -c 3000000 | tr -d '\n' >"$work/odd/metrics.jsonl"
printf '"}\n{"step":2,"loss":2}\n' >>"$work/odd/metrics.jsonl"
check "a line of 3 MB is left out" draw "$work/odd"
check "and told of" grep -q ': 1 unreadable lines' "$work/err"
check "a drawing too wide is refused" [ "$("${plot[@]}" "$work/falling" --width 1000000000 >/dev/null 2>&1; echo $?)" = 2 ]

((failures == 0)) && echo "plot: all as expected"
exit $((failures > 0))
