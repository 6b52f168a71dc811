// One page of HTML on one or more runs: curves, time, memory, configs, samples, warnings.
//     perigee report runs/quickstart
//     perigee report runs/a runs/b --output compare.html
//     perigee report runs/quickstart --serve    while it trains: the page follows
#include <httplib.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "commands/command.h"
#include "commands/report/run_json.h"
#include "io/output.h"
#include "io/port.h"

namespace perigee {
namespace {

/// The files that a report reads of a run: of a folder, or a metrics file and those beside it.
std::vector<Path> run_files(FileSystem const& files, Path const& run) {
    bool const is_folder = files.is_directory(run);
    Path const folder = is_folder ? run : run.parent_path();
    std::vector<Path> found = {is_folder ? run / "metrics.jsonl" : run};
    for (char const* name : {"config.yaml", "run.json", "suites.jsonl", "blocks.jsonl", "samples.jsonl", "log.txt"})
        found.push_back(folder / name);
    return found;
}

constexpr char kLoopback[] = "127.0.0.1";
constexpr int kDefaultPort = 8642;

struct ReportOptions {
    std::vector<std::string> folders;
    std::string output;
    bool serve = false;
    int port = kDefaultPort;
};

/// Until the process is told to stop. The folders are read anew for every request.
void serve(ReportOptions const& options, FileSystem& files) {
    httplib::Server server;
    server.set_socket_options(take_port_alone);
    server.set_pre_routing_handler([](httplib::Request const& request, httplib::Response& response) {
        if (is_for_loopback(request.get_header_value("Host"))) return httplib::Server::HandlerResponse::Unhandled;
        response.status = 403;
        response.set_content("this server answers to localhost", "text/plain");
        return httplib::Server::HandlerResponse::Handled;
    });
    std::mutex reading;
    auto const answer = [&](httplib::Response& response, char const* type, auto&& make) {
        std::scoped_lock const lock(reading);
        try {
            response.set_content(make(report::read_runs(files, options.folders, /*live=*/true).json), type);
        } catch (Error const& error) {
            response.status = 500;
            response.set_content(error.what(), "text/plain");
        }
    };
    server.Get("/", [&](httplib::Request const&, httplib::Response& response) {
        answer(response, "text/html; charset=utf-8", [](std::string const& json) { return report::page(json); });
    });
    server.Get("/data", [&](httplib::Request const&, httplib::Response& response) {
        answer(response, "application/json", [](std::string const& json) { return json; });
    });
    int const port = options.port == 0                              ? server.bind_to_any_port(kLoopback)
                     : server.bind_to_port(kLoopback, options.port) ? options.port
                                                                    : -1;
    if (port < 0)
        fail(Category::config, "port {} of this machine is taken or reserved: name another with --port", options.port);
    fmt::print("http://{}:{}/   Ctrl-C ends it\n", kLoopback, port);
    std::fflush(stdout);
    server.listen_after_bind();
}

void write(ReportOptions const& options, FileSystem& files) {
    std::string const output = !options.output.empty() ? options.output
                               : files.is_directory(options.folders.front())
                                   ? (Path(options.folders.front()) / "report.html").string()
                                   : "report.html";
    for (std::string const& run : options.folders) refuse_replacing(run_files(files, run), output, "--output");
    report::Runs const runs = report::read_runs(files, options.folders, /*live=*/false);
    for (std::string const& warning : runs.warnings) fmt::print(stderr, "perigee: {}\n", warning);
    write_output(files, output, report::page(runs.json));
    fmt::print("{}\n", output);
}

}  // namespace

Action declare_report(CLI::App& app) {
    auto const options = std::make_shared<ReportOptions>();
    app.add_option("RUN_FOLDER", options->folders, "run folders, or metrics files, compared with each other")
        ->required();
    app.add_option("-o,--output", options->output, "the page; without it, report.html in the first run folder");
    app.add_flag("--serve", options->serve, "serve the page to this machine, and keep it up to date");
    app.add_option("--port", options->port, "with --serve; 0: any that is free")->check(CLI::Range(0, 65535));
    return [options](FileSystem& files) {
        options->serve ? serve(*options, files) : write(*options, files);
        return 0;
    };
}

}  // namespace perigee
