// What suites measure: one flat record per item or per bin of positions, as a JSON line for studies, and the tables and
// the picture that are made of them. docs/evaluation.md lists the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/item.h"

namespace perigee {

/// One JSON line. What does not apply is left out there.
struct Measurement {
    std::string suite = {};
    int64_t step = 0;
    std::string attention = {};              ///< "moba", "full", "moba + 2 full"
    std::string task = {};                   ///< of position: fresh, near, far
    int64_t length = 0;                      ///< tokens that were read
    int64_t number = 0;                      ///< of the item, or of the sample
    double weight = 0;                       ///< tokens that were scored, by their loss weight
    double nll = 0;                          ///< sum over them, in nats; NaN: not computed
    std::optional<double> depth = {};        ///< needle
    std::optional<int64_t> correct = {};     ///< needle, ruler: answer tokens that greedy decoding gives
    std::optional<bool> passed = {};         ///< needle, ruler: all of them
    std::optional<std::string> scorer = {};  ///< needle, ruler
    std::optional<int64_t> layer = {};       ///< mass
    std::optional<double> mass = {};         ///< mass: sum of the shares of the softmax that `weight` stands for
    std::optional<int64_t> begin = {};       ///< position: of the bin
    std::optional<int64_t> end = {};
    std::vector<int32_t> prompt = {};  ///< needle, ruler: its tokens, on request
    std::vector<int32_t> answer = {};
    std::optional<double> bytes = {};  ///< position: of text that the targets stand for, where the tokenizer is known
};

std::string to_json(Measurement const& measurement);

/// Of the records of one suite and at most two kinds of attention, with lines of at most 79 columns.
std::string position_table(std::span<Measurement const> measurements);
std::string mass_table(std::span<Measurement const> measurements);
std::string needle_table(std::span<Measurement const> measurements);
std::string ruler_table(std::span<Measurement const> measurements);

/// Share of passed needle items by length and depth, a panel per task; a self-contained SVG document.
std::string needle_heat_map(std::span<Measurement const> measurements, std::string const& title);

/// From a sum of losses in nats and the bytes of text that they are about.
double bits_per_byte(double nll, double bytes);

}  // namespace perigee
