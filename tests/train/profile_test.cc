#include "train/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "config/config.h"
#include "device/queue.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"
#include "train/trainer.h"

namespace perigee {
namespace {

using Json = nlohmann::json;

RunOptions tiny(Path const& output) {
    RunOptions o = parse_config(R"(
model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
attention: {kind: moba, block_size: 16, top_k: 2, full_layers: {last: 1}}
data: {mock_data: true, sequence_length: 64}
train: {steps: 6, global_batch_size: 4, micro_batch_size: 1, profile: {first: 1, steps: 2}}
parallel: {shard: weights}
threads: 1
log: {progress: false}
)",
                                "tiny", {});
    o.output_dir = output.string();
    return resolve(o, 1, *make_file_system());
}

/// The complete events of a rank's file, by track.
std::map<std::string, std::vector<Json>> tracks(FileSystem& files, Path const& folder, int rank) {
    Json const file = Json::parse(files.read_text(folder / fmt::format("trace_rank_{}.json", rank), 1 << 24));
    std::map<int, std::string> names;
    std::map<std::string, std::vector<Json>> events;
    for (Json const& event : file.at("traceEvents")) {
        EXPECT_EQ(event.at("pid"), rank);
        if (event.at("ph") == "X") events[names.at(event.at("tid"))].push_back(event);
        if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
    }
    return events;
}

TEST(Profile, ShowsTheOperationsAndCollectivesOfItsStepsOnEachRank) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    Path const run = folder.path() / "run";
    testing::run_ranks(2, [&](HostComm& world) { Trainer(tiny(run), world, *files, "").run(); });
    for (int rank = 0; rank < 2; ++rank) {
        auto const events = tracks(*files, run, rank);
        std::set<std::string> names;
        double step_begin = 0, step_end = 0;
        int steps = 0;
        for (Json const& event : events.at("compute")) {
            std::string const name = event.at("name");
            double const begin = event.at("ts"), end = begin + event.at("dur").get<double>();
            EXPECT_GE(end, begin);
            if (name.starts_with("step ")) {
                EXPECT_EQ(name, fmt::format("step {}", 2 + steps++));
                EXPECT_GE(begin, step_end);
                step_begin = begin;
                step_end = end;
            } else {
                EXPECT_GE(begin, step_begin) << name;
                EXPECT_LE(end, step_end + 1) << name;  // rounding to microseconds
                names.insert(event.at("cat").get<std::string>() + " " + name);
            }
        }
        EXPECT_EQ(steps, 2);
        for (char const* wanted : {"forward matmul", "backward matmul", "forward attention_forward",
                                   "backward attention_backward", "optimizer adamw"})
            EXPECT_TRUE(names.contains(wanted)) << wanted << " of rank " << rank;
        std::set<std::string> collectives;
        for (auto const& [track, spans] : events)
            if (track != "compute")
                for (Json const& span : spans) collectives.insert(span.at("name"));
        EXPECT_TRUE(collectives.contains("data x context all_gather")) << "rank " << rank;
        EXPECT_TRUE(collectives.contains("data x context reduce_scatter")) << "rank " << rank;
    }
}

TEST(Profile, OfAJobWithFewerStepsHasThoseThatThereWere) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    auto const alone = make_single_host_comm();
    RunOptions options = tiny(folder.path() / "run");
    options.train.profile.steps = 100;
    EXPECT_EQ(Trainer(options, *alone, *files, "").run(), Outcome::finished);
    auto const events = tracks(*files, options.output_dir, 0);
    int steps = 0;
    for (Json const& event : events.at("compute")) steps += event.at("name").get<std::string>().starts_with("step ");
    EXPECT_EQ(steps, 5) << "of 6, the second one first";

    options = tiny(folder.path() / "none");
    options.train.profile.first = 6;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Trainer(options, *alone, *files, "").run(), Outcome::finished);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("no step was traced: this job took 6"));
}

TEST(Profile, ThatCannotBeWrittenLeavesTheRunAlone) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    auto const alone = make_single_host_comm();
    Path const run = folder.path() / "run";
    files->make_directories(run / "trace_rank_0.json" / "in_the_way");
    EXPECT_EQ(Trainer(tiny(run), *alone, *files, "").run(), Outcome::finished);
    EXPECT_TRUE(files->is_directory(run / "trace_rank_0.json"));
}

}  // namespace
}  // namespace perigee
