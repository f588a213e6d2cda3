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
#include "../columns.cuh"

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
    for (int s = kWidth; s < kSize; s *= 2) {
#pragma unroll
      for (int c = 0; c + s < kSize; c += 2 * s) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) leaf[c + j] = O::combine(leaf[c + j], leaf[c + s + j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) to[j] = leaf[j];
  }
}

template <class O, int kSize, class Source, class Placement>
__global__ void __launch_bounds__(512)
    kernel(TREDUCE_GRID_CONSTANT Source x, Divider vectors, int width, int64_t tiles,
           TREDUCE_GRID_CONSTANT Divider splits_of_batch, int span, int rows_of_vector, int64_t length,
           typename O::Acc* partials, unsigned* counters, Result result, TREDUCE_GRID_CONSTANT Placement placement) {
  using Acc = typename O::Acc;
  using T = typename Source::Element;
  const int stripe = Pairwise::kLanes * width;  // elements
  const int of_stripe = stripe / rows_of_vector;
  Acc* const leaves =
      dynamic_shared<Acc>();  // [span * lanes / rows_of_vector][width], and an eighth of it for the fold
  const int all = span * of_stripe;
  const int64_t splits = splits_of_batch.divisor;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t batch = splits_of_batch.quotient(tile);
    const int64_t part = tile - batch * splits;
    const int64_t base = placement.kept.offset(batch * width);
    const int64_t end = length * width;
    const int64_t begin = part * span * Pairwise::kChunk * width;
    const int items = span * static_cast<int>(vectors.divisor);
    for (int i = threadIdx.x; i < items; i += blockDim.x) {
      const int chunk = static_cast<int>(vectors.quotient(i));
      const int p = (i - chunk * static_cast<int>(vectors.divisor)) * kSize;
      const int64_t first = begin + static_cast<int64_t>(chunk) * Pairwise::kStripes * stripe + p;
      Acc leaf[kSize];
#pragma unroll
      for (int c = 0; c < kSize; ++c) leaf[c] = O::identity();
      if (first + 7 * stripe + kSize <= end) {
        Pack<T, kSize> pack[Pairwise::kStripes];
#pragma unroll
        for (int s = 0; s < Pairwise::kStripes; ++s) pack[s] = load_pack<kSize>(x, base + first + s * stripe);
#pragma unroll
        for (int s = 0; s < Pairwise::kStripes; ++s) {
          const auto elements = pack[s].elements();
#pragma unroll
          for (int c = 0; c < kSize; ++c) leaf[c] = O::combine(leaf[c], widen<Acc>(elements.at[c]));
        }
      } else {
#pragma unroll 1
        for (int64_t e = first; e < end && e < first + Pairwise::kStripes * stripe; e += stripe) {
#pragma unroll
          for (int c = 0; c < kSize; ++c) {
            if (e + c < end) leaf[c] = O::combine(leaf[c], widen<Acc>(x.at(base + e + c)));
          }
        }
      }
      if (rows_of_vector == 1) {
        store_side(leaves + chunk * of_stripe + p, leaf);
      } else {
        fold_rows<O>(leaf, rows_of_vector, leaves + chunk * of_stripe + p / rows_of_vector);
      }
    }
    const int nodes = span * Pairwise::kLanes / rows_of_vector;
    const Acc* folded = columns::fold_rounds<O>(leaves, leaves + all, nodes, width, threadIdx.x, blockDim.x);
    __syncthreads();
    bool last = splits == 1;
    if (!last) {
      for (int j = threadIdx.x; j < width; j += blockDim.x) partials[tile * width + j] = folded[j];
      __syncthreads();
      last = treduce::grid::arrive_last(counters + batch, static_cast<unsigned>(splits));
      if (last) {
        folded = columns::fold_splits<O>(partials + batch * splits * width, static_cast<int>(splits), width, leaves,
                                         nodes, threadIdx.x, blockDim.x);
        __syncthreads();
      }
    }
    if (last) {
      for (int j = threadIdx.x; j < width; j += blockDim.x)
        result.store<O>(folded[j], placement.kept.out(batch * width + j));
    }
    if (tile + gridDim.x < tiles) __syncthreads();
  }
}

cudaError_t launch_one(const Call& call) {
  return columns::dispatch(call, [&](auto op, auto source, auto held, auto placement) -> cudaError_t {
    using O = decltype(op);
    constexpr int kSize = held.kVectors ? held.kSize : 1;
    const Geometry& g = call.request.geometry;
    const Schedule& s = call.prepared.schedule;
    const int width = static_cast<int>(s.tile);
    const int rows_of_vector = kSize % width == 0 ? kSize / width : 1;
    return launch(&kernel<O, kSize, decltype(source), decltype(placement)>, call.shape(), source,
                  Divider(Pairwise::kLanes * width / kSize), width, s.tiles, Divider(s.splits),
                  static_cast<int>(s.span), rows_of_vector, g.length, static_cast<typename O::Acc*>(call.workspace),
                  call.counter, call.result, placement);
  });
}

const Rung<launch_one> rung("column_narrow");

}  // namespace treduce::reduce::column_narrow
