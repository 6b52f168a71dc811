// What writer and reader of tensor files share: entry into the HDF5 library, handles that close themselves, the six
// element types, and the virtual file driver that makes HDF5 read and write through a FileSystem.
#pragma once

#include <hdf5.h>

#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "io/file_system.h"
#include "tensor/tensor.h"

namespace perigee::hdf5 {

/// Hold one around every use of the library: it is not thread-safe, and prints its errors unless told otherwise.
class Session {
  public:
    Session();

  private:
    std::unique_lock<std::mutex> lock_;
};

/// The library's own description of its last error; throws OutOfMemory where it had no memory.
std::string last_error();

class Handle {
  public:
    using Close = herr_t (*)(hid_t);
    Handle(hid_t id, Close close) : id_(id), close_(close) {}
    ~Handle() { reset(); }
    Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }

    hid_t get() const { return id_; }
    bool valid() const { return id_ >= 0; }
    /// Closes now and tells whether that went well.
    bool reset() { return id_ < 0 || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

  private:
    hid_t id_;
    Close close_;
};

/// The type as it is in the file, which is also how it is in memory: little endian; bf16 is a 2-byte float.
Handle file_type(DType dtype);

/// The file behind an HDF5 file.
struct Storage {
    ReadableFile* in = nullptr;
    WritableFile* out = nullptr;  ///< null: read only
    int64_t size = 0;             ///< bytes now
    /// The first failure. HDF5 cannot close a file whose writes fail, so that from then on what it writes is dropped
    /// and reported to it as done: whoever calls the library looks here after each call.
    std::exception_ptr error = nullptr;

    void rethrow() const {
        if (error) std::rethrow_exception(error);
    }
};

/// File access properties that lead to `storage`, which must outlive the file.
Handle access_through(Storage& storage);

}  // namespace perigee::hdf5
