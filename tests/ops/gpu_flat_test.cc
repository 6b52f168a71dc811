// Operations on flat ranges on the GPU: sums, casts, norms, random numbers, copies, AdamW.
#include <fmt/format.h>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuFlat = GpuTest;
using GpuAdamW = GpuTest;

constexpr int64_t kCounts[] = {1, 7, 1000, 4096, 100003};

TEST_F(GpuFlat, AddsScalesAndRoundsLikeTheHost) {
    for (int64_t count : kCounts)
        for (int64_t skipped : {0, 1, 8}) {  // a range that starts where 16 bytes do, or not
            SCOPED_TRACE(fmt::format("{} from {}", count, skipped));
            Shape const all{count + skipped};
            auto const range = [&](TensorView view) { return view.rows(skipped, view[0]); };
            compare([&](Lab& lab) {
                TensorView const a = lab.main(all, random_bf16(all[0], 61)), b = lab.main(all, random_bf16(all[0], 62));
                lab.ops.add(range(a), range(b));
                lab.ops.scale(range(a), 0.375);
                lab.result("fp32", a);
                TensorView const c = lab.compute(all, random_sixteenths(all[0], 63));
                TensorView const d = lab.compute(all, random_sixteenths(all[0], 64));
                lab.ops.add(range(c), range(d));
                lab.ops.scale(range(c), 0.25);
                lab.result("bf16", c);
            });
        }
}

TEST_F(GpuFlat, UploadsInFlightKeepTheirValues) {
    Lab lab(gpu());
    TensorView const busy = lab.main({int64_t{1} << 24}, Values(size_t{1} << 24, 1.0));
    for (int64_t const large : {300, 90000}) {
        std::vector<TensorView> views;
        for (int i = 0; i < 200; ++i) views.push_back(lab.main({i % 3 == 0 ? large : 5}));
        for (int i = 0; i < 100; ++i) gpu().scale(busy, 1.0);  // so that the GPU comes to the uploads late
        for (size_t i = 0; i < views.size(); ++i) {
            std::vector<float> values(static_cast<size_t>(views[i].size()), static_cast<float>(i));
            gpu().upload(views[i], values.data());
            values.assign(values.size(), -1);
        }
        for (size_t i = 0; i < views.size(); ++i)
            ASSERT_EQ(lab.values(views[i]), Values(static_cast<size_t>(views[i].size()), static_cast<double>(i)));
    }
}

TEST_F(GpuFlat, CastsRoundToTheNearestAndBack) {
    for (int64_t count : kCounts) {
        Values const x = random_normal<double>(count, 65, 3.0);
        Lab lab(gpu());
        TensorView const wide = lab.f32({count}, x), narrow = lab.compute({count}), back = lab.main({count});
        gpu().copy(narrow, wide);
        gpu().copy(back, narrow);
        TensorView const same = lab.compute({count});
        gpu().copy(same, narrow);
        Values expected(x.size());
        for (size_t i = 0; i < x.size(); ++i) expected[i] = to_float(to_bf16(static_cast<float>(x[i])));
        for (TensorView const view : {narrow, back, same}) EXPECT_EQ(lab.values(view), expected);
    }
}

TEST_F(GpuFlat, NormsAndWeightedSumsAreInDoublePrecision) {
    for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{1003}, int64_t{1200001}})
        for (int64_t skipped : {0, 3}) {
            SCOPED_TRACE(fmt::format("{} from {}", count, skipped));
            Values const x = random_bf16(count + skipped, 66), w = random_bf16(count + skipped, 67);
            Values found[2];
            for (Values& sums : found) {
                Lab lab(gpu());
                Shape const all{count + skipped};
                TensorView const squares = lab.f64({1}, {0.5}), weighted = lab.f64({1}, {-2});
                TensorView const x_all = lab.main(all, x), w_all = lab.f32(all, w);
                gpu().squared_norm(squares, x_all.rows(skipped, all[0]));
                gpu().weighted_sum({weighted, x_all.rows(skipped, all[0]), w_all.rows(skipped, all[0])});
                sums = {lab.values(squares)[0], lab.values(weighted)[0]};
            }
            double squares = 0.5, weighted = -2;
            for (size_t i = static_cast<size_t>(skipped); i < x.size(); ++i) {
                squares += x[i] * x[i];
                weighted += x[i] * w[i];
            }
            EXPECT_NEAR(found[0][0], squares, 1e-12 * squares);
            EXPECT_NEAR(found[0][1], weighted, 1e-12 * squares);
            EXPECT_EQ(found[0], found[1]);
        }
}

TEST_F(GpuFlat, HashesAreThoseOfTheHost) {
    auto const host_device = make_host_device();
    auto const reference = make_host_ops(*host_device, 1);
    for (int64_t const count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1003}, int64_t{5000011}})
        for (int64_t const skipped : {0, 1, 3}) {
            SCOPED_TRACE(fmt::format("{} from {}", count, skipped));
            Shape const all{count + skipped};
            Lab lab(gpu());
            for (TensorView const x : {lab.main(all, random_bf16(count + skipped, 69)),
                                       lab.compute(all, random_bf16(count + skipped, 70))}) {
                TensorView const part = x.rows(skipped, all[0]);
                std::vector<std::byte> bytes(static_cast<size_t>(part.bytes()));
                gpu().download(bytes.data(), part);
                int64_t expected = 7, start = 7, found = 0;
                reference->hash_bits(TensorView(&expected, Shape{1}), TensorView(bytes.data(), x.dtype, {count}));
                Buffer const memory(gpu().device(), sizeof start);
                TensorView const hash(static_cast<std::byte*>(memory.data()), DType::i64, {1});
                gpu().upload(hash, &start);
                gpu().hash_bits(hash, part);
                gpu().download(&found, hash);
                EXPECT_EQ(found, expected);
            }
        }
}

TEST_F(GpuFlat, ANormWithOneBadElementIsNotFinite) {
    for (double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
        for (size_t at : {size_t{0}, size_t{50000}, size_t{100002}}) {
            Values x = random_bf16(100003, 68);
            x[at] = bad;
            Lab lab(gpu());
            TensorView const sum = lab.f64({1}, {0});
            gpu().squared_norm(sum, lab.main({100003}, x));
            EXPECT_FALSE(std::isfinite(lab.values(sum)[0]));
        }
}

TEST_F(GpuFlat, RandomNumbersAreThoseOfTheHost) {
    Philox const random(9, Purpose::init, hash_name("a.weight"));
    for (auto [count, begin, first, width, stride] :
         {std::array<int64_t, 5>{1000, 0, 0, 1, 1}, {999, 5, 70, 13, 29}, {100000, 0, int64_t{1} << 33, 512, 4096}}) {
        Lab exact(host()), lab(gpu());
        FillNormal args{.x = {},
                        .random = random,
                        .stddev = 0.02,
                        .part = {.begin = begin, .first = first, .width = width, .stride = stride}};
        auto const filled = [&](Lab& l, TensorView view) {
            args.x = view;
            l.ops.fill_normal(args);
            return l.values(view);
        };
        Values const expected = filled(exact, exact.main({count}));
        Values const wide = filled(lab, lab.main({count})), narrow = filled(lab, lab.compute({count}));
        EXPECT_LT(relative_error(wide, expected), 1e-7);
        EXPECT_LT(relative_error(narrow, expected), 2e-3);
        for (size_t i = 0; i < wide.size(); ++i)
            ASSERT_NEAR(wide[i], static_cast<float>(expected[i]), 3e-7 * std::abs(expected[i])) << i;
    }
}

TEST_F(GpuFlat, CopiesOnlyTheRunsItIsTold) {
    constexpr int64_t kSize = 20000;
    for (auto [rows, width, to_begin, to_stride, from_begin, from_stride] : {std::array<int64_t, 6>{5, 3, 1, 7, 2, 4},
                                                                             {10, 64, 64, 128, 128, 192},
                                                                             {300, 8, 8, 16, 0, 64},
                                                                             {2, 5000, 4, 8000, 0, 5000},
                                                                             {7, 1, 0, 1, 3, 9},
                                                                             {0, 4, 0, 4, 0, 4},
                                                                             {3, 0, 0, 1, 0, 1}}) {
        Values const from = random_bf16(kSize, 69);
        for (bool wide : {false, true}) {
            SCOPED_TRACE(fmt::format("{} rows of {}, fp32 {}", rows, width, wide));
            Lab lab(gpu());
            Values expected(kSize, -1.0);
            Shape const all{kSize};
            TensorView const to = wide ? lab.main(all, expected) : lab.compute(all, expected);
            gpu().copy_rows({.to = to,
                             .to_begin = to_begin,
                             .to_stride = to_stride,
                             .from = wide ? lab.main(all, from) : lab.compute(all, from),
                             .from_begin = from_begin,
                             .from_stride = from_stride,
                             .rows = rows,
                             .width = width});
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t i = 0; i < width; ++i)
                    expected[static_cast<size_t>(to_begin + row * to_stride + i)] =
                        from[static_cast<size_t>(from_begin + row * from_stride + i)];
            EXPECT_EQ(lab.values(to), expected);
        }
    }
}

TEST_F(GpuAdamW, MatchesTheHostAndRoundsTheWeights) {
    for (int64_t count : kCounts)
        for (int64_t skipped : {0, 1}) {
            SCOPED_TRACE(fmt::format("{} from {}", count, skipped));
            Shape const all{count + skipped};
            compare([&](Lab& lab) {
                auto const range = [&](TensorView view) { return view.rows(skipped, view[0]); };
                Values squares = random_bf16(all[0], 73);
                for (double& v : squares) v = 0.01 * std::abs(v);
                TensorView const w = lab.main(all, random_bf16(all[0], 71)), m = lab.main(all, random_bf16(all[0], 72));
                TensorView const v = lab.main(all, squares), g = lab.main(all, random_bf16(all[0], 74));
                bool const rounds = lab.ops.compute_dtype() != lab.ops.main_dtype();
                TensorView const rounded = rounds ? lab.compute(all) : w;
                for (int64_t step : {1, 2, 1000})
                    lab.ops.adamw({.w = range(w),
                                   .m = range(m),
                                   .v = range(v),
                                   .g = range(g),
                                   .lr = 0.01,
                                   .weight_decay = 0.1,
                                   .grad_scale = 0.5,
                                   .step = step,
                                   .rounded = rounds ? range(rounded) : TensorView()});
                for (auto const& [name, view] : {std::pair("w", w), {"m", m}, {"v", v}}) lab.result(name, range(view));
                lab.result("rounded", range(rounded));
            });
        }
}

TEST_F(GpuAdamW, RoundsMomentsInBf16LikeTheHost) {
    // Updates that are exact in fp32: beta of 1/2, and gradients with few bits.
    for (int64_t const count : kCounts)
        for (auto const& [skipped, part] : {std::pair<int64_t, TensorPart>{0, {}},
                                            {1, {.first = 3}},
                                            {0, {.begin = 5, .first = 70, .width = 13, .stride = 29}},
                                            {8, {.first = 8}}}) {
            SCOPED_TRACE(fmt::format("{} from {}", count, skipped));
            Shape const all{count + skipped};
            auto const run = [&, skipped = skipped, part = part](Ops& ops) {
                Lab lab(ops);
                auto const range = [&](TensorView view) { return view.rows(skipped, all[0]); };
                Values squares = random_sixteenths(all[0], 83);
                for (double& v : squares) v = std::abs(v);
                Buffer const memory(ops.device(), static_cast<size_t>(4 * all[0]));
                auto* const bytes = static_cast<std::byte*>(memory.data());
                TensorView const m(bytes, DType::bf16, all), v(bytes + 2 * all[0], DType::bf16, all);
                auto const fill = [&](TensorView view, Values const& values) {
                    std::vector<bf16> narrow;
                    for (double x : values) narrow.push_back(to_bf16(static_cast<float>(x)));
                    ops.upload(view, narrow.data());
                };
                fill(m, random_sixteenths(all[0], 82));
                fill(v, squares);
                TensorView const w = lab.f32(all, random_sixteenths(all[0], 81)),
                                 g = lab.f32(all, random_sixteenths(all[0], 84));
                ops.adamw({.w = range(w),
                           .m = range(m),
                           .v = range(v),
                           .g = range(g),
                           .lr = 0.01,
                           .beta1 = 0.5,
                           .beta2 = 0.5,
                           .step = 2,
                           .random = Philox(9, Purpose::rounding, 5),
                           .part = part});
                return std::array{lab.values(m), lab.values(v), lab.values(w)};
            };
            auto const device = make_host_device();
            auto const narrow_host = make_host_ops(*device, 2);
            auto const expected = run(*narrow_host), found = run(gpu());
            EXPECT_EQ(found[0], expected[0]);
            EXPECT_EQ(found[1], expected[1]);
            EXPECT_LT(relative_error(found[2], expected[2]), 1e-6);
        }
}

}  // namespace

}  // namespace perigee::testing
