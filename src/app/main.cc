#include "app/app.h"

int main(int argc, char** argv) {
    auto files = perigee::make_file_system();
    return perigee::run_app(argc, argv, *files);
}
