// YAML to and from whatever a Schema describes. config.h applies these to the options of a run; tests apply them to
// structs of their own.
#pragma once

#include <string>
#include <vector>

#include "base/schema.h"
#include "config/config.h"
#include "config/yaml_tree.h"

namespace perigee {

/// Reads `text` over the values the schema points to, then the overrides ("a.b=value", list items by index:
/// "data.train.0.path=x") in order, under the same rules. Throws Category::config with one line per problem, those of
/// the file first, by place; the values are then partly read and not to be used. `name` stands for the file.
void read_yaml(Schema const& schema, std::string const& text, std::string const& name,
               std::vector<std::string> const& overrides);

/// The same from a part of a tree, which must be a mapping; problems go to `findings`.
void read_tree(Schema const& schema, YamlNode const& tree, Findings& findings);

/// Every key with its present value; read_yaml() of it gives the same values.
std::string write_yaml(Schema const& schema);

/// Every key as Markdown, a table per section: type, present value as default, range or choices, meaning.
std::string write_reference(Schema const& schema);

/// Every key that holds a value.
std::vector<ConfigKey> list_keys(Schema const& schema);

}  // namespace perigee
