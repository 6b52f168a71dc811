// All file access of the program goes through this interface, so that tests can make any operation fail, stop the
// process there, or lose what was not yet synced. Errors throw IoError with the path and the system's reason:
// Category::memory where the system has no memory, otherwise Category::data. Only regular files are opened, and
// devices to write to: a pipe or a device in a file's place is refused at once. A mapped file that shrinks ends the
// process, see io/bus_errors.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace perigee {

using Path = std::filesystem::path;

class IoError : public Error {
  public:
    IoError(std::string const& operation, Path const& path, int errno_value);
    IoError(std::string const& operation, Path const& path, int errno_value, std::string const& reason);
    int errno_value() const { return errno_; }

  private:
    int errno_;
};

/// Another job holds a lock.
class LockedError : public Error {
  public:
    LockedError(Path const& path, std::string const& holder);
    std::string const& holder() const { return holder_; }  ///< as the other one wrote it

  private:
    std::string holder_;
};

class WritableFile {
  public:
    virtual ~WritableFile() = default;  ///< closes; what was not synced may be lost with the power
    virtual void write_at(int64_t offset, std::span<std::byte const> bytes) = 0;
    virtual void truncate(int64_t size) = 0;
    virtual void sync() = 0;
};

class ReadableFile {
  public:
    virtual ~ReadableFile() = default;
    virtual int64_t size() const = 0;
    /// Exactly bytes.size() bytes; throws where the file ends before.
    virtual void read_at(int64_t offset, std::span<std::byte> bytes) = 0;
};

/// A whole file as memory, read only.
class MappedFile {
  public:
    virtual ~MappedFile() = default;
    virtual std::span<std::byte const> bytes() const = 0;
};

/// Held while it lives; the system lets go of it when the process ends, however it ends.
class FileLock {
  public:
    virtual ~FileLock() = default;
};

class FileSystem {
  public:
    virtual ~FileSystem() = default;

    virtual std::unique_ptr<WritableFile> create(Path const& path) = 0;  ///< replaces an existing file
    virtual std::unique_ptr<WritableFile> append(
        Path const& path) = 0;  ///< keeps what is there; write_at counts from 0
    virtual std::unique_ptr<ReadableFile> open(Path const& path) = 0;
    virtual std::unique_ptr<MappedFile> map(Path const& path) = 0;

    virtual void make_directories(Path const& path) = 0;
    virtual void sync_directory(Path const& path) = 0;
    virtual void rename(Path const& from, Path const& to) = 0;  ///< atomic; replaces a file
    virtual void remove_all(Path const& path) = 0;              ///< no error where nothing is there

    /// Advisory lock on `path`, which it creates; `holder` is what others are told. Throws LockedError where another
    /// holds it: nothing waits here.
    virtual std::unique_ptr<FileLock> lock(Path const& path, std::string const& holder) = 0;

    virtual bool exists(Path const& path) const = 0;
    virtual bool is_directory(Path const& path) const = 0;
    virtual int64_t file_size(Path const& path) const = 0;
    virtual std::vector<std::string> list(Path const& directory) const = 0;  ///< names, sorted
    virtual Path resolve(Path const& path) const = 0;  ///< absolute, without links; the file must exist
    virtual int64_t free_bytes(Path const& path) const = 0;

    // Over the above.
    std::string read_text(Path const& path, int64_t max_bytes);
    /// Writes temporary_of(path), syncs it, renames it over `path` and syncs the folder: readers see the old or the new
    /// text, whoever else replaces it at the same time.
    void replace_text(Path const& path, std::string const& text);
    /// DIGITS.NAME.tmp beside `path`, with eight hexadecimal digits that differ between processes and hosts.
    static Path temporary_of(Path const& path);
    /// Removes what replace_text() left where its process was killed. Nobody may be replacing `path` meanwhile.
    void remove_temporaries(Path const& path);
};

/// However the path is written: absolute, without `.` and `..` and a slash at its end; links stay. The path itself
/// where it is empty or there is no current folder.
std::string whole_path(Path const& path);

/// The real one.
std::unique_ptr<FileSystem> make_file_system();

}  // namespace perigee
