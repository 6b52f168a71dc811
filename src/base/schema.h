// The vocabulary in which an option struct describes its keys: name, type, range, help. One description drives YAML
// parsing, range checks, `--help`, the reference page and the resolved config saved with each run.
// An owner writes `void describe(Schema&, ItsOptions&)` next to its struct; the values found there are the defaults.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace perigee {

/// Closed interval; `strict_low` excludes the lower end.
struct Range {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    bool strict_low = false;
};
inline Range at_least(double low) { return {.low = low}; }
inline Range above(double low) { return {.low = low, .strict_low = true}; }
inline Range between(double low, double high) { return {.low = low, .high = high}; }

/// Upper ends of integer keys, such that products of any few of them fit in 64 bits.
inline constexpr double kMostSteps = 1e12;
inline constexpr double kMostRanks = 1 << 20;
inline constexpr double kMostLayers = 1 << 12;
inline constexpr int64_t kMostTokens = int64_t{1} << 24;  ///< of a sample, and of a micro-batch

class Schema;

/// One key. Targets point into the described struct, which must outlive the schema.
struct Field {
    /// A choice shows as its name; `select` and `selected` translate to and from the index into `choices`.
    struct Choice {
        std::vector<std::string> names;
        std::function<void(size_t)> select;
        std::function<size_t()> selected;
    };
    /// A list of sections: `append` makes one more default element and returns its schema.
    struct List {
        std::function<void()> clear;
        std::function<Schema()> append;
        std::function<size_t()> size;
        std::function<Schema(size_t)> at;
        std::function<Schema()> example;  ///< schema of a default element, for the reference page
    };
    /// A section; `shorthand`, where set, points to one of its fields and also accepts that field's list in place of
    /// the whole section, whose other fields `reset` returns to their defaults.
    struct Section {
        std::shared_ptr<Schema> schema;
        std::vector<int64_t>* shorthand = nullptr;
        std::function<void()> reset;
    };
    using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                                std::vector<std::string>*, Choice, Section, List>;

    std::string key;
    std::string help;
    Range range;
    Target target;
    /// A run resumed with another value of this option, or of one in this section, trains another model. What a
    /// checkpoint is compared by, and what eval and generate take from it, follows from this alone.
    bool defines_model = false;
    /// Another name of a key: read, and never written.
    bool alias = false;
    /// Of an integer: the word that stands for a value outside the range; empty: none.
    std::string word = {};
    int64_t word_value = 0;

    bool takes_word(std::string_view text) const { return !word.empty() && text == word; }
    bool has_word() const {
        auto const* const integer = std::get_if<int64_t*>(&target);
        return integer != nullptr && !word.empty() && **integer == word_value;
    }
};

class Schema {
  public:
    Schema& add(std::string key, bool& value, std::string help) { return push(key, help, {}, &value); }
    Schema& add(std::string key, int64_t& value, Range range, std::string help) {
        return push(key, help, range, &value);
    }
    Schema& add(std::string key, double& value, Range range, std::string help) {
        return push(key, help, range, &value);
    }
    Schema& add(std::string key, std::string& value, std::string help) { return push(key, help, {}, &value); }
    Schema& add(std::string key, std::vector<int64_t>& value, Range range, std::string help) {
        return push(key, help, range, &value);
    }
    Schema& add(std::string key, std::vector<std::string>& value, std::string help) {
        return push(key, help, {}, &value);
    }

    /// Another name for the key of `value`, the one added last before it and its other aliases, with names of its own
    /// for some of its choices.
    template <class Enum>
    Schema& alias(std::string key, Enum& value, std::vector<std::pair<std::string, Enum>> names) {
        choice(std::move(key), value, std::move(names), "another name of `" + fields_.back().key + "`");
        fields_.back().alias = true;
        return *this;
    }

    template <class Enum>
    Schema& choice(std::string key, Enum& value, std::vector<std::pair<std::string, Enum>> names, std::string help) {
        Field::Choice target;
        for (auto const& [name, unused] : names) target.names.push_back(name);
        target.select = [&value, names](size_t i) { value = names.at(i).second; };
        target.selected = [&value, names] {
            size_t i = 0;
            while (i < names.size() && names[i].second != value) ++i;
            return i;
        };
        return push(key, help, {}, std::move(target));
    }

    /// A nested section, described by the `describe` of its struct.
    template <class Options>
    Schema& section(std::string key, Options& options, std::string help, std::vector<int64_t>* shorthand = nullptr) {
        auto nested = std::make_shared<Schema>();
        describe(*nested, options);
        auto reset = [&options] { options = Options{}; };
        return push(key, help, {}, Field::Section{std::move(nested), shorthand, std::move(reset)});
    }

    /// Schema of the section added last.
    Schema& inside() { return *std::get<Field::Section>(fields_.back().target).schema; }

    /// A list of sections, each described by the `describe` of the element's struct.
    template <class Element>
    Schema& list(std::string key, std::vector<Element>& elements, std::string help) {
        auto schema_of = [](Element& element) {
            Schema schema;
            describe(schema, element);
            return schema;
        };
        Field::List target;
        target.clear = [&elements] { elements.clear(); };
        target.append = [&elements, schema_of] { return schema_of(elements.emplace_back()); };
        target.size = [&elements] { return elements.size(); };
        target.at = [&elements, schema_of](size_t i) { return schema_of(elements.at(i)); };
        auto sample = std::make_shared<Element>();
        target.example = [sample, schema_of] { return schema_of(*sample); };
        return push(key, help, {}, std::move(target));
    }

    /// Marks the field added last.
    Schema& defines_model() {
        fields_.back().defines_model = true;
        return *this;
    }

    /// The integer added last may also be this word, which stands for a value outside its range.
    Schema& word(std::string word, int64_t value) {
        fields_.back().word = std::move(word);
        fields_.back().word_value = value;
        return *this;
    }

    std::vector<Field> const& fields() const { return fields_; }

  private:
    Schema& push(std::string& key, std::string& help, Range range, Field::Target target) {
        fields_.push_back({std::move(key), std::move(help), range, std::move(target)});
        return *this;
    }
    std::vector<Field> fields_;
};

}  // namespace perigee
