// What links between ranks carry, and what their traffic costs the work beside it: collectives by the communicators
// that training uses, on GPUs (NCCL) or on CPU ranks (MPI). Rank 0 prints a JSON object for each result as it comes.
//   mpirun -n N bench_links rates|beside [--largest MIB] [--seconds S] [--shrink N] [key=value ...]
// rates: every collective at sizes from 256 KiB on. beside: matrix products and attention while collectives run in a
// lane. How many multiprocessors NCCL may take (CTAs) is the environment's: NCCL_MAX_CTAS, NCCL_MIN_CTAS.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/groups.h"
#include "comm/launch.h"
#include "comm/ring_bytes.h"
#include "commands/bench/measure.h"
#include "config/config.h"
#include "train/seat.h"
#include "train/session.h"

namespace perigee {

namespace {

struct Options {
    std::string part;
    std::vector<std::string> overrides;
    int64_t largest = 1024, shrink = 1;
    double seconds = 0.05;
};

Options parse(CLI::App& app, int argc, char** argv) {
    Options o;
    app.add_option("PART", o.part, "rates or beside")->required()->check(CLI::IsMember({"rates", "beside"}));
    app.add_option("overrides", o.overrides, "as for perigee train: device, parallel.comm")->type_name("key=value");
    app.add_option("--largest", o.largest, "MiB of the largest message")->check(CLI::PositiveNumber);
    app.add_option("--seconds", o.seconds, "for each measurement, about")->check(CLI::PositiveNumber);
    app.add_option("--shrink", o.shrink, "divides sizes of the work, to try this where there is no GPU")
        ->check(CLI::PositiveNumber);
    app.parse(argc, argv);
    return o;
}

struct Kind {
    char const* name;
    Collective collective;
    DType dtype;  ///< as in training
};
constexpr Kind kKinds[] = {{"all_gather", Collective::all_gather, DType::bf16},
                           {"reduce_scatter", Collective::reduce_scatter, DType::f32},
                           {"all_reduce", Collective::all_reduce, DType::f32},
                           {"all_to_all", Collective::all_to_all, DType::bf16},
                           {"send", Collective::exchange, DType::bf16}};

class Links {
  public:
    Links(Options const& o, RunOptions const& options, HostComm& world, Machine& machine)
        : options_(o),
          world_(&world),
          ops_(machine.ops.get()),
          device_(machine.device.get()),
          lane_(&device_->lane("links")),
          groups_(make_group_maker(options.parallel.comm, world, *device_, options.parallel.gpu_ranks())),
          comm_(groups_->make({.axis = Axis::data, .size = world.size(), .color = 0, .key = world.rank()})),
          arena_(*device_) {
        int64_t const bytes = o.largest << 20;
        from_ = TensorView(make(bytes), DType::u8, {bytes});
        to_ = TensorView(make(bytes), DType::u8, {bytes});
        ops_->fill_zero(from_), ops_->fill_zero(to_);
    }

    void rates() {
        for (Kind const& kind : kKinds)
            for (int64_t bytes = int64_t{256} << 10; bytes <= options_.largest << 20; bytes *= 4) {
                double const seconds = alone(kind, bytes);
                double const sent = sent_bytes(kind, bytes);
                say({{"part", "rates"},
                     {"collective", kind.name},
                     {"bytes", bytes},
                     {"microseconds", 1e6 * seconds},
                     {"sent_bytes", sent},
                     {"gb_s", 1e-9 * sent / seconds}});
            }
    }

    void beside() {
        with_products([&](char const* name, auto const& work) { slowed(name, work); });
        with_attention("attention", of(8192), FullAttention{});
        with_attention("moba", of(32768), MobaOptions{.block_size = of(512), .top_k = 8});
    }

  private:
    using Work = std::function<void()>;

    std::byte* make(int64_t bytes) {
        buffers_.push_back(comm_->allocate(*device_, static_cast<size_t>(bytes)));
        return static_cast<std::byte*>(buffers_.back().data());
    }
    int64_t of(int64_t size) const { return std::max<int64_t>(size / options_.shrink, 64); }
    TensorView random(Shape shape) { return random_tensor(*ops_, arena_, ops_->compute_dtype(), shape, ++tensors_); }

    /// By a rank, where the larger of its two tensors has these bytes.
    double sent_bytes(Kind const& kind, int64_t bytes) const {
        if (kind.collective == Collective::exchange) return static_cast<double>(bytes);
        int64_t const brought = kind.collective == Collective::all_gather ? bytes / comm_->size() : bytes;
        return ring_bytes(kind.collective, brought, comm_->size());
    }

    void queue(Kind const& kind, int64_t bytes) {
        int64_t const ranks = comm_->size(), count = bytes / size_of(kind.dtype) / ranks * ranks;
        TensorView const to(to_.data, kind.dtype, {count}), from(from_.data, kind.dtype, {count});
        int64_t const part = count / ranks, own = comm_->rank() * part;
        switch (kind.collective) {
            case Collective::all_gather:
                comm_->all_gather(*lane_, to, to.rows(own, own + part));
                return;
            case Collective::reduce_scatter:
                comm_->reduce_scatter(*lane_, to.rows(own, own + part), to);
                return;
            case Collective::all_reduce:
                comm_->all_reduce(*lane_, to);
                return;
            case Collective::all_to_all:
                comm_->all_to_all(*lane_, to, from);
                return;
            default: {
                Outgoing const sent{from, static_cast<int>((comm_->rank() + 1) % ranks)};
                Incoming const received{to, static_cast<int>((comm_->rank() + ranks - 1) % ranks)};
                comm_->exchange(*lane_, {&sent, 1}, {&received, 1});
            }
        }
    }

    double slowest(double seconds) const {
        return 1e-9 * static_cast<double>(world_->max(std::llround(1e9 * seconds)));
    }

    /// Seconds of `count` calls in a queue, on the slowest rank, where all begin together.
    double timed(Queue& queue, int64_t count, Work const& call) {
        device_->synchronize();
        world_->barrier();
        Event const begin = queue.stamp();
        for (int64_t i = 0; i < count; ++i) call();
        Event const end = queue.stamp();
        device_->synchronize();
        return slowest(end.seconds_since(begin));
    }
    /// Of one call, among as many as fill the time.
    double sustained(Queue& queue, Work const& call) {
        timed(queue, 1, call);
        double const once = std::max(timed(queue, 1, call), 1e-6);
        int64_t const count = std::clamp<int64_t>(std::llround(options_.seconds / once), 2, 500);
        return timed(queue, count, call) / static_cast<double>(count);
    }
    double alone(Kind const& kind, int64_t bytes) {
        return sustained(*lane_, [&] { queue(kind, bytes); });
    }

    void with_products(auto const& use) {
        Arena::Scope const scope(arena_);
        TensorView const a = random({of(8192), of(4096)}), b = random({of(28672), of(4096)}),
                         c = random({of(8192), of(28672)});
        use("product", [&] { ops_->matmul({.c = c, .a = a, .b = b, .transpose_b = true}); });
    }

    void with_attention(std::string const& name, int64_t tokens, Selection const& selection) {
        Arena::Scope const scope(arena_);
        int64_t const H = 32, G = 8, K = 128;
        std::vector<int32_t> const borders = {0, static_cast<int32_t>(tokens)};
        double const scale = 1 / std::sqrt(static_cast<double>(K));
        AttentionForward forward;
        forward.q_THK = random({tokens, H, K}), forward.k_TGK = random({tokens, G, K});
        forward.v_TGK = random({tokens, G, K});
        TensorView const o = random({tokens, H, K}), lse = arena_.allocate("lse", ops_->main_dtype(), {tokens, H});
        forward.o_THK = o, forward.lse_TH = lse, forward.cu_seqlens = borders, forward.scale = scale;
        if (auto const budget = budget_of(selection)) {
            TensorView const chosen = arena_.allocate("chosen", DType::i32, {tokens, H, budget->slots()});
            TensorView routing;
            int64_t const numbers = ops_->routing_size(forward.q_THK.shape, forward.k_TGK.shape, borders, *budget);
            if (numbers > 0) routing = arena_.allocate("routing", DType::i32, {numbers});
            forward.attended = BlockSparse{.budget = *budget, .chosen_THS = chosen, .routing_L = routing};
            SelectBlocks const select{.chosen_THS = chosen,
                                      .q_THK = forward.q_THK,
                                      .k_TGK = forward.k_TGK,
                                      .cu_seqlens = borders,
                                      .selection = selection};
            slowed(name + " gate", [&] { ops_->select_blocks(select); });
        }
        slowed(name + " forward", [&] { ops_->attention_forward(forward); });
        AttentionBackward const backward{.dq_THK = random({tokens, H, K}),
                                         .dk_TGK = random({tokens, G, K}),
                                         .dv_TGK = random({tokens, G, K}),
                                         .do_THK = random({tokens, H, K}),
                                         .q_THK = forward.q_THK,
                                         .k_TGK = forward.k_TGK,
                                         .v_TGK = forward.v_TGK,
                                         .o_THK = o,
                                         .lse_TH = lse,
                                         .cu_seqlens = borders,
                                         .scale = scale,
                                         .attended = forward.attended};
        slowed(name + " backward", [&] { ops_->attention_backward(backward); });
    }

    /// The work alone, then beside each collective, which goes on for longer.
    void slowed(std::string const& name, Work const& work) {
        int64_t const bytes = std::min(options_.largest, int64_t{256}) << 20;
        double const one = sustained(device_->queue(), work);
        int64_t const works = std::clamp<int64_t>(std::llround(options_.seconds / one), 2, 200);
        for (Kind const& kind : kKinds) {
            double& link = alone_[kind.name];
            if (link == 0) link = alone(kind, bytes);
            auto const messages =
                std::clamp<int64_t>(static_cast<int64_t>(2 * one * static_cast<double>(works) / link) + 2, 2, 500);
            device_->synchronize();
            world_->barrier();
            std::vector<Event> sent = {lane_->stamp()};
            for (int64_t i = 0; i < messages; ++i) {
                queue(kind, bytes);
                sent.push_back(lane_->stamp());
            }
            Event const begin = device_->queue().stamp();
            for (int64_t i = 0; i < works; ++i) work();
            Event const end = device_->queue().stamp();
            device_->synchronize();
            double const both = slowest(end.seconds_since(begin)) / static_cast<double>(works);
            auto const during = static_cast<double>(std::ranges::count_if(sent, [&](Event const& event) {
                return event.seconds_since(begin) > 0 && end.seconds_since(event) >= 0;
            }));
            say({{"part", "beside"},
                 {"work", name},
                 {"collective", kind.name},
                 {"bytes", bytes},
                 {"alone_ms", 1e3 * one},
                 {"beside_ms", 1e3 * both},
                 {"slower", both / one - 1},
                 {"collective_alone_ms", 1e3 * link},
                 {"collective_beside_ms", 1e3 * end.seconds_since(begin) / std::max(during, 1.0)}});
        }
    }

    void say(nlohmann::json result) {
        if (world_->rank() > 0) return;
        auto const environment = [](char const* name) {
            char const* const value = std::getenv(name);
            return std::string(value != nullptr ? value : "");
        };
        result["ranks"] = world_->size();
        result["device"] = device_->name();
        result["max_ctas"] = environment("NCCL_MAX_CTAS");
        result["cta_policy"] = environment("NCCL_CTA_POLICY");
        fmt::print("{}\n", result.dump());
        std::fflush(stdout);
    }

    Options options_;
    HostComm* world_;
    Ops* ops_;
    Device* device_;
    Queue* lane_;
    std::unique_ptr<GroupMaker> groups_;
    std::unique_ptr<Comm> comm_;
    Arena arena_;
    std::vector<Buffer> buffers_;
    TensorView from_, to_;
    std::map<std::string, double> alone_;  ///< seconds of collectives
    uint64_t tensors_ = 0;
};

void run(Options const& o, Launch& launch) {
    RunOptions options = parse_config("data: {mock_data: true}", "bench_links", o.overrides);
    Seat const seat = take_seat(options, launch);
    options.gpu = std::max(seat.gpu, 0);
    options.threads = seat.cores;
    Machine machine = make_machine(options);
    Links links(o, options, launch.world(), machine);
    o.part == "rates" ? links.rates() : links.beside();
    machine.device->synchronize();
}

}  // namespace

}  // namespace perigee

int main(int argc, char** argv) {
    perigee::Launch launch(&argc, &argv);
    CLI::App app("Measures links between ranks, and what their traffic costs the work beside it.");
    try {
        perigee::run(perigee::parse(app, argc, argv), launch);
        return 0;
    } catch (CLI::ParseError const& e) {
        return app.exit(e);
    } catch (std::exception const& e) {
        if (launch.world().size() == 1) return perigee::report_failure("bench_links", e);
        launch.abort(perigee::as_error(e).exit_code(), e.what());
    }
}
