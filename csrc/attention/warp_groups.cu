// Idea: the forward of forward.cu by warp groups. While the tensor cores multiply the next keys, and values by the probabilities of this
// step, a warp group takes exponentials; and while it does that, they multiply what other warp groups ask for.
//
// Order:   that of forward.cu: one wgmma adds as mma does.
// Mapping: a warp group 64 queries, whose sums, scores and probabilities are registers; a thread of one more group asks for keys and
//          values. What is added of the pieces before lies in shared memory, each thread's own.
// Bound:   the tensor cores at wide heads, exponentials at narrow ones.
// Source:  J. Shah et al., FlashAttention-3 (2024).
#include "groups.cuh"

namespace treduce::attention::warp_groups {
namespace {

using namespace groups;

// What a block computes at a time: a tile of queries of a head. What takes longest begins first, and blocks take turns from either side,
// so that all have about as much.
struct Work {
  int first, head, batch;
  int steps;  // of keys

  TREDUCE_DEVICE static int count(const Problem& p, int lines) {
    return static_cast<int>((p.length + lines - 1) / lines * p.heads * p.batch);
  }
  TREDUCE_DEVICE static int index(int turn) {
    return turn * gridDim.x + (turn % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  }
  TREDUCE_DEVICE Work(const Problem& p, int index, int lines) {
    const int heads = static_cast<int>(p.heads * p.batch), length = static_cast<int>(p.length),
              of_call = static_cast<int>(p.heads);
    first = ((length + lines - 1) / lines - 1 - index / heads) * lines;
    head = index % heads % of_call;
    batch = index % heads / of_call;
    steps = keys_seen(p, first, lines);
  }
  // Steps of keys that some of `lines` queries from `first` on attend.
  TREDUCE_DEVICE static int keys_seen(const Problem& p, int first, int lines) {
    const int keys = static_cast<int>(p.keys), last = min(first + lines, static_cast<int>(p.length));
    return first >= last ? 0 : ((p.causal ? min(keys, last) : keys) + kStep - 1) / kStep;
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(groups_of(kWidth).threads(), 1)
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Operand of_query,
           TREDUCE_GRID_CONSTANT Operand of_key, TREDUCE_GRID_CONSTANT Operand of_value,
           TREDUCE_GRID_CONSTANT Matrices out, TREDUCE_GRID_CONSTANT LineValues lines) {
#ifdef TREDUCE_SM90A
  constexpr Groups kShape = groups_of(kWidth);
  constexpr int kStages = kShape.stages, kBytes = kTileBytes<kWidth>, kSteps = kPiece / kStep;  // of a piece
  static_assert(kStep == kTile);
  __shared__ Ring<1> of_queries;
  __shared__ Ring<kStages> of_keys, of_values;
  char* const queries = aligned(dynamic_shared<char>());
  char* const keys = queries + kShape.groups * kBytes;
  char* const values = keys + kStages * kBytes;
  if (threadIdx.x == 0) {
    of_queries.init(kShape.groups * 4);
    of_keys.init(kShape.groups * 4);
    of_values.init(kShape.groups * 4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int count = Work::count(p, kShape.lines());

  const int group = static_cast<int>(threadIdx.x) / kGroup - 1;
  // ---- who copies ----
  if (group < 0) {
    ptx::release_registers<kShape.copier_registers()>();
    if (threadIdx.x != 0) return;
    int ring = 0;  // steps so far
    for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
      const int index = Work::index(turn);
      if (index >= count) continue;
      const Work work(p, index, kShape.lines());
      uint64_t* const full = of_queries.begin(turn, kShape.groups * kBytes);
      for (int g = 0; g < kShape.groups; ++g) {
        of_query.load<kWidth>(queries + g * kBytes, work.first + g * kTile, work.head, work.batch, full);
      }
      for (int step = 0; step < work.steps; ++step, ++ring) {
        const int key = step * kStep, head = work.head / static_cast<int>(p.group);
        const int stage = ring % kStages;
        of_key.load<kWidth>(keys + stage * kBytes, key, head, work.batch, of_keys.begin(ring, kBytes));
        of_value.load<kWidth>(values + stage * kBytes, key, head, work.batch, of_values.begin(ring, kBytes));
      }
    }
    return;
  }

  // ---- who multiply ----
  ptx::take_registers<kShape.registers()>();
  const int thread = threadIdx.x % kGroup;
  float4* const totals =
      reinterpret_cast<float4*>(values + kStages * kBytes) + group * ((kWidth / 8 + 1) * kGroup) + thread;
  float s[kStep / 8][4], result[kWidth / 8][4];
  uint32_t of_p[kStep / 16][4];
  int ring = 0;
#pragma unroll 1
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = Work::index(turn);
    if (index >= count) continue;
    const Work work(p, index, kShape.lines());
    const int query = work.first + group * kTile + thread / warp::kLanes * kLines;  // the warp's first
    const int own = Work::keys_seen(p, work.first + group * kTile, kTile);
    const Scores scores(p, work.batch, work.head);
    Lines line;

    const auto start_keys = [&](int step) {
      of_keys.wait(ring + step);
      start_scores<T, kWidth>(s, queries + group * kBytes, keys + (ring + step) % kStages * kBytes);
    };
    const auto start_values = [&](int step) {  // a piece begins with nothing
      of_values.wait(ring + step);
      start_sums<T, kWidth>(result, of_p, values + (ring + step) % kStages * kBytes, step % kSteps != 0);
    };
    const auto exponentiate = [&](int step, float (&correction)[2]) {
      const int key = step * kStep;
      score<false>(s, scores, query, key, scores.is_whole(query, key, kStep));
      return line.step(s, correction);
    };

    of_queries.wait(turn);
    if (own > 0) {
      float correction[2];
      start_keys(0);
      wait_for<0>(s);
      of_keys.release(ring);
      exponentiate(0, correction);
      round_scores<T>(of_p, s);
      for (int step = 0; step + 1 < own; ++step) {
        const int next = step + 1;
        start_keys(next);
        start_values(step);
        wait_for<1>(s);
        of_keys.release(ring + next);
        const bool is_new = next % kSteps == 0;
        if (is_new) {
          wait_for<0>(result);
          end_piece<kGroup>(result, line, totals, next == kSteps, /*keep=*/true);
          line = Lines();
        }
        const bool corrects = exponentiate(next, correction);
        wait_for<0>(result);
        of_values.release(ring + step);
        if (corrects && !is_new) correct(result, correction);
        round_scores<T>(of_p, s);
      }
      of_queries.release(turn);
      start_values(own - 1);
      wait_for<0>(result);
      of_values.release(ring + own - 1);
      const Lines total = end_piece<kGroup>(result, line, totals, own <= kSteps, /*keep=*/false);
      finish<T, kWidth>(result, total, p, out, lines, work.batch, work.head, query);
    } else {
      of_queries.release(turn);
    }
    // A stage is free when all groups say so, each in its turn.
    for (int step = own; step < work.steps; ++step) {
      of_keys.wait(ring + step);
      of_keys.release(ring + step);
      of_values.wait(ring + step);
      of_values.release(ring + step);
    }
    ring += work.steps;
  }
#endif
}

}  // namespace

int launch_one(const Problem& p, const LaunchShape& prepared, const Matrices& out, const LineValues& lines,
               void* stream) {
  Operand query, key, value;
  cudaError_t error = describe(p, p.query, p.heads, p.length, p.width, query);
  if (error == cudaSuccess) error = describe(p, p.key, p.heads / p.group, p.keys, p.width, key);
  if (error == cudaSuccess) error = describe(p, p.value, p.heads / p.group, p.keys, p.value_width, value);
  if (error != cudaSuccess) return error;
  return dispatch_kernel(p, [&](auto type, auto width) {
    return launch(&kernel<decltype(type), decltype(width)::value>, Launch{prepared, static_cast<cudaStream_t>(stream)},
                  p, query, key, value, out, lines);
  });
}

}  // namespace treduce::attention::warp_groups
