// The sum of a run of elements that ranks cut anywhere, from what each of them sends. The run is divided in blocks of a power of
// two of chunks: a rank sends a node for each block that it has wholly; of a block that it has a part of, a node for each whole
// chunk; of a chunk that it has a part of, the elements. Host and device, free of torch and CUDA.
#pragma once

#include <cstdint>

#include "../common/launch_shape.h"
#include "../primitives/neighbours.h"
#include "pairwise.h"
#include "result.h"

namespace treduce::reduce {

// What a rank sends, in this order. A block is cut by two neighbours at most.
struct Part {
  int32_t blocks;         // nodes of whole blocks
  int32_t before, after;  // nodes of chunks: of the block before those, and of the one after
  int32_t head, tail;     // elements: of the chunk before, and of the one after
};

constexpr int kMostParts = 128;

template <class Acc>
struct Parts {
  using O = Sum<Acc>;
  const Acc* values;  // (ranks, most, outputs)
  const Part* parts;
  int ranks;
  int64_t most, outputs;

  TREDUCE_HOST_DEVICE Acc value(int rank, int64_t i, int64_t output) const {
    return values[(rank * most + i) * outputs + output];
  }
  // Between rank r and the next one: elements of the chunk that both have, and chunks of the block.
  TREDUCE_HOST_DEVICE int elements_at(int r) const { return parts[r].tail + parts[r + 1].head; }
  TREDUCE_HOST_DEVICE int chunks_at(int r) const { return parts[r].after + (elements_at(r) > 0) + parts[r + 1].before; }
  // A leaf of that chunk.
  TREDUCE_HOST_DEVICE Acc leaf(int r, int lane, int64_t output) const {
    const Part &here = parts[r], &next = parts[r + 1];
    const int64_t tail = here.blocks + here.before + here.after + here.head;
    const int64_t head = next.blocks + next.before + next.after;
    const int count = elements_at(r);
    Acc sum = O::identity();
    TREDUCE_UNROLL
    for (int s = 0; s < Pairwise::kStripes; ++s) {
      const int e = s * Pairwise::kLanes + lane;
      if (e < count) {
        sum = O::combine(sum, e < here.tail ? value(r, tail + e, output) : value(r + 1, head + e - here.tail, output));
      }
    }
    return sum;
  }
  // The node of chunk i of that block; `cut` is that of the chunk which both have.
  TREDUCE_HOST_DEVICE Acc chunk(int r, int i, Acc cut, int64_t output) const {
    const Part &here = parts[r], &next = parts[r + 1];
    if (i < here.after) return value(r, here.blocks + here.before + i, output);
    i -= here.after;
    if (elements_at(r) > 0 && i-- == 0) return cut;
    return value(r + 1, next.blocks + i, output);
  }
  TREDUCE_HOST_DEVICE int blocks() const {
    int count = parts[ranks - 1].blocks;
    for (int r = 0; r + 1 < ranks; ++r) count += parts[r].blocks + (chunks_at(r) > 0);
    return count;
  }
  // The node of block i of the run; cut[r] is that of the block which rank r and the next one have.
  TREDUCE_HOST_DEVICE Acc block(int i, const Acc* cut, int64_t output) const {
    int r = 0;
    for (; i >= parts[r].blocks; ++r) {
      i -= parts[r].blocks;
      if (chunks_at(r) > 0 && i-- == 0) return cut[r];
    }
    return value(r, i, output);
  }
};

constexpr int kPartsThreads = 256;

template <class Acc>
LaunchShape prepare_parts(const Parts<Acc>& parts) {
  LaunchShape shape;
  shape.kernel = "fold parts";
  shape.grid = parts.outputs;
  shape.block = kPartsThreads;
  return shape;
}

// Each output's sum, or mean. `stream` is a cudaStream_t, the result a cudaError_t.
int launch_parts(const Parts<float>& parts, const Result& result, void* stream);
int launch_parts(const Parts<double>& parts, const Result& result, void* stream);

template <class Acc>
void fold_parts_on_cpu(const Parts<Acc>& p, const Result& result) {
  using O = Sum<Acc>;
  for (int64_t o = 0; o < p.outputs; ++o) {
    Acc cut[kMostParts] = {};
    for (int r = 0; r + 1 < p.ranks; ++r) {
      Neighbours<O, 8> leaves;
      for (int lane = 0; lane < Pairwise::kLanes; ++lane) leaves.push(p.leaf(r, lane, o));
      Neighbours<O, 32> chunks;
      for (int i = 0; i < p.chunks_at(r); ++i) chunks.push(p.chunk(r, i, leaves.value(), o));
      cut[r] = chunks.value();
    }
    Neighbours<O, 32> blocks;
    for (int i = 0; i < p.blocks(); ++i) blocks.push(p.block(i, cut, o));
    result.store<O>(blocks.value(), o);
  }
}

}  // namespace treduce::reduce
