// The kernel of split_direct that split_some.h names. A tile is up to 128 lines of W by 64 of X, and a cluster has it: each block a run of
// segments of k. A block splits its segments of X into shared memory; then each warp splits segments of 16 lines of W in the registers that it
// multiplies them from, by all lines of X. Sums of segments go to the shared memory of the block that adds them, which is another one for each
// share of the outputs. What pairs do not hold is multiplied by parts in the same way, in a second walk; or in the first one, if no pairs suit
// any line of X, of which blocks tell each other before they multiply.
#include "split_some.h"

#include "../../common/divider.h"
#include "../../primitives/cluster.cuh"
#include "../../primitives/ptx/launch.cuh"
#include "../epilogue.cuh"
#include "../hopper.cuh"
#include "split_launches.h"
#include "split_left.cuh"
#include "split_pieces.cuh"
#include "split_source.cuh"

namespace treduce::matmul::split_some {

using split::kNumbers;
constexpr uint32_t kEveryFourth = 0x11111111;
constexpr int kQuad = split::kLanes;  // lanes of a line
constexpr int kMostW = kMostSets * kSet, kMostX = kMostOctets * kOctet, kMostLines = kMostW + kMostX;

// The octets of X that are multiplied by all sets of W, whose outputs the blocks of the cluster share out: four of each lane of 16 x 8, in
// this order.
struct Range {
  int first, octets;
  int share;           // fours of a block
  uint32_t per_share;  // 2^32 / share

  static TREDUCE_HOST_DEVICE int share_of(int sets, int octets, int cluster_bits) {
    return sets * octets * 32 >> cluster_bits;
  }
  static TREDUCE_HOST_DEVICE uint32_t per_share_of(int share) { return ~0u / static_cast<uint32_t>(share) + 1; }
  TREDUCE_DEVICE int rank_of(int four) const { return static_cast<int>(__umulhi(four, per_share)); }
};

struct Work {
  split::Side w, x;
  int64_t n, matrix_outputs;
  int steps, each;  // segments of k, and of a block
  Divider sets, octets, w_tiles, x_tiles, inner_batches;
  int cluster_bits;          // of its number of blocks
  int of_pairs;              // certain_of_pairs
  Range all;                 // all octets
  int set_step, octet_step;  // warps that have the same lines

  TREDUCE_DEVICE int set_count() const { return static_cast<int>(sets.divisor); }
  TREDUCE_DEVICE int octet_count() const { return static_cast<int>(octets.divisor); }
  TREDUCE_DEVICE Range range(int first, int count) const {
    const int share = Range::share_of(set_count(), count, cluster_bits);
    return {first, count, share, Range::per_share_of(share)};
  }
};

// Of a tile's lines those of W come first, then those of X from kMostW on.
struct Shared {
  Facts found[kWarps][kMostLines], told[kMostCluster][kMostLines], lines[kMostLines];
  int units[kMostGroups][kMostLines];   // exponents
  uint32_t plain[kMostW][kMostX / 32];  // outputs of the block's share that are computed on the plain cores
  bool some_plain, some_not_finite;     // whether there are such, of finite lines and of others
  // Of an octet of X, in the segments that a warp has split: lines that no pairs suit, and above them those that are zero, a bit each.
  uint32_t unsuited[kMostCluster][kWarps];
  bool hold[kMostW];  // parts of these lines of W in units are those of the lines
  split_left::List list;
  Work work;  // for a function that is called: of a kernel's parameters it would know only where they are
};
static_assert(sizeof(Shared) <= kKnownBytes && kKnownBytes % 16 == 0);

// How a lane reads W, of which it has two lines: four steps of k as one aligned load, two lines as one, or number by number.
enum class Reading { vectors, pairs, numbers };

// kOfA: W is A; else the product is transposed. kVectorsX: four steps of k are one aligned load of X, too.
template <bool kOfA, Reading kReading, bool kVectorsX>
struct Tile {
  const Work& work;
  Shared& shared;
  int warp, rank, begin, end;  // the block's segments
  int first_w, first_x, batch;
  const float *w, *x;  // the matrices
  uint4* pieces;       // of X, [segment][octet][16 bytes of a lane][lane]
  float* scales;       // of X, [segment][line]
  float4* sums;        // [segment of k][share]

  TREDUCE_DEVICE explicit Tile(const Work& work)
      : work(work),
        shared(*dynamic_shared<Shared>()),
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0)),
        pieces(dynamic_shared<uint4>() + kKnownBytes / 16) {
    rank = work.cluster_bits == 0 ? 0 : cluster::rank();
    begin = min(rank * work.each, work.steps);
    end = min(begin + work.each, work.steps);
    // Tiles of the same lines of W are neighbours.
    uint32_t index = blockIdx.x >> work.cluster_bits;
    const auto next = [&](const Divider& count) {
      const uint32_t quotient = count.quotient_of_small(index),
                     rest = index - quotient * static_cast<uint32_t>(count.divisor);
      index = quotient;
      return static_cast<int>(rest);
    };
    first_x = next(work.x_tiles) * work.octet_count() * kOctet;
    first_w = next(work.w_tiles) * work.set_count() * kSet;
    batch = static_cast<int>(index);
    const int inner = next(work.inner_batches), outer = static_cast<int>(index);
    w = work.w.source.line(work.w.matrices.of(outer, inner), 0);
    x = work.x.source.line(work.x.matrices.of(outer, inner), 0);
    sums = reinterpret_cast<float4*>(pieces + work.each * piece_quads(work.octet_count()));
    scales = reinterpret_cast<float*>(sums + work.steps * work.all.share);
  }
  TREDUCE_DEVICE bool alone() const { return work.cluster_bits == 0; }
  TREDUCE_DEVICE int blocks() const { return 1 << work.cluster_bits; }
  TREDUCE_DEVICE void meet() const {
    if (alone()) {
      __syncthreads();
    } else {
      cluster::sync();
    }
  }
  // Writes to a variable in the shared memory of a block of the cluster.
  template <class T>
  TREDUCE_DEVICE void tell(int rank, T* here, T value) const {
    *cluster::shared_of(here, rank) = value;
  }
  TREDUCE_DEVICE static int lane() { return threadIdx.x % 32; }
  // Past the last one the last.
  TREDUCE_DEVICE const float* line_w(int line) const {
    return w + min(first_w + line, work.w.lines - 1) * work.w.source.line_stride;
  }
  TREDUCE_DEVICE const float* line_x(int line) const {
    return x + min(first_x + line, work.x.lines - 1) * work.x.source.line_stride;
  }
  TREDUCE_DEVICE bool ends_group(int segment) const {
    return (segment + 1) % kGroupSegments == 0 || segment + 1 == work.steps;
  }
  TREDUCE_DEVICE int present_in(int segment) const {
    return min(static_cast<int>(work.w.source.depth) - segment * kSegment, kSegment);
  }
  // A lane's two lines of W, of a set's 16.
  TREDUCE_DEVICE static int line_in_set(int lane, int l) {
    return kReading == Reading::pairs ? lane / kQuad * 2 + l : lane / kQuad + l * 8;
  }
  // A lane has four of every 16 steps of k: neighbours, or, where W is read number by number, every fourth, so that a load of four lanes brings
  // what lies side by side. Past the end of k are zeros.
  TREDUCE_DEVICE static void read_every_fourth(const split::Source& source, const float* line, int segment,
                                               float (&to)[kNumbers]) {
    const int k = segment * kSegment + lane() % kQuad, left = static_cast<int>(source.depth) - k;
    const float* const from = line + k * source.depth_stride;
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) {
      to[i] = i * kQuad < left ? __ldg(from + i * kQuad * source.depth_stride) : 0.0f;
    }
  }
  TREDUCE_DEVICE void read_x(const float* line, int segment, float (&to)[kNumbers]) const {
    if constexpr (kReading == Reading::numbers) {
      read_every_fourth(work.x.source, line, segment, to);
    } else {
      split_left::read<kVectorsX>(work.x.source, line, segment, to);
    }
  }
  TREDUCE_DEVICE void read_w(const float* const (&lines)[2], int segment, float (&to)[2][kNumbers]) const {
    const split::Source& source = work.w.source;
    if constexpr (kReading == Reading::pairs) {
      const int k = segment * kSegment + lane() % kQuad * 4, left = static_cast<int>(source.depth) - k;
      const float* const from = lines[0] + k * source.depth_stride;
      const float* at[4] = {from, from + source.depth_stride, from + 2 * source.depth_stride,
                            from + 3 * source.depth_stride};
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        const float2 two = i / 4 * 16 + i % 4 < left ? __ldg(reinterpret_cast<const float2*>(at[i % 4])) : float2{};
        to[0][i] = two.x, to[1][i] = two.y;
        at[i % 4] += 16 * source.depth_stride;
      }
    } else {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        if constexpr (kReading == Reading::vectors) {
          split_left::read<true>(source, lines[l], segment, to[l]);
        } else {
          read_every_fourth(source, lines[l], segment, to[l]);
        }
      }
    }
  }
  // Who has a group's last segment tells all blocks the unit.
  TREDUCE_DEVICE void tell_unit(int segment, int line, int unit) const {
    for (int to = lane() % kQuad; to < blocks(); to += kQuad) {
      tell(to, &shared.units[segment / kGroupSegments][line], unit);
    }
  }

  // ---- X: a warp has an octet, and segments that lie some apart ----

  struct Octet {
    int octet, first, step, finder;  // segments: from the first one on; and which of the warps that have the octet
    const float* line;
    float numbers[kNumbers];
    split::Sampled sampled;
  };
  TREDUCE_DEVICE Octet octet_of_warp(const Range& range) const {
    Octet o;
    const bool all = range.octets == work.octet_count();
    const int first = all ? static_cast<int>(work.octets.quotient_of_small(warp)) : warp / range.octets;
    o.finder = first;
    o.octet = warp - first * range.octets;
    o.step = all ? work.octet_step : kWarps / range.octets;
    o.first = first < o.step ? begin + first : end;  // more warps than octets take
    o.line = line_x((range.first + o.octet) * kOctet + lane() / kQuad);
    return o;
  }
  TREDUCE_DEVICE void ask(Octet& o, int segment) const {
    if (segment >= end) return;
    o.sampled = split::first_of_group<kVectorsX>(work.x.source, o.line, segment);
    read_x(o.line, segment, o.numbers);
  }
  template <int kPieces>
  TREDUCE_DEVICE uint4* pieces_of(int segment, int octet, int octets) const {
    return pieces + ((segment - begin) * octets + octet) * (kPieces * 2 * 32) + lane();
  }
  // o: asked for its first segment.
  TREDUCE_DEVICE void split_x(Octet& o) const {
    const int line = o.octet * kOctet + lane() / kQuad;
    split::Seen seen;
    int group = -1, unit = 0;
#pragma unroll 1
    for (int segment = o.first; segment < end; segment += o.step) {
      if (segment / kGroupSegments != group) {
        group = segment / kGroupSegments;
        unit = split::unit_of(work.x.source, o.line, group, o.sampled.numbers);
      }
      split::PiecesX<2> halves;
      const int exponent = split::split_numbers(o.numbers, present_in(segment), unit, halves[0], halves[1], seen);
      ask(o, segment + o.step);
      split::write_pieces<2>(pieces_of<2>(segment, o.octet, work.octet_count()), halves);
      if (lane() % kQuad == 0) {
        scales[(segment - begin) * work.octet_count() * kOctet + line] = split::power_of_two(exponent - unit);
      }
      if (ends_group(segment)) tell_unit(segment, kMostW + line, unit);
    }
    const Facts known = seen.facts();
    if (lane() % kQuad == 0) shared.found[o.finder][kMostW + line] = known;
    // A line of which every segment is such, or zero, has no output by pairs. There may be no segments.
    const bool zero = (known & kZero) != 0;
    const uint32_t unsuited = __ballot_sync(~0u, lane() % kQuad == 0 && !zero && never_pairs(known)),
                   zeros = __ballot_sync(~0u, lane() % kQuad == 0 && zero);
    if (lane() < blocks()) tell(lane(), &shared.unsuited[rank][warp], unsuited | zeros << 1);
  }
  TREDUCE_DEVICE void split_x_into_parts(const Range& range) const {
    const Octet o = octet_of_warp(range);
    const int exponent = parts_exponent(shared.lines[kMostW + (range.first + o.octet) * kOctet + lane() / kQuad]);
#pragma unroll 1
    for (int segment = o.first; segment < end; segment += o.step) {
      float numbers[kNumbers];
      read_x(o.line, segment, numbers);
      split::PiecesX<kParts> parts;
      split::split_pieces(numbers, exponent, parts);
      split::write_pieces<kParts>(pieces_of<kParts>(segment, o.octet, range.octets), parts);
    }
  }

  // ---- W: a warp has 16 lines, and segments that lie some apart ----

  struct Set {
    int set, first, step, finder;
    const float* lines[2];  // side by side, if they are read as pairs
  };
  // Of a tile's lines one of a lane's two.
  TREDUCE_DEVICE static int line_of(const Set& s, int l) { return s.set * kSet + line_in_set(lane(), l); }
  TREDUCE_DEVICE Set set_of_warp() const {
    Set s;
    const int first = static_cast<int>(work.sets.quotient_of_small(warp));
    s.finder = first;
    s.set = warp - first * work.set_count();
    s.step = work.set_step;
    s.first = first < s.step ? begin + first : end;
#pragma unroll
    for (int l = 0; l < 2; ++l) s.lines[l] = line_w(line_of(s, l));
    if constexpr (kReading == Reading::pairs) s.lines[0] = s.lines[1] - 1;  // past the last line, too
    return s;
  }
  // Tells the sums of 16 lines of W by an octet of a range.
  TREDUCE_DEVICE void tell_sums(const Range& range, int segment, int item, const float (&value)[4]) const {
    const int four = item * 32 + lane(), to = range.rank_of(four);
    tell(to, sums + segment * range.share + four - to * range.share, float4{value[0], value[1], value[2], value[3]});
  }

  // Whether no line of X has outputs by pairs. The same in the whole cluster, of which all have split theirs. Who calls: all lanes of a warp.
  TREDUCE_DEVICE bool all_by_parts() const {
    if (work.octet_count() > kMostPartOctets) return false;
    uint32_t never = ~0u, some = 0;
#pragma unroll
    for (int i = 0; i < kMostCluster * kWarps / 32; ++i) {
      const int from = i * 32 / kWarps + lane() / kWarps, of_block = lane() % kWarps;
      if (from >= blocks()) continue;
      const int octet = of_block - static_cast<int>(work.octets.quotient_of_small(of_block)) * work.octet_count();
      const uint32_t found = shared.unsuited[from][of_block];
      // Every fourth bit is a line's; those of the octets lie beside one another.
      const uint32_t is = (found & kEveryFourth) << octet, zero = (found >> 1 & kEveryFourth) << octet;
      never &= is | zero | ~(kEveryFourth << octet);
      some |= is;
    }
    const uint32_t all = __reduce_and_sync(~0u, never) & __reduce_or_sync(~0u, some);
    uint32_t wanted = 0;
    for (int octet = 0; octet < work.octet_count(); ++octet) wanted |= kEveryFourth << octet;
    return (all & wanted) == wanted;
  }

  // Returns whether it was left to multiply, for all of X is by parts.
  TREDUCE_DEVICE bool multiply_pairs(const Range& range) const {
    const Set mine = set_of_warp();
    float numbers[2][kNumbers];
    split::Sampled sampled[2];
    split::KnownLines known;
    int group = -1, unit[2] = {};
    // A segment is asked for once the one before it is split.
    const auto ask_w = [&](int segment) {
      if (segment >= end) return;
      read_w(mine.lines, segment, numbers);
      if (segment / kGroupSegments == group) return;
#pragma unroll
      for (int l = 0; l < 2; ++l)
        sampled[l] = split::first_of_group<kReading == Reading::vectors>(work.w.source, mine.lines[l], segment);
    };
    {
      // X is split first, so it is asked for first.
      Octet octet = octet_of_warp(range);
      ask(octet, octet.first);
      ask_w(mine.first);
      if (!alone()) cluster::wait();  // all blocks have begun, so they may be told of what is found
      split_x(octet);
    }
    if (!alone()) cluster::arrive();
    int segment = mine.first;
    do {
      split::Pieces<2> of_w;
      float scale[2];
      if (segment < end) {
        if (segment / kGroupSegments != group) {
          group = segment / kGroupSegments;
#pragma unroll
          for (int l = 0; l < 2; ++l) unit[l] = split::unit_of(work.w.source, mine.lines[l], group, sampled[l].numbers);
        }
        split::split_two_lines(numbers, present_in(segment), unit, of_w, scale, known);
        ask_w(segment + mine.step);
      }
      if (segment == mine.first) {
        // X has been split.
        if (alone()) {
          __syncthreads();
        } else {
          cluster::wait();
        }
        if (all_by_parts()) return true;
        if (segment >= end) break;
      }
      if (ends_group(segment)) {
#pragma unroll
        for (int l = 0; l < 2; ++l) tell_unit(segment, line_of(mine, l), unit[l]);
      }
      const float2* const scales_x =
          reinterpret_cast<const float2*>(scales + (segment - begin) * work.octet_count() * kOctet) + lane() % kQuad;
#pragma unroll 2
      for (int octet = 0; octet < range.octets; ++octet) {
        split::PiecesX<2> of_x;
        split::read_pieces<2>(pieces_of<2>(segment, octet, range.octets), of_x);
        const float2 scale_x = scales_x[octet * (kOctet / 2)];
        float high[4] = {}, rest[4] = {}, value[4] = {};
        split::multiply_segment<float16, 2, kOfA>(high, rest, of_w, of_x);
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          split::add_segment(value[o], high[o], rest[o], scale[o / 2] * (o % 2 == 0 ? scale_x.x : scale_x.y));
        }
        tell_sums(range, segment, mine.set * range.octets + octet, value);
      }
      segment += mine.step;
    } while (segment < end);
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      if (lane() % kQuad == 0) shared.found[mine.finder][line_of(mine, l)] = known.facts(l);
    }
    return false;
  }

  // Multiplies by two octets, so that neither chain of multiplications is waited for: of each product one part of X is in registers. If there
  // is but one octet, the second is the first again.
  TREDUCE_DEVICE void multiply_two(const Range& range, int segment, int octet, const split::Pieces<kParts>& of_w,
                                   float (&value)[2][4]) const {
    const uint4* const x[2] = {pieces_of<kParts>(segment, octet, range.octets),
                               pieces_of<kParts>(segment, min(octet + 1, range.octets - 1), range.octets)};
    float high[2][4] = {}, rest[2][4] = {};
    const auto multiply = [&](float (&to)[2][4], PieceProduct pieces) {
      const uint32_t (&w)[2][kNumbers / 2] = of_w[kOfA ? pieces.a : pieces.b];
      const int part = kOfA ? pieces.b : pieces.a;
      uint4 fours[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) fours[i / 2][i % 2] = x[i / 2][(part * 2 + i % 2) * 32];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t words[4] = {w[0][i * 2], w[1][i * 2], w[0][i * 2 + 1], w[1][i * 2 + 1]};
#pragma unroll
        for (int o = 0; o < 2; ++o) {
          const uint4 four = fours[o][i / 2];
          ptx::multiply(bfloat16{}, to[o], words, i % 2 == 0 ? four.x : four.z, i % 2 == 0 ? four.y : four.w);
        }
      }
    };
    multiply(high, {0, 0});
#pragma unroll
    for (int product = 0; product < kRestProducts<kParts>; ++product) multiply(rest, rest_product<kParts>(product));
#pragma unroll
    for (int o = 0; o < 2; ++o) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[o][i] = 0;
        split::add_parts(value[o][i], high[o][i], rest[o][i]);
      }
    }
  }
  // kInUnits: parts are taken in units of W's groups, not of its lines, of which this finds out what they are like. all_ready() waits until X's
  // parts are there, and sums may be told.
  template <bool kInUnits, class Wait>
  TREDUCE_DEVICE void multiply_parts(const Range& range, Wait all_ready) const {
    const Set mine = set_of_warp();
    int exponents[2], group = -1;
    split::KnownLines known;
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      if (!kInUnits) exponents[l] = parts_exponent(shared.lines[line_of(mine, l)]);
    }
    // Not asked for ahead: registers are few.
    int segment = mine.first;
    do {
      float numbers[2][kNumbers];
      read_w(mine.lines, segment, numbers);
      if (segment == mine.first) all_ready();
      if (segment >= end) break;
      if constexpr (kInUnits) {
        if (segment / kGroupSegments != group) {
          group = segment / kGroupSegments;
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            const split::Sampled sampled =
                split::first_of_group<kReading == Reading::vectors>(work.w.source, mine.lines[l], segment);
            exponents[l] = -split::unit_of(work.w.source, mine.lines[l], group, sampled.numbers);
          }
        }
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          known.join(l, split::Extremes::of<kQuad>(numbers[l]));
          if (ends_group(segment)) tell_unit(segment, line_of(mine, l), -exponents[l]);
        }
        // Lines that have such numbers are multiplied again.
        const bool hold = parts_hold(known.facts(0), -exponents[0]) || parts_hold(known.facts(1), -exponents[1]);
        if (!__any_sync(~0u, hold)) {
          segment += mine.step;
          continue;
        }
      }
      split::Pieces<kParts> of_w;
#pragma unroll
      for (int l = 0; l < 2; ++l) split::split_pieces(numbers[l], split::power_of_two(exponents[l]), l, of_w);
#pragma unroll 1
      for (int octet = 0; octet < range.octets; octet += 2) {
        float value[2][4];
        multiply_two(range, segment, octet, of_w, value);
#pragma unroll
        for (int o = 0; o < 2; ++o) {
          if (octet + o < range.octets) tell_sums(range, segment, mine.set * range.octets + octet + o, value[o]);
        }
      }
      segment += mine.step;
    } while (segment < end);
    if constexpr (kInUnits) {
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        if (lane() % kQuad == 0) shared.found[mine.finder][line_of(mine, l)] = known.facts(l);
      }
    }
  }

  // ---- what is known of the lines ----

  // Of those whose facts are wanted, W's or X's or both; of others these are as they were. Returns whether pairs suit all. Who calls: all
  // threads of the cluster, which meet within.
  TREDUCE_DEVICE bool share_facts(bool wants_w, bool wants_x) const {
    __syncthreads();  // all have found theirs
    const int line = threadIdx.x;
    const bool of_w = line < kMostW, of_tile = line < kMostLines;
    const bool exists =
        of_w ? line < work.set_count() * kSet && first_w + line < work.w.lines
             : of_tile && line - kMostW < work.octet_count() * kOctet && first_x + line - kMostW < work.x.lines;
    const bool wanted = exists && (of_w ? wants_w : wants_x);
    if (wanted) {
      const int finders = of_w ? work.set_step : work.octet_step;
      Facts known = kNoFacts;
      for (int i = 0; i < finders; ++i) known = join(known, shared.found[i][line]);
      for (int to = 0; to < blocks(); ++to) tell(to, &shared.told[rank][line], known);
    }
    meet();
    Facts known = kPlainestFacts;
    if (wanted) {
      known = kNoFacts;
      for (int from = 0; from < blocks(); ++from) known = join(known, shared.told[from][line]);
    }
    if (of_tile && (wanted || !exists)) shared.lines[line] = with_code(known, code_of(known));
    return __syncthreads_and(suits_pairs(known)) != 0;
  }
  TREDUCE_DEVICE unsigned code(int line) const { return code_above(shared.lines[line]); }

  // ---- outputs ----

  // Where an output lies, of lines of the tile.
  struct Place {
    int of_w, of_x;
    int64_t at, column;
    bool exists;
  };
  TREDUCE_DEVICE Place place(int of_w, int of_x) const {
    const int64_t line = first_w + of_w, row = first_x + of_x;
    return {of_w, of_x, kOfA ? line * work.n + row : row * work.n + line, kOfA ? row : line,
            line < work.w.lines && row < work.x.lines};
  }
  TREDUCE_DEVICE Arithmetic arithmetic(const Place& p) const {
    return arithmetic_of(code(p.of_w), code(kMostW + p.of_x));
  }
  TREDUCE_DEVICE Facts facts_w(const Place& p) const { return shared.lines[p.of_w]; }
  TREDUCE_DEVICE Facts facts_x(const Place& p) const { return shared.lines[kMostW + p.of_x]; }

  // Adds the sums of all segments, in their order, a thread an output of the block's share: store(place, sum). kUnitsW, kUnitsX: sums are in
  // units of the groups, not of the lines.
  template <bool kUnitsW, bool kUnitsX, class Store>
  TREDUCE_DEVICE void add(const Range& range, Store store) const {
    const int outputs = range.share * 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < outputs; i += kThreads) {
      const int index = rank * outputs + i, item = index / 128, of_lane = index / 4 % 32;
      const int set = range.octets == work.octet_count() ? static_cast<int>(work.octets.quotient_of_small(item))
                                                         : item / range.octets;
      const int of_w = set * kSet + line_in_set(of_lane, i / 2 % 2),
                of_x = (range.first + item - set * range.octets) * kOctet + of_lane % kQuad * 2 + i % 2;
      const float* from = reinterpret_cast<const float*>(sums) + i;
      float total;
#pragma unroll 1
      for (int first = 0; first < work.steps; first += kGroupSegments) {
        const int count = min(work.steps - first, kGroupSegments), group = first / kGroupSegments;
        float sum = 0;
#pragma unroll 8
        for (int segment = 0; segment < count; ++segment, from += outputs) sum += *from;
        const auto unit = [&](bool of_group, int line) {
          return of_group ? shared.units[group][line] : -parts_exponent(shared.lines[line]);
        };
        sum = split::from_units(sum, unit(kUnitsW, of_w), unit(kUnitsX, kMostW + of_x));
        total = first == 0 ? sum : total + sum;
      }
      const Place p = place(of_w, of_x);
      if (p.exists) store(p, total);
    }
  }
  TREDUCE_DEVICE static float with_bias(const Place& p, float sum, const float* bias) {
    return bias == nullptr ? sum : canonical(sum + __ldg(bias + p.column));
  }

  // Calls body(i) for each i below `count`, whole warps, for which is(i). Who calls: all lanes of a warp, or of a block.
  template <class Is, class Body>
  TREDUCE_DEVICE static void for_each_set(int count, Is is, Body body) {
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
#pragma unroll 1
      for (uint32_t some = __ballot_sync(~0u, is(first + lane())); some != 0; some &= some - 1) {
        body(first + __ffs(some) - 1);
      }
    }
  }

  // Outputs of finite lines on the plain cores, a warp an output. Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_plain(float* c, const float* bias) const {
    int turn = 0;
    for_each_set(
        kMostW * kMostX / 32, [&](int word) { return shared.plain[0][word] != 0; },
        [&](int word) {
#pragma unroll 1
          for (uint32_t some = shared.plain[0][word]; some != 0; some &= some - 1) {
            const Place p = place(word / (kMostX / 32), word % (kMostX / 32) * 32 + __ffs(some) - 1);
            if (!all_finite(facts_w(p)) || !all_finite(facts_x(p)) || turn++ % kWarps != warp) continue;
            const float sum = split::plain_sum(line_w(p.of_w), work.w.source.depth_stride, line_x(p.of_x),
                                               work.x.source.depth_stride, work.w.source.depth);
            if (lane() == 0) c[p.at] = canonical(with_bias(p, sum, bias));
          }
        });
  }

  // Outputs of lines with an infinity or a NaN, of which only products with such factors count: their places are listed, a line after another.
  // Who calls: all threads of the block, which no longer needs the sums. Synchronises within.
  TREDUCE_DEVICE void compute_not_finite(float* c, const float* bias) const {
    split_left::List& list = shared.list;
    const int sets = work.set_count() * kSet, octets = work.octet_count() * kOctet;
    const int depth = static_cast<int>(work.w.source.depth);
    unsigned* const all_found = reinterpret_cast<unsigned*>(sums);  // of each output
    for (int i = threadIdx.x; i < sets * octets; i += kThreads) all_found[i] = 0;
    const auto is_left = [&](int of_w, int of_x) { return (shared.plain[of_w][of_x / 32] >> of_x % 32 & 1) != 0; };
    for_each_set(
        kMostLines, [&](int line) { return !all_finite(shared.lines[line]); },
        [&](int line) {
          const bool of_w = line < kMostW;
          const int at = of_w ? line : line - kMostW;
          const float* const mine = of_w ? line_w(at) : line_x(at);
          const int64_t my_step = (of_w ? work.w : work.x).source.depth_stride,
                        step = (of_w ? work.x : work.w).source.depth_stride;
          __syncthreads();  // the line before has been used
          if (threadIdx.x == 0) list.count = 0;
          __syncthreads();
#pragma unroll 4
          for (int k = threadIdx.x; k < depth; k += kThreads) {
            if (split::is_finite(__ldg(mine + k * my_step))) continue;
            const int place = atomicAdd(&list.count, 1);
            if (place < split_left::List::kMost) list.places[place] = k;
          }
          __syncthreads();
          // A thread has a share of the places, with one of the other lines.
          constexpr int kOthers = kMostW > kMostX ? kMostW : kMostX;
          const bool listed = list.count <= split_left::List::kMost;
          const int count = listed ? list.count : depth, other = threadIdx.x % kOthers;
          if (other >= (of_w ? octets : sets) || !is_left(of_w ? at : other, of_w ? other : at)) return;
          const float* const others = of_w ? line_x(other) : line_w(other);
          unsigned found = 0;
#pragma unroll 1
          for (int i = threadIdx.x / kOthers; i < count; i += kThreads / kOthers) {
            const int k = listed ? list.places[i] : i;
            const float number = __ldg(mine + k * my_step);
            if (!split::is_finite(number)) found |= split::not_finite(number * __ldg(others + k * step));
          }
          if (found != 0) atomicOr(all_found + (of_w ? at * octets + other : other * octets + at), found);
        });
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < sets * octets; i += kThreads) {
      const Place p = place(i / octets, i % octets);
      if (!is_left(p.of_w, p.of_x) || (all_finite(facts_w(p)) && all_finite(facts_x(p)))) continue;
      c[p.at] = canonical(with_bias(p, split::sum_of(all_found[i]), bias));
    }
  }

  // Where pairs do not suit all: rare. at_once: nothing has been multiplied, for all of X is by parts. Who calls: all threads of the cluster.
  TREDUCE_DEVICE void compute_left(bool at_once, float* c, const float* bias) const {
    if (at_once) {
      share_facts(false, true);
      split_x_into_parts(work.all);
      multiply_parts<true>(work.all, [] { __syncthreads(); });
      share_facts(true, false);
    }
    uint32_t codes_w = 0, codes_x = 0;
#pragma unroll 1
    for (int line = lane(); line < kMostLines; line += 32) {
      const uint32_t set = set_of(code(line));
      (line < kMostW ? codes_w : codes_x) |= set;
    }
    codes_w = __reduce_or_sync(~0u, codes_w);
    codes_x = __reduce_or_sync(~0u, codes_x);
    bool all_hold = false;
    if (at_once) {
      bool holds = true;
      if (threadIdx.x < kMostW) {
        for (int group = 0; group * kGroupSegments < work.steps; ++group) {
          holds = holds && parts_hold(shared.lines[threadIdx.x], shared.units[group][threadIdx.x]);
        }
        // One that does not exist has no unit, and one that is not finite no outputs by parts.
        const int line = threadIdx.x;
        holds = holds || line >= work.set_count() * kSet || first_w + line >= work.w.lines ||
                code(line) / kCodeRange == kRangeNothing;
        shared.hold[line] = holds;
      }
      all_hold = __syncthreads_and(holds) != 0;
    }
    const auto leave = [&](const Place& p) {
      atomicOr(&shared.plain[p.of_w][p.of_x / 32], 1u << p.of_x % 32);
      (all_finite(facts_w(p)) && all_finite(facts_x(p)) ? shared.some_plain : shared.some_not_finite) = true;
    };
    const auto store = [&](const Place& p, float sum, bool checked, int orders) {
      const float result = with_bias(p, sum, bias);
      c[p.at] = result;
      if (checked && !is_certain(__float_as_uint(result), facts_w(p), facts_x(p), orders)) leave(p);
    };
    const auto store_parts = [&](const Place& p, float sum, bool holds) {
      const Arithmetic way = arithmetic(p);
      if (by_parts(way) && holds) store(p, sum, way == Arithmetic::checked_parts, kCertain);
      return way;
    };
    const auto any = [&](auto with) { return split::any_output(codes_w, codes_x, with); };
    if (at_once) {
      add<true, false>(work.all, [&](const Place& p, float sum) {
        if (store_parts(p, sum, shared.hold[p.of_w]) == Arithmetic::plain) leave(p);
      });
    } else if (any([](unsigned a) { return codes_by_pairs(a) | codes_with(a, Arithmetic::plain); })) {
      add<true, true>(work.all, [&](const Place& p, float sum) {
        const Arithmetic way = arithmetic(p);
        if (by_pairs(way)) store(p, sum, way == Arithmetic::checked_pairs, work.of_pairs);
        if (way == Arithmetic::plain) leave(p);
      });
    }
    if (!all_hold && any([](unsigned a) { return codes_by_parts(a); })) {
#pragma unroll 1
      for (int first = 0; first < work.octet_count(); first += kMostPartOctets) {
        const Range range = work.range(first, min(work.octet_count() - first, kMostPartOctets));
        if (!at_once) split_x_into_parts(range);
        // All have read the sums before, and a block's warps have split X.
        multiply_parts<false>(range, [&] {
          __syncthreads();
          if (alone()) return;
          cluster::arrive_relaxed();
          cluster::wait();
        });
        meet();
        add<false, false>(range,
                          [&](const Place& p, float sum) { store_parts(p, sum, !(at_once && shared.hold[p.of_w])); });
      }
    }
    __syncthreads();
    if (shared.some_plain) compute_plain(c, bias);
    if (shared.some_not_finite) compute_not_finite(c, bias);
  }
  // A call, for which the loop before keeps its registers. A reference to the tile would be one to local memory.
  static __device__ __noinline__ void call_left(bool at_once, float* c, const float* bias) {
    Tile(dynamic_shared<Shared>()->work).compute_left(at_once, c, bias);
  }

  TREDUCE_DEVICE void compute(float* c, const float* bias) const {
    if (!alone()) cluster::arrive_relaxed();
    for (int i = threadIdx.x; i < kMostW * kMostX / 32; i += kThreads) shared.plain[0][i] = 0;
    if (threadIdx.x == 0) shared.some_plain = shared.some_not_finite = false;
    c += batch * work.matrix_outputs;
    ptx::wait_for_launch_before();
    const bool at_once = multiply_pairs(work.all);
    if (!at_once && share_facts(true, true)) {
      add<true, true>(work.all, [&](const Place& p, float sum) { c[p.at] = with_bias(p, sum, bias); });
    } else {
      if (threadIdx.x == 0) shared.work = work;
      __syncthreads();
      call_left(at_once, c, bias);
    }
  }
};

template <bool kOfA, Reading kReading, bool kVectorsX>
__global__ void __launch_bounds__(kThreads, 1) kernel(TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  Tile<kOfA, kReading, kVectorsX>(work).compute(c, bias);
#endif
}

cudaError_t run(const Call& call) {
  const Problem& p = call.problem;
  const Operand a = operand_a(p, call.a, 4), b = operand_b(p, call.b, 4);
  const bool of_a = split::longer_is_a(p);
  const Launch launched = call.step(0);
  const int64_t tile_w = of_a ? call.prepared.tile_m : call.prepared.tile_n,
                tile_x = of_a ? call.prepared.tile_n : call.prepared.tile_m;
  Work work;
  work.w = split::side_of(of_a ? a : b);
  work.x = split::side_of(of_a ? b : a);
  work.n = p.n;
  work.matrix_outputs = p.m * p.n;
  work.steps = static_cast<int>(ceil_div(p.k, int64_t(kSegment)));
  work.each = static_cast<int>(ceil_div(work.steps, launched.cluster));
  const int sets = static_cast<int>(tile_w / kSet), octets = static_cast<int>(tile_x / kOctet);
  work.sets = Divider(sets);
  work.octets = Divider(octets);
  work.w_tiles = Divider(ceil_div(int64_t(work.w.lines), tile_w));
  work.x_tiles = Divider(ceil_div(int64_t(work.x.lines), tile_x));
  work.inner_batches = Divider(inner_batches_of(p));
  work.cluster_bits = log2_of(launched.cluster);
  work.set_step = kWarps / sets;
  work.octet_step = kWarps / octets;
  const int share = Range::share_of(sets, octets, work.cluster_bits);
  work.all = {0, octets, share, Range::per_share_of(share)};
  work.of_pairs = certain_of_pairs(p.k);
  const split::Source& w = work.w.source;
  const bool pairs = w.line_stride == 1 && work.w.lines % 2 == 0 && w.depth_stride % 2 == 0 &&
                     w.batch_stride[0] % 2 == 0 && w.batch_stride[1] % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(w.data) % 8 == 0;
  const Reading reading = work.w.vectors ? Reading::vectors : pairs ? Reading::pairs : Reading::numbers;
  const auto run = [&](auto function) {
    return launch(function, launched, work, static_cast<float*>(call.c), static_cast<const float*>(call.bias));
  };
  const auto by = [&](auto is_of_a) {
    constexpr bool kOfA = decltype(is_of_a)::value;
    const bool vectors = work.x.vectors;
    switch (reading) {
      case Reading::vectors:
        return run(vectors ? &kernel<kOfA, Reading::vectors, true> : &kernel<kOfA, Reading::vectors, false>);
      case Reading::pairs:
        return run(vectors ? &kernel<kOfA, Reading::pairs, true> : &kernel<kOfA, Reading::pairs, false>);
      default: return run(&kernel<kOfA, Reading::numbers, false>);
    }
  };
  return of_a ? by(std::true_type{}) : by(std::false_type{});
}

}  // namespace treduce::matmul::split_some
