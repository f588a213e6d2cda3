// The kernels that split both operands before they are multiplied.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "split_operands.cuh"

namespace treduce::matmul::split {

// Splits what blocks of both operands have in turn.
template <class Into>
TREDUCE_DEVICE void split_both(const Into& a, const Into& b, uint32_t wanted_a, uint32_t wanted_b) {
  for (int64_t block = blockIdx.x; block < a.blocks + b.blocks; block += gridDim.x) {
    const bool of_a = block < a.blocks;
    split_block(of_a ? a : b, static_cast<uint32_t>(of_a ? block : block - a.blocks), of_a ? wanted_a : wanted_b);
  }
}

static __global__ void __launch_bounds__(kThreads)
    split_into_halves(TREDUCE_GRID_CONSTANT IntoHalves a, TREDUCE_GRID_CONSTANT IntoHalves b) {
  ptx::allow_launch_after();
  begin_facts(a.to, kPlainestFacts);
  begin_facts(b.to, kPlainestFacts);
  split_both(a, b, ~0u, ~0u);
}

static __global__ void __launch_bounds__(kThreads)
    find_facts(TREDUCE_GRID_CONSTANT IntoFacts a, TREDUCE_GRID_CONSTANT IntoFacts b) {
  ptx::allow_launch_after();
  split_both(a, b, ~0u, ~0u);
}

// From the facts of segments to those of lines: a thread a line.
static __global__ void __launch_bounds__(kThreads)
    join_facts(TREDUCE_GRID_CONSTANT Operand16 a, TREDUCE_GRID_CONSTANT Operand16 b) {
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  const int64_t lines_a = a.shape.all_lines(), lines = lines_a + b.shape.all_lines();
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < lines; i += int64_t(gridDim.x) * kThreads) {
    const Operand16& o = i < lines_a ? a : b;
    const int64_t line = i < lines_a ? i : i - lines_a, padded = o.shape.lines_padded;
    const int64_t matrix = line / padded, first = matrix * o.shape.segments() * padded + line % padded;
    Facts facts = kNoFacts;
#pragma unroll 8
    for (int64_t s = 0; s < o.shape.segments(); ++s) {
      const int64_t at = first + s * padded;
      facts = join(facts, facts_of(o.flags[at], o.most[at], o.least[at]));
    }
    o.line_facts[line] = facts;
  }
}

// Orders the lines of both operands for their parts, if there are outputs by parts: a block an operand. Of one matrix each.
static __global__ void __launch_bounds__(kOrderThreads)
    order_lines(TREDUCE_GRID_CONSTANT Operand16 a, TREDUCE_GRID_CONSTANT Operand16 b) {
  constexpr int kWarps = kOrderThreads / 32;
  __shared__ uint32_t of_warp[kWarps];
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  if (!any_output(*a.codes, *b.codes, &by_parts)) return;
  const Operand16 &o = blockIdx.x == 0 ? a : b, &other = blockIdx.x == 0 ? b : a;
  const uint32_t lines = static_cast<uint32_t>(o.shape.lines), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Which of the codes of its lines have outputs by parts, as a set.
  const uint32_t wanted = __ballot_sync(~0u, any_with(lane, *other.codes, &by_parts));
  const auto first = [&](uint32_t line) { return line < lines && (set_of(code_of(o.line_facts[line])) & wanted) != 0; };
  uint32_t own = 0;
  for (uint32_t line = threadIdx.x; line < lines; line += kOrderThreads) own += first(line);
  own = __reduce_add_sync(~0u, own);
  if (lane == 0) of_warp[warp] = own;
  __syncthreads();
  uint32_t count = 0;  // of the lines that come first
  for (uint32_t w = 0; w < kWarps; ++w) count += of_warp[w];
  if (threadIdx.x == 0) *o.reordered = count > 0 && count < lines;
  uint32_t before = 0;  // of these, in the lines before
  for (uint32_t begin = 0; begin < lines; begin += kOrderThreads) {
    const uint32_t line = begin + threadIdx.x;
    const bool mine = first(line);
    const uint32_t votes = __ballot_sync(~0u, mine);
    __syncthreads();
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    uint32_t rank = before + __popc(votes & ((1u << lane) - 1));
    for (uint32_t w = 0; w < kWarps; ++w) {
      rank += w < warp ? of_warp[w] : 0;
      before += of_warp[w];
    }
    if (line < lines) {
      const uint32_t place = mine ? rank : count + line - rank;
      o.place_of[line] = place;
      o.line_at[place] = line;
    }
  }
}

// After the product by halves has said which lines have outputs by parts: of most data, none.
static __global__ void __launch_bounds__(kThreads)
    split_into_parts(TREDUCE_GRID_CONSTANT IntoParts a, TREDUCE_GRID_CONSTANT IntoParts b) {
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  const uint32_t wanted_a = a.wanted(), wanted_b = b.wanted();
  if (wanted_a == 0) return;
  split_both(a, b, wanted_a, wanted_b);
}

}  // namespace treduce::matmul::split
