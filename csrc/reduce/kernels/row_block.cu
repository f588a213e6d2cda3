// Idea: one block per row. Teams of threads fold chunks; their values meet in shared memory. With few rows, several blocks share
// one: each folds an aligned run of 2^k chunks, a node of the tree, and the last block of the row to finish folds the nodes. So one
// long row, or a whole tensor, fills the chip in one launch.
//
// After:   row_warp, where a long row is one warp's work; single_pass, whose order knew the grid.
// Mapping: tile t is part t % splits of row t / splits. Partials lie in global memory by tile, so it does not matter who
//          finishes last; a counter a row finds out. Rows that the chip holds at once have a kernel without loops, a warp a chunk.
// Bound:   memory bandwidth; for short rows the way through memory and back for counter and partials.
// Next:    row_cluster exchanges partials through distributed shared memory instead.
// Source:  Nicholas Wilt, The CUDA Handbook (2013).
#include "../../primitives/ptx/launch.cuh"
#include "../rows.cuh"
#include "../whole.cuh"

namespace treduce::reduce::row_block {

template <int kResident, class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(kRowThreads, kResident)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT rows::Shares shares, typename O::Acc* partials,
           unsigned* counters, TREDUCE_GRID_CONSTANT MappedResult result, TREDUCE_GRID_CONSTANT Layout layout) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  const int64_t chunks = Pairwise(shares.length).chunks(), splits = shares.splits.divisor;
  for (int64_t tile = blockIdx.x; tile < shares.tiles; tile += gridDim.x) {
    // Which chunks of which row.
    const int64_t output = shares.splits.quotient(tile);
    const int64_t part = tile - output * splits;
    const int64_t first = part * shares.chunks_a_block;
    const int64_t count = chunks - first < shares.chunks_a_block ? chunks - first : shares.chunks_a_block;
    if (splits > 1) grid::expect_arrival(counters + output);

    // The teams of the block read them; their values meet in shared memory.
    Acc value = rows::fold_chunks<Team, O>(x, layout, layout.row(output), first, count, shares.length);
    if (shares.early) ptx::allow_launch_after();

    // A block alone writes the result. Of several, the last to finish folds what they left.
    const bool is_last = splits == 1 || rows::fold_with_other_blocks<O>(value, partials + output * splits, part, splits,
                                                                        counters + output);
    if (is_last && threadIdx.x == 0) result.store<O>(value, layout.out(output));
    if (tile + gridDim.x < shares.tiles) __syncthreads();
  }
}

// The node over load(0) to load(count - 1), up to kWholeValues of them.
// Who calls: the first warp. Valid in: every lane.
template <class O, class Load>
TREDUCE_DEVICE typename O::Acc fold_values_of_warp(int count, Load load) {
  constexpr int kAll = kWholeValues / warp::kLanes;
  int each = 1;  // neighbours that a lane takes, a power of two
  while (each * warp::kLanes < count) each *= 2;
  const int begin = static_cast<int>(threadIdx.x) * each;
  typename O::Acc value[kAll];
#pragma unroll
  for (int k = 0; k < kAll; ++k) value[k] = k < each && begin + k < count ? load(begin + k) : O::identity();
  return warp::reduce_neighbours<O>(thread::fold_neighbours<O>(value));
}

// Rows at once: a block each, with a warp for each chunk. kSingle: there is one row, and the least to compute before its first load.
template <bool kSingle, class O, class Source>
__global__ void __launch_bounds__(block_row_threads(sizeof(typename O::Acc)), 1)
    at_once_kernel(TREDUCE_GRID_CONSTANT Source x, int length, int64_t row_stride,
                   TREDUCE_GRID_CONSTANT MappedResult result) {
  ptx::wait_for_launch_before();
  Source row = x;
  if constexpr (!kSingle) row.data += blockIdx.x * row_stride;
  const auto value = whole::fold_block<O, block_row_vector(sizeof(typename Source::Type))>(row, length, 0);
  if (threadIdx.x == 0) result.template store<O>(value, kSingle ? 0 : blockIdx.x);
}

// The same for rows of any strides.
template <class O, int kStripes, class Source, class Layout>
__global__ void __launch_bounds__(kElementsThreads)
    elements_at_once_kernel(TREDUCE_GRID_CONSTANT Source x, int length, TREDUCE_GRID_CONSTANT MappedResult result,
                            TREDUCE_GRID_CONSTANT Layout layout) {
  ptx::wait_for_launch_before();
  const auto value = whole::fold_elements<O, kStripes>(x, layout, layout.row(blockIdx.x), length);
  if (threadIdx.x == 0) result.template store<O>(value, layout.out(blockIdx.x));
}

// A tensor of a common float that is one row, for several blocks.
//
// The chunk in which the row ends takes the same way as the others: loads past the end are clamped to the last vector and not
// taken, and what is left of a vector is loaded element by element in the same batch.
template <class O, class T>
__global__ void __launch_bounds__(whole_threads(sizeof(T)), 1)
    whole_kernel(const T* data, int length, int chunks_a_block, TREDUCE_GRID_CONSTANT Result result,
                 typename O::Acc* partials, unsigned* counter) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  using Source = Stored<T>;
  constexpr int kSize = vector_of<Source>;
  using Team = reduce::Team<O, Source, kSize>;
  constexpr int kPacks = Team::kPacks;
  const Source x{{data}};
  const int chunks = (length + Pairwise::kChunk - 1) / Pairwise::kChunk;
  const int first = static_cast<int>(blockIdx.x) * chunks_a_block;
  const int count = min(chunks - first, chunks_a_block);
  const int teams = static_cast<int>(blockDim.x) / Team::kThreads;
  const int team = static_cast<int>(threadIdx.x) / Team::kThreads, thread = threadIdx.x % Team::kThreads;
  const int cut = length % kSize;         // elements of no whole vector
  const int last = length - cut - kSize;  // where the last whole one begins
  if (gridDim.x > 1) grid::expect_arrival(counter);

  Acc value = O::identity();
  SHARED_ARRAY(Acc, values, kWholeValues);
#pragma unroll 1
  for (int c = team / Team::kOfWarp * Team::kOfWarp; c < count; c += teams) {  // whole warps stay together
    const int mine = c + team % Team::kOfWarp;
    const int begin = mine < count ? (first + mine) * Pairwise::kChunk : length;
    const int at = begin + thread * kSize;
    const int to_cut = length - cut - begin;
    const bool has_cut = cut > 0 && to_cut >= 0 && to_cut < Pairwise::kChunk && to_cut % Team::kStep == thread * kSize;
    Pack<T, kSize> rest = {}, pack[Pairwise::kStripes][kPacks];
    if (has_cut) rest = load_some<kSize>(x, length - cut, 0, cut);
#pragma unroll
    for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        pack[s][h] = load_pack<kSize>(x, min(at + s * Pairwise::kLanes + h * Team::kStep, last));
      }
    }
    typename Team::OwnLanes lanes[kPacks];
#pragma unroll
    for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        if (at + s * Pairwise::kLanes + h * Team::kStep <= last) lanes[h].take(x, pack[s][h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      if (has_cut && to_cut % Pairwise::kLanes / Team::kStep == h) lanes[h].take_some(x, rest, 0, cut);
    }
    value = Team::tree(lanes);
    if (thread == 0 && mine < count) values[mine] = value;
  }
  if (chunks > 1) {
    __syncthreads();
    if (threadIdx.x >= warp::kLanes) return;
    value = fold_values_of_warp<O>(count, [&](int c) { return values[c]; });
    const int blocks = static_cast<int>(gridDim.x);
    if (blocks > 1) {
      if (threadIdx.x == 0) partials[blockIdx.x] = value;
      if (!grid::arrive_last_warp(counter, blocks)) return;
      ptx::allow_launch_after();
      value = fold_values_of_warp<O>(blocks, [&](int i) { return block::load_partial(partials + i); });
    }
  }
  if (threadIdx.x == 0) result.store<O>(value);
}

// A long tensor that is one row, in vectors of any dtype: short blocks, in the order of memory, so that what the chip reads at a time
// lies close together. The last block of each group folds its partials; where there are several groups, the last to finish folds theirs.
template <class O, class Source>
__global__ void __launch_bounds__(kRowThreads, kLongResident)
    long_kernel(TREDUCE_GRID_CONSTANT Source x, int64_t length, int chunks_a_block, bool early,
                typename O::Acc* partials, unsigned* counters, TREDUCE_GRID_CONSTANT MappedResult result) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  using Raw = typename Source::Raw;
  constexpr int kSize = vector_of<Source>;
  using Team = reduce::Team<O, Source, kSize>;
  constexpr int kPacks = Team::kPacks, kAhead = Team::kAhead;
  const int teams = static_cast<int>(blockDim.x) / Team::kThreads;
  const int team = static_cast<int>(threadIdx.x) / Team::kThreads, thread = threadIdx.x % Team::kThreads;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int group = block / kRowGroup, groups = row_groups(blocks);
  grid::expect_arrival(counters + group_counter(group));
  SHARED_ARRAY(Acc, values, kWholeValues);
#pragma unroll 1
  for (int c = team; c < chunks_a_block; c += teams) {
    const int64_t begin = (static_cast<int64_t>(block) * chunks_a_block + c) * Pairwise::kChunk;
    const int64_t at = begin + thread * kSize;
    const int64_t rest = length - at;
    typename Team::OwnLanes lanes[kPacks];
    if (__builtin_expect(begin + Pairwise::kChunk <= length, 1)) {
#pragma unroll
      for (int s = 0; s < Pairwise::kStripes; s += kAhead) {
        Pack<Raw, kSize> pack[kAhead][kPacks];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) {
            pack[a][h] = load_pack<kSize>(x, at + (s + a) * Pairwise::kLanes + h * Team::kStep);
          }
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) lanes[h].take(x, pack[a][h]);
        }
      }
    } else if (rest > 0) {
      // Where the row ends: one block, so it is enough that it waits once for each stripe.
#pragma unroll 1
      for (int s = 0; s < Pairwise::kStripes; ++s) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) {
          const int64_t left = rest - s * Pairwise::kLanes - h * Team::kStep;
          const int there = left < kSize ? static_cast<int>(left) : kSize;
          if (there > 0) lanes[h].take_some(x, load_some<kSize>(x, length - left, 0, there), 0, there);
        }
      }
    }
    const Acc value = Team::tree(lanes);
    if (thread == 0) values[c] = value;
  }
  if (early) ptx::allow_launch_after();
  __syncthreads();
  if (threadIdx.x >= warp::kLanes) return;
  Acc value = fold_values_of_warp<O>(chunks_a_block, [&](int c) { return values[c]; });
  Acc* const of_group = partials + group * kRowGroup;
  const int members = min(blocks - group * kRowGroup, kRowGroup);
  if (threadIdx.x == 0) partials[block] = value;
  if (!grid::arrive_last_warp(counters + group_counter(group), members)) return;
  if (groups == 1) ptx::allow_launch_after();
  value = fold_values_of_warp<O>(members, [&](int i) { return block::load_partial(of_group + i); });
  if (groups > 1) {
    Acc* const of_groups = partials + group_partial(blocks, 0);
    if (threadIdx.x == 0) of_groups[group] = value;
    if (!grid::arrive_last_warp(counters, groups)) return;
    ptx::allow_launch_after();
    value = fold_values_of_warp<O>(groups, [&](int i) { return block::load_partial(of_groups + i); });
  }
  if (threadIdx.x == 0) result.store<O>(value, 0);
}

cudaError_t launch_one(const Call& call) {
  if (call.prepared.schedule.at_once && !call.prepared.schedule.vectors) {
    return dispatch_common_sum(call, [&](auto op, auto source) {
      const Geometry& g = call.request.geometry;
      const auto start = [&](const auto& layout) {
        using O = decltype(op);
        using Source = decltype(source);
        using Layout = std::decay_t<decltype(layout)>;
        const auto chosen = g.length <= Pairwise::kLanes
                                ? &elements_at_once_kernel<O, 1, Source, Layout>
                                : &elements_at_once_kernel<O, Pairwise::kStripes, Source, Layout>;
        return launch(chosen, call.shape(), source, static_cast<int>(g.length), result_of(call, source), layout);
      };
      return g.reduced.count <= 1 ? start(layout_of<Walk::even>(g)) : start(layout_of<Walk::two>(g));
    });
  }
  if (call.prepared.schedule.at_once) {
    return dispatch_vectors(call, [&](auto op, auto source) -> cudaError_t {
      const Geometry& g = call.request.geometry;
      if constexpr (has_kernel_at_once(sizeof(typename decltype(source)::Type))) {
        using O = decltype(op);
        using Source = decltype(source);
        auto chosen = &at_once_kernel<false, O, Source>;
        if constexpr (is_common<Source>) {
          if (g.outputs == 1) chosen = &at_once_kernel<true, O, Source>;
        }
        return launch(chosen, call.shape(), source, static_cast<int>(g.length), g.kept.inner_stride(),
                      result_of(call, source));
      }
      return cudaErrorInvalidValue;
    });
  }
  if (call.prepared.schedule.in_groups) {
    return dispatch_vectors(call, [&](auto op, auto source) {
      return launch(&long_kernel<decltype(op), decltype(source)>, call.shape(), source, call.request.geometry.length,
                    static_cast<int>(call.prepared.schedule.span), call.prepared.schedule.early,
                    call.region<typename decltype(op)::Acc>("partials"), call.counter, result_of(call, source));
    });
  }
  if (call.prepared.schedule.whole) {
    return dispatch_common_sum(call, [&](auto op, auto source) {
      using O = decltype(op);
      using T = typename decltype(source)::Type;
      return launch(&whole_kernel<O, T>, call.shape(), source.data, static_cast<int>(call.request.geometry.length),
                    static_cast<int>(call.prepared.schedule.span), call.result,
                    call.region<typename O::Acc>("partials"), call.counter);
    });
  }
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto shifted, auto layout) {
    using O = decltype(op);
    using Source = decltype(source);
    using Layout = decltype(layout);
    constexpr bool kSteps =
        Layout::kHow == Walk::two && size.value == 1 && is_common<Source> && sizeof(typename O::Acc) == 4;
    using Team = reduce::Team<O, Source, size.value, shifted.value, kSteps ? 16 : 8>;
    return launch(&kernel < kSteps ? 4 : Team::template kResident<Layout>, Team, O, Source, Layout >, call.shape(),
                  source, rows::shares_of(call), call.region<typename O::Acc>("partials"), call.counter,
                  result_of(call, source), layout);
  });
}

const Rung<launch_one> rung("row_block");

}  // namespace treduce::reduce::row_block
