#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"

namespace perigee {

namespace {

constexpr uint32_t kMatchLimit = 10'000'000;  // steps of one match; the patterns in use need a few per character
constexpr uint32_t kHeapLimitKiB = 64 << 10;
constexpr size_t kJitStackBytes = size_t{4} << 20;

template <auto release>
struct Release {
    template <class T>
    void operator()(T* handle) const {
        release(handle);
    }
};

std::string reason(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<char const*>(text.data());
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Code {
    std::string pattern;  ///< as given
    std::unique_ptr<pcre2_code, Release<pcre2_code_free>> compiled;
};

struct Regex::Scratch::Impl {
    std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
    std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>> context{
        pcre2_match_context_create(nullptr)};
    std::unique_ptr<pcre2_jit_stack, Release<pcre2_jit_stack_free>> stack{
        pcre2_jit_stack_create(size_t{32} << 10, kJitStackBytes, nullptr)};
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
    if (!impl_->data || !impl_->context) throw std::bad_alloc();
    pcre2_set_match_limit(impl_->context.get(), kMatchLimit);
    pcre2_set_heap_limit(impl_->context.get(), kHeapLimitKiB);
    if (impl_->stack) pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
}

Regex::Scratch::~Scratch() = default;

Regex::Regex(std::string const& pattern) {
    auto code = std::make_shared<Code>();
    code->pattern = pattern;
    std::string const translated = to_pcre2(pattern);
    int error = 0;
    PCRE2_SIZE where = 0;
    code->compiled.reset(pcre2_compile(units(translated), translated.size(), PCRE2_UTF, &error, &where, nullptr));
    if (!code->compiled) fail(Category::config, "the pattern \"{}\" is not understood: {}", pattern, reason(error));
    uint32_t matches_empty = 0;
    pcre2_pattern_info(code->compiled.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) fail(Category::config, "the pattern \"{}\" matches an empty text", pattern);
    // Where machine code cannot be made (a hardened kernel), PCRE2 interprets the pattern: slower, and the same.
    pcre2_jit_compile(code->compiled.get(), PCRE2_JIT_COMPLETE);
    code_ = std::move(code);
}

std::optional<Regex::Match> Regex::find(std::string_view text, size_t from, Scratch& scratch) const {
    auto* const data = scratch.impl_->data.get();
    int const found = pcre2_match(code_->compiled.get(), units(text), text.size(), from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data, scratch.impl_->context.get());
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0) {
        fail(Category::data, "splitting a text of {} bytes by the pattern \"{}\" failed: {}", text.size(),
             code_->pattern, reason(found));
    }
    auto const* const bounds = pcre2_get_ovector_pointer(data);
    return Match{bounds[0], bounds[1]};
}

}  // namespace perigee
