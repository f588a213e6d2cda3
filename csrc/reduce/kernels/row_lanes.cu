// Idea: several short rows a warp. A row of up to 128 elements goes to a team of 1 to 32 neighbouring lanes, which read it in
// 16-byte loads side by side and fold it with shuffles; rows of up to 512 elements take a few loads a lane.
//
// After:   row_tile, which needs shared memory and a barrier.
// Mapping: a team is the smallest power of two of lanes that covers a row, or its first 128 elements, with one vector each (one by
//          one, four elements a lane). A team takes kRows rows at once, so that several loads are in flight.
//          Rows of which a vector holds several need no team at all.
// Bound:   memory bandwidth.
// Next:    row_warp, for rows that fill a warp.
#include "../rows.cuh"

namespace treduce::reduce::row_lanes {

template <class O, int kSize, int kRows, int kStripes, class Source, class Layout>
__global__ void __launch_bounds__(256)
    kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, int length, int team, TREDUCE_GRID_CONSTANT Result result,
           TREDUCE_GRID_CONSTANT Layout layout) {
  using Acc = typename O::Acc;
  using T = typename Source::Element;
  constexpr int kHeld = Team<O, Source, kSize>::kHeld;
  const int lane = threadIdx.x % warp::kLanes;
  const int thread = lane & (team - 1);
  const int teams = warp::kLanes / team;
  const int mine = lane / team;
  const int a_warp = teams * kRows;
  for (int64_t first = thread::global_index() / warp::kLanes * a_warp; first < outputs;
       first += thread::grid_threads() / warp::kLanes * a_warp) {
    // Past the last row the last one is read again, and not written: no question stands before the loads.
    const int left = static_cast<int>(outputs - first < a_warp ? outputs - first : a_warp);
    const auto number = [&](int r) { return min(r * teams + mine, left - 1); };
    int64_t row[kRows];
    if (layout.even_rows) {
      const int64_t begin = first * layout.row_stride;
#pragma unroll
      for (int r = 0; r < kRows; ++r) row[r] = begin + number(r) * layout.row_stride;
    } else if (team < kRows) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) row[r] = layout.row(first + number(r));
    } else {
      // Divisions: each row's by one lane.
      const int64_t one = layout.row(first + number(thread % kRows));
#pragma unroll
      for (int r = 0; r < kRows; ++r) row[r] = warp::from(one, lane - thread + r);
    }
    Pack<T, kSize> pack[kRows][kStripes][kHeld] = {};
    const auto place = [&](int s, int h) { return s * Pairwise::kLanes + (h * team + thread) * kSize; };
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        if (place(s, h) + kSize > length) continue;
        const int64_t e = kSize > 1 && Layout::kHow == Walk::even ? place(s, h) : layout.element(place(s, h));
#pragma unroll
        for (int r = 0; r < kRows; ++r) pack[r][s][h] = load_pack<kSize>(x, row[r] + e);
      }
    }
    Acc held[kRows][kHeld];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        Lanes<O, T, kSize> lanes;
#pragma unroll
        for (int s = 0; s < kStripes; ++s) {
          const int e = place(s, h);
          if (e + kSize <= length) {
            lanes.take(pack[r][s][h]);
          } else if (kSize > 1 && e < length) {
#pragma unroll
            for (int c = 0; c + 1 < kSize; ++c) {
              if (e + c < length) lanes.take(x.at(row[r] + layout.element(e + c)), c);
            }
          }
        }
        held[r][h] = lanes.fold();
      }
    }
    // One step of all rows after the other: a shuffle takes longer than it keeps the warp.
#pragma unroll 1
    for (int s = 1; s < team; s *= 2) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int h = 0; h < kHeld; ++h) held[r][h] = O::combine(held[r][h], warp::exchange(held[r][h], s));
      }
    }
    Acc value[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int s = 1; s < kHeld; s *= 2) {
#pragma unroll
        for (int h = 0; h + s < kHeld; h += 2 * s) held[r][h] = O::combine(held[r][h], held[r][h + s]);
      }
      value[r] = held[r][0];
    }
    if (team < kRows) {
      const auto write = [&](auto place) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int o = r * teams + mine;
          if (thread == 0 && o < left) result.store<O>(value[r], place(first + o));
        }
      };
      if (layout.dense_outs) {
        write([](int64_t o) { return o; });
      } else {
        write([&](int64_t o) { return layout.out(o); });
      }
    } else {
      // All lanes hold the values: thread r of a team writes row r.
      Acc one = value[0];
#pragma unroll
      for (int r = 1; r < kRows; ++r) {
        if (thread == r) one = value[r];
      }
      const int o = thread * teams + mine;
      if (thread < kRows && o < left) result.store<O>(one, layout.out(first + o));
    }
  }
}

// Rows of 2, 4 or 8 elements that lie one after another, several in a vector: a thread folds them where they are, and writes
// their results side by side.
template <int kLength, class O, class Source>
__global__ void __launch_bounds__(256)
    packed_kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, TREDUCE_GRID_CONSTANT Result result) {
  using Acc = typename O::Acc;
  constexpr int kSize = vector_of<Source>;
  constexpr int kRows = kSize / kLength;  // in a vector
  const int64_t vectors = outputs / kRows;
  const auto row_of = [](const auto& elements, int r) {
    Acc value[kLength];
#pragma unroll
    for (int c = 0; c < kLength; ++c) value[c] = widen<Acc>(elements.at[r * kLength + c]);
#pragma unroll
    for (int s = 1; s < kLength; s *= 2) {
#pragma unroll
      for (int c = 0; c < kLength; c += 2 * s) value[c] = O::combine(value[c], value[c + s]);
    }
    return value[0];
  };
  for (int64_t tile = blockIdx.x; tile * blockDim.x * kPacksAThread * kRows < outputs; tile += gridDim.x) {
    const int64_t first = tile * blockDim.x * kPacksAThread + threadIdx.x;
    Pack<typename Source::Element, kSize> pack[kPacksAThread] = {};
    if (first < vectors) {
      // Past the last vector the last one is read again, and not written: no question stands before the loads.
#pragma unroll
      for (int p = 0; p < kPacksAThread; ++p) {
        const int64_t v = first + p * blockDim.x;
        pack[p] = load_pack<kSize>(x, (v < vectors ? v : vectors - 1) * kSize);
      }
    }
    as_stored<Acc>(result.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* const out = static_cast<T*>(result.data);
#pragma unroll
      for (int p = 0; p < kPacksAThread; ++p) {
        const int64_t v = first + p * blockDim.x;
        const auto elements = pack[p].elements();
        Acc value[kRows], finished[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) value[r] = row_of(elements, r);
        finish<O>(value, result, finished);
        if (v < vectors) store_run(out + v * kRows, finished);
      }
    });
    // The rows that fill no vector: a thread each.
    const int64_t o = vectors * kRows + threadIdx.x;
    if (tile == 0 && o < outputs) {
      struct {
        typename Source::Element at[kLength];
      } elements;
#pragma unroll
      for (int c = 0; c < kLength; ++c) elements.at[c] = x.at(o * kLength + c);
      result.store<O>(row_of(elements, 0), o);
    }
  }
}

// Calls body(integral_constant<kLength>) for a length below kSize.
template <int kSize, int kLength = 2, class Body>
cudaError_t dispatch_length(int length, Body body) {
  if constexpr (kLength < kSize) {
    if (length == kLength) return body(std::integral_constant<int, kLength>{});
    return dispatch_length<kSize, 2 * kLength>(length, body);
  } else {
    return cudaErrorInvalidValue;  // see packs_rows
  }
}

cudaError_t launch_one(const Call& call) {
  const Geometry& g = call.request.geometry;
  const int length = static_cast<int>(g.length);
  if (packs_rows(g, call.prepared.schedule.vectors, size_of(call.request.dtype))) {
    return dispatch_vectors<Sum>(call, [&](auto op, auto source) {
      using Source = decltype(source);
      return dispatch_length<vector_of<Source>>(length, [&](auto of_row) {
        return launch(&packed_kernel<decltype(of_row)::value, decltype(op), Source>, call.shape(), source, g.outputs,
                      call.result);
      });
    });
  }
  return dispatch_reads<Sum>(call, [&](auto op, auto source, auto vectors, auto walk) {
    using O = decltype(op);
    using Source = decltype(source);
    const auto layout = layout_of<decltype(walk)::value>(g);
    constexpr int kSize = decltype(vectors)::value ? vector_of<Source> : 1;
    const auto start = [&](auto kernel) {
      return launch(kernel, call.shape(), source, g.outputs, length, static_cast<int>(call.prepared.schedule.span),
                    call.result, layout);
    };
    if (g.length <= Pairwise::kLanes) return start(&kernel<O, kSize, kLanesRows, 1, Source, decltype(layout)>);
    return start(&kernel<O, kSize, kLanesRowsOfFour, 4, Source, decltype(layout)>);
  });
}

const Rung<launch_one> rung("row_lanes");

}  // namespace treduce::reduce::row_lanes
