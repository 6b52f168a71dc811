// MoBA on the GPU, stage by stage and whole: milliseconds (median of back-to-back runs), useful TFLOP/s, TB/s and the
// share of the time that no kernel of one H200 can beat. Stages run over a made-up routing, so that hot blocks can be
// compared with even ones; the whole goes through Ops, over the choice it makes itself.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/block_sparse_attention/stages.h"
#include "kernels/moba_gate/gate.h"
#include "ops/ops.h"
#include "tools/bench/gpu_timer.h"
#include "tools/bench/moba_work.h"

namespace perigee {
namespace {

struct Settings {
    std::vector<int64_t> tokens = {32768};
    int64_t heads = 32, kv_heads = 8, head_dim = 128, documents = 1;
    MobaOptions moba{.block_size = 512, .top_k = 3};
    std::vector<std::string> routings = {"uniform", "recency", "sink"};
    std::vector<std::string> parts = {"choice", "lists", "forward", "backward", "whole"};
    double seconds = 0.2, rest = 0.2;
    size_t scratch_mib = kAttentionScratchBytes >> 20;
    bool dense = false, mma = false, table = false, deterministic = false;
    std::string json;
};

class Bench {
  public:
    Bench(Settings const& s, int64_t tokens)
        : s_(s),
          device_(make_cuda_device(0)),
          ops_(make_cuda_ops(*device_, {.deterministic = s.deterministic, .moba_scratch = s.scratch_mib << 20})),
          stream_(dynamic_cast<CudaDevice&>(*device_).stream()),
          timer_(stream_, s.seconds, s.rest),
          rows_{tokens, s.heads, s.head_dim},
          keys_{tokens, s.kv_heads, s.head_dim},
          shape_{.tokens = tokens,
                 .queries = tokens,
                 .documents = s.documents,
                 .heads = s.heads,
                 .kv_heads = s.kv_heads,
                 .head_dim = s.head_dim,
                 .block_size = s.moba.block_size,
                 .top_k = s.moba.top_k,
                 .arch = s.mma ? KernelArch::sm80 : kernel_arch(),
                 .deterministic = s.deterministic},
          borders_(equal_documents(tokens, s.documents)),
          costs_(shape_, borders_) {
        q_ = random(rows_, 1), d_o_ = random(rows_, 2), k_ = random(keys_, 3), v_ = random(keys_, 4);
        o_ = random(rows_, 5), dq_ = random(rows_, 6), dk_ = random(keys_, 7), dv_ = random(keys_, 8);
        lse_ = make(DType::f32, {tokens, s.heads});
        chosen_ = make(DType::i32, {tokens, s.heads, s.moba.top_k - 1});
        int64_t const numbers = ops_->routing_size(rows_, keys_, borders_, *budget_of(s.moba));
        if (numbers > 0) lists_ = make(DType::i32, {numbers});
        TensorView const borders = make(DType::i32, {s.documents + 1});
        ops_->upload(borders, borders_.data());
        problem_ = {.cu_seqlens = borders.as<int32_t>(),
                    .scale = 1 / std::sqrt(static_cast<double>(s.head_dim)),
                    .q = q_.as<bf16>(),
                    .k = k_.as<bf16>(),
                    .v = v_.as<bf16>(),
                    .chosen = chosen_.as<int32_t>(),
                    .routing = lists_.data,
                    .stream = stream_};
        gradients_ = {.d_o = d_o_.as<bf16>(),
                      .o = o_.as<bf16>(),
                      .lse = lse_.as<float>(),
                      .dq = dq_.as<bf16>(),
                      .dk = dk_.as<bf16>(),
                      .dv = dv_.as<bf16>()};
    }

    void run() {
        if (wants("choice")) select();
        for (std::string const& routing : s_.routings) {
            if (!wants("lists") && !wants("forward") && !wants("backward")) break;
            if (routing == "own")
                choose();
            else if (routed())
                ops_->upload(chosen_, make_routing(shape_, borders_, routing).data());
            forward(routing);
            if (!wants("backward")) continue;
            ops_->attention_forward(forward_args(true));
            backward(routing);
        }
        if (wants("whole")) whole();
        if (s_.dense) dense();
    }

    nlohmann::json results() const { return {{"shape", to_string(shape_)}, {"stages", results_}}; }

  private:
    bool wants(std::string const& part) const { return std::count(s_.parts.begin(), s_.parts.end(), part) > 0; }

    void choose() {
        if (routed())
            ops_->select_blocks(
                {.chosen_THS = chosen_, .q_THK = q_, .k_TGK = k_, .cu_seqlens = borders_, .selection = s_.moba});
    }
    /// Forward with the choice and its lists, then backward.
    void whole() {
        time("choice, forward", "own", sum(costs_.select(), costs_.forward()), [&] {
            choose();
            ops_->attention_forward(forward_args(true));
        });
        time("backward", "own", costs_.backward(), [&] { ops_->attention_backward(backward_args(true)); });
    }
    void dense() {
        time("full attention", "", costs_.dense_forward(), [&] { ops_->attention_forward(forward_args(false)); });
        time("full attention backward", "", costs_.dense_backward(),
             [&] { ops_->attention_backward(backward_args(false)); });
    }

    static std::vector<int32_t> equal_documents(int64_t tokens, int64_t documents) {
        std::vector<int32_t> borders;
        for (int64_t d = 0; d <= documents; ++d) borders.push_back(static_cast<int32_t>(tokens * d / documents));
        return borders;
    }
    static Cost sum(Cost const& a, Cost const& b) { return {a.teraflop + b.teraflop, a.terabytes + b.terabytes}; }
    bool routed() const { return s_.moba.top_k > 1; }

    TensorView make(DType dtype, Shape const& shape) {
        buffers_.emplace_back(*device_, static_cast<size_t>(shape.size() * size_of(dtype)) + 256);
        return {static_cast<std::byte*>(buffers_.back().data()), dtype, shape};
    }
    TensorView random(Shape const& shape, uint64_t stream) {
        TensorView const x = make(DType::bf16, shape);
        ops_->fill_normal({.x = x, .random = Philox(1, Purpose::mock_data, stream)});
        return x;
    }
    Attended attended(bool sparse) const {
        if (!sparse) return FullAttention{};
        return BlockSparse{.budget = *budget_of(s_.moba), .chosen_THS = chosen_, .routing_L = lists_};
    }
    AttentionForward forward_args(bool sparse) {
        return {.o_THK = o_,
                .lse_TH = lse_,
                .q_THK = q_,
                .k_TGK = k_,
                .v_TGK = v_,
                .cu_seqlens = borders_,
                .scale = problem_.scale,
                .attended = attended(sparse)};
    }
    AttentionBackward backward_args(bool sparse) {
        return {.dq_THK = dq_,
                .dk_TGK = dk_,
                .dv_TGK = dv_,
                .do_THK = d_o_,
                .q_THK = q_,
                .k_TGK = k_,
                .v_TGK = v_,
                .o_THK = o_,
                .lse_TH = lse_,
                .cu_seqlens = borders_,
                .scale = problem_.scale,
                .attended = attended(sparse)};
    }
    block_sparse::Stage stage(AttentionTask task) {
        BlockSparsePlan const plan = plan_attention(shape_, task, s_.scratch_mib << 20);
        fmt::print("  {}\n", to_string(plan));
        problem_.scratch = new_scratch(plan.bytes_beside(!lists_.empty()));
        return block_sparse::make_stage(plan, problem_);
    }
    void* new_scratch(size_t bytes) {
        scratch_ = {};
        scratch_ = Buffer(*device_, bytes + 256);
        return scratch_.data();
    }
    void time(std::string const& name, std::string const& routing, Cost const& cost,
              std::function<void()> const& work) {
        double const ms = timer_(work), share = cost.floor_ms() / ms;
        double const tflops = 1e3 * cost.teraflop / ms, tbytes = 1e3 * cost.terabytes / ms;
        fmt::print("  {:<24} {:<8} {:>10.3f} ms", name, routing, ms);
        if (cost.teraflop > 0) fmt::print(" {:>7.1f} TFLOP/s", tflops);
        if (cost.terabytes > 0) fmt::print(" {:>7.2f} TB/s {:>6.1f}% of the floor", tbytes, 100 * share);
        fmt::print("\n");
        std::fflush(stdout);
        results_.push_back({{"stage", name},
                            {"routing", routing},
                            {"ms", ms},
                            {"tflops", tflops},
                            {"terabytes_per_second", tbytes},
                            {"floor_ms", cost.floor_ms()}});
    }
    static void each_pass(block_sparse::Stage const& stage,
                          std::function<void(block_sparse::Pass const&)> const& work) {
        for (int64_t i = 0; i < stage.plan.passes(); ++i) work(block_sparse::pass_of(stage.plan, i));
    }

    void select() {
        if (!routed()) return;
        MobaGatePlan const plan = plan_moba_gate(shape_, s_.moba);
        moba_gate::Stage const st = moba_gate::make_stage(plan, {.cu_seqlens = problem_.cu_seqlens,
                                                                 .q = problem_.q,
                                                                 .k = problem_.k,
                                                                 .scratch = new_scratch(plan.scratch_bytes),
                                                                 .stream = stream_});
        time("block table", "", {}, [&] { moba_gate::build_block_table(st); });
        time("pool", "", costs_.pool(), [&] { moba_gate::pool_centroids(st); });
        time("gate", "", costs_.gate(), [&] { moba_gate::select_blocks(st, chosen_.as<int32_t>()); });
        time("choice", "", costs_.select(), [&] { moba_gate_select(plan, st.problem, chosen_.as<int32_t>()); });
    }
    void forward(std::string const& routing) {
        block_sparse::Stage const st = stage(AttentionTask::forward);
        block_sparse::build_block_table(st);
        if (routed()) block_sparse::build_routing(st);
        if (routed() && wants("lists")) {
            time("lists", routing, costs_.lists(), [&] { block_sparse::build_routing(st); });
            time("tiles", routing, {},
                 [&] { each_pass(st, [&](block_sparse::Pass const& w) { block_sparse::count_tiles(st, w); }); });
        }
        if (!wants("forward")) return;
        if (routed())
            time("chosen blocks", routing, costs_.chosen(), [&] {
                each_pass(st, [&](block_sparse::Pass const& pass) {
                    block_sparse::count_tiles(st, pass);
                    block_sparse::attend_selected(st, pass);
                });
            });
        time("own block, merge", routing, costs_.own(), [&] {
            each_pass(st, [&](block_sparse::Pass const& pass) {
                block_sparse::attend_local(st, pass, o_.as<bf16>(), lse_.as<float>());
            });
        });
        time("forward", routing, costs_.forward(),
             [&] { block_sparse_forward(st.plan, problem_, o_.as<bf16>(), lse_.as<float>()); });
    }
    void backward(std::string const& routing) {
        block_sparse::Stage const st = stage(AttentionTask::backward);
        if (lists_.empty()) {  // else they are the forward's
            block_sparse::build_block_table(st);
            if (routed()) block_sparse::build_routing(st);
        }
        time("row products", routing, {}, [&] { block_sparse::preprocess_backward(st, gradients_); });
        if (st.plan.arch == KernelArch::sm90)
            fused_backward(st, routing);
        else
            backward_by_parts(st, routing);
        time("backward", routing, costs_.backward(), [&] { block_sparse_backward(st.plan, problem_, gradients_); });
    }
    void fused_backward(block_sparse::Stage const& st, std::string const& routing) {
        block_sparse::Pass const first = block_sparse::pass_of(st.plan, 0);
        time("items, first pass", routing, {}, [&] { block_sparse::schedule_work_items(st, first); });
        time("items and products", routing, {}, [&] {
            each_pass(st, [&](block_sparse::Pass const& pass) {
                block_sparse::schedule_work_items(st, pass);
                block_sparse::attend_backward_sm90(st, pass, gradients_);
            });
        });
        time("sums, first pass", routing, {}, [&] { block_sparse::reduce_gradients_sm90(st, first, gradients_); });
    }
    void backward_by_parts(block_sparse::Stage const& st, std::string const& routing) {
        time("dk, dv", routing, {}, [&] { block_sparse::dkv_sm80(st, gradients_); });
        if (routed())
            time("dq of chosen blocks", routing, {}, [&] {
                each_pass(st, [&](block_sparse::Pass const& pass) {
                    block_sparse::count_tiles(st, pass);
                    block_sparse::dq_selected_sm80(st, pass, gradients_);
                });
            });
        time("dq of own block, sum", routing, {}, [&] {
            each_pass(st, [&](block_sparse::Pass const& pass) { block_sparse::dq_local_sm80(st, pass, gradients_); });
        });
    }

    Settings const& s_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
    cudaStream_t stream_;
    GpuTimer timer_;
    Shape rows_, keys_;
    BlockSparseShape shape_;
    std::vector<int32_t> borders_;
    MobaCosts costs_;
    std::vector<Buffer> buffers_;
    Buffer scratch_;
    TensorView q_, k_, v_, d_o_, o_, dq_, dk_, dv_, lse_, chosen_, lists_;
    BlockSparseProblem problem_;
    BlockSparseGradients gradients_;
    nlohmann::json results_ = nlohmann::json::array();
};

/// The problems that docs/benchmarks.md reports.
std::vector<Settings> reported(Settings const& from) {
    std::vector<Settings> rows;
    for (auto const& [tokens, heads, B, k] : {std::tuple{32 << 10, 32, 512, 3},
                                              {32 << 10, 32, 128, 8},
                                              {128 << 10, 32, 512, 3},
                                              {128 << 10, 32, 128, 8},
                                              {128 << 10, 32, 4096, 12},
                                              {1 << 20, 4, 512, 3},
                                              {1 << 20, 4, 128, 8}}) {
        rows.push_back(from);
        Settings& row = rows.back();
        row.tokens = {tokens}, row.heads = heads, row.kv_heads = heads / 4, row.head_dim = 128, row.documents = 1;
        row.moba.block_size = B, row.moba.top_k = k;
        row.parts = {"whole"};
    }
    return rows;
}

int run(int argc, char** argv) {
    Settings s;
    bool group = false;
    CLI::App app("MoBA on the GPU, stage by stage and whole");
    app.add_option("--tokens", s.tokens, "Lengths of the pack")->capture_default_str();
    app.add_option("--documents", s.documents, "Equal documents of a pack")->capture_default_str();
    app.add_option("--heads", s.heads)->capture_default_str();
    app.add_option("--kv-heads", s.kv_heads)->capture_default_str();
    app.add_option("--head-dim", s.head_dim)->capture_default_str();
    app.add_option("--block", s.moba.block_size, "B, keys per block")->capture_default_str();
    app.add_option("--top-k", s.moba.top_k, "k, blocks a query attends")->capture_default_str();
    app.add_option("--routing", s.routings, "Of the stages: uniform, recency, sink, or own: what the gate chooses")
        ->capture_default_str();
    app.add_option("--parts", s.parts, "What to time: choice, lists, forward, backward, whole")->capture_default_str();
    app.add_option("--seconds", s.seconds, "Of every measurement")->capture_default_str();
    app.add_option("--rest", s.rest, "Seconds of rest before every measurement")->capture_default_str();
    app.add_option("--scratch-mib", s.scratch_mib, "Room for scratch memory")->capture_default_str();
    app.add_option("--json", s.json, "File for the results");
    app.add_flag("--group", group, "One choice per group of heads");
    app.add_flag("--force-previous", s.moba.force_previous);
    app.add_flag("--dense", s.dense, "Also full attention");
    app.add_flag("--table", s.table, "The problems of docs/benchmarks.md, whole");
    app.add_flag("--deterministic", s.deterministic, "A backward of the same bits every time");
    app.add_flag("--mma", s.mma, "Stages by the kernels that need no Hopper GPU");
    CLI11_PARSE(app, argc, argv);
    if (group) s.moba.selection = MobaSelection::per_group;
    fmt::print("{}\n", kFloorFormula);
    nlohmann::json all = nlohmann::json::array();
    for (Settings const& row : s.table ? reported(s) : std::vector{s})
        for (int64_t const tokens : row.tokens) {
            Bench bench(row, tokens);
            fmt::print("\n{}\n", bench.results()["shape"].get<std::string>());
            bench.run();
            all.push_back(bench.results());
        }
    if (!s.json.empty()) std::ofstream(s.json) << all.dump(1) << '\n';
    return 0;
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    try {
        return perigee::run(argc, argv);
    } catch (std::exception const& error) {
        return perigee::report_failure("bench_moba", error);
    }
}
