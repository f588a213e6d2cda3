// Atomic updates of one accumulator in global memory, for any op.
#pragma once

#include <cuda_runtime.h>

#include "functors.h"

namespace treduce::atomic {

// *address = Op::combine(*address, value), atomically, in no fixed order. Sums use the hardware's atomicAdd; the others
// retry a compare-and-swap until no other thread has changed the value in between.
// Who calls: any thread, alone. Valid in: global memory, after the launch. Needs: a value in *address before the launch. Nobody
// synchronises.
template <class Op>
TREDUCE_DEVICE void combine(typename Op::Acc* address, typename Op::Acc value) {
  using Acc = typename Op::Acc;
  if constexpr (std::is_same_v<Op, Sum<Acc>>) {
    if constexpr (std::is_integral_v<Acc>) {
      atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
    } else {
      atomicAdd(address, value);
    }
  } else {
    using Word = std::conditional_t<sizeof(Acc) == 4, unsigned int, unsigned long long>;
    Word* const word = reinterpret_cast<Word*>(address);
    Word seen = *static_cast<volatile Word*>(word);
    for (;;) {
      const Word wanted = bit_cast<Word>(Op::combine(bit_cast<Acc>(seen), value));
      const Word before = atomicCAS(word, seen, wanted);
      if (before == seen) return;
      seen = before;
    }
  }
}

}  // namespace treduce::atomic
