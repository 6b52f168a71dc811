// Options with one key of every type, small enough to be read beside a test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"
#include "config/schema_yaml.h"

namespace perigee::testing {

enum class Mode { fast, safe };

struct SampleSet {
    std::string path;
    double weight = 1.0;
    bool operator==(SampleSet const&) const = default;
};
inline void describe(Schema& schema, SampleSet& options) {
    schema.add("path", options.path, "where it is").add("weight", options.weight, above(0), "its share");
}

struct SampleLayers {
    int64_t last = 0;
    std::vector<int64_t> layers;
    bool operator==(SampleLayers const&) const = default;
};
inline void describe(Schema& schema, SampleLayers& options) {
    schema.add("last", options.last, at_least(0), "the last ones")
        .add("layers", options.layers, between(0, 99), "these ones");
}

struct SampleRate {
    double lr = 3e-4;
    double weight_decay = 0.1;
    double beta1 = 0.9;
    bool operator==(SampleRate const&) const = default;
};
inline void describe(Schema& schema, SampleRate& options) {
    schema.add("lr", options.lr, above(0), "rate")
        .add("weight_decay", options.weight_decay, at_least(0), "decay")
        .add("beta1", options.beta1, between(0, 1), "decay | of the moment");
}

struct SampleOptions {
    int64_t steps = 10;
    bool shuffle = true;
    std::string output_dir = "runs/default";
    Mode mode = Mode::fast;
    SampleRate optimizer;
    SampleLayers full_layers;
    std::vector<SampleSet> train;
    bool operator==(SampleOptions const&) const = default;
};
inline void describe(Schema& schema, SampleOptions& options) {
    schema.add("steps", options.steps, between(1, 1000000), "how many")
        .add("shuffle", options.shuffle, "in another order")
        .add("output_dir", options.output_dir, "folder")
        .choice("mode", options.mode, {{"fast", Mode::fast}, {"safe", Mode::safe}}, "how")
        .section("optimizer", options.optimizer, "The optimizer.")
        .section("full_layers", options.full_layers, "Layers.", &options.full_layers.layers)
        .list("train", options.train, "sets");
}

inline SampleOptions read_sample(std::string const& text, std::vector<std::string> const& overrides = {}) {
    SampleOptions options;
    Schema schema;
    describe(schema, options);
    read_yaml(schema, text, "f.yaml", overrides);
    return options;
}
inline std::string write_sample(SampleOptions options) {
    Schema schema;
    describe(schema, options);
    return write_yaml(schema);
}

}  // namespace perigee::testing
