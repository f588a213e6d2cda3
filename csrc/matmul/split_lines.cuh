// The kernels that split an operand of few lines before it is multiplied.
#pragma once

#include "../primitives/cluster.cuh"
#include "../primitives/ptx/acquire.cuh"
#include "../primitives/ptx/launch.cuh"
#include "split_operands.cuh"

namespace treduce::matmul::split {

// Of few lines, for a launch that does not wait until this one has ended: how many blocks have split theirs into halves. Block 0 sets
// the counter to zero and then the word behind it to kBegun; no block counts itself before.
constexpr uint32_t kBegun = 0x7d3c51a9;  // unlikely to be there by chance
TREDUCE_DEVICE uint32_t* blocks_done(const Operand16& few) { return few.codes + kWordOfDone - kWordOfCodes; }
TREDUCE_DEVICE uint32_t* begun(const Operand16& few) { return few.codes + kWordOfBegun - kWordOfCodes; }

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

// Splits few lines into halves and into parts: a cluster of `blocks` a line, so that all of it is known before its parts are taken.
// The unit is that of the parts where no pairs suit the line, else that of the halves. Clusters beyond them help to begin `other`.
// late: parts of all other lines are left to split_late_parts. counted: blocks count themselves, see blocks_done.
static __global__ void __launch_bounds__(kLineThreads)
    split_lines(TREDUCE_GRID_CONSTANT IntoHalves halves, TREDUCE_GRID_CONSTANT IntoParts parts,
                TREDUCE_GRID_CONSTANT Operand16 other, int blocks, bool late, bool counted) {
  constexpr int kWarps = kLineThreads / 32;
  __shared__ Facts of_warp[kWarps], of_block;
  const Operand16& to = halves.to;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      *to.codes = 0;
      *blocks_done(to) = 0;
      __threadfence();
      *begun(to) = counted ? kBegun : 0;
    }
    __syncthreads();
  }
  ptx::allow_launch_after();  // blocks_done is read by the next launch while this one runs
  begin_facts(other, kNoFacts);
  // All but parts is written.
  const auto tell = [&] {
    if (!counted) return;
    __syncthreads();
    if (threadIdx.x == 0) count_block(to);
  };
  const uint32_t lines = static_cast<uint32_t>(to.shape.lines), segments = static_cast<uint32_t>(to.shape.segments());
  const uint32_t index = blockIdx.x / blocks, rank = blockIdx.x - index * blocks;
  const uint32_t own = (rank * blockDim.x + threadIdx.x) / kLanes, step = blocks * blockDim.x / kLanes;  // segments
  const uint32_t matrix = index / lines, line = index - matrix * lines;
  if (matrix >= to.shape.matrices) {
    tell();
    return;
  }
  const float* const from = halves.from.line(matrix, line);

  float x[kNumbers];
  Facts facts = kNoFacts;
  // A warp without segments does nothing: most lines are shorter than a block.
  for (uint32_t segment = own; segment - threadIdx.x % 32 / kLanes < segments; segment += step) {
    const bool there = segment < segments;
    read_numbers(halves, from, there, segment, x);
    const Facts more = halves.write(x, there, matrix, line, segment, from);
    if (there) facts = join(facts, more);
  }
#pragma unroll
  for (int d = 16; d >= kLanes; d /= 2) facts = join(facts, __shfl_xor_sync(~0u, facts, d));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = facts;
  __syncthreads();
  facts = threadIdx.x % kWarps < blockDim.x / 32 ? of_warp[threadIdx.x % kWarps] : kNoFacts;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) facts = join(facts, __shfl_xor_sync(~0u, facts, d));
  if (blocks > 1) {
    if (threadIdx.x == 0) of_block = facts;
    cluster::sync();
    for (int i = 0; i < blocks; ++i) facts = join(facts, *cluster::shared_of(&of_block, i));
    cluster::arrive();
  }
  if (rank == 0 && threadIdx.x == 0) to.line_facts[matrix * to.shape.lines_padded + line] = facts;

  if (never_pairs(facts)) {
    for (uint32_t segment = own; segment < segments; segment += step) {
      if (threadIdx.x % kLanes == 0) parts.write_unit(matrix, line, segment, -parts_exponent(facts));
    }
  }
  tell();

  const int exponent = parts_exponent(facts);
  for (uint32_t segment = late && !never_pairs(facts) ? segments : own; segment < segments; segment += step) {
    if (segments > step) read_numbers(parts, from, true, segment, x);
    parts.write_parts(x, matrix, line, segment, exponent);
  }
  if (blocks > 1) cluster::wait();  // others may still read its facts
}

// Takes the parts that split_lines left, if a line of the other operand needs them: of most data, none.
static __global__ void __launch_bounds__(kThreads)
    split_late_parts(TREDUCE_GRID_CONSTANT IntoLateParts lines, const uint32_t* codes_of_other) {
  ptx::allow_launch_after();
  ptx::wait_for_launch_before();
  if (*codes_of_other == 0) return;
  for (int64_t block = blockIdx.x; block < lines.blocks; block += gridDim.x) {
    split_block(lines, static_cast<uint32_t>(block), ~0u);
  }
}

}  // namespace treduce::matmul::split
