// A file of named arrays (HDF5, serial). Writing goes through a FileSystem by way of a virtual file driver, without a
// copy of the arrays; reading uses the HDF5 library only to learn where the arrays are, and refuses what we never
// write: soft and external links, external storage, virtual, chunked and compact layouts, filters, other types.
// A '/' in a name makes a group, so that `h5ls -r` shows a tree. All functions may be called from several threads.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/file_system.h"
#include "tensor/tensor.h"

namespace perigee {

/// Attributes are integers or lists of integers, by name.
using Attributes = std::map<std::string, std::vector<int64_t>>;

class TensorFileWriter {
  public:
    /// Leaves an unfinished file incomplete and unsynced.
    virtual ~TensorFileWriter() = default;
    /// Category::internal for a name used twice or one HDF5 cannot hold ("", "a//b", "../a").
    virtual void write(std::string const& name, ConstView values, Attributes const& attributes = {}) = 0;
    /// Completes and syncs the file; returns its size and SHA-256 in hexadecimal. Nothing is valid before.
    struct Result {
        int64_t bytes = 0;
        std::string sha256;
    };
    virtual Result finish() = 0;
};
/// Failures of the file system pass through as they are (IoError).
std::unique_ptr<TensorFileWriter> create_tensor_file(FileSystem& files, Path const& path);

class TensorFileReader {
  public:
    virtual ~TensorFileReader() = default;
    struct Info {
        DType dtype;
        Shape shape;
        Attributes attributes;
    };
    virtual std::vector<std::string> names() const = 0;  ///< sorted
    /// Throws Error of the reader's category for a name the file does not hold; so do the reads.
    virtual Info info(std::string const& name) const = 0;
    /// Whole array into `values` (same dtype and number of elements).
    virtual void read(std::string const& name, TensorView values) const = 0;
    /// Elements [first, first + values.size()) in row-major order.
    virtual void read_range(std::string const& name, int64_t first, TensorView values) const = 0;
};
/// Throws Error of `category` naming the path for anything that is not such a file.
std::unique_ptr<TensorFileReader> open_tensor_file(FileSystem& files, Path const& path, Category category);

/// SHA-256 of a file's bytes in hexadecimal, read in pieces of bounded size.
std::string sha256_of_file(FileSystem& files, Path const& path);

}  // namespace perigee
