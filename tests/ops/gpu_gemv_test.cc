// Products of few rows with weights, as decoding makes them.
#include "ops/gpu_case.h"

namespace perigee::testing {
namespace {

using GpuGemv = GpuTest;

struct Factors {
    int64_t n, k;
    Values w_NK = random_bf16(n * k, 3), x_RK = random_bf16(9 * k, 4);

    Values first_rows(int64_t rows) const { return {x_RK.begin(), x_RK.begin() + rows * k}; }
};

Values product(Ops& ops, Factors const& f, int64_t rows) {
    Lab lab(ops);
    TensorView const y = lab.compute({rows, f.n});
    ops.matmul({.c = y,
                .a = lab.compute({rows, f.k}, f.first_rows(rows)),
                .b = lab.compute({f.n, f.k}, f.w_NK),
                .transpose_b = true});
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

/// Whole chunks and warps without any, tiles that end within W, one row to one more than the kernel takes.
std::vector<std::pair<int64_t, int64_t>> const kShapes = {{8, 32}, {24, 64},    {100, 288},
                                                          {1, 96}, {520, 2048}, {64, 4128}};

TEST_F(GpuGemv, AgreesWithTheDefinition) {
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        for (int64_t const rows : {1, 2, 7, 8, 9}) {
            EXPECT_LT(relative_error(product(gpu(), f, rows), expected(f, rows)), 4e-3)
                << rows << " rows, " << n << " x " << k;
        }
    }
}

TEST_F(GpuGemv, ARowDependsOnNoOther) {
    for (auto const& [n, k] : kShapes) {
        Factors const f{n, k};
        Values const all = product(gpu(), f, 8);
        for (int64_t const rows : {1, 3, 7}) {
            Values const few = product(gpu(), f, rows);
            EXPECT_TRUE(std::equal(few.begin(), few.end(), all.begin())) << rows << " rows, " << n << " x " << k;
        }
    }
}

}  // namespace
}  // namespace perigee::testing
