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

// How elements are read and written: one by one; one by one where they lie side by side; in vectors, though rows begin anywhere; in
// vectors; in vectors of twice as many.
enum class Reads : int8_t { single, adjacent, shifted, vectors, wide };

inline const char* name_of(Reads reads) {
  constexpr const char* names[] = {"single", "adjacent", "shifted", "vectors", "wide"};
  return names[static_cast<int>(reads)];
}

// A request, and all that was decided for it: what launch() in launch.h needs beside pointers.
struct Prepared {
  Prepared() = default;
  explicit Prepared(const Request& r) : request(r) {}

  Request request;
  const Row* rung = nullptr;  // whose launcher runs
  Launches launches;
  Workspace workspace;  // none
  Reads reads = Reads::single;
  int stripes = 8;  // of 128 elements that a warp holds of a row; where they are fewer, a warp holds several rows
  int lanes = 32;   // threads that share a stripe
  int warps = 1;    // of a block that share a row, a power of two where they hold it in registers
  int chunks = 0;   // of a row that a block holds in shared memory
  int64_t bytes_read = 0, bytes_written = 0;  // at the least
  Refusal refusal;                            // with it nothing else counts
};

bool operator==(const Prepared& a, const Prepared& b);  // of what was decided
std::string to_string(const Prepared& prepared);

Prepared prepare(const Request& request, const Chip& chip);

// How a rung does it: what its row says (ladder.cpp).
void prepare_three_pass(const Request& request, const Chip& chip, Prepared& prepared);
void prepare_online(const Request& request, const Chip& chip, Prepared& prepared);
void prepare_registers(const Request& request, const Chip& chip, Prepared& prepared);
void prepare_cluster(const Request& request, const Chip& chip, Prepared& prepared);
void prepare_shared(const Request& request, const Chip& chip, Prepared& prepared);

// The rung that `auto` picks: its name.
const char* choose(const Request& request, const Chip& chip);

}  // namespace treduce::rows
