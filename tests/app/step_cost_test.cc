// What `perigee check` predicts against what real ranks take and send: the ranks compute, their groups and their device
// are counted from outside.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "app/dry_run.h"
#include "config/config.h"
#include "kernels/dense_attention/plan.h"
#include "support/counting_comm.h"
#include "support/counting_device.h"
#include "support/memory_file_system.h"
#include "support/thread_comm.h"
#include "train/trainer.h"

namespace perigee::testing {
namespace {

/// Large enough for every cut of up to 8 ranks, for two buckets, and for an arena of more than the smallest block.
RunOptions hybrid(std::vector<std::string> const& overrides = {}) {
    RunOptions const options = parse_config(R"(
output_dir: /run
device: cpu
model: {vocab_size: 1030, hidden_size: 64, intermediate_size: 192, num_hidden_layers: 3, num_attention_heads: 8,
        num_key_value_heads: 4}
attention: {kind: moba, block_size: 32, top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 384}
parallel: {bucket_mib: 1}
train: {global_batch_size: 12, micro_batch_size: 4}
checkpoint: {every: 0}
threads: 1
log: {progress: false}
)",
                                            "hybrid", overrides);
    return resolve(options, 1, *make_file_system());
}

/// By axis, collective and content.
using Messages = std::map<std::string, Sent>;

/// The share of a ring: what a rank sends of what it brings.
double ring_share(std::string const& collective, int n) {
    if (collective == "all_gather") return n - 1;
    return (collective == "all_reduce" ? 2.0 : 1.0) * (n - 1) / n;
}

/// Groups that a mesh splits off count under their axis.
Messages messages(CommCounts const& counts) {
    Messages all;
    for (auto const& [key, count] : counts) {
        if (count.ranks == 1) continue;
        std::string axis = "all ";
        for (char const* const name : {"tensor ", "context ", "data ", "data x context "})
            if (key.starts_with(name)) axis = name;  // the last that fits: "data" begins two
        std::string const rest = key.starts_with(axis) ? key.substr(axis.size()) : key;
        std::string const collective = rest.substr(0, rest.find(' '));
        all[fmt::format("{}{}", axis, rest)] = {count.calls,
                                                static_cast<double>(count.bytes) * ring_share(collective, count.ranks)};
    }
    return all;
}

void expect_messages(Messages const& predicted, Messages const& real) {
    for (auto const& [kind, sent] : real) {
        auto const found = predicted.find(kind);
        ASSERT_NE(found, predicted.end()) << kind << " was not foreseen";
        EXPECT_EQ(found->second.calls, sent.calls) << kind;
        EXPECT_DOUBLE_EQ(found->second.bytes, sent.bytes) << kind;
    }
    EXPECT_EQ(predicted.size(), real.size()) << "more kinds were foreseen than there are";
}

void expect_bytes(char const* what, int64_t predicted, int64_t real) {
    EXPECT_NEAR(static_cast<double>(predicted), static_cast<double>(real), 0.01 * static_cast<double>(real)) << what;
}

CommCount at(CommCounts const& counts, std::string const& key) {
    auto const found = counts.find(key);
    return found == counts.end() ? CommCount{} : found->second;
}

/// Memory that messages need, from the largest ones seen: one side of those of the tensor axis, the other being the
/// stream; both sides of exchanged heads; all keys, values and their gradients, all keys and values by rank where
/// shards are zigzag, and where heads go in groups the rank's own keys, values and their gradients.
int64_t message_memory(CommCounts const& counts, bool zigzag, bool in_groups) {
    auto const tp = at(counts, "tensor all_gather activations"),
               exchanged = at(counts, "context all_to_all activations"),
               gathered = at(counts, "context all_gather activations");
    int64_t const keys = gathered.ranks > 1 ? gathered.largest * gathered.ranks : 0;
    int64_t const own = in_groups ? 2 * gathered.largest : 0;
    int64_t const exchange = exchanged.ranks > 1 ? 2 * exchanged.largest : 0;
    // Sums of gathered keys' gradients come after the exchanges of a layer.
    return (tp.ranks > 1 ? tp.largest * tp.ranks : 0) + 2 * keys + own +
           std::max((zigzag ? 4 : 2) * keys + own, exchange);
}

int64_t logits_bytes(RunOptions const& options, MeshShape const& mesh) {
    int64_t const tokens = options.train.micro_batch_size * options.data.sequence_length / mesh.cp;
    return tokens * options.model.vocab_size / mesh.tp * int64_t{sizeof(float)};
}

/// One rank of a real job takes a step.
void hold_against_a_rank(RunOptions const& options, StepCost const& predicted, HostComm& inner) {
    auto owned = std::make_unique<CountingDevice>();
    CountingDevice& device = *owned;
    ModelWeights const* weights = nullptr;
    ShardedGradients const* gradients = nullptr;
    CommCounts counts;
    CountingComm world(inner, counts, [&](ConstView x) {
        if (!device.holds(x.data)) return "scalars";
        if (weights != nullptr && weights->holds(x.data)) return "weights";
        return gradients != nullptr && gradients->holds(x.data) ? "gradients" : "activations";
    });
    MemoryFileSystem files;
    auto ops = make_host_ops(device, 1);
    Session session(options, Mesh(options.parallel, world), {std::move(owned), std::move(ops)}, files);
    StepMemory const& memory = predicted.memory;
    Learner learner(session);
    auto const& requests = device.requests();
    size_t const frozen = session.frozen_layout() != nullptr ? 1 : 0;
    ASSERT_EQ(requests.size(), 5u + frozen) << "weights, frozen weights, gradients, two sums, two moments";
    expect_bytes("optimizer", memory.optimizer, requests[3 + frozen] + requests[4 + frozen]);

    weights = &session.model_weights();
    gradients = &learner.gradients();
    learner.initialise(1);
    int64_t const state_bytes = device.live_bytes();
    auto const data = session.open(Split::train);
    MeshShape const mesh = session.mesh().shape();
    int64_t const micro = options.train.micro_batch_size;
    std::vector<Batch> batches;
    for (int64_t i = session.mesh().dp_rank(); i < options.train.global_batch_size / micro; i += mesh.dp)
        batches.push_back(make_batch(*data, i * micro, micro));
    RunState state;
    if (frozen == 1) learner.step(batches, state);  // only the first step gathers frozen weights
    counts.clear();
    EXPECT_GT(learner.step(batches, state).grad_norm, 0);
    EXPECT_FALSE(learner.agree({}).stop);
    expect_bytes("buckets", memory.buckets, device.lane("sums", Priority::high).workspace_bytes());
    expect_bytes("weights", memory.weights, weights->bytes());
    expect_bytes("gradients", memory.gradients, gradients->bytes());
    int64_t const shares = requests[0] + (frozen == 1 ? requests[1] : 0) + requests[1 + frozen];
    int64_t const slots = weights->bytes() + gradients->bytes() - shares;
    expect_bytes("host", memory.host, device.host_bytes());
    expect_bytes("step", memory.step + memory.buckets + memory.gathered + slots, device.live_bytes() - state_bytes);
    expect_bytes("all", memory.sum(), device.live_bytes());
    expect_bytes("activations", memory.activations, session.arena().peak_bytes(Use::activations));
    expect_bytes("logits", memory.logits, logits_bytes(options, mesh));
    expect_bytes(
        "messages", memory.messages + memory.gathered,
        message_memory(counts, options.attention.kind == AttentionKind::full, options.parallel.head_groups > 1));

    Messages foreseen;
    for (auto const& [kind, sent] : predicted.sent)
        foreseen[fmt::format("{} {} {}", kind.axis, to_string(kind.collective), kind.content)] = sent;
    expect_messages(foreseen, messages(counts));
}

struct Case {
    int ranks;
    std::vector<std::string> overrides;
};

TEST(StepCost, IsWhatRealRanksTakeAndSend) {
    std::vector<Case> const cases = {
        {1, {}},
        {1, {"train.recompute=block*2, attention"}},
        {1, {"train.mlp_chunk=200"}},
        {1, {"train.offload=3", "model.num_hidden_layers=6", "train.recompute=none*2, mlp*2, block*2"}},
        {2,
         {"train.offload=2", "train.mlp_chunk=100", "train.recompute=block", "model.num_hidden_layers=5",
          "parallel.tensor=2", "parallel.shard=weights"}},
        {1, {"train.recompute=none, mlp, elementwise", "model.qk_norm=true"}},
        {2, {"train.recompute=attention", "parallel.context=2", "parallel.context_mode=ulysses"}},
        {2, {"train.recompute=block, attention, mlp", "parallel.tensor=2"}},
        {2, {"parallel.tensor=2", "model.qkv_bias=true", "model.tie_word_embeddings=true"}},
        {2, {"parallel.context=2", "parallel.context_mode=ulysses", "model.qk_norm=true"}},
        {3, {"parallel.context=3", "parallel.context_mode=allgather", "parallel.zero=false"}},
        {2, {"parallel.context=2", "parallel.zero=false"}},
        {2, {"train.recompute=block", "parallel.context=2", "model.qk_norm=true"}},
        {2, {"train.recompute=block, none", "parallel.context=2", "parallel.head_groups=4"}},
        {2, {"train.recompute=attention, none, block", "parallel.context=2"}},
        {4, {"parallel.context=4", "parallel.context_mode=allgather", "attention.kind=full"}},
        {3, {"model.vocab_size=1031"}},
        {3, {"parallel.shard=gradients"}},
        {2, {"parallel.shard=weights", "model.tie_word_embeddings=true", "train.global_batch_size=16"}},
        {8, {"parallel.tensor=2", "parallel.context=2", "parallel.shard=weights", "train.global_batch_size=24"}},
        {3, {"parallel.zero=false"}},
        {1, {"lora.rank=4"}},
        {1, {"lora.rank=4", "lora.dropout=0.1", "train.mlp_chunk=200", "lora.targets=[v_proj, down_proj]"}},
        {8,
         {"parallel.tensor=2", "parallel.context=2", "parallel.shard=weights", "train.global_batch_size=24",
          "lora.rank=4", "lora.dropout=0.1"}},
        {2,
         {"parallel.shard=weights", "train.global_batch_size=16",
          "train.freeze=[model.embed_tokens.weight, model.layers.0.*, \"*norm.weight\"]"}},
        {8, {"parallel.tensor=2", "parallel.context=2", "train.global_batch_size=24"}},
        {8,
         {"parallel.tensor=2", "parallel.context=2", "parallel.context_mode=allgather", "parallel.zero=false",
          "train.global_batch_size=24"}}};
    for (size_t i = 0; i < cases.size(); i += PERIGEE_SANITIZED ? 2 : 1) {
        auto const& [ranks, overrides] = cases[i];
        SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(overrides, " ")));
        RunOptions const options = hybrid(overrides);
        ASSERT_EQ(problems(options, ranks), std::vector<std::string>());
        StepCost const predicted = step_cost(options, ranks);
        run_ranks(ranks, [&](HostComm& world) { hold_against_a_rank(options, predicted, world); });
    }
}

TEST(StepCost, OfFrozenParametersIsTheirWeightAlone) {
    RunOptions const all = hybrid(), adapters = hybrid({"lora.rank=4"});
    int64_t trained = 0, frozen = 0;
    for (ParamSpec const& spec : params_of(adapters)) (spec.frozen ? frozen : trained) += spec.shape.size();
    StepMemory const memory = step_cost(adapters, 1).memory;
    EXPECT_EQ(trained, 3 * 4 * (6 * 64 + 192 + 2 * 64 + 2 * 32 + 2 * 192 + 64));
    EXPECT_EQ(memory.weights, 4 * (frozen + trained));
    EXPECT_EQ(memory.gradients, 4 * trained);
    EXPECT_EQ(memory.optimizer, 8 * trained);
    EXPECT_EQ(step_cost(all, 1).memory.optimizer, 8 * frozen);
}

/// What all ranks of a whole job of this many steps bring, saving at its end included.
CommCounts whole_run(RunOptions options, int ranks, int64_t steps) {
    options.train.steps = steps;
    CommCounts all;
    std::mutex mutex;
    MemoryFileSystem files;
    run_ranks(ranks, [&](HostComm& inner) {
        CommCounts counts;
        CountingComm world(inner, counts);
        EXPECT_EQ(Trainer(options, world, files, "").run(), perigee::Outcome::finished);
        std::lock_guard const lock(mutex);
        for (auto const& [key, count] : counts) {
            CommCount& sum = all[key];
            sum.calls += count.calls;
            sum.bytes += count.bytes;
            sum.ranks = count.ranks;
        }
    });
    return all;
}

/// MoBA's scratch memory stays within train.moba_scratch_mib, and a limit that is too small is refused. The option does
/// not limit cuDNN's.
TEST(StepCost, ScratchOfMobaOnAGpuKeepsWithinItsOption) {
    auto const memory = [](std::vector<std::string> overrides) {
        for (char const* const more : {"device=cuda", "data.sequence_length=16384", "train.micro_batch_size=1",
                                       "attention.top_k=8", "model.max_position_embeddings=16384",
                                       "model.hidden_size=256", "model.head_dim=64", "attention.full_layers.last=0"})
            overrides.emplace_back(more);
        return step_cost(hybrid(overrides), 1).memory;
    };
    auto const scratch = [&](std::vector<std::string> const& overrides) { return memory(overrides).scratch; };
    constexpr int64_t kMiB = 1 << 20;
    int64_t const all = scratch({}), some = scratch({"train.moba_scratch_mib=64"}),
                  least = scratch({"train.moba_scratch_mib=8"});
    EXPECT_GT(all, 100 * kMiB);
    EXPECT_LE(all, 2048 * kMiB);
    EXPECT_LE(some, 64 * kMiB);
    EXPECT_GT(some, least);
    EXPECT_GT(least, 0);
    EXPECT_LE(least, 8 * kMiB);
    EXPECT_THROW(scratch({"train.moba_scratch_mib=1"}), Error);
    EXPECT_GT(memory({}).activations - memory({"attention.kind=full"}).activations,
              2 * 16384 * 8 * 7 * int64_t{sizeof(uint32_t)})
        << "choices and lists";
    RunOptions const model = hybrid();
    DenseAttentionShape const dense{.tokens = 16384,
                                    .documents = 1,
                                    .heads = model.model.num_attention_heads,
                                    .kv_heads = model.model.num_key_value_heads,
                                    .head_dim = 64};
    EXPECT_EQ(scratch({"attention.kind=full"}), static_cast<int64_t>(dense_backward_scratch(dense)));
    EXPECT_EQ(scratch({"attention.kind=full", "deterministic=true"}),
              static_cast<int64_t>(dense_backward_scratch(dense)));
    StepMemory const on_cpu = step_cost(hybrid(), 1).memory;
    EXPECT_EQ(on_cpu.scratch, 0);
    EXPECT_EQ(on_cpu.context, 0);
    EXPECT_EQ(memory({}).in_use() - memory({}).sum(), memory({}).context);
    EXPECT_GT(memory({}).context, 0);
}

TEST(StepCost, RefusesWhatTheGpuWould) {
    EXPECT_THROW(step_cost(hybrid({"device=cuda", "model.head_dim=24"}), 1), Error);
    EXPECT_NO_THROW(step_cost(hybrid({"device=cuda", "model.head_dim=24", "attention.kind=full"}), 1));
}

TEST(StepCost, IsWhatAStepAddsToARun) {
    for (auto const& overrides : std::vector<std::vector<std::string>>{{"parallel.tensor=2", "parallel.context=2"},
                                                                       {"parallel.context=2", "parallel.zero=false"}}) {
        RunOptions const options = hybrid(overrides);
        constexpr int kRanks = 4;
        CommCounts more = whole_run(options, kRanks, 2);
        for (auto const& [key, count] : whole_run(options, kRanks, 1)) {
            more[key].calls -= count.calls;
            more[key].bytes -= count.bytes;
        }
        std::erase_if(more, [](auto const& entry) { return entry.second.calls == 0 && entry.second.bytes == 0; });
        Messages foreseen;
        for (auto const& [kind, sent] : step_cost(options, kRanks).sent) {
            Sent& sum = foreseen[fmt::format("{} {}", kind.axis, to_string(kind.collective))];
            sum.calls += kRanks * sent.calls;
            sum.bytes += kRanks * sent.bytes;
        }
        expect_messages(foreseen, messages(more));
    }
}

}  // namespace
}  // namespace perigee::testing
