// Comm and Launch between real processes: run it alone or under mpirun (tests/comm/mpi_comm_test.sh does both). Every
// rank can compute every other rank's input, so each checks its outputs against a serial result of its own.
// With --fail=all|one|watchdog|kill it leaves the job in that way instead; --code is the exit code it asks for.
#include <gtest/gtest.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include "comm/launch.h"
#include "comm/mpi/mpi_host_comm.h"
#include "support/random.h"

namespace perigee {
namespace {

using testing::poisoned;

template <class T>
ConstView view(std::vector<T> const& x) {
    return ConstView(x.data(), Shape{static_cast<int64_t>(x.size())});
}
template <class T>
TensorView view(std::vector<T>& x) {
    return TensorView(x.data(), Shape{static_cast<int64_t>(x.size())});
}

/// What `rank` contributes; integers cover large and negative values but leave room for sums.
template <class T>
std::vector<T> input(int rank, int64_t count, uint64_t seed) {
    Philox const random(seed, Purpose::mock_data, static_cast<uint64_t>(rank));
    std::vector<T> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_floating_point_v<T>) {
            values[i] = static_cast<T>(random.normal(i));
        } else {
            values[i] = static_cast<T>(static_cast<T>(random.u64(i)) / T{16});
        }
    }
    return values;
}

/// Memory that holds no right answer by accident.
template <class T>
std::vector<T> spoiled(int64_t count) {
    if constexpr (std::is_floating_point_v<T>) return poisoned<T>(count);
    return std::vector<T>(static_cast<size_t>(count), static_cast<T>(0xA5));
}

template <class T>
T reduced(T a, T b, Reduce op) {
    if (op == Reduce::sum) return a + b;
    return op == Reduce::max ? std::max(a, b) : std::min(a, b);
}

template <class T>
std::vector<T> serial_reduction(int ranks, int64_t count, uint64_t seed, Reduce op) {
    std::vector<T> result = input<T>(0, count, seed);
    for (int r = 1; r < ranks; ++r) {
        auto const other = input<T>(r, count, seed);
        for (size_t i = 0; i < result.size(); ++i) result[i] = reduced(result[i], other[i], op);
    }
    return result;
}

/// Sums of floating-point numbers may differ in the order of additions, everything else is exact.
template <class T>
void expect_reduced(std::vector<T> const& have, std::vector<T> const& want, Reduce op) {
    if (std::is_floating_point_v<T> && op == Reduce::sum) {
        EXPECT_LT(testing::relative_error(have, want), 8 * std::numeric_limits<T>::epsilon());
    } else {
        EXPECT_EQ(have, want);
    }
}

/// The world, whole messages or in small pieces, few enough of them for ranks that share cores with other work: there a
/// message can take milliseconds.
class CommTest : public ::testing::TestWithParam<int64_t> {
  public:
    static inline Launch* launch = nullptr;

  protected:
    std::unique_ptr<HostComm> world() {
        return under_launcher() ? make_mpi_world(GetParam()) : launch->world().split(0, 0);
    }
    static bool under_launcher() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

    template <class Body>
    static void for_numbers(Body body) {
        body(float{});
        body(double{});
        body(int32_t{});
        body(int64_t{});
    }
    static constexpr int64_t kSizes[] = {0, 1, 7, 1003};
};

TEST_P(CommTest, AllReduceEqualsTheSerialReductionOnEveryRankBitForBit) {
    auto comm = world();
    for_numbers([&]<class T>(T) {
        for (Reduce op : {Reduce::sum, Reduce::max, Reduce::min}) {
            for (int64_t count : kSizes) {
                auto x = input<T>(comm->rank(), count, 11);
                comm->all_reduce(view(x), op);
                expect_reduced(x, serial_reduction<T>(comm->size(), count, 11, op), op);
                auto again = input<T>(comm->rank(), count, 11);
                comm->all_reduce(view(again), op);
                EXPECT_EQ(x, again);
                auto everywhere = spoiled<T>(count * comm->size());
                comm->all_gather(view(everywhere), view(x));
                for (size_t i = 0; i < everywhere.size(); ++i) {
                    ASSERT_EQ(everywhere[i], x[i % x.size()]) << "rank " << i / x.size();
                }
            }
        }
    });
}

TEST_P(CommTest, AllGatherPlacesPartsInRankOrderAlsoInPlace) {
    auto comm = world();
    auto check = [&]<class T>(T) {
        for (int64_t count : kSizes) {
            std::vector<T> want;
            for (int r = 0; r < comm->size(); ++r) {
                auto const part = input<T>(r, count, 12);
                want.insert(want.end(), part.begin(), part.end());
            }
            auto const part = input<T>(comm->rank(), count, 12);
            auto all = spoiled<T>(count * comm->size());
            comm->all_gather(view(all), view(part));
            EXPECT_EQ(all, want);

            all = spoiled<T>(count * comm->size());
            std::copy(part.begin(), part.end(), all.begin() + comm->rank() * count);
            comm->all_gather(view(all), view(all).rows(comm->rank() * count, (comm->rank() + 1) * count));
            EXPECT_EQ(all, want);
        }
    };
    for_numbers(check);
    check(uint8_t{});
}

TEST_P(CommTest, ReduceScatterGivesEachRankItsShareOfTheSum) {
    auto comm = world();
    for_numbers([&]<class T>(T) {
        for (int64_t count : kSizes) {
            auto const all = input<T>(comm->rank(), count * comm->size(), 13);
            auto part = spoiled<T>(count);
            comm->reduce_scatter(view(part), view(all));
            auto const sum = serial_reduction<T>(comm->size(), count * comm->size(), 13, Reduce::sum);
            auto const begin = sum.begin() + comm->rank() * count;
            expect_reduced(part, std::vector<T>(begin, begin + count), Reduce::sum);
            EXPECT_EQ(all, input<T>(comm->rank(), count * comm->size(), 13)) << "the input changed";
        }
    });
}

TEST_P(CommTest, AllToAllTransposesParts) {
    auto comm = world();
    auto check = [&]<class T>(T) {
        for (int64_t count : kSizes) {
            auto const from = input<T>(comm->rank(), count * comm->size(), 14);
            auto to = spoiled<T>(count * comm->size());
            comm->all_to_all(view(to), view(from));
            for (int r = 0; r < comm->size(); ++r) {
                auto const sent = input<T>(r, count * comm->size(), 14);
                auto const want = sent.begin() + comm->rank() * count;
                EXPECT_TRUE(std::equal(want, want + count, to.begin() + r * count)) << "from rank " << r;
            }
        }
    };
    for_numbers(check);
    check(uint8_t{});
}

TEST_P(CommTest, BroadcastReachesEveryRankFromAnyRoot) {
    auto comm = world();
    for (int root = 0; root < comm->size(); ++root) {
        for_numbers([&]<class T>(T) {
            for (int64_t count : kSizes) {
                auto x = comm->rank() == root ? input<T>(root, count, 15) : spoiled<T>(count);
                comm->broadcast(view(x), root);
                EXPECT_EQ(x, input<T>(root, count, 15));
            }
        });
    }
}

TEST_P(CommTest, SplitGroupsByColorInOrderOfKeyAndNests) {
    auto comm = world();
    int const color = comm->rank() % 2;
    auto group = comm->split(color, -comm->rank());
    std::vector<int> members;
    for (int r = comm->size() - 1; r >= 0; --r) {
        if (r % 2 == color) members.push_back(r);
    }
    ASSERT_EQ(group->size(), static_cast<int>(members.size()));
    EXPECT_EQ(members.at(static_cast<size_t>(group->rank())), comm->rank());

    std::vector<int32_t> const mine{comm->rank()};
    std::vector<int32_t> all(members.size(), -1);
    group->all_gather(view(all), view(mine));
    EXPECT_EQ(std::vector<int>(all.begin(), all.end()), members);

    auto alone = group->split(group->rank(), 0);
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(alone->sum(int64_t{comm->rank()}), comm->rank());
}

TEST_P(CommTest, ConveniencesAgreeOnEveryRank) {
    auto comm = world();
    int const n = comm->size();
    EXPECT_EQ(comm->sum(0.5 * (comm->rank() + 1)), 0.25 * n * (n + 1));
    EXPECT_EQ(comm->sum(int64_t{1} << 40), int64_t{n} << 40);
    EXPECT_EQ(comm->max(int64_t{-10} - comm->rank()), -10);
    for (int who = 0; who < n; ++who) EXPECT_TRUE(comm->any(comm->rank() == who));
    EXPECT_FALSE(comm->any(false));
    auto text = [](int rank) { return std::string(static_cast<size_t>(rank * 100), static_cast<char>('a' + rank)); };
    for (int root = 0; root < n; ++root) {
        EXPECT_EQ(comm->broadcast_text(comm->rank() == root ? text(root) : "other", root), text(root));
    }
    auto const texts = comm->gather_text(text(comm->rank()));
    ASSERT_EQ(static_cast<int>(texts.size()), n);
    for (int r = 0; r < n; ++r) EXPECT_EQ(texts[static_cast<size_t>(r)], text(r));
}

TEST_P(CommTest, BrokenPromisesAreInternalErrorsBeforeAnyByteMoves) {
    auto comm = world();
    std::vector<float> three(3), all(static_cast<size_t>(2 * comm->size()));
    std::vector<uint8_t> bytes(4);
    EXPECT_THROW(comm->all_gather(view(all), view(three)), Error);
    EXPECT_THROW(comm->reduce_scatter(view(three), view(all)), Error);
    EXPECT_THROW(comm->all_reduce(view(bytes)), Error);
    EXPECT_THROW(comm->broadcast(view(three), comm->size()), Error);
    EXPECT_THROW(comm->all_to_all(view(three), view(all)), Error);
}

INSTANTIATE_TEST_SUITE_P(Pieces, CommTest, ::testing::Values(kMpiPieceBytes, int64_t{1024}),
                         [](auto const& info) { return std::to_string(info.param); });

TEST(LaunchTest, MismatchedMessagesAreCommunicationErrorsInMpisWords) {
    HostComm& world = CommTest::launch->world();
    auto pair = world.split(world.rank() / 2, world.rank());
    if (pair->size() < 2) return;  // nobody to disagree with
    std::vector<float> x(pair->rank() == 0 ? 1000 : 10);
    try {
        pair->broadcast(view(x), 0);
        EXPECT_EQ(pair->rank(), 0) << "a message longer than its buffer was accepted";
    } catch (Error const& error) {
        EXPECT_EQ(error.category(), Category::communication);
        EXPECT_NE(std::string_view(error.what()).find("MPI_ERR_TRUNCATE"), std::string_view::npos) << error.what();
    }
}

TEST(LaunchTest, KnowsTheSizeOfTheJobAndThePlaceOnTheHost) {
    Launch& launch = *CommTest::launch;
    char const* const promised = std::getenv("OMPI_COMM_WORLD_SIZE");
    EXPECT_EQ(std::to_string(launch.world().size()), promised != nullptr ? promised : "1");
    EXPECT_EQ(launch.local_rank(), launch.world().rank());
    EXPECT_EQ(launch.local_size(), launch.world().size());
}

/// Leaves the job the way `how` says. The other ranks wait in a barrier that will never complete.
int fail_as_told(Launch& launch, std::string_view how, int code) {
    HostComm& world = launch.world();
    std::string const message = fmt::format("told to fail ({}) on rank {}", how, world.rank());
    bool const last = world.rank() == world.size() - 1;
    world.barrier();
    if (how == "all" || (how == "one" && last)) launch.abort(code, message);
    if (how == "kill" && last) std::raise(SIGKILL);
    std::thread watchdog;
    if (how == "watchdog" && last) {
        watchdog = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            launch.abort(code, message);
        });
    }
    if (world.rank() == 0 && how == "watchdog") std::this_thread::sleep_for(std::chrono::minutes(5));
    world.barrier();
    return 0;
}

}  // namespace
}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Launch launch(&argc, &argv);
    perigee::CommTest::launch = &launch;
    std::string_view how;
    int code = 0;
    for (std::string_view arg : std::span(argv, static_cast<size_t>(argc))) {
        if (arg.starts_with("--fail=")) how = arg.substr(7);
        if (arg.starts_with("--code=")) std::from_chars(arg.data() + 7, arg.data() + arg.size(), code);
    }
    if (!how.empty()) return perigee::fail_as_told(launch, how, code);
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
