// Softmax of a line of scores while it is walked, in units of log2: what has been added so far is corrected as larger scores come.
// docs/numerics.md has the order.
#pragma once

#include "../primitives/elementary.h"
#include "../primitives/ptx/exp2.cuh"
#include "../primitives/warp.cuh"
#include "shapes.h"

namespace treduce::attention {

constexpr float kNever = -__builtin_inff();

// Over the four lanes that share a line. Valid in each of them.
TREDUCE_DEVICE float sum_of_line(float value) {
  value += warp::exchange(value, 1);
  return value + warp::exchange(value, 2);
}
TREDUCE_DEVICE float most_of_line(float value) {
  value = fmaxf(value, warp::exchange(value, 1));
  return fmaxf(value, warp::exchange(value, 2));
}

// What exponents are taken from; of a line that attends no key yet, nothing.
TREDUCE_DEVICE float offset_of(float most) { return most == kNever ? 0.0f : most; }

// Replaces a line's scores by probabilities times a common factor, and returns the sum of those in this thread.
template <int kN>
TREDUCE_DEVICE float exponentiate(float (&s)[kN][4], int half, float offset) {
  float added = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
#pragma unroll
    for (int e = half * 2; e < half * 2 + 2; ++e) {
      s[j][e] = ptx::exp2(s[j][e] - offset);
      added += s[j][e];
    }
  }
  return added;
}

// 1 / sum; of a line that attends no key 0.
TREDUCE_DEVICE float inverse_of(float sum) { return sum == 0 ? 0.0f : 1.0f / sum; }

// Of the two lines of a thread, of which it holds some columns. `sum` is that of these columns.
struct Lines {
  float most[2] = {kNever, kNever};
  float sum[2] = {0, 0};

  // Replaces the scores of a step. Multiplying what was added before by `correction` gives it the same factor. Returns whether that changes
  // anything in this warp.
  template <int kN>
  TREDUCE_DEVICE bool step(float (&s)[kN][4], float (&correction)[2]) {
    bool stands = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tallest = most[half];
#pragma unroll
      for (int j = 0; j < kN; ++j) tallest = fmaxf(tallest, fmaxf(s[j][half * 2], s[j][half * 2 + 1]));
      tallest = most_of_line(tallest);
      const float offset = offset_of(tallest);
      stands &= most[half] == tallest;
      correction[half] = ptx::exp2(most[half] - offset);
      most[half] = tallest;
      sum[half] = elementary::multiply_add(sum[half], correction[half], exponentiate(s, half, offset));
    }
    return !__all_sync(warp::kFullMask, stands);
  }
};

// The factors with which two parts of a line meet.
struct Meeting {
  float most, of_first, of_second;

  TREDUCE_DEVICE Meeting(float first, float second) : most(fmaxf(first, second)) {
    const float offset = offset_of(most);
    of_first = ptx::exp2(first - offset);
    of_second = ptx::exp2(second - offset);
  }
  TREDUCE_DEVICE float join(float first, float second) const {
    return elementary::multiply_add(first, of_first, elementary::multiply(second, of_second));
  }
};

template <int kN>
TREDUCE_DEVICE void correct(float (&sums)[kN][4], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < kN; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] = elementary::multiply(sums[j][i], factor[i / 2]);
  }
}

// Adds the piece of keys that has ended to those before it. `totals`: what they came to, in shared memory, where a thread has every
// kApart-th place: kN of sums, and one of maxima and sums of exponentials. `keep`: the new totals are left there; otherwise sums are in
// `result`, and the rest is returned.
template <int kApart, int kN>
TREDUCE_DEVICE Lines end_piece(float (&result)[kN][4], const Lines& line, float4* totals, bool is_first, bool keep) {
  Lines total = line;
  float of_total[2] = {0, 0}, of_piece[2] = {1, 1};
#pragma unroll
  for (int half = 0; half < 2; ++half) total.sum[half] = sum_of_line(line.sum[half]);
  if (!is_first) {
    const float4 before = totals[kN * kApart];
    const float most[2] = {before.x, before.y}, sum[2] = {before.z, before.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Meeting meeting(most[half], line.most[half]);
      total.most[half] = meeting.most;
      total.sum[half] = meeting.join(sum[half], total.sum[half]);
      of_total[half] = meeting.of_first;
      of_piece[half] = meeting.of_second;
    }
  }
  if (is_first && !keep) return total;
  if (keep) totals[kN * kApart] = make_float4(total.most[0], total.most[1], total.sum[0], total.sum[1]);
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    if (!is_first) {
      const float4 before = totals[j * kApart];
      const float values[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        result[j][i] =
            elementary::multiply_add(values[i], of_total[i / 2], elementary::multiply(result[j][i], of_piece[i / 2]));
      }
    }
    if (keep) totals[j * kApart] = make_float4(result[j][0], result[j][1], result[j][2], result[j][3]);
  }
  return total;
}

}  // namespace treduce::attention
