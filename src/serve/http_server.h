// The HTTP side of the server: threads that read requests, hand their texts over to the model's thread, and write what
// comes back.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "serve/model_loop.h"
#include "serve/request.h"
#include "train/options.h"

namespace perigee::serve {

/// What the server offers. All outlive it.
struct Served {
    RequestReader& reader;
    WaitingTexts& queue;
    ModelLoop const& loop;
    Tokenizer const& tokenizer;
    std::string name;  ///< of the model
    ServeOptions const& options;
    int64_t texts;  ///< that run at a time
};

class HttpServer {
  public:
    /// Listens at once. Throws Category::config where the address cannot be had.
    explicit HttpServer(Served const& served);
    /// Waits a moment for answers that are being written, then closes all connections.
    ~HttpServer();

    /// "http://127.0.0.1:8643"
    std::string address() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::serve
