#include "io/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace perigee {

namespace {

using Json = nlohmann::json;

class Checker : public nlohmann::json_sax<Json> {
  public:
    Checker(std::string const& where, Category category, int max_depth)
        : where_(where), category_(category), max_depth_(max_depth) {}

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, string_t const&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(size_t) override { return enter(); }
    bool start_array(size_t) override { return enter(); }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }
    bool key(string_t& name) override {
        if (!open_.back().insert(name).second)
            fail(category_, "{}: the key {} is there twice", where_, json_excerpt(name));
        return true;
    }
    bool parse_error(size_t position, std::string const&, nlohmann::detail::exception const&) override {
        fail(category_, "{}: not JSON at byte {}", where_, position);
    }

  private:
    bool enter() {
        if (static_cast<int>(open_.size()) == max_depth_)
            fail(category_, "{}: nested deeper than {} levels", where_, max_depth_);
        open_.emplace_back();
        return true;
    }
    bool leave() {
        open_.pop_back();
        return true;
    }

    std::string const& where_;
    Category category_;
    int max_depth_;
    std::vector<std::set<std::string>> open_;  ///< keys of the objects the parser is in; empty for lists
};

}  // namespace

void check_json(std::string_view text, std::string const& where, Category category, int max_depth) {
    if (auto const problem = nul_problem(text)) fail(category, "{}: {}", where, *problem);
    Checker checker(where, category, max_depth);
    Json::sax_parse(text.begin(), text.end(), &checker);
}

std::string json_excerpt(nlohmann::ordered_json const& value) {
    constexpr size_t kMost = 80;
    std::string const text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
    return text.size() > kMost ? text.substr(0, kMost) + "..." : text;
}

std::optional<std::string> nul_problem(std::string_view text) {
    size_t const nul = text.find('\0');
    return nul == text.npos ? std::nullopt : std::optional(json_problem(nul + 1, "a NUL character"));
}

std::string json_problem(size_t position, std::string_view what) {
    // "[json.exception.parse_error.101] parse error at line 1, column 4: syntax error ..."
    for (std::string_view const prefix : {"] ", ": "}) {
        if (size_t const end = what.find(prefix); end != what.npos) what.remove_prefix(end + prefix.size());
    }
    return fmt::format("malformed JSON at byte {}: {}", position, what);
}

}  // namespace perigee
