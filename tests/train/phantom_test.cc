// One rank that plays a rank of a job against the job itself.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "app/dry_run.h"
#include "comm/ring_bytes.h"
#include "commands/bench/random_batch.h"
#include "config/config.h"
#include "ops/observed_ops.h"
#include "ops/operation_views.h"
#include "support/counting_comm.h"
#include "support/counting_device.h"
#include "support/memory_file_system.h"
#include "support/thread_comm.h"
#include "train/phantom_rank.h"

namespace perigee::testing {
namespace {

RunOptions hybrid(std::vector<std::string> const& overrides) {
    RunOptions const options = parse_config(R"(
output_dir: /run
device: cpu
model: {vocab_size: 1032, hidden_size: 64, intermediate_size: 192, num_hidden_layers: 3, num_attention_heads: 8,
        num_key_value_heads: 4}
attention: {kind: moba, block_size: 32, top_k: 3, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 384}
parallel: {bucket_mib: 1}
train: {global_batch_size: 8, micro_batch_size: 1}
checkpoint: {every: 0}
threads: 1
log: {progress: false}
)",
                                            "hybrid", overrides);
    return resolve(options, 1, *make_file_system());
}

/// Writes down each operation with the shapes of its tensors.
class WrittenOps final : public ObservedOps {
  public:
    explicit WrittenOps(std::unique_ptr<Ops> inner) : ObservedOps(*inner), owned_(std::move(inner)) {}
    void run(Operation const& operation) override {
        std::string line = name_of(operation);
        each_view(operation, [&](ConstView view, bool) { line += " " + view.shape.str(); });
        written.push_back(std::move(line));
        ObservedOps::run(operation);
    }
    Ops& inner() { return *owned_; }
    std::vector<std::string> written;

  private:
    std::unique_ptr<Ops> owned_;
};

/// What a rank did in its second step, and what it takes.
struct StepsTrace {
    std::vector<std::string> operations;
    int64_t live_bytes = 0, arena_bytes = 0, arena_capacity = 0, workspace_bytes = 0;
    std::map<std::string, Sent> messages;  ///< by axis and collective, of tensors
    double loss = 0, grad_norm = 0, loss_weight = 0, own_seconds = 0;
    int64_t tokens = 0;
};

std::vector<Batch> batches_of(RunOptions const& options, MeshShape const& shape) {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < options.train.global_batch_size / (options.train.micro_batch_size * shape.dp); ++i)
        batches.push_back(random_batch(options, static_cast<uint64_t>(i)));
    return batches;
}

struct Rank {
    CountingDevice& device;
    WrittenOps& ops;
    Session& session;
    Learner& learner;
};

StepsTrace two_steps(Rank const& rank, RunOptions const& options, std::function<void()> const& clear) {
    auto const batches = batches_of(options, rank.session.mesh().shape());
    RunState state;
    rank.learner.step(batches, state);
    rank.ops.written.clear();
    clear();
    StepReport const report = rank.learner.step(batches, state);
    return {.operations = rank.ops.written,
            .live_bytes = rank.device.live_bytes(),
            .arena_bytes = rank.session.arena().peak_bytes(),
            .arena_capacity = rank.session.arena().capacity_bytes(),
            .workspace_bytes = static_cast<int64_t>(rank.device.lane("sums", Priority::high).workspace_bytes()),
            .messages = {},
            .loss = report.loss,
            .grad_norm = report.grad_norm,
            .loss_weight = report.loss_weight,
            .tokens = report.tokens};
}

StepsTrace real_rank(RunOptions const& options, HostComm& inner) {
    auto owned = std::make_unique<CountingDevice>();
    CountingDevice& device = *owned;
    CommCounts counts;
    CountingComm world(inner, counts, [&](ConstView x) { return device.holds(x.data) ? "tensors" : "scalars"; });
    MemoryFileSystem files;
    auto written = std::make_unique<WrittenOps>(make_host_ops(device, 1));
    WrittenOps& ops = *written;
    Session session(options, Mesh(options.parallel, world), {std::move(owned), std::move(written)}, files);
    Learner learner(session);
    learner.initialise(1);
    StepsTrace trace = two_steps({device, ops, session, learner}, options, [&] { counts.clear(); });
    for (auto const& [key, count] : counts) {
        if (!key.ends_with(" tensors") || count.ranks == 1) continue;
        bool const gathers = key.find("all_gather") != std::string::npos;
        bool const reduces = key.find("all_reduce") != std::string::npos;
        auto const kind = gathers ? Collective::all_gather : reduces ? Collective::all_reduce : Collective::all_to_all;
        trace.messages[key.substr(0, key.rfind(' '))] = {count.calls, ring_bytes(kind, count.bytes, count.ranks)};
    }
    return trace;
}

StepsTrace phantom_rank(RunOptions const& options, int ranks, int rank) {
    auto owned = std::make_unique<CountingDevice>();
    CountingDevice& device = *owned;
    MemoryFileSystem files;
    auto written = std::make_unique<WrittenOps>(make_host_ops(device, 1));
    WrittenOps& ops = *written;
    Phantom phantom(phantom_options(options, ranks, rank), ops.inner());
    Session session(options, Mesh(options.parallel, phantom.world(), phantom.groups()), {nullptr, std::move(written)},
                    files);
    Learner learner(session);
    initialise_phantom(session, learner, 1);
    StepsTrace trace = two_steps({device, ops, session, learner}, options, [&] { phantom.clear(); });
    trace.live_bytes -= phantom.own_bytes();
    trace.own_seconds = phantom.take_own_seconds();
    EXPECT_EQ(phantom.take_own_seconds(), 0) << "they are taken once";
    for (auto const& [kind, sent] : phantom.sent())
        trace.messages[fmt::format("{} {}", to_string(kind.first), to_string(kind.second))] = {sent.calls, sent.bytes};
    return trace;
}

void expect_same(StepsTrace const& phantom, StepsTrace const& real) {
    EXPECT_EQ(phantom.operations, real.operations);
    EXPECT_EQ(phantom.live_bytes, real.live_bytes);
    EXPECT_EQ(phantom.arena_bytes, real.arena_bytes);
    EXPECT_EQ(phantom.workspace_bytes, real.workspace_bytes);
    EXPECT_EQ(phantom.tokens, real.tokens);
    EXPECT_DOUBLE_EQ(phantom.loss_weight, real.loss_weight);
    EXPECT_NEAR(phantom.loss, real.loss, 0.02 * real.loss);
    EXPECT_GT(phantom.grad_norm, 0.2 * real.grad_norm);
    EXPECT_LT(phantom.grad_norm, 10 * real.grad_norm);
    ASSERT_EQ(phantom.messages.size(), real.messages.size());
    for (auto const& [kind, sent] : real.messages) {
        auto const found = phantom.messages.find(kind);
        ASSERT_NE(found, phantom.messages.end()) << kind;
        EXPECT_EQ(found->second.calls, sent.calls) << kind;
        EXPECT_DOUBLE_EQ(found->second.bytes, sent.bytes) << kind;
    }
}

struct PhantomCase {
    int ranks;
    std::vector<std::string> overrides;
};

TEST(PhantomRank, ComputesTakesAndSendsWhatTheRealRankDoes) {
    std::vector<PhantomCase> const cases = {
        {1, {}},
        {4, {"parallel.shard=none"}},
        {4, {"parallel.shard=optimizer"}},
        {4, {"parallel.shard=gradients"}},
        {4, {"parallel.shard=weights", "model.qk_norm=true"}},
        {4, {"parallel.context=4", "parallel.context_mode=ulysses"}},
        {4, {"parallel.context=4", "parallel.context_mode=allgather", "parallel.shard=weights"}},
        {4, {"parallel.context=4", "parallel.shard=weights", "train.recompute=block*2, attention"}},
        {4, {"parallel.context=4", "parallel.context_mode=allgather", "attention.kind=full"}},
        {4, {"parallel.context=4", "parallel.head_groups=2", "parallel.shard=weights"}},
        {2, {"parallel.tensor=2", "model.qkv_bias=true", "model.tie_word_embeddings=true"}},
        {8, {"parallel.tensor=2", "parallel.context=2", "parallel.shard=gradients"}}};
    for (size_t i = 0; i < cases.size(); i += PERIGEE_SANITIZED ? 3 : 1) {
        auto const& [ranks, overrides] = cases[i];
        SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(overrides, " ")));
        RunOptions const options = hybrid(overrides);
        ASSERT_EQ(problems(options, ranks), std::vector<std::string>());
        std::vector<StepsTrace> real(static_cast<size_t>(ranks));
        run_ranks(ranks, [&](HostComm& world) { real[static_cast<size_t>(world.rank())] = real_rank(options, world); });
        for (int rank = 0; rank < ranks; ++rank) {
            SCOPED_TRACE(fmt::format("rank {}", rank));
            StepsTrace const phantom = phantom_rank(options, ranks, rank);
            expect_same(phantom, real[static_cast<size_t>(rank)]);
            // What links take hides it where they are waited for at once; weights and gradients are not made up.
            bool const gathers_keys =
                options.parallel.context > 1 && options.parallel.context_mode != ContextMode::ulysses;
            EXPECT_EQ(phantom.own_seconds > 0, gathers_keys);
        }
        StepMemory const predicted = step_cost(options, ranks).memory;
        // So small an arena takes its memory in larger pieces.
        StepsTrace const& first = real.front();
        auto const bytes = static_cast<double>(first.live_bytes - first.arena_capacity + first.arena_bytes);
        EXPECT_NEAR(static_cast<double>(predicted.sum()), bytes, 0.01 * bytes) << "check";
    }
}

/// Counts the choices of a query range of the text by how many blocks back they lie, and the keys they hold.
class ChoiceOps final : public ObservedOps {
  public:
    ChoiceOps(std::unique_ptr<Ops> inner, FlatRange queries)
        : ObservedOps(*inner), owned_(std::move(inner)), queries_(queries) {}
    void run(Operation const& operation) override {
        ObservedOps::run(operation);
        auto const* const select = std::get_if<SelectBlocks>(&operation);
        if (select == nullptr) return;
        auto const& gate = std::get<MobaOptions>(select->selection);
        int64_t const rows = select->chosen_THS[0], per_row = select->chosen_THS[1] * select->chosen_THS[2];
        int32_t const* const chosen = select->chosen_THS.as<int32_t>();
        for (int64_t row = 0; row < rows; ++row) {
            int64_t const at = select->query_begin + row;
            if (at < queries_.begin || at >= queries_.end) continue;
            for (int64_t i = 0; i < per_row; ++i) {
                int64_t const block = chosen[row * per_row + i];
                if (block < 0) continue;
                int64_t const last = std::min(at, (block + 1) * gate.block_size - 1);
                pairs += static_cast<double>(last - block * gate.block_size + 1);
                by_distance[at / gate.block_size - block] += 1;
            }
            all_pairs += static_cast<double>((at + 1) * select->chosen_THS[1]);
        }
    }
    Ops& inner() { return *owned_; }
    std::map<int64_t, double> by_distance;
    double pairs = 0, all_pairs = 0;

  private:
    std::unique_ptr<Ops> owned_;
    FlatRange queries_;
};

/// Half the sum of the differences of the shares: 0 for equal histograms, 1 for those without a common bin.
double distance(std::map<int64_t, double> const& a, std::map<int64_t, double> const& b, int64_t bin) {
    std::map<int64_t, double> difference;
    auto const add = [&](std::map<int64_t, double> const& x, double sign) {
        double sum = 0;
        for (auto const& [key, count] : x) sum += count;
        for (auto const& [key, count] : x) difference[key / bin] += sign * count / sum;
    };
    add(a, 1), add(b, -1);
    double sum = 0;
    for (auto const& [key, share] : difference) sum += std::abs(share) / 2;
    return sum;
}

/// What a rank of a job chooses among these queries in its first step, of one that starts from each of some seeds.
struct Choices {
    std::map<int64_t, double> by_distance;
    double share = 0;  ///< of the causal keys
};
Choices choices(RunOptions options, int ranks, int rank, FlatRange queries) {
    Choices all;
    double pairs = 0, all_pairs = 0;
    for (int64_t seed = 1; seed <= 4; ++seed) {
        options.seed = seed;
        auto const device = make_host_device();
        auto owned = std::make_unique<ChoiceOps>(make_host_ops(*device, 1), queries);
        ChoiceOps const& ops = *owned;
        Phantom phantom(phantom_options(options, ranks, rank), owned->inner());
        MemoryFileSystem files;
        Session session(options, Mesh(options.parallel, phantom.world(), phantom.groups()), {nullptr, std::move(owned)},
                        files);
        Learner learner(session);
        initialise_phantom(session, learner, static_cast<uint64_t>(seed));
        RunState state;
        learner.step({random_batch(options, static_cast<uint64_t>(seed))}, state);
        for (auto const& [key, count] : ops.by_distance) all.by_distance[key] += count;
        pairs += ops.pairs, all_pairs += ops.all_pairs;
    }
    all.share = pairs / all_pairs;
    return all;
}

TEST(PhantomRank, ChoosesBlocksAsOneRankDoesAtFullLength) {
    constexpr int kRanks = 4;
    constexpr int64_t kTokens = 2048, kOwn = kTokens / kRanks;
    std::map<std::pair<int64_t, int64_t>, Choices> of_one_rank;  // keyed by query range; no context mode applies
    for (char const* const mode : {"ulysses", "allgather", "auto"}) {
        RunOptions const options =
            hybrid({"parallel.context=4", fmt::format("parallel.context_mode={}", mode), "data.sequence_length=2048",
                    "attention.top_k=6", "train.global_batch_size=1", "train.micro_batch_size=1",
                    "model.num_hidden_layers=5", "model.max_position_embeddings=2048"});
        RunOptions alone = options;
        alone.parallel = {};
        for (int const rank : {0, kRanks - 1}) {
            SCOPED_TRACE(fmt::format("{} rank {}", mode, rank));
            bool const all_queries = std::string(mode) == "ulysses";
            FlatRange const queries = all_queries ? FlatRange{0, kTokens} : FlatRange{rank * kOwn, (rank + 1) * kOwn};
            auto const [found, is_new] = of_one_rank.try_emplace({queries.begin, queries.end});
            Choices& one = found->second;
            if (is_new) one = choices(alone, 1, 0, queries);
            Choices const phantom = choices(options, kRanks, rank, queries);
            EXPECT_NEAR(phantom.share, one.share, 0.02 * one.share);
            EXPECT_LT(distance(phantom.by_distance, one.by_distance, 4), 0.02);
        }
    }
}

}  // namespace
}  // namespace perigee::testing
