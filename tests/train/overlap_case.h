// Training steps among ranks of which one is there, with a delay in every collective of tensors: what of the delays
// shows.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "config/config.h"
#include "model/tiny_model.h"
#include "ops/observed_ops.h"
#include "train/learner.h"

namespace perigee::testing {

/// Rank 0 of a group whose other ranks bring what it brings, and add nothing to sums.
class PhantomHostComm final : public HostComm {
  public:
    explicit PhantomHostComm(int size) : size_(size) {}
    int rank() const override { return 0; }
    int size() const override { return size_; }
    void all_reduce(TensorView, Reduce) override {}
    void all_gather(TensorView, ConstView) override { refuse(); }
    void reduce_scatter(TensorView, ConstView) override { refuse(); }
    void all_to_all(TensorView, ConstView) override { refuse(); }
    void exchange(std::span<Outgoing const>, std::span<Incoming const>) override { refuse(); }
    void broadcast(TensorView, int) override {}
    void barrier() override {}
    std::unique_ptr<HostComm> split(int, int, Axis) override { refuse(); }

  private:
    [[noreturn]] static void refuse() { fail(Category::internal, "nobody answers"); }
    int size_;
};

/// What a collective costs beside its copies.
struct Delay {
    double seconds = 0;
    bool in_lane = true;  ///< in the queue of the collective; otherwise in the compute queue, where nothing hides it
    std::function<void(Queue&, double seconds)> queue = {};
    std::function<void()> before = {};  ///< each collective
    int64_t collectives = 0;            ///< so far

    void begin() const {
        if (before) before();
    }

    void pass(Queue& lane) {
        ++collectives;
        if (seconds > 0) queue(in_lane ? lane : lane.device().queue(), seconds);
    }
};

class DelayedComm final : public Comm {
  public:
    DelayedComm(int size, Axis axis, Delay& delay)
        : Comm(std::make_unique<PhantomHostComm>(size), axis), delay_(&delay) {}

  protected:
    void queue_all_reduce(Queue& queue, TensorView, Reduce) override {
        delay_->begin();
        delay_->pass(queue);
    }
    void queue_all_gather(Queue& queue, TensorView all, ConstView part) override {
        delay_->begin();
        for (int64_t r = 0; r < size(); ++r) copy(queue, all.data + r * part.bytes(), part);
        delay_->pass(queue);
    }
    void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) override {
        delay_->begin();
        copy(queue, part.data, {all.data, all.dtype, part.shape});
        delay_->pass(queue);
    }
    void queue_all_to_all(Queue& queue, TensorView to, ConstView from) override {
        delay_->begin();
        copy(queue, to.data, from);
        delay_->pass(queue);
    }
    void queue_exchange(Queue&, std::span<Outgoing const>, std::span<Incoming const>) override { refuse(); }
    void queue_broadcast(Queue&, TensorView, int) override { refuse(); }

  private:
    [[noreturn]] static void refuse() { fail(Category::internal, "not a collective of training"); }
    static void copy(Queue& queue, std::byte* to, ConstView from) {
        if (to != from.data) queue.copy(to, from.data, static_cast<size_t>(from.bytes()));
    }
    Delay* delay_;
};

class DelayedGroups final : public GroupMaker {
  public:
    explicit DelayedGroups(Delay& delay) : delay_(&delay) {}
    std::unique_ptr<Comm> make(Group const& group) override {
        if (group.size == 1) return make_single_comm(group.axis);
        return std::make_unique<DelayedComm>(group.size, group.axis, *delay_);
    }

  private:
    Delay* delay_;
};

/// Rank 0 of 4.
class PhantomRank {
  public:
    /// Computes with what `wrap` makes of its operations.
    using Wrap = std::function<std::unique_ptr<Ops>(Ops&)>;
    PhantomRank(RunOptions const& options, Delay& delay, Wrap const& wrap = {})
        : options_(resolve(options, 1, *files_)),
          machine_(make_machine(options_)),
          session_(options_, Mesh(options_.parallel, world_, std::make_unique<DelayedGroups>(delay)),
                   {nullptr, wrap ? wrap(*machine_.ops) : std::make_unique<ObservedOps>(*machine_.ops)}, *files_),
          learner_(session_) {
        learner_.initialise(1);
        for (uint64_t i = 1; i <= 2; ++i)
            batches_.push_back(random_batch({options_.data.sequence_length}, options_.model.vocab_size, i));
    }
    /// One step of two micro-batches, always the same; its loss.
    double step() { return learner_.step(batches_, state_).loss; }
    Ops& ops() const { return *machine_.ops; }

  private:
    std::unique_ptr<FileSystem> files_ = make_file_system();
    PhantomHostComm world_{4};
    RunOptions options_;
    Machine machine_;
    Session session_;
    Learner learner_;
    RunState state_;
    std::vector<Batch> batches_;
};

inline std::vector<double> losses(RunOptions const& options, Delay delay, int steps) {
    PhantomRank rank(options, delay);
    std::vector<double> found;
    for (int i = 0; i < steps; ++i) found.push_back(rank.step());
    return found;
}

struct Overlap {
    double step_s = 0;          ///< without delays
    double delayed_step_s = 0;  ///< with them
    double delays_s = 0;        ///< their sum in a step
    int64_t collectives = 0;    ///< of a step
    double shown() const { return (delayed_step_s - step_s) / delays_s; }
};

/// Its least period of several rounds. All delays of a step together take `share` of the step, where `delay` does not
/// say how long each is.
inline Overlap measure_overlap(RunOptions const& options, Delay delay, double share) {
    constexpr int kWarm = 3, kSteps = 7, kRounds = 3;
    double const wanted = std::exchange(delay.seconds, 0);
    PhantomRank rank(options, delay);
    auto const period = [&](int steps) {  // from the end of a step to that of a later one
        using Clock = std::chrono::steady_clock;
        rank.step();
        auto const begin = Clock::now();
        for (int i = 0; i < steps; ++i) rank.step();
        return std::chrono::duration<double>(Clock::now() - begin).count() / steps;
    };
    Overlap found;
    found.step_s = period(kWarm);
    int64_t const before = delay.collectives;
    rank.step();
    found.collectives = delay.collectives - before;
    found.step_s = period(kSteps);
    double const seconds = wanted > 0 ? wanted : share * found.step_s / static_cast<double>(found.collectives);
    std::vector<double> plain, slow;
    for (int round = 0; round < kRounds; ++round) {
        delay.seconds = 0;
        plain.push_back(period(kSteps));
        delay.seconds = seconds;
        slow.push_back(period(kSteps));
    }
    found.step_s = std::ranges::min(plain), found.delayed_step_s = std::ranges::min(slow);
    found.delays_s = seconds * static_cast<double>(found.collectives);
    return found;
}

inline char const* name_of(ShardStage stage) {
    constexpr char const* kNames[] = {"auto", "none", "optimizer", "gradients", "weights"};
    return kNames[static_cast<int>(stage)];
}

}  // namespace perigee::testing
