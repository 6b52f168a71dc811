// Decoding on the GPU: kernels/decode.
#include "kernels/decode/decode.h"
#include "kernels/block_sparse_attention/block_sparse_attention.h"
#include "kernels/decode/project.h"
#include "kernels/decode/select_attend.h"
#include "kernels/limits.h"
#include "kernels/moba_gate/plan.h"
#include "kernels/sampling/sampling.h"
#include "ops/checks.h"
#include "ops/cuda/arguments.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/parts.h"

namespace perigee {

namespace {

constexpr int64_t kMostSlots = 63;

decode::Cache cache_of(CachePages const& pages, ConstView lengths_S = {}) {
    Shape const& k = pages.k_NPGK.shape;
    auto const narrow = [](int64_t x) { return static_cast<int32_t>(x); };
    if (!kernels::attention_takes_head(k[3]))
        fail(Category::config, "heads of {} values: the GPU decodes with 32, 64, 96 or 128", k[3]);
    return {.k = pages.k_NPGK.as<bf16>(),
            .v = pages.v_NPGK.as<bf16>(),
            .means = pages.means_NGK.as<bf16>(),
            .table = pages.table_SM.as<int32_t>(),
            .lengths = lengths_S.empty() ? nullptr : lengths_S.as<int32_t>(),
            .sequences = narrow(pages.table_SM[0]),
            .row_pages = narrow(pages.table_SM[1]),
            .page_size = narrow(k[1]),
            .block_size = narrow(pages.block_size),
            .kv_heads = narrow(k[2]),
            .head_dim = narrow(k[3])};
}

/// `args`: NormedProduct or DecodeQkv.
template <class Args>
kernels::Gemv normed_gemv(Args const& args) {
    ConstView w;
    if constexpr (std::is_same_v<Args, NormedProduct>)
        w = args.w_ND;
    else
        w = args.w_XD;
    return {.x = args.x_SD.template as<bf16>(),
            .w = w.as<bf16>(),
            .norm = args.norm_D.template as<bf16>(),
            .eps = static_cast<float>(args.eps),
            .rows = args.x_SD[0],
            .n = w[0],
            .k = w[1]};
}

}  // namespace

void CudaOps::compute(NormedProduct const& args) {
    check(args);
    kernels::Gemv const product = normed_gemv(args);
    if (!kernels::takes_gemv(product) || (args.swiglu && product.n % 8 != 0))
        return compute_in_parts(
            args, main_dtype(), [this](size_t bytes) { return static_cast<std::byte*>(scratch(bytes)); },
            [this](auto const& part) { compute(part); });
    if (args.swiglu)
        kernels::gemv_swiglu(product, args.y_SN.as<bf16>(), stream());
    else
        kernels::gemv(product, args.y_SN.as<bf16>(), false, stream());
}

void CudaOps::compute(DecodeQkv const& args) {
    check(args);
    kernels::Gemv const product = normed_gemv(args);
    if (!kernels::takes_gemv(product) || !args.q_norm_K.empty() || !args.k_norm_K.empty())
        return compute_in_parts(
            args, main_dtype(), [this](size_t bytes) { return static_cast<std::byte*>(scratch(bytes)); },
            [this](auto const& part) { compute(part); });
    decode::project({.product = product,
                     .cache = cache_of(args.pages, args.lengths_S),
                     .q = args.q_SHK.as<bf16>(),
                     .bias = optional<bf16>(args.bias_X),
                     .cos = args.cos_SR.as<float>(),
                     .sin = args.sin_SR.as<float>(),
                     .heads = static_cast<int32_t>(args.q_SHK[1])},
                    stream());
}

void CudaOps::compute(KvAppend const& args) {
    check(args);
    decode::append(cache_of(args.pages, args.lengths_S), args.k_SGK.as<bf16>(), args.v_SGK.as<bf16>(), stream());
}

void CudaOps::compute(PoolBlocks const& args) {
    check(args);
    decode::pool(cache_of(args.pages), args.first, args.count, stream());
}

void CudaOps::compute(DecodeSelect const& args) {
    check(args);
    if (args.chosen_SHS.size() == 0) return;
    decode::Select select = select_of(args);
    if (std::holds_alternative<MobaOptions>(args.selection)) {
        size_t const floats = decode::select_floats(select.cache.sequences, select.heads, select.cache.most_blocks());
        select.scores = static_cast<float*>(scratch(floats * sizeof(float)));
        select.arrived = arrivals(static_cast<size_t>(select.cache.sequences * select.cache.kv_heads));
    }
    decode::select(select, args.selection);
}

void CudaOps::compute(DecodeAttend const& args) {
    check(args);
    decode::attend(attend_of(args));
}

void CudaOps::compute(DecodeSparse const& args) {
    auto const* const gate = std::get_if<MobaOptions>(&args.select.selection);
    if (gate != nullptr && args.select.chosen_SHS.size() > 0) {
        check(args.select);
        check(args.attend);
        decode::Select select = select_of(args.select);
        decode::Attend const attend = attend_of(args.attend);
        if (decode::takes_select_attend(select, attend, *gate)) {
            select.arrived = arrivals(static_cast<size_t>(select.cache.sequences * select.cache.kv_heads));
            return decode::select_attend(select, attend, *gate);
        }
    }
    compute(args.select);
    compute(args.attend);
}

/// Without scratch memory and arrivals.
decode::Select CudaOps::select_of(DecodeSelect const& args) const {
    decode::Select select{.cache = cache_of(args.pages, args.lengths_S),
                          .q = args.q_SHK.as<bf16>(),
                          .chosen = args.chosen_SHS.as<int32_t>(),
                          .heads = static_cast<int32_t>(args.q_SHK[1]),
                          .first_head = static_cast<int32_t>(args.first_head),
                          .stream = stream()};
    int64_t const slots = args.chosen_SHS[2];
    if (slots > kMostSlots)
        fail(Category::config, "top_k {}: the GPU decodes with up to {}", slots + 1, kMostSlots + 1);
    if (auto const* const gate = std::get_if<MobaOptions>(&args.selection))
        select.arch = gate_arch({.heads = args.q_SHK[1],
                                 .kv_heads = select.cache.kv_heads,
                                 .head_dim = select.cache.head_dim,
                                 .block_size = gate->block_size,
                                 .top_k = gate->top_k,
                                 .arch = kernel_arch()},
                                *gate);
    return select;
}

decode::Attend CudaOps::attend_of(DecodeAttend const& args) {
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    int64_t const slots = sparse != nullptr ? sparse->budget.slots() : 0;
    decode::Attend attend{.cache = cache_of(args.pages, args.lengths_S),
                          .o = args.o_SHK.as<bf16>(),
                          .q = args.q_SHK.as<bf16>(),
                          .chosen = slots > 0 ? sparse->chosen_THS.as<int32_t>() : nullptr,
                          .heads = static_cast<int32_t>(args.q_SHK[1]),
                          .slots = static_cast<int32_t>(slots),
                          .all = sparse == nullptr,
                          .pools = args.pools,
                          .scale = static_cast<float>(args.scale),
                          .stream = stream()};
    size_t const floats =
        decode::attend_floats(attend.cache.sequences, attend.heads, attend.cache.head_dim, decode::most_splits(attend));
    attend.scratch = static_cast<float*>(scratch(floats * sizeof(float)));
    return attend;
}

void CudaOps::compute(SampleTokens const& args) {
    check(args);
    int64_t const rows = args.ids_S.size();
    if (rows == 0) return;
    auto* const rules = reinterpret_cast<DrawRule const*>(args.rules_SB.as<uint8_t>());
    auto* const seen = args.seen_SW.empty() ? nullptr : reinterpret_cast<uint32_t*>(args.seen_SW.as<int32_t>());
    kernels::sample_tokens({.ids = args.ids_S.as<int32_t>(),
                            .logits = args.logits_SV.as<bf16>(),
                            .rules = rules,
                            .seen = seen,
                            .rows = rows,
                            .width = args.logits_SV[1],
                            .words = seen != nullptr ? args.seen_SW[1] : 0,
                            .allowed = args.allowed,
                            .scratch = scratch(kernels::sample_scratch_bytes(rows)),
                            .zeros = arrivals(kernels::sample_zeros(rows))},
                           stream());
}

}  // namespace perigee
