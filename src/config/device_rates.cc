#include "config/device_rates.h"

#include <algorithm>

#include "base/error.h"
#include "config/schema_yaml.h"
#include "config/yaml_tree.h"

namespace perigee {

namespace {

DeviceRate measured(double value) { return {value, RateSource::measured}; }
DeviceRate assumed(double value) { return {value, RateSource::assumed}; }

/// What no machine of ours has shown.
void assume_the_network(DeviceRates& rates) {
    rates.launch = assumed(3);
    rates.network = assumed(45);
    rates.hop = assumed(12);
    rates.host = assumed(35);  // inferred from four GPUs that offload at once: docs/parallelism.md
    rates.interference = assumed(0.3);
    rates.straggler = assumed(0.01);
}

/// One H200 under sustained load, and links between 8 of one host (docs/benchmarks.md, docs/check.md).
DeviceRates h200() {
    DeviceRates r;
    r.name = "H200", r.memory_gib = 139.8;
    r.products = measured(690);
    r.full_forward_1k = measured(400), r.full_forward_8k = measured(635), r.full_forward_32k = measured(682),
    r.full_forward_128k = measured(669);
    r.full_backward_1k = measured(364), r.full_backward_8k = measured(569), r.full_backward_32k = measured(604),
    r.full_backward_128k = measured(607);
    r.moba_forward = measured(465), r.moba_backward = measured(514), r.moba_choice = measured(196);
    r.moba_gathered_backward = measured(0.74);
    r.small_heads_forward = measured(0.8), r.small_heads_backward = measured(0.86);
    r.memory = measured(4200);
    r.link = measured(344), r.latency = measured(20);
    assume_the_network(r);
    return r;
}

/// The same multiprocessors and links, at a memory of 3.35 TB/s instead of 4.8.
DeviceRates h100() {
    DeviceRates r = h200();
    r.name = "H100", r.memory_gib = 79.1;
    r.assume_all();
    r.memory = assumed(4200 * 3.35 / 4.8);
    return r;
}

/// From NVIDIA's figures: 312 TFLOP/s, 2.04 TB/s, 300 GB/s one way; attention as FlashAttention 2.
DeviceRates a100() {
    DeviceRates r;
    r.name = "A100", r.memory_gib = 79.3;
    r.hopper = false;
    r.products = assumed(250);
    r.full_forward_1k = r.full_backward_1k = assumed(100);
    r.full_forward_8k = r.full_forward_32k = r.full_forward_128k = assumed(190);
    r.full_backward_8k = r.full_backward_32k = r.full_backward_128k = assumed(160);
    r.moba_forward = assumed(130), r.moba_backward = assumed(110), r.moba_choice = assumed(60);
    r.moba_gathered_backward = assumed(0.74);
    r.small_heads_forward = r.small_heads_backward = assumed(0.9);
    r.memory = assumed(1700);
    r.link = assumed(230), r.latency = assumed(20);
    assume_the_network(r);
    r.network = assumed(22), r.host = assumed(22);
    return r;
}

/// What a file lacks that these keys could be read from; empty where it lacks nothing.
std::string missing_rate(Schema const& schema, std::string const& text) {
    Findings none("", Findings::Places::hidden);
    auto const tree = parse_yaml(text, none);
    auto const is_rate = [&](std::string const& key) {
        return std::ranges::any_of(schema.fields(), [&](Field const& field) {
            return field.key == key && std::holds_alternative<Field::Section>(field.target);
        });
    };
    for (auto const& [key, rate] : tree->entries)
        if (is_rate(key->text) &&
            std::ranges::none_of(rate->entries, [](auto const& entry) { return entry.first->text == "value"; }))
            return key->text + " has no value";
    bool const describes = std::ranges::any_of(tree->entries, [](auto const& e) { return e.first->text != "name"; });
    return describes ? "" : "it describes no device, as in products: {value: 690}";
}

}  // namespace

void DeviceRates::assume_all() {
    for (DeviceRate* rate : {&products,
                             &full_forward_1k,
                             &full_forward_8k,
                             &full_forward_32k,
                             &full_forward_128k,
                             &full_backward_1k,
                             &full_backward_8k,
                             &full_backward_32k,
                             &full_backward_128k,
                             &small_heads_forward,
                             &small_heads_backward,
                             &moba_forward,
                             &moba_backward,
                             &moba_choice,
                             &moba_gathered_backward,
                             &memory,
                             &launch,
                             &link,
                             &latency,
                             &network,
                             &hop,
                             &host,
                             &interference,
                             &straggler})
        rate->source = RateSource::assumed;
}

void describe(Schema& schema, DeviceRate& rate) {
    schema.add("value", rate.value, above(0), "in the unit of the rate")
        .choice("source", rate.source, {{"measured", RateSource::measured}, {"assumed", RateSource::assumed}},
                "where it comes from");
}

void describe(Schema& schema, DeviceRates& rates) {
    schema.add("name", rates.name, "of the GPU")
        .add("memory_gib", rates.memory_gib, above(0), "GiB of memory")
        .add("gpus_per_host", rates.gpus_per_host, between(1, 1024), "GPUs that the faster links join")
        .add("hopper", rates.hopper, "whether its attention runs on the kernels for compute capability 9.0a")
        .section("products", rates.products, "TFLOP/s of matrix products")
        .section("full_forward_1k", rates.full_forward_1k, "TFLOP/s of full attention over 1K tokens")
        .section("full_forward_8k", rates.full_forward_8k, "the same over 8K")
        .section("full_forward_32k", rates.full_forward_32k, "the same over 32K")
        .section("full_forward_128k", rates.full_forward_128k, "the same over 128K and more")
        .section("full_backward_1k", rates.full_backward_1k, "TFLOP/s of full attention's backward over 1K tokens")
        .section("full_backward_8k", rates.full_backward_8k, "the same over 8K")
        .section("full_backward_32k", rates.full_backward_32k, "the same over 32K")
        .section("full_backward_128k", rates.full_backward_128k, "the same over 128K and more")
        .section("moba_forward", rates.moba_forward, "TFLOP/s of block-sparse attention, without the choice")
        .section("moba_backward", rates.moba_backward, "TFLOP/s of its backward")
        .section("moba_choice", rates.moba_choice, "TFLOP/s of the choice of blocks")
        .section("moba_gathered_backward", rates.moba_gathered_backward,
                 "factor of its backward where context-parallel ranks gather keys")
        .section("small_heads_forward", rates.small_heads_forward, "factor of attention with heads of at most 64")
        .section("small_heads_backward", rates.small_heads_backward, "the same of its backward")
        .section("memory", rates.memory, "GB/s that are read and written")
        .section("launch", rates.launch, "microseconds at least of an operation")
        .section("link", rates.link, "GB/s a GPU sends in a collective within a host")
        .section("latency", rates.latency, "microseconds of such a collective")
        .section("network", rates.network, "GB/s of a GPU to other hosts")
        .section("hop", rates.hop, "microseconds between two hosts")
        .section("host", rates.host, "GB/s between a GPU and the memory of its host, each way")
        .section("interference", rates.interference, "share by which a collective slows work beside it")
        .section("straggler", rates.straggler, "standard deviation of the ranks' speed, as a share of a step");
}

DeviceRates device_rates(std::string const& name_or_path, FileSystem& files) {
    if (name_or_path == "h200") return h200();
    if (name_or_path == "h100") return h100();
    if (name_or_path == "a100") return a100();
    if (!files.exists(name_or_path))
        fail(Category::config,
             "--device {}: neither h200, h100 or a100, nor a file of rates as perigee calibrate writes it",
             name_or_path);
    DeviceRates rates = h200();  // what the file leaves out
    rates.assume_all();
    Schema schema;
    describe(schema, rates);
    std::string const text = files.read_text(name_or_path, static_cast<int64_t>(kMaxYamlBytes));
    read_yaml(schema, text, name_or_path, {});
    if (std::string const lacks = missing_rate(schema, text); !lacks.empty())
        fail(Category::config, "{}: {}", name_or_path, lacks);
    return rates;
}

std::string to_yaml(DeviceRates const& rates) {
    DeviceRates copy = rates;
    Schema schema;
    describe(schema, copy);
    return write_yaml(schema);
}

}  // namespace perigee
