// Held-out loss in bits per byte of text.
#include "train/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/config.h"
#include "data/indexed_dataset.h"
#include "support/ragged_samples.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"

namespace perigee::testing {

namespace {

class BitsPerByte : public ::testing::Test {
  protected:
    static constexpr int64_t kEnd = 256;

    /// Documents of letters, each ended by the tokenizer's special token; every third token has no loss.
    void write(int32_t last_of_one) {
        IndexedDatasetWriter writer(*files_, prefix_, 320, /*with_weights=*/true);
        for (int32_t d = 0; d < 20; ++d) {
            std::vector<int32_t> tokens;
            for (int32_t t = 0; t < 30 + 7 * d; ++t) tokens.push_back('a' + (t * t + d) % 26);
            tokens.push_back(d == 5 ? last_of_one : kEnd);
            std::vector<float> weights;
            for (size_t t = 0; t < tokens.size(); ++t) weights.push_back(t % 3 == 0 ? 0.0f : 1.0f);
            weights.back() = 1;
            writer.add_document(tokens, weights);
        }
        writer.finish();
    }
    RunOptions options(ParallelOptions const& parallel) const {
        RunOptions o = parse_config(R"(
model: {vocab_size: 320, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}
attention: {kind: full}
data: {sequence_length: 64}
eval: {samples: 1000}
device: cpu
threads: 1
)",
                                    "bytes", {});
        o.data.train = {{.path = prefix_.string()}};
        o.data.validation = o.data.train;
        o.parallel = parallel;
        return o;
    }
    /// And checks it against counting.
    std::optional<double> measure(ParallelOptions const& parallel, HostComm& world) {
        Session session(options(parallel), world, *files_);
        std::vector<float> const weights = weights_of(session.layout(), 0.1);
        for (auto const& [range, values] : session.weights().parts())
            session.ops().upload(values, weights.data() + range.begin);
        session.weights().loaded();
        auto const data = session.open(Split::validation);
        EvalReport const report = *evaluate(session, *data, 0, session.selections(0));
        if (!report.bits_per_byte) return {};
        double letters = 0, specials = 0;
        for (int64_t i = 0; i < data->samples_per_epoch(); ++i) {
            Batch const batch = make_batch(*data, i, 1);
            for (size_t t = 0; t < batch.ids_T.size(); ++t)
                if (batch.weights_T[t] != 0) (batch.targets_T[t] == kEnd ? specials : letters) += 1;
        }
        EXPECT_GT(specials, 0);
        EXPECT_EQ(report.loss_weight, letters + specials);
        EXPECT_NEAR(*report.bits_per_byte, report.loss * report.loss_weight / std::log(2.0) / letters, 1e-9);
        return report.bits_per_byte;
    }

    TemporaryFolder folder_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
    Path prefix_ = folder_.path() / "letters";
};

TEST_F(BitsPerByte, CountTheTextOfTokensThatCarryLoss) {
    write(kEnd);
    auto const alone = make_single_host_comm();
    auto const want = measure({}, *alone);
    ASSERT_TRUE(want);
    run_ranks(2, [&](HostComm& world) { EXPECT_NEAR(measure({.data = 2}, world).value(), *want, 1e-5); });
    run_ranks(2, [&](HostComm& world) {
        EXPECT_NEAR(measure({.tensor = 1, .context = 2, .data = 1}, world).value(), *want, 1e-5);
    });
}

TEST_F(BitsPerByte, AreTheSameWhereWeightsAreShardedAndRanksHaveUnequalShares) {
    write(kEnd);
    auto const alone = make_single_host_comm();
    double const want = measure({}, *alone).value();
    for (int ranks : {2, 3, 4, 5})
        run_ranks(ranks, [&](HostComm& world) {
            EXPECT_NEAR(measure({.shard = ShardStage::weights}, world).value(), want, 1e-5) << ranks << " ranks";
        });
}

TEST_F(BitsPerByte, AreUnknownWhereATokenIsNotTheTokenizers) {
    write(300);
    auto const alone = make_single_host_comm();
    EXPECT_FALSE(measure({}, *alone));
    run_ranks(2, [&](HostComm& world) { EXPECT_FALSE(measure({.data = 2}, world)); });
}

}  // namespace

}  // namespace perigee::testing
