// MoBA and full attention through the operations of the GPU, whichever kernels those choose, against the fp64
// reference.
#include "kernels/block_sparse_attention/reference.h"
#include "ops/gpu_case.h"

namespace perigee::testing {

namespace {

using GpuAttention = GpuTest;

struct Heads {
    int64_t heads = 8;
    int64_t kv_heads = 2;
    int64_t head_dim = 64;
};

ReferenceProblem problem(std::vector<int32_t> const& cu_seqlens, Heads const& n) {
    int64_t const T = cu_seqlens.back();
    return {.heads = n.heads,
            .kv_heads = n.kv_heads,
            .head_dim = n.head_dim,
            .scale = 1 / std::sqrt(static_cast<double>(n.head_dim)),
            .cu_seqlens = cu_seqlens,
            .q = random_bf16(T * n.heads * n.head_dim, 41),
            .k = random_bf16(T * n.kv_heads * n.head_dim, 42),
            .v = random_bf16(T * n.kv_heads * n.head_dim, 43),
            .d_o = random_bf16(T * n.heads * n.head_dim, 44)};
}

struct Results {
    std::vector<int32_t> chosen;
    Values o, lse, dq, dk, dv;
};

/// All tokens of the pack.
Results attend(Lab& lab, ReferenceProblem const& p, Selection const& selection) {
    auto const budget = budget_of(selection);
    int64_t const T = p.tokens(), S = budget ? budget->slots() : 0;
    Shape const rows{T, p.heads, p.head_dim}, keys{T, p.kv_heads, p.head_dim};
    TensorView const q = lab.compute(rows, p.q), k = lab.compute(keys, p.k), v = lab.compute(keys, p.v);
    TensorView const d_o = lab.compute(rows, p.d_o), o = lab.compute(rows), lse = lab.main({T, p.heads});
    TensorView const dq = lab.compute(rows), dk = lab.compute(keys), dv = lab.compute(keys);
    Results y;
    y.chosen.assign(static_cast<size_t>(T * p.heads * S), -777);
    TensorView const chosen = lab.ids(y.chosen).reshape({T, p.heads, S});
    int64_t const numbers = budget ? lab.ops.routing_size(rows, keys, p.cu_seqlens, *budget) : 0;
    TensorView const routing =
        numbers > 0 ? lab.ids(std::vector<int32_t>(static_cast<size_t>(numbers), -777)) : TensorView();
    Attended attended = FullAttention{};
    if (budget) {
        lab.ops.select_blocks(
            {.chosen_THS = chosen, .q_THK = q, .k_TGK = k, .cu_seqlens = p.cu_seqlens, .selection = selection});
        attended = BlockSparse{.budget = *budget, .chosen_THS = chosen, .routing_L = routing};
    }
    lab.ops.attention_forward({.o_THK = o,
                               .lse_TH = lse,
                               .q_THK = q,
                               .k_TGK = k,
                               .v_TGK = v,
                               .cu_seqlens = p.cu_seqlens,
                               .scale = p.scale,
                               .attended = attended});
    lab.ops.attention_backward({.dq_THK = dq,
                                .dk_TGK = dk,
                                .dv_TGK = dv,
                                .do_THK = d_o,
                                .q_THK = q,
                                .k_TGK = k,
                                .v_TGK = v,
                                .o_THK = o,
                                .lse_TH = lse,
                                .cu_seqlens = p.cu_seqlens,
                                .scale = p.scale,
                                .attended = attended});
    lab.ops.download(y.chosen.data(), chosen);
    y.o = lab.values(o), y.lse = lab.values(lse);
    y.dq = lab.values(dq), y.dk = lab.values(dk), y.dv = lab.values(dv);
    return y;
}

void expect_close(Results const& y, ReferenceResult const& reference) {
    EXPECT_LT(relative_error(y.o, reference.o), 5e-3);
    EXPECT_LT(relative_error(y.lse, reference.lse), 1e-3);
    EXPECT_LT(relative_error(y.dq, reference.dq), 5e-3);
    EXPECT_LT(relative_error(y.dk, reference.dk), 5e-3);
    EXPECT_LT(relative_error(y.dv, reference.dv), 5e-3);
}

TEST_F(GpuAttention, MobaAttendsWhatItChose) {
    for (int64_t const top_k : {1, 3}) {
        MobaOptions const moba{.block_size = 64, .top_k = top_k};
        ReferenceProblem const p = problem({0, 100, 100, 700}, {});
        Lab lab(gpu());
        Results const y = attend(lab, p, moba);
        expect_close(y, reference_moba(p, moba.block_size, y.chosen));
    }
}

TEST_F(GpuAttention, MobaThatCoversEveryDocumentIsFullAttention) {
    MobaOptions const moba{.block_size = 256, .top_k = 3};
    ReferenceProblem const p = problem({0, 100, 700}, {.head_dim = 128});
    // Where the backward is deterministic, it is not cuDNN's, but the forward is, which leaves no lists.
    auto const device = make_cuda_device(0);
    auto const deterministic = make_cuda_ops(*device, {.deterministic = true});
    for (Ops* const ops : {&gpu(), deterministic.get()}) {
        Lab lab(*ops);
        expect_close(attend(lab, p, moba), reference_attention(p));
    }
}

/// With a budget of `scratch` bytes at least `saved` bytes less. Partial results alone take 42 and 112 MiB.
void moba_takes_little_scratch_memory(int32_t tokens, Heads const& heads, size_t scratch, int64_t saved) {
    MobaOptions const moba{.block_size = 128, .top_k = 8};
    ReferenceProblem const p = problem({0, tokens}, heads);
    auto const device = make_cuda_device(0);
    auto const ample = make_cuda_ops(*device), small = make_cuda_ops(*device, {.moba_scratch = scratch});
    auto const run = [&](Ops& ops) {
        Lab lab(ops);
        int64_t const before = device->used_bytes();
        Results const y = attend(lab, p, moba);
        return std::pair{y, device->used_bytes() - before};
    };
    auto const [expected, most] = run(*ample);
    auto const [found, least] = run(*small);
    EXPECT_EQ(found.chosen, expected.chosen);
    for (auto part : {&Results::o, &Results::lse, &Results::dq, &Results::dk, &Results::dv})
        EXPECT_LT(relative_error(found.*part, expected.*part), 5e-3);
    EXPECT_LT(least, most - saved);
}

TEST_F(GpuAttention, MobaTakesLittleScratchMemoryWhereItMust) {
    moba_takes_little_scratch_memory(3072, {.heads = 8, .kv_heads = 4, .head_dim = 128}, 4 << 20, 24 << 20);
}
TEST_F(GpuAttention, MobaTakesLittleScratchMemoryWhereItMustAtLength) {
    moba_takes_little_scratch_memory(4096, {.heads = 16, .kv_heads = 4, .head_dim = 128}, 8 << 20, 64 << 20);
}

TEST_F(GpuAttention, FullAttentionOfPackedDocuments) {
    for (int64_t const head_dim : {32, 64, 96, 128}) {
        ReferenceProblem const p = problem({0, 1, 100, 100, 500}, {.head_dim = head_dim});
        Lab lab(gpu());
        expect_close(attend(lab, p, FullAttention{}), reference_attention(p));
    }
}

TEST_F(GpuAttention, FullAttentionOfDocumentsOfOneLength) {
    for (int64_t const head_dim : {32, 64, 96, 128})
        for (std::vector<int32_t> const& borders :
             {std::vector<int32_t>{0, 1024}, {0, 640, 1280, 1920}, {0, 512, 1024, 1100}}) {
            SCOPED_TRACE(
                fmt::format("heads of {}, {} documents, the first of {}", head_dim, borders.size() - 1, borders[1]));
            ReferenceProblem const p = problem(borders, {.heads = 2, .kv_heads = 1, .head_dim = head_dim});
            Lab lab(gpu());
            expect_close(attend(lab, p, FullAttention{}), reference_attention(p));
        }
}

TEST_F(GpuAttention, FullAttentionOfDocumentsOfOneLengthWhereHeadsShareNothing) {
    ReferenceProblem const p = problem({0, 512, 1024}, {.heads = 3, .kv_heads = 3});
    Lab lab(gpu());
    expect_close(attend(lab, p, FullAttention{}), reference_attention(p));
}

}  // namespace

}  // namespace perigee::testing
