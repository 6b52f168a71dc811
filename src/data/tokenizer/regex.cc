#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <oniguruma.h>
#include <pcre2.h>

#include <time.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace perigee {

namespace {

constexpr uint32_t kMatchLimit = 10'000'000;  // steps of one match; the patterns in use need a few per character
constexpr PCRE2_SIZE kStarts = 1024;          // places where a match may begin, between looks at the clock
constexpr int kMatches = 64;                  // matches of PCRE2 between looks at the clock
constexpr double kFreeSeconds = 1, kSecondsPerByte = 2e-6;  // of a text: patterns in use take 1e-8
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

double seconds_of_thread() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

constexpr unsigned long kRetryLimit = 10'000'000;  // steps of one search
constexpr unsigned int kStackEntries = 1'000'000;

OnigUChar const* oniguruma_units(std::string_view text) { return reinterpret_cast<OnigUChar const*>(text.data()); }

std::string oniguruma_reason(int code, OnigErrorInfo* info = nullptr) {
    std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
    int const size =
        info != nullptr ? onig_error_code_to_str(text.data(), code, info) : onig_error_code_to_str(text.data(), code);
    return {reinterpret_cast<char const*>(text.data()), static_cast<size_t>(size)};
}

/// The same for every release: before 6.9.9, Oniguruma's POSIX class of punctuation has no symbols such as < and +.
std::string with_symbols(std::string pattern) {
    for (auto const& [name, meaning] : {std::pair{"[:punct:]", "\\p{P}\\p{S}"}, {"[:^punct:]", "[^\\p{P}\\p{S}]"}})
        for (size_t at = 0; (at = pattern.find(name, at)) != pattern.npos;)
            pattern.replace(at, std::string_view(name).size(), meaning);
    return pattern;
}

struct FreeRegion {
    void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};

/// Patterns that PCRE2 lacks or reads otherwise, matched by the reference's own engine: Oniguruma with Ruby's syntax,
/// as the onig crate of Hugging Face's tokenizers uses it. Several times slower than PCRE2.
class Oniguruma {
  public:
    /// Throws Category::config for what is not a pattern or matches an empty text.
    explicit Oniguruma(std::string const& pattern);

    /// Begin and end of the first match that begins at `from` or later. `text` is whole UTF-8. Throws Category::config
    /// for an empty match, Category::data where the pattern backtracks without end. May be called from several threads.
    std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from) const;

  private:
    std::string pattern_;
    std::unique_ptr<OnigRegexType, Release<onig_free>> regex_;
};

Oniguruma::Oniguruma(std::string const& pattern) : pattern_(with_symbols(pattern)) {
    if (!utf8::is_whole(pattern)) fail(Category::config, "a pattern is not UTF-8");
    if (pattern.size() > kMaxPatternBytes)
        fail(Category::config, "a pattern of {} bytes; at most {} are read", pattern.size(), kMaxPatternBytes);
    [[maybe_unused]] static int const started = [] {
        OnigEncoding encoding = ONIG_ENCODING_UTF8;
        return onig_initialize(&encoding, 1);
    }();
    OnigRegex regex = nullptr;
    OnigErrorInfo info{};
    int const made = onig_new(&regex, oniguruma_units(pattern_), oniguruma_units(pattern_) + pattern_.size(),
                              ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
    regex_.reset(regex);
    if (made != ONIG_NORMAL)
        fail(Category::config, "the pattern \"{}\" is not understood: {}", pattern, oniguruma_reason(made, &info));
    (void)find("", 0);  // refuses some that match an empty text before any text is read
}

std::optional<std::pair<size_t, size_t>> Oniguruma::find(std::string_view text, size_t from) const {
    std::unique_ptr<OnigRegion, FreeRegion> const region(onig_region_new());
    std::unique_ptr<OnigMatchParam, Release<onig_free_match_param>> const param(onig_new_match_param());
    if (!region || !param) throw std::bad_alloc();
    onig_initialize_match_param(param.get());
    onig_set_retry_limit_in_match_of_match_param(param.get(), kRetryLimit);
    onig_set_retry_limit_in_search_of_match_param(param.get(), kRetryLimit);
    onig_set_match_stack_limit_size_of_match_param(param.get(), kStackEntries);
    OnigUChar const *const begin = oniguruma_units(text), *const end = begin + text.size();
    int const found = onig_search_with_param(regex_.get(), begin, end, begin + from, end, region.get(),
                                             ONIG_OPTION_NONE, param.get());
    if (found == ONIG_MISMATCH) return std::nullopt;
    if (found < 0)
        fail(Category::data, "splitting a text of {} bytes by the pattern \"{}\" failed: {}", text.size(), pattern_,
             oniguruma_reason(found));
    std::pair const match{static_cast<size_t>(region->beg[0]), static_cast<size_t>(region->end[0])};
    if (match.first >= match.second) fail(Category::config, "the pattern \"{}\" matches an empty text", pattern_);
    return match;
}

}  // namespace

using Compiled = std::unique_ptr<pcre2_code, Release<pcre2_code_free>>;

struct Regex::Code {
    std::string pattern;  ///< as given
    Compiled compiled;    ///< null where Oniguruma matches
    std::optional<Oniguruma> oniguruma;
};

struct Regex::Scratch::Impl {
    std::unique_ptr<pcre2_match_data, Release<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
    std::unique_ptr<pcre2_match_context, Release<pcre2_match_context_free>> context{
        pcre2_match_context_create(nullptr)};
    std::unique_ptr<pcre2_jit_stack, Release<pcre2_jit_stack_free>> stack{
        pcre2_jit_stack_create(size_t{32} << 10, kJitStackBytes, nullptr)};
    double end = 0;   ///< of the text's time, in seconds of this thread
    int matches = 0;  ///< until the next look at the clock
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
    if (!impl_->data || !impl_->context) throw std::bad_alloc();
    pcre2_set_match_limit(impl_->context.get(), kMatchLimit);
    pcre2_set_heap_limit(impl_->context.get(), kHeapLimitKiB);
    if (impl_->stack) pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
    begin_text(0);
}

Regex::Scratch::~Scratch() = default;

void Regex::Scratch::begin_text(size_t bytes) {
    impl_->end = seconds_of_thread() + kFreeSeconds + kSecondsPerByte * static_cast<double>(bytes);
    impl_->matches = kMatches;
}

namespace {

/// Throws Category::config for what PCRE2 does not know or may read otherwise than Oniguruma.
Compiled compile(std::string const& pattern) {
    std::string const translated = to_pcre2(pattern);
    int error = 0;
    PCRE2_SIZE where = 0;
    Compiled compiled(pcre2_compile(units(translated), translated.size(), PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT, &error,
                                    &where, nullptr));
    if (!compiled) fail(Category::config, "the pattern \"{}\" is not understood: {}", pattern, reason(error));
    uint32_t matches_empty = 0;
    pcre2_pattern_info(compiled.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) fail(Category::config, "the pattern \"{}\" matches an empty text", pattern);
    // Where machine code cannot be made (a hardened kernel), PCRE2 interprets the pattern: slower, and the same.
    pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
    return compiled;
}

}  // namespace

Regex::Regex(std::string const& pattern) {
    auto code = std::make_shared<Code>();
    code->pattern = pattern;
    try {
        code->compiled = compile(pattern);
    } catch (Error const&) {
        code->oniguruma.emplace(pattern);
    }
    code_ = std::move(code);
}

bool Regex::is_pcre2() const { return !code_->oniguruma; }

/// The first match that begins in [from, last]; Oniguruma, which bounds its own steps, looks to the end.
std::optional<Regex::Match> Regex::find_from(std::string_view text, size_t from, size_t last, Scratch& scratch) const {
    if (code_->oniguruma) {
        auto const found = code_->oniguruma->find(text, from);
        return found ? std::optional(Match{found->first, found->second}) : std::nullopt;
    }
    auto* const data = scratch.impl_->data.get();
    auto* const context = scratch.impl_->context.get();
    pcre2_set_offset_limit(context, last);
    int const found = pcre2_match(code_->compiled.get(), units(text), text.size(), from,
                                  PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data, context);
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0) {
        fail(Category::data, "splitting a text of {} bytes by the pattern \"{}\" failed: {}", text.size(),
             code_->pattern, reason(found));
    }
    auto const* const bounds = pcre2_get_ovector_pointer(data);
    return Match{bounds[0], bounds[1]};
}

/// A stretch of possible beginnings at a time, so that time is bounded in between.
std::optional<Regex::Match> Regex::find(std::string_view text, size_t from, Scratch& scratch) const {
    while (from <= text.size()) {
        if (--scratch.impl_->matches < 0 || code_->oniguruma) {
            scratch.impl_->matches = kMatches;
            if (seconds_of_thread() > scratch.impl_->end)
                fail(Category::data, "the pattern \"{}\" takes too long for a text of {} bytes", code_->pattern,
                     text.size());
        }
        if (auto const match = find_from(text, from, from + kStarts, scratch)) return match;
        if (code_->oniguruma) break;
        from += kStarts + 1;
        while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
        scratch.impl_->matches = 0;  // a stretch without a match may have taken long
    }
    return std::nullopt;
}

}  // namespace perigee
