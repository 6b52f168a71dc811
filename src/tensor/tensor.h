// Tensors: a view is a pointer, a dtype and a shape, always row-major and contiguous. Views own nothing; memory belongs
// to an Arena or a Buffer. Shape suffixes name dimensions (x_TD): T tokens, D hidden, H query heads, G key/value heads,
// K head size, F intermediate, V vocabulary, N MoBA blocks, O linear outputs, I linear inputs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/bf16.h"
#include "base/error.h"
#include "tensor/tensor_part.h"

namespace perigee {

enum class DType : uint8_t { f32, f64, bf16, i32, i64, u8 };

int64_t size_of(DType dtype);
char const* to_string(DType dtype);

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
    static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
    static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<bf16> {
    static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<int32_t> {
    static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<int64_t> {
    static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<uint8_t> {
    static constexpr DType value = DType::u8;
};

/// Up to four extents, each >= 0.
class Shape {
  public:
    static constexpr int kMaxRank = 4;
    Shape() = default;
    Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
    explicit Shape(std::span<int64_t const> extents);

    int rank() const { return rank_; }
    int64_t operator[](int dim) const { return extents_[static_cast<size_t>(dim)]; }
    int64_t size() const;  ///< product of the extents; 1 for rank 0
    bool operator==(Shape const&) const = default;
    std::string str() const;  ///< "[128, 64]"

  private:
    std::array<int64_t, kMaxRank> extents_{};
    int rank_ = 0;
};

namespace detail {
[[noreturn]] void wrong_dtype(DType want, DType have);
[[noreturn]] void wrong_reshape(Shape const& from, Shape const& to);
}  // namespace detail

template <class Byte>
struct BasicView {
    Byte* data = nullptr;
    DType dtype = DType::f32;
    Shape shape;

    BasicView() = default;
    BasicView(Byte* memory, DType type, Shape extents) : data(memory), dtype(type), shape(extents) {}
    /// A view of values in host memory.
    template <class T>
    requires(std::is_const_v<Byte> || !std::is_const_v<T>) BasicView(T* values, Shape extents)
        : data(reinterpret_cast<Byte*>(values)), dtype(dtype_of<std::remove_const_t<T>>::value), shape(extents) {}
    /// A mutable view is also a constant one.
    operator BasicView<std::byte const>() const requires(!std::is_const_v<Byte>) { return {data, dtype, shape}; }

    bool empty() const { return data == nullptr; }
    int64_t size() const { return shape.size(); }
    int64_t bytes() const { return size() * size_of(dtype); }
    int64_t operator[](int dim) const { return shape[dim]; }

    /// The values, checked against the dtype.
    template <class T>
    auto* as() const {
        if (dtype != dtype_of<T>::value) detail::wrong_dtype(dtype_of<T>::value, dtype);
        using Out = std::conditional_t<std::is_const_v<Byte>, T const, T>;
        return reinterpret_cast<Out*>(data);
    }
    /// Same memory, same number of elements, other extents.
    BasicView reshape(Shape to) const {
        if (to.size() != size()) detail::wrong_reshape(shape, to);
        return {data, dtype, to};
    }
    /// Rows [begin, end) of the first dimension.
    BasicView rows(int64_t begin, int64_t end) const {
        std::array<int64_t, Shape::kMaxRank> e{};
        for (int i = 0; i < shape.rank(); ++i) e[static_cast<size_t>(i)] = shape[i];
        int64_t const row_bytes = shape[0] == 0 ? 0 : bytes() / shape[0];
        PERIGEE_CHECK(0 <= begin && begin <= end && end <= shape[0], "rows [{}, {}) of {}", begin, end, shape.str());
        e[0] = end - begin;
        return {data + begin * row_bytes, dtype, Shape(std::span(e.data(), static_cast<size_t>(shape.rank())))};
    }
};

using TensorView = BasicView<std::byte>;
using ConstView = BasicView<std::byte const>;

}  // namespace perigee
