// A float32 operand as those who split it read it: where its lines are, and in which units their groups are taken (see split.h).
#pragma once

#include "operand.h"
#include "split_segment.cuh"

namespace treduce::matmul::split {

// Of the first numbers of a group, those of a lane.
struct Sampled {
  float numbers[kSampled / kLanes];

  // The largest of a line's magnitudes, as bits without the sign. Who calls: all lanes of a warp.
  TREDUCE_DEVICE uint32_t most() const {
    uint32_t most = 0;
#pragma unroll
    for (const float number : numbers) most = max(most, __float_as_uint(number) << 1);
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    return most;
  }
};

// What is read: an operand's lines.
struct Source {
  const float* data;
  int64_t line_stride, depth_stride, batch_size1, batch_stride[2];
  int64_t depth;  // k, without padding

  TREDUCE_DEVICE const float* line(uint32_t matrix, uint32_t line) const {
    const float* from = data + line * line_stride;
    if (matrix == 0) return from;
    const uint32_t inner = static_cast<uint32_t>(batch_size1);
    return from + matrix / inner * batch_stride[0] + matrix % inner * batch_stride[1];
  }
  // The exponent of the unit that the group of `segment` has in a line, each of kLanes neighbouring lanes of which calls: from the
  // first numbers of the group; where these are zero, from the next ones.
  // Who calls: all lanes of a warp.
  TREDUCE_DEVICE int unit(bool there, const float* line, uint32_t segment) const {
    return unit(there, line, segment, first_of_group(there, line, segment));
  }
  TREDUCE_DEVICE Sampled first_of_group(bool there, const float* line, uint32_t segment) const {
    const int64_t begin = int64_t(segment / kGroupSegments) * kGroup;
    Sampled sampled;
#pragma unroll
    for (int i = 0; i < kSampled / kLanes; ++i) {
      const int64_t k = begin + i * kLanes + threadIdx.x % kLanes;
      sampled.numbers[i] = there && k < depth ? __ldg(line + k * depth_stride) : 0.0f;
    }
    return sampled;
  }
  TREDUCE_DEVICE int unit(bool there, const float* line, uint32_t segment, const Sampled& sampled) const {
    const int64_t begin = int64_t(segment / kGroupSegments) * kGroup;
    uint32_t most = sampled.most();
#pragma unroll 1
    for (int first = kSampled; first < kMostSampled && __any_sync(~0u, there && most == 0); first += kSegment) {
      const uint32_t next = sample<kSegment>(there && most == 0, line, begin + first);
      if (most == 0) most = next;
    }
    return unit_exponent(most);
  }

 private:
  // The largest of kCount magnitudes, as bits without the sign.
  template <int kCount>
  TREDUCE_DEVICE uint32_t sample(bool there, const float* line, int64_t begin) const {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kCount; i += kLanes) {
      const int64_t k = begin + i + threadIdx.x % kLanes;
      if (there && k < depth) most = max(most, __float_as_uint(__ldg(line + k * depth_stride)) << 1);
    }
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    return most;
  }
};

inline Source source_of(const Operand& o) {
  return {static_cast<const float*>(o.data),      o.line_stride, o.depth_stride, o.batch_size[1],
          {o.batch_stride[0], o.batch_stride[1]}, o.depth};
}

// An operand that blocks split as they need its lines.
struct Side {
  Source source;
  Matrices matrices;
  int lines;
  bool vectors;  // four steps of k are one aligned load
};

inline Side side_of(const Operand& o) {
  return {source_of(o), matrices_of(o), static_cast<int>(o.lines), splitting_of(o, halves_of(o)).vectors};
}

// The unit of a line whose group begins with zeros. A call, for it is rare. Who calls: all lanes of a warp.
static __device__ __noinline__ int late_unit(const Source& source, const float* line, int segment) {
  return source.unit(true, line, segment);
}

// The exponent of a group's unit, from a lane's first numbers of it, four that are neighbours. data: of the line, from the first of these
// on were the group the first. Who calls: all lanes of a warp.
TREDUCE_DEVICE int unit_of(const Source& source, const float* data, int group,
                           const float (&first)[kSampled / kLanes]) {
  const uint32_t most = Extremes::of<kLanes>(first).most;
  if (__any_sync(~0u, most == 0)) {
    return late_unit(source, data - threadIdx.x % kLanes * 4 * source.depth_stride, group * kGroupSegments);
  }
  return unit_exponent(most);
}

}  // namespace treduce::matmul::split
