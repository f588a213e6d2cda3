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
  bool heads;    // many products: W mostly has probabilities
};

struct Shared {
  Facts lines[kRows];                         // of X
  alignas(16) float units[kRows];             // in which its sums are
  Others others;                              // lines of X that pairs may suit
  bool none_never;                            // all are such
  int most;                                   // the largest exponent of finite ones
  unsigned char code[kRows];                  // of each line
  uint32_t codes[kRows / kOctet], all_codes;  // as sets: of each octet, and of all
  // Lines of W that have outputs which pairs do not suit: how many, what is known of them, which of the block's, and in the last bit
  // whether some of the outputs are the plain cores'.
  int left;
  uint32_t by_parts;                  // codes of lines of X with which these have outputs by parts
  bool some_checked;                  // such as are checked
  bool some_plain, some_refused;      // outputs of the plain cores, and checked ones that are not certain
  bool all_listed;                    // see compute_not_finite
  Facts facts_w[kMostTiles * kTile];  // with their codes; kDone: none of its checked pairs has been refused
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

  // Where a half of a segment lies, the first or the second.
  TREDUCE_DEVICE char* half_at(int segment, int half) const {
    return pieces + (segment * 2 + half) * work.held * kRowBytes;
  }
  // Writes a lane's words of an octet, so that 16 bytes of a row have the steps of k that four lanes have as one word: which are those
  // that the instruction multiplies by what these lanes have of the other operand. at(piece): where each lies.
  template <int kPieces, class At>
  TREDUCE_DEVICE void write_pieces(int octet, const PiecesX<kPieces>& words, At at) const {
    const int line = line_of_octet(octet);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      char* const row = at(piece) + line * kRowBytes + threadIdx.x % 4 * 4;
#pragma unroll
      for (int i = 0; i < kNumbers / 2; ++i) *reinterpret_cast<uint32_t*>(row + (i ^ line % 8) * 16) = words[piece][i];
    }
  }

  // A warp's jobs, one after another: an octet of a segment.
  struct Job {
    int octet, segment;
    TREDUCE_DEVICE void skip(int jobs, int octets) {
      for (octet += jobs; octet >= octets; octet -= octets) ++segment;
    }
  };

  // Into halves, and finds out what is to be known of the lines. Who calls: all threads of the block.
  TREDUCE_DEVICE void split_halves() const {
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
      write_pieces<2>(octet, words, [&](int half) { return half_at(segment, half); });
      if (threadIdx.x % split::kLanes != 0) continue;
      scales[segment * work.held + line] = split::power_of_two(exponent - unit);
      facts[segment * work.held + line] = found;
      if (segment == 0) shared.units[line] = split::power_of_two(unit);
    }
    ptx::fence_async_proxy();
    if (threadIdx.x == 0) {
      shared.left = 0;
      shared.by_parts = 0;
      shared.some_checked = shared.some_plain = shared.some_refused = false;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      // What decides for most lines of W.
      Others others = Others::none();
      bool none_never = true;
      uint32_t codes = 0;
      int most = 0;
      for (int i = threadIdx.x; i < octets * kOctet; i += 32) {
        Facts known = kNoFacts;
        for (int segment = 0; segment < work.steps; ++segment) known = join(known, facts[segment * work.held + i]);
        if (i >= x_lines) known = kPlainestFacts;
        shared.lines[i] = known;
        const unsigned kind = kind_of(known);
        others.add(kind);
        none_never = none_never && kind != 0;
        if (all_finite(known)) most = max(most, largest_exponent(known));
        const unsigned code = code_of(known);
        shared.code[i] = static_cast<unsigned char>(code);
        const uint32_t of_octet = __reduce_or_sync(0xffu << threadIdx.x / kOctet * kOctet, set_of(code));
        shared.codes[i / kOctet] = of_octet;
        codes |= of_octet;
      }
      others = split::of_all_lanes(others);
      none_never = __all_sync(~0u, none_never);
      codes = __reduce_or_sync(~0u, codes);
      most = __reduce_max_sync(~0u, most);
      if (threadIdx.x == 0) {
        shared.others = others;
        shared.none_never = none_never;
        shared.all_codes = codes;
        shared.most = most;
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
    constexpr bool kAlongK = kRead != ReadW::numbers;
    line_w(line).template read<kVectors, kAlongK, kAlongK>(work.w, segment, to);
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

  // Multiplies a segment by X, and calls add(octet, sums of the largest pieces, of others, which of these are the first), if the warp has
  // lines. Who calls: all threads of the block.
  template <class Add>
  TREDUCE_DEVICE void multiply(bool some, int segment, Pieces<2>& w, Add add) const {
    const char* const x[2] = {half_at(segment, 0), half_at(segment, 1)};
#pragma unroll
    for (int first = 0; first < kOctets * kOctet; first += kColumns) {
      if (first >= octets * kOctet) break;
      Sums high, rest;
      split::start_segment<float16, kOfA>(high, rest, w, x, first);
      split::wait_segment(high, rest, w);
#pragma unroll
      for (int i = 0; i < kColumns / kOctet; ++i) {
        if (!some || first / kOctet + i >= octets) break;
        add(first / kOctet + i, high, rest, i * 4);
      }
    }
  }

  // By pairs. `next`: the tile's first segment; it becomes that of the warp's next tile. What is found out about W: Lines. A tile past the
  // block's last is not multiplied: the warp waits for the others. Returns whether there are sums: once the first segment shows that no pairs
  // suit any of the block's lines, only the largest and the smallest of their numbers are wanted.
  TREDUCE_DEVICE bool multiply_pairs(int tile, bool mine, bool more, Lines& lines, Numbers& next,
                                     float (&acc)[kOutputs]) const {
    int unit[2];
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const float first[4] = {next[l][0], next[l][1], next[l][2], next[l][3]};
      unit[l] = line_w(lines.line[l]).unit(work.w, first);
    }
    const auto read_next = [&](int segment) {
      const bool last = segment + 1 == work.steps;
      if (!last || more) read_tile(last ? tile + kWarps : tile, last ? 0 : segment + 1, next);
    };
    split::Seen seen[2];
    bool some = true;
#pragma unroll 1
    for (int segment = 0; some && segment < work.steps; ++segment) {
      Pieces<2> w = {};
      float scale[2] = {};
      if (mine) {
        prefetch(tile, segment + 2);
        if (kOctets > 1 && work.heads) {
          // Of numbers that are not all near the largest this takes 0.9 to 0.96 of the time, of others 1.04.
          split::KnownLines known;
          split::split_two_lines(next, present(segment), unit, w, scale, known);
#pragma unroll
          for (int l = 0; l < 2; ++l) seen[l].add(known.most(l), known.least(l), known.flags_of(l));
        } else {
          int exponent[2];
          split::split_numbers<2>(next, present(segment), unit, w[0], w[1], exponent, seen);
#pragma unroll
          for (int l = 0; l < 2; ++l) scale[l] = split::power_of_two(exponent[l] - unit[l]);
        }
        read_next(segment);
      }
      const float2* const scales_x = reinterpret_cast<const float2*>(scales + segment * work.held) + threadIdx.x % 4;
      multiply(mine, segment, w, [&](int octet, const Sums& high, const Sums& rest, int i) {
        const float2 of_x = scales_x[octet * 4];
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          split::add_segment(acc[octet * 4 + o], high[i + o], rest[i + o],
                             scale[o / 2] * (o % 2 == 0 ? of_x.x : of_x.y));
        }
      });
      if (kOctets == 1 || segment > 0) continue;  // of an octet this would take a twentieth of the time
      const bool may = mine && (may_have_pairs(seen[0].flags) || may_have_pairs(seen[1].flags));
      some = __any_sync(~0u, __syncthreads_or(may) != 0);
    }
#pragma unroll 1
    for (int segment = 1; !some && mine && segment < work.steps; ++segment) {
      prefetch(tile, segment + 2);
#pragma unroll
      for (int l = 0; l < 2; ++l) seen[l].add(split::Extremes::of<1>(next[l]), ~0u);
      read_next(segment);
    }
#pragma unroll
    for (int l = 0; l < 2; ++l) lines.known[l] = seen[l].facts();
    if (!some) return false;
    split::from_units<true>(acc, unit, reinterpret_cast<const char*>(shared.units), x_lines);
    return true;
  }

  // ---- what pairs do not suit ----

  // Whether some of the outputs of a line of W that are checked, which have been stored, are not certain. checked: codes of lines of X.
  // Who calls: all lanes of a warp, of which four have the same line.
  TREDUCE_DEVICE bool any_refused(int line, Facts known, uint32_t checked, int orders) const {
    bool refused = false;
#pragma unroll 1
    for (int octet = 0; octet < octets; ++octet) {
      if ((shared.codes[octet] & checked) == 0) continue;
#pragma unroll
      for (int o = 0; o < 2; ++o) {
        const int of_x = column(octet, o);
        if (line >= work.w.lines || of_x >= x_lines || (checked >> shared.code[of_x] & 1) == 0) continue;
        const uint32_t output = __float_as_uint(*place_of(line, of_x));
        refused |= !is_certain(output, known, shared.lines[of_x], orders);
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
      const int line = l == 0 ? lines.line[0] : lines.line[1];
      const Facts known = l == 0 ? lines.known[0] : lines.known[1];
      const unsigned code = code_of(known);
      const uint32_t checked = shared.all_codes & codes_with(code, Arithmetic::checked_pairs);
      const bool refused = __any_sync(~0u, checked != 0) && any_refused(line, known, checked, work.of_pairs);
      const bool by_pairs = (shared.all_codes & ~codes_by_pairs(code)) == 0 && !refused;
      if (threadIdx.x % 4 != 0 || line >= work.w.lines || by_pairs) continue;
      const int at = atomicAdd(&shared.left, 1);
      shared.facts_w[at] = with_code(with_done(known, !refused), code);
      const bool plain = (shared.all_codes & codes_with(code, Arithmetic::plain)) != 0;
      if (plain) shared.some_plain = true;
      if (refused) shared.some_refused = true;
      const uint32_t by_parts = shared.all_codes & codes_by_parts(code);
      if (by_parts != 0) atomicOr(&shared.by_parts, by_parts);
      if ((shared.all_codes & codes_with(code, Arithmetic::checked_parts)) != 0) shared.some_checked = true;
      shared.lines_w[at] = static_cast<uint16_t>((line - begin * kTile) * 2 | (plain || refused ? 1 : 0));
    }
  }

  // Where a part of kLinesOfS lines lies, of X or of listed ones of W. A segment has a slot.
  static constexpr int kLinesOfS = kOctets == 1 ? kOctet : kPart;
  TREDUCE_DEVICE char* part_at(int slot, int part) const {
    return pieces + (slot * kParts + part) * kLinesOfS * kRowBytes;
  }

  // A listed line of W. Past the last one the last.
  struct Listed {
    int line;
    Facts facts;
  };
  TREDUCE_DEVICE Listed listed(int begin, int i) const {
    const int at = min(i, shared.left - 1);
    return {begin * kTile + shared.lines_w[at] / 2, shared.facts_w[at]};
  }

  // Some octets of X into parts, or of the listed lines of W, from a segment on as many as there is room for. begin: the block's first tile.
  // Who calls: all threads of the block.
  template <bool kOfX>
  TREDUCE_DEVICE void split_parts(int begin, int first_octet, int first_segment, int room) const {
    __syncthreads();  // what lies there has been multiplied
    const int end = min(first_segment + room, work.steps);
    const int all = kOfX ? octets : ceil_div(shared.left, kOctet);
    const int count = min(all - first_octet, kLinesOfS / kOctet);
    float next[kNumbers];
    const auto read = [&](Job job) {
      if (job.segment >= end) return;
      if constexpr (kOfX) {
        read_x(line_x(first_octet + job.octet), job.segment, next);
      } else {
        read_w(listed(begin, line_of_octet(first_octet + job.octet)).line, job.segment, next);
      }
    };
    Job job = {0, first_segment};
    job.skip(warp(), count);
    read(job);
#pragma unroll 1
    while (job.segment < end) {
      const Job now = job;
      float numbers[kNumbers];
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) numbers[i] = next[i];
      job.skip(kWarps, count);
      read(job);
      PiecesX<kParts> words;
      const int line = line_of_octet(first_octet + now.octet);
      split::split_pieces(numbers, parts_exponent(kOfX ? shared.lines[line] : listed(begin, line).facts), words);
      write_pieces<kParts>(now.octet, words, [&](int part) { return part_at(now.segment - first_segment, part); });
    }
    ptx::fence_async_proxy();
    __syncthreads();
  }

  // Outputs by parts of a listed line may not be certain.
  TREDUCE_DEVICE void look_again(int place) const {
    shared.lines_w[place] |= 1;  // all who do write the same
    shared.some_refused = true;
  }

  // A segment of a lane's two lines into parts, times powers of two.
  TREDUCE_DEVICE static void split_two(const Numbers& numbers, const int (&exponent)[2], Pieces<kParts>& parts) {
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      split::split_pieces(numbers[l], split::power_of_two(exponent[l]), l, parts);
    }
  }
  // Multiplies it by lines in shared memory, and adds that. kOfR: those in registers are A's.
  using Parts = float[kLinesOfS / 2];
  template <bool kOfR>
  TREDUCE_DEVICE void multiply_parts(Pieces<kParts>& parts, int slot, Parts& acc) const {
    const char* const parts_s[kParts] = {part_at(slot, 0), part_at(slot, 1), part_at(slot, 2)};
    Parts high, rest;
    split::start_segment<bfloat16, kOfR>(high, rest, parts, parts_s, 0);
    split::wait_segment(high, rest, parts);
#pragma unroll
    for (int i = 0; i < kLinesOfS / 2; ++i) split::add_parts(acc[i], high[i], rest[i]);
  }

  // Whether all of a lane's outputs of a line of W, which have no bias, are surely certain, judged by the least one. x_left: lines of X that
  // there are.
  TREDUCE_DEVICE bool are_sure(const Parts& acc, int l, Facts w, int x_left) const {
    uint32_t least = ~0u;
#pragma unroll
    for (int i = 0; i < kLinesOfS / kOctet; ++i) {
      if (i * kOctet >= x_left) break;
#pragma unroll
      for (int j = 0; j < 2; ++j) least = min(least, __float_as_uint(acc[i * 4 + l * 2 + j]) << 1);
    }
    return is_sure(least >> 1, largest_exponent(w), shared.most, kCertain);
  }

  // By parts: listed lines of W, 64 at a time, by all lines of X. Each warp splits 16 lines of W in the registers that it multiplies them
  // from; those of X lie in shared memory, of all segments if there is room. Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_parts(int begin) const {
    constexpr bool kAhead = kOctets > 1;  // else there are no registers for it
    const int room = segments_of_parts(work.steps, kOctets == 1 ? kOctet : work.held);
    const bool at_once = room >= work.steps;
    if (threadIdx.x < octets * kOctet) {
      shared.units[threadIdx.x] = split::power_of_two(-parts_exponent(shared.lines[threadIdx.x]));
    }
    const int first_place = warp() * kTile + static_cast<int>(threadIdx.x % 32 / 4);
#pragma unroll 1
    for (int octet = 0; octet < octets; octet += kLinesOfS / kOctet) {
      uint32_t codes = 0;
      for (int i = octet; i < min(octet + kLinesOfS / kOctet, octets); ++i) codes |= shared.codes[i];
      if ((codes & shared.by_parts) == 0) continue;
      if (at_once) split_parts<true>(begin, octet, 0, room);
      Numbers numbers;
      int line[2];
      const auto read = [&](int segment) {
#pragma unroll
        for (int l = 0; l < 2; ++l) read_w(line[l], segment, numbers[l]);
      };
      const auto begin_lines = [&](int place) {
        line[0] = listed(begin, place).line;
        line[1] = listed(begin, place + kOctet).line;
        if (kAhead) read(0);
      };
      begin_lines(first_place);
#pragma unroll 1
      for (int first = 0; first < shared.left; first += kLines) {
        const int place = first_place + first;
        const Listed w[2] = {listed(begin, place), listed(begin, place + kOctet)};
        const int exponent[2] = {parts_exponent(w[0].facts), parts_exponent(w[1].facts)};
        Parts acc = {};
#pragma unroll 1
        for (int segment = 0, slot = 0; segment < work.steps; ++segment, ++slot) {
          if (!at_once && (segment == 0 || slot == room)) {
            split_parts<true>(begin, octet, segment, room);
            slot = 0;
          }
          if (!kAhead) read(segment);
          Pieces<kParts> parts;
          split_two(numbers, exponent, parts);
          if (kAhead && segment + 1 < work.steps) read(segment + 1);
          multiply_parts<kOfA>(parts, slot, acc);
        }
        if (first + kLines < shared.left) begin_lines(place + kLines);
        const int units[2] = {-exponent[0], -exponent[1]};
        const int x_left = x_lines - octet * kOctet, first_of_x = octet * kOctet;
        split::from_units<true>(acc, units, reinterpret_cast<const char*>(shared.units + first_of_x), x_left);
        uint32_t wanted[2];
        bool all = x_left >= kLinesOfS;
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          wanted[l] = place + l * kOctet < shared.left ? codes_by_parts(code_above(w[l].facts)) : 0;
          all = all && (shared.all_codes & ~wanted[l]) == 0;
        }
        if (shared.some_checked && bias == nullptr) {
#pragma unroll
          for (int l = 0; l < 2; ++l) {
            const uint32_t checked = codes_with(code_above(w[l].facts), Arithmetic::checked_parts);
            if ((wanted[l] & checked) != 0 && !are_sure(acc, l, w[l].facts, x_left)) {
              look_again(place + l * kOctet);
            }
          }
        }
        const int64_t of_w[2] = {w[0].line, w[1].line};
        float* const to = c + (kOfA ? first_of_x : first_of_x * work.n);
        const float* const of_bias = kOfA && bias != nullptr ? bias + first_of_x : bias;
        if (__all_sync(~0u, all)) {
          split::store<kOfA>(acc, to, work.n, of_w, work.w.lines, kLinesOfS, of_bias, split::EveryOutput{});
        } else {
          split::store<kOfA, true>(acc, to, work.n, of_w, work.w.lines, x_left, of_bias, [&](int l, int row) {
            return (wanted[l] >> shared.code[first_of_x + row] & 1) != 0;
          });
        }
      }
    }
  }

  // The same of a few lines of W, which lie in shared memory: each warp splits 16 lines of X in registers.
  TREDUCE_DEVICE void compute_few_parts(int begin) const {
    const int line_x = line_of_octet(warp() * 2), left = shared.left;
    int of_x[2], exponent[2];
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      of_x[l] = min(line_x + l * kOctet, x_lines - 1);
      exponent[l] = parts_exponent(shared.lines[of_x[l]]);
    }
    Numbers numbers;
    const auto read = [&](int segment) {
#pragma unroll
      for (int l = 0; l < 2; ++l) read_x({work.x, matrix_x, first_x + of_x[l]}, segment, numbers[l]);
    };
    const int room = segments_of_parts(work.steps, work.held);
    Parts acc = {};
    read(0);
#pragma unroll 1
    for (int segment = 0, slot = room; segment < work.steps; ++segment, ++slot) {
      if (slot == room) {
        split_parts<false>(begin, 0, segment, room);
        slot = 0;
      }
      Pieces<kParts> parts;
      split_two(numbers, exponent, parts);
      if (segment + 1 < work.steps) read(segment + 1);
      multiply_parts<!kOfA>(parts, slot, acc);
    }
    uint32_t wanted[2];  // codes of lines of W with which those of X have outputs by parts
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      wanted[l] = line_x + l * kOctet < x_lines ? codes_by_parts(shared.code[of_x[l]]) : 0;
    }
    // As a loop: instructions that are hardly ever executed have to be fetched first, which takes longer than to execute them.
#pragma unroll 1
    for (int octet = 0; octet * kOctet < left; ++octet) {
      float output[4];
#pragma unroll
      for (int o = 0; o < 4; ++o) {
        output[o] = acc[o];
#pragma unroll
        for (int i = 1; i < kLinesOfS / kOctet; ++i) output[o] = i == octet ? acc[i * 4 + o] : output[o];
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = column(octet, j);
        const Listed w = listed(begin, at);
        const uint32_t set = at < left ? set_of(code_above(w.facts)) : 0;
#pragma unroll
        for (int l = 0; l < 2; ++l) {
          if ((wanted[l] & set) == 0) continue;
          const float sum = split::from_units(output[l * 2 + j], -exponent[l], -parts_exponent(w.facts));
          const float result = set_output(w.line, of_x[l], sum);
          const bool checked = (codes_with(shared.code[of_x[l]], Arithmetic::checked_parts) & set) != 0;
          if (checked && !is_certain(__float_as_uint(result), w.facts, shared.lines[of_x[l]], kCertain)) look_again(at);
        }
      }
    }
  }

  // Marks listed lines with outputs by parts that are not certain, all of which have been stored. Who calls: all threads of the block.
  TREDUCE_DEVICE void check_parts(int begin) const {
#pragma unroll 1
    for (int first = warp() * kOctet; first < shared.left; first += kWarps * kOctet) {
      const int place = first + static_cast<int>(threadIdx.x % 32 / 4);
      const Listed w = listed(begin, place);
      const uint32_t checked = shared.all_codes & codes_with(code_above(w.facts), Arithmetic::checked_parts);
      const bool refused = any_refused(w.line, w.facts, checked, kCertain);
      if (threadIdx.x % 4 == 0 && place < shared.left && refused) look_again(place);
    }
    __syncthreads();
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
#pragma unroll 16  // loads, of which none waits for another
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
    static_assert(sizeof(List) <= piece_bytes(1, kOctet));
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
      const uint32_t codes = codes_at_last(code_above(known));
#pragma unroll 1
      for (int octet = (i + warp()) % kWarps; octet < octets; octet += kWarps) {
        if ((shared.codes[octet] & codes) == 0) continue;
        const int lane = threadIdx.x % 32, first = octet * kOctet, own = first + lane % kOctet;
        const Facts of_x = shared.lines[own];
        const Arithmetic way = arithmetic_of(code_above(known), shared.code[own]);
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

  // The same in calls, not to take registers from others.
  static __device__ __noinline__ void call_not_finite(const Block block, int begin) { block.compute_not_finite(begin); }
  static __device__ __noinline__ void call_check(const Block block, int begin) { block.check_parts(begin); }
  static __device__ __noinline__ void call_plain(const Block block, int begin) { block.compute_plain(begin); }

  // Rare. Who calls: all threads of the block.
  TREDUCE_DEVICE void compute_left(int begin) const {
    if (shared.some_plain) call_not_finite(*this, begin);
    if (shared.by_parts != 0) {
      if (kOctets > 1 && shared.left <= kPart) {
        compute_few_parts(begin);
      } else {
        compute_parts(begin);
      }
      __syncthreads();
      if (shared.some_checked && bias != nullptr) call_check(*this, begin);
    }
    if (shared.some_plain || shared.some_refused) call_plain(*this, begin);
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
      const bool some = multiply_pairs(tile, mine, tile + kWarps < end, lines, next, acc);
      if (!mine) continue;
      const int64_t line[2] = {lines.line[0], lines.line[1]};
      if (some) split::store<kOfA, true>(acc, c, work.n, line, work.w.lines, x_lines, bias, split::EveryOutput{});
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
  const bool of_a = split::longer_is_a(p);
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
  work.heads = p.batches > 1;
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
