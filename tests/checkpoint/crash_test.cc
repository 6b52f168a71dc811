// Saving under failures: at every single operation, the previous checkpoint or the new one is found, never another
// state, and never a hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "checkpoint/checkpoint.h"
#include "checkpoint/example.h"
#include "support/fault_file_system.h"
#include "support/memory_file_system.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace testing;

Tensors const& old_tensors() {
    static Tensors const tensors = example_tensors(70);
    return tensors;
}
Tensors const& new_tensors() {
    static Tensors const tensors = example_tensors(71);
    return tensors;
}

/// What a save is to survive: the run before it, the step it writes, how many checkpoints it keeps.
struct Scenario {
    std::string name;
    std::vector<int64_t> steps_before;
    int64_t step;
    Retention keep;
    bool after_crash;  ///< leftovers of an earlier crash lie about
};

void PrintTo(Scenario const& scenario, std::ostream* out) { *out << scenario.name; }

class Save : public ::testing::TestWithParam<Scenario> {
  protected:
    void SetUp() override {
        for (int64_t step : GetParam().steps_before) save(disk_, kRoot, step, old_tensors());
        if (GetParam().after_crash) {
            disk_.make_directories(Path(kRoot) / "step_00000003.tmp");
            disk_.create(Path(kRoot) / "step_00000003.tmp" / "rank_0000.h5")->write_at(0, {});
            disk_.make_directories(Path(kRoot) / ".trash-step_00000001");
            disk_.make_directories(Path(kRoot) / "step_00000002.old");
        }
        for (std::string const folder : {"/", "/run", kRoot}) {
            if (disk_.exists(folder)) disk_.sync_directory(folder);
        }
    }

    void save_new(FileSystem& files) { save(files, kRoot, GetParam().step, new_tensors(), GetParam().keep); }

    /// Counts the operations of an undisturbed save.
    int64_t operations() {
        auto const disk = disk_.copy();
        FaultFileSystem counting(*disk);
        save_new(counting);
        return std::ssize(counting.operations());
    }

    bool had_before() const { return !GetParam().steps_before.empty(); }

    enum class Found { nothing, previous, newest };
    /// What a resumed run finds; anything but a whole checkpoint fails the test.
    Found resume(FileSystem& files) {
        auto const found = find_latest(files, *make_single_host_comm(), kRoot);
        if (!found) return Found::nothing;
        Tensors const tensors = load(*found, old_tensors());
        if (tensors == new_tensors()) {
            EXPECT_EQ(found->state(), example_state(GetParam().step));
            return Found::newest;
        }
        EXPECT_EQ(tensors, old_tensors());
        EXPECT_EQ(found->state(), example_state(GetParam().steps_before.back()));
        return Found::previous;
    }
    void expect_previous_or_new(FileSystem& files) {
        Found const found = resume(files);
        if (had_before()) {
            EXPECT_NE(found, Found::nothing);
        }
        if (found == Found::newest) newest_seen_ = true;
        if (found != Found::newest) older_seen_ = true;
        // The run goes on, saves the step again, and leaves nothing else behind.
        save_new(files);
        EXPECT_EQ(resume(files), Found::newest);
        for (std::string const& name : files.list(kRoot)) {
            EXPECT_TRUE(name.size() == std::string("step_00000001").size()) << name << " was left behind";
        }
    }

    void expect_final_names_to_be_whole(FileSystem& files) {
        if (!files.exists(kRoot)) return;
        for (std::string const& name : files.list(kRoot)) {
            if (name.size() != std::string("step_00000001").size()) continue;
            EXPECT_NO_THROW(Checkpoint::open(files, Path(kRoot) / name)) << name;
        }
    }

    MemoryFileSystem disk_;
    bool newest_seen_ = false, older_seen_ = false;
};

INSTANTIATE_TEST_SUITE_P(All, Save,
                         ::testing::Values(Scenario{"first", {}, 1, {2}, false}, Scenario{"next", {1}, 2, {2}, false},
                                           Scenario{"pruning", {1, 2}, 3, {1}, false},
                                           Scenario{"again", {2}, 2, {2}, false},
                                           Scenario{"after_crash", {1, 2}, 3, {2}, true}),
                         [](auto const& info) { return info.param.name; });

TEST_P(Save, LeavesThePreviousCheckpointWhenAnOperationFails) {
    int64_t const count = operations();
    ASSERT_GT(count, 15);
    for (int error : {ENOSPC, EIO}) {
        for (int64_t i = 0; i < count; ++i) {
            SCOPED_TRACE(fmt::format("operation {} of {}, error {}", i, count, error));
            auto const disk = disk_.copy();
            FaultFileSystem faulty(*disk);
            faulty.fail_at(i, error);
            std::string const message = checkpoint_error([&] { save_new(faulty); });
            ASSERT_EQ(std::ssize(faulty.operations()) > i, true);
            if (message == "nothing was thrown") {
                EXPECT_EQ(resume(*disk), Found::newest);  // only tidying up failed
            } else {
                EXPECT_THAT(message, AllOf(HasSubstr("/"), HasSubstr(error == EIO ? "Input/output" : "No space")));
                for (int64_t step : GetParam().steps_before) {
                    EXPECT_TRUE(disk->exists(Path(kRoot) / fmt::format("step_{:08}", step)));
                }
                EXPECT_FALSE(disk->exists(Path(kRoot) / fmt::format("step_{:08}.tmp", GetParam().step)) &&
                             faulty.operations().back().index != i);
            }
            expect_previous_or_new(*disk);
        }
    }
    EXPECT_TRUE(older_seen_ && newest_seen_);
}

TEST_P(Save, LeavesAWholeCheckpointWhereverTheProcessEnds) {
    int64_t const count = operations();
    for (int64_t i = 0; i < count; ++i) {
        SCOPED_TRACE(fmt::format("stopped at operation {} of {}", i, count));
        auto const disk = disk_.copy();
        FaultFileSystem faulty(*disk);
        faulty.stop_at(i, EIO);
        checkpoint_error([&] { save_new(faulty); });
        expect_previous_or_new(*disk);
    }
    EXPECT_TRUE(older_seen_ && newest_seen_);
}

TEST_P(Save, LeavesAWholeCheckpointWheneverThePowerIsLost) {
    using Unsynced = MemoryFileSystem::Unsynced;
    auto const disk = disk_.copy();
    FaultFileSystem watching(*disk);
    struct Loss {
        std::string when;
        std::unique_ptr<MemoryFileSystem> disk;
    };
    std::vector<Loss> losses;
    // After each operation, for each way in which unsynced names and contents may have reached the disk. Looked at
    // only afterwards, because the save is inside the HDF5 library here.
    watching.after = [&](FaultFileSystem::Operation const& operation) {
        if (operation.name == "open" || operation.name == "read" || operation.name == "list") return;
        for (size_t names = 0; names <= disk->pending_names(); ++names) {
            for (Unsynced contents : {Unsynced::dropped, Unsynced::torn, Unsynced::zeroed, Unsynced::kept}) {
                losses.push_back(
                    {fmt::format("after {} ({} {}), {} pending names, contents {}", operation.index, operation.name,
                                 operation.path.string(), names, static_cast<int>(contents)),
                     disk->after_power_loss(names, contents)});
            }
        }
    };
    save_new(watching);
    for (Loss const& loss : losses) {
        SCOPED_TRACE(loss.when);
        expect_final_names_to_be_whole(*loss.disk);
        expect_previous_or_new(*loss.disk);
    }
    EXPECT_GT(losses.size(), 100u);
    EXPECT_TRUE(older_seen_ && newest_seen_);
    // Once the save has returned, no power loss takes the checkpoint away.
    EXPECT_EQ(resume(*disk->after_power_loss(0, Unsynced::dropped)), Found::newest);
}

TEST(SaveOnTwoRanks, FailsOnBothWhenOneCannotWrite) {
    MemoryFileSystem disk;
    save(disk, kRoot, 1, old_tensors());
    auto on_two_ranks = [&](int failing_rank, int64_t at, int64_t* seen) {
        return try_ranks(2, [&](HostComm& world) {
            FaultFileSystem files(disk);
            if (world.rank() == failing_rank) files.fail_at(at, ENOSPC);
            auto parts = whole_parts(new_tensors());
            auto mine = views(parts);
            std::erase_if(mine, [&](auto const& p) { return (p.name == "model.q.weight") != (world.rank() == 1); });
            save_checkpoint(files, world, kRoot, example_state(2), mine, {});
            if (seen != nullptr && world.rank() == 1) *seen = std::ssize(files.operations());
        });
    };
    int64_t count = 0;
    on_two_ranks(-1, 0, &count);
    ASSERT_GT(count, 3);
    disk.remove_all(Path(kRoot) / "step_00000002");
    for (int64_t i = 0; i < count; ++i) {
        auto const errors = on_two_ranks(1, i, nullptr);
        for (auto const& error : errors) {
            ASSERT_TRUE(error) << "operation " << i;
            EXPECT_THAT(checkpoint_error([&] { std::rethrow_exception(error); }),
                        AllOf(HasSubstr("rank 1: "), HasSubstr("rank_0001.h5"), HasSubstr("No space left")));
        }
        EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000001"));
    }
    for (auto const& error : on_two_ranks(-1, 0, nullptr)) EXPECT_FALSE(error);
    EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000001", "step_00000002"));
}

TEST(SaveAfterACrashWhileReplacing, GivesTheReplacedCheckpointItsNameBack) {
    MemoryFileSystem disk;
    save(disk, kRoot, 2, old_tensors());
    disk.rename(Path(kRoot) / "step_00000002", Path(kRoot) / "step_00000002.old");
    save(disk, kRoot, 3, new_tensors());
    EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000002", "step_00000003"));
    EXPECT_EQ(load(Checkpoint::open(disk, Path(kRoot) / "step_00000002"), old_tensors()), old_tensors());
}

TEST(SaveWithLittleSpace, SaysHowMuchIsNeededAndWritesNothing) {
    MemoryFileSystem disk;
    FaultFileSystem files(disk);
    Tensors tensors;
    tensors.add("large", DType::f32, {100'000}, 72);
    files.set_free_bytes(430'000);
    EXPECT_THAT(checkpoint_error([&] { save(files, kRoot, 1, tensors); }),
                AllOf(HasSubstr(kRoot), HasSubstr("bytes needed"), HasSubstr("430000 bytes free. Make room")));
    EXPECT_THAT(disk.list(kRoot), ElementsAre());
    files.set_free_bytes(450'000);
    EXPECT_EQ(checkpoint_error([&] { save(files, kRoot, 1, tensors); }), "nothing was thrown");
}

TEST(SaveOnARealDisk, RoundTripsAndReportsWhatIsInTheWay) {
    TemporaryFolder const folder;
    auto const files = make_file_system();
    save(*files, folder.path() / "a" / "checkpoints", 5, old_tensors());
    auto const found = find_latest(*files, *make_single_host_comm(), folder.path() / "a" / "checkpoints");
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(load(*found, old_tensors()), old_tensors());
    files->create(folder.path() / "file");
    EXPECT_THAT(checkpoint_error([&] { save(*files, folder.path() / "file" / "checkpoints", 5, old_tensors()); }),
                AllOf(HasSubstr((folder.path() / "file").string()), HasSubstr("Not a directory")));
}

TEST(KeepLast, KeepsTheNewestUpToTheSavedStep) {
    MemoryFileSystem disk;
    for (int64_t step : {10, 20, 30}) save(disk, kRoot, step, old_tensors(), {2});
    EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000020", "step_00000030"));
    save(disk, kRoot, 40, old_tensors(), {});
    EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000020", "step_00000030", "step_00000040"));
    // A run resumed from step 20 must not lose what it just saved to later steps of the earlier run.
    save(disk, kRoot, 25, new_tensors(), {1});
    EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000025", "step_00000030", "step_00000040"));
}

TEST(KeepEvery, KeepsTheNewestAndForEverTheMultiples) {
    MemoryFileSystem disk;
    for (int64_t step : {10, 20, 30, 40, 50, 60, 70}) save(disk, kRoot, step, old_tensors(), {.last = 2, .every = 30});
    EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000030", "step_00000060", "step_00000070"));
    save(disk, kRoot, 80, old_tensors(), {.last = 1, .every = 30});
    EXPECT_THAT(disk.list(kRoot), ElementsAre("step_00000030", "step_00000060", "step_00000080"));
}

}  // namespace
}  // namespace perigee
