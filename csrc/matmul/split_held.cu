// split_direct where one operand has few lines (X), the other many (W), and k is short, as a search among vectors has them, and attention
// over an odd number of tokens: a block splits X into shared memory once, and then its warps walk W, each 16 lines at a time, which they
// split in the registers that they multiply from. So W is read and split once, nothing of it goes through shared memory, and warps wait
// for each other only where pairs do not suit all outputs. What they do not suit the block computes as well: by parts, and on the plain
// cores.
#include "split_held.h"

#include <type_traits>

#include "../primitives/ptx/atomic.cuh"
#include "hopper.cuh"
#include "split_launches.h"
#include "split_pieces.cuh"
#include "split_source.cuh"

namespace treduce::matmul::split_held {

using split::kNumbers;
using split::Line;
using split::Pieces;
using split::PiecesX;
using split::Side;

struct Work {
  Side w, x;
  int64_t n, matrix_outputs;
  int depth, steps, tiles_w, tiles_x, shares, inner_batches, pieces_bytes;
};

// The exponent of its unit, from a lane's first numbers. Who calls: all lanes of a warp.
TREDUCE_DEVICE int unit_of(const Side& side, const Line& line, const float (&first)[4]) {
  return split::unit_of(side.source, reinterpret_cast<const float*>(line.data), 0, first);
}

struct Shared {
  Facts lines[kRows];  // of X
  int units[kRows];    // exponents
  bool all_close, none_spread, none_never;
  // Where pairs do not suit all outputs: facts of W, codes of each eight of X as a set, and which eights have outputs by parts, or at last
  // on the plain cores: of each tile, and of all.
  Facts lines_w[kMostTiles * kTile];
  uint32_t codes[kRows / kOctet];
  unsigned char parts[kMostTiles], plain[kMostTiles];
  uint32_t all_parts, left[kWarps];  // of each warp's tiles, a bit for each: what pairs do not suit is left
};
static_assert(kMostTiles / kWarps <= 32);
static_assert(sizeof(Shared) <= kSharedBytes && kSharedBytes % 16 == 0);

// kOfA: W is A; else the product is transposed. kOctets: eights of X, at most. kVectors: four steps of W's k are one aligned load.
template <bool kOfA, int kOctets, bool kVectors>
struct Block {
  const Work& work;
  Shared& shared;
  uint4* pieces;  // of X: [segment][octet][16 bytes of a lane][lane]
  float* scales;  // and [segment][line]
  Facts* facts;   // and [segment][line]
  int64_t matrix_w, matrix_x;
  int first_x, octets;  // of X
  float* c;
  const float* bias;

  TREDUCE_DEVICE static int warps() { return static_cast<int>(blockDim.x) / 32; }

  // ---- X, in shared memory: its octets, which are eights of lines, and segments ----

  template <int kPieces>
  TREDUCE_DEVICE uint4* piece(int place) const {
    return pieces + place * (kPieces * 2 * 32) + threadIdx.x % 32;
  }
  TREDUCE_DEVICE int line_of_octet(int octet) const { return octet * kOctet + static_cast<int>(threadIdx.x % 32 / 4); }
  // Past the last line the last.
  TREDUCE_DEVICE Line line_x(int octet) const {
    return {work.x, matrix_x, min(first_x + line_of_octet(octet), work.x.lines - 1)};
  }
  TREDUCE_DEVICE int present(int segment) const { return min(kSegment, work.depth - segment * kSegment); }

  // Into halves, and finds out what is to be known of the lines. Who calls: all threads of the block.
  TREDUCE_DEVICE void split_halves() const {
    for (int job = threadIdx.x / 32; job < octets * work.steps; job += warps()) {
      const int octet = job % octets, segment = job / octets, line = line_of_octet(octet);
      const Line from = line_x(octet);
      float first[4], numbers[kNumbers];
      from.read_first(work.x, first);
      from.read(work.x, segment, numbers);
      const int unit = unit_of(work.x, from, first);
      uint32_t words[2][kNumbers / 2];
      int exponent;
      unsigned flags;
      const split::Extremes extremes = split::split_segment<kNumbers, split::kLanes>(
          numbers, present(segment), unit, words[0], words[1], exponent, flags);
      split::write_pieces<2>(piece<2>(job), words);
      if (threadIdx.x % split::kLanes != 0) continue;
      scales[segment * kRows + line] = split::power_of_two(exponent - unit);
      facts[segment * kRows + line] = extremes.facts(flags);
      if (segment == 0) shared.units[line] = unit;
    }
    __syncthreads();
    if (threadIdx.x < kRows) {
      Facts known = kNoFacts;
      for (int i = 0; i < work.steps; ++i) known = join(known, facts[i * kRows + threadIdx.x]);
      shared.lines[threadIdx.x] = first_x + static_cast<int>(threadIdx.x) < work.x.lines ? known : kPlainestFacts;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      // What decides for most lines of W.
      bool all_close = true, none_spread = true, none_never = true;
      for (int i = threadIdx.x; i < octets * kOctet; i += 32) {
        const unsigned kind = kind_of(shared.lines[i]);
        all_close = all_close && kind == kCodeClose;
        none_spread = none_spread && kind != kCodeSpread;
        none_never = none_never && kind != 0;
      }
      shared.all_close = __all_sync(~0u, all_close);
      shared.none_spread = __all_sync(~0u, none_spread);
      shared.none_never = __all_sync(~0u, none_never);
    }
    if (threadIdx.x < kWarps) shared.left[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.all_parts = 0;
    __syncthreads();
  }

  // ---- a warp's 16 lines of W ----

  // What is known of this lane's two lines.
  struct Lines {
    int first;
    Facts known[2];
    TREDUCE_DEVICE Facts of(int o) const { return o < 2 ? known[0] : known[1]; }
  };
  TREDUCE_DEVICE int line_w(int first, int l) const { return first + static_cast<int>(threadIdx.x % 32 / 4) + l * 8; }
  TREDUCE_DEVICE Line from_w(int first, int l) const {
    return {work.w, matrix_w, min(line_w(first, l), work.w.lines - 1)};
  }
  // Of X, of the tile.
  TREDUCE_DEVICE static int column(int octet, int o) { return octet * kOctet + threadIdx.x % 4 * 2 + o % 2; }

  TREDUCE_DEVICE Arithmetic arithmetic(const Lines& lines, int octet, int o) const {
    return arithmetic_of(code_of(lines.of(o)), code_of(shared.lines[column(octet, o)]));
  }
  TREDUCE_DEVICE bool exists(const Lines& lines, int octet, int o) const {
    return line_w(lines.first, o / 2) < work.w.lines && first_x + column(octet, o) < work.x.lines;
  }
  // Which outputs of an octet are computed so, a bit each. What few tiles need is written as loops: its instructions have to be fetched
  // first, which takes longer than to execute them.
  template <class Which>
  TREDUCE_DEVICE unsigned outputs(const Lines& lines, int octet, Which which) const {
    unsigned found = 0;
#pragma unroll 1
    for (int o = 0; o < 4; ++o) found |= which(arithmetic(lines, octet, o)) ? 1u << o : 0;
    return found;
  }
  TREDUCE_DEVICE float* place_of(const Lines& lines, int octet, int o) const {
    const int64_t of_w = line_w(lines.first, o / 2), of_x = first_x + column(octet, o);
    return c + (kOfA ? of_w * work.n + of_x : of_x * work.n + of_w);
  }
  TREDUCE_DEVICE float with_bias(float sum, const Lines& lines, int octet, int o) const {
    if (bias == nullptr) return sum;
    const int n = kOfA ? first_x + column(octet, o) : line_w(lines.first, o / 2);
    return canonical(sum + __ldg(bias + min(n, (kOfA ? work.x : work.w).lines - 1)));
  }

  // Asks the L2 for a segment of a tile; of its next one where it has no more.
  TREDUCE_DEVICE void prefetch(int first, int segment) const {
    if (segment >= work.steps) {
      segment -= work.steps;
      first += warps() * kTile;
    }
    const int64_t step = work.w.source.depth_stride;
    const int lane = threadIdx.x % 32, line = step == 1 ? first + lane / 2 : first;
    if (segment >= work.steps || line >= work.w.lines) return;
    const float* const from = work.w.source.line(static_cast<uint32_t>(matrix_w), line);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = segment * kSegment + (step == 1 ? lane % 2 * 32 + i * 31 : i * 32 + lane);
      if (k < work.depth) ptx::prefetch_l2(from + k * step);
    }
  }

  // By pairs. What is found out about W: Lines.
  TREDUCE_DEVICE void multiply_pairs(Lines& lines, float (&acc)[kOctets][4]) const {
    const Line from[2] = {from_w(lines.first, 0), from_w(lines.first, 1)};
    float next[2][kNumbers];
    int unit[2];
#pragma unroll
    for (int l = 0; l < 2; ++l) from[l].template read<kVectors>(work.w, 0, next[l]);
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const float first[4] = {next[l][0], next[l][1], next[l][2], next[l][3]};
      unit[l] = unit_of(work.w, from[l], first);
      lines.known[l] = kNoFacts;
    }
#pragma unroll 1
    for (int segment = 0; segment < work.steps; ++segment) {
      prefetch(lines.first, segment + 2);
      Pieces<2> w;
      float scale[2];
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        int exponent;
        unsigned flags;
        const split::Extremes extremes = split::split_segment<kNumbers, split::kLanes>(
            next[l], present(segment), unit[l], w[0][l], w[1][l], exponent, flags);
        lines.known[l] = join(lines.known[l], extremes.facts(flags));
        scale[l] = split::power_of_two(exponent - unit[l]);
        if (segment + 1 < work.steps) from[l].template read<kVectors>(work.w, segment + 1, next[l]);
      }
      const float2* const scales_x = reinterpret_cast<const float2*>(scales + segment * kRows) + threadIdx.x % 4;
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
        if (octet >= octets) break;
        PiecesX<2> x;
        split::read_pieces<2>(piece<2>(segment * octets + octet), x);
        const float2 of_x = scales_x[octet * 4];
        float high[4] = {}, rest[4] = {};
        split::multiply_segment<float16, 2, kOfA>(high, rest, w, x);
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          split::add_segment(acc[octet][o], high[o], rest[o], scale[o / 2] * (o % 2 == 0 ? of_x.x : of_x.y));
        }
      }
    }
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
      if (octet >= octets) break;
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        acc[octet][o] = split::from_units(acc[octet][o], unit[o / 2], shared.units[column(octet, o)]);
      }
    }
  }

  // Stores all outputs of an octet, where all exist and there is no bias.
  TREDUCE_DEVICE void store_all(const float (&sums)[4], const Lines& lines, int octet) const {
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      float* const at = place_of(lines, octet, l * 2);
      if constexpr (kOfA) {
        *reinterpret_cast<float2*>(at) = {sums[l * 2], sums[l * 2 + 1]};
      } else {
        at[0] = sums[l * 2];
        at[work.n] = sums[l * 2 + 1];
      }
    }
  }
  // Those of an octet that is not known when this is compiled.
  template <int kCount>
  TREDUCE_DEVICE static void select(const float (&acc)[kCount][4], int octet, float (&sums)[4]) {
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      sums[o] = acc[0][o];
#pragma unroll
      for (int i = 1; i < kCount; ++i) sums[o] = i == octet ? acc[i][o] : sums[o];
    }
  }
  // Stores the outputs of an octet that are `wanted`, a bit each. aligned: pairs of them.
  TREDUCE_DEVICE void store(const float (&sums)[4], const Lines& lines, int octet, bool aligned,
                            unsigned wanted) const {
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const int o = l * 2;
      const bool want[2] = {exists(lines, octet, o) && (wanted >> o & 1) != 0,
                            exists(lines, octet, o + 1) && (wanted >> (o + 1) & 1) != 0};
      float* const at = place_of(lines, octet, o);
      const float2 both = {with_bias(sums[o], lines, octet, o), with_bias(sums[o + 1], lines, octet, o + 1)};
      if (aligned && want[0] && want[1]) {
        *reinterpret_cast<float2*>(at) = both;
      } else {
        if (want[0]) at[0] = both.x;
        if (want[1]) at[kOfA ? 1 : work.n] = both.y;
      }
    }
  }

  // ---- what pairs do not suit ----

  // Octets of X whose parts fit at a time, all segments; and no more than sums do.
  static constexpr int kMostAtOnce = kOctets < 4 ? kOctets : 4;
  TREDUCE_DEVICE int at_once() const {
    return min(kMostAtOnce, work.pieces_bytes / (kParts * 2 * 32 * int(sizeof(uint4))) / work.steps);
  }

  // Some octets, one in each byte.
  TREDUCE_DEVICE static int octet_of(uint32_t some, int i) { return some >> i * 8 & 0xff; }

  // Splits octets of X into parts. Who calls: all threads of the block.
  TREDUCE_DEVICE void split_parts(uint32_t some, int count) const {
    __syncthreads();
    for (int job = threadIdx.x / 32; job < count * work.steps; job += warps()) {
      const int octet = octet_of(some, job % count);
      float numbers[kNumbers];
      line_x(octet).template read<false>(work.x, job / count, numbers);
      uint32_t words[kParts][kNumbers / 2];
      split::split_pieces(numbers, parts_exponent(shared.lines[line_of_octet(octet)]), words);
      split::write_pieces<kParts>(piece<kParts>(job), words);
    }
    __syncthreads();
  }

  // A tile's outputs by parts, of those of the octets that it `wants`.
  TREDUCE_DEVICE void compute_parts(const Lines& lines, uint32_t some, int count, unsigned wants, bool aligned) const {
    float acc[kMostAtOnce][4] = {};
#pragma unroll 1
    for (int segment = 0; segment < work.steps; ++segment) {
      float numbers[2][kNumbers];
#pragma unroll
      for (int l = 0; l < 2; ++l) from_w(lines.first, l).template read<kVectors>(work.w, segment, numbers[l]);
      Pieces<kParts> w;
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        split::split_all_parts(numbers[l], split::power_of_two(parts_exponent(lines.known[l])),
                               [&](int part, int i, uint32_t pair) { w[part][l][i] = pair; });
      }
#pragma unroll
      for (int i = 0; i < kMostAtOnce; ++i) {
        if (i >= count) break;
        if ((wants >> octet_of(some, i) & 1) == 0) continue;
        PiecesX<kParts> x;
        split::read_pieces<kParts>(piece<kParts>(segment * count + i), x);
        float high[4] = {}, rest[4] = {};
        split::multiply_segment<bfloat16, kParts, kOfA>(high, rest, w, x);
#pragma unroll
        for (int o = 0; o < 4; ++o) split::add_parts(acc[i][o], high[o], rest[o]);
      }
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const int octet = octet_of(some, i);
      if ((wants >> octet & 1) == 0) continue;
      float sums[4];
      select(acc, i, sums);
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        sums[o] = split::from_units(sums[o], -parts_exponent(lines.known[o / 2]),
                                    -parts_exponent(shared.lines[column(octet, o)]));
      }
      store(sums, lines, octet, aligned, outputs(lines, octet, &by_parts));
    }
  }

  // An output on the plain cores. Of finite lines a lane has a segment; else only products that are not finite count.
  // Who calls: all lanes of a warp, with the same lines.
  TREDUCE_DEVICE float plain_output(int of_w, int of_x, bool finite) const {
    const float* const w = work.w.source.line(static_cast<uint32_t>(matrix_w), of_w);
    const float* const x = work.x.source.line(static_cast<uint32_t>(matrix_x), first_x + of_x);
    const int64_t step_w = work.w.source.depth_stride, step_x = work.x.source.depth_stride;
    const int lane = threadIdx.x % 32;
    if (!finite) {
      unsigned found = 0;
      for (int k = lane; k < work.depth; k += 32) {
        const float a = __ldg(w + k * step_w), b = __ldg(x + k * step_x), product = a * b;
        if (split::is_finite(a) && split::is_finite(b)) continue;
        found |= split::not_finite(product);
      }
      return split::sum_of(__reduce_or_sync(~0u, found));
    }
    float acc = 0, sum = 0;
    const int end = min((lane + 1) * kSegment, work.depth);
#pragma unroll 4
    for (int k = lane * kSegment; k < end; ++k) acc = multiply_add(__ldg(w + k * step_w), __ldg(x + k * step_x), acc);
    for (int segment = 0; segment < work.steps; ++segment) sum += __shfl_sync(~0u, acc, segment);
    return sum;
  }

  // Who calls: all lanes of a warp.
  TREDUCE_DEVICE void compute_plain(const Lines& lines, unsigned wants) const {
#pragma unroll 1
    for (int i = 0; i < octets * 4; ++i) {
      const int octet = i / 4, o = i % 4;
      if ((wants >> octet & 1) == 0) continue;
      const Arithmetic way = arithmetic(lines, octet, o);
      const bool mine = exists(lines, octet, o) &&
                        (way == Arithmetic::plain || (way == Arithmetic::checked_parts &&
                                                      !is_certain(__float_as_uint(*place_of(lines, octet, o)),
                                                                  lines.of(o), shared.lines[column(octet, o)])));
      const bool finite = all_finite(lines.of(o)) && all_finite(shared.lines[column(octet, o)]);
      for (uint32_t some = __ballot_sync(~0u, mine); some != 0; some &= some - 1) {
        const int lane = __ffs(some) - 1;
        const float sum = plain_output(__shfl_sync(~0u, line_w(lines.first, o / 2), lane),
                                       __shfl_sync(~0u, column(octet, o), lane), __shfl_sync(~0u, finite, lane));
        if (static_cast<int>(threadIdx.x % 32) == lane) {
          *place_of(lines, octet, o) = with_bias(canonical(sum), lines, octet, o);
        }
      }
    }
  }

  // ---- all of a block ----

  TREDUCE_DEVICE void compute() {
    const int share = blockIdx.x % work.shares;
    int index = blockIdx.x / work.shares;
    first_x = index % work.tiles_x * kRows;
    octets = ceil_div(min(work.x.lines - first_x, kRows), kOctet);
    index /= work.tiles_x;
    const int2 batch = {index / work.inner_batches, index % work.inner_batches};
    matrix_w = work.w.matrices.of(batch.x, batch.y);
    matrix_x = work.x.matrices.of(batch.x, batch.y);
    c += index * work.matrix_outputs;
    const int begin = static_cast<int>(int64_t(work.tiles_w) * share / work.shares);
    const int end = static_cast<int>(int64_t(work.tiles_w) * (share + 1) / work.shares);
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
    const bool aligned = kOfA && work.n % 2 == 0 && reinterpret_cast<uint64_t>(c) % 8 == 0;
    split_halves();
    const bool whole_x = bias == nullptr && (aligned || !kOfA) && first_x + octets * kOctet <= work.x.lines;
    prefetch((begin + warp) * kTile, 1);
    for (int tile = begin + warp, i = 0; tile < end; tile += warps(), ++i) {
      Lines lines = {tile * kTile, {}};
      float acc[kOctets][4] = {};
      multiply_pairs(lines, acc);
      const auto suffice = [&](Facts line) { return pairs_suffice(line, shared.all_close, shared.none_spread); };
      const bool left = __any_sync(~0u, !shared.none_never || !suffice(lines.known[0]) || !suffice(lines.known[1]));
      const bool whole = whole_x && lines.first + kTile <= work.w.lines;
      if (left) {
        if (threadIdx.x % 32 == 0) shared.left[warp] |= 1u << i;
        if (threadIdx.x % 4 == 0) {
#pragma unroll
          for (int l = 0; l < 2; ++l) shared.lines_w[(tile - begin) * kTile + line_w(0, l)] = lines.known[l];
        }
#pragma unroll 1
        for (int octet = 0; octet < octets; ++octet) {
          float sums[4];
          select(acc, octet, sums);
          store(sums, lines, octet, aligned, outputs(lines, octet, &by_pairs));
        }
        continue;
      }
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
        if (octet >= octets) break;
        if (whole) {
          store_all(acc[octet], lines, octet);
        } else {
          store(acc[octet], lines, octet, aligned, ~0u);
        }
      }
    }
    __syncwarp();
    const uint32_t left = shared.left[warp];
    if (__syncthreads_or(left != 0) != 0) compute_left(begin, warp, left, aligned);
  }

  // What pairs do not suit: rare. Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_left(int begin, int warp, uint32_t tiles, bool aligned) {
    const int lane = threadIdx.x % 32;
    for (int octet = warp; octet < octets; octet += warps()) {
      const int line = octet * kOctet + lane % kOctet;
      const uint32_t code = first_x + line < work.x.lines ? set_of(code_of(shared.lines[line])) : 0;
      const uint32_t codes = __reduce_or_sync(~0u, code);
      if (lane == 0) shared.codes[octet] = codes;
    }
    __syncthreads();
    const auto for_each_left = [&](auto body) {
#pragma unroll 1
      for (uint32_t left = tiles; left != 0; left &= left - 1) {
        const int tile = warp + (__ffs(left) - 1) * warps();
        Lines lines = {(begin + tile) * kTile, {}};
#pragma unroll
        for (int l = 0; l < 2; ++l) lines.known[l] = shared.lines_w[tile * kTile + line_w(0, l)];
        body(lines, tile);
      }
    };
    // Which octets have such outputs. Each lane of a team asks for some.
    for_each_left([&](const Lines& lines, int tile) {
      unsigned parts = 0, plain = 0;
#pragma unroll 1
      for (int i = lane % 4; i < octets * 2; i += 4) {
        const int octet = i / 2, l = i % 2;
        if (line_w(lines.first, l) >= work.w.lines) continue;
        const unsigned code = code_of(lines.of(l * 2));
        for (uint32_t codes = shared.codes[octet]; codes != 0; codes &= codes - 1) {
          const Arithmetic way = arithmetic_of(code, __ffs(codes) - 1);
          parts |= by_parts(way) ? 1u << octet : 0;
          plain |= at_last(way) ? 1u << octet : 0;
        }
      }
      parts = __reduce_or_sync(~0u, parts);
      plain = __reduce_or_sync(~0u, plain);
      if (lane == 0) {
        shared.parts[tile] = static_cast<unsigned char>(parts);
        shared.plain[tile] = static_cast<unsigned char>(plain);
        if (parts != 0) atomicOr(&shared.all_parts, parts);
      }
    });
    __syncthreads();
    const int most = at_once();
#pragma unroll 1
    for (uint32_t all = shared.all_parts; all != 0;) {
      uint32_t some = 0, set = 0;
      int count = 0;
      for (; count < most && all != 0; all &= all - 1, ++count) {
        const int octet = __ffs(all) - 1;
        some |= octet << count * 8;
        set |= 1u << octet;
      }
      split_parts(some, count);
      for_each_left([&](const Lines& lines, int tile) {
        const unsigned wants = shared.parts[tile] & set;
        if (wants != 0) compute_parts(lines, some, count, wants, aligned);
      });
    }
    for_each_left([&](const Lines& lines, int tile) {
      if (shared.plain[tile] != 0) compute_plain(lines, shared.plain[tile]);
    });
  }
};

template <bool kOfA, int kOctets, bool kVectors>
__global__ void __launch_bounds__(kThreads, kBlocks)
    kernel(TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  char* const memory = dynamic_shared<char>();
  uint4* const pieces = reinterpret_cast<uint4*>(memory + kSharedBytes);
  float* const scales = reinterpret_cast<float*>(reinterpret_cast<char*>(pieces) + work.pieces_bytes);
  Block<kOfA, kOctets, kVectors> block{work,
                                       *reinterpret_cast<Shared*>(memory),
                                       pieces,
                                       scales,
                                       reinterpret_cast<Facts*>(scales + work.steps * kRows),
                                       0,
                                       0,
                                       0,
                                       0,
                                       c,
                                       bias};
  block.compute();
#endif
}

cudaError_t run(const Call& call) {
  const Problem& p = call.problem;
  const Operand a = operand_a(p, call.a, 4), b = operand_b(p, call.b, 4);
  const bool of_a = of_a_of(p);
  Work work;
  work.w = split::side_of(of_a ? a : b);
  work.x = split::side_of(of_a ? b : a);
  work.n = p.n;
  work.matrix_outputs = p.m * p.n;
  work.depth = static_cast<int>(p.k);
  work.steps = static_cast<int>(ceil_div(p.k, int64_t(kSegment)));
  work.tiles_w = static_cast<int>(ceil_div(int64_t(work.w.lines), int64_t(kTile)));
  work.tiles_x = static_cast<int>(ceil_div(int64_t(work.x.lines), int64_t(kRows)));
  const Launch launched = call.step(0);
  work.shares = static_cast<int>(launched.grid / x_tiles_of(p));
  work.inner_batches = static_cast<int>(inner_batches_of(p));
  work.pieces_bytes = pieces_bytes(work.steps, work.x.lines);
  const auto run = [&](auto kernel) {
    return launch(kernel, launched, work, static_cast<float*>(call.c), static_cast<const float*>(call.bias));
  };
  const auto run_rows = [&](auto rows) {
    constexpr int kOctets = rows() / kOctet;
    if (work.w.vectors) return of_a ? run(&kernel<true, kOctets, true>) : run(&kernel<false, kOctets, true>);
    return of_a ? run(&kernel<true, kOctets, false>) : run(&kernel<false, kOctets, false>);
  };
  return rows_of(p) == kOctet ? run_rows(std::integral_constant<int, kOctet>{})
                              : run_rows(std::integral_constant<int, kRows>{});
}

}  // namespace treduce::matmul::split_held
