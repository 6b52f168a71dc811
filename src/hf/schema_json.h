// Options as JSON objects, by the descriptions that also drive their YAML.
#pragma once

#include <string>

#include "base/error.h"
#include "base/schema.h"

namespace perigee {

/// Reads a JSON object over the values the schema points to; null leaves a value as it is. Throws Category::config
/// naming `where` and the key for keys the schema does not have, other types and values out of range.
void read_json(Schema const& schema, std::string const& text, std::string const& where);

/// Every key with its present value, in order.
std::string write_json(Schema const& schema);

}  // namespace perigee
