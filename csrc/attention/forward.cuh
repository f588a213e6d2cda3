// The kernel of forward.cu, which the backward runs as well: it then gives what a line of softmax is made of, not results.
#pragma once

#include "tile.cuh"

namespace treduce::attention::forward {

// Of the backward: for each query the logarithm of its sum, and its results times their gradients, summed.
struct LineValues {
  float* log_sums = nullptr;
  float* along = nullptr;
};

// Of 16 lines. `out` holds gradients of results.
template <class T, int kWidth>
TREDUCE_DEVICE void store_line_values(const float (&result)[kWidth / 8][4], const float (&sum)[2],
                                      const float (&most)[2], const float (&inverse)[2], const Problem& p,
                                      const Matrices& out, const LineValues& lines, const Place& place, int64_t line) {
  const int lane = threadIdx.x % warp::kLanes;
  const int64_t padded = padded_length(p.length), begin = (place.batch * p.heads + place.head) * padded;
  const T* const grads = static_cast<const T*>(out.data) + place.batch * out.batch + place.head * out.head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t l = line + lane / 4 + half * 8;
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
    if (lane % 4 == 0 && l < padded) {
      const bool attends = l < p.length && sum[half] != 0;
      lines.log_sums[begin + l] = attends ? most[half] + elementary::log(sum[half]) : -kNever;
      lines.along[begin + l] = along;
    }
  }
}

// kRing: steps of keys and values that shared memory holds.
template <class T, int kWidth, int kRing>
__global__ void __launch_bounds__(kForwardThreads, (kRing > kStages     ? 1
                                                    : kWidth == kNarrow ? 3
                                                                        : 2))
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out,
           TREDUCE_GRID_CONSTANT LineValues lines) {
  constexpr int kN = kStep / 8;
  using Keys = Tile<kWidth, kStep>;
  const Tile<kWidth, kQueries> queries{ptx::shared_address(dynamic_shared<unsigned char>())};
  const auto keys = [&](int stage) { return Keys{queries.begin + queries.kBytes + 2 * stage * Keys::kBytes}; };
  const auto values = [&](int stage) { return Keys{queries.begin + queries.kBytes + (2 * stage + 1) * Keys::kBytes}; };
  const int64_t tiles = (p.length + kQueries - 1) / kQueries;
  const Place place(tiles, p.heads);
  const int64_t first = (tiles - 1 - place.tile) * kQueries;  // what takes longest begins first
  const int64_t end = p.causal ? min(p.keys, first + kQueries) : p.keys;
  const uint16_t* const key = matrix_of(p.key, place.batch, place.head / p.group);
  const uint16_t* const value = matrix_of(p.value, place.batch, place.head / p.group);
  const int warp = threadIdx.x / warp::kLanes;
  const int64_t query = first + warp * kLines;  // this warp's first
  // None of this warp's queries attends a key from here on.
  const int64_t seen = query >= p.length ? 0 : p.causal ? min(p.keys, query + kLines) : p.keys;
  const Scores scores(p, place.batch, place.head);

  const auto copy = [&](int64_t k, int stage) {
    if (k < end) {
      keys(stage).template copy<kForwardThreads>(key, p.key.row, k, p.keys, p.width);
      values(stage).template copy<kForwardThreads>(value, p.value.row, k, p.keys, p.value_width);
    }
    ptx::commit_copies();  // a group a step, so that waiting may count them
  };
  float result[kWidth / 8][4] = {}, sum[2] = {0, 0}, most[2] = {kNever, kNever};
  queries.template copy<kForwardThreads>(matrix_of(p.query, place.batch, place.head), p.query.row, first, p.length,
                                         p.width);
#pragma unroll
  for (int i = 0; i < kRing - 1; ++i) copy(i * kStep, i);
  int stage = 0;
  for (int64_t k = 0; k < end; k += kStep, stage = stage + 1 == kRing ? 0 : stage + 1) {
    ptx::wait_copies<kRing - 2>();
    __syncthreads();  // this step is there, and nobody reads the one before
    copy(k + (kRing - 1) * kStep, stage == 0 ? kRing - 1 : stage - 1);
    if (k >= seen) continue;
    float s[kN][4] = {};
    multiply_lines<T>(s, queries, warp, keys(stage), 0);
    score<false>(s, scores, query, k, scores.is_whole(query, k, kStep));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tallest = most[half];
#pragma unroll
      for (int j = 0; j < kN; ++j) tallest = fmaxf(tallest, fmaxf(s[j][half * 2], s[j][half * 2 + 1]));
      tallest = most_of_line(tallest);
      const float offset = tallest == kNever ? 0.0f : tallest;  // of a query that attends no key yet
      float added = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          s[j][e] = elementary::exp_of_nonpositive(s[j][e] - offset);
          added += s[j][e];
        }
      }
      // Mostly the maximum stands, and a factor of one changes no bit.
      const bool stands = most[half] == tallest;
      const float correction = stands ? 1.0f : elementary::exp_of_nonpositive(most[half] - offset);
      most[half] = tallest;
      sum[half] = elementary::multiply_add(sum[half], correction, added);
      if (__all_sync(warp::kFullMask, stands)) continue;
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) result[j][e] = elementary::multiply(result[j][e], correction);
      }
    }
    multiply_held<T, 4>(result, s, values(stage), 0);
  }

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] = sum_of_line(sum[half]);
    inverse[half] = sum[half] == 0 ? 0.0f : 1.0f / sum[half];  // zero: it attends no key
  }
  if (lines.log_sums == nullptr) {
    store_lines<T, kWidth>(result, inverse, out, place.batch, place.head, query, p.length, p.value_width);
  } else {
    store_line_values<T, kWidth>(result, sum, most, inverse, p, out, lines, place, query);
    const int64_t padded = padded_length(p.length), begin = (place.batch * p.heads + place.head) * padded;
    if (place.tile > 0) return;
    for (int64_t l = first + kQueries + threadIdx.x; l < padded; l += kForwardThreads) {  // behind the last block's
      lines.log_sums[begin + l] = -kNever;
      lines.along[begin + l] = 0;
    }
  }
}

}  // namespace treduce::attention::forward
