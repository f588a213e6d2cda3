// How the tiles of pipelined come to shared memory: a few copies at a time, between multiplications. A tile has element l of a
// line at l * kRow + line, as in stage.cuh.
#pragma once

#include "../primitives/ptx/copy.cuh"
#include "stage.cuh"

namespace treduce::matmul::pipelined {

// Copies kWidth neighbours: the hardware does it and no thread waits. A copy cannot widen; narrow elements go through a register.
template <int kWidth, class T>
TREDUCE_DEVICE void copy_elements(ptx::SharedAddress to, const T* from) {
  if constexpr (sizeof(T) == sizeof(Acc<T>)) {
    ptx::copy_async<sizeof(T) * kWidth>(to, from);
  } else {
    static_assert(kWidth == 1);
    ptx::store_shared(to, static_cast<Acc<T>>(*from));
  }
}

// This thread's copies of one operand's tile: kCopies of them a step, each of kWidth elements.
template <class T, class C, int kLines, Way kWay>
class Copies {
 public:
  static constexpr int kRow = kLines + kFragment<T>;
  static constexpr int kSize = C::kStep * kRow;

 private:
  static constexpr bool kAlongK = kWay == Way::k;
  static constexpr int kWidth = kWay == Way::lines_vectors ? kFragment<T> : 1;
  // kAcross threads copy what lies side by side in memory; 8 elements along k are a sector of 32 bytes, and 8 by 4 of them,
  // what a warp copies at once, meet all banks of a tile. The others go on where they end, kDown lines (elements) apart.
  static constexpr int kAcross = kAlongK ? 8 : kLines / kWidth;
  static constexpr int kDown = C::kThreads / kAcross;
  static constexpr int kPasses = (kAlongK ? kLines : C::kStep) / kDown;
  static constexpr int kCopiesAPass = kAlongK ? C::kStep / kAcross : 1;
  static constexpr int kPointers = kAlongK ? kPasses : 1;
  static_assert(kAcross * kDown == C::kThreads && kPasses * kDown == (kAlongK ? kLines : C::kStep));

  static constexpr int kCopies = kPasses * kCopiesAPass;

 public:
  TREDUCE_DEVICE explicit Copies(const Lines<T>& lines) {
    const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
    if constexpr (kAlongK) {
      l_ = across;
      to_ = static_cast<int>(sizeof(Acc<T>)) * (across * kRow + down);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        from_[pass] = lines.at(last_of(lines, down + pass * kDown), l_);
      }
    } else {
      l_ = down;
      to_ = static_cast<int>(sizeof(Acc<T>)) * (down * kRow + across * kWidth);
      from_[0] = lines.at(last_of(lines, across * kWidth), l_);
      step_ = lines.step;
      stride_ = kDown * lines.step;
    }
  }

  // Where this thread begins in a tile, in bytes.
  TREDUCE_DEVICE int offset() const { return to_; }

  // The first `head` elements of each line. `to`: where this thread begins in the tile that is written; so also below.
  TREDUCE_DEVICE void copy_head(ptx::SharedAddress to, int head) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int l = l_ + (kAlongK ? i % kCopiesAPass * kAcross : i * kDown);
      if (l < head) start(to, i, kAlongK ? from_[i / kCopiesAPass] : from_[0] + i * stride_);
    }
#pragma unroll
    for (int pass = 0; pass < kPointers; ++pass) from_[pass] += kAlongK ? head : head * step_;
  }

  // Part `part` of kParts of the copies of the next whole step, if there is one. Every step takes all parts, in order.
  template <int kParts>
  TREDUCE_DEVICE void copy_part(ptx::SharedAddress to, int part, bool wanted) {
#pragma unroll
    for (int i = part * kCopies / kParts; i < (part + 1) * kCopies / kParts; ++i) {
      const T*& from = from_[kAlongK ? i / kCopiesAPass : 0];
      if (wanted) start(to, i, from);
      if constexpr (!kAlongK) {
        from += stride_;
      } else if (i % kCopiesAPass == kCopiesAPass - 1) {
        from += C::kStep;
      }
    }
  }

 private:
  // The line, or the last one before the edge.
  TREDUCE_DEVICE static int64_t last_of(const Lines<T>& lines, int line) {
    return line < lines.count ? line : lines.count - kWidth;
  }

  TREDUCE_DEVICE static void start(ptx::SharedAddress to, int i, const T* from) {
    const int l = kAlongK ? i % kCopiesAPass * kAcross : i * kDown;
    const int line = kAlongK ? i / kCopiesAPass * kDown : 0;
    if (kAlongK) from += l;
    to += static_cast<int>(sizeof(Acc<T>)) * (l * kRow + line);
    copy_elements<kWidth>(to, from);
  }

  const T* from_[kPointers];
  int64_t step_, stride_;
  int l_, to_;
};

// The same where kWay is not known when this is compiled: single elements, from copy to copy by steps that are variables. Each
// two copies of a thread are at two places along k: of one line, or where neighbours lie along the lines of its only line.
template <class T, class C, int kLines>
class Copies<T, C, kLines, Way::any> {
 public:
  static constexpr int kRow = kLines + kFragment<T>;
  static constexpr int kSize = C::kStep * kRow;

 private:
  static constexpr int kAcross = 8, kDown = C::kThreads / kAcross;  // where neighbours lie along k
  static constexpr int kDownK = C::kThreads / kLines;               // elsewhere
  static constexpr int kCopies = C::kStep / kDownK;
  static constexpr int kBytes = sizeof(Acc<T>);
  static_assert(kDownK * kLines == C::kThreads && kCopies % 2 == 0 && 2 * kAcross == C::kStep);

 public:
  TREDUCE_DEVICE explicit Copies(const Lines<T>& lines) {
    along_k_ = lines.step == 1;
    l_ = along_k_ ? threadIdx.x % kAcross : threadIdx.x / kLines;
    const int line = along_k_ ? threadIdx.x / kAcross : threadIdx.x % kLines;
    to_ = kBytes * (l_ * kRow + line);
    from_ = lines.at(along_k_ || line < lines.count ? line : lines.count - 1, l_);
    step_ = lines.step;
    hop_ = (along_k_ ? kAcross : kDownK) * lines.step;
    next_hop_ = along_k_ ? kDown * lines.stride - hop_ : hop_;
    pairs_ =
        along_k_ ? static_cast<int>(min((lines.count - line + kDown - 1) / kDown, int64_t(kCopies / 2))) : kCopies / 2;
  }

  TREDUCE_DEVICE int offset() const { return to_; }

  TREDUCE_DEVICE void copy_head(ptx::SharedAddress to, int head) {
    const T* const first = from_;
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const int l = l_ + (along_k_ ? i % 2 * kAcross : i * kDownK);
      if (i / 2 < pairs_ && l < head) copy_elements<1>(to + at_, from_);
      next(i);
    }
    from_ = first + head * step_;
  }

  template <int kParts>
  TREDUCE_DEVICE void copy_part(ptx::SharedAddress to, int part, bool wanted) {
#pragma unroll
    for (int i = part * kCopies / kParts; i < (part + 1) * kCopies / kParts; ++i) {
      if (wanted && i / 2 < pairs_) copy_elements<1>(to + at_, from_);
      next(i);
    }
  }

 private:
  // From copy i to the next, or from the last to the next step's first.
  TREDUCE_DEVICE void next(int i) {
    if (i == kCopies - 1) {
      from_ += C::kStep * step_ - (kCopies / 2 - 1) * (hop_ + next_hop_) - hop_;
      at_ = 0;
    } else if (i % 2 == 0) {
      from_ += hop_;
      at_ += kBytes * kRow * (along_k_ ? kAcross : kDownK);
    } else {
      from_ += next_hop_;
      at_ += kBytes * (along_k_ ? kDown - kAcross * kRow : kDownK * kRow);
    }
  }

  const T* from_;  // of the next copy
  int64_t hop_, next_hop_,
      step_;    // to the second of two copies, to the first of the next two, and to the next place along k
  int at_ = 0;  // the next copy's place in the tile, from this thread's first
  int pairs_;   // that are before the edge: nothing past it is copied
  int l_, to_;
  bool along_k_;
};

}  // namespace treduce::matmul::pipelined
