// Few outputs by parts, without tiles: where only some lines have any, as the few columns that hide nothing from rows of softmax, a tile
// of them would be one block's work while the others wait. Here a warp has some segments of eight lines of one operand, which it splits in
// its registers, by all listed lines of the other, whose parts lie in memory; mma's instruction multiplies them, and its sums have the bits
// of a warp group's. The last warp then adds the sums of the segments, in their order.
#pragma once

#include "../rung.h"
#include "split_operands.cuh"
#include "split_pieces.cuh"

namespace treduce::matmul::split_few {

// Parts in memory: from a line to the next, and from a part to the next.
struct Stored {
  const uint16_t* parts;
  int64_t line_step, part_step;
  int lines;
};

// put(sixteen, sums) of a segment of eight lines, of which this lane has parts of line `lane / 4`, by sixteen stored lines after another.
// This lane's sums are those of stored lines lane / 4 and eight further by lines lane % 4 * 2 and the next. Who calls: all lanes of a
// warp.
template <class Put>
TREDUCE_DEVICE void multiply(const split::PiecesX<kParts>& own, int segment, const Stored& stored, bool stored_is_a,
                             Put put) {
  const int lane = threadIdx.x % 32;
  const uint16_t* const first = stored.parts + int64_t(segment) * kSegment + lane % split::kLanes * 4;
#pragma unroll 1
  for (int sixteen = 0; sixteen * kStored < stored.lines; ++sixteen) {
    split::Pieces<kParts> pieces;
#pragma unroll
    for (int l = 0; l < 2; ++l) {
      const int there = min(sixteen * kStored + lane / split::kLanes + l * 8, stored.lines - 1);
      split::PiecesX<kParts> words;
      split::read_words<kParts>(first + there * stored.line_step, stored.part_step, words);
#pragma unroll
      for (int part = 0; part < kParts; ++part) memcpy(pieces[part][l], words[part], sizeof words[part]);
    }
    float high[4] = {}, rest[4] = {}, sums[4] = {};
    if (stored_is_a) {
      split::multiply_segment<bfloat16, kParts, true>(high, rest, pieces, own);
    } else {
      split::multiply_segment<bfloat16, kParts, false>(high, rest, pieces, own);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) split::add_parts(sums[i], high[i], rest[i]);
    put(sixteen, sums);
  }
}

// Where this lane's sums lie among the outputs of sixteen stored lines by eight others: two, and two kSecond further.
constexpr int kSecond = kStored / 2 * kOctet;
TREDUCE_DEVICE int place_of_sums() { return threadIdx.x % 32 / 4 * kOctet + threadIdx.x % 4 * 2; }

// ---- where both operands were split before: which lines are listed, and all their outputs ----

// A product of one matrix by one.
struct Product {
  split::Side a, b;
  const Facts *facts_a, *facts_b;
  const uint32_t *codes_a, *codes_b;  // which codes lines have in outputs that are not by pairs
  int most;                           // units; 0: lines are not listed
  Lines* lines;
  uint32_t* done;  // of each job: its runs of segments that are multiplied
  // Of listed lines of A, then of B: [part][line][step]. Behind them lie sums: [eight][sixteen][segment][16 x 8].
  uint16_t* parts;
  int64_t depth;

  TREDUCE_DEVICE bool are_listed() const { return most > 0 && lines->few != 0; }
  TREDUCE_DEVICE int steps() const { return static_cast<int>(depth / kSegment); }
  TREDUCE_DEVICE const split::Side& many(int of) const { return of == 0 ? b : a; }
  TREDUCE_DEVICE const Facts* facts(int of) const { return of == 0 ? facts_a : facts_b; }
  // Eights of lines of the other operand, by which listed lines of A (0) or B (1) are multiplied.
  TREDUCE_DEVICE int octets(int of) const { return (many(of).lines + kOctet - 1) / kOctet; }
  TREDUCE_DEVICE int units(int of, int count) const { return (count + kStored - 1) / kStored * octets(of); }
};

inline Product product_of(const Call& call, const Operand& a, const Operand& b, const split::Operand16& split_a,
                          const split::Operand16& split_b) {
  const Decisions& d = call.prepared;
  Lines* const lines = call.region<Lines>(d.few_lines);
  return {split::side_of(a),
          split::side_of(b),
          split_a.line_facts,
          split_b.line_facts,
          split_a.codes,
          split_b.codes,
          d.few_units,
          lines,
          reinterpret_cast<uint32_t*>(lines + 1),
          split_a.parts,
          split_a.shape.depth};
}

// What is shared by those who list lines: of what each warp has seen, of A and of B, lines that no pairs suit, and others.
template <int kWarps>
struct Counts {
  uint32_t of_warp[kWarps][2][2];
};

// Lists the lines with outputs by parts, if they are few: of A and of B those that no pairs suit, and of one of both, where they are fewer,
// others that have such outputs beside these. Who calls: kWarps warps, each of which knows its number, after all is known of the lines;
// sync() is their barrier.
template <int kWarps, class Sync>
TREDUCE_DEVICE void list(const Product& p, Counts<kWarps>& counts, int warp, Sync sync) {
  constexpr uint32_t kNever = 0x01010101;  // codes of lines that no pairs suit
  static_assert(kCodeRange == 8 && kCodes == 32 && kWarps <= 32);
  const int lane = threadIdx.x % 32;
  const uint32_t codes_a = __ldcg(p.codes_a), codes_b = __ldcg(p.codes_b), with = codes_by_parts(lane);
  // Codes of lines of A (0) or B that have such outputs, as a set: of those that no pairs suit; or of others, beside those of the other
  // operand.
  const auto wanted = [&](int of, bool never) {
    const uint32_t own = of == 0 ? codes_a : codes_b, other = (of == 0 ? codes_b : codes_a) & (never ? ~0u : ~kNever);
    return (never ? kNever : ~kNever) & __ballot_sync(~0u, (own >> lane & 1) != 0 && (with & other) != 0);
  };
  // Neither where there is nothing to list, nor where all lines would be.
  const bool own = (codes_a >> lane & 1) != 0;
  if (!__any_sync(~0u, own && (with & codes_b) != 0)) return;
  if (__all_sync(~0u, !own || (with & codes_b) == codes_b)) {
    if (warp == 0 && lane == 0) p.lines->few = 0;
    return;
  }
  // each(line, its code as a set) of those that this warp sees: four neighbours of a lane after another.
  const auto for_each = [&](int of, auto each) {
    const int all = p.many(1 - of).lines, mine = (all + 128 * kWarps - 1) / (128 * kWarps) * 128;
    const uint4* const facts = reinterpret_cast<const uint4*>(p.facts(of));  // padded to whole vectors
    const int begin = warp * mine, end = min(begin + mine, all);
#pragma unroll 2
    for (int first = begin; first < end; first += 128) {
      const int line = first + lane * 4;
      const uint4 four = line < end ? __ldcg(facts + line / 4) : uint4{};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Facts known = i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
        each(line + i, line + i < end ? set_of(code_of(known)) : 0u);
      }
    }
  };
#pragma unroll 1
  for (int of = 0; of < 2; ++of) {
    const uint32_t never = wanted(of, true), rest = wanted(of, false);
    int seen[2] = {};
    for_each(of, [&](int, uint32_t code) {
      seen[0] += __popc(__ballot_sync(~0u, (code & never) != 0));
      seen[1] += __popc(__ballot_sync(~0u, (code & rest) != 0));
    });
    if (lane < 2) counts.of_warp[warp][of][lane] = lane == 0 ? seen[0] : seen[1];
  }
  sync();
  const auto sum = [&](int of, int which, int warps) {
    return static_cast<int>(
        __reduce_add_sync(~0u, lane < warps ? counts.of_warp[min(lane, kWarps - 1)][of][which] : 0u));
  };
  const int chosen = sum(0, 1, kWarps) <= sum(1, 1, kWarps) ? 0 : 1;
  const auto count = [&](int of) { return sum(of, 0, kWarps) + (of == chosen ? sum(of, 1, kWarps) : 0); };
  const int of_a = count(0), of_b = count(1);
  const bool few = max(of_a, of_b) <= kMostListed && of_a + of_b <= most_listed(p.a.lines, p.b.lines) &&
                   p.units(0, of_a) + p.units(1, of_b) <= p.most;
  if (warp == 0 && lane < 2) p.lines->count[lane] = lane == 0 ? of_a : of_b;
  if (warp == 0 && lane == 0) p.lines->few = few;
  if (!few) return;
#pragma unroll 1
  for (int of = 0; of < 2; ++of) {
    const uint32_t listed = wanted(of, true) | (of == chosen ? wanted(of, false) : 0);
    int next = sum(of, 0, warp) + (of == chosen ? sum(of, 1, warp) : 0);
    for_each(of, [&](int line, uint32_t code) {
      const uint32_t votes = __ballot_sync(~0u, (code & listed) != 0);
      if ((code & listed) != 0) p.lines->line[of][next + __popc(votes & ((1u << lane) - 1))] = line;
      next += __popc(votes);
    });
  }
}

// Splits the listed lines. Who calls: all threads of all blocks.
TREDUCE_DEVICE void split_listed(const Product& p, const split::Task& a, const split::Task& b) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  for (int i = thread; i < kMostListed / kChunk * (p.octets(0) + p.octets(1)); i += threads) p.done[i] = 0;
  const int of_a = static_cast<int>(p.lines->count[0]), listed = of_a + static_cast<int>(p.lines->count[1]);
  const int steps = p.steps();
  for (int job = thread / split::kLanes; job < listed * steps; job += threads / split::kLanes) {
    const int slot = job / steps, segment = job - slot * steps, of = slot < of_a ? 0 : 1;
    const uint32_t line = p.lines->line[of][slot - of * of_a];
    const split::Task& task = of == 0 ? a : b;
    float numbers[split::kNumbers];
    split::read_numbers(task, task.from.line(0, line), true, segment, numbers);
    split::store_parts(numbers, p.parts + slot * p.depth + int64_t(segment) * kSegment, listed * p.depth,
                       parts_exponent(p.facts(of)[line]));
  }
}

// Listed lines of A (of = 0) or of B, up to kChunk, by eight of the other operand.
struct Job {
  int of, octet, first, count;  // first, count: of the listed lines
  const float* sums;            // of the first sixteen
};

// Adds the sums of all segments, and stores the outputs that are by parts. outputs, bias: see compute. Who calls: all lanes of a warp.
TREDUCE_DEVICE void add_segments(const Product& p, const Job& job, int64_t outputs, float* c, const float* bias) {
  const int lane = threadIdx.x % 32, steps = p.steps(), of = job.of;
  const split::Side& many = p.many(of);
  constexpr int kEach = kOutputs / 32;
  const int first = job.octet * kOctet + lane % 2 * kEach;
  const float* sums = job.sums;
  for (int begin = 0; begin < job.count; begin += kStored, sums += steps * kOutputs) {
    const int slot = begin + lane / 2;
    const int listed = static_cast<int>(p.lines->line[of][job.first + min(slot, job.count - 1)]);
    const Facts facts = p.facts(of)[listed];
    float total[kEach] = {};
    for (int step = 0; step < steps; step += kGroupSegments) {
      const int end = min(step + kGroupSegments, steps), group = step / kGroupSegments;
      float4 sum = {0, 0, 0, 0};
#pragma unroll 8
      for (int s = step; s < end; ++s) {
        const float4 more = __ldcg(reinterpret_cast<const float4*>(sums + s * kOutputs) + lane);
        sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
      }
      const float of_group[kEach] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int line = first + i;
        if (slot >= job.count || line >= many.lines) continue;
        const Facts other = p.facts(1 - of)[line];
        const float own = split::from_units(of_group[i], -parts_exponent(facts), -parts_exponent(other));
        total[i] = outputs == 0 && group > 0 ? total[i] + own : own;
        if ((outputs == 0 && end < steps) || !by_parts(arithmetic_of(code_of(facts), code_of(other)))) continue;
        const int64_t row = of == 0 ? listed : line, column = of == 0 ? line : listed;
        c[group * outputs + row * p.b.lines + column] =
            bias == nullptr ? total[i] : canonical(total[i] + __ldg(bias + column));
      }
    }
  }
}

// Computes all outputs by parts, of listed lines that split_listed has split. outputs: from the results of one group of k to those of the
// next, where they are apart, else 0. A call, not to take registers from others. Who calls: all threads of all blocks.
static __device__ __noinline__ void compute(const Product& p, int64_t outputs, float* c, const float* bias) {
  const int lane = threadIdx.x % 32, steps = p.steps();
  const int count_a = static_cast<int>(p.lines->count[0]), count_b = static_cast<int>(p.lines->count[1]);
  const auto chunks_of = [](int count) { return (count + kChunk - 1) / kChunk; };
  const int64_t part_step = (count_a + count_b) * p.depth;
  float* const all_sums = reinterpret_cast<float*>(p.parts + kParts * part_step);
  // A warp has a run of segments.
  const int warps = static_cast<int>(gridDim.x * blockDim.x / 32), of_a = chunks_of(count_a) * p.octets(0);
  const int jobs = of_a + chunks_of(count_b) * p.octets(1), most = max(min(warps / max(jobs, 1), steps), 1);
  const int length = (steps + most - 1) / most, runs = (steps + length - 1) / length;
  for (int index = blockIdx.x + gridDim.x * (threadIdx.x / 32); index < jobs * runs; index += warps) {
    const int place = index / runs, begin = (index - place * runs) * length, end = min(begin + length, steps);
    Job job;
    job.of = place < of_a ? 0 : 1;
    const int own = place - job.of * of_a, count = job.of == 0 ? count_a : count_b, chunks = chunks_of(count);
    job.octet = own / chunks;
    job.first = own % chunks * kChunk;
    job.count = min(count - job.first, kChunk);
    const split::Side& many = p.many(job.of);
    const int line = min(job.octet * kOctet + lane / split::kLanes, many.lines - 1);
    const int exponent = parts_exponent(p.facts(1 - job.of)[line]);
    const Stored stored{p.parts + (job.of * count_a + job.first) * p.depth, p.depth, part_step, job.count};
    const int sixteens = (count + kStored - 1) / kStored;
    const int unit = job.of * p.units(0, count_a) + job.octet * sixteens + job.first / kStored;
    float* const sums = all_sums + int64_t(unit) * steps * kOutputs;
    job.sums = sums;
    const split::Line<> from(many, many.source.data, line);
    float next[split::kNumbers];
    from.read(many, begin, next);
#pragma unroll 1
    for (int segment = begin; segment < end; ++segment) {
      split::PiecesX<kParts> pieces;
      split::split_pieces(next, exponent, pieces);
      if (segment + 1 < end) from.read(many, segment + 1, next);
      multiply(pieces, segment, stored, job.of == 0, [&](int sixteen, const float (&some)[4]) {
        float* const to = sums + (sixteen * steps + segment) * kOutputs + place_of_sums();
        *reinterpret_cast<float2*>(to) = {some[0], some[1]};
        *reinterpret_cast<float2*>(to + kSecond) = {some[2], some[3]};
      });
    }
    // The last to arrive adds.
    __threadfence();
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) before = atomicAdd(p.done + place, 1u);
    if (__shfl_sync(~0u, before, 0) + 1 < static_cast<uint32_t>(runs)) continue;
    __threadfence();
    add_segments(p, job, outputs, c, bias);
  }
}

}  // namespace treduce::matmul::split_few
