// Idea: several short rows a warp. A row of up to 128 elements goes to a team of 1 to 32 neighbouring lanes, which read it in
// 16-byte loads side by side and fold it with shuffles.
//
// After:   row_tile, which needs shared memory and a barrier.
// Mapping: a team is the smallest power of two of lanes that covers a row with one vector each (one by one, four elements a
//          lane). A team takes kRows rows at once, so that as many loads are in flight.
// Bound:   memory bandwidth.
// Next:    row_warp, for rows that fill a warp.
#include "../rows.cuh"

namespace treduce::reduce::row_lanes {

constexpr int kRows = 4;

template <class O, int kSize, class Source, class Layout>
__global__ void __launch_bounds__(256) kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Layout layout,
                                              int64_t outputs, int length, int team, Result result) {
  using Acc = typename O::Acc;
  using T = typename Source::Element;
  constexpr int kHeld = Team<O, Source, kSize>::kHeld;
  const int lane = threadIdx.x % warp::kLanes;
  const int thread = lane & (team - 1);
  const int64_t teams = warp::kLanes / team;
  const int64_t a_warp = teams * kRows;
  for (int64_t first = thread::global_index() / warp::kLanes * a_warp; first < outputs;
       first += thread::grid_threads() / warp::kLanes * a_warp) {
    // Past the last row the last one is read again, and not written: no question stands before the loads.
    int64_t row[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t o = first + r * teams + lane / team;
      row[r] = layout.row(o < outputs ? o : outputs - 1);
    }
    Pack<T, kSize> pack[kRows][kHeld] = {};
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int e = (h * team + thread) * kSize;
      if (e + kSize <= length) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) pack[r][h] = load_pack<kSize>(x, row[r] + element_of<kSize>(layout, e));
      }
    }
    Acc value[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Acc held[kHeld];
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        Lanes<O, T, kSize> lanes;
        const int e = (h * team + thread) * kSize;
        if (e + kSize <= length) {
          lanes.take(pack[r][h]);
        } else if (kSize > 1 && e < length) {
#pragma unroll
          for (int c = 0; c + 1 < kSize; ++c) {
            if (e + c < length) lanes.take(x.at(row[r] + element_of<kSize>(layout, e) + c), c);
          }
        }
        held[h] = warp::reduce_neighbours<O>(lanes.fold(), team);
      }
#pragma unroll
      for (int s = 1; s < kHeld; s *= 2) {
#pragma unroll
        for (int h = 0; h + s < kHeld; h += 2 * s) held[h] = O::combine(held[h], held[h + s]);
      }
      value[r] = held[0];
    }
    if (thread == 0) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int64_t o = first + r * teams + lane / team;
        if (o < outputs) result.store<O>(value[r], layout.out(o));
      }
    }
  }
}

cudaError_t launch_one(const Call& call) {
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto layout) {
    return launch(&kernel<decltype(op), size.value, decltype(source), decltype(layout)>, rows::shape_of(call), source,
                  layout, call.geometry->outputs, static_cast<int>(call.geometry->length),
                  static_cast<int>(call.schedule->span), call.result);
  });
}

const Rung<launch_one> rung("row_lanes");

}  // namespace treduce::reduce::row_lanes
