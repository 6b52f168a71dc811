#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "model/options.h"

namespace perigee {

namespace {

constexpr std::array<char const*, 5> kNames = {"none", "elementwise", "mlp", "attention", "block"};  // in their order

std::string_view trimmed(std::string_view text) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    while (text.ends_with(' ')) text.remove_suffix(1);
    return text;
}

Recompute level_named(std::string_view name) {
    auto const found = std::ranges::find(kNames, name);
    if (found == kNames.end())
        fail(Category::config,
             "train.recompute: expected {}, one of {}, or a list such as \"block*28, attention*4\", found \"{:.40}\"",
             kRecomputeAuto, fmt::join(kNames, ", "), name);
    return static_cast<Recompute>(found - kNames.begin());
}

/// The number after a `*`.
int64_t layers_of(std::string_view text) {
    int64_t layers = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
    if (error != std::errc() || end != text.data() + text.size() || layers < 1)
        fail(Category::config, "train.recompute: expected a number of layers after `*`, found \"{:.40}\"", text);
    return layers;
}

}  // namespace

std::vector<Recompute> parse_recompute(std::string const& text, int64_t layers) {
    std::vector<Recompute> levels;
    if (text == kRecomputeAuto) return levels;
    std::string_view rest = text;
    for (bool last = false; !last;) {
        size_t const comma = rest.find(',');
        last = comma == std::string_view::npos;
        std::string_view const entry = rest.substr(0, comma);
        size_t const star = entry.find('*');
        Recompute const level = level_named(trimmed(entry.substr(0, star)));
        int64_t const left = layers - std::ssize(levels);
        int64_t const count = star != std::string_view::npos ? layers_of(trimmed(entry.substr(star + 1)))
                              : last                         ? left
                                                             : 1;
        if (count > left || count < 1)
            fail(Category::config, "train.recompute: \"{:.80}\" names more layers than model.num_hidden_layers = {}",
                 text, layers);
        levels.insert(levels.end(), static_cast<size_t>(count), level);
        if (!last) rest.remove_prefix(comma + 1);
    }
    if (std::ssize(levels) < layers)
        fail(Category::config, "train.recompute: \"{:.80}\" names {} layers, but model.num_hidden_layers = {}", text,
             levels.size(), layers);
    return levels;
}

std::string to_string(std::span<Recompute const> levels) {
    std::vector<std::string> entries;
    for (auto begin = levels.begin(); begin != levels.end();) {
        auto const end = std::find_if(begin, levels.end(), [begin](Recompute level) { return level != *begin; });
        char const* const name = kNames[static_cast<size_t>(*begin)];
        bool const all = begin == levels.begin() && end == levels.end();
        entries.push_back(all ? name : fmt::format("{}*{}", name, end - begin));
        begin = end;
    }
    return fmt::format("{}", fmt::join(entries, ", "));
}

}  // namespace perigee
