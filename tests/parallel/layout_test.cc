// Every layout gives the loss, the gradients and the routing of one rank for the same global batch.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>

#include "model/llama.h"
#include "ops/host/host_ops.h"
#include "parallel/sequence.h"
#include "support/random.h"
#include "support/thread_comm.h"

namespace perigee::testing {

namespace {

constexpr int64_t kSamples = 32, kLength = 64;

struct Problem {
    ModelOptions model;
    MobaOptions moba = {.block_size = 4, .top_k = 3};
    std::vector<AttentionKind> kinds = {AttentionKind::moba, AttentionKind::moba, AttentionKind::full};
};

/// Heads enough for every cut of up to 8 ranks.
Problem hybrid() {
    Problem p;
    p.model.vocab_size = 48;
    p.model.hidden_size = 24;
    p.model.intermediate_size = 40;
    p.model.num_hidden_layers = 3;
    p.model.num_attention_heads = 16;
    p.model.num_key_value_heads = 8;
    p.model.head_dim = 4;
    p.model.rope_theta = 100;
    return p;
}

struct Layout {
    int dp = 1, cp = 1, tp = 1;
    ContextMode mode = ContextMode::automatic;
    int accumulation = 1;
    std::string str() const {
        return fmt::format("dp {} cp {} tp {} {} accumulation {}", dp, cp, tp,
                           mode == ContextMode::allgather ? "allgather" : "ulysses", accumulation);
    }
};

/// Packed documents that end anywhere. The first half of the samples is masked, so that some data-parallel rank or
/// micro-batch has no loss at all; of the other half about 1 in 50 tokens carries loss.
void append_sample(Batch& batch, int64_t sample, int64_t vocab) {
    Philox const random(91, Purpose::mock_data, static_cast<uint64_t>(sample));
    uint64_t index = 0;
    auto const draw = [&](int64_t below) {
        return static_cast<int64_t>(random.below(index++, static_cast<uint64_t>(below)));
    };
    if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);
    for (int64_t left = kLength; left > 0;) {
        int64_t const length = std::min(left, 1 + draw(kLength));
        for (int64_t t = 0; t < length; ++t) {
            batch.ids_T.push_back(static_cast<int32_t>(draw(vocab)));
            batch.targets_T.push_back(static_cast<int32_t>(draw(vocab)));
            batch.weights_T.push_back(sample >= kSamples / 2 && draw(50) == 0 ? 0.5f + static_cast<float>(draw(3)) : 0);
            batch.positions_T.push_back(static_cast<int32_t>(t));
        }
        batch.cu_seqlens.push_back(static_cast<int32_t>(batch.tokens()));
        left -= length;
    }
}

/// Notes every choice of blocks as a number that depends on sample, layer, token and head, not on who makes it.
class RecordingOps final : public HostOps<float> {
  public:
    RecordingOps(Device& device, Mesh const& mesh, int64_t heads) : HostOps(device, 1), mesh_(mesh), heads_(heads) {}

    void begin(int64_t first_token) {
        first_token_ = first_token;
        layer_ = -1;
    }
    void qkv_forward(QkvForward const& args) override {
        ++layer_;
        HostOps::qkv_forward(args);
    }
    void moba_select(MobaSelect const& args) override {
        HostOps::moba_select(args);
        int64_t const heads = args.chosen_THS[1], places = args.chosen_THS[2], of_rank = heads_ / mesh_.shape().tp;
        int64_t const first_head = mesh_.tp_rank() * of_rank + (heads < of_rank ? mesh_.cp_rank() * heads : 0);
        int32_t const* chosen = args.chosen_THS.as<int32_t>();
        for (int64_t t = 0; t < args.chosen_THS[0]; ++t)
            for (int64_t h = 0; h < heads; ++h)
                for (int64_t s = 0; s < places; ++s) {
                    int64_t const block = *chosen++;
                    auto const place = static_cast<uint64_t>(first_token_ + args.query_begin + t) * 1000 +
                                       static_cast<uint64_t>(first_head + h);
                    Philox const random(static_cast<uint64_t>(layer_ * 10 + s), Purpose::mock_data, place);
                    routing += static_cast<int64_t>(random.u64(static_cast<uint64_t>(block + 1)) >> 24);
                    far_choices += block >= 0;
                }
    }

    int64_t routing = 0;
    int64_t far_choices = 0;

  private:
    Mesh const& mesh_;
    int64_t heads_, first_token_ = 0, layer_ = -1;
};

struct Outcome {
    double loss = 0;
    int64_t routing = 0;
    int64_t far_choices = 0;
    std::map<std::string, std::vector<float>> grads;  ///< whole tensors
};

void fill_weights(ParamLayout const& layout, std::vector<float>& weights) {
    for (ParamLayout::Entry const& e : layout.entries()) {
        Philox const random(92, Purpose::init, hash_name(e.spec.name));
        for (Shard::Run const& run : e.shard.runs())
            for (int64_t i = 0; i < run.count; ++i)
                weights[static_cast<size_t>(e.offset + run.local + i)] = static_cast<float>(
                    0.3 * random.normal(static_cast<uint64_t>(run.global + i)) + (e.spec.init == Init::ones ? 1 : 0));
    }
}

/// Writes this rank's shards into whole tensors; where ranks hold the same elements they must agree.
void collect(ParamLayout const& layout, std::vector<float> const& grads, Outcome& outcome) {
    for (ParamLayout::Entry const& e : layout.entries()) {
        auto& whole = outcome.grads.try_emplace(e.spec.name, poisoned<float>(e.spec.shape.size())).first->second;
        for (Shard::Run const& run : e.shard.runs())
            for (int64_t i = 0; i < run.count; ++i) {
                float& place = whole[static_cast<size_t>(run.global + i)];
                float const value = grads[static_cast<size_t>(e.offset + run.local + i)];
                if (!std::isnan(place)) {
                    EXPECT_EQ(place, value) << e.spec.name;
                }
                place = value;
            }
    }
}

/// What a training step does before the update.
void run_rank(Problem const& problem, Layout const& l, Comm& world, Outcome& outcome, std::mutex& mutex) {
    Mesh const mesh({.tensor = l.tp, .context = l.cp, .data = l.dp, .context_mode = l.mode}, world);
    auto const device = make_host_device();
    RecordingOps ops(*device, mesh, problem.model.num_attention_heads);
    ParamLayout const layout(llama_params(problem.model), l.tp, mesh.tp_rank());
    std::vector<float> weights(static_cast<size_t>(layout.size())), grads(weights.size());
    fill_weights(layout, weights);
    TensorView const weights_view(weights.data(), {layout.size()}), grads_view(grads.data(), {layout.size()});
    Llama model(problem.model, problem.moba, layout, mesh, ops);
    Arena arena(*device);

    int64_t const micro = kSamples / (l.dp * l.accumulation);
    std::vector<Batch> batches;
    double weight = 0;
    for (int64_t i = 0; i < l.accumulation; ++i) {
        Batch& batch = batches.emplace_back();
        for (int64_t s = 0; s < micro; ++s)
            append_sample(batch, (i * l.dp + mesh.dp_rank()) * micro + s, problem.model.vocab_size);
        weight = std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), weight);
    }
    weight = mesh.dp().sum(weight);
    double loss = 0;
    for (int64_t i = 0; i < l.accumulation; ++i) {
        ops.begin((i * l.dp + mesh.dp_rank()) * micro * kLength);
        loss += model.loss_and_gradient(weights_view, {.grads = grads_view, .scale = 1 / weight},
                                        batches[static_cast<size_t>(i)], problem.kinds, arena);
        arena.settle();
    }
    loss = mesh.dp_cp().sum(loss) / weight;
    add_up_uncut(layout, grads_view, layout.whole(), mesh.tp());
    mesh.dp_cp().all_reduce(grads_view);
    int64_t const routing = world.sum(ops.routing), far_choices = world.sum(ops.far_choices);

    std::lock_guard const lock(mutex);
    if (!outcome.grads.empty()) {
        EXPECT_EQ(outcome.loss, loss);
    }
    outcome.loss = loss;
    outcome.routing = routing;
    outcome.far_choices = far_choices;
    collect(layout, grads, outcome);
}

Outcome run_layout(Problem const& problem, Layout const& layout) {
    Outcome outcome;
    std::mutex mutex;
    run_ranks(layout.dp * layout.cp * layout.tp,
              [&](Comm& world) { run_rank(problem, layout, world, outcome, mutex); });
    return outcome;
}

void expect_same(Outcome const& got, Outcome const& expected) {
    EXPECT_NEAR(got.loss / expected.loss, 1, 1e-6);
    EXPECT_EQ(got.routing, expected.routing);
    EXPECT_EQ(got.far_choices, expected.far_choices);
    ASSERT_EQ(got.grads.size(), expected.grads.size());
    for (auto const& [name, grad] : expected.grads) EXPECT_LT(relative_error(got.grads.at(name), grad), 1e-5) << name;
}

/// Every (dp, cp, tp) of this many ranks, in both context modes where they differ.
std::vector<Layout> layouts(int ranks) {
    std::vector<Layout> all;
    for (int tp = 1; tp <= ranks; tp *= 2)
        for (int cp = 1; cp * tp <= ranks; cp *= 2)
            for (ContextMode mode : {ContextMode::ulysses, ContextMode::allgather})
                if (cp > 1 || mode == ContextMode::ulysses)
                    all.push_back({.dp = ranks / (cp * tp), .cp = cp, .tp = tp, .mode = mode});
    return all;
}

TEST(Layout, OfAnyKindGivesTheResultOfOneRank) {
    Problem const problem = hybrid();
    Outcome const one = run_layout(problem, {});
    EXPECT_GT(one.far_choices, 1000);
    for (int ranks : {1, 2, 4, 8})
        for (Layout layout : layouts(ranks))
            for (int accumulation : {1, 2, 4}) {
                layout.accumulation = accumulation;
                SCOPED_TRACE(layout.str());
                expect_same(run_layout(problem, layout), one);
            }
}

TEST(Layout, HoldsForEveryKindOfModel) {
    for (int variant = 0; variant < 4; ++variant) {
        Problem problem = hybrid();
        problem.model.tie_word_embeddings = variant == 0 || variant == 3;
        problem.model.qkv_bias = variant == 1 || variant == 3;
        problem.model.qk_norm = variant == 2 || variant == 3;
        Outcome const one = run_layout(problem, {});
        for (Layout const& layout : layouts(4)) {
            SCOPED_TRACE(fmt::format("variant {}, {}", variant, layout.str()));
            expect_same(run_layout(problem, layout), one);
        }
    }
}

TEST(Layout, HoldsForFullAttention) {
    Problem problem = hybrid();
    problem.kinds.assign(3, AttentionKind::full);
    Outcome const one = run_layout(problem, {});
    for (Layout const& layout : layouts(8)) {
        SCOPED_TRACE(layout.str());
        expect_same(run_layout(problem, layout), one);
    }
}

}  // namespace

}  // namespace perigee::testing
