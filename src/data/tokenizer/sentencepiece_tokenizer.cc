#include "data/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

constexpr std::string_view kPieceSpace = "\xE2\x96\x81";  // U+2581 stands for a space in pieces
// Appended to a model's protocol buffer: normalizer_spec { add_dummy_prefix: false }, which is merged into its own.
constexpr std::string_view kNoDummyPrefix{"\x1A\x02\x18\x00", 4};

class SentencePieceTokenizer : public Tokenizer {
  public:
    explicit SentencePieceTokenizer(SentencePieceParts const& parts)
        : name_(parts.name), add_bos_(parts.add_bos), end_of_document_(parts.end_of_document) {
        load(library_, parts.model);
        load(inside_, std::string(parts.model).append(kNoDummyPrefix));
        if (!end_of_document_ && library_.eos_id() >= 0) end_of_document_ = library_.eos_id();
        std::vector<AddedToken> control;
        for (int32_t id = 0; id < vocab_size(); ++id) {
            if (!library_.IsControl(id) || library_.IdToPiece(id).empty()) continue;
            control.push_back({.id = id, .content = library_.IdToPiece(id), .special = true});
        }
        control_ = std::make_unique<AddedTokens>(std::move(control));
    }

    std::string piece(int32_t id) const override {
        check_id(id);
        std::string const& spelling = library_.IdToPiece(id);
        if (library_.IsByte(id)) return {static_cast<char>(std::stoi(spelling.substr(3, 2), nullptr, 16))};  // <0x0A>
        if (library_.IsUnknown(id)) return " \xE2\x81\x87 ";  // as the library shows it: U+2047
        std::string text;
        for (std::string_view rest = spelling; !rest.empty();) {
            bool const space = rest.starts_with(kPieceSpace);
            text += space ? ' ' : rest[0];
            rest.remove_prefix(space ? kPieceSpace.size() : 1);
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
        for (char const c : piece) spelling += c == ' ' ? kPieceSpace : std::string_view(&c, 1);
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
    void load(sentencepiece::SentencePieceProcessor& library, std::string const& model) const {
        auto const status = library.LoadFromSerializedProto(model);
        if (!status.ok()) fail(Category::config, "{} is not a sentencepiece model: {}", name_, status.ToString());
    }
    std::vector<int32_t> encode_text(std::string_view text, TextAfter after, SpecialNames names) const override {
        if (!utf8::is_whole(text)) return encode_text(utf8::repaired(text), after, names);
        std::vector<int32_t> ids;
        auto const append = [&](std::string_view stretch, int32_t id) {
            if (id >= 0) return ids.push_back(id);
            std::string plain;
            if (names == SpecialNames::unguarded) stretch = plain = without_guards(stretch);
            std::vector<int32_t> more;
            bool const begins = after == TextAfter::nothing && ids.empty();
            check((begins ? library_ : inside_).Encode(stretch, &more), "encoding");
            ids.insert(ids.end(), more.begin(), more.end());
        };
        if (names != SpecialNames::text) {
            Regex::Scratch scratch;
            control_->for_each_stretch(text, true, scratch, append);
        } else {
            append(text, -1);
        }
        return ids;
    }
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
    sentencepiece::SentencePieceProcessor inside_;  ///< the same without a space before a text
    std::unique_ptr<AddedTokens> control_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceParts const& parts) {
    return std::make_unique<SentencePieceTokenizer>(parts);
}

}  // namespace perigee
