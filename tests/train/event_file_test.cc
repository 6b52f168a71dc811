#include "train/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "support/temporary_folder.h"

namespace perigee {
namespace {

/// Bit by bit, as RFC 3720 defines it.
uint32_t crc32c(std::string const& bytes) {
    uint32_t crc = ~0u;
    for (char const c : bytes) {
        crc ^= static_cast<uint8_t>(c);
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

template <class T>
T read(std::string const& bytes, size_t at) {
    T value{};
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

void expect_crc(std::string const& bytes, uint32_t masked) {
    uint32_t const crc = crc32c(bytes);
    EXPECT_EQ(masked, (crc >> 15 | crc << 17) + 0xa282ead8u);
}

/// The payloads of a file's records.
std::vector<std::string> records(Path const& path) {
    std::ifstream in(path, std::ios::binary);
    std::string const bytes(std::istreambuf_iterator<char>(in), {});
    std::vector<std::string> found;
    for (size_t at = 0; at < bytes.size();) {
        auto const size = read<uint64_t>(bytes, at);
        expect_crc(bytes.substr(at, 8), read<uint32_t>(bytes, at + 8));
        found.push_back(bytes.substr(at + 12, size));
        expect_crc(found.back(), read<uint32_t>(bytes, at + 12 + size));
        at += 16 + size;
    }
    return found;
}

/// The fields of a message: a number for wire types 0, 1 and 5, bytes for 2.
struct Field {
    uint64_t bits = 0;
    std::string bytes = {};
};
std::multimap<uint64_t, Field> fields(std::string const& message) {
    std::multimap<uint64_t, Field> found;
    size_t at = 0;
    auto const varint = [&] {
        uint64_t value = 0;
        for (int shift = 0;; shift += 7) {
            auto const byte = static_cast<uint8_t>(message.at(at++));
            value |= uint64_t{byte & 0x7fu} << shift;
            if (byte < 0x80) return value;
        }
    };
    while (at < message.size()) {
        uint64_t const key = varint();
        Field field;
        switch (key & 7) {
            case 0:
                field.bits = varint();
                break;
            case 1:
                field.bits = read<uint64_t>(message, at);
                at += 8;
                break;
            case 2: {
                uint64_t const size = varint();
                field.bytes = message.substr(at, size);
                at += size;
                break;
            }
            case 5:
                field.bits = read<uint32_t>(message, at);
                at += 4;
                break;
            default:
                ADD_FAILURE() << "wire type " << (key & 7);
                return found;
        }
        found.emplace(key >> 3, field);
    }
    return found;
}

std::map<std::string, float> scalars(std::string const& event) {
    std::map<std::string, float> found;
    auto const all = fields(event);
    if (!all.contains(5)) return found;
    for (auto const& [number, value] : fields(all.find(5)->second.bytes)) {
        auto const parts = fields(value.bytes);
        found[parts.find(1)->second.bytes] = std::bit_cast<float>(static_cast<uint32_t>(parts.find(2)->second.bits));
    }
    return found;
}

TEST(EventFile, HasTheNumbersOfTheMetrics) {
    ASSERT_EQ(crc32c("123456789"), 0xe3069283u) << "RFC 3720's polynomial";
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    {
        EventFile events(*files, folder.path() / "tensorboard", 300);
        events.append(R"({"step":301,"loss":2.5,"lr":null,"skipped":false,"memory_bytes":140000000000})");
        events.append(R"({"step":301,"eval_loss":3.25})");
        EXPECT_EQ(events.news(), "");
    }
    auto const entry = std::filesystem::directory_iterator(folder.path() / "tensorboard");
    EXPECT_TRUE(entry->path().filename().string().starts_with("events.out.tfevents."));
    auto const found = records(entry->path());
    ASSERT_EQ(found.size(), 4U);
    EXPECT_EQ(fields(found[0]).find(3)->second.bytes, "brain.Event:2");
    EXPECT_EQ(fields(found[1]).find(2)->second.bits, 300U) << "steps from here on are written anew";
    EXPECT_EQ(fields(fields(found[1]).find(7)->second.bytes).find(1)->second.bits, 1U);
    EXPECT_EQ(fields(found[2]).find(2)->second.bits, 301U);
    EXPECT_EQ(scalars(found[2]), (std::map<std::string, float>{{"train/loss", 2.5f}, {"train/memory_bytes", 1.4e11f}}));
    EXPECT_EQ(scalars(found[3]), (std::map<std::string, float>{{"eval/loss", 3.25f}}));
}

TEST(EventFile, ComesAfterThoseOfAClockThatWasAhead) {
    testing::TemporaryFolder const folder;
    auto const files = make_file_system();
    std::string const ahead = "events.out.tfevents.4000000000.host.1";
    files->create(folder.path() / ahead);
    for (int64_t step : {1, 2}) EventFile(*files, folder.path(), step);
    std::vector<std::string> const names = files->list(folder.path());
    ASSERT_EQ(names.size(), 3U);
    EXPECT_EQ(names[0], ahead);
    EXPECT_TRUE(names[1].starts_with("events.out.tfevents.4000000001.")) << names[1];
    EXPECT_TRUE(names[2].starts_with("events.out.tfevents.4000000002.")) << names[2];
}

}  // namespace
}  // namespace perigee
