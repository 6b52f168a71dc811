#include "data/tokenizer.h"

#include "base/error.h"

namespace perigee {

namespace {

class ByteTokenizer : public Tokenizer {
  public:
    std::vector<int32_t> encode(std::string_view text) const override {
        auto const* bytes = reinterpret_cast<unsigned char const*>(text.data());
        return {bytes, bytes + text.size()};
    }

    std::string decode(std::vector<int32_t> const& ids) const override {
        std::string text;
        text.reserve(ids.size());
        for (int32_t const id : ids) {
            if (id < 0 || id >= vocab_size()) {
                fail(Category::data, "token id {} is not in the vocabulary of 0 to {}", id, vocab_size() - 1);
            }
            if (id != end_of_document()) text.push_back(static_cast<char>(id));
        }
        return text;
    }

    int64_t vocab_size() const override { return 257; }
    int32_t end_of_document() const override { return 256; }
    std::string name() const override { return "bytes"; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string const& name) {
    if (name == "bytes") return std::make_unique<ByteTokenizer>();
    fail(Category::config, "unknown tokenizer \"{}\"; known: bytes", name);
}

}  // namespace perigee
