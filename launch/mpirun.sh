#!/usr/bin/env bash
# mpirun for one host with the settings Perigee wants: launch/mpirun.sh RANKS PROGRAM [ARGUMENT...]
#   - ranks are not bound to one core each, so that a rank can use its share of the cores as threads;
#   - more ranks than cores are allowed (small tests), and root may run it (containers);
#   - SIGTERM, SIGINT or SIGUSR1 tell the ranks to save and leave; a second one ends them at once;
#   - of what mpirun says about a rank that died, one line is kept.
# The exit code is mpirun's: 0, or the code of a rank (75: told to stop and saved).
set -uo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 RANKS PROGRAM [ARGUMENT...]" >&2
    exit 2
fi
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# mpirun frames its remarks in dashes. Of these only the signal that ended a rank is worth knowing: it completes what the
# other ranks say, or stands alone where they say nothing. The rest passes through.
one_line() {
    sed -u -E -n '
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

# Open MPI 4.1 gives ranks one second between SIGTERM and SIGKILL, and with a larger odls_base_sigkill_timeout waits that
# long before it sends SIGTERM at all; SIGUSR1 it only passes on. A process group of its own keeps away signals that are
# meant for this script's whole group.
set -m
exec 3>&2
mpirun --bind-to none --oversubscribe -n "$ranks" "$@" </dev/null 2> >(one_line >&3) &
mpirun=$!
set +m
stop() {
    kill -USR1 "$mpirun" 2>/dev/null
    trap 'kill -TERM "$mpirun" 2>/dev/null' TERM INT USR1
}
trap stop TERM INT USR1
code=0
while wait "$mpirun"; code=$?; kill -0 "$mpirun" 2>/dev/null; do :; done  # a trapped signal ends `wait` early
exit "$code"
