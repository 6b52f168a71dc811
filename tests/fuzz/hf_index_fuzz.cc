// model.safetensors.index.json of a folder with two honest files: nothing outside the folder is opened, and what is
// accepted can be read.
#include <span>

#include "fuzz/fuzz.h"
#include "hf/weights.h"
#include "support/memory_file_system.h"

namespace perigee::testing {

namespace {

/// Of which only names in the folder may be opened.
class GuardedFiles : public MemoryFileSystem {
  public:
    std::unique_ptr<ReadableFile> open(Path const& path) override {
        PERIGEE_CHECK(path.parent_path() == "/model", "opened {}", path.string());
        return MemoryFileSystem::open(path);
    }
};

void write_file(FileSystem& files, Path const& path, std::vector<std::string> const& names) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (std::string const& name : names) tensors.push_back({name, ElementType::f32, {2}});
    SafetensorsWriter writer(files, path, tensors);
    for (std::string const& name : names) writer.write(name, 0, std::vector<float>{1, 2});
    writer.finish();
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    return {
        R"({"metadata":{"total_size":24},"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"two.safetensors"}})",
        R"({"weight_map":{"c":"two.safetensors"}})", R"({"weight_map":{"c":"../two.safetensors"}})",
        R"({"weight_map":{"c":"/model/two.safetensors"}})", R"({"weight_map":{}})"};
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    testing::GuardedFiles files;
    files.make_directories("/model");
    testing::write_file(files, "/model/one.safetensors", {"a", "b"});
    testing::write_file(files, "/model/two.safetensors", {"c"});
    testing::write_file(files, "/two.safetensors", {"c"});
    files.create(Path("/model") / kIndexName)->write_at(0, std::as_bytes(std::span(data, size)));
    testing::may_refuse([&] {
        HfWeights const weights(files, "/model");
        for (auto const& [name, shape] : weights.shapes()) {
            std::vector<float> values(static_cast<size_t>(shape.size()));
            weights.read(name, whole_shard(shape), values);
        }
    });
    return 0;
}
