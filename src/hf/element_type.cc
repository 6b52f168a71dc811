#include "hf/element_type.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"

namespace perigee {

namespace {

struct Names {
    ElementType type;
    int64_t size;
    char const* safetensors;
    char const* config;
};
constexpr std::array kNames = {Names{ElementType::f32, 4, "F32", "float32"},
                               Names{ElementType::bf16, 2, "BF16", "bfloat16"},
                               Names{ElementType::f16, 2, "F16", "float16"}};
Names const& names(ElementType type) { return kNames[static_cast<size_t>(type)]; }

float widen_one(bf16 x) { return to_float(x); }
float widen_one(_Float16 x) { return static_cast<float>(x); }
void narrow_one(float x, bf16& to) { to = to_bf16(x); }
void narrow_one(float x, _Float16& to) { to = static_cast<_Float16>(x); }

template <class Stored>
void widen_all(std::byte const* from, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
        Stored stored;
        std::memcpy(&stored, from + i * sizeof stored, sizeof stored);
        values[i] = widen_one(stored);
    }
}

template <class Stored>
bool narrow_all(std::span<float const> values, std::byte* to) {
    bool finite = true;
    for (size_t i = 0; i < values.size(); ++i) {
        Stored stored;
        narrow_one(values[i], stored);
        std::memcpy(to + i * sizeof stored, &stored, sizeof stored);
        finite = finite && (std::isfinite(widen_one(stored)) || !std::isfinite(values[i]));
    }
    return finite;
}

}  // namespace

int64_t size_of(ElementType type) { return names(type).size; }
char const* to_string(ElementType type) { return names(type).safetensors; }
char const* config_name(ElementType type) { return names(type).config; }

std::optional<ElementType> element_type(std::string_view name) {
    for (Names const& known : kNames)
        if (name == known.safetensors || name == known.config) return known.type;
    return std::nullopt;
}

void widen(std::byte const* from, ElementType type, std::span<float> values) {
    switch (type) {
        case ElementType::f32:
            std::memcpy(values.data(), from, values.size_bytes());
            break;
        case ElementType::bf16:
            widen_all<bf16>(from, values);
            break;
        case ElementType::f16:
            widen_all<_Float16>(from, values);
            break;
    }
}

bool narrow(std::span<float const> values, ElementType type, std::byte* to) {
    switch (type) {
        case ElementType::f32:
            std::memcpy(to, values.data(), values.size_bytes());
            return true;
        case ElementType::bf16:
            return narrow_all<bf16>(values, to);
        case ElementType::f16:
            return narrow_all<_Float16>(values, to);
    }
    return true;
}

}  // namespace perigee
