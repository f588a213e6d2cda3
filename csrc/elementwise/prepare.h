// From a checked vector_add to its launches. Host code, free of torch and CUDA.
#pragma once

#include "../common/dtypes.h"
#include "../common/prepared.h"

namespace treduce::elementwise {

struct Row;  // see ladder.h, which kernel files do without

// c[i] = a[i] + b[i] for 0 <= i < n, three contiguous arrays. n > 0.
struct Request {
  const Row* row = nullptr;
  DType dtype = DType::float32;
  int block = 0;
  int64_t n = 0;
  uint64_t a = 0, b = 0, c = 0;  // addresses
  int copies = 0;                // operands that are copied first, for their shape or layout
  int64_t copied_from = 0;       // elements that are read for that
};

// A request, and all that was decided for it: what launch() in launch.h needs beside pointers.
struct Prepared {
  explicit Prepared(const Request& r) : request(r) {}

  Request request;
  Launches launches;     // one after another along the arrays, each for as many elements as its grid has threads
  bool vectors = false;  // 16 bytes at once
  int64_t bytes_read = 0, bytes_written = 0;  // copies of operands included
  Refusal refusal;                            // with it nothing else counts
};

bool operator==(const Prepared& a, const Prepared& b);  // of what was decided
std::string to_string(const Prepared& prepared);

Prepared prepare(const Request& request, const Chip& chip);

// How a rung does it: what its row says (ladder.cpp).
void prepare_line(const Request& request, Prepared& prepared);       // an element a thread, blocks in a line
void prepare_rectangle(const Request& request, Prepared& prepared);  // the same, blocks in a rectangle
void prepare_vectors(const Request& request, Prepared& prepared);    // 16 bytes a thread at a time

}  // namespace treduce::elementwise
