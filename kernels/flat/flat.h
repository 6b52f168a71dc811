// The small operations on flat ranges, as Ops defines them: sums, scaling, casts, norms, random numbers, runs of rows,
// and the tables of RoPE. Reductions are made in fp64, in a fixed order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"
#include "base/philox.h"
#include "tensor/tensor_part.h"

namespace perigee::kernels {

/// accumulated[i] += x[i], in fp32.
void add(float* accumulated, float const* x, int64_t count, cudaStream_t stream);
void add(bf16* accumulated, bf16 const* x, int64_t count, cudaStream_t stream);

/// sum[i] = parts[i] + parts[count + i] + ..., of as many parts one after the other, in that order: added in fp32,
/// rounded once.
void sum_parts(float* sum, float const* parts, int64_t number, int64_t count, cudaStream_t stream);
void sum_parts(bf16* sum, bf16 const* parts, int64_t number, int64_t count, cudaStream_t stream);

/// x[i] *= factor.
void scale(float* x, float factor, int64_t count, cudaStream_t stream);
void scale(bf16* x, float factor, int64_t count, cudaStream_t stream);

void cast(bf16* to, float const* from, int64_t count, cudaStream_t stream);  ///< to the nearest, ties to even
void cast(float* to, bf16 const* from, int64_t count, cudaStream_t stream);

/// `scratch` of these functions: bytes of sum_scratch().
size_t sum_scratch();
/// *sum += the sum of x[i]^2.
void squared_norm(double* sum, float const* x, int64_t count, void* scratch, cudaStream_t stream);
void squared_norm(double* sum, bf16 const* x, int64_t count, void* scratch, cudaStream_t stream);
/// *hash += the sum of hash_of(i, bits of x[i]), see hash.h.
void hash_bits(uint64_t* hash, float const* x, int64_t count, cudaStream_t stream);
void hash_bits(uint64_t* hash, bf16 const* x, int64_t count, cudaStream_t stream);
/// *sum += the sum of values[i] * weights[i].
void weighted_sum(double* sum, float const* values, float const* weights, int64_t count, void* scratch,
                  cudaStream_t stream);

/// Runs of bytes: run i from `from` + i * from_stride to `to` + i * to_stride.
struct CopyRows {
    void* to;
    int64_t to_stride;
    void const* from;
    int64_t from_stride;
    int64_t rows;
    int64_t width;
};
void copy_rows(CopyRows const& args, cudaStream_t stream);

/// Each of `matrices` from [rows, columns] to [columns, rows].
struct Transpose {
    float* to;
    float const* from;
    int64_t matrices;
    int64_t rows;
    int64_t columns;
};
void transpose(Transpose const& args, cudaStream_t stream);

/// Element i is random.normal(part.index(i)) * stddev, computed in fp64.
struct FillNormal {
    Philox random;
    double stddev;
    TensorPart part;
    int64_t count;
};
void fill_normal(float* x, FillNormal const& args, cudaStream_t stream);
void fill_normal(bf16* x, FillNormal const& args, cudaStream_t stream);

/// As Ops::round_stochastically.
struct StochasticRounding {
    bf16* to;
    float const* from;
    Philox random;
    TensorPart part;
    int64_t count;
};
void round_stochastically(StochasticRounding const& args, cudaStream_t stream);

/// As Ops::dropout: kept elements are multiplied by `factor`. y may alias x.
struct Dropout {
    bf16* y;
    bf16 const* x;
    uint32_t threshold;
    float factor;
    Philox random;
    TensorPart part;
    int64_t count;
};
void dropout(Dropout const& args, cudaStream_t stream);

/// cos and sin [T, R] of positions[t] * inverse_frequencies[r], times `magnitude`, computed in fp64.
struct RopeTable {
    float* cos;
    float* sin;
    int32_t const* positions;           ///< [T]
    double const* inverse_frequencies;  ///< [R], on the device
    int64_t tokens;
    int64_t frequencies;
    double magnitude;
};
void rope_table(RopeTable const& args, cudaStream_t stream);

}  // namespace perigee::kernels
