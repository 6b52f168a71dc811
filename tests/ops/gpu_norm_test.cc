// RMSNorm and SwiGLU on the GPU.
#include <fmt/format.h>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuRmsNorm = GpuTest;
using GpuSwiglu = GpuTest;

constexpr double kGpuEps = 1e-5;

enum class Residual { none, joined, in_place };

/// Forward and backward; with a residual, its gradient joins dx, in place if asked.
void norm_case(Lab& lab, Shape const& shape, Residual residual) {
    int64_t const size = shape.size();
    Shape const row{shape[1]}, column{shape[0]};
    bool const joins = residual != Residual::none;
    TensorView const x = lab.compute(shape, random_sixteenths(size, 1)), w = lab.compute(row, random_bf16(shape[1], 2));
    TensorView const y = lab.compute(shape), rstd = lab.main(column);
    TensorView const other = joins ? lab.compute(shape, random_sixteenths(size, 3)) : TensorView();
    TensorView const sum = joins ? lab.compute(shape) : TensorView();
    lab.ops.rmsnorm_forward(
        {.y_TD = y, .rstd_T = rstd, .x_TD = x, .w_D = w, .eps = kGpuEps, .residual_TD = other, .sum_TD = sum});
    lab.result("y", y);
    lab.result("rstd", rstd);
    if (joins) lab.result("sum", sum);

    TensorView const dy = lab.compute(shape, random_bf16(size, 4)), dw = lab.main(row, random_bf16(shape[1], 5));
    TensorView const dresidual = joins ? lab.compute(shape, random_bf16(size, 6)) : TensorView();
    TensorView const dx = residual == Residual::in_place ? dresidual : lab.compute(shape);
    lab.ops.rmsnorm_backward({.dx_TD = dx,
                              .dw_accumulated_D = dw,
                              .dy_TD = dy,
                              .x_TD = joins ? sum : x,
                              .w_D = w,
                              .rstd_T = rstd,
                              .dresidual_TD = dresidual});
    lab.result("dx", dx);
    lab.result("dw", dw);
}

TEST_F(GpuRmsNorm, MatchesTheHostAtEveryWidth) {
    // Narrow and odd widths, both sizes of blocks, the widest of each path, more rows than are worked on at a time,
    // rows of one warp and of several side by side, and one row.
    for (Shape const shape :
         {Shape{150, 37}, Shape{100, 8}, Shape{3500, 256}, Shape{1700, 776}, Shape{1, 2048}, Shape{33, 2048},
          Shape{20, 3080}, Shape{5, 4095}, Shape{7, 8192}, Shape{4, 8200}, Shape{3, 16384}, Shape{90, 3}})
        for (Residual residual : {Residual::none, Residual::joined, Residual::in_place}) {
            SCOPED_TRACE(shape.str() + " residual " + std::to_string(static_cast<int>(residual)));
            compare([&](Lab& lab) { norm_case(lab, shape, residual); });
        }
}

TEST_F(GpuRmsNorm, RoundsTheSumAndNormalisesWhatItRounded) {
    Shape const shape{40, 512};
    Lab lab(gpu());
    Values const a = random_bf16(shape.size(), 11), b = random_bf16(shape.size(), 12, 0.01);
    TensorView const y = lab.compute(shape), sum = lab.compute(shape), rstd = lab.main({shape[0]});
    gpu().rmsnorm_forward({.y_TD = y,
                           .rstd_T = rstd,
                           .x_TD = lab.compute(shape, a),
                           .w_D = lab.compute({shape[1]}, Values(512, 1.0)),
                           .eps = kGpuEps,
                           .residual_TD = lab.compute(shape, b),
                           .sum_TD = sum});
    Values rounded = lab.values(sum), expected(a.size());
    for (size_t i = 0; i < a.size(); ++i) expected[i] = to_float(to_bf16(static_cast<float>(a[i] + b[i])));
    EXPECT_EQ(rounded, expected);
    Lab exact(host());
    TensorView const y_exact = exact.compute(shape);
    host().rmsnorm_forward({.y_TD = y_exact,
                            .rstd_T = exact.main({shape[0]}),
                            .x_TD = exact.compute(shape, rounded),
                            .w_D = exact.compute({shape[1]}, Values(512, 1.0)),
                            .eps = kGpuEps});
    EXPECT_LT(relative_error(lab.values(y), exact.values(y_exact)), 2e-3);
}

TEST_F(GpuRmsNorm, SaysWhichWidthIsTooWide) {
    Lab lab(gpu());
    for (int64_t width : {4097, 16392}) {
        Shape const shape{1, width};
        EXPECT_THROW(gpu().rmsnorm_forward({.y_TD = lab.compute(shape),
                                            .rstd_T = lab.main({1}),
                                            .x_TD = lab.compute(shape),
                                            .w_D = lab.compute({width})}),
                     Error);
    }
}

/// Backward into its own input where `in_place`.
void swiglu_case(Lab& lab, int64_t tokens, int64_t width, bool in_place) {
    Shape const both{tokens, 2 * width}, one{tokens, width};
    TensorView const gate_up = lab.compute(both, random_bf16(both.size(), 21, 3.0));
    TensorView const y = lab.compute(one), dy = lab.compute(one, random_bf16(one.size(), 22));
    lab.ops.swiglu_forward(y, gate_up);
    lab.result("y", y);
    TensorView const d = in_place ? gate_up : lab.compute(both);
    lab.ops.swiglu_backward({d, dy, gate_up});
    lab.result("dgate_up", d);
}

TEST_F(GpuSwiglu, MatchesTheHost) {
    for (auto [tokens, width] : {std::pair<int64_t, int64_t>(70, 37), {1, 520}, {300, 264}, {17, 8192}, {9, 2056}})
        for (bool in_place : {false, true}) {
            SCOPED_TRACE(fmt::format("{} x {}, in place {}", tokens, width, in_place));
            compare([&](Lab& lab) { swiglu_case(lab, tokens, width, in_place); });
        }
}

TEST_F(GpuSwiglu, ExtremeGatesStayFinite) {
    Lab lab(gpu());
    Values const gate_up{-1e4, 1e4, -100, 100, 2, 2, 2, 2};
    TensorView const x = lab.compute({1, 8}, gate_up), y = lab.compute({1, 4}), d = lab.compute({1, 8});
    gpu().swiglu_forward(y, x);
    gpu().swiglu_backward({d, lab.compute({1, 4}, Values(4, 1.0)), x});
    EXPECT_EQ(lab.values(y), (Values{0, 19968, 0, 200}));
    EXPECT_EQ(lab.values(d), (Values{0, 2, 0, 2, 0, 9984, 0, 100}));
}

}  // namespace

}  // namespace perigee::testing
