#include "tensor/tensor.h"

namespace perigee {

int64_t size_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return 4;
        case DType::f64:
            return 8;
        case DType::bf16:
            return 2;
        case DType::i32:
            return 4;
        case DType::i64:
            return 8;
        case DType::u8:
            return 1;
    }
    return 0;
}

char const* to_string(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return "f32";
        case DType::f64:
            return "f64";
        case DType::bf16:
            return "bf16";
        case DType::i32:
            return "i32";
        case DType::i64:
            return "i64";
        case DType::u8:
            return "u8";
    }
    return "?";
}

Shape::Shape(std::span<int64_t const> extents) : rank_(static_cast<int>(extents.size())) {
    PERIGEE_CHECK(extents.size() <= kMaxRank, "a tensor of {} dimensions", extents.size());
    for (size_t i = 0; i < extents.size(); ++i) extents_[i] = extents[i];
}

int64_t Shape::size() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= extents_[static_cast<size_t>(i)];
    return n;
}

std::string Shape::str() const {
    std::string s = "[";
    for (int i = 0; i < rank_; ++i) s += fmt::format("{}{}", i > 0 ? ", " : "", (*this)[i]);
    return s + "]";
}

namespace detail {
void wrong_dtype(DType want, DType have) {
    fail(Category::internal, "a {} tensor was read as {}", to_string(have), to_string(want));
}
void wrong_reshape(Shape const& from, Shape const& to) {
    fail(Category::internal, "cannot view {} as {}", from.str(), to.str());
}
}  // namespace detail

}  // namespace perigee
