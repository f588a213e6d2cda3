// Idea: the kernels of backward.cu by warp groups, whose products take their operands from shared memory as they lie there.
//
// Order:   that of backward.cu.
// Mapping: a warp group 64 queries or 64 keys; a thread of one more asks for what they meet. Probabilities and gradients of scores are
//          registers that the next product takes.
// Bound:   the tensor cores, and stalls on their results.
// Source:  J. Shah et al., FlashAttention-3 (2024).
#include "groups.cuh"

namespace treduce::attention::backward_groups {
namespace {

using namespace groups;

constexpr int kStages = kBackward.stages, kGroups = kBackward.groups;

struct Barriers {
  uint64_t own_full;  // a block's own tiles are there
  Ring<kStages> ring;

  TREDUCE_DEVICE void init() {
    if (threadIdx.x == 0) {
      ptx::mbarrier_init(&own_full, 1);
      ring.init(kGroups * 4);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }
};

// Shared memory of a block: its own lines of two operands, a tile of either for each group, and the stages of the two that they meet.
template <int kWidth>
struct Tiles {
  static constexpr int kBytes = kTileBytes<kWidth>;
  char *first, *second, *stages;

  TREDUCE_DEVICE explicit Tiles(char* shared)
      : first(aligned(shared)), second(first + kGroups * kBytes), stages(second + kGroups * kBytes) {}
  TREDUCE_DEVICE char* stage(int step) const { return stages + step % kStages * 2 * kBytes; }

  // Asks for the own lines. One thread.
  TREDUCE_DEVICE void load(const Operand& of_first, const Operand& of_second, int64_t line, int64_t head, int64_t batch,
                           uint64_t* full) const {
    ptx::mbarrier_arrive_expect(full, 2 * kGroups * kBytes);
    for (int g = 0; g < kGroups; ++g) {
      of_first.load<kWidth>(first + g * kBytes, line + g * kTile, head, batch, full);
      of_second.load<kWidth>(second + g * kBytes, line + g * kTile, head, batch, full);
    }
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kBackward.threads(), 1)
    query_gradients(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Operand of_query,
                    TREDUCE_GRID_CONSTANT Operand of_out, TREDUCE_GRID_CONSTANT Operand of_key,
                    TREDUCE_GRID_CONSTANT Operand of_value, TREDUCE_GRID_CONSTANT Matrices to,
                    TREDUCE_GRID_CONSTANT LineValues lines) {
#ifdef TREDUCE_SM90A
  constexpr int kBytes = kTileBytes<kWidth>;
  SHARED(Barriers, barriers);
  auto& [own_full, ring] = barriers;
  const Tiles<kWidth> tiles(dynamic_shared<char>());

  // What takes longest begins first.
  const int64_t blocks = (p.length + kBackward.lines() - 1) / kBackward.lines(), heads = p.heads * p.batch;
  const int64_t first = (blocks - 1 - blockIdx.x / heads) * kBackward.lines();
  const int64_t head = blockIdx.x % heads % p.heads, batch = blockIdx.x % heads / p.heads;
  const int64_t last = min(first + kBackward.lines(), p.length);
  const int steps = static_cast<int>(((p.causal ? min(p.keys, last) : p.keys) + kTile - 1) / kTile);
  barriers.init();

  const int group = static_cast<int>(threadIdx.x) / kWarpGroup - 1;
  // ---- producer ----
  if (group < 0) {
    ptx::release_registers<kBackward.copier_registers()>();
    if (threadIdx.x != 0) return;
    tiles.load(of_query, of_out, first, head, batch, &own_full);
    for (int step = 0; step < steps; ++step) {
      char* const stage = tiles.stage(step);
      uint64_t* const full = ring.begin(step, 2 * kBytes);
      of_key.load<kWidth>(stage, int64_t{step} * kTile, head / p.group, batch, full);
      of_value.load<kWidth>(stage + kBytes, int64_t{step} * kTile, head / p.group, batch, full);
    }
    return;
  }

  // ---- consumers ----
  ptx::take_registers<kBackward.registers()>();
  const int thread = threadIdx.x % kWarpGroup, lane = thread % warp::kLanes;
  const int64_t of_group = first + group * kTile, query = of_group + thread / warp::kLanes * kLines;
  const int64_t seen = of_group >= p.length ? 0 : p.causal ? min(p.keys, of_group + kTile) : p.keys;
  const int own = static_cast<int>((seen + kTile - 1) / kTile);
  const Scores<> scores(p, batch, head);
  float s[kTile / 8][4], dp[kTile / 8][4], result[kWidth / 8][4];
  uint32_t words[kTile / 16][4];
  float log_sum[2] = {}, along[2] = {};
  if (own > 0) {
    const int64_t line = (batch * p.heads + head) * padded_length(p.length) + query + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      log_sum[half] = lines.log_sums[line + half * 8];
      along[half] = lines.along[line + half * 8];
    }
    ptx::mbarrier_wait(&own_full, 0);
  }
#pragma unroll 1
  for (int step = 0; step < own; ++step) {
    const char* const stage = tiles.stage(step);
    ring.wait(step);
    start_scores<T, kWidth>(s, tiles.first + group * kBytes, stage);
    start_scores<T, kWidth>(dp, tiles.second + group * kBytes, stage + kBytes);
    wait_for<1>(s);
    ptx::wgmma_touch(flat(result));  // whose product was asked for before these
    if (step > 0) ring.release(step - 1);
    const int64_t key = int64_t{step} * kTile;
    score<false>(s, scores, query, key, scores.is_whole(query, key, kTile));
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = ptx::exp2(s[j][i] - log_sum[i / 2]);
    }
    wait_for<0>(dp);
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[j][i] = elementary::multiply(s[j][i], dp[j][i] - along[i / 2]);
    }
    round_scores<T>(words, s);
    start_sums<T, kWidth>(result, words, stage, step > 0);
  }
  wait_for<0>(result);
  if (own > 0) ring.release(own - 1);
  for (int step = own; step < steps; ++step) {
    ring.wait(step);
    ring.release(step);
  }
  const float scale[2] = {p.scale, p.scale};
  if (own > 0) store_lines<T, kWidth>(result, scale, to, batch, head, query, p.length, p.width);
#endif
}

// The values of the queries of a stage.
struct alignas(16) OfQueries {
  float log_sum[kTile], along[kTile];
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kBackward.threads(), 1)
    key_gradients(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Operand of_query,
                  TREDUCE_GRID_CONSTANT Operand of_out, TREDUCE_GRID_CONSTANT Operand of_key,
                  TREDUCE_GRID_CONSTANT Operand of_value, TREDUCE_GRID_CONSTANT Matrices to_key,
                  TREDUCE_GRID_CONSTANT Matrices to_value, TREDUCE_GRID_CONSTANT LineValues lines) {
#ifdef TREDUCE_SM90A
  constexpr int kBytes = kTileBytes<kWidth>;
  SHARED(Barriers, barriers);
  SHARED_ARRAY(OfQueries, of_queries, kStages);
  auto& [own_full, ring] = barriers;
  const Tiles<kWidth> tiles(dynamic_shared<char>());

  // Where queries attend the keys before them, the first keys take longest.
  const int64_t heads = p.heads / p.group * p.batch, first = blockIdx.x / heads * kBackward.lines();
  const int64_t head = blockIdx.x % heads % (p.heads / p.group), batch = blockIdx.x % heads / (p.heads / p.group);
  // The tiles of queries that attend some of these keys, of one head after another.
  const int query_tiles = static_cast<int>((p.length + kTile - 1) / kTile);
  const int skipped = p.causal ? static_cast<int>(min(first / kTile, int64_t{query_tiles})) : 0;
  const int each = query_tiles - skipped, steps = each * static_cast<int>(p.group);
  barriers.init();

  const int group = static_cast<int>(threadIdx.x) / kWarpGroup - 1;
  // ---- producer ----
  if (group < 0) {
    ptx::release_registers<kBackward.copier_registers()>();
    if (threadIdx.x != 0) return;
    tiles.load(of_key, of_value, first, head, batch, &own_full);
    int64_t of_head = head * p.group;
    for (int step = 0, tile = skipped; step < steps; ++step) {
      char* const stage = tiles.stage(step);
      uint64_t* const full = ring.begin(step, 2 * kBytes + static_cast<int>(sizeof(OfQueries)));
      const int64_t query = int64_t{tile} * kTile;
      const int64_t line = (batch * p.heads + of_head) * padded_length(p.length) + query;
      of_query.load<kWidth>(stage, query, of_head, batch, full);
      of_out.load<kWidth>(stage + kBytes, query, of_head, batch, full);
      OfQueries& to = of_queries[step % kStages];
      ptx::load_bytes(to.log_sum, lines.log_sums + line, sizeof(to.log_sum), full);
      ptx::load_bytes(to.along, lines.along + line, sizeof(to.along), full);
      if (++tile == query_tiles) {
        tile = skipped;
        ++of_head;
      }
    }
    return;
  }

  // ---- consumers ----
  ptx::take_registers<kBackward.registers()>();
  const int thread = threadIdx.x % kWarpGroup, lane = thread % warp::kLanes;
  const int64_t of_group = first + group * kTile, key = of_group + thread / warp::kLanes * kLines;
  float s[kTile / 8][4], dp[kTile / 8][4], of_keys[kWidth / 8][4], of_values[kWidth / 8][4];
  uint32_t words[kTile / 16][4];  // of probabilities, then of gradients of scores
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) of_keys[j][i] = of_values[j][i] = 0;
  }
  const int own_first = of_group >= p.keys ? query_tiles
                        : p.causal         ? min(static_cast<int>(of_group / kTile), query_tiles)
                                           : 0;
  ptx::mbarrier_wait(&own_full, 0);
  int step = 0;
  for (int64_t of_head = head * p.group; of_head < (head + 1) * p.group; ++of_head) {
    const Scores<> scores(p, batch, of_head);
    for (int tile = skipped; tile < own_first; ++tile, ++step) {  // none of these queries attends one of these keys
      ring.wait(step);
      ring.release(step);
    }
    for (int tile = own_first; tile < query_tiles; ++tile, ++step) {
      const int64_t query = int64_t{tile} * kTile;
      const char* const stage = tiles.stage(step);
      const OfQueries& values_of = of_queries[step % kStages];
      ring.wait(step);
      start_scores<T, kWidth>(s, tiles.first + group * kBytes, stage);
      start_scores<T, kWidth>(dp, tiles.second + group * kBytes, stage + kBytes);
      wait_for<1>(s);
      ptx::wgmma_touch(flat(of_keys));  // whose products were asked for before these
      ptx::wgmma_touch(flat(of_values));
      if (tile > own_first) ring.release(step - 1);
      score<true>(s, scores, query, key, scores.is_whole(query, of_group, kTile));
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j) {
        const auto log_sum = *reinterpret_cast<const float2*>(values_of.log_sum + j * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) s[j][i] = ptx::exp2(s[j][i] - (i % 2 == 0 ? log_sum.x : log_sum.y));
      }
      round_scores<T>(words, s);
      start_sums<T, kWidth>(of_values, words, stage + kBytes, true);
      wait_for<0>(dp);  // and its words are free
#pragma unroll
      for (int j = 0; j < kTile / 8; ++j) {
        const auto along = *reinterpret_cast<const float2*>(values_of.along + j * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[j][i] = elementary::multiply(s[j][i], dp[j][i] - (i % 2 == 0 ? along.x : along.y));
        }
      }
      round_scores<T>(words, s);
      start_sums<T, kWidth>(of_keys, words, stage, true);
    }
    wait_for<0>(of_keys);
    ptx::wgmma_touch(flat(of_values));
    if (own_first < query_tiles) ring.release(step - 1);
  }
  const float scale[2] = {p.scale, p.scale}, one[2] = {1, 1};
  store_lines<T, kWidth>(of_keys, scale, to_key, batch, head, key, p.keys, p.width);
  store_lines<T, kWidth>(of_values, one, to_value, batch, head, key, p.keys, p.value_width);
#endif
}

}  // namespace

int launch_both(const Problem& p, const Prepared& prepared, const Gradients& g, const LineValues& lines, void* stream) {
  Operand query, out, key, value;
  const int64_t shared = p.heads / p.group;
  cudaError_t error = describe(p, p.query, p.heads, p.length, p.width, query);
  if (error == cudaSuccess) error = describe(p, g.out, p.heads, p.length, p.value_width, out);
  if (error == cudaSuccess) error = describe(p, p.key, shared, p.keys, p.width, key);
  if (error == cudaSuccess) error = describe(p, p.value, shared, p.keys, p.value_width, value);
  if (error != cudaSuccess) return error;
  const auto shape = [&](int i) { return Launch{prepared.launches[i], static_cast<cudaStream_t>(stream)}; };
  return dispatch_kernel(p, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    const cudaError_t error = launch(&query_gradients<T, kWidth>, shape(1), p, query, out, key, value, g.query, lines);
    if (error != cudaSuccess) return error;
    return launch(&key_gradients<T, kWidth>, shape(2), p, query, out, key, value, g.key, g.value, lines);
  });
}

}  // namespace treduce::attention::backward_groups
