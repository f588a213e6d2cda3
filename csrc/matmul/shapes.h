// The shapes of the tiles that kernels compute: numbers that the kernels and prepare.cpp both need, written once. Host code,
// free of torch and CUDA.
#pragma once

#include <iterator>

#include "../common/dtypes.h"
#include "../common/round.h"
#include "operand.h"
#include "problem.h"

namespace treduce::matmul {

// What a block computes, and what it needs for that.
struct TileShape {
  const char* name;         // of the launch, for who reads a plan
  int tile_m, tile_n;       // outputs
  int threads;              // of a block, in x
  int threads_y = 1;        // and in y
  int stages = 0;           // of the ring in dynamic shared memory: at most, where the chip decides
  int stage_bytes = 0;      // of one stage
  int shared_bytes = 0;     // dynamic, of a block
  int blocks = 1;           // on a multiprocessor
  int cluster = 1;          // blocks that share what they read
  bool transposed = false;  // tiles of the transposed product: tile_m counts columns of C
  int beside = 1;           // blocks of a cluster whose tiles lie beside each other; the others lie below

  constexpr int below() const { return cluster / beside; }
  // Outputs of a cluster.
  constexpr int cluster_m() const { return tile_m * below(); }
  constexpr int cluster_n() const { return tile_n * beside; }
  constexpr TileShape with_columns(int n) const {
    TileShape s = *this;
    s.tile_n = n;
    return s;
  }
  constexpr TileShape with_beside(int blocks) const {
    TileShape s = *this;
    s.beside = blocks;
    return s;
  }
};

// Clusters of so many blocks, a block a multiprocessor, that a chip surely holds at once. Those of more than two lie in one of its groups
// of multiprocessors, and what a group has beyond whole clusters stays idle (an H200 holds 30 of four, and 15 of eight).
constexpr int clusters_of(int cluster, int multiprocessors) {
  const int clusters = (cluster > 2 ? multiprocessors * 7 / 8 : multiprocessors) / cluster;
  return clusters > 0 ? clusters : 1;
}
// Multiprocessors that they find.
constexpr int64_t places_of(int cluster, int multiprocessors) {
  return int64_t(clusters_of(cluster, multiprocessors)) * cluster;
}

// ---- one thread, a few outputs ----

// A block a square of `tile` x `tile` threads, a thread an output.
constexpr TileShape square_of_threads(const char* name, int tile) { return {name, tile, tile, tile, tile}; }

namespace naive {
enum Index { kSquare, kNarrow, kFlat, kShapeCount };
// Of 256 threads, a thread an output: squares, and for C of few columns or rows blocks of which most threads have an output.
constexpr TileShape kShapes[kShapeCount] = {square_of_threads("multiply 16 x 16 tiles", 16),
                                            {"multiply 64 x 4 tiles", 64, 4, 4, 64},
                                            {"multiply 4 x 64 tiles", 4, 64, 64, 4}};
}  // namespace naive

namespace tiled {
constexpr TileShape shape(DType, int tile) {
  return square_of_threads(tile == 8    ? "multiply 8 x 8 tiles"
                           : tile == 32 ? "multiply 32 x 32 tiles"
                                        : "multiply 16 x 16 tiles",
                           tile == 8 || tile == 32 ? tile : 16);
}
}  // namespace tiled

namespace tiled_1d {
constexpr TileShape shape(DType, int) { return {"multiply 64 x 64 tiles", 64, 64, 512}; }
}  // namespace tiled_1d

// tiled_2d, vectorized, warp_tiled: 8 x 8 outputs a thread, or 4 x 4 where an element has 8 bytes.
constexpr bool has_8_bytes(DType dtype) { return dtype == DType::float64 || dtype == DType::int64; }
constexpr TileShape square_of_outputs(DType dtype, int) {
  return has_8_bytes(dtype) ? TileShape{"multiply 64 x 64 tiles", 64, 64, 256}
                            : TileShape{"multiply 128 x 128 tiles", 128, 128, 256};
}

namespace pipelined {

enum Index { kLarge, kMedium, kSmall };

constexpr int kStages = 4, kStep = 16;  // k of a stage

// Whether a chip has large tiles. Not where `auto` takes tensor cores: then what a caller names has medium ones, for a tenth more time,
// and the kernel is left out. capability: 0: any but 90.
constexpr bool has_large(DType dtype, int capability) {
  if (dtype == DType::float64 || dtype == DType::int8) return false;
  return capability != 90 || !(dtype == DType::float16 || dtype == DType::bfloat16);
}

// Sums of 8 bytes fill the registers sooner, and products of 64-bit integers take several more.
constexpr TileShape shape(DType dtype, int index) {
  const int sum_bytes = has_8_bytes(dtype) ? 8 : 4;
  const bool int64 = dtype == DType::int64;
  TileShape s = index == kLarge    ? int64            ? TileShape{"multiply 128 x 64 tiles", 128, 64, 256}
                                     : sum_bytes == 8 ? TileShape{"multiply 128 x 128 tiles", 128, 128, 256}
                                                      : TileShape{"multiply 128 x 256 tiles", 128, 256, 256}
                : index == kMedium ? int64 ? TileShape{"multiply 64 x 64 tiles", 64, 64, 128}
                                           : TileShape{"multiply 64 x 128 tiles", 64, 128, 128}
                                   : TileShape{"multiply 32 x 64 tiles", 32, 64, 128};
  s.stages = kStages;
  // Rows of sums, each 16 bytes longer than the tile.
  s.stage_bytes = kStep * ((s.tile_m + s.tile_n) * sum_bytes + 2 * 16);
  s.shared_bytes = s.stages * s.stage_bytes;
  return s;
}

}  // namespace pipelined

// The kernel of `pipelined` for float32 products of short k.
namespace short_k {

constexpr int kMostK = 127;  // longer ones are multiplied as pairs

// Floats in shared memory from a step of k of so many lines to the next: of what a warp stores at once, 8 lines by every fourth of 16 steps,
// at most two meet in a bank.
constexpr int row_of(int lines) { return lines + 4; }

struct Shape : TileShape {
  int rows, columns;  // of a thread

  // Steps of k whose factors a thread loads at once, and of which the loop takes some. Of few outputs more: a load takes 30 cycles.
  constexpr int steps() const { return rows * columns > 32 ? 1 : rows * columns > 8 ? 2 : 4; }
  constexpr int whole_steps() const { return steps() < 4 ? 4 : 8; }
  // Steps of k that are copied at once: what a thread loads of them fits three fifths of its registers.
  constexpr int depth() const {
    const int most = 65536 / (blocks * threads) * 3 / 5 * threads / (tile_m + tile_n);
    return most < 32 ? 16 : most < 64 ? 32 : 64;
  }
  // Floats from a row of a warp's results in shared memory to the next.
  constexpr int out_row() const { return 4 * columns + 4; }
  // The operands, and what is loaded past their end; or the results.
  constexpr int bytes(int64_t k) const {
    const int padded = static_cast<int>(round_up(k, int64_t(whole_steps())));
    const int operands = padded * (row_of(tile_m) + row_of(tile_n)) + steps() * row_of(tile_n);
    const int past_a = (padded + steps()) * row_of(tile_m), results = threads / 32 * 8 * rows * out_row();
    const int floats = operands > past_a ? operands : past_a;
    return 4 * (floats > results ? floats : results);
  }
};
// A thread's rows and columns, of which a warp has 8 and 4 times as many; warps below and beside each other; and how many a multiprocessor
// holds, for their registers.
constexpr Shape shape(const char* name, int rows, int columns, int down, int across, int warps) {
  TileShape s{name, 8 * rows * down, 4 * columns * across, 32 * down * across};
  s.blocks = warps / (down * across);
  return {s, rows, columns};
}
// Nine of 42 that were tried: the fastest of these takes 1.004 of the time of the fastest of the eleven best in the mean of 106 products
// (NVIDIA H200, 2026-11-29).
constexpr Shape kShapes[] = {
    shape("multiply 128 x 64 tiles", 8, 8, 2, 2, 16), shape("multiply 96 x 64 tiles", 6, 8, 2, 2, 20),
    shape("multiply 64 x 64 tiles", 4, 8, 2, 2, 24),  shape("multiply 96 x 32 tiles", 6, 4, 2, 2, 24),
    shape("multiply 64 x 32 tiles", 4, 4, 2, 2, 28),  shape("multiply 32 x 64 tiles", 2, 8, 2, 2, 28),
    shape("multiply 32 x 32 tiles", 2, 4, 2, 2, 32),  shape("multiply 16 x 32 tiles", 2, 4, 1, 2, 32),
    shape("multiply 64 x 16 tiles", 4, 4, 2, 1, 24)};
constexpr int kShapeCount = sizeof(kShapes) / sizeof(kShapes[0]);

}  // namespace short_k

// ---- long k: mma_f64, persistent ----

namespace long_k {

// Steps of k of a group, and up to how many all are one. Of longer k the sum of a group begins at zero, and the sums of groups are
// added one after another. A function of k and the dtype alone: changing it changes bits. Where to begin is a trade (NVIDIA H200,
// 2026-11-25): a group more costs large products of 4096 steps 3 % in 16 bits, up to 12 % as tfloat32 and 2 % in float64, and makes few
// outputs up to twice as fast.
constexpr int64_t kGroup = 2048;
constexpr int64_t one_group_of(DType dtype) { return dtype == DType::float64 ? 2048 : 8192; }
constexpr int64_t groups_of(int64_t k, DType dtype) { return k <= one_group_of(dtype) ? 1 : ceil_div(k, kGroup); }
constexpr int kAddThreads = 128;  // of a block that adds groups

}  // namespace long_k

// ---- a warp's matrix instructions ----

namespace wmma {
constexpr TileShape shape(DType, int) { return {"multiply 128 x 128 tiles", 128, 128, 256}; }
}  // namespace wmma

namespace staged {

constexpr int kRowBytes = 128;  // k of a tile, of each line

// `stages`: at most; where the kernel knows how many at compile time, always so many. The chip decides how much shared memory
// that is: see prepare.cpp.
constexpr TileShape shape(const char* name, int m, int n, int warp_m, int warp_n, int stages, int blocks) {
  TileShape s{name, m, n, m / warp_m * (n / warp_n) * 32};
  s.stages = stages;
  s.stage_bytes = (m + n) * kRowBytes;
  s.blocks = blocks;
  return s;
}

}  // namespace staged

namespace mma {
constexpr int kWarpM = 64, kWarpN = 64;  // outputs of a warp
constexpr TileShape kShape = staged::shape("multiply 128 x 256 tiles", 128, 256, kWarpM, kWarpN, 4, 1);
}  // namespace mma

namespace mma_f64 {

enum Index { kSquare128, kSquare64, kWide64, kSquare32, kRows16, kColumns16, kSquare16, kDeep16, kShapeCount };

struct Shape : TileShape {
  int warp_m, warp_n;  // outputs of a warp
  int fours;           // of k, in a multiplication
  bool fixed;          // the length of the ring is known at compile time: it fits each chip from sm_80 on
};
constexpr Shape shape(const char* name, int m, int n, int warp_m, int warp_n, int fours, int stages, int blocks) {
  return {staged::shape(name, m, n, warp_m, warp_n, stages, blocks), warp_m, warp_n, fours,
          stages * (m + n) * staged::kRowBytes <= 99 * 1024};
}
constexpr Shape kShapes[kShapeCount] = {shape("multiply 128 x 128 tiles", 128, 128, 64, 32, 1, 4, 1),
                                        shape("multiply 64 x 64 tiles", 64, 64, 32, 32, 1, 4, 2),
                                        shape("multiply 64 x 32 tiles", 64, 32, 32, 16, 4, 8, 2),
                                        shape("multiply 32 x 32 tiles", 32, 32, 16, 16, 1, 6, 4),
                                        shape("multiply 16 x 32 tiles", 16, 32, 16, 8, 1, 6, 5),
                                        shape("multiply 32 x 16 tiles", 32, 16, 16, 8, 1, 6, 5),
                                        shape("multiply 16 x 16 tiles", 16, 16, 16, 8, 4, 12, 4),
                                        shape("multiply 16 x 16 tiles", 16, 16, 16, 8, 4, 16, 3)};

// Which shapes have registers for the sums of the groups of k before; of the others they lie in C.
constexpr bool adds_in_registers(int index) { return index != kSquare128; }

}  // namespace mma_f64

// ---- warp groups and the copy engine ----

namespace hopper {

constexpr int kWarpGroup = 128;       // threads
constexpr int kRowBytes = 128;        // k of a tile, of each line
constexpr int kTileAlignment = 1024;  // bytes: eight rows, after which the swizzle repeats
// Results leave through shared memory, rows of 128 bytes at a time in one of two buffers a warp group.
constexpr int staging_columns(int element_bytes) { return kRowBytes / element_bytes; }
constexpr int kStagingBuffer = 64 * kRowBytes;
constexpr int kStagingBytes = 2 * kStagingBuffer;

// A warp group for each 64 rows, and `others` beside them; `kept`: bytes a block beside the ring.
constexpr TileShape shape(const char* name, int m, int n, int stages, int others, int blocks, int cluster = 1,
                          int kept = 0, bool transposed = false) {
  TileShape s{name, m, n, (m / 64 + others) * kWarpGroup};
  s.stages = stages;
  s.stage_bytes = (m + n) * kRowBytes;
  s.shared_bytes = stages * s.stage_bytes + kept + kTileAlignment;
  s.blocks = blocks;
  s.cluster = cluster;
  s.transposed = transposed;
  return s;
}

}  // namespace hopper

namespace wgmma {
constexpr TileShape kShape = hopper::shape("multiply 128 x 128 tiles", 128, 128, 3, 0, 2);
}  // namespace wgmma

namespace warp_specialized {
constexpr TileShape kShape = hopper::shape("multiply 128 x 256 tiles", 128, 256, 4, 1, 1);
}  // namespace warp_specialized

namespace persistent {

enum Index : int {
  kLarge,
  kLong,
  kWide224,
  kWide,
  kWideTwo,
  kWide176,
  kMedium,
  kMediumFour,
  kMedium96,
  kMedium96Four,
  kNarrow,
  kNarrowFour,
  kNarrow96,
  kNarrow96Four,
  kSquare,
  kSquareEight,
  kColumns32,
  kColumns16,
  kRows32,
  kRows16,
  kKernelCount,
};

// Kernels whose blocks form clusters, and how the blocks of a cluster may lie. A kernel is told, so each way is a shape, after those of the
// kernels.
constexpr Index kClustered[] = {kLarge, kWideTwo, kMediumFour, kMedium96Four, kNarrowFour, kNarrow96Four, kSquareEight};
constexpr struct {
  int below, beside;
} kArrangements[] = {{2, 1}, {1, 2}, {4, 1}, {2, 2}, {1, 4}, {4, 2}, {2, 4}};
constexpr int kArrangementCount = sizeof(kArrangements) / sizeof(kArrangements[0]),
              kShapeCount =
                  kKernelCount + kArrangementCount * static_cast<int>(sizeof(kClustered) / sizeof(kClustered[0]));
constexpr bool is_told(int kernel) {
  for (const int told : kClustered) {
    if (told == kernel) return true;
  }
  return false;
}
constexpr int kernel_of(int index) {
  return index < kKernelCount ? index : kClustered[(index - kKernelCount) / kArrangementCount];
}

// Whether its tiles may be those of a strip.
constexpr bool may_be_strip(int kernel) {
  return kernel == kMedium || kernel == kMedium96 || kernel == kNarrow || kernel == kNarrow96 || kernel == kSquare;
}

// As tfloat32 hardly faster than the others.
constexpr bool for_16_bits_alone(int kernel) {
  return kernel == kMedium96Four || kernel == kNarrowFour || kernel == kNarrow96Four;
}

// Whether long k is cut in groups. Sums of integers are the same in any order: `kLong`, which is for groups alone, is not for these.
constexpr bool has_groups(DType result) { return result != DType::int32; }
// Which shapes add groups, and of which a task may be a single group.
constexpr bool adds_groups(int index) { return index != kLarge && index != kWide224 && index != kWideTwo; }
constexpr bool takes_groups_apart(int index) { return index == kMedium || index == kNarrow || index == kSquare; }
// The sums of groups of a thread that lie in shared memory, because the tensor cores' leave registers for half of them.
constexpr int kept_sums(int index) { return index == kLong ? 64 : 0; }

// Floating-point results leave as boxes, or rows through the same buffers, but those of the narrowest tiles.
constexpr bool stages_results(int n, bool transposed) { return !transposed && n >= 64; }

// Columns of B that a tile of n fetches: across k, whole slabs.
constexpr int kSlab = 64;
constexpr int fetched_columns(int n, bool along_k) { return along_k ? n : static_cast<int>(round_up(n, kSlab)); }

constexpr TileShape shape(const char* name, int m, int n, int stages, int cluster, int blocks,
                          bool transposed = false) {
  return hopper::shape(name, m, n < kSlab ? n : fetched_columns(n, false), stages, 1, blocks, cluster,
                       stages_results(n, transposed) ? m / 64 * hopper::kStagingBytes : 0, transposed)
      .with_columns(n);
}
constexpr TileShape kKernels[kKernelCount] = {
    shape("multiply 128 x 256 tiles", 128, 256, 4, 2, 1),
    hopper::shape("multiply 128 x 256 tiles", 128, 256, 3, 1, 1, 2, 2 * hopper::kWarpGroup * kept_sums(kLong) * 4),
    shape("multiply 128 x 224 tiles", 128, 224, 4, 1, 1),
    shape("multiply 128 x 192 tiles", 128, 192, 4, 1, 1),
    shape("multiply 128 x 192 tiles", 128, 192, 4, 2, 1),
    shape("multiply 128 x 176 tiles", 128, 176, 4, 1, 1),
    shape("multiply 128 x 128 tiles", 128, 128, 6, 1, 1),
    shape("multiply 128 x 128 tiles", 128, 128, 6, 4, 1).with_beside(2),
    shape("multiply 128 x 96 tiles", 128, 96, 6, 1, 1),
    shape("multiply 128 x 96 tiles", 128, 96, 6, 4, 1).with_beside(2),
    shape("multiply 64 x 128 tiles", 64, 128, 8, 1, 1),
    shape("multiply 64 x 128 tiles", 64, 128, 8, 4, 1),
    shape("multiply 64 x 96 tiles", 64, 96, 8, 1, 1),
    shape("multiply 64 x 96 tiles", 64, 96, 8, 4, 1).with_beside(2),
    shape("multiply 64 x 64 tiles", 64, 64, 12, 1, 1),
    shape("multiply 64 x 64 tiles", 64, 64, 12, 8, 1).with_beside(4),
    shape("multiply 64 x 32 tiles", 64, 32, 16, 1, 1),
    shape("multiply 64 x 16 tiles", 64, 16, 20, 1, 1),
    shape("multiply 32 x 64 tiles", 64, 32, 8, 1, 2, true),
    shape("multiply 16 x 64 tiles", 64, 16, 10, 1, 2, true)};
struct Shapes {
  TileShape of[kShapeCount];
  constexpr const TileShape& operator[](int index) const { return of[index]; }
};
constexpr Shapes kShapes = [] {
  Shapes shapes = {};
  for (int i = 0; i < kShapeCount; ++i) {
    shapes.of[i] = kKernels[kernel_of(i)];
    if (i < kKernelCount) continue;
    const auto& blocks = kArrangements[(i - kKernelCount) % kArrangementCount];
    shapes.of[i].cluster = blocks.below * blocks.beside;
    shapes.of[i].beside = blocks.beside;
  }
  return shapes;
}();

}  // namespace persistent

namespace specialized_f64 {

struct Shape : TileShape {
  int warp_m, warp_n;  // outputs of a warp
  int fours;           // of k, in a multiplication

  // Whether tasks may be dealt out by steps of k (stream_k.cuh). The smallest tiles end sooner than that pays.
  constexpr bool deals() const { return tile_m * tile_n > 32 * 32; }
  // Across k a warp's part of a tile is whole slabs of 16 lines.
  constexpr bool takes(bool b_along_k) const { return b_along_k || warp_n % 16 == 0; }
};
constexpr Shape shape(const char* name, int m, int n, int warp_m, int warp_n, int fours, int stages, int blocks) {
  TileShape s = hopper::shape(name, m, n, stages, 0, blocks);
  s.threads = m / warp_m * (n / warp_n) * 32 + hopper::kWarpGroup;
  return {s, warp_m, warp_n, fours};
}
enum Index { kSquare128, kWide96, kWide128, kRows64, kSquare64, kWide64, kSquare32, kShapeCount };
constexpr Shape kShapes[kShapeCount] = {shape("multiply 128 x 128 tiles", 128, 128, 64, 32, 2, 6, 1),
                                        shape("multiply 128 x 96 tiles", 128, 96, 64, 24, 2, 7, 1),
                                        shape("multiply 128 x 64 tiles", 128, 64, 32, 32, 4, 8, 1),
                                        shape("multiply 64 x 96 tiles", 64, 96, 32, 24, 4, 10, 1),
                                        shape("multiply 64 x 64 tiles", 64, 64, 32, 32, 4, 6, 2),
                                        shape("multiply 64 x 32 tiles", 64, 32, 32, 16, 4, 8, 2),
                                        shape("multiply 32 x 32 tiles", 32, 32, 16, 16, 4, 12, 2)};

}  // namespace specialized_f64

// specialized_f64 in small tiles.
namespace small_f64 {

constexpr int kSlabs = 4;  // of a stage, 16 steps of k each: a warp copies one
constexpr int kStageDepth = kSlabs * staged::kRowBytes / 8;
constexpr int kMostStages = 12;

struct Shape : TileShape {
  int warp_m, warp_n;  // outputs of a warp

  constexpr int warps() const { return tile_m / warp_m * (tile_n / warp_n); }  // that multiply
  // Dynamic shared memory of so many stages, and of two barriers for each that there may be.
  constexpr int bytes(int count) const { return count * stage_bytes + kMostStages * 16; }
};
constexpr Shape shape(const char* name, int m, int n, int warp_m, int warp_n, int blocks) {
  TileShape s{name, m, n, (m / warp_m * (n / warp_n) + kSlabs) * 32};
  s.stage_bytes = kSlabs * (m + n) * staged::kRowBytes;
  s.blocks = blocks;
  return {s, warp_m, warp_n};
}
enum Index { kSquare16, kRows16, kColumns16, kSquare32, kWide32, kTall32, kShapeCount };
constexpr Shape kShapes[kShapeCount] = {
    shape("multiply small 16 x 16 tiles", 16, 16, 16, 8, 3),  shape("multiply small 16 x 32 tiles", 16, 32, 16, 8, 2),
    shape("multiply small 32 x 16 tiles", 32, 16, 16, 8, 2),  shape("multiply small 32 x 32 tiles", 32, 32, 16, 16, 2),
    shape("multiply small 32 x 64 tiles", 32, 64, 16, 32, 2), shape("multiply small 64 x 32 tiles", 64, 32, 32, 16, 2)};

}  // namespace small_f64

// The kernels of `persistent` for few rows: of 16 bits up to 16 rows, in tiles as wide as fills the chip evenly; and for few outputs.
namespace few_rows {

constexpr int kMostRows = 64;  // that are few
constexpr int kMostStages = 32;
constexpr int kRingBytes = 128 * 1024;  // of stages, a block: changes the time alone

// The former.
constexpr const char* kName = "multiply tiles of 16 rows";
constexpr int kRows = 16, kWarpColumns = 16, kMostColumns = 8 * kWarpColumns;
// Of a block with so many columns.
constexpr int threads(int columns) { return (columns / kWarpColumns + 1) * 32; }
constexpr int stage_bytes(int columns) { return (columns + kRows) * hopper::kRowBytes; }

}  // namespace few_rows

namespace few_outputs {

constexpr int kProducers = 2;  // warps: an operand each
constexpr int kThreads = hopper::kWarpGroup + kProducers * 32;
// A multiplication reads 64 rows, and those that a tile lacks from what lies behind.
constexpr int kBehind = 64 * hopper::kRowBytes;

struct Shape {
  const char* name;
  int columns;
  int slabs;  // of 128 bytes of k of each line, a stage

  constexpr int stage_bytes(int rows) const {
    return slabs * (columns + static_cast<int>(round_up(rows, 8))) * hopper::kRowBytes;
  }
  // Whether columns may lie across k, of 16 bits: a row of the tile is then a step of k. Tiles of 8 would copy 32 bytes of it as well, and tiles
  // of 64 were the best of one product in 200.
  constexpr bool takes_across() const { return columns == 16 || columns == 32; }
};
constexpr Shape kShapes[] = {
    {"multiply narrow tiles of 8 columns", 8, 4},   {"multiply narrow tiles of 16 columns", 16, 4},
    {"multiply narrow tiles of 24 columns", 24, 4}, {"multiply narrow tiles of 32 columns", 32, 4},
    {"multiply narrow tiles of 48 columns", 48, 2}, {"multiply narrow tiles of 64 columns", 64, 2}};
constexpr int kShapeCount = std::size(kShapes);

}  // namespace few_outputs

// The kernel of `persistent` for few outputs of tfloat32. Tiles have `lines` of the operand that is in registers, and `columns` of the other.
namespace narrow {

// A producer an operand; who turn the other operand round if it lies across k.
constexpr int kMultiplyWarps = 4, kProducers = 2, kTurners = 2;
constexpr int kSlabs = 4;  // of 128 bytes of k of each line, of a part: what a warp loads at once
constexpr int threads(bool turns) { return (kMultiplyWarps + kProducers + (turns ? kTurners : 0)) * 32; }

struct Shape {
  const char* name;
  int lines, columns;
  int parts;  // of a stage: copies of small tiles bring more, for a thread needs some 250 cycles for one

  constexpr int stage_bytes(bool turns) const {
    return parts * kSlabs * (lines + (turns ? 2 : 1) * columns) * hopper::kRowBytes;
  }
  constexpr int depth() const { return parts * kSlabs * hopper::kRowBytes / 4; }
};
// Seven of nine: those of 16 lines by 16 columns, and by 32, were the best of one product in 17, and the best of the seven takes 1.001 of the
// time in the mean (2,000, NVIDIA H200, 2026-12-01).
constexpr Shape kShapes[] = {{"multiply narrow 16 x 8 tiles", 16, 8, 2},   {"multiply narrow 32 x 8 tiles", 32, 8, 2},
                             {"multiply narrow 64 x 8 tiles", 64, 8, 1},   {"multiply narrow 32 x 16 tiles", 32, 16, 2},
                             {"multiply narrow 64 x 16 tiles", 64, 16, 1}, {"multiply narrow 32 x 32 tiles", 32, 32, 1},
                             {"multiply narrow 64 x 32 tiles", 64, 32, 1}};
constexpr int kShapeCount = std::size(kShapes);

}  // namespace narrow

// The kernel of `persistent` for small matrices of 16 bits: a warp a tile.
namespace small_tiles {
constexpr TileShape kShape{"multiply 16 x 16 tiles", 16, 16, 256};
constexpr int kBlocks = 4;  // on a multiprocessor
}  // namespace small_tiles

// The kernel of `persistent` for operands that threads read where they lie.
namespace in_place {

constexpr int kRowBytes = 128;           // k of a stage, of each line
constexpr int kChunk = 16;               // bytes, which ldmatrix reads at once
constexpr int kStages[] = {2, 3, 5, 8};  // that a ring may have
constexpr int kMostStages = 8;

// Whether rows that may be copied so many bytes at once are copied as the chunks that they lie in, one more than a row has, and shifted.
constexpr bool is_shifted(int width) { return width == 2; }
constexpr int row_bytes(bool shifts) { return kRowBytes + (shifts ? kChunk : 0); }
// Rows of a stage of an operand: lines, or where lines are contiguous whole slabs of them.
constexpr int rows_of(int lines, int element_bytes, bool along_k) {
  return along_k ? lines : static_cast<int>(round_up(lines, kRowBytes / element_bytes));
}

struct Shape : TileShape {
  int warp_m, warp_n;  // outputs of a warp
  int copy_warps;      // that do nothing else, a half for either operand; 0: those that multiply copy

  constexpr int barrier_bytes() const { return copy_warps > 0 ? kMostStages * 16 : 0; }
  // Whether rows of an operand are shifted: where all warps copy, those of both are.
  constexpr bool shifts(const Access& own, const Access& other) const {
    return is_shifted(own.width) || (copy_warps == 0 && is_shifted(other.width));
  }
  // Dynamic, of a block with a ring of so many stages.
  constexpr int bytes_of_block(int element_bytes, int ring, const Access& a, const Access& b) const {
    const int of_a = rows_of(tile_m, element_bytes, a.along_k) * row_bytes(shifts(a, b));
    const int of_b = rows_of(tile_n, element_bytes, b.along_k) * row_bytes(shifts(b, a));
    const int all = ring * (of_a + of_b);
    const int results =
        tile_m * (tile_n * element_bytes + kChunk);  // leave through the same memory, in rows a chunk longer
    return barrier_bytes() + (all > results ? all : results);
  }
};
constexpr Shape shape(const char* name, int m, int n, int warp_m, int warp_n, int blocks, int copy_warps = 0) {
  TileShape s{name, m, n, (m / warp_m * (n / warp_n) + copy_warps) * 32};
  s.blocks = blocks;
  return {s, warp_m, warp_n, copy_warps};
}
enum Index { kSquare32, kSquare64, kApart32, kApart64, kShapeCount };
constexpr Shape kShapes[kShapeCount] = {shape("multiply 32 x 32 tiles in place", 32, 32, 16, 16, 7),
                                        shape("multiply 64 x 64 tiles in place", 64, 64, 32, 32, 5),
                                        shape("multiply 32 x 32 tiles, copied apart, in place", 32, 32, 16, 16, 2, 8),
                                        shape("multiply 64 x 64 tiles, copied apart, in place", 64, 64, 32, 32, 2, 8)};

}  // namespace in_place

// The kernel of `persistent` for few rows of tfloat32, and for B across k. Tiles have `lines` columns of C.
namespace register_operand {

constexpr int kMostRows = 64;  // that are few

struct Shape {
  const char* name;
  int rows, lines;
  int boxes;  // of 32 steps of k, a stage
  int stages, blocks;

  constexpr int warp_groups() const { return lines > 64 ? lines / 64 : 1; }
  // Who multiply, and who copies: a warp, or where registers are handed over a warp group.
  constexpr bool hands_over() const { return warp_groups() > 1; }
  constexpr int threads() const {
    return warp_groups() * hopper::kWarpGroup + (hands_over() ? hopper::kWarpGroup : 32);
  }
  constexpr int stage_bytes() const { return (rows + lines) * boxes * hopper::kRowBytes; }
  constexpr int shared_bytes() const { return stages * stage_bytes() + hopper::kTileAlignment; }
  // Whether registers, which blocks share, hold the sums of groups of k beside those of the tensor cores.
  constexpr bool adds_groups() const { return rows * blocks <= 128; }
};
constexpr int kFewShapes = 8, kShapeCount = 11;
// For few rows by pairs, of narrow tiles and of wide ones; then those for more.
constexpr Shape kShapes[kShapeCount] = {
    {"multiply 8 x 32 tiles", 8, 32, 2, 9, 2},      {"multiply 8 x 64 tiles", 8, 64, 2, 5, 2},
    {"multiply 16 x 32 tiles", 16, 32, 2, 8, 2},    {"multiply 16 x 64 tiles", 16, 64, 2, 5, 2},
    {"multiply 32 x 32 tiles", 32, 32, 2, 6, 2},    {"multiply 32 x 64 tiles", 32, 64, 2, 4, 2},
    {"multiply 64 x 32 tiles", 64, 32, 2, 4, 2},    {"multiply 64 x 64 tiles", 64, 64, 2, 3, 2},
    {"multiply 128 x 64 tiles", 128, 64, 2, 4, 1},  {"multiply 128 x 64 tiles", 128, 64, 1, 4, 2},
    {"multiply 256 x 128 tiles", 256, 128, 1, 4, 1}};

}  // namespace register_operand

namespace split_fp16 {

enum Index { kLarge, kMedium, kMedium112, kMedium96, kMedium80, kNarrow, kSquare64, kNarrow32, kShapeCount };

// Whether blocks may compute what pairs leave of their tiles (split_rest.cuh). Sums of the others need registers that warps then cannot
// give each other.
constexpr bool computes_rest(int index) { return index == kMedium96 || index >= kNarrow; }

// A stage has both halves of both tiles, and an alignment each for the scales and for the units of their groups. Two warp groups
// multiply, one in small tiles.
constexpr TileShape shape(const char* name, int m, int n, int stages, int cluster = 1) {
  TileShape s = hopper::shape(name, m, n, stages, 1, 1, cluster);
  s.threads = (m * n > 64 * 64 ? 3 : 2) * hopper::kWarpGroup;
  s.stage_bytes = 2 * s.stage_bytes + 2 * hopper::kTileAlignment;
  s.shared_bytes = stages * s.stage_bytes + hopper::kTileAlignment;
  return s;
}
constexpr TileShape kShapes[kShapeCount] = {
    shape("multiply 128 x 128 tiles", 128, 128, 3, 2), shape("multiply 128 x 128 tiles", 128, 128, 3),
    shape("multiply 128 x 112 tiles", 128, 112, 3),    shape("multiply 128 x 96 tiles", 128, 96, 3),
    shape("multiply 128 x 80 tiles", 128, 80, 4),      shape("multiply 64 x 128 tiles", 64, 128, 4),
    shape("multiply 64 x 64 tiles", 64, 64, 6),        shape("multiply 64 x 32 tiles", 64, 32, 8)};

}  // namespace split_fp16

namespace split_bf16 {

enum Index { kLarge, kMedium, kMedium112, kMedium96, kMedium80, kNarrow, kSquare64, kNarrow32, kShapeCount };

// A stage has three parts of both tiles, and an alignment for the units of their groups.
constexpr TileShape shape(const char* name, int m, int n, int stages, int cluster = 1) {
  TileShape s = hopper::shape(name, m, n, stages, 1, 1, cluster);
  s.stage_bytes = 3 * s.stage_bytes + hopper::kTileAlignment;
  s.shared_bytes = stages * s.stage_bytes + hopper::kTileAlignment;
  return s;
}
constexpr TileShape kShapes[kShapeCount] = {
    shape("multiply parts, 128 x 128 tiles", 128, 128, 2, 2), shape("multiply parts, 128 x 128 tiles", 128, 128, 2),
    shape("multiply parts, 128 x 112 tiles", 128, 112, 2),    shape("multiply parts, 128 x 96 tiles", 128, 96, 2),
    shape("multiply parts, 128 x 80 tiles", 128, 80, 2),      shape("multiply parts, 128 x 64 tiles", 128, 64, 3),
    shape("multiply parts, 64 x 64 tiles", 64, 64, 4),        shape("multiply parts, 64 x 32 tiles", 64, 32, 5)};

}  // namespace split_bf16

// The kernels of `split_fp16` for few rows or columns of C.
namespace split_rows {

// rows: lines of the operand with few (X); a block has 64 of the other (W). A warp group multiplies them, another copies, and teams of
// warps split W. One team waits for itself most of the time: two take the segments in turn, or two blocks share a multiprocessor,
// which hides their first copies and last stores too, if there are so many. Where the copy engine reads W, warp groups of some shapes take
// turns instead, see split_turns.cuh. Wide tiles have no teams: two warp groups split 64 lines each and multiply these, and blocks walk the
// tiles. Rings: `stages` of W as it is in memory, and so many bytes of W split, and of X.
constexpr int kLines = 64, kSetLines = 8;  // of W: of a block, and of a warp that splits them
struct Shape {
  const char *name, *parts_name;  // of the second launch
  int rows, teams, stages, split_bytes, x_bytes;
  bool in_turns = false;  // the first launch, where the copy engine reads W

  static constexpr int kTurns = 4;
  constexpr int threads_in_turns() const { return (kTurns * kMultiplyWarps + kCopyWarps) * 32; }
  static constexpr int kTeamWarps = kLines / kSetLines, kMultiplyWarps = 4, kCopyWarps = 4, kWideGroups = 2;
  constexpr int warp_groups() const { return teams == 0 ? kWideGroups : 1; }  // who multiply
  constexpr int lines() const { return warp_groups() * kLines; }              // of W, a block
  constexpr int blocks() const { return teams == 1 ? 2 : 1; }                 // on a multiprocessor
  constexpr int threads() const { return (warp_groups() * kMultiplyWarps + teams * kTeamWarps + kCopyWarps) * 32; }
  constexpr int bytes_w(int segment) const { return lines() * segment * 4; }
  constexpr int shared_bytes(int segment) const {
    return stages * bytes_w(segment) + split_bytes + x_bytes + hopper::kTileAlignment;
  }
};
constexpr int kMostStages = 8;  // of what is split
enum Index { kTwo16, kTwo32, k16, k32, k64, k128, kWide64, kWide128, kShapeCount };
constexpr bool is_wide(int index) { return index >= kWide64; }
constexpr Index kMostByNumbers = k64;  // where the copy engine cannot read W: registers do not suffice for more
constexpr Shape kShapes[kShapeCount] = {
    {"multiply 64 x 16 tiles", "multiply parts, 64 x 16 tiles", 16, 1, 2, 56 << 10, 16 << 10},
    {"multiply 64 x 32 tiles", "multiply parts, 64 x 32 tiles", 32, 1, 2, 52 << 10, 24 << 10},
    {"multiply 64 x 16 tiles", "multiply parts, 64 x 16 tiles", 16, 2, 4, 102 << 10, 44 << 10, true},
    {"multiply 64 x 32 tiles", "multiply parts, 64 x 32 tiles", 32, 2, 4, 86 << 10, 72 << 10, true},
    {"multiply 64 x 64 tiles", "multiply parts, 64 x 64 tiles", 64, 2, 4, 82 << 10, 66 << 10},
    {"multiply 64 x 128 tiles", "multiply parts, 64 x 128 tiles", 128, 2, 2, 82 << 10, 83 << 10},
    {"multiply 128 x 64 tiles", "multiply parts, 128 x 64 tiles", 64, 0, 4, 0, 70 << 10},
    {"multiply 128 x 128 tiles", "multiply parts, 128 x 128 tiles", 128, 0, 3, 0, 102 << 10}};

}  // namespace split_rows

}  // namespace treduce::matmul
