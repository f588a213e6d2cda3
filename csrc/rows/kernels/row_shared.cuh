// The kernel of row_shared.cu, which says what it does. Compiled once an op, in ../ops.
#pragma once

#include "../../primitives/ptx/bulk.cuh"
#include "../rows.cuh"

namespace treduce::rows::row_shared {

// A block's part of a row, and what its threads do with it.
template <template <class> class RowOp, class Source, int kSize>
struct Part {
  using Piece = Chunk<RowOp, Source, kSize, Pairwise::kStripes>;
  using Op = typename Piece::Op;
  using A = typename Piece::A;
  using Raw = typename Source::Raw;
  using Values = typename Op::Values;
  using Packs = typename Piece::Packs;
  // Elements as wide as the accumulator give their place to what they become.
  static constexpr bool kKeeps = std::is_same_v<Raw, A>;
  static constexpr int kAheadWords = 16;  // registers suffice

  const Parameters<Source>& p;
  char* buffers;  // in shared memory: of each input, for one row or two
  Two<A>* nodes;  // of chunks, kTurns times as many as there may be; of the block, kTurns
  int chunks;     // that a block holds at most
  int mine;       // that it has
  int64_t first;  // element
  uint64_t* barriers;  // of the chunks of two buffers
  int turn = 0;
  int parity = 0;  // of the phase in which the row at work arrives
  uint64_t* at_work = nullptr;  // its barriers
  Raw* elements[Op::kInputs] = {};  // of the row at work, in shared memory

  TREDUCE_DEVICE const Raw* source(int i, int64_t row) const {
    return static_cast<const Raw*>(p.pointers.in[i]) + row * p.problem.in[i].outer_stride + first;
  }
  // Where input i of a row lies in a buffer: at the same place of a piece as in global memory.
  TREDUCE_DEVICE Raw* place_of(int i, int64_t row, int buffer) const {
    return reinterpret_cast<Raw*>(buffers + (buffer * Op::kInputs + i) * row_bytes(chunks, sizeof(Raw)) +
                                  reinterpret_cast<uint64_t>(source(i, row)) % kPiece);
  }
  TREDUCE_DEVICE void take(int64_t row, int buffer, int phase) {
    at_work = arrived(buffer, 0);
    parity = phase;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) elements[i] = place_of(i, row, buffer);
  }

  // Asks the copy engine for a row, chunk by chunk, in whole pieces: one that two chunks share comes twice. The few elements before and
  // behind all whole pieces are loaded. The phase of a chunk's barrier ends when all of it is there.
  // Who calls: one warp, when nobody reads the buffer any more. Barriers: two arrivals each.
  TREDUCE_DEVICE void ask(int64_t row, int buffer) const {
    constexpr int kMost = kPiece / static_cast<int>(sizeof(Raw));  // elements of a piece
    const int lane = threadIdx.x % kWarp;
    const int64_t rest = p.problem.length - first, most = int64_t{mine} * Pairwise::kChunk;
    const int count = static_cast<int>(rest < most ? (rest > 0 ? rest : 0) : most);
    int head[Op::kInputs], end[Op::kInputs];  // of the whole pieces
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      const int before = static_cast<int>(reinterpret_cast<uint64_t>(source(i, row)) % kPiece / sizeof(Raw));
      head[i] = before == 0 ? 0 : kMost - before;
      if (head[i] > count) head[i] = count;
      end[i] = head[i] + (count - head[i]) / kMost * kMost;
    }
    ptx::fence_async_proxy();
    for (int c = lane; c < mine; c += kWarp) {
      int from[Op::kInputs], bytes[Op::kInputs], all = 0;
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        const int behind = head[i] + (c + 1) * Pairwise::kChunk;  // the piece with the chunk's last elements ends there
        from[i] = c == 0 ? head[i] : c * Pairwise::kChunk + head[i] - (head[i] == 0 ? 0 : kMost);
        const int to = behind < end[i] ? behind : end[i];
        bytes[i] = to > from[i] ? (to - from[i]) * static_cast<int>(sizeof(Raw)) : 0;
        all += bytes[i];
      }
      ptx::mbarrier_arrive_expect(arrived(buffer, c), all);
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        if (bytes[i] > 0) {
          ptx::load_bytes(place_of(i, row, buffer) + from[i], source(i, row) + from[i], bytes[i], arrived(buffer, c));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      const int e = lane < head[i] ? lane : lane - head[i] + end[i];
      if (e < count) place_of(i, row, buffer)[e] = source(i, row)[e];
    }
    __syncwarp();
    for (int c = lane; c < mine; c += kWarp) ptx::mbarrier_arrive(arrived(buffer, c));
  }
  TREDUCE_DEVICE uint64_t* arrived(int buffer, int c) const { return barriers + buffer * kMostSharedChunks + c; }

  TREDUCE_DEVICE typename Piece::Place place(int64_t row, int c) const {
    return Piece::place(p.problem, row, first + int64_t{c} * Pairwise::kChunk, threadIdx.x % kWarp);
  }
  // The elements of chunk c.
  struct Elements {
    Raw* at[Op::kInputs];
  };
  TREDUCE_DEVICE Elements chunk(int c) const {
    Elements here;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) here.at[i] = elements[i] + c * Pairwise::kChunk;
    return here;
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
      if constexpr (kStage == 0) ptx::mbarrier_wait(at_work + c, parity);
      const Packs packs = Packs::of(chunk(c).at, place(row, c));
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
      if constexpr (kKeeps && kStage == 1) piece[0].keep(chunk(c).at, place(row, c));
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
    const int warps = blockDim.x / kWarp, end = wants_elements<Op>(p.problem) ? mine : 0;
    for (int c = threadIdx.x / kWarp; c < end; c += warps) {
      const int64_t begin = first + int64_t{c} * Pairwise::kChunk;
      Piece piece[1];
      piece[0].take(p, Packs::of(chunk(c).at, place(row, c)));
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

template <template <class> class RowOp, class Source, int kSize>
__global__ void __launch_bounds__((most_shared_threads(RowOp<float>::kInputs, RowOp<float>::kWeight,
                                                       sizeof(typename Source::Acc) == 8)),
                                  1)
    kernel(TREDUCE_GRID_CONSTANT Parameters<Source> p, int chunks, int log2_blocks, int ahead) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Rows = Part<RowOp, Source, kSize>;
  using Op = typename Rows::Op;
  using A = typename Rows::A;
  SHARED_ARRAY(uint64_t, barriers, 2 * kMostSharedChunks);
  const int rank = log2_blocks == 0 ? 0 : treduce::cluster::rank();
  const int64_t first = int64_t{rank} * chunks * Pairwise::kChunk, rest = p.problem.length - first;
  char* const buffers = dynamic_shared<char>();
  auto* const nodes =
      reinterpret_cast<Two<A>*>(buffers + (1 + ahead) * Op::kInputs * row_bytes(chunks, sizeof(typename Source::Raw)));
  const int64_t there = rest <= 0 ? 0 : (rest + Pairwise::kChunk - 1) / Pairwise::kChunk;
  Rows part{p, buffers, nodes, chunks, static_cast<int>(there < chunks ? there : chunks), first, barriers};
  const Constants<A> constants = constants_of<A>(p);
  const int64_t step = gridDim.x >> log2_blocks;
  const bool asks = threadIdx.x / kWarp == blockDim.x / kWarp - 1;  // the last warp, which has no more chunks than others
  for (int c = threadIdx.x; c < (1 + ahead) * kMostSharedChunks; c += blockDim.x) ptx::mbarrier_init(&barriers[c], 2);
  ptx::fence_mbarrier_init();
  __syncthreads();
  ptx::wait_for_launch_before();
  int64_t row = blockIdx.x >> log2_blocks;
  if (asks && row < p.problem.rows) part.ask(row, 0);
  int buffer = 0, phases = 0;  // a bit a buffer
  for (; row < p.problem.rows; row += step) {
    const int64_t next = row + step;
    part.take(row, buffer, phases >> buffer & 1);
    phases ^= 1 << buffer;
    typename Op::Values values[1] = {begin_row<Op>(p, row)};
    Op::template result<0>(values[0]) =
        Op::template finish<0>(values[0], part.template reduce<0>(values, row, log2_blocks), constants);
    allow_launch_after();
    buffer ^= ahead;
    // All threads have met in reduce(), so nobody reads the row before any more.
    if (ahead > 0 && asks && next < p.problem.rows) part.ask(next, buffer);
    if constexpr (Op::kStages > 1) {
      Op::template result<1>(values[0]) =
          Op::template finish<1>(values[0], part.template reduce<1>(values, row, log2_blocks), constants);
    }
    if constexpr (Op::kHasElements) part.store(values, row);
    if (rank == 0 && threadIdx.x == 0) store_row<Op>(p, values[0], row);
    if (ahead == 0 && next < p.problem.rows) {
      __syncthreads();
      if (asks) part.ask(next, buffer);
    }
  }
  if (log2_blocks > 0) treduce::cluster::sync();  // nobody leaves while its shared memory is read
#endif
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
