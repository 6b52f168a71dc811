// The promises about views that every backend of Comm checks before it moves a byte.
#pragma once

#include "comm/comm.h"

namespace perigee::detail {

/// `all` is `parts` pieces of the size and dtype of `part`.
inline void check_parts(ConstView all, ConstView part, int parts) {
    PERIGEE_CHECK(all.dtype == part.dtype && all.size() == parts * part.size(), "{} x {} is not {} parts of {} x {}",
                  all.size(), to_string(all.dtype), parts, part.size(), to_string(part.dtype));
}

/// Exchanged views have equal dtype and size, and divide into `parts`.
inline void check_exchange(ConstView to, ConstView from, int parts) {
    PERIGEE_CHECK(to.dtype == from.dtype && to.size() == from.size() && to.size() % parts == 0,
                  "cannot exchange {} x {} for {} x {} in {} parts", from.size(), to_string(from.dtype), to.size(),
                  to_string(to.dtype), parts);
}

inline void check_reducible(DType dtype) {
    PERIGEE_CHECK(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::i32 || dtype == DType::i64,
                  "no reduction of {}", to_string(dtype));
}

inline void check_root(int root, int size) { PERIGEE_CHECK(0 <= root && root < size, "root {} of {}", root, size); }

}  // namespace perigee::detail
