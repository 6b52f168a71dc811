// 128 bits in place of everything that operations depend on besides the contents of memory: of the same size however
// many tokens and documents there are.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <type_traits>

#include "ops/operations.h"

namespace perigee {

struct Digest {
    uint64_t low = 0, high = 0;
    auto operator<=>(Digest const&) const = default;
};

Digest digest_of(std::span<int64_t const> numbers);

/// Whether an operation may be queued later than it is called: it makes no transfer with the host, and does not differ
/// from step to step by its nature.
template <class Args>
constexpr bool kCanWait =
    !(std::is_same_v<Args, Upload> || std::is_same_v<Args, Download> || std::is_same_v<Args, FillNormal> ||
      std::is_same_v<Args, StochasticRounding> || std::is_same_v<Args, Dropout> || std::is_same_v<Args, AdamW>);
inline bool can_wait(Operation const& operation) {
    return std::visit([](auto const& args) { return kCanWait<std::remove_cvref_t<decltype(args)>>; }, operation);
}

/// Of all arguments: addresses, dtypes and shapes of tensors, numbers, and the contents of spans, which lie in memory
/// of the host. Category::internal for what cannot wait.
Digest digest_of(std::span<Operation const> operations);

}  // namespace perigee
