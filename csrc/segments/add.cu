// A thread has a few neighbouring columns of the run of equal indices that begins at its place. Mostly a run is a row or two; of long
// ones, several rows are under way at a time.
#include "../common/launch.h"
#include "../primitives/functors.h"
#include "../primitives/neighbours.h"
#include "../primitives/thread.cuh"
#include "segments.h"

namespace treduce::segments {
namespace {

constexpr int kAtOnce = 8;  // rows whose elements are loaded before the first is added
constexpr int kDepth = 40;

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Elements {
  T at[kVector];
};

template <class T, int kVector>
__global__ void kernel(TREDUCE_GRID_CONSTANT Request r) {
  using Acc = Accumulator<T>;
  using Vector = Elements<T, kVector>;
  const int64_t groups = r.width / kVector;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t begin = thread / groups, group = thread % groups;
  if (begin >= r.count) return;
  const int64_t place = r.index[begin];
  if (place < 0 || place >= r.places || (begin > 0 && r.index[begin - 1] == place)) return;
  const Vector* const source = static_cast<const Vector*>(r.source) + group;
  Vector* const out = static_cast<Vector*>(r.out) + place * groups + group;

  const Vector first = source[r.order[begin] * groups];
  Acc sum[kVector];
#pragma unroll
  for (int c = 0; c < kVector; ++c) sum[c] = widen<Acc>(first.at[c]);
  int64_t end = begin + 1;
  if (end < r.count && r.index[end] == place) {
    Neighbours<Sum<Acc>, kDepth> nodes[kVector];
#pragma unroll
    for (int c = 0; c < kVector; ++c) nodes[c].push(sum[c]);
    for (bool more = true; more;) {
      Vector rows[kAtOnce];
      int there = 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (there == i && end + i < r.count && r.index[end + i] == place) {
          rows[i] = source[r.order[end + i] * groups];
          ++there;
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (i >= there) continue;
#pragma unroll
        for (int c = 0; c < kVector; ++c) nodes[c].push(widen<Acc>(rows[i].at[c]));
      }
      end += there;
      more = there == kAtOnce;
    }
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum[c] = nodes[c].value();
  }
  Vector result = *out;
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    if (r.divide) sum[c] = sum[c] / static_cast<Acc>(end - begin);
    result.at[c] = round_to<T>(widen<Acc>(result.at[c]) + sum[c]);
  }
  *out = result;
}

}  // namespace

int launch_add(const Request& r, const Prepared& prepared, void* stream) {
  const Launch shape{prepared.launches[0], static_cast<cudaStream_t>(stream)};
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidest = sizeof(T) == 8 ? 2 : 4;
    return prepared.vector == 1 ? launch(&kernel<T, 1>, shape, r) : launch(&kernel<T, kWidest>, shape, r);
  };
  switch (r.dtype) {
    case DType::float64: return run(Type<double>{});
    case DType::float16: return run(Type<float16>{});
    case DType::bfloat16: return run(Type<bfloat16>{});
    default: return run(Type<float>{});
  }
}

}  // namespace treduce::segments
