// The three types in which Hugging Face folders keep weights, and their conversion from and to fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace perigee {

enum class ElementType { f32, bf16, f16 };

int64_t size_of(ElementType type);
char const* to_string(ElementType type);                         ///< as in safetensors: "F32"
char const* config_name(ElementType type);                       ///< as in config.json: "float32"
std::optional<ElementType> element_type(std::string_view name);  ///< from either name

/// Exact. `from` holds values.size() elements at any alignment.
void widen(std::byte const* from, ElementType type, std::span<float> values);
/// Rounds to nearest even. False where a finite value becomes infinite.
bool narrow(std::span<float const> values, ElementType type, std::byte* to);

}  // namespace perigee
