// A chunk of a row: how a team of threads reads it, and how its leaves meet.
#pragma once

#include "../primitives/warp.cuh"
#include "lanes.cuh"
#include "layout.cuh"
#include "pairwise.h"
#include "shapes.h"

namespace treduce::reduce {

static_assert(kWarp == warp::kLanes);

// A team of threads computes a chunk: thread t holds lanes (h * kThreads + t) * kSize and the next kSize - 1, for h below kPacks.
//
// kShifted: rows begin anywhere, and are read in aligned vectors all the same. Then each lane lies `shift` places further down, the
// first ones wrap around to the chunk's last, and before the tree the leaves move back to where they belong, where their order
// matters.
template <class O, class Source, int kSize, bool kShifted = false, int kLoads = 8>
struct Team {
  using Acc = typename O::Acc;
  using Raw = typename Source::Raw;
  using OwnLanes = Lanes<O, Source, kSize>;
  static constexpr int kLanes = Pairwise::kLanes;
  static constexpr int kThreads = team_threads(kSize);
  static constexpr int kPacks = kLanes / (kThreads * kSize);
  static constexpr int kOfWarp = warp::kLanes / kThreads;  // teams in a warp
  static constexpr int kStep = kThreads * kSize;           // from one load of a thread to its next
  // Stripes whose loads are issued together: about kLoads a thread.
  static constexpr int kAhead = kLoads / kPacks < Pairwise::kStripes ? kLoads / kPacks : Pairwise::kStripes;
  // Blocks of 256 threads that an SM shall hold: __launch_bounds__ says so, or the compiler would save registers and keep fewer
  // loads in flight. More than loads and a few additions needs more registers, hence fewer blocks.
  template <class Layout>
  static constexpr int kResident =
      !kShifted && kSize > 1 &&
              (Layout::kHow == Walk::even  ? OwnLanes::kOne || (sizeof(Acc) == 4 && kSize <= 8)
               : Layout::kHow == Walk::two ? sizeof(Acc) == 4 && kSize <= 4
                                           : false)
          ? 4
          : 3;

  // The node over the chunk that begins at element `begin` of a row of `length`; less where the row ends.
  // Who calls: whole warps, each team of kThreads with its own chunk (and thread number). Valid in: every thread.
  template <class Layout>
  TREDUCE_DEVICE static Acc chunk(const Source& x, const Layout& layout, int64_t row, int64_t begin, int64_t length,
                                  int thread) {
    OwnLanes lanes[kPacks];
    if constexpr (kShifted) {
      const int shift = static_cast<int>((reinterpret_cast<uintptr_t>(x.data) / sizeof(Raw) + row) % kSize);
      if (begin < length) shifted(x, layout.limit, row + begin, length - begin, thread, shift, lanes);
      if constexpr (!is_order_free<O>) move_back(lanes, thread, shift);
    } else {
      const int64_t first = begin + thread * kSize;
      if (kHasFull<Layout> && __builtin_expect(begin + Pairwise::kChunk <= length, 1)) {
        full(x, layout, row, first, lanes);
      } else if (begin < length) {
        // Without `full`, whole chunks come here too, and far more than an int holds may follow.
        const int64_t rest = length - first;
        ragged(x, layout, row, first, static_cast<int>(kHasFull<Layout> ? rest : min(rest, int64_t{Pairwise::kChunk})),
               lanes);
      }
    }
    return tree(lanes);
  }

  // The node over the lanes of a team.
  // Who calls: whole warps. Valid in: every thread.
  TREDUCE_DEVICE static Acc tree(const OwnLanes (&lanes)[kPacks]) {
    Acc value[kPacks];
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      value[h] = lanes[h].fold();
#pragma unroll
      for (int s = 1; s < kThreads; s *= 2) value[h] = O::combine(value[h], warp::exchange(value[h], s));
    }
    return thread::fold_neighbours<O>(value);
  }

 private:
  // Where a thread's element of stripe s lies, counted from its first.
  TREDUCE_DEVICE static constexpr int place(int s, int h) { return s * kLanes + h * kStep; }

  // Whether whole chunks have a loop of their own: not where each load takes so many instructions that a branch costs nothing.
  template <class Layout>
  static constexpr bool kHasFull = !Source::kConverts && Layout::kHow != Walk::any;

  template <class Layout>
  TREDUCE_DEVICE static void full(const Source& x, const Layout& layout, int64_t row, int64_t first,
                                  OwnLanes (&lanes)[kPacks]) {
    Walker<kStep, kSize, Layout::kHow> walker(layout, first);
    row += walker.begin();
#pragma unroll
    for (int s = 0; s < Pairwise::kStripes; s += kAhead) {
      Pack<Raw, kSize> pack[kAhead][kPacks];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) pack[a][h] = load_pack<kSize>(x, row + walker.next((s + a) * kPacks + h));
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) lanes[h].take(x, pack[a][h]);
      }
    }
  }

  template <class Layout>
  static constexpr bool kClamps = !Source::kConverts && Layout::kHow == Walk::even;

  // The chunk in which the row ends, `rest` elements after this thread's first: the same lanes, of which some take fewer.
  //
  // Where it is cheap, a load past the end is clamped to the last vector and its elements are not taken: with a branch before each
  // load the compiler waits for some of them before it issues the others, and a short row is one trip to memory and little else.
  template <class Layout>
  TREDUCE_DEVICE static void ragged(const Source& x, const Layout& layout, int64_t row, int64_t first, int rest,
                                    OwnLanes (&lanes)[kPacks]) {
    Walker<kStep, kSize, Layout::kHow> walker(layout, first);
    row += walker.begin();
    const int most = rest < kSize ? -1 : (rest - kSize) / kStep;  // this thread's last whole vector
#pragma unroll 1
    for (int s = 0; s < Pairwise::kStripes && (kClamps<Layout> ? s * kPacks <= most : place(s, 0) < rest);
         s += kAhead) {
      Pack<Raw, kSize> pack[kAhead][kPacks] = {};
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) {
          const int k = (s + a) * kPacks + h;
          if constexpr (kClamps<Layout>) {
            pack[a][h] = load_pack<kSize>(x, row + walker.next(min(k, most)));
          } else {
            const auto offset = walker.next(k);
            if (place(s + a, h) + kSize <= rest) pack[a][h] = load_pack<kSize>(x, row + offset);
          }
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
#pragma unroll
        for (int h = 0; h < kPacks; ++h) {
          const bool there = kClamps<Layout> ? (s + a) * kPacks + h <= most : place(s + a, h) + kSize <= rest;
          if (there) lanes[h].take(x, pack[a][h]);
        }
      }
    }
    if constexpr (kSize > 1 && Layout::kHow == Walk::even) {  // several dims have vectors where they hold whole ones
      // The vector that the row's end cuts belongs to one thread.
      const int stripe = rest > 0 ? rest / kLanes * kLanes : 0;
#pragma unroll
      for (int h = 0; h < kPacks; ++h) {
        const int cut = rest - stripe - h * kStep;
        if (cut <= 0 || cut >= kSize) continue;
        lanes[h].take_some(x, load_some<kSize>(x, row + layout.element(first + stripe + h * kStep), 0, cut), 0, cut);
      }
    }
  }

  // `rest` elements are left from `begin`, an offset; `shift` elements before it a vector is aligned. The first thread's first vector
  // is cut by the chunk's begin, and one vector of some thread by its end.
  TREDUCE_DEVICE static void shifted(const Source& x, int64_t limit, int64_t begin, int64_t rest, int thread, int shift,
                                     OwnLanes (&lanes)[kPacks]) {
    const int mine = thread * kSize - shift;  // the chunk's element that this thread's first vector begins with
    const int end = rest < Pairwise::kChunk ? static_cast<int>(rest) : Pairwise::kChunk;
    // Before the first address and after the last one nothing is read, though it would lie in the same 16 bytes.
    const bool no_first = begin + mine < 0;
    // The end cuts a vector of some thread: its elements from `end - cut` on.
    const int cut = end > mine ? (end - mine) % kStep : 0;
    const bool is_cut = cut > 0 && cut < kSize && cut <= end;
    const bool no_last = begin + end - cut + kSize > limit;
    Pack<Raw, kSize> last = {};
    if (is_cut && !no_last) last = load_pack<kSize>(x, begin + end - cut);
    if (end == Pairwise::kChunk) {
#pragma unroll
      for (int s = 0; s < Pairwise::kStripes; s += kAhead) {
        Pack<Raw, kSize> pack[kAhead][kPacks];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) {
            pack[a][h] = {};
            if (s + a + h > 0 || !no_first) pack[a][h] = load_pack<kSize>(x, begin + mine + place(s + a, h));
          }
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) {
            if (s + a + h == 0 && mine < 0) {
              if (no_first) pack[a][h] = load_some<kSize>(x, begin + mine, shift, kSize);
              lanes[h].take_some(x, pack[a][h], shift, kSize);
            } else {
              lanes[h].take(x, pack[a][h]);
            }
          }
        }
      }
    } else {
      constexpr int kFew = kAhead / 2;
#pragma unroll 1
      for (int s = 0; s < Pairwise::kStripes && place(s, 0) + mine < end; s += kFew) {
        Pack<Raw, kSize> pack[kFew][kPacks] = {};
#pragma unroll
        for (int a = 0; a < kFew; ++a) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) {
            const int at = mine + place(s + a, h);
            if (at < 0 ? !no_first && begin + at + kSize <= limit : at + kSize <= end) {
              pack[a][h] = load_pack<kSize>(x, begin + at);
            }
          }
        }
#pragma unroll
        for (int a = 0; a < kFew; ++a) {
#pragma unroll
          for (int h = 0; h < kPacks; ++h) {
            const int at = mine + place(s + a, h);
            if (a + h == 0 && at < 0) {
              const int to = end - at < kSize ? end - at : kSize;
              if (no_first || begin + at + kSize > limit) pack[a][h] = load_some<kSize>(x, begin + at, shift, to);
              lanes[h].take_some(x, pack[a][h], shift, to);
            } else if (at + kSize <= end) {
              lanes[h].take(x, pack[a][h]);
            }
          }
        }
      }
    }
    if (is_cut && no_last) last = load_some<kSize>(x, begin + end - cut, 0, cut);
    const int of_stripe = is_cut ? (end - mine) % kLanes : 0;
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      const int to = of_stripe - h * kStep;
      lanes[h].take_some(x, last, 0, to < kSize ? to : 0);
    }
  }

  // Moves values `shift` places down, by one bit of it after the other: the kCount first are still wanted.
  template <int kBit, int kCount, int kAll>
  TREDUCE_DEVICE static void move_down(Acc (&values)[kAll], int shift) {
    if constexpr (kBit > 0) {
#pragma unroll
      for (int c = 0; c + kBit < kCount; ++c) {
        const Acc here = values[c], there = values[c + kBit];
        values[c] = shift & kBit ? there : here;
      }
      move_down<kBit / 2, kCount - kBit>(values, shift);
    }
  }

  // Component c of thread t holds lane t * kSize + c - shift: lane l moves `shift` places down, to its own thread.
  TREDUCE_DEVICE static void move_back(OwnLanes (&lanes)[kPacks], int thread, int shift) {
    constexpr int kBoth = 2 * kSize - 1;
    const int next = (threadIdx.x & ~(kThreads - 1)) % warp::kLanes + (thread + 1) % kThreads;
    Acc both[kPacks][kBoth];  // this thread's, and what the next one holds
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) both[h][c] = lanes[h].at[c];
#pragma unroll
      for (int c = 0; c + 1 < kSize; ++c) {
        // After the last thread comes the first one with the lanes after these.
        const Acc given = thread == 0 ? lanes[(h + 1) % kPacks].at[c] : lanes[h].at[c];
        both[h][kSize + c] = warp::from(given, next);
      }
    }
#pragma unroll
    for (int h = 0; h < kPacks; ++h) {
      move_down<kSize / 2, kBoth>(both[h], shift);
#pragma unroll
      for (int c = 0; c < kSize; ++c) lanes[h].at[c] = both[h][c];
    }
  }
};

}  // namespace treduce::reduce
