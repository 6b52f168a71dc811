#include "serve/http_server.h"

#include <httplib.h>
#include <strings.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "base/held_signals.h"
#include "io/port.h"
#include "io/strict_json.h"
#include "serve/answer.h"

namespace perigee::serve {

namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int kIoSeconds = 10;                     // without a byte from or to a client
constexpr std::chrono::seconds kBodyPatience{30};  // for a whole body
constexpr std::chrono::milliseconds kLook{20};     // between looks at whether the client is still there
constexpr char kJson[] = "application/json";

/// As many threads as connections need, up to a number; after that a queue of connections that makes the listener wait
/// when it is full.
class Workers : public httplib::TaskQueue {
  public:
    using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));  // void or bool, by version

    explicit Workers(size_t most) : most_(most) { start_one(); }
    Enqueued enqueue(std::function<void()> task) override {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return tasks_.size() < most_ || stops_; });
        tasks_.push_back(std::move(task));
        try {
            if (tasks_.size() > idle_ && threads_.size() < most_) start_one();
        } catch (std::system_error const&) {  // no more threads are to be had: one of these will take it
        }
        changed_.notify_all();
        return Enqueued(true);
    }
    void shutdown() override {
        {
            std::scoped_lock const lock(mutex_);
            stops_ = true;
            changed_.notify_all();
        }
        for (std::thread& thread : threads_) thread.join();
    }

  private:
    void start_one() {
        threads_.emplace_back([this] { work(); });
    }
    void work() {
        for (;;) {
            std::unique_lock lock(mutex_);
            ++idle_;
            changed_.wait(lock, [this] { return !tasks_.empty() || stops_; });
            --idle_;
            if (tasks_.empty()) return;
            auto const task = std::move(tasks_.front());
            tasks_.pop_front();
            changed_.notify_all();
            lock.unlock();
            task();
        }
    }

    size_t const most_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> tasks_;
    size_t idle_ = 0;
    bool stops_ = false;
    std::vector<std::thread> threads_;
};

/// The library lets 5 connections wait to be accepted; the kernel may reset those that come meanwhile.
class Listener : public httplib::Server {
  public:
    void let_more_wait() { ::listen(svr_sock_, SOMAXCONN); }
};

void answer_error(httplib::Response& response, Refusal const& refusal) {
    response.status = refusal.status;
    response.set_content(error_json(refusal), kJson);
    if (refusal.status == 503) response.set_header("Retry-After", "1");
}

void answer_json(httplib::Response& response, Json const& json) {
    response.set_content(json.dump(-1, ' ', false, Json::error_handler_t::replace), kJson);
}

/// Case does not matter, and parameters may follow.
bool is_json(std::string const& type) { return ::strncasecmp(type.c_str(), kJson, sizeof(kJson) - 1) == 0; }

/// A request whose answer is being written, and the tasks behind it, which end with it.
struct Open {
    Open(ServedRequest request, Served const& served, std::string const& id, std::atomic<int64_t>& count)
        : answer(std::move(request), served.tokenizer, id, std::time(nullptr)),
          exchange(std::make_shared<Exchange>(answer.tasks(served.loop.most_tokens()))),
          deadline(Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(1e3 * served.options.request_s))),
          open(count) {
        ++open;
    }
    ~Open() {
        exchange->abandon();
        --open;
    }
    Open(Open const&) = delete;
    Open& operator=(Open const&) = delete;

    Answer answer;
    std::shared_ptr<Exchange> const exchange;
    Clock::time_point const deadline;
    std::atomic<int64_t>& open;
};

/// Writes what has come; false where the client has gone.
bool write_some(Open& open, httplib::DataSink& sink) {
    if (!sink.is_writable()) return false;
    std::string text;
    for (Event const& event : open.exchange->take(kLook)) {
        text += open.answer.add(event);
        if (open.answer.complete(event.task)) open.exchange->abandon(event.task);
    }
    if (Clock::now() >= open.deadline) text += open.answer.end_now();
    bool const complete = open.answer.complete();
    if (complete) text += open.answer.finish();
    if (!text.empty() && !sink.write(text.data(), text.size())) return false;
    // Its status was sent before, so the body stays without an end: clients see that it is no answer.
    if (complete && open.answer.failed()) return false;
    if (complete) sink.done();
    return true;
}

}  // namespace

struct HttpServer::Impl {
    explicit Impl(Served const& served) : served(served) {
        server.new_task_queue = [texts = served.texts + served.options.queue] {
            // More: for those that only look, are refused, or are slow to say what they want.
            constexpr int64_t kMore = 64, kMost = 4096;
            return new Workers(static_cast<size_t>(std::min(texts + kMore, kMost)));
        };
        server.set_payload_max_length(static_cast<size_t>(served.options.body_mib) << 20);
        server.set_read_timeout(kIoSeconds);
        server.set_write_timeout(kIoSeconds);
        // What a refused request leaves unread would be the next request of its connection, past check_host().
        server.set_keep_alive_max_count(1);
        server.set_tcp_nodelay(true);
        server.set_socket_options(take_port_alone);
        server.set_pre_routing_handler([this](httplib::Request const& request, httplib::Response& response) {
            return check_host(request, response);
        });
        server.set_error_handler([](httplib::Request const& request, httplib::Response& response) {
            if (!response.body.empty()) return;
            char const* const what = response.status == 404   ? "there is nothing at this path"
                                     : response.status == 413 ? "the body is too large"
                                                              : "this is no request that the server understands";
            answer_error(response, {.status = response.status,
                                    .message = fmt::format("{} {}: {}", request.method, request.path, what)});
        });
        server.set_exception_handler([](httplib::Request const&, httplib::Response& response, std::exception_ptr) {
            answer_error(response, {.status = 500, .message = "the server failed at this request"});
        });
        declare_routes();
    }

    void declare_routes() {
        server.Get("/health", [this](httplib::Request const&, httplib::Response& response) {
            Json const state = {{"status", "ok"},
                                {"running", served.loop.running()},
                                {"waiting", served.queue.size()},
                                {"free_pages", served.loop.free_pages()},
                                {"open_requests", open.load()}};
            response.set_content(state.dump(), kJson);
        });
        server.Get("/v1/models", [this](httplib::Request const&, httplib::Response& response) {
            answer_json(response, {{"object", "list"}, {"data", Json::array({model()})}});
        });
        server.Get("/v1/models/([^/]{1,255})", [this](httplib::Request const& request, httplib::Response& response) {
            std::string const asked = request.matches[1];
            if (asked == served.name) return answer_json(response, model());
            answer_error(response, {.status = 404,
                                    .message = fmt::format("there is no model {}; this server has {}",
                                                           json_excerpt(asked), json_excerpt(served.name)),
                                    .code = "model_not_found"});
        });
        for (auto const& [path, endpoint] :
             {std::pair{"/v1/completions", Endpoint::completions}, {"/v1/chat/completions", Endpoint::chat}})
            server.Post(path, [this, endpoint = endpoint](httplib::Request const& request, httplib::Response& response,
                                                          httplib::ContentReader const& reader) {
                try {
                    std::string const body = body_of(request, response, reader);
                    handle(endpoint, body, /*chunks=*/request.version != "HTTP/1.0", response);
                } catch (Refusal const& refusal) {
                    answer_error(response, refusal);
                }
            });
    }

    Json model() const {
        return {{"id", served.name},
                {"object", "model"},
                {"created", started},
                {"owned_by", "perigee"},
                {"max_model_len", served.loop.most_tokens()}};
    }

    httplib::Server::HandlerResponse check_host(httplib::Request const& request, httplib::Response& response) const {
        if (!is_loopback(served.options.host) || is_for_loopback(request.get_header_value("Host")))
            return httplib::Server::HandlerResponse::Unhandled;
        answer_error(response, {.status = 403, .message = "this server answers to localhost"});
        return httplib::Server::HandlerResponse::Handled;
    }

    /// Throws Refusal for a body that is too large, too slow, or does not claim to be JSON.
    std::string body_of(httplib::Request const& request, httplib::Response& response,
                        httplib::ContentReader const& reader) const {
        auto const most = static_cast<size_t>(served.options.body_mib) << 20;
        auto const deadline = Clock::now() + kBodyPatience;
        std::string body;
        bool too_large = false, too_slow = false;
        bool const has_body = request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
        auto const take = [&](char const* data, size_t size) {
            too_large = too_large || size > most - body.size();
            too_slow = Clock::now() > deadline;
            if (too_large || too_slow) return false;
            body.append(data, size);
            return true;
        };
        // The library reads bodies in parts only by their parts. They are refused below.
        auto const any_part = [](httplib::MultipartFormData const&) { return true; };
        bool const whole = !has_body || (request.is_multipart_form_data() ? reader(any_part, take) : reader(take));
        if (too_large || response.status == 413)
            throw Refusal{.status = 413, .message = fmt::format("the body has more than {} bytes", most)};
        if (too_slow) throw Refusal{.status = 408, .message = "the body takes too long"};
        if (!whole) throw Refusal{.message = "the body is not whole"};
        // Bytes that nobody read would make the system reset the connection, and the client miss why.
        if (!is_json(request.get_header_value("Content-Type")))
            throw Refusal{.status = 415, .message = "Content-Type must be application/json"};
        return body;
    }

    /// `chunks`: the client reads them. Else the answer ends with its connection.
    void handle(Endpoint endpoint, std::string const& body, bool chunks, httplib::Response& response) {
        ServedRequest request = served.reader.read(endpoint, body);
        if (request.model.empty()) request.model = served.name;
        char const* const type = request.stream ? "text/event-stream" : kJson;
        auto const opened =
            std::make_shared<Open>(std::move(request), served, fmt::format("{}-{}", started, ++requests), open);
        if (opened->answer.complete()) {  // no token is wanted
            std::string const events = opened->answer.end_now();
            response.set_content(events + opened->answer.finish(), type);
            return;
        }
        auto const refuse_unless = [this](bool begun, char const* why_not) {
            if (begun) return;
            std::string const why_closed = served.queue.why_closed();
            throw Refusal{.status = 503, .message = why_closed.empty() ? why_not : why_closed};
        };
        refuse_unless(served.queue.submit(opened->exchange), "too many texts wait; try again");
        refuse_unless(opened->exchange->wait_for_start(opened->deadline),
                      "others took all the time that this request has; try again");
        auto const write = [opened](size_t, httplib::DataSink& sink) { return write_some(*opened, sink); };
        auto const leave = [opened](bool) { opened->exchange->abandon(); };
        if (chunks)
            response.set_chunked_content_provider(type, write, leave);
        else
            response.set_content_provider(type, write, leave);
    }

    Served const served;
    int64_t const started = std::time(nullptr);
    std::atomic<int64_t> requests = 0, open = 0;
    Listener server;
    std::thread listener;
    int port = -1;
};

HttpServer::HttpServer(Served const& served) : impl_(std::make_unique<Impl>(served)) {
    ServeOptions const& options = served.options;
    int const wanted = static_cast<int>(options.port);
    impl_->port = wanted == 0                                        ? impl_->server.bind_to_any_port(options.host)
                  : impl_->server.bind_to_port(options.host, wanted) ? wanted
                                                                     : -1;
    if (impl_->port < 0)
        fail(Category::config,
             "serve.host {} and serve.port {} cannot be had: the port may be taken or reserved, or the host may not be "
             "this machine",
             options.host, options.port);
    impl_->server.let_more_wait();
    HeldSignals const held;  // requests to stop are for the thread of the model
    impl_->listener = std::thread([this] { impl_->server.listen_after_bind(); });
}

HttpServer::~HttpServer() {
    constexpr std::chrono::seconds kPatience{kIoSeconds};
    auto const deadline = Clock::now() + kPatience;
    while ((impl_->open > 0 || !impl_->server.is_running()) && Clock::now() < deadline)
        std::this_thread::sleep_for(kLook);
    impl_->server.stop();
    impl_->listener.join();
}

std::string HttpServer::address() const {
    std::string const& host = impl_->served.options.host;
    bool const v6 = host.find(':') != std::string::npos;
    return fmt::format("http://{}:{}", v6 ? "[" + host + "]" : host, impl_->port);
}

}  // namespace perigee::serve
