#!/usr/bin/env bash
# A Slurm batch job on one or several nodes (docs/cluster.md):
#   sbatch launch/slurm.sh CONFIG [key=value...]
# Edit the lines below, or override them on sbatch's command line: sbatch --nodes=4 launch/slurm.sh CONFIG
# Two minutes before the time limit, and on preemption, every rank is told to save (SIGUSR1). The job then leaves with code
# 75 and goes back into the queue, where it resumes from that checkpoint; also when it is told so while it starts.
# With PERIGEE_RESTARTS=N in its environment, a job that crashed or hung goes back into the queue too, at most N times
# (launch/restarts.sh).
#SBATCH --job-name=perigee
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=perigee-%j.log
asked=
trap 'asked=1' TERM USR1
set -uo pipefail
if [ $# -lt 1 ]; then
    echo "usage: sbatch $0 CONFIG [key=value...]" >&2
    exit 2
fi
if ! [[ ${PERIGEE_RESTARTS:-0} =~ ^[0-9]{1,9}$ ]]; then
    echo "perigee: PERIGEE_RESTARTS must be a whole number, not '$PERIGEE_RESTARTS'" >&2
    exit 2
fi
# sbatch runs a copy of this file, so paths start where the job was submitted.
cd "${SLURM_SUBMIT_DIR:-.}" || exit 2
builds=(build/cpu)
[ "${SLURM_GPUS_ON_NODE:-0}" = 0 ] || builds=(build/cuda build/cpu)
program=perigee  # an installed one
for build in "${builds[@]}"; do
    if [ -x "$build/bin/perigee" ]; then
        program=$build/bin/perigee
        break
    fi
done
program=${PERIGEE:-$program}

requeue() {
    [ -z "${SLURM_JOB_ID:-}" ] || scontrol requeue "$SLURM_JOB_ID"
    exit 75
}

[ -z "$asked" ] || requeue  # told to stop before anything began
# Neighbours in rank share a node, as tensor parallelism needs. Since Slurm 22.05, srun asks for its tasks' CPUs itself.
tasks=(--mpi=pmix --distribution=block)
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || tasks+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
# With GPUs, every rank sees all of its node and takes one by its local rank: processes that cannot see each other's GPUs
# may not copy between them directly. Perigee then binds each rank to the CPUs next to its GPU.
[ "${SLURM_GPUS_ON_NODE:-0}" = 0 ] || tasks+=(--gpu-bind=none --cpu-bind=none)

# The first rank to leave with code 75 must not take along others that are about to; a rank that fails ends the job itself.
srun "${tasks[@]}" --kill-on-bad-exit=0 --wait=30 "$program" train "$@" &
srun=$!
forward() { kill -USR1 "$srun" 2>/dev/null; }  # srun passes it on to the ranks
trap forward TERM USR1
[ -z "$asked" ] || forward
code=0
while wait "$srun"; code=$?; kill -0 "$srun" 2>/dev/null; do :; done  # a trapped signal ends `wait` early
if [ "$code" -gt 128 ]; then code=0; wait "$srun" || code=$?; fi  # or it was the signal's, and srun ended meanwhile
# 138 and 143: SIGUSR1 or SIGTERM met srun or a rank in the moment before it handles them, with nothing to save yet.
case $code in
    75 | 138 | 143) requeue ;;
esac
if [ -n "${PERIGEE_RESTARTS:-}" ]; then
    # sbatch runs a copy of this file, so restarts.sh is not next to it: look in the submit, build and install folders.
    bin=$(dirname "$(command -v -- "$program")")
    for restarts in launch/restarts.sh "$bin/../../../launch/restarts.sh" "$bin/../share/perigee/launch/restarts.sh"; do
        [ ! -x "$restarts" ] || break
    done
    if ! [ -x "$restarts" ]; then
        echo "perigee: there is no launch/restarts.sh in $PWD or near $program: it does not start again" >&2
    elif "$restarts" "$code" "$PERIGEE_RESTARTS" "$program" "$@"; then
        requeue
    fi
fi
exit "$code"
