// A tokenizer.json made in code: every byte is the token of its number, then come the merges asked for, in order.
#pragma once

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/bpe.h"

namespace perigee::testing {

struct TinyTokenizer {
    /// Pairs of tokens as the file spells them ("\u0120" is the space).
    std::vector<std::pair<std::string, std::string>> merges = {{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"\u0120", "w"}};
    bool merges_in_one_string = false;
    std::string added_tokens = "[]";
    std::string normalizer = "null";
    std::string pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true})";
    std::string post_processor = "null";
    std::string decoder = R"({"type": "ByteLevel"})";
    std::string more_model = R"("dropout": null, "ignore_merges": false)";  ///< fields of the model

    std::string json() const;
};

inline std::string TinyTokenizer::json() const {
    std::map<std::string, int> vocab;
    for (int byte = 0; byte < 256; ++byte) vocab[token_of_bytes(std::string{static_cast<char>(byte)})] = byte;
    nlohmann::json list = nlohmann::json::array();
    for (auto const& [left, right] : merges) {
        vocab.emplace(left + right, static_cast<int>(vocab.size()));
        if (merges_in_one_string) {
            list.push_back(left + " " + right);
        } else {
            list.push_back({left, right});
        }
    }
    return fmt::format(
        R"({{"version": "1.0", "truncation": null, "padding": null, "added_tokens": {}, "normalizer": {},
           "pre_tokenizer": {}, "post_processor": {}, "decoder": {}, "model": {{"type": "BPE", "vocab": {}, "merges": {},
           {}}}}})",
        added_tokens, normalizer, pre_tokenizer, post_processor, decoder, nlohmann::json(vocab).dump(), list.dump(),
        more_model);
}

}  // namespace perigee::testing
