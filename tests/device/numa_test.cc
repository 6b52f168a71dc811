#include "device/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "device/gpu_list.h"
#include "support/temporary_folder.h"

namespace perigee {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void write(std::filesystem::path const& path, std::string const& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
}

TEST(CpuList, ReadsAndWritesLinuxsForm) {
    EXPECT_THAT(parse_cpu_list("0-3,8,10-11"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
    EXPECT_THAT(parse_cpu_list("7,2-3,3"), ElementsAre(2, 3, 7));
    for (char const* text : {"0", "0-3", "0-3,8,10-11", "1,3,5", "8191"})
        EXPECT_EQ(to_text(parse_cpu_list(text)), text);
    for (char const* text : {"", "none", "-", "3-", "-3", "5-2", "a-b", "1000000", "0-99999999999999999999"})
        EXPECT_THAT(parse_cpu_list(text), IsEmpty()) << text;
    EXPECT_THAT(parse_cpu_list("x,2,"), ElementsAre(2));
    EXPECT_EQ(to_text({}), "none");
    EXPECT_THAT(common({0, 1, 2, 8}, {1, 2, 3, 8, 9}), ElementsAre(1, 2, 8));
}

TEST(NumaNode, IsReadFromTheDeviceAndTheNode) {
    testing::TemporaryFolder const sys;
    write(sys.path() / "bus/pci/devices/0000:19:00.0/numa_node", "1\n");
    write(sys.path() / "bus/pci/devices/0000:3b:00.0/numa_node", "-1\n");
    write(sys.path() / "bus/pci/devices/0000:4c:00.0/numa_node", "2\n");
    write(sys.path() / "devices/system/node/node1/cpulist", "16-31,48-63\n");
    NumaNode const near = numa_node_of("0000:19:00.0", sys.path());
    EXPECT_EQ(near.id, 1);
    EXPECT_EQ(to_text(near.cpus), "16-31,48-63");
    for (char const* id : {"0000:3b:00.0", "0000:4c:00.0", "0000:ff:00.0", ""}) {  // on no node, without CPUs, unknown
        NumaNode const none = numa_node_of(id, sys.path());
        EXPECT_EQ(none.id, -1) << id;
        EXPECT_THAT(none.cpus, IsEmpty()) << id;
    }
}

/// In a process of its own: binding is for good.
int in_child(auto&& check) {
    pid_t const child = ::fork();
    if (child == 0) _exit(check() ? 0 : 1);
    int status = -1;
    ::waitpid(child, &status, 0);
    return status;
}

TEST(BindProcess, BindsThreadsThatAreThereAndThoseThatCome) {
    CpuList const all = allowed_cpus();
    ASSERT_FALSE(all.empty());
    CpuList const last{all.back()};
    EXPECT_EQ(in_child([&] {
                  std::atomic<bool> bound = false;
                  CpuList there, come;
                  std::thread early([&] {
                      while (!bound) std::this_thread::yield();
                      there = allowed_cpus();
                  });
                  bool const done = bind_process(last, -1).cpus;
                  bound = true;
                  early.join();
                  std::thread([&] { come = allowed_cpus(); }).join();
                  return done && allowed_cpus() == last && there == last && come == last;
              }),
              0);
    EXPECT_EQ(allowed_cpus(), all);
}

TEST(BindProcess, LeavesWhatCannotBe) {
    EXPECT_EQ(in_child([] {
                  CpuList const before = allowed_cpus();
                  Bound const none = bind_process({}, -1), absent = bind_process({8000}, -1);
                  return !none.cpus && !none.memory && !absent.cpus && allowed_cpus() == before;
              }),
              0);
}

TEST(GpusPresent, CountsDevicesUnlessTheyAreHidden) {
    testing::TemporaryFolder const dev;
    for (char const* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"})
        write(dev.path() / name, "");
    std::string const before =
        std::getenv("CUDA_VISIBLE_DEVICES") != nullptr ? std::getenv("CUDA_VISIBLE_DEVICES") : "";
    for (auto const& [visible, expected] : {std::pair{"0,1", 3}, {"", 0}, {"-1", 0}}) {
        ::setenv("CUDA_VISIBLE_DEVICES", visible, 1);
        EXPECT_EQ(gpus_present(dev.path()), expected) << visible;
    }
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(gpus_present(dev.path()), 3);
    EXPECT_EQ(gpus_present(dev.path() / "nowhere"), 0);
    ::setenv("CUDA_VISIBLE_DEVICES", before.c_str(), 1);
}

}  // namespace
}  // namespace perigee
