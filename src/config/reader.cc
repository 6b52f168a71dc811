#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "config/findings.h"
#include "config/scalars.h"
#include "config/schema_yaml.h"
#include "config/yaml_tree.h"

namespace perigee {
namespace {

std::string joined(std::string const& path, std::string_view key) {
    return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::vector<std::string> keys_of(Schema const& schema) {
    std::vector<std::string> keys;
    for (Field const& field : schema.fields()) keys.push_back(field.key);
    return keys;
}

Field const* find(Schema const& schema, std::string_view key) {
    auto const& fields = schema.fields();
    auto const at = std::find_if(fields.begin(), fields.end(), [&](Field const& f) { return f.key == key; });
    return at == fields.end() ? nullptr : &*at;
}

/// The full names of all keys below `schema` that end in `key`.
void find_elsewhere(Schema const& schema, std::string const& path, std::string_view key,
                    std::vector<std::string>& places) {
    for (Field const& field : schema.fields()) {
        std::string const name = joined(path, field.key);
        if (field.key == key) places.push_back(name);
        if (auto const* section = std::get_if<Field::Section>(&field.target))
            find_elsewhere(*section->schema, name, key, places);
    }
}

class Reader {
  public:
    Reader(Schema const& root, Findings& findings) : root_(root), findings_(findings) {}

    /// A mapping over the fields of a schema; `path` is empty at the top.
    void read_section(Schema const& schema, std::string const& path, YamlNode const& node) {
        std::unordered_map<Field const*, YamlNode const*> first_keys;
        for (auto const& [key, value] : node.entries) {
            if (findings_.full()) return;
            if (key->kind != YamlNode::Kind::scalar) {
                findings_.add(key->place, fmt::format("a key must be a name, found {}", found(*key)));
                continue;
            }
            Field const* const field = find(schema, key->text);
            if (!field) {
                unknown_key(schema, path, *key);
                continue;
            }
            auto const [first, is_new] = first_keys.emplace(named_by(schema, field), &*key);
            if (is_new)
                read_field(*field, joined(path, key->text), *value);
            else
                refuse_again(path, *key, *first->second);
        }
    }

    void read_field(Field const& field, std::string const& path, YamlNode const& node) {
        std::visit([&](auto const& target) { read(field, target, path, node); }, field.target);
    }

    /// "data.train.0.path": the way through sections and list items, then the value.
    void read_path(Schema const& schema, std::string const& path, std::string_view rest, YamlNode const& node) {
        size_t const dot = rest.find('.');
        YamlNode key;
        key.text = rest.substr(0, dot);
        Field const* const field = find(schema, key.text);
        if (!field) return unknown_key(schema, path, key);
        std::string const name = joined(path, key.text);
        if (dot == std::string_view::npos) return read_field(*field, name, node);
        rest.remove_prefix(dot + 1);
        if (auto const* section = std::get_if<Field::Section>(&field->target)) {
            read_path(*section->schema, name, rest, node);
        } else if (auto const* list = std::get_if<Field::List>(&field->target)) {
            read_item(*list, name, rest, node);
        } else {
            findings_.add(node.place, fmt::format("{} is a value, not a section", name));
        }
    }

  private:
    /// The field that an alias is another name of, or the field itself.
    static Field const* named_by(Schema const& schema, Field const* field) {
        while (field->alias && field != schema.fields().data()) --field;
        return field;
    }
    void refuse_again(std::string const& path, YamlNode const& key, YamlNode const& first) {
        std::string const also = key.text == first.text ? "" : fmt::format(" as {}", shown(first.text));
        findings_.add(key.place, fmt::format("duplicate key {}{}, first given{} on line {}", shown(key.text),
                                             in_section(path), also, first.place.line));
    }

    static std::string in_section(std::string const& path) { return path.empty() ? "" : " in " + path; }

    void unknown_key(Schema const& schema, std::string const& path, YamlNode const& key) {
        std::string advice;
        std::vector<std::string> elsewhere;
        find_elsewhere(root_, "", key.text, elsewhere);
        if (elsewhere.size() == 1) {  // an exact match elsewhere beats a similar key here
            bool const at_top = elsewhere[0] == key.text;
            advice = fmt::format("did you mean \"{}\"{}?", elsewhere[0], at_top ? " at the top level" : "");
        } else if (std::string const guess = nearest(key.text, keys_of(schema)); !guess.empty()) {
            advice = fmt::format("did you mean \"{}\"?", guess);
        } else {
            advice = fmt::format("known are {}", fmt::join(keys_of(schema), ", "));
        }
        findings_.add(key.place, fmt::format("unknown key {}{}; {}", shown(key.text), in_section(path), advice));
    }

    void wrong_type(std::string const& path, YamlNode const& node, std::string const& wanted,
                    std::string const& advice) {
        findings_.add(node.place, fmt::format("{}: expected {}, found {}{}", path, wanted, found(node), advice));
    }

    static bool is_plain(YamlNode const& node) { return node.kind == YamlNode::Kind::scalar && !node.quoted; }

    void read(Field const&, bool* target, std::string const& path, YamlNode const& node) {
        if (is_plain(node) && classify(node.text) == ScalarKind::boolean) {
            *target = node.text == "true";
        } else {
            wrong_type(path, node, "true or false", hint(ScalarKind::boolean, node));
        }
    }

    void read(Field const& field, int64_t* target, std::string const& path, YamlNode const& node) {
        if (node.kind == YamlNode::Kind::scalar && field.takes_word(node.text)) {
            *target = field.word_value;
            return;
        }
        std::string const wanted = field.word.empty() ? "an integer" : fmt::format("an integer or {}", field.word);
        if (!is_plain(node) || classify(node.text) != ScalarKind::integer)
            return wrong_type(path, node, wanted, hint(ScalarKind::integer, node));
        auto const value = to_integer(node.text);
        if (!value) {
            findings_.add(node.place, fmt::format("{}: {:.40} does not fit in 64 bits", path, node.text));
        } else if (in_range(field, path, node, static_cast<double>(*value))) {
            *target = *value;
        }
    }

    void read(Field const& field, double* target, std::string const& path, YamlNode const& node) {
        ScalarKind const kind = is_plain(node) ? classify(node.text) : ScalarKind::text;
        if (kind != ScalarKind::integer && kind != ScalarKind::number)
            return wrong_type(path, node, "a number", hint(ScalarKind::number, node));
        auto const value = to_number(node.text);
        if (!value) {
            findings_.add(node.place,
                          fmt::format("{}: {:.40} is too large or too small for a 64-bit floating-point number", path,
                                      node.text));
        } else if (in_range(field, path, node, *value)) {
            *target = *value;
        }
    }

    void read(Field const&, std::string* target, std::string const& path, YamlNode const& node) {
        bool const is_text =
            node.kind == YamlNode::Kind::scalar && (node.quoted || classify(node.text) == ScalarKind::text);
        if (!is_text) return wrong_type(path, node, "text", hint(ScalarKind::text, node));
        if (node.text.find('\0') != std::string::npos)
            return findings_.add(node.place, fmt::format("{}: text without the character NUL is expected, found {}: no "
                                                         "path can hold it",
                                                         path, shown(node.text)));
        *target = node.text;
    }

    void read(Field const& field, std::vector<int64_t>* target, std::string const& path, YamlNode const& node) {
        if (node.kind != YamlNode::Kind::list)
            return wrong_type(path, node, "a list of integers", "; write it as [1, 2]");
        target->assign(node.items.size(), 0);
        for (size_t i = 0; i < node.items.size() && !findings_.full(); ++i)
            read(field, &(*target)[i], fmt::format("{}.{}", path, i), *node.items[i]);
    }

    void read(Field const& field, std::vector<std::string>* target, std::string const& path, YamlNode const& node) {
        if (node.kind != YamlNode::Kind::list) return wrong_type(path, node, "a list of texts", "; write it as [a, b]");
        target->assign(node.items.size(), "");
        for (size_t i = 0; i < node.items.size() && !findings_.full(); ++i)
            read(field, &(*target)[i], fmt::format("{}.{}", path, i), *node.items[i]);
    }

    void read(Field const&, Field::Choice const& target, std::string const& path, YamlNode const& node) {
        std::string const choices = fmt::format("{}", fmt::join(target.names, ", "));
        if (node.kind != YamlNode::Kind::scalar) return wrong_type(path, node, "one of " + choices, "");
        auto const at = std::find(target.names.begin(), target.names.end(), node.text);
        if (at != target.names.end()) return target.select(static_cast<size_t>(at - target.names.begin()));
        std::string const guess = nearest(node.text, target.names);
        wrong_type(path, node, "one of " + choices, guess.empty() ? "" : fmt::format("; did you mean \"{}\"?", guess));
    }

    void read(Field const&, Field::Section const& target, std::string const& path, YamlNode const& node) {
        if (node.kind == YamlNode::Kind::map) return read_section(*target.schema, path, node);
        if (!target.shorthand || node.kind != YamlNode::Kind::list) {
            std::string const wanted = target.shorthand ? "a section or a list of integers" : "a section of keys";
            return wrong_type(path, node, wanted, "");
        }
        target.reset();
        for (Field const& field : target.schema->fields()) {
            auto const* list = std::get_if<std::vector<int64_t>*>(&field.target);
            if (list && *list == target.shorthand) read(field, *list, path, node);
        }
    }

    void read(Field const&, Field::List const& target, std::string const& path, YamlNode const& node) {
        if (node.kind != YamlNode::Kind::list) return wrong_type(path, node, "a list of sections", "");
        target.clear();
        for (size_t i = 0; i < node.items.size() && !findings_.full(); ++i) {
            Schema const item = target.append();
            read_list_item(item, fmt::format("{}.{}", path, i), *node.items[i]);
        }
    }

    void read_list_item(Schema const& item, std::string const& path, YamlNode const& node) {
        if (node.kind == YamlNode::Kind::map) return read_section(item, path, node);
        wrong_type(path, node, "a section of keys", "");
    }

    void read_item(Field::List const& list, std::string const& path, std::string_view rest, YamlNode const& node) {
        size_t const dot = rest.find('.');
        std::string const number(rest.substr(0, dot));
        int64_t const index = classify(number) == ScalarKind::integer ? to_integer(number).value_or(-1) : -1;
        auto const size = static_cast<int64_t>(list.size());
        if (index < 0) {
            return findings_.add(
                node.place, fmt::format("{0} is a list: expected the index of an item, as in {0}.0, found {1}", path,
                                        shown(number)));
        }
        if (index > size) {
            return findings_.add(node.place, fmt::format("{} has {} item{}: the next new one is {}, found {}", path,
                                                         size, size == 1 ? "" : "s", size, index));
        }
        Schema const item = index == size ? list.append() : list.at(static_cast<size_t>(index));
        std::string const name = joined(path, number);
        if (dot == std::string_view::npos) return read_list_item(item, name, node);
        read_path(item, name, rest.substr(dot + 1), node);
    }

    bool in_range(Field const& field, std::string const& path, YamlNode const& node, double value) {
        if (inside(field.range, value)) return true;
        findings_.add(node.place, fmt::format("{} must be {}, found {}", path, to_string(field.range), node.text));
        return false;
    }

    Schema const& root_;
    Findings& findings_;
};

/// True when the file's text was YAML at all; what its keys say may still be wrong.
bool read_file(Schema const& schema, std::string const& text, Findings& findings) {
    auto const tree = parse_yaml(text, findings);
    if (!tree) return false;
    if (tree->kind == YamlNode::Kind::null)
        findings.add({}, "the file is empty; expected `key: value` lines");
    else
        read_tree(schema, *tree, findings);
    return true;
}

/// Whether YAML would drop a comment or join lines, outside quotes: someone who writes a prompt or a folder's name
/// means all of it.
bool loses_text(std::string_view value) {
    constexpr std::string_view kBefore = " \t[{,:";  // what may stand before a quote that begins
    std::string_view const start = value.substr(std::min(value.find_first_not_of(" \t"), value.size()));
    if (start.starts_with('|') || start.starts_with('>')) return false;  // a block, in which all is text
    bool const joins = !start.starts_with('[') && !start.starts_with('{');
    char quote = 0;
    for (size_t i = 0; i < value.size(); ++i) {
        char const before = i > 0 ? value[i - 1] : ' ';
        if (quote != 0) {
            if (value[i] == '\\' && quote == '"')
                ++i;
            else if (value[i] == quote)
                quote = 0;
        } else if ((value[i] == '"' || value[i] == '\'') && kBefore.find(before) != kBefore.npos) {
            quote = value[i];
        } else if ((value[i] == '\n' && joins) || (value[i] == '#' && (before == ' ' || before == '\t'))) {
            return true;
        }
    }
    return false;
}

void read_override(Schema const& schema, std::string const& text, Findings& findings) {
    size_t const equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
        return findings.add({}, "expected key=value, as in optimizer.lr=1e-3");
    auto const tree = parse_yaml(text.substr(equals + 1), findings);
    if (!tree) return;
    if (loses_text(std::string_view(text).substr(equals + 1)))
        return findings.add({}, "a value with ' #' or a line end must be in quotes, as in 'key=\"a # b\"'");
    Reader(schema, findings).read_path(schema, "", std::string_view(text).substr(0, equals), *tree);
    if (tree->kind == YamlNode::Kind::map && tree->entries.empty() && findings.lines().empty())
        findings.add({}, "an empty section changes nothing; name the keys to change");
}

}  // namespace

void read_tree(Schema const& schema, YamlNode const& tree, Findings& findings) {
    if (tree.kind == YamlNode::Kind::map)
        Reader(schema, findings).read_section(schema, "", tree);
    else
        findings.add(tree.place, fmt::format("expected `key: value` lines at the top, found {}", found(tree)));
}

void read_yaml(Schema const& schema, std::string const& text, std::string const& name,
               std::vector<std::string> const& overrides) {
    Findings in_file(name, Findings::Places::shown);
    bool const is_yaml = read_file(schema, text, in_file);
    std::vector<std::string> lines = in_file.lines();
    for (size_t i = 0; i < overrides.size() && is_yaml; ++i) {
        Findings in_override(fmt::format("command line: '{}'", shortened(overrides[i])), Findings::Places::hidden);
        read_override(schema, overrides[i], in_override);
        std::ranges::copy(in_override.lines(), std::back_inserter(lines));
    }
    if (!lines.empty()) fail(Category::config, "{}", fmt::join(lines, "\n"));
}

}  // namespace perigee
