// persistent where the copy engine cannot read the operands where they lie, and k is short: rows that do not begin at multiples of 16
// bytes, and tfloat32 across k. A copy of an operand would be read and written once more, which takes as long as the product. So threads
// copy it to shared memory, as many bytes at once as its alignment allows (cp.async of 16, 8 or 4). Of rows of 16 bits that begin at odd
// elements they copy the aligned chunks of 16 bytes in which these lie, and shift the chunks when they have arrived.
//
// Order:   that of few_rows.cuh, by the same instructions.
// Mapping: a block a tile, several blocks a multiprocessor, which hide each other's first copies and last stores. A stage has 128 bytes
//          of k of each line; where blocks are few, up to seven stages are under way, and warps of their own copy: a stage is 260
//          instructions of a warp that copies and multiplies, and 110 of one that multiplies. A row of a tile is a line, or where lines are
//          contiguous a step of k.
//          Sums leave by way of shared memory, whole rows of a tile at a time, wherever these begin.
// Source:  A. Kerr et al., CUTLASS: software-pipelined warp-level matrix multiply.
#include "in_place.h"

#include "../common/divider.h"
#include "../primitives/ptx/copy_part.cuh"
#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/matrix.cuh"
#include "../primitives/ptx/mbarrier.cuh"
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
  // Whether warps behind those that multiply copy; else all do both.
  static constexpr bool kApart = kShape.copy_warps > 0;
  static constexpr int kCopyThreads = kApart ? kShape.copy_warps * 32 : kThreads;
  static constexpr int kMultiplyThreads = kApart ? kThreads - kCopyThreads : kThreads;
  static constexpr int kFirstCopying = kThreads - kCopyThreads;
};

// k of a stage; and lines of a row, where lines are contiguous.
template <class T>
constexpr int kDepth = kRowBytes / sizeof(T);
constexpr int kSteps = 4;  // multiplications along the k of a stage, 32 bytes each

// An operand as threads read it.
struct Source {
  const void* data;
  const char* end;
  int64_t pitch;       // bytes from line to line, or where lines are contiguous from a step of k to the next
  int64_t next_stage;  // bytes
  int lines;
  int width;  // bytes that may be copied at once: 16, 8, 4, or 2
  int piece;  // the logarithm of what a thread copies at once
};

// Of chunks of 16 bytes in a row. Fragments of 16 bits, or along k, are read by ldmatrix, eight rows of a chunk; of 32 bits across k by
// words, two chunks of four rows.
template <class T>
TREDUCE_DEVICE int swizzle(int row, bool along_k) {
  return sizeof(T) == 4 && !along_k ? row % 4 * 2 : row % 8;
}

TREDUCE_DEVICE uint32_t low_bits(int count) { return count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1; }

// A thread's copies of an operand's tiles, a stage after another. Rows of shared memory are 128 bytes; of a stage they come in units of
// kDepth, each a slab of kDepth lines where lines are contiguous. What is past the end of k becomes zero. Of a stage a thread has pieces
// of every at_once-th row.
template <class T, class S, int kLines, bool kAlongK>
class Copies {
  static constexpr int kUnitRows = kDepth<T>, kRows = rows_of(kLines, sizeof(T)), kUnits = kRows / kUnitRows;
  static constexpr int kChunkedRow = kRowBytes + kChunk;  // the chunks that a row lies in
  static constexpr int kThreadBits = S::kCopyThreads == 256 ? 8 : 7, kRowBits = 7;
  static_assert(kRows <= S::kCopyThreads && S::kCopyThreads == 1 << kThreadBits && kRowBytes == 1 << kRowBits);

 public:
  static constexpr int kBytes = kRows * kRowBytes, kChunkedBytes = kRows * kChunkedRow;

  TREDUCE_DEVICE Copies(const Source& source, int64_t matrix, int64_t line) : source_(source) {
    constexpr int kSize = sizeof(T);
    const int lines = static_cast<int>(min(source.lines - line, int64_t(kLines))), at_once = rows_at_once();
    const char* const first = static_cast<const char*>(source.data) + (matrix + (kAlongK ? 0 : line)) * kSize +
                              (kAlongK ? line : 0) * source.pitch;
    from_ = first + row() * source.pitch + inner();
    hop_ = at_once * source.pitch;
    to_ = row() * kRowBytes + (inner() / 16 ^ swizzle<T>(row(), kAlongK)) * 16 + inner() % 16;
    // What at_once rows on the swizzle exchanges.
    turn_ = at_once % 8 != 0 && (sizeof(T) == 2 || kAlongK) ? 64 : 0;
    if (is_shifted()) {
      // As many rows, or stages, further a row begins as far behind a chunk.
      skew_ = static_cast<int>(reinterpret_cast<uint64_t>(from_) % kChunk);
      from_ -= skew_;
      const char* const begin = first + (kAlongK ? thread() : last_row()) * source.pitch + last_inner();
      const int skew = static_cast<int>(reinterpret_cast<uint64_t>(begin) % kChunk);
      last_ = begin - skew + kRowBytes;
      last_end_ = kRowBytes - skew;
      has_last_ =
          skew > 0 && thread() < kRows && (kAlongK ? thread() < lines : last_inner() + last_end_ < lines * kSize);
    }
    if (kAlongK) {
      exists_ = low_bits(pieces_of(lines));
    } else {
      const int count = kUnitRows >> rows_bits();
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        if (inner() + unit * kRowBytes < lines * kSize + skew_) exists_ |= low_bits(count) << unit * count;
      }
    }
  }

  // Rows of 32 bits never are.
  TREDUCE_DEVICE static bool is_shifted(const Source& source) {
    return sizeof(T) == 2 && !S::kApart && in_place::is_shifted(source.width);
  }
  TREDUCE_DEVICE bool is_shifted() const { return is_shifted(source_); }
  // Of a stage, as it arrives.
  TREDUCE_DEVICE static int stage_bytes(const Source& source) { return is_shifted(source) ? kChunkedBytes : kBytes; }

  // Starts the copies of the next stage, which has k_left steps of k.
  TREDUCE_DEVICE void start(ptx::SharedAddress stage, int k_left) {
    const uint32_t exists = k_left < kUnitRows ? exists_ & in_k(k_left) : exists_;
    if (source_.width == 16) {
      start_by<16>(stage, exists);
    } else if (source_.width == 8) {
      start_by<8>(stage, exists);
    } else if (source_.width == 4) {
      start_by<4>(stage, exists);
    } else if (is_shifted()) {
      start_chunks(stage, exists, k_left);
      last_ += source_.next_stage;
    }
    from_ += source_.next_stage;
  }

  // Makes a tile of a stage that has arrived as chunks, and has k_left steps of k; what is past them becomes zero.
  TREDUCE_DEVICE void shift(ptx::SharedAddress stage, ptx::SharedAddress tile, int k_left) const {
    constexpr int kWords = kChunk / 4, kSize = sizeof(T);
    const ptx::SharedAddress chunks = stage + to_chunk() + skew_ / 4 * 4;
    const int left = k_left * kSize - inner();  // of a row, where k is contiguous
    for_each_piece<kChunk>([&](int, int rows, int to) {
      uint32_t words[kWords + 1];
#pragma unroll
      for (int i = 0; i <= kWords; ++i) words[i] = ptx::load_shared<uint32_t>(chunks + rows * kChunkedRow + i * 4);
      const bool exists = kAlongK || (row() + rows) % kUnitRows < k_left;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int bits = kAlongK ? min(max(left - i * 4, 0), 4) * 8 : exists ? 32 : 0;
        words[i] = __funnelshift_r(words[i], words[i + 1], skew_ % 4 * 8) & low_bits(bits);
      }
      ptx::store_shared(tile + to, make_uint4(words[0], words[1], words[2], words[3]));
    });
  }

 private:
  TREDUCE_DEVICE static unsigned thread() { return threadIdx.x - S::kFirstCopying; }
  // This thread's place: a row, and bytes in it.
  TREDUCE_DEVICE int row() const { return (thread() << source_.piece) / kRowBytes; }
  TREDUCE_DEVICE int inner() const { return thread() << source_.piece & (kRowBytes - 1); }
  TREDUCE_DEVICE int rows_at_once() const { return 1 << rows_bits(); }
  TREDUCE_DEVICE int rows_bits() const { return kThreadBits + source_.piece - kRowBits; }
  // How many of every at_once-th row from this thread's first on are among so many.
  TREDUCE_DEVICE int pieces_of(int rows) const { return (rows - row() + rows_at_once() - 1) >> rows_bits(); }
  // Of row threadIdx.x of a stage.
  TREDUCE_DEVICE int last_row() const { return thread() % kUnitRows; }
  TREDUCE_DEVICE int last_inner() const { return kAlongK ? 0 : static_cast<int>(thread()) / kUnitRows * kRowBytes; }
  TREDUCE_DEVICE int64_t next_unit() const { return kAlongK ? kUnitRows * source_.pitch : int64_t(kRowBytes); }

  // The pieces that lie in the first k_left steps of a stage.
  TREDUCE_DEVICE uint32_t in_k(int k_left) const {
    constexpr int kSize = sizeof(T);
    if (kAlongK) return inner() < k_left * kSize + skew_ ? ~0u : 0;
    const int count = kUnitRows >> rows_bits();
    const uint32_t of_unit = low_bits(pieces_of(k_left));
    uint32_t all = 0;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) all |= of_unit << unit * count;
    return all;
  }

  // visit(number, rows from the thread's first, place in the tile) of this thread's pieces of a stage.
  template <int kWidth, class Visit>
  TREDUCE_DEVICE void for_each_piece(Visit&& visit) const {
    constexpr int kAtOnce = S::kCopyThreads * kWidth / kRowBytes, kCount = kUnitRows / kAtOnce;
    static_assert(kAtOnce % 4 == 0 && kCount * kAtOnce == kUnitRows && kUnits * kCount <= 32);
#pragma unroll
    for (int piece = 0; piece < kUnits * kCount; ++piece) {
      visit(piece, piece * kAtOnce, (piece % 2 == 0 ? to_ : to_ ^ turn_) + piece * kAtOnce * kRowBytes);
    }
  }

  template <int kWidth>
  TREDUCE_DEVICE void start_by(ptx::SharedAddress stage, uint32_t exists) const {
    constexpr int kCount = kUnitRows / (S::kCopyThreads * kWidth / kRowBytes);
    const char* from = from_;
    for_each_piece<kWidth>([&](int piece, int, int to) {
      if (piece % kCount == 0) from = ptx::opaque(from_ + piece / kCount * next_unit());
      ptx::copy_async_or_zero<kWidth>(stage + to, from, (exists >> piece & 1) != 0);
      from = ptx::opaque(from + hop_);  // else the compiler keeps a register for each address
    });
  }

  TREDUCE_DEVICE int to_chunk() const { return row() * kChunkedRow + inner(); }
  TREDUCE_DEVICE void start_chunks(ptx::SharedAddress stage, uint32_t exists, int k_left) const {
    constexpr int kSize = sizeof(T), kAtOnce = S::kCopyThreads * kChunk / kRowBytes, kCount = kUnitRows / kAtOnce;
    const ptx::SharedAddress to = stage + to_chunk();
    // The last piece may pass the operand's end.
    const int piece = 31 - __clz(exists);
    const char* const from_last = from_ + piece / kCount * next_unit() + piece % kCount * hop_;
    const bool passes = exists != 0 && from_last + kChunk > source_.end;
    if (passes) {
      start_part(to + piece * kAtOnce * kChunkedRow, from_last);
      exists ^= 1u << piece;
    }
    const char* from = from_;
    for_each_piece<kChunk>([&](int piece, int rows, int) {
      if (piece % kCount == 0) from = ptx::opaque(from_ + piece / kCount * next_unit());
      if ((exists >> piece & 1) != 0) ptx::copy_async<kChunk>(to + rows * kChunkedRow, from);
      from = ptx::opaque(from + hop_);
    });
    if (has_last_ && (kAlongK ? last_end_ < k_left * kSize : last_row() < k_left)) {
      const ptx::SharedAddress to_last = stage + thread() * kChunkedRow + kRowBytes;
      if (last_ + kChunk <= source_.end) {
        ptx::copy_async<kChunk>(to_last, last_);
      } else {
        start_part(to_last, last_);
      }
    }
  }
  // A chunk as far as the operand goes: what is behind may be no memory.
  TREDUCE_DEVICE void start_part(ptx::SharedAddress to, const char* from) const {
#pragma unroll
    for (int i = 0; i < kChunk; i += 4) {
      if (from + i + 4 <= source_.end) {
        ptx::copy_async<4>(to + i, from + i);
      } else if (from + i < source_.end) {
        ptx::store_shared(to + i, __ldg(reinterpret_cast<const uint16_t*>(from + i)));
      }
    }
  }

  const Source& source_;
  const char* from_;
  int64_t hop_;
  uint32_t exists_ = 0;  // a bit for each piece of a whole stage: not past the last line
  int to_, turn_;
  // Of rows that are shifted: bytes from the chunk's begin to the row's; the last chunk of row threadIdx.x, where in the row it begins,
  // and whether it is needed.
  int skew_ = 0;
  const char* last_ = nullptr;
  int last_end_ = 0;
  bool has_last_ = false;
};

// Where a warp reads the fragments of an operand in a tile.
template <class T, bool kAlongK>
class Reader {
 public:
  // `line`: the warp's first.
  TREDUCE_DEVICE Reader(const char* shared, int line)
      : shared_(shared), address_(ptx::shared_address(const_cast<char*>(shared))) {
    const int lane = threadIdx.x % 32, slab = line / kDepth<T> * kDepth<T>;
    if (kAlongK) {
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

template <class T, class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT Source a, TREDUCE_GRID_CONSTANT Source b, TREDUCE_GRID_CONSTANT Tiles tiles,
           Result<T>* c, const Result<T>* bias, int64_t m, int64_t n, int depth, int stages) {
#ifdef TREDUCE_SM90A
  using Out = Result<T>;
  using CopiesA = Copies<T, S, S::kTileM, kAAlongK>;
  using CopiesB = Copies<T, S, S::kTileN, kBAlongK>;
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
  const auto copies_of_a = [&] { return CopiesA(a, batch_x * tiles.a[0] + batch_y * tiles.a[1], row); };
  const auto copies_of_b = [&] { return CopiesB(b, batch_x * tiles.b[0] + batch_y * tiles.b[1], column); };
  // Stage s lies at s % stages; behind the ring tiles that are made of stages.
  const ptx::SharedAddress ring = ptx::shared_address(shared);
  const bool shifts_a = CopiesA::is_shifted(a), shifts_b = CopiesB::is_shifted(b);
  const int stage_a = CopiesA::stage_bytes(a), stage_bytes = stage_a + CopiesB::stage_bytes(b);
  const int made_a = min(stages, steps) * stage_bytes, made_b = made_a + (shifts_a ? CopiesA::kBytes : 0);
  const Reader<T, kAAlongK> reader_a(shared + (shifts_a ? made_a : 0), warp_m);
  const Reader<T, kBAlongK> reader_b(shared + (shifts_b ? made_b : stage_a), warp_n);
  const bool has_outputs = row + warp_m < m && column + warp_n < n;

  float acc[kM][kN * 2][4] = {};
  const auto multiply = [&](int stage, int step) {
    uint32_t words_a[kM][4], words_b[kN][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) reader_a.load(words_a[i], shifts_a ? 0 : stage, i, step);
#pragma unroll
    for (int j = 0; j < kN; ++j) reader_b.load(words_b[j], shifts_b ? 0 : stage, j, step);
#pragma unroll
    for (int j = 0; j < kN; ++j) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        ptx::multiply(T{}, acc[i][j * 2], words_a[i], words_b[j][0], words_b[j][2]);
        ptx::multiply(T{}, acc[i][j * 2 + 1], words_a[i], words_b[j][1], words_b[j][3]);
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
    if (threadIdx.x == 0) barriers.init(S::kMultiplyThreads / 32, stages, S::kCopyThreads);
    __syncthreads();
    hopper::RingPosition<kMostStages> position;
    if (threadIdx.x >= S::kFirstCopying) {
      CopiesA copies_a = copies_of_a();
      CopiesB copies_b = copies_of_b();
      ptx::wait_for_launch_before();
      for (int step = 0; step < steps; ++step, position.next(stages)) {
        ptx::mbarrier_wait(barriers.empty + position.stage, position.parity ^ 1);
        const ptx::SharedAddress stage = ring + position.stage * stage_bytes;
        const int k_left = depth - step * kDepth<T>;
        copies_a.start(stage, k_left);
        copies_b.start(stage + stage_a, k_left);
        ptx::mbarrier_arrive_when_copied(ptx::shared_address(barriers.full + position.stage));
      }
      return;
    }
    ptx::wait_for_launch_before();
    for (int step = 0; step < steps; ++step, position.next(stages)) {
      ptx::mbarrier_wait(barriers.full + position.stage, position.parity);
      if (has_outputs) multiply_stage(position.stage * stage_bytes, depth - step * kDepth<T>);
      __syncwarp();
      hopper::release<1>(barriers.empty + position.stage);
    }
  } else {
    CopiesA copies_a = copies_of_a();
    CopiesB copies_b = copies_of_b();
    ptx::wait_for_launch_before();
    // The first stages are filled while nothing is multiplied.
    int reading = 1 - stages, filling = 0;
#pragma unroll 1
    for (int step = 1 - stages; step < steps; ++step) {
      const int stage = reading * stage_bytes;
      if (step >= 0) {
        wait_for_stage(stages);
        __syncthreads();
        if (shifts_a) copies_a.shift(ring + stage, ring + made_a, depth - step * kDepth<T>);
        if (shifts_b) copies_b.shift(ring + stage + stage_a, ring + made_b, depth - step * kDepth<T>);
        if (shifts_a || shifts_b) __syncthreads();
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

inline Source source_of(const Operand& o) {
  const auto [along_k, width] = access_of(o);
  const int piece = width == 16 || is_shifted(width) ? 4 : width == 8 ? 3 : 2;
  const int64_t pitch = (along_k ? o.line_stride : o.depth_stride) * o.element_bytes;
  int64_t last = (o.lines - 1) * o.line_stride + (o.depth - 1) * o.depth_stride;
  for (int d = 0; d < 2; ++d) last += (o.batch_size[d] - 1) * o.batch_stride[d];
  const char* const end = static_cast<const char*>(o.data) + (last + 1) * o.element_bytes;
  const int64_t next_stage = along_k ? int64_t(kRowBytes) : kRowBytes / o.element_bytes * pitch;
  return {o.data, end, pitch, next_stage, static_cast<int>(o.lines), width, piece};
}

template <class S>
Tiles tiles_for(const Operand& a, const Operand& b, const Problem& p) {
  return {Divider(ceil_div(p.n, int64_t(S::kTileN))),
          Divider(ceil_div(p.m, int64_t(S::kTileM))),
          Divider(inner_batches_of(p)),
          {a.batch_stride[0], a.batch_stride[1]},
          {b.batch_stride[0], b.batch_stride[1]}};
}

template <class T, class S, bool kAAlongK, bool kBAlongK>
cudaError_t launch_kernel(const Call& call, const Operand& a, const Operand& b) {
  const Problem& p = call.problem;
  return launch(&kernel<T, S, kAAlongK, kBAlongK>, call.step(-1), source_of(a), source_of(b), tiles_for<S>(a, b, p),
                static_cast<Result<T>*>(call.c), static_cast<const Result<T>*>(call.bias), p.m, p.n,
                static_cast<int>(p.k), call.prepared.stages);
}

template <class T>
cudaError_t launch_type(const Call& call) {
  const Problem& p = call.problem;
  const Operand a = operand_a(p, call.a, sizeof(T)), b = operand_b(p, call.b, sizeof(T));
  const bool along_a = access_of(a).along_k, along_b = access_of(b).along_k;
  return with_shape<kShapeCount>(call, [&](auto index) {
    using S = Tiling<index()>;
    if (along_a) {
      return along_b ? launch_kernel<T, S, true, true>(call, a, b) : launch_kernel<T, S, true, false>(call, a, b);
    }
    return along_b ? launch_kernel<T, S, false, true>(call, a, b) : launch_kernel<T, S, false, false>(call, a, b);
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
