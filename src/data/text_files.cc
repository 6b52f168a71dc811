// Which files a list of inputs means.
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "data/binary_file.h"
#include "data/dataset_files.h"
#include "data/parquet.h"
#include "data/text_documents.h"

namespace perigee {

namespace {

constexpr int kMaxFolderDepth = 64;  // a link to a folder above would never end

std::string without_compression(std::string name) {
    for (std::string_view const ending : {".gz", ".zst"})
        if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
    return name;
}

/// Told by the name; of a complete .bin, .mask or .weights by the index beside it too. A complete index is told by its
/// first bytes.
bool belongs_to_data_set(FileSystem& files, Path const& path) {
    constexpr std::string_view kTemporary = ".tmp", kIndex = ".idx";
    constexpr std::array<std::string_view, 3> kRecords = {kTokenizerRecordExtension, kChatRecordExtension,
                                                          kResumeExtension};
    constexpr std::array<std::string_view, 4> kOthers = {".bin", kIndex, ".mask", ".weights"};
    std::string name = path.filename().string();
    auto const ends = [&](std::string_view ending) { return name.ends_with(ending); };
    bool const temporary = ends(kTemporary);
    if (temporary) name.resize(name.size() - kTemporary.size());
    if (std::ranges::any_of(kRecords, ends)) return true;
    if (std::ranges::none_of(kOthers, ends)) return false;
    if (temporary) return true;
    Path const index = Path(path).replace_extension(kIndex);
    return path != index && (files.exists(index) || files.exists(index.string() + std::string(kTemporary)));
}

/// The lock that a killed tokenize left.
bool is_lock(FileSystem& files, Path const& path) {
    constexpr std::string_view kSays = kLockHolder;
    return path.extension() == kLockExtension && files.file_size(path) == static_cast<int64_t>(kSays.size()) &&
           files.read_text(path, static_cast<int64_t>(kSays.size())) == kSays;
}

bool is_pattern(std::string const& name) { return name.find_first_of("*?[") != name.npos; }

class Lister {
  public:
    Lister(FileSystem& files, std::vector<std::string> const& suffixes, std::vector<SkippedFile>& skipped,
           TextOptions::Format format)
        : files_(files), suffixes_(suffixes), skipped_(skipped), format_(format) {}

    std::vector<Path> found;

    void add(Path const& input) {
        ++inputs_;
        if (files_.exists(input)) {
            if (files_.is_directory(input)) return below(input, 0);
            if (auto const why = unclear_json(input, format_)) fail(Category::data, "{}: {}", input.string(), *why);
            return take(input);
        }
        if (!is_pattern(input.string())) fail(Category::data, "{}: no such file or folder", input.string());
        bool any = false;
        std::vector<std::string> parts;
        for (Path const& part : input.relative_path()) parts.push_back(part.string());
        match(input.root_path(), parts, 0, any);
        if (!any) fail(Category::data, "{}: the pattern matches nothing", input.string());
    }

  private:
    /// A file, unless it is to be left out.
    void consider(Path const& path) {
        std::string const name = without_compression(path.filename().string());
        if (!suffixes_.empty() &&
            std::ranges::none_of(suffixes_, [&](auto const& suffix) { return name.ends_with(suffix); }))
            return;
        if (!files_.exists(path)) return skip(path, "a link to nothing");
        if (is_lock(files_, path)) return skip(path, "the lock of another tokenize");
        if (belongs_to_data_set(files_, path)) return skip(path, "by its name, of a tokenized data set");
        if (auto const why = unclear_json(path, format_)) return skip(path, *why);
        if (is_parquet(path)) return take(path);
        TextReader reader(files_, path);
        if (auto const kind = binary_kind(reader)) return skip(path, *kind);
        take(path);
    }

    // Once each: a pattern may match a folder and what is in it, and an input may name what an earlier one did.
    void take(Path const& path) {
        auto const [at, is_new] = taken_.try_emplace(whole_path(path), inputs_);
        if (is_new)
            found.push_back(path);
        else if (at->second < inputs_)
            skip(path, "already given by an earlier input");
    }
    void skip(Path const& path, std::string const& reason) {
        if (told_.insert(whole_path(path)).second) skipped_.push_back({path, reason});
    }

    static void check_depth(Path const& folder, int depth) {
        if (depth > kMaxFolderDepth)
            fail(Category::data, "{}: more than {} folders deep: is there a link to a parent folder?", folder.string(),
                 kMaxFolderDepth);
    }

    void below(Path const& folder, int depth) {
        check_depth(folder, depth);
        for (auto const& name : files_.list(folder)) {
            Path const path = folder / name;
            if (files_.is_directory(path))
                below(path, depth + 1);
            else
                consider(path);
        }
    }

    /// What `parts` match from `folder` on; `any` becomes true where something does.
    void match(Path const& folder, std::span<std::string const> parts, int depth, bool& any) {
        check_depth(folder, depth);
        if (parts.empty()) {
            any = true;
            return files_.is_directory(folder) ? below(folder, depth) : consider(folder);
        }
        std::string const& part = parts[0];
        if (!is_pattern(part)) {
            Path const path = folder / part;
            if (files_.exists(path)) match(path, parts.subspan(1), depth + 1, any);
            return;
        }
        Path const here = folder.empty() ? Path(".") : folder;
        if (!files_.is_directory(here)) return;
        bool const any_folders = part == "**";
        if (any_folders && parts.size() > 1) match(folder, parts.subspan(1), depth + 1, any);
        for (std::string const& name : files_.list(here)) {
            Path const path = folder / name;
            if (any_folders) {
                if (files_.is_directory(path))
                    match(path, parts, depth + 1, any);
                else if (parts.size() == 1)
                    match(path, {}, depth + 1, any);
            } else if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) {
                match(path, parts.subspan(1), depth + 1, any);
            }
        }
    }

    int inputs_ = 0;
    std::map<std::string, int> taken_;  ///< files by their whole paths: the first input that has them
    std::set<std::string> told_;        ///< that are skipped
    FileSystem& files_;
    std::vector<std::string> const& suffixes_;
    std::vector<SkippedFile>& skipped_;
    TextOptions::Format format_;
};

}  // namespace

std::vector<Path> list_text_files(FileSystem& files, std::vector<Path> const& inputs,
                                  std::vector<std::string> const& suffixes, std::vector<SkippedFile>& skipped,
                                  TextOptions::Format format) {
    Lister lister(files, suffixes, skipped, format);
    for (Path const& input : inputs) lister.add(input);
    return std::move(lister.found);
}

}  // namespace perigee
