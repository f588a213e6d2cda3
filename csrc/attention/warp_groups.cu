// Idea: the forward of forward.cu by warp groups. While the tensor cores multiply the next keys, and values by the probabilities of this
// step, a warp group takes exponentials; and while it does that, they multiply what other warp groups ask for.
//
// Order:   that of forward.cu: one wgmma adds as mma does.
// Mapping: a warp group 64 queries, whose sums, scores and probabilities are registers; a thread of one more group asks for keys and
//          values. Wide heads have three such groups a block, each of which overlaps its own products and exponentials; narrow ones
//          four, which overlap each other's. What is added of the pieces before lies in shared memory, each thread's own.
// Bound:   the tensor cores at wide heads, exponentials at narrow ones.
// Source:  J. Shah et al., FlashAttention-3 (2024).
#include "groups.cuh"

namespace treduce::attention::warp_groups {
namespace {

using namespace groups;

template <class T, int kWidth, bool kMasks>
__global__ void __launch_bounds__(groups_of(kWidth, kMasks).threads(), 1)
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Operand of_query,
           TREDUCE_GRID_CONSTANT Operand of_key, TREDUCE_GRID_CONSTANT Operand of_value,
           TREDUCE_GRID_CONSTANT Matrices out, TREDUCE_GRID_CONSTANT LineValues lines) {
#ifdef TREDUCE_SM90A
  constexpr Groups kShape = groups_of(kWidth, kMasks);
  constexpr int kStages = kShape.stages, kBytes = kTileBytes<kWidth>, kSteps = kPiece / kStep;  // of a piece
  static_assert(kStep == kTile);
  SHARED(uint64_t, queries_full);
  SHARED(Ring<kStages>, of_keys);
  SHARED(Ring<kStages>, of_values);
  char* const queries = aligned(dynamic_shared<char>());
  char* const keys = queries + kShape.groups * kBytes;
  char* const values = keys + kStages * kBytes;

  // What takes longest begins first.
  const int64_t tiles = (p.length + kShape.lines() - 1) / kShape.lines(), heads = p.heads * p.batch;
  const int64_t first = (tiles - 1 - blockIdx.x / heads) * kShape.lines();
  const int64_t head = blockIdx.x % heads % p.heads, batch = blockIdx.x % heads / p.heads;
  const int64_t last = min(first + kShape.lines(), p.length);
  const int steps = static_cast<int>(((p.causal ? min(p.keys, last) : p.keys) + kStep - 1) / kStep);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&queries_full, 1);
    of_keys.init(kShape.groups * 4);
    of_values.init(kShape.groups * 4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int group = static_cast<int>(threadIdx.x) / kWarpGroup;
  // ---- producer ----
  if (group == kShape.groups) {
    ptx::release_registers<kShape.copier_registers()>();
    if (threadIdx.x != kShape.groups * kWarpGroup) return;
    ptx::mbarrier_arrive_expect(&queries_full, kShape.groups * kBytes);
    for (int g = 0; g < kShape.groups; ++g) {
      of_query.load<kWidth>(queries + g * kBytes, first + g * kTile, head, batch, &queries_full);
    }
    for (int step = 0; step < steps; ++step) {
      const int64_t key = int64_t{step} * kStep;
      const int stage = step % kStages;
      of_key.load<kWidth>(keys + stage * kBytes, key, head / p.group, batch, of_keys.begin(step, kBytes));
      of_value.load<kWidth>(values + stage * kBytes, key, head / p.group, batch, of_values.begin(step, kBytes));
    }
    return;
  }

  // ---- consumers ----
  ptx::take_registers<kShape.registers()>();
  const int thread = threadIdx.x % kWarpGroup;
  const int64_t of_group = first + group * kTile, query = of_group + thread / warp::kLanes * kLines;
  const int64_t seen = of_group >= p.length ? 0 : p.causal ? min(p.keys, of_group + kTile) : p.keys;
  const int own = static_cast<int>((seen + kStep - 1) / kStep);
  const Scores<kMasks> scores(p, batch, head);
  float4* const totals =
      reinterpret_cast<float4*>(values + kStages * kBytes) + group * ((kWidth / 8 + 1) * kWarpGroup) + thread;
  float s[kStep / 8][4], result[kWidth / 8][4];
  uint32_t of_p[kStep / 16][4];
  Lines line, total;

  const auto start_keys = [&](int step) {
    of_keys.wait(step);
    start_scores<T, kWidth>(s, queries + group * kBytes, keys + step % kStages * kBytes);
  };
  const auto start_values = [&](int step) {  // a piece begins with nothing
    of_values.wait(step);
    start_sums<T, kWidth>(result, of_p, values + step % kStages * kBytes, step % kSteps != 0);
  };
  const auto exponentiate = [&](int step, float (&correction)[2]) {
    const int64_t key = int64_t{step} * kStep;
    score<false>(s, scores, query, key, scores.is_whole(query, key, kStep));
    return line.step(s, correction);
  };

  const auto end_piece_before = [&](int step) {
    end_piece<kWarpGroup>(result, line, totals, step == kSteps, /*keep=*/true);
    line = Lines();
  };
  if (own > 0) ptx::mbarrier_wait(&queries_full, 0);
  float correction[2];
  if constexpr (!kShape.overlaps()) {
    for (int step = 0; step < own; ++step) {
      start_keys(step);
      wait_for<0>(s);
      of_keys.release(step);
      const bool is_new = step % kSteps == 0;
      if (is_new && step > 0) end_piece_before(step);
      if (exponentiate(step, correction) && !is_new) correct(result, correction);
      round_scores<T>(of_p, s);
      start_values(step);
      wait_for<0>(result);
      of_values.release(step);
    }
  } else if (own > 0) {
    start_keys(0);
    wait_for<0>(s);
    of_keys.release(0);
    exponentiate(0, correction);
    round_scores<T>(of_p, s);
    for (int step = 0; step + 1 < own; ++step) {
      const int next = step + 1;
      start_keys(next);
      start_values(step);
      wait_for<1>(s);
      of_keys.release(next);
      const bool is_new = next % kSteps == 0;
      if (is_new) {
        wait_for<0>(result);
        end_piece_before(next);
      }
      const bool corrects = exponentiate(next, correction);
      wait_for<0>(result);
      of_values.release(step);
      if (corrects && !is_new) correct(result, correction);
      round_scores<T>(of_p, s);
    }
    start_values(own - 1);
    wait_for<0>(result);
    of_values.release(own - 1);
  }
  if (own > 0) total = end_piece<kWarpGroup>(result, line, totals, own <= kSteps, /*keep=*/false);
  // A stage is free when all groups say so, each in its turn.
  for (int step = own; step < steps; ++step) {
    of_keys.wait(step);
    of_keys.release(step);
    of_values.wait(step);
    of_values.release(step);
  }
  if (own > 0) finish<T, kWidth>(result, total, p, out, lines, batch, head, query);
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
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    const Launch shape{prepared, static_cast<cudaStream_t>(stream)};
    if constexpr (kWidth == kNarrow) {
      if (p.mask.data == nullptr) return launch(&kernel<T, kWidth, false>, shape, p, query, key, value, out, lines);
    }
    return launch(&kernel<T, kWidth, true>, shape, p, query, key, value, out, lines);
  });
}

}  // namespace treduce::attention::warp_groups
