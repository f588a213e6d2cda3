// A float32 operand as those who split it read it: where its lines are, and in which units their groups are taken (see split.h).
#pragma once

#include "../../primitives/ptx/opaque.cuh"
#include "../operand.h"
#include "split_segment.cuh"

namespace treduce::matmul::split {

// Of the first numbers of a group, those of a lane.
struct Sampled {
  float numbers[kSampled / kLanes];

  // The largest of a line's magnitudes, as bits without the sign. Who calls: all lanes of a warp.
  TREDUCE_DEVICE uint32_t most() const { return Extremes::of<kLanes>(numbers).most; }
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
  // The exponent of the unit that the group of `segment` has in a line, each of kLanes neighbouring lanes of which calls: from the first
  // numbers of the group, `sampled` if they have been loaded; where these are zero, from others. Who calls: all lanes of a warp.
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
  // The same of a line that is read in vectors.
  TREDUCE_DEVICE Sampled first_vectors_of_group(bool there, const float* line, uint32_t segment) const {
    static_assert(kSampled == 4 * kLanes);
    const int64_t k = int64_t(segment / kGroupSegments) * kGroup + threadIdx.x % kLanes * 4;
    const float4 four = there && k < depth ? __ldg(reinterpret_cast<const float4*>(line + k)) : float4{};
    return {four.x, four.y, four.z, four.w};
  }
  TREDUCE_DEVICE int unit(bool there, const float* line, uint32_t segment, const Sampled& sampled) const {
    const uint32_t most = sampled.most();
    return __any_sync(~0u, there && most == 0) ? late_unit(there, line, segment, most) : unit_exponent(most);
  }
  // Where `most` of the first numbers is zero, from others.
  TREDUCE_DEVICE int late_unit(bool there, const float* line, uint32_t segment, uint32_t most) const {
    constexpr int kAtOnce = 4;  // loads, of which none waits for another
    const int64_t begin = int64_t(segment / kGroupSegments) * kGroup;
    const int left = static_cast<int>(min(depth - begin, int64_t(kGroup)));
    const float* const from = line + begin * depth_stride;
    if (there && most == 0) {
#pragma unroll 1
      for (int k = kSampled + threadIdx.x % kLanes * kSampleStep; k < left; k += kAtOnce * kLanes * kSampleStep) {
        float numbers[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int other = k + i * kLanes * kSampleStep;
          numbers[i] = __ldg(from + (other < left ? other : k) * depth_stride);
        }
#pragma unroll
        for (const float number : numbers) most = max(most, __float_as_uint(number) << 1);
      }
    }
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    return unit_exponent(most);
  }
};

// The first numbers of the group of `segment`. kVectors: four steps of k are one aligned load.
template <bool kVectors>
TREDUCE_DEVICE Sampled first_of_group(const Source& source, const float* line, int segment) {
  return kVectors ? source.first_vectors_of_group(true, line, segment) : source.first_of_group(true, line, segment);
}

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
static __device__ __noinline__ int late_unit(const Source& source, const float* line, int segment, uint32_t most) {
  return source.late_unit(true, line, segment, most);
}

// The exponent of a group's unit, from a lane's share of its first numbers. Who calls: all lanes of a warp.
TREDUCE_DEVICE int unit_of(const Source& source, const float* line, int group,
                           const float (&first)[kSampled / kLanes]) {
  const uint32_t most = Extremes::of<kLanes>(first).most;
  return __any_sync(~0u, most == 0) ? late_unit(source, line, group * kGroupSegments, most) : unit_exponent(most);
}

// Which four of every 16 steps of k a lane has of a line, of which a team of four lanes has all: neighbours, or every fourth. A load of
// single numbers then brings what lies side by side. Operands that are multiplied have to agree.
enum class Steps { neighbours, every_fourth };

// A lane's numbers of a line.
template <Steps kSteps = Steps::neighbours>
struct Line {
  static constexpr bool kNeighbours = kSteps == Steps::neighbours;
  static constexpr int kFirst = kNeighbours ? 4 : 1,
                       kNext = kNeighbours ? 1 : 4;  // steps from lane to lane; to the next number

  const char* data;  // from the lane's first number on

  // matrix: its first line.
  TREDUCE_DEVICE Line(const Side& side, const float* matrix, int line)
      : data(reinterpret_cast<const char*>(matrix + line * side.source.line_stride +
                                           threadIdx.x % kLanes * kFirst * side.source.depth_stride)) {}

  // The exponent of the unit of its first group, from the lane's first four numbers. Who calls: all lanes of a warp.
  TREDUCE_DEVICE int unit(const Side& side, const float (&first)[4]) const {
    return unit_of(side.source,
                   reinterpret_cast<const float*>(data) - threadIdx.x % kLanes * kFirst * side.source.depth_stride, 0,
                   first);
  }
  // The first four.
  TREDUCE_DEVICE void read_first(const Side& side, float (&to)[4]) const {
    const int64_t step = side.source.depth_stride * 4;
    const int left = static_cast<int>(side.source.depth) - static_cast<int>(threadIdx.x % kLanes) * kFirst;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = i * kNext < left ? __ldg(reinterpret_cast<const float*>(data + i * kNext * step)) : 0.0f;
    }
  }
  // Those of a segment; zeros past the end of k. kVectors: four steps of k are one aligned load. kAlongK: they are neighbours in memory.
  // kOneAddress: all are then addressed from the segment's beginning, not each by an address of its own.
  template <bool kVectors, bool kAlongK = kVectors, bool kOneAddress = false>
  TREDUCE_DEVICE void read(const Side& side, int segment, float (&to)[kNumbers]) const {
    static_assert(!kVectors || kNeighbours);
    const int64_t step = kAlongK ? 4 : side.source.depth_stride * 4;
    const int begin = segment * kSegment;
    const int left = static_cast<int>(side.source.depth) - begin - static_cast<int>(threadIdx.x % kLanes) * kFirst;
    const char* const from = kOneAddress ? ptx::opaque(data + begin * step) : data + begin * step;
    if constexpr (kVectors) {
#pragma unroll
      for (int i = 0; i < kNumbers; i += 4) {
        const float4 four = i * 4 < left ? __ldg(reinterpret_cast<const float4*>(from + i * 16)) : float4{};
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
      }
    } else {
      const char* at[4] = {from, from + kNext * step, from + 2 * kNext * step, from + 3 * kNext * step};
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        to[i] = i / 4 * 16 + i % 4 * kNext < left ? __ldg(reinterpret_cast<const float*>(at[i % 4])) : 0.0f;
        at[i % 4] += 16 * step;
      }
    }
  }
  TREDUCE_DEVICE void read(const Side& side, int segment, float (&to)[kNumbers]) const {
    side.vectors ? read<true>(side, segment, to) : read<false>(side, segment, to);
  }
};

}  // namespace treduce::matmul::split
