// Every kind of damage to the newest checkpoint of a run: it is set aside under another name, and the newest whole one
// is taken, on every rank. What cannot be read for another reason stays where it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/example.h"
#include "checkpoint/folders.h"
#include "io/sha256.h"
#include "support/fault_file_system.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace testing;
namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr char kRun[] = "0123456789abcdef";

/// Checkpoints of steps 1, 2 and 3 by two ranks on a real disk.
class SetAside : public ::testing::Test {
  protected:
    SetAside() {
        for (int step : {1, 2, 3}) save_step(root_, step, kRun);
    }
    void save_step(Path const& root, int step, std::string const& run_id) {
        run_ranks(kRanks, [&](HostComm& world) {
            auto parts = whole_parts(example_tensors(static_cast<uint64_t>(60 + step)));
            auto mine = views(parts);
            std::erase_if(mine, [&](auto const& p) { return (p.name == "model.q.weight") != (world.rank() == 1); });
            RunState state = example_state(step);
            state.run_id = run_id;
            save_checkpoint(*disk_, world, root, state, mine, {});
        });
    }
    /// The step that every rank finds.
    int64_t find(FileSystem& files) {
        std::vector<int64_t> steps(kRanks);
        run_ranks(kRanks, [&](HostComm& world) {
            auto const found = find_latest(files, world, root_, Damaged::set_aside, kRun);
            steps[static_cast<size_t>(world.rank())] = found ? found->state().step : 0;
        });
        EXPECT_EQ(steps.front(), steps.back());
        return steps.front();
    }
    /// The message with which every rank ends.
    std::string error(FileSystem& files) {
        auto const errors =
            try_ranks(kRanks, [&](HostComm& world) { find_latest(files, world, root_, Damaged::set_aside, kRun); });
        std::string first;
        for (auto const& e : errors) {
            std::string const text = e ? checkpoint_error([&] { std::rethrow_exception(e); }) : "nothing was thrown";
            if (first.empty()) first = text;
            EXPECT_EQ(text, first);
        }
        return first;
    }
    void flip(Path const& file, int64_t at) {
        std::string text = disk_->read_text(file, INT64_MAX);
        text[static_cast<size_t>(at)] = static_cast<char>(text[static_cast<size_t>(at)] ^ 1);
        disk_->create(file)->write_at(0, std::as_bytes(std::span(text)));
    }
    void write(Path const& file, std::string const& text) {
        disk_->create(file)->write_at(0, std::as_bytes(std::span(text)));
    }

    TemporaryFolder folder_;
    std::unique_ptr<FileSystem> disk_ = make_file_system();
    Path const root_ = folder_.path() / "checkpoints";
    Path const newest_ = root_ / "step_00000003", older_ = root_ / "step_00000002";
};

class EveryKind : public SetAside {
  protected:
    std::vector<std::pair<std::string, std::function<void()>>> kinds() {
        Path const manifest = newest_ / "manifest.json", rank = newest_ / "rank_0001.h5";
        return {
            {"truncated rank file", [=] { fs::resize_file(rank, 1000); }},
            {"longer rank file", [=] { fs::resize_file(rank, fs::file_size(rank) + 1); }},
            {"empty rank file", [=] { fs::resize_file(rank, 0); }},
            {"flipped bit", [=, this] { flip(rank, 700); }},
            {"rank file missing", [=] { fs::remove(rank); }},
            {"rank file is a folder", [=] { fs::remove(rank), fs::create_directory(rank); }},
            {"rank file of another step",
             [=, this] { fs::copy_file(older_ / "rank_0001.h5", rank, fs::copy_options::overwrite_existing); }},
            {"rank files swapped",
             [=, this] {
                 fs::rename(rank, newest_ / "x");
                 fs::rename(newest_ / "rank_0000.h5", rank);
                 fs::rename(newest_ / "x", newest_ / "rank_0000.h5");
             }},
            {"manifest gone", [=] { fs::remove(manifest); }},
            {"manifest damaged", [=, this] { flip(manifest, 300); }},
            {"manifest truncated", [=] { fs::resize_file(manifest, 90); }},
            {"manifest is a folder", [=] { fs::remove(manifest), fs::create_directory(manifest); }},
            {"manifest is something else", [=, this] { write(manifest, R"({"format":"else"})"); }},
            {"manifest of another step",
             [=, this] { fs::copy_file(older_ / "manifest.json", manifest, fs::copy_options::overwrite_existing); }},
            {"whole checkpoint of another step",
             [=, this] { fs::remove_all(newest_), fs::copy(older_, newest_, fs::copy_options::recursive); }},
            {"whole checkpoint of another run",
             [=, this] {
                 fs::remove_all(newest_);
                 save_step(folder_.path() / "other", 3, "another");
                 fs::rename(folder_.path() / "other" / "step_00000003", newest_);
             }},
            {"empty folder", [=, this] { fs::remove_all(newest_), fs::create_directory(newest_); }},
            {"file of that name", [=, this] { fs::remove_all(newest_), write(newest_, "x"); }},
            {"dangling link", [=, this] { fs::remove_all(newest_), fs::create_symlink("/nowhere/at/all", newest_); }},
        };
    }
};

TEST_F(EveryKind, OfDamageIsSetAsideAndTheNewestWholeOneIsTaken) {
    Path const whole = folder_.path() / "whole";
    fs::copy(root_, whole, fs::copy_options::recursive);
    for (auto const& [name, damage] : kinds()) {
        SCOPED_TRACE(name);
        fs::remove_all(root_);
        fs::copy(whole, root_, fs::copy_options::recursive);
        damage();
        ::testing::internal::CaptureStderr();
        EXPECT_EQ(find(*disk_), 2);
        std::string const said = ::testing::internal::GetCapturedStderr();
        EXPECT_THAT(said, AllOf(HasSubstr("checkpoint step_00000003 is damaged and now lies in"),
                                HasSubstr("step_00000003.damaged: ")));
        EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
        EXPECT_THAT(disk_->list(root_), ElementsAre("step_00000001", "step_00000002", "step_00000003.damaged"));
        EXPECT_EQ(find(*disk_), 2) << "and again";
    }
}

TEST_F(SetAside, LeavesStrayNamesOfTheFarFutureBehind) {
    fs::create_directory(root_ / "step_99999999");
    fs::create_directory(root_ / "step_99999999.damaged");
    write(root_ / "step_88888888", "x");
    EXPECT_EQ(find(*disk_), 3);
    EXPECT_THAT(disk_->list(root_),
                ElementsAre("step_00000001", "step_00000002", "step_00000003", "step_88888888.damaged",
                            "step_99999999.damaged", "step_99999999.damaged.2"));
}

TEST_F(SetAside, FoldersAreNeitherCountedNorRemovedByLaterSaves) {
    flip(newest_ / "rank_0000.h5", 500);
    EXPECT_EQ(find(*disk_), 2);
    save(*disk_, root_, 4, example_tensors(64), {.last = 2});
    clean_up(*disk_, root_);
    EXPECT_THAT(disk_->list(root_), ElementsAre("step_00000002", "step_00000003.damaged", "step_00000004"));
}

TEST_F(SetAside, StopsWhereNoneIsWholeAndChangesNothing) {
    for (int step : {1, 2, 3}) fs::remove(root_ / step_name(step) / "rank_0001.h5");
    EXPECT_THAT(error(*disk_), AllOf(HasSubstr("none of the 3 checkpoints"), HasSubstr("rank_0001.h5 is missing"),
                                     HasSubstr("begin anew")));
    EXPECT_THAT(disk_->list(root_), ElementsAre("step_00000001", "step_00000002", "step_00000003"));
    for (int step : {1, 2, 3}) set_aside(*disk_, root_, step_name(step));
    EXPECT_THAT(error(*disk_), AllOf(HasSubstr("no checkpoint but damaged ones"), HasSubstr("step_00000003.damaged"),
                                     HasSubstr("begin anew")));
}

TEST_F(SetAside, IsNotForWhatCannotBeRead) {
    for (int const reason : {EIO, EACCES}) {
        for (char const* file : {"manifest.json", "rank_0000.h5", "rank_0001.h5"}) {
            FaultFileSystem faulty(*disk_);
            faulty.before = [&](auto const& operation) {
                if (operation.name == "open" && operation.path == newest_ / file)
                    throw IoError("open", operation.path, reason);
            };
            EXPECT_THAT(error(faulty),
                        AllOf(HasSubstr(file), HasSubstr(reason == EIO ? "Input/output error" : "Permission denied")));
            EXPECT_THAT(disk_->list(root_), ElementsAre("step_00000001", "step_00000002", "step_00000003"));
        }
    }
}

TEST_F(SetAside, IsNotForACheckpointOfALaterProgram) {
    std::string text = disk_->read_text(newest_ / "manifest.json", INT64_MAX);
    size_t const body = text.find("\"manifest\":") + 11;
    std::string manifest = text.substr(body, text.size() - body - 2);
    manifest.replace(manifest.find("\"version\":1"), 11, "\"version\":2");
    write(newest_ / "manifest.json",
          fmt::format("{{\"sha256\":\"{}\",\n\"manifest\":{}}}\n", sha256(manifest), manifest));
    EXPECT_THAT(error(*disk_), AllOf(HasSubstr("format version 2"), HasSubstr("reads version 1")));
    EXPECT_THAT(disk_->list(root_), Contains("step_00000003"));
}

TEST_F(SetAside, ThatFailsEndsTheJobAndTheNextStartFinishesIt) {
    flip(newest_ / "rank_0000.h5", 500);
    flip(older_ / "rank_0000.h5", 500);
    FaultFileSystem faulty(*disk_);
    faulty.before = [&](auto const& operation) {
        if (operation.name == "rename" && operation.path.string().find("step_00000002") != std::string::npos)
            throw IoError("rename", operation.path, EROFS);
    };
    EXPECT_THAT(error(faulty), AllOf(HasSubstr("step_00000002 cannot be set aside"), HasSubstr("Read-only")));
    EXPECT_EQ(find(*disk_), 1);
    EXPECT_THAT(disk_->list(root_), ElementsAre("step_00000001", "step_00000002.damaged", "step_00000003.damaged"));
}

TEST_F(SetAside, IsLeftToTheRunThatOwnsTheFolder) {
    flip(newest_ / "rank_0000.h5", 500);
    EXPECT_EQ(find_latest(*disk_, *make_single_host_comm(), root_)->state().step, 2);
    EXPECT_THAT(checkpoint_error([&] { Checkpoint::open(*disk_, newest_); }), HasSubstr("rank_0000.h5 is damaged"));
    EXPECT_THAT(disk_->list(root_), Contains("step_00000003"));
}

TEST_F(SetAside, IsNotForACheckpointThatItsRunRemovesWhileItIsRead) {
    FaultFileSystem busy(*disk_);
    busy.after = [&](auto const& operation) {
        if (operation.path.filename() == "manifest.json" && operation.name == "read") fs::remove_all(newest_);
    };
    EXPECT_THAT(checkpoint_error([&] { find_latest(busy, *make_single_host_comm(), root_); }),
                HasSubstr("step_00000003 was removed or renamed while it was read"));
    Path const next = root_ / "step_00000002";
    Checkpoint const verified = Checkpoint::open(*disk_, next);
    fs::remove_all(next);
    EXPECT_THAT(checkpoint_error([&] { load(verified, example_tensors(0)); }),
                HasSubstr("step_00000002 was removed or renamed while it was read"));
    EXPECT_THAT(checkpoint_error([&] { Checkpoint::open(*disk_, next); }),
                HasSubstr("there is no folder " + next.string()));
    fs::create_symlink("/nowhere", root_ / "step_00000004");
    EXPECT_EQ(find_latest(*disk_, *make_single_host_comm(), root_)->state().step, 1) << "a link to nothing is damage";
}

TEST_F(SetAside, GivesTheReplacedCheckpointItsNameBack) {
    fs::copy(newest_, root_ / "step_00000003.old", fs::copy_options::recursive);
    flip(newest_ / "manifest.json", 300);
    EXPECT_EQ(find(*disk_), 3);
    clean_up(*disk_, root_);
    EXPECT_THAT(disk_->list(root_),
                ElementsAre("step_00000001", "step_00000002", "step_00000003", "step_00000003.damaged"));
    EXPECT_EQ(find(*disk_), 3);
}

}  // namespace
}  // namespace perigee
