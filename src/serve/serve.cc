#include "serve/serve.h"

#include <optional>

#include "base/log.h"
#include "device/host_memory.h"
#include "serve/http_server.h"
#include "train/prompt_encoder.h"

namespace perigee {

namespace {

/// Of the cache: what generate.cache_gib says, or half of a GPU's free memory, or a quarter of the host's.
int64_t cache_bytes(Session const& session, int ranks) {
    constexpr double kGiB = 1 << 30;
    double const asked = session.options().generate.cache_gib;
    if (asked > 0) return static_cast<int64_t>(asked * kGiB);
    Device const& device = session.ops().device();
    return device.is_host() ? host_memory(ranks).bytes / 4 : (device.total_bytes() - device.used_bytes()) / 2;
}

/// The last part of a folder's path, with a slash at its end or without one.
std::string name_of(Path const& folder) {
    return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

}  // namespace

void serve_model(Session& session, RunState const& state, ServeHooks const& hooks) {
    RunOptions const& options = session.options();
    PromptEncoder const encoder(session, state);
    HostComm& world = session.mesh().world();
    BatchLimits const limits{.texts = options.generate.batch,
                             .cache_bytes = cache_bytes(session, world.size()),
                             .text_tokens = options.model.max_position_embeddings,
                             .vocabulary = encoder.tokenizer().vocab_size()};
    serve::ModelLoop loop(session, session.selections(state.step), limits,
                          options.train.micro_batch_size * options.data.sequence_length);
    serve::ModelLoop::Hooks const of_loop{hooks.alive, hooks.must_stop};
    if (world.rank() != 0) return loop.run(nullptr, of_loop);
    serve::WaitingTexts queue(options.serve.queue);
    serve::RequestReader reader(encoder, options.generate, options.seed,
                                {.text_tokens = loop.most_tokens(), .texts = options.serve.queue});
    serve::HttpServer server({.reader = reader,
                              .queue = queue,
                              .loop = loop,
                              .tokenizer = encoder.tokenizer(),
                              .name = name_of(options.output_dir),
                              .options = options.serve,
                              .texts = options.generate.batch});
    if (hooks.listens) hooks.listens(server.address());
    try {
        loop.run(&queue, of_loop);
    } catch (...) {
        queue.close("the model failed");
        throw;
    }
}

}  // namespace perigee
