// The probe, from file to file: attention against the fp64 reference, a model against itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "hf/hf_folder.h"
#include "io/tensor_file.h"
#include "kernels/moba_gate/reference.h"
#include "support/random.h"
#include "support/temporary_folder.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

class Probe : public ::testing::Test {
  protected:
    /// Runs the program built beside this one; returns its exit code and keeps what it printed.
    int run(std::string const& what, std::string const& options) {
        Path const program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "probe";
        Path const printed = folder_.path() / "printed";
        std::string const command = fmt::format("'{}' {} '{}' '{}' {} >'{}' 2>&1", program.string(), what, in_.string(),
                                                out_.string(), options, printed.string());
        int const status = std::system(command.c_str());
        std::ifstream file(printed);
        printed_ = (std::ostringstream() << file.rdbuf()).str();
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    template <class Real, class Index>
    ReferenceProblem write_problem(std::vector<Index> borders) {
        int64_t const T = 200, H = 4, G = 2, K = 16;
        auto const file = create_tensor_file(*files_, in_);
        auto const values = [&](char const* name, int64_t heads, uint64_t seed) {
            auto x = testing::random_normal<Real>(T * heads * K, seed);
            file->write(name, {x.data(), {T, heads, K}});
            return std::vector<double>(x.begin(), x.end());
        };
        file->write("cu_seqlens", {borders.data(), {std::ssize(borders)}});
        ReferenceProblem problem{.heads = H, .kv_heads = G, .head_dim = K, .scale = 0.25};
        problem.cu_seqlens.assign(borders.begin(), borders.end());
        problem.q = values("q", H, 51);
        problem.k = values("k", G, 52);
        problem.v = values("v", G, 53);
        problem.d_o = values("do", H, 54);
        file->finish();
        return problem;
    }

    template <class T>
    std::vector<T> result(std::string const& name) {
        auto const file = open_tensor_file(*files_, out_, Category::data);
        Shape const shape = file->info(name).shape;
        std::vector<T> x(static_cast<size_t>(shape.size()));
        file->read(name, {x.data(), shape});
        return x;
    }
    template <class Real>
    void expect_results(ReferenceResult const& reference, double tolerance) {
        EXPECT_LT(testing::relative_error(result<Real>("o"), reference.o), tolerance);
        EXPECT_LT(testing::relative_error(result<Real>("lse"), reference.lse), tolerance);
        EXPECT_LT(testing::relative_error(result<Real>("dq"), reference.dq), tolerance);
        EXPECT_LT(testing::relative_error(result<Real>("dk"), reference.dk), tolerance);
        EXPECT_LT(testing::relative_error(result<Real>("dv"), reference.dv), tolerance);
    }

    testing::TemporaryFolder folder_;
    std::unique_ptr<FileSystem> files_ = make_file_system();
    Path in_ = folder_.path() / "in.h5";
    Path out_ = folder_.path() / "out.h5";
    std::string printed_;
};

TEST_F(Probe, FullAttentionMatchesTheReference) {
    auto const problem = write_problem<float, int32_t>({0, 70, 70, 200});
    ASSERT_EQ(run("attention", "kind=full"), 0) << printed_;
    expect_results<float>(reference_attention(problem), 1e-5);
}

TEST_F(Probe, MobaMatchesTheReferenceInBothPrecisions) {
    MobaOptions const moba{.block_size = 16, .top_k = 3};
    auto problem = write_problem<double, int64_t>({0, 70, 70, 200});
    ASSERT_EQ(run("attention", "kind=moba block_size=16 top_k=3"), 0) << printed_;
    auto const chosen = reference_routing(problem, moba, CentroidRounding::none).chosen;
    EXPECT_EQ(result<int32_t>("chosen"), chosen);
    expect_results<double>(reference_moba(problem, 16, chosen), 1e-10);

    problem = write_problem<float, int64_t>({0, 200});
    ASSERT_EQ(run("attention", "block_size=16 top_k=3 --scale 0.5"), 0) << printed_;
    problem.scale = 0.5;
    expect_results<float>(reference_moba(problem, 16, result<int32_t>("chosen")), 1e-5);
}

TEST_F(Probe, OptionsOfTheSelectionReachTheOperation) {
    auto const problem = write_problem<double, int32_t>({0, 200});
    MobaOptions const moba{.block_size = 8, .top_k = 4, .force_previous = true, .selection = MobaSelection::per_group};
    ASSERT_EQ(run("attention", "block_size=8 top_k=4 force_previous=true shared_selection=group"), 0) << printed_;
    EXPECT_EQ(result<int32_t>("chosen"), reference_routing(problem, moba, CentroidRounding::none).chosen);
    ASSERT_EQ(run("attention", "block_size=8 top_k=1"), 0) << printed_;
    EXPECT_TRUE(result<int32_t>("chosen").empty());
    expect_results<double>(reference_moba(problem, 8, {}), 1e-10);
    ASSERT_EQ(run("attention", "block_size=50 top_k=2 selection=nearest"), 0) << printed_;
    std::vector<int32_t> previous;
    for (int32_t t = 0; t < 200; ++t) previous.insert(previous.end(), 4, t / 50 - 1);
    EXPECT_EQ(result<int32_t>("chosen"), previous);
    expect_results<double>(reference_moba(problem, 50, previous), 1e-10);
}

TEST_F(Probe, SaysWhatIsWrongWithItsInput) {
    EXPECT_EQ(run("attention", "kind=full"), 3);
    EXPECT_THAT(printed_, HasSubstr("in.h5"));
    for (auto const& borders : {std::vector<int64_t>{0, 199}, {1, 200}, {0, 150, 100, 200}}) {
        write_problem<float, int64_t>(borders);
        EXPECT_EQ(run("attention", "kind=full"), 3);
        EXPECT_THAT(printed_, HasSubstr("cu_seqlens must start with 0, never decrease, and end with T = 200"));
    }
    auto const file = create_tensor_file(*files_, in_);
    std::vector<float> const x(2 * 4 * 8);
    file->write("q", {x.data(), {2, 4, 8}});
    file->write("k", {x.data(), {2, 3, 8}});
    file->finish();
    EXPECT_EQ(run("attention", "kind=full"), 3);
    EXPECT_THAT(printed_, HasSubstr("4 query heads cannot be shared out among 3 key/value heads"));
    EXPECT_EQ(run("attention", "kind=sparse"), 2);
    EXPECT_THAT(printed_, HasSubstr("kind: expected one of full, moba"));
    EXPECT_EQ(run("attention", "top_k=0"), 2);
}

TEST_F(Probe, AModelsLossIsThatOfItsLogitsAndBudgetsReachIt) {
    Path const model = folder_.path() / "model";
    testing::write_folder(*files_, model, testing::small_config("llama", false), ElementType::f32, 1);
    std::vector<int32_t> const ids = {3, 1, 4, 1, 5, 9, 2, 6}, targets = {1, 4, 1, 5, 9, 2, 6, 5};
    std::vector<float> const weights = {1, 0, 1, 1, 0.5f, 1, 0, 2};
    auto const write = [&](std::vector<int32_t> const& written) {
        auto const file = create_tensor_file(*files_, in_);
        file->write("ids", {written.data(), {std::ssize(written)}});
        file->write("targets", {targets.data(), {std::ssize(targets)}});
        file->write("weights", {weights.data(), {std::ssize(weights)}});
        file->finish();
    };
    write(ids);
    std::string const probe = fmt::format("model '{}'", model.string());
    ASSERT_EQ(run(probe, "kind=full"), 0) << printed_;
    auto const logits = result<float>("logits");
    ASSERT_EQ(logits.size(), 8u * 24);
    double sum = 0, weight = 0;
    for (size_t t = 0; t < 8; ++t) {
        double total = 0;
        for (size_t v = 0; v < 24; ++v) total += std::exp(double(logits[24 * t + v]));
        double const nll = std::log(total) - double(logits[24 * t + static_cast<size_t>(targets[t])]);
        sum += double(weights[t]) * nll, weight += double(weights[t]);
    }
    EXPECT_NEAR(result<double>("loss")[0], sum / weight, 1e-6);
    // The classifier's columns: softmax minus one at the target, so each token's sum over the vocabulary is zero.
    auto const gradient = result<float>("grad/lm_head.weight");
    double all = 0, size = 0;
    for (float const g : gradient) all += double(g), size += std::abs(double(g));
    EXPECT_GT(size, 0.1);
    EXPECT_LT(std::abs(all), 1e-5 * size);

    ASSERT_EQ(run(probe, "block_size=2 top_k=4"), 0) << printed_;
    EXPECT_LT(testing::relative_error(result<float>("logits"), std::vector<double>(logits.begin(), logits.end())),
              1e-5);
    ASSERT_EQ(run(probe, "block_size=2 top_k=1"), 0) << printed_;
    EXPECT_GT(testing::relative_error(result<float>("logits"), std::vector<double>(logits.begin(), logits.end())),
              1e-4);
    EXPECT_EQ(run(probe, "full_layers=[2]"), 2);
    EXPECT_THAT(printed_, HasSubstr("attention.full_layers names layer 2"));
    write({24, 1, 4, 1, 5, 9, 2, 6});
    EXPECT_EQ(run(probe, "kind=full"), 3);
    EXPECT_THAT(printed_, HasSubstr("token 24, expected 0 to 23"));
    write({3, 1});
    EXPECT_EQ(run(probe, "kind=full"), 3);
    EXPECT_THAT(printed_, HasSubstr("targets is i32 [8], expected i32 [2]"));
}

}  // namespace
}  // namespace perigee
