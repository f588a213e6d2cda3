// What split_one, split_warps and split_single leave of a tile, 16 lines of W by up to eight of X: a block computes it by parts, for which each
// warp splits lines of W in registers, and on the plain cores.
#pragma once

#include "../../common/divider.h"
#include "../hopper.cuh"
#include "split_launches.h"
#include "split_pieces.cuh"
#include "split_source.cuh"

namespace treduce::matmul::split_left {

using split::kNumbers;

struct Work {
  int64_t n, matrix_outputs, w_lines;
  Divider w_tiles, inner_batches;
  int x_lines, steps, groups, tiles;
  int of_pairs;               // certain_of_pairs
  bool vectors_w, vectors_x;  // four steps of k are one aligned load
  split::Matrices w, x;
  split::Source source_w, source_x;
  const uint16_t* parts_x;      // [part][matrix][line][step]; null: X is split here
  int64_t parts_step, depth_x;  // from part to part, and from line to line
};

inline Work work_of(const Problem& p, const Operand& w, const Operand& x, const split::Operand16& split_x) {
  Work work;
  work.n = p.n;
  work.matrix_outputs = p.m * p.n;
  work.w_lines = w.lines;
  const int64_t w_tiles = ceil_div(w.lines, int64_t(kLines));
  work.w_tiles = Divider(w_tiles);
  work.inner_batches = Divider(inner_batches_of(p));
  work.x_lines = static_cast<int>(x.lines);
  work.steps = static_cast<int>(ceil_div(p.k, int64_t(kSegment)));
  work.groups = static_cast<int>(groups_of(p.k));
  work.tiles = static_cast<int>(w_tiles * p.batches);
  work.of_pairs = certain_of_pairs(p.k);
  work.vectors_w = splitting_of(w, halves_of(w)).vectors;
  work.vectors_x = splitting_of(x, halves_of(x)).vectors;
  work.w = split::matrices_of(w);
  work.x = split::matrices_of(x);
  work.source_w = split::source_of(w);
  work.source_x = split::source_of(x);
  work.parts_x = split_x.parts;
  work.parts_step = split_x.shape.values;
  work.depth_x = split_x.shape.depth;
  return work;
}

// Lines of W from `first` on, of one product of the batch, by all lines of X.
struct Tile {
  int first, batch;
  uint32_t matrix_w, matrix_x;

  TREDUCE_DEVICE Tile(const Work& work, int index) {
    batch = work.w_tiles.quotient_of_small(index);
    first = (index - batch * static_cast<int>(work.w_tiles.divisor)) * kLines;
    const int outer = work.inner_batches.quotient_of_small(batch),
              inner = batch - outer * static_cast<int>(work.inner_batches.divisor);
    matrix_w = static_cast<uint32_t>(work.w.of(outer, inner));
    matrix_x = static_cast<uint32_t>(work.x.of(outer, inner));
  }
};

// An output of a tile: of line `line` of W, and `row` of X.
template <bool kOfA>
struct Output {
  int line, row;
  TREDUCE_DEVICE explicit Output(int index) : line(index % kLines), row(index / kLines) {}
  TREDUCE_DEVICE int64_t at(const Work& work, const Tile& tile) const {
    const int64_t of_w = tile.first + line, of_x = row;
    return tile.batch * work.matrix_outputs + (kOfA ? of_w * work.n + of_x : of_x * work.n + of_w);
  }
  TREDUCE_DEVICE float with_bias(float sum, const float* bias, const Tile& tile) const {
    return bias == nullptr ? sum : canonical(sum + __ldg(bias + (kOfA ? row : tile.first + line)));
  }
};

// Places of numbers that are not finite, along a line.
struct List {
  static constexpr int kMost = 256;
  int count, places[kMost];
};

// What a block knows of a tile of which something is left. In the order of its outputs: those to be computed on the plain cores, a bit each,
// of finite lines and of others; and what products that are not finite add up to.
struct Shared {
  Facts known[kLines + kRows];  // of lines of W, then of X, their codes above
  uint32_t finite[kLines * kRows / 32], not_finite[kLines * kRows / 32];
  unsigned found[kLines * kRows];
  List list;
};

// A lane's numbers of a segment; zeros past the end of k. kVectors: four steps of k are one aligned load.
template <bool kVectors>
TREDUCE_DEVICE void read(const split::Source& source, const float* line, int step, float (&to)[kNumbers]) {
  const int k = step * kSegment + threadIdx.x % split::kLanes * 4, left = static_cast<int>(source.depth) - k;
  if constexpr (kVectors) {
    const float4* const from = reinterpret_cast<const float4*>(line + k);
#pragma unroll
    for (int i = 0; i < kNumbers; i += 4) {
      const float4 four = i * 4 < left ? __ldg(from + i) : float4{};
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  } else {
    const float* const from = line + k * source.depth_stride;
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      const int further = i / 4 * 16 + i % 4;
      to[i] = further < left ? __ldg(from + further * source.depth_stride) : 0.0f;
    }
  }
}
TREDUCE_DEVICE void read(const split::Source& source, bool vectors, const float* line, int step,
                         float (&to)[kNumbers]) {
  vectors ? read<true>(source, line, step, to) : read<false>(source, line, step, to);
}

// The sum of this thread's output of a tile by parts, if it has one. kSplitsX: X has not been split before. `sums`: of segments of some
// groups, [segment][output]. Who calls: all threads of the block. Synchronises within.
template <bool kOfA, int kThreads, bool kSplitsX>
TREDUCE_DEVICE float sum_by_parts(const Work& work, const Tile& tile, const Shared& shared, float* sums) {
  constexpr int kWarps = kThreads / 32, kQuad = split::kLanes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / kQuad;
  const int outputs = kLines * work.x_lines;
  const Output<kOfA> own(threadIdx.x);
  const bool has_own = static_cast<int>(threadIdx.x) < outputs;
  const float* lines[2];
  float factors[2];
#pragma unroll
  for (int l = 0; l < 2; ++l) {
    const int line = quad + l * 8;
    lines[l] =
        work.source_w.line(tile.matrix_w, static_cast<uint32_t>(min(int64_t(tile.first + line), work.w_lines - 1)));
    factors[l] = split::power_of_two(parts_exponent(shared.known[line]));
  }
  // Of this lane's line of X. There may be fewer than eight: then the last again.
  const int line_x = min(quad, work.x_lines - 1);
  const uint16_t* const parts_x =
      work.parts_x + (int64_t(tile.matrix_x) * work.x_lines + line_x) * work.depth_x + lane % kQuad * 4;
  float total = 0;
#pragma unroll 1
  for (int first_group = 0; first_group < work.groups; first_group += kGroupsAtOnce) {
    const int begin = first_group * kGroupSegments, end = min(work.steps, begin + kGroupsAtOnce * kGroupSegments);
    __syncthreads();  // sums of the groups before have been added
#pragma unroll 1
    for (int step = begin + warp; step < end; step += kWarps) {
      split::Pieces<kParts> pieces;
      split::PiecesX<kParts> pieces_x;
      float numbers[2][kNumbers];
#pragma unroll
      for (int l = 0; l < 2; ++l) read(work.source_w, work.vectors_w, lines[l], step, numbers[l]);
      if constexpr (kSplitsX) {
        float numbers_x[kNumbers];
        read(work.source_x, work.vectors_x, work.source_x.line(tile.matrix_x, line_x), step, numbers_x);
        split::split_pieces(numbers_x, parts_exponent(shared.known[kLines + line_x]), pieces_x);
      } else {
        split::read_words<kParts>(parts_x + int64_t(step) * kSegment, work.parts_step, pieces_x);
      }
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        split::split_pieces(numbers[l], factors[l], l, pieces);
      }
      float high[4] = {}, rest[4] = {};
      split::multiply_segment<bfloat16, kParts, kOfA>(high, rest, pieces, pieces_x);
      float* const to = sums + (step - begin) * outputs + quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = 0;
        split::add_parts(sum, high[i], rest[i]);
        const int row = lane % kQuad * 2 + i % 2;
        if (row < work.x_lines) to[row * kLines + i / 2 * 8] = sum;
      }
    }
    __syncthreads();
    if (!has_own) continue;
    const float unit_w = split::power_of_two(-parts_exponent(shared.known[own.line])),
                unit_x = split::power_of_two(-parts_exponent(shared.known[kLines + own.row]));
#pragma unroll 1
    for (int group = begin; group < end; group += kGroupSegments) {
      const int count = min(end - group, kGroupSegments);
      const float* const from = sums + (group - begin) * outputs + threadIdx.x;
      float sum = 0;
#pragma unroll 8
      for (int i = 0; i < count; ++i) sum += from[i * outputs];
      sum = split::from_units(sum, unit_w, unit_x);
      total = group == 0 ? sum : total + sum;
    }
  }
  return total;
}

// Finds what products that are not finite add up to, of all outputs of a tile. Who calls: all threads of the block. Synchronises within.
template <int kThreads>
TREDUCE_DEVICE void find_not_finite(const Work& work, const Tile& tile, Shared& shared) {
  List& list = shared.list;
  const auto line_at = [&](int line) {
    return line < kLines ? work.source_w.line(tile.matrix_w, tile.first + line)
                         : work.source_x.line(tile.matrix_x, line - kLines);
  };
  const int depth = static_cast<int>(work.source_w.depth);
#pragma unroll 1
  for (int line = 0; line < kLines + work.x_lines; ++line) {
    if (all_finite(shared.known[line])) continue;  // one that does not exist is
    const bool of_w = line < kLines;
    const float* const mine = line_at(line);
    const int64_t my_step = (of_w ? work.source_w : work.source_x).depth_stride,
                  step = (of_w ? work.source_x : work.source_w).depth_stride;
    __syncthreads();  // the line before has been used
    if (threadIdx.x == 0) list.count = 0;
    __syncthreads();
#pragma unroll 4
    for (int k = threadIdx.x; k < depth; k += kThreads) {
      if (split::is_finite(__ldg(mine + k * my_step))) continue;
      const int place = atomicAdd(&list.count, 1);
      if (place < List::kMost) list.places[place] = k;
    }
    __syncthreads();
    // A thread has a share of the places, with one of the other lines.
    const bool listed = list.count <= List::kMost;
    const int count = listed ? list.count : depth, other = threadIdx.x % kLines;
    const bool exists = of_w ? other < work.x_lines : tile.first + other < work.w_lines;
    if (!exists) continue;
    const float* const others = line_at(of_w ? kLines + other : other);
    unsigned found = 0;
#pragma unroll 1
    for (int i = threadIdx.x / kLines; i < count; i += kThreads / kLines) {
      const int k = listed ? list.places[i] : i;
      const float number = __ldg(mine + k * my_step);
      if (!split::is_finite(number)) found |= split::not_finite(number * __ldg(others + k * step));
    }
    if (found != 0) atomicOr(shared.found + (of_w ? other * kLines + line : (line - kLines) * kLines + other), found);
  }
  __syncthreads();
}

// Computes what is left of a tile: what is known of its lines is in shared memory, and other outputs are in C. Who calls: all threads of the
// block, which synchronise before and within.
template <bool kOfA, int kThreads, bool kSplitsX>
TREDUCE_DEVICE void compute(const Work& work, const Tile& tile, Shared& shared, float* sums, float* c,
                            const float* bias) {
  constexpr int kWarps = kThreads / 32;
  const int thread = threadIdx.x, warp = thread / 32;
  if (thread < kLines * kRows) shared.found[thread] = 0;
  const Output<kOfA> own(thread);
  const bool exists = thread < kLines * work.x_lines && tile.first + own.line < work.w_lines;
  const Facts of_w = exists ? shared.known[own.line] : 0, of_x = exists ? shared.known[kLines + own.row] : 0;
  const Arithmetic way = exists ? arithmetic_of(code_above(of_w), code_above(of_x)) : Arithmetic::pairs;
  float* const at = c + (exists ? own.at(work, tile) : 0);
  const bool left = by_parts(way) && !((of_w & kDone) != 0 && never_pairs(of_x));
  if (__syncthreads_or(left) != 0) {
    const float sum = sum_by_parts<kOfA, kThreads, kSplitsX>(work, tile, shared, sums);
    if (left) *at = own.with_bias(sum, bias, tile);
  }
  bool plain = way == Arithmetic::plain;
  if (is_checked(way)) {
    plain = !is_certain(__float_as_uint(*at), of_w, of_x, way == Arithmetic::checked_pairs ? work.of_pairs : kCertain);
  }
  const bool finite = all_finite(of_w) && all_finite(of_x);
  if (thread < kLines * kRows) {
    const uint32_t votes[2] = {__ballot_sync(~0u, plain && finite), __ballot_sync(~0u, plain && !finite)};
    if (thread % 32 == 0) shared.finite[warp] = votes[0], shared.not_finite[warp] = votes[1];
  }
  if (__syncthreads_or(plain) == 0) return;
  // Of finite lines a warp an output.
  int turn = 0;
#pragma unroll 1
  for (int word = 0; word < kLines * kRows / 32; ++word) {
#pragma unroll 1
    for (uint32_t some = shared.finite[word]; some != 0; some &= some - 1) {
      if (turn++ % kWarps != warp) continue;
      const Output<kOfA> output(word * 32 + __ffs(some) - 1);
      const float sum = split::plain_sum(work.source_w.line(tile.matrix_w, tile.first + output.line),
                                         work.source_w.depth_stride, work.source_x.line(tile.matrix_x, output.row),
                                         work.source_x.depth_stride, work.source_w.depth);
      if (thread % 32 == 0) c[output.at(work, tile)] = canonical(output.with_bias(sum, bias, tile));
    }
  }
  if (__syncthreads_or(plain && !finite) == 0) return;
  find_not_finite<kThreads>(work, tile, shared);
  if (plain && !finite) *at = canonical(own.with_bias(split::sum_of(shared.found[thread]), bias, tile));
}

}  // namespace treduce::matmul::split_left
