# Sourced after jobs.sh by tests that disturb a job from its first line on.
exec {never}<> <(:)
pause() { read -rt "$1" -u "$never" || true; }  # in seconds, without a process of its own

# The signals that process $job catches, in hexadecimal.
caught() { local key value; while read -r key value; do [ "$key" != SigCgt: ] || echo "$value"; done <"/proc/$job/status"; }
# Whether $job has passed its first line: it catches SIGTERM and SIGUSR1. Where /proc does not tell signals (gVisor), it
# has passed a later line: `perigee` has threads, launch/mpirun.sh its lock.
if grep -q '^SigCgt:' /proc/self/status; then
    has_begun() { local mask=$((1 << 14 | 1 << 9)) now; now=$(caught) && [ $((16#${now:-0} & mask)) = "$mask" ]; }
else
    has_begun() { [ -e "/proc/$job/fd/8" ] || [ "$(ls "/proc/$job/task" | wc -l)" -ge 2 ]; }
fi 2>/dev/null

# begin COMMAND...: in the background as $job, with signals as a terminal has them, to $scratch/log; returns once the
# program of that name has passed its first line.
begin() {
    local name=${1##*/} line
    env --default-signal=INT,HUP,TERM,USR1 "$@" >"$scratch/log" 2>&1 </dev/null &
    job=$!
    until line=$(tr '\0' ' ' <"/proc/$job/cmdline") && [[ $line == *"/$name "* && $line != env\ * ]] && has_begun; do
        [ -d "/proc/$job" ] || return 0
    done 2>/dev/null
}

# Shared memory of Open MPI that no process has mapped, and what jobs left in their folder for temporary files.
left_behind() {
    local file
    for file in /dev/shm/vader_segment.* /dev/shm/osc_sm.*; do
        [ -e "$file" ] || continue
        grep -qsF "$file" /proc/[0-9]*/maps || ! [ -e "$file" ] || echo "$file"
    done
    find "$TMPDIR" -mindepth 1 -maxdepth 2 ! -path "$TMPDIR/ompi.*" -o -path "$TMPDIR/ompi.*/*"
}
# Whether nothing is left behind. What a job beside this test leaves goes with that job's next start.
clean() {
    local file
    for file in $(left_behind); do eventually 20 no_longer_left "$file" || return 1; done
}
no_longer_left() { ! left_behind | grep -qxF "$1"; }
launchers() { pgrep -f "^(mpirun|bash) .* output_dir=$1( |\$)" || true; }
job_ended() { none_left "$1" && [ -z "$(launchers "$1")" ]; }
# A number from 0 to 1 with most of its weight near 0.
early() { awk -v r="$RANDOM" 'BEGIN { r /= 32768; printf "%.4f", r * r }'; }
