// MoBA on the GPU, stage by stage and whole: milliseconds by CUDA events (median over --seconds of back-to-back runs)
// and TFLOP/s of the useful products: 4 K per (row, key) forward, 10 K backward, 2 K per (row, candidate) of the gate.
// Attention stages run over a made-up routing, so that hot blocks can be compared with even ones.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "kernels/moba/cuda/stages.h"
#include "ops/ops.h"

namespace perigee {
namespace {

struct Settings {
    std::vector<int64_t> tokens = {32768};
    int64_t heads = 32, kv_heads = 8, head_dim = 128, documents = 1;
    MobaOptions moba{.block_size = 512, .top_k = 3};
    std::vector<std::string> routings = {"uniform", "recency", "sink"};
    double seconds = 0.2;
    bool dense = false, mma = false;
    std::string json;
};

class Timer {
  public:
    Timer(cudaStream_t stream, double seconds) : stream_(stream), seconds_(seconds) {
        check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
        check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
    }
    ~Timer() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }
    Timer(Timer const&) = delete;
    Timer& operator=(Timer const&) = delete;

    /// Milliseconds, the median.
    double operator()(std::function<void()> const& work) {
        once(work);
        std::vector<double> times;
        for (double spent = 0; spent < seconds_ * 1e3 || times.size() < 3; spent += times.back())
            times.push_back(once(work));
        std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
        return times[times.size() / 2];
    }

  private:
    double once(std::function<void()> const& work) {
        check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
        work();
        check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
        check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
        float milliseconds = 0;
        check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
        return milliseconds;
    }

    cudaStream_t stream_;
    double seconds_;
    cudaEvent_t begin_{}, end_{};
};

/// Choices [T, H, S]. recency: the block d back with probability ~ 1/d; sink: also block 0, always.
std::vector<int32_t> route(Settings const& s, std::vector<int32_t> const& borders, std::string const& kind) {
    int64_t const S = s.moba.top_k - 1, T = borders.back();
    std::vector<int32_t> chosen(static_cast<size_t>(T * s.heads * S), -1);
    Philox const random(7, Purpose::mock_data);
    for (size_t d = 0; d + 1 < borders.size(); ++d)
#pragma omp parallel for
        for (int64_t row = borders[d] * s.heads; row < borders[d + 1] * s.heads; ++row) {
            int64_t const current = (row / s.heads - borders[d]) / s.moba.block_size, count = std::min(S, current);
            int32_t* const choice = chosen.data() + row * S;
            int64_t taken = 0;
            if (kind == "sink" && count > 0) choice[taken++] = 0;
            for (uint64_t draw = 0; taken < count; ++draw) {
                double const u = random.uniform(static_cast<uint64_t>(row) * 1024 + draw);
                double const back = kind == "uniform" ? u * static_cast<double>(current)
                                                      : std::exp(u * std::log(static_cast<double>(current) + 1)) - 1;
                auto block = static_cast<int32_t>(current - 1 - std::min(static_cast<int64_t>(back), current - 1));
                for (uint64_t tries = draw; tries > 256 && std::count(choice, choice + taken, block) > 0;)
                    block = static_cast<int32_t>((block + 1) % current);  // nearly all are taken
                if (std::count(choice, choice + taken, block) == 0) choice[taken++] = block;
            }
            std::sort(choice, choice + taken);
        }
    return chosen;
}

/// (row, key) and (row, candidate) pairs, in 1e12.
struct Work {
    double pairs = 0, own_pairs = 0, candidates = 0;
};
Work work_of(Settings const& s, std::vector<int32_t> const& borders) {
    Work w;
    for (size_t d = 0; d + 1 < borders.size(); ++d)
        for (int64_t t = 0; t < borders[d + 1] - borders[d]; ++t) {
            int64_t const B = s.moba.block_size, current = t / B;
            w.own_pairs += static_cast<double>(s.heads * (t % B + 1)) * 1e-12;
            w.pairs += static_cast<double>(s.heads * std::min(s.moba.top_k - 1, current) * B) * 1e-12;
            w.candidates += static_cast<double>(s.heads * current) * 1e-12;
        }
    return w;
}

class Bench {
  public:
    Bench(Settings const& s, int64_t tokens)
        : s_(s),
          device_(make_cuda_device(0)),
          ops_(make_cuda_ops(*device_)),
          stream_(dynamic_cast<CudaDevice&>(*device_).stream()),
          rows_{tokens, s.heads, s.head_dim},
          keys_{tokens, s.kv_heads, s.head_dim} {
        for (int64_t d = 0; d <= s.documents; ++d) borders_.push_back(static_cast<int32_t>(tokens * d / s.documents));
        work_ = work_of(s, borders_);
        q_ = random(rows_, 1), d_o_ = random(rows_, 2), k_ = random(keys_, 3), v_ = random(keys_, 4);
        o_ = random(rows_, 5), dq_ = random(rows_, 6), dk_ = random(keys_, 7), dv_ = random(keys_, 8);
        lse_ = make(DType::f32, {tokens, s.heads});
        chosen_ = make(DType::i32, {tokens, s.heads, s.moba.top_k - 1});
        TensorView const borders = make(DType::i32, {s.documents + 1});
        ops_->upload(borders, borders_.data());
        problem_ = {.shape = {.tokens = tokens,
                              .queries = tokens,
                              .documents = s.documents,
                              .heads = s.heads,
                              .kv_heads = s.kv_heads,
                              .head_dim = s.head_dim,
                              .options = s.moba,
                              .gpu = s.mma ? MobaKernels::mma : moba_cuda_kernels()},
                    .cu_seqlens = borders.as<int32_t>(),
                    .scale = 1 / std::sqrt(static_cast<double>(s.head_dim)),
                    .q = q_.as<bf16>(),
                    .k = k_.as<bf16>(),
                    .v = v_.as<bf16>(),
                    .chosen = chosen_.as<int32_t>(),
                    .stream = stream_};
        gradients_ = {.d_o = d_o_.as<bf16>(),
                      .o = o_.as<bf16>(),
                      .lse = lse_.as<float>(),
                      .dq = dq_.as<bf16>(),
                      .dk = dk_.as<bf16>(),
                      .dv = dv_.as<bf16>()};
    }

    nlohmann::json run() {
        fmt::print("\n{}\n", to_string(problem_.shape));
        select();
        for (std::string const& routing : s_.routings) {
            if (s_.moba.top_k > 1) ops_->upload(chosen_, route(s_, borders_, routing).data());
            forward(routing);
            backward(routing);
        }
        if (s_.dense) dense();
        return {{"shape", to_string(problem_.shape)}, {"stages", results_}};
    }

  private:
    TensorView make(DType dtype, Shape const& shape) {
        buffers_.emplace_back(*device_, static_cast<size_t>(shape.size() * size_of(dtype)) + 256);
        return {static_cast<std::byte*>(buffers_.back().data()), dtype, shape};
    }
    TensorView random(Shape const& shape, uint64_t stream) {
        TensorView const x = make(DType::bf16, shape);
        ops_->fill_normal(
            {.x = x, .random = Philox(1, Purpose::mock_data, stream), .width = shape.size(), .stride = shape.size()});
        return x;
    }
    moba::Stage stage(MobaTask task) {
        MobaPlan const plan = plan_moba(problem_.shape, task);
        fmt::print("  {}\n", to_string(plan));
        scratch_ = {};
        scratch_ = Buffer(*device_, plan.scratch_bytes + 256);
        problem_.scratch = scratch_.data();
        return moba::make_stage(problem_, task);
    }
    void time(std::string const& name, std::string const& routing, double teraflop, std::function<void()> const& work) {
        double const ms = Timer(stream_, s_.seconds)(work), rate = teraflop / ms * 1e3;
        fmt::print("  {:<24} {:<8} {:>10.3f} ms {:>8.1f} TFLOP/s\n", name, routing, ms, rate);
        results_.push_back({{"stage", name}, {"routing", routing}, {"ms", ms}, {"tflops", rate}});
    }
    static void each_wave(moba::Stage const& stage, std::function<void(moba::Wave const&)> const& work) {
        for (int64_t i = 0; i < stage.plan.waves(); ++i) work(moba::wave_of(stage.plan, i));
    }

    void select() {
        if (s_.moba.top_k == 1) return;
        moba::Stage const st = stage(MobaTask::select);
        double const gate = 2.0 * static_cast<double>(s_.head_dim) * work_.candidates;
        time("block table", "", 0, [&] { moba::build_block_table(st); });
        time("pool", "", 0, [&] { moba::pool_keys(st); });
        time("gate", "", gate, [&] { moba::choose_blocks(st, chosen_.as<int32_t>()); });
        time("select, all", "", gate, [&] { moba_cuda_select(problem_, chosen_.as<int32_t>()); });
    }
    void forward(std::string const& routing) {
        moba::Stage const st = stage(MobaTask::forward);
        double const per_pair = 4.0 * static_cast<double>(s_.head_dim);
        moba::build_block_table(st);
        if (s_.moba.top_k > 1) {
            time("lists", routing, 0, [&] { moba::build_lists(st); });
            time("chosen blocks", routing, per_pair * work_.pairs, [&] {
                each_wave(st, [&](moba::Wave const& wave) {
                    moba::plan_tiles(st, wave);
                    moba::attend_chosen(st, wave);
                });
            });
        }
        time("own block, merge", routing, per_pair * work_.own_pairs, [&] {
            each_wave(st, [&](moba::Wave const& wave) { moba::attend_own(st, wave, o_.as<bf16>(), lse_.as<float>()); });
        });
        time("forward, all", routing, per_pair * (work_.pairs + work_.own_pairs),
             [&] { moba_cuda_forward(problem_, o_.as<bf16>(), lse_.as<float>()); });
    }
    void backward(std::string const& routing) {
        moba::Stage const st = stage(MobaTask::backward);
        double const dim = static_cast<double>(s_.head_dim), all = work_.pairs + work_.own_pairs;
        moba::build_block_table(st);
        if (s_.moba.top_k > 1) moba::build_lists(st);
        time("row products", routing, 0, [&] { moba::row_products(st, gradients_); });
        time("dk, dv", routing, 8 * dim * all, [&] { moba::key_gradients(st, gradients_); });
        if (s_.moba.top_k > 1)
            time("dq of chosen blocks", routing, 6 * dim * work_.pairs, [&] {
                each_wave(st, [&](moba::Wave const& wave) {
                    moba::plan_tiles(st, wave);
                    moba::query_gradients_chosen(st, wave, gradients_);
                });
            });
        time("dq of own block, sum", routing, 6 * dim * work_.own_pairs,
             [&] { each_wave(st, [&](moba::Wave const& wave) { moba::query_gradients_own(st, wave, gradients_); }); });
        time("backward, all", routing, 10 * dim * all, [&] { moba_cuda_backward(problem_, gradients_); });
    }
    void dense() {
        double pairs = 0;
        for (size_t d = 0; d + 1 < borders_.size(); ++d) {
            double const length = borders_[d + 1] - borders_[d];
            pairs += static_cast<double>(s_.heads) * length * (length + 1) / 2 * 1e-12;
        }
        double const dim = static_cast<double>(s_.head_dim);
        time("full attention", "", 4 * dim * pairs, [&] {
            ops_->attention_forward({.o_THK = o_,
                                     .lse_TH = lse_,
                                     .q_THK = q_,
                                     .k_TGK = k_,
                                     .v_TGK = v_,
                                     .cu_seqlens = borders_,
                                     .scale = problem_.scale});
        });
        time("full attention backward", "", 10 * dim * pairs, [&] {
            ops_->attention_backward({.dq_THK = dq_,
                                      .dk_TGK = dk_,
                                      .dv_TGK = dv_,
                                      .do_THK = d_o_,
                                      .q_THK = q_,
                                      .k_TGK = k_,
                                      .v_TGK = v_,
                                      .o_THK = o_,
                                      .lse_TH = lse_,
                                      .cu_seqlens = borders_,
                                      .scale = problem_.scale});
        });
    }

    Settings const& s_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<Ops> ops_;
    cudaStream_t stream_;
    Shape rows_, keys_;
    std::vector<int32_t> borders_;
    std::vector<Buffer> buffers_;
    Buffer scratch_;
    TensorView q_, k_, v_, d_o_, o_, dq_, dk_, dv_, lse_, chosen_;
    MobaProblem problem_;
    MobaGradients gradients_;
    nlohmann::json results_ = nlohmann::json::array();
    Work work_;
};

int run(int argc, char** argv) {
    Settings s;
    bool group = false;
    CLI::App app("MoBA on the GPU, stage by stage");
    app.add_option("--tokens", s.tokens, "Lengths of the pack")->capture_default_str();
    app.add_option("--documents", s.documents, "Equal documents of a pack")->capture_default_str();
    app.add_option("--heads", s.heads)->capture_default_str();
    app.add_option("--kv-heads", s.kv_heads)->capture_default_str();
    app.add_option("--head-dim", s.head_dim)->capture_default_str();
    app.add_option("--block", s.moba.block_size, "B, keys per block")->capture_default_str();
    app.add_option("--top-k", s.moba.top_k, "k, blocks a query attends")->capture_default_str();
    app.add_option("--routing", s.routings, "uniform, recency, sink")->capture_default_str();
    app.add_option("--seconds", s.seconds, "Of every measurement")->capture_default_str();
    app.add_option("--json", s.json, "File for the results");
    app.add_flag("--group", group, "One choice per group of heads");
    app.add_flag("--force-previous", s.moba.force_previous);
    app.add_flag("--dense", s.dense, "Also full attention");
    app.add_flag("--mma", s.mma, "By the kernels that need no Hopper GPU");
    CLI11_PARSE(app, argc, argv);
    if (group) s.moba.selection = MobaSelection::per_group;
    nlohmann::json all = nlohmann::json::array();
    for (int64_t const tokens : s.tokens) all.push_back(Bench(s, tokens).run());
    if (!s.json.empty()) std::ofstream(s.json) << all.dump(1) << '\n';
    return 0;
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    try {
        return perigee::run(argc, argv);
    } catch (perigee::Error const& error) {
        fmt::print(stderr, "bench_moba: {}\n", error.what());
        return error.exit_code();
    }
}
