#include "io/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "base/printable.h"
#include "io/bus_errors.h"

namespace perigee {

IoError::IoError(std::string const& operation, Path const& path, int errno_value)
    : IoError(operation, path, errno_value, std::generic_category().message(errno_value)) {}

IoError::IoError(std::string const& operation, Path const& path, int errno_value, std::string const& reason)
    : Error(errno_value == ENOMEM ? Category::memory : Category::data,
            fmt::format("cannot {} {}: {}", operation, printable_name(path.string()), reason)),
      errno_(errno_value) {}

LockedError::LockedError(Path const& path, std::string const& holder)
    : Error(Category::config, fmt::format("{} is held by {}", path.string(), holder)), holder_(holder) {}

namespace {

Path folder_of(Path const& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

/// Repeats a system call that a signal interrupted.
template <class Call>
auto retry(Call&& call) {
    decltype(call()) result;
    do {
        result = call();
    } while (result < 0 && errno == EINTR);
    return result;
}

/// What stands where a regular file was expected, and what to do.
char const* name_of(mode_t mode) {
    if (S_ISFIFO(mode)) return "it is a pipe, and a regular file is needed: write its content to a file first";
    if (S_ISCHR(mode)) return "it is a character device, and a regular file is needed";
    if (S_ISBLK(mode)) return "it is a block device, and a regular file is needed";
    return "it is no regular file";
}

/// An open file, or folder where `flags` say so. Nothing else is accepted, but devices to write to: a pipe or a device
/// could wait for ever, which O_NONBLOCK keeps the opening itself from; on regular files it means nothing.
class Descriptor {
  public:
    Descriptor(Path path, int flags, char const* operation) : path_(std::move(path)) {
        fd_ = retry([&] { return ::open(path_.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666); });
        // Writing into a pipe that nobody reads, and opening a socket, end here.
        if (fd_ < 0)
            throw errno == ENXIO ? IoError(operation, path_, ENXIO, name_of(mode())) : IoError(operation, path_, errno);
        try {
            mode_t const found = mode();
            bool const wants_folder = (flags & O_DIRECTORY) != 0;
            if (!wants_folder && S_ISDIR(found)) throw IoError(operation, path_, EISDIR);
            bool const swallows = S_ISCHR(found) && (flags & O_ACCMODE) == O_WRONLY;  // such as /dev/null
            if (!wants_folder && !S_ISREG(found) && !swallows) throw IoError(operation, path_, EINVAL, name_of(found));
        } catch (...) {
            ::close(fd_);
            throw;
        }
    }
    ~Descriptor() { ::close(fd_); }
    Descriptor(Descriptor const&) = delete;
    Descriptor& operator=(Descriptor const&) = delete;

    int fd() const { return fd_; }
    Path const& path() const { return path_; }

    void sync() const {
        if (retry([&] { return ::fsync(fd_); }) < 0) throw IoError("sync", path_, errno);
    }
    int64_t size() const { return status().st_size; }

  private:
    /// Of the open file, or of the path where it cannot be opened.
    struct stat status() const {
        struct stat found {};
        int const result = fd_ >= 0 ? ::fstat(fd_, &found) : ::stat(path_.c_str(), &found);
        if (result < 0) throw IoError("inspect", path_, errno);
        return found;
    }
    mode_t mode() const { return status().st_mode; }

    Path path_;
    int fd_ = -1;
};

class PosixWritableFile : public WritableFile {
  public:
    PosixWritableFile(Path const& path, int flags) : file_(path, O_WRONLY | O_CREAT | flags, "create") {}

    void write_at(int64_t offset, std::span<std::byte const> bytes) override {
        while (!bytes.empty()) {
            ssize_t const n = retry([&] { return ::pwrite(file_.fd(), bytes.data(), bytes.size(), offset); });
            if (n < 0) throw IoError("write", file_.path(), errno);
            if (n == 0) throw IoError("write", file_.path(), ENOSPC);
            bytes = bytes.subspan(static_cast<size_t>(n));
            offset += n;
        }
    }
    void truncate(int64_t size) override {
        if (retry([&] { return ::ftruncate(file_.fd(), size); }) < 0) throw IoError("resize", file_.path(), errno);
    }
    void sync() override { file_.sync(); }

  private:
    Descriptor file_;
};

class PosixReadableFile : public ReadableFile {
  public:
    explicit PosixReadableFile(Path const& path) : file_(path, O_RDONLY, "open"), size_(file_.size()) {}

    int64_t size() const override { return size_; }
    void read_at(int64_t offset, std::span<std::byte> bytes) override {
        int64_t const end = offset + static_cast<int64_t>(bytes.size());
        while (!bytes.empty()) {
            ssize_t const n = retry([&] { return ::pread(file_.fd(), bytes.data(), bytes.size(), offset); });
            if (n < 0) throw IoError("read", file_.path(), errno);
            if (n == 0) {
                fail(Category::data, "{} ends at byte {}; {} bytes were expected", file_.path().string(), offset, end);
            }
            bytes = bytes.subspan(static_cast<size_t>(n));
            offset += n;
        }
    }

  private:
    Descriptor file_;
    int64_t size_;
};

class PosixMappedFile : public MappedFile {
  public:
    explicit PosixMappedFile(Path const& path) {
        Descriptor const file(path, O_RDONLY, "open");
        auto const size = static_cast<size_t>(file.size());
        if (size == 0) return;  // mmap refuses empty ranges
        void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
        if (memory == MAP_FAILED) throw IoError("map", path, errno);
        bytes_ = {static_cast<std::byte const*>(memory), size};
        shrinking_.emplace(bytes_, path.string());
    }
    ~PosixMappedFile() override {
        shrinking_.reset();
        if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
    PosixMappedFile(PosixMappedFile const&) = delete;
    PosixMappedFile& operator=(PosixMappedFile const&) = delete;

    std::span<std::byte const> bytes() const override { return bytes_; }

  private:
    std::span<std::byte const> bytes_;
    std::optional<BusErrorScope> shrinking_;
};

class PosixFileLock : public FileLock {
  public:
    /// flock, not fcntl: it belongs to the open file, so a second lock inside one process is refused as well.
    PosixFileLock(Path const& path, std::string const& holder) : file_(path, O_CREAT | O_RDWR, "create") {
        if (retry([&] { return ::flock(file_.fd(), LOCK_EX | LOCK_NB); }) < 0) {
            if (errno != EWOULDBLOCK) throw IoError("lock", path, errno);
            char text[4096];
            ssize_t const length = retry([&] { return ::pread(file_.fd(), text, sizeof text, 0); });
            throw LockedError(path, std::string(text, length > 0 ? static_cast<size_t>(length) : 0));
        }
        if (retry([&] { return ::ftruncate(file_.fd(), 0); }) < 0 ||
            retry([&] { return ::pwrite(file_.fd(), holder.data(), holder.size(), 0); }) < 0) {
            throw IoError("write", path, errno);
        }
        // Other hosts look for the holder. Some file systems cannot sync.
        if (retry([&] { return ::fsync(file_.fd()); }) < 0 && errno != EINVAL && errno != ENOTSUP)
            throw IoError("sync", path, errno);
    }

  private:
    Descriptor file_;
};

/// The value of a std::filesystem call that reports errors through `error`.
template <class Call>
auto checked(char const* operation, Path const& path, Call&& call) {
    std::error_code error;
    auto result = call(error);
    if (error) throw IoError(operation, path, error.value());
    return result;
}

class PosixFileSystem : public FileSystem {
  public:
    std::unique_ptr<WritableFile> create(Path const& path) override {
        return std::make_unique<PosixWritableFile>(path, O_TRUNC);
    }
    std::unique_ptr<WritableFile> append(Path const& path) override {
        return std::make_unique<PosixWritableFile>(path, 0);
    }
    std::unique_ptr<ReadableFile> open(Path const& path) override { return std::make_unique<PosixReadableFile>(path); }
    std::unique_ptr<MappedFile> map(Path const& path) override { return std::make_unique<PosixMappedFile>(path); }

    void make_directories(Path const& path) override {
        checked("create folder", path, [&](auto& error) { return std::filesystem::create_directories(path, error); });
    }
    void sync_directory(Path const& path) override {
        Descriptor const directory(path, O_RDONLY | O_DIRECTORY, "open folder");
        directory.sync();
    }
    void rename(Path const& from, Path const& to) override {
        if (std::rename(from.c_str(), to.c_str()) < 0) {
            throw IoError(fmt::format("rename {} to", from.string()), to, errno);
        }
    }
    void remove_all(Path const& path) override {
        checked("remove", path, [&](auto& error) { return std::filesystem::remove_all(path, error); });
    }
    std::unique_ptr<FileLock> lock(Path const& path, std::string const& holder) override {
        return std::make_unique<PosixFileLock>(path, holder);
    }

    bool exists(Path const& path) const override { return std::filesystem::exists(status(path)); }
    bool is_directory(Path const& path) const override { return std::filesystem::is_directory(status(path)); }
    int64_t file_size(Path const& path) const override { return Descriptor(path, O_RDONLY, "open").size(); }
    std::vector<std::string> list(Path const& directory) const override {
        std::error_code error;
        std::vector<std::string> names;
        std::filesystem::directory_iterator entry(directory, error);
        for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
            names.push_back(entry->path().filename().string());
        }
        if (error) throw IoError("list", directory, error.value());
        std::sort(names.begin(), names.end());
        return names;
    }
    Path resolve(Path const& path) const override {
        return checked("follow", path, [&](auto& error) { return std::filesystem::canonical(path, error); });
    }
    int64_t free_bytes(Path const& path) const override {
        Path existing = std::filesystem::absolute(path);
        while (!exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
        struct statvfs status {};
        if (retry([&] { return ::statvfs(existing.c_str(), &status); }) < 0) {
            throw IoError("find the free space of", existing, errno);
        }
        return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
    }

  private:
    static std::filesystem::file_status status(Path const& path) {
        std::error_code error;
        auto const result = std::filesystem::status(path, error);
        if (error && result.type() != std::filesystem::file_type::not_found) {
            throw IoError("inspect", path, error.value());
        }
        return result;
    }
};

}  // namespace

std::string FileSystem::read_text(Path const& path, int64_t max_bytes) {
    auto const file = open(path);
    if (file->size() > max_bytes) {
        fail(Category::data, "{} has {} bytes; at most {} are accepted", path.string(), file->size(), max_bytes);
    }
    std::string text(static_cast<size_t>(file->size()), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    return text;
}

std::string whole_path(Path const& path) {
    std::error_code none;
    Path const absolute = std::filesystem::absolute(path, none);
    Path const found = (none ? path : absolute).lexically_normal();
    return (found.has_filename() ? found : found.parent_path()).string();
}

void FileSystem::replace_text(Path const& path, std::string const& text) {
    Path const temporary = temporary_of(path);
    try {
        {
            auto const file = create(temporary);
            file->write_at(0, std::as_bytes(std::span(text)));
            file->sync();
        }
        rename(temporary, path);
    } catch (...) {
        try {
            remove_all(temporary);
        } catch (Error const&) {  // the first error counts
        }
        throw;
    }
    sync_directory(folder_of(path));
}

Path FileSystem::temporary_of(Path const& path) {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    size_t const digits = std::hash<std::string>()(fmt::format("{} {}", host, ::getpid())) & 0xFFFFFFFF;
    return path.parent_path() / fmt::format("{:08x}.{}.tmp", digits, path.filename().string());
}

void FileSystem::remove_temporaries(Path const& path) {
    std::string const end = fmt::format(".{}.tmp", path.filename().string());
    for (std::string const& name : list(folder_of(path)))
        if (name.size() == 8 + end.size() && name.ends_with(end)) remove_all(path.parent_path() / name);
}

std::unique_ptr<FileSystem> make_file_system() { return std::make_unique<PosixFileSystem>(); }

}  // namespace perigee
