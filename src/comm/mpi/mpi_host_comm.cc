#include "comm/mpi/mpi_host_comm.h"

#include <mpi.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "comm/checks.h"
#include "comm/mpi/check.h"

namespace perigee {

namespace {

using detail::check_mpi;

MPI_Datatype mpi_type(DType dtype) {
    detail::check_reducible(dtype);
    switch (dtype) {
        case DType::f32:
            return MPI_FLOAT;
        case DType::f64:
            return MPI_DOUBLE;
        case DType::i32:
            return MPI_INT32_T;
        default:
            return MPI_INT64_T;
    }
}

MPI_Op mpi_op(Reduce op) {
    switch (op) {
        case Reduce::sum:
            return MPI_SUM;
        case Reduce::max:
            return MPI_MAX;
        case Reduce::min:
            return MPI_MIN;
    }
    fail(Category::internal, "unknown reduction");
}

/// `bytes` bytes of each rank's part, the parts `stride` bytes apart: one piece of a long transfer.
class PieceType {
  public:
    PieceType(int64_t bytes, int64_t stride) {
        MPI_Datatype piece;
        check_mpi(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &piece), "MPI_Type_contiguous");
        int const code = MPI_Type_create_resized(piece, 0, static_cast<MPI_Aint>(stride), &type_);
        MPI_Type_free(&piece);
        check_mpi(code, "MPI_Type_create_resized");
        check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
    }
    ~PieceType() { MPI_Type_free(&type_); }
    PieceType(PieceType const&) = delete;
    PieceType& operator=(PieceType const&) = delete;
    MPI_Datatype get() const { return type_; }

  private:
    MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

class MpiHostComm final : public HostComm {
  public:
    /// Takes over `comm`; `owned` says whether to free it.
    MpiHostComm(MPI_Comm comm, bool owned, int64_t piece_bytes, RankStatus* status, Axis axis)
        : comm_(comm), owned_(owned), piece_bytes_(piece_bytes), status_(status), axis_(axis) {
        check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
        check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
        check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    }
    ~MpiHostComm() override {
        // Freeing is collective: while an exception is on its way out, the other ranks may never come.
        if (owned_ && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }
    RankStatus* status() const override { return status_; }

    void all_reduce(TensorView x, Reduce op) override {
        InCollective const mark(status_, Collective::all_reduce, axis_);
        MPI_Datatype const type = mpi_type(x.dtype);
        for_pieces(x.size(), piece_bytes_ / size_of(x.dtype), [&](int64_t begin, int count) {
            check_mpi(MPI_Allreduce(MPI_IN_PLACE, x.data + begin * size_of(x.dtype), count, type, mpi_op(op), comm_),
                      "MPI_Allreduce");
        });
    }

    void all_gather(TensorView all, ConstView part) override {
        InCollective const mark(status_, Collective::all_gather, axis_);
        detail::check_parts(all, part, size_);
        bool const in_place = part.data == all.data + rank_ * part.bytes();
        for_pieces(part.bytes(), piece_bytes_, [&](int64_t begin, int count) {
            PieceType const piece(count, part.bytes());
            void const* from = in_place ? MPI_IN_PLACE : part.data + begin;
            check_mpi(MPI_Allgather(from, 1, piece.get(), all.data + begin, 1, piece.get(), comm_), "MPI_Allgather");
        });
    }

    void reduce_scatter(TensorView part, ConstView all) override {
        InCollective const mark(status_, Collective::reduce_scatter, axis_);
        MPI_Datatype const type = mpi_type(part.dtype);
        detail::check_parts(all, part, size_);
        if (part.size() == 0) return;
        if (all.bytes() <= piece_bytes_) {
            check_mpi(
                MPI_Reduce_scatter_block(all.data, part.data, static_cast<int>(part.size()), type, MPI_SUM, comm_),
                "MPI_Reduce_scatter_block");
            return;
        }
        for (int owner = 0; owner < size_; ++owner) {
            for_pieces(part.size(), piece_bytes_ / size_of(part.dtype), [&](int64_t begin, int count) {
                auto const* from = all.data + owner * part.bytes() + begin * size_of(part.dtype);
                check_mpi(MPI_Reduce(from, part.data + begin * size_of(part.dtype), count, type, MPI_SUM, owner, comm_),
                          "MPI_Reduce");
            });
        }
    }

    void all_to_all(TensorView to, ConstView from) override {
        InCollective const mark(status_, Collective::all_to_all, axis_);
        detail::check_exchange(to, from, size_);
        int64_t const part_bytes = to.bytes() / size_;
        for_pieces(part_bytes, piece_bytes_, [&](int64_t begin, int count) {
            PieceType const piece(count, part_bytes);
            check_mpi(MPI_Alltoall(from.data + begin, 1, piece.get(), to.data + begin, 1, piece.get(), comm_),
                      "MPI_Alltoall");
        });
    }

    void exchange(std::span<Outgoing const> sent, std::span<Incoming const> received) override {
        InCollective const mark(status_, Collective::exchange, axis_);
        detail::check_messages(sent, received, size_);
        std::vector<MPI_Request> requests;
        // MPI matches the messages between two ranks, and the pieces of one, in the order of the calls.
        constexpr int kTag = 0;
        for (auto const& [x, from] : received)
            for_pieces(x.bytes(), piece_bytes_, [&](int64_t begin, int count) {
                check_mpi(MPI_Irecv(x.data + begin, count, MPI_BYTE, from, kTag, comm_, &requests.emplace_back()),
                          "MPI_Irecv");
            });
        for (auto const& [x, to] : sent)
            for_pieces(x.bytes(), piece_bytes_, [&](int64_t begin, int count) {
                check_mpi(MPI_Isend(x.data + begin, count, MPI_BYTE, to, kTag, comm_, &requests.emplace_back()),
                          "MPI_Isend");
            });
        check_mpi(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    }

    void broadcast(TensorView x, int root) override {
        InCollective const mark(status_, Collective::broadcast, axis_);
        detail::check_root(root, size_);
        for_pieces(x.bytes(), piece_bytes_, [&](int64_t begin, int count) {
            check_mpi(MPI_Bcast(x.data + begin, count, MPI_BYTE, root, comm_), "MPI_Bcast");
        });
    }

    void barrier() override {
        InCollective const mark(status_, Collective::barrier, axis_);
        check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
    }

    std::unique_ptr<HostComm> split(int color, int key, Axis axis) override {
        PERIGEE_CHECK(color >= 0, "color {}", color);
        InCollective const mark(status_, Collective::split, axis_);
        MPI_Comm group;
        check_mpi(MPI_Comm_split(comm_, color, key, &group), "MPI_Comm_split");
        return std::make_unique<MpiHostComm>(group, /*owned=*/true, piece_bytes_, status_, axis);
    }

  private:
    static void for_pieces(int64_t total, int64_t piece, auto&& transfer) {
        for (int64_t begin = 0; begin < total; begin += piece) {
            transfer(begin, static_cast<int>(std::min(piece, total - begin)));
        }
    }

    MPI_Comm comm_;
    bool owned_;
    int64_t piece_bytes_;
    RankStatus* status_;
    Axis axis_;
    int rank_ = 0;
    int size_ = 1;
};

}  // namespace

std::unique_ptr<HostComm> make_mpi_world(int64_t piece_bytes, RankStatus* status) {
    PERIGEE_CHECK(piece_bytes > 0 && piece_bytes % 8 == 0 && piece_bytes <= kMpiPieceBytes, "{}", piece_bytes);
    return std::make_unique<MpiHostComm>(MPI_COMM_WORLD, /*owned=*/false, piece_bytes, status, Axis::all);
}

}  // namespace perigee
