// persistent where the copy engine cannot read the operands where they lie, and k is short: rows that do not begin at multiples of 16
// bytes, and tfloat32 across k. A copy of an operand would be read and written once more, which takes as long as the product. So threads
// copy it to shared memory, as many bytes at once as its alignment allows (cp.async of 16, 8 or 4). Of rows of 16 bits that begin at odd
// elements they copy the aligned chunks of 16 bytes in which these lie, and shift the rows where they have arrived.
//
// Order:   that of few_rows.cuh, by the same instructions.
// Mapping: a block a tile, several blocks a multiprocessor, which hide each other's first copies and last stores. A stage has 128 bytes
//          of k of each line. A row of a tile is a line, or where lines are contiguous a step of k. Where blocks are few, up to seven stages
//          are under way, and warps of their own copy, a half of them either operand: a warp that copies and multiplies is bound by its
//          instructions, one after another.
//          Sums leave by way of shared memory, whole rows of a tile at a time, wherever these begin.
// Source:  A. Kerr et al., CUTLASS: software-pipelined warp-level matrix multiply.
#include "in_place.h"

#include "../common/divider.h"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/ptx/mbarrier.cuh"
#include "../primitives/ptx/mma.cuh"
#include "../primitives/shared.cuh"
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
  TREDUCE_DEVICE Reader(const char* shared, int line)
      : shared_(shared), address_(ptx::shared_address(const_cast<char*>(shared))) {
    const int lane = threadIdx.x % 32, slab = line / kDepth<T> * kDepth<T>;
    const int line_half = kOfB ? lane / 16 : lane / 8 % 2, k_half = kOfB ? lane / 8 % 2 : lane / 16;
    if (kAlongK) {
      place_ = (line + line_half * 8 + lane % 8) * kRowBytes + (k_half ^ lane % 8) * 16;
    } else if (sizeof(T) == 2) {
      const int chunk = line % kDepth<T> / 8 + line_half;
      place_ = (slab + k_half * 8 + lane % 8) * kRowBytes + (chunk ^ lane % 8) * 16;
    } else {
      const int chunk = line % kDepth<T> / 4 + lane / 16;
      place_ = (slab + lane % 4) * kRowBytes + (chunk ^ lane % 4 * 2) * 16 + lane / 4 % 4 * 4;
    }
  }

  // Fragment `index`, of 16 lines, of multiplication `step`. Of A: lines 0 to 7 and 8 to 15 of the first half of k, then of the second; of B:
  // both halves of lines 0 to 7, then of 8 to 15. tile: where it begins, in bytes.
  TREDUCE_DEVICE void load(uint32_t (&words)[4], int tile, int index, int step) const {
    if constexpr (kAlongK) {
      ptx::load_matrices<false>(words, address_ + tile + (place_ ^ step * 32) + index * 16 * kRowBytes);
    } else if constexpr (sizeof(T) == 2) {
      ptx::load_matrices<true>(words, address_ + tile + (place_ ^ index * 32) + step * 16 * kRowBytes);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int line_half = kOfB ? i / 2 : i % 2, k_half = kOfB ? i % 2 : i / 2;
        const int at = tile + (place_ ^ index * 64 ^ line_half * 32) + (step * 8 + k_half * 4) * kRowBytes;
        words[i] = *reinterpret_cast<const uint32_t*>(shared_ + at);
      }
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (uint32_t& word : words) word = ptx::round_to_even_tfloat32(word);
    }
  }

 private:
  const char* shared_;
  ptx::SharedAddress address_;
  int place_;
};

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
      for_each_row<16>(from, to, pitch, rows, [&](const Out* in, Out* out) {
        if (exists) *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(in);
      });
    } else if constexpr (kSize == 4) {
      const bool exists = first<4>() < columns;
      for_each_row<4>(from, to, pitch, rows, [&](const Out* in, Out* out) {
        if (exists) *out = *in;
      });
    } else {
      // The same in all rows of a thread, which are an even number apart.
      const int skew =
          static_cast<int>(reinterpret_cast<uint64_t>(to + threadIdx.x / (S::kTileN * kSize / 4) * pitch) / 2 % 2);
      const int left = columns - first<4>() - skew;
      const bool begins = skew > 0 && first<4>() == 0;
      for_each_row<4>(from, to, pitch, rows, [&](const Out* in, Out* out) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(in);
        const uint32_t shifted =
            skew > 0 ? __funnelshift_r(word, *reinterpret_cast<const uint32_t*>(in + 2), 16) : word;
        if (left >= 2) {
          *reinterpret_cast<uint32_t*>(out + skew) = shifted;
        } else if (left == 1) {
          out[skew] = in[skew];
        }
        if (begins) *out = *in;
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

  // visit(place in shared memory, place in C) of this thread's pieces of kWidth bytes.
  template <int kWidth, class Visit>
  TREDUCE_DEVICE static void for_each_row(const Out* from, Out* to, int64_t pitch, int rows, Visit&& visit) {
    constexpr int kARow = S::kTileN * kSize / kWidth, kAtOnce = S::kMultiplyThreads / kARow;
    static_assert(kARow * kAtOnce == S::kMultiplyThreads && S::kTileM % kAtOnce == 0 && kAtOnce % 2 == 0);
    const int row = threadIdx.x / kARow;
    from += row * kPitch + first<kWidth>();
    to += row * pitch + first<kWidth>();
    const int64_t hop = kAtOnce * pitch;
#pragma unroll 4
    for (int i = 0; i < S::kTileM / kAtOnce; ++i) {
      if (row + i * kAtOnce >= rows) break;
      visit(from + i * kAtOnce * kPitch, to);
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

// Where a block's tile lies: tiles beside each other, below each other, and matrices, by the outer and the inner number of a batch.
struct Tiles {
  Divider across, down, inner_batches;
  int64_t a[2], b[2];  // from matrix to matrix, in elements
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
  const unsigned matrix = tiles.down.quotient_of_small(line_of_tiles);
  const unsigned batch_x = tiles.inner_batches.quotient_of_small(matrix);
  const unsigned batch_y = matrix - batch_x * static_cast<unsigned>(tiles.inner_batches.divisor);
  const int64_t row = int64_t(line_of_tiles - matrix * static_cast<unsigned>(tiles.down.divisor)) * S::kTileM;
  const int64_t column = int64_t(blockIdx.x - line_of_tiles * static_cast<unsigned>(tiles.across.divisor)) * S::kTileN;
  const int steps = (depth + kDepth<T> - 1) / kDepth<T>;
  const int64_t matrix_a = batch_x * tiles.a[0] + batch_y * tiles.a[1];
  const int64_t matrix_b = batch_x * tiles.b[0] + batch_y * tiles.b[1];
  // Stage s lies at s % stages.
  const ptx::SharedAddress ring = ptx::shared_address(shared);
  const auto shifts = [](int width) { return S::kApart ? sizeof(T) == 2 && is_shifted(width) : kShifts; };
  const int stage_a = rows_of(S::kTileM, sizeof(T), kAAlongK) * row_bytes(shifts(a.width));
  const int stage_bytes = stage_a + rows_of(S::kTileN, sizeof(T), kBAlongK) * row_bytes(shifts(b.width));
  const Reader<T, kAAlongK, false> reader_a(shared, warp_m);
  const Reader<T, kBAlongK, true> reader_b(shared + stage_a, warp_n);
  const bool has_outputs = row + warp_m < m && column + warp_n < n;

  float acc[kM][kN * 2][4] = {};
  const auto multiply = [&](int stage, int step) {
    uint32_t words_a[kM][4], words_b[kN][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) reader_a.load(words_a[i], stage, i, step);
#pragma unroll
    for (int j = 0; j < kN; ++j) reader_b.load(words_b[j], stage, j, step);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        ptx::multiply(T{}, acc[i][j * 2], words_a[i], words_b[j][0], words_b[j][1]);
        ptx::multiply(T{}, acc[i][j * 2 + 1], words_a[i], words_b[j][2], words_b[j][3]);
      }
    }
  };
  // Of a stage, or of its first half, if the other is past the end of k.
  const auto multiply_stage = [&](int stage, int left) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s == kSteps / 2 && left <= kDepth<T> / 2) break;
      multiply(stage, s);
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
    if (threadIdx.x == 0) {
      barriers.init(S::kMultiplyThreads / 32, stages, arrivals<S>(shifts(a.width)) + arrivals<S>(shifts(b.width)));
    }
    __syncthreads();
    const uint32_t full = ptx::shared_address(barriers.full);
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
    // A stage is released behind the wait for the next, when what was read of it has gone into sums: an arrival overtakes loads that
    // nothing waits for.
    uint32_t read = 0;  // the barrier of the stage before
    for (int step = 0; step < steps; ++step, place.next()) {
      ptx::mbarrier_wait(place.full, place.parity);
      __syncwarp();
      if (step > 0 && lane == 0) ptx::mbarrier_arrive(read);
      if (has_outputs) multiply_stage(place.stage - ring, depth - step * kDepth<T>);
      read = place.empty();
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
  meet();  // nobody reads the ring any more
  using Tile = Results<Out, S>;
  Out* const results = reinterpret_cast<Out*>(shared);
  const int first_column = warp_n + lane % 4 * 2;
  if (bias != nullptr) {
#pragma unroll
    for (int j = 0; j < kN * 2; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int64_t at = column + first_column + j * 8 + e;
        const float value = at < n ? static_cast<float>(bias[at]) : 0.0f;
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
  Tile::store(results, c + (int64_t(matrix) * m + row) * n + column, n,
              static_cast<int>(min(m - row, int64_t(S::kTileM))),
              static_cast<int>(min(n - column, int64_t(S::kTileN))));
#endif
}

inline Source source_of(const Operand& o, const Access& access) {
  const auto [along_k, width] = access;
  const int piece = width == 16 || is_shifted(width) ? 4 : width == 8 ? 3 : 2;
  const int64_t pitch = (along_k ? o.line_stride : o.depth_stride) * o.element_bytes;
  const int64_t next_stage = along_k ? int64_t(kRowBytes) : kRowBytes / o.element_bytes * pitch;
  return {o.data, end_of(o), pitch, next_stage, static_cast<int>(o.lines), width, piece};
}

template <class S>
Tiles tiles_for(const Operand& a, const Operand& b, const Problem& p) {
  return {Divider(ceil_div(p.n, int64_t(S::kTileN))),
          Divider(ceil_div(p.m, int64_t(S::kTileM))),
          Divider(inner_batches_of(p)),
          {a.batch_stride[0], a.batch_stride[1]},
          {b.batch_stride[0], b.batch_stride[1]}};
}

template <class T, class S, bool kAAlongK, bool kBAlongK, bool kShifts>
cudaError_t launch_kernel(const Call& call, const Source& a, const Source& b, const Tiles& tiles) {
  const Problem& p = call.problem;
  return launch(&kernel<T, S, kAAlongK, kBAlongK, kShifts>, call.step(-1), a, b, tiles, static_cast<Result<T>*>(call.c),
                static_cast<const Result<T>*>(call.bias), p.m, p.n, static_cast<int>(p.k), call.prepared.stages);
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
        return launch_kernel<T, S, a_along_k(), b_along_k(), shifts()>(call, source_of(a, access_a),
                                                                       source_of(b, access_b), tiles_for<S>(a, b, p));
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
