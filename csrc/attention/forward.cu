// Idea: scores never leave registers. A block keeps 96 queries and walks the keys, 32 at a time, from the first on: it multiplies, takes
// the running maximum, corrects what it has added so far by it, and adds exp(scores) times values.
//
// Order:   a query's result is a function of itself and of the keys that it attends. Keys that are masked behind those change neither
//          maximum nor sums: their exp is zero and the correction one.
// Mapping: a warp a fragment of 16 queries. The probabilities of a lane are the operand of its next product: no exchange. While keys
//          and values are multiplied, the next are copied; where a GPU has few blocks, one query each for instance, several steps
//          ahead.
// Bound:   the matrix instruction, and exp beside it.
// Source:  T. Dao et al., FlashAttention (2022); M. Milakov and N. Gimelshein, Online normalizer calculation for softmax (2018).
#include "forward.cuh"

namespace treduce::attention {

int launch_forward(const Problem& p, const Prepared& prepared, const Matrices& out, void* stream) {
  return dispatch_kernel(p, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    const Launch shape{prepared.launches[0], static_cast<cudaStream_t>(stream)};
    return prepared.stages == kStages
               ? launch(&forward::kernel<T, kWidth, kStages>, shape, p, out, forward::LineValues{})
               : launch(&forward::kernel<T, kWidth, kManyStages>, shape, p, out, forward::LineValues{});
  });
}

}  // namespace treduce::attention
