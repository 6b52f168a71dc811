#!/usr/bin/env bash
# The studies' PyTorch scripts: sums of blocks against full attention and against a reference, a run that is taken up
# again, and what rounding to FP8 does to the values of a tile. Sets up .venv at the root of the repository first.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
"$PERIGEE_SOURCE/tests/tools/setup_transformers.sh"
python=$PERIGEE_SOURCE/.venv/bin/python merge=$PERIGEE_SOURCE/tools/studies/sum_merge.py
check() {
    local what=$1
    shift
    "$@" || complain "$what"
}

check "sums of blocks" "$python" "$merge" --check >"$scratch/printed" 2>"$scratch/log"
check "log-sum-exp is full attention" grep -qE '^\| lse \| [0-9.]+e-0[78] \| [0-9.]+e-1[5-7] \|' "$scratch/printed"
check "sums are not" [ "$(grep -cE '^\| (gate|mean)_sum \| [1-9]\.[0-9]e-01 ' "$scratch/printed")" = 2 ]
for ((i = 0; i < 3000; ++i)); do echo "line $((i * 7919 % 3001)) of a text"; done >"$scratch/text"
study() {
    "$python" "$merge" --text "$scratch/text" -o "$scratch/study" --layers 1 --hidden 32 --heads 2 --length 64 --batch 2 \
        --steps 40 --warmup 4 --seeds 1 "$@" >"$scratch/printed" 2>"$scratch/log"
}
code=0
study --rates 1e-3 --minutes 1e-9 || code=$?
check "a budget ends with 75" [ "$code" = 75 ]
check "the next part" study --rates 1e-3
check "takes the runs that are left" [ "$(wc -l <"$scratch/study/runs.csv")" = 4 ]
cp "$scratch/study/runs.csv" "$scratch/before"
check "again" study --rates 1e-3
check "nothing runs twice" cmp "$scratch/before" "$scratch/study/runs.csv"
check "a rate beyond all" study --rates 1e30 --arms lse
check "diverges, and is kept" grep -qE '^[^,]*,lse,1e\+30,1,([^,]*,){4}1,' "$scratch/study/runs.csv"
! study --rates 1e-3 --qk_norm || complain "another setup in the same folder"

cat >"$scratch/rounding.py" <<'PY'
import sys
import torch
sys.path.insert(0, sys.argv[1] + "/tools/studies")
import fp8_forward as f
x = torch.randn(3, 200, generator=torch.Generator().manual_seed(1)) * torch.logspace(-2, 2, 200)
for scale in (f.power_of_two, f.exact):
    rounded = f.round_input(x, scale)
    for row, begin in ((0, 0), (2, 128)):  # a tile by definition, the last one shorter
        tile = x[row, begin:begin + 128]
        s = scale(tile.abs().max())
        assert torch.equal(rounded[row, begin:begin + 128], (tile / s).to(torch.float8_e4m3fn).float() * s)
        assert 224 < tile.abs().max() / s <= 448.001
    assert (rounded - x).abs().max() <= x.abs().max() / 16 and not torch.equal(rounded, x)
assert torch.equal(f.round_weight(torch.zeros(130, 64), f.power_of_two), torch.zeros(130, 64))
whole = torch.arange(1.0, 9.0).repeat(130, 16)  # values that E4M3 has
assert torch.equal(f.round_weight(whole, f.power_of_two), whole)
PY
check "rounding" "$python" "$scratch/rounding.py" "$PERIGEE_SOURCE" 2>"$scratch/log"
verdict
