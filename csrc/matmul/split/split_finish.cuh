// The kernel that ends a product by halves or parts: it adds the groups of k that were computed side by side, and computes on the
// plain cores the outputs that neither can hold.
#pragma once

#include <type_traits>

#include "../../primitives/ptx/launch.cuh"
#include "../../primitives/shared.cuh"
#include "../rung.h"
#include "split_launches.h"
#include "split_segment.cuh"
#include "split_tiles.cuh"

namespace treduce::matmul::split {

// Plain outputs are sums of fused multiply-adds in k order over each segment; segments and groups are added in the order in which
// the tensor cores' sums are.
constexpr int kFixTile = kFinishTile, kFixDepth = 16;
constexpr int kFixStride =
    kFixTile + 4;  // in shared memory: stores along k meet twice in a bank, loads of four lines not at all
static_assert(kSegment % kFixDepth == 0 && kGroup % kSegment == 0);

// All threads of a block, who compute a tile together. kRowsAtOnce: of a tile, that registers suffice for; kLoadsAhead: and to load numbers
// while others are multiplied.
template <int kCount, int kRows, bool kAhead>
struct WholeBlock {
  static constexpr int kThreads = kCount, kRowsAtOnce = kRows;
  static constexpr bool kLoadsAhead = kAhead;

  TREDUCE_DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  TREDUCE_DEVICE static void sync() { __syncthreads(); }
  TREDUCE_DEVICE static bool any(bool x) { return __syncthreads_or(x) != 0; }
  TREDUCE_DEVICE static bool all(bool x) { return __syncthreads_and(x) != 0; }
};

// Their shared memory, for one function after another.
constexpr int kPlaces = 2048, kMostFew = 64;
struct Scratch {
  union {
    int places[kPlaces];
    alignas(16) float tiles[2][kFixStride * kFixDepth];
    unsigned short few[kMostFew];
  };
  unsigned sums[kFixTile];
  int count;
};

// Which outputs of a tile of 64 x 64 are to be computed here: a bit for each column, in two words for each row.
struct Plain {
  uint32_t columns[kFixTile][2];
  TREDUCE_DEVICE bool has(int row, int column) const { return (columns[row][column / 32] >> column % 32 & 1) != 0; }
};

// The outputs of a line with infinities or NaN, with 64 lines of the other operand: a thread multiplies every kPlaceShares-th number
// of the line that is not finite by that of one of the others. Finite products cannot change the sum. Returns it in the first 64
// threads. `mine`, `others`: where the line and the first of the others begin; strides along k, and from line to line.
// Who calls: every thread of the team. Synchronises within.
template <class Team>
__device__ __noinline__ float sum_of_not_finite(Scratch& scratch, const float* mine, int64_t my_step,
                                                const float* others, int64_t step, int64_t line_stride, int lines,
                                                int64_t k) {
  constexpr int kThreads = Team::kThreads, kPlaceShares = kThreads / kFixTile;
  int* const places = scratch.places;
  unsigned* const sums = scratch.sums;
  int& count = scratch.count;
  const int line = Team::thread() % kFixTile, share = Team::thread() / kFixTile;
  const float* const other = others + min(line, lines - 1) * line_stride;
  if (share == 0) sums[line] = 0;
  for (int64_t begin = 0; begin < k; begin += kPlaces) {
    float x[kPlaces / kThreads];
#pragma unroll
    for (int i = 0; i < kPlaces / kThreads; ++i) {
      const int64_t at = begin + i * kThreads + Team::thread();
      x[i] = at < k ? __ldg(mine + at * my_step) : 0.0f;
    }
    if (Team::thread() == 0) count = 0;
    Team::sync();
#pragma unroll
    for (int i = 0; i < kPlaces / kThreads; ++i) {
      if (!is_finite(x[i])) places[atomicAdd(&count, 1)] = i * kThreads + Team::thread();
    }
    Team::sync();
    unsigned sum = 0;
#pragma unroll 4
    for (int i = share; i < count; i += kPlaceShares) {
      const int64_t at = begin + places[i];
      const float product = __ldg(mine + at * my_step) * __ldg(other + at * step);
      sum |= not_finite(product);
    }
    if (sum != 0) atomicOr(sums + line, sum);
    if (Team::all(is_nan(sums[line]))) break;
  }
  const unsigned sum = sums[line];
  Team::sync();  // the next call clears them
  return sum_of(sum);
}

// Lines of one operand of a tile, as threads copy them into shared memory, some steps of k at a time: a row for each step of k. Neighbouring
// threads load what lies side by side.
template <class Team, int kLines>
struct FixLines {
  static constexpr int kEach = kLines * kFixDepth / Team::kThreads;

  const float* from;  // the thread's first number of the next steps
  int64_t next;       // to its next one, of a line or of k
  int k;
  int to, to_step;     // where its numbers lie in a tile
  uint32_t there = 0;  // a bit for each: whether its line exists

  TREDUCE_DEVICE FixLines(const float* data, int64_t line_stride, int64_t depth_stride, int64_t lines) {
    const bool along_k = depth_stride == 1;
    const int line = along_k ? Team::thread() / kFixDepth : Team::thread() % kLines;
    const int line_step = along_k ? Team::kThreads / kFixDepth : 0;
    k = along_k ? Team::thread() % kFixDepth : Team::thread() / kLines;
    const int k_step = along_k ? 0 : Team::kThreads / kLines;
    from = data + line * line_stride + k * depth_stride;
    next = line_step * line_stride + k_step * depth_stride;
    to = k * kFixStride + line;
    to_step = k_step * kFixStride + line_step;
#pragma unroll
    for (int i = 0; i < kEach; ++i) there |= uint32_t(line + i * line_step < lines) << i;
  }
  // The numbers of the next steps, of which `left` exist.
  TREDUCE_DEVICE void load(int left, int64_t depth_stride, float (&numbers)[kEach]) {
    const float* at = from;
    const int k_step = to_step / kFixStride;
#pragma unroll
    for (int i = 0; i < kEach; ++i, at += next) {
      numbers[i] = (there >> i & 1) != 0 && k + i * k_step < left ? __ldg(at) : 0.0f;
    }
    from += kFixDepth * depth_stride;
  }
  TREDUCE_DEVICE void store(float* tile, const float (&numbers)[kEach]) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) tile[to + i * to_step] = numbers[i];
  }
};

// Loads one, two or four neighbours from shared memory, aligned.
template <int kCount>
TREDUCE_DEVICE void read_neighbours(const float* from, float (&to)[kCount]) {
  if constexpr (kCount == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else if constexpr (kCount == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    to[0] = two.x, to[1] = two.y;
  } else {
    to[0] = *from;
  }
}

// Computes rows of a tile of 64 x 64 outputs on the plain cores, from `first` on, and writes those that are to be computed so, of finite lines.
// tile: a LastTile. Who calls: every thread of the team. Synchronises within.
template <class Team, class LastTile>
TREDUCE_DEVICE void fix_rows(LastTile& tile, const float* a, const float* b, float* c, const float* bias,
                             const Problem& p, int64_t first_row, int64_t first_column, int first) {
  constexpr int kRows = Team::kRowsAtOnce;
  constexpr int kColumns = 4, kAcross = kFixTile / kColumns, kDown = kRows * kAcross / Team::kThreads;  // of a thread
  static_assert(kDown == 1 || kDown == 2 || kDown == 4);
  const int row = first + Team::thread() / kAcross * kDown, column = Team::thread() % kAcross * kColumns;
  float *const tile_a = tile.scratch.tiles[0], *const tile_b = tile.scratch.tiles[1];
  FixLines<Team, kRows> rows(a + (first_row + first) * p.a_row, p.a_row, p.a_column, p.m - first_row - first);
  FixLines<Team, kFixTile> columns(b + first_column * p.b_column, p.b_column, p.b_row, p.n - first_column);
  float acc[kDown][kColumns] = {}, group[kDown][kColumns] = {};
  float next_rows[decltype(rows)::kEach], next_columns[decltype(columns)::kEach];
  const int64_t depth = p.k;
  const auto load = [&](int64_t begin) {
    const int left = static_cast<int>(min(depth - begin, int64_t(kFixDepth)));
    rows.load(left, p.a_column, next_rows);
    columns.load(left, p.b_row, next_columns);
  };
  if (Team::kLoadsAhead) load(0);
  for (int64_t begin = 0; begin < depth; begin += kFixDepth) {
    if (!Team::kLoadsAhead) load(begin);
    rows.store(tile_a, next_rows);
    columns.store(tile_b, next_columns);
    Team::sync();
    if (Team::kLoadsAhead) load(begin + kFixDepth);
#pragma unroll(kRows < kFixTile ? 4 : 1)
    for (int l = 0; l < kFixDepth; ++l) {
      float of_rows[kDown], of_columns[kColumns];
      read_neighbours(tile_a + l * kFixStride + row - first, of_rows);
      read_neighbours(tile_b + l * kFixStride + column, of_columns);
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) acc[i][j] = multiply_add(of_rows[i], of_columns[j], acc[i][j]);
      }
    }
    const int64_t end = begin + kFixDepth;
    const bool is_last = end >= depth;
    if (end % kSegment == 0 || is_last) {
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) group[i][j] += acc[i][j], acc[i][j] = 0;
      }
    }
    if (end % kGroup == 0 || is_last) {
      // Groups are added where the output lies: registers are few.
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const int down = row + i, across = column + j;
          if (tile.plain.has(down, across) && !tile.nothing[down] && !tile.nothing[kFixTile + across]) {
            float* const to = c + (first_row + down) * p.n + first_column + across;
            const float sum = (begin < kGroup ? 0.0f : *to) + group[i][j];
            *to = is_last ? round_to<float>(with_bias(sum, bias, first_column + across)) : sum;
          }
          group[i][j] = 0;
        }
      }
    }
    Team::sync();
  }
}

// The same of all rows.
template <class Team, class LastTile>
__device__ __noinline__ void fix_tile(LastTile& tile, const float* a, const float* b, float* c, const float* bias,
                                      const Problem& p, int64_t first_row, int64_t first_column) {
  const int end = Team::kRowsAtOnce < kFixTile ? tile.rows : 1;
  for (int first = 0; first < end; first += Team::kRowsAtOnce) {
    fix_rows<Team>(tile, a, b, c, bias, p, first_row, first_column, first);
  }
}

// The same, where few outputs are to be computed so: a warp an output. At most kMostFew.
template <class Team>
__device__ __noinline__ void fix_few(Scratch& scratch, const float* a, const float* b, float* c, const float* bias,
                                     const Problem& p, int64_t first_row, int64_t first_column, const Plain& plain,
                                     const bool* nothing) {
  unsigned short* const places = scratch.few;
  int& count = scratch.count;
  Team::sync();
  if (Team::thread() == 0) count = 0;
  Team::sync();
  for (int i = Team::thread(); i < kFixTile * kFixTile; i += Team::kThreads) {
    const int row = i / kFixTile, column = i % kFixTile;
    if (plain.has(row, column) && !nothing[row] && !nothing[kFixTile + column]) {
      places[atomicAdd(&count, 1)] = static_cast<unsigned short>(i);
    }
  }
  Team::sync();
  for (int i = Team::thread() / 32; i < count; i += Team::kThreads / 32) {
    const int64_t row = first_row + places[i] / kFixTile, column = first_column + places[i] % kFixTile;
    const float total = plain_sum(a + row * p.a_row, p.a_column, b + column * p.b_column, p.b_row, p.k);
    if (threadIdx.x % 32 == 0) c[row * p.n + column] = round_to<float>(with_bias(total, bias, column));
  }
}

// Adds the groups of k of kRows rows of a tile of one matrix, and the bias if there is one: four outputs at a time if rows are
// aligned, with kLoads loads of a thread in flight together.
template <int kRows>
TREDUCE_DEVICE void add_groups(const float* partials, float* c, const float* bias, int64_t row, int64_t column,
                               int64_t m, int64_t n, int groups, int64_t outputs) {
  constexpr int kAcross = kFixTile / 4, kDown = kFinishRows, kRounds = kRows / kDown;
  [[maybe_unused]] constexpr int kLoads = 16;  // a host reads no unroll pragma
  column += threadIdx.x % kAcross * 4;
  row += threadIdx.x / kAcross;
  const bool vectors = n % 4 == 0 && outputs % 4 == 0 && reinterpret_cast<uint64_t>(partials) % 16 == 0 &&
                       reinterpret_cast<uint64_t>(c) % 16 == 0;
  if (vectors) {
    float4 sum[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int64_t r = row + i * kDown;
      if (r < m && column < n) sum[i] = *reinterpret_cast<const float4*>(partials + r * n + column);
    }
#pragma unroll(kLoads / kRounds)
    for (int g = 1; g < groups; ++g) {
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int64_t r = row + i * kDown;
        if (r >= m || column >= n) continue;
        const float4 more = *reinterpret_cast<const float4*>(partials + g * outputs + r * n + column);
        sum[i] = {sum[i].x + more.x, sum[i].y + more.y, sum[i].z + more.z, sum[i].w + more.w};
      }
    }
    if (bias != nullptr && column < n) {
      const float more[4] = {bias[column], bias[column + 1], bias[column + 2], bias[column + 3]};
#pragma unroll
      for (float4& s : sum) {
        s = {canonical(s.x + more[0]), canonical(s.y + more[1]), canonical(s.z + more[2]), canonical(s.w + more[3])};
      }
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int64_t r = row + i * kDown;
      if (r < m && column < n) store_vector(c + r * n + column, sum[i]);
    }
    return;
  }
  for (int i = 0; i < kRounds; ++i) {
    const int64_t r = row + i * kDown;
    for (int64_t j = column; j < min(column + 4, n) && r < m; ++j) {
      float sum = partials[r * n + j];
#pragma unroll 4
      for (int g = 1; g < groups; ++g) sum += partials[g * outputs + r * n + j];
      c[r * n + j] = bias == nullptr ? sum : canonical(sum + bias[j]);
    }
  }
}

// Whether all outputs that this thread has added of so many rows of a tile are sure. of_pairs: certain_of_pairs.
TREDUCE_DEVICE bool all_sure(const float* c, const Facts* rows, const Facts* columns, int64_t row, int64_t end_row,
                             int64_t column, int64_t n, int of_pairs) {
  constexpr int kAcross = kFixTile / 4;
  column += threadIdx.x % kAcross * 4;
  int of_columns[4], orders_of_columns[4];
  // Pairs of a line that is close are not checked, and of others there are none.
  const auto orders_of = [&](Facts line) {
    const unsigned kind = kind_of(line);
    return kind == 0 || kind == kCodeClose ? kCertain : of_pairs;
  };
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const Facts known = columns[min(column + j, n - 1)];
    of_columns[j] = ordinary_most(known), orders_of_columns[j] = orders_of(known);
  }
  bool sure = true;
#pragma unroll 1
  for (row += threadIdx.x / kAcross; row < end_row; row += kFinishRows) {
    const int of_row = ordinary_most(rows[row]), orders_of_row = orders_of(rows[row]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t output = __float_as_uint(c[row * n + min(column + j, n - 1)]);
      const int orders = max(orders_of_row, orders_of_columns[j]);
      sure = sure && (column + j >= n || is_sure(output, of_row, of_columns[j], orders));
    }
  }
  return sure;
}

// Computes the plain outputs of a tile of 64 x 64. nothing: see Range, of rows and of columns; uncertain: so many outputs are of other
// lines.
// Who calls: every thread of the team. Synchronises within.
template <class Team, class LastTile>
TREDUCE_DEVICE void fix(LastTile& tile, const float* a, const float* b, float* c, const float* bias, const Problem& p,
                        int64_t first_row, int64_t first_column, int uncertain) {
  Scratch& scratch = tile.scratch;
  const Plain& plain = tile.plain;
  const bool* const nothing = tile.nothing;
  const int rows = tile.rows, columns = tile.columns;
  const int i = Team::thread() % kFixTile;
  const float *const row_a = a + first_row * p.a_row, *const column_b = b + first_column * p.b_column;
  for (int first = 0; first < 2 * kFixTile; first += 32) {
    for (uint32_t some = __ballot_sync(~0u, nothing[first + threadIdx.x % 32]); some != 0; some &= some - 1) {
      const int line = first + __ffs(some) - 1;
      const bool of_a = line < kFixTile;
      const int row = of_a ? line : i, column = of_a ? i : line - kFixTile;
      const float* const mine = of_a ? row_a + row * p.a_row : column_b + column * p.b_column;
      const float sum =
          sum_of_not_finite<Team>(scratch, mine, of_a ? p.a_column : p.b_row, of_a ? column_b : row_a,
                                  of_a ? p.b_row : p.a_column, of_a ? p.b_column : p.a_row, of_a ? columns : rows, p.k);
      if (Team::thread() < kFixTile && plain.has(row, column)) {
        const int64_t j = first_column + column;
        float* const to = c + (first_row + row) * p.n + j;
        const float own = with_bias(sum, bias, j);
        // Where both lines are such: the sum of the row's and of the column's.
        *to = round_to<float>(!of_a && nothing[row] ? *to + own : own);
      }
    }
  }
  if (uncertain > kMostFew) {
    fix_tile<Team>(tile, a, b, c, bias, p, first_row, first_column);
  } else if (uncertain > 0) {
    fix_few<Team>(scratch, a, b, c, bias, p, first_row, first_column, plain, nothing);
  }
}

// Which codes the lines of a tile of 64 x 64 have, as sets; of so many rows and columns. code(whether of A, line of the tile): of a line
// that exists. Who calls: all lanes of a warp.
struct CodeSets {
  uint32_t rows, columns;
};
template <class Code>
TREDUCE_DEVICE CodeSets codes_of_tile(int64_t rows, int64_t columns, Code code) {
  uint32_t of_rows = 0, of_columns = 0;
#pragma unroll
  for (int i = threadIdx.x % 32; i < kFixTile; i += 32) {
    if (i < rows) of_rows |= set_of(code(true, i));
    if (i < columns) of_columns |= set_of(code(false, i));
  }
  return {__reduce_or_sync(~0u, of_rows), __reduce_or_sync(~0u, of_columns)};
}

// What a block knows of a tile of 64 x 64, and finds out about it.
template <class Team>
struct LastTile {
  Facts facts[2 * kFixTile];  // of the lines of A, then of those of B; their codes above
  bool nothing[2 * kFixTile];
  int of_warp[Team::kThreads / 32];
  int rows, columns;  // that it has
  Plain plain;
  Scratch scratch;

  TREDUCE_DEVICE unsigned code(int line) const { return code_above(facts[line]); }

  // Reads what is known of the lines of the tile, which ends at these rows and columns or has 64 of each. Who calls: every thread of the
  // team, which synchronises then.
  TREDUCE_DEVICE void read(const LineFacts& lines_a, const LineFacts& lines_b, int64_t first_row, int64_t first_column,
                           int64_t end_row, int64_t end_column, int2 batch) {
    if (Team::thread() == 0) {
      rows = static_cast<int>(min(end_row - first_row, int64_t(kFixTile)));
      columns = static_cast<int>(min(end_column - first_column, int64_t(kFixTile)));
    }
    const int i = Team::thread();
    if (i < 2 * kFixTile) {
      const bool of_a = i < kFixTile;
      const int64_t line = (of_a ? first_row : first_column) + i % kFixTile;
      const bool exists = line < (of_a ? end_row : end_column);
      const Facts known = exists ? *(of_a ? lines_a : lines_b).at(line, batch) : 0;
      const unsigned code = code_of(known);
      facts[i] = with_code(known, code);
      nothing[i] = exists && code / kCodeRange == kRangeNothing;
    }
  }

  // Whether there may be such outputs. Each warp finds the codes of all lines, so all agree. Who calls: every thread of the team.
  TREDUCE_DEVICE bool any_last() const {
    const CodeSets found =
        codes_of_tile(rows, columns, [&](bool of_a, int i) { return code(of_a ? i : kFixTile + i); });
    return any_output(found.rows, found.columns, &codes_at_last);
  }

  // Computes the outputs that are to be computed at last: all others are there. `c`: of the matrix; index: of the matrix, in the batch.
  // Who calls: every thread of the team. Synchronises within.
  TREDUCE_DEVICE void compute(const float* a, const float* b, float* c, const float* bias, const Problem& p,
                              int64_t first_row, int64_t first_column, int64_t index) {
    const int uncertain = find(c, p, first_row, first_column);
    if (uncertain >= 0) compute(a, b, c, bias, p, first_row, first_column, index, uncertain);
  }
  // The same in two steps: finds them, and how many of them are of finite lines; -1: none.
  TREDUCE_DEVICE void compute(const float* a, const float* b, float* c, const float* bias, const Problem& p,
                              int64_t first_row, int64_t first_column, int64_t index, int uncertain) {
    const Offsets offsets = offsets_of(p, index);
    fix<Team>(*this, a + offsets.a, b + offsets.b, c, bias, p, first_row, first_column, uncertain);
  }
  TREDUCE_DEVICE int find(const float* c, const Problem& p, int64_t first_row, int64_t first_column) {
    constexpr int kDown = Team::kThreads / kFixTile, kBatch = 8;  // rows between a thread's outputs; loads in flight
    const int column = Team::thread() % kFixTile;
    const Facts of_column = facts[kFixTile + column];
    const CheckedCodes checked = checked_codes(code_above(of_column));
    const uint32_t last = checked.any() | codes_with(code_above(of_column), Arithmetic::plain);
    const int of_pairs = certain_of_pairs(p.k);
    bool some = false;
    int uncertain = 0;
#pragma unroll 1
    for (int first = Team::thread() / kFixTile; first < kFixTile; first += kBatch * kDown) {
      float outputs[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int row = first + j * kDown;
        outputs[j] = row < rows && column < columns ? c[(first_row + row) * p.n + first_column + column] : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int row = first + j * kDown;
        const Facts of_row = facts[row];
        const uint32_t code = set_of(code_above(of_row));
        bool mine = row < rows && column < columns && (last & code) != 0;
        const int orders = (checked.pairs & code) != 0 ? of_pairs : kCertain;
        mine = mine &&
               ((checked.any() & code) == 0 || !is_certain(__float_as_uint(outputs[j]), of_row, of_column, orders));
        some |= mine;
        uncertain += mine && !nothing[row] && !nothing[kFixTile + column];
        const uint32_t votes = __ballot_sync(~0u, mine);
        if (threadIdx.x % 32 == 0) plain.columns[row][column / 32] = votes;
      }
    }
    uncertain = __reduce_add_sync(~0u, uncertain);
    Team::sync();  // all have read the counts of the tile before
    if (threadIdx.x % 32 == 0) of_warp[Team::thread() / 32] = uncertain;
    Team::sync();
    uncertain = 0;
    for (const int more : of_warp) uncertain += more;
    return Team::any(some) ? uncertain : -1;
  }
};

// What a warp finds out about a tile of 64 x 64, before anything is computed for it.
struct WarpTile {
  // Of the lane's lines, those with its number and 32 further, their codes above; 0: they do not exist.
  Facts rows[2], columns[2];
  CodeSets found;

  TREDUCE_DEVICE WarpTile(const LineFacts& lines_a, const LineFacts& lines_b, int64_t row, int64_t column,
                          int64_t end_row, int64_t end_column, int2 batch) {
    found = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t r = row + threadIdx.x % 32 + i * 32, j = column + threadIdx.x % 32 + i * 32;
      rows[i] = r < end_row ? *lines_a.at(r, batch) : 0;
      columns[i] = j < end_column ? *lines_b.at(j, batch) : 0;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned code_row = code_of(rows[i]), code_column = code_of(columns[i]);
      if (row + threadIdx.x % 32 + i * 32 < end_row) found.rows |= set_of(code_row);
      if (column + threadIdx.x % 32 + i * 32 < end_column) found.columns |= set_of(code_column);
      rows[i] = with_code(rows[i], code_row);
      columns[i] = with_code(columns[i], code_column);
    }
    found = {__reduce_or_sync(~0u, found.rows), __reduce_or_sync(~0u, found.columns)};
  }
  TREDUCE_DEVICE bool any(Arithmetic way) const {
    return any_output(found.rows, found.columns, [way](unsigned a) { return codes_with(a, way); });
  }
  TREDUCE_DEVICE bool any_checked() const {
    return any_output(found.rows, found.columns, [](unsigned a) { return checked_codes(a).any(); });
  }
  // Whether checked outputs of the tile's rows from `first` to `end` are not certain. c: from the tile's first output on, which has so many
  // columns; of_pairs: certain_of_pairs.
  TREDUCE_DEVICE bool any_uncertain(const float* c, int64_t n, int first, int end, int64_t count, int of_pairs) const {
    constexpr int kBatch = 4;  // rows, whose loads are in flight; of more there are more instructions to fetch
    const int lane = threadIdx.x % 32;
    CheckedCodes checked[2];
    int own[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      checked[i] = lane + i * 32 < count ? checked_codes(code_above(columns[i])) : CheckedCodes{};
      own[i] = lane + i * 32 < count ? lane + i * 32 : 0;
    }
    bool uncertain = false;
#pragma unroll 1
    for (int row = first; row < end; row += kBatch) {
      uint32_t outputs[kBatch][2];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float* const from = c + min(row + j, end - 1) * n;
#pragma unroll
        for (int i = 0; i < 2; ++i) outputs[j][i] = __float_as_uint(from[own[i]]);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int line = min(row + j, end - 1);
        const Facts of_row = __shfl_sync(~0u, line < 32 ? rows[0] : rows[1], line % 32);
        const uint32_t code = set_of(code_above(of_row));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int orders = (checked[i].pairs & code) != 0 ? of_pairs : kCertain;
          uncertain |= (checked[i].any() & code) != 0 && !is_certain(outputs[j][i], of_row, columns[i], orders);
        }
      }
    }
    return __any_sync(~0u, uncertain);
  }
};

// codes_a, codes_b: which codes lines have in outputs that are not by pairs; null: not known. shares: blocks that add the groups
// of a tile, each of some rows. kAdds: there are several groups.
template <bool kAdds>
__global__ void __launch_bounds__(kThreads, 2)
    finish(const float* a, const float* b, float* c, const float* bias, TREDUCE_GRID_CONSTANT Problem p,
           Tiles<kFixTile, kFixTile> tiles, TREDUCE_GRID_CONSTANT LineFacts lines_a,
           TREDUCE_GRID_CONSTANT LineFacts lines_b, const uint32_t* codes_a, const uint32_t* codes_b,
           int64_t inner_batches, const float* partials, int groups, int shares) {
  using Last = LastTile<WholeBlock<kThreads, kAdds ? kFinishRows : kFixTile, !kAdds>>;
  SHARED(Last, last);
  [[maybe_unused]] SHARED_ARRAY(bool, some_left, kThreads / 32);
  ptx::wait_for_launch_before();
  const bool known = codes_a != nullptr;
  const uint32_t set_a = known ? *codes_a : 0, set_b = known ? *codes_b : 0;
  const auto is_all = [&] { return known && !any_output(set_a, set_b, &codes_at_last); };  // of any tile
  if (!kAdds && is_all()) return;
  const int64_t outputs = p.batches * p.m * p.n;
  const int of_pairs = certain_of_pairs(p.k);
  const auto batch_of = [&](int64_t batch) {
    return int2{static_cast<int>(batch / inner_batches), static_cast<int>(batch % inner_batches)};
  };
  // Computes what is left of rows of a tile.
  const auto compute = [&](const auto& at, int64_t row, int64_t end_row) {
    last.read(lines_a, lines_b, row, at.column, end_row, p.n, batch_of(at.batch));
    __syncthreads();
    if (last.any_last()) last.compute(a, b, c + at.batch * p.m * p.n, bias, p, row, at.column, at.batch);
    __syncthreads();  // the next tile's facts take the place of these
  };
  constexpr int kWarps = kThreads / 32;
  const int warp = threadIdx.x / 32;
  if constexpr (kAdds) {
    const int rows = shares > 1 ? kFinishRows : kFixTile, share = static_cast<int>(blockIdx.x) % shares;
    const auto add = [&](auto count, const auto& at) {
      const int64_t matrix = at.batch * p.m * p.n;
      add_groups<count()>(partials + matrix, c + matrix, bias, at.row + share * rows, at.column, p.m, p.n, groups,
                          outputs);
    };
    int64_t tile = blockIdx.x / shares;
    // Of few rows a block has one tile. Whether that is all is known no sooner than the sums: both are asked for at once.
    bool added = shares > 1 || p.m <= kFinishRows;
    if (added) {
      add(std::integral_constant<int, kFinishRows>(), tiles.place(tile));
      if (is_all()) return;
    }
    for (; tile < tiles.count; tile += gridDim.x / shares, added = false) {
      const auto at = tiles.place(tile);
      if (!added) add(std::integral_constant<int, kFixTile>(), at);
      const int64_t row = at.row + share * rows, end_row = min(p.m, row + rows);
      if (is_all() || row >= p.m) continue;
      float* const matrix = c + at.batch * p.m * p.n;
      const int2 batch = batch_of(at.batch);
      const Facts *const rows_at = lines_a.at(0, batch), *const columns_at = lines_b.at(0, batch);
      if (__syncthreads_and(all_sure(matrix, rows_at, columns_at, row, end_row, at.column, p.n, of_pairs))) continue;
      compute(at, row, end_row);
    }
    return;
  }
  // Warps look at so many tiles at once, each at some rows: whether something is left of them. Nearly always nothing is.
  int at_once = kWarps;
  while (at_once > 1 && int64_t(at_once / 2) * gridDim.x >= tiles.count) at_once /= 2;
  const int warps = kWarps / at_once;  // of a tile
  const auto look = [&](int64_t tile) {
    const auto at = tiles.place(tile);
    const WarpTile own(lines_a, lines_b, at.row, at.column, p.m, p.n, batch_of(at.batch));
    if (own.any(Arithmetic::plain)) return true;
    if (!own.any_checked()) return false;
    const int rows = static_cast<int>(min(p.m - at.row, int64_t(kFixTile))), share = warp % warps;
    return own.any_uncertain(c + (at.batch * p.m + at.row) * p.n + at.column, p.n, share * rows / warps,
                             (share + 1) * rows / warps, p.n - at.column, of_pairs);
  };
  const int64_t step = gridDim.x;
  for (int64_t first = blockIdx.x; first < tiles.count; first += at_once * step) {
    const int64_t tile = first + warp / warps * step;
    const bool found = tile < tiles.count && look(tile);
    __syncthreads();  // all have read what was there
    if (threadIdx.x % 32 == 0) some_left[warp] = found;
    __syncthreads();
    for (int i = 0; i < at_once; ++i) {
      bool some = false;
      for (int j = 0; j < warps; ++j) some |= some_left[i * warps + j];
      if (!some) continue;
      const auto at = tiles.place(first + i * step);
      compute(at, at.row, p.m);
    }
  }
}

// The same of few tiles and a long k, whose groups have been added: a block has a tile and a group, and leaves the sums of the group's products;
// the last one of a tile adds the groups. sums: [group][output]; done: of each tile, how many blocks have ended, zero before.
static __global__ void __launch_bounds__(kThreads, 2)
    finish_by_groups(const float* a, const float* b, float* c, const float* bias, TREDUCE_GRID_CONSTANT Problem p,
                     Tiles<kFixTile, kFixTile> tiles, TREDUCE_GRID_CONSTANT LineFacts lines_a,
                     TREDUCE_GRID_CONSTANT LineFacts lines_b, const uint32_t* codes_a, const uint32_t* codes_b,
                     int64_t inner_batches, int groups, float* sums, uint32_t* done) {
  using Last = LastTile<WholeBlock<kThreads, kFixTile, true>>;
  SHARED(Last, last);
  SHARED(bool, is_last);
  ptx::wait_for_launch_before();
  if (!any_output(*codes_a, *codes_b, &codes_at_last)) return;
  const int64_t tile = blockIdx.x % tiles.count, group = blockIdx.x / tiles.count, outputs = p.batches * p.m * p.n;
  const auto at = tiles.place(tile);
  const int64_t matrix = at.batch * p.m * p.n;
  last.read(lines_a, lines_b, at.row, at.column, p.m, p.n,
            {static_cast<int>(at.batch / inner_batches), static_cast<int>(at.batch % inner_batches)});
  __syncthreads();
  if (!last.any_last()) return;
  const int uncertain = last.find(c + matrix, p, at.row, at.column);
  if (uncertain < 0) return;  // all blocks of the tile find the same
  Problem part = p;
  part.k = min(int64_t(kGroup), p.k - group * kGroup);
  last.compute(a + group * kGroup * p.a_column, b + group * kGroup * p.b_row, sums + group * outputs + matrix, nullptr,
               part, at.row, at.column, at.batch, uncertain);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(done + tile, 1) == static_cast<uint32_t>(groups - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = threadIdx.x; i < kFixTile * kFixTile; i += kThreads) {
    const int row = i / kFixTile, column = i % kFixTile;
    if (!last.plain.has(row, column)) continue;
    const int64_t output = matrix + (at.row + row) * p.n + at.column + column;
    float total = 0;
#pragma unroll 8
    for (int g = 0; g < groups; ++g) total += __ldcg(sums + g * outputs + output);
    c[output] = round_to<float>(with_bias(total, bias, at.column + column));
  }
}

inline cudaError_t run_finish(const Call& call, const Operand& a, const Operand& b, const Operand16& split_a,
                              const Operand16& split_b, const float* partials) {
  const Problem& p = call.problem;
  // The kernel for few rows says with the codes of X whether there may be something to do.
  const uint32_t *codes_a = split_a.codes, *codes_b = split_b.codes;
  if (call.prepared.split_a.as_read) codes_a = codes_b;
  if (call.prepared.split_b.as_read) codes_b = codes_a;
  const Launch shape = call.step(-1);
  const Tiles<kFixTile, kFixTile> tiles(p);
  if (call.prepared.both_as_read()) {
    return launch(&finish_by_groups, shape, static_cast<const float*>(call.a), static_cast<const float*>(call.b),
                  static_cast<float*>(call.c), static_cast<const float*>(call.bias), p, tiles, lines_of(a, split_a),
                  lines_of(b, split_b), codes_a, codes_b, inner_batches_of(p), static_cast<int>(call.prepared.groups),
                  call.region<float>(call.prepared.split_b.halves), call.region<uint32_t>(call.prepared.split_b.units));
  }
  const int shares = static_cast<int>(shape.grid / tiles.count);
  return launch(partials != nullptr ? &finish<true> : &finish<false>, shape, static_cast<const float*>(call.a),
                static_cast<const float*>(call.b), static_cast<float*>(call.c), static_cast<const float*>(call.bias), p,
                tiles, lines_of(a, split_a), lines_of(b, split_b), codes_a, codes_b, inner_batches_of(p), partials,
                partials != nullptr ? static_cast<int>(call.prepared.groups) : 1, shares > 1 ? shares : 1);
}

}  // namespace treduce::matmul::split
