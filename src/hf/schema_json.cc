#include "hf/schema_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/strict_json.h"

namespace perigee {

namespace {

using OrderedJson = nlohmann::ordered_json;

template <class... Types>
struct Overloaded : Types... {
    using Types::operator()...;
};
template <class... Types>
Overloaded(Types...) -> Overloaded<Types...>;

/// Sets values from JSON; `where` grows with the path to them.
class Reader {
  public:
    explicit Reader(std::string where) : where_(std::move(where)) {}

    void object(Schema const& schema, OrderedJson const& json) const {
        if (!json.is_object()) refuse(json, "an object");
        for (auto const& [key, value] : json.items()) {
            auto const& fields = schema.fields();
            auto const field = std::ranges::find(fields, key, &Field::key);
            if (field == fields.end()) fail(Category::config, "{}: `{}` is not a known key", where_, key.substr(0, 80));
            if (!value.is_null()) Reader(where_ + ": `" + key + "`").field(*field, value);
        }
    }

  private:
    void field(Field const& field, OrderedJson const& json) const {
        std::visit(Overloaded{[&](bool* to) {
                                  if (!json.is_boolean()) refuse(json, "true or false");
                                  *to = json.get<bool>();
                              },
                              [&](int64_t* to) {
                                  bool const word = json.is_string() && field.takes_word(text(json));
                                  *to = word ? field.word_value : integer(json, field.range);
                              },
                              [&](double* to) {
                                  if (!json.is_number()) refuse(json, "a number");
                                  in_range(json.get<double>(), field.range, json);
                                  *to = json.get<double>();
                              },
                              [&](std::string* to) { *to = text(json); },
                              [&](std::vector<int64_t>* to) {
                                  std::vector<int64_t> values;
                                  for (OrderedJson const& item : list(json))
                                      values.push_back(integer(item, field.range));
                                  *to = std::move(values);
                              },
                              [&](std::vector<std::string>* to) {
                                  std::vector<std::string> values;
                                  for (OrderedJson const& item : list(json)) values.push_back(text(item));
                                  *to = std::move(values);
                              },
                              [&](Field::Choice const& choice) {
                                  std::string const name = json.is_boolean() ? json.dump() : text(json);
                                  auto const found = std::ranges::find(choice.names, name);
                                  if (found == choice.names.end()) refuse(json, "another name");
                                  choice.select(static_cast<size_t>(found - choice.names.begin()));
                              },
                              [&](Field::Section const& section) { object(*section.schema, json); },
                              [&](Field::List const& items) {
                                  items.clear();
                                  for (OrderedJson const& item : list(json)) object(items.append(), item);
                              }},
                   field.target);
    }

    int64_t integer(OrderedJson const& json, Range const& range) const {
        bool const fits =
            json.is_number_integer() && (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX});
        if (!fits) refuse(json, "an integer");
        in_range(static_cast<double>(json.get<int64_t>()), range, json);
        return json.get<int64_t>();
    }
    std::string text(OrderedJson const& json) const {
        if (!json.is_string()) refuse(json, "a text");
        return json.get<std::string>();
    }
    OrderedJson const& list(OrderedJson const& json) const {
        if (!json.is_array() || json.size() > 4096) refuse(json, "a list of at most 4096");
        return json;
    }
    void in_range(double value, Range const& range, OrderedJson const& json) const {
        bool const inside = value <= range.high && (range.strict_low ? value > range.low : value >= range.low);
        if (!inside) refuse(json, fmt::format("a value from {} to {}", range.low, range.high));
    }
    [[noreturn]] void refuse(OrderedJson const& json, std::string const& expected) const {
        fail(Category::config, "{} is {}; {} was expected", where_, json_excerpt(json), expected);
    }

    std::string where_;
};

OrderedJson to_json(Schema const& schema);

OrderedJson to_json(Field const& field) {
    if (field.has_word()) return field.word;
    return std::visit(
        Overloaded{[](auto* value) { return OrderedJson(*value); },
                   [](Field::Choice const& choice) { return OrderedJson(choice.names.at(choice.selected())); },
                   [](Field::Section const& section) { return to_json(*section.schema); },
                   [](Field::List const& items) {
                       OrderedJson all = OrderedJson::array();
                       for (size_t i = 0; i < items.size(); ++i) all.push_back(to_json(items.at(i)));
                       return all;
                   }},
        field.target);
}

OrderedJson to_json(Schema const& schema) {
    OrderedJson object = OrderedJson::object();
    for (Field const& field : schema.fields())
        if (!field.alias) object[field.key] = to_json(field);
    return object;
}

}  // namespace

void read_json(Schema const& schema, std::string const& text, std::string const& where) {
    Reader(where).object(schema, OrderedJson::parse(text));
}

std::string write_json(Schema const& schema) { return to_json(schema).dump(); }

}  // namespace perigee
