#include "train/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "train/failure.h"

namespace perigee {

namespace {

/// Of Castagnoli's polynomial, bits reversed.
uint32_t crc32c(std::string_view bytes) {
    static auto const table = [] {
        std::array<uint32_t, 256> all{};
        for (uint32_t i = 0; i < all.size(); ++i) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
            all.at(i) = crc;
        }
        return all;
    }();
    uint32_t crc = ~0u;
    for (char const c : bytes) crc = crc >> 8 ^ table.at((crc ^ static_cast<uint8_t>(c)) & 0xff);
    return ~crc;
}

template <class T>
std::string little_endian(T value) {
    static_assert(std::endian::native == std::endian::little);
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

std::string masked_crc(std::string_view bytes) { return little_endian(std::rotr(crc32c(bytes), 15) + 0xa282ead8u); }

// Fields of protobuf messages: number and wire type, then the value.
std::string varint(uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
}
std::string key(uint64_t field, uint64_t wire) { return varint(field << 3 | wire); }
std::string integer(uint64_t field, int64_t value) { return key(field, 0) + varint(static_cast<uint64_t>(value)); }
std::string float64(uint64_t field, double value) { return key(field, 1) + little_endian(value); }
std::string text(uint64_t field, std::string const& value) { return key(field, 2) + varint(value.size()) + value; }
std::string float32(uint64_t field, float value) { return key(field, 5) + little_endian(value); }

std::string wall_time() {
    auto const now = std::chrono::system_clock::now().time_since_epoch();
    return float64(1, std::chrono::duration<double>(now).count());
}

constexpr std::string_view kEventFiles = "events.out.tfevents.";

/// The second in a file's name; 0 where it has none.
int64_t second_of(std::string_view name) {
    int64_t second = 0;
    if (name.starts_with(kEventFiles))
        std::from_chars(name.data() + kEventFiles.size(), name.data() + name.size(), second);
    return second;
}

/// TensorBoard finds files by their names, and reads them in the order of the second in it: that of their making, or
/// later than that of any file before, wherever the clock stands.
Path made(FileSystem& files, Path const& folder) {
    using std::chrono::seconds;
    int64_t second = std::chrono::duration_cast<seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    try {
        files.make_directories(folder);
        for (std::string const& name : files.list(folder)) second = std::max(second, second_of(name) + 1);
    } catch (Error const&) {  // the file will say so
    }
    return folder / fmt::format("{}{:010}.{}.{}", kEventFiles, second, host_name(), ::getpid());
}

}  // namespace

EventFile::EventFile(FileSystem& files, Path const& folder, int64_t step) : file_(files, made(files, folder)) {
    record(wall_time() + text(3, "brain.Event:2"));
    constexpr int64_t kStart = 1;  // SessionLog.START: drops these steps of earlier files
    record(wall_time() + integer(2, step) + text(7, integer(1, kStart)));
}

void EventFile::append(std::string_view metrics) {
    auto const object = nlohmann::json::parse(metrics);
    std::string summary;
    for (auto const& [name, value] : object.items()) {
        if (!value.is_number() || name == "step") continue;
        bool const held_out = name.starts_with("eval_");
        std::string const tag = held_out ? "eval/" + name.substr(5) : "train/" + name;
        summary += text(1, text(1, tag) + float32(2, value.get<float>()));
    }
    record(wall_time() + integer(2, object.at("step").get<int64_t>()) + text(5, summary));
}

void EventFile::record(std::string const& event) {
    std::string const length = little_endian(static_cast<uint64_t>(event.size()));
    file_.append_bytes(length + masked_crc(length) + event + masked_crc(event));
}

}  // namespace perigee
