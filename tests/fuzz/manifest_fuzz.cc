// manifest.json of a checkpoint: an input is what its hash covers, around which the rest is made so that the hash fits.
// What is accepted is written and read back as the same.
#include "checkpoint/manifest.h"

#include "fuzz/fuzz.h"
#include "io/sha256.h"

namespace perigee::testing {

namespace {

Manifest example(int files) {
    Manifest manifest;
    manifest.state.step = 7;
    manifest.state.info = {{"layout", "dp 1"}};
    for (int i = 0; i < files; ++i)
        manifest.files.push_back({fmt::format("rank_{:04}.h5", i), 4096, std::string(64, 'a')});
    Manifest::Tensor tensor{DType::f32, Shape{4, 6}, {}};
    for (int i = 0; i < files; ++i) {
        Shard shard = whole_shard(tensor.shape);
        shard.flat_begin = 24 / files * i;
        shard.flat_count = 24 / files;
        tensor.pieces.push_back({static_cast<size_t>(i), fmt::format("w_{}", i), shard});
    }
    manifest.tensors["model.w"] = tensor;
    return manifest;
}

constexpr std::string_view kMiddle = "\",\n\"manifest\":";

/// What the hash of a manifest covers.
std::string body_of(std::string const& text) {
    size_t const begin = text.find(kMiddle) + kMiddle.size();
    return text.substr(begin, text.size() - begin - 2);
}

void use(std::string const& body) {
    std::string const text = fmt::format("{{\"sha256\":\"{}{}{}}}\n", sha256(body), kMiddle, body);
    Manifest const manifest = Manifest::parse(text, "file");
    std::string const written = manifest.to_text();
    PERIGEE_CHECK(Manifest::parse(written, "written").to_text() == written, "{} reads back as something else", written);
    manifest.check_pieces("file");
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::vector<std::string> seeds;
    for (int const files : {1, 2, 4}) seeds.push_back(body_of(example(files).to_text()));
    return seeds;
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    std::string const body(reinterpret_cast<char const*>(data), size);
    testing::may_refuse([&] { testing::use(body); });
    return 0;
}
