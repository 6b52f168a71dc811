#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bf16.h"
#include "kernels/moba_gate/reference.h"

namespace perigee {
namespace {

/// The mean of `count` keys of one head, `stride` apart.
std::vector<double> centroid(double const* keys, int64_t count, int64_t stride, int64_t dim,
                             CentroidRounding rounding) {
    std::vector<double> mean(static_cast<size_t>(dim));
    for (int64_t i = 0; i < dim; ++i) {
        double exact = 0;
        float single = 0;
        for (int64_t u = 0; u < count; ++u)
            exact += keys[u * stride + i], single += static_cast<float>(keys[u * stride + i]);
        single /= static_cast<float>(count);
        mean[i] = rounding == CentroidRounding::none  ? exact / static_cast<double>(count)
                  : rounding == CentroidRounding::f32 ? single
                                                      : to_float(to_bf16(single));
    }
    return mean;
}

}  // namespace

ReferenceRouting reference_routing(ReferenceProblem const& x, MobaOptions const& options, CentroidRounding rounding) {
    int64_t const T = x.tokens(), H = x.heads, G = x.kv_heads, K = x.head_dim, R = H / G, B = options.block_size;
    int64_t const S = std::max<int64_t>(options.top_k - 1, 0);
    double const infinity = std::numeric_limits<double>::infinity();
    ReferenceRouting y{std::vector<int32_t>(T * H * S, -1), std::vector<double>(T * H, infinity)};
    for (size_t doc = 0; doc + 1 < x.cu_seqlens.size(); ++doc) {
        int64_t const begin = x.cu_seqlens[doc], end = x.cu_seqlens[doc + 1];
        std::vector<std::vector<double>> centroids;  // of block i and head g at i * G + g
        for (int64_t i = 0; i < (end - begin) / B * G; ++i)
            centroids.push_back(centroid(&x.k[((begin + i / G * B) * G + i % G) * K], B, G * K, K, rounding));
        for (int64_t row = begin * H; row < end * H; ++row) {
            int64_t const t = row / H, h = row % H, g = h / R, current = (t - begin) / B;
            bool const group = options.selection == MobaSelection::per_group;
            std::vector<double> score(current);
            double magnitude = 0;
            for (int64_t i = 0; i < current; ++i) {
                double const* c = centroids[i * G + g].data();
                double size = 0;
                for (int64_t a = group ? g * R : h; a < (group ? g * R + R : h + 1); ++a)
                    for (int64_t j = 0; j < K; ++j) {
                        score[i] += x.q[(t * H + a) * K + j] * c[j];
                        size += std::abs(x.q[(t * H + a) * K + j] * c[j]);
                    }
                magnitude = std::max(magnitude, size);
            }
            std::vector<int32_t> taken;
            auto const best = [&] {  // of those not taken; the later of equals; never a NaN
                int32_t winner = -1;
                for (int32_t i = 0; i < current; ++i)
                    if (!std::isnan(score[i]) && std::find(taken.begin(), taken.end(), i) == taken.end())
                        if (winner < 0 || score[i] >= score[winner]) winner = i;
                return winner;
            };
            if (options.force_first && S > 0 && current > 0) taken.push_back(0);
            if (options.force_previous && std::ssize(taken) < S && current > std::ssize(taken))
                taken.push_back(static_cast<int32_t>(current - 1));
            size_t const forced = taken.size();
            while (static_cast<int64_t>(taken.size()) < S && best() >= 0) taken.push_back(best());
            if (int32_t const next = best(); next >= 0 && taken.size() > forced)
                y.gap[row] = score[taken.back()] == score[next] ? 0 : (score[taken.back()] - score[next]) / magnitude;
            std::sort(taken.begin(), taken.end());
            std::copy(taken.begin(), taken.end(), y.chosen.begin() + row * S);
        }
    }
    return y;
}

}  // namespace perigee
