#include "io/output.h"

#include <span>

#include "base/error.h"

namespace perigee {
namespace {

/// With symbolic links resolved; what does not exist stays as it is written.
Path target(Path const& path) {
    std::error_code unknown;
    Path const found = std::filesystem::weakly_canonical(path, unknown);
    return unknown ? path : found;
}

/// Whether a new file takes this place; a device stays.
bool is_replaced(Path const& written) {
    std::error_code missing;
    auto const type = std::filesystem::status(written, missing).type();
    return type == std::filesystem::file_type::not_found || type == std::filesystem::file_type::regular;
}

}  // namespace

void refuse_replacing(std::vector<Path> const& inputs, Path const& output, std::string const& option) {
    Path const written = target(output);
    std::error_code missing;  // no file is the same as one that is not there
    for (Path const& input : inputs)
        if (std::filesystem::is_regular_file(input, missing) && std::filesystem::equivalent(input, written, missing))
            fail(Category::config, "{} ({}): writing it would replace {}, which this command reads", option,
                 output.string(), input.string());
}

void check_writable(FileSystem& files, Path const& output) {
    Path const written = target(output);
    Path const opened = is_replaced(written) ? FileSystem::temporary_of(written) : written;
    files.create(opened);
    if (opened != written) files.remove_all(opened);
}

void write_output(FileSystem& files, Path const& output, std::string const& text) {
    Path const written = target(output);
    if (is_replaced(written))
        files.replace_text(written, text);
    else
        files.create(written)->write_at(0, std::as_bytes(std::span(text)));
}

}  // namespace perigee
