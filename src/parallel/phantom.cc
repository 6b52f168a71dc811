#include "parallel/phantom.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/philox.h"
#include "comm/ring_bytes.h"

namespace perigee {

namespace {

/// A rank of a group whose other ranks do not exist, and bring what this one brings.
class PhantomHostComm final : public HostComm {
  public:
    PhantomHostComm(int rank, int size) : rank_(rank), size_(size) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    void all_reduce(TensorView x, Reduce op) override {
        if (op == Reduce::sum) multiply(x);
    }
    void all_gather(TensorView all, ConstView part) override {
        for (int r = 0; r < size_; ++r) copy(all.data + r * part.bytes(), part);
    }
    void reduce_scatter(TensorView part, ConstView all) override {
        copy(part.data, ConstView(all.data + rank_ * part.bytes(), part.dtype, part.shape));
        multiply(part);
    }
    void all_to_all(TensorView to, ConstView from) override {
        int64_t const bytes = from.bytes() / size_;
        for (int r = 0; r < size_; ++r)
            std::memmove(to.data + r * bytes, from.data + rank_ * bytes, static_cast<size_t>(bytes));
    }
    void exchange(std::span<Outgoing const>, std::span<Incoming const>) override {
        fail(Category::internal, "a phantom exchanges no messages");
    }
    void broadcast(TensorView, int) override {}
    void barrier() override {}
    std::unique_ptr<HostComm> split(int, int, Axis) override {
        fail(Category::internal, "a phantom's groups come from Phantom::groups()");
    }

  private:
    static void copy(std::byte* to, ConstView from) {
        if (from.bytes() > 0) std::memmove(to, from.data, static_cast<size_t>(from.bytes()));
    }
    template <class T>
    void multiply_as(TensorView x) const {
        std::for_each(x.as<T>(), x.as<T>() + x.size(), [this](T& value) { value *= static_cast<T>(size_); });
    }
    void multiply(TensorView x) const {
        switch (x.dtype) {
            case DType::f32:
                return multiply_as<float>(x);
            case DType::f64:
                return multiply_as<double>(x);
            case DType::i32:
                return multiply_as<int32_t>(x);
            case DType::i64:
                return multiply_as<int64_t>(x);
            default:
                fail(Category::internal, "a sum of {}", to_string(x.dtype));
        }
    }

    int rank_, size_;
};

bool is_inside(ConstView part, ConstView all) { return all.data <= part.data && part.data < all.data + all.bytes(); }

}  // namespace

int Phantom::rank_of(Axis axis) const {
    auto const [rank, shape] = std::pair(options_.rank, options_.shape);
    switch (axis) {
        case Axis::all:
            return rank;
        case Axis::tensor:
            return rank % shape.tp;
        case Axis::context:
            return rank / shape.tp % shape.cp;
        case Axis::data:
            return rank / shape.tp / shape.cp;
        case Axis::data_context:
            return rank / shape.tp;
        default:
            fail(Category::internal, "a phantom of a job with an axis {}", to_string(axis));
    }
}

ConstView Phantom::order(int64_t rows, int64_t period, int sender) {
    auto const [found, made] = orders_.try_emplace({rows, period, sender});
    auto& [memory, view] = found->second;
    if (!made) return view;
    std::vector<int32_t> numbers(static_cast<size_t>(rows));
    std::iota(numbers.begin(), numbers.end(), 0);
    Philox const random(options_.seed, Purpose::mock_data, static_cast<uint64_t>(sender));
    for (int64_t i = rows / period - 1; i > 0; --i) {  // Fisher-Yates, of each class of rows by itself
        for (int64_t c = 0; c < period; ++c) {
            uint64_t const other = random.below(static_cast<uint64_t>(i * period + c), static_cast<uint64_t>(i + 1));
            std::swap(numbers[static_cast<size_t>(i * period + c)],
                      numbers[static_cast<size_t>(other) * static_cast<size_t>(period) + static_cast<size_t>(c)]);
        }
    }
    memory = Buffer(ops_->device(), static_cast<size_t>(rows) * sizeof(int32_t));
    own_bytes_ += rows * int64_t{sizeof(int32_t)};
    view = {static_cast<std::byte*>(memory.data()), DType::i32, {rows}};
    ops_->upload(view, numbers.data());
    return view;
}

/// This rank in a group of the job.
class Phantom::Group final : public Comm {
  public:
    Group(Phantom& phantom, Axis axis, int size)
        : Comm(std::make_unique<PhantomHostComm>(phantom.rank_of(axis), size), axis), phantom_(&phantom) {}

  protected:
    void queue_all_reduce(Queue& queue, TensorView x, Reduce op) override {
        play(queue, Collective::all_reduce, x, x.bytes(), [&](Queue&) {
            if (op == Reduce::sum && adds_activations()) scale(x, size());
        });
    }
    void queue_all_gather(Queue& queue, TensorView all, ConstView part) override {
        play(queue, Collective::all_gather, all, part.bytes(), [&](Queue& worker) {
            copy(worker, all.data + rank() * part.bytes(), part);
            if (axis() == Axis::data_context) return;  // weights, which lie there already
            for (int r = 0; r < size(); ++r)
                if (r != rank())
                    receive(worker, TensorView(all.data + r * part.bytes(), part.dtype, part.shape), part, r);
        });
    }
    void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) override {
        bool const is_host = queue.device().is_host();
        if (!is_host && &queue != &queue.device().queue() && foreseen_on_one_host(phantom_->options_.shape.world()))
            queue.workspace(static_cast<size_t>(all.bytes()));  // as NCCL's ranks of one host, on a lane
        else if (is_host && is_inside(part, all))
            queue.workspace(static_cast<size_t>(part.bytes()));  // ranks sum there before they overwrite what they read
        play(queue, Collective::reduce_scatter, all, all.bytes(), [&](Queue& worker) {
            copy(worker, part.data, ConstView(all.data + rank() * part.bytes(), part.dtype, part.shape));
            if (adds_activations()) scale(part, std::sqrt(size()));
        });
    }
    void queue_all_to_all(Queue& queue, TensorView to, ConstView from) override {
        play(queue, Collective::all_to_all, from, from.bytes(), [&](Queue& worker) {
            int64_t const bytes = from.bytes() / size();
            Shape const shape{from.size() / size()};
            ConstView const own(from.data + rank() * bytes, from.dtype, shape);
            for (int r = 0; r < size(); ++r) {
                TensorView const part(to.data + r * bytes, to.dtype, shape);
                if (r == rank())
                    copy(worker, part.data, own);
                else
                    receive(worker, part, own, r);
            }
        });
    }
    void queue_exchange(Queue&, std::span<Outgoing const>, std::span<Incoming const>) override {
        fail(Category::internal, "a phantom exchanges no messages");
    }
    void queue_broadcast(Queue& queue, TensorView x, int) override {
        play(queue, Collective::broadcast, x, x.bytes(), [](Queue&) {});
    }

  private:
    bool adds_activations() const { return axis() != Axis::data_context; }

    /// What a lane sends comes from the compute queue, and what it receives into is free there, so what is made up of
    /// activations is made there: the compute queue waits for nothing that a lane still plays.
    /// Where it waits for the link at once, `waited_for`, that time hides this work.
    void make_up(Queue& queue, bool waited_for, std::function<void(Queue&)> const& work) const {
        Queue& compute = queue.device().queue();
        bool const beside = adds_activations() && &queue != &compute;
        if (!beside) return work(queue);
        Event const begin = compute.stamp();
        work(compute);
        if (!waited_for) phantom_->made_up_.emplace_back(begin, compute.stamp());
        queue.wait(compute.record());
    }

    /// `work` on this queue, for as long as a link would take.
    void play(Queue& queue, Collective collective, ConstView moved, int64_t brought,
              std::function<void(Queue&)> const& work) {
        double const bytes = ring_bytes(collective, brought, size()), rate = phantom_->options_.bytes_per_second;
        double const seconds = rate > 0 ? phantom_->options_.latency + bytes / rate : 0;
        PhantomSent& sent = phantom_->sent_[{axis(), collective}];
        sent.calls += 1;
        sent.bytes += bytes;
        sent.seconds += seconds;
        if (phantom_->pace_) phantom_->pace_->begin(queue);
        if (phantom_->options_.traffic) move(queue, moved, static_cast<int64_t>(bytes));
        make_up(queue, collective == Collective::all_to_all, work);
        if (phantom_->pace_) phantom_->pace_->end(queue, seconds);
    }

    /// Reads and writes this many bytes.
    static void move(Queue& queue, ConstView from, int64_t bytes) {
        constexpr int64_t kAligned = 256;
        int64_t const piece = std::min<int64_t>(from.bytes(), int64_t{64} << 20);
        if (piece == 0) return;
        void* const to = queue.workspace(static_cast<size_t>(piece));
        for (int64_t moved = 0; moved < bytes; moved += piece) {
            int64_t const begin = moved % (from.bytes() - piece + 1) / kAligned * kAligned;
            queue.copy(to, from.data + begin, static_cast<size_t>(std::min(piece, bytes - moved)));
        }
    }

    static void copy(Queue& queue, std::byte* to, ConstView from) {
        if (to != from.data && from.bytes() > 0) queue.copy(to, from.data, static_cast<size_t>(from.bytes()));
    }

    void scale(TensorView x, double factor) {
        if (x.dtype != phantom_->ops_->compute_dtype() && x.dtype != phantom_->ops_->main_dtype()) return;
        phantom_->ops_->scale(x, factor);
    }

    /// `to` comes from rank `sender`, who has what is like `own`.
    void receive(Queue& queue, TensorView to, ConstView own, int sender) {
        if (own.dtype != phantom_->ops_->compute_dtype() || own.size() == 0) return copy(queue, to.data, own);
        auto const [run, width, period] = rows_of(own);
        ConstView const numbers = phantom_->order(run / width, period, sender);
        TensorView const flat_to = to.reshape({to.size()});
        ConstView const flat_own = own.reshape({own.size()});
        Shape const shape{run / width, width};
        for (int64_t begin = 0; begin < own.size(); begin += run)
            phantom_->ops_->embedding_forward({.x_TD = flat_to.rows(begin, begin + run).reshape(shape),
                                               .ids_T = numbers,
                                               .table_VD = flat_own.rows(begin, begin + run).reshape(shape),
                                               .vocab_begin = 0});
    }

    /// Elements that are alike, in rows that may change places with those a multiple of `period` away.
    struct Rows {
        int64_t run, width, period;
    };
    Rows rows_of(ConstView own) const {
        PhantomOptions const& o = phantom_->options_;
        int64_t const of_head = o.tokens * o.head_dim;
        // Whatever heads a message is of, each begins and ends with such a run, and so do keys and values.
        if (axis() == Axis::context && own.size() % of_head == 0) {
            int64_t const period = std::lcm(std::max<int64_t>(o.heads / o.shape.cp, 1), o.kv_heads);
            return {of_head, o.head_dim, o.tokens % period == 0 ? period : 1};
        }
        return {own.size(), own.size() / own[0], 1};
    }

    Phantom* phantom_;
};

class Phantom::Groups final : public GroupMaker {
  public:
    explicit Groups(Phantom& phantom) : phantom_(&phantom) {}
    std::unique_ptr<Comm> make(perigee::Group const& group) override {
        if (group.size == 1) return make_single_comm(group.axis);
        return std::make_unique<Phantom::Group>(*phantom_, group.axis, group.size);
    }

  private:
    Phantom* phantom_;
};

Phantom::Phantom(PhantomOptions const& options, Ops& ops)
    : options_(options),
      ops_(&ops),
      world_(std::make_unique<PhantomHostComm>(options.rank, options.shape.world())),
      pace_(options.bytes_per_second > 0 ? make_pace(ops.device()) : nullptr) {
    if (options.rank < 0 || options.rank >= options.shape.world())
        fail(Category::config, "rank {} of a job of {} ranks, which counts from 0", options.rank,
             options.shape.world());
}

Phantom::~Phantom() = default;

double Phantom::take_own_seconds() {
    ops_->device().synchronize();
    double seconds = 0;
    for (auto const& [begin, end] : std::exchange(made_up_, {})) seconds += end.seconds_since(begin);
    return seconds;
}

std::unique_ptr<GroupMaker> Phantom::groups() { return std::make_unique<Groups>(*this); }

void fill_weights(ParamLayout const& layout, WeightUnits& weights, std::function<void(int, TensorView)> const& fill) {
    for (int unit = 0; unit < layout.units(); ++unit) {
        fill(unit, weights.need(unit, -1));
        weights.release(unit);
    }
}

}  // namespace perigee
