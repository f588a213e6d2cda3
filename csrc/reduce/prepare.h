// From a checked call and a chip to everything that is launched: the kernel, its blocks and threads, its memory. The bindings,
// plan(), the emulator and the tests call the same prepare, and the launchers in kernels/ decide nothing. Host code, free of torch
// and CUDA.
#pragma once

#include <string>

#include "../common/prepared.h"
#include "geometry.h"
#include "plan.h"
#include "result.h"
#include "schedule.h"

namespace treduce::reduce {

struct Row;
struct Resolved;  // see ladder.h, which kernel files do without

// A call after all checks.
struct Request {
  Op op = Op::sum;
  DType dtype = DType::float32;               // of the elements in memory
  DType target = DType::float32;              // what each of them counts as: the result's dtype
  bool converting = false;                    // whether they must be converted to it one by one
  Arithmetic arithmetic = Arithmetic::plain;  // plain where the op or the dtype rounds nothing
  const Row* row = nullptr;                   // asked for; `auto` too
  int block = 0;                              // 0, and no blocks: as prepare likes
  int64_t num_blocks = 0;
  uint64_t address = 0;     // of the first element
  int64_t copied_from = 0;  // elements that are read to copy the input first; 0: it is read where it lies
  Geometry geometry;        // of the input or its copy; whole-tensor rungs read one run of `length` elements

  // The rung, as resolve() found it; where nothing rounds, every order is exact, and `auto` stands for it.
  void take(const Resolved& found);
  bool rounds() const { return !is_extremum(op) && !is_integer(target); }
  bool is_empty() const { return geometry.length == 0 || geometry.outputs == 0; }
  int64_t numel() const { return geometry.length * geometry.outputs; }
};

// A request, and all that was decided for it: what launch() in launch.h needs beside pointers.
struct Prepared {
  Prepared() = default;
  explicit Prepared(const Request& r) : request(r) {}

  Request request;
  const Row* kernel = nullptr;  // whose launcher runs
  const Row* rung = nullptr;    // whose schedule it follows: the same, but for `compensated`
  Plan plan;                    // of rungs that reduce whole tensors
  Schedule schedule;            // of rungs along dims
  Launches launches;  // none where the input is empty: the binding writes the result (whole-tensor rungs launch)
  Workspace workspace;
  int64_t counters = 0;                       // zeroed, and left zero
  bool deterministic = true;                  // whether equal inputs give equal bits
  int64_t bytes_read = 0, bytes_written = 0;  // at the least, the copy of the input included
  Refusal refusal;                            // with it nothing else counts
};

bool operator==(const Prepared& a, const Prepared& b);  // of what was decided
std::string to_string(const Prepared& prepared);

Prepared prepare(const Request& request, const Chip& chip);

// How a whole-tensor rung executes `prepared.plan`: what its row says (ladder.cpp). `accumulator`: bytes of one.
void prepare_passes(int64_t accumulator, Prepared& prepared);  // a launch a pass
void prepare_passes_with_slots(int64_t accumulator,
                               Prepared& prepared);  // and an accumulator a thread in shared memory
void prepare_copy_and_passes(int64_t accumulator,
                             Prepared& prepared);                   // of a copy of the input, an accumulator an element
void prepare_once(int64_t accumulator, Prepared& prepared);         // the last block, told by a counter, ends it
void prepare_clusters(int64_t accumulator, Prepared& prepared);     // the same, of clusters
void prepare_cooperative(int64_t accumulator, Prepared& prepared);  // one launch, with a barrier for the grid
void prepare_atomic(int64_t accumulator, Prepared& prepared);       // one total: begin, add, end

}  // namespace treduce::reduce
