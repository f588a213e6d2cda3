// Idea: short rows of any length (3, 12, 49 elements) do not fit vectors or warps. A block copies a tile of rows to shared memory
// in asynchronous 16-byte copies, as one run of memory, and then each thread reduces rows out of shared memory, where strides cost
// little. The other blocks of the multiprocessor copy meanwhile.
//
// After:   thread, whose lanes read a row apart from global memory.
// Mapping: a tile is `span` batches of length x columns elements that lie one after another (columns = 1: rows). Thread t takes
//          outputs t, t + T, ... of the tile; the elements of one lie `columns` apart. Rows of whole words are read by words.
// Bound:   memory bandwidth; shared-memory bank conflicts for rows of an even number of words.
// Next:    row_lanes, where rows are whole vectors and need no detour.
// Source:  CUB's block load with transposition (Duane Merrill).
#include "../../primitives/neighbours.h"
#include "../../primitives/ptx/copy.cuh"
#include "../../primitives/ptx/launch.cuh"
#include "../../primitives/shared.cuh"
#include "../../primitives/thread.cuh"
#include "../lanes.cuh"
#include "../reads.h"
#include "../store.cuh"

namespace treduce::reduce::row_tile {

constexpr int kGranule = 16;    // bytes of a copy
constexpr int kRowsAtOnce = 4;  // of a thread, where they are short

// Copies `elements` elements from `source` on to `stage`, a multiple of 16 bytes, at the same offset modulo 16 bytes as `source`. Reads
// stay within [begin, end). The copies are asynchronous, but for elements at the array's ends that fill no granule.
// Who calls: every thread of the block.
template <class T>
TREDUCE_DEVICE void copy_tile(T* stage, const T* source, int elements, const T* begin, const T* end) {
  constexpr int kSize = kGranule / static_cast<int>(sizeof(T));
  const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(source) % kGranule / sizeof(T));
  const T* const from = source - shift;
  const int64_t whole = (end - from) / kSize;  // granules
  const int covered = (shift + elements + kSize - 1) / kSize;
  const int first = from < begin ? 1 : 0, last = whole < covered ? static_cast<int>(whole) : covered;
  const int begin_of_thread = first + static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  ptx::SharedAddress to = ptx::shared_address(stage) + begin_of_thread * kGranule;
  const T* read = from + begin_of_thread * kSize;
#pragma unroll 4
  for (int v = begin_of_thread; v < last; v += step, read += step * kSize, to += step * kGranule) {
    ptx::copy_async<kGranule>(to, read);
  }
  const int head = first == 1 ? min(kSize - shift, elements) : 0, tail = max(head, last * kSize - shift);
  for (int i = threadIdx.x; i < head; i += blockDim.x) stage[shift + i] = source[i];
  for (int i = tail + threadIdx.x; i < elements; i += blockDim.x) stage[shift + i] = source[i];
}

// What a thread reads from shared memory at once: an element, or the elements of a 32-bit word.
template <class Source, bool kWords>
constexpr int unit_of = kWords ? 4 / static_cast<int>(sizeof(typename Source::Raw)) : 1;

template <bool kWords, class O, class Source>
struct Row {
  using T = typename Source::Raw;
  using Acc = typename O::Acc;
  using Op = typename Narrowed<O, std::is_integral_v<Acc> &&
                                      (sizeof(T) <= 2 || (sizeof(T) == 4 && !std::is_same_v<O, Sum<Acc>>))>::Op;
  using Word = typename Op::Acc;
  static constexpr int kUnit = unit_of<Source, kWords>;

  // The node over kCount units, `step` elements apart.
  template <int kCount>
  TREDUCE_DEVICE static Word node(const Source& x, const T* from, int step) {
    Several<T, kCount * kUnit> raw;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if constexpr (kUnit == 1) {
        raw.at[k] = from[k * step];
      } else {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(from + k * kUnit);
        memcpy(raw.at + k * kUnit, &word, sizeof(word));
      }
    }
    Word value[kCount * kUnit];
    x.each(raw, [&](int c, auto element) { value[c] = widen<Word>(element); });
    return thread::fold_neighbours<Op>(value);
  }

  // The node over `count` units, of up to 128 elements: aligned runs of eight, then of four, two and one.
  TREDUCE_DEVICE static Word nodes(const Source& x, const T* from, int step, int count) {
    Neighbours<Op, 4> eights;
    int k = 0;
    for (; k + 8 <= count; k += 8) eights.push(node<8>(x, from + k * step, step));
    // From the last run to the first: the shorter are on the right.
    const int rest = count - k;
    Word value = Op::identity();
    bool any = false;
    const auto join = [&](Word left) {
      value = any ? Op::combine(left, value) : left;
      any = true;
    };
    if (rest & 1) join(node<1>(x, from + (k + (rest & 6)) * step, step));
    if (rest & 2) join(node<2>(x, from + (k + (rest & 4)) * step, step));
    if (rest & 4) join(node<4>(x, from + k * step, step));
#pragma unroll
    for (int level = 0; level <= 4; ++level) {
      if (eights.count >> level & 1) join(eights.level[level]);
    }
    return value;
  }
};

constexpr int kMostUnits = 8;  // of a row that is one node of a size known at compile time

// Calls body(integral_constant<count>), for a count of up to kMostUnits.
template <int kCount = 1, class Body>
TREDUCE_DEVICE void with_count(int count, Body body) {
  if constexpr (kCount < kMostUnits) {
    if (count != kCount) return with_count<kCount + 1>(count, body);
  }
  body(std::integral_constant<int, kCount>{});
}

template <bool kWords, class O, class Source>
__global__ void __launch_bounds__(kTileThreads)
    kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Extents out, bool dense_outs, Divider columns,
           int64_t batches, int batches_a_tile, int length, TREDUCE_GRID_CONSTANT MappedResult result) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  using T = typename Source::Raw;
  using Row = row_tile::Row<kWords, O, Source>;
  T* const shared = dynamic_shared<T>();
  const int width = static_cast<int>(columns.divisor);
  const int batch_size = length * width;
  const int units = length / Row::kUnit;
  const bool is_short = width == 1 && dense_outs && units <= kMostUnits;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * batches_a_tile; first < batches;
       first += static_cast<int64_t>(gridDim.x) * batches_a_tile) {
    const int count = static_cast<int>(batches - first < batches_a_tile ? batches - first : batches_a_tile);
    const T* const source = x.data + first * batch_size;
    copy_tile(shared, source, count * batch_size, x.data, x.data + batches * batch_size);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    ptx::allow_launch_after();
    __syncthreads();

    const T* const tile = shared + reinterpret_cast<uintptr_t>(source) % kGranule / sizeof(T);
    // A thread reduces a row. Few units are one node, of a size known at compile time, and a thread takes several rows at once:
    // past the last row they are clamped to it.
    if (is_short) {
      for (int o = threadIdx.x; o < count; o += kRowsAtOnce * blockDim.x) {
        Acc value[kRowsAtOnce], finished[kRowsAtOnce];
        with_count(units, [&](auto known) {
#pragma unroll
          for (int r = 0; r < kRowsAtOnce; ++r) {
            const int row = min(o + r * static_cast<int>(blockDim.x), count - 1);
            value[r] = static_cast<Acc>(Row::template node<known.value>(x, tile + row * length, 1));
          }
        });
        finish<O>(value, result, finished);
        as_stored<Source, Acc>(result.dtype, [&](auto zero) {
          using Out = decltype(zero);
#pragma unroll
          for (int r = 0; r < kRowsAtOnce; ++r) {
            const int row = o + r * static_cast<int>(blockDim.x);
            if (row < count) static_cast<Out*>(result.data)[first + row] = round_to<Out>(finished[r]);
          }
        });
      }
    } else {
      for (int o = threadIdx.x; o < count * width; o += blockDim.x) {
        const int batch = static_cast<int>(columns.quotient(o));
        const T* const row = tile + batch * batch_size + (o - batch * width);
        const auto value = width == 1 ? Row::nodes(x, row, Row::kUnit, units) : Row::nodes(x, row, width, units);
        const int64_t at = first * width + o;
        result.store<O>(static_cast<Acc>(value), dense_outs ? at : offset_of(out, at));
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
    auto chosen = &kernel<false, O, Source>;
    if constexpr (unit_of<Source, true> > 1) {
      const auto row_bytes = static_cast<uint64_t>(g.length * size_of(call.request.dtype));
      const bool words = columns.divisor == 1 && row_bytes % 4 == 0 && reinterpret_cast<uintptr_t>(call.input) % 4 == 0;
      if (words) chosen = &kernel<true, O, Source>;
    }
    return launch(chosen, call.shape(), source, g.kept_out, g.kept_out.is_dense(), columns, g.outputs / columns.divisor,
                  static_cast<int>(call.prepared.schedule.span), static_cast<int>(g.length), result_of(call, source));
  });
}

const Rung<launch_one> rung("row_tile");

}  // namespace treduce::reduce::row_tile
