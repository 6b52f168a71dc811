// The weights of a Hugging Face folder: model.safetensors, or the files that model.safetensors.index.json names, as one
// set of tensors. Trusts nothing; errors are Category::checkpoint and name file and tensor.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "hf/safetensors.h"
#include "parallel/param_spec.h"

namespace perigee {

inline constexpr char kWeightsName[] = "model.safetensors";
inline constexpr char kIndexName[] = "model.safetensors.index.json";

class HfWeights {
  public:
    /// Reads the headers, and no values.
    HfWeights(FileSystem& files, Path const& folder);
    /// Reads one file only.
    HfWeights(FileSystem& files, Path const& folder, std::string const& name);

    Path const& folder() const { return folder_; }
    std::vector<Path> files() const;  ///< that hold the weights
    std::map<std::string, Shape> shapes() const;
    std::string const& dtype(std::string const& name) const { return find(name).tensor->dtype; }
    /// The type that holds every value of the tensors `specs` names.
    ElementType type(std::span<ParamSpec const> specs) const;
    /// The tensors are those of `specs` with their shapes, in types this program converts; what else the folder holds
    /// is known to be of no use to the model. An `lm_head.weight` beside tied embeddings must be equal to them.
    void check(std::span<ParamSpec const> specs) const;
    /// The elements of `shard`, in its order, reading nothing else. check() has passed.
    void read(std::string const& name, Shard const& shard, std::span<float> values) const;

  private:
    struct Place {
        size_t file;
        SafetensorsFile::Tensor const* tensor;
    };
    void add(FileSystem& files, std::string const& name);
    void read_index(FileSystem& files);
    void find_places();
    Place const& find(std::string const& name) const;
    ElementType type(std::string const& name) const;
    void check_tied() const;

    Path folder_;
    std::vector<SafetensorsFile> files_;
    std::map<std::string, Place> places_;
};

}  // namespace perigee
