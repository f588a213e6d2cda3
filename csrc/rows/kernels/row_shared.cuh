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
  typename Source::Raw* elements;  // chunk after chunk; each thread reads what it wrote itself
  Two<A>* nodes;                   // of chunks, kTurns times as many as there may be; of the block, kTurns
  int chunks;                      // that a block holds at most
  int mine;                        // that it has
  int64_t first;                   // element
  int turn = 0;

  TREDUCE_DEVICE typename Source::Raw* slot(int c) const {
    return elements + static_cast<int64_t>(c) * (Op::kInputs * Pairwise::kChunk);
  }
  TREDUCE_DEVICE typename Piece::Place place(int64_t row, int c) const {
    return Piece::place(p.problem, row, first + int64_t{c} * Pairwise::kChunk, threadIdx.x % kWarp);
  }

  // Asks for all of the row at once, and waits for it. Copies hold no registers; what they cannot copy is loaded.
  TREDUCE_DEVICE void read(int64_t row) {
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    for (int c = threadIdx.x / kWarp; c < mine; c += warps) {
      const typename Piece::Begin begin{p, row, first + int64_t{c} * Pairwise::kChunk};
      const typename Piece::Place there = place(row, c);
      if constexpr (kSize > 1) {
        if (there.rest == Pairwise::kChunk) {
          Piece::copy(begin, there, slot(c));
          continue;
        }
      }
      Piece::fetch(p, begin, there).put(slot(c), lane);
    }
    ptx::commit_copies();
    if constexpr (Source::kShifted) {
      const int shift = place(row, 0).shift;
      __syncwarp();  // the first thread has read those of the row before
      for (int i = lane; shift > 0; i += kWarp) {
        const int c = threadIdx.x / kWarp + i / kSize * warps;
        if (c >= mine || place(row, c).rest < Pairwise::kChunk) break;
        Piece::put_end({p, row, first + int64_t{c} * Pairwise::kChunk}, shift, i % kSize, slot(c));
      }
      __syncwarp();  // the first thread reads them
    }
    ptx::wait_copies<0>();
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
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp, end = wants_elements<Op>(p.problem) ? mine : 0;
    for (int c = threadIdx.x / kWarp; c < end; c += warps) {
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

// Blocks that an SM shall hold, for the compiler.
template <template <class> class RowOp, class Source, int kSize>
constexpr int kBlocks = RowOp<float>::kInputs == 1 && sizeof(typename Source::Acc) == 4 ? 2 : 1;

template <template <class> class RowOp, class Source, int kSize>
__global__ void __launch_bounds__((shared_threads(RowOp<float>::kInputs, RowOp<float>::kWeight,
                                                  sizeof(typename Source::Acc) == 8)),
                                  (kBlocks<RowOp, Source, kSize>))
    kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p, int chunks, int log2_blocks) {
  using Rows = Part<RowOp, Source, kSize>;
  using Op = typename Rows::Op;
  using A = typename Rows::A;
  const int rank = log2_blocks == 0 ? 0 : treduce::cluster::rank();
  const int64_t first = int64_t{rank} * chunks * Pairwise::kChunk, rest = p.problem.length - first;
  auto* const elements = dynamic_shared<typename Source::Raw>();
  auto* const nodes =
      reinterpret_cast<Two<A>*>(elements + static_cast<int64_t>(chunks) * (Op::kInputs * Pairwise::kChunk));
  const int64_t there = rest <= 0 ? 0 : (rest + Pairwise::kChunk - 1) / Pairwise::kChunk;
  Rows part{p, elements, nodes, chunks, static_cast<int>(there < chunks ? there : chunks), first};
  const Constants<A> constants = constants_of<A>(p);
  const int64_t step = gridDim.x >> log2_blocks;
  ptx::wait_for_launch_before();
  for (int64_t row = blockIdx.x >> log2_blocks; row < p.problem.rows; row += step) {
    typename Op::Values values[1] = {begin_row<Op>(p, row)};
    part.read(row);
    allow_launch_after();
    Op::template result<0>(values[0]) =
        Op::template finish<0>(values[0], part.template reduce<0>(values, row, log2_blocks), constants);
    if constexpr (Op::kStages > 1) {
      Op::template result<1>(values[0]) =
          Op::template finish<1>(values[0], part.template reduce<1>(values, row, log2_blocks), constants);
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
                    call.prepared.chunks, log2_of(call.prepared.launches[0].cluster));
    } else {
      return cudaErrorInvalidValue;  // prepare refuses them
    }
  });
}

}  // namespace treduce::rows::row_shared
