// What an attention over blocks has to do: made-up routings, useful products, bytes that must move, and the time no
// kernel of one H200 can beat.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/block_sparse_attention/plan.h"

namespace perigee {

/// Choices [T, H, S]. uniform: any past block; recency: the block d back with probability ~ 1/d; sink: also block 0,
/// always.
inline std::vector<int32_t> make_routing(BlockSparseShape const& s, std::vector<int32_t> const& borders,
                                         std::string const& kind) {
    int64_t const S = s.slots(), T = borders.back();
    std::vector<int32_t> chosen(static_cast<size_t>(T * s.heads * S), -1);
    Philox const random(7, Purpose::mock_data);
    for (size_t d = 0; d + 1 < borders.size(); ++d)
#pragma omp parallel for
        for (int64_t row = borders[d] * s.heads; row < borders[d + 1] * s.heads; ++row) {
            int64_t const current = (row / s.heads - borders[d]) / s.block_size, count = std::min(S, current);
            int32_t* const choice = chosen.data() + row * S;
            int64_t taken = 0;
            if (kind == "sink" && count > 0) choice[taken++] = 0;
            for (uint64_t draw = 0; taken < count; ++draw) {
                double const u = random.uniform(static_cast<uint64_t>(row) * 1024 + draw);
                double const back = kind == "uniform" ? u * static_cast<double>(current)
                                                      : std::exp(u * std::log(static_cast<double>(current) + 1)) - 1;
                auto block = static_cast<int32_t>(current - 1 - std::min(static_cast<int64_t>(back), current - 1));
                for (uint64_t tries = draw; tries > 256 && std::count(choice, choice + taken, block) > 0;)
                    block = static_cast<int32_t>((block + 1) % current);  // nearly all are taken
                if (std::count(choice, choice + taken, block) == 0) choice[taken++] = block;
            }
            std::sort(choice, choice + taken);
        }
    return chosen;
}

/// 1e12 operations and bytes, and the milliseconds they take at 690 TFLOP/s (bf16 products that an H200 sustains) or
/// 4.3 TB/s (what it copies at), whichever is more.
struct Cost {
    double teraflop = 0;
    double terabytes = 0;
    double floor_ms() const { return 1e3 * std::max(teraflop / 690, terabytes / 4.3); }
};
inline char const* const kFloorFormula =
    "floor = max(FLOP / 690 TFLOP/s, bytes / 4.3 TB/s). FLOP: 4 K per (row, key) forward, 10 K backward, 2 K per (row, "
    "candidate). Bytes: q, k, v, o (and gradients) once; per chosen block 4 K + 8 of partial result forward, 2 K more "
    "where a key/value head's q exceeds 40 MB of cache, 8 K + 8 backward; the choice once read, the lists once written";

/// Of the parts of one problem.
class MobaCosts {
  public:
    MobaCosts(BlockSparseShape const& s, std::vector<int32_t> const& borders) : s_(s) {
        double const B = static_cast<double>(s.block_size), H = static_cast<double>(s.heads) * 1e-12;
        for (size_t d = 0; d + 1 < borders.size(); ++d)
            for (int64_t t = 0; t < borders[d + 1] - borders[d]; ++t) {
                int64_t const current = t / s.block_size;
                own_pairs_ += H * static_cast<double>(t % s.block_size + 1);
                all_pairs_ += H * static_cast<double>(t + 1);
                visits_ += H * static_cast<double>(std::min(s.slots(), current));
                candidates_ += H * static_cast<double>(current);
            }
        chosen_pairs_ = visits_ * B;
    }

    Cost pool() const { return {0, keys()}; }
    Cost gate() const { return {2 * dim() * candidates_, rows() + choice()}; }
    Cost select() const { return {gate().teraflop, gate().terabytes + keys()}; }
    Cost lists() const { return {0, choice() + 4 * visits_}; }
    Cost chosen() const {
        double const of_group = rows() / static_cast<double>(s_.kv_heads);
        double const per_visit = 2 * dim() + 4 + (of_group > 40e-6 ? 2 * dim() : 0);
        return {4 * dim() * chosen_pairs_, rows() + 2 * keys() + per_visit * visits_};
    }
    Cost own() const { return {4 * dim() * own_pairs_, 2 * rows() + 2 * keys() + (2 * dim() + 4) * visits_}; }
    Cost forward() const {
        double const visits = chosen().terabytes - rows() - 2 * keys() + (2 * dim() + 4) * visits_;
        return {4 * dim() * (chosen_pairs_ + own_pairs_), 2 * rows() + 2 * keys() + visits};
    }
    Cost backward() const {
        return {10 * dim() * (chosen_pairs_ + own_pairs_), 4 * rows() + 4 * keys() + (8 * dim() + 8) * visits_};
    }
    Cost dense_forward() const { return {4 * dim() * all_pairs_, 2 * rows() + 2 * keys()}; }
    Cost dense_backward() const { return {10 * dim() * all_pairs_, 4 * rows() + 4 * keys()}; }

  private:
    double dim() const { return static_cast<double>(s_.head_dim); }
    double rows() const { return 2e-12 * static_cast<double>(s_.queries * s_.heads * s_.head_dim); }
    double keys() const { return 2e-12 * static_cast<double>(s_.tokens * s_.kv_heads * s_.head_dim); }
    double choice() const { return 4e-12 * static_cast<double>(s_.queries * s_.heads * s_.slots()); }

    BlockSparseShape s_;
    double own_pairs_ = 0, chosen_pairs_ = 0, all_pairs_ = 0, visits_ = 0, candidates_ = 0;  // 1e12
};

}  // namespace perigee
