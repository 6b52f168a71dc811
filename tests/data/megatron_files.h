// Indexed data sets laid out byte by byte from the format's description, independent of the code under test.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"

namespace perigee::testing {

class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "perigee-data-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    TemporaryFolder(TemporaryFolder const&) = delete;
    TemporaryFolder& operator=(TemporaryFolder const&) = delete;
    std::filesystem::path operator/(std::string const& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

inline void write_bytes(std::filesystem::path const& path, std::string const& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(std::filesystem::path const& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

/// Little-endian bytes, lowest first.
inline std::string little_endian(uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    return text;
}

struct MegatronFiles {
    int dtype_code = 8;
    int token_bytes = 2;
    std::vector<std::vector<int64_t>> sequences;
    std::vector<int64_t> borders;  ///< empty: one document per sequence
    bool modes = false;

    std::string idx() const {
        std::vector<int64_t> document_borders = borders;
        if (borders.empty()) {
            for (size_t i = 0; i <= sequences.size(); ++i) document_borders.push_back(static_cast<int64_t>(i));
        }
        std::string text("MMIDIDX\0\0", 9);
        text += little_endian(1, 8) + little_endian(static_cast<uint64_t>(dtype_code), 1);
        text += little_endian(sequences.size(), 8) + little_endian(document_borders.size(), 8);
        for (auto const& sequence : sequences) text += little_endian(sequence.size(), 4);
        uint64_t offset = 0;
        for (auto const& sequence : sequences) {
            text += little_endian(offset, 8);
            offset += sequence.size() * static_cast<uint64_t>(token_bytes);
        }
        for (int64_t const border : document_borders) text += little_endian(static_cast<uint64_t>(border), 8);
        if (modes) text += std::string(sequences.size(), '\0');
        return text;
    }
    std::string bin() const {
        std::string text;
        for (auto const& sequence : sequences) {
            for (int64_t const token : sequence) text += little_endian(static_cast<uint64_t>(token), token_bytes);
        }
        return text;
    }
    static std::string mask(std::vector<int> const& bits) {
        std::string text("PGEMASK\0", 8);
        text += little_endian(1, 8) + little_endian(bits.size(), 8);
        for (size_t i = 0; i < bits.size(); i += 8) {
            int byte = 0;
            for (size_t k = 0; k < 8 && i + k < bits.size(); ++k) byte |= bits[i + k] << k;
            text.push_back(static_cast<char>(byte));
        }
        return text;
    }
    void write(std::filesystem::path const& prefix) const {
        write_bytes(prefix.string() + ".idx", idx());
        write_bytes(prefix.string() + ".bin", bin());
    }
};

/// Message of the Error that `call` throws; "no error" and, for another category, the category are told.
template <class Call>
std::string error_of(Category category, Call&& call) {
    try {
        call();
    } catch (Error const& error) {
        return error.category() == category ? error.what()
                                            : fmt::format("({}) {}", to_string(error.category()), error.what());
    }
    return "no error";
}

}  // namespace perigee::testing
