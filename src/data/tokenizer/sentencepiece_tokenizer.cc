#include "data/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include "data/tokenizer/added_tokens.h"

namespace perigee {

namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581 stands for a space in pieces

class SentencePieceTokenizer : public Tokenizer {
  public:
    explicit SentencePieceTokenizer(SentencePieceParts const& parts)
        : name_(parts.name), add_bos_(parts.add_bos), end_of_document_(parts.end_of_document) {
        auto const status = library_.LoadFromSerializedProto(parts.model);
        if (!status.ok()) fail(Category::config, "{} is not a sentencepiece model: {}", name_, status.ToString());
        if (!end_of_document_ && library_.eos_id() >= 0) end_of_document_ = library_.eos_id();
        std::vector<AddedToken> control;
        for (int32_t id = 0; id < vocab_size(); ++id) {
            if (!library_.IsControl(id) || library_.IdToPiece(id).empty()) continue;
            control.push_back({.id = id, .content = library_.IdToPiece(id), .special = true});
        }
        control_ = std::make_unique<AddedTokens>(std::move(control));
    }

    std::vector<int32_t> encode(std::string_view text) const override {
        std::vector<int32_t> ids;
        check(library_.Encode(text, &ids), "encoding");
        return ids;
    }
    /// Every stretch between special tokens is a text of its own.
    std::vector<int32_t> encode_with_special(std::string_view text) const override {
        std::vector<int32_t> ids;
        Regex::Scratch scratch;
        control_->for_each_stretch(text, true, scratch, [&](std::string_view stretch, int32_t id) {
            if (id >= 0) return ids.push_back(id);
            auto const more = encode(stretch);
            ids.insert(ids.end(), more.begin(), more.end());
        });
        return ids;
    }
    std::string piece(int32_t id) const override {
        check_id(id);
        std::string const& spelling = library_.IdToPiece(id);
        if (library_.IsByte(id)) return {static_cast<char>(std::stoi(spelling.substr(3, 2), nullptr, 16))};  // <0x0A>
        if (library_.IsUnknown(id)) return " \xE2\x81\x87 ";  // as the library shows it: U+2047
        std::string text;
        for (std::string_view rest = spelling; !rest.empty();) {
            bool const space = rest.starts_with(kSpace);
            text += space ? ' ' : rest[0];
            rest.remove_prefix(space ? kSpace.size() : 1);
        }
        return text;
    }
    bool is_special(int32_t id) const override { return 0 <= id && id < vocab_size() && library_.IsControl(id); }
    /// Unlike the pieces one after another, without the space that encoding puts before a text.
    std::string decode(std::vector<int32_t> const& ids) const override {
        for (int32_t const id : ids) check_id(id);
        std::string text;
        check(library_.Decode(ids, &text), "decoding");
        return text;
    }
    std::optional<int32_t> find(std::string_view piece) const override {
        std::string spelling;
        for (char const c : piece) spelling += c == ' ' ? kSpace : std::string_view(&c, 1);
        int const id = library_.PieceToId(spelling);
        return library_.IdToPiece(id) == spelling ? std::optional(id) : std::nullopt;
    }
    int64_t vocab_size() const override { return library_.GetPieceSize(); }
    std::vector<int32_t> prefix() const override {
        return add_bos_ && library_.bos_id() >= 0 ? std::vector<int32_t>{library_.bos_id()} : std::vector<int32_t>{};
    }
    int32_t end_of_document() const override {
        if (!end_of_document_) fail(Category::config, "{} has no token that ends a document", name_);
        return *end_of_document_;
    }
    std::string name() const override { return name_; }

  private:
    void check_id(int32_t id) const {
        if (0 <= id && id < vocab_size()) return;
        fail(Category::data, "token id {} is not in the vocabulary of 0 to {}", id, vocab_size() - 1);
    }
    void check(sentencepiece::util::Status const& status, char const* doing) const {
        if (!status.ok()) fail(Category::data, "{}: {} failed: {}", name_, doing, status.ToString());
    }

    std::string name_;
    bool add_bos_;
    std::optional<int32_t> end_of_document_;
    sentencepiece::SentencePieceProcessor library_;
    std::unique_ptr<AddedTokens> control_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts const& parts) {
    return std::make_unique<SentencePieceTokenizer>(parts);
}

}  // namespace perigee
