// Idea: 16 bytes a load, and four loads on their way before the first is used. Memory answers after some 600 cycles; what
// counts is how many bytes are under way meanwhile.
//
// After:   warp_shuffle, with one 4-byte load in flight a thread.
// Mapping: thread g of G*T takes vectors g, g + GT, ... of 16 bytes; each component of a vector has an accumulator of its own,
//          folded by halves at the end. Then the warp tree. A pointer that is not 16-byte aligned is read element by element
//          into the same components: slower, the same bits.
// Bound:   memory bandwidth, for large inputs; for small ones the second launch.
// Next:    atomic and single_pass need one launch.
// Source:  Justin Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access (2013).
#include "../../primitives/block.cuh"
#include "../../primitives/thread.cuh"
#include "../rung.h"

namespace treduce::reduce::vectorized {

// Blocks a multiprocessor, 0: as the compiler likes. For float16 it would save registers by local memory.
template <class In>
constexpr int kBlocks = std::is_same_v<In, float16> ? 1 : 0;

template <class O, class In>
__global__ void __launch_bounds__(kMaxBlock, kBlocks<In>) kernel(const In* x, int64_t n, Output<O> output) {
  const auto value = block::reduce<O>(thread::reduce_vectors<O>(x, n, blockIdx.x, gridDim.x));
  if (threadIdx.x == 0) output.store(blockIdx.x, value);
}

template <class O>
__global__ void __launch_bounds__(kMaxBlock)
    second_pass(const typename O::Acc* partials, int64_t count, Output<O> output) {
  const auto value = block::reduce_partials<O>(partials, count);
  if (threadIdx.x == 0) output.store(0, value);
}

cudaError_t launch_both(const Call& call) {
  return dispatch_op(call, [&](auto op, auto type) {
    using O = decltype(op);
    using In = typename decltype(type)::type;
    const Plan& plan = *call.plan;
    auto* partials = static_cast<typename O::Acc*>(call.workspace);
    const bool one_block = plan.grid() == 1;
    Launch shape;
    shape.grid = plan.grid();
    shape.block = plan.block;
    shape.stream = call.stream;
    const cudaError_t error = launch(&kernel<O, In>, shape, static_cast<const In*>(call.input), call.n,
                                     Output<O>{one_block ? nullptr : partials, call.result});
    if (error != cudaSuccess || one_block) return error;
    shape.grid = 1;
    return launch(&second_pass<O>, shape, partials, plan.grid(), Output<O>{nullptr, call.result});
  });
}

const Rung<launch_both> rung("vectorized");

}  // namespace treduce::reduce::vectorized
