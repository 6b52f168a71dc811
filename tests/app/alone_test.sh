#!/usr/bin/env bash
# Commands of one process: MPI is not started for them, nor for help and mistakes; mpirun cannot multiply them; a request
# to stop ends them with 75 from their start; errors are said once, by category.
source "$PERIGEE_SOURCE/tests/support/mpi.sh"
source "$PERIGEE_SOURCE/tests/support/jobs.sh"
source "$PERIGEE_SOURCE/tests/support/signals.sh"

says() {  # says CODE PATTERN WHAT COMMAND...
    local code=0
    "${@:4}" >"$scratch/log" 2>&1 </dev/null || code=$?
    [ "$code" = "$1" ] || complain "$3: exit code $code instead of $1"
    grep -qE -- "$2" "$scratch/log" || complain "$3: does not say '$2'"
}
perigee=$PERIGEE_BIN/perigee

# A launcher that cannot be reached: MPI_Init would fail or hang.
unreachable=(env PMIX_RANK=0 PMIX_NAMESPACE=nowhere PMIX_SERVER_URI2=nowhere timeout -k 1 20)
says 0 'perigee tokenize' "help" "$perigee" tokenize --help
says 2 'did you mean "tokenize"' "a mistake" "$perigee" tokenise
mkdir "$scratch/text"
echo "some text" >"$scratch/text/a.txt"
says 0 '1 documents' "no MPI for tokenize" "${unreachable[@]}" "$perigee" tokenize "$scratch/text" -o "$scratch/tokens"
says 3 '^perigee: data error: .*nowhere: no such' "an error" "$perigee" plot "$scratch/nowhere"
says 2 '`perigee plot` runs as one process, not as 2 ranks' "two ranks" mpirun -n 2 "$perigee" plot "$scratch/nowhere"
[ "$(grep -c 'runs as one process' "$scratch/log")" = 1 ] || complain "two ranks: said more than once"

# Told to stop as soon as main has begun, and while it works. All of this text takes many seconds.
{ yes "some more text of a document" || true; } | head -c 300000000 >"$scratch/text/long.txt"
for signal in TERM INT USR1 HUP; do
    for seconds in 0 0.5; do
        begin "$perigee" tokenize "$scratch/text" -o "$scratch/many" --threads 1
        pause "$seconds"
        kill "-$signal" "$job"
        finish
        [ "$code" = 75 ] || complain "SIG$signal after $seconds s: exit code $code"
        grep -q '^perigee: told to stop' "$scratch/log" || complain "SIG$signal after $seconds s: says nothing of it"
    done
done
verdict
