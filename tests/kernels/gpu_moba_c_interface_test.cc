// The C interface against the fp64 reference: gate, forward and backward in one scratch memory, as another program
// calls them; and what it says of arguments that are wrong.
#include <gmock/gmock.h>

#include "kernels/c_interface/perigee_moba.h"
#include "kernels/gpu_moba.h"

namespace perigee {
namespace {

using testing::GpuArray;
using testing::GpuMobaCase;
using ::testing::HasSubstr;
using testing::relative_error;
using GpuMobaCInterface = testing::GpuMobaTest;

perigee_moba_shape shape_of(GpuMobaCase const& c) {
    return {.tokens = c.cu_seqlens.back(),
            .documents = std::ssize(c.cu_seqlens) - 1,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .block_size = c.options.block_size,
            .top_k = c.options.top_k,
            .force_previous = c.options.force_previous,
            .per_group = c.options.selection == MobaSelection::per_group,
            .deterministic = 1};
}

/// The gate must choose what the reference does wherever no two scores are close.
void expect_chosen(std::vector<int32_t> const& chosen, ReferenceRouting const& reference, int64_t slots) {
    int64_t compared = 0;
    for (size_t row = 0; row < reference.gap.size(); ++row) {
        if (reference.gap[row] < 1e-5) continue;
        ++compared;
        for (int64_t s = 0; s < slots; ++s) {
            size_t const i = row * static_cast<size_t>(slots) + static_cast<size_t>(s);
            ASSERT_EQ(chosen[i], reference.chosen[i]) << "row " << row << ", slot " << s;
        }
    }
    EXPECT_GT(compared, std::ssize(reference.gap) * 9 / 10);
}

void expect_right(GpuMobaCase const& c, bool keeps_routing) {
    ReferenceProblem const p = make_gpu_problem(c);
    perigee_moba_shape const shape = shape_of(c);
    perigee_moba_sizes sizes{};
    char message[PERIGEE_MOBA_MESSAGE_BYTES] = "?";
    ASSERT_EQ(perigee_moba_get_sizes(&shape, &sizes, message), PERIGEE_MOBA_OK) << message;
    auto const device = make_cuda_device(0);
    GpuArray<int32_t> const cu_seqlens(*device, c.cu_seqlens);
    GpuArray<bf16> const q(*device, testing::to_bf16(p.q)), k(*device, testing::to_bf16(p.k)),
        v(*device, testing::to_bf16(p.v)), d_o(*device, testing::to_bf16(p.d_o));
    GpuArray<bf16> const o(*device, std::ssize(p.q)), dq(*device, std::ssize(p.q)), dk(*device, std::ssize(p.k)),
        dv(*device, std::ssize(p.k));
    GpuArray<float> const lse(*device, p.tokens() * c.heads);
    GpuArray<int32_t> const chosen(*device, static_cast<int64_t>(sizes.chosen_count));
    GpuArray<unsigned char> const scratch(*device, static_cast<int64_t>(sizes.scratch_bytes)),
        routing(*device, static_cast<int64_t>(sizes.routing_bytes));
    perigee_moba_problem const problem = {.cu_seqlens = cu_seqlens.data(),
                                          .q = q.data(),
                                          .k = k.data(),
                                          .v = v.data(),
                                          .scale = p.scale,
                                          .chosen = chosen.data(),
                                          .routing = keeps_routing ? routing.data() : nullptr,
                                          .scratch = scratch.data(),
                                          .stream = dynamic_cast<CudaDevice&>(*device).stream()};
    perigee_moba_gradients const gradients = {
        .d_o = d_o.data(), .o = o.data(), .lse = lse.data(), .dq = dq.data(), .dk = dk.data(), .dv = dv.data()};
    ASSERT_EQ(perigee_moba_select(&shape, &problem, message), PERIGEE_MOBA_OK) << message;
    ASSERT_EQ(perigee_moba_forward(&shape, &problem, o.data(), lse.data(), message), PERIGEE_MOBA_OK) << message;
    ASSERT_EQ(perigee_moba_backward(&shape, &problem, &gradients, message), PERIGEE_MOBA_OK) << message;
    device->synchronize();
    std::vector<int32_t> const selected = chosen.get();
    expect_chosen(selected, reference_routing(p, c.options, CentroidRounding::bf16), c.options.top_k - 1);
    ReferenceResult const reference = reference_moba(p, c.options.block_size, selected);
    EXPECT_LT(relative_error(testing::to_double(o.get()), reference.o), 5e-3);
    EXPECT_LT(relative_error(testing::to_double(dq.get()), reference.dq), 8e-3);
    EXPECT_LT(relative_error(testing::to_double(dk.get()), reference.dk), 8e-3);
    EXPECT_LT(relative_error(testing::to_double(dv.get()), reference.dv), 8e-3);
    scratch.get();  // looks at its guards
    routing.get();
}

TEST_F(GpuMobaCInterface, SelectsAttendsAndDifferentiatesAsTheReference) {
    GpuMobaCase const plain{.cu_seqlens = {0, 300, 301, 301, 630}, .options = {.block_size = 64, .top_k = 3}};
    expect_right(plain, /*keeps_routing=*/true);
    expect_right(plain, /*keeps_routing=*/false);
    expect_right(
        {.cu_seqlens = {0, 700},
         .head_dim = 128,
         .options = {.block_size = 64, .top_k = 4, .force_previous = true, .selection = MobaSelection::per_group}},
        true);
    expect_right({.cu_seqlens = {0, 90, 200}, .options = {.block_size = 32, .top_k = 1}}, true);
}

TEST_F(GpuMobaCInterface, HasScratchForAMillionTokens) {
    for (int const deterministic : {0, 1}) {
        perigee_moba_shape const shape = {.tokens = 1 << 20,
                                          .documents = 1,
                                          .heads = 32,
                                          .kv_heads = 8,
                                          .head_dim = 128,
                                          .block_size = 512,
                                          .top_k = 16,
                                          .force_previous = 0,
                                          .per_group = 0,
                                          .deterministic = deterministic};
        perigee_moba_sizes sizes{};
        char message[PERIGEE_MOBA_MESSAGE_BYTES] = "?";
        EXPECT_EQ(perigee_moba_get_sizes(&shape, &sizes, message), PERIGEE_MOBA_OK) << message;
        EXPECT_LT(sizes.scratch_bytes, sizes.routing_bytes + (size_t{3} << 30));
    }
}

TEST_F(GpuMobaCInterface, RefusesWithAReason) {
    perigee_moba_shape shape = shape_of({.cu_seqlens = {0, 128}});
    perigee_moba_sizes sizes{};
    char message[PERIGEE_MOBA_MESSAGE_BYTES] = "?";
    EXPECT_EQ(perigee_moba_get_sizes(&shape, nullptr, message), PERIGEE_MOBA_REFUSED);
    EXPECT_THAT(message, HasSubstr("sizes is null"));
    shape.head_dim = 80;
    EXPECT_EQ(perigee_moba_get_sizes(&shape, &sizes, message), PERIGEE_MOBA_REFUSED);
    EXPECT_THAT(message, HasSubstr("80"));
    EXPECT_EQ(perigee_moba_get_sizes(&shape, &sizes, nullptr), PERIGEE_MOBA_REFUSED);
    shape.head_dim = 64;
    perigee_moba_problem const empty{};
    EXPECT_EQ(perigee_moba_forward(&shape, &empty, nullptr, nullptr, message), PERIGEE_MOBA_REFUSED);
    EXPECT_THAT(message, HasSubstr("cu_seqlens is null"));
    EXPECT_EQ(perigee_moba_get_sizes(&shape, &sizes, message), PERIGEE_MOBA_OK);
    EXPECT_STREQ(message, "");
}

}  // namespace
}  // namespace perigee
