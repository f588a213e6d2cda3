// Idea: none yet: one thread walks the array from the first element to the last. This is the loop that every other rung has to
// beat, and the order of additions that a plain C loop has.
//
// Mapping: one block of one thread.
// Bound:   latency. One thread keeps a handful of loads in flight and each addition waits for the one before it; all other
//          cores of the chip idle. Slow on purpose: some milliseconds for a million elements.
// Next:    global_memory lets every thread add.
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::serial {

template <class O, class In>
__global__ void __launch_bounds__(1) kernel(const In* x, int64_t n, Output<O> output) {
  using Acc = typename O::Acc;
  Acc value = O::identity();
  for (int64_t i = 0; i < n; ++i) value = O::combine(value, widen<Acc>(x[i]));
  output.store(0, value);
}

struct Kernels : NoDynamicShared {
  template <class O, class In>
  static auto pick(int /*block*/) {
    return &kernel<O, In>;
  }
};

const Rung<launch_ladder_passes<Kernels>> rung("serial");

}  // namespace treduce::reduce::serial
