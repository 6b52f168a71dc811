// Which files a list of inputs means.
#include <fnmatch.h>

#include <algorithm>

#include "data/binary_file.h"
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

bool is_pattern(std::string const& name) { return name.find_first_of("*?[") != name.npos; }

class Lister {
  public:
    Lister(FileSystem& files, std::vector<std::string> const& suffixes, std::vector<SkippedFile>& skipped)
        : files_(files), suffixes_(suffixes), skipped_(skipped) {}

    std::vector<Path> found;

    void add(Path const& input) {
        if (files_.exists(input)) {
            if (files_.is_directory(input)) return below(input, 0);
            return found.push_back(input);
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
        if (!files_.exists(path)) return skipped_.push_back({path, "a link to nothing"});
        if (is_parquet(path)) return found.push_back(path);
        TextReader reader(files_, path);
        if (auto const kind = binary_kind(reader))
            skipped_.push_back({path, *kind});
        else
            found.push_back(path);
    }

    void below(Path const& folder, int depth) {
        if (depth > kMaxFolderDepth)
            fail(Category::data, "{}: more than {} folders deep", folder.string(), kMaxFolderDepth);
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
        if (depth > kMaxFolderDepth)
            fail(Category::data, "{}: more than {} folders deep", folder.string(), kMaxFolderDepth);
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

    FileSystem& files_;
    std::vector<std::string> const& suffixes_;
    std::vector<SkippedFile>& skipped_;
};

}  // namespace

std::vector<Path> list_text_files(FileSystem& files, std::vector<Path> const& inputs,
                                  std::vector<std::string> const& suffixes, std::vector<SkippedFile>& skipped) {
    Lister lister(files, suffixes, skipped);
    for (Path const& input : inputs) lister.add(input);
    return std::move(lister.found);
}

}  // namespace perigee
