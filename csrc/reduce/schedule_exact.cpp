// The schedule of the exact rung, kernels/exact.cu. Its sums have no order, so everything here is free.
#include <algorithm>

#include "../common/bit_ceil.h"
#include "../common/round.h"
#include "exact.h"
#include "schedule.h"

namespace treduce::reduce {
namespace {

// `most`: a power of two, which the result does not exceed.
int bit_ceil_up_to(int most, int64_t value) { return static_cast<int>(std::min<int64_t>(bit_ceil(value), most)); }

// Elements a thread should have before another shares its output, so that zeroing, adding and rounding cells stay in
// the background; and how few it may come down to where there are too few threads to fill the chip.
constexpr int64_t kEnough = 32;
constexpr int64_t kLeast = 8;
constexpr int64_t kMostSplits = 1024;
static_assert(kMostSplits * exact::kThreadsOfBlock<float> < exact::kNegative,
              "kinds (exact.h) are counted, one a thread, over the threads of all splits");

struct Room {
  int threads, rows;
  int64_t bytes_of_thread;
};

template <class Element>
constexpr Room room_of() {
  return {exact::kThreadsOfBlock<Element>, exact::Traits<Element>::kRows, exact::kBytesOfThread<Element>};
}

Room room_of(DType target) {
  switch (target) {
    case DType::float64: return room_of<double>();
    case DType::complex64: return room_of<complex64>();
    case DType::complex128: return room_of<complex128>();
    default: return room_of<float>();  // floats of up to 32 bits
  }
}

}  // namespace

Scheduled schedule_exact(const Work& work) {
  const Geometry& g = work.geometry;
  const Room room = room_of(work.memory.target);
  const int64_t length = std::max<int64_t>(g.length, 1), outputs = std::max<int64_t>(g.outputs, 1);
  Schedule s;
  const int enough = bit_ceil_up_to(room.threads, std::min<int64_t>(length, 1024) * std::min<int64_t>(outputs, 1024));
  s.block = work.block > 0 ? std::min(work.block, room.threads) : std::max(enough, 32);

  // Blocks that are resident at once: by shared memory, of which each takes 1 KB more, and by the threads that the kernel asks room for.
  s.shared_bytes = room.bytes_of_thread * s.block;
  const int64_t by_memory = (work.chip.shared_bytes() + 1024) / (s.shared_bytes + 1024);
  const int64_t resident = std::clamp<int64_t>(exact::kThreadsAnSm / s.block, 1, by_memory);
  const int64_t fill = resident * work.chip.multiprocessors;
  const int64_t blocks = work.blocks > 0 ? std::min(work.blocks, 4 * fill) : fill;

  int64_t lanes = bit_ceil_up_to(s.block, ceil_div(length, 2 * kEnough));
  while (lanes < s.block && lanes * outputs < blocks * s.block && 2 * lanes * kLeast <= length) lanes *= 2;
  // Neighbouring outputs are read by neighbouring threads: a warp of them, where there are as many.
  const int least = exact::outputs_side_by_side(g) ? 32 : 1;
  s.tile = bit_ceil_up_to(std::max<int>(static_cast<int>(s.block / lanes), least), outputs);
  lanes = s.block / s.tile;

  const int64_t tiles = ceil_div(outputs, s.tile);
  s.splits = 1;
  s.span = length;
  if (tiles < blocks && tiles <= kMostCounters) {
    const int64_t most = std::min(length / (lanes * kEnough), kMostSplits);
    s.splits = std::clamp<int64_t>(blocks / tiles, 1, std::max<int64_t>(most, 1));
    // Splits begin on the boundaries that the elements before them kept to.
    s.span = ceil_div(ceil_div(length, s.splits), 64) * 64;
    s.splits = ceil_div(length, s.span);
  }
  s.tiles = tiles * s.splits;
  s.grid = std::min(s.tiles, work.blocks > 0 ? work.blocks : 16 * fill);
  if (s.splits > 1) {
    s.workspace_bytes = s.tiles * s.tile * exact::rows_of_partial(room.rows) * static_cast<int64_t>(sizeof(int64_t));
    s.counters = tiles;
  }

  // Runs of neighbouring elements are read in 16-byte loads, whatever their alignment, where they are long enough for
  // the lanes.
  const bool aligned = work.memory.address % static_cast<uint64_t>(size_of(work.memory.dtype)) == 0;
  const int64_t vector = 16 / size_of(work.memory.dtype);
  s.vectors = work.memory.common_sum() && aligned && g.reduced.count > 0 && g.reduced.inner_stride() == 1 &&
              (g.reduced.count == 1 || g.reduced.inner_size() >= 4 * lanes * vector);
  return {s, ""};
}

}  // namespace treduce::reduce
