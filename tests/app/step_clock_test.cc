// The clock of `perigee check --device` against sums made by hand, and against steps that were measured.
#include "app/step_clock.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "app/check.h"
#include "app/dry_run.h"
#include "app/plan.h"
#include "config/config.h"
#include "support/memory_file_system.h"

namespace perigee::testing {
namespace {

using ::testing::HasSubstr;

DeviceRates h200() {
    MemoryFileSystem files;
    return device_rates("h200", files);
}

RunOptions of_file(std::string const& name, std::vector<std::string> overrides = {}) {
    overrides.emplace_back("device=cuda");
    auto const source = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
    return load_config((source / "configs/bench" / (name + ".yaml")).string(), overrides);
}

double tokens_per_s(RunOptions const& options, int ranks, DeviceRates const& rates) {
    double const tokens = static_cast<double>(options.train.global_batch_size * options.data.sequence_length);
    return tokens / step_cost(options, ranks, &rates).time.step / ranks;
}

/// Seconds of attention at one TFLOP/s, by counting every pair.
double counted(std::vector<int32_t> const& cu_seqlens, int64_t begin, int64_t rows, BlockBudget const* budget,
               int64_t width) {
    double pairs = 0;
    for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
        for (int64_t t = std::max<int64_t>(cu_seqlens[i], begin);
             t < std::min<int64_t>(cu_seqlens[i + 1], begin + rows); ++t) {
            int64_t const at = t - cu_seqlens[i];
            if (budget == nullptr) {
                pairs += static_cast<double>(at + 1);
                continue;
            }
            int64_t const before = std::min(at / budget->block_size, budget->top_k - 1);
            pairs += static_cast<double>(before * budget->block_size + at % budget->block_size + 1);
        }
    }
    return 4 * pairs * static_cast<double>(width) * 1e-12;
}

TEST(StepClock, OffloadShowsWhereTheLinkToTheHostIsSlow) {
    auto const time = [](int64_t layers, double gigabytes_per_s) {
        DeviceRates rates = h200();
        rates.host.value = gigabytes_per_s;
        RunOptions const options = of_file(
            "llama_1b", {fmt::format("train.offload={}", layers), "train.recompute=block", "model.vocab_size=32000"});
        return step_cost(options, 1, &rates).time;
    };
    StepTime const without = time(0, 50), hidden = time(6, 1e6), shown = time(6, 0.1);
    EXPECT_FALSE(without.exposed.contains("host"));
    EXPECT_NEAR(hidden.step, without.step, 1e-4 * without.step);
    EXPECT_GT(shown.step, 2 * without.step);
    EXPECT_NEAR(shown.step - without.step, shown.exposed.at("host"), 1e-6 * shown.step);

    auto const beside = [](int64_t layers) {
        DeviceRates rates = h200();
        rates.host.value = 0.1;
        return step_cost(of_file("llama_1b",
                                 {fmt::format("train.offload={}", layers), "train.recompute=block",
                                  "model.vocab_size=32000", "parallel.shard=gradients", "train.global_batch_size=8"}),
                         2, &rates)
            .time.beside;
    };
    EXPECT_GE(beside(6), beside(0)) << "copies are no collectives that were waited for";
}

TEST(StepClock, AttentionTakesItsPairs) {
    DeviceRates rates = h200();
    for (DeviceRate* rate : {&rates.full_forward_1k, &rates.full_forward_8k, &rates.full_forward_32k,
                             &rates.full_forward_128k, &rates.moba_forward})
        rate->value = 1;
    rates.launch.value = 1e-9;
    std::vector<int32_t> const cu_seqlens = {0, 7, 90, 91, 400};
    constexpr int64_t kHeads = 2, kDim = 128;
    BlockBudget const budget{.block_size = 16, .top_k = 3};
    for (auto const& [begin, rows] : {std::pair<int64_t, int64_t>{0, 400}, {0, 100}, {100, 100}, {250, 150}}) {
        AttentionForward forward;
        forward.q_THK = ConstView(nullptr, DType::bf16, {rows, kHeads, kDim});
        forward.cu_seqlens = cu_seqlens;
        forward.query_begin = begin;
        EXPECT_NEAR(operation_seconds(forward, &rates), counted(cu_seqlens, begin, rows, nullptr, kHeads * kDim),
                    1e-15);
        forward.attended = BlockSparse{.budget = budget, .chosen_THS = {}, .routing_L = {}};
        EXPECT_NEAR(operation_seconds(forward, &rates), counted(cu_seqlens, begin, rows, &budget, kHeads * kDim),
                    1e-15);
    }
}

TEST(StepClock, ASlowestRankIsBehindByWhatOrderStatisticsSay) {
    EXPECT_EQ(slowest_of(1), 0);
    EXPECT_NEAR(slowest_of(2), 0.564, 0.03);  // 1 / sqrt(pi)
    EXPECT_NEAR(slowest_of(4), 1.029, 0.03);
    EXPECT_NEAR(slowest_of(64), 2.364, 0.03);
    EXPECT_NEAR(slowest_of(1024), 3.25, 0.05);
}

TEST(StepClock, CollectivesTakeLinksWithinAHostAndTheNetworkBeyond) {
    DeviceRates const rates = h200();
    constexpr int64_t kBytes = int64_t{1} << 30;
    auto const gather = [&](int ranks, int stride) {
        return collective_seconds(Collective::all_gather, kBytes / ranks, {ranks, stride}, &rates);
    };
    EXPECT_DOUBLE_EQ(gather(8, 1), 20e-6 + kBytes * 7.0 / 8 / 344e9);
    EXPECT_EQ(gather(1, 1), 0);
    EXPECT_DOUBLE_EQ(gather(16, 1), 15 * 12e-6 + kBytes * 15.0 / 16 / 344e9) << "8 GPUs of a host send at once";
    EXPECT_DOUBLE_EQ(gather(2, 8), 12e-6 + kBytes / 2.0 / 45e9) << "one GPU of each host";
    EXPECT_LT(gather(1024, 1), 1023 * 12e-6) << "a tree has fewer hops";
    auto const all_to_all = [&](int ranks, int stride) {
        return collective_seconds(Collective::all_to_all, kBytes, {ranks, stride}, &rates);
    };
    EXPECT_DOUBLE_EQ(all_to_all(8, 1), 20e-6 + kBytes * 7.0 / 8 / 344e9);
    EXPECT_DOUBLE_EQ(all_to_all(16, 1), 12e-6 + kBytes * 8.0 / 16 / 45e9) << "half of it leaves the host";
    EXPECT_DOUBLE_EQ(all_to_all(64, 1), 12e-6 + kBytes * 56.0 / 64 / 45e9);
    EXPECT_DOUBLE_EQ(all_to_all(4, 4), 12e-6 + kBytes * 2.0 / 4 / 45e9) << "two GPUs of each host";
}

TEST(StepClock, CopiedRowsTakeTheirBytesAndNotThoseOfTheBuffers) {
    DeviceRates const rates = h200();
    constexpr int64_t kRows = 1 << 16, kWidth = 1024, kParts = 4;
    CopyRows copy;
    copy.to = TensorView(nullptr, DType::bf16, {kParts * kRows * kWidth});
    copy.from = ConstView(nullptr, DType::bf16, {kParts * kRows * kWidth});
    copy.to_stride = copy.from_stride = copy.width = kWidth;
    copy.rows = kRows;
    EXPECT_DOUBLE_EQ(operation_seconds(copy, &rates), 2.0 * 2 * kRows * kWidth / (1e9 * rates.memory.value));
}

/// Measured on one H200: docs/benchmarks.md.
TEST(StepClock, StepsOfOneGpuAreWithinAFewPercentOfMeasuredOnes) {
    struct Row {
        char const* config;
        std::vector<std::string> overrides;
        double measured;
    };
    std::vector<std::string> const one = {"train.global_batch_size=1", "train.micro_batch_size=1"};
    auto const with = [&](std::vector<std::string> more) {
        more.insert(more.end(), one.begin(), one.end());
        return more;
    };
    std::vector<std::string> const moba = {"attention.kind=moba", "attention.full_layers.last=2"};
    for (auto const& [config, overrides, measured] : std::vector<Row>{
             {"llama_1b", {}, 62846},
             {"llama_1b", one, 57254},
             {"llama_3b", {}, 23487},
             {"llama_1b", with({"data.sequence_length=32768"}), 38070},
             {"llama_124m", {}, 589739},
             {"llama_1b", with({"data.sequence_length=32768", moba[0], moba[1]}), 65680},
             {"llama_1b", with({"data.sequence_length=131072", "train.recompute=mlp", moba[0], moba[1]}), 44129},
             {"llama_1b",
              with({"data.sequence_length=131072", "train.recompute=mlp*3,elementwise*13", moba[0], moba[1]}), 47719},
             {"llama_1b", with({"data.sequence_length=131072", "train.recompute=mlp*2,elementwise*14"}), 14509}}) {
        double const predicted = tokens_per_s(of_file(config, overrides), 1, h200());
        EXPECT_NEAR(predicted / measured, 1, 0.05) << config << " " << fmt::format("{}", fmt::join(overrides, " "));
    }
}

TEST(StepClock, AStepIsItsWorkAndWhatItWaitsFor) {
    for (auto const& overrides : std::vector<std::vector<std::string>>{
             {"parallel.shard=optimizer"},
             {"parallel.shard=weights", "train.global_batch_size=16"},
             {"parallel.context=2", "parallel.tensor=2", "parallel.shard=gradients"}}) {
        RunOptions const options = of_file("llama_8b", overrides);
        StepTime const time = step_cost(options, 4, nullptr).time;
        EXPECT_EQ(time.step, 0) << "no time without rates";
        DeviceRates rates = h200();
        StepCost const cost = step_cost(options, 4, &rates);
        double exposed = 0;
        for (auto const& [axis, seconds] : cost.time.exposed) exposed += seconds;
        EXPECT_NEAR(cost.time.step, cost.time.products + cost.time.attention + cost.time.other + exposed,
                    1e-6 * cost.time.step);
        EXPECT_GT(exposed, 0);
        rates.link.value = 1e12, rates.latency.value = 1e-9;
        StepTime const without = step_cost(options, 4, &rates).time;
        EXPECT_NEAR(without.step, cost.time.step - exposed, 1e-3 * cost.time.step) << "links that take no time";
        rates.link.value = 1;
        StepTime const slow = step_cost(options, 4, &rates).time;
        double sent = 0;
        for (auto const& [kind, of_kind] : cost.sent)
            if (kind.content != std::string("scalars")) sent += of_kind.bytes;
        EXPECT_LT(slow.step, 1.01 * (sent / 1e9 + cost.time.step));
        EXPECT_GT(slow.step, 0.3 * sent / 1e9) << "two lanes carry what is sent";
    }
}

/// Collectives in the compute queue are exposed whole.
TEST(StepClock, ExposedTimeOfTheContextAxisIsItsBytesOverTheLink) {
    DeviceRates const rates = h200();
    RunOptions const options = of_file("llama_8b", {"parallel.context=4", "train.global_batch_size=1"});
    StepCost const cost = step_cost(options, 4, &rates);
    Sent const sent = cost.sent.at({"context", Collective::all_to_all, "activations"});
    EXPECT_NEAR(cost.time.exposed.at("context"), static_cast<double>(sent.calls) * 20e-6 + sent.bytes / 344e9, 1e-9);
}

/// Of Llama 8B on 4 GPUs that share a sequence, the last three layers full.
StepTime of_shared_sequence(std::vector<std::string> overrides) {
    DeviceRates const rates = h200();
    for (char const* const more :
         {"parallel.context=4", "train.global_batch_size=1", "parallel.shard=weights", "attention.kind=moba"})
        overrides.emplace_back(more);
    return step_cost(of_file("llama_8b", overrides), 4, &rates).time;
}

TEST(StepClock, BlockSparseLayersHideWhatTheyGather) {
    std::vector<std::string> const at_128k = {"data.sequence_length=131072", "train.recompute=mlp*10, elementwise"};
    auto const with_mode = [&](std::string const& mode) {
        auto overrides = at_128k;
        overrides.push_back("parallel.context_mode=" + mode);
        return of_shared_sequence(overrides);
    };
    StepTime const mixed = with_mode("auto"), ulysses = with_mode("ulysses"), gathered = with_mode("allgather");
    EXPECT_LT(mixed.exposed.at("context"), 0.1 * ulysses.exposed.at("context")) << "of 3 full layers of 32";
    EXPECT_GT(131072 / mixed.step / 4, 9050) << "9048 were measured";
    EXPECT_NEAR(mixed.step, ulysses.step, 0.005 * ulysses.step) << "copies of gradients take what waits would";
    EXPECT_GT(gathered.attention, 1.2 * mixed.attention) << "the last rank has most of the full layers' triangles";
    EXPECT_GT(mixed.attention, ulysses.attention) << "of gathered keys the backward is slower";
    EXPECT_LT(mixed.attention, 1.15 * ulysses.attention);
    RunOptions options = of_file("llama_8b", at_128k);
    options.parallel.context = 4, options.train.global_batch_size = 1, options.attention.kind = AttentionKind::moba;
    DeviceRates const rates = h200();
    EXPECT_LT(step_cost(options, 4, &rates, 0).time.attention, step_cost(options, 4, &rates, 3).time.attention)
        << "its first queries have few blocks before them";
    StepTime const million = of_shared_sequence({"data.sequence_length=1048576", "train.mlp_chunk=8192",
                                                 "train.offload=16", "train.recompute=block*29, attention*3"});
    EXPECT_LT(million.step, 75);
    EXPECT_LT(million.exposed.at("context"), 0.01 * million.step);
}

TEST(StepClock, MicroBatchesAddUp) {
    DeviceRates const rates = h200();
    auto const step = [&](int samples) {
        std::string const batch = fmt::format("train.global_batch_size={}", samples);
        return step_cost(of_file("llama_8b", {batch, "parallel.shard=gradients"}), 2, &rates).time.step;
    };
    EXPECT_NEAR((step(12) - step(4)) / 4, step(6) - step(4), 1e-3 * step(4));
    EXPECT_GT(step(4), 1.8 * step(2));
}

TEST(Plan, MarksEveryFigureAndSaysWhetherItFits) {
    RunOptions const options = of_file("llama_8b", {"parallel.shard=gradients"});
    MemoryFileSystem files;
    auto const report = [&](char const* device, int ranks, RunOptions const& of) {
        DeviceRates const rates = device_rates(device, files);
        return time_report(of, ranks, step_cost(of, ranks, &rates), rates);
    };
    std::string const ours = report("h200", 4, options);
    EXPECT_THAT(ours, HasSubstr("matrix products"));
    EXPECT_THAT(ours, HasSubstr("a twentieth left to libraries: fits"));
    EXPECT_THAT(ours, ::testing::ContainsRegex("step +[0-9.]+ ms  measured"));
    auto const marked = [&](RunOptions const& of, DeviceRate DeviceRates::*assumed) {
        DeviceRates rates = h200();
        (rates.*assumed).source = RateSource::assumed;
        return time_report(of, 4, step_cost(of, 4, &rates), rates);
    };
    EXPECT_THAT(marked(options, &DeviceRates::memory), ::testing::ContainsRegex("matrix products +[0-9.]+ ms  assumed"))
        << "bounded by memory, too";
    EXPECT_THAT(marked(options, &DeviceRates::small_heads_backward),
                ::testing::ContainsRegex("attention +[0-9.]+ ms  measured"));
    EXPECT_THAT(marked(of_file("llama_124m", {"train.global_batch_size=128"}), &DeviceRates::small_heads_backward),
                ::testing::ContainsRegex("attention +[0-9.]+ ms  assumed"));
    std::string const other = report("h100", 4, options);
    EXPECT_THAT(other, HasSubstr("does not fit"));
    EXPECT_THAT(other, ::testing::Not(HasSubstr("measured\n")));
    RunOptions hosts = options;
    hosts.train.global_batch_size = 16;
    EXPECT_THAT(report("h200", 16, hosts), ::testing::ContainsRegex("exposed: data x context +[0-9.]+ ms  assumed"));
}

TEST(Plan, BestLayoutsFitAreSortedAndRun) {
    RunOptions const options = of_file("llama_8b", {"train.global_batch_size=8"});
    DeviceRates rates = h200();
    for (double const gib : {139.8, 60.0}) {
        rates.memory_gib = gib;
        auto const layouts = best_layouts(options, 8, rates);
        ASSERT_EQ(layouts.size(), 5u);
        double before = 0;
        for (auto const& [of, cost] : layouts) {
            EXPECT_EQ(problems(of, 8), std::vector<std::string>());
            StepCost const again = step_cost(of, 8, &rates);
            EXPECT_LE(again.memory.sum(), bytes_for_a_step(rates));
            EXPECT_DOUBLE_EQ(again.time.step, cost.time.step);
            EXPECT_GE(cost.time.step, before);
            before = cost.time.step;
        }
        std::string const first = layouts_report({layouts.front()}, 8, rates);
        RunOptions const read = parse_config(first, "layout", {});
        EXPECT_EQ(read.parallel.data, layouts.front().options.parallel.data);
        EXPECT_EQ(read.parallel.shard, layouts.front().options.parallel.shard);
        EXPECT_EQ(read.train.recompute, layouts.front().options.train.recompute);
    }
    rates.memory_gib = 1;
    EXPECT_TRUE(best_layouts(options, 8, rates).empty());
    EXPECT_THAT([&] { layouts_report({}, 8, rates); },
                ::testing::ThrowsMessage<Error>(HasSubstr("no layout of 8 GPUs fits into")));
}

TEST(Plan, LayoutsThatNothingDividesForAreNotBlamedOnMemory) {
    RunOptions const options = of_file("llama_8b", {"train.global_batch_size=8"});
    EXPECT_THAT(
        [&] { best_layouts(options, 7, h200()); },
        ::testing::ThrowsMessage<Error>(HasSubstr("no layout of 7 GPUs is possible; with data-parallel ranks "
                                                  "alone: train.global_batch_size (8) must be a multiple of "
                                                  "train.micro_batch_size (1) times the data-parallel ranks (7)")));
}

TEST(Plan, OffloadThatIsLeftToPerigeeCountsAsWhatItComesTo) {
    DeviceRates rates = h200();
    rates.memory_gib = 70;
    RunOptions options = of_file("llama_8b", {"train.global_batch_size=1", "data.sequence_length=1048576",
                                              "train.mlp_chunk=8192", "attention.kind=moba", "train.offload=0"});
    auto const fitting = [&] { return best_layouts(options, 8, rates); };
    EXPECT_TRUE(fitting().empty());
    options.train.offload = kOffloadAuto;
    auto const layouts = fitting();
    ASSERT_FALSE(layouts.empty());
    for (auto const& [of, cost] : layouts) {
        EXPECT_GT(of.train.offload, 0);
        EXPECT_LE(cost.memory.sum(), bytes_for_a_step(rates));
        EXPECT_GT(cost.memory.host, 0);
    }
    EXPECT_THAT(layouts_report(layouts, 8, rates),
                HasSubstr(fmt::format("  offload: {}\n", layouts[0].options.train.offload)));
}

TEST(Plan, LayoutsThatKernelsRefuseAreNoneOfTheBest) {
    DeviceRates const rates = h200();
    std::vector<std::string> const batch = {"train.global_batch_size=8", "attention.kind=moba"};
    RunOptions options = of_file("llama_8b", batch);
    options.model.head_dim = 24;
    EXPECT_THROW(best_layouts(options, 8, rates), Error);
    options = of_file("llama_8b", batch);
    for (auto const& [of, cost] : best_layouts(options, 64, rates)) EXPECT_LE(of.parallel.tensor, 8) << "of a host";
}

TEST(DeviceRates, FilesReadBackAndWhatTheyLeaveOutIsAssumed) {
    MemoryFileSystem files;
    DeviceRates const rates = h200();
    files.replace_text("ours.yaml", to_yaml(rates));
    EXPECT_EQ(to_yaml(device_rates("ours.yaml", files)), to_yaml(rates));
    files.replace_text("part.yaml", "name: X\nproducts: {value: 100, source: measured}\n");
    DeviceRates const part = device_rates("part.yaml", files);
    EXPECT_EQ(part.products.value, 100);
    EXPECT_EQ(part.products.source, RateSource::measured);
    EXPECT_EQ(part.memory.source, RateSource::assumed);
    EXPECT_THROW(device_rates("h300", files), Error);
    files.replace_text("bad.yaml", "products: {value: -1}\n");
    EXPECT_THROW(device_rates("bad.yaml", files), Error);
    for (char const* const text : {"name: X\n", "products: {}\n", "memory: {source: measured}\n"}) {
        files.replace_text("none.yaml", text);
        EXPECT_THROW(device_rates("none.yaml", files), Error) << text;
    }
}

}  // namespace
}  // namespace perigee::testing
