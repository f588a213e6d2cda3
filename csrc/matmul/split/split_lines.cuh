// The kernels that split an operand of few lines before it is multiplied.
#pragma once

#include "../../primitives/cluster.cuh"
#include "../../primitives/ptx/acquire.cuh"
#include "../../primitives/ptx/launch.cuh"
#include "split_operands.cuh"

namespace treduce::matmul::split {

// Of few lines, for a launch that does not wait until this one has ended: how many blocks have split theirs into halves. Block 0 sets
// the counter to zero and then the word behind it to kBegun; no block counts itself before.
constexpr uint32_t kBegun = 0x7d3c51a9;  // unlikely to be there by chance
TREDUCE_DEVICE uint32_t* blocks_done(const Operand16& few) { return few.codes + kWordOfDone - kWordOfCodes; }
TREDUCE_DEVICE uint32_t* begun(const Operand16& few) { return few.codes + kWordOfBegun - kWordOfCodes; }

// Who takes tasks as they come counts them here, and others in the next words.
TREDUCE_DEVICE uint32_t* next_task(const Operand16& few) { return few.codes + kWordOfNext - kWordOfCodes; }

// Marks a line of `many` that is left, where lines are marked. done: whether none of the warp's is. Who calls: all lanes of a warp.
TREDUCE_DEVICE void mark_left(const Operand16& many, int64_t line, bool done, bool left) {
  // The vote first, though `left` implies it: all lanes skip this together.
  if (!done && left && many.runs != nullptr) {
    const uint32_t place = static_cast<uint32_t>(line);
    atomicOr(many.runs + place / 32, 1u << place % 32);
  }
}
// What a lane has found out about a line of `many`: whether all its products with those of `few` are done, and whether parts hold all
// numbers that they meet, and no pairs are to be checked. If not, the next launches have something to do. Who calls: all lanes of a warp.
TREDUCE_DEVICE void tell_left(const Operand16& many, const Operand16& few, int64_t matrix_of_few, int64_t line,
                              bool done, bool held) {
  const bool left = !done;
  done = __all_sync(~0u, done);
  held = __all_sync(~0u, held);
  mark_left(many, line, done, left);
  if (threadIdx.x % 32 != 0) return;
  if (!done) {
    atomicOr(many.codes, ~0u);
    parts_wanted(few)[matrix_of_few] = 1;
  }
  if (!held) atomicOr(few.codes, ~0u);
}
// The same of a lane that has left so many lines, which are counted.
TREDUCE_DEVICE void count_left(const Operand16& many, const Operand16& few, int64_t matrix_of_few, int64_t line,
                               unsigned lines_left, bool held) {
  const unsigned all_left = __reduce_add_sync(~0u, lines_left);
  held = __all_sync(~0u, held);
  mark_left(many, line, all_left == 0, lines_left > 0);
  if (threadIdx.x % 32 != 0) return;
  if (all_left > 0) {
    atomicOr(many.codes, ~0u);
    atomicAdd(parts_wanted(few) + matrix_of_few, all_left);
  }
  if (!held) atomicOr(few.codes, ~0u);
}

// Who calls: one thread of a block.
TREDUCE_DEVICE void count_block(const Operand16& few) {
  while (ptx::load_acquire(begun(few)) != kBegun) __nanosleep(32);
  __threadfence();
  atomicAdd(blocks_done(few), 1);
}
// Who calls: one thread of each warp; `first` is one of them.
TREDUCE_DEVICE void wait_for_blocks(const Operand16& few, uint32_t blocks, bool first) {
  while (ptx::load_acquire(blocks_done(few)) != blocks) __nanosleep(32);
  if (first) *begun(few) = 0;  // so that a graph may be replayed
}

// Splits few lines into halves and into parts: a cluster of `blocks` has kTogether neighbours, so that all of them is known before their
// parts are taken. Of lines that are contiguous it has several: a load then brings their numbers at a step of k side by side. The unit is
// that of the parts where no pairs suit the line, else that of the halves. Clusters beyond the lines help to begin `other`.
// late: parts of all other lines are left to split_late_parts. counted: blocks count themselves, see blocks_done. words: of `other`.runs, to
// be zeroed.
template <int kTogether>
__global__ void __launch_bounds__(kLineThreads)
    split_lines(TREDUCE_GRID_CONSTANT IntoHalves halves, TREDUCE_GRID_CONSTANT IntoParts parts,
                TREDUCE_GRID_CONSTANT Operand16 other, int blocks, bool late, bool counted, int words) {
  constexpr int kWarps = kLineThreads / 32;
  static_assert(kTogether == 1 || kTogether == 32 / kLanes);
  SHARED_TABLE(Facts, of_warp, kTogether, kWarps);
  SHARED_ARRAY(Facts, of_block, kTogether);
  const Operand16& to = halves.to;
  ptx::wait_for_launch_before();
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      *to.codes = 0;
      for (int i = 0; i < kMostTakers; ++i) next_task(to)[i] = 0;
      *blocks_done(to) = 0;
      __threadfence();
      *begun(to) = counted ? kBegun : 0;
    }
    __syncthreads();
  }
  ptx::allow_launch_after();  // blocks_done is read by the next launch while this one runs
  begin_facts(other, kNoFacts);
  if (blockIdx.x == 0 && other.runs != nullptr) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) other.runs[i] = 0;
  }
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < to.shape.matrices;
       i += int64_t(gridDim.x) * blockDim.x) {
    parts_wanted(to)[i] = 0;
  }
  // All but parts is written.
  const auto tell = [&] {
    if (!counted) return;
    __syncthreads();
    if (threadIdx.x == 0) count_block(to);
  };
  const uint32_t lines = static_cast<uint32_t>(to.shape.lines), segments = static_cast<uint32_t>(to.shape.segments());
  const uint32_t clusters = (lines + kTogether - 1) / kTogether;  // of a matrix
  const uint32_t index = blockIdx.x / blocks, rank = blockIdx.x - index * blocks;
  const uint32_t team = (rank * blockDim.x + threadIdx.x) / kLanes, step = blocks * blockDim.x / (kLanes * kTogether);
  const uint32_t own = team / kTogether;  // segment
  const uint32_t of_together = threadIdx.x / kLanes % kTogether;
  const uint32_t matrix = index / clusters, line = (index - matrix * clusters) * kTogether + of_together;
  if (matrix >= to.shape.matrices) {
    tell();
    return;
  }
  const bool exists = line < lines;
  const float* const from = halves.from.line(matrix, exists ? line : 0);

  float x[kNumbers];
  Facts facts = kNoFacts;
  // A warp without segments does nothing: most lines are shorter than a block.
  for (uint32_t segment = own; segment - threadIdx.x % 32 / kLanes / kTogether < segments; segment += step) {
    const bool there = exists && segment < segments;
    const Sampled sampled = halves.sample(there, from, segment);
    read_numbers(halves, from, there, segment, x);
    const Facts more = halves.write(x, there, matrix, line, segment, from, sampled);
    if (there) facts = join(facts, more);
  }
  if constexpr (kTogether == 1) {
#pragma unroll
    for (int d = 16; d >= kLanes; d /= 2) facts = join(facts, __shfl_xor_sync(~0u, facts, d));
  }
  if (threadIdx.x % kLanes == 0) of_warp[of_together][threadIdx.x / 32] = facts;
  __syncthreads();
  if constexpr (kTogether == 1) {
    facts = threadIdx.x % kWarps < blockDim.x / 32 ? of_warp[0][threadIdx.x % kWarps] : kNoFacts;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) facts = join(facts, __shfl_xor_sync(~0u, facts, d));
  } else {
    for (int i = 0; i < blockDim.x / 32; ++i) facts = join(facts, of_warp[of_together][i]);
  }
  if (blocks > 1) {
    if (threadIdx.x < kTogether * kLanes) of_block[of_together] = facts;
    cluster::sync();
    for (int i = 0; i < blocks; ++i) facts = join(facts, *cluster::shared_of(of_block + of_together, i));
    cluster::arrive();
  }
  if (rank == 0 && threadIdx.x < kTogether * kLanes && exists) {
    to.line_facts[matrix * to.shape.lines_padded + line] = facts;
  }

  if (never_pairs(facts) && exists) {
    for (uint32_t segment = own; segment < segments; segment += step) {
      if (threadIdx.x % kLanes == 0) parts.write_unit(matrix, line, segment, -parts_exponent(facts));
    }
  }
  tell();

  const int exponent = parts_exponent(facts);
  const bool leave = !exists || (late && !never_pairs(facts));
  for (uint32_t segment = leave ? segments : own; segment < segments; segment += step) {
    if (segments > step) read_numbers(parts, from, true, segment, x);
    parts.write_parts(x, matrix, line, segment, exponent);
  }
  if (blocks > 1) cluster::wait();  // others may still read its facts
}

// Takes the parts that split_lines left of matrices that meet a line which needs them: of most data, none.
static __global__ void __launch_bounds__(kSplitThreads, 8)
    split_late_parts(TREDUCE_GRID_CONSTANT IntoLateParts lines, const uint32_t* codes_of_other) {
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  if (*codes_of_other == 0) return;
  // A lane looks at a block's matrices: of most data hardly any is wanted.
  for (int64_t first = blockIdx.x; first < lines.blocks; first += int64_t(gridDim.x) * 32) {
    const int64_t mine = first + int64_t(threadIdx.x % 32) * gridDim.x;
    bool wanted = false;
    if (mine < lines.blocks) {
      const auto some = matrices_of(lines, static_cast<uint32_t>(mine));
      for (uint32_t i = some.first; i <= some.last; ++i) wanted |= parts_wanted(lines.to)[i] > lines.spared;
    }
    for (uint32_t some = __ballot_sync(~0u, wanted); some != 0; some &= some - 1) {
      split_block(lines, static_cast<uint32_t>(first + int64_t(__ffs(some) - 1) * gridDim.x), ~0u, true);
    }
  }
}

}  // namespace treduce::matmul::split
