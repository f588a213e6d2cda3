// The sum of a run of elements that ranks cut anywhere: what each of them sends, and the sum of that. The run is divided in blocks
// of a power of two of chunks: a rank sends a node for each block that it has wholly; of a block that it has a part of, a node for
// each whole chunk; of a chunk that it has a part of, the elements. Host and device, free of torch and CUDA.
#pragma once

#include <cstdint>

#include "../common/launch_shape.h"
#include "../primitives/neighbours.h"
#include "elements.h"
#include "pairwise.h"
#include "result.h"

namespace treduce::reduce {

// What a rank sends, in this order. A block is cut by two neighbours at most, or by the end of the run.
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
  // Between rank r and the next one, or the end: elements of the chunk that both have, and chunks of the block.
  TREDUCE_HOST_DEVICE int elements_at(int r) const { return parts[r].tail + (r + 1 < ranks ? parts[r + 1].head : 0); }
  TREDUCE_HOST_DEVICE int chunks_at(int r) const {
    return parts[r].after + (elements_at(r) > 0) + (r + 1 < ranks ? parts[r + 1].before : 0);
  }
  // A leaf of that chunk.
  TREDUCE_HOST_DEVICE Acc leaf(int r, int lane, int64_t output) const {
    const Part& here = parts[r];
    const int64_t tail = here.blocks + here.before + here.after + here.head;
    int64_t head = 0;
    if (r + 1 < ranks) head = parts[r + 1].blocks + parts[r + 1].before + parts[r + 1].after;
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
    const Part& here = parts[r];
    if (i < here.after) return value(r, here.blocks + here.before + i, output);
    i -= here.after;
    if (elements_at(r) > 0 && i-- == 0) return cut;
    return value(r + 1, parts[r + 1].blocks + i, output);
  }
  TREDUCE_HOST_DEVICE int blocks() const {
    int count = 0;
    for (int r = 0; r < ranks; ++r) count += parts[r].blocks + (chunks_at(r) > 0);
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

// Of a block that folds few values, and many.
constexpr int kPartsThreads = 256, kPartsMostThreads = 1024;

template <class Acc>
LaunchShape prepare_parts(const Parts<Acc>& parts) {
  LaunchShape shape;
  shape.kernel = "fold parts";
  shape.grid = parts.outputs;
  shape.block = parts.ranks * parts.most <= 4 * kPartsThreads ? kPartsThreads : kPartsMostThreads;
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
    for (int r = 0; r < p.ranks; ++r) {
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

// Entries of a rank's part, one after another, and the entries of its message that they become.
struct Group {
  int64_t from, to, count;
};

// What a rank sends beside the nodes of its blocks, or where those are chunks all that it sends.
template <class Source, class Acc>
struct Message {
  using O = Sum<Acc>;
  Source elements;  // (entries, outer, inner): outputs are of up to two dims
  int64_t step, outer_stride, inner_stride, inner, outputs;
  Acc* values;      // (most, outputs)
  Group chunks[2];  // a node each
  Group ends[2];    // as they are

  TREDUCE_HOST_DEVICE int64_t first_of(int64_t output) const {
    return outputs == 1 ? 0 : output / inner * outer_stride + output % inner * inner_stride;
  }
  TREDUCE_HOST_DEVICE int64_t nodes() const { return (chunks[0].count + chunks[1].count) * outputs; }
  TREDUCE_HOST_DEVICE int64_t copies() const { return (ends[0].count + ends[1].count) * outputs; }
  // Of node i the value that it writes, and a leaf.
  TREDUCE_HOST_DEVICE Acc& node(int64_t i) const {
    const int64_t chunk = i / outputs, first = chunks[0].count;
    return values[(chunk < first ? chunks[0].to + chunk : chunks[1].to + chunk - first) * outputs + i % outputs];
  }
  TREDUCE_HOST_DEVICE Acc leaf(int64_t i, int lane) const {
    const int64_t chunk = i / outputs, first = chunks[0].count;
    const Group& group = chunks[chunk >= first];
    const int64_t begin = group.from + (chunk < first ? chunk : chunk - first) * Pairwise::kChunk + lane;
    const int64_t at = first_of(i % outputs) + begin * step, apart = Pairwise::kLanes * step;
    Acc value[Pairwise::kStripes], sum = O::identity();
    TREDUCE_UNROLL
    for (int s = 0; s < Pairwise::kStripes; ++s) value[s] = convert<Acc>(elements.at(at + s * apart));
    TREDUCE_UNROLL
    for (int s = 0; s < Pairwise::kStripes; ++s) sum = O::combine(sum, value[s]);
    return sum;
  }
  TREDUCE_HOST_DEVICE void copy(int64_t i) const {
    const int64_t entry = i / outputs, output = i % outputs, first = ends[0].count;
    const Group& group = ends[entry >= first];
    const int64_t of_group = entry < first ? entry : entry - first;
    values[(group.to + of_group) * outputs + output] =
        convert<Acc>(elements.at(first_of(output) + (group.from + of_group) * step));
  }
};

// A block of threads for each node, a thread for each element that is copied.
template <class Source, class Acc>
LaunchShape prepare_message(const Message<Source, Acc>& message) {
  LaunchShape shape;
  shape.kernel = "pack parts";
  shape.grid = message.nodes() + (message.copies() + Pairwise::kLanes - 1) / Pairwise::kLanes;
  shape.block = Pairwise::kLanes;
  return shape;
}

template <class Source, class Acc>
void pack_on_cpu(const Message<Source, Acc>& m) {
  for (int64_t i = 0; i < m.nodes(); ++i) {
    Neighbours<Sum<Acc>, 8> leaves;
    for (int lane = 0; lane < Pairwise::kLanes; ++lane) leaves.push(m.leaf(i, lane));
    m.node(i) = leaves.value();
  }
  for (int64_t i = 0; i < m.copies(); ++i) m.copy(i);
}

// Calls f with a message whose elements are of that dtype, read as they are where that is short.
template <class Acc, class F>
auto with_elements(const Message<Converted<Acc>, Acc>& m, F&& f) {
  const DType dtype = m.elements.dtype;
  const auto as_is = [&](auto type) {
    using T = typename decltype(type)::type;
    return f(Message<Elements<T>, Acc>{{static_cast<const T*>(m.elements.data)},
                                       m.step,
                                       m.outer_stride,
                                       m.inner_stride,
                                       m.inner,
                                       m.outputs,
                                       m.values,
                                       {m.chunks[0], m.chunks[1]},
                                       {m.ends[0], m.ends[1]}});
  };
  if constexpr (std::is_same_v<Acc, float>) {
    if (dtype == DType::float32) return as_is(Type<float>{});
    if (dtype == DType::float16) return as_is(Type<float16>{});
    if (dtype == DType::bfloat16) return as_is(Type<bfloat16>{});
  } else if (dtype == DType::float64) {
    return as_is(Type<double>{});
  }
  return f(m);
}

// `message` as of any dtype. `stream` is a cudaStream_t, the result a cudaError_t.
int launch_pack(const Message<Converted<float>, float>& message, void* stream);
int launch_pack(const Message<Converted<double>, double>& message, void* stream);

}  // namespace treduce::reduce
