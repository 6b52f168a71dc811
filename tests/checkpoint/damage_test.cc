// Damage of any kind is found when a checkpoint is opened, before a tensor is used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/example.h"
#include "checkpoint/manifest.h"
#include "io/sha256.h"
#include "support/memory_file_system.h"
#include "support/temporary_folder.h"
#include "support/thread_comm.h"

namespace perigee {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace testing;

constexpr char kFolder[] = "/c/step_00000002";
constexpr char kOlder[] = "/c/step_00000001";

class DamagedCheckpoint : public ::testing::Test {
  protected:
    void SetUp() override {
        for (int step : {1, 2}) {
            // Two ranks, so that there are two tensor files.
            run_ranks(2, [&](HostComm& world) {
                auto parts = whole_parts(example_tensors(static_cast<uint64_t>(60 + step)));
                auto mine = views(parts);
                std::erase_if(mine, [&](auto const& p) { return (p.name == "model.q.weight") != (world.rank() == 1); });
                save_checkpoint(files_, world, "/c", example_state(step), mine, {});
            });
        }
        whole_ = files_.contents(kFolder);
        ASSERT_EQ(whole_.size(), 3u);
    }
    std::string error() {
        return checkpoint_error([&] { Checkpoint::open(files_, kFolder); });
    }
    void restore() {
        for (auto const& [path, bytes] : whole_) files_.damage(path, bytes);
    }
    MemoryFileSystem files_;
    std::map<std::string, std::string> whole_;
};

TEST_F(DamagedCheckpoint, IsFoundForEveryByteOfEveryFile) {
    ASSERT_EQ(error(), "nothing was thrown");
    size_t tried = 0;
    for (auto const& [path, bytes] : whole_) {
        for (size_t i = 0; i < bytes.size(); ++i) {
            std::string damaged = bytes;
            // A single bit, another one for each byte, and for text also what a person might type.
            damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
            files_.damage(path, damaged);
            ASSERT_THAT(error(), HasSubstr(path)) << "byte " << i;
            ++tried;
        }
        files_.damage(path, bytes);
    }
    EXPECT_GT(tried, 5000u);
    EXPECT_EQ(error(), "nothing was thrown");
}

TEST_F(DamagedCheckpoint, IsFoundForEveryOtherValueOfEveryByteOfTheManifest) {
    std::string const path = std::string(kFolder) + "/manifest.json";
    std::string const& text = whole_.at(path);
    for (size_t i = 0; i < text.size(); i += 7) {
        for (int value = 0; value < 256; value += 5) {
            if (static_cast<char>(value) == text[i]) continue;
            std::string damaged = text;
            damaged[i] = static_cast<char>(value);
            files_.damage(path, damaged);
            ASSERT_THAT(error(), HasSubstr(path)) << "byte " << i;
        }
    }
}

TEST_F(DamagedCheckpoint, IsFoundForTruncationExtensionAndDeletion) {
    for (auto const& [path, bytes] : whole_) {
        for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 97) {
            files_.damage(path, bytes.substr(0, size));
            ASSERT_THAT(error(), HasSubstr(path)) << "cut to " << size;
        }
        files_.damage(path, bytes.substr(0, bytes.size() - 1));
        EXPECT_THAT(error(), HasSubstr(path));
        files_.damage(path, bytes + '\0');
        EXPECT_THAT(error(), HasSubstr(path));
        files_.damage(path, std::string(bytes.size(), '\0'));
        EXPECT_THAT(error(), HasSubstr(path));
        files_.remove_all(path);
        EXPECT_THAT(error(), AnyOf(HasSubstr(path + " is missing"), HasSubstr("has no manifest.json")));
        files_.create(path);
        files_.damage(path, bytes);
    }
}

TEST_F(DamagedCheckpoint, IsFoundForFilesSwappedWithAnotherStepOrEachOther) {
    for (auto const& [path, bytes] : whole_) {
        Path const other = Path(kOlder) / Path(path).filename();
        files_.damage(path, files_.read_text(other, INT64_MAX));
        EXPECT_THAT(error(), HasSubstr(kFolder)) << path;
        files_.damage(path, bytes);
    }
    std::string const a = std::string(kFolder) + "/rank_0000.h5", b = std::string(kFolder) + "/rank_0001.h5";
    files_.damage(a, whole_.at(b));
    files_.damage(b, whole_.at(a));
    EXPECT_THAT(error(), AllOf(HasSubstr("rank_0000.h5"), HasSubstr("the manifest says")));
}

TEST_F(DamagedCheckpoint, IsNamedWithWhatWasExpectedAndFound) {
    std::string const path = std::string(kFolder) + "/rank_0000.h5";
    std::string damaged = whole_.at(path);
    damaged[100] = static_cast<char>(damaged[100] + 1);
    files_.damage(path, damaged);
    EXPECT_THAT(error(), AllOf(HasSubstr(path), HasSubstr(sha256(damaged)), HasSubstr(sha256(whole_.at(path)))));
    files_.damage(path, damaged.substr(1));
    EXPECT_THAT(error(), AllOf(HasSubstr(path), HasSubstr(std::to_string(damaged.size())),
                               HasSubstr(std::to_string(damaged.size() - 1))));
}

TEST_F(DamagedCheckpoint, IsSkippedForAnOlderWholeOneOnEveryRank) {
    std::string damaged = whole_.begin()->second;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    files_.damage(whole_.begin()->first, damaged);
    run_ranks(3, [&](HostComm& world) {
        auto const found = find_latest(files_, world, "/c");
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->folder(), Path(kOlder));
        EXPECT_EQ(load(*found, example_tensors(61)), example_tensors(61));
    });
}

TEST_F(DamagedCheckpoint, IsAnErrorWhereNoWholeOneIsLeft) {
    for (Path const folder : {kFolder, kOlder}) files_.remove_all(folder / "rank_0001.h5");
    for (auto const& error : try_ranks(2, [&](HostComm& world) { find_latest(files_, world, "/c"); })) {
        ASSERT_TRUE(error);
        EXPECT_THAT(checkpoint_error([&] { std::rethrow_exception(error); }),
                    AllOf(HasSubstr("none of the 2 checkpoints in /c"), HasSubstr("rank_0001.h5 is missing")));
    }
}

/// Manifests whose hash is right but whose contents are not: written by something else, or by someone hostile.
class ForeignManifest : public DamagedCheckpoint {
  protected:
    using Json = nlohmann::json;
    std::string error_with(std::function<void(Json&)> const& change) {
        std::string const path = std::string(kFolder) + "/manifest.json";
        Json body = Json::parse(whole_.at(path))["manifest"];
        change(body);
        std::string const text = body.dump();
        files_.damage(path, fmt::format("{{\"sha256\":\"{}\",\n\"manifest\":{}}}\n", sha256(text), text));
        std::string const message = error();
        if (message != "nothing was thrown") {
            EXPECT_THAT(message, HasSubstr(kFolder));
        }
        return message;
    }
};

TEST_F(ForeignManifest, IsAcceptedUnchanged) {
    EXPECT_EQ(error_with([](Json&) {}), "nothing was thrown");
}

TEST_F(ForeignManifest, IsRefusedWithItsFormatOrVersion) {
    EXPECT_THAT(error_with([](Json& m) { m["format"] = "megatron"; }),
                AllOf(HasSubstr("megatron"), HasSubstr("perigee-checkpoint")));
    EXPECT_THAT(error_with([](Json& m) { m["version"] = 2; }), AllOf(HasSubstr("version 2"), HasSubstr("version 1")));
    std::string const path = std::string(kFolder) + "/manifest.json";
    files_.damage(path, R"({"metadata": {"total_size": 1}})");
    EXPECT_THAT(error(), HasSubstr("not the manifest of a perigee checkpoint"));
    std::string const text = "[[[[";
    files_.damage(path, fmt::format("{{\"sha256\":\"{}\",\n\"manifest\":{}}}\n", sha256(text), text));
    EXPECT_THAT(error(), HasSubstr("not JSON"));
    std::string const deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
    files_.damage(path, fmt::format("{{\"sha256\":\"{}\",\n\"manifest\":{}}}\n", sha256(deep), deep));
    EXPECT_THAT(error(), HasSubstr("`format` is missing"));
    TemporaryFolder const on_disk;
    Path const sparse = on_disk.path() / kManifestName;
    std::ofstream(sparse) << ' ';
    std::filesystem::resize_file(sparse, kMaxManifestBytes + 1);
    EXPECT_THAT(checkpoint_error([&] { Checkpoint::open(*make_file_system(), on_disk.path()); }),
                HasSubstr("at most 1073741824"));
}

TEST_F(ForeignManifest, MayOnlyNamePlainFilesInItsFolder) {
    for (std::string const name :
         {"", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "manifest.json", "a\nb"}) {
        EXPECT_THAT(error_with([&](Json& m) { m["files"][0]["name"] = name; }), HasSubstr("plain name")) << name;
    }
    EXPECT_THAT(error_with([&](Json& m) { m["files"][0]["name"] = std::string("a\0b", 3); }), HasSubstr("plain name"));
    EXPECT_THAT(error_with([&](Json& m) { m["files"][0]["name"] = std::string(300, 'a'); }), HasSubstr("plain name"));
    EXPECT_THAT(error_with([&](Json& m) { m["files"][1]["name"] = m["files"][0]["name"]; }), HasSubstr("twice"));
}

TEST_F(ForeignManifest, MayNotLeaveOutOrMistypeAnything) {
    EXPECT_THAT(error_with([](Json& m) { m.erase("files"); }), HasSubstr("`files` is missing"));
    EXPECT_THAT(error_with([](Json& m) { m = Json::array(); }), HasSubstr("is missing"));
    EXPECT_THAT(error_with([](Json& m) { m["state"]["step"] = "2"; }), HasSubstr("`step`"));
    EXPECT_THAT(error_with([](Json& m) { m["state"]["step"] = -2; }), HasSubstr("`step` is -2"));
    EXPECT_THAT(error_with([](Json& m) { m["state"]["step"] = 1.5; }), HasSubstr("`step` is 1.5"));
    EXPECT_THAT(error_with([](Json& m) { m["state"]["info"] = {{"a", 1}}; }), HasSubstr("`a` is 1"));
    EXPECT_THAT(error_with([](Json& m) { m["files"][0]["bytes"] = UINT64_MAX; }), HasSubstr("`bytes`"));
    EXPECT_THAT(error_with([](Json& m) { m["tensors"][0]["dtype"] = "complex"; }), HasSubstr("unknown type `complex`"));
    EXPECT_THAT(error_with([](Json& m) { m["tensors"][1]["name"] = m["tensors"][0]["name"]; }),
                HasSubstr("listed twice"));
    EXPECT_THAT(error_with([](Json& m) { m["tensors"][0]["pieces"][0]["flat"] = {0}; }), HasSubstr("not a pair"));
    EXPECT_THAT(error_with([](Json& m) { m["tensors"][0]["pieces"][0]["file"] = 2; }), HasSubstr("file 2 of 2"));
    EXPECT_THAT(error_with([](Json& m) { m["tensors"][0]["shape"] = {1, 1, 1, 1, 8}; }), HasSubstr("5 dimensions"));
    EXPECT_THAT(error_with([](Json& m) { m["tensors"][0]["shape"] = {1ull << 40, 1ull << 40}; }), HasSubstr("absurd"));
}

TEST_F(ForeignManifest, MayNotPlacePiecesOutsideTwiceOrNowhere) {
    auto piece = [&](std::function<void(Json&, Json&)> const& change) {
        return error_with([&](Json& m) { change(m["tensors"][1], m["tensors"][1]["pieces"]); });
    };
    // Tensor 1 is model.q.weight, 6 x 4.
    EXPECT_THAT(piece([](Json&, Json& p) { p[0]["begin"] = {1, 0}; }), HasSubstr("begins at [1, 0]"));
    EXPECT_THAT(piece([](Json&, Json& p) { p[0]["begin"] = {0}; }), HasSubstr("begins at [0]"));
    EXPECT_THAT(piece([](Json&, Json& p) { p[0]["flat"] = {1, 24}; }), HasSubstr("24 elements from 1 on"));
    EXPECT_THAT(piece([](Json&, Json& p) { p[0]["flat"] = {0, 23}; }), HasSubstr("23 elements"));
    EXPECT_THAT(piece([](Json&, Json& p) { p.push_back(p[0]); }), HasSubstr("more than the 24 elements"));
    EXPECT_THAT(piece([](Json&, Json& p) { p.clear(); }), HasSubstr("0 elements"));
    EXPECT_THAT(piece([](Json&, Json& p) {
                    p[0]["flat"] = {0, 12};
                    p.push_back(p[0]);
                }),
                HasSubstr("element 0 of tensor `model.q.weight` is stored twice"));
    EXPECT_THAT(piece([](Json&, Json& p) {
                    p[0]["flat"] = {0, 12};
                    p.push_back(p[0]);
                    p[1]["flat"] = {6, 12};
                }),
                HasSubstr("element 6 of tensor `model.q.weight` is stored twice"));
    EXPECT_THAT(piece([](Json& t, Json& p) {
                    t["shape"] = p[0]["extent"] = {1 << 20, 1 << 20};
                    p[0]["flat"] = {0, int64_t{1} << 40};
                }),
                HasSubstr("do not fit"));
}

TEST_F(ForeignManifest, MayNotDisagreeWithItsTensorFiles) {
    auto read_error = [&](std::function<void(Json&)> const& change) {
        if (error_with(change) != "nothing was thrown") return std::string("found on opening");
        return checkpoint_error([&] { load(Checkpoint::open(files_, kFolder), example_tensors(62)); });
    };
    EXPECT_EQ(read_error([](Json&) {}), "nothing was thrown");
    EXPECT_THAT(read_error([](Json& m) { m["tensors"][0]["pieces"][0]["dataset"] = "other"; }),
                HasSubstr("no tensor `other`"));
    EXPECT_THAT(read_error([](Json& m) { m["tensors"][0]["pieces"][0]["file"] = 1; }),
                HasSubstr("no tensor `model.norm.weight`"));
    EXPECT_THAT(read_error([](Json& m) { m["tensors"][1]["pieces"][0]["file"] = 0; }),
                HasSubstr("no tensor `model.q.weight`"));
}

TEST(Checkpoint, MayHaveAManifestAsLargeAsThatOfThousandsOfRanks) {
    MemoryFileSystem files;
    RunState state = example_state(2);
    state.info["as many bytes as their pieces"] = std::string(size_t{80} << 20, 'x');
    auto parts = whole_parts(example_tensors(1));
    save_checkpoint(files, *make_single_host_comm(), "/c", state, views(parts), {});
    EXPECT_TRUE(Checkpoint::open(files, kFolder).state() == state);
}

TEST(Checkpoint, IsNotFoundInAnEmptyOrMissingFolder) {
    MemoryFileSystem files;
    EXPECT_FALSE(find_latest(files, *make_single_host_comm(), "/none").has_value());
    files.make_directories("/c/step_00000009.tmp");
    files.make_directories("/c/.trash-step_00000001");
    files.make_directories("/c/steps");
    files.make_directories("/c/step_9");
    EXPECT_FALSE(find_latest(files, *make_single_host_comm(), "/c").has_value());
    EXPECT_THAT(checkpoint_error([&] { Checkpoint::open(files, "/c/steps"); }),
                AllOf(HasSubstr("/c/steps"), HasSubstr("manifest.json")));
    EXPECT_THAT(checkpoint_error([&] { Checkpoint::open(files, "/missing"); }), HasSubstr("/missing"));
}

}  // namespace
}  // namespace perigee
