#include <fmt/ranges.h>

#include "config/scalars.h"
#include "config/schema_yaml.h"

namespace perigee {
namespace {

constexpr int kIndent = 2;

std::string list_of(std::vector<std::string> const& texts) {
    std::vector<std::string> items;
    for (std::string const& text : texts) items.push_back(write_text(text));
    return fmt::format("[{}]", fmt::join(items, ", "));
}

class Writer {
  public:
    void fields(Schema const& schema, int indent) {
        for (Field const& field : schema.fields()) {
            if (field.alias) continue;
            start_line(indent);
            out_ += field.key + ":";
            if (field.has_word())
                scalar(field.word);
            else
                std::visit([&](auto const& target) { value(target, indent); }, field.target);
        }
    }
    std::string take() { return std::move(out_); }

  private:
    /// A list item's first key follows its dash.
    void start_line(int indent) {
        if (!after_dash_) out_.append(static_cast<size_t>(indent), ' ');
        after_dash_ = false;
    }
    void scalar(std::string const& text) { out_ += fmt::format(" {}\n", text); }

    void value(bool const* target, int) { scalar(*target ? "true" : "false"); }
    void value(int64_t const* target, int) { scalar(fmt::format("{}", *target)); }
    void value(double const* target, int) { scalar(write_number(*target)); }
    void value(std::string const* target, int) { scalar(write_text(*target)); }
    void value(std::vector<int64_t> const* target, int) { scalar(fmt::format("[{}]", fmt::join(*target, ", "))); }
    void value(std::vector<std::string> const* target, int) { scalar(list_of(*target)); }
    void value(Field::Choice const& target, int) { scalar(write_text(target.names.at(target.selected()))); }
    void value(Field::Section const& target, int indent) {
        out_ += "\n";
        fields(*target.schema, indent + kIndent);
    }
    void value(Field::List const& target, int indent) {
        if (target.size() == 0) return scalar("[]");
        out_ += "\n";
        for (size_t i = 0; i < target.size(); ++i) {
            start_line(indent + kIndent);
            out_ += "- ";
            after_dash_ = true;
            fields(target.at(i), indent + 2 * kIndent);
        }
    }

    std::string out_;
    bool after_dash_ = false;
};

struct Row {
    std::string type;
    std::string value;    ///< the default, as YAML
    std::string allowed;  ///< range or choices
};

Row row(Field const&, bool const* target) { return {"boolean", *target ? "true" : "false", "true, false"}; }
Row row(Field const& field, int64_t const* target) {
    Row cells{"integer", fmt::format("{}", *target), to_string(field.range)};
    if (field.word.empty()) return cells;
    return {"integer or word", field.has_word() ? field.word : cells.value,
            fmt::format("{}, {}", cells.allowed, field.word)};
}
Row row(Field const& field, double const* target) { return {"number", write_number(*target), to_string(field.range)}; }
Row row(Field const&, std::string const* target) { return {"text", write_text(*target), ""}; }
Row row(Field const& field, std::vector<int64_t> const* target) {
    return {"list of integers", fmt::format("[{}]", fmt::join(*target, ", ")), to_string(field.range)};
}
Row row(Field const&, std::vector<std::string> const* target) { return {"list of texts", list_of(*target), ""}; }
Row row(Field const& field, Field::Choice const& target) {
    return {"choice", field.alias ? "" : write_text(target.names.at(target.selected())),
            fmt::format("{}", fmt::join(target.names, ", "))};
}
Row row(Field const&, Field::Section const& target) {
    return {target.shorthand ? "section, or list of integers" : "section", "", ""};
}
Row row(Field const&, Field::List const&) { return {"list of sections", "[]", ""}; }

std::string code(std::string const& text) { return text.empty() ? "" : fmt::format("`{}`", text); }

std::string cell(std::string_view text) {
    std::string result;
    for (char const c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
    return result;
}

std::string anchor(std::string_view title) {
    std::string result;
    for (char const c : title) {
        if (c != '.') result += c;
    }
    return result;
}

/// The table of one section, then those of the sections inside it.
void write_section(Schema const& schema, std::string const& path, std::string const& help, std::string& out) {
    out += fmt::format("\n## {}\n\n", path.empty() ? "Top level" : path);
    if (!help.empty()) out += help + "\n\n";
    out += "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
    std::vector<std::pair<Field const*, std::string>> nested;
    for (Field const& field : schema.fields()) {
        std::string const name = path.empty() ? field.key : fmt::format("{}.{}", path, field.key);
        Row const cells = std::visit([&](auto const& target) { return row(field, target); }, field.target);
        bool const is_nested =
            std::holds_alternative<Field::Section>(field.target) || std::holds_alternative<Field::List>(field.target);
        if (is_nested) nested.emplace_back(&field, name);
        std::string const key = is_nested ? fmt::format("[`{}`](#{})", field.key, anchor(name)) : code(field.key);
        out += fmt::format("| {} | {} | {} | {} | {} |\n", key, cells.type, cell(code(cells.value)),
                           cell(cells.allowed), cell(field.help + (field.defines_model ? "; defines the model" : "")));
    }
    for (auto const& [field, name] : nested) {
        if (auto const* section = std::get_if<Field::Section>(&field->target)) {
            write_section(*section->schema, name, field->help, out);
        } else {
            write_section(std::get<Field::List>(field->target).example(), name, "Each item of the list: " + field->help,
                          out);
        }
    }
}

void add_keys(Schema const& schema, std::string const& path, std::vector<ConfigKey>& keys) {
    for (Field const& field : schema.fields()) {
        std::string const name = path + field.key;
        if (auto const* section = std::get_if<Field::Section>(&field.target)) {
            add_keys(*section->schema, name + ".", keys);
        } else if (auto const* list = std::get_if<Field::List>(&field.target)) {
            add_keys(list->example(), name + ".0.", keys);
        } else if (auto const* choice = std::get_if<Field::Choice>(&field.target)) {
            keys.push_back({name, choice->names});
        } else if (std::holds_alternative<bool*>(field.target)) {
            keys.push_back({name, {"true", "false"}});
        } else if (!field.word.empty()) {
            keys.push_back({name, {field.word}});
        } else {
            keys.push_back({name, {}});
        }
    }
}

}  // namespace

std::string write_yaml(Schema const& schema) {
    Writer writer;
    writer.fields(schema, 0);
    return writer.take();
}

std::string write_reference(Schema const& schema) {
    std::string out;
    write_section(schema, "", "", out);
    return out;
}

std::vector<ConfigKey> list_keys(Schema const& schema) {
    std::vector<ConfigKey> keys;
    add_keys(schema, "", keys);
    return keys;
}

}  // namespace perigee
