// Short runs of equal indices: a thread adds a few neighbouring columns of the run that begins at its index. Most runs are a row or two.
// Long runs: each team of a block adds a part, a power of two of rows, which is a node of the same tree. The block looks for a run's ends
// with all of its threads at once: one by one, looks would take longer than the additions.
#include "../common/launch.h"
#include "../primitives/functors.h"
#include "../primitives/neighbours.h"
#include "../primitives/shared.cuh"
#include "../primitives/thread.cuh"
#include "../primitives/warp.cuh"
#include "shapes.h"

namespace treduce::segments {
namespace {

constexpr int kDepth = 40;

template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Elements {
  T at[kVector];
};

template <class T, int kVector>
struct Columns {
  using Acc = Accumulator<T>;
  using Vector = Elements<T, kVector>;
  // Rows whose elements are loaded before the first is added: a power of two.
  static constexpr int kAtOnce = sizeof(T) == 8 ? 2 : 4;
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

  // The node over kAtOnce rows from `begin` on, or over those before `end`, at least one row.
  TREDUCE_DEVICE void add_few(int64_t begin, int64_t end, Acc (&sum)[kVector]) const {
    Vector rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i < end) rows[i] = row(begin + i);
    }
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      Acc node[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i < end) node[i] = widen<Acc>(rows[i].at[c]);
      }
#pragma unroll
      for (int s = 1; s < kAtOnce; s *= 2) {
#pragma unroll
        for (int i = 0; i + s < kAtOnce; i += 2 * s) {
          if (begin + i + s < end) node[i] = Sum<Acc>::combine(node[i], node[i + s]);
        }
      }
      sum[c] = node[0];
    }
  }

  // The node over the rows from `begin` to before `end`, at least one row.
  TREDUCE_DEVICE void add(int64_t begin, int64_t end, Acc (&sum)[kVector]) const {
    add_few(begin, end, sum);
    if (end <= begin + kAtOnce) return;
    Neighbours<Sum<Acc>, kDepth> nodes[kVector];
    while (true) {
#pragma unroll
      for (int c = 0; c < kVector; ++c) nodes[c].push(sum[c]);
      begin += kAtOnce;
      if (begin >= end) break;
      add_few(begin, end, sum);
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
template <class T, int kVector>
__global__ void __launch_bounds__(kBlock) short_runs(TREDUCE_GRID_CONSTANT Request r, int indices) {
  const int64_t vectors = r.width / kVector;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t first = thread / vectors * indices;
  const Columns<T, kVector> columns(r, thread % vectors);
  unsigned begins = 0;  // of these indices, all of which are asked for before the first is waited for
#pragma unroll
  for (int i = 0; i < kMostIndices; ++i) {
    const int64_t at = first + i;
    const bool is_first = i < indices && at < r.count && (at == 0 || r.index[at - 1] != r.index[at]);
    begins |= static_cast<unsigned>(is_first && !is_long(r, at)) << i;
  }
  for (; begins != 0; begins &= begins - 1) {
    const int64_t begin = first + __ffs(static_cast<int>(begins)) - 1, place = r.index[begin];
    if (!is_place(r, place)) continue;
    int64_t end = begin + 1;
    while (end < r.count && r.index[end] == place) ++end;
    Accumulator<T> sum[kVector];
    columns.add(begin, end, sum);
    columns.store(place, end - begin, sum);
  }
}

// The threads of a block of which `is` holds, which come before all others. Valid in every thread.
TREDUCE_DEVICE int count_first(bool is) {
  SHARED_ARRAY(int, of_warp, kTeams);
  const int lane = threadIdx.x, warp = threadIdx.y;
  const unsigned all = __ballot_sync(warp::kFullMask, is);
  if (lane == 0) of_warp[warp] = __popc(all);
  __syncthreads();
  const int full = __popc(__ballot_sync(warp::kFullMask, lane < kTeams && of_warp[lane % kTeams] == kLanes));
  const int count = full * kLanes + (full < kTeams ? of_warp[full] : 0);
  __syncthreads();
  return count;
}

// The run of an index, by a whole block. The run does not reach kLong indices back.
struct Run {
  int64_t begin, end;

  TREDUCE_DEVICE Run(const Request& r, int64_t here, int64_t place) {
    static_assert(kLong == warp::kLanes);
    SHARED_ARRAY(int, back, 1);
    const int thread = threadIdx.y * kLanes + threadIdx.x;
    // Most runs end among the next indices: both ends are asked for at once.
    const int64_t before = here - 1 - thread, after = here + 1 + thread;
    const bool is_before = thread < kLong && before >= 0 && r.index[before] == place;
    const bool is_after = after < r.count && r.index[after] == place;
    const unsigned all_before = __ballot_sync(warp::kFullMask, is_before);
    if (thread == 0) *back = __popc(all_before);
    const int further = count_first(is_after);
    begin = here - *back;
    int64_t last = here + further;  // of which it is known; no index from `end` on is there
    for (end = further < kLanes * kTeams ? last + 1 : r.count; last + 1 < end;) {
      const int64_t step = (end - last - 2) / (kLanes * kTeams) + 1, probe = last + (thread + 1) * step;
      last += count_first(probe < end && r.index[probe] == place) * step;
      if (last + step < end) end = last + step;
    }
  }
};

// A block for each kLong-th index, and for `each` slabs of columns: a long run belongs to the first of those in it.
template <class T, int kVector>
__global__ void __launch_bounds__(kLanes* kTeams, sizeof(T) == 8 ? 1 : 2)
    long_runs(TREDUCE_GRID_CONSTANT Request r, int each) {
  using Acc = Accumulator<T>;
  struct Node {
    Acc at[kVector];
  };
  SHARED_ARRAY(Node, all_nodes, 2 * kLanes * kTeams);  // of two slabs in turn: one is folded while the next one is read
  const int64_t vectors = r.width / kVector, slabs = (vectors + kLanes - 1) / kLanes;
  const int64_t groups = (slabs + each - 1) / each;
  const int64_t here = blockIdx.x / groups * kLong, first_slab = blockIdx.x % groups * each;
  const int64_t place = r.index[here];
  if (!is_place(r, place) || (here >= kLong && r.index[here - kLong] == place)) return;
  const Run run(r, here, place);
  const int64_t count = run.end - run.begin;
  if (count <= kLong) return;
  int64_t part = 1;  // rows of a team
  while (part * kTeams < count) part *= 2;
  const auto teams = static_cast<int>((count + part - 1) / part);
  const int64_t first = run.begin + threadIdx.y * part;
  const int64_t end_slab = first_slab + each < slabs ? first_slab + each : slabs;
  for (int64_t slab = first_slab; slab < end_slab; ++slab) {
    const int64_t vector = slab * kLanes + threadIdx.x;
    const Columns<T, kVector> columns(r, vector);
    const bool is_there = vector < vectors;
    Node* const nodes = all_nodes + (slab & 1) * (kLanes * kTeams);
    Acc sum[kVector];
    if (is_there && first < run.end) {
      columns.add(first, first + part < run.end ? first + part : run.end, sum);
#pragma unroll
      for (int c = 0; c < kVector; ++c) nodes[threadIdx.y * kLanes + threadIdx.x].at[c] = sum[c];
    }
    __syncthreads();
    if (is_there && threadIdx.y == slab % kTeams) {
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        Neighbours<Sum<Acc>, 5> whole;
        for (int t = 0; t < teams; ++t) whole.push(nodes[t * kLanes + threadIdx.x].at[c]);
        sum[c] = whole.value();
      }
      columns.store(place, count, sum);
    }
  }
}

template <class T, int kVector>
cudaError_t launch_type(const Request& r, const Prepared& prepared, cudaStream_t stream) {
  const cudaError_t error = launch(&short_runs<T, kVector>, Launch{prepared.launches[0], stream}, r, prepared.indices);
  if (error != cudaSuccess || prepared.launches.size() == 1) return error;
  return launch(&long_runs<T, kVector>, Launch{prepared.launches[1], stream}, r, prepared.slabs);
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
