// The kernel that ends a small product by halves: it computes all outputs that pairs do not suit, by parts and on the plain cores, in one
// launch. A block splits the lines of its tile into parts as it reads them, into shared memory: each line is split again by every block
// that needs it, but of most data nothing is left, and then each launch is time that is lost.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "../primitives/shared.cuh"
#include "split_finish.cuh"
#include "split_group.cuh"
#include "split_source.cuh"

namespace treduce::matmul::split_rest {

using split::kFinishTile;
using split::kLanes;
using split::kNumbers;
using split::LineFacts;
using split::Side;

using Tile = split::LastTile<kThreads>;
using Tiles = treduce::matmul::Tiles<kFinishTile, kFinishTile>;

// Two of the warp groups multiply kColumns columns each.
constexpr int kGroups = 2, kColumns = kFinishTile / kGroups, kOutputs = kColumns / 2;

// Stores the parts of a lane's numbers in the swizzled row of a line, and in those of the other parts.
TREDUCE_DEVICE void store_parts(char* row, int line, const split::PiecesX<kParts>& parts) {
  const int q = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kNumbers / 2; i += 2) {
    // Four neighbours of every 16 steps of k.
    char* const at = row + ((i + q / 2) ^ line % 8) * 16 + q % 2 * 8;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      *reinterpret_cast<uint2*>(at + part * kTileBytes) = {parts[part][i], parts[part][i + 1]};
    }
  }
}

// Computes the outputs by parts of a tile, whose lines are known. matrix_a, matrix_b: first lines of the operands; c: of the matrix.
// Parts of a segment lie in shared memory as [operand][part][swizzled row of a line]: while one is multiplied the next one is split.
// Who calls: every thread of the block. Synchronises within.
TREDUCE_DEVICE void compute_by_parts(const Side& a, const Side& b, const float* matrix_a, const float* matrix_b,
                                     float* c, const float* bias, const Problem& p, int first_row, int first_column,
                                     const Tile& tile) {
  using Lines = hopper::Tile<bfloat16, kFinishTile, true>;
  static_assert(Lines::kBytes == kTileBytes);
  char* const stages = hopper::aligned_tiles(dynamic_shared<char>());
  // A shuffle tells the compiler what is the same in all lanes: descriptors are then computed in uniform registers.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32, group = warp / 4;
  const int steps = static_cast<int>(ceil_div(p.k, int64_t(kSegment)));
  // A warp splits a set of eight lines.
  const bool of_b = warp * kOctet >= kFinishTile;
  const Side& side = of_b ? b : a;
  const int line = warp * kOctet % kFinishTile + split::line_in_set(lane / kLanes);
  const int place = min((of_b ? first_column : first_row) + line, side.lines - 1);  // past the last line the last one
  const split::Line<> from(side, of_b ? matrix_b : matrix_a, place);
  const int exponent = parts_exponent(tile.facts[(of_b ? kFinishTile : 0) + line]);
  char* const row = stages + (of_b ? kParts * kTileBytes : 0) + line * hopper::kRowBytes;
  float next[kNumbers];
  from.read(side, 0, next);
  const auto split_next = [&](int segment) {
    split::PiecesX<kParts> parts;
    split::split_pieces(next, exponent, parts);
    store_parts(row + segment % 2 * kStageBytes, line, parts);
    if (segment + 1 < steps) from.read(side, segment + 1, next);
    ptx::fence_async_proxy();
  };
  split_next(0);
  const bool multiplies = group < kGroups;
  float acc[kOutputs] = {}, high[kOutputs], rest[kOutputs];
#pragma unroll 1
  for (int segment = 0; segment < steps; ++segment) {
    __syncthreads();  // it has been split, and the one before multiplied
    if (multiplies) {
      const char* const stage = stages + segment % 2 * kStageBytes;
      split::start_products<kParts>(
          high, rest, true, [&](float (&to)[kOutputs], int of_a, int of_b, int i, int accumulate) {
            ptx::Wgmma<bfloat16, kColumns, false, false>::multiply(
                to, Lines::lone_descriptor(stage + of_a * kTileBytes, 0, i),
                Lines::lone_descriptor(stage + (kParts + of_b) * kTileBytes, group * kColumns, i), accumulate);
          });
    }
    if (segment + 1 < steps) split_next(segment + 1);
    if (multiplies) {
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(high);
      ptx::wgmma_touch(rest);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) split::add_parts(acc[i], high[i], rest[i]);
    }
  }
  if (!multiplies) return;
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int down = warp % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
    const int across = group * kColumns + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int64_t row = first_row + down, column = first_column + across;
    if (row >= p.m || column >= p.n) continue;
    const int of_a = down, of_b = kFinishTile + across;  // its lines of the tile
    if (!by_parts(arithmetic_of(tile.code(of_a), tile.code(of_b)))) continue;
    const float sum = split::from_units(acc[i], -parts_exponent(tile.facts[of_a]), -parts_exponent(tile.facts[of_b]));
    c[row * p.n + column] = bias == nullptr ? sum : canonical(sum + __ldg(bias + column));
  }
}

// codes_a, codes_b: which codes lines have in outputs that are not by pairs. Of k of one group.
static __global__ void __launch_bounds__(kThreads)
    kernel(const float* a, const float* b, float* c, const float* bias, TREDUCE_GRID_CONSTANT Problem p, Tiles tiles,
           TREDUCE_GRID_CONSTANT Side side_a, TREDUCE_GRID_CONSTANT Side side_b, LineFacts lines_a, LineFacts lines_b,
           const uint32_t* codes_a, const uint32_t* codes_b, int inner_batches) {
#ifdef TREDUCE_SM90A
  __shared__ Tile tile;
  ptx::wait_for_launch_before();
  const auto others = [](Arithmetic x) { return !by_pairs(x); };
  if (!split::any_output(*codes_a, *codes_b, others)) return;
  const auto at = tiles.place(blockIdx.x);
  const int index = static_cast<int>(at.batch);
  const int2 batch{index / inner_batches, index % inner_batches};
  tile.read(lines_a, lines_b, p, at.row, at.column, batch);
  __syncthreads();
  // Each warp finds the codes of all lines, so all agree.
  const auto [rows, columns] = split::codes_of_tile(
      p, at.row, at.column, [&](bool of_a, int i) { return tile.code(of_a ? i : kFinishTile + i); });
  float* const matrix = c + at.batch * p.m * p.n;
  if (split::any_output(rows, columns, &by_parts)) {
    compute_by_parts(side_a, side_b, side_a.source.line(side_a.matrices.of(batch.x, batch.y), 0),
                     side_b.source.line(side_b.matrices.of(batch.x, batch.y), 0), matrix, bias, p,
                     static_cast<int>(at.row), static_cast<int>(at.column), tile);
    __syncthreads();
  }
  if (split::any_output(rows, columns, &at_last)) tile.compute(a, b, matrix, bias, p, at.row, at.column, at.batch);
#endif
}

inline cudaError_t run(const Call& call, const Operand& a, const Operand& b, const split::Operand16& split_a,
                       const split::Operand16& split_b) {
  const Problem& p = call.problem;
  return launch(&kernel, call.step(-1), static_cast<const float*>(call.a), static_cast<const float*>(call.b),
                static_cast<float*>(call.c), static_cast<const float*>(call.bias), p, Tiles(p), split::side_of(a),
                split::side_of(b), split::lines_of(a, split_a), split::lines_of(b, split_b),
                static_cast<const uint32_t*>(split_a.codes), static_cast<const uint32_t*>(split_b.codes),
                static_cast<int>(inner_batches_of(p)));
}

}  // namespace treduce::matmul::split_rest
