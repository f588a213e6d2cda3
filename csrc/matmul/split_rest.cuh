// What ends a small product by halves, in the launch that multiplied them: a block computes those outputs of its tiles that pairs do not
// suit, by parts and on the plain cores. It splits the lines of a tile into parts as it reads them, into shared memory: each line is split
// again by every block that needs it. Of most data nothing is left, and then a launch would be time that is lost.
#pragma once

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

// The last threads of a block, two warp groups: those who multiplied, and where these are one the other.
struct Team {
  static constexpr int kThreads = split_rest::kThreads, kBarrier = 5;

  TREDUCE_DEVICE static int thread() { return static_cast<int>(threadIdx.x - (blockDim.x - kThreads)); }
  TREDUCE_DEVICE static void sync() { hopper::named_barrier<kThreads>(kBarrier); }
  TREDUCE_DEVICE static bool any(bool x) { return hopper::named_any<kThreads>(kBarrier, x); }
  TREDUCE_DEVICE static bool all(bool x) { return !any(!x); }
};

using Tile = split::LastTile<Team>;

// The warp groups multiply kColumns columns each.
constexpr int kColumns = kFinishTile / (kThreads / hopper::kWarpGroup), kOutputs = kColumns / 2;

// In shared memory: parts of two segments, and what is known of the tile.
constexpr int kSharedBytes = 2 * kStageBytes + static_cast<int>(sizeof(Tile));

// The product, where its launch computes all.
struct Work {
  bool wanted;
  const float *a, *b, *bias;
  float* c;
  Problem problem;
  Side sides[2];  // A, B
};

inline Work work_of(const Call& call, const Operand& a, const Operand& b) {
  return {call.prepared.rest_in_one,
          static_cast<const float*>(call.a),
          static_cast<const float*>(call.b),
          static_cast<const float*>(call.bias),
          static_cast<float*>(call.c),
          call.problem,
          {split::side_of(a), split::side_of(b)}};
}

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

// Computes the outputs by parts of a tile of a matrix, whose lines are known. Parts of a segment lie in shared memory, in `stages`, as
// [operand][part][swizzled row of a line]: while one is multiplied the next one is split.
// Who calls: every thread of the team. Synchronises within.
TREDUCE_DEVICE void compute_by_parts(const Work& work, const Tile& tile, char* stages, int first_row, int first_column,
                                     int2 batch, int64_t index) {
  using Lines = hopper::Tile<bfloat16, kFinishTile, true>;
  static_assert(Lines::kBytes == kTileBytes && kThreads / 32 * kOctet == kFinishTile);
  const Problem& p = work.problem;
  // A shuffle tells the compiler what is the same in all lanes: descriptors are then computed in uniform registers.
  const int warp = __shfl_sync(~0u, Team::thread() / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
  const int steps = static_cast<int>(ceil_div(p.k, int64_t(kSegment)));
  // A warp splits eight lines of each operand; past the last line the last one.
  const int line = warp * kOctet + split::line_in_set(lane / kLanes);
  const auto numbers_of = [&](const Side& side, int first) {
    return split::Line<>(side, side.source.line(side.matrices.of(batch.x, batch.y), 0),
                         min(first + line, side.lines - 1));
  };
  const split::Line<> from[2] = {numbers_of(work.sides[0], first_row), numbers_of(work.sides[1], first_column)};
  const int exponents[2] = {parts_exponent(tile.facts[line]), parts_exponent(tile.facts[kFinishTile + line])};
  char* const row = stages + line * hopper::kRowBytes;
  float next[2][kNumbers];
  const auto read = [&](int segment) {
#pragma unroll
    for (int i = 0; i < 2; ++i) from[i].read(work.sides[i], segment, next[i]);
  };
  const auto split_next = [&](int segment) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      split::PiecesX<kParts> parts;
      split::split_pieces(next[i], exponents[i], parts);
      store_parts(row + segment % 2 * kStageBytes + i * kParts * kTileBytes, line, parts);
    }
    if (segment + 1 < steps) read(segment + 1);
    ptx::fence_async_proxy();
  };
  read(0);
  split_next(0);
  float acc[kOutputs] = {}, high[kOutputs], rest[kOutputs];
#pragma unroll 1
  for (int segment = 0; segment < steps; ++segment) {
    Team::sync();  // it has been split, and the one before multiplied
    const char* const stage = stages + segment % 2 * kStageBytes;
    split::start_products<kParts>(
        high, rest, true, [&](float (&to)[kOutputs], int of_a, int of_b, int i, int accumulate) {
          ptx::Wgmma<bfloat16, kColumns, false, false>::multiply(
              to, Lines::lone_descriptor(stage + of_a * kTileBytes, 0, i),
              Lines::lone_descriptor(stage + (kParts + of_b) * kTileBytes, group * kColumns, i), accumulate);
        });
    if (segment + 1 < steps) split_next(segment + 1);
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(high);
    ptx::wgmma_touch(rest);
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) split::add_parts(acc[i], high[i], rest[i]);
  }
  float* const matrix = work.c + index * p.m * p.n;
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int down = warp % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
    const int across = group * kColumns + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (down >= tile.rows || across >= tile.columns) continue;
    const int of_a = down, of_b = kFinishTile + across;  // its lines of the tile
    if (!by_parts(arithmetic_of(tile.code(of_a), tile.code(of_b)))) continue;
    const float sum = split::from_units(acc[i], -parts_exponent(tile.facts[of_a]), -parts_exponent(tile.facts[of_b]));
    const int64_t column = first_column + across;
    matrix[(first_row + down) * p.n + column] = work.bias == nullptr ? sum : canonical(sum + __ldg(work.bias + column));
  }
}

// Computes what pairs leave of a tile of the matrix `at`, in tiles of 64 x 64. `shared`: aligned as tiles are.
// Who calls: every thread of the team, where all that others wrote is seen. Synchronises within.
TREDUCE_DEVICE void compute(const Work& work, const LineFacts& lines_a, const LineFacts& lines_b,
                            const hopper::Grid::Place& at, int end_row, int end_column, char* shared) {
  Tile& tile = *reinterpret_cast<Tile*>(shared + 2 * kStageBytes);
  const Problem& p = work.problem;
  for (int row = at.row; row < end_row; row += kFinishTile) {
    for (int column = at.column; column < end_column; column += kFinishTile) {
      tile.read(lines_a, lines_b, row, column, end_row, end_column, at.batch);
      Team::sync();
      // Each warp finds the codes of all lines, so all agree.
      const auto [rows, columns] = split::codes_of_tile(
          tile.rows, tile.columns, [&](bool of_a, int i) { return tile.code(of_a ? i : kFinishTile + i); });
      if (split::any_output(rows, columns, &by_parts)) {
        compute_by_parts(work, tile, shared, row, column, at.batch, at.index);
        Team::sync();
      }
      if (split::any_output(rows, columns, &at_last)) {
        tile.compute(work.a, work.b, work.c + at.index * p.m * p.n, work.bias, p, row, column, at.index);
      }
      Team::sync();  // the next tile's facts take the place of these
    }
  }
}

}  // namespace treduce::matmul::split_rest
