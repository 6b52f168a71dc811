// Collectives of tensors through memory of the host, by any HostComm. On the CPU they work on the tensors themselves.
#include <algorithm>
#include <utility>
#include <vector>

#include "comm/checks.h"
#include "comm/comm.h"

namespace perigee {

namespace {

/// First of `size` elements that are rank r's.
int64_t part_begin(int64_t size, int rank, int ranks) { return size * rank / ranks; }

/// Rows of one size, combined in their order: sums in fp32, rounded once.
void combine(TensorView result, std::span<ConstView const> rows, Reduce op) {
    bf16* const out = result.as<bf16>();
    for (int64_t i = 0; i < result.size(); ++i) {
        float value = to_float(rows[0].as<bf16>()[i]);
        for (ConstView const& row : rows.subspan(1)) {
            float const other = to_float(row.as<bf16>()[i]);
            value = op == Reduce::sum   ? value + other
                    : op == Reduce::max ? std::max(value, other)
                                        : std::min(value, other);
        }
        out[i] = to_bf16(value);
    }
}

/// Host memory for views of bf16.
class Room {
  public:
    explicit Room(int64_t elements) : values_(static_cast<size_t>(elements)) {}
    TensorView take(int64_t elements) {
        TensorView const view(values_.data() + used_, Shape{elements});
        used_ += elements;
        return view;
    }

  private:
    std::vector<bf16> values_;
    int64_t used_ = 0;
};

/// MPI adds no bf16: every rank collects its part of all ranks' values, combines them in rank order, and hands the
/// result on.
void all_reduce_bf16(HostComm& host, TensorView x, Reduce op) {
    int const ranks = host.size(), rank = host.rank();
    TensorView const flat = x.reshape({x.size()});
    auto const part = [&](int r) {
        return flat.rows(part_begin(x.size(), r, ranks), part_begin(x.size(), r + 1, ranks));
    };
    TensorView const mine = part(rank);
    Room room(ranks * mine.size());
    std::vector<Outgoing> sent;
    std::vector<Incoming> received;
    std::vector<ConstView> rows;
    for (int r = 0; r < ranks; ++r) {
        sent.push_back({part(r), r});
        received.push_back({room.take(mine.size()), r});
        rows.push_back(received.back().x);
    }
    host.exchange(sent, received);
    combine(mine, rows, op);
    sent.clear(), received.clear();
    for (int r = 0; r < ranks; ++r) {
        if (r == rank) continue;
        sent.push_back({mine, r});
        received.push_back({part(r), r});
    }
    host.exchange(sent, received);
}

void sum_and_scatter(HostComm& host, TensorView part, ConstView all) {
    if (part.dtype != DType::bf16) return host.reduce_scatter(part, all);
    Room room(all.size());
    TensorView const collected = room.take(all.size());
    host.all_to_all(collected, all);
    std::vector<ConstView> rows;
    TensorView const flat = collected.reshape({all.size()});
    for (int r = 0; r < host.size(); ++r) rows.push_back(flat.rows(r * part.size(), (r + 1) * part.size()));
    combine(part, rows, Reduce::sum);
}

bool is_inside(ConstView part, ConstView whole) {
    return whole.data <= part.data && part.data < whole.data + whole.bytes();
}

/// The tensors of one collective in memory of the host: themselves on the CPU, otherwise copies in pinned memory.
class Staged {
  public:
    /// `slots` are kept from collective to collective.
    Staged(Queue& queue, std::vector<HostBuffer>& slots) : queue_(queue), slots_(slots) {}

    /// What is read.
    ConstView in(ConstView x) {
        if (direct()) return x;
        TensorView const place = take(x);
        queue_.copy(place.data, x.data, static_cast<size_t>(x.bytes()));
        queue_.synchronize();
        return place;
    }
    /// What is written.
    TensorView out(TensorView x) {
        if (direct()) return x;
        TensorView const place = take(x);
        results_.emplace_back(x, place);
        return place;
    }
    TensorView both(TensorView x) {
        if (direct()) return x;
        in(x);
        results_.emplace_back(x, last_);
        return last_;
    }
    /// Hands the results on. The slots are free afterwards.
    void finish() {
        for (auto const& [to, from] : results_) queue_.copy(to.data, from.data, static_cast<size_t>(to.bytes()));
        if (!results_.empty()) queue_.synchronize();
    }

  private:
    bool direct() const { return queue_.device().is_host(); }
    TensorView take(ConstView like) {
        if (used_ == slots_.size()) slots_.emplace_back();
        HostBuffer& slot = slots_[used_++];
        auto const bytes = static_cast<size_t>(like.bytes());
        if (slot.bytes() < bytes) {
            slot = {};  // never both at once
            slot = HostBuffer(queue_.device(), bytes);
        }
        last_ = {static_cast<std::byte*>(slot.data()), like.dtype, like.shape};
        return last_;
    }

    Queue& queue_;
    std::vector<HostBuffer>& slots_;
    size_t used_ = 0;
    TensorView last_;
    std::vector<std::pair<TensorView, TensorView>> results_;
};

class OverHostComm final : public Comm {
  public:
    using Comm::Comm;

  protected:
    void queue_all_reduce(Queue& queue, TensorView x, Reduce op) override {
        on_host(queue, [this, x, op](Staged& staged) {
            TensorView const values = staged.both(x);
            if (x.dtype == DType::bf16) return all_reduce_bf16(host(), values, op);
            host().all_reduce(values, op);
        });
    }
    void queue_all_gather(Queue& queue, TensorView all, ConstView part) override {
        on_host(queue, [this, all, part](Staged& staged) {
            ConstView const from = staged.in(part);
            host().all_gather(staged.out(all), from);
        });
    }
    void queue_reduce_scatter(Queue& queue, TensorView part, ConstView all) override {
        on_host(queue, [this, part, all, &queue](Staged& staged) {
            ConstView const from = staged.in(all);
            TensorView const to = staged.out(part);
            if (!is_inside(to, from)) return sum_and_scatter(host(), to, from);
            auto const bytes = static_cast<size_t>(to.bytes());
            TensorView const sums{static_cast<std::byte*>(queue.workspace(bytes)), to.dtype, to.shape};
            sum_and_scatter(host(), sums, from);
            queue.copy(to.data, sums.data, bytes);
        });
    }
    void queue_all_to_all(Queue& queue, TensorView to, ConstView from) override {
        on_host(queue, [this, to, from](Staged& staged) {
            ConstView const sent = staged.in(from);
            host().all_to_all(staged.out(to), sent);
        });
    }
    void queue_exchange(Queue& queue, std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        on_host(queue, [this, sent = std::vector(sent.begin(), sent.end()),
                        received = std::vector(received.begin(), received.end())](Staged& staged) mutable {
            for (Outgoing& message : sent) message.x = staged.in(message.x);
            for (Incoming& message : received) message.x = staged.out(message.x);
            host().exchange(sent, received);
        });
    }
    void queue_broadcast(Queue& queue, TensorView x, int root) override {
        on_host(queue, [this, x, root](Staged& staged) { host().broadcast(staged.both(x), root); });
    }

  private:
    void on_host(Queue& queue, auto&& collective) {
        queue.call([this, &queue, collective]() mutable {
            Staged staged(queue, slots_);
            collective(staged);
            staged.finish();
        });
    }

    std::vector<HostBuffer> slots_;
};

}  // namespace

std::unique_ptr<Comm> make_comm_over_host(std::unique_ptr<HostComm> host, Axis axis) {
    return std::make_unique<OverHostComm>(std::move(host), axis);
}

}  // namespace perigee
