// persistent where the copy engine cannot read the operands where they lie, and k is short: rows that do not begin at multiples of 16
// bytes, and tfloat32 across k. A copy of an operand would be read and written once more, which takes as long as the product. So threads
// copy it to shared memory, as many bytes at once as its alignment allows (cp.async of 16, 8 or 4); rows of 16 bits that begin at odd
// elements go through registers.
//
// Order:   that of few_rows.cuh, by the same instructions.
// Mapping: a block a tile, several blocks a multiprocessor, which hide each other's first copies and last stores. A stage has 128 bytes
//          of k of each line; copies run up to two stages ahead. A row of a tile is a line, or where lines are contiguous a step of k.
//          Sums leave by way of shared memory, whole rows of a tile at a time, wherever these begin.
// Source:  A. Kerr et al., CUTLASS: software-pipelined warp-level matrix multiply.
#include "in_place.h"

#include "../primitives/ptx/copy_part.cuh"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/ptx/mma.cuh"
#include "../primitives/ptx/opaque.cuh"
#include "../primitives/shared.cuh"
#include "hopper.cuh"

namespace treduce::matmul::in_place {

// One of the shapes of shapes.h.
template <int kIndex>
struct Tiling {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n;
  static constexpr int kWarpM = kShape.warp_m, kWarpN = kShape.warp_n;  // outputs of a warp
  static constexpr int kThreads = kShape.threads, kBlocks = kShape.blocks;
};

// k of a stage; and lines of a row, where lines are contiguous.
template <class T>
constexpr int kDepth = kRowBytes / sizeof(T);
constexpr int kSteps = 4;  // multiplications along the k of a stage, 32 bytes each

// An operand as threads read it.
struct Source {
  const void* data;
  int64_t pitch;  // bytes from line to line, or where lines are contiguous from a step of k to the next
  int lines;
  int width;     // bytes that may be copied at once: 16, 8, 4, or 2
  int piece;     // the logarithm of what a thread copies at once: 4 bytes, or `width`
  bool along_k;  // k is contiguous
};

// Of chunks of 16 bytes in a row. Fragments of 16 bits, or along k, are read by ldmatrix, eight rows of a chunk; of 32 bits across k by
// words, two chunks of four rows.
template <class T>
TREDUCE_DEVICE int swizzle(int row, bool along_k) {
  return sizeof(T) == 4 && !along_k ? row % 4 * 2 : row % 8;
}

// A thread's copies of an operand's tiles, a stage after another. Rows of shared memory are 128 bytes; of a stage they come in units of
// kDepth, each a slab of kDepth lines where lines are contiguous. What is past an edge becomes zero.
template <class T, class S, int kLines>
class Copies {
  static constexpr int kRows = kLines > kDepth<T> ? kLines : kDepth<T>, kUnits = kRows / kDepth<T>;

 public:
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kWords = kBytes / 4 / S::kThreads;  // of a stage, a thread

  TREDUCE_DEVICE Copies(const Source& source, int64_t matrix, int64_t line, int depth)
      : width_(source.width), along_k_(source.along_k) {
    constexpr int kSize = sizeof(T);
    const int64_t pitch = source.pitch;
    const int lines = static_cast<int>(min(source.lines - line, int64_t(kLines)));
    const int at_once = (S::kThreads << source.piece) / kRowBytes;
    const int inner = threadIdx.x << source.piece & (kRowBytes - 1), row = (threadIdx.x << source.piece) / kRowBytes;
    from_ = static_cast<const char*>(source.data) + (matrix + line * (along_k_ ? 0 : 1)) * kSize +
            (along_k_ ? line + row : row) * pitch + inner;
    hop_ = at_once * pitch;
    next_ = along_k_ ? int64_t(kRowBytes) : kDepth<T> * pitch;
    next_unit_ = along_k_ ? kDepth<T> * pitch : int64_t(kRowBytes);
    inner_left_ = (along_k_ ? depth : lines) * kSize - inner;
    outer_left_ = along_k_ ? lines : depth;
    row_ = row;
    to_ = row * kRowBytes + (inner / 16 ^ swizzle<T>(row, along_k_)) * 16 + inner % 16;
    // What at_once rows on the swizzle exchanges.
    turn_ = at_once % 8 != 0 && (sizeof(T) == 2 || along_k_) ? 64 : 0;
  }

  TREDUCE_DEVICE bool through_registers() const { return sizeof(T) == 2 && width_ == 2; }

  // Starts the copies of a stage, unless they go through registers.
  TREDUCE_DEVICE void start(ptx::SharedAddress tile) const {
    if (width_ == 16) {
      start_by<16>(tile);
    } else if (width_ == 8) {
      start_by<8>(tile);
    } else if (width_ == 4) {
      start_by<4>(tile);
    }
  }

  // The same through registers.
  template <int kCount>
  TREDUCE_DEVICE void load(uint16_t (&words)[kCount][2]) const {
    for_each_piece<4>([&](int i, int, const char* from, int left) {
      words[i][0] = left > 0 ? __ldg(reinterpret_cast<const uint16_t*>(from)) : uint16_t(0);
      words[i][1] = left > 2 ? __ldg(reinterpret_cast<const uint16_t*>(from) + 1) : uint16_t(0);
    });
  }
  template <int kCount>
  TREDUCE_DEVICE void store(ptx::SharedAddress tile, const uint16_t (&words)[kCount][2]) const {
    for_each_piece<4>([&](int i, int to, const char*, int) {
      ptx::store_shared(tile + to, words[i][0] | static_cast<uint32_t>(words[i][1]) << 16);
    });
  }

  // On to the next stage.
  TREDUCE_DEVICE void next() {
    from_ += next_;
    if (along_k_) {
      inner_left_ -= kRowBytes;
    } else {
      outer_left_ -= kDepth<T>;
    }
  }

 private:
  template <int kWidth>
  TREDUCE_DEVICE void start_by(ptx::SharedAddress tile) const {
    for_each_piece<kWidth>(
        [&](int, int to, const char* from, int left) { ptx::copy_async_or_zero<kWidth>(tile + to, from, left > 0); });
  }

  // visit(number, place in the tile, address, bytes that are left from there on) of this thread's pieces of a stage.
  template <int kWidth, class Visit>
  TREDUCE_DEVICE void for_each_piece(Visit&& visit) const {
    constexpr int kAtOnce = S::kThreads * kWidth / kRowBytes, kCount = kDepth<T> / kAtOnce;
    static_assert(kAtOnce % 4 == 0 && kCount * kAtOnce == kDepth<T>);
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const char* from = ptx::opaque(from_ + unit * next_unit_);
      const int outer_left = outer_left_ - (along_k_ ? unit * kDepth<T> : 0);
      const int left = inner_left_ - (along_k_ ? 0 : unit * kRowBytes);
      const int to = to_ + unit * kDepth<T> * kRowBytes, turned = to ^ turn_;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (kLines < kDepth<T> && along_k_ && i * kAtOnce >= kLines) break;
        visit(unit * kCount + i, (i % 2 == 0 ? to : turned) + i * kAtOnce * kRowBytes, from,
              row_ + i * kAtOnce < outer_left ? left : 0);
        from = ptx::opaque(from + hop_);  // else the compiler keeps a register for each address
      }
    }
  }

  const char* from_;
  int64_t hop_, next_, next_unit_;
  int inner_left_, outer_left_;  // bytes from the thread's first, and rows from the tile's, to the edges
  int row_, to_, turn_, width_;
  bool along_k_;
};

// Where a warp reads the fragments of an operand in a tile.
template <class T>
class Reader {
 public:
  // `line`: the warp's first.
  TREDUCE_DEVICE Reader(bool along_k, const char* shared, int line)
      : shared_(shared), address_(ptx::shared_address(const_cast<char*>(shared))) {
    const int lane = threadIdx.x % 32, slab = line / kDepth<T> * kDepth<T>;
    if (along_k) {
      place_ = (line + lane % 16) * kRowBytes + (lane / 16 ^ lane % 8) * 16;
    } else if (sizeof(T) == 2) {
      const int chunk = line % kDepth<T> / 8 + lane / 8 % 2;
      place_ = (slab + lane / 16 * 8 + lane % 8) * kRowBytes + (chunk ^ lane % 8) * 16;
    } else {
      const int chunk = line % kDepth<T> / 4 + lane / 16;
      place_ = (slab + lane % 4) * kRowBytes + (chunk ^ lane % 4 * 2) * 16 + lane / 4 % 4 * 4;
    }
  }

  // Fragment `index`, of 16 lines, of multiplication `step`: lines 0 to 7 and 8 to 15 of the first half of k, then of the second.
  // tile: where it begins, in bytes.
  template <bool kAlongK>
  TREDUCE_DEVICE void load(uint32_t (&words)[4], int tile, int index, int step) const {
    if constexpr (kAlongK) {
      ptx::load_matrices<false>(words, address_ + tile + (place_ ^ step * 32) + index * 16 * kRowBytes);
    } else if constexpr (sizeof(T) == 2) {
      ptx::load_matrices<true>(words, address_ + tile + (place_ ^ index * 32) + step * 16 * kRowBytes);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = tile + (place_ ^ index * 64 ^ i % 2 * 32) + (step * 8 + i / 2 * 4) * kRowBytes;
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
  static constexpr int kPitch = S::kTileN + 16 / sizeof(Out);  // so that rows of a fragment meet all banks

  // Stores the tile from `to` on, its first output: 16 bytes at once where rows of C begin at multiples of these; else words. Of 16 bits
  // a row may begin between two words: then an output is left at either end.
  // Who calls: all threads of the block, behind a barrier.
  TREDUCE_DEVICE static void store(const Out* from, Out* to, int64_t pitch, int rows, int columns) {
    if (pitch % (16 / sizeof(Out)) == 0 && reinterpret_cast<uint64_t>(to) % 16 == 0) {
      for_each_row<16>(from, to, pitch, rows, [&](const Out* in, Out* out, int first) {
        if (first < columns) *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(in);
      });
    } else if constexpr (sizeof(Out) == 4) {
      for_each_row<4>(from, to, pitch, rows, [&](const Out* in, Out* out, int first) {
        if (first < columns) *out = *in;
      });
    } else {
      for_each_row<4>(from, to, pitch, rows, [&](const Out* in, Out* out, int first) {
        uint32_t word = *reinterpret_cast<const uint32_t*>(in);
        const bool skew = reinterpret_cast<uint64_t>(out) % 4 != 0;
        if (skew) {
          if (first == 0) *out = *in;
          word = __funnelshift_r(word, *reinterpret_cast<const uint32_t*>(in + 2), 16);
        }
        out += skew;
        if (first + skew + 2 <= columns) {
          *reinterpret_cast<uint32_t*>(out) = word;
        } else if (first + skew < columns) {
          *out = in[skew];
        }
      });
    }
  }

 private:
  // visit(place in shared memory, place in C, column) of this thread's pieces of kWidth bytes.
  template <int kWidth, class Visit>
  TREDUCE_DEVICE static void for_each_row(const Out* from, Out* to, int64_t pitch, int rows, Visit&& visit) {
    constexpr int kSize = kWidth / sizeof(Out), kARow = S::kTileN / kSize, kAtOnce = S::kThreads / kARow;
    static_assert(kARow * kAtOnce == S::kThreads && S::kTileM % kAtOnce == 0);
    const int first = threadIdx.x % kARow * kSize, row = threadIdx.x / kARow;
    from += row * kPitch + first;
    to += row * pitch + first;
    const int64_t hop = kAtOnce * pitch;
#pragma unroll 4
    for (int i = 0; i < S::kTileM / kAtOnce; ++i) {
      if (row + i * kAtOnce < rows) visit(from + i * kAtOnce * kPitch, to, first);
      to += hop;
    }
  }
};

// Matrices of both operands, by the outer and the inner number of a batch.
struct Batches {
  unsigned inner;
  int64_t a[2], b[2];  // in elements
};

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT Source a, TREDUCE_GRID_CONSTANT Source b, TREDUCE_GRID_CONSTANT Batches batches,
           Result<T>* c, const Result<T>* bias, int64_t m, int64_t n, int depth, unsigned down, unsigned across,
           int stages) {
#ifdef TREDUCE_SM90A
  using Out = Result<T>;
  using CopiesA = Copies<T, S, S::kTileM>;
  using CopiesB = Copies<T, S, S::kTileN>;
  constexpr int kStageBytes = CopiesA::kBytes + CopiesB::kBytes;
  constexpr int kM = S::kWarpM / 16, kN = S::kWarpN / 16;  // fragments of a warp
  ptx::allow_launch_after();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp % (S::kTileM / S::kWarpM) * S::kWarpM, warp_n = warp / (S::kTileM / S::kWarpM) * S::kWarpN;
  char* const shared = dynamic_shared<char>();
  const ptx::SharedAddress ring = ptx::shared_address(shared);

  const unsigned line_of_tiles = blockIdx.x / across, matrix = line_of_tiles / down;
  const unsigned batch_x = matrix / batches.inner, batch_y = matrix - batch_x * batches.inner;
  const int64_t row = int64_t(line_of_tiles - matrix * down) * S::kTileM;
  const int64_t column = int64_t(blockIdx.x - line_of_tiles * across) * S::kTileN;
  const int steps = (depth + kDepth<T> - 1) / kDepth<T>;
  CopiesA copies_a(a, batch_x * batches.a[0] + batch_y * batches.a[1], row, depth);
  CopiesB copies_b(b, batch_x * batches.b[0] + batch_y * batches.b[1], column, depth);
  const Reader<T> reader_a(a.along_k, shared, warp_m), reader_b(b.along_k, shared + CopiesA::kBytes, warp_n);
  const bool has_outputs = row + warp_m < m && column + warp_n < n;
  ptx::wait_for_launch_before();

  float acc[kM][kN * 2][4] = {};
  const auto multiply = [&](auto a_along_k, auto b_along_k, int stage, int step) {
    uint32_t words_a[kM][4], words_b[kN][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) reader_a.template load<a_along_k>(words_a[i], stage, i, step);
#pragma unroll
    for (int j = 0; j < kN; ++j) reader_b.template load<b_along_k>(words_b[j], stage, j, step);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        ptx::multiply(T{}, acc[i][j * 2], words_a[i], words_b[j][0], words_b[j][2]);
        ptx::multiply(T{}, acc[i][j * 2 + 1], words_a[i], words_b[j][1], words_b[j][3]);
      }
    }
  };
  // Of a stage, kParts parts, so that what goes through registers need not all be there at once.
  constexpr int kParts = sizeof(T) == 2 ? 2 : 1;
  const auto multiply_part = [&](int stage, int part) {
    const auto all = [&](auto a_along_k, auto b_along_k) {
#pragma unroll
      for (int s = 0; s < kSteps / kParts; ++s) {
        multiply(a_along_k, b_along_k, stage, part * (kSteps / kParts) + s);
      }
    };
    using Yes = std::true_type;
    using No = std::false_type;
    if (a.along_k) {
      b.along_k ? all(Yes{}, Yes{}) : all(Yes{}, No{});
    } else {
      b.along_k ? all(No{}, Yes{}) : all(No{}, No{});
    }
  };

  // Stage s lies at s % stages.
  constexpr int kHeld = CopiesA::kWords > CopiesB::kWords ? CopiesA::kWords : CopiesB::kWords;
  int filled = 0;
  const auto start = [&](ptx::SharedAddress stage) {
    if (filled < steps) {
      copies_a.start(stage);
      copies_b.start(stage + CopiesA::kBytes);
    }
    ptx::commit_copies();
  };
  // Fills what goes through registers while `meanwhile(part)` multiplies.
  const auto fill_held = [&](ptx::SharedAddress stage, auto&& meanwhile) {
    if constexpr (sizeof(T) == 2) {
      uint16_t held[kHeld][2];
      const bool of_a = filled < steps && copies_a.through_registers();
      const bool of_b = filled < steps && copies_b.through_registers();
      if (of_a) copies_a.load(held);
      meanwhile(0);
      if (of_a) copies_a.store(stage, held);
      if (of_b) copies_b.load(held);
      meanwhile(1);
      if (of_b) copies_b.store(stage + CopiesA::kBytes, held);
    } else {
      meanwhile(0);
    }
    copies_a.next();
    copies_b.next();
    ++filled;
  };
  // The first stages are filled while nothing is multiplied.
  int reading = 1 - stages, filling = 0;
#pragma unroll 1
  for (int step = 1 - stages; step < steps; ++step) {
    if (step >= 0) {
      stages == 3 ? ptx::wait_copies<1>() : ptx::wait_copies<0>();
      __syncthreads();
    }
    const int stage = reading * kStageBytes;
    const ptx::SharedAddress next = ring + filling * kStageBytes;
    start(next);
    fill_held(next, [&](int part) {
      const bool has_steps = step >= 0 && step * kDepth<T> + part * (kDepth<T> / kParts) < depth;
      if (has_steps && has_outputs) multiply_part(stage, part);
    });
    reading = reading + 1 == stages ? 0 : reading + 1;
    filling = filling + 1 == stages ? 0 : filling + 1;
  }

  // ---- epilogue ----
  ptx::wait_copies<0>();
  __syncthreads();  // nobody reads the ring any more
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
  __syncthreads();
  Tile::store(results, c + (int64_t(matrix) * m + row) * n + column, n,
              static_cast<int>(min(m - row, int64_t(S::kTileM))),
              static_cast<int>(min(n - column, int64_t(S::kTileN))));
#endif
}

inline Source source_of(const Operand& o) {
  const auto [along_k, width] = access_of(o);
  const int piece = width == 16 ? 4 : width == 8 ? 3 : 2;
  const int64_t pitch = (along_k ? o.line_stride : o.depth_stride) * o.element_bytes;
  return {o.data, pitch, static_cast<int>(o.lines), width, piece, along_k};
}

inline Batches batches_of(const Operand& a, const Operand& b, const Problem& p) {
  return {static_cast<unsigned>(inner_batches_of(p)),
          {a.batch_stride[0], a.batch_stride[1]},
          {b.batch_stride[0], b.batch_stride[1]}};
}

template <class T>
cudaError_t launch_type(const Call& call) {
  const Problem& p = call.problem;
  const Operand a = operand_a(p, call.a, sizeof(T)), b = operand_b(p, call.b, sizeof(T));
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    return launch(&kernel<T, S>, call.step(-1), source_of(a), source_of(b), batches_of(a, b, p),
                  static_cast<Result<T>*>(call.c), static_cast<const Result<T>*>(call.bias), p.m, p.n,
                  static_cast<int>(p.k), static_cast<unsigned>(ceil_div(p.m, int64_t(S::kTileM))),
                  static_cast<unsigned>(ceil_div(p.n, int64_t(S::kTileN))), call.prepared.stages);
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
