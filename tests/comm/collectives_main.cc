// Collectives of tensors between real processes, alone or under mpirun: on the CPU, with --gpu all ranks on one GPU, or
// with --gpus each on one of its own, whose memory NCCL registers, by every backend. Every rank can compute every other
// rank's input, so each checks its results against a serial one of its own. With --abort the ranks but the first begin
// a collective that cannot end, and leave it.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <string_view>
#include <thread>

#include "comm/groups.h"
#include "comm/launch.h"
#include "support/random.h"

namespace perigee {
namespace {

struct Job {
    static inline Launch* launch = nullptr;
    static inline Device* device = nullptr;
    static inline GpuRanks ranks{.share = true};
    /// All ranks; pairs of neighbours, where ranks are even in number, otherwise each alone; the ranks at the same
    /// place of their pairs.
    struct Comms {
        std::unique_ptr<GroupMaker> groups;
        std::unique_ptr<Comm> all, pairs, rest;
    };
    static inline std::map<std::string, Comms> by_backend;
};

constexpr DType kNumbers[] = {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64};
constexpr int64_t kSizes[] = {0, 1, 7, 1003};
constexpr int64_t kLarge = PERIGEE_SANITIZED ? 98305 : 786433;  // MiB of fp32 and an element

using Values = std::vector<double>;

/// Neighbours in a group of Job::Comms::pairs.
int pair_size(int ranks) { return ranks % 2 == 0 ? 2 : 1; }

/// What a rank brings: small whole numbers, whose sums every dtype holds, or with `real` random ones.
Values input(int rank, int64_t count, uint64_t seed, bool real = false) {
    Philox const random(seed, Purpose::mock_data, static_cast<uint64_t>(rank));
    Values values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = real ? static_cast<double>(to_float(to_bf16(static_cast<float>(random.normal(i)))))
                         : static_cast<double>(random.below(i, 15)) - 7;
    return values;
}

void encode(DType dtype, std::byte* at, double x) {
    auto const put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
    switch (dtype) {
        case DType::f32:
            return put(static_cast<float>(x));
        case DType::f64:
            return put(x);
        case DType::bf16:
            return put(to_bf16(static_cast<float>(x)));
        case DType::i32:
            return put(static_cast<int32_t>(x));
        case DType::i64:
            return put(static_cast<int64_t>(x));
        case DType::u8:
            return put(static_cast<uint8_t>(x));
    }
}

double decode(DType dtype, std::byte const* at) {
    auto const get = [&]<class T>(T value) {
        std::memcpy(&value, at, sizeof value);
        return value;
    };
    switch (dtype) {
        case DType::f32:
            return static_cast<double>(get(float{}));
        case DType::f64:
            return get(double{});
        case DType::bf16:
            return static_cast<double>(to_float(get(bf16{})));
        case DType::i32:
            return get(int32_t{});
        case DType::i64:
            return static_cast<double>(get(int64_t{}));
        case DType::u8:
            return get(uint8_t{});
    }
    return 0;
}

/// Memory of the device. Where nobody has written, a value is NaN or far from any.
class Tensor {
  public:
    Tensor(DType dtype, int64_t count)
        : memory_(*Job::device, static_cast<size_t>(count * size_of(dtype))),
          view_(static_cast<std::byte*>(memory_.data()), dtype, Shape{count}) {
        std::vector<std::byte> const poison(static_cast<size_t>(view_.bytes()), std::byte{0xff});
        Job::device->copy(view_.data, poison.data(), poison.size());
    }
    Tensor(DType dtype, Values const& values) : Tensor(dtype, std::ssize(values)) { set(values); }

    void set(Values const& values) {
        std::vector<std::byte> raw(static_cast<size_t>(view_.bytes()));
        auto const width = static_cast<size_t>(size_of(view_.dtype));
        for (size_t i = 0; i < values.size(); ++i) encode(view_.dtype, raw.data() + i * width, values[i]);
        Job::device->copy(view_.data, raw.data(), raw.size());
    }
    TensorView view() const { return view_; }
    Values values() const {
        std::vector<std::byte> raw(static_cast<size_t>(view_.bytes()));
        Job::device->copy(raw.data(), view_.data, raw.size());
        Values values(static_cast<size_t>(view_.size()));
        auto const width = static_cast<size_t>(size_of(view_.dtype));
        for (size_t i = 0; i < values.size(); ++i) values[i] = decode(view_.dtype, raw.data() + i * width);
        return values;
    }

  private:
    Buffer memory_;
    TensorView view_;
};

Values reduced(int ranks, int64_t count, uint64_t seed, Reduce op, bool real = false) {
    Values result = input(0, count, seed, real);
    for (int r = 1; r < ranks; ++r) {
        Values const other = input(r, count, seed, real);
        for (size_t i = 0; i < result.size(); ++i)
            result[i] = op == Reduce::sum   ? result[i] + other[i]
                        : op == Reduce::max ? std::max(result[i], other[i])
                                            : std::min(result[i], other[i]);
    }
    return result;
}

class CollectivesTest : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override {
        if (!Job::by_backend.contains(GetParam())) GTEST_SKIP() << "not on this device";
    }
    static Job::Comms& comms() { return Job::by_backend.at(GetParam()); }
    static Comm& all() { return *comms().all; }
    static Queue& queue() { return Job::device->queue(); }

    static void for_all(auto&& body) {
        for (DType const dtype : kNumbers)
            for (int64_t const count : kSizes) {
                SCOPED_TRACE(fmt::format("{} x {}", count, to_string(dtype)));
                body(dtype, count);
            }
        SCOPED_TRACE("large");
        body(DType::bf16, kLarge);
        body(DType::f32, kLarge);
    }
};

TEST_P(CollectivesTest, AllReduceCombinesEveryRanksValues) {
    for_all([&](DType dtype, int64_t count) {
        for (Reduce const op : {Reduce::sum, Reduce::max, Reduce::min}) {
            Tensor const x(dtype, input(all().rank(), count, 11));
            all().all_reduce(queue(), x.view(), op);
            EXPECT_EQ(x.values(), reduced(all().size(), count, 11, op));
        }
    });
}

TEST_P(CollectivesTest, SumsOfRealNumbersAreAsExactAsTheirDtypeAndTheSameBitsEverywhereAndEveryTime) {
    for (DType const dtype : {DType::f32, DType::f64, DType::bf16}) {
        double const tolerance = all().size() * (dtype == DType::bf16 ? 0.004 : dtype == DType::f32 ? 1e-7 : 1e-15);
        Values const own = input(all().rank(), kLarge, 12, true);
        Tensor const x(dtype, own), again(dtype, own);
        all().all_reduce(queue(), x.view());
        all().all_reduce(queue(), again.view());
        Values const sum = x.values();
        EXPECT_LT(testing::relative_error(sum, reduced(all().size(), kLarge, 12, Reduce::sum, true)), tolerance);
        EXPECT_EQ(sum, again.values());
        Values highest = sum, lowest = sum;
        all().host().all_reduce(TensorView(highest.data(), {kLarge}), Reduce::max);
        all().host().all_reduce(TensorView(lowest.data(), {kLarge}), Reduce::min);
        EXPECT_EQ(highest, lowest) << to_string(dtype);
    }
}

TEST_P(CollectivesTest, AllGatherPlacesPartsInRankOrderAlsoInPlace) {
    for_all([&](DType dtype, int64_t count) {
        Values want;
        for (int r = 0; r < all().size(); ++r) {
            Values const part = input(r, count, 13);
            want.insert(want.end(), part.begin(), part.end());
        }
        Values const own = input(all().rank(), count, 13);
        Tensor const part(dtype, own), gathered(dtype, count * all().size());
        all().all_gather(queue(), gathered.view(), part.view());
        EXPECT_EQ(gathered.values(), want);
        EXPECT_EQ(part.values(), own) << "the input changed";

        Tensor const in_place(dtype, count * all().size());
        TensorView const mine = in_place.view().rows(all().rank() * count, (all().rank() + 1) * count);
        queue().copy(mine.data, part.view().data, static_cast<size_t>(mine.bytes()));
        all().all_gather(queue(), in_place.view(), mine);
        EXPECT_EQ(in_place.values(), want);
    });
}

TEST_P(CollectivesTest, ReduceScatterGivesEachRankItsShareOfTheSumAlsoInPlace) {
    for_all([&](DType dtype, int64_t count) {
        Values const own = input(all().rank(), count * all().size(), 14);
        Values const sum = reduced(all().size(), count * all().size(), 14, Reduce::sum);
        int64_t const begin = all().rank() * count, end = begin + count;
        Values const want(sum.begin() + begin, sum.begin() + end);
        Tensor const whole(dtype, own), part(dtype, count);
        all().reduce_scatter(queue(), part.view(), whole.view());
        EXPECT_EQ(part.values(), want);
        EXPECT_EQ(whole.values(), own) << "the input changed";

        all().reduce_scatter(queue(), whole.view().rows(begin, end), whole.view());
        Values const after = whole.values();
        EXPECT_EQ(Values(after.begin() + begin, after.begin() + end), want);
    });
}

TEST_P(CollectivesTest, NcclSumsOfALaneAreInRankOrderAndRoundedOnce) {
    if (GetParam() != "nccl" || all().size() == 1) GTEST_SKIP();
    Queue& lane = Job::device->lane("sums");
    int const n = all().size(), rank = all().rank();
    for (DType const dtype : {DType::f32, DType::bf16})
        for (int64_t const count : {int64_t{1}, int64_t{1003}, kLarge / 8, int64_t{24}}) {
            SCOPED_TRACE(fmt::format("{} x {}", count, to_string(dtype)));
            std::vector<float> sums(static_cast<size_t>(count), 0);
            for (int r = 0; r < n; ++r) {
                Values const brought = input(r, count * n, 22, true);
                for (size_t i = 0; i < sums.size(); ++i)
                    sums[i] += static_cast<float>(brought[static_cast<size_t>(rank * count) + i]);
            }
            Values want;
            for (float const sum : sums) want.push_back(dtype == DType::bf16 ? to_float(to_bf16(sum)) : sum);
            Values const own = input(rank, count * n, 22, true);
            Tensor const source(dtype, own), part(dtype, count);
            Buffer const memory = all().allocate(*Job::device, static_cast<size_t>(source.view().bytes()));
            TensorView const whole(static_cast<std::byte*>(memory.data()), dtype, source.view().shape);
            Job::device->copy(whole.data, source.view().data, memory.bytes());
            for (bool const in_place : {false, true}) {
                lane.wait(queue().record());
                TensorView const to = in_place ? whole.rows(rank * count, (rank + 1) * count) : part.view();
                queue().wait(all().reduce_scatter(lane, to, whole));
                if (in_place) queue().copy(part.view().data, to.data, static_cast<size_t>(to.bytes()));
                EXPECT_EQ(part.values(), want) << (in_place ? "in place" : "apart");
            }
        }
}

TEST_P(CollectivesTest, AllToAllTransposesParts) {
    for_all([&](DType dtype, int64_t count) {
        int const n = all().size();
        Tensor const from(dtype, input(all().rank(), count * n, 15)), to(dtype, count * n);
        all().all_to_all(queue(), to.view(), from.view());
        Values want;
        for (int r = 0; r < n; ++r) {
            Values const sent = input(r, count * n, 15);
            want.insert(want.end(), sent.begin() + all().rank() * count, sent.begin() + (all().rank() + 1) * count);
        }
        EXPECT_EQ(to.values(), want);
    });
}

TEST_P(CollectivesTest, AllToAllTakesUnequalAndEmptyParts) {
    int const n = all().size(), rank = all().rank();
    for (int64_t const scale : {1, 17, 40000}) {
        auto const size = [&](int from, int to) { return scale * ((3 * from + 5 * to) % 4); };
        auto const sizes_from = [&](int r) {
            std::vector<int64_t> sizes;
            for (int to = 0; to < n; ++to) sizes.push_back(size(r, to));
            return sizes;
        };
        auto const total = [](std::vector<int64_t> const& sizes) {
            return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
        };
        std::vector<int64_t> received;
        Values want;
        for (int r = 0; r < n; ++r) {
            received.push_back(size(r, rank));
            auto const sizes = sizes_from(r);
            Values const sent = input(r, total(sizes), 16);
            int64_t const begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
            want.insert(want.end(), sent.begin() + begin, sent.begin() + begin + received.back());
        }
        auto const mine = sizes_from(rank);
        Tensor const from(DType::bf16, input(rank, total(mine), 16)), to(DType::bf16, std::ssize(want));
        all().all_to_all(queue(), to.view(), received, from.view(), mine);
        EXPECT_EQ(to.values(), want);
    }
}

TEST_P(CollectivesTest, BroadcastReachesEveryRankFromAnyRoot) {
    for_all([&](DType dtype, int64_t count) {
        for (int root = 0; root < all().size(); ++root) {
            Values const want = input(root, count, 17);
            Tensor const x = all().rank() == root ? Tensor(dtype, want) : Tensor(dtype, count);
            all().broadcast(queue(), x.view(), root);
            EXPECT_EQ(x.values(), want);
        }
    });
}

TEST_P(CollectivesTest, MessagesOfAGroupNeedNoOrder) {
    int const n = all().size(), rank = all().rank(), next = (rank + 1) % n, before = (rank + n - 1) % n;
    for (int64_t const count : {int64_t{1}, kLarge}) {
        Tensor const out(DType::f32, input(rank, count, 18)), second(DType::f32, input(rank, 5, 19));
        Tensor const in(DType::f32, count), other(DType::f32, 5), sum(DType::f32, input(rank, 9, 20));
        all().group(queue(), [&] {
            all().send(queue(), out.view(), next);
            all().send(queue(), second.view(), next);
            all().receive(queue(), in.view(), before);
            all().receive(queue(), other.view(), before);
        });
        all().group(queue(), [&] { all().all_reduce(queue(), sum.view()); });
        EXPECT_EQ(in.values(), input(before, count, 18));
        EXPECT_EQ(other.values(), input(before, 5, 19));
        EXPECT_EQ(sum.values(), reduced(n, 9, 20, Reduce::sum));
    }
}

TEST_P(CollectivesTest, SendMeetsReceive) {
    if (all().size() == 1) return;
    Tensor const x(DType::bf16, input(all().rank(), kLarge, 21));
    if (all().rank() == 0) all().send(queue(), x.view(), all().size() - 1);
    if (all().rank() == all().size() - 1) {
        all().receive(queue(), x.view(), 0);
        EXPECT_EQ(x.values(), input(0, kLarge, 21));
    }
}

TEST_P(CollectivesTest, GroupsAreThoseOfTheirColorInOrderOfTheirKey) {
    int64_t const self = all().rank(), pair = pair_size(all().size());
    for (bool const paired : {true, false}) {
        Comm* const comm = paired ? comms().pairs.get() : comms().rest.get();
        std::vector<int64_t> expected;
        for (int i = 0; i < (paired ? pair : all().size() / pair); ++i)
            expected.push_back(paired ? self / pair * pair + i : self % pair + i * pair);
        EXPECT_EQ(comm->host().sum(int64_t{1}), comm->size());
        std::vector<int64_t> members(static_cast<size_t>(comm->size()));
        comm->host().all_gather(TensorView(members.data(), {comm->size()}), ConstView(&self, {1}));
        EXPECT_EQ(members, expected);
        Tensor const part(DType::i64, Values{static_cast<double>(self)}), gathered(DType::i64, comm->size());
        comm->all_gather(queue(), gathered.view(), part.view());
        EXPECT_EQ(gathered.values(), Values(members.begin(), members.end()));
    }
}

/// Collectives of two groups on two lanes, and copies, which depend on each other through events alone.
TEST_P(CollectivesTest, LanesKeepTheOrderThatEventsSay) {
    constexpr int64_t kCount = 100003;
    Queue &first = Job::device->lane("first", Priority::high), &second = Job::device->lane("second", Priority::low);
    Tensor const x(DType::i64, Values(kCount, 1)), y(DType::i64, kCount), z(DType::i64, kCount);
    auto const bytes = static_cast<size_t>(x.view().bytes());
    double want = 1;
    for (int round = 0; round < 20; ++round) {
        // x -> y, summed over pairs -> z, summed over who is left -> x
        queue().copy(y.view().data, x.view().data, bytes);
        first.wait(queue().record());
        Pending const pairs = comms().pairs->all_reduce(first, y.view());
        second.wait(pairs);
        second.copy(z.view().data, y.view().data, bytes);
        Pending const rest = comms().rest->all_reduce(second, z.view());
        queue().wait(rest);
        queue().copy(x.view().data, z.view().data, bytes);
        want *= all().size();
    }
    EXPECT_EQ(x.values(), Values(kCount, want));
}

TEST_P(CollectivesTest, AnotherThreadMayAskForFailuresAllTheTime) {
    constexpr int64_t kCount = 257;
    constexpr int kCalls = 500;
    GroupMaker& groups = *Job::by_backend.at(GetParam()).groups;
    std::atomic<int> asked = 0, failed = 0;
    Tensor const x(DType::f64, Values(kCount, 1)), all_x(DType::f64, Values(kCount * all().size(), 0));
    {
        std::jthread const watchdog([&](std::stop_token const& stop) {
            for (; !stop.stop_requested(); ++asked) failed += groups.failure().empty() ? 0 : 1;
        });
        while (asked == 0) std::this_thread::yield();
        for (int i = 0; i < kCalls; ++i) all().all_gather(queue(), all_x.view(), x.view());
        queue().synchronize();
    }
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(all_x.values(), Values(kCount * all().size(), 1));
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectivesTest, ::testing::Values("mpi", "nccl"),
                         [](auto const& info) { return info.param; });

/// All ranks but the first wait for it, and then no more.
int abort_a_collective() {
    Job::Comms& comms = Job::by_backend.at("nccl");
    Tensor const x(DType::f32, Values(100, 1));
    comms.all->all_reduce(Job::device->queue(), x.view());  // connects
    Job::device->synchronize();
    if (comms.all->rank() > 0) {
        comms.all->all_reduce(Job::device->queue(), x.view());
        if (std::string const failure = comms.groups->failure(); !failure.empty()) {
            fmt::print(stderr, "failed before it was left: {}\n", failure);
            ::_exit(1);
        }
        comms.all->abort();
        Job::device->synchronize();
    }
    fmt::print("aborted\n");
    std::fflush(stdout);
    ::_exit(0);  // as on the error path: no communicator is destroyed
}

void make_comms(std::string const& backend, CommChoice choice) {
    HostComm& world = Job::launch->world();
    Job::Comms& comms = Job::by_backend[backend];
    comms.groups = make_group_maker(choice, world, *Job::device, Job::ranks);
    int const n = world.size(), rank = world.rank(), pair = pair_size(n);
    comms.all = comms.groups->make({.axis = Axis::data, .size = n, .color = 0, .key = rank});
    comms.pairs = comms.groups->make({.axis = Axis::tensor, .size = pair, .color = rank / pair, .key = rank});
    comms.rest = comms.groups->make({.axis = Axis::context, .size = n / pair, .color = rank % pair, .key = rank});
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    using namespace perigee;
    auto const said = [&](std::string_view what) { return std::ranges::find(argv, argv + argc, what) != argv + argc; };
    Launch launch(&argc, &argv);
    bool const own = said("--gpus"), gpu = own || said("--gpu");
    auto const device = gpu ? make_cuda_device(own ? launch.world().rank() : 0) : make_host_device();
    Job::launch = &launch;
    Job::device = device.get();
    if (own) Job::ranks = {.share = false, .register_memory = true};
    make_comms("mpi", CommChoice::mpi);
    if (gpu) make_comms("nccl", CommChoice::nccl);
    if (said("--abort")) return abort_a_collective();
    ::testing::InitGoogleTest(&argc, argv);
    int const code = RUN_ALL_TESTS();
    Job::by_backend.clear();  // before MPI ends
    return code;
}
