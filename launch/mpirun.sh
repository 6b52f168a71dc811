#!/usr/bin/env bash
# mpirun with the settings Perigee wants, for this host or those of a hostfile (docs/cluster.md):
#   launch/mpirun.sh [--hostfile FILE] [--restarts N] RANKS PROGRAM [ARGUMENT...]
#   - ranks are not bound to one core each, so that a rank can use its share of the cores as threads;
#   - on this host, more ranks than cores are allowed (small tests), and root may run it (containers);
#   - on several hosts, ranks fill one host after the other, up to its slots, and get the variables that are named below;
#   - SIGTERM, SIGINT, SIGUSR1 and SIGHUP tell the ranks to save and leave, also while they start; a second signal, half a
#     second or more later, ends them at once;
#   - ranks whose launch script was killed save and leave (where one of them is on its host), those whose mpirun was
#     killed end;
#   - on this host, an mpirun that does not end though all ranks have, as it may when one died while it joined, is killed
#     (code 7);
#   - where standard error is a terminal, rank 0 writes to it directly, and shows its progress there;
#   - of what mpirun says about a rank that died, one line is kept;
#   - the job outlives the reader of its log; a result that standard output does not take ends it with code 3;
#   - with --restarts N, a training job that crashed or hung starts again from its last checkpoint, at most N times
#     (launch/restarts.sh); on this host with fewer ranks where GPUs are lost and the config allows it.
# The exit code is mpirun's: 0, or the code of a rank (75: told to stop, and saved what there was to save).
asked=
trap 'asked=${EPOCHREALTIME/[.,]/}' TERM INT USR1 HUP
trap '' PIPE
set -uo pipefail
# A new file takes the lowest free number. What is written to a closed standard output fails, as it should.
[ -e /dev/fd/0 ] || exec 0</dev/null
[ -e /dev/fd/1 ] || exec 1</dev/null
[ -e /dev/fd/2 ] || exec 2>/dev/null
hostfile= restarts=
while [[ ${1:-} == --hostfile || ${1:-} == --restarts ]] && [ $# -gt 1 ]; do
    if [ "$1" = --hostfile ]; then hostfile=$2; else restarts=$2; fi
    shift 2
done
if [ -n "$hostfile" ] && { ! [ -f "$hostfile" ] || ! [ -r "$hostfile" ]; }; then
    echo "perigee: no hostfile $hostfile can be read" >&2
    exit 2
fi
if [ $# -lt 2 ] || [[ $1 == -* ]] || [[ ! $restarts =~ ^[0-9]{0,9}$ ]] || [[ -n $restarts && ${3:-} != train ]]; then
    echo "usage: $0 [--hostfile FILE] [--restarts N] RANKS PROGRAM [ARGUMENT...]; --restarts is for PROGRAM train" >&2
    exit 2
fi
ranks=$1
if ! [[ $ranks =~ ^[1-9][0-9]{0,5}$ ]]; then
    echo "perigee: RANKS must be a whole number from 1 to 999999, not '$ranks'" >&2
    exit 2
fi
shift
if ! command -v mpirun >/dev/null; then
    echo "perigee: there is no mpirun in PATH: install Open MPI (Debian and Ubuntu: openmpi-bin)" >&2
    exit 2
fi
if [ -z "$hostfile" ] && [[ $1 != -* ]] && ! command -v -- "$1" >/dev/null && ! [ -x "./$1" ]; then
    echo "perigee: there is no program $1 that can be run: $0 $ranks /path/to/perigee train CONFIG" >&2
    exit 2
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export HOME=${HOME:-~}  # without it, mpirun crashes for a user that the system has no name for

if [ -n "$restarts" ]; then
    self=$(readlink -f "${BASH_SOURCE[0]}")
    source "$(dirname "$self")/supervise.sh"
    supervise "$@"
    exit
fi

# mpirun gives ranks a terminal of its own: they cannot see where their output goes.
PERIGEE_OUTPUT=file
[ ! -t 1 ] || PERIGEE_OUTPUT=terminal
export PERIGEE_OUTPUT

placement=(--oversubscribe)
if [ -n "$hostfile" ]; then
    # Neighbours in rank share a host, as tensor parallelism needs.
    placement=(--hostfile "$hostfile" --map-by slot)
    # Processes on other hosts get nothing of this environment but what is named, and Open MPI's own OMPI_*.
    for name in $(compgen -e); do
        case $name in
            NCCL_* | UCX_* | CUDA_* | OMP_* | OPENBLAS_* | LD_LIBRARY_PATH | PERIGEE_OUTPUT) placement+=(-x "$name") ;;
        esac
    done
    # Open MPI reaches InfiniBand through UCX; its older way there only warns about the devices it finds.
    export OMPI_MCA_btl=${OMPI_MCA_btl-^openib}
fi

# mpirun frames its remarks in dashes. Of those on ranks that ended, only the signal is worth knowing: it completes what the
# other ranks say, or stands alone where they say nothing. Its own errors about a remark that it could not show go. What
# it could not start or reach passes through, as does the rest.
one_line() {
    sed -u -E '/^\[.*ORTE_ERROR_LOG: .* in file .*\/show_help\.c at line [0-9]+$/d
        /^-{40,}$/{
            :frame
            $!{
                N
                /\n-{40,}$/!b frame
            }
            /^-+\n(mpirun (noticed|detected) |Primary job |MPI_ABORT was invoked )/!{
                s/^-+\n+//
                s/\n+-+$//
            }
        }' | sed -u -E -n '
        /^perigee: communication error: rank [0-9]+ .* died /{
            $p
            h
            d
        }
        /^mpirun noticed that process rank [0-9]+ .* exited on signal /{
            s/^mpirun noticed that process rank ([0-9]+) with PID [0-9]+ on node ([^ ]+) exited on (signal [0-9]+ \(.*\))\.$/\1 \2 \3/
            x
            /./{
                G
                s/\n[0-9]+ [^ ]+ /: /p
                s/.*//
                x
                d
            }
            g
            s/^([0-9]+) ([^ ]+) /perigee: rank \1 on host \2 was ended by /p
            s/.*//
            h
        }
        /^-{40,}$/,/^-{40,}$/!p
        ${
            x
            /./p
        }'
}

leave_early() {
    echo "perigee: told to stop: nothing to save yet" >&2
    exit 75
}

# What ranks look at (src/comm/launcher.h): a file that this script holds locked for as long as it lives, and removes to
# tell them to stop. A signal could meet a rank that has no handler yet, and end it. The lock of the folder is shared
# with mpirun: while either lives, no other job clears the folder away.
private=
trap 'kill -KILL -- ${guard:+-$guard} 2>/dev/null; rm -rf "$private"' EXIT
# A folder that is not locked yet may be cleared away: then make another.
until private=$(mktemp -d "${TMPDIR:-/tmp}/perigee-mpirun.$UID.XXXXXX") &&
    { exec 7<"$private" && flock --shared 7 && exec 8>"$private/running" && flock 8; } 2>/dev/null; do
    [ -z "$asked" ] || leave_early  # a Ctrl-C ends these programs as well
    if [ -z "$private" ] || [ -d "$private" ]; then
        echo "perigee: no file can be made and locked in ${TMPDIR:-/tmp}" >&2
        exit 1
    fi
done
export PERIGEE_LAUNCHER=$private/running
# Without this room, mpirun hangs or tells of errors in its own files.
if ! { head -c 8M /dev/zero >"$private/room"; } 2>/dev/null; then
    [ -z "$asked" ] || leave_early
    echo "perigee: mpirun needs 8 MiB in ${TMPDIR:-/tmp}, and they cannot be written there" >&2
    exit 1
fi
rm "$private/room"

# What comes through mpirun then takes the place of a progress bar.
clear=
if [ -t 2 ] && PERIGEE_TERMINAL=$(tty <&2); then
    export PERIGEE_TERMINAL
    clear=$'\r\e[K'
fi
remarks() {
    if [ -n "$clear" ]; then one_line | sed -u "s/^/$clear/"; else one_line; fi
}

# Kills an mpirun that does not end 15 seconds after the last rank: each holds a lock of the file `ranks` while it lives.
guard_mpirun() {
    exec 7<&- 8>&-
    local alone=0
    while sleep 1 && kill -0 "$mpirun"; do
        if [ -e "$private/ranks" ] && flock --nonblock "$private/ranks" true; then
            alone=$((alone + 1))
        else
            alone=0
        fi
        [ "$alone" -lt 15 ] || { : >"$private/hung" && kill -KILL "$mpirun"; }
    done
}

mpirun=
stop() {
    local now=${EPOCHREALTIME/[.,]/}
    if [ -z "$asked" ]; then
        asked=$now
        if [ -z "$hostfile" ]; then
            rm -f "$private/running"
        else
            # Ranks of other hosts do not see the file: mpirun passes the signal on. The file then tells those here that
            # had not started yet; at the same moment it could count as a second request.
            [ -z "$mpirun" ] || kill -USR1 "$mpirun" 2>/dev/null
            { sleep 1 && rm -f "$private/running"; } </dev/null >/dev/null 2>&1 3>&- 7<&- 8>&- &
        fi
    elif [ $((now - asked)) -ge 500000 ] && [ -n "$mpirun" ]; then
        kill -TERM "$mpirun" 2>/dev/null
    fi
}
trap stop TERM INT USR1 HUP
[ -z "$asked" ] || leave_early

# A process group of its own keeps away signals that are meant for this script's whole group.
set -m
exec 3>&2 4> >(trap '' TERM INT USR1 HUP; exec 7<&- 8>&-; remarks >&3; cat >/dev/null)
said=$!
exec 5> >(trap '' TERM INT USR1 HUP; exec 4>&- 7<&- 8>&-; cat 2>/dev/null || { : >"$private/lost"; cat >/dev/null; })
printed=$!
mpirun --bind-to none "${placement[@]}" -n "$ranks" "$@" </dev/null >&5 2>&4 4>&- 5>&- 8>&- &
mpirun=$!
exec 4>&- 5>&-
guard=
if [ -z "$hostfile" ]; then
    guard_mpirun </dev/null >/dev/null 2>&1 3>&- &
    guard=$!
    disown "$guard"  # this shell says nothing about its end
fi
set +m
code=0
while wait "$mpirun"; code=$?; kill -0 "$mpirun" 2>/dev/null; do :; done  # a trapped signal ends `wait` early
if [ "$code" -gt 128 ]; then code=0; wait "$mpirun" || code=$?; fi  # or it was the signal's, and mpirun ended meanwhile
for _ in {1..500}; do kill -0 "$said" "$printed" 2>/dev/null || break; sleep 0.02; done  # until all it said is written
# 138: SIGUSR1 met mpirun or a rank of another host before it handles signals, with nothing to save yet.
if [ -n "$hostfile" ] && [ -n "$asked" ] && [ "$code" = 138 ]; then code=75; fi
if [ -e "$private/hung" ]; then
    echo "perigee: mpirun did not end after the last rank, and was killed" >&2
    code=7
    [ -z "$asked" ] || code=75
fi
if [ -e "$private/lost" ] && [ "$code" = 0 ]; then
    echo "perigee: data error: standard output has not taken the result" >&2
    code=3
fi
exit "$code"
