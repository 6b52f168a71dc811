/* MoBA's kernels for other programs, as plain C: the gate selects each query's blocks, and attention over them runs
 * forward and backward, in bf16 on NVIDIA GPUs of compute capability 8.0 on. The rules are in docs/numerics.md.
 *
 * With CMake:
 *
 *     find_package(perigee REQUIRED)
 *     target_link_libraries(program PRIVATE perigee::moba)
 *
 * Nothing waits for the GPU or allocates: work is queued on the stream, and CUDA graphs can hold it. Any thread may
 * call any function; calls that share scratch memory must share the stream. Results repeat bitwise, except those of a
 * backward that is not deterministic. */
#ifndef PERIGEE_MOBA_H
#define PERIGEE_MOBA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum perigee_moba_status {
    PERIGEE_MOBA_OK = 0,
    PERIGEE_MOBA_REFUSED = 1, /* the shape or an argument; nothing was queued */
    PERIGEE_MOBA_FAILED = 2   /* CUDA's error, or the library's own fault */
};

#define PERIGEE_MOBA_MESSAGE_BYTES 512

typedef struct perigee_moba_shape {
    int64_t tokens;     /* T, of all packed documents, less than 2^30; T x H / G at most 2^26, T x H less than 2^31 */
    int64_t documents;  /* of cu_seqlens, which has one number more; empty ones count; less than 2^30 */
    int64_t heads;      /* H, at most 65535 */
    int64_t kv_heads;   /* G, a divisor of H */
    int64_t head_dim;   /* K: 32, 64, 96 or 128 */
    int64_t block_size; /* B: keys per block */
    int64_t top_k;      /* blocks per query, the local one included: 1 to 64 */
    int force_previous; /* 1: the block before the local one is always selected */
    int per_group;      /* 1: one selection for the heads of a kv head */
    int deterministic;  /* 0: the backward may add in any order: faster, as precise */
} perigee_moba_shape;

typedef struct perigee_moba_sizes {
    size_t scratch_bytes; /* enough for each of the three calls */
    size_t routing_bytes; /* what the forward hands to the backward */
    size_t chosen_count;  /* of int32: T x H x (top_k - 1) */
} perigee_moba_sizes;

/* Pointers into the GPU's memory: tensors aligned to 16 bytes, scratch and routing to 256, cu_seqlens to 4. Row-major
 * and contiguous. */
typedef struct perigee_moba_problem {
    const int32_t* cu_seqlens; /* [documents + 1], from 0 to tokens */
    const void* q;             /* bf16 [T, H, K], after RoPE */
    const void* k;             /* bf16 [T, G, K] */
    const void* v;             /* bf16 [T, G, K]; not read by the gate */
    double scale;              /* of the scores, positive and finite: 1 / sqrt(K) */
    int32_t* chosen; /* [T, H, top_k - 1]: the gate writes block indices inside the document, ascending, then -1 */
    void* routing;   /* may be null: then the backward builds its own */
    void* scratch;
    void* stream; /* a cudaStream_t */
} perigee_moba_problem;

typedef struct perigee_moba_gradients {
    const void* d_o;  /* bf16 [T, H, K] */
    const void* o;    /* bf16 [T, H, K], of the forward */
    const float* lse; /* [T, H], of the forward */
    void* dq;         /* bf16 [T, H, K] */
    void* dk;         /* bf16 [T, G, K] */
    void* dv;         /* bf16 [T, G, K] */
} perigee_moba_gradients;

/* Each returns a perigee_moba_status. `message`, of PERIGEE_MOBA_MESSAGE_BYTES or null, gets the reason of any but OK.
 */

/* The current GPU decides which kernels run, and so the sizes. A shape whose partial results need more than 2 GiB even
 * in the smallest parts is refused. */
int perigee_moba_get_sizes(const perigee_moba_shape* shape, perigee_moba_sizes* sizes, char* message);

/* The gate: writes all of problem->chosen. */
int perigee_moba_select(const perigee_moba_shape* shape, const perigee_moba_problem* problem, char* message);

/* o: bf16 [T, H, K]; lse: [T, H], natural log-sum-exp of the scaled scores. Any selection in problem->chosen serves. */
int perigee_moba_forward(const perigee_moba_shape* shape, const perigee_moba_problem* problem, void* o, float* lse,
                         char* message);

/* Of the same problem as the forward. No gradient flows through the selection. */
int perigee_moba_backward(const perigee_moba_shape* shape, const perigee_moba_problem* problem,
                          const perigee_moba_gradients* gradients, char* message);

#ifdef __cplusplus
}
#endif

#endif
