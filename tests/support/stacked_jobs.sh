# Sourced by tests of `perigee train` whose ranks share one GPU, with `launch/mpirun.sh`; brings stacked.sh and jobs.sh.
# PERIGEE_STACKED_DEVICE=cpu plays them on CPU ranks, where the tests themselves are looked at.
stacked_device=${PERIGEE_STACKED_DEVICE:-cuda}
if [ "$stacked_device" = cpu ]; then
    source "${PERIGEE_SOURCE:?}/tests/support/mpi.sh"
    nccl=mpi  # what carries tensors
    expect_memory_back() { true; }
else
    source "${PERIGEE_SOURCE:?}/tests/support/stacked.sh"
    nccl=nccl
fi
source "$PERIGEE_SOURCE/tests/support/jobs.sh"

# A model that the kernels of a GPU take.
cat >"$scratch/run.yaml" <<YAML
model: {vocab_size: 512, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, head_dim: 64}
attention: {kind: moba, block_size: 64, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 256}
train: {steps: 20, global_batch_size: 4, micro_batch_size: 1}
schedule: {warmup_steps: 5}
checkpoint: {every: 10, keep_last: 0}
device: $stacked_device
deterministic: true
parallel: {share_gpu: true, shard: optimizer}
threads: 1
log: {progress: false}
YAML
