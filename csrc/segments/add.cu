// Short runs of equal indices: a thread adds a few neighbouring columns of the run that begins at its index. Most runs are a row or two.
// Long runs: each team of a block adds a part, a power of two of rows, which is a node of the same tree.
#include "../common/launch.h"
#include "../primitives/functors.h"
#include "../primitives/neighbours.h"
#include "../primitives/shared.cuh"
#include "../primitives/thread.cuh"
#include "shapes.h"

namespace treduce::segments {
namespace {

constexpr int kAtOnce = 8;  // rows whose elements are loaded before the first is added
constexpr int kDepth = 40;

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Elements {
  T at[kVector];
};

template <class T, int kVector>
struct Columns {
  using Acc = Accumulator<T>;
  using Vector = Elements<T, kVector>;
  const Request& r;
  const Vector* source;
  Vector* out;
  int64_t vectors;  // of a row

  TREDUCE_DEVICE Columns(const Request& r, int64_t vector)
      : r(r),
        source(static_cast<const Vector*>(r.source) + vector),
        out(static_cast<Vector*>(r.out) + vector),
        vectors(r.width / kVector) {}

  TREDUCE_DEVICE Vector row(int64_t i) const { return source[r.order[i] * vectors]; }

  // The node over the rows from `begin` to before `end`, at least one row.
  TREDUCE_DEVICE void add(int64_t begin, int64_t end, Acc (&sum)[kVector]) const {
    if (end == begin + 1) {
      const Vector only = row(begin);
#pragma unroll
      for (int c = 0; c < kVector; ++c) sum[c] = widen<Acc>(only.at[c]);
      return;
    }
    Neighbours<Sum<Acc>, kDepth> nodes[kVector];
    for (; begin < end; begin += kAtOnce) {
      Vector rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < end) rows[i] = row(begin + i);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i >= end) continue;
#pragma unroll
        for (int c = 0; c < kVector; ++c) nodes[c].push(widen<Acc>(rows[i].at[c]));
      }
    }
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum[c] = nodes[c].value();
  }

  // Adds the sum of `count` rows to what the place holds.
  TREDUCE_DEVICE void store(int64_t place, int64_t count, Acc (&sum)[kVector]) const {
    Vector result = out[place * vectors];
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      if (r.divide) sum[c] = sum[c] / static_cast<Acc>(count);
      result.at[c] = round_to<T>(widen<Acc>(result.at[c]) + sum[c]);
    }
    out[place * vectors] = result;
  }
};

TREDUCE_DEVICE bool is_place(const Request& r, int64_t place) { return place >= 0 && place < r.places; }
TREDUCE_DEVICE bool is_long(const Request& r, int64_t begin) {
  return begin + kLong < r.count && r.index[begin + kLong] == r.index[begin];
}
// Binary search in [begin, end): the first index above `place`, or, without kAbove, not below it.
template <bool kAbove>
TREDUCE_DEVICE int64_t bound(const Request& r, int64_t begin, int64_t end, int64_t place) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    const bool before = kAbove ? r.index[middle] <= place : r.index[middle] < place;
    (before ? begin : end) = before ? middle + 1 : middle;
  }
  return begin;
}

template <class T, int kVector>
__global__ void __launch_bounds__(kBlock) short_runs(TREDUCE_GRID_CONSTANT Request r) {
  const int64_t vectors = r.width / kVector;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t begin = thread / vectors;
  if (begin >= r.count) return;
  const int64_t place = r.index[begin];
  if (!is_place(r, place) || (begin > 0 && r.index[begin - 1] == place) || is_long(r, begin)) return;
  int64_t end = begin + 1;
  while (end < r.count && r.index[end] == place) ++end;
  const Columns<T, kVector> columns(r, thread % vectors);
  Accumulator<T> sum[kVector];
  columns.add(begin, end, sum);
  columns.store(place, end - begin, sum);
}

// A block for each kLong-th index: a long run belongs to the first of those in it.
template <class T, int kVector>
__global__ void __launch_bounds__(kLanes* kTeams) long_runs(TREDUCE_GRID_CONSTANT Request r) {
  using Acc = Accumulator<T>;
  struct Node {
    Acc at[kVector];
  };
  SHARED_ARRAY(Node, nodes, kLanes * kTeams);
  const int64_t vectors = r.width / kVector, slabs = (vectors + kLanes - 1) / kLanes;
  const int64_t here = blockIdx.x / slabs * kLong, vector = blockIdx.x % slabs * kLanes + threadIdx.x;
  const int64_t place = r.index[here];
  if (!is_place(r, place) || (here >= kLong && r.index[here - kLong] == place)) return;
  const int64_t begin = bound<false>(r, here < kLong ? 0 : here - kLong, here, place);
  if (!is_long(r, begin)) return;
  const int64_t end = bound<true>(r, begin + kLong, r.count, place);
  int64_t part = 1;  // rows of a team
  while (part * kTeams < end - begin) part *= 2;
  const int64_t first = begin + threadIdx.y * part;
  const Columns<T, kVector> columns(r, vector);
  const bool is_there = vector < vectors;
  Acc sum[kVector];
  if (is_there && first < end) {
    columns.add(first, first + part < end ? first + part : end, sum);
#pragma unroll
    for (int c = 0; c < kVector; ++c) nodes[threadIdx.y * kLanes + threadIdx.x].at[c] = sum[c];
  }
  __syncthreads();
  if (!is_there || threadIdx.y > 0) return;
  const auto teams = static_cast<int>((end - begin + part - 1) / part);
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    Neighbours<Sum<Acc>, 5> whole;
    for (int t = 0; t < teams; ++t) whole.push(nodes[t * kLanes + threadIdx.x].at[c]);
    sum[c] = whole.value();
  }
  columns.store(place, end - begin, sum);
}

template <class T, int kVector>
cudaError_t launch_type(const Request& r, const Prepared& prepared, cudaStream_t stream) {
  const cudaError_t error = launch(&short_runs<T, kVector>, Launch{prepared.launches[0], stream}, r);
  if (error != cudaSuccess || prepared.launches.size() == 1) return error;
  return launch(&long_runs<T, kVector>, Launch{prepared.launches[1], stream}, r);
}

}  // namespace

int launch_add(const Request& r, const Prepared& prepared, void* stream) {
  const auto run = [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidest = sizeof(T) == 8 ? 2 : 4;
    const auto of = static_cast<cudaStream_t>(stream);
    return prepared.vector == 1 ? launch_type<T, 1>(r, prepared, of) : launch_type<T, kWidest>(r, prepared, of);
  };
  switch (r.dtype) {
    case DType::float64: return run(Type<double>{});
    case DType::float16: return run(Type<float16>{});
    case DType::bfloat16: return run(Type<bfloat16>{});
    default: return run(Type<float>{});
  }
}

}  // namespace treduce::segments
