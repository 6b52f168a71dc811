#include "io/hdf5_support.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace perigee::hdf5 {

Session::Session() {
    static std::mutex library;
    lock_ = std::unique_lock(library);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string last_error() {
    struct Found {
        std::string text;
        bool starved = false;
    } found;
    // Walking upwards starts where the error arose, the most telling place.
    auto first = [](unsigned, H5E_error2_t const* error, void* out) -> herr_t {
        auto& into = *static_cast<Found*>(out);
        into.starved |=
            error->maj_num == H5E_RESOURCE && (error->min_num == H5E_NOSPACE || error->min_num == H5E_CANTALLOC);
        if (into.text.empty() && error->desc != nullptr) into.text = error->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first, &found);
    if (found.starved) throw OutOfMemory(fmt::format("out of memory: HDF5: {}", found.text));
    return found.text.empty() ? "unknown HDF5 error" : found.text;
}

Handle file_type(DType dtype) {
    auto copy = [](hid_t type) { return Handle(H5Tcopy(type), H5Tclose); };
    switch (dtype) {
        case DType::f32:
            return copy(H5T_IEEE_F32LE);
        case DType::f64:
            return copy(H5T_IEEE_F64LE);
        case DType::i32:
            return copy(H5T_STD_I32LE);
        case DType::i64:
            return copy(H5T_STD_I64LE);
        case DType::u8:
            return copy(H5T_STD_U8LE);
        case DType::bf16:
            break;
    }
    Handle type = copy(H5T_IEEE_F32LE);
    bool const made = H5Tset_fields(type.get(), /*sign*/ 15, /*exponent*/ 7, 8, /*mantissa*/ 0, 7) >= 0 &&
                      H5Tset_precision(type.get(), 16) >= 0 && H5Tset_size(type.get(), 2) >= 0 &&
                      H5Tset_ebias(type.get(), 127) >= 0;
    PERIGEE_CHECK(made, "HDF5 does not make a bf16 type: {}", last_error());
    return type;
}

namespace {

/// An open file as the library sees it. It starts with the library's own part.
struct DriverFile {
    H5FD_t base{};
    Storage* storage = nullptr;
    haddr_t end_of_addresses = 0;
};
DriverFile& driver(H5FD_t* file) { return *reinterpret_cast<DriverFile*>(file); }
DriverFile const& driver(H5FD_t const* file) { return *reinterpret_cast<DriverFile const*>(file); }

/// No exception may pass through the library's C code.
template <class Action>
herr_t guarded(Storage& storage, Action&& action) noexcept {
    try {
        if (!storage.error) action();
    } catch (...) {
        storage.error = std::current_exception();
    }
    return storage.error && storage.out == nullptr ? -1 : 0;
}

H5FD_t* open_file(char const*, unsigned, hid_t access, haddr_t) {
    auto const* info = static_cast<Storage* const*>(H5Pget_driver_info(access));
    if (info == nullptr) return nullptr;
    auto file = std::make_unique<DriverFile>();
    file->storage = *info;
    return &file.release()->base;
}

herr_t close_file(H5FD_t* file) {
    std::unique_ptr<DriverFile> const owned(&driver(file));
    return 0;
}

herr_t query(H5FD_t const*, unsigned long* flags) {
    // Small pieces gather in the library's buffers and arrive here as few large writes.
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

haddr_t end_of_addresses(H5FD_t const* file, H5FD_mem_t) { return driver(file).end_of_addresses; }
herr_t set_end_of_addresses(H5FD_t* file, H5FD_mem_t, haddr_t address) {
    driver(file).end_of_addresses = address;
    return 0;
}
haddr_t end_of_file(H5FD_t const* file, H5FD_mem_t) { return static_cast<haddr_t>(driver(file).storage->size); }

herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
    Storage& storage = *driver(file).storage;
    std::memset(buffer, 0, size);  // the library expects zeros behind the end
    return guarded(storage, [&] {
        auto const offset = static_cast<int64_t>(address);
        int64_t const there = std::clamp<int64_t>(storage.size - offset, 0, static_cast<int64_t>(size));
        storage.in->read_at(offset, {static_cast<std::byte*>(buffer), static_cast<size_t>(there)});
    });
}

herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void const* buffer) {
    Storage& storage = *driver(file).storage;
    if (storage.out == nullptr) return -1;
    return guarded(storage, [&] {
        auto const offset = static_cast<int64_t>(address);
        storage.out->write_at(offset, {static_cast<std::byte const*>(buffer), size});
        storage.size = std::max(storage.size, offset + static_cast<int64_t>(size));
    });
}

herr_t truncate(H5FD_t* file, hid_t, hbool_t) {
    Storage& storage = *driver(file).storage;
    auto const size = static_cast<int64_t>(driver(file).end_of_addresses);
    if (storage.out == nullptr || storage.size == size) return 0;
    return guarded(storage, [&] {
        storage.out->truncate(size);
        storage.size = size;
    });
}

hid_t registered_driver() {
    static H5FD_class_t const description = [] {
        H5FD_class_t c{};
        c.name = "perigee";
        c.maxaddr = static_cast<haddr_t>(INT64_MAX);
        c.fc_degree = H5F_CLOSE_STRONG;
        c.fapl_size = sizeof(Storage*);
        c.open = open_file;
        c.close = close_file;
        c.query = query;
        c.get_eoa = end_of_addresses;
        c.set_eoa = set_end_of_addresses;
        c.get_eof = end_of_file;
        c.read = read;
        c.write = write;
        c.truncate = truncate;
        H5FD_mem_t const pools[] = H5FD_FLMAP_DICHOTOMY;
        std::copy(std::begin(pools), std::end(pools), c.fl_map);
        return c;
    }();
    static hid_t const id = H5FDregister(&description);
    return id;
}

}  // namespace

Handle access_through(Storage& storage) {
    Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    Storage* const info = &storage;
    PERIGEE_CHECK(H5Pset_driver(access.get(), registered_driver(), &info) >= 0, "HDF5 driver: {}", last_error());
    return access;
}

}  // namespace perigee::hdf5
