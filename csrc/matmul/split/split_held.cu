// split_direct where one operand has few lines (X), the other many (W), and k is short, as a search among vectors has them, and attention
// over an odd number of tokens: a block, one warp group, splits X into shared memory once, and then walks W, 64 lines at a time, which it
// splits in the registers that it multiplies from. So W is read and split once, nothing of it goes through shared memory, and a warp waits
// for others only to multiply. What pairs do not suit the block lists, and computes at last: by parts, and on the plain cores.
#include "split_held.h"

#include <type_traits>

#include "../../primitives/ptx/atomic.cuh"
#include "../../primitives/ptx/launch.cuh"
#include "../hopper.cuh"
#include "split_group.cuh"
#include "split_launches.h"
#include "split_source.cuh"

namespace treduce::matmul::split_held {

using hopper::kRowBytes;
using split::kNumbers;
using split::Pieces;
using split::PiecesX;
using split::Side;

struct Work {
  Side w, x;
  int64_t n, matrix_outputs;
  int depth, steps, tiles_w, tiles_x, shares, inner_batches;
  int held;      // lines of X in shared memory, those past the last included
  int of_pairs;  // certain_of_pairs
};

struct Shared {
  Facts lines[kRows];                         // of X
  alignas(16) float units[kRows];             // in which its sums are
  Others others;                              // lines of X that pairs may suit
  bool none_never;                            // all are such
  unsigned char code[kRows];                  // of each line
  uint32_t codes[kRows / kOctet], all_codes;  // as sets: of each octet, and of all
  // Lines of W that have outputs which pairs do not suit: how many, what is known of them, which of the block's, and in the last bit
  // whether some of the outputs are the plain cores'.
  int left;
  uint32_t wanted;                    // codes of lines of X that some listed lines have outputs by parts with, as a set
  bool some_plain, all_listed;        // whether some of these outputs are; and see compute_not_finite
  Facts facts_w[kMostTiles * kTile];  // kDone: none of its checked pairs has been refused
  uint16_t lines_w[kMostTiles * kTile];
};
static_assert(sizeof(Shared) <= kSharedBytes && kSharedBytes % 16 == 0);

// How W is read: four steps of k are one aligned load; or number by number, along k or not.
enum class ReadW { vectors, along_k, numbers };

// kOfA: W is A; else the product is transposed. kOctets: eights of X, at most.
template <bool kOfA, int kOctets, ReadW kRead>
struct Block {
  static constexpr bool kVectors = kRead == ReadW::vectors;
  using Line = split::Line<kVectors ? split::Steps::neighbours : split::Steps::every_fourth>;
  // Lines of X that are multiplied at a time: more take more registers.
  static constexpr int kColumns = kOctets == 1 ? kOctet : kPart;
  static constexpr int kOutputs = kOctets * 4;  // of a thread
  using Sums = float[kColumns / 2];

  const Work& work;
  Shared& shared;
  char* pieces;   // of X: [segment][piece][line], swizzled
  float* scales;  // of X: [segment][line]
  Facts* facts;   // and [segment][line]
  const float *matrix_w, *matrix_x;
  int first_x, x_lines, octets;  // of X
  float* c;                      // from X's first line on
  const float* bias;

  TREDUCE_DEVICE static int warp() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0); }

  // ---- X, in shared memory: its octets, which are eights of lines, and segments ----

  TREDUCE_DEVICE int line_of_octet(int octet) const { return octet * kOctet + static_cast<int>(threadIdx.x % 32 / 4); }
  // Past the last line the last.
  TREDUCE_DEVICE Line line_x(int octet) const {
    return {work.x, matrix_x, min(first_x + line_of_octet(octet), work.x.lines - 1)};
  }
  TREDUCE_DEVICE void read_x(const Line& from, int segment, float (&to)[kNumbers]) const {
    if constexpr (kVectors) {
      from.read(work.x, segment, to);
    } else {
      from.template read<false>(work.x, segment, to);
    }
  }
  TREDUCE_DEVICE int present(int segment) const { return min(kSegment, work.depth - segment * kSegment); }

  // Where a piece of a segment lies, of so many that each has.
  template <int kPieces>
  TREDUCE_DEVICE char* piece_at(int segment, int piece) const {
    return pieces + (segment * kPieces + piece) * work.held * kRowBytes;
  }
  // Writes a lane's words of an octet, so that 16 bytes of a row have the steps of k that four lanes have as one word: which are those
  // that the instruction multiplies by what these lanes have of W.
  template <int kPieces>
  TREDUCE_DEVICE void write_pieces(int segment, int octet, const PiecesX<kPieces>& words) const {
    const int line = line_of_octet(octet);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      char* const row = piece_at<kPieces>(segment, piece) + line * kRowBytes + threadIdx.x % 4 * 4;
#pragma unroll
      for (int i = 0; i < kNumbers / 2; ++i) *reinterpret_cast<uint32_t*>(row + (i ^ line % 8) * 16) = words[piece][i];
    }
  }

  // Into halves, and finds out what is to be known of the lines. Who calls: all threads of the block.
  TREDUCE_DEVICE void split_halves() const {
    // A warp's jobs, one after another: an octet of a segment.
    struct Job {
      int octet, segment;
      TREDUCE_DEVICE void skip(int jobs, int octets) {
        for (octet += jobs; octet >= octets; octet -= octets) ++segment;
      }
    };
    float next[kNumbers], next_first[4];
    const auto read = [&](Job job) {
      if (job.segment >= work.steps) return;
      const Line from = line_x(job.octet);
      from.read_first(work.x, next_first);
      read_x(from, job.segment, next);
    };
    Job job = {0, 0};
    job.skip(warp(), octets);
    read(job);
#pragma unroll 1
    while (job.segment < work.steps) {
      const int octet = job.octet, segment = job.segment, line = line_of_octet(octet);
      float numbers[kNumbers];
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) numbers[i] = next[i];
      const int unit = line_x(octet).unit(work.x, next_first);
      job.skip(kWarps, octets);
      read(job);
      PiecesX<2> words;
      split::Seen seen;
      const int exponent = split::split_numbers(numbers, present(segment), unit, words[0], words[1], seen);
      const Facts found = seen.facts();
      write_pieces<2>(segment, octet, words);
      if (threadIdx.x % split::kLanes != 0) continue;
      scales[segment * work.held + line] = split::power_of_two(exponent - unit);
      facts[segment * work.held + line] = found;
      if (segment == 0) shared.units[line] = split::power_of_two(unit);
    }
    ptx::fence_async_proxy();
    if (threadIdx.x == 0) shared.left = 0, shared.some_plain = false;
    __syncthreads();
    if (threadIdx.x < 32) {
      // What decides for most lines of W.
      Others others = Others::none();
      bool none_never = true;
      uint32_t codes = 0;
      for (int i = threadIdx.x; i < octets * kOctet; i += 32) {
        Facts known = kNoFacts;
        for (int segment = 0; segment < work.steps; ++segment) known = join(known, facts[segment * work.held + i]);
        if (i >= x_lines) known = kPlainestFacts;
        shared.lines[i] = known;
        const unsigned kind = kind_of(known);
        others.add(kind);
        none_never = none_never && kind != 0;
        const unsigned code = code_of(known);
        shared.code[i] = static_cast<unsigned char>(code);
        const uint32_t of_octet = __reduce_or_sync(0xffu << threadIdx.x / kOctet * kOctet, set_of(code));
        shared.codes[i / kOctet] = of_octet;
        codes |= of_octet;
      }
      others = split::of_all_lanes(others);
      none_never = __all_sync(~0u, none_never);
      codes = __reduce_or_sync(~0u, codes);
      if (threadIdx.x == 0) {
        shared.others = others;
        shared.none_never = none_never;
        shared.all_codes = codes;
      }
    }
    __syncthreads();
  }

  // ---- a warp's 16 lines of W ----

  // This lane's two lines, and what is known of them.
  struct Lines {
    int line[2];
    Facts known[2];
    TREDUCE_DEVICE Facts of(int o) const { return o < 2 ? known[0] : known[1]; }
  };
  TREDUCE_DEVICE static int line_of_tile(int tile, int l) {
    return tile * kTile + static_cast<int>(threadIdx.x % 32 / 4) + l * 8;
  }
  // Past the last line the last.
  TREDUCE_DEVICE Line line_w(int line) const { return {work.w, matrix_w, min(line, work.w.lines - 1)}; }
  TREDUCE_DEVICE void read_w(int line, int segment, float (&to)[kNumbers]) const {
    line_w(line).template read<kVectors, kRead != ReadW::numbers>(work.w, segment, to);
  }
  // Of X, of the tile.
  TREDUCE_DEVICE static int column(int octet, int o) { return octet * kOctet + threadIdx.x % 4 * 2 + o % 2; }

  // Sets an output, of lines of W and of X in the tile. Returns what it is with the bias.
  TREDUCE_DEVICE float* place_of(int line, int column) const {
    return c + (kOfA ? line * work.n + column : column * work.n + line);
  }
  TREDUCE_DEVICE float set_output(int line, int column, float sum) const {
    if (bias != nullptr) sum = canonical(sum + __ldg(bias + (kOfA ? column : line)));
    *place_of(line, column) = sum;
    return sum;
  }

  // Asks the L2 for a segment of a tile; of its next one where it has no more.
  TREDUCE_DEVICE void prefetch(int tile, int segment) const {
    if (segment >= work.steps) {
      segment -= work.steps;
      tile += kWarps;
    }
    const int64_t step = work.w.source.depth_stride;
    const int lane = threadIdx.x % 32, first = tile * kTile, line = step == 1 ? first + lane / 2 : first;
    if (segment >= work.steps || line >= work.w.lines) return;
    const float* const from = matrix_w + line * work.w.source.line_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = segment * kSegment + (step == 1 ? lane % 2 * 32 + i * 31 : i * 32 + lane);
      if (k < work.depth) ptx::prefetch_l2(from + k * step);
    }
  }

  // A segment of a lane's two lines, as it was read.
  using Numbers = float[2][kNumbers];
  TREDUCE_DEVICE void read_tile(int tile, int segment, Numbers& to) const {
#pragma unroll
    for (int l = 0; l < 2; ++l) read_w(line_of_tile(tile, l), segment, to[l]);
  }

  // Multiplies a segment by the lines of X that are in columns one of whose octets is wanted, a bit each, and calls add(octet, sums of the
  // largest pieces, of others, which of these are the first), if the warp has lines. Who calls: all threads of the block.
  template <class Piece, int kPieces, class Add>
  TREDUCE_DEVICE void multiply(bool some, int segment, uint32_t wanted, Pieces<kPieces>& w, Add add) const {
    const char* x[kPieces];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) x[piece] = piece_at<kPieces>(segment, piece);
#pragma unroll
    for (int first = 0; first < kOctets * kOctet; first += kColumns) {
      if (first >= octets * kOctet) break;
      if ((wanted >> first / kOctet) % (1u << kColumns / kOctet) == 0) continue;
      Sums high, rest;
      split::start_segment<Piece, kOfA>(high, rest, w, x, first);
      split::wait_segment(high, rest, w);
#pragma unroll
      for (int i = 0; i < kColumns / kOctet; ++i) {
        if (!some || first / kOctet + i >= octets) break;
        add(first / kOctet + i, high, rest, i * 4);
      }
    }
  }

  // By pairs. `next`: the tile's first segment; it becomes that of the warp's next tile. What is found out about W: Lines. A tile past the
  // block's last is not multiplied: the warp waits for the others.
  TREDUCE_DEVICE void multiply_pairs(int tile, bool mine, bool more, Lines& lines, Numbers& next,
                                     float (&acc)[kOutputs]) const {
    int unit[2];
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const float first[4] = {next[l][0], next[l][1], next[l][2], next[l][3]};
      unit[l] = line_w(lines.line[l]).unit(work.w, first);
    }
    split::Seen seen[2];
#pragma unroll 1
    for (int segment = 0; segment < work.steps; ++segment) {
      Pieces<2> w = {};
      float scale[2] = {};
      if (mine) {
        prefetch(tile, segment + 2);
        int exponent[2];
        split::split_numbers<2>(next, present(segment), unit, w[0], w[1], exponent, seen);
#pragma unroll
        for (int l = 0; l < 2; ++l) scale[l] = split::power_of_two(exponent[l] - unit[l]);
        const bool last = segment + 1 == work.steps;
        if (!last || more) read_tile(last ? tile + kWarps : tile, last ? 0 : segment + 1, next);
      }
      const float2* const scales_x = reinterpret_cast<const float2*>(scales + segment * work.held) + threadIdx.x % 4;
      multiply<float16>(mine, segment, ~0u, w, [&](int octet, const Sums& high, const Sums& rest, int i) {
        const float2 of_x = scales_x[octet * 4];
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          split::add_segment(acc[octet * 4 + o], high[i + o], rest[i + o],
                             scale[o / 2] * (o % 2 == 0 ? of_x.x : of_x.y));
        }
      });
    }
#pragma unroll
    for (int l = 0; l < 2; ++l) lines.known[l] = seen[l].facts();
    split::from_units<true>(acc, unit, reinterpret_cast<const char*>(shared.units), x_lines);
  }

  // ---- what pairs do not suit ----

  // Whether some of the pairs of a line of W that are checked, which have been stored, are not certain. checked: codes of lines of X.
  // Who calls: all lanes of a warp, of which four have the same line.
  TREDUCE_DEVICE bool any_refused(int line, Facts known, uint32_t checked) const {
    bool refused = false;
#pragma unroll 1
    for (int octet = 0; octet < octets; ++octet) {
      if ((shared.codes[octet] & checked) == 0) continue;
#pragma unroll
      for (int o = 0; o < 2; ++o) {
        const int of_x = column(octet, o);
        if (line >= work.w.lines || of_x >= x_lines || (checked >> shared.code[of_x] & 1) == 0) continue;
        const uint32_t output = __float_as_uint(*place_of(line, of_x));
        refused |= !is_certain(output, known, shared.lines[of_x], work.of_pairs);
      }
    }
    const uint32_t votes = __ballot_sync(~0u, refused);
    return (votes >> threadIdx.x % 32 / 4 * 4 & 15) != 0;
  }

  // Lists lines of a tile that have such outputs. All outputs have been stored; those are stored again. Who calls: all lanes of a warp.
  TREDUCE_DEVICE void list(const Lines& lines, int begin) const {
    __syncwarp();  // lanes read what others have stored
#pragma unroll 1
    for (int l = 0; l < 2; ++l) {
      const unsigned code = code_of(lines.known[l]);
      const uint32_t checked = shared.all_codes & codes_with(code, Arithmetic::checked_pairs);
      const bool refused = __any_sync(~0u, checked != 0) && any_refused(lines.line[l], lines.known[l], checked);
      const bool by_pairs = (shared.all_codes & ~codes_by_pairs(code)) == 0 && !refused;
      if (threadIdx.x % 4 != 0 || lines.line[l] >= work.w.lines || by_pairs) continue;
      const int at = atomicAdd(&shared.left, 1);
      shared.facts_w[at] = with_done(lines.known[l], !refused);
      const bool plain = (shared.all_codes & codes_with(code, Arithmetic::plain)) != 0;
      if (plain) shared.some_plain = true;
      shared.lines_w[at] = static_cast<uint16_t>((lines.line[l] - begin * kTile) * 2 | (plain || refused ? 1 : 0));
    }
  }

  // By parts: listed lines from `first` on. some: whether the warp's have such outputs. Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_parts(const Lines& lines, bool some, int first) const {
    uint32_t wanted_octets = 0;
#pragma unroll 1
    for (int octet = 0; octet < octets; ++octet) {
      wanted_octets |= uint32_t((shared.codes[octet] & shared.wanted) != 0) << octet;
    }
    float acc[kOutputs] = {};
#pragma unroll 1
    for (int segment = 0; segment < work.steps; ++segment) {
      __syncthreads();  // the parts before have been multiplied
      int turn = 0;
#pragma unroll 1
      for (uint32_t left = wanted_octets; left != 0; left &= left - 1) {
        if (turn++ % kWarps != warp()) continue;
        const int octet = __ffs(left) - 1;
        float numbers[kNumbers];
        line_x(octet).template read<false>(work.x, segment, numbers);
        PiecesX<kParts> words;
        split::split_pieces(numbers, parts_exponent(shared.lines[line_of_octet(octet)]), words);
        write_pieces<kParts>(0, octet, words);
      }
      Pieces<kParts> w = {};
      if (some) {
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          float numbers[kNumbers];
          read_w(lines.line[l], segment, numbers);
          split::split_all_parts(numbers, split::power_of_two(parts_exponent(lines.known[l])),
                                 [&](int part, int i, uint32_t pair) { w[part][l][i] = pair; });
        }
      }
      ptx::fence_async_proxy();
      __syncthreads();
      multiply<bfloat16>(some, 0, wanted_octets, w, [&](int octet, const Sums& high, const Sums& rest, int i) {
#pragma unroll
        for (int o = 0; o < 4; ++o) split::add_parts(acc[octet * 4 + o], high[i + o], rest[i + o]);
      });
    }
    if (!some) return;
    uint32_t wanted[2], checked[2];  // codes of lines of X
    bool refused[2] = {};
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const unsigned code = code_of(lines.known[l]);
      wanted[l] = lines.line[l] < work.w.lines ? codes_by_parts(code) : 0;
      checked[l] = codes_with(code, Arithmetic::checked_parts);
    }
    // As a loop: instructions that are hardly ever executed have to be fetched first, which takes longer than to execute them.
#pragma unroll 1
    for (int octet = 0; octet < octets; ++octet) {
      if ((wanted_octets >> octet & 1) == 0) continue;
      float output[4];
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        output[o] = acc[o];
#pragma unroll
        for (int i = 1; i < kOctets; ++i) output[o] = i == octet ? acc[i * 4 + o] : output[o];
      }
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        const int of_x = column(octet, o), l = o / 2;
        const Facts known = shared.lines[of_x];
        const uint32_t set = of_x < x_lines ? set_of(shared.code[of_x]) : 0;
        output[o] = split::from_units(output[o], -parts_exponent(lines.known[l]), -parts_exponent(known));
        if ((wanted[l] & set) != 0) output[o] = set_output(lines.line[l], of_x, output[o]);
        refused[l] |= (checked[l] & set) != 0 && !is_certain(__float_as_uint(output[o]), lines.known[l], known, kCertain);
      }
    }
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      if (refused[l]) shared.lines_w[first + line_of_tile(warp(), l)] |= 1, shared.some_plain = true;  // the same of all who do
    }
  }

  // An output on the plain cores. Of finite lines a lane has a segment; else only products that are not finite count.
  // Who calls: all lanes of a warp, with the same lines.
  TREDUCE_DEVICE float plain_output(int of_w, int of_x, bool finite) const {
    const float* const w = matrix_w + of_w * work.w.source.line_stride;
    const float* const x = matrix_x + (first_x + of_x) * work.x.source.line_stride;
    const int64_t step_w = work.w.source.depth_stride, step_x = work.x.source.depth_stride;
    const int lane = threadIdx.x % 32;
    if (!finite) {
      unsigned found = 0;
#pragma unroll 4
      for (int k = lane; k < work.depth; k += 32) {
        const float a = __ldg(w + k * step_w), b = __ldg(x + k * step_x);
        if (!split::is_finite(a) || !split::is_finite(b)) found |= split::not_finite(a * b);
      }
      return split::sum_of(__reduce_or_sync(~0u, found));
    }
    static_assert(kGroupSegments <= 32);
    float acc = 0, sum = 0;
    const int end = min((lane + 1) * kSegment, work.depth);
#pragma unroll 4
    for (int k = lane * kSegment; k < end; ++k) acc = multiply_add(__ldg(w + k * step_w), __ldg(x + k * step_x), acc);
    for (int segment = 0; segment < work.steps; ++segment) sum += __shfl_sync(~0u, acc, segment);
    return sum;
  }

  // The outputs of listed lines where one line has an infinity or a NaN, the other none: only products with such factors count. Of a line of
  // X these are listed, and a thread multiplies them by those of a line of W; of a line of W a lane those of lines of X. Those whose list is
  // too long, and outputs where both lines are such, are left. Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_not_finite(int begin) const {
    constexpr uint32_t kMost = 256;
    struct List {
      uint32_t count, places[kMost];  // along k
    };
    static_assert(sizeof(List) <= kParts * kOctet * kRowBytes);
    List& list = *reinterpret_cast<List*>(pieces);
    const int lane = threadIdx.x % 32;
    const auto w_at = [&](int i) {
      return matrix_w + (begin * kTile + shared.lines_w[i] / 2) * work.w.source.line_stride;
    };
    const auto x_at = [&](int of_x) { return matrix_x + (first_x + of_x) * work.x.source.line_stride; };
    if (threadIdx.x == 0) shared.all_listed = true;
#pragma unroll 1
    for (int of_x = 0; of_x < x_lines; ++of_x) {
      if (all_finite(shared.lines[of_x])) continue;
      __syncthreads();
      if (threadIdx.x == 0) list.count = 0;
      __syncthreads();
#pragma unroll 1
      for (int k = threadIdx.x; k < work.depth; k += kThreads) {
        if (split::is_finite(__ldg(x_at(of_x) + k * work.x.source.depth_stride))) continue;
        const uint32_t place = atomicAdd(&list.count, 1u);
        if (place < kMost) list.places[place] = k;
      }
      __syncthreads();
      if (list.count > kMost) {
        if (threadIdx.x == 0) shared.all_listed = false;
        continue;
      }
#pragma unroll 1
      for (int i = threadIdx.x; i < shared.left; i += kThreads) {
        if (!all_finite(shared.facts_w[i])) continue;
        unsigned found = 0;
#pragma unroll 1
        for (uint32_t j = 0; j < list.count; ++j) {
          const int64_t k = list.places[j];
          found |= split::not_finite(__ldg(w_at(i) + k * work.w.source.depth_stride) *
                                     __ldg(x_at(of_x) + k * work.x.source.depth_stride));
        }
        set_output(begin * kTile + shared.lines_w[i] / 2, of_x, canonical(split::sum_of(found)));
      }
    }
    __syncthreads();
    const bool x_finite = (shared.all_codes & ((1u << kCodeRange) - 1)) == 0;
#pragma unroll 1
    for (int i = warp(); i < shared.left; i += kWarps) {
      const int line = begin * kTile + shared.lines_w[i] / 2;
      const bool finite = all_finite(shared.facts_w[i]);
      unsigned found[2] = {};
#pragma unroll 1
      for (int first = finite ? work.depth : 0; first < work.depth; first += 32) {
        const int k = first + lane;
        const float mine = k < work.depth ? __ldg(w_at(i) + k * work.w.source.depth_stride) : 0.0f;
        for (uint32_t some = __ballot_sync(~0u, !split::is_finite(mine)); some != 0; some &= some - 1) {
          const int from = __ffs(some) - 1;
          const float factor = __shfl_sync(~0u, mine, from);
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            const int of_x = min(lane + l * 32, x_lines - 1);
            found[l] |= split::not_finite(factor * __ldg(x_at(of_x) + (first + from) * work.x.source.depth_stride));
          }
        }
        if (__all_sync(~0u, split::is_nan(found[0]) && split::is_nan(found[1]))) break;
      }
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int of_x = lane + l * 32;
        if (finite || of_x >= x_lines || !all_finite(shared.lines[of_x])) continue;
        set_output(line, of_x, canonical(split::sum_of(found[l])));
      }
      const bool refused = (shared.facts_w[i] & kDone) == 0;
      if (lane == 0 && !refused && (finite ? shared.all_listed : x_finite)) shared.lines_w[i] &= ~1;
    }
    __syncthreads();
  }

  // What is the plain cores' of the listed lines, once all parts are stored: a warp has eight outputs of a line at a time.
  // Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_plain(int begin) const {
#pragma unroll 1
    for (int i = 0; i < shared.left; ++i) {
      if (shared.lines_w[i] % 2 == 0) continue;
      const int line = begin * kTile + shared.lines_w[i] / 2;
      const Facts known = shared.facts_w[i];
      const uint32_t codes = codes_at_last(code_of(known));
#pragma unroll 1
      for (int octet = (i + warp()) % kWarps; octet < octets; octet += kWarps) {
        if ((shared.codes[octet] & codes) == 0) continue;
        const int lane = threadIdx.x % 32, first = octet * kOctet, own = first + lane % kOctet;
        const Facts of_x = shared.lines[own];
        const Arithmetic way = arithmetic_of(code_of(known), shared.code[own]);
        const int orders = way == Arithmetic::checked_pairs ? work.of_pairs : kCertain;
        const bool mine =
            lane < kOctet && own < x_lines &&
            (way == Arithmetic::plain ||
             (is_checked(way) && !is_certain(__float_as_uint(*place_of(line, own)), known, of_x, orders)));
        const bool finite = all_finite(known) && all_finite(of_x);
        for (uint32_t some = __ballot_sync(~0u, mine); some != 0; some &= some - 1) {
          const int next = __ffs(some) - 1;
          const float sum = plain_output(line, first + next, __shfl_sync(~0u, finite, next));
          if (lane == next) set_output(line, own, canonical(sum));
        }
      }
    }
  }

  // Rare. Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_left(int begin) const {
    if (shared.some_plain) compute_not_finite(begin);
#pragma unroll 1
    for (int first = 0; first < shared.left; first += kLines) {
      Lines lines;
      uint32_t wanted = 0;
#pragma unroll
      for (int l = 0; l < 2; ++l) {
        const int at = first + line_of_tile(warp(), l);
        const bool there = at < shared.left;
        lines.line[l] = there ? begin * kTile + shared.lines_w[at] / 2 : INT32_MAX;
        lines.known[l] = there ? shared.facts_w[at] : kPlainestFacts;
        if (there) wanted |= shared.all_codes & codes_by_parts(code_of(lines.known[l]));
      }
      wanted = __reduce_or_sync(~0u, wanted);
      if (threadIdx.x == 0) shared.wanted = 0;
      __syncthreads();
      if (threadIdx.x % 32 == 0) atomicOr(&shared.wanted, wanted);
      __syncthreads();
      if (shared.wanted != 0) compute_parts(lines, wanted != 0, first);
    }
    __syncthreads();
    if (shared.some_plain) compute_plain(begin);
  }

  // ---- all of a block ----

  TREDUCE_DEVICE void compute() {
    const int share = blockIdx.x % work.shares;
    int index = blockIdx.x / work.shares;
    first_x = index % work.tiles_x * kRows;
    x_lines = min(work.x.lines - first_x, kRows);
    octets = ceil_div(x_lines, kOctet);
    index /= work.tiles_x;
    const int2 batch = {index / work.inner_batches, index % work.inner_batches};
    matrix_w = work.w.source.line(static_cast<uint32_t>(work.w.matrices.of(batch.x, batch.y)), 0);
    matrix_x = work.x.source.line(static_cast<uint32_t>(work.x.matrices.of(batch.x, batch.y)), 0);
    c += index * work.matrix_outputs + (kOfA ? first_x : first_x * work.n);
    if (kOfA && bias != nullptr) bias += first_x;
    const int begin = static_cast<int>(int64_t(work.tiles_w) * share / work.shares);
    const int end = static_cast<int>(int64_t(work.tiles_w) * (share + 1) / work.shares);
    ptx::wait_for_launch_before();
    Numbers next;
    read_tile(begin + warp(), 0, next);
    prefetch(begin + warp(), 1);
    split_halves();
#pragma unroll 1
    for (int first = begin; first < end; first += kWarps) {
      const int tile = first + warp();
      const bool mine = tile < end;
      Lines lines = {{line_of_tile(tile, 0), line_of_tile(tile, 1)}, {}};
      float acc[kOutputs] = {};
      multiply_pairs(tile, mine, tile + kWarps < end, lines, next, acc);
      if (!mine) continue;
      const int64_t line[2] = {lines.line[0], lines.line[1]};
      split::store<kOfA, true>(acc, c, work.n, line, work.w.lines, x_lines, bias, split::EveryOutput{});
      const auto suffice = [&](Facts line) { return shared.others.pairs_suffice(line) && !shared.others.checks(line); };
      if (__any_sync(~0u, !shared.none_never || !suffice(lines.known[0]) || !suffice(lines.known[1]))) {
        list(lines, begin);
      }
    }
    __syncthreads();
    if (shared.left != 0) compute_left(begin);
  }
};

template <bool kOfA, int kOctets, ReadW kRead>
__global__ void __launch_bounds__(kThreads, blocks_of(kOctets* kOctet))
    kernel(TREDUCE_GRID_CONSTANT Work work, float* c, const float* bias) {
#ifdef TREDUCE_SM90A
  char* const pieces = hopper::aligned_tiles(dynamic_shared<char>());
  Shared* const shared = reinterpret_cast<Shared*>(pieces + piece_bytes(work.steps, work.held));
  float* const scales = reinterpret_cast<float*>(reinterpret_cast<char*>(shared) + kSharedBytes);
  Block<kOfA, kOctets, kRead> block{
      work, *shared, pieces, scales, reinterpret_cast<Facts*>(scales + work.steps * work.held), nullptr, nullptr, 0,
      0,    0,       c,      bias};
  ptx::allow_launch_after();
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
  work.held = held_of(work.x.lines);
  work.of_pairs = certain_of_pairs(p.k);
  const auto run = [&](auto kernel) {
    return launch(kernel, launched, work, static_cast<float*>(call.c), static_cast<const float*>(call.bias));
  };
  const auto run_rows = [&](auto rows, auto is_a) {
    constexpr int kOctets = rows() / kOctet;
    constexpr bool kOfA = is_a();
    if (work.w.vectors) return run(&kernel<kOfA, kOctets, ReadW::vectors>);
    return run(work.w.source.depth_stride == 1 ? &kernel<kOfA, kOctets, ReadW::along_k>
                                               : &kernel<kOfA, kOctets, ReadW::numbers>);
  };
  const auto run_of = [&](auto is_a) {
    return work.held == kOctet ? run_rows(std::integral_constant<int, kOctet>{}, is_a)
                               : run_rows(std::integral_constant<int, kRows>{}, is_a);
  };
  return of_a ? run_of(std::true_type{}) : run_of(std::false_type{});
}

}  // namespace treduce::matmul::split_held
