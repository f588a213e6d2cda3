// A chunk of a row in a warp's registers, or a short row in a part of a warp: how it is loaded, mapped, reduced and stored. The order
// of additions is that of reduce/pairwise.h: stripes of 128 lanes are added one after another, then neighbouring lanes meet.
#pragma once

#include "../primitives/warp.cuh"
#include "../reduce/pairwise.h"
#include "problem.h"
#include "sources.cuh"

namespace treduce::rows {

using reduce::Pairwise;

// What a kernel knows of its call.
template <class Source>
struct Parameters {
  Problem problem;
  Pointers pointers;
  Source source;
};

// Elements of a stripe that a thread holds where the whole warp shares it.
constexpr int kOfStripe = Pairwise::kLanes / warp::kLanes;

// kStripes stripes of a row, of which each of `lanes` threads holds four elements: those of lanes (h * 32 + lane) * kSize and the next
// kSize - 1, for h below kPacks. Where kSize is 4, fewer than 32 threads can hold a short row.
template <template <class> class RowOp, class Source, int kSize, int kStripes>
struct Chunk {
  using A = typename Source::Acc;
  using Op = RowOp<A>;
  using Raw = typename Source::Raw;
  using Values = typename Op::Values;
  static constexpr int kPacks = kOfStripe / kSize;

  A held[kStripes][kOfStripe][Op::kInputs];

  // A thread's place: its lane among those that share the row, and how many elements are left from the chunk's first one on (0 or less:
  // there is no such chunk).
  struct Place {
    int lane;
    int rest;

    TREDUCE_DEVICE int element(int stripe, int h) const {
      return stripe * Pairwise::kLanes + (h * warp::kLanes + lane) * kSize;
    }
    // Where there are vectors, rows hold whole ones.
    TREDUCE_DEVICE bool has(int stripe, int h) const { return element(stripe, h) < rest; }
  };

  TREDUCE_DEVICE static Place place(int lane, int64_t rest) {
    return {lane, static_cast<int>(rest < 0 ? 0 : rest < Pairwise::kChunk ? rest : int64_t{Pairwise::kChunk})};
  }

  // Reads the chunk's elements, which begin at element `first` of row `row`.
  TREDUCE_DEVICE void load(const Parameters<Source>& p, int64_t row, int64_t first, Place place) {
    when_whole(place, [&](auto whole) { load_part<decltype(whole)::value>(p, row, first, place); });
  }

  template <bool kWhole>
  TREDUCE_DEVICE void load_part(const Parameters<Source>& p, int64_t row, int64_t first, Place place) {
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
      const Layout& layout = p.problem.in[i];
      const int64_t step = kSize > 1 || Source::kAdjacent ? 1 : layout.element_stride;
      const Raw* const begin =
          static_cast<const Raw*>(p.pointers.in[i]) + layout.row(row, p.problem.inner) + first * step;
      Vector<Raw, kSize> raw[kStripes][kPacks] = {};
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) {
          if (kWhole || place.has(s, h)) raw[s][h] = Vector<Raw, kSize>::load(begin + place.element(s, h) * step);
        }
      }
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
#pragma unroll
        for (int j = 0; j < kOfStripe; ++j) held[s][j][i] = p.source.widened(raw[s][j / kSize].at[j % kSize]);
      }
    }
  }

  // The elements' weights (or biases): one where the call has none.
  TREDUCE_DEVICE static Vector<A, kSize> weights(const Parameters<Source>& p, const void* of, int64_t first,
                                                 int element) {
    Vector<A, kSize> result;
    const auto raw = Vector<Raw, kSize>::load(static_cast<const Raw*>(of) + first + element);
#pragma unroll
    for (int c = 0; c < kSize; ++c) result.at[c] = p.source.widened(raw.at[c]);
    return result;
  }
  TREDUCE_DEVICE static Vector<A, kSize> ones() {
    Vector<A, kSize> result;
#pragma unroll
    for (int c = 0; c < kSize; ++c) result.at[c] = A(1);
    return result;
  }

  // Maps the elements for a stage and gives the leaves of this thread: [h * kSize + c].
  template <int kStage>
  TREDUCE_DEVICE void map(const Parameters<Source>& p, const Values& row, int64_t first, Place place,
                          typename Op::template Fold<kStage>::Acc (&leaf)[kOfStripe]) {
    when_whole(place, [&](auto whole) { map_part<kStage, decltype(whole)::value>(p, row, first, place, leaf); });
  }

  template <int kStage, bool kWhole>
  TREDUCE_DEVICE void map_part(const Parameters<Source>& p, const Values& row, int64_t first, Place place,
                               typename Op::template Fold<kStage>::Acc (&leaf)[kOfStripe]) {
    using Fold = typename Op::template Fold<kStage>;
#pragma unroll
    for (int j = 0; j < kOfStripe; ++j) leaf[j] = Fold::identity();
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      if (!kWhole && kStripes == Pairwise::kStripes && s * Pairwise::kLanes >= place.rest)
        break;  // the same in all threads
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        const bool has = kWhole || place.has(s, h);
        Vector<A, kSize> weight = ones();
        if constexpr (Op::kWeightFirst) {
          if (has && p.problem.has_weight) weight = weights(p, p.pointers.weight, first, place.element(s, h));
        }
#pragma unroll
        for (int c = 0; c < kSize; ++c) {
          const int j = h * kSize + c;
          const auto value = Op::template map<kStage>(held[s][j], weight.at[c], row);
          if (has) leaf[j] = Fold::combine(leaf[j], value);
        }
      }
    }
  }

  // What the elements become in a stage that the row's reduction has passed already.
  template <int kStage>
  TREDUCE_DEVICE void replay(const Parameters<Source>& p, const Values& row, int64_t first, Place place) {
    typename Op::template Fold<kStage>::Acc leaf[kOfStripe];
    map<kStage>(p, row, first, place, leaf);
  }

  // Computes the outputs and stores them.
  TREDUCE_DEVICE void store(const Parameters<Source>& p, const Values& row_values, int64_t row, int64_t first,
                            Place place) const {
    when_whole(place, [&](auto whole) { store_part<decltype(whole)::value>(p, row_values, row, first, place); });
  }

  template <bool kWhole>
  TREDUCE_DEVICE void store_part(const Parameters<Source>& p, const Values& row_values, int64_t row, int64_t first,
                                 Place place) const {
    const Layout& layout = p.problem.out;
    const int64_t step = kSize > 1 || Source::kAdjacent ? 1 : layout.element_stride;
    Raw* const begin = static_cast<Raw*>(p.pointers.out) + layout.row(row, p.problem.inner) + first * step;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        if (!kWhole && !place.has(s, h)) continue;
        const int element = place.element(s, h);
        Vector<A, kSize> weight = ones(), bias = ones();
        if constexpr (Op::kWeight && !Op::kWeightFirst) {
          if (p.problem.has_weight) weight = weights(p, p.pointers.weight, first, element);
          if (p.problem.has_bias) bias = weights(p, p.pointers.bias, first, element);
        }
        A value[kSize];
#pragma unroll
        for (int c = 0; c < kSize; ++c) {
          value[c] = Op::output(held[s][h * kSize + c], p.problem.has_weight, weight.at[c], p.problem.has_bias,
                                bias.at[c], row_values);
        }
        Vector<Raw, kSize> out;
        p.source.round(value, out.at);
        out.store(begin + element * step);
      }
    }
  }

 private:
  // Calls body(bool_constant<whether no element is missing>), where asking at each element would cost as much as computing it.
  template <class Body>
  TREDUCE_DEVICE static void when_whole(Place place, Body body) {
    constexpr bool kHasWhole = Source::kAdjacent || (kSize == 4 && kStripes == Pairwise::kStripes);
    if (kHasWhole && place.rest >= kStripes * Pairwise::kLanes) {
      body(std::bool_constant<kHasWhole>{});
    } else {
      body(std::false_type{});
    }
  }
};

// The nodes over a chunk's lanes, of kRows rows side by side, so that no shuffle waits for another row's. Leaves: [row][h * kSize + c].
// Who calls: whole warps. Valid in: all `lanes` threads that share a row.
template <class Fold, int kSize, int kRows>
TREDUCE_DEVICE void fold_lanes(typename Fold::Acc (&leaf)[kRows][kOfStripe], int lanes,
                               typename Fold::Acc (&node)[kRows]) {
  constexpr int kPacks = kOfStripe / kSize;
  // Neighbours in a thread.
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
#pragma unroll
      for (int s = 1; s < kSize; s *= 2) {
#pragma unroll
        for (int c = 0; c + s < kSize; c += 2 * s) {
          leaf[r][h * kSize + c] = Fold::combine(leaf[r][h * kSize + c], leaf[r][h * kSize + c + s]);
        }
      }
    }
  }
  // Neighbouring threads.
  const auto meet = [&](int s) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        leaf[r][h * kSize] = Fold::combine(leaf[r][h * kSize], warp::exchange(leaf[r][h * kSize], s));
      }
    }
  };
  if (lanes == warp::kLanes) {
#pragma unroll
    for (int s = 1; s < warp::kLanes; s *= 2) meet(s);
  } else {
    for (int s = 1; s < lanes; s *= 2) meet(s);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int s = 1; s < kPacks; s *= 2) {
#pragma unroll
      for (int h = 0; h + s < kPacks; h += 2 * s) {
        leaf[r][h * kSize] = Fold::combine(leaf[r][h * kSize], leaf[r][(h + s) * kSize]);
      }
    }
    node[r] = leaf[r][0];
  }
}

// The values that a row begins with.
template <class Op, class Source>
TREDUCE_DEVICE typename Op::Values begin_row(const Parameters<Source>& p, int64_t row) {
  typename Op::Values values = {};
  if constexpr (Op::kRowInputs > 0) {
#pragma unroll
    for (int i = 0; i < Op::kRowInputs; ++i) {
      Op::begin(values, i, static_cast<const typename Op::Acc*>(p.pointers.row_in[i])[row]);
    }
  }
  return values;
}

// Stores what a row has one of. Who calls: one thread.
template <class Op, class Source>
TREDUCE_DEVICE void store_row(const Parameters<Source>& p, const typename Op::Values& values, int64_t row) {
  if constexpr (!Op::kHasElements) {
    static_cast<typename Source::Raw*>(p.pointers.out)[p.problem.out.row(row, p.problem.inner)] =
        p.source.rounded(Op::row_output(values, 0));
  } else if constexpr (Op::kRowOutputs > 0) {
#pragma unroll
    for (int i = 0; i < Op::kRowOutputs; ++i) {
      static_cast<typename Op::Acc*>(p.pointers.row_out[i])[row] = Op::row_output(values, i);
    }
  }
}

}  // namespace treduce::rows
