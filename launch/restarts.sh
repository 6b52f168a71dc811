#!/usr/bin/env bash
# Whether a run that ended with a code may start again, for launch/mpirun.sh --restarts and launch/slurm.sh:
#   launch/restarts.sh CODE MOST CONFIG [key=value...]
# It may where a rank or a GPU died (7, and codes above 128), hung (6), or kept something wrong once (9); not where the same
# would happen again: errors of the config (2), the data (3), a checkpoint (4), numbers (5), memory (8), a faulty device (10).
# At most MOST times a run, and not where it ended at the same step twice in a row (ten more or less count as the same: saves
# go on beside training). Each end adds a line with its step and exit code to OUTPUT_DIR/restarts.txt; a finished run removes it.
# Prints a line that says what it found. The exit code is 0 where it may.
set -uo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 CODE MOST CONFIG [key=value...]" >&2
    exit 2
fi
code=$1 most=$2 config=$3
shift 3
say() { echo "perigee: $*" >&2; }
if ! [[ $code =~ ^[0-9]{1,9}$ && $most =~ ^[0-9]{1,9}$ ]]; then
    say "CODE and MOST must be whole numbers, not '$code' and '$most'"
    exit 2
fi

folder=$(sed -nE 's/^output_dir:[[:space:]]*//p' "$config" 2>/dev/null | sed -E "s/[[:space:]]+#.*//; s/^[\"']//; s/[\"'][[:space:]]*$//" | tail -n 1)
folder=${folder:-runs/default}
for argument; do
    case $argument in output_dir=*) folder=${argument#output_dir=} ;; esac
done

if [ "$code" = 0 ]; then
    rm -f "$folder/restarts.txt"
    exit 1
fi
if [ "$code" -lt 128 ]; then
    case $code in 6 | 7 | 9) ;; *) exit 1 ;; esac
fi
if ! [ -d "$folder" ]; then
    say "it ended with code $code before its folder $folder was there: it does not start again"
    exit 1
fi
step=$(tail -n 1 "$folder/metrics.jsonl" 2>/dev/null | sed -nE 's/^\{"step":([0-9]+).*/\1/p')
step=${step:-0}
last=$(tail -n 1 "$folder/restarts.txt" 2>/dev/null | cut -d' ' -f1)
before=$(grep -c . "$folder/restarts.txt" 2>/dev/null)
echo "$step $code" >>"$folder/restarts.txt" || exit 1
if [ -n "$last" ] && [ $((step - last)) -le 10 ] && [ $((last - step)) -le 10 ]; then
    say "it ended with code $code after step $step, and after step $last the time before: it does not start again"
    exit 1
fi
if [ "${before:-0}" -ge "$most" ]; then
    say "it ended with code $code after step $step, and has started again $most times: that is enough"
    exit 1
fi
say "it ended with code $code after step $step: it starts again (restart $((${before:-0} + 1)) of $most)"
