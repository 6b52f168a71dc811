// How fast a kind of GPU is, and what joins several: what `perigee check --device` reckons with. Files of them are
// YAML; `perigee calibrate` writes one.
#pragma once

#include <string>
#include <vector>

#include "base/schema.h"
#include "io/file_system.h"

namespace perigee {

enum class RateSource { measured, assumed };

struct DeviceRate {
    double value = 0;
    RateSource source = RateSource::assumed;
};
void describe(Schema& schema, DeviceRate& rate);

struct DeviceRates {
    std::string name;
    double memory_gib = 0;
    int64_t gpus_per_host = 8;
    bool hopper = true;  ///< its attention runs on the kernels for compute capability 9.0a
    // TFLOP/s in bf16; of attention by the keys of the longest document, heads of 128.
    DeviceRate products;
    DeviceRate full_forward_1k, full_forward_8k, full_forward_32k, full_forward_128k;
    DeviceRate full_backward_1k, full_backward_8k, full_backward_32k, full_backward_128k;
    DeviceRate small_heads_forward, small_heads_backward;  ///< of attention with heads of at most 64: a factor
    DeviceRate moba_forward, moba_backward, moba_choice;
    DeviceRate moba_gathered_backward;  ///< of that backward, where ranks gather keys: a factor
    DeviceRate memory;                  ///< GB/s read and written
    DeviceRate launch;                  ///< microseconds at least of an operation
    DeviceRate link;                    ///< GB/s a GPU sends in a collective within a host
    DeviceRate latency;                 ///< microseconds of such a collective
    DeviceRate network;                 ///< GB/s of a GPU to other hosts
    DeviceRate hop;                     ///< microseconds between two hosts
    DeviceRate host;                    ///< GB/s between a GPU and its host's memory, each way
    DeviceRate interference;            ///< share by which a collective slows the work beside it
    DeviceRate straggler;               ///< standard deviation of the ranks' speed, as a share of a step

    /// Nothing of it was measured on the GPU that it is to describe.
    void assume_all();
};
void describe(Schema& schema, DeviceRates& rates);

/// Of "h200", "h100" or "a100", or from a file; Category::config where it is neither.
DeviceRates device_rates(std::string const& name_or_path, FileSystem& files);
std::string to_yaml(DeviceRates const& rates);

}  // namespace perigee
