// What ends a small product by halves, in the launch that multiplied them: a block computes those outputs of its tiles that pairs do not
// suit, by parts and on the plain cores. Blocks whose tiles need the same lines split these together: a warp takes eight lines and a
// segment, until none is left. Of most data nothing is left, and then a launch would be time that is lost.
#pragma once

#include "../../primitives/ptx/acquire.cuh"
#include "../../primitives/shared.cuh"
#include "split_finish.cuh"
#include "split_group.cuh"
#include "split_operands.cuh"

namespace treduce::matmul::split_rest {

using split::kFinishTile;
using split::kLanes;
using split::kNumbers;
using split::LineFacts;
using split::Operand16;

// The last threads of a block, two warp groups: those who compute on the plain cores.
struct Team {
  static constexpr int kThreads = split_rest::kThreads, kRowsAtOnce = split::kFixTile / 2, kBarrier = 5;
  static constexpr bool kLoadsAhead = false;  // registers are few

  TREDUCE_DEVICE static int thread() { return static_cast<int>(threadIdx.x - (blockDim.x - kThreads)); }
  TREDUCE_DEVICE static void sync() { hopper::named_barrier<kThreads>(kBarrier); }
  TREDUCE_DEVICE static bool any(bool x) { return hopper::named_any<kThreads>(kBarrier, x); }
  TREDUCE_DEVICE static bool all(bool x) { return !any(!x); }
};

using LastTile = split::LastTile<Team>;

// The product, where its launch computes all.
struct Work {
  bool wanted;
  const float* bias;
  float* c;
  Problem problem;
  split::IntoParts sides[2];  // A, B
  int of_pairs;               // certain_of_pairs
  // How many tiles have outputs by parts, and which: one more than their numbers, as they are found.
  uint32_t* left_tiles;
};

inline Work work_of(const Call& call, const Operand& a, const Operand& b, const Operand16& split_a,
                    const Operand16& split_b) {
  const PartsRange all{0, call.prepared.groups};
  return {call.prepared.rest_in_one,
          static_cast<const float*>(call.bias),
          static_cast<float*>(call.c),
          call.problem,
          {{split::task_of(a, call.prepared.split_a.splitting, split_a, all), nullptr},
           {split::task_of(b, call.prepared.split_b.splitting, split_b, all), nullptr}},
          certain_of_pairs(call.problem.k),
          call.region<uint32_t>(call.prepared.left_tiles)};
}

// Which tasks of a block have outputs left: a bit for each, of 32 at most. at_last: on the plain cores, those by parts that turned out not to
// be certain, too; checked: by pairs that are to be checked.
struct Left {
  static constexpr int kMostChecked = 4, kMostRows = 128;
  uint32_t by_parts, at_last, checked;
  // Of the first tasks: the least output of each row, as bits twice; and the exponent of the largest number of the columns.
  uint32_t least[kMostChecked][kMostRows], most[kMostChecked];

  // Who calls: all threads of a block, before a barrier.
  TREDUCE_DEVICE void begin() {
    if (threadIdx.x == 0) by_parts = at_last = checked = 0;
    if (threadIdx.x < kMostChecked) most[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < kMostChecked * kMostRows; i += blockDim.x) least[i / kMostRows][i % kMostRows] = ~0u;
  }
  // Who calls: all lanes of a warp, of which each has seen such a number.
  TREDUCE_DEVICE void tell_most(int n, uint32_t of_lane) {
    const uint32_t of_warp = __reduce_max_sync(~0u, of_lane);
    if (n < kMostChecked && threadIdx.x % 32 == 0) atomicMax(&most[n], of_warp);
  }
  // Who calls: all lanes of a warp, of which four have this row and the one eight further.
  TREDUCE_DEVICE void tell_least(int n, int row, const uint32_t (&of_lane)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t of_row = min(of_lane[i], __shfl_xor_sync(~0u, of_lane[i], 1));
      of_row = min(of_row, __shfl_xor_sync(~0u, of_row, 2));
      if (n < kMostChecked && threadIdx.x % 4 == 0) atomicMin(&least[n][row + i * 8], of_row);
    }
  }
};

constexpr int kConsumersBarrier = 6;

// Tells that a tile has outputs by parts: blocks that have none then split its lines, too. Who calls: one thread, after a barrier of those
// who found out about its lines.
TREDUCE_DEVICE void tell_left(const Work& work, int64_t tile) {
  __threadfence();
  ptx::store_release(work.left_tiles + 1 + atomicAdd(work.left_tiles, 1u), static_cast<uint32_t>(tile) + 1);
}

// How many tiles have been told of; others may follow.
TREDUCE_DEVICE uint32_t told_so_far(const Work& work) { return *const_cast<const volatile uint32_t*>(work.left_tiles); }

// What is known of a line of the tile: the exponent of the power of two that its parts are multiplied by; of rows the codes of columns with
// which they have outputs by parts, of columns their code, as sets; and a bit above if these outputs are checked, another one of rows than
// of columns.
struct Known {
  int exponent;
  uint32_t codes;
  static constexpr uint32_t kCheckedRow = 1u << 31, kCheckedColumn = 1u << 30;
};
static_assert((kRangeAll + 1) * kCodeRange <= 30);  // codes that lines have

// Where a tile lies, and its matrices of A and of B.
struct Place : hopper::Grid::Place {
  int matrix_a, matrix_b;
};

// S: a shape of split_fp16, of whose tile its warp groups multiply the same outputs by parts.
template <class S>
struct Rest {
  static constexpr int kM = S::kTileM, kN = S::kTileN;
  static constexpr int kStageBytes = kParts * (S::kBytesA + S::kBytesB);
  static constexpr int kKnownBytes = (kM + kN) * static_cast<int>(sizeof(Known));
  static constexpr int kRoom = (S::kStages * S::kStageBytes - kKnownBytes) / kStageBytes;
  static constexpr int kStages = kRoom < 4 ? kRoom : 4;
  static_assert(kStages >= 2 && sizeof(LastTile) <= kStages * kStageBytes);
  static constexpr int kOutputs = S::kColumns / 2;
  static constexpr uint32_t kMostHelped = 4;  // tiles of other blocks that a warp looks at
  // Runs of lines that blocks split together.
  static constexpr int kRunsA = kM / kRunLines, kRuns = kRunsA + kN / kRunLines;
  static_assert(kM % kRunLines == 0 && kN % kRunLines == 0 && kRuns <= 32);
  using TileA = hopper::Tile<bfloat16, kM, true>;
  using TileB = hopper::Tile<bfloat16, kN, true>;
  using Multiply = ptx::Wgmma<bfloat16, S::kColumns, false, false>;
  using Position = hopper::RingPosition<kStages>;

  const Work& work;
  hopper::Ring<kStages>& ring;
  char* stages;
  Place at;  // of the tile

  TREDUCE_DEVICE int matrix(bool of_a) const { return of_a ? at.matrix_a : at.matrix_b; }
  TREDUCE_DEVICE const split::IntoParts& side(bool of_a) const { return work.sides[of_a ? 0 : 1]; }

  TREDUCE_DEVICE int steps() const { return static_cast<int>(work.sides[0].segments); }
  TREDUCE_DEVICE Known* known() const { return reinterpret_cast<Known*>(stages + kStages * kStageBytes); }

  // The run of lines that a lane counts.
  struct Run {
    int line;  // its first
    uint32_t* counters;
    uint32_t units;  // octets of lines and segments; 0: it does not exist
  };
  TREDUCE_DEVICE Run run_of(int lane) const {
    const bool of_a = lane < kRunsA;
    const int line = of_a ? at.row + lane * kRunLines : at.column + (lane - kRunsA) * kRunLines;
    const split::IntoParts& side = this->side(of_a);
    const int lines = static_cast<int>(side.to.shape.lines), segments = static_cast<int>(side.segments);
    const bool exists = lane < kRuns && line < lines;
    const int runs = static_cast<int>(runs_of(lines));
    return {line, side.to.runs + (matrix(of_a) * runs + line / kRunLines) * 2,
            exists ? static_cast<uint32_t>(kRunLines / kOctet * segments) : 0};
  }

  // Finds what is to be known of the lines. Who calls: all threads of the consumers, which synchronise then.
  TREDUCE_DEVICE void know(const LineFacts& lines_a, const LineFacts& lines_b) const {
    constexpr int kThreads = S::kConsumers * hopper::kWarpGroup;
    for (int i = threadIdx.x - (S::kThreads - kThreads); i < kM + kN; i += kThreads) {
      const bool of_a = i < kM;
      const int line = of_a ? at.row + i : at.column + i - kM;
      const bool exists = line < (of_a ? work.problem.m : work.problem.n);
      const Facts facts = exists ? *(of_a ? lines_a : lines_b).at(line, at.batch) : 0;
      const unsigned code = code_of(facts);
      const uint32_t checked = code / kCodeRange == kRangeAll ? 0 : of_a ? Known::kCheckedRow : Known::kCheckedColumn;
      known()[i] = {parts_exponent(facts), !exists ? 0 : checked | (of_a ? codes_by_parts(code) : set_of(code))};
    }
    hopper::named_barrier<kThreads>(kConsumersBarrier);
  }

  // Splits lines of the tile into parts, until all are done or other blocks' warps have taken them. A unit's numbers are read while the one
  // before is split. Who calls: all lanes of a warp.
  TREDUCE_DEVICE void split_lines() const {
    const int lane = threadIdx.x % 32;
    const Run run = run_of(lane);
    bool open = run.units > 0;
    uint32_t unit = 0, some = 0, done = 0;
    float now[kNumbers], next[kNumbers];
    struct {
      bool of_a, there;
      int line, segment, exponent;
    } read{}, before{};  // the unit that is read, and the one that is split meanwhile
    Facts facts = 0;
#pragma unroll 1
    for (;;) {
      if (some == 0) {
        if (open) unit = atomicAdd(run.counters, 1u);
        open = open && unit < run.units;
        done += open;
        some = __ballot_sync(~0u, open);
      }
      const bool more = some != 0;
      if (more) {
        const int from = __ffs(some) - 1, taken = static_cast<int>(__shfl_sync(~0u, unit, from));
        some &= some - 1;
        read.of_a = from < kRunsA;
        const split::IntoParts& side = this->side(read.of_a);
        constexpr int kOctets = kRunLines / kOctet;
        read.segment = taken / kOctets;
        read.line = __shfl_sync(~0u, run.line, from) + taken % kOctets * kOctet + lane / kLanes;
        read.there = read.line < static_cast<int>(side.to.shape.lines);
        if (read.there) facts = side.facts(matrix(read.of_a), read.line);
        split::read_numbers(side, side.from.line(matrix(read.of_a), read.line), read.there, read.segment, next);
      }
      if (before.there) {
        side(before.of_a).write_parts(now, matrix(before.of_a), before.line, before.segment, before.exponent);
      }
      if (!more) break;
      before = read;
      before.exponent = parts_exponent(facts);
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) now[i] = next[i];
    }
    ptx::fence_async_proxy_global();
    __threadfence();
    __syncwarp();
    if (done > 0) atomicAdd(run.counters + 1, done);
  }
  // Waits until all lines are split. Who calls: all lanes of the warp that then copies.
  TREDUCE_DEVICE void wait_for_lines() const {
    const Run run = run_of(threadIdx.x % 32);
    if (run.units > 0) {
      while (ptx::load_acquire(run.counters + 1) < run.units) {
      }
    }
    __syncwarp();
    ptx::fence_async_proxy_global();
  }

  // Who calls: one thread.
  TREDUCE_DEVICE void copy(const CUtensorMap& map_a, const CUtensorMap& map_b, Position& position) const {
    for (int step = 0; step < steps(); ++step, position.next()) {
      ptx::mbarrier_wait(ring.empty + position.stage, position.parity ^ 1);
      uint64_t* const full = ring.full + position.stage;
      ptx::mbarrier_arrive_expect(full, kStageBytes);
      char *const a = stages + position.stage * kStageBytes, *const b = a + kParts * S::kBytesA;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        TileA::load(a + part * S::kBytesA, &map_a, at.row, step * kSegment, {part, at.matrix_a}, full);
        TileB::load(b + part * S::kBytesB, &map_b, at.column, step * kSegment, {part, at.matrix_b}, full);
      }
    }
  }

  // Whether all outputs by pairs of a task, whose tile this is, are large enough. Who calls: all threads of the block. Synchronises.
  TREDUCE_DEVICE bool is_sure(const Left& left, int n, const LineFacts& lines_a) const {
    bool sure = true;
    for (int row = threadIdx.x; row < kM && at.row + row < work.problem.m; row += S::kThreads) {
      const Facts of_row = *lines_a.at(at.row + row, at.batch);
      const int most = largest_exponent(of_row) + static_cast<int>(left.most[n]);
      sure = sure && (never_pairs(of_row) || matmul::is_sure(left.least[n][row] >> 1, most, 0, work.of_pairs));
    }
    return __syncthreads_and(sure) != 0;
  }

  // Returns whether a checked output of the thread may not be certain. Who calls: a warp group, of which each consumer is one.
  TREDUCE_DEVICE bool multiply(int consumer, Position& position) const {
    const int first_row = S::first_row(consumer), first_column = S::first_column(consumer);
    const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
    const uint32_t first = ptx::kept(TileA::low_word(stages));
    // A consumer all of whose outputs are others' lets the stages pass.
    uint32_t of_rows = 0, of_columns = 0;
    for (int i = threadIdx.x % 32; i < 64; i += 32) of_rows |= known()[first_row + i].codes;
    for (int i = threadIdx.x % 32; i < S::kColumns; i += 32) of_columns |= known()[kM + first_column + i].codes;
    const bool wanted = (__reduce_or_sync(~0u, of_rows) & __reduce_or_sync(~0u, of_columns)) != 0;
    if (S::kConsumers > 1 && !wanted) {
      for (int step = 0; step < steps(); ++step) hopper::let_pass<1>(full, empty, position);
      return false;
    }
    float acc[kOutputs] = {}, high[kOutputs], rest[kOutputs];
#pragma unroll 1
    for (int step = 0; step < steps(); ++step, position.next()) {
      const uint32_t a = __shfl_sync(~0u, first + position.stage * (kStageBytes >> 4), 0);
      const uint32_t b = a + (kParts * S::kBytesA >> 4);
      ptx::mbarrier_wait(full + position.stage * 8, position.parity);
      split::start_products<kParts>(
          high, rest, true, [&](float (&to)[kOutputs], int of_a, int of_b, int i, bool accumulate) {
            Multiply::multiply(to, TileA::descriptor(a + (of_a * S::kBytesA >> 4), first_row, i),
                               TileB::descriptor(b + (of_b * S::kBytesB >> 4), first_column, i), accumulate);
          });
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(high);
      ptx::wgmma_touch(rest);
      hopper::release<1>(empty + position.stage * 8);
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) split::add_parts(acc[i], high[i], rest[i]);
    }
    // Outputs of lines that do not exist are none's.
    const int lane = threadIdx.x % 32, row = first_row + threadIdx.x / 32 % 4 * 16 + lane / 4;
    const Known rows[2] = {known()[row], known()[row + 8]};
    const Known* const columns = known() + kM + first_column + lane % 4 * 2;
    const int64_t n = work.problem.n;
    const int column = at.column + first_column + lane % 4 * 2;
    float* const to = work.c + at.index * work.problem.m * n + (at.row + row) * n + column;
    bool uncertain = false;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int across = i / 4 * 8 + i % 2;
      const Known of_row = rows[i / 2 % 2], of_column = columns[across];
      if ((of_row.codes & of_column.codes) == 0) continue;
      float sum = split::from_units(acc[i], -of_row.exponent, -of_column.exponent);
      if (work.bias != nullptr) sum = canonical(sum + __ldg(work.bias + column + across));
      to[i / 2 % 2 * 8 * n + across] = sum;
      const bool checked = ((of_row.codes | of_column.codes) & (Known::kCheckedRow | Known::kCheckedColumn)) != 0;
      uncertain |= checked && !is_certain(__float_as_uint(sum), of_row.exponent + of_column.exponent);
    }
    return uncertain;
  }

  // On the plain cores, in tiles of 64 x 64. Who calls: every thread of the team. Synchronises within.
  TREDUCE_DEVICE void compute_last(const LineFacts& lines_a, const LineFacts& lines_b) const {
    LastTile& tile = *reinterpret_cast<LastTile*>(stages);
    const Problem& p = work.problem;
    const int end_row = static_cast<int>(min(p.m, int64_t(at.row) + kM));
    const int end_column = static_cast<int>(min(p.n, int64_t(at.column) + kN));
    for (int row = at.row; row < end_row; row += kFinishTile) {
      for (int column = at.column; column < end_column; column += kFinishTile) {
        tile.read(lines_a, lines_b, row, column, end_row, end_column, at.batch);
        Team::sync();
        if (tile.any_last()) {
          tile.compute(work.sides[0].from.data, work.sides[1].from.data, work.c + at.index * p.m * p.n, work.bias, p,
                       row, column, at.index);
        }
        Team::sync();  // the next tile's facts take the place of these
      }
    }
  }
};

// Computes what is left of a block's tiles; a block of whose tiles nothing is left by parts splits lines of some others'. tile_of(task): its
// tile; place_of(tile). told: how many tiles have been told of. Who calls: all threads of the block, whose pairs are stored.
template <class S, class TileOf, class PlaceOf>
TREDUCE_DEVICE void compute_left(const Work& work, const CUtensorMap& parts_a, const CUtensorMap& parts_b, Left& left,
                                 uint32_t told, char* stages, const LineFacts& lines_a, const LineFacts& lines_b,
                                 int warp_group, TileOf tile_of, PlaceOf place_of) {
  using Rest = split_rest::Rest<S>;
  SHARED(hopper::Ring<Rest::kStages>, ring);
  const uint32_t own = left.by_parts, helped = min(told, Rest::kMostHelped);
  if ((own | helped | left.at_last | left.checked) == 0) return;
  const auto rest_of = [&](int64_t tile) { return Rest{work, ring, stages, place_of(tile)}; };
  uint32_t uncertain = 0;  // tasks with checked pairs
  for (uint32_t tasks = left.checked; tasks != 0; tasks &= tasks - 1) {
    const int n = __ffs(tasks) - 1;
    if (n >= Left::kMostChecked || !rest_of(tile_of(n)).is_sure(left, n, lines_a)) uncertain |= 1u << n;
  }
  const uint32_t warp = blockIdx.x * (S::kThreads / 32) + threadIdx.x / 32;
  for (uint32_t i = 0, tasks = own;; ++i) {
    int64_t tile;
    if (own != 0) {
      if (tasks == 0) break;
      tile = tile_of(__ffs(tasks) - 1);
      tasks &= tasks - 1;
    } else {
      if (i >= helped) break;
      const uint32_t next = ptx::load_acquire(work.left_tiles + 1 + (warp + i * (told / helped)) % told);
      if (next == 0) continue;  // it is being told
      tile = next - 1;
    }
    rest_of(tile).split_lines();
  }
  if ((own | left.at_last | uncertain) == 0) return;
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&parts_a);
    ptx::prefetch_tensor_map(&parts_b);
    ring.init(S::kConsumers * 4);
  }
  typename Rest::Position position;
  // Those whose outputs by parts turn out not to be certain are among them.
  for (uint32_t tasks = own | left.at_last | uncertain; tasks != 0; tasks &= tasks - 1) {
    const int n = __ffs(tasks) - 1;
    const Rest tile = rest_of(tile_of(n));
    if ((own >> n & 1) != 0) {
      ptx::fence_async_proxy();  // of what was stored to the stages
      __syncthreads();
      if (warp_group == 0) {
        ptx::release_registers<S::kCopying>();
        if (threadIdx.x < 32) {
          tile.wait_for_lines();
          if (ptx::elect_one()) tile.copy(parts_a, parts_b, position);
        }
      } else {
        ptx::take_registers<S::kMultiplying>();
        tile.know(lines_a, lines_b);
        const bool uncertain = tile.multiply(S::kConsumers == 1 ? 0 : warp_group - 1, position);
        if (__any_sync(~0u, uncertain) && threadIdx.x % 32 == 0) atomicOr(&left.at_last, 1u << n);
      }
      __syncwarp();
      __syncthreads();
    }
    if (((left.at_last | uncertain) >> n & 1) == 0) continue;
    if (S::kThreads == kThreads || threadIdx.x >= S::kThreads - kThreads) tile.compute_last(lines_a, lines_b);
    __syncthreads();
  }
}

}  // namespace treduce::matmul::split_rest
