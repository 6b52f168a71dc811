// One .safetensors file: u64 length of the header, little endian; the header, a JSON object from tensor names to dtype,
// shape and byte range; the values, end to end. Source: https://github.com/huggingface/safetensors#format
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hf/element_type.h"
#include "io/file_system.h"
#include "tensor/tensor.h"

namespace perigee {

/// Reader. Everything is checked when it opens: ranges cover the values without gap or overlap, sizes fit shapes and
/// types, nothing is larger than the file. Errors are Category::checkpoint and name file and tensor.
class SafetensorsFile {
  public:
    struct Tensor {
        std::string dtype;  ///< as the file says it; the reader knows sizes of types it cannot convert
        Shape shape;
        int64_t offset = 0;  ///< in the file
        int64_t bytes = 0;
    };

    SafetensorsFile(FileSystem& files, Path path);

    Path const& path() const { return path_; }
    std::map<std::string, Tensor> const& tensors() const { return tensors_; }
    /// Elements [first, first + values.size()) of a tensor of `type`, widened.
    void read(Tensor const& tensor, ElementType type, int64_t first, std::span<float> values) const;

  private:
    void parse(std::string const& header, int64_t values_begin, int64_t values_bytes);

    Path path_;
    std::unique_ptr<ReadableFile> file_;
    std::map<std::string, Tensor> tensors_;
};

/// Writer of tensors whose names, types and shapes are known from the start. Values are stored in order of type (larger
/// elements first), then name, as Hugging Face's own writer does; they may be given in any order.
class SafetensorsWriter {
  public:
    struct Tensor {
        std::string name;
        ElementType type;
        Shape shape;
    };
    SafetensorsWriter(FileSystem& files, Path path, std::vector<Tensor> tensors);

    int64_t bytes() const { return bytes_; }  ///< of the finished file
    /// Elements [first, first + values.size()) in row-major order. Category::checkpoint for a finite value that the
    /// type cannot hold.
    void write(std::string const& name, int64_t first, std::span<float const> values);
    void finish();  ///< syncs

  private:
    struct Place {
        ElementType type;
        int64_t offset;
    };
    Path path_;
    std::unique_ptr<WritableFile> file_;
    std::map<std::string, Place> places_;
    int64_t bytes_ = 0, written_ = 0;
    std::vector<std::byte> buffer_;
};

}  // namespace perigee
