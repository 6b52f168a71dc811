# Sourced after jobs.sh by tests that disturb a job from its first line on.
export TMPDIR=$scratch/tmp  # of the jobs: what they leave behind is seen there
mkdir -p "$TMPDIR"
exec {never}<> <(:)
pause() { read -rt "$1" -u "$never" || true; }  # in seconds, without a process of its own

# The signals that a process catches. Prints nothing once it is gone.
caught() { local key value; while read -r key value; do [ "$key" != SigCgt: ] || echo "$((16#$value))"; done <"/proc/$1/status"; } 2>/dev/null

# begin COMMAND...: in the background as $job, with signals as a terminal has them, to $scratch/log; returns once the
# program of that name catches SIGTERM and SIGUSR1: `perigee` after main's first line, launch/mpirun.sh after its own.
begin() {
    local name=${1##*/} mask=$((1 << 14 | 1 << 9)) now line
    env --default-signal=INT,HUP,TERM,USR1 "$@" >"$scratch/log" 2>&1 </dev/null &
    job=$!
    until line=$(tr '\0' ' ' 2>/dev/null <"/proc/$job/cmdline") && [[ $line == *"/$name "* && $line != env\ * ]] &&
        now=$(caught "$job") && [ $((${now:-0} & mask)) = "$mask" ]; do
        [ -d "/proc/$job" ] || return 0
    done
}

# Shared memory of Open MPI that no process has mapped, and folders of jobs.
left_behind() {
    local file
    for file in /dev/shm/vader_segment.*; do
        [ -e "$file" ] || continue
        grep -qsF "$file" /proc/[0-9]*/maps || ! [ -e "$file" ] || echo "$file"
    done
    find "$TMPDIR" -mindepth 1 -maxdepth 2 \( -name 'pid.*' -o -name 'perigee-*' \)
}
clean() { [ -z "$(left_behind)" ]; }
launchers() { pgrep -f "^(mpirun|bash) .* output_dir=$1( |\$)" || true; }
job_ended() { none_left "$1" && [ -z "$(launchers "$1")" ]; }
# A number from 0 to 1 with most of its weight near 0.
early() { awk -v r="$RANDOM" 'BEGIN { r /= 32768; printf "%.4f", r * r }'; }
