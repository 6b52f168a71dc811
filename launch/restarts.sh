#!/usr/bin/env bash
# Whether a run that ended with a code may start again, for launch/mpirun.sh --restarts and launch/slurm.sh:
#   launch/restarts.sh CODE MOST PROGRAM CONFIG [key=value...]
# It may where a rank or a GPU died (7, and codes above 128), hung (6), or kept something wrong once (9); not where the same
# would happen again: errors of the config (2), the data (3), a checkpoint (4), numbers (5), memory (8), a faulty device (10).
# At most MOST times a run, and not where it ended at the same step twice in a row (ten more or less count as the same: saves
# go on beside training). Each end adds a line with its step and exit code to OUTPUT_DIR/restarts.txt; a finished run removes it.
# Prints a line that says what it found. The exit code is 0 where it may.
set -uo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 CODE MOST PROGRAM CONFIG [key=value...]" >&2
    exit 2
fi
code=$1 most=$2 program=$3
shift 3
say() { echo "perigee: $*" >&2 || true; }  # the reader of the log may be gone
if ! [[ $code =~ ^[0-9]{1,9}$ && $most =~ ^[0-9]{1,9}$ ]]; then
    say "CODE and MOST must be whole numbers, not '$code' and '$most'"
    exit 2
fi

if [ "$code" -lt 128 ]; then
    case $code in 0 | 6 | 7 | 9) ;; *) exit 1 ;; esac
fi
command -v -- "$program" >/dev/null || program=./$program  # mpirun takes it from this folder, too
folder=$("$program" check --folder "$@" 2>/dev/null)
[[ $folder != -* ]] || folder=./$folder
if [ "$code" = 0 ]; then
    [ -z "$folder" ] || rm -f "$folder/restarts.txt"
    exit 1
fi
if [ -z "$folder" ]; then
    say "it ended with code $code, and '$program check --folder' does not tell its folder: it does not start again"
    exit 1
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
