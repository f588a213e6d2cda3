// Long k in groups of steps, whose sums are added one after another (mma_f64, persistent): in registers, or where groups are
// computed side by side, by a second launch.
#pragma once

#include "../primitives/in_order.cuh"
#include "../primitives/ptx/launch.cuh"
#include "rung.h"

namespace treduce::matmul {

// What kernels are told of the groups of k.
struct KGroups {
  int steps;        // of the ring, in a group; all of k where that is one
  int apart;        // groups that are tasks of their own; 1: none
  int64_t outputs;  // of one group
  void* sums;       // those of groups that are apart, [group][matrix][row][column]
};

template <class T>
using GroupSum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t,
                                    std::conditional_t<std::is_same_v<T, double>, double, float>>;

// depth: steps of k of a stage of the ring.
inline KGroups groups_for(const Call& call, bool adds_groups, int depth) {
  const Decisions& d = call.prepared;
  const Problem& p = call.problem;
  const bool one = d.groups == 1 || !(adds_groups || d.apart);
  return {static_cast<int>(ceil_div(one ? p.k : long_k::kGroup, int64_t(depth))),
          d.apart ? static_cast<int>(d.groups) : 1, p.batches * p.m * p.n, call.region<void>(d.partials)};
}

// Adds sums of a group to those of the groups before it, from zero. Both are then the total.
template <class Sum, int kCount, int kAll>
TREDUCE_DEVICE void add_group(Sum (&total)[kCount], Sum (&group)[kAll]) {
  static_assert(kCount <= kAll);
#pragma unroll
  for (int i = 0; i < kCount; ++i) group[i] = total[i] += group[i];
}

// The same of the sums from kFirst on, where the totals are kept in shared memory. `kept`: of kThreads threads, of which each has
// its own. The last group's are not written.
template <int kFirst, int kThreads, class Sum, int kAll>
TREDUCE_DEVICE void add_group_kept(Sum (&group)[kAll], Sum* kept, bool has_total, bool writes) {
  constexpr int kBatch = kAll < 8 ? kAll : 8;  // loads in flight
  Sum* const own = kept + threadIdx.x % kThreads;
#pragma unroll
  for (int first = kFirst; first < kAll; first += kBatch) {
    Sum before[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      before[i] = has_total ? own[(first - kFirst + i) * kThreads] : Sum(0);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      group[first + i] += before[i];
      if (writes) own[(first - kFirst + i) * kThreads] = group[first + i];
    }
  }
}

// Adds groups that were computed side by side, and the bias, and rounds.
template <class Sum, class Out>
__global__ void __launch_bounds__(long_k::kAddThreads, 8)
    add_groups(KGroups groups, Out* c, const Out* bias, int64_t n) {
  constexpr int kAtOnce = 16;  // loads in flight
  using Total = std::conditional_t<std::is_same_v<Sum, int32_t>, uint32_t, Sum>;
  ptx::wait_for_launch_before();
  for (int64_t i = blockIdx.x * int64_t(long_k::kAddThreads) + threadIdx.x; i < groups.outputs;
       i += gridDim.x * int64_t(long_k::kAddThreads)) {
    Total total = 0;
    thread::for_each_in_order<kAtOnce>(static_cast<const Sum*>(groups.sums) + i, groups.outputs, groups.apart,
                                       [&](Sum sum) { total += static_cast<Total>(sum); });
    c[i] = round_to<Out>(with_bias(total, bias, i % n));
  }
}

template <class T, class Out>
cudaError_t add_groups_apart(const Call& call, const KGroups& groups) {
  return launch(&add_groups<GroupSum<T>, Out>, call.step(-1), groups, static_cast<Out*>(call.c),
                static_cast<const Out*>(call.bias), call.problem.n);
}

}  // namespace treduce::matmul
