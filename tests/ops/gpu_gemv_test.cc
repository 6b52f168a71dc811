// Products of a few rows with a weight matrix, as in decoding.
#include "kernels/gemv/gemv.h"
#include "ops/gpu_case.h"

namespace perigee::testing {
namespace {

using GpuGemv = GpuTest;

struct Factors {
    int64_t n, k;
    Values w_NK = random_bf16(n * k, 3), x_RK = random_bf16(17 * k, 4);

    Values first_rows(int64_t rows) const { return {x_RK.begin(), x_RK.begin() + rows * k}; }
};

Values product(Ops& ops, Factors const& f, int64_t rows, Values const& before = {}) {
    Lab lab(ops);
    TensorView const y = before.empty() ? lab.compute({rows, f.n}) : lab.compute({rows, f.n}, before);
    ops.matmul({.c = y,
                .a = lab.compute({rows, f.k}, f.first_rows(rows)),
                .b = lab.compute({f.n, f.k}, f.w_NK),
                .transpose_b = true,
                .accumulate = !before.empty()});
    return lab.values(y);
}

Values expected(Factors const& f, int64_t rows) {
    Values y;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < f.n; ++i) {
            double sum = 0;
            for (int64_t j = 0; j < f.k; ++j)
                sum += f.x_RK[static_cast<size_t>(r * f.k + j)] * f.w_NK[static_cast<size_t>(i * f.k + j)];
            y.push_back(sum);
        }
    return y;
}

/// Full chunks, warps without a chunk, a tile that ends at n, more tiles than SMs, and rows too long for shared memory.
std::vector<std::pair<int64_t, int64_t>> const kShapes = {{8, 32},     {24, 64},   {100, 288},  {1, 96},
                                                          {520, 2048}, {64, 4128}, {4100, 320}, {16, 14336}};

TEST_F(GpuGemv, AgreesWithTheDefinition) {
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        for (int64_t const rows : {1, 2, 7, 8, 9, 16, 17}) {
            EXPECT_LT(relative_error(product(gpu(), f, rows), expected(f, rows)), 4e-3)
                << rows << " rows, " << n << " x " << k;
        }
    }
}

TEST_F(GpuGemv, ARowDependsOnNoOther) {
    int compared = 0;
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        // Where x does not fit into shared memory, many rows take another path.
        if (!kernels::takes_gemv({.rows = 16, .n = n, .k = k})) continue;
        ++compared;
        Values const all = product(gpu(), f, 16);
        for (int64_t const rows : {1, 3, 8, 9}) {
            Values const few = product(gpu(), f, rows);
            EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << rows << " rows, " << n << " x " << k;
        }
    }
    EXPECT_GE(compared, 4);
}

TEST_F(GpuGemv, AddsToWhatIsThere) {
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        for (int64_t const rows : {1, 8, 16, 17}) {
            Values const before = random_bf16(rows * n, 9, 30);
            Values want = expected(f, rows);
            for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
            EXPECT_LT(relative_error(product(gpu(), f, rows, before), want), 4e-3)
                << rows << " rows, " << n << " x " << k;
        }
    }
}

TEST_F(GpuGemv, RepeatsInEveryBit) {
    Factors const f{4100, 320};
    Values const first = product(gpu(), f, 5);
    for (int again = 0; again < 5; ++again) EXPECT_EQ(product(gpu(), f, 5), first);
}

}  // namespace
}  // namespace perigee::testing
