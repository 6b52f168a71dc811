// A run's configuration: an input is the YAML file and, after it, an override. What is accepted and free of problems
// can be written and read back to the same.
#include "config/config.h"

#include "fuzz/fuzz.h"

namespace perigee::testing {

namespace {

void use(std::string const& text, std::vector<std::string> const& overrides) {
    RunOptions const options = parse_config(text, "file", overrides);
    for (int const world_size : {1, 6, 1 << 20})
        for (std::string const& problem : problems(options, world_size))
            PERIGEE_CHECK(!problem.empty(), "a problem without words");
    std::string const written = to_yaml(options);
    PERIGEE_CHECK(to_yaml(parse_config(written, "written", {})) == written, "{} reads back as something else", written);
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
    std::string const plain =
        "model: {hidden_size: 32, num_attention_heads: 2, rope_scaling: {rope_type: linear, factor: 2}}\n"
        "attention: {kind: moba, block_size: 16, top_k: 2, full_layers: [0, 1], schedule: [{step: 2, kind: full}]}\n"
        "data:\n  train:\n    - path: a\n      weight: 0.5\n    - {path: \"b\\tc\"}\n  sequence_length: 64\n"
        "parallel: {tensor: 2, context: 3}\n";
    return {Pieces::join({"data.train.1.path=x", plain}), Pieces::join({"optimizer.lr=1e-3", to_yaml({})}),
            Pieces::join({"", "a: &x [1, 2]\nb: *x\n"})};
}

}  // namespace perigee::testing

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
    using namespace perigee;
    testing::Pieces pieces(data, size);
    std::string const override_text = pieces.next();
    // Another file that an input names is not part of it.
    std::string const text = pieces.rest();
    if ((text + override_text).find("init_from") != std::string::npos &&
        text.find("init_from: \"\"") == std::string::npos)
        return 0;
    std::vector<std::string> overrides;
    if (!override_text.empty()) overrides.push_back(override_text);
    testing::may_refuse([&] { testing::use(text, overrides); });
    return 0;
}
