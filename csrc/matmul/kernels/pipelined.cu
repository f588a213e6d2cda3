// Idea: copy and multiply at the same time. The hardware copies the tiles of the next steps to shared memory while this one
// is multiplied, and the factors of the next place along k come to registers while those of this one are multiplied.
//
// After:   warp_tiled; the same multiply-adds in the same order, hence the same bits.
// Mapping: a ring of kStages tiles of each operand. At step s the threads ask for step s + kStages - 1, a few copies between
//          the multiply-adds of each place; one barrier a step, which says both that the next tile is there and that the
//          oldest may be overwritten. The narrow step, where kStep does not divide k, comes first: the loop knows whole steps
//          only and has no conditions in it. Threads past an edge copy its last line again, for outputs that nobody stores.
//          A copy can move 16 bytes of neighbouring lines, but only one element where neighbours lie along k, because the
//          tile is transposed. Tiles of C are taken in groups of rows, so that those at work at once share more of A and B.
// Bound:   the multiply-adds: 128 for 6 shared-memory loads and a copy at times, in the largest tiles. They want an output
//          of several thousand each way; smaller tiles keep more multiprocessors busy where it is smaller.
// Next:    wmma multiplies on tensor cores.
// Source:  NVIDIA, CUTLASS documentation: Efficient GEMM in CUDA; Scott Gray, SGEMM (2014), for the order of lanes.
#include "../../primitives/ptx/copy.cuh"
#include "../../primitives/shared.cuh"
#include "../outputs.cuh"

namespace treduce::matmul::pipelined {

// Tiles of one of the shapes of shapes.h, on kWarpsM x kWarpsN_ warps.
template <class T, Index kIndex, int kWarpsM, int kWarpsN_>
struct Config {
  static constexpr int kWarpsN = kWarpsN_;
  static constexpr TileShape kShape = shape(kDType<T>, kIndex);
  static constexpr int kTileM = kShape.tile_m, kTileN = kShape.tile_n, kStep = pipelined::kStep,
                       kStages = pipelined::kStages;
  static constexpr int kThreads = kShape.threads;
  static_assert(kThreads == 32 * kWarpsM * kWarpsN);
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kRows = kWarpM / WarpShape::kRows, kColumns = kWarpN / WarpShape::kColumns;  // a thread
  static constexpr int kCopyEvery = 4;                                                              // places along k
  static constexpr int kGroup = 16;  // rows of tiles that are at work at once
  using Tiles = matmul::Tiles<kTileM, kTileN>;
  using Outputs =
      matmul::Outputs<T, kRows, kColumns, WarpShape::kRows * kFragment<T>, WarpShape::kColumns * kFragment<T>>;
};
template <class T>
using Large = Config<T, kLarge, 2, 4>;
template <class T>
using Medium = Config<T, kMedium, 1, 4>;
template <class T>
using Small = Config<T, kSmall, 1, 4>;

// This thread's copies of one operand's tile: kCopies of them a step, each of kWidth elements. The tile has element l of a
// line at l * kRow + line, as in stage.cuh.
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
    if constexpr (sizeof(T) == sizeof(Acc<T>)) {
      ptx::copy_async<sizeof(T) * kWidth>(to, from);
    } else {
      ptx::store_shared(to, static_cast<Acc<T>>(*from));  // no copy widens: through a register, and at once
    }
  }

  const T* from_[kPointers];
  int64_t step_, stride_;
  int l_, to_;
};

template <class T, class C, Way kWayA, Way kWayB>
__global__ void __launch_bounds__(C::kThreads, 1)
    kernel(const T* a, const T* b, Result<T>* c, const Result<T>* bias, Problem p, typename C::Tiles tiles) {
  using CopiesA = Copies<T, C, C::kTileM, kWayA>;
  using CopiesB = Copies<T, C, C::kTileN, kWayB>;
  constexpr int kStep = C::kStep, kStages = C::kStages, kCopyEvery = C::kCopyEvery;
  constexpr int kTileBytes = sizeof(Acc<T>) * CopiesA::kSize;  // of A; that of B follows
  constexpr int kStageBytes = kTileBytes + sizeof(Acc<T>) * CopiesB::kSize;
  const auto ring = dynamic_shared<unsigned char>();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int y = warp / C::kWarpsN * C::kWarpM + WarpShape::row(lane) * kFragment<T>;
  const int x = warp % C::kWarpsN * C::kWarpN + WarpShape::column(lane) * kFragment<T>;
  const int head = static_cast<int>(p.k % kStep);
  const int64_t steps = p.k / kStep;

  for (int64_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    const auto place = tiles.template place_in_groups<C::kGroup>(tile);
    const Offsets at = offsets_of(p, place.batch);
    const Lines<T> rows = rows_of(a, p, at, place.row);
    const Lines<T> columns = columns_of(b, p, at, place.column);
    CopiesA copies_a(rows);
    CopiesB copies_b(columns);
    typename C::Outputs outputs;
    typename C::Outputs::Factors factors[2];  // of this place along k, and of the next
    outputs.clear();
    // Where this thread reads and writes. They move with every step, so that the loop computes no other address.
    const Acc<T>* read_a = reinterpret_cast<const Acc<T>*>(ring) + y;
    const Acc<T>* read_b = reinterpret_cast<const Acc<T>*>(ring + kTileBytes) + x;
    ptx::SharedAddress write_a = ptx::shared_address(ring) + copies_a.offset();
    ptx::SharedAddress write_b = ptx::shared_address(ring) + kTileBytes + copies_b.offset();

    constexpr int kLast = (kStages - 1) * kStageBytes;  // where the last stage lies, which the loop fills last
    if (head > 0) {
      copies_a.copy_head(write_a + kLast, head);
      copies_b.copy_head(write_b + kLast, head);
    }
    ptx::commit_copies();
#pragma unroll 1
    for (int stage = 0; stage < kStages - 1; ++stage) {
      copies_a.template copy_part<1>(write_a, 0, stage < steps);
      copies_b.template copy_part<1>(write_b, 0, stage < steps);
      ptx::commit_copies();
      write_a += kStageBytes;
      write_b += kStageBytes;
    }
    if (head > 0) {
      ptx::wait_copies<kStages - 1>();
      __syncthreads();
#pragma unroll 1
      for (int l = 0; l < head; ++l) {
        factors[0].load(read_a + kLast / sizeof(Acc<T>) + l * CopiesA::kRow,
                        read_b + kLast / sizeof(Acc<T>) + l * CopiesB::kRow);
        outputs.add(factors[0]);
      }
    }
    ptx::wait_copies<kStages - 2>();
    __syncthreads();

    factors[0].load(read_a, read_b);
    int stage = 0, advance = -kLast;
#pragma unroll 1
    for (int64_t left = steps; left > 0; --left) {
      const bool more = left >= kStages;
#pragma unroll
      for (int l = 0; l < kStep; ++l) {
        if (l == kStep - 1) {
          ptx::commit_copies();
          ptx::wait_copies<kStages - 2>();
          __syncthreads();
          // The stage that was read is written next: it lies where the last advance led.
          write_a += advance;
          write_b += advance;
          advance = stage == kStages - 1 ? -kLast : kStageBytes;
          stage = stage == kStages - 1 ? 0 : stage + 1;
          read_a += advance / static_cast<int>(sizeof(Acc<T>));
          read_b += advance / static_cast<int>(sizeof(Acc<T>));
        }
        // After the last step this reads a tile that nobody has asked for, and nobody uses what it reads.
        const int next = (l + 1) % kStep;
        factors[(l + 1) % 2].load(read_a + next * CopiesA::kRow, read_b + next * CopiesB::kRow);
        if (l % kCopyEvery == 0) {
          copies_a.template copy_part<kStep / kCopyEvery>(write_a, l / kCopyEvery, more);
          copies_b.template copy_part<kStep / kCopyEvery>(write_b, l / kCopyEvery, more);
        }
        outputs.add(factors[l % 2]);
      }
    }
    if (bias != nullptr) outputs.add_bias(bias, place.column + x, p.n);
    outputs.store(c + at.c + (place.row + y) * p.n + place.column + x, p.n, rows.count - y, columns.count - x);
    __syncthreads();  // the ring is free for the next tile
  }
}

template <class T, class C, Way kWayA, Way kWayB>
cudaError_t launch_ways(const Call& call) {
  constexpr int kSize = Copies<T, C, C::kTileM, kWayA>::kSize + Copies<T, C, C::kTileN, kWayB>::kSize;
  static_assert(kSize * sizeof(Acc<T>) == C::kShape.stage_bytes);
  return launch_tiles<T, typename C::Tiles>(&kernel<T, C, kWayA, kWayB>, call);
}

// Only float32 has kernels for vectors as well.
template <class T, class C, Way kWayA>
cudaError_t launch_way_b(const Call& call) {
  const Way b = call.prepared.way_b;
  if (b == Way::k) return launch_ways<T, C, kWayA, Way::k>(call);
  if constexpr (std::is_same_v<T, float>) {
    if (b == Way::lines_vectors) return launch_ways<T, C, kWayA, Way::lines_vectors>(call);
  }
  return launch_ways<T, C, kWayA, Way::lines>(call);
}

template <class T, class C>
cudaError_t launch_config(const Call& call) {
  const Way a = call.prepared.way_a;
  if (a == Way::k) return launch_way_b<T, C, Way::k>(call);
  if constexpr (std::is_same_v<T, float>) {
    if (a == Way::lines_vectors) return launch_way_b<T, C, Way::lines_vectors>(call);
  }
  return launch_way_b<T, C, Way::lines>(call);
}

template <class T>
cudaError_t launch_dtype(const Call& call) {
  switch (call.prepared.shape) {
    case kLarge: return launch_config<T, Large<T>>(call);
    case kMedium: return launch_config<T, Medium<T>>(call);
    default: return launch_config<T, Small<T>>(call);
  }
}

cudaError_t launch_one(const Call& call) {
  return dispatch_dtype(call.dtype, [&](auto type) { return launch_dtype<typename decltype(type)::type>(call); });
}

const Rung<launch_one> rung("pipelined");

}  // namespace treduce::matmul::pipelined
