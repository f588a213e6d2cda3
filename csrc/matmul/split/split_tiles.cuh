// What kernels that multiply split operands share: which outputs of a tile are computed by pairs, by parts, or on the plain
// cores, read from the flags of its lines; scales and units; tensor maps.
#pragma once

#include "../hopper.cuh"
#include "split_segment.cuh"

namespace treduce::matmul::split {

// What is known of the lines of an operand.
struct LineFacts {
  Facts* data;
  int64_t lines_padded;
  Matrices matrices;

  TREDUCE_DEVICE Facts* at(int64_t line, int2 batch) const {
    return data + matrices.of(batch.x, batch.y) * lines_padded + line;
  }
  TREDUCE_DEVICE unsigned code(int64_t line, int2 batch) const { return code_of(*at(line, batch)); }
};

inline LineFacts lines_of(const Operand& o, const Operand16& split) {
  return {split.line_facts, split.shape.lines_padded, matrices_of(o)};
}

// Joins what is known of a part of a line to what is known of the line.
TREDUCE_DEVICE void add_facts(Facts* line, Facts more) {
  Facts known = *const_cast<volatile Facts*>(line);
  while (join(known, more) != known) {
    const Facts seen = atomicCAS(line, known, join(known, more));
    if (seen == known) return;
    known = seen;
  }
}

// What is known of the segments of an operand.
struct SegmentFacts {
  const unsigned char *flags, *most, *least;
  int64_t lines_padded, segments;
  Matrices matrices;

  TREDUCE_DEVICE int64_t first(int64_t line, int2 batch) const {
    return matrices.of(batch.x, batch.y) * segments * lines_padded + line;
  }
  // The flags that 16 neighbouring lines have in every `step`th segment from `first` on. Past the padding: all flags.
  TREDUCE_DEVICE uint4 flags_of_lines(int64_t line, int2 batch, int first_segment, int step) const {
    const unsigned char* const from = flags + first(line, batch);
    uint4 all = {~0u, ~0u, ~0u, ~0u};
    if (line >= lines_padded) return all;
#pragma unroll 4
    for (int64_t s = first_segment; s < segments; s += step) {
      const uint4 some = *reinterpret_cast<const uint4*>(from + s * lines_padded);
      all = {all.x & some.x, all.y & some.y, all.z & some.z, all.w & some.w};
    }
    return all;
  }
  // What is known of 16 neighbouring lines in every `step`th segment from `first_segment` on: their flags, largest exponents and
  // least ones, a byte each.
  struct Joined {
    uint4 flags = {~0u, ~0u, ~0u, ~0u}, most = {0, 0, 0, 0}, least = {~0u, ~0u, ~0u, ~0u};

    TREDUCE_DEVICE void join(const uint4& f, const uint4& m, const uint4& l) {
      flags = {flags.x & f.x, flags.y & f.y, flags.z & f.z, flags.w & f.w};
      most = {__vmaxu4(most.x, m.x), __vmaxu4(most.y, m.y), __vmaxu4(most.z, m.z), __vmaxu4(most.w, m.w)};
      least = {__vminu4(least.x, l.x), __vminu4(least.y, l.y), __vminu4(least.z, l.z), __vminu4(least.w, l.w)};
    }
  };
  TREDUCE_DEVICE Joined of_lines(int64_t line, int2 batch, int first_segment, int step) const {
    Joined joined;
    if (line >= lines_padded) return joined;
    const int64_t begin = first(line, batch);
    const auto read = [&](const unsigned char* from, int64_t s) {
      return *reinterpret_cast<const uint4*>(from + begin + s * lines_padded);
    };
#pragma unroll 2
    for (int64_t s = first_segment; s < segments; s += step) joined.join(read(flags, s), read(most, s), read(least, s));
    return joined;
  }
};

inline SegmentFacts segments_of(const Operand& o, const Operand16& split) {
  return {split.flags, split.most, split.least, split.shape.lines_padded, split.shape.segments(), matrices_of(o)};
}

// ---- in kernels that walk tiles ----

// What the blocks share: a task is a tile of C, with all groups of k or with one.
struct Work {
  hopper::Grid grid;
  int steps;         // segments of k
  int64_t tasks;     // tiles, times groups where these are apart
  int64_t outputs;   // from one group's results to the next's, where they are apart; else 0
  PartsRange range;  // groups that this launch multiplies

  struct Task {
    int64_t tile;
    int begin, end;  // steps
  };
  TREDUCE_DEVICE Task task(int64_t index) const {
    const int first = static_cast<int>(range.first_segment());
    const int last = first + static_cast<int>(range.segments(steps));
    const int begin = first + static_cast<int>(index / grid.count) * kGroupSegments;
    return {index % grid.count, begin, outputs > 0 ? min(last, begin + kGroupSegments) : last};
  }
  // Whether a group ends with this step.
  TREDUCE_DEVICE bool ends_group(int step) const {
    return static_cast<unsigned>(step) % kGroupSegments == kGroupSegments - 1 || step == steps - 1;
  }
};

inline Work work_of(const Problem& p, int tile_m, int tile_n, int64_t segments, const PartsRange& range, bool apart) {
  Work work;
  work.grid = hopper::grid_of(p, tile_m, tile_n);
  work.steps = static_cast<int>(segments);
  work.outputs = apart ? p.batches * p.m * p.n : 0;
  work.tasks = work.grid.count * (apart ? range.groups : 1);
  work.range = range;
  return work;
}

// What a tile's task is told before its sums are needed.
enum Verdict { kNone, kSome, kAll };  // how many of its outputs the kernel computes

// Warps that have nothing else to do (scouts) find out what a block's next tile needs while this one is multiplied. kRows, kColumns:
// of the tile, or of all tiles of the cluster, whose blocks have to agree.
template <int kRows, int kColumns>
struct Verdicts {
  static constexpr int kLines = kRows + kColumns, kScouts = 96, kBarrier = 4;  // a named barrier of the scouts
  static constexpr int kRuns = kLines / 16;                                    // of lines whose flags are read at once
  static_assert(kRows % 16 == 0 && kColumns % 16 == 0 && kRuns <= kScouts);

  uint64_t known[2], heard[2];
  int verdict[2];
  uint32_t codes[2][kLines / 4];  // a byte for each line: rows, then columns
  uint32_t sets[2][2];            // which codes the rows have, and the columns

  // Who calls: one thread, before a barrier of the block. `listeners`: arrivals after each verdict.
  TREDUCE_DEVICE void init(int listeners) {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(known + i, 1);
      ptx::mbarrier_init(heard + i, listeners);
    }
  }
  // Of this block's `n`th task.
  TREDUCE_DEVICE int wait(int n) {
    ptx::mbarrier_wait(known + n % 2, n / 2 % 2);
    return *const_cast<volatile int*>(verdict + n % 2);
  }
  TREDUCE_DEVICE void done(int n) { ptx::mbarrier_arrive(heard + n % 2); }
  TREDUCE_DEVICE unsigned row_code(int n, int row) const { return bytes(n)[row]; }
  TREDUCE_DEVICE unsigned column_code(int n, int column) const { return bytes(n)[kRows + column]; }

  // ---- what all scouts call, in this order ----

  TREDUCE_DEVICE static int scout() { return static_cast<int>(threadIdx.x) - 32; }
  TREDUCE_DEVICE static void sync() { hopper::named_barrier<kScouts>(kBarrier); }

  TREDUCE_DEVICE void begin(int n) { ptx::mbarrier_wait(heard + n % 2, (n / 2 % 2) ^ 1); }
  // Gathers the codes code(of A or B, line) of a tile whose first row and column are given, of a matrix of m by n; one thread sees a
  // line. The codes of rows and of columns, as sets, are then in `sets`.
  template <class Code>
  TREDUCE_DEVICE void gather(int task, int64_t row, int64_t column, int64_t m, int64_t n, Code code) {
    uint32_t* const found = sets[task % 2];
    sync();
    if (scout() < 2) found[scout()] = 0;
    sync();
    uint32_t rows = 0, columns = 0;
    for (int i = scout(); i < kLines; i += kScouts) {
      const bool of_a = i < kRows;
      const int64_t line = of_a ? row + i : column + i - kRows;
      if (line >= (of_a ? m : n)) continue;
      const unsigned mine = code(of_a, line, i);
      bytes(task)[i] = static_cast<unsigned char>(mine);
      (of_a ? rows : columns) |= set_of(mine);
    }
    rows = __reduce_or_sync(~0u, rows);
    columns = __reduce_or_sync(~0u, columns);
    if (scout() % 32 == 0) {
      atomicOr(found, rows);
      atomicOr(found + 1, columns);
    }
    sync();
  }
  TREDUCE_DEVICE void tell(int n, int found) {
    if (scout() != 0) return;
    verdict[n % 2] = found;
    ptx::mbarrier_arrive(known + n % 2);
  }
  // Gathers the flags that the lines have in all segments: in `codes`, which gather reads next.
  TREDUCE_DEVICE void gather_flags(int task, const SegmentFacts& a, const SegmentFacts& b, int64_t row, int64_t column,
                                   int2 batch) {
    uint32_t* const to = codes[task % 2];
    for (int i = scout(); i < kLines / 4; i += kScouts) to[i] = ~0u;
    sync();
    constexpr int kShares = kScouts / kRuns;
    if (scout() >= kRuns * kShares) return;
    const int run = scout() % kRuns, line = run * 16;
    const bool of_a = line < kRows;
    const uint4 some =
        (of_a ? a : b).flags_of_lines(of_a ? row + line : column + line - kRows, batch, scout() / kRuns, kShares);
    atomicAnd(to + run * 4, some.x);
    atomicAnd(to + run * 4 + 1, some.y);
    atomicAnd(to + run * 4 + 2, some.z);
    atomicAnd(to + run * 4 + 3, some.w);
  }
  TREDUCE_DEVICE unsigned gathered(int task, int i) const { return bytes(task)[i]; }
  // Gathers the codes of lines of which more than their flags has to be known; tell(of A or B, line, facts) of each.
  template <class Tell>
  TREDUCE_DEVICE void gather_facts(int task, const SegmentFacts& a, const SegmentFacts& b,
                                   const hopper::Grid::Place& at, int64_t m, int64_t n, Tell tell) {
    // Neighbouring lanes, which share 16 lines: as many as there are, for what they read is a chain of latencies.
    constexpr int kMost = kScouts / kRuns, kShares = kMost >= 16 ? 16 : kMost >= 8 ? 8 : 4, kOwn = 16 / kShares;
    static_assert(kRuns * kShares <= kScouts);
    uint32_t* const found = sets[task % 2];
    sync();
    if (scout() < 2) found[scout()] = 0;
    sync();
    const int run = scout() / kShares, share = scout() % kShares, first = run * 16;
    const bool of_a = first < kRows;
    const int64_t line = of_a ? at.row + first : at.column + first - kRows;
    SegmentFacts::Joined joined;
    if (run < kRuns) joined = (of_a ? a : b).of_lines(line, at.batch, share, kShares);
    const auto other = [](const uint4& x, int d) {
      return uint4{__shfl_xor_sync(~0u, x.x, d), __shfl_xor_sync(~0u, x.y, d), __shfl_xor_sync(~0u, x.z, d),
                   __shfl_xor_sync(~0u, x.w, d)};
    };
#pragma unroll
    for (int d = 1; d < kShares; d *= 2) {
      joined.join(other(joined.flags, d), other(joined.most, d), other(joined.least, d));
    }
    // Each of the lanes has some of the lines.
    const auto mine = [&](const uint4& x) {
      const int word = share * kOwn / 4;
      return (word == 0 ? x.x : word == 1 ? x.y : word == 2 ? x.z : x.w) >> share * kOwn % 4 * 8;
    };
    const uint32_t flags = mine(joined.flags), most = mine(joined.most), least = mine(joined.least);
    uint32_t codes_here = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int place = first + share * kOwn + i;
      const int64_t own = line + share * kOwn + i;
      if (run >= kRuns || own >= (of_a ? m : n)) continue;
      const auto byte = [i](uint32_t x) { return x >> i * 8 & 0xff; };
      const Facts facts = facts_of(byte(flags), byte(most), byte(least));
      tell(of_a, own, facts);
      bytes(task)[place] = static_cast<unsigned char>(code_of(facts));
      codes_here |= set_of(code_of(facts));
    }
    const uint32_t rows = __reduce_or_sync(~0u, of_a ? codes_here : 0);
    const uint32_t columns = __reduce_or_sync(~0u, of_a ? 0 : codes_here);
    if (scout() % 32 == 0) {
      atomicOr(found, rows);
      atomicOr(found + 1, columns);
    }
    sync();
  }

 private:
  TREDUCE_DEVICE unsigned char* bytes(int n) { return reinterpret_cast<unsigned char*>(codes[n % 2]); }
  TREDUCE_DEVICE const unsigned char* bytes(int n) const {
    return reinterpret_cast<const unsigned char*>(codes[n % 2]);
  }
};

// The scales and units of an operand.
struct Scales {
  const float *data, *units;
  int64_t lines_padded;
  int segments, groups;
  Matrices matrices;

  TREDUCE_DEVICE int matrix(int2 batch) const { return static_cast<int>(matrices.of(batch.x, batch.y)); }
  TREDUCE_DEVICE const float* of(int matrix, int segment, int line) const {
    return data + (int64_t(matrix) * segments + segment) * lines_padded + line;
  }
  TREDUCE_DEVICE const float* unit(int matrix, int group, int line) const {
    return units + (int64_t(matrix) * groups + group) * lines_padded + line;
  }
};

inline Scales scales_of(const Operand& o, const Operand16& split) {
  const Halves& h = split.shape;
  return {split.scale,   split.unit, h.lines_padded, static_cast<int>(h.segments()), static_cast<int>(h.groups()),
          matrices_of(o)};
}

// The scales (or units) of a tile's rows and columns, for this lane's outputs: 64 rows by kColumns columns of a warp group.
template <int kColumns>
struct LineScales {
  const float* rows;
  const float* columns;

  TREDUCE_DEVICE LineScales(const char* of_rows, int first_row, const char* of_columns, int first_column = 0)
      : rows(reinterpret_cast<const float*>(of_rows) + first_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
        columns(reinterpret_cast<const float*>(of_columns) + first_column) {}

  // apply(i, the row's, the column's) for each of this lane's outputs.
  template <class Apply>
  TREDUCE_DEVICE void for_each(Apply apply) const {
    const float row[2] = {rows[0], rows[8]};
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const float2 column = reinterpret_cast<const float2*>(columns)[i * 4 + threadIdx.x % 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) apply(i * 4 + j, row[j / 2], j % 2 == 0 ? column.x : column.y);
    }
  }
  // Those that the lanes of a warp need together, of at most 128 columns, in registers.
  struct Held {
    float4 columns;
    float rows[2];

    // Who calls: all lanes of the warp.
    TREDUCE_DEVICE bool are_one() const {
      return __all_sync(~0u, (rows[0] == 1.0f) & (rows[1] == 1.0f) & (columns.x == 1.0f) & (columns.y == 1.0f) &
                                 (columns.z == 1.0f) & (columns.w == 1.0f));
    }
  };
  TREDUCE_DEVICE Held held() const {
    static_assert(kColumns <= 128 && kColumns % 4 == 0);
    const int place = min(static_cast<int>(threadIdx.x % 32), kColumns / 4 - 1);
    return {reinterpret_cast<const float4*>(columns)[place], {rows[0], rows[8]}};
  }
};

// Where a launch's results go: sums of groups of k to where the last launch adds them, or C, with the bias if there is one.
struct Results {
  float* c;
  const float* bias;
};
inline Results results_of(const Call& call, float* partials) {
  if (partials != nullptr) return {partials, nullptr};
  return {static_cast<float*>(call.c), static_cast<const float*>(call.bias)};
}

// Describes both halves of an operand for copies of `lines` lines and a segment of k.
inline cudaError_t encode_halves(const Operand16& o, int lines, CUtensorMap* map) {
  const Halves& h = o.shape;
  const Boxes boxes{o.high, 2, true, h.depth, h.lines, h.depth, {2, h.matrices}, {h.values, h.lines * h.depth}};
  return hopper::encode(boxes, hopper::kMapType<float16>, kSegment, lines, map);
}

// The same of its parts.
inline cudaError_t encode_parts(const Operand16& o, int lines, CUtensorMap* map) {
  const Halves& h = o.shape;
  const int64_t matrix = h.lines * o.parts_depth;
  const Boxes boxes{
      o.parts, 2, true, o.parts_depth, h.lines, o.parts_depth, {kParts, h.matrices}, {h.matrices * matrix, matrix}};
  return hopper::encode(boxes, hopper::kMapType<bfloat16>, kSegment, lines, map);
}

}  // namespace treduce::matmul::split
