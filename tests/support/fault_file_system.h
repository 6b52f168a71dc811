// A file system around another one, for tests: it counts the operations that pass through, makes chosen ones fail, and
// calls back before and after each, which is where a test ends the process. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "io/file_system.h"

namespace perigee::testing {

class FaultFileSystem : public FileSystem {
  public:
    explicit FaultFileSystem(FileSystem& inner) : inner_(inner) {}

    /// One call that reaches the disk. Names: create, append, open, map, read, write, truncate, sync,
    /// make_directories, sync_directory, rename, remove, lock, list.
    struct Operation {
        int64_t index;  ///< from 0
        std::string name;
        Path path;
    };
    using Callback = std::function<void(Operation const&)>;
    Callback before;  ///< may throw, which fails the operation, or end the process
    Callback after;

    /// This operation fails; a failing write leaves its first half behind.
    void fail_at(int64_t index, int errno_value) { fault_ = Fault{index, index, errno_value}; }
    /// This operation and all later ones fail and change nothing: to the disk it looks as if the process had ended.
    void stop_at(int64_t index, int errno_value) { fault_ = Fault{index, INT64_MAX, errno_value}; }
    void set_free_bytes(int64_t bytes) { free_bytes_ = bytes; }

    std::vector<Operation> operations() const;  ///< so far
    int64_t bytes_read() const { return bytes_read_; }

    std::unique_ptr<WritableFile> create(Path const& path) override;
    std::unique_ptr<WritableFile> append(Path const& path) override;
    std::unique_ptr<ReadableFile> open(Path const& path) override;
    std::unique_ptr<MappedFile> map(Path const& path) override;
    void make_directories(Path const& path) override;
    void sync_directory(Path const& path) override;
    void rename(Path const& from, Path const& to) override;
    void remove_all(Path const& path) override;
    std::unique_ptr<FileLock> lock(Path const& path, std::string const& holder) override;
    bool exists(Path const& path) const override { return inner_.exists(path); }
    bool is_directory(Path const& path) const override { return inner_.is_directory(path); }
    Path resolve(Path const& path) const override { return inner_.resolve(path); }
    int64_t file_size(Path const& path) const override { return inner_.file_size(path); }
    std::vector<std::string> list(Path const& directory) const override;
    int64_t free_bytes(Path const& path) const override { return free_bytes_.value_or(inner_.free_bytes(path)); }

  private:
    struct Fault {
        int64_t first, last;
        int errno_value;
    };
    class Writable;
    class Readable;

    /// Runs `action` as one operation; `when_failing` is what a failing one leaves behind.
    template <class Action>
    auto pass(char const* name, Path const& path, Action&& action,
              std::function<void()> const& when_failing = {}) const;

    FileSystem& inner_;
    std::optional<Fault> fault_;
    std::optional<int64_t> free_bytes_;
    mutable std::mutex mutex_;
    mutable std::vector<Operation> operations_;
    mutable std::atomic<int64_t> bytes_read_ = 0;
};

}  // namespace perigee::testing
