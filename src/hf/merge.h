// All weights of a model whose checkpoint holds only a part of them. The others come from the base model, or are drawn
// again from the run's seed, and adapters are merged into the weights.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "hf/base_fingerprint.h"
#include "hf/weights.h"
#include "model/options.h"
#include "ops/ops.h"

namespace perigee {

class MergedWeights {
  public:
    /// `base` is a Hugging Face folder or a checkpoint. Without one, weights that the checkpoint does not have are the
    /// initial ones of its seed.
    MergedWeights(FileSystem& files, Checkpoint const& checkpoint, ModelOptions const& model, Path const& base);

    /// Reads whole tensors, by Hugging Face name, as fp32.
    void read(std::vector<StoredTensor> const& parts);
    /// Call after every tensor has been read once. Throws Category::checkpoint if the checkpoint was trained with
    /// another base, Category::config if none was given and the seed does not give the weights.
    void check_base() const;

  private:
    void read_base(StoredTensor const& part);
    void draw(StoredTensor const& part);
    void add_adapter(StoredTensor const& part, std::string const& layer) const;

    Checkpoint const& checkpoint_;
    ModelOptions model_;
    Path base_;
    std::unique_ptr<HfWeights const> folder_;
    std::unique_ptr<Checkpoint const> base_checkpoint_;
    std::unique_ptr<Device> host_;  ///< this and the next: to draw weights with, or null
    std::unique_ptr<Ops> ops_;
    BaseFingerprint fingerprint_;
};

}  // namespace perigee
