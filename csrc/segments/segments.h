// Rows of a source are added into the rows (`places`) of an output that an index names. Rows with the same index are added as a tree,
// neighbours first, then their sum is added to the place. Host code, free of torch and CUDA.
//
// The order depends only on how many rows meet in a place and on their order in the source: no atomics, no other place counts.
#pragma once

#include "../common/dtypes.h"
#include "../common/prepared.h"

namespace treduce::segments {

struct Request {
  DType dtype = DType::float32;
  int64_t count = 0, width = 0;    // rows of the source, and their elements
  int64_t places = 0;              // rows of the output
  bool divide = false;             // divide each sum by its number of rows
  const int64_t* index = nullptr;  // ascending; indices out of range are skipped
  const int64_t* order = nullptr;  // the row of the source that belongs to each index
  const void* source = nullptr;    // contiguous, as is the output
  void* out = nullptr;
};

struct Prepared {
  Launches launches;
  int vector = 1;   // neighbouring elements that a thread takes
  int indices = 1;  // that a thread of short runs asks
  int slabs = 1;    // of columns, that a block of a long run takes
};

Prepared prepare(const Request& request);

// Returns a cudaError_t; `stream` is a cudaStream_t.
int launch_add(const Request& request, const Prepared& prepared, void* stream);

// Adds the runs of equal indices that begin from `begin` to before `end`.
void add_on_cpu(const Request& request, int64_t begin, int64_t end);

}  // namespace treduce::segments
