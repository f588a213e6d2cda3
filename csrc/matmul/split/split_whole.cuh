// The kernels that split both operands before they are multiplied.
#pragma once

#include "../../primitives/ptx/launch.cuh"
#include "split_few.cuh"
#include "split_operands.cuh"

namespace treduce::matmul::split {

// Splits what blocks of both operands have in turn.
template <class Into>
TREDUCE_DEVICE void split_both(const Into& a, const Into& b, uint32_t wanted_a, uint32_t wanted_b) {
  for (int64_t block = blockIdx.x; block < a.blocks + b.blocks; block += gridDim.x) {
    const bool of_a = block < a.blocks;
    split_block(of_a ? a : b, static_cast<uint32_t>(of_a ? block : block - a.blocks), of_a ? wanted_a : wanted_b, true);
  }
}

static __global__ void __launch_bounds__(kSplitThreads, 10)
    split_into_halves(TREDUCE_GRID_CONSTANT IntoHalves a, TREDUCE_GRID_CONSTANT IntoHalves b, uint32_t* zeroed,
                      int words) {
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  for (int i = blockIdx.x * kSplitThreads + threadIdx.x; i < words; i += gridDim.x * kSplitThreads) zeroed[i] = 0;
  begin_facts(a.to, kPlainestFacts);
  begin_facts(b.to, kPlainestFacts);
  // A block a share: a loop, and one code for both operands, are a tenth more instructions.
  const uint32_t block = blockIdx.x, blocks_a = static_cast<uint32_t>(a.blocks);
  block < blocks_a ? split_block(a, block, ~0u, false) : split_block(b, block - blocks_a, ~0u, false);
}

static __global__ void __launch_bounds__(kSplitThreads)
    find_facts(TREDUCE_GRID_CONSTANT IntoFacts a, TREDUCE_GRID_CONSTANT IntoFacts b) {
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
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

// Orders the lines of both operands for their parts, if there are outputs by parts: those with most of them first, so that these
// outputs lie in few tiles. A block an operand. Of one matrix each.
static __global__ void __launch_bounds__(kOrderThreads)
    order_lines(TREDUCE_GRID_CONSTANT Operand16 a, TREDUCE_GRID_CONSTANT Operand16 b,
                TREDUCE_GRID_CONSTANT split_few::Product few) {
  constexpr int kWarps = kOrderThreads / 32;
  static_assert(kCodes == 32 && kWarps <= 32);
  // Lines of each code: of this operand and of the other; outputs by parts of such a line; where the next such line goes; and lines of
  // each warp, in one round.
  SHARED_ARRAY(uint32_t, own, kCodes);
  SHARED_ARRAY(uint32_t, others, kCodes);
  SHARED_ARRAY(uint32_t, needed, kCodes);
  SHARED_ARRAY(uint32_t, place, kCodes);
  SHARED_TABLE(uint32_t, of_warp, kWarps, kCodes);
  SHARED(bool, ordered);
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  if (!any_output(*a.codes, *b.codes, &codes_by_parts) || few.are_listed()) return;
  const Operand16 &o = blockIdx.x == 0 ? a : b, &other = blockIdx.x == 0 ? b : a;
  const uint32_t lines = static_cast<uint32_t>(o.shape.lines), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < kCodes) own[lane] = others[lane] = 0;
  __syncthreads();
  // The lanes of a warp whose lines have the same code.
  const auto alike_of = [](bool there, unsigned code) {
    return __match_any_sync(~0u, there ? code : unsigned(kCodes));
  };
  const auto count = [&](const Operand16& of, uint32_t* codes) {
    const uint32_t all = static_cast<uint32_t>(of.shape.lines);
    for (uint32_t begin = 0; begin < all; begin += kOrderThreads) {
      const uint32_t line = begin + threadIdx.x;
      const unsigned code = line < all ? code_of(of.line_facts[line]) : 0;
      const uint32_t alike = alike_of(line < all, code);
      if (line < all && lane == __ffs(alike) - 1) atomicAdd(codes + code, __popc(alike));
    }
  };
  count(o, own);
  count(other, others);
  __syncthreads();
  if (warp == 0) {
    uint32_t outputs = 0;
    for (unsigned code = 0; code < kCodes; ++code) {
      if (by_parts(arithmetic_of(lane, code))) outputs += others[code];
    }
    needed[lane] = outputs;
    __syncwarp();
    uint32_t before = 0;
    for (unsigned code = 0; code < kCodes; ++code) {
      if (needed[code] > outputs || (needed[code] == outputs && code < lane)) before += own[code];
    }
    // If all lines have as many, they stay where they are.
    const bool has = own[lane] > 0;
    const bool differ = __reduce_max_sync(~0u, has ? outputs : 0) > __reduce_min_sync(~0u, has ? outputs : ~0u);
    place[lane] = differ ? before : 0;
    if (lane == 0) *o.reordered = ordered = differ;
  }
  __syncthreads();
  for (uint32_t begin = 0; begin < lines; begin += kOrderThreads) {
    const uint32_t line = begin + threadIdx.x;
    const bool there = line < lines;
    const unsigned code = there && ordered ? code_of(o.line_facts[line]) : 0;
    const uint32_t alike = alike_of(there, code);
    of_warp[warp][lane] = 0;
    __syncwarp();
    if (there && lane == __ffs(alike) - 1) of_warp[warp][code] = __popc(alike);
    __syncthreads();
    if (warp == 0) {
      uint32_t next = place[lane];
      for (int w = 0; w < kWarps; ++w) {
        const uint32_t more = of_warp[w][lane];
        of_warp[w][lane] = next;
        next += more;
      }
      place[lane] = next;
    }
    __syncthreads();
    if (there) {
      const uint32_t at = of_warp[warp][code] + __popc(alike & ((1u << lane) - 1));
      o.place_of[line] = at;
      o.line_at[at] = line;
    }
    __syncwarp();
  }
}

// After the product by halves has said which lines have outputs by parts: of most data, none. Few such outputs need no parts in memory.
static __global__ void __launch_bounds__(kSplitThreads)
    split_into_parts(TREDUCE_GRID_CONSTANT IntoParts a, TREDUCE_GRID_CONSTANT IntoParts b,
                     TREDUCE_GRID_CONSTANT split_few::Product few) {
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  const uint32_t wanted_a = a.wanted(), wanted_b = b.wanted();
  if (wanted_a == 0) return;
  if (few.are_listed()) {
    if (a.first_segment == 0) split_few::split_listed(few, a, b);
    return;
  }
  split_both(a, b, wanted_a, wanted_b);
}

}  // namespace treduce::matmul::split
