// Rows of logits, draw rules of every kind, and the tokens drawn.
#pragma once

#include <cstring>

#include "ops/gpu_case.h"
#include "ops/sampling.h"

namespace perigee::testing {

struct SampleCase {
    int64_t width = 1000, allowed = 1000;
    double spread = 3;  ///< standard deviation of the logits
    bool seen = false;
    int64_t index = 0;  ///< of the random number
};

/// Every combination of options that the generator can use.
inline std::vector<DrawRule> draw_rules(int64_t index) {
    std::vector<DrawRule> rules;
    for (double const temperature : {0.0, 0.3, 0.8, 1.0, 1.7})
        for (int64_t const top_k : {0, 1, 5, 50, 5000})
            for (double const top_p : {1.0, 0.95, 0.5, 0.01})
                for (double const min_p : {0.0, 0.05, 0.9})
                    rules.push_back({.temperature = temperature,
                                     .top_p = top_p,
                                     .min_p = min_p,
                                     .repetition_penalty = rules.size() % 3 == 0 ? 1 : 1.3,
                                     .top_k = top_k,
                                     .random = Philox(rules.size(), Purpose::generate),
                                     .index = index});
    return rules;
}

struct Drawn {
    std::vector<int32_t> ids, seen;
};

inline TensorView upload_rules(Lab& lab, std::vector<DrawRule> const& rules) {
    std::vector<int32_t> words(rules.size() * sizeof(DrawRule) / sizeof(int32_t));
    std::memcpy(words.data(), rules.data(), rules.size() * sizeof(DrawRule));
    TensorView const view = lab.ids(words);
    return {view.data, DType::u8, {std::ssize(rules), static_cast<int64_t>(sizeof(DrawRule))}};
}

/// `change` modifies the logits first.
inline Drawn draw_all(Ops& ops, SampleCase const& c, std::vector<DrawRule> const& rules,
                      std::function<void(Values&)> const& change = {}) {
    Lab lab(ops);
    int64_t const rows = std::ssize(rules), words = (c.allowed + 31) / 32;
    Values logits = random_bf16(rows * c.width, 40 + static_cast<uint64_t>(c.index), c.spread);
    if (change) change(logits);
    std::vector<int32_t> bits(static_cast<size_t>(rows * words));
    for (size_t i = 0; i < bits.size(); ++i) bits[i] = i % 3 == 0 ? 0x10410411 : 0;
    TensorView const seen = c.seen ? lab.ids(bits).reshape({rows, words}) : TensorView();
    TensorView const ids = lab.ids(std::vector<int32_t>(rules.size(), -7));
    ops.sample_tokens({.ids_S = ids,
                       .logits_SV = lab.compute({rows, c.width}, logits),
                       .rules_SB = upload_rules(lab, rules),
                       .seen_SW = seen,
                       .allowed = c.allowed});
    Drawn drawn{.ids = std::vector<int32_t>(rules.size()), .seen = bits};
    ops.download(drawn.ids.data(), ids);
    if (c.seen) ops.download(drawn.seen.data(), seen);
    return drawn;
}

}  // namespace perigee::testing
