#include "data/tokenizer/bpe_tokenizer.h"

#include <mutex>
#include <unordered_set>

#include "data/tokenizer/nfc.h"
#include "data/tokenizer/utf8.h"

namespace perigee {

namespace {

std::vector<AddedToken> select(std::vector<AddedToken> const& tokens, bool normalized, bool by_nfc) {
    std::vector<AddedToken> selected;
    for (AddedToken token : tokens) {
        if (token.normalized != normalized) continue;
        if (normalized && by_nfc) token.content = nfc(token.content);
        selected.push_back(std::move(token));
    }
    return selected;
}

class BpeTokenizer : public Tokenizer {
  public:
    explicit BpeTokenizer(BpeTokenizerParts parts)
        : bpe_(std::move(parts.model)),
          splitter_(std::move(parts.split)),
          raw_(select(parts.added, false, parts.nfc)),
          normalized_(select(parts.added, true, parts.nfc)),
          parts_(std::move(parts)) {
        for (AddedToken const& token : parts_.added) {
            added_ids_[token.content] = token.id;
            if (token.special) special_.insert(token.id);
        }
    }

    std::string piece(int32_t id) const override {
        if (id < 0 || id >= vocab_size()) {
            fail(Category::data, "token id {} is not in the vocabulary of 0 to {}", id, vocab_size() - 1);
        }
        return parts_.pieces[static_cast<size_t>(id)];
    }
    bool is_special(int32_t id) const override { return special_.contains(id); }
    std::optional<int32_t> find(std::string_view piece) const override {
        auto const added = added_ids_.find(std::string(piece));
        return added != added_ids_.end() ? added->second : bpe_.find(piece);
    }
    int64_t vocab_size() const override { return static_cast<int64_t>(parts_.pieces.size()); }
    std::vector<int32_t> prefix() const override { return parts_.prefix; }
    int32_t end_of_document() const override {
        if (!parts_.end_of_document) {
            fail(Category::config,
                 "{} does not say which token ends a document: expected eos_token in a tokenizer_config.json or "
                 "eos_token_id in a config.json beside it",
                 parts_.name);
        }
        return *parts_.end_of_document;
    }
    std::string name() const override { return parts_.name; }

  private:
    struct Scratch {
        Bpe::Scratch bpe;
        Regex::Scratch regex;
    };

    struct Context {
        bool special;  ///< names of special tokens are those tokens
        bool goes_on;  ///< the text follows other text
    };

    /// Lends working memory to one call; as many live as calls ever ran at once.
    class Lease {
      public:
        explicit Lease(BpeTokenizer const& owner) : owner_(owner) {
            std::lock_guard const lock(owner_.mutex_);
            if (owner_.idle_.empty()) return;
            scratch_ = std::move(owner_.idle_.back());
            owner_.idle_.pop_back();
        }
        ~Lease() {
            std::lock_guard const lock(owner_.mutex_);
            owner_.idle_.push_back(std::move(scratch_));
        }
        Lease(Lease const&) = delete;
        Lease& operator=(Lease const&) = delete;
        Scratch& get() {
            if (!scratch_) scratch_ = std::make_unique<Scratch>();
            return *scratch_;
        }

      private:
        BpeTokenizer const& owner_;
        std::unique_ptr<Scratch> scratch_;
    };

    std::vector<int32_t> encode_text(std::string_view text, TextAfter after, bool special) const override {
        if (!utf8::is_whole(text)) return encode_text(utf8::repaired(text), after, special);
        Lease lease(*this);
        Scratch& scratch = lease.get();
        std::vector<int32_t> ids;
        raw_.for_each_stretch(text, special, scratch.regex, [&](std::string_view stretch, int32_t id) {
            if (id >= 0) return ids.push_back(id);
            Context const context{special, after == TextAfter::text && ids.empty()};
            if (!parts_.nfc || is_plainly_nfc(stretch)) return encode_normalized(stretch, context, scratch, ids);
            encode_normalized(nfc(stretch), context, scratch, ids);
        });
        return ids;
    }

    void encode_normalized(std::string_view text, Context context, Scratch& scratch, std::vector<int32_t>& ids) const {
        size_t const before = ids.size();
        normalized_.for_each_stretch(text, context.special, scratch.regex, [&](std::string_view stretch, int32_t id) {
            if (id >= 0) return ids.push_back(id);
            bool const goes_on = context.goes_on && ids.size() == before;
            if (!parts_.prefix_space || goes_on || stretch.starts_with(' ')) return encode_words(stretch, scratch, ids);
            encode_words(std::string(" ").append(stretch), scratch, ids);
        });
    }

    void encode_words(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
        splitter_.for_each_word(text, scratch.regex,
                                [&](std::string_view word) { bpe_.encode(word, scratch.bpe, ids); });
    }

    Bpe bpe_;
    Splitter splitter_;
    AddedTokens raw_, normalized_;  ///< looked for before normalization, and after it
    BpeTokenizerParts parts_;       ///< but for the model and the splitting
    std::unordered_map<std::string, int32_t> added_ids_;
    std::unordered_set<int32_t> special_;
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerParts parts) {
    return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace perigee
