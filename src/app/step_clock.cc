#include "app/step_clock.h"

#include <algorithm>
#include <cmath>

#include "comm/ring_bytes.h"
#include "model/offload.h"
#include "ops/operation_views.h"
#include "optim/moments.h"

namespace perigee {

namespace {

/// Pairs of queries [0, n) of a document with the keys that they attend: all before, or as many as the budget has.
double pairs_before(double n, std::optional<BlockBudget> const& budget) {
    double const size = budget ? static_cast<double>(budget->block_size) : 0;
    double const all = budget ? std::min(n, size * static_cast<double>(budget->top_k)) : n;
    double pairs = all * (all + 1) / 2;
    if (n <= all) return pairs;
    double const blocks = std::floor((n - all) / size), rest = n - all - blocks * size;
    pairs += (n - all) * size * static_cast<double>(budget->top_k - 1);
    return pairs + blocks * size * (size + 1) / 2 + rest * (rest + 1) / 2;
}

struct Work {
    double pairs = 0;
    double longest = 0;  ///< document
};

/// Of `rows` queries from `begin` on.
Work work_of(std::span<int32_t const> cu_seqlens, int64_t begin, int64_t rows,
             std::optional<BlockBudget> const& budget) {
    Work work;
    for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
        int64_t const first = std::max<int64_t>(cu_seqlens[i], begin),
                      last = std::min<int64_t>(cu_seqlens[i + 1], begin + rows);
        if (first >= last) continue;
        auto const from = static_cast<double>(first - cu_seqlens[i]), to = static_cast<double>(last - cu_seqlens[i]);
        work.pairs += pairs_before(to, budget) - pairs_before(from, budget);
        work.longest = std::max(work.longest, static_cast<double>(cu_seqlens[i + 1] - cu_seqlens[i]));
    }
    return work;
}

std::optional<BlockBudget> budget_of(Attended const& attended) {
    auto const* const sparse = std::get_if<BlockSparse>(&attended);
    return sparse != nullptr ? std::optional(sparse->budget) : std::nullopt;
}

/// Between the lengths of which the rates are known, 1K, 8K, 32K and 128K, in proportion to their logarithms.
double by_length(double length, std::array<DeviceRate, 4> const& rates) {
    constexpr std::array kLengths = {10.0, 13.0, 15.0, 17.0};  // powers of two
    double const x = std::clamp(std::log2(length), kLengths.front(), kLengths.back());
    size_t i = 1;
    while (x > kLengths[i]) ++i;
    double const share = (x - kLengths[i - 1]) / (kLengths[i] - kLengths[i - 1]);
    return rates[i - 1].value + share * (rates[i].value - rates[i - 1].value);
}

struct Cost {
    DeviceRates const& rates;

    double flops(double count, double tera) const { return count / (1e12 * tera); }
    double bytes(double count) const { return count / (1e9 * rates.memory.value); }

    double operator()(MatMul const& x) const {
        auto const [m, n, k] = std::array{x.c[0], x.c[1], x.a[x.transpose_a ? 0 : 1]};
        double const moved = static_cast<double>(x.a.bytes() + x.b.bytes() + (x.accumulate ? 2 : 1) * x.c.bytes());
        double const count = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
        return std::max(flops(count, rates.products.value), bytes(moved));
    }
    /// Block-scaled products are faster if one operand has square tiles. Speed-ups over bf16 as measured on an H200.
    double operator()(QuantMatMul const& x) const {
        double const moved =
            static_cast<double>(x.a.values.bytes() + x.b.values.bytes() + (x.accumulate ? 2 : 1) * x.c.bytes());
        double const count = 2.0 * static_cast<double>(x.c.size()) * static_cast<double>(x.a.values[1]);
        double const faster = x.b.tiles == Tiles::squares ? 1.6 : 1.27;
        return std::max(flops(count, rates.products.value * faster), bytes(moved));
    }
    double operator()(AttentionForward const& x) const {
        auto const budget = budget_of(x.attended);
        Work const work = work_of(x.cu_seqlens, x.query_begin, x.q_THK[0], budget);
        double const count = 4 * work.pairs * static_cast<double>(x.q_THK[1] * x.q_THK[2]);
        double const heads = x.q_THK[2] <= 64 ? rates.small_heads_forward.value : 1;
        if (budget) return flops(count, rates.moba_forward.value * heads);
        double const rate = by_length(work.longest, {rates.full_forward_1k, rates.full_forward_8k,
                                                     rates.full_forward_32k, rates.full_forward_128k});
        return flops(count, rate * heads);
    }
    double operator()(AttentionBackward const& x) const {
        auto const budget = budget_of(x.attended);
        Work const work = work_of(x.cu_seqlens, x.query_begin, x.q_THK[0], budget);
        double const count = 10 * work.pairs * static_cast<double>(x.q_THK[1] * x.q_THK[2]);
        double const heads = x.q_THK[2] <= 64 ? rates.small_heads_backward.value : 1;
        double const gathered = x.q_THK[0] < x.k_TGK[0] ? rates.moba_gathered_backward.value : 1;
        if (budget) return flops(count, rates.moba_backward.value * heads * gathered);
        double const rate = by_length(work.longest, {rates.full_backward_1k, rates.full_backward_8k,
                                                     rates.full_backward_32k, rates.full_backward_128k});
        return flops(count, rate * heads);
    }
    double operator()(SelectBlocks const& x) const {
        auto const budget = perigee::budget_of(x.selection);
        Work const work = work_of(x.cu_seqlens, x.query_begin, x.q_THK[0], {});
        double const scores = work.pairs / static_cast<double>(budget ? budget->block_size : 1);
        return flops(2 * scores * static_cast<double>(x.q_THK[1] * x.q_THK[2]), rates.moba_choice.value) +
               bytes(static_cast<double>(x.k_TGK.bytes()));
    }
    // Tables are not read whole.
    double operator()(EmbeddingForward const& x) const { return bytes(2.0 * static_cast<double>(x.x_TD.bytes())); }
    double operator()(EmbeddingBackward const& x) const { return bytes(5.0 * static_cast<double>(x.dx_TD.bytes())); }
    /// Of its views it reads and writes what it copies.
    double operator()(CopyRows const& x) const {
        return bytes(2.0 * static_cast<double>(x.rows * x.width) * static_cast<double>(size_of(x.to.dtype)));
    }
    double operator()(Upload const&) const { return 0; }
    double operator()(Download const&) const { return 0; }
    template <class Other>
    double operator()(Other const& x) const {
        double moved = 0;
        each_view(Operation(x), [&](ConstView view, bool writes) {
            moved += static_cast<double>(view.bytes()) * (writes && reads_what_it_writes<Other>() ? 2 : 1);
        });
        return bytes(moved);
    }

  private:
    template <class T>
    static constexpr bool reads_what_it_writes() {
        return std::is_same_v<T, Add> || std::is_same_v<T, Scale> || std::is_same_v<T, AdamW>;
    }
};

/// Seconds of an all_to_all across hosts: all messages leave at once, those to ranks of other hosts through the GPU's
/// own share of the network.
double all_to_all_seconds(double brought, double ranks, double on_host, DeviceRates const& rates) {
    double const within = brought * (on_host - 1) / ranks, beyond = brought * (ranks - on_host) / ranks;
    return 1e-6 * rates.hop.value + std::max(within / (1e9 * rates.link.value), beyond / (1e9 * rates.network.value));
}

}  // namespace

double operation_seconds(Operation const& operation, DeviceRates const* rates) {
    if (rates == nullptr) return 0;
    return std::max(std::visit(Cost{*rates}, operation), 1e-6 * rates->launch.value);
}

double collective_seconds(Collective collective, int64_t brought, GroupPlace const& place, DeviceRates const* rates) {
    if (rates == nullptr || place.ranks == 1) return 0;
    double const bytes = ring_bytes(collective, brought, place.ranks);
    double const ends = collective == Collective::all_reduce ? 2 : 1;  // it is two in turn
    double const link = 1e9 * rates->link.value;
    int64_t const on_host = std::max<int64_t>(rates->gpus_per_host / place.stride, 1);
    if (place.ranks <= on_host) return ends * 1e-6 * rates->latency.value + bytes / link;
    if (collective == Collective::all_to_all)
        return all_to_all_seconds(static_cast<double>(brought), place.ranks, static_cast<double>(on_host), *rates);
    double const network = std::min(link, static_cast<double>(on_host) * 1e9 * rates->network.value);
    double const hop = ends * 1e-6 * rates->hop.value;
    double const ring = hop * (place.ranks - 1) + bytes / network;
    double const tree = hop * 2 * std::log2(place.ranks) + bytes / (network / 2);
    return std::min(ring, tree);
}

double slowest_of(int ranks) {
    if (ranks == 1) return 0;
    // Blom's approximation; the quantile by bisection.
    double const share = (ranks - 0.375) / (ranks + 0.25);
    double low = 0, high = 10;
    for (int i = 0; i < 60; ++i) {
        double const middle = (low + high) / 2;
        (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share ? low : high) = middle;
    }
    return low;
}

StepTime& StepTime::add(StepTime const& x, double factor) {
    step += factor * x.step;
    products += factor * x.products, attention += factor * x.attention, other += factor * x.other;
    beside += factor * x.beside;
    for (auto const& [axis, seconds] : x.exposed) exposed[axis] += factor * seconds;
    return *this;
}

struct ClockedQueues::Point final : Event::Point {
    Point(Clocked const* queue, Clocked const* waits, Axis of, double time)
        : recorded_in(queue), compute(waits), axis(of), seconds(time) {}
    bool reached() const noexcept override;
    Clocked const* recorded_in;
    Clocked const* compute;
    Axis axis;
    double seconds;
};

class ClockedQueues::Clocked final : public Queue {
  public:
    Clocked(ClockedQueues& owner, std::string name) : Queue(*owner.device_, std::move(name)), owner_(&owner) {}
    Event record() override {
        return Event(std::make_shared<ClockedQueues::Point>(this, &owner_->compute(), axis, seconds));
    }
    Event stamp() override { return record(); }
    void wait(Event const& event) override {
        auto const* const point = dynamic_cast<ClockedQueues::Point const*>(event.point());
        if (point == nullptr || point->seconds <= seconds) return;
        if (this == &owner_->compute()) {
            bool const copies = point->recorded_in->copies();
            owner_->now_.exposed[copies ? "host" : to_string(point->axis)] += point->seconds - seconds;
            if (!copies) owner_->waited_ += point->seconds - seconds;
        }
        seconds = point->seconds;
    }
    void copy(void*, void const*, size_t bytes) override {
        if (owner_->rates_ == nullptr) return;
        double const gigabytes = 1e-9 * static_cast<double>(bytes);
        seconds += copies() ? gigabytes / owner_->rates_->host.value : 2 * gigabytes / owner_->rates_->memory.value;
    }
    void call(std::function<void()> const& work) override { work(); }
    void synchronize() override {}
    /// To and from the host.
    bool copies() const { return name() == kOffloadLane || name() == kMomentsLane; }

    double seconds = 0;
    Axis axis = Axis::all;  ///< of its last collective

  private:
    ClockedQueues* owner_;
};

bool ClockedQueues::Point::reached() const noexcept { return compute->seconds >= seconds; }

ClockedQueues::ClockedQueues(Device& device, DeviceRates const* rates) : device_(&device), rates_(rates) {}
ClockedQueues::~ClockedQueues() = default;

Queue& ClockedQueues::at(std::string const& name) {
    auto& queue = queues_[name];
    if (!queue) queue = std::make_unique<Clocked>(*this, name);
    return *queue;
}

size_t ClockedQueues::workspace_bytes() const {
    size_t sum = 0;
    for (auto const& [name, queue] : queues_)
        if (name != "compute") sum += queue->workspace_bytes();
    return sum;
}

ClockedQueues::Clocked& ClockedQueues::compute() { return static_cast<Clocked&>(at("compute")); }

void ClockedQueues::run(Operation const& operation) {
    double const seconds = operation_seconds(operation, rates_);
    compute().seconds += seconds;
    bool const attends = std::holds_alternative<AttentionForward>(operation) ||
                         std::holds_alternative<AttentionBackward>(operation) ||
                         std::holds_alternative<SelectBlocks>(operation);
    bool const product = std::holds_alternative<MatMul>(operation) || std::holds_alternative<QuantMatMul>(operation);
    (product ? now_.products : attends ? now_.attention : now_.other) += seconds;
}

void ClockedQueues::collective(Queue& queue, Axis axis, Collective collective, int64_t brought, int ranks, int stride) {
    double const seconds = collective_seconds(collective, brought, {ranks, stride}, rates_);
    auto& clocked = static_cast<Clocked&>(queue);
    clocked.seconds += seconds;
    clocked.axis = axis;
    if (&clocked == &compute())
        now_.exposed[to_string(axis)] += seconds;
    else
        lanes_ += seconds;
}

StepTime ClockedQueues::take() {
    StepTime time = std::exchange(now_, {});
    time.step = compute().seconds - std::exchange(begin_, compute().seconds);
    time.beside = std::max(std::exchange(lanes_, 0) - std::exchange(waited_, 0), 0.0);
    return time;
}

}  // namespace perigee
