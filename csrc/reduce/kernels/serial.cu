// Idea: one thread adds the array from the first element to the last: a plain C loop, and the baseline of the ladder.
//
// Mapping: one block of one thread.
// Bound:   latency. Each addition waits for the one before it, one thread keeps only a few loads in flight, and the rest of the
//          chip idles. Slow on purpose: tens of milliseconds for a million elements.
// Next:    global_memory lets all threads add at once, in a tree.
// Source:  the loop of every CPU program.
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::serial {

template <class O, class In>
__global__ void __launch_bounds__(1) kernel(In x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc value = O::identity();
  for (int64_t i = 0; i < n; ++i) value = O::combine(value, widen<Acc>(x[i]));
  output.store(0, value);
}

struct Kernels {
  template <class O, class In>
  static auto pick(int /*block*/) {
    return &kernel<O, In>;
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("serial");

}  // namespace treduce::reduce::serial
