// Hugging Face folder to checkpoint and back, and the other way round, bit for bit; and what a failure leaves.
#include "hf/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/example.h"
#include "hf/base_fingerprint.h"
#include "hf/hf_folder.h"
#include "ops/ops.h"
#include "support/fault_file_system.h"
#include "support/temporary_folder.h"

namespace perigee {
namespace {

using namespace testing;
using ::testing::HasSubstr;

/// What happened to the progress bar.
struct Progress {
    int64_t last = 0, total = 0;
    bool rises = true;
    ConversionProgress sink() {
        return [this](int64_t done, int64_t all) {
            rises = rises && done > last && (total == 0 || total == all);
            last = done;
            total = all;
        };
    }
    bool complete() const { return rises && last == total && total > 0; }
};

void convert_in(FileSystem& files, Path const& from, Path const& to) {
    Progress progress;
    import_checkpoint(files, from, to, progress.sink());
    EXPECT_TRUE(progress.complete());
}

void convert_out(FileSystem& files, Path const& from, Path const& to, int64_t shard_bytes = int64_t{1} << 30) {
    Checkpoint const checkpoint = Checkpoint::open(files, from);
    Progress progress;
    ExportOptions options;
    options.model = read_hf_config(files, from).model;
    options.type = source_type(checkpoint);
    options.shard_bytes = shard_bytes;
    options.origin = from;
    export_folder(files, checkpoint, options, to, progress.sink());
    EXPECT_TRUE(progress.complete());
}

/// The tensors of a checkpoint by name.
std::map<std::string, std::vector<float>> tensors_of(FileSystem& files, Path const& folder) {
    Checkpoint const checkpoint = Checkpoint::open(files, folder);
    std::map<std::string, std::vector<float>> all;
    for (auto const& [name, shape] : checkpoint.tensors()) {
        all[name] = poisoned<float>(shape.size());
        checkpoint.read({{name, whole_shard(shape), TensorView(all[name].data(), shape)}});
    }
    return all;
}

TEST(Convert, hugging_face_to_checkpoint_and_back_is_bit_equal) {
    size_t number = 0;
    for (std::string const type : {"llama", "mistral", "qwen2", "qwen3"}) {
        for (bool const tied : {false, true}) {
            for (ElementType const element : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
                for (size_t const shards : {1, 3}) {
                    if (number++ % (PERIGEE_SANITIZED ? 5 : 1) != 0) continue;  // sanitizers see a part
                    SCOPED_TRACE(fmt::format("{} {} {} {}", type, tied, to_string(element), shards));
                    MemoryFileSystem files;
                    write_folder(files, "/there", small_config(type, tied), element, shards);
                    convert_in(files, "/there", "/checkpoint");
                    EXPECT_EQ(tensors_of(files, "/checkpoint").contains("lm_head.weight"), !tied);
                    convert_out(files, "/checkpoint", "/back", shards == 1 ? 1 << 30 : 1500);
                    EXPECT_EQ(files.exists(Path("/back") / kIndexName), shards > 1);
                    EXPECT_EQ(stored_tensors(files, "/back"), stored_tensors(files, "/there"));
                    EXPECT_NO_THROW(HfWeights(files, "/back"));
                    EXPECT_EQ(files.read_text("/back/generation_config.json", 1000), "{\"a\": 24}");
                    EXPECT_FALSE(files.exists("/back.tmp") || files.exists("/checkpoint.tmp"));
                    // And the other way: that folder makes the same checkpoint again.
                    convert_in(files, "/back", "/again");
                    EXPECT_EQ(tensors_of(files, "/again"), tensors_of(files, "/checkpoint"));
                }
            }
        }
    }
}

TEST(Convert, a_trained_checkpoint_survives_export_in_fp32_with_every_bit) {
    MemoryFileSystem files;
    ModelOptions const model = parse_hf_config(small_config("qwen3", false), "config").model;
    Tensors tensors;
    for (ParamSpec const& spec : llama_params(model)) {
        tensors.add(spec.name, DType::f32, spec.shape, 9);
        auto& bytes = tensors.all[spec.name].bytes;
        auto const values = random_normal<float>(spec.shape.size(), hash_name(spec.name));
        std::memcpy(bytes.data(), values.data(), bytes.size());
        tensors.add("optimizer.m/" + spec.name, DType::f32, spec.shape, 9);
    }
    save(files, "/run", 7, tensors);
    Checkpoint const checkpoint = Checkpoint::open(files, "/run/step_00000007");
    EXPECT_EQ(source_type(checkpoint), ElementType::f32);
    ExportOptions options;
    options.model = model;
    options.shard_bytes = 4000;
    export_folder(files, checkpoint, options, "/out", [](int64_t, int64_t) {});
    convert_in(files, "/out", "/again");
    auto const before = tensors_of(files, "/run/step_00000007"), after = tensors_of(files, "/again");
    EXPECT_EQ(after.size() * 2, before.size());
    for (auto const& [name, values] : after) EXPECT_EQ(values, before.at(name)) << name;
}

/// W + scale B A
std::vector<float> merged(std::map<std::string, std::vector<float>> const& all, std::string const& layer,
                          LoraOptions const& lora) {
    std::vector<float> w = all.at(layer + ".weight");
    std::vector<float> const &a = all.at(layer + ".lora_A.weight"), &b = all.at(layer + ".lora_B.weight");
    auto const rank = static_cast<size_t>(lora.rank);
    size_t const in = a.size() / rank;
    for (size_t i = 0; i < w.size(); ++i)
        for (size_t r = 0; r < rank; ++r)
            w[i] += static_cast<float>(lora.scale()) * b[i / in * rank + r] * a[r * in + i % in];
    return w;
}

TEST(Convert, adapters_are_merged_into_weights_and_leave_biases_as_they_are) {
    MemoryFileSystem files;
    ExportOptions options;
    options.model = parse_hf_config(small_config("qwen2", false), "config").model;
    options.model.lora = {.rank = 2, .alpha = 3, .targets = {"q_proj", "k_proj", "v_proj"}};
    Tensors tensors;
    std::map<std::string, std::vector<float>> before;
    for (ParamSpec const& spec : llama_params(options.model)) {
        before[spec.name] = random_normal<float>(spec.shape.size(), hash_name(spec.name));
        tensors.add(spec.name, DType::f32, spec.shape, 9);
        auto& bytes = tensors.all[spec.name].bytes;
        std::memcpy(bytes.data(), before[spec.name].data(), bytes.size());
    }
    save(files, "/run", 7, tensors);
    Checkpoint const checkpoint = Checkpoint::open(files, "/run/step_00000007");
    export_folder(files, checkpoint, options, "/out", [](int64_t, int64_t) {});
    convert_in(files, "/out", "/again");
    size_t adapted = 0;
    for (auto const& [name, values] : tensors_of(files, "/again")) {
        std::string const layer = name.substr(0, name.rfind('.'));
        if (name.ends_with(".weight") && before.contains(layer + ".lora_A.weight")) {
            std::vector<float> const expected = merged(before, layer, options.model.lora);
            ASSERT_EQ(values.size(), expected.size()) << name;
            for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], 1e-5) << name;
            EXPECT_EQ(before.count(layer + ".bias"), 1u) << name;
            ++adapted;
        } else {
            EXPECT_EQ(values, before.at(name)) << name;
        }
    }
    EXPECT_EQ(adapted, 6u);
}

/// A run from random weights that trained the second half of its tensors: the checkpoint has no others. `info` gets the
/// fingerprint of the frozen ones.
struct HalfTrained {
    static constexpr uint64_t kSeed = 42;
    std::map<std::string, std::vector<float>> all;
    Tensors trained;
    RunState state = example_state(7);

    explicit HalfTrained(ModelOptions const& model) {
        auto const host = make_host_device();
        auto const ops = make_host_ops(*host);
        ParamLayout const layout(llama_params(model), 1, 0);
        std::vector<float> values = poisoned<float>(layout.size());
        TensorView const flat(values.data(), {layout.size()});
        initialise(*ops, layout, {{layout.whole(), flat}}, kSeed);
        BaseFingerprint frozen;
        for (ParamLayout::Entry const& entry : layout.entries()) {
            std::string const& name = entry.spec.name;
            auto const* const begin = values.data() + entry.offset;
            std::vector<float> own(begin, begin + entry.local.size());
            if (&entry - layout.entries().data() < std::ssize(layout.entries()) / 2) {
                std::vector<bf16> rounded(own.size());
                std::ranges::transform(own, rounded.begin(), to_bf16);
                frozen.add(name, entry.spec.shape, 0, rounded);
            } else {
                for (float& x : own) x += 1;
                trained.add(name, DType::f32, entry.spec.shape, 9);
                std::memcpy(trained.all[name].bytes.data(), own.data(), own.size() * sizeof(float));
            }
            all[name] = std::move(own);
        }
        state.seed = kSeed;
        state.info[RunState::kBase] = BaseFingerprint::text(frozen.sum());
    }
    Checkpoint saved(FileSystem& files, Path const& root) {
        auto parts = whole_parts(trained);
        save_checkpoint(files, *make_single_host_comm(), root, state, views(parts), {});
        return Checkpoint::open(files, root / "step_00000007");
    }
};

TEST(Convert, FrozenWeightsOfARunFromRandomOnesAreDrawnAgainFromItsSeed) {
    MemoryFileSystem files;
    ExportOptions options;
    options.model = parse_hf_config(small_config("qwen2", false), "config").model;
    HalfTrained run(options.model);
    ASSERT_LT(run.trained.all.size(), run.all.size());
    export_folder(files, run.saved(files, "/run"), options, "/out", [](int64_t, int64_t) {});
    convert_in(files, "/out", "/again");
    EXPECT_EQ(tensors_of(files, "/again"), run.all);
}

TEST(Convert, FrozenWeightsThatTheSeedDoesNotGiveAreRefused) {
    MemoryFileSystem files;
    ExportOptions options;
    options.model = parse_hf_config(small_config("llama", false), "config").model;
    HalfTrained run(options.model);
    ++run.state.seed;
    Checkpoint const checkpoint = run.saved(files, "/run");
    std::string const error =
        error_of(Category::config, [&] { export_folder(files, checkpoint, options, "/out", [](int64_t, int64_t) {}); });
    EXPECT_THAT(error, HasSubstr("are not the random ones of its seed 43"));
    EXPECT_THAT(error, HasSubstr("name the folder of the model that it began with by --base"));
    EXPECT_FALSE(files.exists("/out") || files.exists("/out.tmp"));
}

TEST(Convert, files_hold_at_most_the_bytes_asked_for_and_the_index_adds_up) {
    MemoryFileSystem files;
    write_folder(files, "/there", small_config("llama", false), ElementType::f32, 1);
    convert_in(files, "/there", "/checkpoint");
    convert_out(files, "/checkpoint", "/back", 2000);
    auto const index = nlohmann::json::parse(files.read_text(Path("/back") / kIndexName, 1 << 20));
    int64_t total = 0;
    std::map<std::string, int64_t> bytes;
    for (ParamSpec const& spec : llama_params(read_hf_config(files, "/back").model)) {
        total += spec.shape.size() * 4;
        bytes[index["weight_map"][spec.name].get<std::string>()] += spec.shape.size() * 4;
    }
    EXPECT_EQ(index["metadata"]["total_size"], total);
    EXPECT_GT(bytes.size(), 4u);
    for (auto const& [name, size] : bytes) {
        EXPECT_LE(size, 2000) << name;
        EXPECT_THAT(name, ::testing::MatchesRegex("model-000..-of-000...safetensors"));
    }
}

TEST(Convert, the_output_must_be_new_and_room_is_checked_first) {
    MemoryFileSystem memory;
    write_folder(memory, "/there", small_config("llama", false), ElementType::bf16, 1);
    convert_in(memory, "/there", "/checkpoint");
    EXPECT_EQ(error_of(Category::config, [&] { convert_in(memory, "/there", "/checkpoint"); }),
              "/checkpoint exists already: choose another name, or remove it");
    FaultFileSystem files(memory);
    files.set_free_bytes(1000);
    int64_t bytes = int64_t{16} << 20;
    for (ParamSpec const& spec : llama_params(read_hf_config(memory, "/there").model)) bytes += 2 * spec.shape.size();
    EXPECT_EQ(error_of(Category::config, [&] { convert_out(files, "/checkpoint", "/back"); }),
              fmt::format("no room for /back: {} bytes needed, 1000 bytes free", bytes));
    EXPECT_THAT(error_of(Category::checkpoint, [&] { convert_in(files, "/there", "/more"); }), HasSubstr("no room"));
    EXPECT_EQ(memory.list("/"), (std::vector<std::string>{"checkpoint", "there"}));
    auto const other = memory.lock("/back.tmp.lock", "another conversion");
    EXPECT_EQ(error_of(Category::config, [&] { convert_out(memory, "/checkpoint", "/back"); }),
              "/back.tmp.lock is held by another conversion");
}

TEST(Convert, TokensThatEndAnswersAreInBothConfigs) {
    MemoryFileSystem files;
    write_folder(files, "/there", small_config("llama", false), ElementType::bf16, 1);
    files.replace_text("/there/generation_config.json", R"({"eos_token_id": 0, "temperature": 0.6})");
    convert_in(files, "/there", "/checkpoint");
    Checkpoint const checkpoint = Checkpoint::open(files, "/checkpoint");
    ExportOptions options;
    options.model = read_hf_config(files, "/checkpoint").model;
    options.origin = "/checkpoint";
    options.ends = {2};
    export_folder(files, checkpoint, options, "/back", [](int64_t, int64_t) {});
    auto const back = [&](char const* name) {
        return nlohmann::json::parse(files.read_text(Path("/back") / name, 10000));
    };
    EXPECT_EQ(back("generation_config.json"), (nlohmann::json{{"eos_token_id", {0, 2}}, {"temperature", 0.6}}));
    nlohmann::json const eos = back("config.json")["eos_token_id"];
    EXPECT_EQ(eos.is_array() ? eos.back() : eos, 2);
}

TEST(Convert, a_value_beyond_fp16_is_an_error_and_leaves_nothing) {
    MemoryFileSystem files;
    write_folder(files, "/there", small_config("llama", false), ElementType::f32, 1);
    std::vector<SafetensorsWriter::Tensor> tensors;
    auto const specs = llama_params(read_hf_config(files, "/there").model);
    for (ParamSpec const& spec : specs) tensors.push_back({spec.name, ElementType::f32, spec.shape});
    SafetensorsWriter writer(files, "/there/model.safetensors", tensors);
    for (ParamSpec const& spec : specs)
        writer.write(
            spec.name, 0,
            std::vector<float>(static_cast<size_t>(spec.shape.size()), spec.name == "model.norm.weight" ? 1e6f : 1.0f));
    writer.finish();
    convert_in(files, "/there", "/checkpoint");
    ExportOptions options;
    options.model = read_hf_config(files, "/there").model;
    options.type = ElementType::f16;
    Checkpoint const checkpoint = Checkpoint::open(files, "/checkpoint");
    EXPECT_EQ(error_of(Category::checkpoint,
                       [&] { export_folder(files, checkpoint, options, "/back", [](int64_t, int64_t) {}); }),
              "/back.tmp/model.safetensors: a value of tensor `model.norm.weight` is too large for float16");
    EXPECT_EQ(files.list("/"), (std::vector<std::string>{"checkpoint", "there"}));
}

/// Whichever operation fails or is the last one before a crash, the name shows a whole folder or none.
TEST(Convert, no_half_folder_ever_has_the_final_name) {
    MemoryFileSystem original;
    write_folder(original, "/there", small_config("llama", true), ElementType::bf16, 2);
    convert_in(original, "/there", "/checkpoint");
    for (bool const out : {false, true}) {
        auto const convert = [&](FileSystem& files) {
            if (out)
                convert_out(files, "/checkpoint", "/made", 1500);
            else
                convert_in(files, "/there", "/made");
        };
        auto const clean = original.copy();
        FaultFileSystem counted(*clean);
        convert(counted);
        auto const whole = clean->contents("/made");
        auto const count = std::ssize(counted.operations());
        ASSERT_GT(count, 10);
        int64_t named = 0;
        int64_t const every = PERIGEE_SANITIZED ? 3 : 1;  // the last one included
        for (int64_t stop = (count - 1) % every; stop < count; stop += every) {
            auto const memory = original.copy();
            FaultFileSystem files(*memory);
            files.stop_at(stop, EIO);
            try {
                convert(files);
            } catch (Error const&) {
            }
            for (size_t names = 0; names <= memory->pending_names(); ++names) {
                auto const after = memory->after_power_loss(names, MemoryFileSystem::Unsynced::torn);
                if (!after->exists("/made")) continue;
                ++named;
                ASSERT_EQ(after->contents("/made"), whole) << "stopped at " << stop << " with " << names << " names";
            }
            // What is left behind is in nobody's way.
            if (!memory->exists("/made")) {
                convert(*memory);
                ASSERT_EQ(memory->contents("/made"), whole);
            }
        }
        EXPECT_GT(named, 0);
    }
}

TEST(Conversion, TakesNoFileFromOutsideOfTheFolder) {
    TemporaryFolder const work;
    auto const files = make_file_system();
    Path const outside = work.path() / "secret", folder = work.path() / "model";
    files->make_directories(folder);
    files->replace_text(outside, "not for you");
    write_folder(*files, folder, small_config("llama", false), ElementType::f32, 1);
    std::filesystem::create_symlink("../secret", folder / "tokenizer.json");
    try {
        import_checkpoint(*files, folder, work.path() / "out", [](int64_t, int64_t) {});
        FAIL() << "copied " << files->read_text(work.path() / "out" / "tokenizer.json", 100);
    } catch (Error const& e) {
        EXPECT_EQ(e.category(), Category::data);
        EXPECT_THAT(e.what(), HasSubstr("tokenizer.json is a link to "));
        EXPECT_THAT(e.what(), HasSubstr(outside.string()));
    }
    EXPECT_FALSE(files->exists(work.path() / "out"));

    // A link inside the folder, and into the blobs of Hugging Face's cache, is what it stands for.
    std::filesystem::remove(folder / "tokenizer.json");
    files->replace_text(folder / "other.json", "inside");
    std::filesystem::create_symlink("other.json", folder / "tokenizer.json");
    EXPECT_NO_THROW(convert_in(*files, folder, work.path() / "inside"));
    EXPECT_EQ(files->read_text(work.path() / "inside" / "tokenizer.json", 100), "inside");
    Path const snapshot = work.path() / "models--a--b" / "snapshots" / "abc";
    files->make_directories(snapshot);
    write_folder(*files, snapshot, small_config("llama", false), ElementType::f32, 1);
    files->make_directories(work.path() / "models--a--b" / "blobs");
    files->replace_text(work.path() / "models--a--b" / "blobs" / "123", "cached");
    std::filesystem::create_symlink("../../blobs/123", snapshot / "tokenizer.json");
    EXPECT_NO_THROW(convert_in(*files, snapshot, work.path() / "cached"));
    EXPECT_EQ(files->read_text(work.path() / "cached" / "tokenizer.json", 100), "cached");
}

}  // namespace
}  // namespace perigee
