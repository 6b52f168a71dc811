#include "kernels/common/flat.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/flat/flat.h"

namespace perigee::kernels {

namespace {

template <class T>
struct Add {
    T* accumulated;
    T const* x;
    template <int N>
    __device__ __forceinline__ void run(int64_t i) const {
        float sum[N], other[N];
        load(sum, accumulated + i);
        load(other, x + i);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += other[j];
        store(accumulated + i, sum);
    }
};

template <class T>
struct SumParts {
    T* sum;
    T const* parts;
    int64_t number, count;
    template <int N>
    __device__ __forceinline__ void run(int64_t i) const {
        float total[N], other[N];
        load(total, parts + i);
        for (int64_t part = 1; part < number; ++part) {
            load(other, parts + part * count + i);
#pragma unroll
            for (int j = 0; j < N; ++j) total[j] += other[j];
        }
        store(sum + i, total);
    }
};

template <class T>
struct Scale {
    T* x;
    float factor;
    template <int N>
    __device__ __forceinline__ void run(int64_t i) const {
        float values[N];
        load(values, x + i);
#pragma unroll
        for (int j = 0; j < N; ++j) values[j] *= factor;
        store(x + i, values);
    }
};

template <class To, class From>
struct Cast {
    To* to;
    From const* from;
    template <int N>
    __device__ __forceinline__ void run(int64_t i) const {
        float values[N];
        load(values, from + i);
        store(to + i, values);
    }
};

template <class T>
void add_of(T* accumulated, T const* x, int64_t count, cudaStream_t stream) {
    for_each(Add<T>{accumulated, x}, count, in_runs_of_eight(0, {accumulated, x}), "add", stream);
}
template <class T>
void sum_of_parts(T* sum, T const* parts, int64_t number, int64_t count, cudaStream_t stream) {
    for_each(SumParts<T>{sum, parts, number, count}, count, in_runs_of_eight(count, {sum, parts}), "sum_parts", stream);
}
template <class T>
void scale_of(T* x, float factor, int64_t count, cudaStream_t stream) {
    for_each(Scale<T>{x, factor}, count, in_runs_of_eight(0, {x}), "scale", stream);
}
template <class To, class From>
void cast_of(To* to, From const* from, int64_t count, cudaStream_t stream) {
    for_each(Cast<To, From>{to, from}, count, in_runs_of_eight(0, {to, from}), "cast", stream);
}

}  // namespace

void add(float* accumulated, float const* x, int64_t count, cudaStream_t stream) {
    add_of(accumulated, x, count, stream);
}
void add(bf16* accumulated, bf16 const* x, int64_t count, cudaStream_t stream) {
    add_of(accumulated, x, count, stream);
}
void sum_parts(float* sum, float const* parts, int64_t number, int64_t count, cudaStream_t stream) {
    sum_of_parts(sum, parts, number, count, stream);
}
void sum_parts(bf16* sum, bf16 const* parts, int64_t number, int64_t count, cudaStream_t stream) {
    sum_of_parts(sum, parts, number, count, stream);
}
void scale(float* x, float factor, int64_t count, cudaStream_t stream) { scale_of(x, factor, count, stream); }
void scale(bf16* x, float factor, int64_t count, cudaStream_t stream) { scale_of(x, factor, count, stream); }
void cast(bf16* to, float const* from, int64_t count, cudaStream_t stream) { cast_of(to, from, count, stream); }
void cast(float* to, bf16 const* from, int64_t count, cudaStream_t stream) { cast_of(to, from, count, stream); }

}  // namespace perigee::kernels
