// From Oniguruma's syntax (as the onig crate uses it: Ruby's) to PCRE2's. What differs between the two and is not
// rewritten here is left to Oniguruma: \w, \b, \h, ^ and $, back references, nested classes, possessive counts.
#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

// Unicode's White_Space, and the rest. PCRE2's own \s also has U+180E.
constexpr char const* kAnySpace =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr char const* kNoSpace =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}"
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}";

std::string literal(char32_t point) { return fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(point)); }

class Translator {
  public:
    explicit Translator(std::string_view pattern) : pattern_(pattern), rest_(pattern) {}

    std::string run() {
        if (!utf8::is_whole(pattern_)) fail(Category::config, "a pattern is not UTF-8");
        if (pattern_.size() > kMaxPatternBytes) {
            fail(Category::config, "a pattern of {} bytes; at most {} are read", pattern_.size(), kMaxPatternBytes);
        }
        while (!rest_.empty()) item();
        if (!groups_.empty()) refuse("an open (");
        return out_;
    }

  private:
    [[noreturn]] void refuse(std::string const& what) const {
        fail(Category::config, "the pattern \"{}\" has {}, which is not supported", pattern_, what);
    }
    bool take(std::string_view token) {
        if (!rest_.starts_with(token)) return false;
        rest_.remove_prefix(token.size());
        return true;
    }
    char32_t next() {
        if (rest_.empty()) refuse("no end");
        char32_t const point = utf8::code_point(rest_);
        rest_.remove_prefix(utf8::first(rest_).bytes);
        return point;
    }
    bool caseless() const { return !groups_.empty() && groups_.back(); }

    void item() {
        if (open_group()) return;
        if (take(")")) {
            if (groups_.empty()) refuse("a ) without (");
            groups_.pop_back();
            out_ += ')';
            return quantifier();
        }
        if (take("|")) {
            last_ = 0;
            out_ += '|';
            return;
        }
        if (take("[")) return character_class();
        if (take(".")) return emit("[^\\x{A}]");
        if (take("\\")) return escape();
        char32_t const point = next();
        if (point < 0x80 && std::string_view("^$*+?{").find(static_cast<char>(point)) != std::string_view::npos) {
            refuse(fmt::format("'{}' where it means no character", static_cast<char>(point)));
        }
        emit_literal(point);
    }

    bool open_group() {
        for (std::string_view const group : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"}) {
            if (!take(group)) continue;
            groups_.push_back(caseless() || group == "(?i:");
            out_ += group;
            return true;
        }
        if (rest_.starts_with("(?") || rest_.starts_with("(*")) refuse(fmt::format("\"{}\"", rest_.substr(0, 4)));
        if (!take("(")) return false;
        groups_.push_back(caseless());
        out_ += "(?:";
        return true;
    }

    /// Something that matches one character.
    void emit(std::string const& atom) {
        if (caseless()) refuse(fmt::format("\"{}\" in a group that ignores case", atom));
        out_ += atom;
        quantifier();
    }

    void emit_literal(char32_t point) {
        if (caseless()) {
            // Oniguruma also lets pairs of letters match one character: "ss" matches U+00DF, "fi" a ligature.
            if (point >= 0x80) refuse("characters beyond ASCII in a group that ignores case");
            std::string const pair{static_cast<char>(last_ | 0x20), static_cast<char>(point | 0x20)};
            for (std::string_view const folded : {"ss", "st", "ff", "fi", "fl"}) {
                if (pair == folded) refuse(fmt::format("\"{}\" in a group that ignores case", folded));
            }
            last_ = point;
        }
        out_ += literal(point);
        quantifier();
    }

    void quantifier() {
        if (take("{")) {
            counts();
        } else {
            if (!take("*") && !take("+") && !take("?")) return;
            out_ += pattern_[pattern_.size() - rest_.size() - 1];
            if (take("?")) {
                out_ += '?';
            } else if (take("+")) {
                out_ += '+';
            }
        }
        if (!rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos) {
            refuse("a repeated repetition");
        }
    }

    void counts() {
        size_t const end = rest_.find('}');
        std::string const text(rest_.substr(0, end));
        bool const plain = end != std::string_view::npos && text.size() <= 9 &&
                           text.find_first_not_of("0123456789,") == std::string::npos &&
                           std::count(text.begin(), text.end(), ',') <= 1 &&
                           text.find_first_of("0123456789") != std::string::npos;
        if (!plain) refuse("'{' that counts nothing");
        rest_.remove_prefix(end + 1);
        out_ += '{' + (text[0] == ',' ? "0" + text : text) + '}';
    }

    void escape() {
        if (take("s")) return emit(fmt::format("[{}]", kAnySpace));
        if (take("S")) return emit(fmt::format("[^{}]", kAnySpace));
        if (auto const property = property_escape()) return emit(*property);
        emit_literal(character_escape());
    }

    /// \d, \p{..} and their opposites.
    std::optional<std::string> property_escape() {
        if (take("d")) return "\\p{Nd}";
        if (take("D")) return "\\P{Nd}";
        bool negated = take("P");
        if (!negated && !take("p")) return std::nullopt;
        if (!take("{")) refuse("\\p without a name");
        if (take("^")) negated = !negated;
        size_t const end = std::min(rest_.find('}'), rest_.size());
        std::string const name(rest_.substr(0, end));
        bool const letters = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
            return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_';
        });
        if (!letters || end == rest_.size()) refuse(fmt::format("the property \"{}\"", name));
        rest_.remove_prefix(end + 1);
        // A name of one or two letters is a general category; the others that both engines know are scripts.
        bool const script = name.size() > 2 && name != "Alphabetic" && name != "Join_Control";
        return fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', script ? "sc:" : "", name);
    }

    /// A character written with a backslash, which has been taken.
    char32_t character_escape() {
        static constexpr std::array<std::pair<char32_t, char32_t>, 7> kNamed{
            {{'n', 10}, {'r', 13}, {'t', 9}, {'f', 12}, {'v', 11}, {'a', 7}, {'e', 27}}};
        char32_t const point = next();
        for (auto const& [name, value] : kNamed) {
            if (point == name) return value;
        }
        if (point == 'x' && take("{")) return hexadecimal(1, 6, "}");
        if (point == 'x') return hexadecimal(2, 2, "");
        if (point == 'u') return hexadecimal(4, 4, "");
        bool const letter = ('a' <= (point | 0x20) && (point | 0x20) <= 'z') || ('0' <= point && point <= '9');
        if (letter || point >= 0x80) {
            std::string name;
            utf8::append(point, name);
            refuse("\\" + name);
        }
        return point;
    }

    char32_t hexadecimal(size_t fewest, size_t most, std::string_view end) {
        size_t digits = 0;
        char32_t point = 0;
        while (digits < most && digits < rest_.size() && std::isxdigit(static_cast<unsigned char>(rest_[digits]))) {
            char const c = rest_[digits++];
            point = point * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        }
        rest_.remove_prefix(digits);
        bool const surrogate = 0xD800 <= point && point <= 0xDFFF;
        if (digits < fewest || !take(end) || point > 0x10FFFF || surrogate) refuse("a wrong character number");
        if (most == 2 && point >= 0x80) refuse("the byte of a character");
        return point;
    }

    void character_class() {
        std::string text = take("^") ? "[^" : "[";
        if (rest_.starts_with("]")) refuse("an empty class");
        while (!take("]")) {
            if (rest_.starts_with("[")) refuse("a class in a class");
            if (rest_.starts_with("&&")) refuse("an intersection of classes");
            if (take("\\s")) {
                text += kAnySpace;
            } else if (take("\\S")) {
                text += kNoSpace;
            } else if (auto const property = class_property()) {
                text += *property;
            } else {
                range(text);
            }
        }
        emit(text + "]");
    }

    std::optional<std::string> class_property() {
        for (std::string_view const start : {"\\d", "\\D", "\\p", "\\P"}) {
            if (!rest_.starts_with(start)) continue;
            take("\\");
            return property_escape();
        }
        return std::nullopt;
    }

    char32_t class_character() { return take("\\") ? character_escape() : next(); }

    /// A character, or a range of them.
    void range(std::string& text) {
        bool const dash = rest_.starts_with("-");
        char32_t const low = class_character();
        text += literal(low);
        if (!rest_.starts_with("-") || rest_.starts_with("-]")) return;
        if (dash || rest_.starts_with("-[") || rest_.starts_with("-\\p") || rest_.starts_with("-\\s")) {
            refuse("'-' of two meanings in a class");
        }
        take("-");
        char32_t const high = class_character();
        if (high < low) refuse("an empty range in a class");
        text += '-' + literal(high);
    }

    std::string_view pattern_, rest_;
    std::string out_;
    std::vector<bool> groups_;  ///< the open ones: whether case is ignored
    char32_t last_ = 0;         ///< character in a group that ignores case
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

std::string literal_pattern(std::string_view text) {
    std::string pattern;
    for (; !text.empty(); text.remove_prefix(utf8::first(text).bytes)) {
        pattern += fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(utf8::code_point(text)));
    }
    return pattern;
}

}  // namespace perigee
