// The attention_probe program, from file to file, against the fp64 reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "io/tensor_file.h"
#include "kernels/moba_gate/reference.h"
#include "support/random.h"
#include "support/temporary_folder.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;

class AttentionProbe : public ::testing::Test {
  protected:
    /// Runs the program built beside this one; returns its exit code and keeps what it printed.
    int run(std::string const& options) {
        Path const program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "attention_probe";
        Path const printed = folder_.path() / "printed";
        std::string const command = fmt::format("'{}' '{}' '{}' {} >'{}' 2>&1", program.string(), in_.string(),
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

TEST_F(AttentionProbe, FullAttentionMatchesTheReference) {
    auto const problem = write_problem<float, int32_t>({0, 70, 70, 200});
    ASSERT_EQ(run("--kind full"), 0) << printed_;
    expect_results<float>(reference_attention(problem), 1e-5);
}

TEST_F(AttentionProbe, MobaMatchesTheReferenceInBothPrecisions) {
    MobaOptions const moba{.block_size = 16, .top_k = 3};
    auto problem = write_problem<double, int64_t>({0, 70, 70, 200});
    ASSERT_EQ(run("--kind moba --block-size 16 --top-k 3"), 0) << printed_;
    auto const chosen = reference_routing(problem, moba, CentroidRounding::none).chosen;
    EXPECT_EQ(result<int32_t>("chosen"), chosen);
    expect_results<double>(reference_moba(problem, 16, chosen), 1e-10);

    problem = write_problem<float, int64_t>({0, 200});
    ASSERT_EQ(run("--kind moba --block-size 16 --top-k 3 --scale 0.5"), 0) << printed_;
    problem.scale = 0.5;
    expect_results<float>(reference_moba(problem, 16, result<int32_t>("chosen")), 1e-5);
}

TEST_F(AttentionProbe, OptionsOfTheChoiceReachTheOperation) {
    auto const problem = write_problem<double, int32_t>({0, 200});
    MobaOptions const moba{.block_size = 8, .top_k = 4, .force_previous = true, .selection = MobaSelection::per_group};
    ASSERT_EQ(run("--kind moba --block-size 8 --top-k 4 --force-previous --selection group"), 0) << printed_;
    EXPECT_EQ(result<int32_t>("chosen"), reference_routing(problem, moba, CentroidRounding::none).chosen);
    ASSERT_EQ(run("--kind moba --block-size 8 --top-k 1"), 0) << printed_;
    EXPECT_TRUE(result<int32_t>("chosen").empty());
    expect_results<double>(reference_moba(problem, 8, {}), 1e-10);
}

TEST_F(AttentionProbe, SaysWhatIsWrongWithItsInput) {
    EXPECT_EQ(run("--kind full"), 3);
    EXPECT_THAT(printed_, HasSubstr("in.h5"));
    for (auto const& borders : {std::vector<int64_t>{0, 199}, {1, 200}, {0, 150, 100, 200}}) {
        write_problem<float, int64_t>(borders);
        EXPECT_EQ(run("--kind full"), 3);
        EXPECT_THAT(printed_, HasSubstr("cu_seqlens must start with 0, never decrease, and end with T = 200"));
    }
    auto const file = create_tensor_file(*files_, in_);
    std::vector<float> const x(2 * 4 * 8);
    file->write("q", {x.data(), {2, 4, 8}});
    file->write("k", {x.data(), {2, 3, 8}});
    file->finish();
    EXPECT_EQ(run("--kind full"), 3);
    EXPECT_THAT(printed_, HasSubstr("4 query heads cannot be shared out among 3 key/value heads"));
    EXPECT_NE(run("--kind sparse"), 0);
    EXPECT_NE(run("--kind moba --top-k 0"), 0);
}

}  // namespace
}  // namespace perigee
