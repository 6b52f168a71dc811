#include "eval/position.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/philox.h"

namespace perigee {

char const* to_string(Repeat repeat) {
    return repeat == Repeat::fresh ? "fresh" : repeat == Repeat::near ? "near" : "far";
}

std::vector<Repeat> repeats(Batch const& batch, int64_t far_context, int64_t far_distance) {
    std::vector<Repeat> result(batch.ids_T.size(), Repeat::fresh);
    auto const n = static_cast<size_t>(far_context);
    for (size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
        auto const begin = static_cast<size_t>(batch.cu_seqlens[d]), end = static_cast<size_t>(batch.cu_seqlens[d + 1]);
        std::unordered_map<std::string_view, size_t> last;  // where these tokens ended last
        for (size_t t = begin + n - 1; t < end; ++t) {
            std::string_view const context(reinterpret_cast<char const*>(batch.ids_T.data() + t + 1 - n),
                                           n * sizeof(int32_t));
            auto const [found, is_new] = last.try_emplace(context, t);
            if (is_new) continue;
            result[t] = static_cast<int64_t>(t - found->second) >= far_distance ? Repeat::far : Repeat::near;
            found->second = t;
        }
    }
    return result;
}

std::vector<int64_t> position_edges(SuiteOptions const& options, int64_t sequence_length) {
    std::vector<int64_t> edges;
    if (options.position_edges.empty()) {
        constexpr size_t kMostBins = 8;
        for (int64_t edge = sequence_length; edge > 0 && edges.size() < kMostBins; edge /= 2) edges.push_back(edge);
        std::ranges::reverse(edges);
        return edges;
    }
    for (int64_t const edge : options.position_edges)
        if (edge < sequence_length) edges.push_back(edge);
    edges.push_back(sequence_length);
    return edges;
}

LossSum& LossSum::operator+=(LossSum const& more) {
    weight += more.weight;
    nll += more.nll;
    bytes += more.bytes;
    return *this;
}

void PositionSums::add(Batch const& batch, std::span<Repeat const> repeats, std::span<double const> nll,
                       std::span<int32_t const> bytes) {
    size_t place = 0;
    for (size_t t = 0; t < batch.ids_T.size(); ++t) {
        if (batch.weights_T[t] == 0) continue;
        auto const bin = std::ranges::upper_bound(edges_, batch.positions_T[t]) - edges_.begin();
        PERIGEE_CHECK(bin < std::ssize(edges_), "position {} of {}", batch.positions_T[t], edges_.back());
        double const weight = static_cast<double>(batch.weights_T[t]);
        auto const target = static_cast<size_t>(batch.targets_T[t]);
        at(repeats[t], static_cast<size_t>(bin)) += {.weight = weight,
                                                     .nll = weight * nll[place++],
                                                     .bytes = target < bytes.size() ? weight * bytes[target] : 0};
    }
    PERIGEE_CHECK(place == nll.size(), "{} losses for {} places", nll.size(), place);
}

}  // namespace perigee
