// The scripts of helper processes, as text: src/data/helpers/*.py, put into the program when it is built.
#pragma once

namespace perigee {

extern char const kRenderChatScript[];
extern char const kReadParquetScript[];

}  // namespace perigee
