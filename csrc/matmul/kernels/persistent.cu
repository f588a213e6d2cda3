// Idea: as many blocks as the chip has multiprocessors walk over the tiles, so that while one tile's results leave, the
// copies for the next are under way, and two blocks of a cluster share what they read.
//
// After:   warp_specialized.
#include "../hopper.cuh"

namespace treduce::matmul::persistent {

using namespace hopper;

template <int kTileM_, int kTileN_, int kStages_, int kCluster_>
struct Shape {
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_, kCluster = kCluster_;
  static constexpr int kConsumers = kTileM / 64;
  static constexpr int kThreads = (kConsumers + 1) * kWarpGroup;
  static constexpr int kStageBytes = (kTileM + kTileN) * kRowBytes;
};

template <class T, class Out, class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b,
           TREDUCE_GRID_CONSTANT CUtensorMap map_c, bool boxes_c, Grid grid, Broadcast broadcast_a,
           Broadcast broadcast_b, Out* c) {
#ifdef TREDUCE_SM90A
  using TileA = Tile<T, S::kTileM, kAAlongK>;
  using PartB = Tile<T, S::kTileN / S::kCluster, kBAlongK>;  // what one block of the cluster fetches for all
  using TileB = Tile<T, S::kTileN, kBAlongK>;
  __shared__ Ring<S::kStages> ring;
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int group = threadIdx.x / kWarpGroup;
  const int rank = S::kCluster > 1 ? cluster::rank() : 0;
  const int steps = (grid.depth + kDepth<T> - 1) / kDepth<T>;
  const int64_t first = blockIdx.x / S::kCluster, stride = gridDim.x / S::kCluster;

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_a);
    ptx::prefetch_tensor_map(&map_b);
    ring.init(S::kConsumers * 4 * S::kCluster);
  }
  if constexpr (S::kCluster > 1) {
    cluster::sync();
  } else {
    __syncthreads();
  }

  if (group == 0) {
    ptx::release_registers<40>();
    if (threadIdx.x == 0) {
      Turn<S::kStages> turn;
      for (int64_t tile = first; tile < grid.count; tile += stride) {
        const auto place = grid.place(tile, S::kTileM * S::kCluster, S::kTileN);
        const int2 batch_a = broadcast_a.of(place.batch), batch_b = broadcast_b.of(place.batch);
        for (int step = 0; step < steps; ++step, turn.next()) {
          ptx::mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
          uint64_t* const full = ring.full + turn.stage;
          char* const tile_a = stages + turn.stage * S::kStageBytes;
          char* const tile_b = tile_a + TileA::kBytes;
          ptx::mbarrier_arrive_expect(full, S::kStageBytes);
          TileA::load(tile_a, &map_a, place.row + rank * S::kTileM, step * kDepth<T>, batch_a, full);
          PartB::template load<S::kCluster>(tile_b + rank * PartB::kBytes, &map_b,
                                            place.column + rank * (S::kTileN / S::kCluster), step * kDepth<T>, batch_b,
                                            full);
        }
      }
    }
  } else {
    ptx::take_registers<S::kConsumers == 2 ? 232 : 160>();
    const int consumer = group - 1;
    Turn<S::kStages> turn;
    // One lane of each warp tells each block of the cluster, whose copies fill this block's stage too.
    const auto release = [&](int stage) {
      const int lane = threadIdx.x % 32;
      if constexpr (S::kCluster > 1) {
        if (lane < S::kCluster) ptx::mbarrier_arrive_at(ring.empty + stage, lane);
      } else {
        if (lane == 0) ptx::mbarrier_arrive(ring.empty + stage);
      }
    };
    for (int64_t tile = first; tile < grid.count; tile += stride) {
      const auto place = grid.place(tile, S::kTileM * S::kCluster, S::kTileN);
      float acc[S::kTileN / 2];
      if (steps == 0) {
#pragma unroll
        for (int i = 0; i < S::kTileN / 2; ++i) acc[i] = 0;
      }
      int last = -1;
      for (int step = 0; step < steps; ++step, turn.next()) {
        ptx::mbarrier_wait(ring.full + turn.stage, turn.parity);
        const char* const tile_a = stages + turn.stage * S::kStageBytes;
        const char* const tile_b = tile_a + TileA::kBytes;
        ptx::wgmma_touch(acc);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kDepth<T> / kStep<T>; ++i) {
          ptx::Wgmma<T, S::kTileN, !kAAlongK, !kBAlongK>::multiply(acc, TileA::descriptor(tile_a, consumer * 64, i),
                                                                   TileB::descriptor(tile_b, 0, i), step + i > 0);
        }
        ptx::wgmma_commit();
        ptx::wgmma_touch(acc);
        ptx::wgmma_wait<1>();
        if (last >= 0) release(last);
        last = turn.stage;
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(acc);
      if (last >= 0) release(last);
      const int row = place.row + rank * S::kTileM + consumer * 64;
      if constexpr (sizeof(Out) == 2) {
        if (boxes_c) {
          char* const staging = stages + S::kStages * S::kStageBytes + consumer * kStagingBytes;
          store_boxes<Out, S::kTileN>(acc, &map_c, staging, row, place.column, static_cast<int>(place.index), group);
          continue;
        }
      }
      store_registers<Out, S::kTileN>(acc, c + place.index * grid.m * grid.n, row, place.column, grid.m, grid.n);
    }
    ptx::wait_stores_read<0>();  // a block must not leave while its results lie in its shared memory
  }
  // A block must not leave while others copy into its shared memory or arrive at its barriers.
  if constexpr (S::kCluster > 1) cluster::sync();
#endif
}

using Large = Shape<128, 256, 4, 2>;
using Small = Shape<128, 128, 6, 1>;

template <class T, class Out, class S, bool kAAlongK, bool kBAlongK>
cudaError_t launch_shape(const Call& call, const Boxes& a, const Boxes& b) {
  using TileA = Tile<T, S::kTileM, kAAlongK>;
  using PartB = Tile<T, S::kTileN / S::kCluster, kBAlongK>;
  CUtensorMap map_a, map_b;
  cudaError_t error = encode(a, kMapType<T>, TileA::kBoxInner, TileA::kBoxOuter, true, &map_a);
  if (error != cudaSuccess) return error;
  error = encode(b, kMapType<T>, PartB::kBoxInner, PartB::kBoxOuter, true, &map_b);
  if (error != cudaSuccess) return error;

  const Problem& p = call.problem;
  Grid grid;
  grid.m = p.m;
  grid.n = p.n;
  grid.depth = static_cast<int>(p.k);
  grid.down = static_cast<int>((p.m + S::kTileM * S::kCluster - 1) / (S::kTileM * S::kCluster));
  grid.across = static_cast<int>((p.n + S::kTileN - 1) / S::kTileN);
  grid.batches = static_cast<int>(p.batches);
  grid.inner_batches = p.batch_dims > 0 ? static_cast<int>(p.batch_size[p.batch_dims - 1]) : 1;
  grid.count = int64_t(grid.down) * grid.across * p.batches;

  // C in boxes, where its rows begin at multiples of 16 bytes.
  CUtensorMap map_c = map_a;
  const bool boxes_c = sizeof(Out) == 2 && p.n % 8 == 0 && reinterpret_cast<uint64_t>(call.c) % kBoxAlignment == 0;
  if (boxes_c) {
    const Boxes c{call.c, sizeof(Out), true, p.n, p.m, p.n, {1, p.batches}, {p.n, p.m * p.n}};
    error = encode(c, kMapType<T>, kStagingColumns, 64, true, &map_c);
    if (error != cudaSuccess) return error;
  }

  const auto function = &kernel<T, Out, S, kAAlongK, kBAlongK>;
  Launch shape;
  shape.block = S::kThreads;
  shape.cluster = S::kCluster;
  shape.grid = std::min<int64_t>(grid.count, call.multiprocessors / S::kCluster) * S::kCluster;
  shape.shared_bytes = S::kStages * S::kStageBytes + S::kConsumers * kStagingBytes + kTileAlignment;
  shape.stream = call.stream;
  error = allow_shared(function, shape.shared_bytes);
  if (error != cudaSuccess) return error;
  return launch(function, shape, map_a, map_b, map_c, boxes_c, grid, broadcast_of(a), broadcast_of(b),
                static_cast<Out*>(call.c));
}

template <class T, class Out, class S>
cudaError_t launch_layout(const Call& call, const Boxes& a, const Boxes& b) {
  if constexpr (kElementBytes<T> == 2) {
    if (!a.along_k && !b.along_k) return launch_shape<T, Out, S, false, false>(call, a, b);
    if (!a.along_k) return launch_shape<T, Out, S, false, true>(call, a, b);
    if (!b.along_k) return launch_shape<T, Out, S, true, false>(call, a, b);
  }
  return launch_shape<T, Out, S, true, true>(call, a, b);
}

template <class T, class Out>
cudaError_t launch_type(const Call& call) {
  const Problem& p = call.problem;
  constexpr int kBytes = kElementBytes<T>;
  const Operand a = operand_a(p, call.a, kBytes), b = operand_b(p, call.b, kBytes);
  View view_a = view_of(a, kBytes == 2), view_b = view_of(b, kBytes == 2);
  char* workspace = static_cast<char*>(call.workspace);
  cudaError_t error = pack(a, view_a, workspace, call.stream);
  if (error == cudaSuccess) error = pack(b, view_b, workspace, call.stream);
  if (error != cudaSuccess) return error;
  const int64_t large_tiles = (p.m + 255) / 256 * ((p.n + 255) / 256) * p.batches;
  return large_tiles * 2 > call.multiprocessors ? launch_layout<T, Out, Large>(call, view_a.boxes, view_b.boxes)
                                                : launch_layout<T, Out, Small>(call, view_a.boxes, view_b.boxes);
}

cudaError_t launch_one(const Call& call) {
  switch (call.dtype) {
    case DType::float16: return launch_type<float16, float16>(call);
    case DType::bfloat16: return launch_type<bfloat16, bfloat16>(call);
    default: return launch_type<ptx::tfloat32, float>(call);
  }
}

const Rung<launch_one> rung("persistent");

}  // namespace treduce::matmul::persistent
