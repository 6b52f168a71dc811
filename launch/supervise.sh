# Sourced by launch/mpirun.sh --restarts: runs that script again and again. It has set $self, $hostfile, $ranks, $restarts and
# $asked, which is not empty once the job was told to stop.

# The GPUs that work on this host; nothing where there are none.
gpus() { nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | grep -cE '^[0-9]+$' || true; }

# The most ranks up to $1 with which the config can run the same global batch.
fitting_ranks() {
    local n=$1 program=$2
    shift 3  # and `train`
    for (( ; n > 0; --n)); do
        if "$program" check "$@" --world-size "$n" >/dev/null 2>&1; then
            echo "$n"
            return
        fi
    done
}

supervise() {  # PROGRAM train CONFIG [key=value...]
    local before now fewer child= code
    before=$(gpus)
    local job=("$self")
    [ -z "$hostfile" ] || job+=(--hostfile "$hostfile")
    # A job whose supervisor was killed is told to stop.
    if command -v setpriv >/dev/null; then job=(setpriv --pdeathsig TERM "${job[@]}"); fi
    trap 'asked=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT USR1 HUP
    while :; do
        [ -z "$asked" ] || return 75
        "${job[@]}" "$ranks" "$@" &
        child=$!
        while wait "$child"; code=$?; kill -0 "$child" 2>/dev/null; do :; done  # a trapped signal ends `wait` early
        if [ "$code" -gt 128 ]; then code=0; wait "$child" || code=$?; fi  # or it was the signal's, and the job ended meanwhile
        child=
        [ -z "$asked" ] || return "$code"
        "$(dirname "$self")/restarts.sh" "$code" "$restarts" "$1" "${@:3}" || return "$code"
        [ -z "$hostfile" ] || continue
        now=$(gpus)
        if [ "$now" -lt "$before" ] && [ "$ranks" -gt "$now" ] && [ "$ranks" -le "$before" ]; then
            fewer=$(fitting_ranks "$now" "$@")
            if [ -z "$fewer" ]; then
                echo "perigee: $now of $before GPUs are left, and the config runs on no fewer than $ranks ranks" >&2
                return "$code"
            fi
            echo "perigee: $now of $before GPUs are left: it goes on with $fewer ranks instead of $ranks" >&2
            ranks=$fewer
        fi
    done
}
