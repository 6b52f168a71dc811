// The promises about views that are checked before a byte moves, on the host or on a device.
#pragma once

#include <span>

#include "comm/host_comm.h"

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

/// What a group over a device adds up, bf16 included.
inline void check_addable(DType dtype) { PERIGEE_CHECK(dtype != DType::u8, "no reduction of {}", to_string(dtype)); }

inline void check_messages(std::span<Outgoing const> sent, std::span<Incoming const> received, int size) {
    for (Outgoing const& message : sent)
        PERIGEE_CHECK(0 <= message.to && message.to < size, "a message to rank {} of {}", message.to, size);
    for (Incoming const& message : received)
        PERIGEE_CHECK(0 <= message.from && message.from < size, "a message from rank {} of {}", message.from, size);
}

inline void check_root(int root, int size) { PERIGEE_CHECK(0 <= root && root < size, "root {} of {}", root, size); }

}  // namespace perigee::detail
