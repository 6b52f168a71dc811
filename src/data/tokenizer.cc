#include "data/tokenizer.h"

#include "data/tokenizer/tokenizer_files.h"
#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

class ByteTokenizer : public Tokenizer {
  public:
    std::string piece(int32_t id) const override {
        if (id < 0 || id >= vocab_size()) {
            fail(Category::data, "token id {} is not in the vocabulary of 0 to {}", id, vocab_size() - 1);
        }
        return is_special(id) ? kEndName : std::string{static_cast<char>(id)};
    }
    bool is_special(int32_t id) const override { return id == kEnd; }
    std::optional<int32_t> find(std::string_view piece) const override {
        if (piece == kEndName) return kEnd;
        if (piece.size() == 1) return static_cast<unsigned char>(piece[0]);
        return std::nullopt;
    }
    bool knows_special() const override { return false; }
    int64_t vocab_size() const override { return 257; }
    int32_t end_of_document() const override { return kEnd; }
    std::string name() const override { return "bytes"; }

  private:
    std::vector<int32_t> encode_text(std::string_view text, TextAfter, SpecialNames) const override {
        auto const* bytes = reinterpret_cast<unsigned char const*>(text.data());
        return {bytes, bytes + text.size()};
    }

    static constexpr int32_t kEnd = 256;
    static constexpr char const* kEndName = "<|endoftext|>";
};

}  // namespace

std::string without_guards(std::string_view text) {
    std::string plain;
    for (size_t at = 0; (at = text.find(kGuard)) != text.npos; text.remove_prefix(at + kGuard.size()))
        plain.append(text.substr(0, at));
    return plain.append(text);
}

std::string Tokenizer::decode(std::vector<int32_t> const& ids) const {
    std::string text;
    for (int32_t const id : ids) {
        if (!is_special(id)) text += piece(id);
    }
    return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(FileSystem& files, std::string const& name) {
    if (name == "bytes") return std::make_unique<ByteTokenizer>();
    return open_tokenizer(files, name);
}

std::string StreamDecoder::push(int32_t id) {
    if (!tokenizer_->is_special(id)) pending_ += tokenizer_->piece(id);
    size_t done = 0;
    while (done < pending_.size()) {
        auto const step = utf8::first(std::string_view(pending_).substr(done));
        if (step.kind == utf8::Step::Kind::unfinished) break;
        done += step.bytes;
    }
    std::string text = utf8::repaired(std::string_view(pending_).substr(0, done));
    pending_.erase(0, done);
    return text;
}

std::string StreamDecoder::finish() {
    std::string text = utf8::repaired(pending_);
    pending_.clear();
    return text;
}

}  // namespace perigee
