// A file of named arrays (HDF5, serial). Writing goes through a FileSystem; the HDF5 library sees only memory or a
// virtual file driver on top of it. Reading refuses what we never write: external links and storage, virtual layouts,
// filters, soft links.
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
    virtual ~TensorFileWriter() = default;
    virtual void write(std::string const& name, ConstView values, Attributes const& attributes = {}) = 0;
    /// Completes and syncs the file; returns its size and SHA-256 in hexadecimal. Nothing is valid before.
    struct Result {
        int64_t bytes = 0;
        std::string sha256;
    };
    virtual Result finish() = 0;
};
std::unique_ptr<TensorFileWriter> create_tensor_file(FileSystem& files, Path const& path);

class TensorFileReader {
  public:
    virtual ~TensorFileReader() = default;
    struct Info {
        DType dtype;
        Shape shape;
        Attributes attributes;
    };
    virtual std::vector<std::string> names() const = 0;
    virtual Info info(std::string const& name) const = 0;
    /// Whole array into `values` (same dtype and number of elements).
    virtual void read(std::string const& name, TensorView values) const = 0;
    /// Elements [first, first + values.size()) in row-major order.
    virtual void read_range(std::string const& name, int64_t first, TensorView values) const = 0;
};
/// Throws Error of `category` naming the path for anything that is not such a file.
std::unique_ptr<TensorFileReader> open_tensor_file(FileSystem& files, Path const& path, Category category);

}  // namespace perigee
