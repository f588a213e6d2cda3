// How operands are split before they are multiplied: into halves, and into parts. The kernels are in split_whole.cuh and, of few
// lines, split_lines.cuh: apart, because every file that includes a kernel compiles it.
#pragma once

#include <type_traits>

#include "../../primitives/shared.cuh"
#include "../rung.h"
#include "split_launches.h"
#include "split_segment.cuh"
#include "split_source.cuh"

namespace treduce::matmul::split {

// A lane's numbers lie in runs of kRun; the runs of the lanes alternate.
constexpr int kRun = 8;

// Where a lane's run begins in its segment, if its first number is the lane's `i`th.
TREDUCE_DEVICE int place_of(int i) { return i * kLanes + static_cast<int>(threadIdx.x) % kLanes * kRun; }

// One operand, and where what it is split into goes. 32 bits are enough for indices of lines and segments: more would need a
// workspace of 2^40 bytes.
struct Task {
  static constexpr bool kAll = false;  // whether all lines are wanted

  Source from;
  bool vectors;      // four steps of k are one aligned load
  bool along_lines;  // lines are contiguous
  int64_t blocks;
  Operand16 to;
  int64_t first_segment, segments;  // of the lines: those that are split

  // Where the segment's facts and its scale lie.
  TREDUCE_DEVICE int64_t mark(uint32_t matrix, uint32_t line, uint32_t segment) const {
    const uint32_t of_matrices = matrix * static_cast<uint32_t>(to.shape.segments()) + segment;
    return int64_t(uint64_t(of_matrices) * static_cast<uint32_t>(to.shape.lines_padded)) + line;
  }
  TREDUCE_DEVICE void write_facts(int64_t mark, Facts facts) const {
    to.flags[mark] = static_cast<unsigned char>(facts);
    to.most[mark] = static_cast<unsigned char>(facts >> 8);
    to.least[mark] = static_cast<unsigned char>(facts >> 16);
  }
  TREDUCE_DEVICE void write_unit(uint32_t matrix, uint32_t line, uint32_t segment, int exponent) const {
    if (segment % kGroupSegments != 0) return;
    const int64_t group = matrix * to.shape.groups() + segment / kGroupSegments;
    to.unit[group * to.shape.lines_padded + line] = power_of_two(exponent);
  }
  // What is loaded beside a segment's numbers, so as to arrive with them: nothing here.
  TREDUCE_DEVICE Sampled sample(bool, const float*, uint32_t) const { return {}; }
  TREDUCE_DEVICE Sampled sample_vectors(bool, const float*, uint32_t) const { return {}; }
  TREDUCE_DEVICE int present(uint32_t segment) const {
    return static_cast<int>(min(int64_t(kSegment), from.depth - int64_t(segment) * kSegment));
  }
};

// Splits the segment whose numbers the lanes of a team hold into halves, and writes these, its scale and its facts; and scales of
// lines past the last one, so that there are `scales`.
struct IntoHalves : Task {
  static constexpr bool kAll = true;
  int64_t scales;

  TREDUCE_DEVICE Sampled sample(bool there, const float* line, uint32_t segment) const {
    return from.first_of_group(there, line, segment);
  }
  TREDUCE_DEVICE Sampled sample_vectors(bool there, const float* line, uint32_t segment) const {
    return from.first_vectors_of_group(there, line, segment);
  }
  TREDUCE_DEVICE bool wants(uint32_t, uint32_t, uint32_t) const { return true; }
  // Who calls: all lanes of a warp. `first`: where the line begins; `sampled`: see sample. Returns the segment's facts.
  TREDUCE_DEVICE Facts write(const float (&x)[kNumbers], bool there, uint32_t matrix, uint32_t line, uint32_t segment,
                             const float* first, const Sampled& sampled) const {
    uint32_t high[kNumbers / 2], low[kNumbers / 2];
    const int unit = from.unit(there, first, segment, sampled);
    Seen seen;
    const int exponent = split_numbers(x, present(segment), unit, high, low, seen);
    const Facts facts = seen.facts();
    const float scale = to_unit<kNumbers / 2, kLanes>(high, low, least_exponent(facts), exponent, unit);
    if (!there) return facts;
    const Halves& shape = to.shape;
    const uint32_t row = matrix * static_cast<uint32_t>(shape.lines) + line;
    const uint64_t segments_before = uint64_t(row) * static_cast<uint32_t>(shape.segments()) + segment;
    const int64_t at = static_cast<int64_t>(segments_before) * kSegment + place_of(0);
    float16 *const to_high = to.high + at, *const to_low = to.low + at;
#pragma unroll
    for (int i = 0; i < kNumbers; i += kRun) {
      const int w = i / 2;
      store_vector(to_high + i * kLanes, make_uint4(high[w], high[w + 1], high[w + 2], high[w + 3]));
      store_vector(to_low + i * kLanes, make_uint4(low[w], low[w + 1], low[w + 2], low[w + 3]));
    }
    const int64_t here = mark(matrix, line, segment);
    const int lane = threadIdx.x % kLanes;
    if (lane == 0) {
      to.scale[here] = scale;
      write_facts(here, facts);
      write_unit(matrix, line, segment, unit);
    }
    // Tiles copy the scales of the padding too: these are one.
    if (line + 1 == shape.lines) {
#pragma unroll 1
      for (int64_t i = line + 1 + lane; i < scales; i += kLanes) to.scale[here - line + i] = 1.0f;
    }
    return facts;
  }
};

// Writes the facts of a segment, and nothing else.
struct IntoFacts : Task {
  static constexpr bool kAll = true;
  TREDUCE_DEVICE bool wants(uint32_t, uint32_t, uint32_t) const { return true; }
  TREDUCE_DEVICE void write(const float (&x)[kNumbers], bool there, uint32_t matrix, uint32_t line, uint32_t segment,
                            const float*, const Sampled&) const {
    const Extremes extremes = Extremes::of<kLanes>(x);
    if (there && threadIdx.x % kLanes == 0) write_facts(mark(matrix, line, segment), extremes.facts(0));
  }
};

// Stores a segment of a line as parts, of which one lies `part` numbers from the next. `exponent`: of the power of two that the numbers
// are multiplied by.
TREDUCE_DEVICE void store_parts(const float (&x)[kNumbers], uint16_t* segment, int64_t part, int exponent) {
  const float factor = power_of_two(exponent);
#pragma unroll
  for (int i = 0; i < kNumbers; i += kRun) {
    uint32_t parts[kRun / 2][kParts];
#pragma unroll
    for (int j = 0; j < kRun / 2; ++j) split_parts(x[i + j * 2] * factor, x[i + j * 2 + 1] * factor, parts[j]);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      store_vector(segment + p * part + place_of(i), make_uint4(parts[0][p], parts[1][p], parts[2][p], parts[3][p]));
    }
  }
}

// Splits a segment into parts, and writes these and the unit, which is that of the whole line. `others`: which codes the lines of
// the other operand have; null: all lines are split.
struct IntoParts : Task {
  const uint32_t* others;

  TREDUCE_DEVICE Facts facts(uint32_t matrix, uint32_t line) const {
    return to.line_facts[matrix * to.shape.lines_padded + line];
  }
  // Which of the codes that its lines have need parts, as a set. Who calls: all lanes of a warp.
  TREDUCE_DEVICE uint32_t wanted() const {
    if (others == nullptr) return ~0u;
    return __ballot_sync(~0u, (codes_by_parts(threadIdx.x % 32) & *others) != 0) & *to.codes;
  }
  TREDUCE_DEVICE bool wants(uint32_t matrix, uint32_t line, uint32_t wanted) const {
    return others == nullptr || (set_of(code_of(facts(matrix, line))) & wanted) != 0;
  }
  TREDUCE_DEVICE void write(const float (&x)[kNumbers], bool there, uint32_t matrix, uint32_t line, uint32_t segment,
                            const float*, const Sampled&) const {
    if (!there) return;
    const int exponent = parts_exponent(facts(matrix, line));
    const uint32_t place = to.place_of == nullptr ? line : to.place_of[line];
    write_parts(x, matrix, place, segment, exponent);
    if (threadIdx.x % kLanes == 0) write_unit(matrix, place, segment, -exponent);
  }
  // `exponent`: of the power of two that the numbers are multiplied by.
  TREDUCE_DEVICE void write_parts(const float (&x)[kNumbers], uint32_t matrix, uint32_t place, uint32_t segment,
                                  int exponent) const {
    const int64_t depth = to.parts_depth, row = matrix * to.shape.lines + place;
    store_parts(x, to.parts + row * depth + (int64_t(segment) - first_segment) * kSegment,
                to.shape.matrices * to.shape.lines * depth, exponent);
  }
};

// Of each matrix of few lines: how many lines want its parts that split_lines left, or more, where count_left counts them; else whether some do.
TREDUCE_DEVICE uint32_t* parts_wanted(const Operand16& few) { return few.codes + kLineWords - kWordOfCodes; }

// The same of few lines, of those that pairs may suit, of matrices whose parts more than `spared` lines want.
struct IntoLateParts : IntoParts {
  uint32_t spared;

  TREDUCE_DEVICE bool wants(uint32_t matrix, uint32_t line, uint32_t) const {
    return parts_wanted(to)[matrix] > spared && !never_pairs(facts(matrix, line));
  }
  TREDUCE_DEVICE void write(const float (&x)[kNumbers], bool there, uint32_t matrix, uint32_t line, uint32_t segment,
                            const float*, const Sampled&) const {
    if (there) write_parts(x, matrix, line, segment, parts_exponent(facts(matrix, line)));
  }
};

// The numbers of a lane in a segment of a line. Vectors: see Task.
TREDUCE_DEVICE void read_numbers(const Task& s, const float* line, bool there, uint32_t segment, float (&x)[kNumbers]) {
  const int64_t begin = int64_t(segment) * kSegment;
  if (s.vectors) {
    const float* const from = line + begin + place_of(0);
    const int left = there ? s.present(segment) - place_of(0) : 0;
#pragma unroll
    for (int i = 0; i < kNumbers; i += 4) {
      const int k = i / kRun * kRun * kLanes + i % kRun;
      const float4 four = k < left ? __ldg(reinterpret_cast<const float4*>(from + k)) : float4{};
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
  } else {
    const int64_t stride = s.from.depth_stride;
    const float* at = line + (begin + place_of(0)) * stride;
    const auto read = [&](auto whole) {
      const int left = static_cast<int>(s.from.depth - begin) - place_of(0);
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        const int ahead = i / kRun * kRun * kLanes + i % kRun;
        x[i] = there && (whole || ahead < left) ? __ldg(at) : 0.0f;
        at += i % kRun == kRun - 1 ? stride * (kRun * kLanes - kRun + 1) : stride;
      }
    };
    begin + kSegment <= s.from.depth ? read(std::true_type{}) : read(std::false_type{});
  }
}

// If vectors along k are aligned, a team reads its segment from global memory.
template <class Into>
TREDUCE_DEVICE void split_vectors(const Into& s, uint32_t block, uint32_t wanted) {
  const Halves& shape = s.to.shape;
  const uint32_t lines = static_cast<uint32_t>(shape.lines), segments = static_cast<uint32_t>(s.segments);
  const uint32_t index = block * kTeams + threadIdx.x / kLanes, row = index / segments;
  const uint32_t segment = index - row * segments + static_cast<uint32_t>(s.first_segment);
  const uint32_t matrix = row < lines ? 0 : row / lines, line = row - matrix * lines;
  const bool there = matrix < shape.matrices && s.wants(matrix, line, wanted);
  if (__all_sync(~0u, !there)) return;
  const float* const from = s.from.line(matrix, line);
  float x[kNumbers];
  read_numbers(s, from, there, segment, x);
  // After the others: the compiler looks at these numbers before it asks for what follows them.
  const Sampled sampled = s.sample_vectors(there, from, segment);
  s.write(x, there, matrix, line, segment, from, sampled);
}

// If not, a segment of kSplitLines lines goes through shared memory, read along the lines or along k, whichever is contiguous.
template <class Into>
TREDUCE_DEVICE void split_tile(const Into& s, uint32_t block, uint32_t wanted) {
  constexpr int kPitch = kSegment + 1, kLoads = kSplitLines * kSegment / kSplitThreads;
  SHARED_ARRAY(float, tile, kSplitLines* kPitch);
  const Halves& shape = s.to.shape;
  const uint32_t lines = static_cast<uint32_t>(shape.lines), segments = static_cast<uint32_t>(s.segments);
  const uint32_t across = (lines + kSplitLines - 1) / kSplitLines, place = block / across;
  const uint32_t first = (block - place * across) * kSplitLines;
  const uint32_t matrix = place / segments;
  const uint32_t segment = place - matrix * segments + static_cast<uint32_t>(s.first_segment);
  const uint32_t own = threadIdx.x / kLanes, line = first + own;
  const bool there = line < lines && s.wants(matrix, line, wanted);
  if (!Into::kAll && __syncthreads_or(there) == 0) return;
  // A thread reads one line and every `step`th step of k, or one step of k of every `step`th line.
  const int neighbours = s.along_lines ? kSplitLines : kSegment, step = kSplitThreads / neighbours;
  const int x = threadIdx.x % neighbours, y = threadIdx.x / neighbours;
  const int64_t begin = int64_t(segment) * kSegment;
  const int left_k = s.present(segment), left_lines = static_cast<int>(min(lines - first, uint32_t(kSplitLines)));
  const float* const own_line = s.from.line(matrix, line);
  const float* const from = s.from.line(matrix, first) + begin * s.from.depth_stride;
  const int64_t stride_x = s.along_lines ? s.from.line_stride : s.from.depth_stride;
  const int64_t stride_y = s.along_lines ? s.from.depth_stride : s.from.line_stride;
  const int left_x = s.along_lines ? left_lines : left_k, left_y = s.along_lines ? left_k : left_lines;
  float numbers[kLoads];
  const auto read = [&](auto all_there) {
    const float* at = from + x * stride_x + y * stride_y;
#pragma unroll
    for (int i = 0; i < kLoads; ++i, at += step * stride_y) {
      numbers[i] = all_there || (x < left_x && y + i * step < left_y) ? __ldg(at) : 0.0f;
    }
  };
  const bool whole = left_k == kSegment && left_lines == kSplitLines;
  whole ? read(std::true_type{}) : read(std::false_type{});
  const Sampled sampled = s.sample(there, own_line, segment);
  float* const to = tile + (s.along_lines ? x * kPitch + y : y * kPitch + x);
  const int pitch = s.along_lines ? step : step * kPitch;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) to[i * pitch] = numbers[i];
  __syncthreads();
  float of_team[kNumbers];
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) of_team[i] = tile[own * kPitch + place_of(i / kRun * kRun) + i % kRun];
  s.write(of_team, there, matrix, line, segment, own_line, sampled);
}

// The matrices that a block splits lines of.
struct SomeMatrices {
  uint32_t first, last;
};
TREDUCE_DEVICE SomeMatrices matrices_of(const Task& s, uint32_t block) {
  const uint32_t lines = static_cast<uint32_t>(s.to.shape.lines), segments = static_cast<uint32_t>(s.segments);
  const uint32_t of_matrix = segments * (s.vectors ? lines : (lines + kSplitLines - 1) / kSplitLines);
  const uint32_t at_once = s.vectors ? kTeams : 1, last = static_cast<uint32_t>(s.to.shape.matrices) - 1;
  return {block * at_once / of_matrix, min((block * at_once + at_once - 1) / of_matrix, last)};
}

// Of a block that splits others afterwards, `again`: what it has read in shared memory is then overwritten.
template <class Into>
TREDUCE_DEVICE void split_block(const Into& s, uint32_t block, uint32_t wanted, bool again) {
  if (s.vectors) {
    split_vectors(s, block, wanted);
  } else {
    split_tile(s, block, wanted);
    if (again) __syncthreads();
  }
}

// What is known of lines before the launches that find out more.
TREDUCE_DEVICE void begin_facts(const Operand16& o, Facts facts) {
  const int64_t first = int64_t(blockIdx.x) * blockDim.x, lines = o.shape.all_lines();
  if (blockIdx.x == 0 && threadIdx.x < kLineWords && o.codes != nullptr) o.codes[threadIdx.x] = 0;
  if (first >= lines) return;  // nearly all blocks
  for (int64_t i = first + threadIdx.x; i < lines; i += int64_t(gridDim.x) * blockDim.x) o.line_facts[i] = facts;
}

// Where what an operand is split into lies in the call's workspace.
inline Operand16 place(const Call& call, const SplitRegions& regions) {
  Operand16 to = {};
  to.shape = regions.shape;
  to.parts_depth = regions.shape.depth;
  to.line_facts = call.region<Facts>(regions.line_facts);
  if (regions.knows_codes) to.codes = to.line_facts + to.shape.all_lines() + kWordOfCodes;
  if (regions.runs > 0) to.runs = call.region<uint32_t>(regions.runs);
  if (regions.ordered) {
    to.line_at = call.region<uint32_t>(regions.order);
    to.place_of = to.line_at + to.shape.lines_padded;
    to.reordered = to.place_of + to.shape.lines_padded;
  }
  if (regions.as_read) return to;
  to.flags = call.region<unsigned char>(regions.facts);
  to.most = to.flags + to.shape.scales;
  to.least = to.most + to.shape.scales;
  to.unit = call.region<float>(regions.units);
  if (regions.has_parts) to.parts = call.region<uint16_t>(regions.parts);
  if (!regions.has_halves) return to;
  to.high = call.region<float16>(regions.halves);
  to.low = to.high + to.shape.values;
  to.scale = call.region<float>(regions.scales);
  return to;
}

inline Task task_of(const Operand& o, const Splitting& s, const Operand16& to, const PartsRange& range) {
  const int64_t all = to.shape.segments();
  return {source_of(o), s.vectors, s.along_lines, s.blocks, to, range.first_segment(), range.segments(all)};
}
}  // namespace treduce::matmul::split
