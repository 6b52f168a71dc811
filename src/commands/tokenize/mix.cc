#include "commands/tokenize/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace perigee {

namespace {

constexpr char kForm[] =
    "--mix {}: expected NAME=WEIGHT:INPUT, such as web=0.7:'web/*.jsonl.zst', or NAME=INPUT once "
    "the name has its weight";

bool is_name(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    });
}

/// A positive number that all of `text` is, else 0.
double number_in(std::string_view text) {
    double value = 0;
    auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    bool const good = problem == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    return good ? std::max(value, 0.0) : 0;
}

}  // namespace

std::vector<MixPart> parse_mix(std::vector<std::string> const& texts) {
    std::vector<MixPart> parts;
    for (std::string const& text : texts) {
        size_t const equals = std::min(text.find('='), text.size());
        std::string const name = text.substr(0, equals);
        std::string rest = text.substr(std::min(equals + 1, text.size()));
        size_t const colon = rest.find(':');
        double const weight = colon == rest.npos ? 0 : number_in(std::string_view(rest).substr(0, colon));
        if (weight > 0) rest.erase(0, colon + 1);
        auto found = std::ranges::find(parts, name, &MixPart::name);
        bool const is_new = found == parts.end();
        if (!is_name(name) || rest.empty() || (is_new && weight == 0)) fail(Category::config, kForm, text);
        if (is_new) found = parts.insert(parts.end(), {name, weight, {}});
        if (weight > 0 && weight != found->weight)
            fail(Category::config, "--mix {}: {} has the weight {} already", text, name, found->weight);
        found->inputs.emplace_back(rest);
    }
    return parts;
}

Path mix_output(Path const& output, MixPart const& part) { return fmt::format("{}_{}", output.string(), part.name); }

std::string mix_override(std::vector<MixPart> const& parts, Path const& output) {
    std::string text;
    for (MixPart const& part : parts)
        text += fmt::format("{}{{path: {}, weight: {}}}", text.empty() ? "" : ", ", mix_output(output, part).string(),
                            part.weight);
    return fmt::format("data.train=[{}]", text);
}

}  // namespace perigee
