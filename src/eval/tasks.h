// The tasks of the suites needle and ruler, as items over filler text. The tasks are those of Hsieh et al., "RULER:
// What's the Real Context Size of Your Long-Context Language Models?", COLM 2024, in own words: answers have a fixed
// order, so that each item has one right answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/item.h"
#include "eval/material.h"
#include "eval/suite_options.h"

namespace perigee {

/// In the order of tables.
std::vector<std::string> const& needle_tasks();  ///< number, words, uuid: what is to be found
std::vector<std::string> const& ruler_tasks();   ///< single, keys, values, variables, common, frequent

/// `index` of `count` depths, evenly from 0 to 1; 0.5 where there is one.
double depth_of(int64_t index, int64_t count);

/// Every item of a task and length, by depth and number; a function of the arguments alone. Throws Category::config,
/// naming both numbers, where the length has no room.
std::vector<Item> needle_items(Material const& material, SuiteOptions const& options, std::string const& task,
                               int64_t length);
/// The same for tasks of ruler, whose statements lie at random depths.
std::vector<Item> ruler_items(Material const& material, SuiteOptions const& options, std::string const& task,
                              int64_t length);

}  // namespace perigee
