#!/usr/bin/env bash
# tools/studies: rows of made-up runs with known differences, and what the page says of them.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
check() {
    local what=$1
    shift
    "$@" || complain "$what"
}
python3 - "$scratch/study" <<'PY'
import json, pathlib, random, sys
root = pathlib.Path(sys.argv[1]) / "runs"
losses = {"full": 2.0, "gate": 2.01, "nearest": 2.05}  # of all tokens; far repeats differ by five times as much
for arm, loss in losses.items():
    for seed in (1, 2):
        folder = root / f"arm={arm},seed={seed}"
        folder.mkdir(parents=True)
        (root / f"arm={arm},seed={seed}.finished").touch()
        own = {"full": "full", "gate": "moba", "nearest": "nearest"}[arm]
        with open(folder / "suites.jsonl", "w") as file:
            for repeated in range(2):  # of an evaluation that was given twice the last counts; it rounds otherwise
                for attention in dict.fromkeys((own, "full")):
                    for sample in range(40):
                        hard = random.Random(sample).gauss(0, 0.3) + 0.001 * seed  # alike in all arms
                        for end, task, weight in ((512, "fresh", 90), (512, "far", 10), (1024, "near", 60)):
                            far = task == "far"
                            mine = 2.0 + hard + (loss - 2.0) * (5 if far else 0.6) * (attention == own) + 1e-4 * (1 - repeated)
                            file.write(json.dumps({"suite": "position", "attention": attention, "number": sample,
                                                   "begin": end // 1024 * 512, "end": end, "length": 1024, "task": task, "weight": weight, "nll": mine * weight}) + "\n")
                        for layer in (0, 1):
                            for task, mass in (("gate", 30 + layer), ("best", 36)):
                                file.write(json.dumps({"suite": "mass", "task": task, "attention": attention, "number": sample,
                                                       "layer": layer, "mass": 2 * mass + 0.01 * (1 - repeated), "weight": 80}) + "\n")
                        for depth in (0.0, 0.5):  # item 39 of arm gate fails at one depth
                            file.write(json.dumps({"suite": "needle", "task": "uuid", "attention": attention, "length": 512,
                                                   "depth": depth, "number": sample,
                                                   "passed": arm != "gate" or depth == 0 or sample < 39}) + "\n")
                        file.write(json.dumps({"suite": "needle", "task": "words", "attention": attention, "length": 2048,
                                               "depth": 0.5, "number": sample, "passed": sample < 10}) + "\n")
        steps = [{"step": i, "tokens": 100, "tokens_so_far": 100 * i, "seconds": i / 2, "tokens_per_s": 200 / i, "tflops": 3.0 * i, "loss": 2.0,
                  "attended_share": i / 6}
                 for i in (1, 2)]
        steps.append({"step": 2, "eval_loss": loss + 0.1 * seed})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        (folder / "run.json").write_text(json.dumps({"program": "perigee 1", "hardware": "1 x GPU; 1 host: name"}))
(root / "arm=unfinished,seed=1").mkdir()
(root / "arm=stopped,seed=1").mkdir()
(root / "arm=stopped,seed=1" / "metrics.jsonl").write_text('{"step": 1, "tokens_so_far": 100, "loss": 2.5, "eval_loss": 2.4}\n')
for name in ("before=2,seed=1", "arm=full,seed=1,eval=own"):  # what went before; a finished evaluation has no folder
    (root / (name + ".finished")).touch()
(root / "before=2,seed=1").mkdir()
(root / "before=2,seed=1" / "metrics.jsonl").write_text('{"step": 7, "loss": 3.0}\n')
PY
rows=$scratch/rows
python3 "$PERIGEE_SOURCE/tools/studies/rows.py" "$scratch/study" -o "$rows" >"$scratch/printed" || complain "rows.py"
check "a folder of no study" grep -q "nowhere has no folder runs" <(python3 "$PERIGEE_SOURCE/tools/studies/rows.py" "$scratch/nowhere" -o "$scratch/none" 2>&1)
check "a row per arm, seed, attention and sample" [ "$(wc -l <"$rows/samples.csv")" = $((1 + 2 * 40 * (1 + 2 + 2))) ]
check "a run's own words" grep -q '^gate,2,2,200,2.0,2.21,,1.5,133,5.0,,perigee 1,1 x GPU,0.2500,1$' "$rows/runs.csv"
check "what went before" grep -q '^before 2,1,7,,3.0,' "$rows/runs.csv"
check "masses" grep -q '^gate,2,moba,1,gate,3200,2480$' "$rows/mass.csv"
check "needles" [ "$(grep -c '^gate,.*,needle uuid,512,0\.[05],40,' "$rows/needles.csv")" = 8 ]
check "what has not finished is left out" [ -z "$(grep -lE 'unfinished|stopped' "$rows"/*.csv)" ]
python3 "$PERIGEE_SOURCE/tools/studies/rows.py" "$scratch/study" --stopped -o "$scratch/all" >"$scratch/printed" || complain "rows.py --stopped"
check "unless asked for" grep -q '^stopped,1,1,100,2.5,2.4,.*,0$' "$scratch/all/runs.csv"
check "with its course" grep -q '^stopped,1,1,100,2.4,0,$' "$scratch/all/curves.csv"
check "what has not begun has no rows" [ -z "$(grep -l unfinished "$scratch/all"/*.csv)" ]
python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$rows" -o "$scratch/page" --also gate --draws 300 >"$scratch/printed" || complain "page.py"
cat >"$scratch/verify.py" <<'PY'
import re, sys
table = open(f"{sys.argv[1]}/page/table.md").read()
def numbers(arm):
    line = next(line for line in table.splitlines() if line.startswith(f"| {arm} | 2 |"))
    return [float(x) for x in re.findall(r"[-+]?\d+\.\d+", line)]
# loss, difference, low, high, seeds; the same of far repeats. 10 of 160 tokens are far repeats.
for arm, step in (("gate", 0.01), ("nearest", 0.05)):
    _, difference, low, high, first, last, _, far, far_low, far_high, _, _ = numbers(arm)
    wanted = step * (0.6 * 150 + 5 * 10) / 160
    assert abs(difference - wanted) < 1e-4 and abs(far - 5 * step) < 1e-4, (arm, difference, wanted, far)
    assert low <= difference <= high and high - low < 1e-3, (low, high)  # pairs: the samples' own spread cancels
    assert far_low <= far <= far_high
assert "| full | 2 |" in table and table.index("| full |") < table.index("| gate |")
assert "minus gate, all tokens" in table and re.search(r"\| full \| 2 \| 1.* \| -0\.008[78] \[-0\.0", table)
gap = lambda step: (f"{step * (5 * 10 + 0.6 * 90) / 100:+.4f}", f"{step * 0.6:+.4f}")  # up to 512, up to 1,024
assert f"| gate | {gap(0.01)[0]} | {gap(0.01)[1]} |" in table and f"| nearest | {gap(0.05)[0]} | {gap(0.05)[1]} |" in table
assert re.search(r"\| nearest \| 1\.\d+ \(-0\.043[78] ± 0\.000\d\) \|  \| 1\.\d+ \|", table)  # full attention undoes the loss
assert "| gate | moba | 76.2% | 90.0% |" in table
assert "| needle | gate | moba | 98.8% of 160 |" in table and "| needle | full | full | 100.0% of 160 |" in table
assert "minus that of full, by millions" in table and "| nearest | +0.0500 |" in table
picture = open(f"{sys.argv[1]}/page/figure.svg").read()
assert picture.count("<circle") == 4
import xml.etree.ElementTree
xml.etree.ElementTree.fromstring(picture)
picture = open(f"{sys.argv[1]}/page/matrix.svg").read()
xml.etree.ElementTree.fromstring(picture)
needles = open(f"{sys.argv[1]}/page/needles.svg").read()
xml.etree.ElementTree.fromstring(needles)
assert needles.count("<polyline") == 5 and ">gate: moba<" in needles and ">2K<" in needles and ">512<" in needles, needles
assert "60.0,33.2 460.0,225.0" in needles  # 158 of 160 at 512 tokens, 10 of 40 at 2,048; 260 a hundred percent
assert picture.count(">own<") == 3 and picture.count(">-0.05<") == 1 and picture.count(">-0.25<") == 1, picture
PY
check "differences, intervals and figure" python3 "$scratch/verify.py" "$scratch"

# --- Rows without far repeats; and with some in one sample of four, which a draw may miss.
mkdir "$scratch/near" "$scratch/few"
awk -F, -v OFS=, 'NR > 1 {$7 = $8 = 0} 1' "$rows/samples.csv" >"$scratch/near/samples.csv"
awk -F, -v OFS=, 'NR > 1 && $4 > 0 {$7 = $8 = 0} NR == 1 || $4 < 4' "$rows/samples.csv" >"$scratch/few/samples.csv"
for part in near few; do
    python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$scratch/$part" -o "$scratch/$part" --draws 300 >"$scratch/printed" || complain "page.py $part"
    check "$part: no number is missing" [ -z "$(grep -l nan "$scratch/$part"/*.md "$scratch/$part"/*.svg)" ]
done
check "no column of what there is not" [ -z "$(grep -l 'far repeats' "$scratch/near"/*.md "$scratch/near"/*.svg)" ]
check "all tokens all the same" [ "$(grep -c "^| nearest | 2 | [12].* | +0\.04" "$scratch/near/table.md")" = 1 ]
check "draws that miss them are left out" grep -Eq '^\| nearest \| 2 \| .* \| \+0\.2500 \[\+0\.2500, \+0\.2500\]' "$scratch/few/table.md"

# --- Rows that do not compare are refused.
spoilt() {  # WHAT MESSAGE AWK: of samples.csv
    mkdir -p "$scratch/spoilt"
    awk -F, -v OFS=, "$3" "$rows/samples.csv" >"$scratch/spoilt/samples.csv"
    python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$scratch/spoilt" -o "$scratch/spoilt" --draws 10 >"$scratch/printed" 2>&1 && complain "$1: was taken"
    check "$1" grep -q "$2" "$scratch/printed"
}
spoilt "a run on fewer samples" "arm nearest, seed 2, attention .* was evaluated on other samples than arm" '!($1 == "nearest" && $2 == 2 && $4 == 7)'
spoilt "on others" "arm gate, seed 1, attention moba was evaluated on other samples than arm" '{if ($1 == "gate" && $3 == "moba" && $4 == 3) $5 += 1} 1'
spoilt "a row that is there twice" "sample 3 of arm gate, seed 1, attention moba is there twice" '{print} $1 == "gate" && $2 == 1 && $3 == "moba" && $4 == 3'
spoilt "a loss that is none" "has a value that is not finite" '{if ($1 == "gate" && $4 == 3) $6 = "nan"} 1'
spoilt "an arm without a seed of the base" "arm gate has no seed of arm full" '{if ($1 == "gate") $2 += 5} 1'
one=$(echo "$scratch"/study/runs/arm=gate,seed=1/suites.jsonl)
cp "$one" "$scratch/kept.jsonl"
refused() {  # MESSAGE RECORD
    echo "$2" >>"$one"
    check "$2" grep -q "$1" <(python3 "$PERIGEE_SOURCE/tools/studies/rows.py" "$scratch/study" -o "$scratch/none" 2>&1)
    cp "$scratch/kept.jsonl" "$one"
}
refused "sample 1 has a loss that is not finite" '{"suite":"position","attention":"moba","number":1,"begin":0,"end":512,"length":1024,"task":"far","weight":10,"nll":null}'
refused "sample 1 has a share that is not finite" '{"suite":"mass","task":"best","attention":"moba","number":1,"layer":0,"mass":null,"weight":80}'
refused "the same items with other options" '{"suite":"needle","task":"uuid","attention":"moba","length":512,"depth":0.0,"number":1,"passed":true,"overrides":["attention.top_k=2"]}'
mkdir "$scratch/stages"
sed -n '1p; s/^full,1,full,\([0-9]*\),[0-9]*/before,1,full,\1,7/p' "$rows/samples.csv" >"$scratch/stages/samples.csv"
sed 1d "$rows/samples.csv" >>"$scratch/stages/samples.csv"
python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$scratch/stages" -o "$scratch/stages" --draws 10 >"$scratch/printed" 2>&1 || complain "page.py with a stage on other samples"
check "which has no row" [ "$(grep -c "^| before" "$scratch/stages/table.md"):$(grep -c "^| gate" "$scratch/stages/table.md")" = 0:3 ]

for wrong in "--own gate" "--own gate=mobb" "--own gaet=moba" "--switched gaet"; do
    check "$wrong is refused" grep -q -e "$wrong: .* has no such arm" <(python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$rows" $wrong -o "$scratch" 2>&1)
done
check "an arm that is not there" grep -q "has no arm dense" <(python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$rows" --base dense -o "$scratch" 2>&1)

# --- Arms that go on from a stage of 150M tokens: tokens count from there.
mkdir -p "$scratch/staged"
cat >"$scratch/staged/curves.csv" <<'CSV'
arm,seed,step,tokens,eval_loss,finished
before,1,1,150000000,3.0,1
full,1,1,150000000,2.9,1
full,1,2,160000000,2.5,1
full,1,3,170000000,2.4,1
full,1,4,180000000,2.2,1
gate,1,2,160000000,2.6,1
gate,1,3,170000000,2.45,1
gate,1,4,180000000,2.3,1
brief,1,2,160000000,2.7,1
CSV
cat >"$scratch/staged/runs.csv" <<'CSV'
arm,seed,step,tokens_so_far,loss,eval_loss,eval_accuracy,seconds,tokens_per_s,tflops,parameters,program,hardware,attended_share,finished
before,1,1,150000000,3.0,3.0,,100,1500000,10,1,p,h,,1
full,1,4,180000000,2.2,2.2,,20,1500000,10,1,p,h,,1
gate,1,4,180000000,2.3,2.3,,10,3000000,10,1,p,h,,1
brief,1,2,160000000,2.7,2.7,,5,2000000,10,1,p,h,,1
CSV
python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$scratch/staged" -o "$scratch/staged" >"$scratch/printed" || complain "page.py of staged runs"
check "tokens since the arms parted" grep -q "^| arm | 0.0 | 10.0 | 20.0 | 30.0 |" "$scratch/staged/table.md"
check "the stage is no arm" [ -z "$(grep "^| before" "$scratch/staged/table.md")" ]
check "speed of the arm's own tokens" grep -q "^| gate | 3,000,000 | 3.3M | +0.1000 | -0.1415 | -0.1415 |" "$scratch/staged/table.md"
check "before the base's first tokens its loss is not known" grep -q "^| brief | 2,000,000 | 5.0M | +0.2000 |  |  |$" "$scratch/staged/table.md"

sed 's/$/,a/; s/^gate,1,3.*/&b/' "$scratch/staged/curves.csv" | sed '1s/,a$/,eval_data/' >"$scratch/other.csv"
mkdir -p "$scratch/otherdata"
mv "$scratch/other.csv" "$scratch/otherdata/curves.csv"
check "curves of other held-out data are refused" grep -q "seed 1: arms full and gate were evaluated on different held-out data" <(python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$scratch/otherdata" -o "$scratch/otherdata" 2>&1)

# --- A grid: full last layers gain 0.1 nat with loss on all tokens and 0.4 where few carry it.
python3 - "$scratch/grid" <<'PY'
import json, pathlib, random, sys
root = pathlib.Path(sys.argv[1]) / "runs"
gains = {"all": 0.1, "few": 0.4}
for arm, gain in gains.items():
    for last in (0, 1, 2):
        for seed in (1, 2):
            folder = root / f"arm={arm},last={last},seed={seed}"
            folder.mkdir(parents=True)
            (root / f"arm={arm},last={last},seed={seed}.finished").touch()
            own = {0: "moba", 1: "moba + 1 full", 2: "full"}[last]
            with open(folder / "suites.jsonl", "w") as file:
                for sample in range(30):
                    loss = 3 + random.Random(sample).gauss(0, 1) + gain * (2 - last) / 2 + 0.01 * seed
                    for attention in dict.fromkeys((own, "full")):
                        file.write(json.dumps({"suite": "position", "attention": attention, "number": sample, "begin": 0,
                                               "end": 512, "length": 512, "task": "fresh", "weight": 7, "nll": 7 * (loss if attention == own else 2)}) + "\n")
                for task, mass in (("gate", 6), ("best", 9)):
                    file.write(json.dumps({"suite": "mass", "task": task, "attention": own, "number": 0, "layer": 0,
                                           "mass": mass, "weight": 10}) + "\n")
            steps = [{"step": 4, "participation_1": 0.25, "loss": 2}, {"step": 5, "tokens_so_far": 50, "eval_loss": 2 - gain * last},
                     {"step": 8, "participation_1": 0.5, "loss": 2}, {"step": 9, "loss": 1 - last / 8, "eval_loss": 3,
                     "eval_accuracy": 0.5 + 0.1 * seed, "eval_reach_0": 1, "eval_reach_1": 0.25 * (last + 1)}]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
PY
python3 "$PERIGEE_SOURCE/tools/studies/rows.py" "$scratch/grid" -o "$scratch/gridrows" >"$scratch/printed" || complain "rows.py of a grid"
check "reach and participation by layer" grep -q '^few last=1,2,1,0\.5,,0\.375$' "$scratch/gridrows/layers.csv"
python3 "$PERIGEE_SOURCE/tools/studies/interaction.py" "$scratch/gridrows" --all all --draws 200 >"$scratch/printed" || complain "interaction.py"
check "a run of the grid" grep -Eq '^\| few \| 1 \| [0-9.]+ \([0-9.]+ to [0-9.]+\) \| 1\.600 \| 5, 5 \| 0\.875 \| 0\.650 \(0\.600 to 0\.700\) \| 1\.000, 0\.500 \| 60\.0%, 90\.0% \| 0\.375 \|$' "$scratch/printed"
check "its interaction, in pairs" grep -q '^| few | +0\.4000 \[+0\.4000, +0\.4000\] | +0\.3000 \[+0\.3000, +0\.3000\] | +0\.3000, +0\.3000 | +0\.8000, +0\.8000 |$' "$scratch/printed"
python3 "$PERIGEE_SOURCE/tools/studies/interaction.py" "$scratch/gridrows" --all all --full 1 --draws 200 -o "$scratch/losses.svg" >"$scratch/printed" || complain "interaction.py --full"
check "one full layer against none" grep -q '^| few | +0\.2000 .* | +0\.4000, +0\.4000 |$' "$scratch/printed"
check "a picture: four lines and twelve dots in each of two panels" test "$(grep -c "<polyline" "$scratch/losses.svg") $(grep -c "<circle" "$scratch/losses.svg")" = "4 24"

mkdir -p "$scratch/moreseeds"
for file in "$scratch"/gridrows/*.csv; do
    awk -F, -v OFS=, -v curves="$([[ $file == *curves* ]] && echo 1)" 'NR > 1 { $2 += 2; if (curves) $5 *= 2 } 1' "$file" >"$scratch/moreseeds/$(basename "$file")"
done
python3 "$PERIGEE_SOURCE/tools/studies/interaction.py" "$scratch/gridrows" "$scratch/moreseeds" --all all --draws 200 >"$scratch/printed" || complain "interaction.py of two folders"
# lowest: gains 0.8, 0.8, 1.6, 1.6, mean 1.2 -+ 3.182 * 0.4619 / 2; base 0.2, 0.2, 0.4, 0.4
check "an interval over the seeds of two folders" grep -q '^| few | .* | +1\.2000 \[+0\.4651, +1\.9349\]: +0\.8000, +0\.8000, +1\.6000, +1\.6000 | +0\.9000 \[+0\.3489, +1\.4511\]: ' "$scratch/printed"
check "a seed in two folders" grep -q "seed 1 is in several folders" <(python3 "$PERIGEE_SOURCE/tools/studies/interaction.py" "$scratch/gridrows" "$scratch/gridrows" --all all 2>&1)

awk -F, '!($1 == "few last=1" && $2 == 2)' "$scratch/gridrows/samples.csv" >"$scratch/seedless.csv"
mkdir -p "$scratch/seedless"
cp "$scratch"/gridrows/*.csv "$scratch/seedless/"
mv "$scratch/seedless.csv" "$scratch/seedless/samples.csv"
check "a seed that a run lacks" grep -q "has seeds that other runs lack" <(python3 "$PERIGEE_SOURCE/tools/studies/interaction.py" "$scratch/seedless" --all all 2>&1)
check "a run that is missing" grep -q "each number of each arm" <(grep -v "few last=1," "$scratch/gridrows/samples.csv" >"$scratch/cut.csv"; mv "$scratch/cut.csv" "$scratch/gridrows/samples.csv"; python3 "$PERIGEE_SOURCE/tools/studies/interaction.py" "$scratch/gridrows" --all all 2>&1)
cat >"$scratch/parts.py" <<'PY'
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import page, rows
assert page.of_seeds([1.0]) == "" and page.of_seeds([1.0, 2.0]) == "; seeds +1.0000 to +2.0000"
assert page.of_seeds([1.0, 2.0, 3.0]) == "; seeds +1.0000 to +3.0000, t [-0.4843, +4.4843]"  # 2 -+ 4.303 / sqrt(3)
class Pairs:
    def __init__(self, *by_seed): self.by_seed, self.seeds = by_seed, list("123"[:len(by_seed)])
def scattered(base, **arms):
    """What page.scatter says of arms with these losses by seed."""
    minus = lambda losses: Pairs(*(x - y for x, y in zip(losses, arms[base])))
    return page.scatter([(base, {}, {}, 3), *((arm, {"all tokens": minus(x), "far repeats": minus(x[:1])}, {}, 3)
                                              for arm, x in arms.items() if arm != base)])
said = scattered("full", full=(10, 20, 30), a=(11, 22, 36), b=(15, 27), before=(0, 9, 5))
# Differences of full and a: 1, 2, 6; their standard deviation is sqrt(7), t of 2 is 4.303.
assert "from 2 arms: 2.6458 (2 degrees of freedom; full has 50% of the squares)" in said and "±8.0502 (2 seeds), ±6.5729 (3 seeds)" in said, said
assert "far repeats" not in said
three = dict(full=(1, 2, 9), a=(2, 5, 3), b=(7, 1, 1))
assert scattered("full", **three) == scattered("a", **three) == scattered("b", **three) != ""
assert page.apart([(50, 1), (98, 2), (99, 3), (100, 4)]) == [(50, 1), (100, 4)]
table = {("full_90_gate_10", "full"): {}, ("full_90_gate_10", "moba"): {}}
assert page.own_attention(table, "full_90_gate_10") == "full"
page.OWN["full_90_gate_10"] = "moba"
assert page.own_attention(table, "full_90_gate_10") == "moba"
folder = pathlib.Path(sys.argv[2])
folder.mkdir()
(folder / "metrics.jsonl").write_text('{"step": 0, "eval_loss": 6}\n{"step": 1, "tokens_so_far": 9, "seconds": 2, "loss": 3}\n'
                                      '{"step": 1, "eval_loss": 5}\n{"step": 1, "tokens_so_far": 9, "seconds": 2.5, "loss": 3}\n'
                                      '{"step": 1, "eval_loss": 4, "eval_data": "b"}\n{"step": 2, "eval')
last, curve, losses = rows.training(folder)
# A repeated step counts once, a loss before the first step not at all.
assert last["seconds"] == 2.5 and curve == [(1, 9, 4, "b")] and losses == [(1, 3)]

path = folder / "suites.jsonl"
def record(**changes):
    usual = {"suite": "position", "step": 5, "attention": "moba", "task": "far", "length": 64, "number": 0, "begin": 0, "end": 32}
    return json.dumps(usual | {"weight": 10, "nll": 30.0} | changes) + "\n"
def read(*lines):
    path.write_text("".join(lines))
    try:
        return rows.records(path)[0]
    except SystemExit as stopped:
        return str(stopped.code)
full = record(attention="full", begin=0, end=64)  # other attention does not mix
named = {"eval": 512, "overrides": "attention.kind=full"}
assert len(read(record(), record(**named), record(begin=32, end=64, **named), full)) == 3
assert "results 0.1000 apart" in read(record(eval=0, overrides=""), record(nll=31.0, **named))
assert len(read(record(), record(begin=32, end=64), record(nll=30.001), full)) == 3
assert read(record(), record(), '{"suite": "posi').keys() == {("moba", 0, 32, "far")}
for said, second in (("edges, 0 to 32 and 16 to 64", record(begin=16, end=64)), ("edges, 0 to 16 and 0 to 32", record(end=16)),
                     ("steps 5, 7", record(step=7, attention="full")), ("of [64, 128] tokens", record(begin=64, end=96, length=128)),
                     ("results 0.1000 apart", record(nll=31.0)), ("weight 10 and 11 of sample 0", record(weight=11)),
                     ("begin 0 and 16 of sample 0", record(begin=16)), (f"{path}:2: not a JSON object with suite", '{"step": 5}\n'),
                     (f"{path}:2: not JSON", "{\n"), (f"{path}:2: not a JSON object", "7\n")):
    found = read(record(), second, record(number=1))
    assert isinstance(found, str) and said in found and str(path) in found, (said, found)
PY
check "their parts" python3 "$scratch/parts.py" "$PERIGEE_SOURCE/tools/studies" "$scratch/repeated"

# --- Courses without samples: gaps that follow a law, and a run that was stopped.
mkdir "$scratch/course"
python3 - "$scratch/course" <<'PY'
import sys
curves, runs = ["arm,seed,step,tokens,eval_loss,finished"], ["arm,seed,tokens_so_far,seconds,eval_loss,tokens_per_s,tflops"]
for step in range(1, 11):
    t, full = step / 2, 3 - 0.1 * step
    gaps = {"full": 0, "power": 0.1 * t ** -0.4, "floor": 0.02 + 0.05 * t ** -0.8}
    if step <= 7:
        gaps["part"] = 0.03
    for arm, gap in gaps.items():
        curves.append(f"{arm},1,{step},{step * 5_000_000},{full + gap},{int(arm != 'part')}")
        if step == 10:
            runs.append(f"{arm},1,50000000,{100 if arm == 'full' else 50},{full + gap},1e6,{200 if arm == 'full' else 100}")
open(f"{sys.argv[1]}/curves.csv", "w").write("\n".join(curves) + "\n")
open(f"{sys.argv[1]}/runs.csv", "w").write("\n".join(runs) + "\n")
open(f"{sys.argv[1]}/losses.csv", "w").write("arm,seed,step,loss\nfull,1,1,3.0\nfull,1,2,2.9\npower,1,1,3.25\n")
PY
course=$scratch/course
check "page.py without samples" python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$course" -o "$course" >"$scratch/printed"
check "gaps of a stopped run" grep -q '^| part (stopped) | +0\.0300 .* |  |  |  |$' "$course/table.md"
check "a power law" grep -q '^| power | .* | 0\.1000 t^-0\.400 | 0\.0 | ' "$course/table.md"
check "with a constant" grep -Eq '^\| floor \| .* \| 0\.0200 \+ 0\.0500 t\^-0\.80 \| 0\.0 \| 0\.0200 to 0\.0200 \|$' "$course/table.md"
check "no law of a stopped run" [ "$(grep -c '^| part' "$course/table.md")" = 1 ]
check "step 1" grep -q '^| power | +0\.2500 |$' "$course/table.md"
# Half the FLOPs and seconds: after as many, full had read 25M tokens, where its loss is 2.5.
check "speed" grep -q '^| power | 1,000,000 | 100\.0M | +0\.0525 | -0\.4475 | -0\.4475 |$' "$course/table.md"
check "page.py with a switched arm" python3 "$PERIGEE_SOURCE/tools/studies/page.py" "$course" --switched power -o "$scratch/switched" >"$scratch/printed"
check "no FLOPs of it" grep -q '^| power | 1,000,000 |  | +0\.0525 |  | -0\.4475 |$' "$scratch/switched/table.md"
check "a figure with three curves, one dashed" [ "$(grep -c '<polyline' "$course/gap.svg")/$(grep -c '<polyline.*dasharray' "$course/gap.svg")" = 3/1 ]
cat >"$scratch/axes.py" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import page
for i in range(100):
    drawn = page.gap_svg({"full": {1e6: 0.0, 2e6: 0.0}, "other": {1e6: 0.0, 2e6: 0.001 * 1.1 ** i}}, set(), "full")
    assert 3 <= drawn.count('text-anchor="end"') <= 9, (i, drawn.count('text-anchor="end"'))
PY
check "axes of gaps of any size" python3 "$scratch/axes.py" "$PERIGEE_SOURCE/tools/studies"

# --- A switch: arms alike to the last digit up to step 300, then a jump that fades.
mkdir "$scratch/switch"
python3 - "$scratch/switch" <<'PY'
import random, sys
noise, rows = random.Random(3), ["arm,seed,step,loss"]
for step in range(1, 501):
    loss = 2.0 + 0.01 * noise.choice((-1, 1))
    rows.append(f"gate,1,{step},{loss}")
    for arm, jump in (("mild", 0.02), ("spike", 0.2), ("never", 0.0)):
        rows.append(f"{arm},1,{step},{loss + (jump * 0.9 ** (step - 301) if step > 300 else 0.0)}")
open(f"{sys.argv[1]}/losses.csv", "w").write("\n".join(rows) + "\n")
PY
compare() { python3 "$PERIGEE_SOURCE/tools/studies/switch.py" "$scratch/switch" --step "$@" >"$scratch/printed" 2>&1; }
check "switch.py" compare 300 mild=gate spike=gate never=gate
check "a small jump" grep -Eq '^\| mild \| gate \| 1 \| \+0\.0200 \| 0\.010. \| [234]\.. \| 1\.. \| \+0\.0200 \| 200 \| [-+]0\.0000 \|  \|$' "$scratch/switch/switch.md"
check "a large one" grep -Eq '^\| spike \| gate \| 1 \| \+0\.2000 \| .* \| spike \|$' "$scratch/switch/switch.md"
check "none" grep -Eq '^\| never \| gate \| 1 \| \+0\.0000 \| .* \| 1\.. \| 1\.. \| \+0\.0000 \| 0 \| ' "$scratch/switch/switch.md"
! compare 301 mild=gate || complain "weights that were not the same"
check "where they differ" grep -q "mild, seed 1: losses differ from step 301 on" "$scratch/printed"
verdict
