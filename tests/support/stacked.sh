# Sourced by tests whose ranks share one GPU (`ctest -L stacked`), after which `expect_memory_back` wants its memory back.
# Without a GPU they are skipped. PERIGEE_ALONE=no: other jobs use the GPU, whose memory then says nothing.
source "${PERIGEE_SOURCE:?}/tests/support/mpi.sh"
nvidia-smi -L >/dev/null 2>&1 || {
    echo "no GPU"
    exit 77
}
# Ranks take turns on the GPU: kernels are loaded at the start, where none waits for the other, and NCCL takes little.
export CUDA_MODULE_LOADING=EAGER NCCL_BUFFSIZE=1048576 NCCL_MAX_CTAS=2

# MiB of the GPU that are taken
gpu_memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0; }
gpu_memory_before=$(gpu_memory)

# What ended ranks had on the GPU is free again, some seconds later at most.
expect_memory_back() {
    local now
    [ "${PERIGEE_ALONE:-yes}" = yes ] || return 0
    for _ in $(seq 50); do
        now=$(gpu_memory)
        [ "$now" -gt $((gpu_memory_before + 64)) ] || return 0
        sleep 0.2
    done
    complain "$((now - gpu_memory_before)) MiB of the GPU are still taken"
}
