#include "ops/cuda/dense_attention.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kernels/flat/flat.h"
#include "ops/cuda/dense_documents.h"
#include "ops/gpu_attention.h"

namespace perigee {

namespace {

namespace fe = cudnn_frontend;

/// Names of tensors towards cuDNN.
enum Uid : int64_t {
    kQ = 1,
    kK,
    kV,
    kO,
    kStats,
    kGradO,
    kGradQ,
    kGradK,
    kGradV,
    kLengths,
    kQueryOffsets,
    kKeyOffsets,
    kStatsOffsets
};

/// What a plan is made for: so many documents of so many tokens each if they are `equal`, else up to so many documents
/// of up to so many tokens in all.
struct Key {
    bool backward, equal;
    int64_t documents, tokens, heads, kv_heads, head_dim;
    float scale;
    auto operator<=>(Key const&) const = default;
};

/// One of cuDNN's kernels: an engine and its settings.
using Kernel = std::pair<int64_t, std::map<fe::KnobType_t, int64_t>>;

struct Plan {
    fe::graph::Graph graph = {};
    int64_t index = 0;  ///< of the candidate that was built
    int64_t workspace = 0;
};

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Builds the graph of one direction. Logical shapes are [documents, heads, tokens, head_dim] over the packed [T,
/// heads, head_dim]. Equal documents lie at equal strides; another begins where its ragged offset says.
class PlanBuilder {
  public:
    PlanBuilder(fe::graph::Graph& graph, Key const& key) : graph_(graph), key_(key) {
        if (key.equal) return;
        lengths_ = column("lengths", kLengths, key.documents, fe::DataType_t::INT32);
        query_offsets_ = column("query offsets", kQueryOffsets, key.documents + 1, fe::DataType_t::INT64);
        key_offsets_ = column("key offsets", kKeyOffsets, key.documents + 1, fe::DataType_t::INT64);
        stats_offsets_ = column("stats offsets", kStatsOffsets, key.documents + 1, fe::DataType_t::INT64);
    }

    void forward() {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
        set_common(options);
        auto [o, stats] =
            graph_.sdpa(heads("q", kQ, key_.heads, query_offsets_), heads("k", kK, key_.kv_heads, key_offsets_),
                        heads("v", kV, key_.kv_heads, key_offsets_), options);
        output(o, kO, key_.heads, query_offsets_);
        stats->set_output(true)
            .set_uid(kStats)
            .set_data_type(fe::DataType_t::FLOAT)
            .set_dim(stats_dim())
            .set_stride(stats_stride())
            .set_ragged_offset(stats_offsets_);
    }

    void backward() {
        auto options = fe::graph::SDPA_backward_attributes().set_name("attention backward");
        set_common(options);
        Tensor const stats = graph_.tensor(fe::graph::Tensor_attributes()
                                               .set_name("stats")
                                               .set_uid(kStats)
                                               .set_data_type(fe::DataType_t::FLOAT)
                                               .set_dim(stats_dim())
                                               .set_stride(stats_stride())
                                               .set_ragged_offset(stats_offsets_));
        auto [dq, dk, dv] = graph_.sdpa_backward(
            heads("q", kQ, key_.heads, query_offsets_), heads("k", kK, key_.kv_heads, key_offsets_),
            heads("v", kV, key_.kv_heads, key_offsets_), heads("o", kO, key_.heads, query_offsets_),
            heads("do", kGradO, key_.heads, query_offsets_), stats, options);
        output(dq, kGradQ, key_.heads, query_offsets_);
        output(dk, kGradK, key_.kv_heads, key_offsets_);
        output(dv, kGradV, key_.kv_heads, key_offsets_);
    }

  private:
    void set_common(auto& options) const {
        options.set_attn_scale(key_.scale).set_causal_mask(true);
        if (key_.equal) return;
        options.set_padding_mask(true)
            .set_seq_len_q(lengths_)
            .set_seq_len_kv(lengths_)
            .set_max_total_seq_len_q(key_.tokens)
            .set_max_total_seq_len_kv(key_.tokens);
    }
    Tensor column(char const* name, Uid uid, int64_t rows, fe::DataType_t type) {
        return graph_.tensor(fe::graph::Tensor_attributes()
                                 .set_name(name)
                                 .set_uid(uid)
                                 .set_data_type(type)
                                 .set_dim({rows, 1, 1, 1})
                                 .set_stride({1, 1, 1, 1}));
    }
    std::vector<int64_t> dim(int64_t heads) const { return {key_.documents, heads, key_.tokens, key_.head_dim}; }
    std::vector<int64_t> stride(int64_t heads) const {
        return {key_.tokens * heads * key_.head_dim, key_.head_dim, heads * key_.head_dim, 1};
    }
    std::vector<int64_t> stats_dim() const { return {key_.documents, key_.heads, key_.tokens, 1}; }
    /// Those of lse_TH; but cuDNN's backward of equal documents wants them as [documents, heads, tokens].
    std::vector<int64_t> stats_stride() const {
        if (key_.equal && key_.backward) return {key_.heads * key_.tokens, key_.tokens, 1, 1};
        return {key_.tokens * key_.heads, 1, key_.heads, 1};
    }
    Tensor heads(char const* name, Uid uid, int64_t heads, Tensor const& offsets) {
        return graph_.tensor(fe::graph::Tensor_attributes()
                                 .set_name(name)
                                 .set_uid(uid)
                                 .set_dim(dim(heads))
                                 .set_stride(stride(heads))
                                 .set_ragged_offset(offsets));
    }
    void output(Tensor const& tensor, Uid uid, int64_t heads, Tensor const& offsets) {
        tensor->set_output(true).set_uid(uid).set_dim(dim(heads)).set_stride(stride(heads)).set_ragged_offset(offsets);
    }

    fe::graph::Graph& graph_;
    Key const& key_;
    Tensor lengths_, query_offsets_, key_offsets_, stats_offsets_;
};

/// So few plans are ever built: 0.5 s each.
int64_t capacity(int64_t wanted, int64_t least) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(wanted, least))));
}

constexpr int64_t kLeastDocuments = 64;
constexpr int64_t kLeastTokens = 1024;

void* memory(ConstView view) { return const_cast<std::byte*>(view.data); }

}  // namespace

bool build_uses_cudnn() { return true; }

struct DenseAttention::Impl {
    CudaDevice& device;
    Staging& staging;
    std::function<void*(size_t)> scratch;
    Check check;
    cudnnHandle_t handle = nullptr;
    std::map<Key, std::unique_ptr<Plan>> plans = {};  ///< null: none for equal documents, who take the ragged one
    std::set<std::pair<Key, Kernel>> checked = {};    ///< for equal documents
    bool warned = false;                              ///< of a plan that is null
    int64_t documents =
        kLeastDocuments;  ///< capacity of plans: grows, so that a packing with fewer needs no other plan

    /// Lengths (i32) and offsets of queries, keys and statistics (i64, in elements) on the device, and what they are
    /// of.
    Buffer tables = {};
    std::vector<int64_t> known = {};
    int64_t tables_of = 0;  ///< documents

    /// For the steps of making a plan: what fails them is cuDNN's refusal, unless it is CUDA that failed.
    void check_making(fe::error_t error, char const* what) {
        if (error.is_good()) return;
        if (error.get_code() == fe::error_code_t::CUDA_API_FAILED) fail(Category::internal, "{}", error.get_message());
        device.synchronize();  // throws the error of a kernel that ran before
        throw UnusableAttention(fmt::format("cuDNN refuses {}: {}", what, error.get_message()));
    }

    /// By the given kernel, or by the first of cuDNN's candidates that can be built.
    std::unique_ptr<Plan> build(Key const& key, Kernel const* kernel = nullptr) {
        char const* const what = key.backward ? "attention backward" : "attention";
        auto made = std::make_unique<Plan>();
        fe::graph::Graph& graph = made->graph;
        graph.set_io_data_type(fe::DataType_t::BFLOAT16)
            .set_intermediate_data_type(fe::DataType_t::FLOAT)
            .set_compute_data_type(fe::DataType_t::FLOAT);
        PlanBuilder builder(graph, key);
        key.backward ? builder.backward() : builder.forward();
        check_making(graph.validate(), what);
        check_making(graph.build_operation_graph(handle), what);
        check_making(kernel == nullptr
                         ? graph.create_execution_plans({fe::HeurMode_t::A})
                         : graph.create_execution_plan(kernel->first, {kernel->second.begin(), kernel->second.end()}),
                     what);
        fe::error_t built = graph.build_plan_at_index(made->index);
        while (built.is_bad() && made->index + 1 < graph.get_execution_plan_count())
            built = graph.build_plan_at_index(++made->index);
        check_making(built, what);
        check_making(graph.get_workspace_size_plan_at_index(made->index, made->workspace), "a plan's workspace");
        return made;
    }

    Kernel kernel_of(Plan const& plan) {
        Kernel kernel;
        std::unordered_map<fe::KnobType_t, int64_t> knobs;
        check_making(plan.graph.get_engine_and_knobs_at_index(plan.index, kernel.first, knobs), "a plan's kernel");
        kernel.second = {knobs.begin(), knobs.end()};
        return kernel;
    }

    Plan& ragged_plan(Key const& key) {
        auto const found = plans.find(key);
        if (found != plans.end()) return *found->second;
        auto made = build(key);
        check_plan(key, *made, kRaggedDocuments);
        return *(plans[key] = std::move(made));
    }

    /// Null where cuDNN refuses the plan, or its kernel's results are wrong.
    Plan* equal_plan(Key const& key) {
        auto const found = plans.find(key);
        if (found != plans.end()) return found->second.get();
        std::unique_ptr<Plan> made;
        try {
            made = build(key);
            check_kernel(key, kernel_of(*made));
        } catch (UnusableAttention const& why) {
            made = nullptr;
            if (!std::exchange(warned, true))
                log::warn("documents of {} tokens each go to cuDNN as documents of any lengths, which is slower: {}",
                          key.tokens, why.what());
        }
        return (plans[key] = std::move(made)).get();
    }

    /// A plan for equal documents takes no shorter ones: what is checked is its kernel, in a small plan.
    void check_kernel(Key const& key, Kernel const& kernel) {
        Key small = key;
        small.documents = std::ssize(kEqualDocuments) - 1;
        small.tokens = kEqualDocuments[1];
        if (checked.contains({small, kernel})) return;
        check_plan(small, *build(small, &kernel), kEqualDocuments);
        checked.emplace(small, kernel);
    }

    void check_plan(Key const& key, Plan& plan, std::span<int32_t const> documents) {
        AttentionShape const shape{key.heads, key.kv_heads, key.head_dim, key.scale, documents};
        AttentionPasses passes{.compute = DType::bf16};
        auto const pass = [&](auto const& args) { execute(plan, key, args.cu_seqlens, tensors(args)); };
        if (key.backward)
            passes.backward = pass;
        else
            passes.forward = pass;
        double const error = check(device, shape, passes, version());
        log::info("{}: attention{} of {}/{} heads of {}, {} documents, agrees with the oracle within {:.1e}", version(),
                  key.backward ? " backward" : "", key.heads, key.kv_heads, key.head_dim,
                  key.equal ? "equal" : "ragged", error);
    }

    size_t offsets_at(int64_t table) const {
        int64_t const lengths = (tables_of * size_of(DType::i32) + 255) / 256 * 256;
        return static_cast<size_t>(lengths + table * (tables_of + 1) * size_of(DType::i64));
    }

    /// Documents beyond the real ones are empty and lie at the end.
    static std::vector<int64_t> tables_for(std::span<int32_t const> cu_seqlens, Key const& key) {
        std::vector<int64_t> wanted = {key.documents, key.heads, key.kv_heads, key.head_dim};
        wanted.insert(wanted.end(), cu_seqlens.begin(), cu_seqlens.end());
        return wanted;
    }

    void upload_tables(std::vector<int64_t> wanted) {
        if (wanted == known) return;
        int64_t const documents = wanted[0], heads = wanted[1], kv_heads = wanted[2], head_dim = wanted[3];
        std::span const borders = std::span(wanted).subspan(4);
        if (tables_of < documents) {
            device.synchronize();
            tables_of = documents;
            tables = {};
            tables = Buffer(device, offsets_at(3));
        }
        auto const at = [&](int64_t document) {
            return borders[static_cast<size_t>(std::min<int64_t>(document, std::ssize(borders) - 1))];
        };
        std::vector<int32_t> lengths;
        for (int64_t i = 0; i < documents; ++i) lengths.push_back(static_cast<int32_t>(at(i + 1) - at(i)));
        auto* const memory = static_cast<std::byte*>(tables.data());
        staging.upload(memory, lengths.data(), lengths.size() * sizeof lengths[0]);
        int64_t const widths[] = {heads * head_dim, kv_heads * head_dim, heads};
        for (int64_t table = 0; table < 3; ++table) {
            std::vector<int64_t> offsets;
            for (int64_t i = 0; i <= documents; ++i) offsets.push_back(at(i) * widths[table]);
            staging.upload(memory + offsets_at(table), offsets.data(), offsets.size() * sizeof offsets[0]);
        }
        known = std::move(wanted);
    }

    using Tensors = std::unordered_map<int64_t, void*>;

    static Tensors tensors(AttentionForward const& args) {
        return {{kQ, memory(args.q_THK)},
                {kK, memory(args.k_TGK)},
                {kV, memory(args.v_TGK)},
                {kO, memory(args.o_THK)},
                {kStats, memory(args.lse_TH)}};
    }
    static Tensors tensors(AttentionBackward const& args) {
        return {{kQ, memory(args.q_THK)},      {kK, memory(args.k_TGK)},      {kV, memory(args.v_TGK)},
                {kO, memory(args.o_THK)},      {kStats, memory(args.lse_TH)}, {kGradO, memory(args.do_THK)},
                {kGradQ, memory(args.dq_THK)}, {kGradK, memory(args.dk_TGK)}, {kGradV, memory(args.dv_TGK)}};
    }

    void execute(Plan& plan, Key const& key, std::span<int32_t const> cu_seqlens, Tensors tensors) {
        bool const turns = key.equal && key.backward;  // lse_TH to what cuDNN wants
        int64_t const stats = turns ? key.documents * key.heads * key.tokens * size_of(DType::f32) : 0;
        int64_t const place = (plan.workspace + 255) / 256 * 256;
        auto* const memory = static_cast<std::byte*>(scratch(static_cast<size_t>(place + stats)));
        if (turns) {
            auto* const turned = reinterpret_cast<float*>(memory + place);
            kernels::transpose({.to = turned,
                                .from = static_cast<float const*>(tensors[kStats]),
                                .matrices = key.documents,
                                .rows = key.tokens,
                                .columns = key.heads},
                               device.stream());
            tensors[kStats] = turned;
        }
        if (!key.equal) {
            upload_tables(tables_for(cu_seqlens, key));
            auto* const table = static_cast<std::byte*>(tables.data());
            tensors.emplace(kLengths, table);
            tensors.emplace(kQueryOffsets, table + offsets_at(0));
            tensors.emplace(kKeyOffsets, table + offsets_at(1));
            tensors.emplace(kStatsOffsets, table + offsets_at(2));
        }
        fe::error_t error = plan.graph.execute_plan_at_index(handle, tensors, memory, plan.index);
        if (error.is_bad()) fail(Category::internal, "cuDNN fails to run attention: {}", error.get_message());
    }

    template <class Args>
    void execute(Args const& args, bool backward) {
        Key key{.backward = backward,
                .equal = false,
                .documents = std::ssize(args.cu_seqlens) - 1,
                .tokens = args.q_THK[0],
                .heads = args.q_THK[1],
                .kv_heads = args.k_TGK[1],
                .head_dim = args.q_THK[2],
                .scale = static_cast<float>(args.scale)};
        if (int64_t const length = planned_length(args.cu_seqlens); length > 0) {
            Key equal = key;
            equal.equal = true, equal.tokens = length;
            if (Plan* const plan = equal_plan(equal)) return execute(*plan, equal, args.cu_seqlens, tensors(args));
        }
        documents = std::max(documents, capacity(key.documents, kLeastDocuments));
        key.documents = documents, key.tokens = capacity(key.tokens, kLeastTokens);
        execute(ragged_plan(key), key, args.cu_seqlens, tensors(args));
    }
};

DenseAttention::DenseAttention(CudaDevice& device, Staging& staging, std::function<void*(size_t)> scratch, Check check)
    : impl_(new Impl{.device = device, .staging = staging, .scratch = std::move(scratch), .check = std::move(check)}) {
    if (cudnnCreate(&impl_->handle) != CUDNN_STATUS_SUCCESS) fail(Category::internal, "cuDNN cannot be started");
    if (cudnnSetStream(impl_->handle, device.stream()) != CUDNN_STATUS_SUCCESS)
        fail(Category::internal, "cuDNN refuses a stream");
}

DenseAttention::~DenseAttention() {
    impl_->plans.clear();
    cudnnDestroy(impl_->handle);
}

void DenseAttention::forward(AttentionForward const& args) { impl_->execute(args, false); }

void DenseAttention::backward(AttentionBackward const& args) { impl_->execute(args, true); }

std::vector<int64_t> const& DenseAttention::tables() const { return impl_->known; }

void DenseAttention::restore(std::vector<int64_t> const& tables) {
    if (!tables.empty()) impl_->upload_tables(tables);
}

std::pair<void const*, int64_t> DenseAttention::tables_place() const {
    return {impl_->tables.data(), impl_->tables_of};
}

std::string DenseAttention::version() {
    size_t const v = cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{}, frontend {}.{}.{}", v / 10000, v / 100 % 100, v % 100,
                       CUDNN_FRONTEND_MAJOR_VERSION, CUDNN_FRONTEND_MINOR_VERSION, CUDNN_FRONTEND_PATCH_VERSION);
}

}  // namespace perigee
