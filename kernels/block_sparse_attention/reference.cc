#include "kernels/block_sparse_attention/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace perigee {
namespace {

double dot(double const* a, double const* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace

ReferenceResult reference_moba(ReferenceProblem const& x, int64_t block_size, std::vector<int32_t> const& chosen) {
    int64_t const T = x.tokens(), H = x.heads, G = x.kv_heads, K = x.head_dim,
                  S = T * H > 0 ? chosen.size() / (T * H) : 0;
    std::vector<double> const q_zero(T * H * K), k_zero(T * G * K), lse_zero(T * H);
    ReferenceResult y{q_zero, lse_zero, q_zero, k_zero, k_zero};
    for (size_t doc = 0; doc + 1 < x.cu_seqlens.size(); ++doc) {
        int64_t const begin = x.cu_seqlens[doc], end = x.cu_seqlens[doc + 1];
        for (int64_t row = begin * H; row < end * H; ++row) {
            int64_t const t = row / H, g = row % H / (H / G);
            auto const* selection = chosen.data() + row * S;
            std::vector<int64_t> at;  // of the attended keys in k and v
            for (int64_t u = begin; u < end; ++u) {
                int64_t const block = (u - begin) / block_size;
                bool const local = block == (t - begin) / block_size;
                if (local ? u <= t : std::find(selection, selection + S, block) != selection + S)
                    at.push_back((u * G + g) * K);
            }
            std::vector<double> s;
            for (int64_t key : at) s.push_back(x.scale * dot(&x.q[row * K], &x.k[key], K));
            double const top = *std::max_element(s.begin(), s.end());
            if (top == -std::numeric_limits<double>::infinity()) {  // an empty sum: no output, no gradients
                y.lse[row] = top;
                continue;
            }
            double sum = 0;
            for (double score : s) sum += std::exp(score - top);
            y.lse[row] = top + std::log(sum);
            for (size_t j = 0; j < at.size(); ++j) {
                double const p = std::exp(s[j] - y.lse[row]);
                for (int64_t i = 0; i < K; ++i) y.o[row * K + i] += p * x.v[at[j] + i];
            }
            double const delta = dot(&x.d_o[row * K], &y.o[row * K], K);
            for (size_t j = 0; j < at.size(); ++j) {
                double const p = std::exp(s[j] - y.lse[row]);
                double const ds = p * (dot(&x.d_o[row * K], &x.v[at[j]], K) - delta);
                for (int64_t i = 0; i < K; ++i) {
                    y.dq[row * K + i] += x.scale * ds * x.k[at[j] + i];
                    y.dk[at[j] + i] += x.scale * ds * x.q[row * K + i];
                    y.dv[at[j] + i] += p * x.d_o[row * K + i];
                }
            }
        }
    }
    return y;
}

ReferenceResult reference_attention(ReferenceProblem const& x) {
    return reference_moba(x, std::max<int64_t>(x.tokens(), 1), {});
}

}  // namespace perigee
