// From a checked row operation to its launch. Host code, free of torch and CUDA.
#pragma once

#include "../common/prepared.h"
#include "problem.h"

namespace treduce::rows {

struct Row;  // see ladder.h, which kernel files do without

// A call after all checks. There is at least one row, of at least one element.
struct Request {
  Op op = Op::softmax;
  DType dtype = DType::float32;  // of inputs, weights and outputs
  const Row* row = nullptr;      // asked for; `auto` too
  Problem problem;
  uint64_t addresses = 0;  // of everything that vectors may move, one or the other
};

struct Prepared {
  const Row* rung = nullptr;  // whose launcher runs
  Launches launches;
  Workspace workspace;    // none
  bool vectors = false;   // of elements; else they are read one by one
  bool adjacent = false;  // side by side
  int stripes = 8;        // of 128 elements that a warp holds of a row; where they are fewer, a warp holds several rows
  int lanes = 32;         // threads that share a stripe
  int warps = 1;          // of a block that share a row, a power of two
  int64_t bytes_read = 0, bytes_written = 0;  // at the least
  Refusal refusal;                            // with it nothing else counts
};

bool operator==(const Prepared& a, const Prepared& b);

Prepared prepare(const Request& request, const Chip& chip);

// How a rung does it: what its row says (ladder.cpp).
void prepare_three_pass(const Request& request, Prepared& prepared);
void prepare_registers(const Request& request, Prepared& prepared);
void prepare_cluster(const Request& request, Prepared& prepared);

// The rung that `auto` picks: its name.
const char* choose(const Request& request, const Chip& chip);

}  // namespace treduce::rows
