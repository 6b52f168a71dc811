#include <csignal>

#include "app/app.h"
#include "app/commit.h"
#include "base/standard_files.h"
#include "base/stop_request.h"

int main(int argc, char** argv) {
    perigee::catch_stop_signals();  // first: nothing before this line can be stopped in order
    perigee::open_standard_files();
    std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit on file sizes is then an error, as one to a full disk
    auto files = perigee::make_file_system();
    return perigee::code_with_output_written(perigee::run_app(argc, argv, *files, PERIGEE_COMMIT));
}
