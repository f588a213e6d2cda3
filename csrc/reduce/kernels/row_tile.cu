// Idea: short rows of any length (3, 7, 49 elements) do not fit vectors or warps. A block copies a tile of rows to shared memory
// in 16-byte loads, as one run of memory, and then each thread reduces one row out of shared memory, where strides cost little.
//
// After:   thread, whose lanes read a row apart from global memory.
// Mapping: a tile is `span` batches of length x columns elements that lie one after another (columns = 1: rows). Thread t takes
//          outputs t, t + T, ... of the tile; the elements of one lie `columns` apart.
// Bound:   memory bandwidth; shared-memory bank conflicts for rows of an even number of words.
// Next:    row_lanes, where rows are whole vectors and need no detour.
// Source:  CUB's block load with transposition (Duane Merrill).
#include "../../primitives/neighbours.h"
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../reads.h"
#include "../store.cuh"

namespace treduce::reduce::row_tile {

constexpr int kShortRow = 8;  // elements up to which a row is one node of eight: see kShort

// kShort: rows of up to kShortRow elements whose results lie one after another. Then few instructions are left for each, where
// they are what bounds the kernel.
template <bool kShort, class O, class Source>
__global__ void __launch_bounds__(kMaxBlock)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Extents out, Divider columns, int64_t batches,
           int batches_a_tile, int length, MappedResult result) {
  using Acc = typename O::Acc;
  using T = typename Source::Raw;
  constexpr int kSize = vector_of<Source>;
  constexpr int kAhead = 6;  // loads in flight
  T* const tile = dynamic_shared<T>();
  const int width = static_cast<int>(columns.divisor);
  const int batch_size = length * width;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * batches_a_tile; first < batches;
       first += static_cast<int64_t>(gridDim.x) * batches_a_tile) {
    const int count = static_cast<int>(batches - first < batches_a_tile ? batches - first : batches_a_tile);
    const T* const source = x.data + first * batch_size;
    const int elements = count * batch_size;
    // Element i of the tile lies at tile[shift + i], so that both sides of a 16-byte copy are aligned.
    const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(source) % 16 / sizeof(T));
    const int head = shift == 0 ? 0 : min(kSize - shift, elements);
    const int vectors = (elements - head) / kSize;
    const int tail = head + vectors * kSize;

    // The block copies the tile: whole vectors, and element by element what lies before and after them.
    for (int v = threadIdx.x; v < vectors; v += kAhead * blockDim.x) {
      Pack<T, kSize> pack[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int mine = v + a * blockDim.x;
        if (mine < vectors) pack[a] = load_pack<kSize>(Stored<T>{{source}}, head + mine * kSize);
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int mine = v + a * blockDim.x;
        if (mine < vectors) *reinterpret_cast<int4*>(tile + shift + head + mine * kSize) = pack[a].words;
      }
    }
    for (int i = threadIdx.x; i < head; i += blockDim.x) tile[shift + i] = source[i];
    for (int i = tail + threadIdx.x; i < elements; i += blockDim.x) tile[shift + i] = source[i];
    __syncthreads();

    // A thread reduces a row. First the node over up to eight elements, `step` apart.
    const auto eight = [&](const T* from, int step, int there) {
      Several<T, 8> raw = {};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (k < there) raw.at[k] = from[k * step];
      }
      // What is missing is zero, which a sum needs not ask about.
      constexpr bool kZeroIsIdentity = std::is_same_v<Source, Stored<T>> && std::is_same_v<O, Sum<Acc>>;
      Acc value[8];
      x.each(raw, [&](int k, auto element) {
        value[k] = kZeroIsIdentity || k < there ? widen<Acc>(element) : O::identity();
      });
      return thread::fold_neighbours<O>(value);
    };
    if constexpr (kShort) {
      as_stored<Source, Acc>(result.dtype, [&](auto zero) {
        using Out = decltype(zero);
        Out* const out = static_cast<Out*>(result.data) + first;
#pragma unroll 2
        for (int o = threadIdx.x; o < count; o += blockDim.x) {
          const Acc value[1] = {eight(tile + shift + o * length, 1, length)};
          Acc finished[1];
          finish<O>(value, result, finished);
          out[o] = round_to<Out>(finished[0]);
        }
      });
    } else {
      for (int o = threadIdx.x; o < count * width; o += blockDim.x) {
        const int batch = static_cast<int>(columns.quotient(o));
        const T* const row = tile + shift + batch * batch_size + (o - batch * width);
        Neighbours<O, 4> eights;  // nodes over eight lanes: at most 16 of them
        for (int e = 0; e < length; e += 8) eights.push(eight(row + e * width, width, length - e));
        result.store<O>(eights.value(), offset_of(out, first * width + o));
      }
    }
    __syncthreads();
  }
}

cudaError_t launch_one(const Call& call) {
  return dispatch_vectors(call, [&](auto op, auto source) -> cudaError_t {
    const Geometry& g = call.request.geometry;
    const Divider columns(call.prepared.schedule.tile);
    using O = decltype(op);
    using Source = decltype(source);
    const bool is_short = g.length <= kShortRow && columns.divisor == 1 && g.kept_out.is_dense();
    return launch(is_short ? &kernel<true, O, Source> : &kernel<false, O, Source>, call.shape(), source, g.kept_out,
                  columns, g.outputs / columns.divisor, static_cast<int>(call.prepared.schedule.span),
                  static_cast<int>(g.length), result_of(call, source));
  });
}

const Rung<launch_one> rung("row_tile");

}  // namespace treduce::reduce::row_tile
