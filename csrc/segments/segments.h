// Rows that meet in a place: those of a source that have the same index are added as a tree, neighbours first, and their sum to what the
// place held. Host code, free of torch and CUDA.
//
// The order of a sum is a function of how many rows meet, and theirs of where they stand: no atomics, and no place sees another.
#pragma once

#include "../common/dtypes.h"
#include "../common/prepared.h"

namespace treduce::segments {

struct Request {
  DType dtype = DType::float32;
  int64_t count = 0, width = 0;    // rows of the source, and their elements
  int64_t places = 0;              // rows of the output
  bool divide = false;             // sums by the number of rows that met
  const int64_t* index = nullptr;  // ascending; what is no place is left out
  const int64_t* order = nullptr;  // where the row of each index stands in the source
  const void* source = nullptr;    // contiguous, as the output
  void* out = nullptr;
};

struct Prepared {
  Launches launches;
  int vector = 1;  // neighbouring elements of a thread
};

Prepared prepare(const Request& request);

// Returns a cudaError_t; `stream` is a cudaStream_t.
int launch_add(const Request& request, const Prepared& prepared, void* stream);

// The indices from `begin` to `end`; a run of equal ones counts where it begins.
void add_on_cpu(const Request& request, int64_t begin, int64_t end);

}  // namespace treduce::segments
