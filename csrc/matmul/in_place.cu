// persistent where the copy engine cannot read the operands where they lie, and k is short or outputs are few: rows that do not begin at
// multiples of 16 bytes, and tfloat32 across k. A copy of an operand would be read and written once more, which takes as long as the
// product. So threads copy it to shared memory, as many bytes at once as its alignment allows (cp.async of 16, 8 or 4). Of rows of 16
// bits that begin at odd elements they copy the aligned chunks of 16 bytes in which these lie, and shift the rows where they have
// arrived.
//
// Order:   that of few_rows.cuh, by the same instructions.
// Mapping: a block a tile, or of long k a tile and a group of k, whose sums a second launch adds; several blocks a multiprocessor, which hide
//          each other's first copies and last stores. A stage has 128 bytes of k of each line. A row of a tile is a line, or where lines
//          are contiguous a step of k. Where blocks are few, up to seven stages are under way, and warps of their own copy, a half of
//          them either operand: a warp that copies and multiplies is bound by its instructions, one after another. Sums leave by way of
//          shared memory, whole rows of a tile at a time, wherever these begin.
// Source:  A. Kerr et al., CUTLASS: software-pipelined warp-level matrix multiply.
#include "in_place.h"

#include "../common/divider.h"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/ptx/mbarrier.cuh"
#include "../primitives/ptx/mma.cuh"
#include "../primitives/shared.cuh"
#include "groups.cuh"
#include "hopper.cuh"
#include "in_place_copies.cuh"

namespace treduce::matmul::in_place {

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n;
  static constexpr int kWarpM = kShape.warp_m, kWarpN = kShape.warp_n;  // outputs of a warp
  static constexpr int kThreads = kShape.threads, kBlocks = kShape.blocks;
  // Whether warps behind those that multiply copy; else all do both.
  static constexpr bool kApart = kShape.copy_warps > 0;
  static constexpr int kCopyThreads = kApart ? kShape.copy_warps / 2 * 32 : kThreads;  // of an operand
  static constexpr int kMultiplyThreads = kApart ? kThreads - 2 * kCopyThreads : kThreads;
  static_assert(!kApart || kMultiplyThreads % kCopyThreads == 0);
};

constexpr int kSteps = 4;  // multiplications along the k of a stage, 32 bytes each

// Where a warp reads the fragments of an operand in a tile.
template <class T, bool kAlongK, bool kOfB>
class Reader {
 public:
  // `line`: the warp's first.
  TREDUCE_DEVICE Reader(ptx::SharedAddress operand, int line) {
    const int lane = threadIdx.x % 32, slab = line / kDepth<T> * kDepth<T>;
    const int line_half = kOfB ? lane / 16 : lane / 8 % 2, k_half = kOfB ? lane / 8 % 2 : lane / 16;
    int place;
    if (kAlongK) {
      place = (line + line_half * 8 + lane % 8) * kRowBytes + (k_half ^ lane % 8) * 16;
    } else if (sizeof(T) == 2) {
      const int chunk = line % kDepth<T> / 8 + line_half;
      place = (slab + k_half * 8 + lane % 8) * kRowBytes + (chunk ^ lane % 8) * 16;
    } else {
      const int chunk = line % kDepth<T> / 4 + lane / 16;
      place = (slab + lane % 4) * kRowBytes + (chunk ^ lane % 4 * 2) * 16 + lane / 4 % 4 * 4;
    }
    // Else the compiler computes them anew in each step.
    operand_ = ptx::kept(static_cast<int>(operand));
    place_ = ptx::kept(place);
  }

  // Fragment `index`, of 16 lines, of multiplication `step`. Of A: lines 0 to 7 and 8 to 15 of the first half of k, then of the second; of B:
  // both halves of lines 0 to 7, then of 8 to 15; float32 as it lies. tile: where it begins, in bytes.
  TREDUCE_DEVICE void load(uint32_t (&words)[4], int tile, int index, int step) const {
    if constexpr (kAlongK) {
      ptx::load_matrices<false>(words, operand_ + tile + (place_ ^ step * 32) + index * 16 * kRowBytes);
    } else if constexpr (sizeof(T) == 2) {
      ptx::load_matrices<true>(words, operand_ + tile + (place_ ^ index * 32) + step * 16 * kRowBytes);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int line_half = kOfB ? i / 2 : i % 2, k_half = kOfB ? i % 2 : i / 2;
        const int at = tile + (place_ ^ index * 64 ^ line_half * 32) + (step * 8 + k_half * 4) * kRowBytes;
        words[i] = ptx::load_shared<uint32_t>(operand_ + at);
      }
    }
  }

 private:
  int operand_, place_;
};

// A fragment as the tensor cores read it.
template <class T>
TREDUCE_DEVICE void round_to(uint32_t (&to)[4], const uint32_t (&words)[4], T) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = sizeof(T) == 4 ? ptx::round_to_even_tfloat32(words[i]) : words[i];
}

// Sums of a tile in shared memory, rounded.
template <class Out, class S>
struct Results {
  static constexpr int kSize = sizeof(Out);
  static constexpr int kPitch = S::kTileN + 16 / kSize;  // so that rows of a fragment meet all banks

  // Stores the tile from `to` on, its first output: 16 bytes at once where rows of C begin at multiples of these; else words. Of 16 bits
  // a row may begin between two words: then an output is left at either end.
  // Who calls: all threads of the block, behind a barrier.
  TREDUCE_DEVICE static void store(const Out* from, Out* to, int64_t pitch, int rows, int columns) {
    if (pitch % (16 / kSize) == 0 && reinterpret_cast<uint64_t>(to) % 16 == 0) {
      const bool exists = first<16>() < columns;
      for_each_row<16>(from, to, pitch, rows, [&](const Out* in, Out* out, bool row_exists) {
        const uint4 piece = *reinterpret_cast<const uint4*>(in);
        if (row_exists && exists) *reinterpret_cast<uint4*>(out) = piece;
      });
    } else if constexpr (kSize == 4) {
      const bool exists = first<4>() < columns;
      for_each_row<4>(from, to, pitch, rows, [&](const Out* in, Out* out, bool row_exists) {
        const Out value = *in;
        if (row_exists && exists) *out = value;
      });
    } else {
      // The same in all rows of a thread, which are an even number apart.
      const int skew =
          static_cast<int>(reinterpret_cast<uint64_t>(to + threadIdx.x / (S::kTileN * kSize / 4) * pitch) / 2 % 2);
      const int left = columns - first<4>() - skew;
      const bool two = left >= 2, one = left == 1, begins = skew > 0 && first<4>() == 0;
      for_each_row<4>(from, to, pitch, rows, [&](const Out* in, Out* out, bool row_exists) {
        const uint32_t* const words = reinterpret_cast<const uint32_t*>(in);
        const uint32_t word = words[0], pair = __funnelshift_r(word, words[1], skew * 16);
        if (row_exists && two) *reinterpret_cast<uint32_t*>(out + skew) = pair;
        if (row_exists && one) reinterpret_cast<uint16_t*>(out)[skew] = static_cast<uint16_t>(pair);
        if (row_exists && begins) *reinterpret_cast<uint16_t*>(out) = static_cast<uint16_t>(word);
      });
    }
  }

 private:
  // This thread's first column, of pieces of kWidth bytes.
  template <int kWidth>
  TREDUCE_DEVICE static int first() {
    constexpr int kARow = S::kTileN * kSize / kWidth;
    return threadIdx.x % kARow * (kWidth / kSize);
  }

  // visit(place in shared memory, place in C, whether the row exists) of this thread's pieces of kWidth bytes. Without branches the compiler
  // loads several before it stores: a store that waits for its own load waits for each.
  template <int kWidth, class Visit>
  TREDUCE_DEVICE static void for_each_row(const Out* from, Out* to, int64_t pitch, int rows, Visit&& visit) {
    constexpr int kARow = S::kTileN * kSize / kWidth, kAtOnce = S::kMultiplyThreads / kARow;
    static_assert(kARow * kAtOnce == S::kMultiplyThreads && S::kTileM % kAtOnce == 0 && kAtOnce % 2 == 0);
    const int row = threadIdx.x / kARow;
    from += row * kPitch + first<kWidth>();
    to += row * pitch + first<kWidth>();
    const int64_t hop = kAtOnce * pitch;
#pragma unroll 8
    for (int i = 0; i < S::kTileM / kAtOnce; ++i) {
      visit(from + i * kAtOnce * kPitch, to, row + i * kAtOnce < rows);
      to += hop;
    }
  }
};

// For all copies but those of the youngest stages - 2 stages. stages: one of kStages.
TREDUCE_DEVICE void wait_for_stage(int stages) {
  static_assert(kStages[0] == 2 && kStages[1] == 3 && kStages[2] == 5 && kStages[3] == 8);
  if (stages == 3) {
    ptx::wait_copies<1>();
  } else if (stages == 5) {
    ptx::wait_copies<3>();
  } else if (stages == 8) {
    ptx::wait_copies<6>();
  } else {
    ptx::wait_copies<0>();
  }
}

// Where a block's tile lies: tiles beside each other, below each other, matrices, by the outer and the inner number of a batch, and groups of k.
struct Tiles {
  Divider across, down, inner_batches, batches;
  int64_t a[2], b[2];        // from matrix to matrix, in elements
  int64_t a_group, b_group;  // and from group to group
  float* sums;               // of groups that are apart, [group][matrix][row][column]
};

// kShifts: all warps copy, and shift the rows of both operands.
template <class T, class S, bool kAAlongK, bool kBAlongK, bool kShifts>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT Source a, TREDUCE_GRID_CONSTANT Source b, TREDUCE_GRID_CONSTANT Tiles tiles,
           Result<T>* c, const Result<T>* bias, int64_t m, int64_t n, int depth, int stages) {
#ifdef TREDUCE_SM90A
  using Out = Result<T>;
  constexpr int kM = S::kWarpM / 16, kN = S::kWarpN / 16;  // fragments of a warp
  ptx::allow_launch_after();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % (S::kTileM / S::kWarpM) * S::kWarpM, warp_n = warp / (S::kTileM / S::kWarpM) * S::kWarpN;
  char* const shared = dynamic_shared<char>() + S::kShape.barrier_bytes();

  const unsigned line_of_tiles = tiles.across.quotient_of_small(blockIdx.x);
  const unsigned matrix_and_group = tiles.down.quotient_of_small(line_of_tiles);
  unsigned group = 0, matrix = matrix_and_group;
  if (tiles.sums != nullptr) {
    group = tiles.batches.quotient_of_small(matrix_and_group);
    matrix -= group * static_cast<unsigned>(tiles.batches.divisor);
    depth = min(depth - static_cast<int>(group) * static_cast<int>(long_k::kGroup), static_cast<int>(long_k::kGroup));
  }
  const unsigned batch_x = tiles.inner_batches.quotient_of_small(matrix);
  const unsigned batch_y = matrix - batch_x * static_cast<unsigned>(tiles.inner_batches.divisor);
  const auto row_of = [&](unsigned line, unsigned its_matrix) {
    return int64_t(line - its_matrix * static_cast<unsigned>(tiles.down.divisor)) * S::kTileM;
  };
  const auto column_of = [&](unsigned line) {
    return int64_t(blockIdx.x - line * static_cast<unsigned>(tiles.across.divisor)) * S::kTileN;
  };
  const int64_t row = row_of(line_of_tiles, matrix_and_group), column = column_of(line_of_tiles);
  const int steps = (depth + kDepth<T> - 1) / kDepth<T>;
  const int64_t matrix_a = batch_x * tiles.a[0] + batch_y * tiles.a[1] + group * tiles.a_group;
  const int64_t matrix_b = batch_x * tiles.b[0] + batch_y * tiles.b[1] + group * tiles.b_group;
  // Stage s lies at s % stages.
  const ptx::SharedAddress ring = ptx::shared_address(shared);
  const auto shifts = [](int width) { return S::kApart ? sizeof(T) == 2 && is_shifted(width) : kShifts; };
  const int stage_a = rows_of(S::kTileM, sizeof(T), kAAlongK) * row_bytes(shifts(a.width));
  const int stage_bytes = stage_a + rows_of(S::kTileN, sizeof(T), kBAlongK) * row_bytes(shifts(b.width));
  const Reader<T, kAAlongK, false> reader_a(ring, warp_m);
  const Reader<T, kBAlongK, true> reader_b(ring + stage_a, warp_n);
  const int rows = static_cast<int>(min(m - row, int64_t(S::kTileM)));  // of the tile that exist
  const int columns = static_cast<int>(min(n - column, int64_t(S::kTileN)));
  const bool has_outputs = warp_m < rows && warp_n < columns;

  float acc[kM][kN * 2][4] = {};
  using Fragment = uint32_t[4];
  const auto load_a = [&](Fragment(&to)[kM], int stage, int step) {
#pragma unroll
    for (int i = 0; i < kM; ++i) reader_a.load(to[i], stage, i, step);
  };
  // Fragments of all lines of A by one of B.
  const auto multiply = [&](const Fragment(&of_a)[kM], const Fragment& of_b, int j) {
    Fragment words_b;
    round_to(words_b, of_b, T{});
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      Fragment words_a;
      round_to(words_a, of_a[i], T{});
      ptx::multiply(T{}, acc[i][j * 2], words_a, words_b[0], words_b[1]);
      ptx::multiply(T{}, acc[i][j * 2 + 1], words_a, words_b[2], words_b[3]);
    }
  };
  // A stage, or its first half, if the other is past the end of k. Between multiplications there is no branch, at which each would be
  // waited for.
  const auto multiply_stage = [&](int stage, int left) {
    const auto multiply_steps = [&](auto count) {
#pragma unroll
      for (int s = 0; s < count(); ++s) {
        Fragment of_a[kM], of_b[kN];
        load_a(of_a, stage, s);
#pragma unroll
        for (int j = 0; j < kN; ++j) reader_b.load(of_b[j], stage, j, s);
#pragma unroll
        for (int j = 0; j < kN; ++j) multiply(of_a, of_b[j], j);
      }
    };
    if (left > kDepth<T> / 2) {
      multiply_steps(std::integral_constant<int, kSteps>());
    } else {
      multiply_steps(std::integral_constant<int, kSteps / 2>());
    }
  };

  // Who waits for all that multiply.
  const auto meet = [] {
    if constexpr (S::kApart) {
      hopper::named_barrier<S::kMultiplyThreads>(1);
    } else {
      __syncthreads();
    }
  };
  if constexpr (S::kApart) {
    // Not in static memory, which the launch does not count.
    auto& barriers = *reinterpret_cast<hopper::Ring<kMostStages>*>(dynamic_shared<char>());
    static_assert(sizeof(barriers) == S::kShape.barrier_bytes());
    const int warps_with_outputs = ceil_div(rows, S::kWarpM) * ceil_div(columns, S::kWarpN);
    if (threadIdx.x == 0) {
      barriers.init(warps_with_outputs, stages, arrivals<S>(shifts(a.width)) + arrivals<S>(shifts(b.width)));
    }
    __syncthreads();
    const uint32_t full = ptx::kept(static_cast<int>(ptx::shared_address(barriers.full)));
    Place place{ring, full, stage_bytes, stages * stage_bytes, full, full + stages * 8};
    if (threadIdx.x >= S::kMultiplyThreads) {
      const auto fill = [&](auto kind, const Source& source, int64_t of_matrix, int64_t line) {
        typename decltype(kind)::type copies(source, of_matrix, line);
        ptx::wait_for_launch_before();
        copies.fill(place, depth);
      };
      if (threadIdx.x < S::kMultiplyThreads + S::kCopyThreads) {
        with_copies<T, S, S::kTileM, kAAlongK>(shifts(a.width), [&](auto kind) { fill(kind, a, matrix_a, row); });
      } else {
        place.stage += stage_a;
        with_copies<T, S, S::kTileN, kBAlongK>(shifts(b.width), [&](auto kind) { fill(kind, b, matrix_b, column); });
      }
      return;
    }
    ptx::wait_for_launch_before();
    static_assert(kSteps == 4);
    int stage = 0, left = depth;
    const auto wait_for_stage = [&] {
      ptx::mbarrier_wait(place.full, place.parity);
      __syncwarp();
      stage = place.stage - ring;
    };
    // Behind a wait that follows the multiplications of what was read of the stage: an arrival overtakes loads that nothing waits for, and the
    // compiler lets it overtake multiplications, but not a wait.
    const auto release_stage = [&](uint32_t empty) {
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(empty);
    };
    if (!has_outputs) {
      // Its barriers do not count this warp.
    } else if constexpr (kM * kN == 1) {
      // A warp with few outputs waits for what it reads, and reads two steps ahead, also of the next stage.
      Fragment of_a[kSteps][kM], of_b[kSteps];
      const auto read = [&](int step) {
        load_a(of_a[step], stage, step);
        reader_b.load(of_b[step], stage, 0, step);
      };
      const auto multiply_step = [&](int step) { multiply(of_a[step], of_b[step], 0); };
      const auto multiply_half = [&] {
        read(2);
        multiply_step(0);
        read(3);
        multiply_step(1);
      };
      wait_for_stage();
      read(0);
      read(1);
      for (; left > kDepth<T>; left -= kDepth<T>) {
        multiply_half();
        const uint32_t empty = place.empty();
        place.next();
        wait_for_stage();
        read(0);
        multiply_step(2);
        read(1);
        multiply_step(3);
        release_stage(empty);
      }
      multiply_half();
      if (left > kDepth<T> / 2) {
        multiply_step(2);
        multiply_step(3);
      }
    } else {
      // With more outputs multiplications take longer than reading, and there are fewer registers: fragments are read a step ahead, of A to
      // registers of their own, and of B where they have been multiplied.
      Fragment even[kM], odd[kM], of_b[kN];
      const auto read_first = [&] {
        load_a(even, stage, 0);
#pragma unroll
        for (int j = 0; j < kN; ++j) reader_b.load(of_b[j], stage, j, 0);
      };
      const auto multiply_and_read = [&](const Fragment(&of_a)[kM], Fragment(&next)[kM], int step) {
        load_a(next, stage, step);
#pragma unroll
        for (int j = 0; j < kN; ++j) {
          multiply(of_a, of_b[j], j);
          reader_b.load(of_b[j], stage, j, step);
        }
      };
      const auto multiply_last = [&] {
#pragma unroll
        for (int j = 0; j < kN; ++j) multiply(odd, of_b[j], j);
      };
      const auto multiply_second_half = [&] {
        multiply_and_read(odd, even, 2);
        multiply_and_read(even, odd, 3);
      };
      wait_for_stage();
      for (; left > kDepth<T>; left -= kDepth<T>) {
        read_first();
        multiply_and_read(even, odd, 1);
        multiply_second_half();
        multiply_last();
        const uint32_t empty = place.empty();
        place.next();
        wait_for_stage();
        release_stage(empty);
      }
      read_first();
      multiply_and_read(even, odd, 1);
      if (left > kDepth<T> / 2) multiply_second_half();
      multiply_last();
    }
  } else {
    CopiesOf<kShifts, T, S, S::kTileM, kAAlongK> copies_a(a, matrix_a, row);
    CopiesOf<kShifts, T, S, S::kTileN, kBAlongK> copies_b(b, matrix_b, column);
    ptx::wait_for_launch_before();
    // The first stages are filled while nothing is multiplied.
    int reading = 1 - stages, filling = 0;
#pragma unroll 1
    for (int step = 1 - stages; step < steps; ++step) {
      const int stage = reading * stage_bytes;
      if (step >= 0) {
        wait_for_stage(stages);
        if constexpr (kShifts) {
          copies_a.shift(ring + stage, depth - step * kDepth<T>);
          copies_b.shift(ring + stage + stage_a, depth - step * kDepth<T>);
        }
        __syncthreads();
      }
      const int k_left = depth - (step + stages - 1) * kDepth<T>;
      if (k_left > 0) {
        copies_a.start(ring + filling * stage_bytes, k_left);
        copies_b.start(ring + filling * stage_bytes + stage_a, k_left);
      }
      ptx::commit_copies();
      if (step >= 0 && has_outputs) multiply_stage(stage, depth - step * kDepth<T>);
      reading = reading + 1 == stages ? 0 : reading + 1;
      filling = filling + 1 == stages ? 0 : filling + 1;
    }
  }

  // ---- epilogue ----
  if constexpr (!S::kApart) ptx::wait_copies<0>();
  const int first_column = warp_n + lane % 4 * 2;
  // `row` and `column` anew: the loop has no registers for them.
  const unsigned line = ptx::kept(static_cast<int>(line_of_tiles)),
                 its_matrix = ptx::kept(static_cast<int>(matrix_and_group));
  const int64_t outputs_column = column_of(line);
  const int64_t first_output = (int64_t(its_matrix) * m + row_of(line, its_matrix)) * n + outputs_column;
  if (tiles.sums != nullptr) {
    // Few outputs: the sums of groups leave as they lie.
    float* const to = tiles.sums + first_output;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = warp_m + i * 16 + half * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < kN * 2; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at = first_column + j * 8 + e;
            if (r < rows && at < columns) to[r * n + at] = acc[i][j][half * 2 + e];
          }
        }
      }
    }
    return;
  }
  meet();  // nobody reads the ring any more
  using Tile = Results<Out, S>;
  Out* const results = reinterpret_cast<Out*>(shared);
  if (bias != nullptr) {
#pragma unroll
    for (int j = 0; j < kN * 2; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int at = first_column + j * 8 + e;
        const float value = at < columns ? static_cast<float>(bias[outputs_column + at]) : 0.0f;
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          acc[i][j][e] += value;
          acc[i][j][2 + e] += value;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kN * 2; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Out* const to = results + (warp_m + i * 16 + half * 8 + lane / 4) * Tile::kPitch + first_column + j * 8;
        store_pair(to, acc[i][j][half * 2], acc[i][j][half * 2 + 1], true, true);
      }
    }
  }
  meet();
  Tile::store(results, c + first_output, n, rows, columns);
#endif
}

inline Source source_of(const Operand& o, const Access& access, const Problem& p) {
  const auto [along_k, width] = access;
  const int piece = width == 16 || is_shifted(width) ? 4 : width == 8 ? 3 : 2;
  const int64_t pitch = (along_k ? o.line_stride : o.depth_stride) * o.element_bytes;
  const int64_t next_stage = along_k ? int64_t(kRowBytes) : kRowBytes / o.element_bytes * pitch;
  // Blocks that share a multiprocessor then read the same lines at about the same time, and little of the L1 is shared memory.
  constexpr int64_t kFewStages = 4;
  const bool by_l1 = p.batches == 1 && p.k * o.element_bytes <= kFewStages * kRowBytes;
  return {o.data, end_of(o), pitch, next_stage, static_cast<int>(o.lines), width, piece, by_l1};
}

template <class S>
Tiles tiles_for(const Call& call, const Operand& a, const Operand& b) {
  const Problem& p = call.problem;
  return {Divider(ceil_div(p.n, int64_t(S::kTileN))),
          Divider(ceil_div(p.m, int64_t(S::kTileM))),
          Divider(inner_batches_of(p)),
          Divider(p.batches),
          {a.batch_stride[0], a.batch_stride[1]},
          {b.batch_stride[0], b.batch_stride[1]},
          long_k::kGroup * a.depth_stride,
          long_k::kGroup * b.depth_stride,
          call.prepared.apart ? call.region<float>(call.prepared.partials) : nullptr};
}

template <class T, class S, bool kAAlongK, bool kBAlongK, bool kShifts>
cudaError_t launch_kernel(const Call& call, const Source& a, const Source& b, const Tiles& tiles) {
  const Problem& p = call.problem;
  const bool apart = call.prepared.apart;
  const cudaError_t error = launch(&kernel<T, S, kAAlongK, kBAlongK, kShifts>, call.step(apart ? -2 : -1), a, b, tiles,
                                   static_cast<Result<T>*>(call.c), static_cast<const Result<T>*>(call.bias), p.m, p.n,
                                   static_cast<int>(p.k), call.prepared.stages);
  if (error != cudaSuccess || !apart) return error;
  return add_groups_apart<T, Result<T>>(call, groups_for(call, /*adds_groups=*/false, kDepth<T>));
}

template <class T>
cudaError_t launch_type(const Call& call) {
  const Problem& p = call.problem;
  const Operand a = operand_a(p, call.a, sizeof(T)), b = operand_b(p, call.b, sizeof(T));
  const Access access_a = access_of(a), access_b = access_of(b);
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    const auto launch_as = [&](auto a_along_k, auto b_along_k) {
      const auto launch_with = [&](auto shifts) {
        return launch_kernel<T, S, a_along_k(), b_along_k(), shifts()>(
            call, source_of(a, access_a, p), source_of(b, access_b, p), tiles_for<S>(call, a, b));
      };
      if constexpr (sizeof(T) == 2 && !S::kApart) {
        if (S::kShape.shifts(access_a, access_b)) return launch_with(std::true_type{});
      }
      return launch_with(std::false_type{});
    };
    return with_directions</*kEither=*/true>(access_a.along_k, access_b.along_k, launch_as);
  });
}

cudaError_t run(const Call& call) {
  switch (call.dtype) {
    case DType::float16: return launch_type<float16>(call);
    case DType::bfloat16: return launch_type<bfloat16>(call);
    default: return launch_type<float>(call);
  }
}

}  // namespace treduce::matmul::in_place
