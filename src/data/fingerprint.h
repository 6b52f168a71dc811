// What identifies the contents of data sets, cheaply: sizes, and a hash of the files, or of samples of large ones.
#pragma once

#include <map>
#include <string>

#include "data/options.h"
#include "io/file_system.h"

namespace perigee {

/// By place in the options ("train.0", "validation.1"): a text that differs where the files' contents do, such as
/// "12345 bytes, 0123456789abcdef". Files of up to 64 MiB are hashed whole, larger ones in 256 pieces spread over
/// them. Empty for made-up data. Throws IoError where a file cannot be read.
std::map<std::string, std::string> fingerprints(DataOptions const& options, FileSystem& files);

}  // namespace perigee
