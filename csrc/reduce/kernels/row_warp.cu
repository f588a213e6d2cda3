// Idea: a warp a row. Its lanes read 512 bytes side by side, eight loads in flight, and fold with shuffles: no barrier, no shared
// memory, nobody waits for another row.
//
// After:   row_lanes, for rows longer than one load a lane.
// Mapping: a team holds the 128 lanes of a chunk: 32 threads of four floats, or 16 threads of eight halves, two rows a warp. A
//          row of several chunks is walked chunk by chunk.
// Bound:   memory bandwidth while there are rows for every warp of the chip.
// Next:    row_block, where rows are fewer and longer.
// Source:  Justin Luitjens, Faster Parallel Reductions on Kepler (2014).
#include "../../primitives/ptx/launch.cuh"
#include "../rows.cuh"

namespace treduce::reduce::row_warp {

// In flight: one trip to memory for most chunks, and registers are a warp's own.
constexpr int kLoads = 16;

template <int kResident, class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(kRowThreads, kResident)
    kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, int64_t length, TREDUCE_GRID_CONSTANT MappedResult result,
           TREDUCE_GRID_CONSTANT Layout layout) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  const int lane = threadIdx.x % warp::kLanes;
  const int thread = lane % Team::kThreads;
  for (int64_t first = thread::global_index() / warp::kLanes * Team::kOfWarp; first < outputs;
       first += thread::grid_threads() / warp::kLanes * Team::kOfWarp) {
    const int64_t o = first + lane / Team::kThreads;
    const int64_t row = o < outputs ? layout.row(o) : 0;
    const int64_t mine = o < outputs ? length : 0;
    Acc value;
    Neighbours<O, 40> chunks;  // of a row of several
    for (int64_t begin = 0;; begin += Pairwise::kChunk) {
      value = Team::chunk(x, layout, row, begin, mine, thread);
      if (length <= Pairwise::kChunk) break;
      chunks.push(value);
      if (begin + Pairwise::kChunk >= length) {
        value = chunks.value();
        break;
      }
    }
    ptx::allow_launch_after();
    if (thread == 0 && o < outputs) result.store<O>(value, layout.out(o));
  }
}

cudaError_t launch_one(const Call& call) {
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto shifted, auto layout) {
    using O = decltype(op);
    using Source = decltype(source);
    using Layout = decltype(layout);
    // Element by element along two dims a load has few bytes and many instructions before it: a chunk's are all in flight.
    constexpr bool kSteps =
        Layout::kHow == Walk::two && size.value == 1 && is_common<Source> && sizeof(typename O::Acc) == 4;
    using Team = reduce::Team<O, Source, size.value, shifted.value, kSteps ? 2 * kLoads : kLoads>;
    constexpr int kResident = kSteps ? 4 : Team::kPacks > 1 ? 2 : Team::template kResident<Layout>;
    return launch(&kernel<kResident, Team, O, Source, Layout>, call.shape(), source, call.request.geometry.outputs,
                  call.request.geometry.length, result_of(call, source), layout);
  });
}

const Rung<launch_one> rung("row_warp");

}  // namespace treduce::reduce::row_warp
