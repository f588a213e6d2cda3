// The kernel that splits operands into halves before they are multiplied.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "../primitives/shared.cuh"
#include "rung.h"
#include "split_segment.cuh"

namespace treduce::matmul::split {

// Each lane of a team has kNumbers of its segment, in runs of kRun; the runs of the lanes alternate.
constexpr int kNumbers = kSegment / kLanes, kRun = 8;

// Where a lane's run begins in its segment, if its first number is the lane's `i`th.
TREDUCE_DEVICE int place_of(int i) { return i * kLanes + static_cast<int>(threadIdx.x) % kLanes * kRun; }

// One operand and where its halves go. 32 bits are enough for indices of lines and segments: more would need a workspace of 2^40
// bytes.
struct Task {
  const float* data;
  int64_t line_stride, depth_stride, batch_size1, batch_stride[2];
  int64_t depth;     // k, without padding
  bool vectors;      // four steps of k are one aligned load
  bool along_lines;  // lines are contiguous
  int64_t blocks;
  Operand16 to;

  TREDUCE_DEVICE const float* line(uint32_t matrix, uint32_t line) const {
    const float* from = data + line * line_stride;
    if (matrix == 0) return from;
    const uint32_t inner = static_cast<uint32_t>(batch_size1);
    return from + matrix / inner * batch_stride[0] + matrix % inner * batch_stride[1];
  }
  // The largest sampled magnitude of the group that `segment` of the line belongs to, as bits without the sign.
  // Who calls: all lanes of a warp.
  TREDUCE_DEVICE uint32_t sample(bool there, const float* line, uint32_t segment) const {
    if (to.unit == nullptr) return 0;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kSampled; i += kLanes) {
      const int64_t k = int64_t(segment / kGroupSegments) * kGroup + i + threadIdx.x % kLanes;
      if (there && k < depth) most = max(most, __float_as_uint(__ldg(line + k * depth_stride)) << 1);
    }
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
    return most;
  }
  // Splits the segment whose numbers the lanes of a team hold, and writes its halves, scale and flags.
  // Who calls: all lanes of a warp.
  TREDUCE_DEVICE void write(const float (&x)[kNumbers], bool there, uint32_t matrix, uint32_t line, uint32_t segment,
                            uint32_t sampled) const {
    uint32_t high[kNumbers / 2], low[kNumbers / 2];
    float scale;
    unsigned char flags;
    const int present = static_cast<int>(min(int64_t(kSegment), depth - int64_t(segment) * kSegment));
    const uint32_t least = split_segment<kNumbers, kLanes>(x, present, high, low, scale, flags);
    const int unit = unit_exponent(sampled), lane = threadIdx.x % kLanes;
    if (to.unit != nullptr) to_unit<kNumbers / 2, kLanes>(high, low, scale, least, unit);
    if (!there) return;
    const Halves& shape = to.shape;
    const int64_t at = (matrix * shape.lines + line) * shape.depth + int64_t(segment) * kSegment;
#pragma unroll
    for (int i = 0; i < kNumbers; i += kRun) {
      const int w = i / 2;
      store_vector(to.high + at + place_of(i), make_uint4(high[w], high[w + 1], high[w + 2], high[w + 3]));
      store_vector(to.low + at + place_of(i), make_uint4(low[w], low[w + 1], low[w + 2], low[w + 3]));
    }
    const int64_t mark = (matrix * shape.segments() + segment) * shape.lines_padded + line;
    if (lane == 0) {
      to.scale[mark] = scale;
      to.flags[mark] = flags;
      if (to.unit != nullptr && segment % kGroupSegments == 0) {
        to.unit[(matrix * shape.groups() + segment / kGroupSegments) * shape.lines_padded + line] = power_of_two(unit);
      }
    }
    // Tiles copy the scales of the padding too: these are one.
    if (line + 1 == shape.lines) {
#pragma unroll 1
      for (int64_t i = line + 1 + lane; i < shape.lines_padded; i += kLanes) to.scale[mark - line + i] = 1.0f;
    }
  }
};

// If vectors along k are aligned, a team reads its segment from global memory.
TREDUCE_DEVICE void split_vectors(const Task& s, uint32_t block) {
  const Halves& shape = s.to.shape;
  const uint32_t lines = static_cast<uint32_t>(shape.lines), segments = static_cast<uint32_t>(shape.segments());
  const uint32_t index = block * kTeams + threadIdx.x / kLanes, row = index / segments;
  const uint32_t segment = index - row * segments, matrix = row < lines ? 0 : row / lines;
  const uint32_t line = row - matrix * lines;
  const bool there = matrix < shape.matrices;
  const float* const from = s.line(matrix, line);
  float x[kNumbers];
#pragma unroll
  for (int i = 0; i < kNumbers; i += 4) {
    const int64_t k = int64_t(segment) * kSegment + place_of(i / kRun * kRun) + i % kRun;
    const float4 four = there && k < s.depth ? __ldg(reinterpret_cast<const float4*>(from + k)) : float4{0, 0, 0, 0};
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
  s.write(x, there, matrix, line, segment, s.sample(there, from, segment));
}

// If not, a segment of kSplitLines lines goes through shared memory, read along the lines or along k, whichever is contiguous.
TREDUCE_DEVICE void split_tile(const Task& s, uint32_t block) {
  constexpr int kPitch = kSegment + 1, kStep = kThreads / kSegment, kLoads = kSplitLines / kStep;
  static_assert(kSegment == kSplitLines);
  SHARED_ARRAY(float, tile, kSplitLines* kPitch);
  const Halves& shape = s.to.shape;
  const uint32_t lines = static_cast<uint32_t>(shape.lines), segments = static_cast<uint32_t>(shape.segments());
  const uint32_t across = (lines + kSplitLines - 1) / kSplitLines, place = block / across;
  const uint32_t first = (block - place * across) * kSplitLines;
  const uint32_t matrix = place / segments, segment = place - matrix * segments;
  // A thread reads one line and every kStep-th step of k, or one step of k of every kStep-th line.
  const int x = threadIdx.x % kSegment, y = threadIdx.x / kSegment;
  const int64_t begin = int64_t(segment) * kSegment, left_k = s.depth - begin, left_lines = lines - first;
  const float* const from = s.line(matrix, first) + begin * s.depth_stride;
  const int64_t stride_x = s.along_lines ? s.line_stride : s.depth_stride;
  const int64_t stride_y = s.along_lines ? s.depth_stride : s.line_stride;
  const int64_t left_x = s.along_lines ? left_lines : left_k, left_y = s.along_lines ? left_k : left_lines;
  float numbers[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const bool there = x < left_x && y + i * kStep < left_y;
    numbers[i] = there ? __ldg(from + x * stride_x + (y + i * kStep) * stride_y) : 0.0f;
  }
  const uint32_t own = threadIdx.x / kLanes, line = first + own;
  const uint32_t sampled = s.sample(line < lines, s.line(matrix, line), segment);
  float* const to = tile + (s.along_lines ? x * kPitch + y : y * kPitch + x);
  const int pitch = s.along_lines ? kStep : kStep * kPitch;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) to[i * pitch] = numbers[i];
  __syncthreads();
  float of_team[kNumbers];
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) of_team[i] = tile[own * kPitch + place_of(i / kRun * kRun) + i % kRun];
  s.write(of_team, line < lines, matrix, line, segment, sampled);
}

static __global__ void __launch_bounds__(kThreads)
    split_operands(TREDUCE_GRID_CONSTANT Task a, TREDUCE_GRID_CONSTANT Task b) {
  ptx::allow_launch_after();
  for (int64_t block = blockIdx.x; block < a.blocks + b.blocks; block += gridDim.x) {
    const bool of_a = block < a.blocks;
    const Task& s = of_a ? a : b;
    const uint32_t own = static_cast<uint32_t>(of_a ? block : block - a.blocks);
    if (s.vectors) {
      split_vectors(s, own);
    } else {
      split_tile(s, own);
      __syncthreads();
    }
  }
}

// Where the parts of an operand lie in the call's workspace.
inline Operand16 place(const Call& call, const SplitRegions& regions) {
  Operand16 to = {};
  to.shape = regions.shape;
  to.flags = call.region<unsigned char>(regions.flags);
  if (regions.as_read) return to;
  to.high = call.region<float16>(regions.halves);
  to.low = to.high + to.shape.values;
  to.scale = call.region<float>(regions.scales);
  if (!call.prepared.few) to.unit = call.region<float>(regions.units);
  return to;
}

inline Task task_of(const Operand& o, const Splitting& s, const Operand16& to) {
  return {static_cast<const float*>(o.data),
          o.line_stride,
          o.depth_stride,
          o.batch_size[1],
          {o.batch_stride[0], o.batch_stride[1]},
          o.depth,
          s.vectors,
          s.along_lines,
          s.blocks,
          to};
}
}  // namespace treduce::matmul::split
