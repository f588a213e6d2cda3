// A chunk of a row in a warp's registers, or a short row in a part of a warp: how it is loaded, mapped, reduced and stored. The order
// of additions is that of reduce/pairwise.h: stripes of 128 lanes are added one after another, then neighbouring lanes meet.
#pragma once

#include "../primitives/ptx/copy.cuh"
#include "../primitives/ptx/opaque.cuh"
#include "../primitives/warp.cuh"
#include "../reduce/pairwise.h"
#include "problem.h"
#include "shapes.h"
#include "sources.cuh"

namespace treduce::rows {

using reduce::Pairwise;

// What a kernel knows of its call.
template <class Source>
struct Parameters {
  Problem problem;
  Pointers pointers;
  Source source;
  bool has_mean;  // of the op
};

// Rows that come one after another, and no dim behind theirs: prepare takes vectors, and elements side by side, for no others.
template <class Source, int kSize>
constexpr bool kOneInner = kSize > 1 || Source::kAdjacent;

// kStripes stripes of a row, of which each of `lanes` threads holds kOfStripe elements: those of lanes (h * 32 + lane) * kSize and the
// next kSize - 1, for h below kPacks. A stripe has 32 threads, or 16 with eight elements each; where kPacks is 1, fewer can hold a row
// that is shorter than a stripe.
//
// kUsed: packs that a row has something of, which the compiler knows of short rows that are read element by element: all of every one but
// the last. 0: nothing is known.
//
// kQuickTexts: where exp of all elements is quickly taken, or no output is NaN, code of its own computes them, which takes registers.
template <template <class> class RowOp, class Source, int kSize, int kStripes, int kUsed = 0, bool kQuickTexts = true>
struct Chunk {
  using A = typename Source::Acc;
  using Op = RowOp<A>;
  using Raw = typename Source::Raw;
  using Values = typename Op::Values;
  using Pack = Vector<Raw, kSize>;
  static constexpr int kThreads = threads_of_stripe(kSize);
  static constexpr int kOfStripe = Pairwise::kLanes / kThreads;
  static constexpr int kPacks = kOfStripe / kSize;
  // What a thread gives of a stage: a node for each pack, or a maximum of all.
  template <class Fold>
  static constexpr bool kIsMax = std::is_same_v<Fold, Max<A>>;
  template <class Fold>
  static constexpr int kNodes = kIsMax<Fold> ? 1 : kPacks;

  A held[kStripes][kOfStripe][Op::kInputs];

  static constexpr bool is_unused(int stripe, int h) { return kUsed > 0 && stripe * kPacks + h >= kUsed; }
  static constexpr bool is_full(int stripe, int h) { return kUsed > 0 && stripe * kPacks + h + 1 < kUsed; }

  // ---- where ----

  // A thread's place: its lane among those that share the row, and how many elements are left from the chunk's first one on (none: there
  // is no such chunk).
  //
  // kShifted: the row begins `shift` elements behind a vector's begin, and so each thread's elements lie `shift` places before those that
  // it would hold otherwise. Of the first thread's first vector that many belong to the chunk before: it holds the chunk's last ones in
  // their place.
  struct Place {
    int lane;
    int rest;
    int shift;

    TREDUCE_DEVICE static constexpr int further(int stripe, int h) {
      return stripe * Pairwise::kLanes + h * warp::kLanes * kSize;
    }
    TREDUCE_DEVICE int element(int stripe, int h) const {
      return further(stripe, h) + lane * kSize - (Source::kShifted ? shift : 0);
    }
    // Where there are vectors, rows hold whole ones.
    TREDUCE_DEVICE bool has(int stripe, int h) const { return element(stripe, h) < rest; }

    // kShifted: element c of a vector; whether it is there; whether it is one of the chunk's last ones; whether all of them lie
    // together.
    TREDUCE_DEVICE int element(int stripe, int h, int c) const { return element(stripe, h) + c & Pairwise::kChunk - 1; }
    TREDUCE_DEVICE bool has(int stripe, int h, int c) const { return element(stripe, h, c) < rest; }
    TREDUCE_DEVICE bool is_last(int c) const { return lane == 0 && c < shift; }
    TREDUCE_DEVICE bool is_together(bool whole, int stripe) const {
      return !(stripe == 0 && is_last(0)) && (whole || element(stripe, 0) + kSize <= rest);
    }
  };

  TREDUCE_DEVICE static Place place(const Problem& problem, int64_t row, int64_t first, int lane) {
    const int64_t rest = problem.length - first;
    return {lane,
            static_cast<int>(rest < 0                  ? 0
                             : rest < Pairwise::kChunk ? rest
                                                       : int64_t{Pairwise::kChunk}),
            Source::kShifted ? static_cast<int>(row * problem.in[0].outer_stride & kSize - 1) : 0};
  }

  // Where element `first` of a row lies in each input, and in the output.
  struct Begin {
    const Raw* in[Op::kInputs];
    Raw* out;

    TREDUCE_DEVICE Begin(const Parameters<Source>& p, int64_t row, int64_t first) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        in[i] = static_cast<const Raw*>(p.pointers.in[i]) + offset(p, p.problem.in[i], row, first);
      }
      out = static_cast<Raw*>(p.pointers.out) + (Op::kHasElements ? offset(p, p.problem.out, row, first) : 0);
    }
    // The same of row `row`, which lies `step` rows further on, or, unless it `moves`, is this one.
    TREDUCE_DEVICE Begin next(const Parameters<Source>& p, int64_t row, int64_t first, int step, bool moves) const {
      if constexpr (kOneInner<Source, kSize>) {
        Begin there = *this;
#pragma unroll
        for (int i = 0; i < Op::kInputs; ++i) there.in[i] += moves ? step * p.problem.in[i].outer_stride : 0;
        there.out += moves ? step * p.problem.out.outer_stride : 0;
        return there;
      }
      return Begin(p, row, first);
    }

   private:
    TREDUCE_DEVICE static int64_t offset(const Parameters<Source>& p, const Layout& layout, int64_t row,
                                         int64_t first) {
      if constexpr (kOneInner<Source, kSize>) return row * layout.outer_stride + first;
      return layout.row(row, p.problem.inner) + first * layout.element_stride;
    }
  };

  // ---- load ----

  // The chunk's elements as they lie in memory, from element `first` of row `row` on.
  struct Packs {
    Pack at[Op::kInputs][kStripes][kPacks];

    // From and to a chunk's place in shared memory, where each thread reads what it wrote itself.
    TREDUCE_DEVICE static Packs of(const Raw* slot, int lane) {
      Packs packs;
      each([&](int i, int s, int h) { packs.at[i][s][h] = Pack::load_shared(slot + element(i, s, h, lane)); });
      return packs;
    }
    TREDUCE_DEVICE void put(Raw* slot, int lane) const {
      each([&](int i, int s, int h) { at[i][s][h].store(slot + element(i, s, h, lane)); });
    }
    // Calls body(input, stripe, pack of the stripe).
    template <class Body>
    TREDUCE_DEVICE static void each(Body body) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
#pragma unroll
        for (int s = 0; s < kStripes; ++s) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) body(i, s, h);
        }
      }
    }

    TREDUCE_DEVICE static int element(int i, int s, int h, int lane) {
      return ((i * kStripes + s) * kPacks + h) * warp::kLanes * kSize + lane * kSize;
    }
  };

  // Starts the copies of a whole chunk to its place in shared memory. Each thread waits for those that it reads: its own. Who calls: where
  // vectors are read; if kShifted, put_ends() brings the rest.
  TREDUCE_DEVICE static void copy(const Begin& begin, Place place, Raw* slot) {
    const ptx::SharedAddress to = ptx::shared_address(slot);
    const Raw* mine[Op::kInputs];
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) mine[i] = ptx::opaque(begin.in[i] + place.element(0, 0));
    Packs::each([&](int i, int s, int h) {
      const int at = Packs::element(i, s, h, place.lane);
      if (Source::kShifted && !place.is_together(true, s)) return;
      ptx::copy_async<Pack::kBytes>(to + at * static_cast<int>(sizeof(Raw)), mine[i] + Place::further(s, h));
    });
  }

  // Element c of the first thread's first vector, of a whole chunk: of the chunk's begin or end. Apart from copy(), so that a thread waits
  // once for those of several chunks.
  TREDUCE_DEVICE static void put_end(const Begin& begin, int shift, int c, Raw* slot) {
    const Place first{0, Pairwise::kChunk, shift};
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) slot[Packs::element(i, 0, 0, 0) + c] = begin.in[i][first.element(0, 0, c)];
  }

  TREDUCE_DEVICE static Packs fetch(const Parameters<Source>& p, const Begin& begin, Place place) {
    Packs packs = {};
    when_whole(place, [&](auto whole) {
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) {
        const int64_t step = kOneInner<Source, kSize> ? 1 : p.problem.in[i].element_stride;
        const Raw* const mine =
            ptx::opaque(begin.in[i] + place.element(0, 0) * step);  // the others lie at constant distances
#pragma unroll
        for (int s = 0; s < kStripes; ++s) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) {
            if (is_unused(s, h)) continue;
            const bool has = decltype(whole)::value || is_full(s, h) || place.has(s, h);
            const int further = Place::further(s, h);
            if constexpr (Source::kShifted) {
              Pack& pack = packs.at[i][s][h];
              if (place.is_together(decltype(whole)::value, s)) {
                pack = Pack::load(mine + further);
              } else {
#pragma unroll
                for (int c = 0; c < kSize; ++c) {
                  if (decltype(whole)::value || place.has(s, h, c)) pack.put(c, begin.in[i][place.element(s, h, c)]);
                }
              }
            } else if constexpr (kStripes < Pairwise::kStripes) {
              // What is missing is read at the row's first element: cheaper than not to read it.
              packs.at[i][s][h] = is_full(s, h) ? Pack::load(mine + further * step)
                                                : Pack::load(begin.in[i] + (has ? place.element(s, h) : 0) * step);
            } else if (has) {
              packs.at[i][s][h] = Pack::load(mine + further * step);
            }
          }
        }
      }
    });
    return packs;
  }

  TREDUCE_DEVICE void take(const Parameters<Source>& p, const Packs& packs) {
    Packs::each([&](int i, int s, int h) {
      A wide[kSize];
      p.source.widen(packs.at[i][s][h], wide);
#pragma unroll
      for (int c = 0; c < kSize; ++c) held[s][h * kSize + c][i] = wide[c];
    });
  }

  // ---- map, and fold in a thread ----

  // Whether maxima of elements as they are can be taken two at once: of 16-bit floats.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  static constexpr bool kPairs = sizeof(Raw) == 2 && kSize > 1 && Op::kInputs == 1 && Op::kPlainStages > 0;
#else
  static constexpr bool kPairs = false;
#endif

  // The maximum of a thread's elements of a whole chunk. Who calls: where kPairs.
  TREDUCE_DEVICE static A most_of(const Parameters<Source>& p, const Packs& packs) {
    Vector<Raw, 2> most = {{packs.at[0][0][0].word[0]}};
    Packs::each([&](int i, int s, int h) {
#pragma unroll
      for (int w = 0; w < Pack::kWords; ++w) most = p.source.greater(most, {{packs.at[i][s][h].word[w]}});
    });
    A both[2];
    p.source.widen(most, both);
    return Max<A>::combine(both[0], both[1]);
  }

  // Puts what the elements became where they were. Who calls: where they are as wide as the accumulator.
  TREDUCE_DEVICE void keep(A* slot, int lane) const {
    Packs packs;
#pragma unroll
    for (int i = 0; i < Op::kInputs; ++i) {
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) {
          A all[kSize];
#pragma unroll
          for (int c = 0; c < kSize; ++c) all[c] = held[s][h * kSize + c][i];
          memcpy(packs.at[i][s][h].word, all, sizeof(all));
        }
      }
    }
    packs.put(slot, lane);
  }

  // The elements' weights (or biases): one where the call has none.
  struct Weights {
    A at[kSize];

    TREDUCE_DEVICE Weights() {
#pragma unroll
      for (int c = 0; c < kSize; ++c) at[c] = A(1);
    }
    TREDUCE_DEVICE Weights(const Parameters<Source>& p, const void* of, int64_t element) {
      p.source.widen(Pack::load(static_cast<const Raw*>(of) + element), at);
    }
  };

  // Maps the elements of kRows rows for a stage, and gives this thread's nodes of each.
  template <int kStage, int kRows, class Fold = typename Op::template Fold<kStage>>
  TREDUCE_DEVICE static void map(Chunk (&rows)[kRows], const Parameters<Source>& p, const Values (&values)[kRows],
                                 int64_t first, Place place, typename Fold::Acc (&node)[kRows][kNodes<Fold>]) {
    when_whole(place, [&](auto whole) {
      constexpr bool kWhole = decltype(whole)::value;
      constexpr bool kHasUsual = kStage == Op::kExpStage && kMayBeUsual;
      if constexpr (kHasUsual) {
        if (are_usual(rows, values)) return map_part<kStage, kWhole, true>(rows, p, values, first, place, node);
      }
      // Where others are rare, they share the code of the ends of rows.
      map_part<kStage, kWhole && !kHasUsual, false>(rows, p, values, first, place, node);
    });
  }

  // Whether there is code of its own for elements whose exp is quickly taken.
  static constexpr bool kMayBeUsual = kQuickTexts && std::is_same_v<A, float>;

  // Whether all of a warp's elements, less their row's maximum, are such. Of a NaN in a row the maximum knows.
  template <int kRows>
  TREDUCE_DEVICE static bool are_usual(const Chunk (&rows)[kRows], const Values (&values)[kRows]) {
    bool usual = true;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      A least = rows[r].held[0][0][0];
#pragma unroll
      for (int s = 0; s < kStripes; ++s) {
#pragma unroll
        for (int j = 0; j < kOfStripe && !is_unused(s, j / kSize); ++j) least = fminf(least, rows[r].held[s][j][0]);
      }
      usual &= least - values[r].max >= -elementary::Format<A>::kUsual;
    }
    return __all_sync(warp::kFullMask, usual) != 0;
  }

  template <int kStage, bool kWhole, bool kUsual, int kRows, class Fold = typename Op::template Fold<kStage>>
  TREDUCE_DEVICE static void map_part(Chunk (&rows)[kRows], const Parameters<Source>& p, const Values (&values)[kRows],
                                      int64_t first, Place place, typename Fold::Acc (&node)[kRows][kNodes<Fold>]) {
    typename Fold::Acc leaf[kRows][kOfStripe];
    typename Fold::Acc last[kRows][kOfStripe];  // kShifted: what is added last
    if constexpr (Source::kShifted) {
#pragma unroll
      for (int k = 0; k < kRows * kOfStripe; ++k) last[k / kOfStripe][k % kOfStripe] = Fold::identity();
    }
    // Rows shorter than a stripe: what a thread has of them is there or not, which is asked once it is folded.
    constexpr bool kAskOnce = kStripes == 1 && kPacks == 1;
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
      // The same in all threads. kShifted: the last elements may lie in a stripe of their own.
      const int behind = place.rest + (Source::kShifted ? place.shift : 0);
      if (!kWhole && kStripes == Pairwise::kStripes && s > 0 && s * Pairwise::kLanes >= behind) break;
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        // A short row has more than half of the stripes of its kernel.
        const bool is_sure =
            kWhole || is_full(s, h) || kAskOnce || (kStripes < Pairwise::kStripes && 2 * s < kStripes && kStripes > 1);
        const bool has = is_sure || place.has(s, h);
        Weights weight;
        if constexpr (Op::kWeightFirst) {
          if (p.problem.has_weight && place.has(s, h))
            weight = Weights(p, p.pointers.weight, first + place.element(s, h));
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int c = 0; c < kSize; ++c) {
            const int j = h * kSize + c;
            const auto value = Op::template map<kStage, kUsual>(rows[r].held[s][j], weight.at[c], values[r]);
            const bool is_there = is_unused(s, h) ? false : !kWhole && Source::kShifted ? place.has(s, h, c) : has;
            if (s == 0) {
              const bool is_last = Source::kShifted && !kIsMax<Fold> && place.is_last(c);
              if (is_last && is_there) last[r][j] = value;
              leaf[r][j] = is_there && !is_last ? value : Fold::identity();
            } else if (is_there) {
              leaf[r][j] = Fold::combine(leaf[r][j], value);
            }
          }
        }
      }
    }
    if constexpr (Source::kShifted && !kIsMax<Fold>) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c + 1 < kSize; ++c) {
          if (place.is_last(c)) leaf[r][c] = Fold::combine(leaf[r][c], last[r][c]);
        }
        shift_back(leaf[r], place);
      }
    }
    // Neighbours in a thread; of a maximum, everything in it.
    constexpr int kTogether = kOfStripe / kNodes<Fold>;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int h = 0; h < kNodes<Fold>; ++h) {
#pragma unroll
        for (int s = 1; s < kTogether; s *= 2) {
#pragma unroll
          for (int c = 0; c + s < kTogether; c += 2 * s) {
            leaf[r][h * kTogether + c] = Fold::combine(leaf[r][h * kTogether + c], leaf[r][h * kTogether + c + s]);
          }
        }
        node[r][h] = !kAskOnce || place.has(0, 0) ? leaf[r][h * kTogether] : Fold::identity();
      }
    }
  }

  // What the elements become in a stage that the row's reduction has passed already. Apart from map(), whose exchanges between lanes would
  // keep the compiler from leaving out what is reduced.
  template <int kStage>
  TREDUCE_DEVICE static void replay(Chunk (&row)[1], const Parameters<Source>& p, const Values (&values)[1],
                                    int64_t first, Place place) {
#pragma unroll
    for (int s = 0; s < kStripes; ++s) {
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        Weights weight;
        if constexpr (Op::kWeightFirst) {
          if (p.problem.has_weight && place.has(s, h))
            weight = Weights(p, p.pointers.weight, first + place.element(s, h));
        }
#pragma unroll
        for (int c = 0; c < kSize; ++c) {
          Op::template map<kStage>(row[0].held[s][h * kSize + c], weight.at[c], values[0]);
        }
      }
    }
  }

  // ---- store ----

  // Computes the outputs of rows row, row + row_step, ..., of which `count` exist, and stores them.
  // Of weights it asks for kAheadWords a thread together.
  template <int kAheadWords = 0, int kRows>
  TREDUCE_DEVICE static void store(const Chunk (&rows)[kRows], const Parameters<Source>& p,
                                   const Values (&values)[kRows], int64_t row, int row_step, int count, int64_t first,
                                   Place place) {
    when_whole(place, [&](auto whole) {
      constexpr bool kWhole = decltype(whole)::value;
      constexpr bool kHasQuick = Op::kKnowsNumbers && (sizeof(Raw) == 2 || Op::kExpOutput) && kMayBeUsual;
      if constexpr (kHasQuick) {
        if (are_quick(rows, values))
          return store_part<kWhole, true, kAheadWords>(rows, p, values, row, row_step, count, first, place);
      }
      store_part<kWhole && !kHasQuick, false, kAheadWords>(rows, p, values, row, row_step, count, first, place);
    });
  }

  // Whether no output of a warp's is NaN, and every exp for them is usual.
  template <int kRows>
  TREDUCE_DEVICE static bool are_quick(const Chunk (&rows)[kRows], const Values (&values)[kRows]) {
    bool quick = true;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      quick &= Op::are_numbers(values[r]);
      if constexpr (Op::kExpOutput) {
        A most = A(0);
#pragma unroll
        for (int s = 0; s < kStripes; ++s) {
#pragma unroll
          for (int j = 0; j < kOfStripe; ++j) most = Max<A>::combine(most, fabsf(rows[r].held[s][j][Op::kInputs - 1]));
        }
        quick &= most <= elementary::Format<A>::kUsual;
      }
    }
    return __all_sync(warp::kFullMask, quick) != 0;
  }

  template <bool kWhole, bool kQuick, int kAheadWords, int kRows>
  TREDUCE_DEVICE static void store_part(const Chunk (&rows)[kRows], const Parameters<Source>& p,
                                        const Values (&values)[kRows], int64_t row, int row_step, int count,
                                        int64_t first, Place place) {
    const Begin begin(p, row, first);
    [[maybe_unused]] const int64_t step = kOneInner<Source, kSize> ? 1 : p.problem.out.element_stride;
    constexpr int kAll = kStripes * kPacks, kAhead = kAffine<Op> ? most_ahead(kAll, kAheadWords) : 1;
    Pack weights[kAhead], biases[kAhead];
    Raw* mine[kRows];  // this thread's first element; the others lie at constant distances
    Begin at = begin;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mine[r] = ptx::opaque(at.out + place.element(0, 0) * step);
      if (r + 1 < kRows) at = at.next(p, row + (r + 1) * row_step, first, row_step, true);
    }
#pragma unroll
    for (int k = 0; k < kAll; ++k) {
      const int s = k / kPacks, h = k % kPacks;
      if constexpr (kAffine<Op>) {
        if (k % kAhead == 0) {
#pragma unroll
          for (int j = 0; j < kAhead; ++j) {
            const int stripe = (k + j) / kPacks, pack = (k + j) % kPacks;
            const bool has = kWhole || place.has(stripe, pack);
            const int64_t element = first + place.element(stripe, pack);
            weights[j] = affine_pack(p, p.pointers.weight, has && p.problem.has_weight, element, A(1));
            if (Op::kBias) biases[j] = affine_pack(p, p.pointers.bias, has && p.problem.has_bias, element, A(-0.0));
          }
        }
      }
      if (is_unused(s, h)) continue;
      if (!Source::kShifted && !kWhole && !is_full(s, h) && !place.has(s, h)) continue;
      A weight[kSize] = {}, bias[kSize] = {};
      if constexpr (kAffine<Op>) p.source.widen(weights[k % kAhead], weight);
      if constexpr (kAffine<Op> && Op::kBias) p.source.widen(biases[k % kAhead], bias);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        A value[kSize];
#pragma unroll
        for (int c = 0; c < kSize; ++c) {
          value[c] = Op::template output<kQuick>(rows[r].held[s][h * kSize + c], kAffine<Op>, weight[c],
                                                 kAffine<Op> && Op::kBias, bias[c], values[r]);
        }
        const Pack out = p.source.template rounded<kQuick>(value);
        if constexpr (Source::kShifted) {
          if (count > 0 && place.is_together(kWhole, s)) {
            out.store(mine[r] + Place::further(s, h));
          } else if (count > 0) {
#pragma unroll
            for (int c = 0; c < kSize; ++c) {
              if (kWhole || place.has(s, h, c)) begin.out[place.element(s, h, c)] = out.at(c);
            }
          }
        } else if (r < count) {
          out.store(mine[r] + Place::further(s, h) * step);
        }
      }
    }
  }

  // Whether the output is scaled by weights, and moved by biases.
  template <class O>
  static constexpr bool kAffine = O::kWeight && !O::kWeightFirst;

  // Packs whose weights and biases are asked for together, so that a warp waits for memory once for all.
  static constexpr int most_ahead(int packs, int words) {
    int ahead = 1;
    while (2 * ahead <= packs && 2 * ahead * 2 * Pack::kWords <= words) ahead *= 2;
    return ahead;
  }

  // `none` where the call has no such weights: multiplied by 1, or with -0 added, a number keeps its bits.
  TREDUCE_DEVICE static Pack affine_pack(const Parameters<Source>& p, const void* of, bool there, int64_t element,
                                         A none) {
    A all[kSize];
#pragma unroll
    for (int c = 0; c < kSize; ++c) all[c] = none;
    Pack pack = p.source.rounded(all);
    if (there) pack = Pack::load(static_cast<const Raw*>(of) + element);
    return pack;
  }

 private:
  // kShifted: element c of thread t holds lane 4 t + c - shift: lane l moves to its own thread, `shift` places down.
  template <class Acc>
  TREDUCE_DEVICE static void shift_back(Acc (&leaf)[kOfStripe], Place place) {
    constexpr int kBoth = 2 * kOfStripe - 1;
    const int next = (place.lane + 1) % warp::kLanes;
    Acc both[kBoth];  // this thread's, and what the next one holds
#pragma unroll
    for (int c = 0; c < kOfStripe; ++c) both[c] = leaf[c];
#pragma unroll
    for (int c = 0; c + 1 < kOfStripe; ++c) both[kOfStripe + c] = warp::from(leaf[c], next);
#pragma unroll
    for (int c = 0; c + 2 < kBoth; ++c) both[c] = place.shift & 2 ? both[c + 2] : both[c];
#pragma unroll
    for (int c = 0; c < kOfStripe; ++c) leaf[c] = place.shift & 1 ? both[c + 1] : both[c];
  }

  // Calls body(bool_constant<whether no element is missing>), where asking at each element would cost as much as computing it.
  template <class Body>
  TREDUCE_DEVICE static void when_whole(Place place, Body body) {
    constexpr bool kHasWhole = kStripes == Pairwise::kStripes && (Source::kAdjacent || kPacks == 1);
    if (kHasWhole && place.rest >= kStripes * Pairwise::kLanes) {
      body(std::bool_constant<kHasWhole>{});
    } else {
      body(std::false_type{});
    }
  }
};

// ---- fold between threads ----

// The first of kCount values of each thread becomes one of them, of number (lane / s) % kCount, over kCount threads s apart: where two
// threads would exchange two values, each gives one away and keeps the other.
template <class Fold, int kCount, int kAll>
TREDUCE_DEVICE void halve(typename Fold::Acc (&value)[kAll], int s) {
  if constexpr (kCount > 1) {
    const bool odd = (threadIdx.x & s) != 0;
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      const auto kept = odd ? value[2 * k + 1] : value[2 * k], given = odd ? value[2 * k] : value[2 * k + 1];
      value[k] = Fold::combine(kept, warp::exchange(given, s));
    }
    halve<Fold, kCount / 2>(value, 2 * s);
  }
}

// The node of one of kRows rows, over the `lanes` threads that share them: of row (lane / kPacks) % kRows. All rows together
// take few more shuffles than one, and so do packs, whose nodes meet last.
// Who calls: whole warps. Valid in: every thread, for the row named. Needs: kPacks * kRows lanes or more, a power of two.
template <class Fold, int kPacks, int kRows, int kNodes>
TREDUCE_DEVICE typename Fold::Acc fold_lanes(typename Fold::Acc (&node)[kRows][kNodes], int lanes) {
  using Acc = typename Fold::Acc;
  constexpr int kAll = kRows * kNodes;
  Acc value[kAll];
#pragma unroll
  for (int k = 0; k < kAll; ++k) value[k] = node[k / kNodes][k % kNodes];
  halve<Fold, kAll>(value, kPacks / kNodes);
  const auto meet = [&](int s) { value[0] = Fold::combine(value[0], warp::exchange(value[0], s)); };
  if (lanes == warp::kLanes) {
#pragma unroll
    for (int s = kPacks * kRows; s < warp::kLanes; s *= 2) meet(s);
  } else {
    for (int s = kPacks * kRows; s < lanes; s *= 2) meet(s);
  }
#pragma unroll
  for (int s = 1; s < kPacks; s *= 2) meet(s);
  return value[0];
}

// ---- what a row has one of ----

// The values that a row begins with.
template <class Op, class Source>
TREDUCE_DEVICE typename Op::Values begin_row(const Parameters<Source>& p, int64_t row) {
  typename Op::Values values = {};
  if constexpr (Op::kRowInputs > 0) {
    const int lacking = p.has_mean ? 0 : 1;  // the mean comes first
#pragma unroll
    for (int i = 0; i < Op::kRowInputs; ++i) {
      if (i >= lacking) Op::begin(values, i, static_cast<const typename Op::Acc*>(p.pointers.row_in[i - lacking])[row]);
    }
  }
  return values;
}

// Stores what a row has one of. Who calls: one thread.
template <class Op, class Source>
TREDUCE_DEVICE void store_row(const Parameters<Source>& p, const typename Op::Values& values, int64_t row) {
  if constexpr (!Op::kHasElements) {
    const typename Op::Acc result[1] = {Op::row_output(values, 0)};
    p.source.rounded(result).store(static_cast<typename Source::Raw*>(p.pointers.out) +
                                   p.problem.out.row(row, p.problem.inner));
  } else if constexpr (Op::kRowOutputs > 0) {
#pragma unroll
    for (int i = 0; i < Op::kRowOutputs; ++i) {
      static_cast<typename Op::Acc*>(p.pointers.row_out[i])[row] = Op::row_output(values, i);
    }
  }
}

}  // namespace treduce::rows
