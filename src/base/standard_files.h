// Standard input, output and error, as a process finds and leaves them.
#pragma once

namespace perigee {

/// Opens /dev/null in place of those that are closed. The first files that the program opens would take their numbers
/// otherwise, and its log would go into these files. Before anything else is opened.
void open_standard_files();

/// What a process ends with: `code`, or that of Category::data where it has succeeded and standard output has not taken
/// all that was written. Says so on standard error.
int code_with_output_written(int code);

/// Writing to a pipe that nobody reads any more is then an error of that write, and no longer ends the process.
void outlive_readers();

}  // namespace perigee
