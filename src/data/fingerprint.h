// What identifies the contents of data sets, cheaply: sizes, and a hash of the files, or of samples of large ones.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/options.h"
#include "io/file_system.h"

namespace perigee {

/// Of one or several files together, such as "12345 bytes, 0123456789abcdef". Of a file with more than four
/// times `pieces` times 64 KiB, as many pieces of 64 KiB are hashed, spread over it; of a smaller one all. Throws
/// IoError where a file cannot be read.
std::string fingerprint(std::vector<Path> const& paths, FileSystem& files, int64_t pieces = 256);

/// By place in the options ("train.0", "validation.1"): fingerprint() of a data set's files. Empty for made-up data.
std::map<std::string, std::string> fingerprints(DataOptions const& options, FileSystem& files);

}  // namespace perigee
