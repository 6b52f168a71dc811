// The key convolution on the GPU against the host in fp64.
#include <fmt/format.h>

#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuKeyConv = GpuTest;

struct Keys {
    int64_t tokens, channels, taps, first, width;
    int64_t document;  ///< tokens per document
};

void key_conv_case(Lab& lab, Keys const& n) {
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < n.tokens; ++t) positions.push_back(static_cast<int32_t>(t % n.document));
    TensorView const positions_T = lab.ids(positions);
    Shape const rows{n.tokens, n.channels}, weights{n.channels, n.taps}, all{n.tokens, n.width};
    TensorView const x = lab.compute(rows, random_bf16(rows.size(), 41));
    TensorView const w = lab.compute(weights, random_bf16(weights.size(), 42));
    TensorView const dy = lab.compute(rows, random_bf16(rows.size(), 43));
    TensorView const dw = lab.main(weights, random_bf16(weights.size(), 44));
    // The kernels must leave the query and value columns unchanged.
    TensorView const y = lab.compute(all, random_bf16(all.size(), 45));
    TensorView const dx = lab.compute(all, random_bf16(all.size(), 46));
    lab.ops.key_conv_forward({.y_TX = y, .x_TC = x, .w_CW = w, .positions_T = positions_T, .first = n.first});
    lab.ops.key_conv_backward({.dx_TX = dx,
                               .dw_accumulated_CW = dw,
                               .dy_TC = dy,
                               .x_TC = x,
                               .w_CW = w,
                               .positions_T = positions_T,
                               .first = n.first});
    lab.result("y", y);
    lab.result("dx", dx);
    lab.result("dw", dw);
}

TEST_F(GpuKeyConv, MatchesTheHost) {
    // Ranges of 64 tokens: fewer tokens, exactly one range, and documents that end at or near the end of a range. Also
    // more channels than a thread block covers.
    for (int64_t const taps : {1, 2, 3, 4, 5})
        for (Keys const n :
             {Keys{1, 2, 0, 0, 2, 1}, Keys{64, 64, 0, 6, 80, 64}, Keys{63, 128, 0, 128, 384, 7},
              Keys{200, 66, 0, 2, 100, 65}, Keys{131, 576, 0, 576, 1728, 63}, Keys{1500, 512, 0, 512, 1536, 1}}) {
            Keys its = n;
            its.taps = taps;
            SCOPED_TRACE(fmt::format("{} tokens, {} channels, {} keys, documents of {}", its.tokens, its.channels, taps,
                                     its.document));
            compare([&](Lab& lab) { key_conv_case(lab, its); });
        }
}

TEST_F(GpuKeyConv, LongSequences) {
    compare([&](Lab& lab) { key_conv_case(lab, {20000, 192, 5, 576, 960, 9001}); });
    // More ranges than the second dimension of a grid could have.
    compare([&](Lab& lab) { key_conv_case(lab, {65536 * 64 + 1, 2, 2, 0, 2, 9001}); });
}

}  // namespace

}  // namespace perigee::testing
