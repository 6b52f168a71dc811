#!/usr/bin/env bash
# Builds every fuzz target (tests/fuzz/*_fuzz.cc) and runs it, two at a time; prints what each did and fails at the first
# crash, hang, leak or allocation over 256 MiB, keeping the input. Corpora grow in build/cpu-asan/corpus.
# tests/fuzz.sh SECONDS [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: tests/fuzz.sh SECONDS [TARGET...]}
shift
launch/setup.sh --developer
cmake --preset cpu-asan >/dev/null
cmake --build --preset cpu-asan --target fuzz -- --quiet

build=build/cpu-asan
targets=("$@")
[ $# -gt 0 ] || for source in tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" .cc)"); done

fuzz_one() {
    local corpus=$build/corpus/$1 seeds=$build/seeds/$1 log=$build/$1.log
    mkdir -p "$corpus" "$seeds" "$build/crashes"
    "$build/bin/$1" --write-seeds "$seeds" || return 1
    if ! "$build/bin/$1" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=256 -max_len=65536 \
        -print_final_stats=1 -artifact_prefix="$build/crashes/$1-" "$corpus" "$seeds" >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        echo "fuzz: $1 failed: the input is in $build/crashes, all output in $log" >&2
        return 1
    fi
    echo "fuzz: $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions in $seconds s," \
        "$(grep -o 'cov: [0-9]*' "$log" | tail -n 1)"
}
export -f fuzz_one
export build seconds
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'fuzz_one {}'
