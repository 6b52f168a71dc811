// A disk that fails while real runs save: training goes on, what was saved before stays whole, and the third failure in
// a row ends the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <set>

#include "checkpoint/folders.h"
#include "config/config.h"
#include "io/tensor_file.h"
#include "support/fault_file_system.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::FaultFileSystem;
using ::testing::HasSubstr;

constexpr int kRanks = 2;

/// Twelve steps, every second one saved, all checkpoints kept.
RunOptions tiny(Path const& output, bool asynchronous) {
    RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 12, global_batch_size: 4, micro_batch_size: 1}
checkpoint: {every: 2, keep_last: 0}
threads: 1
log: {progress: false}
)",
                                "tiny", {});
    o.output_dir = output.string();
    o.checkpoint.asynchronous = asynchronous;
    return resolve(o, kRanks, *make_file_system());
}

/// Which operation fails, how, and whether training waits for saves.
struct SaveFault {
    std::string operation, path_part;
    int errno_value;
    bool asynchronous;
};
void PrintTo(SaveFault const& fault, std::ostream* out) {
    *out << fault.operation << " of " << fault.path_part << ", error " << fault.errno_value
         << (fault.asynchronous ? ", beside training" : ", training waits");
}

std::vector<SaveFault> faults() {
    std::vector<SaveFault> all;
    for (auto const& [operation, part] : std::vector<std::pair<std::string, std::string>>{{"make_directories", ".tmp"},
                                                                                          {"create", "rank_0000.h5"},
                                                                                          {"write", "rank_0001.h5"},
                                                                                          {"sync", "rank_0000.h5"},
                                                                                          {"write", "manifest.json"},
                                                                                          {"sync", "manifest.json"},
                                                                                          {"sync_directory", ".tmp"},
                                                                                          {"rename", "/step_"}})
        all.push_back({operation, part, all.size() % 2 == 0 ? ENOSPC : EIO, /*asynchronous=*/true});
    for (int const errno_value : {ENOSPC, EIO}) all.push_back({"write", "rank_0000.h5", errno_value, false});
    return all;
}

class SaveFailure : public ::testing::TestWithParam<SaveFault> {
  protected:
    struct Result {
        std::vector<std::optional<Error>> errors;  ///< by rank
        int64_t step = 0;
        std::vector<std::byte> weights;
    };

    /// Trains on a disk on which saves of the given steps fail.
    Result train(Path const& output, std::set<int64_t> const& failing) {
        FaultFileSystem files(*disk_);
        files.before = [&](FaultFileSystem::Operation const& operation) {
            std::string const path = operation.path.string();
            if (operation.name != GetParam().operation || path.find(GetParam().path_part) == std::string::npos) return;
            for (int64_t const step : failing)
                if (path.find(step_name(step)) != std::string::npos)
                    throw IoError(operation.name, operation.path, GetParam().errno_value);
        };
        Result result;
        result.errors.resize(kRanks);
        testing::run_ranks(kRanks, [&](HostComm& world) {
            Trainer trainer(tiny(output, GetParam().asynchronous), world, files, "");
            try {
                EXPECT_EQ(trainer.run(), Outcome::finished);
            } catch (Error const& e) {
                result.errors[static_cast<size_t>(world.rank())] = e;
            }
            if (world.rank() != 0) return;
            TensorView const weights = trainer.session().weights().flat();
            result.step = trainer.state().step;
            result.weights.assign(weights.data, weights.data + weights.bytes());
        });
        return result;
    }

    /// Names of what lies beside each other there; what has a final name is whole.
    std::vector<std::string> checkpoints(Path const& output) {
        auto const names = disk_->list(checkpoint_root(output));
        for (std::string const& name : names) EXPECT_NO_THROW(Checkpoint::open(*disk_, checkpoint_root(output) / name));
        return names;
    }

    testing::TemporaryFolder folder_;
    std::unique_ptr<FileSystem> disk_ = make_file_system();
};

INSTANTIATE_TEST_SUITE_P(Operations, SaveFailure, ::testing::ValuesIn(faults()));

TEST_P(SaveFailure, LeavesTrainingRunningAndTheOtherCheckpointsWhole) {
    Result const undisturbed = train(folder_.path() / "whole", {});
    // Two in a row, and a third after one that succeeds.
    Result const disturbed = train(folder_.path() / "run", {4, 6, 10});
    for (auto const& error : disturbed.errors) EXPECT_FALSE(error.has_value()) << error->what();
    EXPECT_EQ(disturbed.step, 12);
    EXPECT_TRUE(disturbed.weights == undisturbed.weights);
    EXPECT_THAT(checkpoints(folder_.path() / "run"), ElementsAre("step_00000002", "step_00000008", "step_00000012"));
    for (char const* name : {"step_00000002", "step_00000012"})
        for (char const* file : {"rank_0000.h5", "rank_0001.h5"})
            EXPECT_EQ(sha256_of_file(*disk_, checkpoint_root(folder_.path() / "run") / name / file),
                      sha256_of_file(*disk_, checkpoint_root(folder_.path() / "whole") / name / file));
}

TEST_P(SaveFailure, ThirdInARowEndsTheRunOnEveryRank) {
    Result const result = train(folder_.path() / "run", {4, 6, 8, 10, 12});
    for (auto const& error : result.errors) {
        ASSERT_TRUE(error.has_value());
        EXPECT_EQ(error->category(), Category::checkpoint);
        EXPECT_EQ(error->exit_code(), 4);
        EXPECT_THAT(error->what(),
                    AllOf(HasSubstr("step_00000008"), HasSubstr(GetParam().path_part),
                          HasSubstr(GetParam().errno_value == EIO ? "Input/output error" : "No space left")));
    }
    EXPECT_THAT(result.step, AnyOf(8, 9, 10)) << "the failure shows while later steps are done, or at the next save";
    EXPECT_THAT(checkpoints(folder_.path() / "run"), ElementsAre("step_00000002"));
}

}  // namespace
}  // namespace perigee
