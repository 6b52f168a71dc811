#include "ops/host/moba_attention.h"

#include <limits>
#include <memory>

#include "ops/host/tiles.h"

namespace perigee::host {
namespace {

/// One row of K numbers, or one number, per (token, head of a group, slot).
template <class Real>
class Partials {
  public:
    Partials(int64_t tokens, int64_t group, int64_t slots, int64_t width)
        : group_(group),
          slots_(slots),
          width_(width),
          data_(std::make_unique_for_overwrite<Real[]>(tokens * group * slots * width)) {}
    Real* at(Route const& route) const {
        return data_.get() + ((route.token * group_ + route.head % group_) * slots_ + route.slot) * width_;
    }

  private:
    int64_t group_, slots_, width_;
    std::unique_ptr<Real[]> data_;
};

/// Copies of up to kTileRows rows of a tensor [T, H, width].
template <class Real>
class Gathered {
  public:
    explicit Gathered(int64_t width) : width_(width), data_(kTileRows * width) {}
    void fill(Real const* from, int64_t heads, std::vector<Route> const& routes) {
        for (size_t r = 0; r < routes.size(); ++r)
            std::copy_n(from + (routes[r].token * heads + routes[r].head) * width_, width_, data_.data() + r * width_);
    }
    Rows<Real> rows() { return {data_.data(), width_}; }

  private:
    int64_t width_;
    std::vector<Real> data_;
};

/// Calls work(routes) for the routes of a block, up to kTileRows at a time.
template <class Work>
void each_tile(Routes const& routes, int64_t kv_head, int64_t block, std::vector<Route>& tile, Work work) {
    int64_t const count = routes.count(kv_head, block);
    for (int64_t first = 0; first < count; first += kTileRows) {
        tile.clear();
        for (int64_t i = first; i < std::min(first + kTileRows, count); ++i)
            tile.push_back(routes.at(kv_head, block, i));
        work();
    }
}

/// o and lse of one row, joined with those of its routes:
/// lse' = log sum_j exp(lse_j), o' = sum_j exp(lse_j - lse') o_j, j over the own block and the chosen ones.
template <class Real>
void merge(Real* o, Real& lse, int64_t dim, int64_t slots, Real const* partial_o, Real const* partial_lse) {
    Real top = lse;
    for (int64_t s = 0; s < slots; ++s) top = std::max(top, partial_lse[s]);
    if (top == -std::numeric_limits<Real>::infinity()) return;  // the row has nothing but scores of -infinity
    Real sum = std::exp(lse - top);
    for (int64_t s = 0; s < slots; ++s) sum += std::exp(partial_lse[s] - top);
    Real const merged = top + std::log(sum);
    Real const own = std::exp(lse - merged);
    for (int64_t i = 0; i < dim; ++i) o[i] *= own;
    for (int64_t s = 0; s < slots; ++s) {
        Real const weight = std::exp(partial_lse[s] - merged);
        for (int64_t i = 0; i < dim; ++i) o[i] += weight * partial_o[s * dim + i];
    }
    lse = merged;
}

/// How many slots of a row are in use.
int64_t used(int32_t const* chosen, int64_t slots) { return std::find(chosen, chosen + slots, -1) - chosen; }

}  // namespace

template <class Real>
void routed_forward(AttentionForward const& args, BlockGrid const& grid, Routes const& routes) {
    int64_t const T = args.q_THK[0], H = args.q_THK[1], G = args.k_TGK[1], K = args.q_THK[2], R = H / G;
    int64_t const S = routes.slots(), blocks = static_cast<int64_t>(grid.blocks.size());
    auto const* const q = args.q_THK.as<Real>();
    auto const* const k = args.k_TGK.as<Real>();
    auto const* const v = args.v_TGK.as<Real>();
    auto const* const chosen = std::get<BlockSparse>(args.attended).chosen_THS.as<int32_t>();
    auto* const o = args.o_THK.as<Real>();
    auto* const lse = args.lse_TH.as<Real>();
    Partials<Real> const partial_o(T, R, S, K), partial_lse(T, R, S, 1);
    for (int64_t g = 0; g < G; ++g) {
#pragma omp parallel
        {
            ForwardTile<Real> tile(K);
            Gathered<Real> q_rows(K);
            std::vector<Route> rows;
#pragma omp for schedule(dynamic)
            for (int64_t block = 0; block < blocks; ++block)
                each_tile(routes, g, block, rows, [&] {
                    auto const [begin, end] = grid.blocks[block];
                    q_rows.fill(q, H, rows);
                    tile.start();
                    for (int64_t key = begin; key < end; key += kTileKeys) {
                        int64_t const keys = std::min(kTileKeys, end - key);
                        tile.absorb({.rows = std::ssize(rows), .keys = keys, .visible = keys},
                                    static_cast<Real>(args.scale), q_rows.rows(), {k + (key * G + g) * K, G * K},
                                    {v + (key * G + g) * K, G * K});
                    }
                    for (int64_t r = 0; r < std::ssize(rows); ++r)
                        *partial_lse.at(rows[r]) = tile.finish(r, partial_o.at(rows[r]));
                });
#pragma omp for schedule(static)
            for (int64_t t = 0; t < T; ++t)
                for (int64_t h = g * R; h < (g + 1) * R; ++h) {
                    int64_t const row = t * H + h;
                    merge(o + row * K, lse[row], K, used(chosen + row * S, S), partial_o.at({t, h, 0}),
                          partial_lse.at({t, h, 0}));
                }
        }
    }
}

template <class Real>
void routed_backward(AttentionBackward const& args, BlockGrid const& grid, Routes const& routes, Real const* delta_TH) {
    int64_t const T = args.q_THK[0], H = args.q_THK[1], G = args.k_TGK[1], K = args.q_THK[2], R = H / G;
    int64_t const S = routes.slots(), blocks = static_cast<int64_t>(grid.blocks.size());
    auto const* const q = args.q_THK.as<Real>();
    auto const* const k = args.k_TGK.as<Real>();
    auto const* const v = args.v_TGK.as<Real>();
    auto const* const d_o = args.do_THK.as<Real>();
    auto const* const lse = args.lse_TH.as<Real>();
    auto const* const chosen = std::get<BlockSparse>(args.attended).chosen_THS.as<int32_t>();
    auto* const dq = args.dq_THK.as<Real>();
    auto* const dk = args.dk_TGK.as<Real>();
    auto* const dv = args.dv_TGK.as<Real>();
    Partials<Real> const partial_dq(T, R, S, K);
    for (int64_t g = 0; g < G; ++g) {
#pragma omp parallel
        {
            BackwardTile<Real> tile(K);
            Gathered<Real> q_rows(K), do_rows(K), dq_rows(K), lse_rows(1), delta_rows(1);
            std::vector<Route> rows;
#pragma omp for schedule(dynamic)
            for (int64_t block = 0; block < blocks; ++block)
                each_tile(routes, g, block, rows, [&] {
                    auto const [begin, end] = grid.blocks[block];
                    q_rows.fill(q, H, rows);
                    do_rows.fill(d_o, H, rows);
                    lse_rows.fill(lse, H, rows);
                    delta_rows.fill(delta_TH, H, rows);
                    for (int64_t key = begin; key < end; key += kTileRows) {
                        int64_t const keys = std::min(kTileRows, end - key);
                        int64_t const at_key = (key * G + g) * K;
                        tile.run({.rows = std::ssize(rows), .keys = keys, .visible = keys},
                                 static_cast<Real>(args.scale),
                                 {.q = q_rows.rows(),
                                  .k = {k + at_key, G * K},
                                  .v = {v + at_key, G * K},
                                  .d_o = do_rows.rows(),
                                  .lse = lse_rows.rows(),
                                  .delta = delta_rows.rows(),
                                  .dq = dq_rows.rows(),
                                  .dk = {dk + at_key, G * K},
                                  .dv = {dv + at_key, G * K},
                                  .dq_kept = key == begin ? Real{0} : Real{1}});
                    }
                    for (int64_t r = 0; r < std::ssize(rows); ++r)
                        std::copy_n(dq_rows.rows()[r], K, partial_dq.at(rows[r]));
                });
#pragma omp for schedule(static)
            for (int64_t t = 0; t < T; ++t)
                for (int64_t h = g * R; h < (g + 1) * R; ++h) {
                    Real* const sum = dq + (t * H + h) * K;
                    Real const* const part = partial_dq.at({t, h, 0});
                    int64_t const values = used(chosen + (t * H + h) * S, S) * K;
                    for (int64_t i = 0; i < values; ++i) sum[i % K] += part[i];
                }
        }
    }
}

template void routed_forward<float>(AttentionForward const&, BlockGrid const&, Routes const&);
template void routed_forward<double>(AttentionForward const&, BlockGrid const&, Routes const&);
template void routed_backward<float>(AttentionBackward const&, BlockGrid const&, Routes const&, float const*);
template void routed_backward<double>(AttentionBackward const&, BlockGrid const&, Routes const&, double const*);

}  // namespace perigee::host
