#include "device/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"

namespace perigee {
namespace {

/// A root folder with files below it.
class ControlGroups : public ::testing::Test {
  protected:
    void put(std::string const& path, std::string const& text) {
        std::filesystem::path const file = folder_.path() / path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text << "\n";
    }
    int64_t bytes(int64_t swap = 0) { return control_group_bytes(folder_.path().string(), swap); }

    testing::TemporaryFolder folder_;
};

TEST_F(ControlGroups, WithoutOneThereIsNoLimit) {
    EXPECT_EQ(bytes(), 0);
    put("proc/self/cgroup", "0::/");
    EXPECT_EQ(bytes(), 0);
    put("sys/fs/cgroup/memory.max", "max");
    EXPECT_EQ(bytes(), 0);
}

TEST_F(ControlGroups, TheTightestOfAllGroupsAroundTheProcessHolds) {
    put("proc/self/cgroup", "0::/slurm/job_7/step_0");
    put("sys/fs/cgroup/slurm/memory.max", "900");
    put("sys/fs/cgroup/slurm/job_7/memory.max", "500");
    put("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max");
    put("sys/fs/cgroup/slurm/job_8/memory.max", "1");
    EXPECT_EQ(bytes(), 500);
    put("sys/fs/cgroup/memory.max", "400");  // as a container sees its own
    EXPECT_EQ(bytes(), 400);
}

TEST_F(ControlGroups, SwapCountsAsFarAsTheGroupAllowsIt) {
    put("proc/self/cgroup", "0::/a");
    put("sys/fs/cgroup/a/memory.max", "500");
    EXPECT_EQ(bytes(30), 530);
    put("sys/fs/cgroup/a/memory.swap.max", "max");
    EXPECT_EQ(bytes(30), 530);
    put("sys/fs/cgroup/a/memory.swap.max", "20");
    EXPECT_EQ(bytes(30), 520);
    put("sys/fs/cgroup/a/memory.swap.max", "0");
    EXPECT_EQ(bytes(30), 500);
}

TEST_F(ControlGroups, VersionOneNamesItsControllers) {
    put("proc/self/cgroup", "9:pids:/x\n7:cpu,memory:/docker/abc\n0::/y");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // stands for none
    EXPECT_EQ(bytes(), 0);
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "600");
    EXPECT_EQ(bytes(50), 650);
    put("sys/fs/cgroup/memory/docker/abc/memory.memsw.limit_in_bytes", "610");
    EXPECT_EQ(bytes(50), 610);
}

}  // namespace
}  // namespace perigee
