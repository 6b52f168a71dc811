// What the probe computes, and how it reads the tensors it is given.
#pragma once

#include <string>
#include <vector>

#include "io/tensor_file.h"
#include "model/options.h"

namespace perigee {

struct ProbeRequest {
    std::string in;
    std::string out;
    std::string folder;    ///< model folder
    std::string adapters;  ///< PEFT folder with adapters for it; may be empty
    AttentionOptions attention;
    double scale = 0;  ///< of attention's scores; 0: 1 / sqrt(d)
};

/// In: q, do [T, H, d]; k, v [T, G, d], all float32 or all float64; cu_seqlens [documents + 1], int32 or int64.
/// Out: o, dq [T, H, d]; lse [T, H]; dk, dv [T, G, d]; of selected blocks chosen [T, H, k - 1], int32.
void probe_attention(FileSystem& files, ProbeRequest const& request);

/// In: ids, targets [T], int32; weights [T], float32. Out: logits [T, vocab_size]; loss [1], sum(weight * nll) /
/// sum(weight); its gradient for every parameter, "grad/" + name.
void probe_model(FileSystem& files, ProbeRequest const& request);

/// An input file, with every complaint naming it: Category::data.
class ProbeInput {
  public:
    ProbeInput(FileSystem& files, std::string path)
        : path_(std::move(path)), reader_(open_tensor_file(files, path_, Category::data)) {}

    std::string const& path() const { return path_; }
    TensorFileReader::Info info(std::string const& name) const { return reader_->info(name); }
    void expect(std::string const& name, DType dtype, Shape const& shape) const {
        auto const found = info(name);
        if (found.dtype != dtype || found.shape != shape)
            fail(Category::data, "{}: {} is {} {}, expected {} {}", path_, name, to_string(found.dtype),
                 found.shape.str(), to_string(dtype), shape.str());
    }
    /// A tensor of T's dtype.
    template <class T>
    std::vector<T> values(std::string const& name) const {
        Shape const shape = info(name).shape;
        std::vector<T> x(static_cast<size_t>(shape.size()));
        reader_->read(name, {x.data(), shape});
        return x;
    }

  private:
    std::string path_;
    std::unique_ptr<TensorFileReader> reader_;
};

}  // namespace perigee
