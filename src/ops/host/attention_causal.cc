#include "ops/host/attention_causal.h"

#include "ops/host/tiles.h"

namespace perigee::host {

template <class Real>
void causal_forward(AttentionForward const& args, std::vector<Segment> const& segments) {
    int64_t const H = args.q_THK[1], G = args.k_TGK[1], K = args.q_THK[2];
    auto const* const q = args.q_THK.as<Real>();
    auto const* const k = args.k_TGK.as<Real>();
    auto const* const v = args.v_TGK.as<Real>();
    auto* const o = args.o_THK.as<Real>();
    auto* const lse = args.lse_TH.as<Real>();
    std::vector<Piece> const pieces = cut(segments, queries_of(args));
    int64_t const tasks = static_cast<int64_t>(pieces.size()) * H;
#pragma omp parallel
    {
        ForwardTile<Real> tile(K);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; ++task) {
            Piece const& piece = pieces[task / H];
            int64_t const h = task % H, g = h / (H / G);
            int64_t const first_row = (piece.begin - args.query_begin) * H + h;
            tile.start();
            for (int64_t key = piece.segment_begin; key < piece.end; key += kTileKeys) {
                int64_t const keys = std::min(kTileKeys, piece.end - key);
                tile.absorb({.rows = piece.end - piece.begin, .keys = keys, .visible = piece.begin - key + 1},
                            static_cast<Real>(args.scale), {q + first_row * K, H * K}, {k + (key * G + g) * K, G * K},
                            {v + (key * G + g) * K, G * K});
            }
            for (int64_t r = 0; r < piece.end - piece.begin; ++r) {
                int64_t const row = first_row + r * H;
                lse[row] = tile.finish(r, o + row * K);
            }
        }
    }
}

// All pairs of a query piece i and a key piece j <= i, one diagonal i - j after the other. The pairs of one diagonal
// write different rows of dq and different rows of dk and dv, so they run in parallel without a race, and every
// gradient is summed in the same order whatever the number of threads.
template <class Real>
void causal_backward(AttentionBackward const& args, std::vector<Segment> const& segments, Real const* delta_TH) {
    int64_t const H = args.q_THK[1], G = args.k_TGK[1], K = args.q_THK[2], R = H / G;
    auto const* const q = args.q_THK.as<Real>();
    auto const* const k = args.k_TGK.as<Real>();
    auto const* const v = args.v_TGK.as<Real>();
    auto const* const d_o = args.do_THK.as<Real>();
    auto const* const lse = args.lse_TH.as<Real>();
    auto* const dq = args.dq_THK.as<Real>();
    auto* const dk = args.dk_TGK.as<Real>();
    auto* const dv = args.dv_TGK.as<Real>();
    std::vector<Piece> const pieces = cut(segments, queries_of(args));
    int64_t const diagonals = pieces.empty() ? 0 : pieces.front().index + 1;
#pragma omp parallel
    {
        BackwardTile<Real> tile(K);
        size_t active = pieces.size();
        for (int64_t diagonal = 0; diagonal < diagonals; ++diagonal) {
            while (pieces[active - 1].index < diagonal) --active;
            int64_t const tasks = static_cast<int64_t>(active) * G;
#pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < tasks; ++task) {
                Piece const& piece = pieces[task / G];
                int64_t const g = task % G;
                int64_t const key = piece.tile_begin() - diagonal * kTileRows;
                int64_t const at_key = (key * G + g) * K;
                TileShape const shape{.rows = piece.end - piece.begin,
                                      .keys = std::min(kTileRows, piece.end - key),
                                      .visible = piece.begin - key + 1};
                for (int64_t h = g * R; h < (g + 1) * R; ++h) {
                    int64_t const row = (piece.begin - args.query_begin) * H + h;
                    tile.run(shape, static_cast<Real>(args.scale),
                             {.q = {q + row * K, H * K},
                              .k = {k + at_key, G * K},
                              .v = {v + at_key, G * K},
                              .d_o = {d_o + row * K, H * K},
                              .lse = {lse + row, H},
                              .delta = {delta_TH + row, H},
                              .dq = {dq + row * K, H * K},
                              .dk = {dk + at_key, G * K},
                              .dv = {dv + at_key, G * K},
                              .dq_kept = diagonal == 0 ? Real{0} : Real{1}});
                }
            }
        }
    }
}

template void causal_forward<float>(AttentionForward const&, std::vector<Segment> const&);
template void causal_forward<double>(AttentionForward const&, std::vector<Segment> const&);
template void causal_backward<float>(AttentionBackward const&, std::vector<Segment> const&, float const*);
template void causal_backward<double>(AttentionBackward const&, std::vector<Segment> const&, double const*);

}  // namespace perigee::host
