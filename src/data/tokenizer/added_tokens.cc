#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

// \w of the reference's regex crate: annex C of Unicode's technical standard 18.
constexpr char const* kWordCharacter = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";

size_t spaces_at_end(std::string_view text) {
    size_t const size = text.size();
    while (!text.empty() && utf8::is_space(utf8::code_point(utf8::last(text)))) {
        text.remove_suffix(utf8::last(text).size());
    }
    return size - text.size();
}

size_t spaces_at_start(std::string_view text) {
    size_t const size = text.size();
    while (!text.empty() && utf8::is_space(utf8::code_point(text))) text.remove_prefix(utf8::first(text).bytes);
    return size - text.size();
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), ends_{-1}, word_(kWordCharacter) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
        uint32_t node = 0;
        for (char const c : tokens_[i].content) {
            auto const byte = static_cast<unsigned char>(c);
            if (node == 0) starts_[byte] = true;
            auto const [child, is_new] =
                children_.try_emplace(uint64_t{node} << 8 | byte, static_cast<uint32_t>(ends_.size()));
            if (is_new) ends_.push_back(-1);
            node = child->second;
        }
        ends_[node] = static_cast<int32_t>(i);
    }
}

AddedTokens::Found AddedTokens::find(std::string_view text, size_t from) const {
    for (size_t begin = from; begin < text.size(); ++begin) {
        if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
        Found longest{nullptr, begin, begin};
        uint32_t node = 0;
        for (size_t end = begin; end < text.size();) {
            auto const child = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[end]));
            if (child == children_.end()) break;
            node = child->second;
            ++end;
            if (ends_[node] >= 0) longest = {&tokens_[static_cast<size_t>(ends_[node])], begin, end};
        }
        if (longest.token != nullptr) return longest;
    }
    return {nullptr, text.size(), text.size()};
}

bool AddedTokens::is_word_part(std::string_view text, Found const& found, Regex::Scratch& scratch) const {
    auto const is_word = [&](std::string_view character) { return word_.find(character, 0, scratch).has_value(); };
    if (found.begin > 0 && is_word(utf8::last(text.substr(0, found.begin)))) return true;
    std::string_view const after = text.substr(found.end);
    return !after.empty() && is_word(after.substr(0, utf8::first(after).bytes));
}

void AddedTokens::for_each_stretch(std::string_view text, bool special, Regex::Scratch& scratch, Use const& use) const {
    size_t done = 0;
    for (size_t from = 0; !tokens_.empty();) {
        Found found = find(text, from);
        if (found.token == nullptr) break;
        from = found.end;
        AddedToken const& token = *found.token;
        if (token.special && !special) continue;
        if (token.single_word && is_word_part(text, found, scratch)) continue;
        // The one before may have taken it as white space: it counts all the same, unless it takes white space too.
        size_t const between = found.begin - std::min(done, found.begin);
        if (token.lstrip) found.begin = std::max(done, found.begin) - spaces_at_end(text.substr(done, between));
        if (token.rstrip) found.end += spaces_at_start(text.substr(found.end));
        if (found.begin >= found.end) continue;
        if (found.begin > done) use(text.substr(done, found.begin - done), -1);
        use(text.substr(found.begin, found.end - found.begin), token.id);
        done = found.end;
    }
    if (done < text.size()) use(text.substr(done), -1);
}

}  // namespace perigee
