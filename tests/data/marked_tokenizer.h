// A tokenizer of bytes whose special tokens are names in <| |>, and a way to read what it made.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "data/chat_encoder.h"

namespace perigee::testing {

/// Bytes, and names in <| |> as tokens from 1000 on.
class MarkedTokenizer : public Tokenizer {
  public:
    std::vector<int32_t> encode_text(std::string_view text, TextAfter, SpecialNames names) const override {
        if (names == SpecialNames::text) return bytes_->encode(text);
        std::vector<int32_t> ids;
        while (!text.empty()) {
            if (text.starts_with("<|")) {
                auto const name = text.substr(0, text.find("|>") + 2);
                ids.push_back(1000 + static_cast<int32_t>(name.size()));
                text.remove_prefix(name.size());
            } else {
                ids.push_back(static_cast<unsigned char>(text[0]));
                text.remove_prefix(1);
            }
        }
        return ids;
    }
    std::string piece(int32_t id) const override { return id < 256 ? std::string(1, static_cast<char>(id)) : "<||>"; }
    bool is_special(int32_t id) const override { return id >= 256; }
    std::optional<int32_t> find(std::string_view) const override { return std::nullopt; }
    int64_t vocab_size() const override { return 2000; }
    std::vector<int32_t> prefix() const override { return {999}; }
    int32_t end_of_document() const override { return 256; }
    std::string name() const override { return "marked"; }

  private:
    std::unique_ptr<FileSystem> files_ = make_file_system();
    std::unique_ptr<Tokenizer> bytes_ = make_tokenizer(*files_, "bytes");
};

/// Tokens as text, specials as their name's length in braces; `^` under each token that carries loss.
inline std::string shown(EncodedChat const& chat) {
    std::string text;
    EXPECT_EQ(chat.tokens.size(), chat.weights.size());
    bool inside = false;
    for (size_t i = 0; i < chat.tokens.size(); ++i) {
        if ((chat.weights[i] > 0) != inside) text += (inside = !inside) ? '[' : ']';
        int32_t const id = chat.tokens[i];
        text += id < 256 ? std::string(1, static_cast<char>(id)) : fmt::format("{{{}}}", id);
    }
    return inside ? text + ']' : text;
}

}  // namespace perigee::testing
