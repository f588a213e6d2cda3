// The kernel of forward.cu, which the backward runs as well: it then gives what a line of softmax is made of, not results.
#pragma once

#include "tile.cuh"

namespace treduce::attention::forward {

// Of the backward: for each query the logarithm of its sum, and its results times their gradients, summed.
struct LineValues {
  float* log_sums = nullptr;
  float* along = nullptr;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, (kWidth == kNarrow ? 4 : 3))
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out,
           TREDUCE_GRID_CONSTANT LineValues lines) {
  const ptx::SharedAddress shared = ptx::shared_address(dynamic_shared<unsigned char>());
  const auto queries = Tile<kWidth>::of(shared, 0), keys = Tile<kWidth>::of(shared, 1),
             values = Tile<kWidth>::of(shared, 2);
  const int64_t tiles = (p.length + kTile - 1) / kTile;
  const Place place(tiles, p.heads);
  const int64_t first = (tiles - 1 - place.tile) * kTile;  // what takes longest begins first
  const int64_t end = p.causal ? min(p.keys, first + kTile) : p.keys;
  const int64_t key_head = place.head / p.group;
  const uint16_t* const key = matrix_of(p.key, place.batch, key_head);
  const uint16_t* const value = matrix_of(p.value, place.batch, key_head);
  const int warp = threadIdx.x / warp::kLanes, lane = threadIdx.x % warp::kLanes;
  const int64_t query = first + warp * kLines;  // this warp's first
  const bool has_queries = query < p.length;
  const Scores scores(p, place.batch, place.head);

  float result[kWidth / 8][4] = {}, sum[2] = {0, 0}, most[2] = {kNever, kNever};
  queries.copy(matrix_of(p.query, place.batch, place.head), p.query.row, first, p.length, p.width);
  keys.copy(key, p.key.row, 0, p.keys, p.width);
  ptx::commit_copies();
  for (int64_t k = 0; k < end; k += kTile) {
    ptx::wait_copies<0>();
    __syncthreads();  // keys are there, and nobody reads the values before
    values.copy(value, p.value.row, k, p.keys, p.value_width);
    ptx::commit_copies();
    float s[kColumns][4] = {};
    if (has_queries) multiply_lines<T>(s, queries, warp, keys);
    ptx::wait_copies<0>();
    __syncthreads();  // values are there, and nobody reads the keys any more
    if (k + kTile < end) keys.copy(key, p.key.row, k + kTile, p.keys, p.width);
    ptx::commit_copies();
    if (!has_queries) continue;
    score<false>(s, scores, query, k, scores.is_whole(query, k));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tallest = most[half];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) tallest = fmaxf(tallest, fmaxf(s[j][half * 2], s[j][half * 2 + 1]));
      tallest = most_of_line(tallest);
      const float offset = tallest == kNever ? 0.0f : tallest;  // of a query that attends no key yet
      const float correction = elementary::exp_of_nonpositive(most[half] - offset);
      most[half] = tallest;
      float added = 0;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          s[j][e] = elementary::exp_of_nonpositive(s[j][e] - offset);
          added += s[j][e];
        }
      }
      sum[half] = elementary::multiply_add(sum[half], correction, added);
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
        result[j][half * 2] = elementary::multiply(result[j][half * 2], correction);
        result[j][half * 2 + 1] = elementary::multiply(result[j][half * 2 + 1], correction);
      }
    }
    multiply_held<T>(result, s, values);
  }

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] = sum_of_line(sum[half]);
    inverse[half] = sum[half] == 0 ? 0.0f : 1.0f / sum[half];  // zero: it attends no key
  }
  if (lines.log_sums == nullptr) {
    store_lines<T, kWidth>(result, inverse, out, place.batch, place.head, query, p.length, p.value_width);
    return;
  }
  // `out` holds gradients.
  const int64_t of_lines = (place.batch * p.heads + place.head) * (tiles * kTile);
  const T* const grads = static_cast<const T*>(out.data) + place.batch * out.batch + place.head * out.head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t l = query + lane / 4 + half * 8;
    float along = 0;
    if (l < p.length) {
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = j * 8 + lane % 4 * 2 + e;
          if (column >= p.value_width) continue;
          const float y = elementary::multiply(result[j][half * 2 + e], inverse[half]);
          along = elementary::multiply_add(y, static_cast<float>(grads[l * out.row + column]), along);
        }
      }
    }
    along = sum_of_line(along);
    if (lane % 4 == 0) {
      const bool attends = l < p.length && sum[half] != 0;
      lines.log_sums[of_lines + l] = attends ? most[half] + elementary::log(sum[half]) : -kNever;
      lines.along[of_lines + l] = along;
    }
  }
}

}  // namespace treduce::attention::forward
