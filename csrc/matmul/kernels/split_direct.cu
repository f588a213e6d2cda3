// Idea: of a small product the launches of split_fp16 take longer than the work. So each block splits the lines of its tile as it
//       reads them, into shared memory, and multiplies from there, all in one launch. A line is split again by every block that
//       needs it: instructions for launches.
//
// After:   split_fp16; the same bits. Pieces lie in the order in which mma's instruction wants them, whose sums are a warp group's
//          in every comparison.
// Mapping: a block a tile. A warp has eight lines, and reads a segment ahead. While a chunk of segments is multiplied the next one is
//          split: half of the warps begin with the one, half with the other, so that both pipes are busy. Either a warp has its
//          outputs of all segments in registers, or, in small tiles, warps share out the segments and leave sums to be added in order.
//          Where such tiles are few, a cluster has a tile: each block takes a chunk of a round of segments, and writes their sums to the
//          shared memory of the block that adds them, which is another one for each share of the outputs.
// Bound:   instructions, 18 for a number that is split; and by latency where a warp has few segments.
// Note:    what the lines are like is known in the block, so what pairs cannot hold it computes as well: by parts, and on the plain
//          cores. No workspace is needed.
// Source:  this project.
#include "../../primitives/ptx/launch.cuh"
#include "../../primitives/ptx/opaque.cuh"
#include "../epilogue.cuh"
#include "../hopper.cuh"
#include "../rung.h"
#include "../split/split_held.h"
#include "../split/split_launches.h"
#include "../split/split_pieces.cuh"
#include "../split/split_single.h"
#include "../split/split_some.h"
#include "../split/split_source.cuh"

namespace treduce::matmul::split_direct {

using split::kNumbers;
using split::Pieces;
using split::PiecesX;

enum class Way { pairs, parts, plain };

struct Work {
  split::Side sides[2];  // F, whose lines are the instruction's rows, and S, of its columns
  int64_t n, matrix_outputs;
  int depth, steps, tiles_f, tiles_s, inner_batches;
  Shape::Chunks by_pairs, by_parts;
  int cluster_bits;  // of its number of blocks
  int of_pairs;      // certain_of_pairs
};

// Where a block's tile lies, and its shared memory: of two chunks, one after another, what was split, [segment][octet][16 bytes of a
// lane][lane], their scales, [segment][line], and the sums of segments, [segment][16 x 8 outputs][lane]: of the cluster's, for the block's
// share of the outputs, neighbours in that order.
struct Block {
  const float* data[2];  // of the matrices
  int first[2];          // lines
  int rank;              // in the cluster
  uint4* pieces;
  float* scales;
  float4* sums;
};

// kIndex: of kShapes. kCluster: a cluster has a tile; a block that has all of k is compiled apart, and up to a sixth faster so.
template <int kIndex, bool kCluster>
struct Tile {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kWarps = kShape.warps, kSets = kShape.sets, kOctets = kShape.octets(), kLines = kOctets * kOctet;
  static constexpr int kOctetsF = kShape.f_lines / kOctet, kAllSets = kShape.s_lines / kOctet;
  static constexpr int kAtOnce = kShape.segments_at_once(), kTiles = kShape.warp_tiles();
  static constexpr bool kOfA = kShape.of_a, kOwn = kShape.own();
  static constexpr int kItems = kOwn ? kSets : 1;                 // 16 x 8 outputs that a warp adds
  static constexpr int kQuadBits = log2_of(kTiles * kSets * 32);  // 16 bytes each, of the sums of a segment
  static constexpr int kUnits = kShape.unit_groups();
  static_assert(kOwn || (kTiles * kSets <= kWarps && kTiles * kSets * 32 == 1 << kQuadBits));

  // What is known of the tile's lines, those of F first.
  struct Shared {
    Facts found[kShape.finders()][kLines], lines[kLines];
    float units[kUnits][kLines];  // of groups: while some are added, others are found
    uint32_t votes[kMostCluster];
  };
  static_assert(sizeof(Shared) == kShape.known_bytes() && sizeof(Shared) % 16 == 0);

  const Work& work;
  Shared& shared;
  Block block;

  static_assert(!(kOwn && kCluster));

  TREDUCE_DEVICE int cluster_bits() const { return kCluster ? work.cluster_bits : 0; }
  TREDUCE_DEVICE int blocks_of_cluster() const { return 1 << cluster_bits(); }

  // Which outputs a thread adds, four of each 16 x 8: those of this thread if one block added all.
  TREDUCE_DEVICE int share_bits() const { return kQuadBits - cluster_bits(); }
  TREDUCE_DEVICE bool adds() const { return kOwn || threadIdx.x >> share_bits() == 0; }
  TREDUCE_DEVICE int adder() const {
    return (kCluster ? block.rank << share_bits() : 0) + static_cast<int>(threadIdx.x);
  }
  TREDUCE_DEVICE int item(int i) const { return adder() / 32 * kItems + i; }
  // Of a lane's outputs, in the tile: the first line of F, the other is eight further; and of S, whose neighbour is the other.
  TREDUCE_DEVICE static int line_f(int item, int lane) { return item / kAllSets * 16 + lane / 4; }
  TREDUCE_DEVICE static int line_s(int item, int lane) {
    return kOctetsF * kOctet + item % kAllSets * 8 + lane % 4 * 2;
  }

  // Writes to a variable in the shared memory of a block of the cluster.
  template <class T>
  TREDUCE_DEVICE void tell(int rank, T* here, T value) const {
    if constexpr (kCluster) {
      *cluster::shared_of(here, rank) = value;
    } else {
      *here = value;
    }
  }

  template <Way kWay>
  static constexpr int kQuads = kWay == Way::parts ? 2 * kParts : 4;  // 16 bytes each, that a lane has of a line
  template <Way kWay>
  TREDUCE_DEVICE uint4* pieces(int segment, int octet) const {
    return block.pieces + (segment * kOctets + octet) * kQuads<kWay> * 32;
  }

  // ---- multiply: a segment of the chunk, kSets from `item` on ----

  template <Way kWay>
  TREDUCE_DEVICE void read_pieces(int segment, int octet, PiecesX<kQuads<kWay> / 2>& to) const {
    split::read_pieces<kQuads<kWay> / 2>(pieces<kWay>(segment, octet) + threadIdx.x % 32, to);
  }

  template <Way kWay, class Add>
  TREDUCE_DEVICE void multiply(int segment, int item, Add add) const {
    constexpr int kPieces = kQuads<kWay> / 2;
    const int octet_f = item / kAllSets * 2, octet_s = kOctetsF + item % kAllSets;
    Pieces<kPieces> f;
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      PiecesX<kPieces> of_line;
      read_pieces<kWay>(segment, octet_f + l, of_line);
#pragma unroll
      for (int i = 0; i < kPieces * 8; ++i) f[i / 8][l][i % 8] = of_line[i / 8][i % 8];
    }
    const float* const scales = block.scales + segment * kLines;
    const int lane = threadIdx.x % 32;
    const float scale_f[2] = {scales[line_f(item, lane)], scales[line_f(item, lane) + 8]};
#pragma unroll(kOwn&& kWay == Way::parts ? 1 : kSets)
    for (int set = 0; set < kSets; ++set) {
      PiecesX<kPieces> s;
      read_pieces<kWay>(segment, octet_s + set, s);
      float high[4] = {}, rest[4] = {}, value[4] = {};
      if constexpr (kWay == Way::pairs) {
        const float2 scale_s = *reinterpret_cast<const float2*>(scales + line_s(item + set, lane));
        split::multiply_segment<float16, 2, kOfA>(high, rest, f, s);
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          split::add_segment(value[o], high[o], rest[o], scale_f[o / 2] * (o % 2 == 0 ? scale_s.x : scale_s.y));
        }
      } else {
        split::multiply_segment<bfloat16, kParts, kOfA>(high, rest, f, s);
#pragma unroll
        for (int o = 0; o < 4; ++o) split::add_parts(value[o], high[o], rest[o]);
      }
      add(set, value);
    }
  }

  // The same on the plain cores.
  template <class Add>
  TREDUCE_DEVICE void multiply_plain(int segment, int item, Add add) const {
    const auto read = [&](int line, int i) {
      const uint4 four = pieces<Way::plain>(segment, line / kOctet)[i / 4 * 32 + line % 8 * 4 + i % 4];
      return float4{__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z), __uint_as_float(four.w)};
    };
#pragma unroll 1
    for (int set = 0; set < kSets; ++set) {
      const int lane = threadIdx.x % 32, row = line_f(item, lane), column = line_s(item + set, lane);
      float acc[4] = {};
      unsigned found[4] = {};
#pragma unroll 1
      for (int i = 0; i < kSegment / 4; ++i) {
        const float4 f[2] = {read(row, i), read(row + 8, i)}, s[2] = {read(column, i), read(column + 1, i)};
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          const float a[4] = {f[o / 2].x, f[o / 2].y, f[o / 2].z, f[o / 2].w};
          const float b[4] = {s[o % 2].x, s[o % 2].y, s[o % 2].z, s[o % 2].w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            acc[o] = multiply_add(a[j], b[j], acc[o]);
            if (split::is_finite(a[j]) && split::is_finite(b[j])) continue;
            const float product = a[j] * b[j];
            found[o] |= split::not_finite(product);
          }
        }
      }
      // Finite products change no sum that is not finite.
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        if (all_finite(shared.lines[row + o / 2 * 8]) && all_finite(shared.lines[column + o % 2])) continue;
        acc[o] = split::sum_of(found[o]);
      }
      add(set, acc);
    }
  }

  // ---- split: a warp has eight lines, a team of four lanes one ----

  struct Line {
    const float* data;  // from the lane's first number on
    bool vectors;
    int step;  // bytes, along k
  };
  TREDUCE_DEVICE Line line_of(int octet) const {
    const bool of_s = octet >= kOctetsF;
    const split::Side& side = work.sides[of_s];
    // Past the last one the last.
    const int within = (octet - (of_s ? kOctetsF : 0)) * kOctet + static_cast<int>(threadIdx.x % 32 / 4);
    const int line = min((of_s ? block.first[1] : block.first[0]) + within, side.lines - 1);
    const float* const data = (of_s ? block.data[1] : block.data[0]) + line * side.source.line_stride;
    return {data + threadIdx.x % 4 * 4 * side.source.depth_stride, side.vectors,
            static_cast<int>(side.source.depth_stride * 4)};
  }

  // A lane's numbers from step `begin` of k on: four of every 16, that are neighbours; zeros past the end of k.
  template <int kCount>
  TREDUCE_DEVICE void read(const Line& line, int begin, float (&to)[kCount]) const {
    const int left = work.depth - begin - static_cast<int>(threadIdx.x % 4) * 4;
    if (line.vectors) {
      const float* const from = line.data + begin;
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float4 four = i * 4 < left ? __ldg(reinterpret_cast<const float4*>(from + i * 4)) : float4{};
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
      }
    } else {
      const char* const from = ptx::opaque(reinterpret_cast<const char*>(line.data) + int64_t(begin) * line.step);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int k = i / 4 * 16 + i % 4;
        to[i] = k < left ? __ldg(reinterpret_cast<const float*>(from + int64_t(k) * line.step)) : 0.0f;
      }
    }
  }

  TREDUCE_DEVICE int unit_of(const Line& line, int octet, int group) const {
    float first[split::kSampled / split::kLanes];
    read(line, group * kGroup, first);
    const split::Source& source = work.sides[octet >= kOctetsF].source;
    return split::unit_of(source, line.data - threadIdx.x % split::kLanes * 4 * source.depth_stride, group, first);
  }

  // Writes what a lane's numbers become, of a segment of the chunk. `present`: numbers of the segment.
  template <Way kWay>
  TREDUCE_DEVICE void write(const float (&numbers)[kNumbers], int segment, int octet, int unit, int present,
                            split::Seen& seen) const {
    const int line = octet * kOctet + threadIdx.x % 32 / 4;
    uint32_t words[kQuads<kWay> / 2][kNumbers / 2];
    if constexpr (kWay == Way::pairs) {
      const int exponent = split::split_numbers(numbers, present, unit, words[0], words[1], seen);
      if (threadIdx.x % 4 == 0) block.scales[segment * kLines + line] = split::power_of_two(exponent - unit);
    } else if constexpr (kWay == Way::parts) {
      split::split_pieces(numbers, parts_exponent(shared.lines[line]), words);
    } else {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) words[i / 8][i % 8] = __float_as_uint(numbers[i]);
    }
    split::write_pieces<kQuads<kWay> / 2>(pieces<kWay>(segment, octet) + threadIdx.x % 32, words);
  }

  template <Way kWay, class Add>
  TREDUCE_DEVICE void multiply_by(int segment, int item, Add add) const {
    if constexpr (kWay == Way::plain) {
      multiply_plain(segment, item, add);
    } else {
      multiply<kWay>(segment, item, add);
    }
  }

  // ---- both, over all of k ----

  // Adds the sums of a group, and clears them.
  template <Way kWay>
  TREDUCE_DEVICE void add_group(float (&total)[kItems][4], float (&sum)[kItems][4], int group) const {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int lane = adder() % 32, f = line_f(item(i), lane), s = line_s(item(i), lane);
      const int lines[4] = {f, f + 8, s, s + 1};
      float units[4] = {};
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        if (kWay == Way::pairs) units[l] = shared.units[group % kUnits][lines[l]];
        if (kWay == Way::parts) units[l] = split::power_of_two(-parts_exponent(shared.lines[lines[l]]));
      }
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        float of_group = sum[i][o];
        if (kWay != Way::plain) of_group = split::from_units(of_group, units[o / 2], units[2 + o % 2]);
        total[i][o] = group == 0 ? of_group : total[i][o] + of_group;
        sum[i][o] = 0;
      }
    }
  }

  // What this thread's line is like in what the block's warps have split.
  TREDUCE_DEVICE Facts facts_here() const {
    Facts of_line = kNoFacts;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) of_line = join(of_line, shared.found[i][threadIdx.x]);
    return of_line;
  }
  // Tells all blocks of the cluster, and what all have told.
  TREDUCE_DEVICE void tell_facts(Facts of_line) const {
    for (int to = 0; to < blocks_of_cluster(); ++to) {
      tell(to, &shared.found[kAtOnce + block.rank][threadIdx.x], of_line);
    }
  }
  TREDUCE_DEVICE Facts facts_told(Facts of_line) const {
    for (int from = 0; from < blocks_of_cluster(); ++from) {
      of_line = join(of_line, shared.found[kAtOnce + from][threadIdx.x]);
    }
    return of_line;
  }

  // Adds the extremes of a block's segments from this one on, of which each round has a chunk: all that is wanted of a tile that no pairs
  // suit. A call, so that the loop over rounds stays short.
  __device__ __noinline__ static split::Seen look(Tile tile, Line line, int segment, int chunk, int round,
                                                  split::Seen seen) {
    int left = chunk;  // of the round
    const auto next = [&] {
      left -= kAtOnce;
      segment += left > 0 ? kAtOnce : round - chunk + kAtOnce;
      left = left > 0 ? left : chunk;
    };
#pragma unroll 1
    while (segment < tile.work.steps) {
      float numbers[2][kNumbers];  // of two segments, or twice of the last
      tile.read(line, segment * kSegment, numbers[0]);
      const int first = segment;
      next();
      tile.read(line, (segment < tile.work.steps ? segment : first) * kSegment, numbers[1]);
      next();
#pragma unroll
      for (int i = 0; i < 2; ++i) seen.add(split::Extremes::of<1>(numbers[i]), ~0u);
    }
    return seen;
  }

  // The sums of the tile. Of pairs, whether these suit all outputs.
  template <Way kWay>
  TREDUCE_DEVICE bool walk(float (&total)[kItems][4]) {
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
    // The cluster walks k in rounds, of which each block has a chunk.
    const Shape::Chunks& chunks = kWay == Way::parts ? work.by_parts : work.by_pairs;
    const int chunk = chunks.chunk;
    const int blocks = blocks_of_cluster(), rank = kCluster ? block.rank : 0;
    const int round = blocks * chunk, before = rank * chunk;
    const int places = round < work.steps ? 2 * chunk : chunk;
    if constexpr (kCluster) cluster::arrive_relaxed();
    block.scales = reinterpret_cast<float*>(block.pieces + places * kOctets * kQuads<kWay> * 32);
    block.sums = reinterpret_cast<float4*>(block.scales + places * kLines);

    constexpr int kTurn = kWarps / kAtOnce;
    const int octet = warp % kTurn, phase = warp / kTurn;
    const int end_of_own = octet < kOctets ? work.steps : 0;
    const Line line = line_of(octet < kOctets ? octet : 0);
    split::Seen seen;
    bool suits = true;
    // Of the segment that was split last.
    int group = -1, unit = 0;
    constexpr bool kAhead = !(kOwn && kWay != Way::pairs);  // the others have no registers for it
    float next[kNumbers];
    // What comes before, a microsecond of a block's time, depends on no launch before.
    if constexpr (kWay == Way::pairs) ptx::wait_for_launch_before();
    if (kAhead && before + phase < end_of_own) read(line, (before + phase) * kSegment, next);
    // Other blocks have begun, and no longer need what a walk before this one left.
    if constexpr (kCluster) cluster::wait();
    float sum[kItems][4] = {};
    // While a round is multiplied, [begin, end), the next one is split. A half of the warps does first the one, and a half the other.
    const int first_half = warp / 4 % 2;
    const auto tell_found = [&] {
      const Facts found = seen.facts();
      if (lane % 4 == 0) shared.found[phase][octet * kOctet + lane / 4] = found;
    };
    int begin = 0, end = 0, at = 0;  // at: of the chunk that is split, the first segment's place
    int first_added = 0;             // of the segments whose sums lie in the cluster's shared memory
    bool reads_sums = false;         // some thread of the cluster may
    const auto end_of_next = [&] {
      const int end_of_group = kCluster ? work.steps : (end / kGroupSegments + 1) * kGroupSegments;
      return min(min(end + round, end_of_group), work.steps);
    };
    const auto no_room = [&] { return end + round - first_added > chunks.added; };  // for the next sums
    for (;;) {
      const int next_end = end_of_next(), other = chunk - at;
#pragma unroll 1
      for (int half = 0; half < 2; ++half) {
        if (half == first_half) {
          if (end == work.steps || octet >= kOctets) continue;
          const int first = end + before, last = kCluster ? min(first + chunk, next_end) : next_end;
          // One block's rounds end where groups do.
          if (kWay == Way::pairs && !kCluster && end % kGroupSegments == 0) {
            group = end / kGroupSegments;
            unit = unit_of(line, octet, group);
            if (phase == 0 && lane % 4 == 0) {
              shared.units[group % kUnits][octet * kOctet + lane / 4] = split::power_of_two(unit);
            }
          }
#pragma unroll 1
          for (int segment = first + phase; segment < last; segment += kAtOnce) {
            if constexpr (kWay == Way::pairs && kCluster) {
              if (segment / kGroupSegments != group) {
                group = segment / kGroupSegments;
                unit = unit_of(line, octet, group);
              }
              if ((segment + 1) % kGroupSegments == 0 || segment + 1 == work.steps) {
                for (int to = lane % 4; to < blocks; to += 4) {
                  tell(to, &shared.units[group % kUnits][octet * kOctet + lane / 4], split::power_of_two(unit));
                }
              }
            }
            if (!kAhead) read(line, segment * kSegment, next);
            float now[kNumbers];
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) now[i] = next[i];
            // The next one, of the next chunk too.
            const int after = segment + kAtOnce < last ? segment + kAtOnce : next_end + before + phase;
            if (kAhead && after < work.steps) read(line, after * kSegment, next);
            write<kWay>(now, at + segment - first, octet, unit, min(kSegment, work.depth - segment * kSegment), seen);
          }
          if (kWay == Way::pairs && next_end == work.steps) tell_found();
        } else if constexpr (kOwn) {
#pragma unroll 1
          for (int segment = 0; segment < end - begin; ++segment) {
            multiply_by<kWay>(other + segment, warp * kSets, [&](int set, const float (&value)[4]) {
#pragma unroll
              for (int i = 0; i < kItems; ++i) {
#pragma unroll
                for (int o = 0; o < 4; ++o) {
                  if (i == set) sum[i][o] += value[o];
                }
              }
            });
          }
        } else {
          if (kCluster && reads_sums) cluster::wait();
          const int count = kCluster ? min(chunk, end - begin - before) : end - begin;
          float4* const sums =
              block.sums + (kCluster ? (begin - first_added + before) << share_bits() : other << kQuadBits);
#pragma unroll 1
          for (int i = warp; i < count * kTiles; i += kWarps) {
            const int segment = i / kTiles, first = i % kTiles * kSets;
            float4* const of_segment = sums + (segment << share_bits());
            multiply_by<kWay>(other + segment, first, [&](int set, const float (&value)[4]) {
              const int quad = (first + set) * 32 + lane, rank_of_adder = kCluster ? quad >> share_bits() : 0;
              tell(rank_of_adder, of_segment + quad - (rank_of_adder << share_bits()),
                   float4{value[0], value[1], value[2], value[3]});
            });
          }
        }
      }
      const bool last = begin < end && end == work.steps;
      const bool adds_now = begin < end && (!kCluster || last || no_room());
      const bool knows = kWay == Way::pairs && last && static_cast<int>(threadIdx.x) < kLines;
      Facts of_line = knows ? facts_here() : kNoFacts;
      if constexpr (kCluster) {
        if (knows) tell_facts(of_line);
        if (adds_now) cluster::sync();
        if (knows) of_line = facts_told(of_line);
      }
      if (knows) {
        shared.lines[threadIdx.x] = of_line;
        suits = suits_pairs(of_line);
      }
      if constexpr (kWay == Way::pairs) {
        // Rounds ask by turns whether pairs may suit some line of F, and of S.
        const bool asks = next_end < work.steps;
        const bool may = octet < kOctets && (octet >= kOctetsF) == (at != 0) && may_have_pairs(seen.flags);
        const bool found = __syncthreads_or(asks ? may : !suits) != 0;
        // The same in all lanes: the compiler then takes the warp for converged.
        if (__any_sync(~0u, asks && !found)) break;
        if (!asks) suits = !found;
      } else {
        __syncthreads();
      }

      if (adds_now && adds()) {
        if constexpr (kOwn) {
          if (end % kGroupSegments == 0 || last) add_group<kWay>(total, sum, begin / kGroupSegments);
        } else {
          const float4* from = block.sums + (kCluster ? 0 : other << kQuadBits) + threadIdx.x;
#pragma unroll 1
          for (int segment = kCluster ? first_added : begin; segment < end;) {
            const int group = segment / kGroupSegments,
                      end_of_run = kCluster ? min((group + 1) * kGroupSegments, end) : end;
#pragma unroll 4
            for (; segment < end_of_run; ++segment) {
              const float4 value = *from;
              sum[0][0] += value.x, sum[0][1] += value.y, sum[0][2] += value.z, sum[0][3] += value.w;
              from += 1 << share_bits();
            }
            if (segment % kGroupSegments == 0 || segment == work.steps) add_group<kWay>(total, sum, group);
            if (!kCluster) break;
          }
        }
      }
      if (last) return suits;
      reads_sums = kCluster && adds_now;
      if constexpr (kCluster) {
        if (adds_now) {
          cluster::arrive_relaxed();
          first_added = end;
        }
      }
      begin = end;
      end = next_end;
      at = other;
    }

    // No pairs suit the tile, whatever follows: of its lines the extremes are wanted. Other blocks of the cluster may not know yet, so all
    // meet as if sums were added.
    if (octet < kOctets) {
      seen = look(*this, line, end_of_next() + before + phase, chunk, round, seen);
      tell_found();
    }
    __syncthreads();
    const bool knows = static_cast<int>(threadIdx.x) < kLines;
    Facts of_line = knows ? facts_here() : kNoFacts;
    if constexpr (kCluster) {
      if (knows) tell_facts(of_line);
      for (bool adds_now = begin < end && no_room(); end < work.steps; adds_now = no_room()) {
        if (adds_now) {
          cluster::arrive_relaxed();
          cluster::wait();
          first_added = end;
        }
        end = end_of_next();
        if (end == work.steps || no_room()) cluster::sync();
      }
      if (knows) of_line = facts_told(of_line);
    }
    if (knows) shared.lines[threadIdx.x] = of_line;
    __syncthreads();
    return false;
  }

  // ---- store ----

  // Calls body(item, its output, lines of F and of S in the tile, place, column) for each of a thread's outputs.
  template <class Body>
  TREDUCE_DEVICE void for_each_output(float* c, Body body) const {
    if (!adds()) return;
#pragma unroll 1  // more addresses at once than there are registers
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        const int lane = adder() % 32, line_of_f = line_f(item(i), lane) + o / 2 * 8;
        const int line_of_s = line_s(item(i), lane) + o % 2;
        const int f = block.first[0] + line_of_f, s = block.first[1] + line_of_s - kOctetsF * kOctet;
        if (f >= work.sides[0].lines || s >= work.sides[1].lines) continue;
        const int row = kOfA ? f : s, column = kOfA ? s : f;
        body(i, o, line_of_f, line_of_s, c + row * work.n + column, column);
      }
    }
  }
  // How each of a thread's outputs is computed: an Arithmetic in two bits, once it is known which checked pairs are certain.
  static_assert(kItems * 4 * 2 <= 32);
  struct Ways {
    uint32_t bits = 0;
    bool refused = false;  // checked outputs are not certain

    TREDUCE_DEVICE Arithmetic of(int i, int o) const { return static_cast<Arithmetic>(bits >> (i * 4 + o) * 2 & 3); }
    TREDUCE_DEVICE void set(int i, int o, Arithmetic way) {
      const int at = (i * 4 + o) * 2;
      bits = (bits & ~(3u << at)) | static_cast<uint32_t>(way) << at;
    }
  };
  static_assert(static_cast<int>(Arithmetic::pairs) == 0 && static_cast<int>(Arithmetic::plain) == 3);
  // Pairs have been stored: of these some are checked.
  TREDUCE_DEVICE Ways ways(float* c) const {
    Ways found;
    for_each_output(c, [&](int i, int o, int f, int s, const float* at, int) {
      Arithmetic way = arithmetic(f, s);
      if (way == Arithmetic::checked_pairs) {
        const bool certain = is_certain(__float_as_uint(*at), shared.lines[f], shared.lines[s], work.of_pairs);
        found.refused |= !certain;
        way = certain ? Arithmetic::pairs : Arithmetic::plain;
      }
      found.set(i, o, way);
    });
    return found;
  }
  // Stores those that are `wanted`, with the bias. stored(item, its output, lines of F and of S in the tile, result).
  template <class Wanted, class Stored>
  TREDUCE_DEVICE void store(float* c, const float* bias, const float (&total)[kItems][4], Wanted wanted,
                            Stored stored) const {
    for_each_output(c, [&](int i, int o, int f, int s, float* at, int column) {
      if (!wanted(i, o)) return;
      float sum = total[0][o];
#pragma unroll
      for (int j = 1; j < kItems; ++j) sum = i == j ? total[j][o] : sum;
      const float result = bias == nullptr ? sum : canonical(sum + __ldg(bias + column));
      *at = result;
      stored(i, o, f, s, result);
    });
  }
  template <class Wanted>
  TREDUCE_DEVICE void store(float* c, const float* bias, const float (&total)[kItems][4], Wanted wanted) const {
    store(c, bias, total, wanted, [](int, int, int, int, float) {});
  }
  // Whether any block of the cluster says so. A kernel asks once, for votes are not cleared. Who calls: all threads of the cluster.
  TREDUCE_DEVICE bool any(bool found) const {
    found = __syncthreads_or(found) != 0;
    if constexpr (kCluster) {
      const int to = threadIdx.x;
      if (to < blocks_of_cluster()) tell(to, &shared.votes[block.rank], uint32_t(found));
      cluster::sync();
      for (int from = 0; from < blocks_of_cluster(); ++from) found = found || shared.votes[from] != 0;
    }
    return found;
  }

  // Once pairs have been multiplied, lines have their codes above what is known of them.
  TREDUCE_DEVICE unsigned code(int line) const { return code_above(shared.lines[line]); }
  TREDUCE_DEVICE Arithmetic arithmetic(int f, int s) const { return arithmetic_of(code(f), code(s)); }

  // Whether a line of the tile is of S, for those of F come first; and which of its operand's it is.
  TREDUCE_DEVICE static bool is_of_s(int line) { return line >= kOctetsF * kOctet; }
  TREDUCE_DEVICE int line_of_operand(int line, bool of_s) const {
    return (of_s ? block.first[1] - kOctetsF * kOctet : block.first[0]) + line;
  }
  // Where a number of a line of the tile lies.
  TREDUCE_DEVICE const float* number(int line, int k) const {
    const bool of_s = is_of_s(line);
    const split::Source& source = work.sides[of_s].source;
    const int64_t at = line_of_operand(line, of_s);
    return (of_s ? block.data[1] : block.data[0]) + at * source.line_stride + k * source.depth_stride;
  }

  // Computes the outputs of lines with an infinity or a NaN, of which only products with such factors count: lists these, and multiplies
  // each by the other line's number. Returns whether the list is long enough; else nothing is stored. A call, for which the walks before
  // and after keep their registers.
  __device__ __noinline__ static bool compute_not_finite(Tile tile, float* c, const float* bias) {
    return tile.multiply_not_finite(c, bias);
  }
  TREDUCE_DEVICE bool multiply_not_finite(float* c, const float* bias) const {
    constexpr uint32_t kMost = 256;
    struct List {
      uint32_t count;
      uint2 places[kMost];  // line, and place along k
    };
    static_assert(sizeof(List) <= kOctets * kPairBytes);
    List& list = *reinterpret_cast<List*>(block.pieces);
    __syncthreads();  // who reads pieces has done so
    if (threadIdx.x == 0) list.count = 0;
    __syncthreads();
    // A line is searched by all warps, for one alone waits for its loads.
    const auto to_search = [&](int line) {
      const bool of_s = is_of_s(line);
      const int at = line_of_operand(line, of_s);
      return line < kLines && at < work.sides[of_s].lines && !all_finite(shared.lines[line]);
    };
#pragma unroll 1
    for (int first = 0; first < kLines; first += 32) {
#pragma unroll 1
      for (uint32_t some = __ballot_sync(~0u, to_search(first + threadIdx.x % 32)); some != 0; some &= some - 1) {
        const int line = first + __ffs(some) - 1;
        const float* from = number(line, threadIdx.x);
        const int64_t step = work.sides[is_of_s(line)].source.depth_stride * kShape.threads();
#pragma unroll 4
        for (int k = threadIdx.x; k < work.depth; k += kShape.threads(), from += step) {
          if (split::is_finite(__ldg(from))) continue;
          const uint32_t place = atomicAdd(&list.count, 1u);
          if (place < kMost) list.places[place] = {static_cast<uint32_t>(line), static_cast<uint32_t>(k)};
        }
      }
    }
    __syncthreads();
    if (list.count > kMost) return false;
    if (!adds()) return true;
#pragma unroll 1
    for (int i = 0; i < kItems * 4; ++i) {
      const int lane = adder() % 32, f = line_f(item(i / 4), lane) + i / 2 % 2 * 8,
                s = line_s(item(i / 4), lane) + i % 2;
      const int of_f = block.first[0] + f, of_s = block.first[1] + s - kOctetsF * kOctet;
      if (of_f >= work.sides[0].lines || of_s >= work.sides[1].lines || arithmetic(f, s) != Arithmetic::plain) continue;
      unsigned found = 0;
#pragma unroll 1
      for (uint32_t j = 0; j < list.count; ++j) {
        const int line = static_cast<int>(list.places[j].x), k = static_cast<int>(list.places[j].y);
        if (line != f && line != s) continue;
        const float product = __ldg(number(f, k)) * __ldg(number(s, k));
        found |= split::not_finite(product);
      }
      const int column = kOfA ? of_s : of_f;
      const float sum = split::sum_of(found);
      c[(kOfA ? of_f : of_s) * work.n + column] = canonical(bias == nullptr ? sum : sum + __ldg(bias + column));
    }
    return true;
  }

  // How outputs of the tile are computed.
  struct Found {
    bool by_pairs, by_parts, checked, plain;
  };
  TREDUCE_DEVICE Found ways_of_tile() const {
    const int lane = threadIdx.x % 32;
    uint32_t codes_f = 0, codes_s = 0;
#pragma unroll
    for (int first = 0; first < kLines; first += 32) {
      const int line = first + lane;
      const uint32_t set = line < kLines ? set_of(code(line)) : 0;
      (is_of_s(line) ? codes_s : codes_f) |= set;
    }
    codes_f = __reduce_or_sync(~0u, codes_f);
    codes_s = __reduce_or_sync(~0u, codes_s);
    const auto any = [&](auto with) { return split::any_output(codes_f, codes_s, with); };
    return {any([](unsigned x) { return codes_by_pairs(x); }), any([](unsigned x) { return codes_by_parts(x); }),
            any([](unsigned x) { return checked_codes(x).any(); }),
            any([](unsigned x) { return codes_with(x, Arithmetic::plain); })};
  }

  // What pairs do not hold: rare.
  TREDUCE_DEVICE void compute_rest(const Found& found, float* c, const float* bias) {
    Ways ways = this->ways(c);
    if (found.by_parts) {
      float total[kItems][4] = {};
      walk<Way::parts>(total);
      ways = this->ways(c);  // again: the walk has no register for it
      store(
          c, bias, total, [&](int i, int o) { return by_parts(ways.of(i, o)); },
          [&](int i, int o, int f, int s, float result) {
            if (ways.of(i, o) != Arithmetic::checked_parts) return;
            const bool certain = is_certain(__float_as_uint(result), shared.lines[f], shared.lines[s], kCertain);
            ways.set(i, o, certain ? Arithmetic::parts : Arithmetic::plain);
            ways.refused |= !certain;
          });
    }
    const bool refused = found.checked && any(ways.refused);
    if (!found.plain && !refused) return;
    // Without those refused all are of lines that are not finite.
    if (!refused && compute_not_finite(*this, c, bias)) return;
    float total[kItems][4] = {};
    walk<Way::plain>(total);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int o = 0; o < 4; ++o) total[i][o] = canonical(total[i][o]);
    }
    store(c, bias, total, [&](int i, int o) { return ways.of(i, o) == Arithmetic::plain; });
  }

  TREDUCE_DEVICE void compute(float* c, const float* bias) {
    int index = blockIdx.x >> cluster_bits();
    block.rank = kCluster ? cluster::rank() : 0;
    const int tile_s = index % work.tiles_s;
    index /= work.tiles_s;
    const int tile_f = index % work.tiles_f, batch = index / work.tiles_f;
    block.first[0] = tile_f * kShape.f_lines;
    block.first[1] = tile_s * kShape.s_lines;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const split::Side& side = work.sides[i];
      block.data[i] = side.source.line(side.matrices.of(batch / work.inner_batches, batch % work.inner_batches), 0);
    }
    c += batch * work.matrix_outputs;
    float total[kItems][4];
    if (walk<Way::pairs>(total)) {
      store(c, bias, total, [](int, int) { return true; });
      return;
    }
    if (threadIdx.x < kLines) {
      const Facts known = shared.lines[threadIdx.x];
      shared.lines[threadIdx.x] = with_code(known, code_of(known));
    }
    __syncthreads();
    const Found found = ways_of_tile();
    if (found.by_pairs) store(c, bias, total, [](int, int) { return true; });  // others are stored again
    compute_rest(found, c, bias);
  }
};

template <int kIndex, bool kCluster>
__global__ void __launch_bounds__(kShapes[kIndex].threads(), kShapes[kIndex].blocks())
    kernel(TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  using Shared = typename Tile<kIndex, kCluster>::Shared;
  Shared* const shared = dynamic_shared<Shared>();
  Tile<kIndex, kCluster> tile{work, *shared, {}};
  tile.block.pieces = reinterpret_cast<uint4*>(shared + 1);
  ptx::allow_launch_after();
  tile.compute(c, bias);
#endif
}

cudaError_t launch_one(const Call& call) {
  if (call.launch_count == 0) return hopper::clear(call);
  if (call.prepared.small) return split_held::run(call);
  if (call.prepared.few) return split_single::run(call);
  if (call.prepared.some) return split_some::run(call);
  const Problem& p = call.problem;
  const Shape& shape = kShapes[call.prepared.shape];
  const Operand a = operand_a(p, call.a, 4), b = operand_b(p, call.b, 4);
  const Operand* const operands[2] = {shape.of_a ? &a : &b, shape.of_a ? &b : &a};
  Work work;
  for (int i = 0; i < 2; ++i) work.sides[i] = split::side_of(*operands[i]);
  const Launch launched = call.step(0);
  work.cluster_bits = log2_of(launched.cluster);
  work.n = p.n;
  work.matrix_outputs = p.m * p.n;
  work.depth = static_cast<int>(p.k);
  work.steps = static_cast<int>(ceil_div(p.k, int64_t(kSegment)));
  work.tiles_f = static_cast<int>(ceil_div(operands[0]->lines, int64_t(shape.f_lines)));
  work.tiles_s = static_cast<int>(ceil_div(operands[1]->lines, int64_t(shape.s_lines)));
  const auto chunks = [&](int octet_bytes) {
    const int segments = static_cast<int>(ceil_div(work.steps, launched.cluster));
    return shape.chunks(segments, octet_bytes, static_cast<int>(launched.shared_bytes), launched.cluster);
  };
  work.by_pairs = chunks(kPairBytes);
  work.by_parts = chunks(kPartBytes);
  work.inner_batches = static_cast<int>(inner_batches_of(p));
  work.of_pairs = certain_of_pairs(p.k);
  return with_shape<kShapeCount>(call, [&](auto index) {
    const auto run = [&](auto kernel) {
      return launch(kernel, launched, work, static_cast<float*>(call.c), static_cast<const float*>(call.bias));
    };
    if constexpr (kShapes[index()].most_cluster() > 1) {
      if (launched.cluster > 1) return run(&kernel<index(), true>);
    }
    return run(&kernel<index(), false>);
  });
}

const Rung<launch_one> rung("split_direct");

}  // namespace treduce::matmul::split_direct
