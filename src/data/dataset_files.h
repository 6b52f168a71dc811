// The bytes that reader and writer of indexed data sets agree on, see data/indexed_dataset.h.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace perigee {

static_assert(std::endian::native == std::endian::little, "the files are little endian");

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr std::string_view kMaskMagic{"PGEMASK\0", 8};
inline constexpr std::string_view kWeightsMagic{"PGEWGHT\0", 8};
inline constexpr char kChatRecordExtension[] = ".chat.json";            ///< see data/chat_record.h
inline constexpr char kTokenizerRecordExtension[] = ".tokenizer.json";  ///< see data/tokenizer_record.h
inline constexpr char kResumeExtension[] = ".resume.json";              ///< where a killed tokenize goes on
inline constexpr char kLockExtension[] = ".lock";
inline constexpr char kLockHolder[] = "another tokenize";  ///< all that the lock's file says
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr uint64_t kSidecarVersion = 1;
inline constexpr int64_t kIndexHeaderBytes = 34;
inline constexpr int64_t kSidecarHeaderBytes = 24;

/// Reads a number that need not be aligned.
template <class Number>
Number load(std::byte const* at) {
    Number value;
    std::memcpy(&value, at, sizeof(Number));
    return value;
}

}  // namespace perigee
