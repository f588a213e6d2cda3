// Idea: a matrix of few columns is read as what it is in memory, one run: element p of a chunk of rows belongs to column
// p % columns. Threads take 16 bytes wherever they fall, and stripes of 128 rows lie under one another, so that a thread's eight
// loads stay in its columns and lanes.
//
// After:   column_block, whose threads side by side would read past the few columns.
// Mapping: a block takes `span` chunks of 1024 rows. Item i of it is a vector of the first stripe and the seven below; its leaves
//          go to shared memory as [node][column], where eight neighbours at a time are folded. A vector of several rows is folded
//          to one node before.
// Bound:   memory bandwidth.
// Next:    compensated computes the same sums more accurately.
// Source:  this project.
#include "../column_folds.cuh"

namespace treduce::reduce::column_narrow {

// Neighbours in shared memory, `to` on a multiple of kSize: in 16-byte stores where they fill them.
template <class Acc, int kSize>
TREDUCE_DEVICE void store_side(Acc* to, const Acc (&value)[kSize]) {
  constexpr int kBytes = kSize * static_cast<int>(sizeof(Acc));
  if constexpr (kBytes % 16 == 0) {
    int4 words[kBytes / 16];
    memcpy(words, value, kBytes);
#pragma unroll
    for (int w = 0; w < kBytes / 16; ++w) reinterpret_cast<int4*>(to)[w] = words[w];
  } else {
#pragma unroll
    for (int c = 0; c < kSize; ++c) to[c] = value[c];
  }
}

// A vector of `rows` rows, a power of two, of kSize / rows columns each: their node goes to `to`, column by column.
template <class O, int kSize, int kWidth = 1>
TREDUCE_DEVICE void fold_rows(typename O::Acc (&leaf)[kSize], int rows, typename O::Acc* to) {
  if constexpr (kWidth < kSize) {
    if (rows * kWidth != kSize) return fold_rows<O, kSize, 2 * kWidth>(leaf, rows, to);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      typename O::Acc of_column[kSize / kWidth];
#pragma unroll
      for (int r = 0; r < kSize / kWidth; ++r) of_column[r] = leaf[r * kWidth + j];
      to[j] = thread::fold_neighbours<O>(of_column);
    }
  }
}

template <class O, int kSize, class Source>
__global__ void __launch_bounds__(kNarrowThreads)
    kernel(TREDUCE_GRID_CONSTANT Source x, Divider vectors, int width, int64_t tiles,
           TREDUCE_GRID_CONSTANT Divider splits_of_batch, int chunks_a_block, int rows_of_vector, int64_t length,
           typename O::Acc* partials, unsigned* counters, MappedResult result,
           TREDUCE_GRID_CONSTANT columns::Kept kept) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  using Raw = typename Source::Raw;
  const int stripe = Pairwise::kLanes * width;  // elements
  const int of_stripe = stripe / rows_of_vector;
  Acc* const leaves = dynamic_shared<Acc>();  // [chunk, lane / rows_of_vector][column], and room for an eighth of it
  const int slots = chunks_a_block * Pairwise::kLanes / rows_of_vector;
  const int splits = static_cast<int>(splits_of_batch.divisor);
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    // Which chunks of which matrix.
    const int64_t batch = splits_of_batch.quotient(tile);
    const int part = static_cast<int>(tile - batch * splits);
    const int64_t base = kept.offset(batch * width);
    const int64_t end = length * width;
    const int64_t begin = static_cast<int64_t>(part) * chunks_a_block * Pairwise::kChunk * width;

    // A thread takes a vector of the first stripe and those under it, and leaves their leaves in shared memory.
    const int items = chunks_a_block * static_cast<int>(vectors.divisor);
    for (int i = threadIdx.x; i < items; i += blockDim.x) {
      const int chunk = static_cast<int>(vectors.quotient(i));
      const int p = (i - chunk * static_cast<int>(vectors.divisor)) * kSize;
      const int64_t first = begin + static_cast<int64_t>(chunk) * Pairwise::kStripes * stripe + p;
      Acc leaf[kSize];
#pragma unroll
      for (int c = 0; c < kSize; ++c) leaf[c] = O::identity();
      if (first + 7 * stripe + kSize <= end) {
        Pack<Raw, kSize> pack[Pairwise::kStripes];
#pragma unroll
        for (int s = 0; s < Pairwise::kStripes; ++s) pack[s] = load_pack<kSize>(x, base + first + s * stripe);
#pragma unroll
        for (int s = 0; s < Pairwise::kStripes; ++s) {
          x.each(pack[s], [&](int c, auto element) { leaf[c] = O::combine(leaf[c], widen<Acc>(element)); });
        }
      } else {
#pragma unroll 1
        for (int64_t e = first; e < end && e < first + Pairwise::kStripes * stripe; e += stripe) {
          const int there = end - e < kSize ? static_cast<int>(end - e) : kSize;
          x.each(load_some<kSize>(x, base + e, 0, there), [&](int c, auto element) {
            if (c < there) leaf[c] = O::combine(leaf[c], widen<Acc>(element));
          });
        }
      }
      if (rows_of_vector == 1) {
        store_side(leaves + chunk * of_stripe + p, leaf);
      } else {
        fold_rows<O>(leaf, rows_of_vector, leaves + chunk * of_stripe + p / rows_of_vector);
      }
    }

    // The leaves meet there, column by column.
    const int thread = threadIdx.x, threads = blockDim.x;
    int folded = columns::fold_rounds<O>(0, slots * width, slots, width, thread, threads);
    __syncthreads();

    // A block alone writes its columns. Of several, the last to finish folds what they left.
    bool is_last = splits == 1;
    if (!is_last) {
      Acc* const of_batch = partials + batch * splits * width;
      is_last = width % columns::kSideOf<Acc> == 0
                    ? columns::fold_with_other_blocks<O, true>(folded, of_batch, part, splits, counters + batch, width,
                                                               slots, thread, threads)
                    : columns::fold_with_other_blocks<O, false>(folded, of_batch, part, splits, counters + batch, width,
                                                                slots, thread, threads);
    }
    if (is_last) {
      for (int j = thread; j < width; j += threads) {
        result.template store<O>(leaves[folded + j], kept.out(batch * width + j));
      }
    }
    if (tile + gridDim.x < tiles) __syncthreads();
  }
}

cudaError_t launch_one(const Call& call) {
  const auto start = [&](auto op, auto source, auto size) {
    using O = decltype(op);
    constexpr int kSize = decltype(size)::value;
    const Geometry& g = call.request.geometry;
    const Schedule& s = call.prepared.schedule;
    const int width = static_cast<int>(s.tile);
    const int rows_of_vector = kSize % width == 0 ? kSize / width : 1;
    return launch(&kernel<O, kSize, decltype(source)>, call.shape(), source, Divider(Pairwise::kLanes * width / kSize),
                  width, s.tiles, Divider(s.splits), static_cast<int>(s.span), rows_of_vector, g.length,
                  call.region<typename O::Acc>("partials"), call.counter, result_of(call, source), columns::Kept(g));
  };
  const auto one_by_one = [&](auto op, auto source) { return start(op, source, std::integral_constant<int, 1>{}); };
  if (call.prepared.schedule.vectors) {
    return dispatch_vectors(call, [&](auto op, auto source) {
      return start(op, source, std::integral_constant<int, columns::vector_columns<decltype(source)>>{});
    });
  }
  return reads_common_sum(call) ? dispatch_common_sum(call, one_by_one) : dispatch_looked_up(call, one_by_one);
}

const Rung<launch_one> rung("column_narrow");

}  // namespace treduce::reduce::column_narrow
