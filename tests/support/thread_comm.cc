#include "support/thread_comm.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

namespace perigee::testing {

namespace {

/// Shared by all groups of a job: a rank that ends must wake whoever waits for it, in whatever group.
struct Job {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<bool> left;  ///< by rank of the whole job
};

struct Group {
    Group(std::shared_ptr<Job> of, std::vector<int> ranks)
        : job(std::move(of)),
          members(std::move(ranks)),
          size(static_cast<int>(members.size())),
          slots(members.size()),
          sent(members.size()),
          orders(members.size()) {}

    void barrier() {
        std::unique_lock lock(job->mutex);
        int64_t const mine = generation;
        if (++arrived == size) {
            arrived = 0;
            ++generation;
            job->changed.notify_all();
            return;
        }
        job->changed.wait(lock, [&] { return generation != mine || someone_left(); });
        if (generation == mine) fail(Category::communication, "a rank left the job while others waited for it");
    }

    bool someone_left() const {
        return std::any_of(members.begin(), members.end(),
                           [&](int rank) { return job->left[static_cast<size_t>(rank)]; });
    }

    struct Order {
        int color, key, rank;
    };
    std::shared_ptr<Job> job;
    std::vector<int> members;  ///< ranks of the whole job
    int size;
    int arrived = 0;
    int64_t generation = 0;
    std::vector<ConstView> slots;             ///< what each rank brings to the collective under way
    std::vector<std::vector<Outgoing>> sent;  ///< what each rank brings to an exchange
    std::vector<Order> orders;                ///< what each rank asks of split
    std::map<int, std::shared_ptr<Group>> children;
};

template <class T>
void combine(TensorView sum, ConstView x, Reduce op) {
    T* a = sum.as<T>();
    T const* b = x.as<T>();
    for (int64_t i = 0; i < sum.size(); ++i) {
        a[i] = op == Reduce::sum ? a[i] + b[i] : op == Reduce::max ? std::max(a[i], b[i]) : std::min(a[i], b[i]);
    }
}

void combine(TensorView sum, ConstView x, Reduce op) {
    switch (sum.dtype) {
        case DType::f32:
            return combine<float>(sum, x, op);
        case DType::f64:
            return combine<double>(sum, x, op);
        case DType::i32:
            return combine<int32_t>(sum, x, op);
        case DType::i64:
            return combine<int64_t>(sum, x, op);
        default:
            fail(Category::internal, "cannot reduce {}", to_string(sum.dtype));
    }
}

class ThreadComm final : public HostComm {
  public:
    ThreadComm(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

    int rank() const override { return rank_; }
    int size() const override { return group_->size; }

    void all_reduce(TensorView x, Reduce op) override {
        std::vector<std::byte> memory(static_cast<size_t>(x.bytes()));
        TensorView const result(memory.data(), x.dtype, x.shape);
        collective(x, [&] {
            copy(result.data, slot(0).data, x.bytes());
            for (int r = 1; r < size(); ++r) combine(result, slot(r), op);
        });
        copy(x.data, result.data, x.bytes());
    }

    void all_gather(TensorView all, ConstView part) override {
        PERIGEE_CHECK(all.bytes() == part.bytes() * size(), "all_gather of {} into {}", part.bytes(), all.bytes());
        collective(part, [&] {
            for (int r = 0; r < size(); ++r) copy(all.data + r * part.bytes(), slot(r).data, part.bytes());
        });
    }

    void reduce_scatter(TensorView part, ConstView all) override {
        PERIGEE_CHECK(all.bytes() == part.bytes() * size(), "reduce_scatter of {} into {}", all.bytes(), part.bytes());
        std::vector<std::byte> memory(static_cast<size_t>(part.bytes()));
        TensorView const result(memory.data(), part.dtype, part.shape);
        auto const share = [&](int r) {
            return ConstView(slot(r).data + rank_ * part.bytes(), part.dtype, part.shape);
        };
        collective(all, [&] {
            copy(result.data, share(0).data, part.bytes());
            for (int r = 1; r < size(); ++r) combine(result, share(r), Reduce::sum);
        });
        copy(part.data, result.data, part.bytes());
    }

    void all_to_all(TensorView to, ConstView from) override {
        PERIGEE_CHECK(to.bytes() == from.bytes() && to.bytes() % size() == 0, "all_to_all of {} into {}", from.bytes(),
                      to.bytes());
        int64_t const share = to.bytes() / size();
        collective(from, [&] {
            for (int r = 0; r < size(); ++r) copy(to.data + r * share, slot(r).data + rank_ * share, share);
        });
    }

    void exchange(std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        group_->sent[static_cast<size_t>(rank_)].assign(sent.begin(), sent.end());
        group_->barrier();
        std::vector<size_t> next(static_cast<size_t>(size()));  // message of each rank, of those for this one
        for (Incoming const& message : received) {
            auto const& from = group_->sent[static_cast<size_t>(message.from)];
            size_t& at = next[static_cast<size_t>(message.from)];
            while (at < from.size() && from[at].to != rank_) ++at;
            PERIGEE_CHECK(at < from.size() && from[at].x.bytes() == message.x.bytes(), "a message from rank {}",
                          message.from);
            copy(message.x.data, from[at++].x.data, message.x.bytes());
        }
        group_->barrier();
    }

    void broadcast(TensorView x, int root) override {
        collective(x, [&] {
            PERIGEE_CHECK(slot(root).bytes() == x.bytes(), "broadcast of {} into {}", slot(root).bytes(), x.bytes());
            if (rank_ != root) copy(x.data, slot(root).data, x.bytes());
        });
    }

    void barrier() override { group_->barrier(); }

    std::unique_ptr<HostComm> split(int color, int key, Axis) override {
        auto& orders = group_->orders;
        orders[static_cast<size_t>(rank_)] = {color, key, rank_};
        group_->barrier();
        std::vector<Group::Order> mine;
        for (auto const& order : orders) {
            if (order.color == color) mine.push_back(order);
        }
        std::stable_sort(mine.begin(), mine.end(), [](auto const& a, auto const& b) { return a.key < b.key; });
        auto const place = std::find_if(mine.begin(), mine.end(), [&](auto const& o) { return o.rank == rank_; });
        std::shared_ptr<Group> child;
        {
            std::lock_guard const lock(group_->job->mutex);
            auto& shared = group_->children[color];
            if (!shared) {
                std::vector<int> members;
                for (auto const& order : mine) members.push_back(group_->members[static_cast<size_t>(order.rank)]);
                shared = std::make_shared<Group>(group_->job, std::move(members));
            }
            child = shared;
        }
        group_->barrier();
        if (rank_ == 0) {
            std::lock_guard const lock(group_->job->mutex);
            group_->children.clear();
        }
        group_->barrier();
        return std::make_unique<ThreadComm>(std::move(child), static_cast<int>(place - mine.begin()));
    }

  private:
    static void copy(std::byte* to, std::byte const* from, int64_t bytes) {
        if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
    }
    ConstView const& slot(int rank) const { return group_->slots[static_cast<size_t>(rank)]; }

    /// Everybody shows what it brings, everybody reads, nobody goes on before all have read.
    template <class Read>
    void collective(ConstView brings, Read&& read) {
        group_->slots[static_cast<size_t>(rank_)] = brings;
        group_->barrier();
        read();
        group_->barrier();
    }

    std::shared_ptr<Group> group_;
    int rank_;
};

bool is_echo(std::exception_ptr const& error) {
    try {
        std::rethrow_exception(error);
    } catch (Error const& e) {
        return e.category() == Category::communication;
    } catch (...) {
        return false;
    }
}

}  // namespace

std::vector<std::exception_ptr> try_ranks(int size, std::function<void(HostComm&)> const& body) {
    auto const job = std::make_shared<Job>();
    job->left.resize(static_cast<size_t>(size));
    std::vector<int> everybody(static_cast<size_t>(size));
    std::iota(everybody.begin(), everybody.end(), 0);
    auto const world = std::make_shared<Group>(job, std::move(everybody));
    std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                ThreadComm comm(world, rank);
                body(comm);
            } catch (...) {
                errors[static_cast<size_t>(rank)] = std::current_exception();
            }
            std::lock_guard const lock(job->mutex);
            job->left[static_cast<size_t>(rank)] = true;
            job->changed.notify_all();
        });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
}

void run_ranks(int size, std::function<void(HostComm&)> const& body) {
    auto errors = try_ranks(size, body);
    std::stable_partition(errors.begin(), errors.end(), [](auto const& e) { return e && !is_echo(e); });
    for (auto const& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace perigee::testing
