// How the threads of in_place.cu copy tiles of an operand to shared memory, a stage after another: as it lies (Copies), or where rows of 16
// bits begin at odd elements the aligned chunks of 16 bytes in which they lie, shifted where they have arrived (ShiftedCopies).
#pragma once

#include <climits>
#include <type_traits>

#include "../common/dtypes.h"
#include "../primitives/ptx/copy_part.cuh"
#include "../primitives/ptx/mbarrier.cuh"
#include "../primitives/ptx/opaque.cuh"
#include "../primitives/shared.cuh"
#include "shapes.h"

namespace treduce::matmul::in_place {

// k of a stage; and lines of a row, where lines are contiguous.
template <class T>
constexpr int kDepth = kRowBytes / sizeof(T);

// An operand as threads read it.
struct Source {
  const void* data;
  const char* end;
  int64_t pitch;       // bytes from line to line, or where lines are contiguous from a step of k to the next
  int64_t next_stage;  // bytes
  int lines;
  int width;   // bytes that may be copied at once: 16, 8, 4, or 2
  int piece;   // the logarithm of what a thread copies at once
  bool by_l1;  // whether pieces of 16 bytes pass through the L1, as others do
};

// Of chunks of 16 bytes in a row. Fragments of 16 bits, or along k, are read by ldmatrix, eight rows of a chunk; of 32 bits across k by
// words, two chunks of four rows.
template <class T>
TREDUCE_DEVICE int swizzle(int row, bool along_k) {
  return sizeof(T) == 4 && !along_k ? row % 4 * 2 : row % 8;
}

TREDUCE_DEVICE uint32_t low_bits(int count) { return count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1; }

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

// What of a stage is an operand's: rows of 128 bytes, which are lines, or where lines are contiguous steps of k. They come in units, all
// lines, or slabs of kDepth lines.
template <class T, class S, int kLines, bool kAlongK>
struct Rows {
  static constexpr int kSize = sizeof(T);
  static constexpr int kCount = rows_of(kLines, kSize, kAlongK);
  static constexpr int kOfUnit = kAlongK ? kCount : kDepth<T>, kUnits = kCount / kOfUnit;
  static constexpr int kThreads = S::kCopyThreads;

  TREDUCE_DEVICE static int thread() { return static_cast<int>(threadIdx.x % kThreads); }
  // Of a tile that begins at `line`.
  TREDUCE_DEVICE static const char* first(const Source& source, int64_t matrix, int64_t line) {
    const int64_t elements = matrix + (kAlongK ? 0 : line), rows = kAlongK ? line : 0;
    return static_cast<const char*>(source.data) + elements * kSize + rows * source.pitch;
  }
  TREDUCE_DEVICE static int lines(const Source& source, int64_t line) {
    return static_cast<int>(min(source.lines - line, int64_t(kLines)));
  }
  // Bytes from unit to unit.
  TREDUCE_DEVICE static int64_t next_unit(const Source& source) {
    return kAlongK ? kOfUnit * source.pitch : int64_t(kRowBytes);
  }
  // Of k so many steps: how many the last stage has.
  TREDUCE_DEVICE static int steps_of_last(int depth) { return (depth - 1) % kDepth<T> + 1; }
};

// A thread's copies, in pieces of as many bytes as the operand's alignment allows: the same place of every 2^rows_bits-th row. What is past
// the end of k becomes zero.
template <class T, class S, int kLines, bool kAlongK>
class Copies {
  using Of = Rows<T, S, kLines, kAlongK>;
  static constexpr int kThreadBits = S::kCopyThreads == 256 ? 8 : 7, kRowBits = 7;
  static_assert(Of::kCount <= S::kCopyThreads && S::kCopyThreads == 1 << kThreadBits && kRowBytes == 1 << kRowBits);

 public:
  TREDUCE_DEVICE Copies(const Source& source, int64_t matrix, int64_t line) : source_(source) {
    const int lines = Of::lines(source, line);
    from_ = Of::first(source, matrix, line) + row() * source.pitch + inner();
    hop_ = (int64_t(1) << rows_bits()) * source.pitch;
    to_ = row() * kRowBytes + (inner() / kChunk ^ swizzle<T>(row(), kAlongK)) * kChunk + inner() % kChunk;
    // What as many rows as are copied at once exchange on the swizzle.
    turn_ = rows_bits() < 3 && (sizeof(T) == 2 || kAlongK) ? 64 : 0;
    if (kAlongK) {
      exists_ = low_bits(pieces_of(lines));
    } else {
      const int count = Of::kOfUnit >> rows_bits();
#pragma unroll
      for (int unit = 0; unit < Of::kUnits; ++unit) {
        if (inner() + unit * kRowBytes < lines * Of::kSize) exists_ |= low_bits(count) << unit * count;
      }
    }
  }

  // Starts the copies of the next stage, which has k_left steps of k.
  TREDUCE_DEVICE void start(ptx::SharedAddress stage, int k_left) {
    const uint32_t exists = k_left >= kDepth<T> ? exists_ : exists_ & in_k(k_left);
    with_width([&](auto width, auto by_l1) { start_by<width(), by_l1()>(stage, exists); });
  }

  // Fills stages from `place` on, one after another, as the one of the warps that do nothing else.
  TREDUCE_DEVICE void fill(const Place& place, int depth) {
    with_width([&](auto width, auto by_l1) { fill_by<width(), by_l1()>(place, depth); });
  }

 private:
  template <class Do>
  TREDUCE_DEVICE void with_width(Do&& with) const {
    const std::integral_constant<int, 16> of_16;
    switch (source_.width) {
      case 16: return source_.by_l1 ? with(of_16, std::true_type{}) : with(of_16, std::false_type{});
      case 8: return with(std::integral_constant<int, 8>{}, std::true_type{});
      default: return with(std::integral_constant<int, 4>{}, std::true_type{});
    }
  }

  // This thread's place: a row, and bytes in it.
  TREDUCE_DEVICE int row() const { return (Of::thread() << source_.piece) / kRowBytes; }
  TREDUCE_DEVICE int inner() const { return Of::thread() << source_.piece & (kRowBytes - 1); }
  TREDUCE_DEVICE int rows_bits() const { return kThreadBits + source_.piece - kRowBits; }
  // How many of this thread's rows are among so many.
  TREDUCE_DEVICE int pieces_of(int rows) const { return (rows - row() + (1 << rows_bits()) - 1) >> rows_bits(); }

  // The pieces that lie in the first k_left steps of a stage.
  TREDUCE_DEVICE uint32_t in_k(int k_left) const {
    if (kAlongK) return inner() < k_left * Of::kSize ? ~0u : 0;
    const int count = Of::kOfUnit >> rows_bits();
    const uint32_t of_unit = low_bits(pieces_of(k_left));
    uint32_t all = 0;
#pragma unroll
    for (int unit = 0; unit < Of::kUnits; ++unit) all |= of_unit << unit * count;
    return all;
  }

  template <int kWidth, bool kByL1>
  TREDUCE_DEVICE void fill_by(Place place, int depth) {
    const uint32_t exists_at_last = exists_ & in_k(Of::steps_of_last(depth));
    for (int left = depth; left > 0; left -= kDepth<T>, place.next()) {
      ptx::mbarrier_wait(place.empty(), place.parity ^ 1);
      start_by<kWidth, kByL1>(place.stage, left > kDepth<T> ? exists_ : exists_at_last);
      ptx::mbarrier_arrive_when_copied(place.full);
    }
  }

  template <int kWidth, bool kByL1>
  TREDUCE_DEVICE void start_by(ptx::SharedAddress stage, uint32_t exists) {
    constexpr int kAtOnce = S::kCopyThreads * kWidth / kRowBytes, kPieces = Of::kOfUnit / kAtOnce;  // of a unit
    static_assert(kAtOnce % 4 == 0 && kPieces * kAtOnce == Of::kOfUnit && Of::kUnits * kPieces <= 32);
    const char* from = from_;
#pragma unroll
    for (int piece = 0; piece < Of::kUnits * kPieces; ++piece) {
      if (piece % kPieces == 0) from = ptx::opaque(from_ + piece / kPieces * Of::next_unit(source_));
      const int to = (piece % 2 == 0 ? to_ : to_ ^ turn_) + piece * kAtOnce * kRowBytes;
      ptx::copy_async_or_zero<kWidth, kByL1>(stage + to, from, (exists >> piece & 1) != 0);
      from = ptx::opaque(from + hop_);  // else the compiler keeps a register for each address
    }
    from_ += source_.next_stage;
  }

  const Source& source_;
  const char* from_;
  int64_t hop_;
  uint32_t exists_ = 0;  // a bit for each piece of a whole stage: not past the last line
  int to_, turn_;
};

// The same of rows of 16 bits that begin at odd elements. Eight lanes have a row. The four rows of a warp are eight apart, so all begin
// equally far behind a chunk; of 32 rows it has every eighth, or where warps are four every fourth, in two passes. Chunks arrive where the
// row will be, the last ones behind all rows.
template <class T, class S, int kLines, bool kAlongK>
class ShiftedCopies {
  using Of = Rows<T, S, kLines, kAlongK>;
  static constexpr int kWarps = S::kCopyThreads / 32, kChunks = kRowBytes / kChunk;
  static constexpr int kPasses = Of::kCount * kChunks / S::kCopyThreads, kLastChunks = Of::kCount * kRowBytes;
  static_assert(sizeof(T) == 2 && (kWarps == 4 || kWarps == 8));

 public:
  TREDUCE_DEVICE ShiftedCopies(const Source& source, int64_t matrix, int64_t line) : source_(source) {
    const int64_t pitch = source.pitch;
    const int lines = Of::lines(source, line);
    const char* const first = Of::first(source, matrix, line);
    const auto begin_of = [&](int row) {
      return first + row % Of::kOfUnit * pitch + (kAlongK ? 0 : row / Of::kOfUnit * kRowBytes);
    };
    const auto exists = [&](int row, int bytes) {
      return row < Of::kCount && (kAlongK ? row < lines : row / Of::kOfUnit * kRowBytes + bytes < lines * Of::kSize);
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
    const int pass = Of::thread() % 32 / 4, q = pass * kWarps + Of::thread() / 32;
    const int last = pass < kPasses ? q / 8 * 32 + Of::thread() % 4 * 8 + q % 8 : Of::kCount;
    const int skew = skew_of(begin_of(last)), bytes = kRowBytes - skew;  // in the row before its last chunk
    last_ = begin_of(last) + bytes;
    to_last_ = kLastChunks + last * kChunk;
    last_k_ = skew == 0 || !exists(last, bytes) ? INT_MAX : kAlongK ? bytes / Of::kSize : last % Of::kOfUnit;
    // Chunks that begin up to there lie in the operand.
    safe_ = source_.end - kChunk - max(furthest + kChunk, static_cast<int64_t>(last_ - from_));
  }

  // Starts the copies of the next stage, which has k_left steps of k.
  TREDUCE_DEVICE void start(ptx::SharedAddress stage, int k_left) {
    start_chunks(stage, k_left >= kDepth<T> ? exists_ : exists_ & in_k(k_left), k_left);
  }

  // Shifts the rows of a stage that has arrived, and has k_left steps of k, to where they are read; what is past these becomes zero.
  // A warp shifts what it has copied.
  TREDUCE_DEVICE void shift(ptx::SharedAddress stage, int k_left) const {
    if ((skew_[0] | skew_[1]) == 0 && k_left >= kDepth<T>) return;  // the same in all lanes
    constexpr int kWords = kChunk / 4, kTogether = kPasses < 2 ? kPasses : 2;
    const int left = k_left * Of::kSize - chunk() * kChunk;  // bytes
    const ptx::SharedAddress here = stage + to_, here_odd = stage + (to_ ^ kOddChunks);
    const ptx::SharedAddress next = stage + next_, next_odd = stage + (has_last_chunk() ? next_ : next_ ^ kOddChunks);
    const int hop = has_last_chunk() ? kChunk : kRowBytes;
    uint32_t mask[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) mask[w] = ~0u;
    if (kAlongK && k_left < kDepth<T>) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) mask[w] = low_bits((left - w * 4) * 8);
    }
    __syncwarp();  // all lanes' copies have arrived
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
          if (!kAlongK && (first_row() + rows) % Of::kOfUnit >= k_left) shifted[w] = 0;
        }
        ptx::store_shared((is_odd(first + i) ? here_odd : here) + rows * kRowBytes,
                          make_uint4(shifted[0], shifted[1], shifted[2], shifted[3]));
      }
    }
  }

  // Fills stages from `place` on, one after another, as the one of the warps that do nothing else.
  TREDUCE_DEVICE void fill(const Place& place, int depth) {
    constexpr int kManyStages = 5;
    if (place.ring_bytes < kManyStages * place.stage_bytes) return fill_while<1>(place, depth);
    fill_while<kManyStages - 2>(place, depth);
  }

 private:
  // Rows from a thread's first on.
  TREDUCE_HOST_DEVICE static constexpr int rows_on(int pass) { return pass * kWarps / 8 * 32 + pass * kWarps % 8; }
  TREDUCE_HOST_DEVICE static constexpr bool is_odd(int pass) { return pass * kWarps % 8 != 0; }
  static constexpr int kOddChunks = kWarps * kChunk;  // what as many rows on the swizzle exchanges
  TREDUCE_DEVICE static int first_row() { return Of::thread() % 32 / kChunks * 8 + Of::thread() / 32; }
  TREDUCE_DEVICE static int chunk() { return Of::thread() % kChunks; }
  TREDUCE_DEVICE static bool has_last_chunk() { return chunk() == kChunks - 1; }
  TREDUCE_DEVICE static int skew_of(const char* p) { return static_cast<int>(reinterpret_cast<uint64_t>(p) % kChunk); }

  // The chunks that begin in the first k_left steps of a stage, in which they may end.
  TREDUCE_DEVICE uint32_t in_k(int k_left) const {
    if (kAlongK) return chunk() * kChunk < k_left * Of::kSize + kChunk ? ~0u : 0;
    uint32_t all = 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if ((first_row() + rows_on(pass)) % Of::kOfUnit < k_left) all |= 1u << pass;
    }
    return all;
  }

  // kAhead: stages that arrive while one is shifted.
  template <int kAhead>
  TREDUCE_DEVICE void fill_while(Place place, int depth) {
    const uint32_t exists_at_last = exists_ & in_k(Of::steps_of_last(depth));
    Place arriving = place;
    for (int left = depth; left > -kAhead * kDepth<T>; left -= kDepth<T>) {
      if (left > 0) {
        ptx::mbarrier_wait(place.empty(), place.parity ^ 1);
        start_chunks(place.stage, left > kDepth<T> ? exists_ : exists_at_last, left);
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

  TREDUCE_DEVICE void start_chunks(ptx::SharedAddress stage, uint32_t exists, int k_left) {
    if (from_ <= safe_ && source_.by_l1) {
      start_each(stage, exists, k_left,
                 [](ptx::SharedAddress to, const char* from) { ptx::copy_async<kChunk, true>(to, from); });
    } else if (from_ <= safe_) {
      start_each(stage, exists, k_left,
                 [](ptx::SharedAddress to, const char* from) { ptx::copy_async<kChunk>(to, from); });
    } else {
      start_each(stage, exists, k_left, [&](ptx::SharedAddress to, const char* from) { start_part(to, from); });
    }
    from_ += source_.next_stage;
    last_ += source_.next_stage;
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

  template <class Start>
  TREDUCE_DEVICE void start_each(ptx::SharedAddress stage, uint32_t exists, int k_left, Start&& start) const {
    constexpr int kHops = Of::kOfUnit / 32;  // of a unit
    constexpr int kInHop = 8 / kWarps;       // passes
    const char* from = from_;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int hop = pass / kInHop;
      if (pass > 0 && !is_odd(pass)) {
        from = ptx::opaque(hop % kHops == 0 ? from_ + hop / kHops * Of::next_unit(source_) : from + hop_);
      }
      const ptx::SharedAddress to = stage + (is_odd(pass) ? to_ ^ kOddChunks : to_) + rows_on(pass) * kRowBytes;
      if ((exists >> pass & 1) != 0) start(to, is_odd(pass) ? from + odd_ : from);
    }
    if (last_k_ < k_left) start(stage + to_last_, last_);
  }

  const Source& source_;
  const char* from_;
  int64_t hop_;
  uint32_t exists_ = 0;       // a bit for each pass of a whole stage: not past the last line
  int to_, next_;             // where this thread's chunk lies in shared memory, and the one behind it
  int skew_[2];               // bytes from a chunk's begin to a row's; of even and odd passes
  int64_t odd_;               // bytes from an even pass to the odd one
  const char *last_, *safe_;  // the last chunk of a row
  int to_last_, last_k_;      // where it goes, and the steps of k that do not need it
};

template <bool kShifts, class T, class S, int kLines, bool kAlongK>
using CopiesOf = std::conditional_t<kShifts, ShiftedCopies<T, S, kLines, kAlongK>, Copies<T, S, kLines, kAlongK>>;

// Calls with(Type<Copies>{}) or with(Type<ShiftedCopies>{}).
template <class T, class S, int kLines, bool kAlongK, class Do>
TREDUCE_DEVICE void with_copies(bool shifts, Do&& with) {
  if constexpr (sizeof(T) == 2) {
    if (shifts) return with(Type<ShiftedCopies<T, S, kLines, kAlongK>>{});
  }
  with(Type<Copies<T, S, kLines, kAlongK>>{});
}
// Arrivals that fill a stage, as far as it is the operand's: of warps that shift, else of threads.
template <class S>
TREDUCE_DEVICE int arrivals(bool shifts) {
  return shifts ? S::kCopyThreads / 32 : S::kCopyThreads;
}

}  // namespace treduce::matmul::in_place
