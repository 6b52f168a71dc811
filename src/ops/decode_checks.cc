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

}  // namespace perigee
