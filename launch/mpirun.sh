#!/usr/bin/env bash
# mpirun for one host with the settings Perigee wants: launch/mpirun.sh RANKS PROGRAM [ARGUMENT...]
#   - ranks are not bound to one core each, so that a rank can use its share of the cores as threads;
#   - more ranks than cores are allowed (small tests), and root may run it (containers).
# Where mpirun itself adds lines about a rank that failed, Perigee's own message stands first.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 RANKS PROGRAM [ARGUMENT...]" >&2
    exit 2
fi
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun --quiet --bind-to none --oversubscribe -n "$ranks" "$@"
