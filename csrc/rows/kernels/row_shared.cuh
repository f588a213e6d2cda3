// The kernel of row_shared.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../rows.cuh"

namespace treduce::rows::row_shared {

// A block's part of a row, and what its threads do with it.
template <template <class> class RowOp, class Source, int kSize>
struct Part {
  using Piece = Chunk<RowOp, Source, kSize, Pairwise::kStripes>;
  using Op = typename Piece::Op;
  using A = typename Piece::A;
  using Values = typename Op::Values;
  using Packs = typename Piece::Packs;
  // Elements as wide as the accumulator give their place to what they become.
  static constexpr bool kKeeps = std::is_same_v<typename Source::Raw, A>;
  static constexpr int kAheadWords = 16;  // registers suffice

  const Parameters<Source>& p;
  typename Source::Raw* elements;  // of the row at work, chunk after chunk; each thread reads what it wrote itself
  Two<A>* nodes;                   // of chunks, kTurns times as many as there may be; of the block, kTurns
  int chunks;                      // that a block holds at most
  int mine;                        // that it has
  int64_t first;                   // element
  int turn = 0;

  TREDUCE_DEVICE static typename Source::Raw* slot(typename Source::Raw* elements, int c) {
    return elements + static_cast<int64_t>(c) * (Op::kInputs * Pairwise::kChunk);
  }
  TREDUCE_DEVICE typename Source::Raw* slot(int c) const { return slot(elements, c); }
  TREDUCE_DEVICE typename Piece::Place place(int64_t row, int c) const {
    return Piece::place(p.problem, row, first + int64_t{c} * Pairwise::kChunk, threadIdx.x % kWarp);
  }

  // Asks for all of a row at once, and closes the group of its copies. Copies hold no registers; what they cannot copy is loaded.
  TREDUCE_DEVICE void ask(int64_t row, typename Source::Raw* to) const {
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    for (int c = threadIdx.x / kWarp; c < mine; c += warps) {
      const typename Piece::Begin begin{p, row, first + int64_t{c} * Pairwise::kChunk};
      const typename Piece::Place there = place(row, c);
      if constexpr (kSize > 1) {
        if (there.rest == Pairwise::kChunk) {
          Piece::copy(begin, there, slot(to, c));
          continue;
        }
      }
      Piece::fetch(p, begin, there).put(slot(to, c), lane);
    }
  }

  // kShifted: what copies leave out, the first thread's first vector of each whole chunk. The lanes of a warp share its elements; they
  // are loaded apart from being stored, so that other work may stand between.
  struct Ends {
    static constexpr int kMost = (kMostRounds * kSize + kWarp - 1) / kWarp;
    typename Source::Raw at[kMost][Op::kInputs];
  };
  TREDUCE_DEVICE Ends ends_of(int64_t row) const {
    Ends ends = {};
    each_end(row, [&](int k, int c, int element) {
      Piece::load_end({p, row, first + int64_t{c} * Pairwise::kChunk}, place(row, 0).shift, element, ends.at[k]);
    });
    return ends;
  }
  TREDUCE_DEVICE void put_ends(const Ends& ends, int64_t row, typename Source::Raw* to) const {
    __syncwarp();  // the first thread has read those of the row before
    each_end(row, [&](int k, int c, int element) { Piece::put_end(ends.at[k], element, slot(to, c)); });
    __syncwarp();  // the first thread reads them
  }

  // Reduces the row that was read; the node of the row.
  template <int kStage>
  TREDUCE_DEVICE typename Op::template Fold<kStage>::Acc reduce(const Values (&values)[1], int64_t row,
                                                                int log2_blocks) {
    using Fold = typename Op::template Fold<kStage>;
    using Acc = typename Fold::Acc;
    constexpr bool kMax = Piece::template kIsMax<Fold>;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    Acc* const of_chunk = reinterpret_cast<Acc*>(nodes + turn * chunks);
    Acc most[1][1] = {{Fold::identity()}};
    for (int c = warp; c < mine; c += warps) {
      const int64_t begin = first + int64_t{c} * Pairwise::kChunk;
      Piece piece[1];
      const Packs packs = Packs::of(slot(c), lane);
      if constexpr (kMax && Piece::kPairs) {
        if (place(row, c).rest == Pairwise::kChunk) {
          most[0][0] = Fold::combine(most[0][0], Piece::most_of(p, packs));
          continue;
        }
      }
      piece[0].take(p, packs);
      if constexpr (kStage > 0) Piece::template replay<0>(piece, p, values, begin, place(row, c));
      Acc node[1][Piece::template kNodes<Fold>];
      Piece::template map<kStage>(piece, p, values, begin, place(row, c), node);
      if constexpr (kKeeps && kStage == 1) piece[0].keep(slot(c), lane);
      if constexpr (kMax) {
        most[0][0] = Fold::combine(most[0][0], node[0][0]);
      } else {
        const Acc value = fold_lanes<Fold, Piece::kPacks>(node, kWarp);
        if (lane == 0) of_chunk[c] = value;
      }
    }
    if constexpr (kMax) {
      const Acc value = fold_lanes<Fold, Piece::kPacks>(most, kWarp);
      if (lane == 0) of_chunk[warp] = value;
    }
    __syncthreads();
    const Acc value = fold_nodes<Fold>(of_chunk, kMax ? warps : mine);
    Acc* const of_block = reinterpret_cast<Acc*>(nodes + kTurns * chunks + turn);
    turn ^= 1;
    return log2_blocks == 0 ? value : fold_blocks<Fold>(value, 1 << log2_blocks, of_block);
  }

  TREDUCE_DEVICE void store(const Values (&values)[1], int64_t row) {
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    for (int c = threadIdx.x / kWarp; c < mine; c += warps) {
      const int64_t begin = first + int64_t{c} * Pairwise::kChunk;
      Piece piece[1];
      piece[0].take(p, Packs::of(slot(c), lane));
      if constexpr (!(kKeeps && Op::kStages > 1)) {
        Piece::template replay<0>(piece, p, values, begin, place(row, c));
        if constexpr (Op::kStages > 1) Piece::template replay<1>(piece, p, values, begin, place(row, c));
      }
      Piece::template store<kAheadWords>(piece, p, values, row, 1, 1, begin, place(row, c));
    }
  }

 private:
  // Calls body(k, chunk, element of the vector) for this lane's k-th element of first vectors.
  template <class Body>
  TREDUCE_DEVICE void each_end(int64_t row, Body body) const {
    const int warps = blockDim.x / kWarp;
    if (place(row, 0).shift == 0) return;
#pragma unroll
    for (int k = 0; k < Ends::kMost; ++k) {
      const int i = threadIdx.x % kWarp + k * kWarp, c = threadIdx.x / kWarp + i / kSize * warps;
      if (c < mine && place(row, c).rest == Pairwise::kChunk) body(k, c, i % kSize);
    }
  }

  // The tree over `count` neighbouring nodes. Valid in every thread.
  template <class Fold>
  TREDUCE_DEVICE static typename Fold::Acc fold_nodes(const typename Fold::Acc* node, int count) {
    constexpr int kMost = kMostSharedChunks / kWarp;
    const int lane = threadIdx.x % kWarp;
    typename Fold::Acc of_run[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int k = i * kWarp + lane;
      of_run[i] = k < count ? node[k] : Fold::identity();
      if (i * kWarp < count) of_run[i] = warp::reduce_neighbours<Fold>(of_run[i]);
    }
    return thread::fold_neighbours<Fold>(of_run);
  }
};

template <template <class> class RowOp, class Source, int kSize>
__global__ void __launch_bounds__((most_shared_threads(RowOp<float>::kInputs, RowOp<float>::kWeight,
                                                       sizeof(typename Source::Acc) == 8)),
                                  1)
    kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p, int chunks, int log2_blocks, int ahead) {
  using Rows = Part<RowOp, Source, kSize>;
  using Op = typename Rows::Op;
  using A = typename Rows::A;
  using Raw = typename Source::Raw;
  const int rank = log2_blocks == 0 ? 0 : treduce::cluster::rank();
  const int64_t first = int64_t{rank} * chunks * Pairwise::kChunk, rest = p.problem.length - first;
  auto* const buffers = dynamic_shared<Raw>();
  const int64_t buffer = static_cast<int64_t>(chunks) * (Op::kInputs * Pairwise::kChunk);  // elements
  auto* const nodes = reinterpret_cast<Two<A>*>(buffers + (1 + ahead) * buffer);
  const int64_t there = rest <= 0 ? 0 : (rest + Pairwise::kChunk - 1) / Pairwise::kChunk;
  Rows part{p, buffers, nodes, chunks, static_cast<int>(there < chunks ? there : chunks), first};
  const Constants<A> constants = constants_of<A>(p);
  const int64_t step = gridDim.x >> log2_blocks, begin = blockIdx.x >> log2_blocks;
  int next = 0;  // buffer of the row that is asked for
  ptx::wait_for_launch_before();
  for (int64_t row = begin - ahead * step; row < p.problem.rows; row += step) {
    // ask for a row: this one, or the next
    const int64_t asked = row + ahead * step;
    Raw* const to = buffers + next * buffer;
    if (asked < p.problem.rows) part.ask(asked, to);
    ptx::commit_copies();
    next ^= ahead;
    const bool is_first = row < begin;
    if constexpr (Source::kShifted) {
      if (ahead == 0 || is_first) part.put_ends(part.ends_of(asked), asked, to);
    }
    if (is_first) continue;

    // wait for this one
    part.elements = buffers + next * buffer;
    if (ahead == 0) {
      ptx::wait_copies<0>();
    } else {
      ptx::wait_copies<1>();
    }
    allow_launch_after();

    // reduce it
    typename Op::Values values[1] = {begin_row<Op>(p, row)};
    Op::template result<0>(values[0]) =
        Op::template finish<0>(values[0], part.template reduce<0>(values, row, log2_blocks), constants);
    [[maybe_unused]] typename Rows::Ends ends = {};
    if constexpr (Source::kShifted) {
      if (ahead > 0 && asked < p.problem.rows) ends = part.ends_of(asked);
    }
    if constexpr (Op::kStages > 1) {
      Op::template result<1>(values[0]) =
          Op::template finish<1>(values[0], part.template reduce<1>(values, row, log2_blocks), constants);
    }
    if constexpr (Source::kShifted) {
      if (ahead > 0 && asked < p.problem.rows) part.put_ends(ends, asked, to);
    }
    if constexpr (Op::kHasElements) part.store(values, row);
    if (rank == 0 && threadIdx.x == 0) store_row<Op>(p, values[0], row);
  }
  if (log2_blocks > 0) treduce::cluster::sync();  // nobody leaves while its shared memory is read
}

template <template <class> class RowOp>
cudaError_t launch_op(Tag<RowOp>, const Call& call) {
  constexpr Reads shifted = RowOp<float>::kWeight ? Reads::vectors : Reads::shifted;  // weights are not
  return dispatch_source<Reads::adjacent, shifted>(call, [&](auto type, auto size) -> cudaError_t {
    using Source = typename decltype(type)::type;
    if constexpr (kOneInner<Source, decltype(size)::value>) {
      return launch(&kernel<RowOp, Source, decltype(size)::value>, call.shape(), parameters<Source>(call),
                    call.prepared.chunks, log2_of(call.prepared.launches[0].cluster), call.prepared.ahead);
    } else {
      return cudaErrorInvalidValue;  // prepare refuses them
    }
  });
}

}  // namespace treduce::rows::row_shared
