// Idea: integers do not round. Every thread keeps a small superaccumulator in shared memory, a number wide enough for
// the whole range of exponents; threads, blocks and splits then add digit by digit, and one rounding ends the exact
// sum.
//
// After:   compensated, which carries one error term and still rounds it. Here the order of the additions is free, so
//          this rung follows no order of leaves, and any permutation of the elements gives the same bits.
// Mapping: a block takes a tile of outputs, a power of two of them, and as many lanes an output as it has threads for.
//          Neighbouring threads are lanes of one output, or the same lane of neighbouring outputs where those lie
//          closer in memory. Cell r of thread t is cells[r][t]: no bank conflicts, whatever cells the elements of a
//          warp fall into. With splits, each takes `span` elements, and the last block of a tile to finish adds up.
// Bound:   memory bandwidth or, for 16-bit floats, shared memory: 16 bytes an element there, and 32 for float64. Some
//          10 instructions an element, 33 for float64. float16 adds in a register, so that conversions bound it. Other
//          dtypes than the common floats are looked up at each element.
// Note:    block_size is an upper bound. Shared memory holds the cells of 256 threads for floats of up to 32 bits, 128
//          for complex64, 64 for float64, 32 for complex128.
// Source:  Radford Neal, Fast exact summation using small and large superaccumulators (2015); Sylvain Collange, David
//          Defour, Stef Graillat and Roman Iakymchuk, Numerical reproducibility for the parallel reduction (2015).
#include "../../primitives/grid.cuh"
#include "../../primitives/thread.cuh"
#include "../../primitives/warp.cuh"
#include "../exact.h"
#include "../reads.h"

namespace treduce::reduce::exact_rung {

using exact::Sink;
using exact::Traits;

// Blocks that an SM of an H200 has shared memory for, so register use must not lower this occupancy.
template <class Element>
constexpr int kResident = sizeof(typename Traits<Element>::Real) == 8 ? 6 : 4;

// How a block's threads share its tile: thread t works for output x of the tile, as lane y of it.
struct Tile {
  int outputs, lanes;
  bool outputs_side_by_side;

  TREDUCE_DEVICE int thread(int x, int y) const { return outputs_side_by_side ? y * outputs + x : x * lanes + y; }
  TREDUCE_DEVICE int x_of(int t) const { return outputs_side_by_side ? t % outputs : t / lanes; }
  TREDUCE_DEVICE int y_of(int t) const { return outputs_side_by_side ? t / outputs : t % lanes; }
};

// What a call is, beside its elements.
struct Problem {
  Extents reduced, kept, kept_out;
  int64_t length, outputs, tiles, splits, span;
  bool vectors;
  Tile tile;
};

// Lane `lane` of `lanes` takes its share of x[0 .. count).
template <class Element>
TREDUCE_DEVICE void take_run(Sink<Element>& sink, const Element* x, int64_t count, int lane, int lanes) {
  using Vector = thread::Vector<Element>;
  constexpr int kSize = Vector::kSize, kAhead = 4;
  int64_t head = static_cast<int64_t>((0 - reinterpret_cast<uintptr_t>(x)) % 16 / sizeof(Element));
  if (head > count) head = count;
  sink.reserve(kSize);
  for (int64_t i = lane; i < head; i += lanes) sink.add(x[i]);
  x += head;
  count -= head;

  const int64_t vectors = count / kSize;
  int64_t v = lane;
  for (; v + (kAhead - 1) * lanes < vectors; v += kAhead * lanes) {
    Vector ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) ahead[a] = thread::load<true>(x, (v + a * lanes) * kSize);
    sink.reserve(kAhead * kSize);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) sink.add(ahead[a].at[c]);
    }
  }
  sink.reserve(kAhead * kSize);
  for (; v < vectors; v += lanes) {
    const Vector one = thread::load<true>(x, v * kSize);
#pragma unroll
    for (int c = 0; c < kSize; ++c) sink.add(one.at[c]);
  }
  for (int64_t i = vectors * kSize + lane; i < count; i += lanes) sink.add(x[i]);
}

// Lane `lane` takes its share of elements begin .. end of the output that begins at x[row].
template <class Source>
TREDUCE_DEVICE void take(Sink<typename Source::Element>& sink, const Source& x, const Problem& problem, int64_t row,
                         int64_t begin, int64_t end, int lane) {
  const int lanes = problem.tile.lanes;
  if constexpr (!Source::kConverts) {
    if (problem.vectors) {
      const Divider& inner = problem.reduced.size[problem.reduced.count - 1];
      for (int64_t e = begin; e < end;) {
        const int64_t left = (inner.quotient(e) + 1) * inner.divisor - e;
        const int64_t count = left < end - e ? left : end - e;
        take_run(sink, x.data + row + problem.reduced.offset(e), count, lane, lanes);
        e += count;
      }
      return;
    }
  }
  constexpr int kAhead = 4;
  for (int64_t e = begin + lane; e < end; e += kAhead * lanes) {
    typename Source::Element ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (e + a * lanes < end) ahead[a] = x.at(row + problem.reduced.offset(e + a * lanes));
    }
    sink.reserve(kAhead);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (e + a * lanes < end) sink.add(ahead[a]);
    }
  }
}

// Adds the cells of an output's lanes into those of lane 0.
// Who calls: every thread of the block. Synchronises on the way in and out.
template <int kRows>
TREDUCE_DEVICE void fold_lanes(int64_t* cells, const Tile& tile) {
  __syncthreads();
  const int threads = blockDim.x;
  const int sums = kRows * tile.outputs;
  int team = 1;  // threads that share a sum
  while (team < warp::kLanes && 2 * team <= tile.lanes && 2 * team * sums <= threads) team *= 2;
  const int each = tile.lanes / team;
  for (int first = 0; tile.lanes > 1 && first < sums * team; first += threads) {
    const int mine = (first + static_cast<int>(threadIdx.x)) / team, part = threadIdx.x % team;
    const int row = mine % kRows, x = mine / kRows;
    int64_t sum = 0;
    if (mine < sums) {
      // Neighbouring sums begin at different lanes, hence in different banks.
#pragma unroll 4
      for (int k = 0; k < each; ++k) {
        sum += cells[row * threads + tile.thread(x, part + team * ((k + mine) & (each - 1)))];
      }
    }
    for (int s = 1; s < team; s *= 2) sum += warp::exchange(sum, s);
    if (mine < sums && part == 0) cells[row * threads + tile.thread(x, 0)] = sum;
  }
  __syncthreads();
}

// The partials of a tile: row r of split s of output x lies at [r][s][x], and behind the last row, for x = 0, the first
// and the last row that are not zero.
template <int kRows>
struct Partials {
  int64_t* at;
  int64_t splits;
  int outputs;

  TREDUCE_DEVICE int64_t* cell(int row, int64_t split, int x) const {
    return at + (row * splits + split) * outputs + x;
  }

  // This block's cells, those of lane 0, become the partials of `split`.
  // Who calls: every thread of the block. `used`: two shared ints. Synchronises; the last write is followed by no
  // barrier.
  template <class Element>
  TREDUCE_DEVICE void write(int64_t split, const int64_t* cells, const Tile& tile, int* used) const {
    const int threads = blockDim.x;
    reset(used);
    for (int i = threadIdx.x; i < kRows * outputs; i += threads) {
      const int row = i / outputs, x = i % outputs;
      const int64_t value = exact::carried<Element>(cells + tile.thread(x, 0), threads, row);
      *cell(row, split, x) = value;
      if (value != 0) include(used, row, row);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      *cell(kRows, split, 0) = static_cast<int64_t>(used[0]) << 32 | static_cast<uint32_t>(used[1] + 1);
    }
  }

  // This thread's share of all splits goes to its own cells.
  // Who calls: every thread of the block, after which all must synchronise. `used`: two shared ints.
  TREDUCE_DEVICE void read(int64_t* cells, int x, int lane, int lanes, int* used) const {
    constexpr int kAhead = 8;
    const int threads = blockDim.x;
    reset(used);
    for (int64_t split = threadIdx.x; split < splits; split += threads) {
      const int64_t range = __ldcg(cell(kRows, split, 0));
      const int first = static_cast<int>(range >> 32), end = static_cast<int>(range & 0xffffffff);
      if (end > 0) include(used, first, end - 1);
    }
    __syncthreads();
    const int first = used[0], last = used[1];
    for (int row = 0; row < kRows; ++row) {
      int64_t sum = 0;
      for (int64_t split = lane; row >= first && row <= last && split < splits; split += kAhead * lanes) {
        int64_t ahead[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          ahead[a] = split + a * lanes < splits ? __ldcg(cell(row, split + a * lanes, x)) : 0;
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) sum += ahead[a];
      }
      cells[row * threads + threadIdx.x] = sum;
    }
  }

 private:
  TREDUCE_DEVICE static void reset(int* used) {
    if (threadIdx.x == 0) {
      used[0] = kRows;
      used[1] = -1;
    }
    __syncthreads();
  }
  TREDUCE_DEVICE static void include(int* used, int first, int last) {
    atomicMin(used, first);
    atomicMax(used + 1, last);
  }
};

template <class Source>
__global__ void __launch_bounds__(exact::kThreadsOfBlock<typename Source::Element>, kResident<typename Source::Element>)
    kernel(Source source, Problem problem, int64_t* partials, unsigned* counters, Result result) {
  using Element = typename Source::Element;
  constexpr int kRows = Traits<Element>::kRows;
  static_assert(kResident<Element> * exact::kThreadsOfBlock<Element> <= exact::kThreadsAnSm);
  SHARED_ARRAY(int, used, 2);
  int64_t* const cells = dynamic_shared<int64_t>();
  const int threads = blockDim.x, t = threadIdx.x;
  const Tile& tile = problem.tile;
  const int x = tile.x_of(t), lane = tile.y_of(t);

  for (int64_t i = blockIdx.x; i < problem.tiles; i += gridDim.x) {
    const int64_t tile_index = problem.splits == 1 ? i : i / problem.splits;
    const int64_t split = i - tile_index * problem.splits;
    const int64_t output = tile_index * tile.outputs + x;
    Sink<Element> sink(cells + t, threads);
    if (output < problem.outputs) {
      const int64_t begin = split * problem.span;
      const int64_t end = problem.length - begin < problem.span ? problem.length : begin + problem.span;
      take(sink, source, problem, problem.kept.offset(output), begin, end, lane);
    }
    sink.close();
    fold_lanes<kRows>(cells, tile);
    bool ends = true;
    if (problem.splits > 1) {
      const Partials<kRows> of_tile{
          partials + tile_index * exact::rows_of_partial(kRows) * problem.splits * tile.outputs, problem.splits,
          tile.outputs};
      of_tile.template write<Element>(split, cells, tile, used);
      __syncthreads();
      ends = grid::arrive_last(counters + tile_index, static_cast<unsigned>(problem.splits));
      if (ends) {
        of_tile.read(cells, x, lane, tile.lanes, used);
        fold_lanes<kRows>(cells, tile);
      }
    }
    const int64_t mine = tile_index * tile.outputs + t;
    if (ends && t < tile.outputs && mine < problem.outputs) {
      exact::store<Element>(result, cells + tile.thread(t, 0), threads, problem.kept_out.offset(mine));
    }
    __syncthreads();  // before the next tile's cells, and its turn at the counter
  }
}

cudaError_t launch_one(const Call& call) {
  const auto launch_source = [&](auto op, auto source) -> cudaError_t {
    using Source = decltype(source);
    using Element = typename Source::Element;
    using Acc = typename decltype(op)::Acc;
    if constexpr (std::is_integral_v<Acc> || !std::is_same_v<decltype(op), Sum<Acc>>) {
      return cudaErrorNotSupported;  // nothing rounds: such a call takes a plain rung
    } else {
      const Geometry& g = call.request.geometry;
      const Schedule& s = call.prepared.schedule;
      if (s.block > exact::kThreadsOfBlock<Element> || s.tile > s.block) return cudaErrorInvalidConfiguration;
      const int outputs = static_cast<int>(s.tile);
      const Problem problem{
          g.reduced, g.kept,   g.kept_out, g.length,  g.outputs,
          s.tiles,   s.splits, s.span,     s.vectors, {outputs, s.block / outputs, exact::outputs_side_by_side(g)}};
      return launch(&kernel<Source>, call.shape(), source, problem, call.region<int64_t>("cells"), call.counter,
                    call.result);
    }
  };
  return reads_common_sum(call) ? dispatch_common_sum(call, launch_source) : dispatch_looked_up(call, launch_source);
}

const Rung<launch_one> rung("exact");

}  // namespace treduce::reduce::exact_rung
