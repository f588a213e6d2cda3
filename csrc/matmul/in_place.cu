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

#include <climits>

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
  static constexpr int kCopyThreads = kApart ? kShape.copy_warps / 2 * 32 : kThreads;  // of an operand
  static constexpr int kMultiplyThreads = kApart ? kThreads - 2 * kCopyThreads : kThreads;
  static_assert(!kApart || kMultiplyThreads % kCopyThreads == 0);
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

// A stage of a ring, and the barrier that says it is full: addresses in shared memory.
struct Place {
  uint32_t stage, full;
  int stage_bytes, ring_bytes;
  uint32_t begin, end;  // of the barriers
  unsigned parity = 0;

  TREDUCE_DEVICE uint32_t empty() const { return full + kMostStages * 8; }  // the barrier that says it is
  TREDUCE_DEVICE void next() {
    stage += stage_bytes;
    full += 8;
    if (full != end) return;
    stage -= ring_bytes;
    full = begin;
    parity ^= 1;
  }
};

TREDUCE_DEVICE uint32_t low_bits(int count) { return count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1; }

// A thread's copies of an operand's tiles, a stage after another. Rows of shared memory are 128 bytes; of a stage they come in units of
// kDepth, each a slab of kDepth lines where lines are contiguous. What is past the end of k becomes zero. Of a stage a thread has pieces
// of every at_once-th row.
template <class T, class S, int kLines, bool kAlongK>
class Copies {
  static constexpr int kRows = rows_of(kLines, sizeof(T), kAlongK);
  static constexpr int kUnitRows = kAlongK ? kRows : kDepth<T>, kUnits = kRows / kUnitRows;
  static constexpr int kThreadBits = S::kCopyThreads == 256 ? 8 : 7, kRowBits = 7;
  static_assert(kRows <= S::kCopyThreads && S::kCopyThreads == 1 << kThreadBits && kRowBytes == 1 << kRowBits);

 public:
  TREDUCE_DEVICE Copies(const Source& source, int64_t matrix, int64_t line) : source_(source) {
    constexpr int kSize = sizeof(T);
    const int lines = static_cast<int>(min(source.lines - line, int64_t(kLines))), at_once = rows_at_once();
    const char* const first = static_cast<const char*>(source.data) + (matrix + (kAlongK ? 0 : line)) * kSize +
                              (kAlongK ? line : 0) * source.pitch;
    if (is_shifted()) {
      shift_from(first, lines);
      return;
    }
    from_ = first + row() * source.pitch + inner();
    hop_ = at_once * source.pitch;
    to_ = row() * kRowBytes + (inner() / 16 ^ swizzle<T>(row(), kAlongK)) * 16 + inner() % 16;
    // What at_once rows on the swizzle exchanges.
    turn_ = at_once % 8 != 0 && (sizeof(T) == 2 || kAlongK) ? 64 : 0;
    if (kAlongK) {
      exists_ = low_bits(pieces_of(lines));
    } else {
      const int count = kUnitRows >> rows_bits();
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        if (inner() + unit * kRowBytes < lines * kSize) exists_ |= low_bits(count) << unit * count;
      }
    }
  }

  // Rows of 32 bits never are.
  TREDUCE_DEVICE static bool is_shifted(const Source& source) {
    return sizeof(T) == 2 && in_place::is_shifted(source.width);
  }
  TREDUCE_DEVICE bool is_shifted() const { return is_shifted(source_); }
  TREDUCE_DEVICE static int stage_bytes(const Source& source) { return kRows * row_bytes(is_shifted(source)); }

  // Starts the copies of the next stage, which has k_left steps of k.
  TREDUCE_DEVICE void start(ptx::SharedAddress stage, int k_left) {
    const bool whole = k_left >= kDepth<T>;
    if (is_shifted()) {
      start_chunks(stage, whole ? exists_ : exists_ & chunks_in_k(k_left), k_left);
      from_ += source_.next_stage;
      last_ += source_.next_stage;
      return;
    }
    const uint32_t exists = whole ? exists_ : exists_ & in_k(k_left);
    if (source_.width == 16) {
      start_by<16>(stage, exists);
    } else if (source_.width == 8) {
      start_by<8>(stage, exists);
    } else if (source_.width == 4) {
      start_by<4>(stage, exists);
    }
    from_ += source_.next_stage;
  }

  // Fills stages from `place` on, one after another, as the one of the warps that do nothing else.
  TREDUCE_DEVICE void fill(const Place& place, int depth) {
    switch (source_.width) {
      case 16: return fill_by<16>(place, depth);
      case 8: return fill_by<8>(place, depth);
      case 4: return fill_by<4>(place, depth);
      default: break;
    }
    if constexpr (sizeof(T) == 2) {
      constexpr int kManyStages = 5;
      if (place.ring_bytes < kManyStages * place.stage_bytes) return fill_shifted<1>(place, depth);
      fill_shifted<kManyStages - 2>(place, depth);
    }
  }
  // Arrivals that fill a stage: of warps that shift, else of threads.
  TREDUCE_DEVICE static int arrivals(const Source& source) {
    return is_shifted(source) ? S::kCopyThreads / 32 : S::kCopyThreads;
  }

  // Shifts the rows of a stage that has arrived, and has k_left steps of k, to where they are read; what is past these becomes zero.
  // A warp shifts what it has copied.
  TREDUCE_DEVICE void shift(ptx::SharedAddress stage, int k_left) const {
    __syncwarp();
    shift_rows(stage, k_left);
  }

 private:
  TREDUCE_DEVICE static unsigned thread() { return threadIdx.x % S::kCopyThreads; }
  // This thread's place: a row, and bytes in it.
  TREDUCE_DEVICE int row() const { return (thread() << source_.piece) / kRowBytes; }
  TREDUCE_DEVICE int inner() const { return thread() << source_.piece & (kRowBytes - 1); }
  TREDUCE_DEVICE int rows_at_once() const { return 1 << rows_bits(); }
  template <int kWidth>
  static constexpr int rows_at_once() {
    return S::kCopyThreads * kWidth / kRowBytes;
  }
  TREDUCE_DEVICE int rows_bits() const { return kThreadBits + source_.piece - kRowBits; }
  // How many of every at_once-th row from this thread's first on are among so many.
  TREDUCE_DEVICE int pieces_of(int rows) const { return (rows - row() + rows_at_once() - 1) >> rows_bits(); }
  TREDUCE_DEVICE int64_t next_unit() const { return kAlongK ? kUnitRows * source_.pitch : int64_t(kRowBytes); }

  // The pieces that lie in the first k_left steps of a stage.
  TREDUCE_DEVICE uint32_t in_k(int k_left) const {
    constexpr int kSize = sizeof(T);
    if (kAlongK) return inner() < k_left * kSize ? ~0u : 0;
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
    constexpr int kAtOnce = rows_at_once<kWidth>(), kCount = kUnitRows / kAtOnce;
    static_assert(kAtOnce % 4 == 0 && kCount * kAtOnce == kUnitRows && kUnits * kCount <= 32);
#pragma unroll
    for (int piece = 0; piece < kUnits * kCount; ++piece) {
      visit(piece, piece * kAtOnce, (piece % 2 == 0 ? to_ : to_ ^ turn_) + piece * kAtOnce * kRowBytes);
    }
  }

  TREDUCE_DEVICE static int depth_of_last(int depth) { return (depth - 1) % kDepth<T> + 1; }
  template <int kWidth>
  TREDUCE_DEVICE void fill_by(Place place, int depth) {
    const uint32_t exists_at_last = exists_ & in_k(depth_of_last(depth));
    const int64_t next_stage = source_.next_stage;
    for (int left = depth; left > 0; left -= kDepth<T>, place.next()) {
      ptx::mbarrier_wait(place.empty(), place.parity ^ 1);
      start_by<kWidth>(place.stage, left > kDepth<T> ? exists_ : exists_at_last);
      from_ += next_stage;
      ptx::mbarrier_arrive_when_copied(place.full);
    }
  }
  // kAhead: stages that arrive while one is shifted.
  template <int kAhead>
  TREDUCE_DEVICE void fill_shifted(Place place, int depth) {
    const uint32_t exists_at_last = exists_ & chunks_in_k(depth_of_last(depth));
    const int64_t next_stage = source_.next_stage;
    Place arriving = place;
    for (int left = depth; left > -kAhead * kDepth<T>; left -= kDepth<T>) {
      if (left > 0) {
        ptx::mbarrier_wait(place.empty(), place.parity ^ 1);
        start_chunks(place.stage, left > kDepth<T> ? exists_ : exists_at_last, left);
        from_ += next_stage;
        last_ += next_stage;
        place.next();
      }
      ptx::commit_copies();
      const int k_left = left + kAhead * kDepth<T>;
      if (k_left > depth) continue;
      ptx::wait_copies<kAhead>();
      shift(arriving.stage, k_left);
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(arriving.full);
      arriving.next();
    }
  }

  template <int kWidth>
  TREDUCE_DEVICE void start_by(ptx::SharedAddress stage, uint32_t exists) const {
    constexpr int kCount = kUnitRows / rows_at_once<kWidth>();
    const char* from = from_;
    for_each_piece<kWidth>([&](int piece, int, int to) {
      if (piece % kCount == 0) from = ptx::opaque(from_ + piece / kCount * next_unit());
      ptx::copy_async_or_zero<kWidth>(stage + to, from, (exists >> piece & 1) != 0);
      from = ptx::opaque(from + hop_);  // else the compiler keeps a register for each address
    });
  }

  // ---- rows that are shifted ----
  // Eight lanes have a row. The four rows of a warp are eight apart, so all begin equally far behind a chunk; of 32 rows it has every
  // eighth, or where warps are four every fourth, in two passes. Chunks arrive where the row will be, the last ones behind all rows.
  static constexpr int kWarps = S::kCopyThreads / 32, kChunks = kRowBytes / kChunk;
  static constexpr int kPasses = kRows * kChunks / S::kCopyThreads, kLastChunks = kRows * kRowBytes;
  static_assert(kWarps == 4 || kWarps == 8);
  // Rows from a thread's first on.
  TREDUCE_HOST_DEVICE static constexpr int rows_on(int pass) { return pass * kWarps / 8 * 32 + pass * kWarps % 8; }
  TREDUCE_HOST_DEVICE static constexpr bool is_odd(int pass) { return pass * kWarps % 8 != 0; }
  static constexpr int kOddChunks = kWarps * kChunk;  // what as many rows on the swizzle exchanges
  TREDUCE_DEVICE static int first_row() { return static_cast<int>(thread() % 32 / kChunks * 8 + thread() / 32); }
  TREDUCE_DEVICE static int chunk() { return static_cast<int>(thread() % kChunks); }
  TREDUCE_DEVICE static bool has_last_chunk() { return chunk() == kChunks - 1; }
  TREDUCE_DEVICE static int skew_of(const char* p) { return static_cast<int>(reinterpret_cast<uint64_t>(p) % kChunk); }

  // first: the operand's first row.
  TREDUCE_DEVICE void shift_from(const char* first, int lines) {
    constexpr int kSize = sizeof(T);
    const int64_t pitch = source_.pitch;
    const auto begin_of = [&](int row) {
      return first + row % kUnitRows * pitch + (kAlongK ? 0 : row / kUnitRows * kRowBytes);
    };
    const auto exists = [&](int row, int bytes) {
      return row < kRows && (kAlongK ? row < lines : row / kUnitRows * kRowBytes + bytes < lines * kSize);
    };
    const char* const begin = begin_of(first_row());
    skew_[0] = skew_of(begin);
    skew_[1] = skew_of(begin + kWarps * pitch);
    from_ = begin - skew_[0] + chunk() * kChunk;
    odd_ = kWarps * pitch + skew_[0] - skew_[1];
    hop_ = 32 * pitch;
    to_ = first_row() * kRowBytes + (chunk() ^ first_row() % 8) * kChunk;
    next_ = has_last_chunk() ? kLastChunks + first_row() * kChunk
                             : first_row() * kRowBytes + (chunk() + 1 ^ first_row() % 8) * kChunk;
    int64_t furthest = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (!exists(first_row() + rows_on(pass), chunk() * kChunk - skew_[is_odd(pass)])) continue;
      exists_ |= 1u << pass;
      furthest = begin_of(first_row() + rows_on(pass)) - begin;
    }
    // The warp's rows, one a lane.
    const int pass = thread() % 32 / 4, q = pass * kWarps + thread() / 32;
    const int last = pass < kPasses ? q / 8 * 32 + thread() % 4 * 8 + q % 8 : kRows;
    const int skew = skew_of(begin_of(last)), bytes = kRowBytes - skew;  // in the row before its last chunk
    last_ = begin_of(last) + bytes;
    to_last_ = kLastChunks + last * kChunk;
    last_k_ = skew == 0 || !exists(last, bytes) ? INT_MAX : kAlongK ? bytes / kSize : last % kUnitRows;
    // Chunks that begin up to there lie in the operand.
    safe_ = source_.end - kChunk - max(furthest + kChunk, static_cast<int64_t>(last_ - from_));
  }

  TREDUCE_DEVICE uint32_t chunks_in_k(int k_left) const {
    if (kAlongK) return chunk() * kChunk < k_left * static_cast<int>(sizeof(T)) + kChunk ? ~0u : 0;
    uint32_t all = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if ((first_row() + rows_on(pass)) % kUnitRows < k_left) all |= 1u << pass;
    }
    return all;
  }

  TREDUCE_DEVICE void start_chunks(ptx::SharedAddress stage, uint32_t exists, int k_left) const {
    constexpr int kHops = kUnitRows / 32;  // of a unit
    constexpr int kInHop = 8 / kWarps;     // passes
    const auto place_of = [&](int pass) {
      return stage + (is_odd(pass) ? to_ ^ kOddChunks : to_) + rows_on(pass) * kRowBytes;
    };
    const bool wants_last = last_k_ < k_left;
    if (from_ > safe_) {
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        const int hop = pass / kInHop;
        if ((exists >> pass & 1) == 0) continue;
        start_part(place_of(pass), from_ + hop / kHops * next_unit() + hop % kHops * hop_ + (is_odd(pass) ? odd_ : 0));
      }
      if (wants_last) start_part(stage + to_last_, last_);
      return;
    }
    const char* from = from_;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int hop = pass / kInHop;
      if (pass > 0 && !is_odd(pass)) {
        from = ptx::opaque(hop % kHops == 0 ? from_ + hop / kHops * next_unit() : from + hop_);
      }
      if ((exists >> pass & 1) != 0) ptx::copy_async<kChunk>(place_of(pass), is_odd(pass) ? from + odd_ : from);
    }
    if (wants_last) ptx::copy_async<kChunk>(stage + to_last_, last_);
  }

  TREDUCE_DEVICE void shift_rows(ptx::SharedAddress stage, int k_left) const {
    constexpr int kWords = kChunk / 4, kTogether = kPasses < 2 ? kPasses : 2;
    const int left = k_left * static_cast<int>(sizeof(T)) - chunk() * kChunk;  // bytes
    const ptx::SharedAddress here = stage + to_, here_odd = stage + (to_ ^ kOddChunks);
    const ptx::SharedAddress next = stage + next_, next_odd = stage + (has_last_chunk() ? next_ : next_ ^ kOddChunks);
    const int hop = has_last_chunk() ? kChunk : kRowBytes;
    const bool whole = k_left >= kDepth<T>;
    uint32_t mask[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) mask[w] = ~0u;
    if (kAlongK && !whole) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) mask[w] = low_bits((left - w * 4) * 8);
    }
#pragma unroll
    for (int first = 0; first < kPasses; first += kTogether) {
      uint4 low[kTogether], high[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int rows = rows_on(first + i);
        low[i] = ptx::load_shared<uint4>((is_odd(first + i) ? here_odd : here) + rows * kRowBytes);
        high[i] = ptx::load_shared<uint4>((is_odd(first + i) ? next_odd : next) + rows * hop);
      }
      __syncwarp();  // all lanes have read
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int rows = rows_on(first + i), skew = skew_[is_odd(first + i)];
        uint32_t words[kWords * 2] = {low[i].x,  low[i].y,  low[i].z,  low[i].w,
                                      high[i].x, high[i].y, high[i].z, high[i].w};
#pragma unroll
        for (int distance = 2; distance > 0; distance /= 2) {
#pragma unroll
          for (int w = 0; w < kWords + distance; ++w) {
            words[w] = (skew & distance * 4) != 0 ? words[w + distance] : words[w];
          }
        }
        uint32_t shifted[kWords];
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          shifted[w] = __funnelshift_r(words[w], words[w + 1], skew % 4 * 8);
          if (kAlongK) shifted[w] &= mask[w];
          if (!kAlongK && (first_row() + rows) % kUnitRows >= k_left) shifted[w] = 0;
        }
        ptx::store_shared((is_odd(first + i) ? here_odd : here) + rows * kRowBytes,
                          make_uint4(shifted[0], shifted[1], shifted[2], shifted[3]));
      }
    }
  }

  // A chunk as far as the operand goes: what is behind may be no memory.
  TREDUCE_DEVICE void start_part(ptx::SharedAddress to, const char* from) const {
    if (from + kChunk <= source_.end) {
      ptx::copy_async<kChunk>(to, from);
      return;
    }
#pragma unroll 1
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
  // Of rows that are shifted: bytes from a chunk's begin to a row's, and from an even pass to the odd one; where the next chunk lies in
  // shared memory; the last chunk of a row, where it goes, and the steps of k that do not need it.
  int skew_[2] = {};
  int64_t odd_ = 0;
  int next_ = 0;
  const char *last_ = nullptr, *safe_ = nullptr;
  int to_last_ = 0, last_k_ = 0;
};

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
  // Stage s lies at s % stages.
  const ptx::SharedAddress ring = ptx::shared_address(shared);
  const bool shifts_a = CopiesA::is_shifted(a), shifts_b = CopiesB::is_shifted(b);
  const int stage_a = CopiesA::stage_bytes(a), stage_bytes = stage_a + CopiesB::stage_bytes(b);
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
      barriers.init(S::kMultiplyThreads / 32, stages, CopiesA::arrivals(a) + CopiesB::arrivals(b));
    }
    __syncthreads();
    const uint32_t full = ptx::shared_address(barriers.full);
    Place place{ring, full, stage_bytes, stages * stage_bytes, full, full + stages * 8};
    if (threadIdx.x >= S::kMultiplyThreads) {
      if (threadIdx.x < S::kMultiplyThreads + S::kCopyThreads) {
        CopiesA copies = copies_of_a();
        ptx::wait_for_launch_before();
        copies.fill(place, depth);
      } else {
        CopiesB copies = copies_of_b();
        ptx::wait_for_launch_before();
        place.stage += stage_a;
        copies.fill(place, depth);
      }
      return;
    }
    ptx::wait_for_launch_before();
    const auto wait = [&] { ptx::mbarrier_wait(place.full, place.parity); };
    // An arrival overtakes loads that nothing waits for. So its address depends on what they lead to: of these bits none counts.
    const int no_bits = depth >> 31;
    const auto release = [&] {
      int sums = 0;
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kN * 2; ++j) sums |= __float_as_int(acc[i][j][0]);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(place.empty() + (sums & no_bits));
      place.next();
    };
    if (!has_outputs) {
      for (int step = 0; step < steps; ++step, release()) wait();
    } else {
      for (int step = 0; step < steps; ++step, release()) {
        wait();
        multiply_stage(place.stage - ring, depth - step * kDepth<T>);
      }
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
        if (shifts_a) copies_a.shift(ring + stage, depth - step * kDepth<T>);
        if (shifts_b) copies_b.shift(ring + stage + stage_a, depth - step * kDepth<T>);
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
