#include "model/block_decoding.h"

#include <algorithm>

#include "model/linear.h"

namespace perigee {

void attend_cache(Ops& ops, Decoding const& decoding, CacheAttention const& x, Selection const& selection) {
    DecodeAttend attend{.o_SHK = x.o_SHK,
                        .q_SHK = x.q_SHK,
                        .pages = decoding.pages,
                        .lengths_S = decoding.lengths_S,
                        .scale = decoding.scale,
                        .pools = x.pools};
    auto const budget = budget_of(selection);
    if (!budget) return ops.decode_attend(attend);
    attend.attended = BlockSparse{.budget = *budget, .chosen_THS = x.chosen_SHS};
    ops.decode_sparse({.select = {.chosen_SHS = x.chosen_SHS,
                                  .q_SHK = x.q_SHK,
                                  .pages = decoding.pages,
                                  .lengths_S = decoding.lengths_S,
                                  .selection = selection,
                                  .first_head = decoding.first_head},
                       .attend = attend});
}

DecodeTensors allocate_decoding(Arena& arena, Ops& ops, ModelOptions const& options, int64_t rows,
                                std::span<Selection const> selections) {
    DType const compute = ops.compute_dtype();
    int64_t const H = options.num_attention_heads, K = options.head_size();
    int64_t slots = 0;
    for (Selection const& selection : selections)
        if (auto const budget = budget_of(selection)) slots = std::max(slots, budget->slots());
    return {.x_SD = arena.allocate("x", compute, {rows, options.hidden_size}),
            .q_SHK = arena.allocate("q", compute, {rows, H, K}),
            .o_SHK = arena.allocate("o", compute, {rows, H, K}),
            .chosen_C = arena.allocate("chosen", DType::i32, {rows * H * slots}),
            .y_SF = arena.allocate("y", compute, {rows, options.intermediate_size}),
            .cos_SR = {},
            .sin_SR = {}};
}

void block_decode(Ops& ops, ModelOptions const& options, BlockTensors const& weights, DecodeTensors const& tensors,
                  Decoding const& decoding, Selection const& selection) {
    auto const& [x_SD, q_SHK, o_SHK, chosen_C, y_SF, cos_SR, sin_SR] = tensors;
    ops.decode_qkv({.q_SHK = q_SHK,
                    .pages = decoding.pages,
                    .lengths_S = decoding.lengths_S,
                    .x_SD = x_SD,
                    .norm_D = weights.input_norm_D,
                    .w_XD = weights.qkv.w_OI,
                    .cos_SR = cos_SR,
                    .sin_SR = sin_SR,
                    .bias_X = weights.qkv_bias_X,
                    .q_norm_K = weights.q_norm_K,
                    .k_norm_K = weights.k_norm_K,
                    .eps = options.rms_norm_eps});
    TensorView chosen_SHS;
    if (auto const budget = budget_of(selection))
        chosen_SHS =
            chosen_C.rows(0, q_SHK[0] * q_SHK[1] * budget->slots()).reshape({q_SHK[0], q_SHK[1], budget->slots()});
    attend_cache(ops, decoding, {.o_SHK = o_SHK, .q_SHK = q_SHK, .chosen_SHS = chosen_SHS, .pools = true}, selection);
    ops.matmul({.c = x_SD, .a = matrix(o_SHK), .b = weights.o.w_OI, .transpose_b = true, .accumulate = true});
    ops.normed_product({.y_SN = y_SF,
                        .x_SD = x_SD,
                        .norm_D = weights.post_norm_D,
                        .w_ND = weights.gate_up.w_OI,
                        .eps = options.rms_norm_eps,
                        .swiglu = true});
    ops.matmul({.c = x_SD, .a = y_SF, .b = weights.down.w_OI, .transpose_b = true, .accumulate = true});
}

}  // namespace perigee
