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
#include "../rows.cuh"

namespace treduce::reduce::row_cluster {

template <int kResident, class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(256, kResident)
    kernel(TREDUCE_GRID_CONSTANT Source x, int64_t outputs, int64_t span, int64_t length,
           TREDUCE_GRID_CONSTANT Result result, TREDUCE_GRID_CONSTANT Layout layout) {
  using Acc = typename O::Acc;
  SHARED_ARRAY(Acc, nodes, kClusterBlocks);
  const int rank = treduce::cluster::rank();
  const int64_t chunks = Pairwise(length).chunks();
  const int64_t first = rank * span;
  const int64_t count = chunks - first < span ? (chunks > first ? chunks - first : 0) : span;
  // Nobody writes to rank 0 before it is there. All have arrived by the time that their elements have.
  treduce::cluster::arrive();
  for (int64_t o = blockIdx.x / kClusterBlocks; o < outputs; o += gridDim.x / kClusterBlocks) {
    Acc value = rows::span<Team, O>(x, layout, layout.row(o), first, count, length);
    treduce::cluster::wait();
    if (threadIdx.x == 0) treduce::cluster::shared_of(nodes, 0)[rank] = value;
    treduce::cluster::sync();
    if (rank == 0 && threadIdx.x < warp::kLanes) {
      value = warp::reduce_neighbours<O>(nodes[threadIdx.x % kClusterBlocks], kClusterBlocks);
      if (threadIdx.x == 0) result.store<O>(value, layout.out(o));
    }
    treduce::cluster::arrive();  // before the nodes are written again
  }
  treduce::cluster::wait();
}

cudaError_t launch_one(const Call& call) {
  return rows::dispatch(call, [&](auto op, auto source, auto size, auto shifted, auto layout) {
    using O = decltype(op);
    using Source = decltype(source);
    using Layout = decltype(layout);
    using Team = reduce::Team<O, Source, size.value, shifted.value>;
    // Blocks an SM, said so that the compiler keeps all loads in flight: by itself it would save registers.
    constexpr int kResident = Team::template kResident<Layout>;
    return launch(&kernel<kResident, Team, O, Source, Layout>, call.shape(), source, call.request.geometry.outputs,
                  call.prepared.schedule.span, call.request.geometry.length, call.result, layout);
  });
}

const Rung<launch_one> rung("row_cluster");

}  // namespace treduce::reduce::row_cluster
