#include "checkpoint/saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "checkpoint/example.h"
#include "support/fault_file_system.h"
#include "support/memory_file_system.h"
#include "support/ordered_device.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using ::testing::HasSubstr;
using namespace testing;

/// Rank r of n holds elements [r/n, (r+1)/n) of every tensor.
std::vector<Part> parts_of(Tensors const& tensors, int rank, int size) {
    std::vector<Part> parts;
    for (auto const& [name, tensor] : tensors.all) {
        Shard shard = whole_shard(tensor.shape);
        int64_t const count = tensor.shape.size();
        shard.flat_begin = count * rank / size;
        shard.flat_count = count * (rank + 1) / size - shard.flat_begin;
        parts.push_back(cut(tensors, name, shard));
    }
    return parts;
}

void save_at_once(FileSystem& files, HostComm& world, int64_t step, Tensors const& tensors) {
    auto parts = parts_of(tensors, world.rank(), world.size());
    save_checkpoint(files, world, kRoot, example_state(step), views(parts), {});
}

void overwrite(std::vector<Part>& parts) {
    for (Part& part : parts) std::ranges::fill(part.bytes, std::byte{0xff});
}

TEST(Saver, WritesTheSameBytesAsASaveThatTrainingWaitsFor) {
    for (int const ranks : {1, 2, 3}) {
        MemoryFileSystem waited, beside;
        run_ranks(ranks, [&](HostComm& world) {
            auto const device = make_host_device();
            Saver saver(beside, world, kRoot, {}, *device);
            for (int64_t const step : {4, 5}) {  // the second one reuses the memory of the first
                Tensors const tensors = example_tensors(static_cast<uint64_t>(step));
                save_at_once(waited, world, step, tensors);
                auto parts = parts_of(tensors, world.rank(), world.size());
                saver.begin(example_state(step), views(parts));
                overwrite(parts);  // training goes on
                EXPECT_TRUE(saver.in_flight());
                EXPECT_EQ(saver.step(), step);
                saver.finish();
                EXPECT_FALSE(saver.in_flight());
            }
        });
        EXPECT_FALSE(waited.contents(kRoot).empty());
        EXPECT_EQ(waited.contents(kRoot), beside.contents(kRoot)) << ranks << " ranks";
    }
}

TEST(Saver, CopiesBesideTheComputeQueueWhichWaitsBeforeItChangesTheState) {
    for (bool const waits : {true, false}) {
        MemoryFileSystem files;
        auto const world = make_single_host_comm();
        OrderedDevice device;
        Saver saver(files, *world, kRoot, {}, device);
        auto parts = parts_of(example_tensors(1), 0, 1);
        TensorView const state(parts[0].bytes.data(), DType::u8, {std::ssize(parts[0].bytes)});
        device.access(device.queue(), state, /*writes=*/true, "update");
        saver.begin(example_state(1), views(parts));
        device.access(device.queue(), state, /*writes=*/false, "forward");
        if (waits) device.queue().wait(saver.copied());
        device.access(device.queue(), state, /*writes=*/true, "next update");
        saver.finish();
        EXPECT_EQ(device.races().empty(), waits);
        EXPECT_EQ(find_latest(files, *world, kRoot)->state().step, 1);
    }
}

TEST(Saver, MakesNoCheckpointBeforeItIsFinished) {
    MemoryFileSystem files;
    auto const world = make_single_host_comm();
    save_at_once(files, *world, 1, example_tensors(1));
    {
        auto const device = make_host_device();
        Saver saver(files, *world, kRoot, {}, *device);
        auto parts = parts_of(example_tensors(2), 0, 1);
        saver.begin(example_state(2), views(parts));
        while (saver.writing()) std::this_thread::yield();
        EXPECT_TRUE(saver.in_flight());
        EXPECT_EQ(find_latest(files, *world, kRoot)->state().step, 1);
    }
    EXPECT_EQ(find_latest(files, *world, kRoot)->state().step, 1) << "the saver has gone without finish()";
    save_at_once(files, *world, 3, example_tensors(3));
    EXPECT_EQ(files.list(kRoot), (std::vector<std::string>{"step_00000001", "step_00000003"}));
}

TEST(Saver, FailureOfAnyOperationLeavesThePreviousCheckpointAndTheNextSaveWorks) {
    auto const world = make_single_host_comm();
    auto parts = parts_of(example_tensors(2), 0, 1);
    int64_t failed = 0;
    for (int64_t operation = 0;; ++operation) {
        MemoryFileSystem disk;
        save_at_once(disk, *world, 1, example_tensors(1));
        FaultFileSystem files(disk);
        files.fail_at(operation, operation % 2 == 0 ? ENOSPC : EIO);
        auto const device = make_host_device();
        Saver saver(files, *world, kRoot, {}, *device);
        try {
            saver.begin(example_state(2), views(parts));
            saver.finish();
            EXPECT_EQ(find_latest(disk, *world, kRoot)->state().step, 2);
        } catch (Error const& e) {
            ++failed;
            EXPECT_EQ(e.category(), Category::checkpoint) << e.what();
            EXPECT_THAT(e.what(), HasSubstr(kRoot));
        }
        EXPECT_FALSE(saver.in_flight());
        EXPECT_GE(find_latest(disk, *world, kRoot)->state().step, 1);
        if (std::ssize(files.operations()) <= operation) break;  // none was left to fail
        saver.begin(example_state(3), views(parts));
        saver.finish();
        EXPECT_EQ(find_latest(disk, *world, kRoot)->state().step, 3);
        ASSERT_LT(operation, 1000);
    }
    EXPECT_GT(failed, 8) << "no failure was met";
}

TEST(Saver, FailingWriterOfOneRankFailsTheSaveOfAll) {
    MemoryFileSystem disk;
    FaultFileSystem files(disk);
    files.before = [](FaultFileSystem::Operation const& operation) {
        if (operation.name == "sync" && operation.path.filename() == "rank_0001.h5")
            throw IoError("sync", operation.path, EIO);
    };
    run_ranks(2, [&](HostComm& world) {
        auto const device = make_host_device();
        Saver saver(files, world, kRoot, {}, *device);
        auto parts = parts_of(example_tensors(2), world.rank(), world.size());
        saver.begin(example_state(2), views(parts));
        try {
            saver.finish();
            ADD_FAILURE() << "rank " << world.rank() << " was not told";
        } catch (Error const& e) {
            EXPECT_THAT(e.what(), HasSubstr("rank 1: "));
            EXPECT_THAT(e.what(), HasSubstr("rank_0001.h5"));
        }
        EXPECT_FALSE(saver.in_flight());
    });
    EXPECT_TRUE(disk.list(kRoot).empty());
}

}  // namespace
}  // namespace perigee
