#include "io/file_system.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "support/fault_file_system.h"
#include "support/memory_file_system.h"
#include "support/temporary_folder.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FaultFileSystem;
using ::testing::HasSubstr;
using testing::MemoryFileSystem;

std::span<std::byte const> bytes(std::string const& text) { return std::as_bytes(std::span(text)); }

void put(FileSystem& files, Path const& path, std::string const& text) {
    auto const file = files.create(path);
    file->write_at(0, bytes(text));
    file->sync();
}

template <class Action>
std::string message_of(Action&& action) {
    try {
        action();
    } catch (Error const& e) {
        return e.what();
    }
    return "nothing was thrown";
}

/// The real one and the one in memory keep the same promises.
class FileSystems : public ::testing::TestWithParam<bool> {
  protected:
    std::unique_ptr<FileSystem> files_ = GetParam() ? make_file_system() : std::make_unique<MemoryFileSystem>();
    testing::TemporaryFolder folder_;
    Path root_ = folder_.path();
    void SetUp() override { files_->make_directories(root_); }
};
INSTANTIATE_TEST_SUITE_P(All, FileSystems, ::testing::Bool(),
                         [](auto const& info) { return info.param ? "real" : "memory"; });

TEST_P(FileSystems, GiveBackWhatWasWritten) {
    Path const path = root_ / "a";
    {
        auto const file = files_->create(path);
        file->write_at(5, bytes("world"));
        file->write_at(0, bytes("hello"));
        file->truncate(8);
        file->sync();
    }
    EXPECT_EQ(files_->read_text(path, 8), "hellowor");
    EXPECT_EQ(files_->file_size(path), 8);
    {
        auto const file = files_->append(path);
        file->write_at(8, bytes("ld"));
    }
    EXPECT_EQ(files_->read_text(path, 100), "helloworld");
    auto const mapped = files_->map(path);
    EXPECT_EQ(std::string(reinterpret_cast<char const*>(mapped->bytes().data()), mapped->bytes().size()), "helloworld");
    put(*files_, path, "");
    EXPECT_EQ(files_->map(path)->bytes().size(), 0u);
}

TEST_P(FileSystems, ListRenameAndRemove) {
    files_->make_directories(root_ / "x" / "y");
    files_->make_directories(root_ / "x" / "y");  // again is fine
    put(*files_, root_ / "x" / "b", "1");
    put(*files_, root_ / "x" / "a", "2");
    files_->sync_directory(root_ / "x");
    EXPECT_THAT(files_->list(root_ / "x"), ElementsAre("a", "b", "y"));
    EXPECT_TRUE(files_->is_directory(root_ / "x" / "y"));
    EXPECT_FALSE(files_->is_directory(root_ / "x" / "a"));
    EXPECT_FALSE(files_->exists(root_ / "x" / "c"));

    files_->rename(root_ / "x" / "a", root_ / "x" / "b");
    EXPECT_EQ(files_->read_text(root_ / "x" / "b", 10), "2");
    files_->rename(root_ / "x", root_ / "z");
    EXPECT_THAT(files_->list(root_ / "z"), ElementsAre("b", "y"));
    files_->remove_all(root_ / "z");
    files_->remove_all(root_ / "z");
    EXPECT_THAT(files_->list(root_), ElementsAre());
    EXPECT_GT(files_->free_bytes(root_ / "not" / "there" / "yet"), 0);
}

TEST_P(FileSystems, SayWhatFailedWhereAndWhy) {
    Path const missing = root_ / "missing";
    EXPECT_THAT(message_of([&] { files_->open(missing); }),
                AllOf(HasSubstr(missing.string()), HasSubstr("No such file")));
    EXPECT_THAT(message_of([&] { files_->create(missing / "file"); }), HasSubstr((missing / "file").string()));
    EXPECT_THAT(message_of([&] { files_->list(missing); }), HasSubstr("No such file"));
    EXPECT_THAT(message_of([&] { files_->rename(missing, root_ / "other"); }), HasSubstr(missing.string()));
    EXPECT_THAT(message_of([&] { files_->open(root_); }), HasSubstr("Is a directory"));
    put(*files_, root_ / "file", "12345");
    EXPECT_THAT(message_of([&] { files_->make_directories(root_ / "file" / "below"); }), HasSubstr("Not a directory"));
    EXPECT_THAT(message_of([&] { files_->read_text(root_ / "file", 4); }),
                AllOf(HasSubstr("5 bytes"), HasSubstr("at most 4")));
    std::byte buffer[6];
    EXPECT_THAT(message_of([&] { files_->open(root_ / "file")->read_at(0, buffer); }),
                AllOf(HasSubstr((root_ / "file").string()), HasSubstr("ends at byte 5")));
}

TEST_P(FileSystems, ReplaceTextLeavesTheOldTextWhereAnythingFails) {
    FaultFileSystem faulty(*files_);
    faulty.replace_text(root_ / "latest", "old");
    int64_t const operations = std::ssize(faulty.operations());
    ASSERT_EQ(operations, 5);  // create, write, sync, rename, sync of the folder
    for (int64_t i = 0; i < operations; ++i) {
        faulty.replace_text(root_ / "latest", "old");
        faulty.fail_at(std::ssize(faulty.operations()) + i, ENOSPC);
        EXPECT_THROW(faulty.replace_text(root_ / "latest", "new"), IoError);
        EXPECT_EQ(files_->read_text(root_ / "latest", 10), i < 4 ? "old" : "new") << "operation " << i;
        EXPECT_THAT(files_->list(root_), ElementsAre("latest")) << "operation " << i;
    }
}

TEST_P(FileSystems, WhatReplaceTextLeavesWhenKilledIsRemovedByName) {
    for (char const* const name : {"01234567.a.tmp", "89abcdef.a.tmp", "0.a.tmp", "a.tmp", "01234567.b.a.tmp"})
        put(*files_, root_ / name, "half");
    files_->remove_temporaries(root_ / "a");
    EXPECT_THAT(files_->list(root_), ElementsAre("0.a.tmp", "01234567.b.a.tmp", "a.tmp"));
}

TEST(FileSystem, TemporaryNamesDifferBetweenProcesses) {
    Path const mine = FileSystem::temporary_of("folder/a");
    EXPECT_EQ(mine.parent_path(), "folder");
    pid_t const child = fork();
    if (child == 0) _exit(FileSystem::temporary_of("folder/a") == mine ? 1 : 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(FileSystems, LockIsRefusedInTheHoldersWordsUntilTheHolderHasGone) {
    Path const path = root_ / ".lock";
    auto first = files_->lock(path, "a longer name for the first");
    try {
        auto const second = files_->lock(path, "second");
        FAIL() << "two hold one lock";
    } catch (LockedError const& e) {
        EXPECT_EQ(e.holder(), "a longer name for the first");
        EXPECT_EQ(e.category(), Category::config);
    }
    first.reset();
    auto const second = files_->lock(path, "second");
    try {
        auto const third = files_->lock(path, "third");
        FAIL() << "two hold one lock";
    } catch (LockedError const& e) {
        EXPECT_EQ(e.holder(), "second");
    }
    EXPECT_THROW(files_->lock(root_ / "missing" / ".lock", "nobody"), IoError);
}

TEST(RealFileSystem, OpensNothingThatAChildProcessWouldInherit) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    auto const written = files->create(folder.path() / "a");
    auto const read = files->open(folder.path() / "a");
    int found = 0;
    for (int fd = 3; fd < 256; ++fd) {
        std::error_code error;
        auto const target = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
        if (error || target.parent_path() != folder.path()) continue;
        ++found;
        EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    EXPECT_EQ(found, 2);
}

TEST(RealFileSystem, SurvivesSignalsDuringLargeWrites) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    struct sigaction action {
    }, before{};
    action.sa_handler = [](int) {};  // without SA_RESTART: system calls are interrupted
    sigaction(SIGALRM, &action, &before);
    itimerval const often{{0, 500}, {0, 500}}, never{};
    setitimer(ITIMER_REAL, &often, nullptr);
    std::string text(size_t{32} << 20, '\0');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
    put(*files, folder.path() / "large", text);
    std::string const found = files->read_text(folder.path() / "large", std::ssize(text));
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before, nullptr);
    EXPECT_TRUE(found == text);
}

TEST(RealFileSystem, ReportsAFullDisk) {
    auto const files = make_file_system();
    if (!files->exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
    try {
        files->append("/dev/full")->write_at(0, bytes("x"));
        FAIL() << "a full disk took a byte";
    } catch (IoError const& e) {
        EXPECT_EQ(e.errno_value(), ENOSPC);
        EXPECT_THAT(e.what(), AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
    }
}

TEST(MemoryFileSystem, KeepsOnlyWhatWasSyncedWhenPowerIsLost) {
    using Unsynced = MemoryFileSystem::Unsynced;
    MemoryFileSystem files;
    files.make_directories("/d");
    files.sync_directory("/");
    put(files, "/d/a", "old");
    files.sync_directory("/d");
    auto const file = files.append("/d/a");
    file->write_at(0, bytes(std::string(4000, 'n')));
    put(files, "/d/b", "named too late");
    files.rename("/d/b", "/d/c");
    EXPECT_EQ(files.pending_names(), 2u);

    auto after = [&](size_t names, Unsynced contents) { return files.after_power_loss(names, contents); };
    EXPECT_EQ(after(0, Unsynced::dropped)->read_text("/d/a", 9999), "old");
    EXPECT_EQ(after(0, Unsynced::torn)->read_text("/d/a", 9999), std::string(1536, 'n'));
    EXPECT_EQ(after(0, Unsynced::zeroed)->read_text("/d/a", 9999), "old" + std::string(3997, '\0'));
    EXPECT_EQ(after(0, Unsynced::kept)->read_text("/d/a", 9999), std::string(4000, 'n'));
    EXPECT_THAT(after(0, Unsynced::kept)->list("/d"), ElementsAre("a"));
    EXPECT_THAT(after(1, Unsynced::kept)->list("/d"), ElementsAre("a", "b"));
    EXPECT_THAT(after(2, Unsynced::dropped)->list("/d"), ElementsAre("a", "c"));
    EXPECT_EQ(after(2, Unsynced::dropped)->read_text("/d/c", 99), "named too late");
    files.sync_directory("/d");
    EXPECT_THAT(after(0, Unsynced::dropped)->list("/d"), ElementsAre("a", "c"));
}

TEST(PosixFiles, APipeOrADeviceInAFilesPlaceIsRefusedAtOnce) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    Path const pipe = folder.path() / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    // Each would wait for somebody at the other end.
    EXPECT_THAT(message_of([&] { files->open(pipe); }), AllOf(HasSubstr(pipe.string()), HasSubstr("it is a pipe")));
    EXPECT_THAT(message_of([&] { files->map(pipe); }), HasSubstr("it is a pipe"));
    EXPECT_THAT(message_of([&] { files->create(pipe); }), HasSubstr("it is a pipe"));
    EXPECT_THAT(message_of([&] { files->append(pipe); }), HasSubstr("it is a pipe"));
    EXPECT_THAT(message_of([&] { files->lock(pipe, "me"); }), HasSubstr("it is a pipe"));
    EXPECT_THAT(message_of([&] { files->file_size(pipe); }), HasSubstr("it is a pipe"));
    EXPECT_THAT(message_of([&] { files->open("/dev/zero"); }), HasSubstr("character device"));
    EXPECT_THAT(message_of([&] { files->open(folder.path()); }), HasSubstr("Is a directory"));
}

TEST(PosixFiles, AMessageShowsControlCharactersOfAPath) {
    EXPECT_THAT(message_of([&] { make_file_system()->open("/nowhere/\x1b[31m\nred"); }),
                HasSubstr("/nowhere/\\x1b[31m\\x0ared"));
}

TEST(PosixFilesDeathTest, AMappedFileThatShrinksIsNamed) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    Path const path = folder.path() / "tokens.bin";
    put(*files, path, std::string(100000, 'x'));
    EXPECT_EXIT(
        {
            auto const mapped = files->map(path);
            files->append(path)->truncate(10);
            std::byte volatile sink = mapped->bytes()[90000];
            (void)sink;
        },
        ::testing::ExitedWithCode(3), "data error: .*tokens.bin shrank");
}

TEST(PosixFilesDeathTest, OtherBusErrorsEndTheProcessAsBefore) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    Path const path = folder.path() / "whole";
    put(*files, path, std::string(100000, 'x'));
    EXPECT_EXIT(
        {
            ::signal(SIGBUS, SIG_DFL);  // a sanitizer has a handler of its own
            auto const mapped = files->map(path);
            ::raise(SIGBUS);
            ::raise(SIGBUS);
        },
        ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace perigee
