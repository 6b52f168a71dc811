#include "data/html_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

namespace perigee {

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kEntities{{
    {"amp", "&"},        {"lt", "<"},         {"gt", ">"},          {"quot", "\""},       {"apos", "'"},
    {"nbsp", " "},       {"mdash", "\u2014"}, {"ndash", "\u2013"},  {"hellip", "\u2026"}, {"lsquo", "\u2018"},
    {"rsquo", "\u2019"}, {"ldquo", "\u201c"}, {"rdquo", "\u201d"},  {"copy", "\u00a9"},   {"reg", "\u00ae"},
    {"trade", "\u2122"}, {"bull", "\u2022"},  {"middot", "\u00b7"}, {"laquo", "\u00ab"},  {"raquo", "\u00bb"},
}};
constexpr size_t kLongestEntity = 10;

constexpr std::array<std::string_view, 38> kBlocks{
    "address", "article", "aside",      "blockquote", "body",   "br",   "caption", "center", "dd",  "div",
    "dl",      "dt",      "figcaption", "figure",     "footer", "form", "h1",      "h2",     "h3",  "h4",
    "h5",      "h6",      "head",       "header",     "hr",     "html", "li",      "main",   "nav", "ol",
    "p",       "pre",     "section",    "table",      "title",  "tr",   "td",      "ul"};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

void append_utf8(std::string& text, uint32_t code) {
    auto const tail = [](uint32_t bits) { return static_cast<char>(0x80 | (bits & 0x3f)); };
    if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
    if (code < 0x80) {
        text += static_cast<char>(code);
    } else if (code < 0x800) {
        text += {static_cast<char>(0xc0 | code >> 6), tail(code)};
    } else if (code < 0x10000) {
        text += {static_cast<char>(0xe0 | code >> 12), tail(code >> 6), tail(code)};
    } else {
        text += {static_cast<char>(0xf0 | code >> 18), tail(code >> 12), tail(code >> 6), tail(code)};
    }
}

/// The character an entity's name (between & and ;) stands for; empty if unknown.
std::string decode_entity(std::string_view name) {
    std::string text;
    if (name.starts_with('#')) {
        bool const hexadecimal = name.size() > 1 && lower(name[1]) == 'x';
        auto const digits = name.substr(hexadecimal ? 2 : 1);
        uint32_t code = 0;
        auto const [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), code, hexadecimal ? 16 : 10);
        if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size()) return text;
        append_utf8(text, code == 0xa0 ? ' ' : code);
        return text;
    }
    auto const* const known =
        std::find_if(kEntities.begin(), kEntities.end(), [&](auto& e) { return e.first == name; });
    return known == kEntities.end() ? text : std::string(known->second);
}

class Stripper {
  public:
    explicit Stripper(std::string_view html) : html_(html) {}

    std::string run() {
        while (at_ < html_.size()) {
            if (html_[at_] == '<' && at_ + 1 < html_.size() && opens_tag(html_[at_ + 1])) {
                tag();
            } else if (html_[at_] == '&') {
                entity();
            } else {
                put(html_[at_++]);
            }
        }
        while (!text_.empty() && is_space(text_.back())) text_.pop_back();
        if (!text_.empty()) text_ += '\n';
        return std::move(text_);
    }

  private:
    static bool opens_tag(char c) { return is_letter(c) || c == '/' || c == '!' || c == '?'; }

    void put(char c) {
        if (in_pre_ > 0) {
            if (c != '\r') text_ += c;
        } else if (!is_space(c)) {
            text_ += c;
        } else if (!text_.empty() && !is_space(text_.back())) {
            text_ += ' ';
        }
    }

    void break_line() {
        if (in_pre_ == 0 && !text_.empty() && text_.back() == ' ') text_.pop_back();
        if (!text_.empty() && text_.back() != '\n') text_ += '\n';
    }

    void entity() {
        size_t const end = html_.substr(at_, kLongestEntity + 2).find(';');
        std::string const decoded = end == std::string_view::npos ? "" : decode_entity(html_.substr(at_ + 1, end - 1));
        if (decoded.empty()) return put(html_[at_++]);
        for (char const c : decoded) put(c);
        at_ += end + 1;
    }

    void skip_past(std::string_view end) {
        size_t const found = html_.find(end, at_);
        at_ = found == std::string_view::npos ? html_.size() : found + end.size();
    }

    /// To the end of the element whose content is no text; its name is lower case, the page's may not be.
    void skip_element(std::string_view name) {
        for (; at_ < html_.size(); ++at_) {
            if (html_[at_] != '<' || at_ + 1 == html_.size() || html_[at_ + 1] != '/') continue;
            auto const candidate = html_.substr(at_ + 2, name.size());
            if (std::equal(candidate.begin(), candidate.end(), name.begin(), name.end(),
                           [](char a, char b) { return lower(a) == b; })) {
                return skip_past(">");
            }
        }
    }

    void skip_attributes() {
        for (char quote = '\0'; at_ < html_.size(); ++at_) {
            char const c = html_[at_];
            if (quote != '\0') {
                if (c == quote) quote = '\0';
            } else if (c == '"' || c == '\'') {
                quote = c;
            } else if (c == '>') {
                ++at_;
                return;
            }
        }
    }

    void tag() {
        if (html_.substr(at_).starts_with("<!--")) return skip_past("-->");
        bool const closing = html_[++at_] == '/';
        if (closing) ++at_;
        std::string name;
        while (at_ < html_.size() && (is_letter(html_[at_]) || (html_[at_] >= '0' && html_[at_] <= '9'))) {
            name += lower(html_[at_++]);
        }
        skip_attributes();
        if (!closing && (name == "script" || name == "style")) return skip_element(name);
        if (std::find(kBlocks.begin(), kBlocks.end(), name) == kBlocks.end()) return;
        break_line();
        if (name == "pre") in_pre_ = closing ? std::max(0, in_pre_ - 1) : in_pre_ + 1;
    }

    std::string_view html_;
    size_t at_ = 0;
    std::string text_;
    int in_pre_ = 0;
};

}  // namespace

std::string html_to_text(std::string_view html) { return Stripper(html).run(); }

}  // namespace perigee
