// Idea: the eight blocks of a cluster fold their nodes through distributed shared memory. No partials, no counter, no second way
// through memory: for a row of tens of thousands of elements that is the time that is left.
//
// After:   row_block.
// Mapping: cluster c reduces row c; the block of rank r folds chunks r * span to (r + 1) * span - 1 and writes its node to the
//          shared memory of rank 0, which folds the eight.
// Bound:   latency: one trip to memory, one barrier of the cluster.
// Next:    column_thread turns to the other direction: the elements of an output lie a row apart.
// Note:    compute capability 9.0 and later. The bits are those of row_block.
// Source:  NVIDIA, CUDA Programming Guide, thread block clusters and distributed shared memory.
#include "../../primitives/cluster.cuh"
#include "../../primitives/ptx/launch.cuh"
#include "../rows.cuh"
#include "../whole.cuh"

namespace treduce::reduce::row_cluster {

template <int kResident, class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(kRowThreads, kResident)
    kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, int64_t chunks_a_block, int64_t length,
           TREDUCE_GRID_CONSTANT MappedResult result, TREDUCE_GRID_CONSTANT Layout layout) {
  ptx::wait_for_launch_before();
  using Acc = typename O::Acc;
  SHARED_ARRAY(Acc, nodes, kClusterBlocks);
  const int rank = cluster::rank();
  const int64_t chunks = Pairwise(length).chunks();
  const int64_t first = rank * chunks_a_block;
  const int64_t count = chunks - first < chunks_a_block ? (chunks > first ? chunks - first : 0) : chunks_a_block;
  // No block may write to rank 0 before that one runs. All have arrived by the time that their elements have.
  cluster::arrive();
  for (int64_t o = blockIdx.x / kClusterBlocks; o < outputs; o += gridDim.x / kClusterBlocks) {
    // This block's part of the row.
    Acc value = rows::fold_chunks<Team, O>(x, layout, layout.row(o), first, count, length);
    ptx::allow_launch_after();

    // Every block writes its node to the shared memory of rank 0, which folds them.
    cluster::wait();
    if (threadIdx.x == 0) cluster::shared_of(nodes, 0)[rank] = value;
    cluster::sync();
    if (rank == 0 && threadIdx.x < warp::kLanes) {
      value = warp::reduce_neighbours<O>(nodes[threadIdx.x % kClusterBlocks], kClusterBlocks);
      if (threadIdx.x == 0) result.store<O>(value, layout.out(o));
    }
    cluster::arrive();  // before the nodes are written again
  }
  cluster::wait();
}

// A tensor of a common float that is one row.
template <class O, class T>
__global__ void __launch_bounds__(kWholeClusterThreads, 1)
    whole_kernel(const T* data, int length, int chunks_a_block, TREDUCE_GRID_CONSTANT Result result) {
  ptx::wait_for_launch_before();
  SHARED_ARRAY(typename O::Acc, nodes, kClusterBlocks);
  const int rank = cluster::rank();
  cluster::arrive();
  auto value = whole::fold_block<O, vector_of<Stored<T>>>(Stored<T>{{data}}, length, rank * chunks_a_block);
  cluster::wait();
  if (threadIdx.x == 0) cluster::shared_of(nodes, 0)[rank] = value;
  cluster::sync();
  if (rank == 0 && threadIdx.x < warp::kLanes) {
    value = warp::reduce_neighbours<O>(nodes[threadIdx.x % kClusterBlocks], kClusterBlocks);
    if (threadIdx.x == 0) result.store<O>(value);
  }
}

cudaError_t launch_one(const Call& call) {
  if (call.prepared.schedule.whole) {
    return dispatch_common_sum(call, [&](auto op, auto source) {
      return launch(&whole_kernel<decltype(op), typename decltype(source)::Type>, call.shape(), source.data,
                    static_cast<int>(call.request.geometry.length), static_cast<int>(call.prepared.schedule.span),
                    call.result);
    });
  }
  return rows::dispatch<Kernels::cluster>(call, [&](auto op, auto source, auto size, auto shifted, auto layout) {
    using O = decltype(op);
    using Source = decltype(source);
    using Layout = decltype(layout);
    using Team = reduce::Team<O, Source, size.value, shifted.value>;
    constexpr int kResident = Team::template kResident<Layout>;
    return launch(&kernel<kResident, Team, O, Source, Layout>, call.shape(), source, call.request.geometry.outputs,
                  call.prepared.schedule.span, call.request.geometry.length, result_of(call, source), layout);
  });
}

const Rung<launch_one> rung("row_cluster");

}  // namespace treduce::reduce::row_cluster
