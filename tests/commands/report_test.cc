#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "commands/report/run_json.h"
#include "support/random.h"
#include "support/temporary_folder.h"

namespace perigee {
namespace {

using nlohmann::json;

class ReportTest : public ::testing::Test {
  protected:
    void SetUp() override { files_->make_directories(run()); }
    Path run() const { return folder_.path() / "run"; }
    void write(std::string const& name, std::string const& text) const { std::ofstream(run() / name) << text; }
    json data() const { return json::parse(report::read_runs(*files_, {run().string()}, false).json); }

    std::unique_ptr<FileSystem> files_ = make_file_system();
    testing::TemporaryFolder folder_;
};

constexpr int64_t kSteps = PERIGEE_SANITIZED ? 20000 : 100000;
constexpr int64_t kPeakEvery = 7919;

double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

/// As many steps of about twenty keys; returns loss and grad_norm by step.
std::map<std::string, std::map<int64_t, double>> write_steps(Path const& file, int64_t steps) {
    std::map<std::string, std::map<int64_t, double>> written;
    std::ofstream out(file);
    for (int64_t step = 1; step <= steps; ++step) {
        double const x = static_cast<double>(step);
        double const loss = 2 + 8 * std::exp(-x / 9000) + 0.1 * std::sin(12.9898 * x) * std::sin(78.233 * x);
        double const norm = step % kPeakEvery == 0 ? 1000 + x : std::abs(std::sin(x)) + 1e-3;  // rare peaks
        written["loss"][step] = loss;
        written["grad_norm"][step] = norm;
        std::string line = fmt::format(R"({{"step":{},"loss":{:.17g},"grad_norm":{:.17g})", step, loss, norm);
        for (char const* key : {"lr", "tokens", "loss_weight", "consumed_samples", "tokens_so_far", "epochs_so_far",
                                "attended_share", "seconds", "tokens_per_s", "tflops", "mfu", "data_s", "forward_s",
                                "backward_s", "communication_s", "optimizer_s", "memory_bytes", "memory_peak_bytes"})
            line += fmt::format(R"(,"{}":{:.17g})", key, std::abs(std::sin(x + key[0])) * 1e6);
        out << line << "}\n";
        if (step % 1000 == 0) out << fmt::format("{{\"step\":{},\"eval_loss\":{:.17g}}}\n", step, loss + 0.1);
    }
    return written;
}

TEST_F(ReportTest, HasTheVeryNumbersOfTheMetrics) {
    auto const written = write_steps(run() / "metrics.jsonl", 20000);
    json const series = data()["runs"][0]["series"];
    for (auto const& [key, values] : written) {
        json const& found = series.at(key);
        ASSERT_EQ(found["x"].size(), found["y"].size());
        ASSERT_GT(found["x"].size(), 500U) << key;
        EXPECT_LT(found["x"].size(), 3000U) << key;
        for (size_t i = 0; i < found["x"].size(); ++i)
            EXPECT_EQ(found["y"][i].get<double>(), values.at(found["x"][i].get<int64_t>())) << key;
        EXPECT_EQ(found["x"].back(), 20000) << "the last step is shown";
    }
}

TEST_F(ReportTest, AMeanOfRatesIsOverTime) {
    write("metrics.jsonl",
          "{\"step\":1,\"seconds\":9,\"tokens_per_s\":10,\"mfu\":0.1,\"lr\":1}\n"
          "{\"step\":2,\"seconds\":1,\"tokens_per_s\":90,\"lr\":3}\n"
          "{\"step\":3,\"seconds\":3,\"tokens_per_s\":30,\"mfu\":0.3,\"lr\":5}\n"
          "{\"step\":4,\"seconds\":null,\"tokens_per_s\":70,\"lr\":3}\n");
    json const series = data()["runs"][0]["series"];
    EXPECT_EQ(series["tokens_per_s"]["mean"], 20.7692) << "270 tokens in 13 s";
    EXPECT_EQ(series["mfu"]["mean"], 0.15) << "of the steps that have it";
    EXPECT_EQ(series["lr"]["mean"], 3);
}

TEST_F(ReportTest, KeepsEveryPeak) {
    auto const written = write_steps(run() / "metrics.jsonl", kSteps);
    json const norms = data()["runs"][0]["series"]["grad_norm"];
    std::map<int64_t, double> kept;
    for (size_t i = 0; i < norms["x"].size(); ++i) kept[norms["x"][i].get<int64_t>()] = norms["y"][i].get<double>();
    int peaks = 0;
    for (auto const& [step, norm] : written.at("grad_norm")) {
        if (norm < 1000) continue;
        ++peaks;
        ASSERT_TRUE(kept.contains(step)) << "the peak at step " << step << " is lost";
        EXPECT_EQ(kept[step], norm);
    }
    EXPECT_EQ(peaks, kSteps / kPeakEvery);
}

TEST_F(ReportTest, OfManyStepsIsSmallAndQuick) {
    write_steps(run() / "metrics.jsonl", kSteps);
    double const before = cpu_seconds();
    std::string const page = report::page(report::read_runs(*files_, {run().string()}, false).json);
    double const seconds = cpu_seconds() - before;
    EXPECT_LT(page.size(), size_t{2} << 20);
    EXPECT_LT(seconds, PERIGEE_SANITIZED ? 20 : 2);
    std::vector<std::string> const many(5, run().string());
    EXPECT_LT(report::page(report::read_runs(*files_, many, false).json).size(), size_t{2} << 20) << "five such runs";
}

TEST_F(ReportTest, TellsConfigPositionsSamplesBlocksAndWarnings) {
    write("metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    write("config.yaml",
          "# run 1\nseed: 7\ntrain:\n  steps: 12\nattention:\n  full_layers:\n    last: 1\n"
          "data:\n  train:\n    - path: a\n      weight: 3\n    - path: b\n      weight: 1\n  seed: 2\n");
    write("log.txt", "2026-01-01 00:00:00  step 1\n2026-01-01 00:00:01  warning: the disk is \x1b[31mfull\n");
    write("suites.jsonl",
          "{\"suite\":\"position\",\"attention\":\"moba\",\"begin\":0,\"end\":128,\"weight\":2,\"nll\":3}\n"
          "{\"suite\":\"needle\",\"passed\":1}\nnot json \"position\"\n");
    write("samples.jsonl", "{\"step\":1,\"prompt\":\"Once\",\"text\":\" upon\"}\n");
    write("blocks.jsonl",
          "{\"step\":1,\"layers\":[{\"layer\":0,\"map\":[[1]]}]}\n{\"step\":2,\"layers\":[{\"map\":[[1,2]]}]}\n");
    json const found = data()["runs"][0];
    EXPECT_EQ(found["name"], "run");
    EXPECT_EQ(found["config"], json({{"seed", "7"},
                                     {"train.steps", "12"},
                                     {"attention.full_layers.last", "1"},
                                     {"data.train.0.path", "a"},
                                     {"data.train.0.weight", "3"},
                                     {"data.train.1.path", "b"},
                                     {"data.train.1.weight", "1"},
                                     {"data.seed", "2"}}));
    EXPECT_EQ(found["position"],
              json::parse(R"([{"attention":"moba","begin":0,"end":128,"nll":3,"weight":2,"overrides":""}])"));
    EXPECT_EQ(found["samples"][0]["text"], " upon");
    EXPECT_EQ(found["blocks"]["step"], 1) << "a map that is no square is left out";
    ASSERT_EQ(found["warnings"].size(), 1U);
    EXPECT_EQ(found["warnings"][0].get<std::string>().find('\x1b'), std::string::npos);
    EXPECT_EQ(data()["defaults"]["train.micro_batch_size"], "1");
}

TEST_F(ReportTest, OfAWarningOfSeveralLinesShowsAll) {
    write("metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    write("log.txt",
          "2026-01-01 00:00:00  a b\n  no warning\n2026-01-01 00:00:01  warning: options differ:\n  seed: 1 -> 2\n"
          "  train.steps: 3 -> 4\n2026-01-01 00:00:02  resumed\n  nor this\n2026-01-01 00:00:03  warning: one\n");
    EXPECT_EQ(data()["runs"][0]["warnings"],
              json({"2026-01-01 00:00:01  warning: options differ:\n  seed: 1 -> 2\n  train.steps: 3 -> 4",
                    "2026-01-01 00:00:03  warning: one"}));
}

TEST_F(ReportTest, TheBestLossIsOfTheHeldOutDataOfTheLastEvaluation) {
    write("metrics.jsonl", "[\"eval_data\"]\n{\"step\":1,\"loss\":2.5}\n[[\"eval_data\"]]\n");
    EXPECT_TRUE(data()["runs"][0]["best_loss"].is_null());
    write("metrics.jsonl",
          "{\"step\":2,\"eval_loss\":1,\"eval_data\":\"a\"}\n{\"step\":4,\"eval_loss\":3,\"eval_data\":\"b\"}\n"
          "{\"step\":6,\"eval_loss\":2,\"eval_data\":\"b\"}\n{\"step\":8,\"eval_loss\":null,\"eval_data\":\"b\"}\n");
    EXPECT_EQ(data()["runs"][0]["best_loss"], 2.0);
    EXPECT_EQ(data()["runs"][0]["held_out"], "b");
    write("metrics.jsonl", "{\"step\":2,\"eval_loss\":1}\n{\"step\":4,\"eval_loss\":3}\n");
    EXPECT_EQ(data()["runs"][0]["best_loss"], 1.0) << "an older program's";
    EXPECT_EQ(data()["runs"][0]["held_out"], "");
}

TEST_F(ReportTest, AddsUpPositionsOfOneEvaluationOnly) {
    write("metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    auto const evaluation = [](std::string const& named, int64_t samples, double nll) {
        std::string lines;
        for (int64_t sample = 0; sample < samples; ++sample)
            for (auto const& [task, begin] : {std::pair{"fresh", 0}, {"fresh", 8}, {"far", 8}})
                lines += fmt::format(R"({{{}"suite":"position","step":0,"attention":"full","task":"{}","number":{},)"
                                     R"("begin":{},"end":{},"weight":2,"nll":{}}})"
                                     "\n",
                                     named, task, sample, begin, begin + 8, nll);
        return lines;
    };
    auto const curve = [](std::string const& overrides, double samples, double nll) {
        json bins;
        for (int const begin : {0, 8}) {
            double const records = samples * (begin == 0 ? 1 : 2);
            bins.push_back({{"step", 0}, {"attention", "full"}, {"begin", begin}, {"end", begin + 8}});
            bins.back().update({{"weight", 2 * records}, {"nll", nll * records}, {"overrides", overrides}});
        }
        return bins;
    };
    // Of a repeated evaluation the last counts, with samples of its own; more records than any page has room for.
    write("suites.jsonl", evaluation(R"("eval":0,"overrides":"a=1",)", 9, 5) +
                              evaluation(R"("eval":50,"overrides":"a=2",)", 3000, 7) +
                              evaluation(R"("eval":90,"overrides":"a=1",)", 2, 6));
    json expected = curve("a=1", 2, 6);
    for (json const& bin : curve("a=2", 3000, 7)) expected.push_back(bin);
    EXPECT_EQ(data()["runs"][0]["position"], expected);
    // Records that do not name their evaluation, and one after them that does.
    std::string const old = evaluation("", 4, 5) + evaluation("", 4, 6) + evaluation("", 1, 7) + evaluation("", 1, 8);
    write("suites.jsonl", old);
    EXPECT_EQ(data()["runs"][0]["position"], curve("", 1, 8));
    write("suites.jsonl", old + evaluation(R"("eval":70,"overrides":"",)", 2, 9));
    EXPECT_EQ(data()["runs"][0]["position"], curve("", 2, 9));
}

TEST_F(ReportTest, CountsTheItemsThatPassByTaskLengthAndDepth) {
    auto const item = [](std::string const& eval, std::string const& place, bool passed, std::string const& nll) {
        return fmt::format(R"({{"eval":{},"suite":"needle","step":4,"attention":"full",{},"weight":7,"nll":{},)"
                           R"("passed":{}}})"
                           "\n",
                           eval, place, nll, passed);
    };
    std::string const shallow = R"("task":"number","length":1024,"depth":0)",
                      deep = R"("task":"number","length":1024,"depth":0.5)",
                      chain = R"("task":"variables","length":256)";
    // Of a repeated evaluation the last counts. Greedy decoding computes no loss.
    std::string lines =
        item("0", shallow + R"(,"number":0)", false, "9") + item("0", shallow + R"(,"number":1)", false, "9");
    lines += item("70", shallow + R"(,"number":0)", true, "1") + item("70", shallow + R"(,"number":1)", false, "3");
    lines += item("70", deep + R"(,"number":0)", true, "0.5");
    std::string ruler = item("90", chain + R"(,"number":0)", true, "null");
    ruler.replace(ruler.find("needle"), 6, "ruler");
    write("suites.jsonl", lines + ruler + R"({"suite":"needle","passed":true,"length":"long","weight":1})");
    json const found = data()["runs"][0];  // a run without metrics
    auto const sum = [](std::string const& suite, std::string const& about, std::string const& sums) {
        return json::parse(
            fmt::format(R"({{"suite":"{}","attention":"full","step":4,"overrides":"",{},{}}})", suite, about, sums));
    };
    EXPECT_EQ(found["items"], json({sum("needle", shallow, R"("items":2,"passed":1,"weight":14.0,"nll":4.0)"),
                                    sum("needle", deep, R"("items":1,"passed":1,"weight":7.0,"nll":0.5)"),
                                    sum("ruler", chain, R"("items":1,"passed":1,"weight":7.0,"nll":null)")}));
    EXPECT_EQ(found["name"], "run");
    EXPECT_EQ(found["series"], json::object());
    EXPECT_EQ(found["position"], json::array());
}

TEST_F(ReportTest, NoTextOfARunEndsTheScript) {
    write("metrics.jsonl", "{\"step\":1,\"loss\":2.5,\"</script><b>\":1}\n");
    write("config.yaml", "output_dir: </script><script>alert(1)</script>\n");
    write("log.txt", "x  warning: <!--<script>\n");
    std::string const page = report::page(report::read_runs(*files_, {run().string()}, false).json);
    size_t scripts = 0;
    for (size_t at = page.find("</script"); at != page.npos; at = page.find("</script", at + 1)) ++scripts;
    EXPECT_EQ(scripts, 2U) << "the data's and the program's";
    EXPECT_EQ(page.find("<!--"), page.npos);
}

TEST_F(ReportTest, NeedsNothingFromElsewhere) {
    write("metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    std::string const page = report::page(report::read_runs(*files_, {run().string()}, false).json);
    EXPECT_EQ(page.find("src="), page.npos);
    EXPECT_EQ(page.find("@import"), page.npos);
    size_t links = 0;  // but for the name of SVG
    for (size_t at = page.find("http"); at != page.npos; at = page.find("http", at + 1)) ++links;
    EXPECT_EQ(links, 1U);
}

TEST_F(ReportTest, OfAFolderWithoutMetricsIsRefused) { EXPECT_THROW(data(), Error); }

}  // namespace
}  // namespace perigee
