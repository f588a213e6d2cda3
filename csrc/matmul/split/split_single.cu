// The kernel of split_direct that split_single.h names. As in split_one, a warp splits segments of 16 lines of W in the registers that it
// multiplies them from; but all of a product is one launch: blocks of a cluster share out the segments of k, and leave their sums, and what is
// known of the lines, in the shared memory of one of them.
#include "split_single.h"

#include "../../primitives/cluster.cuh"
#include "../../primitives/ptx/launch.cuh"
#include "../hopper.cuh"
#include "split_left.cuh"

namespace treduce::matmul::split_single {

using split::kNumbers;
constexpr int kQuad = split::kLanes;  // lanes of a line

struct Work {
  split_left::Work product;
  int each;          // segments of a block
  int cluster_bits;  // of its number of blocks
};

// A block's shared memory. Of all blocks of a cluster the first one's sums and units are used.
struct Block {
  uint4* halves;  // of X, [segment][4 x 16 steps of k][lane of a team]: four halves, and their rests
  float* scales;  // of these
  float* sums;    // of segments of k, [segment][line]
  int* units;     // exponents, [group][line of W; then X]

  TREDUCE_DEVICE explicit Block(const Work& work)
      : halves(dynamic_shared<uint4>()),
        scales(reinterpret_cast<float*>(halves + work.each * 16)),
        sums(scales + work.each),
        units(reinterpret_cast<int*>(sums + work.product.steps * kLines)) {}
  TREDUCE_DEVICE int* unit(int segment, int line) const {
    return units + segment / kGroupSegments * (kLines + 1) + line;
  }
};

// Writes to a variable in the shared memory of the block that adds.
template <class T>
TREDUCE_DEVICE void tell(T* here, T value) {
  *cluster::shared_of(here, 0) = value;
}
// Whether a segment is the last of its group: who has it tells the unit.
TREDUCE_DEVICE bool ends_group(int segment, int steps) {
  return (segment + 1) % kGroupSegments == 0 || segment + 1 == steps;
}

// A lane's numbers of a segment of X, of which a team of four lanes has one, and the first of its group.
template <bool kVectors>
struct Share {
  float numbers[kNumbers];
  split::Sampled first;

  TREDUCE_DEVICE void ask(const split::Source& x, int segment) {
    first = split::first_of_group<kVectors>(x, x.data, segment);
    split_left::read<kVectors>(x, x.data, segment, numbers);
  }
};
// The first segment of X that a warp's teams have, from the block's first on.
TREDUCE_DEVICE int first_of_warp(int begin) { return begin + static_cast<int>(threadIdx.x) / 32 * 8; }

// Splits X's segments of a block. share: of the first that the teams have. Returns what a lane knows of them. Who calls: all lanes of a warp.
template <bool kVectors>
TREDUCE_DEVICE Facts split_x(const Work& work, const Block& block, int begin, int end, Share<kVectors>& share) {
  constexpr int kTeams = kThreads / kQuad;
  const split::Source& x = work.product.source_x;
  const int team = threadIdx.x / kQuad;
  Facts known = kNoFacts;
#pragma unroll 1
  for (int first = first_of_warp(begin); first < end; first += kTeams) {
    const int segment = first + team % 8;
    const bool exists = segment < end;
    if (first != first_of_warp(begin)) share.ask(x, segment);
    const int unit = x.unit(exists, x.data, segment, share.first);
    const int present = static_cast<int>(min(x.depth - int64_t(segment) * kSegment, int64_t(kSegment)));
    uint32_t high[kNumbers / 2], low[kNumbers / 2];
    int exponent;
    unsigned flags;
    const split::Extremes extremes =
        split::split_segment<kNumbers, kQuad>(share.numbers, present, unit, high, low, exponent, flags);
    if (!exists) continue;
    known = join(known, extremes.facts(flags));
    uint4* const halves = block.halves + (segment - begin) * 16 + threadIdx.x % kQuad;
#pragma unroll
    for (int i = 0; i < 4; ++i) halves[i * 4] = {high[i * 2], high[i * 2 + 1], low[i * 2], low[i * 2 + 1]};
    if (threadIdx.x % kQuad == 0) {
      block.scales[segment - begin] = split::power_of_two(exponent - unit);
      if (ends_group(segment, work.product.steps)) tell(block.unit(segment, kLines), unit);
    }
  }
#pragma unroll
  for (int d = 16; d >= kQuad; d /= 2) known = join(known, __shfl_xor_sync(~0u, known, d));
  return known;
}

// What a tile leaves: rare. A call, for which the loop before keeps its registers.
template <bool kOfA>
__device__ __noinline__ void compute_left(const split_left::Work& work, int tile, split_left::Shared& shared, float* c,
                                          const float* bias) {
  split_left::compute<kOfA, kThreads, true>(work, split_left::Tile(work, tile), shared, dynamic_shared<float>(), c,
                                            bias);
}

// kOfA: W is A; else the product is transposed. kVectors: four steps of k are one aligned load, of both.
template <bool kOfA, bool kVectors>
__global__ void __launch_bounds__(kThreads, kBlocks)
    kernel(TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  constexpr int kSplitBarrier = 1;
  SHARED_TABLE(Facts, facts, kWarps, kLines + 1);
  SHARED_TABLE(Facts, of_blocks, kMostCluster, kLines + 1);  // of lines of W, then X
  SHARED(split_left::Shared, shared);
  const split_left::Work& product = work.product;
  const split::Source& w = product.source_w;
  const Block block(work);
  ptx::allow_launch_after();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  const int quad = lane / kQuad;
  const bool alone = work.cluster_bits == 0;
  const int tile = static_cast<int>(blockIdx.x) >> work.cluster_bits, rank = alone ? 0 : cluster::rank();
  const int begin = rank * work.each, end = max(begin, min(begin + work.each, product.steps));
  if (!alone) cluster::arrive();
  const float* lines[2];
#pragma unroll
  for (int l = 0; l < 2; ++l) {
    const int64_t line = tile * kLines + quad + l * 8;
    lines[l] = w.line(0, static_cast<uint32_t>(min(line, product.w_lines - 1)));
  }
  ptx::wait_for_launch_before();

  // X is split first, so it is asked for first. A segment of W is asked for once the one before it is split.
  float numbers[2][kNumbers];
  split::Sampled first[2];
  split::KnownLines known;
  int group = -1, unit[2] = {};
  const int depth = static_cast<int>(w.depth);
  const auto ask = [&](int step) {
    if (step >= end) return;
#pragma unroll
    for (int l = 0; l < 2; ++l) split_left::read<kVectors>(w, lines[l], step, numbers[l]);
    if (step / kGroupSegments == group) return;
#pragma unroll
    for (int l = 0; l < 2; ++l) first[l] = split::first_of_group<kVectors>(w, lines[l], step);
  };
  Share<kVectors> share;
  if (first_of_warp(begin) < end) share.ask(product.source_x, first_of_warp(begin) + quad);
  ask(begin + warp);
  if (!alone) cluster::wait();  // all blocks have begun, so they may be told of what is found
  const Facts known_x = split_x(work, block, begin, end, share);
  if (lane == 0) facts[warp][kLines] = known_x;
  if (begin + warp >= end) hopper::named_arrive<kThreads>(kSplitBarrier);
#pragma unroll 1
  for (int step = begin + warp; step < end; step += kWarps) {
    split::Pieces<2> pieces;
    split::PiecesX<2> halves_x;
    float scale[2];
    if (step / kGroupSegments != group) {
      group = step / kGroupSegments;
#pragma unroll
      for (int l = 0; l < 2; ++l) unit[l] = split::unit_of(w, lines[l], group, first[l].numbers);
    }
    split::split_two_lines(numbers, min(depth - step * kSegment, kSegment), unit, pieces, scale, known);
    ask(step + kWarps);
    if (step == begin + warp) hopper::named_barrier<kThreads>(kSplitBarrier);  // X has been split
    const uint4* const halves = block.halves + (step - begin) * 16 + lane % kQuad;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 four = halves[i * 4];
      halves_x[0][i * 2] = four.x, halves_x[0][i * 2 + 1] = four.y;
      halves_x[1][i * 2] = four.z, halves_x[1][i * 2 + 1] = four.w;
    }
    // Of the instruction's columns all are X; the first one is kept, whose values these of every fourth lane are.
    float high[4] = {}, rest[4] = {};
    split::multiply_segment<float16, 2, kOfA>(high, rest, pieces, halves_x);
    const float scale_x = block.scales[step - begin];
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      float sum = 0;
      split::add_segment(sum, high[l * 2], rest[l * 2], scale[l] * scale_x);
      if (lane % kQuad != 0) continue;
      tell(block.sums + step * kLines + quad + l * 8, sum);
      if (ends_group(step, product.steps)) tell(block.unit(step, quad + l * 8), unit[l]);
    }
  }
#pragma unroll
  for (int l = 0; l < 2; ++l) {
    if (lane % kQuad == 0) facts[warp][quad + l * 8] = known.facts(l);
  }
  __syncthreads();
  const int thread = threadIdx.x;
  if (thread <= kLines) {
    Facts of_line = facts[0][thread];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) of_line = join(of_line, facts[i][thread]);
    tell(&of_blocks[rank][thread], of_line);
  }
  if (alone) {
    __syncthreads();
  } else {
    cluster::sync();
  }
  if (rank != 0) return;

  // A thread an output: the sums of its segments, in their order.
  if (thread <= kLines) {
    Facts of_line = of_blocks[0][thread];
    for (int i = 1; i < 1 << work.cluster_bits; ++i) of_line = join(of_line, of_blocks[i][thread]);
    if (thread < kLines && tile * kLines + thread >= product.w_lines) of_line = kPlainestFacts;
    shared.known[thread] = with_code(of_line, code_of(of_line));
  }
  __syncthreads();
  const split_left::Output<kOfA> own(thread % kLines);
  const split_left::Tile here(product, tile);
  bool done = true;
  if (thread < kLines && here.first + thread < product.w_lines) {
    done = arithmetic_of(code_above(shared.known[thread]), code_above(shared.known[kLines])) == Arithmetic::pairs;
    const float* from = block.sums + thread;
    float total = 0;
#pragma unroll 1
    for (int first_step = 0; first_step < product.steps; first_step += kGroupSegments) {
      const int count = min(product.steps - first_step, kGroupSegments);
      float sum = 0;
#pragma unroll 8
      for (int i = 0; i < count; ++i, from += kLines) sum += *from;
      sum = split::from_units(sum, *block.unit(first_step, thread), *block.unit(first_step, kLines));
      total = first_step == 0 ? sum : total + sum;
    }
    c[own.at(product, here)] = own.with_bias(total, bias, here);
  }
  if (__syncthreads_and(done) == 0) compute_left<kOfA>(product, tile, shared, c, bias);
#endif
}

cudaError_t run(const Call& call) {
  const Problem& p = call.problem;
  const Operand a = operand_a(p, call.a, 4), b = operand_b(p, call.b, 4);
  const bool of_a = p.n == 1;
  const Launch launched = call.step(0);
  Work work;
  work.product = split_left::work_of(p, of_a ? a : b, of_a ? b : a, {});
  work.each = static_cast<int>(ceil_div(work.product.steps, launched.cluster));
  work.cluster_bits = log2_of(launched.cluster);
  const bool vectors = work.product.vectors_w && work.product.vectors_x;
  const auto function = of_a      ? vectors ? &kernel<true, true> : &kernel<true, false>
                        : vectors ? &kernel<false, true>
                                  : &kernel<false, false>;
  return launch(function, launched, work, static_cast<float*>(call.c), static_cast<const float*>(call.bias));
}

}  // namespace treduce::matmul::split_single
