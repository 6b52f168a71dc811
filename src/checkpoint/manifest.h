// manifest.json: what a checkpoint folder holds and how to prove it. The file is a JSON object of two lines; the first
// carries the SHA-256 of the second, so that no byte of it can change unnoticed.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace perigee {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

struct Manifest {
    struct File {
        std::string name;  ///< inside the folder
        int64_t bytes = 0;
        std::string sha256;
    };
    struct Piece {
        size_t file = 0;  ///< index into files
        std::string dataset;
        Shard shard;
    };
    struct Tensor {
        DType dtype = DType::f32;
        Shape shape;
        std::vector<Piece> pieces;
    };

    RunState state;
    std::vector<File> files;
    std::map<std::string, Tensor> tensors;

    /// Adds another rank's files and pieces. Category::checkpoint where two ranks disagree about a tensor.
    void merge(Manifest const& other);
    /// Every element of every tensor is stored exactly once, and no piece is larger than its file; otherwise
    /// Category::checkpoint, beginning with `where`.
    void check_pieces(std::string const& where) const;

    std::string to_text() const;
    /// Trusts nothing: throws Category::checkpoint, beginning with `where`, for anything to_text() does not write.
    /// Whether the pieces are complete is left to check_pieces().
    static Manifest parse(std::string const& text, std::string const& where);
};

/// Throws a DamagedError of this message.
template <class... Args>
[[noreturn]] void fail_damaged(fmt::format_string<Args...> format, Args&&... args) {
    throw DamagedError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace perigee
