// Idea: several short rows a warp. A row of up to 128 elements goes to a team of 1 to 32 neighbouring lanes, which read it in
// 16-byte loads side by side and fold it with shuffles; rows of up to 512 elements take a few loads a lane.
//
// After:   row_tile, which needs shared memory and a barrier.
// Mapping: a team is the smallest power of two of lanes that covers a row, or its first 128 elements, with one vector each (one by
//          one, four elements a lane). A team takes kRows rows at once, so that several loads are in flight. Where a quarter of
//          the lanes would have no vector, a quarter as many take three each.
//          Rows of which a vector holds several need no team at all.
// Bound:   memory bandwidth.
// Next:    row_warp, for rows that fill a warp.
// Source:  Justin Luitjens, Faster Parallel Reductions on Kepler (2014).
#include "../../common/round.h"
#include "../../primitives/ptx/launch.cuh"
#include "../chunk.cuh"
#include "../reads.h"
#include "../store.cuh"

namespace treduce::reduce::row_lanes {

// Offsets of several numbers, in place.
template <int kCount>
TREDUCE_DEVICE void offsets_of(const Extents& extents, int64_t (&i)[kCount]) {
  int64_t sum[kCount] = {};
#pragma unroll 1
  for (int d = extents.count - 1; d > 0; --d) {
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      const int64_t q = extents.size[d].quotient(i[r]);
      sum[r] += (i[r] - q * extents.size[d].divisor) * extents.stride[d];
      i[r] = q;
    }
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) i[r] = sum[r] + i[r] * extents.stride[0];
}

// kStripes stripes of a row are loaded at once; where a row has more, the kernel loops. A thread takes kPacks vectors of a stripe, as
// many vectors apart as its team has threads.
template <class O, int kSize, int kRows, int kStripes, bool kLoops, int kPacks, class Source, class Layout>
__global__ void __launch_bounds__(kRowThreads)
    kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, int length, int team,
           TREDUCE_GRID_CONSTANT MappedResult result, TREDUCE_GRID_CONSTANT Layout layout) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  using Raw = typename Source::Raw;
  const int lane = threadIdx.x % warp::kLanes;
  const int thread = lane & (team - 1);
  const int teams = warp::kLanes / team;
  const int mine = lane / team;
  const int a_warp = teams * kRows;
  for (int64_t first = thread::global_index() / warp::kLanes * a_warp; first < outputs;
       first += thread::grid_threads() / warp::kLanes * a_warp) {
    // Where this team's rows begin. Past the last row they are clamped to it, so loads need no branch.
    const int left = static_cast<int>(outputs - first < a_warp ? outputs - first : a_warp);
    const auto number = [&](int r) { return min(r * teams + mine, left - 1); };
    int64_t row[kRows];
    if (layout.even_rows) {
      const int64_t begin = first * layout.row_stride;
#pragma unroll
      for (int r = 0; r < kRows; ++r) row[r] = begin + number(r) * layout.row_stride;
    } else if (team < kRows) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) row[r] = first + number(r);
      offsets_of(layout.kept, row);
    } else {
      // Divisions: each row's by one lane.
      const int64_t one = layout.row(first + number(thread % kRows));
#pragma unroll
      for (int r = 0; r < kRows; ++r) row[r] = warp::from(one, lane - thread + r);
    }

    // Loads of all rows, then their leaves; the tree begins in the lanes of a thread.
    const auto place = [&](int from, int s, int h) {
      return from + s * Pairwise::kLanes + (h * team + thread) * kSize;
    };
    using Packs = Pack<Raw, kSize>[kRows][kStripes][kPacks];
    const auto load = [&](int from, Packs& pack) {
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) {
          const int at = place(from, s, h);
          if (at + kSize > length) continue;
          const int64_t e = kSize > 1 && Layout::kHow == Walk::even ? at : layout.element(at);
#pragma unroll
          for (int r = 0; r < kRows; ++r) pack[r][s][h] = load_pack<kSize>(x, row[r] + e);
        }
      }
    };
    const auto take = [&](int from, int r, int h, const Packs& pack, auto& lanes) {
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
        const int e = place(from, s, h);
        if (e + kSize <= length) {
          lanes.take(x, pack[r][s][h]);
        } else if (kSize > 1 && Layout::kHow == Walk::even && e < length) {
#pragma unroll
          for (int c = 0; c + 1 < kSize; ++c) {
            if (e + c < length) lanes.take(x, x.at(row[r] + e + c), c);
          }
        }
      }
    };
    Acc node[kRows][kPacks];
    if constexpr (kLoops) {
      Lanes<O, Source, kSize> lanes[kRows][kPacks];
#pragma unroll 1
      for (int from = 0; from < length; from += kStripes * Pairwise::kLanes) {
        Packs pack = {};
        load(from, pack);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) take(from, r, h, pack, lanes[r][h]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) node[r][h] = lanes[r][h].fold();
      }
    } else {
      Packs pack = {};
      load(0, pack);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) {
          Lanes<O, Source, kSize> lanes;
          take(0, r, h, pack, lanes);
          node[r][h] = lanes.fold();
        }
      }
    }

    ptx::allow_launch_after();

    // Between the threads of a team: all rows do one shuffle step before the next step, to hide shuffle latency. Then between the packs
    // of a thread.
#pragma unroll 1
    for (int s = 1; s < team; s *= 2) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) node[r][h] = O::combine(node[r][h], warp::exchange(node[r][h], s));
      }
    }
    Acc value[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) value[r] = thread::fold_neighbours<O>(node[r]);

    // The results. All lanes hold the values: thread r of a team writes row r, or its first thread all of them, where threads are few.
    if (team < kRows) {
      int64_t to[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) to[r] = first + r * teams + mine;
      if (!layout.dense_outs) offsets_of(layout.kept_out, to);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (thread == 0 && r * teams + mine < left) result.store<O>(value[r], to[r]);
      }
    } else {
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

// Rows of 2, 4 or 8 elements that lie one after another, several in a vector: a thread folds them without any other, and writes
// their results side by side.
template <int kLength, class O, class Source>
__global__ void __launch_bounds__(kRowThreads)
    packed_kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, TREDUCE_GRID_CONSTANT MappedResult result) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  constexpr bool kWide = std::is_same_v<O, Sum<int64_t>>;
  constexpr int kSize = packed_elements(kLength, sizeof(typename Source::Type), kWide);
  constexpr int kPacksAThread = packs_a_thread(kWide);
  constexpr int kRows = kSize / kLength;  // in a vector
  const int64_t vectors = outputs / kRows;
  // The nodes over the rows of what was loaded.
  const auto fold_rows = [&](const auto& loaded, auto& node) {
    Acc value[sizeof(node) / sizeof(Acc)][kLength];
    x.each(loaded, [&](int c, auto element) { value[c / kLength][c % kLength] = widen<Acc>(element); });
    int r = 0;
#pragma unroll
    for (auto& row : value) node[r++] = thread::fold_neighbours<O>(row);
  };
  for (int64_t tile = blockIdx.x; tile * blockDim.x * kPacksAThread * kRows < outputs; tile += gridDim.x) {
    const int64_t first = tile * blockDim.x * kPacksAThread + threadIdx.x;
    Pack<typename Source::Raw, kSize> pack[kPacksAThread] = {};
    if (first < vectors) {
      // Past the last vector loads are clamped to it, so they need no branch.
#pragma unroll
      for (int p = 0; p < kPacksAThread; ++p) {
        const int64_t v = first + p * blockDim.x;
        pack[p] = load_pack<kSize>(x, (v < vectors ? v : vectors - 1) * kSize);
      }
    }
    ptx::allow_launch_after();
    as_stored<Source, Acc>(result.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* const out = static_cast<T*>(result.data);
#pragma unroll
      for (int p = 0; p < kPacksAThread; ++p) {
        const int64_t v = first + p * blockDim.x;
        Acc value[kRows], finished[kRows];
        fold_rows(pack[p], value);
        finish<O>(value, result, finished);
        if (v < vectors) store_run(out + v * kRows, finished);
      }
    });
    // The rows that fill no vector: one thread each.
    const int64_t o = vectors * kRows + threadIdx.x;
    if (tile == 0 && o < outputs) {
      Several<typename Source::Raw, kLength> elements;
#pragma unroll
      for (int c = 0; c < kLength; ++c) elements.at[c] = x.at(o * kLength + c);
      Acc value[1];
      fold_rows(elements, value);
      result.store<O>(value[0], o);
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
    return dispatch_vectors<Kernels::short_rows>(call, [&](auto op, auto source) {
      using Source = decltype(source);
      return dispatch_length<vector_of<Source>>(length, [&](auto of_row) {
        return launch(&packed_kernel<decltype(of_row)::value, decltype(op), Source>, call.shape(), source, g.outputs,
                      result_of(call, source));
      });
    });
  }
  return dispatch_reads<Kernels::short_rows>(call, [&](auto op, auto source, auto vectors, auto walk) {
    using O = decltype(op);
    using Source = decltype(source);
    const auto layout = layout_of<decltype(walk)::value>(g);
    using Layout = decltype(layout);
    constexpr int kSize = decltype(vectors)::value ? vector_of<Source> : 1;
    constexpr int kPacks = Team<O, Source, kSize>::kPacks;
    const auto start = [&](auto kernel) {
      return launch(kernel, call.shape(), source, g.outputs, length, static_cast<int>(call.prepared.schedule.span),
                    result_of(call, source), layout);
    };
    // Rows of up to four stripes: all at once, of fewer rows, where vectors are even; elsewhere one after another.
    if constexpr (decltype(vectors)::value && Layout::kHow == Walk::even) {
      if constexpr (is_common<Source>) {
        if (g.length > Pairwise::kLanes && lanes_take_two_stripes(g.length, true)) {
          return start(&kernel<O, kSize, kLanesRowsOfTwo, 2, false, kPacks, Source, Layout>);
        }
      }
      if (g.length > Pairwise::kLanes) {
        return start(&kernel<O, kSize, kLanesRowsOfFour, 4, false, kPacks, Source, Layout>);
      }
      if constexpr (is_common<Source> && kPacks == 1) {
        if (lanes_take_three(ceil_div(g.length, kSize))) {
          return start(&kernel<O, kSize, kLanesRows, 1, false, 3, Source, Layout>);
        }
      }
      return start(&kernel<O, kSize, kLanesRows, 1, false, kPacks, Source, Layout>);
    } else {
      return start(&kernel<O, kSize, kLanesRows, 1, true, kPacks, Source, Layout>);
    }
  });
}

const Rung<launch_one> rung("row_lanes");

}  // namespace treduce::reduce::row_lanes
