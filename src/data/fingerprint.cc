#include "data/fingerprint.h"

#include <algorithm>
#include <vector>

#include "io/sha256.h"

namespace perigee {

namespace {

constexpr int64_t kHashedBytes = int64_t{64} << 10;

/// Adds a file's size and contents; returns the size.
int64_t add(Sha256& hash, FileSystem& files, Path const& path, int64_t most_pieces) {
    auto const file = files.open(path);
    int64_t const size = file->size();
    hash.update(std::as_bytes(std::span(&size, 1)));
    bool const whole = size <= 4 * most_pieces * kHashedBytes;
    int64_t const pieces = whole ? (size + kHashedBytes - 1) / kHashedBytes : most_pieces;
    std::vector<std::byte> buffer(static_cast<size_t>(kHashedBytes));
    for (int64_t i = 0; i < pieces; ++i) {
        // Of a large file the first and the last piece are among them.
        int64_t const at = whole ? i * kHashedBytes : (size - kHashedBytes) / (most_pieces - 1) * i;
        std::span const piece = std::span(buffer).first(static_cast<size_t>(std::min(kHashedBytes, size - at)));
        file->read_at(at, piece);
        hash.update(piece);
    }
    return size;
}

std::string fingerprint(std::string const& prefix, FileSystem& files) {
    std::vector<Path> paths;
    for (char const* extension : {".idx", ".bin", ".mask", ".weights"})
        if (Path const path = prefix + extension; files.exists(path)) paths.push_back(path);
    return fingerprint(paths, files);
}

}  // namespace

std::string fingerprint(std::vector<Path> const& paths, FileSystem& files, int64_t pieces) {
    Sha256 hash;
    int64_t bytes = 0;
    for (Path const& path : paths) bytes += add(hash, files, path, pieces);
    return fmt::format("{} bytes, {:.16}", bytes, hash.finish());
}

std::map<std::string, std::string> fingerprints(DataOptions const& options, FileSystem& files) {
    std::map<std::string, std::string> found;
    if (options.mock_data) return found;
    for (size_t i = 0; i < options.train.size(); ++i)
        found[fmt::format("train.{}", i)] = fingerprint(options.train[i].path, files);
    for (size_t i = 0; i < options.validation.size(); ++i)
        found[fmt::format("validation.{}", i)] = fingerprint(options.validation[i].path, files);
    return found;
}

}  // namespace perigee
