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
    for (int r = 0; r < p.ranks; ++r) {
      Neighbours<O, 8> leaves{};
      for (int lane = 0; lane < Pairwise::kLanes; ++lane) leaves.push(p.leaf(r, lane, o));
      Neighbours<O, 32> chunks{};
      for (int i = 0; i < p.chunks_at(r); ++i) chunks.push(p.chunk(r, i, leaves.value(), o));
      cut[r] = chunks.value();
    }
    Neighbours<O, 32> blocks{};
    for (int i = 0; i < p.blocks(); ++i) blocks.push(p.block(i, cut, o));
    result.store<O>(blocks.value(), o);
  }
}

// Entries of a rank's part, one after another, and those of its message that they become: each a node of so many chunks, a power of
// two up to kMostPacked, or as it is (0).
struct Group {
  int64_t from, to, count;
  int chunks;
};

constexpr int kMostPacked = 32, kMostGroups = 5;

// What a rank sends, or where its blocks are longer what it sends beside their nodes.
template <class Source, class Acc>
struct Message {
  using O = Sum<Acc>;
  Source elements;  // (entries, outer, inner): outputs are of up to two dims
  int64_t step, outer_stride, inner_stride, inner, outputs;
  Acc* values;                // (most, outputs)
  Group groups[kMostGroups];  // nodes first

  // Of nodes, or of elements that are copied; of all outputs.
  TREDUCE_HOST_DEVICE int64_t count(bool nodes) const {
    int64_t sum = 0;
    for (const Group& g : groups) sum += (g.chunks > 0) == nodes ? g.count : 0;
    return sum * outputs;
  }
  // Number i of them: where it is written, where its first element lies, and how many chunks it has.
  struct Place {
    Acc* value;
    int64_t at;
    int chunks;
  };
  TREDUCE_HOST_DEVICE Place place(bool nodes, int64_t i) const {
    int64_t entry = outputs == 1 ? i : i / outputs;
    const int64_t output = i - entry * outputs;
    int64_t at = outputs == 1 ? 0 : output / inner * outer_stride + output % inner * inner_stride;
    Acc* value = values + output;
    for (const Group& g : groups) {
      if ((g.chunks > 0) != nodes) continue;
      if (entry < g.count) {
        at += (g.from + entry * (nodes ? g.chunks * int64_t(Pairwise::kChunk) : 1)) * step;
        return {value + (g.to + entry) * outputs, at, g.chunks};
      }
      entry -= g.count;
    }
    return {nullptr, 0, 0};  // nobody asks for so many
  }
  TREDUCE_HOST_DEVICE Acc element(int64_t at) const { return convert<Acc>(elements.at(at)); }
  TREDUCE_HOST_DEVICE Acc leaf(const Place& node, int chunk, int lane) const {
    const int64_t at = node.at + (chunk * int64_t(Pairwise::kChunk) + lane) * step, apart = Pairwise::kLanes * step;
    Acc value[Pairwise::kStripes], sum = O::identity();
    TREDUCE_UNROLL
    for (int s = 0; s < Pairwise::kStripes; ++s) value[s] = element(at + s * apart);
    TREDUCE_UNROLL
    for (int s = 0; s < Pairwise::kStripes; ++s) sum = O::combine(sum, value[s]);
    return sum;
  }
};

// A block of threads for each node, a thread for each element that is copied.
template <class Source, class Acc>
LaunchShape prepare_message(const Message<Source, Acc>& message) {
  LaunchShape shape;
  shape.kernel = "pack parts";
  shape.grid = message.count(true) + (message.count(false) + Pairwise::kLanes - 1) / Pairwise::kLanes;
  shape.block = Pairwise::kLanes;
  return shape;
}

template <class Source, class Acc>
void pack_on_cpu(const Message<Source, Acc>& m) {
  const int64_t nodes = m.count(true), copies = m.count(false);
  for (int64_t i = 0; i < nodes; ++i) {
    const auto node = m.place(true, i);
    Neighbours<Sum<Acc>, 16> leaves{};
    for (int c = 0; c < node.chunks; ++c) {
      for (int lane = 0; lane < Pairwise::kLanes; ++lane) leaves.push(m.leaf(node, c, lane));
    }
    *node.value = leaves.value();
  }
  for (int64_t i = 0; i < copies; ++i) {
    const auto copied = m.place(false, i);
    *copied.value = m.element(copied.at);
  }
}

// Calls f with a message whose elements are of that dtype, read as they are where that is short.
template <class Acc, class F>
auto with_elements(const Message<Converted<Acc>, Acc>& m, F&& f) {
  const DType dtype = m.elements.dtype;
  const auto as_is = [&](auto type) {
    using T = typename decltype(type)::type;
    Message<Elements<T>, Acc> same{{static_cast<const T*>(m.elements.data)},
                                   m.step,
                                   m.outer_stride,
                                   m.inner_stride,
                                   m.inner,
                                   m.outputs,
                                   m.values,
                                   {}};
    for (int i = 0; i < kMostGroups; ++i) same.groups[i] = m.groups[i];
    return f(same);
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
