// Checks of the operations of decoding.
#include "ops/checks.h"
#include "ops/expect.h"

namespace perigee {

namespace {

void check_pages(CachePages const& pages, ConstView lengths_S) {
    expect_rank("keys in pages", pages.k_NPGK, 4);
    Shape const& k = pages.k_NPGK.shape;
    expect("values in pages", pages.v_NPGK, k);
    expect("means", pages.means_NGK, {k[0], k[2], k[3]});
    expect_rank("table", pages.table_SM, 2);
    PERIGEE_CHECK(k[1] > 0 && pages.block_size > 0 && pages.block_size % k[1] == 0, "blocks of {} in pages of {}",
                  pages.block_size, k[1]);
    PERIGEE_CHECK(pages.table_SM.shape[1] * k[1] % pages.block_size == 0, "{} pages of {} are no whole blocks of {}",
                  pages.table_SM.shape[1], k[1], pages.block_size);
    if (!lengths_S.empty()) expect("lengths", lengths_S, {pages.table_SM[0]});
}

void check_queries(CachePages const& pages, ConstView q_SHK) {
    expect_rank("q", q_SHK, 3);
    Shape const &q = q_SHK.shape, &k = pages.k_NPGK.shape;
    PERIGEE_CHECK(q[0] == pages.table_SM[0] && q[2] == k[3] && k[2] > 0 && q[1] % k[2] == 0,
                  "queries {} do not fit keys {} and a table {}", q.str(), k.str(), pages.table_SM.shape.str());
}

}  // namespace

void check(NormedProduct const& args) {
    expect_rank("x", args.x_SD, 2);
    expect_rank("w", args.w_ND, 2);
    int64_t const rows = args.x_SD[0], width = args.x_SD[1], n = args.w_ND[0];
    PERIGEE_CHECK(args.w_ND[1] == width && (!args.swiglu || n % 2 == 0), "a product of {} and {}",
                  args.x_SD.shape.str(), args.w_ND.shape.str());
    expect("weight of the norm", args.norm_D, {width});
    expect("y", args.y_SN, {rows, args.swiglu ? n / 2 : n});
}

void check(DecodeQkv const& args) {
    check_pages(args.pages, args.lengths_S);
    check_queries(args.pages, args.q_SHK);
    Shape const &q = args.q_SHK.shape, &k = args.pages.k_NPGK.shape;
    int64_t const rows = q[0], width = (q[1] + 2 * k[2]) * k[3];
    expect_rank("x", args.x_SD, 2);
    PERIGEE_CHECK(args.x_SD[0] == rows, "{} rows for {} sequences", args.x_SD[0], rows);
    expect("w", args.w_XD, {width, args.x_SD[1]});
    expect("weight of the norm", args.norm_D, {args.x_SD[1]});
    expect("cos", args.cos_SR, {rows, k[3] / 2});
    expect("sin", args.sin_SR, {rows, k[3] / 2});
    expect_optional("bias", args.bias_X, {width});
    expect_optional("norm of queries", args.q_norm_K, {k[3]});
    expect_optional("norm of keys", args.k_norm_K, {k[3]});
}

void check(KvAppend const& args) {
    check_pages(args.pages, args.lengths_S);
    Shape const& k = args.pages.k_NPGK.shape;
    expect("k", args.k_SGK, {args.lengths_S.size(), k[2], k[3]});
    expect("v", args.v_SGK, args.k_SGK.shape);
}

void check(PoolBlocks const& args) {
    check_pages(args.pages, {});
    PERIGEE_CHECK(args.pages.table_SM[0] == 1 && args.first >= 0 && args.count >= 0 &&
                      args.first + args.count <= args.pages.most_blocks(),
                  "blocks {} to {} of {}", args.first, args.first + args.count, args.pages.most_blocks());
}

void check(DecodeSelect const& args) {
    check_pages(args.pages, args.lengths_S);
    check_queries(args.pages, args.q_SHK);
    auto const budget = budget_of(args.selection);
    PERIGEE_CHECK(budget && budget->block_size == args.pages.block_size, "a selection for a cache of blocks of {}",
                  args.pages.block_size);
    check_budget(*budget, args.chosen_SHS, args.q_SHK.shape);
    check_forced(args.selection);
}

void check(DecodeAttend const& args) {
    check_pages(args.pages, args.lengths_S);
    check_queries(args.pages, args.q_SHK);
    expect("o", args.o_SHK, args.q_SHK.shape);
    check_scale(args.scale);
    auto const* const sparse = std::get_if<BlockSparse>(&args.attended);
    if (sparse == nullptr) return;
    check_budget(sparse->budget, sparse->chosen_THS, args.q_SHK.shape);
    PERIGEE_CHECK(sparse->budget.block_size == args.pages.block_size, "blocks of {} in a cache of blocks of {}",
                  sparse->budget.block_size, args.pages.block_size);
}

void check(SampleTokens const& args) {
    expect_rank("logits", args.logits_SV, 2);
    int64_t const rows = args.logits_SV[0], words = (args.allowed + 31) / 32;
    expect("ids", args.ids_S, {rows});
    expect("rules", args.rules_SB, {rows, static_cast<int64_t>(sizeof(DrawRule))});
    PERIGEE_CHECK(0 < args.allowed && args.allowed <= args.logits_SV[1], "{} of {} logits", args.allowed,
                  args.logits_SV[1]);
    expect_optional("seen", args.seen_SW, {rows, words});
}

}  // namespace perigee
