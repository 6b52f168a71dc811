// Decoding on the GPU: kernels/decode.
#include "kernels/decode/decode.h"
#include "kernels/block_sparse_attention/block_sparse_attention.h"
#include "kernels/limits.h"
#include "kernels/moba_gate/plan.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

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

}  // namespace

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
    decode::Select select{.cache = cache_of(args.pages, args.lengths_S),
                          .q = args.q_SHK.as<bf16>(),
                          .chosen = args.chosen_SHS.as<int32_t>(),
                          .heads = static_cast<int32_t>(args.q_SHK[1]),
                          .first_head = static_cast<int32_t>(args.first_head),
                          .stream = stream()};
    int64_t const slots = args.chosen_SHS[2];
    if (slots > kMostSlots)
        fail(Category::config, "top_k {}: the GPU decodes with up to {}", slots + 1, kMostSlots + 1);
    if (auto const* const gate = std::get_if<MobaOptions>(&args.selection)) {
        select.arch = gate_arch({.heads = args.q_SHK[1],
                                 .kv_heads = select.cache.kv_heads,
                                 .head_dim = select.cache.head_dim,
                                 .block_size = gate->block_size,
                                 .top_k = gate->top_k,
                                 .arch = kernel_arch()},
                                *gate);
        size_t const floats = decode::select_floats(select.cache, select.heads);
        select.scores = static_cast<float*>(scratch(floats * sizeof(float)));
    }
    decode::select(select, args.selection);
}

void CudaOps::compute(DecodeAttend const& args) {
    check(args);
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    int64_t const slots = sparse != nullptr ? sparse->budget.slots() : 0;
    decode::Attend attend{.cache = cache_of(args.pages, args.lengths_S),
                          .o = args.o_SHK.as<bf16>(),
                          .q = args.q_SHK.as<bf16>(),
                          .chosen = slots > 0 ? sparse->chosen_THS.as<int32_t>() : nullptr,
                          .heads = static_cast<int32_t>(args.q_SHK[1]),
                          .slots = static_cast<int32_t>(slots),
                          .all = sparse == nullptr,
                          .scale = static_cast<float>(args.scale),
                          .stream = stream()};
    attend.scratch = static_cast<float*>(scratch(decode::attend_floats(attend) * sizeof(float)));
    decode::attend(attend);
}

}  // namespace perigee
