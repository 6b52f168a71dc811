// One .safetensors file. What the reader accepts must be readable throughout, and covered by its tensors.
#include <span>

#include "fuzz/fuzz.h"
#include "hf/safetensors.h"
#include "support/memory_file_system.h"

namespace perigee::testing {

namespace {

void read_everything(SafetensorsFile const& file) {
    for (auto const& [name, tensor] : file.tensors()) {
        auto const type = element_type(tensor.dtype);
        if (!type) continue;
        int64_t const size = tensor.shape.size();
        PERIGEE_CHECK(size * size_of(*type) == tensor.bytes, "{} elements in {} bytes", size, tensor.bytes);
        std::vector<float> values(static_cast<size_t>(size));
        file.read(tensor, *type, 0, values);
        if (size > 0) file.read(tensor, *type, size - 1, std::span(values).first(1));
    }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::vector<std::string> seeds;
    for (ElementType const type : {ElementType::f32, ElementType::bf16, ElementType::f16}) {
        MemoryFileSystem files;
        SafetensorsWriter writer(files, "/file", {{"a", type, {2, 3}}, {"b.weight", type, {4}}, {"c", type, {0, 7}}});
        for (auto const& [name, count] : {std::pair{"a", size_t{6}}, {"b.weight", size_t{4}}})
            writer.write(name, 0, std::vector<float>(count, 1.5f));
        writer.finish();
        seeds.push_back(files.contents("/")["/file"]);
    }
    return seeds;
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    testing::MemoryFileSystem files;
    files.create("/file")->write_at(0, std::as_bytes(std::span(data, size)));
    testing::may_refuse([&] { testing::read_everything(SafetensorsFile(files, "/file")); });
    return 0;
}
