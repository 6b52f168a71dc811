// Full causal attention by cuDNN over packed documents, of which none ever sees another. Documents of one length are a
// batch, with a plan of its own for the lengths in dense_documents.h; where others begin, ragged offsets tell cuDNN,
// and one plan serves every packing of up to a number of documents and tokens. Which of the two is a function of the
// lengths alone, so that a run that resumes computes the same bits. The only translation unit that includes
// cudnn_frontend.h is dense_attention.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "ops/attention_check.h"
#include "ops/cuda/staging.h"
#include "ops/ops.h"

namespace perigee {

class DenseAttention {
  public:
    /// As check_attention.
    using Check = std::function<double(Device&, AttentionShape const&, AttentionPasses const&, std::string const&)>;
    /// `scratch(bytes)` gives device memory for the operation that runs. Each plan of cuDNN's passes `check` before its
    /// first use; that of a batch, whose shape is fixed, with its kernel in a small batch. A batch that cuDNN refuses
    /// or that fails the check is computed by the plan with offsets, and a warning says so.
    DenseAttention(CudaDevice& device, Staging& staging, std::function<void*(size_t)> scratch,
                   Check check = check_attention);
    ~DenseAttention();

    /// Ops::attention_forward and attention_backward for what attention_backend() gives to cuDNN. Throws
    /// UnusableAttention where cuDNN refuses the plan with offsets, or the check finds its results wrong. Where CUDA or
    /// a run of cuDNN's kernels fails, in a check as elsewhere, that is the error.
    void forward(AttentionForward const& args);
    void backward(AttentionBackward const& args);

    /// What the tables on the device, which cuDNN reads the documents from, are made of; makes them so again; and where
    /// they lie, with room for how many documents.
    std::vector<int64_t> const& tables() const;
    void restore(std::vector<int64_t> const& tables);
    std::pair<void const*, int64_t> tables_place() const;

    /// "cuDNN 9.14.0, frontend 1.32.0"
    static std::string version();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace perigee
