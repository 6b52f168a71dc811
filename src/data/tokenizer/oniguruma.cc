#include "data/tokenizer/oniguruma.h"

#include <oniguruma.h>

#include <array>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace perigee {

namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
constexpr unsigned long kRetryLimit = 10'000'000;  // steps of one search
constexpr unsigned int kStackEntries = 1'000'000;

OnigUChar const* units(std::string_view text) { return reinterpret_cast<OnigUChar const*>(text.data()); }

std::string reason(int code, OnigErrorInfo* info = nullptr) {
    std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
    int const size =
        info != nullptr ? onig_error_code_to_str(text.data(), code, info) : onig_error_code_to_str(text.data(), code);
    return {reinterpret_cast<char const*>(text.data()), static_cast<size_t>(size)};
}

struct FreeRegion {
    void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct FreeParam {
    void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};

}  // namespace

struct Oniguruma::Code {
    Code() = default;
    ~Code() { onig_free(regex); }
    Code(Code const&) = delete;
    Code& operator=(Code const&) = delete;

    OnigRegex regex = nullptr;
};

Oniguruma::Oniguruma(std::string const& pattern) : pattern_(pattern) {
    if (!utf8::is_whole(pattern)) fail(Category::config, "a pattern is not UTF-8");
    if (pattern.size() > kMaxPatternBytes)
        fail(Category::config, "a pattern of {} bytes; at most {} are read", pattern.size(), kMaxPatternBytes);
    [[maybe_unused]] static int const started = [] {
        OnigEncoding encoding = ONIG_ENCODING_UTF8;
        return onig_initialize(&encoding, 1);
    }();
    auto code = std::make_shared<Code>();
    OnigErrorInfo info{};
    int const made = onig_new(&code->regex, units(pattern_), units(pattern_) + pattern_.size(), ONIG_OPTION_NONE,
                              ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
    if (made != ONIG_NORMAL)
        fail(Category::config, "the pattern \"{}\" is not understood: {}", pattern, reason(made, &info));
    code_ = std::move(code);
    (void)find("", 0);  // refuses some that match an empty text before any text is read
}

std::optional<std::pair<size_t, size_t>> Oniguruma::find(std::string_view text, size_t from) const {
    std::unique_ptr<OnigRegion, FreeRegion> const region(onig_region_new());
    std::unique_ptr<OnigMatchParam, FreeParam> const param(onig_new_match_param());
    if (!region || !param) throw std::bad_alloc();
    onig_initialize_match_param(param.get());
    onig_set_retry_limit_in_match_of_match_param(param.get(), kRetryLimit);
    onig_set_retry_limit_in_search_of_match_param(param.get(), kRetryLimit);
    onig_set_match_stack_limit_size_of_match_param(param.get(), kStackEntries);
    OnigUChar const *const begin = units(text), *const end = begin + text.size();
    int const found = onig_search_with_param(code_->regex, begin, end, begin + from, end, region.get(),
                                             ONIG_OPTION_NONE, param.get());
    if (found == ONIG_MISMATCH) return std::nullopt;
    if (found < 0)
        fail(Category::data, "splitting a text of {} bytes by the pattern \"{}\" failed: {}", text.size(), pattern_,
             reason(found));
    std::pair const match{static_cast<size_t>(region->beg[0]), static_cast<size_t>(region->end[0])};
    if (match.first >= match.second) fail(Category::config, "the pattern \"{}\" matches an empty text", pattern_);
    return match;
}

}  // namespace perigee
