// The launch that ends a product of up to eight lines of X by split_one or split_warps: it adds the groups of k; and where these have left
// something, a block computes it for its tiles. Where nothing is left it takes half as long as split_rows' second launch and split_finish.cuh,
// one after the other.
#pragma once

#include "../../primitives/in_order.cuh"
#include "../../primitives/ptx/launch.cuh"
#include "split_left.cuh"

namespace treduce::matmul::split_end {

using split::Operand16;
using split_left::kLines;
using split_left::Output;
using split_left::Tile;
using split_left::Work;

// What is known of a tile's lines. Who calls: all threads of the block. Synchronises within.
TREDUCE_DEVICE void read_facts(const Work& work, const Operand16& x, const Operand16& w, const Tile& tile,
                               split_left::Shared& shared) {
  const int thread = threadIdx.x;
  __syncthreads();  // the tile before is done
  if (thread < kLines + work.x_lines) {
    const bool of_w = thread < kLines;
    const int64_t line = of_w ? tile.first + thread : thread - kLines;
    const Facts* const facts = of_w ? w.line_facts + tile.matrix_w * w.shape.lines_padded
                                    : x.line_facts + tile.matrix_x * x.shape.lines_padded;
    const Facts known = !of_w || line < work.w_lines ? facts[line] : kPlainestFacts;
    shared.known[thread] = with_code(known, code_of(known));
  }
  __syncthreads();
}

// kOfA: W is A; else the product is transposed. outputs: of a group of k.
template <bool kOfA>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT Operand16 x, TREDUCE_GRID_CONSTANT Operand16 w, TREDUCE_GRID_CONSTANT Work work,
           const float* partials, int64_t outputs, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  constexpr int kAtOnce = 16;  // groups
  SHARED(split_left::Shared, shared);
  // Tiles of which a thread has an output each, and which of them.
  const int of_tile = kLines * work.x_lines, at_once = kThreads / of_tile;
  const int turn = threadIdx.x / of_tile, step = gridDim.x;
  const Output<kOfA> own(threadIdx.x - turn * of_tile);
  ptx::wait_for_launch_before();
  const bool some_left = (*w.codes | *x.codes) != 0;
  if (work.groups > 1 && turn < at_once) {
    for (int index = blockIdx.x + turn * step; index < work.tiles; index += at_once * step) {
      const Tile tile(work, index);
      if (tile.first + own.line >= work.w_lines) continue;
      const int64_t at = own.at(work, tile);
      float sum = -0.0f;  // changes no number that is added to it
      thread::for_each_in_order<kAtOnce>(partials + at, outputs, work.groups, [&](float more) { sum += more; });
      c[at] = own.with_bias(sum, bias, tile);
    }
  }
  if (!some_left) return;
  for (int index = blockIdx.x; index < work.tiles; index += step) {
    const Tile tile(work, index);
    read_facts(work, x, w, tile, shared);
    split_left::compute<kOfA, kThreads, false>(work, tile, shared, dynamic_shared<float>(), c, bias);
  }
#endif
}

inline cudaError_t run(const Call& call, bool of_a, const Operand& w, const Operand& x, const Operand16& split_w,
                       const Operand16& split_x, const float* partials) {
  const Problem& p = call.problem;
  const Work work = split_left::work_of(p, w, x, split_x);
  return launch(of_a ? &kernel<true> : &kernel<false>, call.step(-1), split_x, split_w, work, partials,
                p.batches * p.m * p.n, static_cast<float*>(call.c), static_cast<const float*>(call.bias));
}

}  // namespace treduce::matmul::split_end
