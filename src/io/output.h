// The file that a command writes for a user: never over what the command reads, and whole or not at all.
#pragma once

#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee {

/// Throws Category::config where write_output() to `output` would replace one of the inputs; those that are not there
/// do not count. `option` is what named the output, as in "--output".
void refuse_replacing(std::vector<Path> const& inputs, Path const& output, std::string const& option);

/// Throws IoError where write_output() could not write to `output`. An existing file keeps its contents.
void check_writable(FileSystem& files, Path const& output);

/// FileSystem::replace_text() on the file that links lead to; a device is written to.
void write_output(FileSystem& files, Path const& output, std::string const& text);

}  // namespace perigee
