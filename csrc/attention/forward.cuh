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
  const int64_t padded = (p.length + kTile - 1) / kTile * kTile, begin = (place.batch * p.heads + place.head) * padded;
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

constexpr int kFragments = kQueries / (kThreads / warp::kLanes) / kLines;  // of 16 queries, that a warp has

template <class T, int kWidth, int kRing>
__global__ void __launch_bounds__(kThreads, (kRing > kStages     ? 1
                                             : kWidth == kNarrow ? 3
                                                                 : 2))
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out,
           TREDUCE_GRID_CONSTANT LineValues lines) {
  constexpr int kN = kStep / 8;
  const ptx::SharedAddress shared = ptx::shared_address(dynamic_shared<unsigned char>());
  using Keys = Tile<kWidth>;
  const Tile<kWidth, kQueries> queries{shared};
  const auto keys = [&](int stage) { return Keys{shared + queries.kBytes + 2 * stage * Keys::kBytes}; };
  const auto values = [&](int stage) { return Keys{shared + queries.kBytes + (2 * stage + 1) * Keys::kBytes}; };
  const int64_t tiles = (p.length + kQueries - 1) / kQueries;
  const Place place(tiles, p.heads);
  const int64_t first = (tiles - 1 - place.tile) * kQueries;  // what takes longest begins first
  const int64_t end = p.causal ? min(p.keys, first + kQueries) : p.keys;
  const uint16_t* const key = matrix_of(p.key, place.batch, place.head / p.group);
  const uint16_t* const value = matrix_of(p.value, place.batch, place.head / p.group);
  const int warp = threadIdx.x / warp::kLanes;
  const int64_t query = first + warp * (kFragments * kLines);  // this warp's first
  // No query of this warp attends a key from here on.
  const int64_t seen = query >= p.length ? 0 : p.causal ? min(p.keys, query + kFragments * kLines) : p.keys;
  const Scores scores(p, place.batch, place.head);

  const auto copy = [&](int64_t k) {
    if (k < end) {
      const int stage = static_cast<int>(k / kTile % kRing);
      keys(stage).copy(key, p.key.row, k, p.keys, p.width);
      values(stage).copy(value, p.value.row, k, p.keys, p.value_width);
    }
    ptx::commit_copies();  // a group a tile, so that waiting may count them
  };
  float result[kFragments][kWidth / 8][4] = {}, sum[kFragments][2] = {}, most[kFragments][2];
#pragma unroll
  for (int m = 0; m < kFragments; ++m) most[m][0] = most[m][1] = kNever;
  queries.copy(matrix_of(p.query, place.batch, place.head), p.query.row, first, p.length, p.width);
#pragma unroll
  for (int i = 0; i < kRing - 1; ++i) copy(i * kTile);
  for (int64_t k = 0; k < end; k += kTile) {
    ptx::wait_copies<kRing - 2>();
    __syncthreads();  // this tile is there, and nobody reads the one before
    copy(k + (kRing - 1) * kTile);
    const int stage = static_cast<int>(k / kTile % kRing);
#pragma unroll 1
    for (int step = 0; step < kTile; step += kStep) {
      const int64_t begin = k + step;
      if (begin >= seen) break;
      float s[kFragments][kN][4] = {};
      multiply_lines<T>(s, queries, warp * kFragments, keys(stage), step / 16);
#pragma unroll
      for (int m = 0; m < kFragments; ++m) {
        score<false>(s[m], scores, query + m * kLines, begin, scores.is_whole(query + m * kLines, begin, kStep));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float tallest = most[m][half];
#pragma unroll
          for (int j = 0; j < kN; ++j) tallest = fmaxf(tallest, fmaxf(s[m][j][half * 2], s[m][j][half * 2 + 1]));
          tallest = most_of_line(tallest);
          const float offset = tallest == kNever ? 0.0f : tallest;  // of a query that attends no key yet
          const float before = most[m][half];
          most[m][half] = tallest;
          float added = 0;
#pragma unroll
          for (int j = 0; j < kN; ++j) {
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; ++e) {
              s[m][j][e] = elementary::exp_of_nonpositive(s[m][j][e] - offset);
              added += s[m][j][e];
            }
          }
          // Mostly the maximum stands, and a factor of one changes no bit.
          const bool stands = before == tallest;
          const float correction = stands ? 1.0f : elementary::exp_of_nonpositive(before - offset);
          sum[m][half] = elementary::multiply_add(sum[m][half], correction, added);
          if (__all_sync(warp::kFullMask, stands)) continue;
#pragma unroll
          for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; ++e) {
              result[m][j][e] = elementary::multiply(result[m][j][e], correction);
            }
          }
        }
      }
      multiply_held<T>(result, s, values(stage), step / 16);
    }
  }

#pragma unroll
  for (int m = 0; m < kFragments; ++m) {
    const int64_t line = query + m * kLines;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[m][half] = sum_of_line(sum[m][half]);
      inverse[half] = sum[m][half] == 0 ? 0.0f : 1.0f / sum[m][half];  // zero: it attends no key
    }
    if (lines.log_sums == nullptr) {
      store_lines<T, kWidth>(result[m], inverse, out, place.batch, place.head, line, p.length, p.value_width);
    } else {
      store_line_values<T, kWidth>(result[m], sum[m], most[m], inverse, p, out, lines, place, line);
    }
  }
}

}  // namespace treduce::attention::forward
