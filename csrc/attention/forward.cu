// Idea: scores never leave registers. A block keeps 64 queries and walks the keys, 64 at a time, from the first on: it multiplies, takes
// the running maximum, corrects what it has added so far by it, and adds exp(scores) times values.
//
// Order:   a query's result is a function of itself and of the keys that it attends. Keys that are masked behind those change neither
//          maximum nor sums: their exp is zero and the correction one.
// Mapping: a warp a fragment of 16 queries. The probabilities of a lane are the operand of its next product: no exchange.
//          Values are copied while scores are multiplied, the next keys while values are.
// Bound:   the matrix instruction and shared memory: a warp reads both tiles for its 16 queries.
// Source:  T. Dao et al., FlashAttention (2022); M. Milakov and N. Gimelshein, Online normalizer calculation for softmax (2018).
#include "forward.cuh"

namespace treduce::attention {

int launch_forward(const Problem& p, const Prepared& prepared, const Matrices& out, void* stream) {
  return dispatch_kernel(p, [&](auto type, auto width) {
    return launch(&forward::kernel<decltype(type), decltype(width)::value>,
                  Launch{prepared.launches[0], static_cast<cudaStream_t>(stream)}, p, out, forward::LineValues{});
  });
}

}  // namespace treduce::attention
