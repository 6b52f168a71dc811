#!/usr/bin/env bash
# Runs bin/collectives between 1, 2, 3, 4 and 8 real processes on one GPU, by NCCL and through memory of the host, and
# has them leave a collective that cannot end.
source "${PERIGEE_SOURCE:?}/tests/support/stacked.sh"
program=${PERIGEE_BIN:?}/collectives

for n in 1 2 3 4 8; do expect_all_pass "$n" "$program" --gpu; done
for n in 2 4; do
    ranks "$n" "$program" --gpu --abort || true  # to mpirun, a rank that leaves MPI without a word has failed
    [ "$(grep -c '^aborted' "$scratch/printed")" = "$n" ] || complain "$n ranks: not all left"
done
expect_memory_back
verdict
