#include "config/scalars.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace perigee {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string_view unsigned_part(std::string_view s) {
    if (!s.empty() && (s.front() == '+' || s.front() == '-')) s.remove_prefix(1);
    return s;
}

/// Takes the digits at the front of `s`.
std::string_view take_digits(std::string_view& s) {
    auto const end = std::find_if_not(s.begin(), s.end(), is_digit);
    std::string_view const digits = s.substr(0, static_cast<size_t>(end - s.begin()));
    s.remove_prefix(digits.size());
    return digits;
}

bool is_integer(std::string_view s) {
    s = unsigned_part(s);
    std::string_view const digits = take_digits(s);
    return s.empty() && !digits.empty() && (digits.size() == 1 || digits[0] != '0');
}

bool is_number(std::string_view s) {
    s = unsigned_part(s);
    std::string_view const whole = take_digits(s);
    std::string_view fraction;
    if (s.starts_with('.')) {
        s.remove_prefix(1);
        fraction = take_digits(s);
    }
    if ((whole.empty() && fraction.empty()) || (whole.size() > 1 && whole[0] == '0')) return false;
    if (s.empty()) return true;
    if (s.front() != 'e' && s.front() != 'E') return false;
    s.remove_prefix(1);
    s = unsigned_part(s);
    return !take_digits(s).empty() && s.empty();
}

template <class Value>
std::optional<Value> parse(std::string_view plain) {
    if (plain.starts_with('+')) plain.remove_prefix(1);
    Value value{};
    auto const [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
    if (error != std::errc{} || end != plain.data() + plain.size()) return std::nullopt;
    return value;
}

std::string lower(std::string_view s) {
    std::string result(s);
    for (char& c : result) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    return result;
}

/// Words that some YAML reader takes for something else than text.
bool is_reserved(std::string_view word) {
    static constexpr std::array kWords = {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"};
    return std::find(kWords.begin(), kWords.end(), lower(word)) != kWords.end();
}

std::string boolean_hint(std::string_view text) {
    std::string const word = lower(text);
    if (word == "true" || word == "yes" || word == "on" || word == "1") return "; write true";
    if (word == "false" || word == "no" || word == "off" || word == "0") return "; write false";
    return "";
}

std::string numeric_hint(ScalarKind wanted, std::string_view text) {
    std::string const word = lower(unsigned_part(text));
    if (word == ".nan" || word == "nan" || word == ".inf" || word == "inf" || word == "infinity")
        return "; it must be finite";
    if (word.starts_with("0x") || word.starts_with("0o") || word.starts_with("0b")) return "; write it in decimal";
    if (word.size() > 1 && word[0] == '0' && is_digit(word[1])) return "; leave out the leading zeros";
    std::string digits = word;
    std::erase_if(digits, [](char c) { return c == '_' || c == ','; });
    if (digits.size() != word.size() && is_number(digits)) return "; write the digits without separators";
    if (wanted == ScalarKind::integer && is_number(text)) return "; write it without fraction or exponent";
    return "";
}

/// As it stands between double quotes in YAML.
std::string escaped(std::string_view text) {
    std::string out;
    for (char const c : text) {
        switch (c) {
            case '"':
                out += "\\\"";
                break;
            case '\\':
                out += "\\\\";
                break;
            case '\n':
                out += "\\n";
                break;
            case '\t':
                out += "\\t";
                break;
            default:
                if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
                    out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
                } else {
                    out += c;
                }
        }
    }
    return out;
}

}  // namespace

ScalarKind classify(std::string_view plain) {
    if (plain == "true" || plain == "false") return ScalarKind::boolean;
    if (is_integer(plain)) return ScalarKind::integer;
    return is_number(plain) ? ScalarKind::number : ScalarKind::text;
}

std::optional<int64_t> to_integer(std::string_view plain) { return parse<int64_t>(plain); }

std::optional<double> to_number(std::string_view plain) {
    auto const value = parse<double>(plain);
    return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string found(YamlNode const& node) {
    switch (node.kind) {
        case YamlNode::Kind::null:
            return "nothing";
        case YamlNode::Kind::list:
            return "a list";
        case YamlNode::Kind::map:
            return "a section";
        case YamlNode::Kind::scalar:
            break;
    }
    if (node.quoted) return "the quoted text " + shown(node.text);
    switch (classify(node.text)) {
        case ScalarKind::boolean:
            return "the boolean " + node.text;
        case ScalarKind::integer:
            return fmt::format("the integer {:.40}", node.text);
        case ScalarKind::number:
            return fmt::format("the number {:.40}", node.text);
        case ScalarKind::text:
            break;
    }
    return "the text " + shown(node.text);
}

std::string hint(ScalarKind wanted, YamlNode const& node) {
    if (node.kind == YamlNode::Kind::null) return wanted == ScalarKind::text ? "; write \"\" for an empty text" : "";
    if (node.kind != YamlNode::Kind::scalar) return "";
    if (wanted == ScalarKind::text) return "; put it in quotes";
    ScalarKind const kind = classify(node.text);
    if (node.quoted && (kind == wanted || (wanted == ScalarKind::number && kind == ScalarKind::integer)))
        return "; remove the quotes";
    return wanted == ScalarKind::boolean ? boolean_hint(node.text) : numeric_hint(wanted, node.text);
}

std::string write_number(double value) { return fmt::format("{}", value); }

std::string write_text(std::string_view value) {
    auto const is_plain = [](char c) {
        return is_letter(c) || is_digit(c) || c == '_' || c == '/' || c == '.' || c == '-';
    };
    bool const starts_well = !value.empty() && (is_letter(value[0]) || value[0] == '_' || value[0] == '/');
    if (starts_well && std::all_of(value.begin(), value.end(), is_plain) && !is_reserved(value))
        return std::string(value);
    return fmt::format("\"{}\"", escaped(value));
}

std::string shortened(std::string_view text) {
    static constexpr size_t kMost = 60;
    if (text.size() <= kMost) return escaped(text);
    size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // not inside a character
    return escaped(text.substr(0, end)) + "...";
}

std::string shown(std::string_view text) { return fmt::format("\"{}\"", shortened(text)); }

std::string to_string(Range const& range) {
    bool const low = std::isfinite(range.low), high = std::isfinite(range.high);
    std::string const lower_end = fmt::format("{} {}", range.strict_low ? "above" : "at least", range.low);
    if (low && high && !range.strict_low) return fmt::format("between {} and {}", range.low, range.high);
    if (low && high) return fmt::format("{} and at most {}", lower_end, range.high);
    if (low) return lower_end;
    return high ? fmt::format("at most {}", range.high) : "";
}

bool inside(Range const& range, double value) {
    return (range.strict_low ? value > range.low : value >= range.low) && value <= range.high;
}

}  // namespace perigee
