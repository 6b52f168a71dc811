#include "data/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

using NormalSteps = std::vector<NormalStep>;

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    std::string made;
    for (size_t at = text.find(from); at != text.npos; at = text.find(from)) {
        made.append(text.substr(0, at)).append(to);
        text.remove_prefix(at + from.size());
    }
    return made.append(text);
}

std::vector<AddedToken> select(std::vector<AddedToken> const& tokens, bool in_normalized, NormalSteps const& steps) {
    std::vector<AddedToken> selected;
    for (AddedToken token : tokens) {
        if (token.normalized != in_normalized) continue;
        if (in_normalized) token.content = normalized(token.content, steps);
        selected.push_back(std::move(token));
    }
    return selected;
}

class BpeTokenizer : public Tokenizer {
  public:
    explicit BpeTokenizer(BpeTokenizerParts parts)
        : bpe_(std::move(parts.model)),
          splitter_(std::move(parts.split)),
          raw_(select(parts.added, false, parts.normalizer)),
          normalized_(select(parts.added, true, parts.normalizer)),
          parts_(std::move(parts)) {
        for (AddedToken const& token : parts_.added) {
            added_ids_[token.content] = token.id;
            if (token.special) special_.insert(token.id);
            auto const spelled = token.normalized ? normalized(token.content, parts_.normalizer) : token.content;
            if (spelled.find(' ') != spelled.npos) spaced_.insert(token.id);
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
        if (added != added_ids_.end()) return added->second;
        return bpe_.find(parts_.marks_pieces ? replaced(piece, " ", kSpaceMark) : piece);
    }
    std::string decode(std::vector<int32_t> const& ids) const override {
        std::string text;
        bool first = true;
        for (int32_t const id : ids) {
            std::string const said = piece(id);
            if (is_special(id)) continue;
            bool const strips =
                std::exchange(first, false) && parts_.decode_strip == DecodeStrip::spaces_of_first_token;
            text += strips && !spaced_.contains(id) ? replaced(said, " ", "") : said;
        }
        if (parts_.decode_strip == DecodeStrip::one_space && text.starts_with(' ')) text.erase(0, 1);
        return text;
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
        SpecialNames names;
        TextAfter after;  ///< what the text follows
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

    std::vector<int32_t> encode_text(std::string_view text, TextAfter after, SpecialNames names) const override {
        if (!utf8::is_whole(text)) return encode_text(utf8::repaired(text), after, names);
        Lease lease(*this);
        Scratch& scratch = lease.get();
        scratch.regex.begin_text(text.size());
        std::vector<int32_t> ids;
        bool const special = names != SpecialNames::text;
        raw_.for_each_stretch(text, special, scratch.regex, [&](std::string_view stretch, int32_t id) {
            if (id >= 0) return ids.push_back(id);
            Context const context{names, ids.empty() ? after : TextAfter::special};
            if (is_normalized(stretch)) return encode_normalized(stretch, context, scratch, ids);
            auto const first = parts_.normalizer.begin() + (skips_prepend(context) ? 1 : 0);
            encode_normalized(normalized(std::string(stretch), {first, parts_.normalizer.end()}), context, scratch,
                              ids);
        });
        return ids;
    }

    void encode_normalized(std::string_view text, Context context, Scratch& scratch, std::vector<int32_t>& ids) const {
        size_t const before = ids.size();
        bool const special = context.names != SpecialNames::text;
        normalized_.for_each_stretch(text, special, scratch.regex, [&](std::string_view stretch, int32_t id) {
            if (id >= 0) return ids.push_back(id);
            std::string plain;
            if (context.names == SpecialNames::unguarded) stretch = plain = without_guards(stretch);
            if (stretch.empty()) return;
            auto const after = ids.size() == before ? context.after : TextAfter::special;
            if (!parts_.marks_spaces && !gets_prefix(stretch, after)) return encode_words(stretch, scratch, ids);
            std::string text = parts_.marks_spaces ? replaced(stretch, " ", kSpaceMark) : std::string(stretch);
            if (gets_prefix(text, after)) text.insert(0, parts_.prefix_text);
            encode_words(text, scratch, ids);
        });
    }

    bool is_normalized(std::string_view text) const {
        auto const does_nothing = [&](NormalStep const& step) {
            return step.kind == NormalStep::Kind::nfc && is_plainly_nfc(text);
        };
        return std::ranges::all_of(parts_.normalizer, does_nothing);
    }
    /// Text that goes on gets nothing prepended, as in the middle of a text.
    bool skips_prepend(Context const& context) const {
        return context.after == TextAfter::text && !parts_.normalizer.empty() &&
               parts_.normalizer[0].kind == NormalStep::Kind::prepend;
    }
    bool gets_prefix(std::string_view text, TextAfter after) const {
        PrefixScheme const scheme = parts_.prefix_scheme;
        if (scheme == PrefixScheme::never || text.starts_with(parts_.prefix_text)) return false;
        return after == TextAfter::nothing || (after == TextAfter::special && scheme == PrefixScheme::always);
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
    std::unordered_set<int32_t> spaced_;  ///< added tokens whose spaces are no marks
    mutable std::mutex mutex_;
    mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

}  // namespace

std::string normalized(std::string text, std::vector<NormalStep> const& steps) {
    for (NormalStep const& step : steps) {
        switch (step.kind) {
            case NormalStep::Kind::nfc:
                if (!is_plainly_nfc(text)) text = nfc(text);
                break;
            case NormalStep::Kind::prepend:
                if (!text.empty()) text.insert(0, step.to);
                break;
            case NormalStep::Kind::replace:
                text = replaced(text, step.from, step.to);
                break;
        }
    }
    return text;
}

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerParts parts) {
    return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace perigee
