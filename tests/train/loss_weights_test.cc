// What a step makes of conversations, held against the definition: sum(w * nll) / sum(w) over the global batch,
// computed in double precision from one document after the other. Packed or not, in any order, on any layout, with any
// accumulation, with a few tokens in a thousand that carry loss and ranks that hold none of them.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <mutex>
#include <numeric>
#include <set>

#include "config/config.h"
#include "data/indexed_dataset.h"
#include "data/packing.h"
#include "ops/host/host_ops.h"
#include "support/random.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/learner.h"

namespace perigee {
namespace {

constexpr int64_t kLength = 128, kDocuments = 48, kVocabulary = 64;

struct Document {
    std::vector<int32_t> tokens;
    std::vector<float> weights;
};

/// Like conversations: of ragged lengths; in one document of eight, one token carries loss.
std::vector<Document> conversations() {
    Philox const random(77, Purpose::mock_data);
    uint64_t index = 0;
    auto const draw = [&](int64_t below) {
        return static_cast<int64_t>(random.below(index++, static_cast<uint64_t>(below)));
    };
    std::vector<Document> documents(kDocuments);
    for (size_t d = 0; d < documents.size(); ++d) {
        auto const length = static_cast<size_t>(2 + draw(90));
        for (size_t i = 0; i < length; ++i) documents[d].tokens.push_back(static_cast<int32_t>(draw(kVocabulary)));
        documents[d].weights.assign(length, 0.0f);
        if (d % 8 != 3) continue;
        float const weight = std::array{0.25f, 1.0f, 3.0f}[d / 8 % 3];
        documents[d].weights[1 + static_cast<size_t>(draw(static_cast<int64_t>(length) - 1))] = weight;
    }
    return documents;
}

RunOptions options_for(Path const& data) {
    RunOptions o = parse_config(R"(
model: {vocab_size: 64, hidden_size: 24, intermediate_size: 40, num_hidden_layers: 3, num_attention_heads: 16,
        num_key_value_heads: 8, head_dim: 4, rope_theta: 100}
attention: {kind: moba, block_size: 4, top_k: 3, full_layers: {last: 1}}
data: {sequence_length: 128, packing: best_fit}
threads: 1
)",
                                "conversations", {});
    o.data.train = {{.path = data.string()}};
    return o;
}

template <class Real>
void fill_weights(ParamLayout const& layout, Real* weights) {
    for (ParamLayout::Entry const& e : layout.entries()) {
        Philox const random(92, Purpose::init, hash_name(e.spec.name));
        for (Shard::Run const& run : e.shard.runs())
            for (int64_t i = 0; i < run.count; ++i) {
                double const drawn = 0.3 * random.normal(static_cast<uint64_t>(run.global + i));
                weights[e.offset + run.local + i] = static_cast<float>(drawn + (e.spec.init == Init::ones ? 1 : 0));
            }
    }
}

using Gradients = std::map<std::string, std::vector<double>>;  ///< whole tensors

template <class Real>
void collect(ParamLayout const& layout, Real const* grads, Gradients& whole) {
    for (ParamLayout::Entry const& e : layout.entries()) {
        auto& tensor = whole.try_emplace(e.spec.name, testing::poisoned<double>(e.spec.shape.size())).first->second;
        for (Shard::Run const& run : e.shard.runs())
            for (int64_t i = 0; i < run.count; ++i)
                tensor[static_cast<size_t>(run.global + i)] = static_cast<double>(grads[e.offset + run.local + i]);
    }
}

struct Result {
    double loss = 0, loss_weight = 0;
    int64_t idle_ranks = 0;  ///< without a token that carries loss
    Gradients gradients = {};
};

/// A document alone, put together here by hand: every token but the first is a target, with its weight.
Batch alone(Document const& d) {
    Batch batch{.ids_T = {d.tokens.begin(), d.tokens.end() - 1},
                .targets_T = {d.tokens.begin() + 1, d.tokens.end()},
                .weights_T = {d.weights.begin() + 1, d.weights.end()},
                .positions_T = std::vector<int32_t>(d.tokens.size() - 1),
                .cu_seqlens = {0, static_cast<int32_t>(d.tokens.size()) - 1}};
    std::iota(batch.positions_T.begin(), batch.positions_T.end(), 0);
    return batch;
}

/// The definition.
Result by_definition(RunOptions const& options, std::vector<Document> const& documents) {
    auto const device = make_host_device();
    HostOps<double> ops(*device, 1);
    auto const world = make_single_host_comm();
    Mesh const mesh({}, *world);
    ParamLayout const layout(llama_params(options.model), 1, 0);
    std::vector<double> weights(static_cast<size_t>(layout.size())), grads(weights.size());
    fill_weights(layout, weights.data());
    FlatWeights flat_weights(layout, {weights.data(), {layout.size()}});
    FlatGradients flat_grads(layout, {grads.data(), {layout.size()}});
    Llama model(options.model, layout, mesh, ops);
    Arena arena(*device);
    auto const selections = layer_selections(options.attention, options.model.num_hidden_layers, 0, 0);

    Result result;
    for (Document const& d : documents)
        result.loss_weight = std::accumulate(d.weights.begin() + 1, d.weights.end(), result.loss_weight);
    for (Document const& d : documents) {
        result.loss += model.loss_and_gradient(flat_weights, {.grads = flat_grads, .scale = 1 / result.loss_weight},
                                               alone(d), selections, arena);
        arena.settle();
    }
    result.loss /= result.loss_weight;
    collect(layout, grads.data(), result.gradients);
    return result;
}

struct Way {
    int dp = 1, cp = 1, tp = 1;
    int accumulation = 1;
    ContextMode mode = ContextMode::automatic;
    bool packed = true;
    uint64_t order = 1;  ///< seed: another one puts other documents together, in another order
    int ranks() const { return dp * cp * tp; }
};

class LossWeightsTest : public ::testing::Test {
  protected:
    LossWeightsTest() {
        IndexedDatasetWriter writer(*files_, folder_.path() / "chats", kVocabulary, /*with_weights=*/true);
        for (Document const& d : documents_) writer.add_document(d.tokens, d.weights);
        writer.finish();
    }

    /// One sample: of the data source, or one document alone; padding after the last.
    void append(DataSource const& source, Way const& way, int64_t sample, Batch& batch) const {
        if (way.packed && sample < source.samples_per_epoch()) return source.append_sample(sample, batch);
        if (way.packed || sample >= kDocuments) return append_padding(kLength, batch);
        Document const& d = documents_[static_cast<size_t>(sample)];
        append_document(d.tokens, d.weights, batch);
        append_padding(kLength + 1 - static_cast<int64_t>(d.tokens.size()), batch);
    }

    Result step(Way const& way) const {
        Result result;
        std::mutex mutex;
        testing::run_ranks(way.ranks(), [&](HostComm& world) {
            RunOptions options = options_for(folder_.path() / "chats");
            options.parallel = {
                .tensor = way.tp, .context = way.cp, .context_mode = way.mode, .shard = ShardStage::none};
            options.seed = static_cast<int64_t>(way.order);
            Session session(options, world, *files_);
            fill_weights(session.layout(), session.weights().flat().as<float>());
            Learner learner(session);
            auto const source = session.open(Split::train);
            int64_t const samples = way.packed ? source->samples_per_epoch() : kDocuments;
            int64_t const passes = way.dp * way.accumulation, micro = (samples + passes - 1) / passes;
            std::vector<Batch> batches(static_cast<size_t>(way.accumulation));
            double held = 0;
            for (int64_t i = 0; i < way.accumulation; ++i) {
                Batch& batch = batches[static_cast<size_t>(i)];
                for (int64_t s = 0; s < micro; ++s)
                    append(*source, way, (i * way.dp + session.mesh().dp_rank()) * micro + s, batch);
                held = std::accumulate(batch.weights_T.begin(), batch.weights_T.end(), held);
            }
            RunState state;
            StepReport const report = learner.step(batches, state);
            std::lock_guard const lock(mutex);
            result.loss = report.loss;
            result.loss_weight = report.loss_weight;
            result.idle_ranks += held == 0;
            collect(session.layout(), learner.gradients().flat().as<float>(), result.gradients);
        });
        return result;
    }

    void expect_the_definition(Way const& way) {
        SCOPED_TRACE(fmt::format("dp {} cp {} tp {} accumulation {} {} order {}", way.dp, way.cp, way.tp,
                                 way.accumulation, way.packed ? "packed" : "not packed", way.order));
        Result const got = step(way);
        idle_ranks_ += got.idle_ranks;
        EXPECT_EQ(got.loss_weight, definition_.loss_weight);
        EXPECT_NEAR(got.loss / definition_.loss, 1, 1e-6);
        ASSERT_EQ(got.gradients.size(), definition_.gradients.size());
        for (auto const& [name, gradient] : definition_.gradients)
            EXPECT_LT(testing::relative_error(got.gradients.at(name), gradient), 1e-5) << name;
    }

    std::vector<Document> const documents_ = conversations();
    std::unique_ptr<FileSystem> files_ = make_file_system();
    testing::TemporaryFolder folder_;
    Result const definition_ = by_definition(options_for(folder_.path() / "chats"), documents_);
    int64_t idle_ranks_ = 0;
};

TEST_F(LossWeightsTest, three_tokens_in_a_thousand_carry_loss_of_several_weights) {
    double tokens = 0, with_loss = 0;
    std::set<float> weights;
    for (Document const& d : documents_)
        for (float const weight : d.weights) {
            ++tokens;
            if (weight > 0) ++with_loss, weights.insert(weight);
        }
    EXPECT_NEAR(with_loss / tokens, 0.003, 0.0005);
    EXPECT_EQ(weights.size(), 3u);
    EXPECT_GT(definition_.loss, 1);
}

TEST_F(LossWeightsTest, packed_or_not_in_any_order_a_step_is_the_definition) {
    for (uint64_t const order : {1, 2, 3})
        for (int const accumulation : {1, 3}) expect_the_definition({.accumulation = accumulation, .order = order});
    for (int const accumulation : {1, 8}) expect_the_definition({.accumulation = accumulation, .packed = false});
}

TEST_F(LossWeightsTest, on_every_layout_a_step_is_the_definition) {
    constexpr auto kGather = ContextMode::allgather;
    for (Way const& way :
         {Way{.dp = 2, .accumulation = 2, .order = 4}, Way{.dp = 8}, Way{.dp = 8, .accumulation = 2, .packed = false},
          Way{.cp = 2, .accumulation = 3}, Way{.cp = 4, .mode = kGather, .order = 5}, Way{.tp = 2, .packed = false},
          Way{.tp = 4, .accumulation = 2}, Way{.dp = 2, .cp = 2, .tp = 2, .accumulation = 2},
          Way{.dp = 2, .cp = 2, .tp = 2, .mode = kGather, .packed = false, .order = 6}})
        expect_the_definition(way);
    EXPECT_GT(idle_ranks_, 4) << "ranks without any loss were to be among them";
}

}  // namespace
}  // namespace perigee
