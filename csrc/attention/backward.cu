// Idea: probabilities are computed again from scores and the logarithms of their sums, so that nothing of them was kept. Gradients of
// queries walk the keys, those of keys and values walk the queries: each is added by one warp, in one order, and nothing is added
// atomically. Scores are therefore multiplied twice, once by lines of queries and once by lines of keys.
//
// Mapping: a warp 16 lines of a tile of 64, of queries or of keys; what it multiplies stays in registers between its products.
//          The heads of a query that share a key follow each other.
// Bound:   as forward.cu: shared memory.
// Source:  T. Dao, FlashAttention-2 (2023), which adds gradients of queries atomically.
#include "line_values.cuh"

namespace treduce::attention {
namespace {

constexpr int kHalf = kTile / 2;  // lines of a tile whose scores a warp has at a time
constexpr int kN = kHalf / 8;

template <int kWidth>
TREDUCE_DEVICE Tile<kWidth> tile_of(ptx::SharedAddress shared, int i) {
  return {shared + i * Tile<kWidth>::kBytes};
}

// In place of scores and of gradients of probabilities: probabilities and gradients of scores, without the scale.
TREDUCE_DEVICE void differentiate(float& s, float& dp, float log_sum, float along) {
  s = ptx::exp2(s - log_sum);
  dp = elementary::multiply(s, dp - along);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, (kWidth == kNarrow ? 4 : 3))
    query_gradients(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out,
                    TREDUCE_GRID_CONSTANT Matrices to, TREDUCE_GRID_CONSTANT LineValues lines) {
  const ptx::SharedAddress shared = ptx::shared_address(dynamic_shared<unsigned char>());
  const auto queries = tile_of<kWidth>(shared, 0), grads = tile_of<kWidth>(shared, 1),
             keys = tile_of<kWidth>(shared, 2), values = tile_of<kWidth>(shared, 3);
  const int64_t tiles = (p.length + kTile - 1) / kTile;
  const Place place(tiles, p.heads);
  const int64_t first = (tiles - 1 - place.tile) * kTile;
  const int64_t end = p.causal ? min(p.keys, first + kTile) : p.keys;
  const uint16_t* const key = matrix_of(p.key, place.batch, place.head / p.group);
  const uint16_t* const value = matrix_of(p.value, place.batch, place.head / p.group);
  const int warp = threadIdx.x / warp::kLanes, lane = threadIdx.x % warp::kLanes;
  const int64_t query = first + warp * kLines;
  const bool has_queries = query < p.length;
  const Scores<> scores(p, place.batch, place.head);
  const int64_t line = (place.batch * p.heads + place.head) * (tiles * kTile) + query + lane / 4;
  const float log_sum[2] = {lines.log_sums[line], lines.log_sums[line + 8]};
  const float along[2] = {lines.along[line], lines.along[line + 8]};

  float result[kWidth / 8][4] = {};
  queries.copy(matrix_of(p.query, place.batch, place.head), p.query.row, first, p.length, p.width);
  grads.copy(matrix_of(out, place.batch, place.head), out.row, first, p.length, p.value_width);
  keys.copy(key, p.key.row, 0, p.keys, p.width);
  values.copy(value, p.value.row, 0, p.keys, p.value_width);
  ptx::commit_copies();
  for (int64_t k = 0; k < end; k += kTile) {
    ptx::wait_copies<0>();
    __syncthreads();
    if (has_queries) {
#pragma unroll 1
      for (int step = 0; step < kTile; step += kHalf) {
        float s[kN][4] = {}, dp[kN][4] = {};
        multiply_lines<T>(dp, grads, warp, values, step / 16);
        multiply_lines<T>(s, queries, warp, keys, step / 16);
        score<false>(s, scores, query, k + step, scores.is_whole(query, k + step, kHalf));
#pragma unroll
        for (int j = 0; j < kN; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) differentiate(s[j][i], dp[j][i], log_sum[i / 2], along[i / 2]);
        }
        multiply_held<T, 4>(result, dp, keys, step / 16);
      }
    }
    __syncthreads();  // nobody reads this tile any more
    if (k + kTile < end) {
      keys.copy(key, p.key.row, k + kTile, p.keys, p.width);
      values.copy(value, p.value.row, k + kTile, p.keys, p.value_width);
    }
    ptx::commit_copies();
  }
  const float scale[2] = {p.scale, p.scale};
  store_lines<T, kWidth>(result, scale, to, place.batch, place.head, query, p.length, p.width);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, (kWidth == kNarrow ? 3 : 2))
    key_gradients(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out,
                  TREDUCE_GRID_CONSTANT Matrices to_key, TREDUCE_GRID_CONSTANT Matrices to_value,
                  TREDUCE_GRID_CONSTANT LineValues lines) {
  const ptx::SharedAddress shared = ptx::shared_address(dynamic_shared<unsigned char>());
  const auto keys = tile_of<kWidth>(shared, 0), values = tile_of<kWidth>(shared, 1);
  const auto queries = [&](int turn) { return tile_of<kWidth>(shared, 2 + turn * 2); };
  const auto grads = [&](int turn) { return tile_of<kWidth>(shared, 3 + turn * 2); };
  const int64_t tiles = (p.keys + kTile - 1) / kTile, query_tiles = (p.length + kTile - 1) / kTile;
  const Place place(tiles, p.heads / p.group);
  const int64_t first = place.tile * kTile;
  const int warp = threadIdx.x / warp::kLanes, lane = threadIdx.x % warp::kLanes;
  const int64_t key = first + warp * kLines;
  const bool has_keys = key < p.keys;
  // The tiles of queries that attend some of these keys, of one head after another.
  const int64_t skipped = p.causal ? min(place.tile, query_tiles) : 0, each = query_tiles - skipped;
  const int64_t steps = each * p.group;
  const auto head_of = [&](int64_t step) { return place.head * p.group + step / each; };
  const auto query_of = [&](int64_t step) { return (skipped + step % each) * kTile; };
  const auto copy = [&](int64_t step) {
    const int turn = static_cast<int>(step % 2);
    queries(turn).copy(matrix_of(p.query, place.batch, head_of(step)), p.query.row, query_of(step), p.length, p.width);
    grads(turn).copy(matrix_of(out, place.batch, head_of(step)), out.row, query_of(step), p.length, p.value_width);
  };

  float of_keys[kWidth / 8][4] = {}, of_values[kWidth / 8][4] = {};
  keys.copy(matrix_of(p.key, place.batch, place.head), p.key.row, first, p.keys, p.width);
  values.copy(matrix_of(p.value, place.batch, place.head), p.value.row, first, p.keys, p.value_width);
  if (steps > 0) copy(0);
  ptx::commit_copies();
  for (int64_t step = 0; step < steps; ++step) {
    ptx::wait_copies<0>();
    __syncthreads();  // this step's queries are there, and nobody reads those of the last step
    if (step + 1 < steps) copy(step + 1);
    ptx::commit_copies();
    if (!has_keys) continue;
    const int turn = static_cast<int>(step % 2);
    const int64_t head = head_of(step), query = query_of(step);
    const Scores<> scores(p, place.batch, head);
    const int64_t line = (place.batch * p.heads + head) * (query_tiles * kTile) + query + lane % 4 * 2;
#pragma unroll 1
    for (int at = 0; at < kTile; at += kHalf) {
      float s[kN][4] = {}, dp[kN][4] = {};
      multiply_lines<T>(s, keys, warp, queries(turn), at / 16);
      multiply_lines<T>(dp, values, warp, grads(turn), at / 16);
      score<true>(s, scores, query + at, key, scores.is_whole(query + at, first, kTile));
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const auto log_sum = *reinterpret_cast<const float2*>(lines.log_sums + line + at + j * 8);
        const auto along = *reinterpret_cast<const float2*>(lines.along + line + at + j * 8);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          differentiate(s[j][half * 2], dp[j][half * 2], log_sum.x, along.x);
          differentiate(s[j][half * 2 + 1], dp[j][half * 2 + 1], log_sum.y, along.y);
        }
      }
      multiply_held<T, 2>(of_values, s, grads(turn), at / 16);
      multiply_held<T, 2>(of_keys, dp, queries(turn), at / 16);
    }
  }
  ptx::wait_copies<0>();
  const float scale[2] = {p.scale, p.scale}, one[2] = {1, 1};
  store_lines<T, kWidth>(of_keys, scale, to_key, place.batch, place.head, key, p.keys, p.width);
  store_lines<T, kWidth>(of_values, one, to_value, place.batch, place.head, key, p.keys, p.value_width);
}

}  // namespace

int launch_backward(const Problem& p, const Prepared& prepared, const Gradients& g, void* workspace, void* stream) {
  const LineValues lines{prepared.workspace.find<float>(kLogSums, workspace),
                         prepared.workspace.find<float>(kAlong, workspace)};
  const auto shape = [&](int i) { return Launch{prepared.launches[i], static_cast<cudaStream_t>(stream)}; };
  const int error = launch_whole(p, prepared, g.out, lines, stream);
  if (error != cudaSuccess) return error;
  if (prepared.way == Way::warp_groups) return backward_groups::launch_both(p, prepared, g, lines, stream);
  return dispatch_kernel(p, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    const cudaError_t error = launch(&query_gradients<T, kWidth>, shape(1), p, g.out, g.query, lines);
    if (error != cudaSuccess) return error;
    return launch(&key_gradients<T, kWidth>, shape(2), p, g.out, g.key, g.value, lines);
  });
}

}  // namespace treduce::attention
