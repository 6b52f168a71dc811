#include "ops/host/moba_select.h"

#include "ops/host/best_blocks.h"
#include "ops/host/tiles.h"

namespace perigee::host {
namespace {

/// The mean key of every complete block, [blocks, G, K]; the rows of incomplete blocks, which nobody can choose, are 0.
template <class Real>
std::vector<Real> centroids(SelectBlocks const& args, BlockGrid const& grid) {
    int64_t const width = args.k_TGK[1] * args.k_TGK[2], blocks = static_cast<int64_t>(grid.blocks.size());
    auto const* const k = args.k_TGK.as<Real>();
    std::vector<Real> means(blocks * width, Real{0});
#pragma omp parallel for
    for (int64_t block = 0; block < blocks; ++block) {
        Segment const keys = grid.blocks[block];
        if (keys.end - keys.begin < grid.block_size) continue;
        Real* const mean = means.data() + block * width;
        mean_of_rows(mean, width, grid.block_size, [&](int64_t row) { return k + (keys.begin + row) * width; });
    }
    return means;
}

}  // namespace

template <class Real>
void choose_blocks(SelectBlocks const& args, MobaOptions const& gate, BlockGrid const& grid) {
    int64_t const H = args.q_THK[1], G = args.k_TGK[1], K = args.q_THK[2], R = H / G, S = args.chosen_THS[2];
    bool const shared = gate.selection == MobaSelection::per_group;
    auto const* const q = args.q_THK.as<Real>();
    auto* const chosen = args.chosen_THS.as<int32_t>();
    std::vector<Real> const means = centroids<Real>(args, grid);
    std::vector<Piece> const pieces = cut(documents(args.cu_seqlens), queries_of(args));
    int64_t const choices = shared ? G : H;  // per token
    int64_t const tasks = std::ssize(pieces) * choices;
#pragma omp parallel
    {
        Chooser<Real> chooser(S, gate);
        std::vector<Real> scores, summed(shared ? kTileRows * K : 0);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; ++task) {
            Piece const& piece = pieces[task / choices];
            int64_t const h = shared ? task % choices * R : task % choices, g = h / R;
            int64_t const rows = piece.end - piece.begin, first_row = piece.begin - args.query_begin;
            int64_t const candidates = (piece.end - 1 - piece.segment_begin) / grid.block_size;
            Rows<Real const> queries{q + (first_row * H + h) * K, H * K};
            if (shared) {
                sum_group(queries.data, rows, queries.stride, R, K, summed.data());
                queries = {summed.data(), K};
            }
            scores.resize(rows * candidates);
            if (candidates > 0)
                gemm<Real>({.c = {scores.data(), candidates},
                            .a = queries,
                            .b = {means.data() + (grid.first[piece.segment] * G + g) * K, G * K},
                            .m = rows,
                            .n = candidates,
                            .k = K,
                            .transpose_b = true});
            for (int64_t r = 0; r < rows; ++r) {
                int64_t const current = (piece.begin + r - piece.segment_begin) / grid.block_size;
                int32_t* const choice = chosen + ((first_row + r) * H + h) * S;
                chooser.choose(scores.data() + r * candidates, current, choice);
                for (int64_t j = 1; shared && j < R; ++j) std::copy_n(choice, S, choice + j * S);
            }
        }
    }
}

template void choose_blocks<float>(SelectBlocks const&, MobaOptions const&, BlockGrid const&);
template void choose_blocks<double>(SelectBlocks const&, MobaOptions const&, BlockGrid const&);

}  // namespace perigee::host
