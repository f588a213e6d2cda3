// What becomes of a line when its keys end: its result or, in the backward, what its softmax is made of.
#pragma once

#include "launches.h"
#include "tile.cuh"

namespace treduce::attention {

// Of the 16 lines of a warp, whose sums and maxima are those of all columns. `lines`, if there are any, are asked for in place of
// results; `out` then holds gradients of results.
template <class T, int kWidth>
TREDUCE_DEVICE void finish(const float (&result)[kWidth / 8][4], const Lines& total, const Problem& p,
                           const Matrices& out, const LineValues& lines, int64_t batch, int64_t head, int64_t query) {
  const float inverse[2] = {inverse_of(total.sum[0]), inverse_of(total.sum[1])};
  if (lines.log_sums == nullptr) {
    store_lines<T, kWidth>(result, inverse, out, batch, head, query, p.length, p.value_width);
    return;
  }
  const int lane = threadIdx.x % warp::kLanes;
  const int64_t padded = padded_length(p.length), begin = (batch * p.heads + head) * padded;
  const T* const grads = static_cast<const T*>(out.data) + batch * out.batch + head * out.head;
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
    if (lane % 4 == 0 && l < padded) {
      const bool attends = l < p.length && total.sum[half] != 0;
      lines.log_sums[begin + l] = attends ? total.most[half] + ptx::log2(total.sum[half]) : -kNever;
      lines.along[begin + l] = along;
    }
  }
}

}  // namespace treduce::attention
