// Columns side by side, in the order of pairwise.h.
#pragma once

#include "pairwise_cpu_lanes.h"
#include "pairwise_cpu_pages.h"

namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS {
namespace {

// Bytes of rows that should not be read one after another: from memory, rows of two lines arrive half as fast as all others, however
// they are asked for. AMD EPYC with AVX-512, 2026-11-23.
constexpr size_t kSlowRow = 128;

// A few rows at a time: for one vector of columns after another, leaves are added in registers, and so are the nodes that they
// complete. The scratch has a row of nodes for each level of the tree, one node a column.
template <class O, class L>
struct Columns {
  using In = typename L::In;
  using A = typename L::A;
  using Acc = typename L::Acc;
  using Value = typename L::Value;
  static constexpr int kElements = L::kElements;
  static constexpr int kAtOnce = 8;         // rows
  static constexpr int kFew = 16;           // rows that need no scratch
  static constexpr int kNearBytes = 16384;  // of columns that a first cache holds

  static int64_t slots(int64_t columns) { return (columns + kElements - 1) / kElements * kElements; }
  static int64_t scratch(int64_t n, int64_t columns) {
    int levels = 1;  // log2(leaves) + 1, rounded up
    while (int64_t{1} << (levels - 1) < n && levels < 8) ++levels;
    for (int64_t chunks = (n + kChunk - 1) / kChunk; chunks > 1; chunks = (chunks + 1) / 2) ++levels;
    return levels * L::kPlanes * slots(columns) * static_cast<int64_t>(sizeof(A));
  }

  static void run(const void* data, const int64_t* offsets, int64_t pitch, int64_t n, int64_t columns, void* scratch,
                  void* result) {
    const In* const x = static_cast<const In*>(data);
    const Tree tree{static_cast<A*>(scratch), columns, slots(columns)};
    if (n <= kFew) {
      const In* rows[kFew];
      for (int64_t e = 0; e < n; ++e) rows[e] = x + (offsets != nullptr ? offsets[e] : e * pitch);
      Acc* const nodes = static_cast<Acc*>(result);
      switch (n) {
        case 1: return few<1>(rows, 1, tree, nodes);
        case 2: return few<2>(rows, 2, tree, nodes);
        case 3: return few<3>(rows, 3, tree, nodes);
        case 4: return few<4>(rows, 4, tree, nodes);
        default: return few<0>(rows, static_cast<int>(n), tree, nodes);
      }
    }
    if (n <= kLanes && columns * sizeof(In) != kSlowRow &&
        (columns <= kSideBySide * kElements || n * columns * static_cast<int64_t>(sizeof(In)) <= kNearBytes)) {
      return few_leaves(x, offsets, pitch, n, tree, static_cast<Acc*>(result));
    }
    int64_t leaves = 0;
    for (int64_t first = 0; first < n; first += kChunk) {
      const int count = static_cast<int>(n - first < kChunk ? n - first : kChunk);
      const int lanes = count < kLanes ? count : kLanes, stripes = count / kLanes, rest = count % kLanes;
      for (int l = 0; l < lanes;) {
        const int mine = stripes + (l < rest ? 1 : 0);
        const int alike = l < rest ? rest : lanes;  // lanes up to here have as many stripes
        int together = 1;                           // neighbouring leaves, added side by side
        while (2 * together * mine <= kAtOnce && l % (2 * together) == 0 && l + 2 * together <= alike) together *= 2;
        const In* rows[kAtOnce];
        for (int i = 0; i < together; ++i) {
          for (int s = 0; s < mine; ++s) {
            const int64_t row = first + l + i + s * kLanes;
            rows[i * mine + s] = x + (offsets != nullptr ? offsets[row] : row * pitch);
          }
        }
        // Ways of their own for what chunks and short columns have; kLeaves * kOfLeaf values are in registers.
        switch (together * 16 + mine) {
          case 8 * 16 + 1: add<8, 1>(rows, mine, leaves, tree); break;
          case 4 * 16 + 2: add<4, 2>(rows, mine, leaves, tree); break;
          case 2 * 16 + 3: add<2, 3>(rows, mine, leaves, tree); break;
          case 2 * 16 + 4: add<2, 4>(rows, mine, leaves, tree); break;
          case 1 * 16 + 8: add<1, 8>(rows, mine, leaves, tree); break;
          default: together = 1; add<1, 0>(rows, mine, leaves, tree);
        }
        l += together;
        leaves += together;
      }
    }
    finish(leaves, tree, static_cast<Acc*>(result));
  }

  // Some vectors of a row, read side by side, in the order of memory.
  static constexpr int kSideBySide = TREDUCE_VECTOR_BYTES == 64 && L::kParts == 1 ? 4 : 1;
  template <int kVectors>
  struct Side {
    Value at[kVectors];

    TREDUCE_INLINE void load(const In* p) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) at[i] = L::load(p + i * kElements);
    }
    TREDUCE_INLINE void combine(const In* p) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) at[i] = L::combine(at[i], L::load(p + i * kElements));
    }
    TREDUCE_INLINE void combine(const Side& other) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) at[i] = L::combine(at[i], other.at[i]);
    }
  };

  // The node over n <= kLanes leaves; load(e) has leaf e of some columns. Nodes that wait for their neighbours lie on a stack.
  template <int kVectors, class Load>
  TREDUCE_INLINE static Side<kVectors> down(int64_t n, const Load& load) {
    using S = Side<kVectors>;
    const auto joined = [](S a, const S& b) __attribute__((always_inline)) {
      a.combine(b);
      return a;
    };
    const auto two = [&](int64_t e) __attribute__((always_inline)) { return joined(load(e), load(e + 1)); };
    const auto four = [&](int64_t e) __attribute__((always_inline)) { return joined(two(e), two(e + 2)); };
    S waiting[8];
    for (int64_t e = 0; e + 4 <= n; e += 4) {
      S v = four(e);
      int k = 2;
      for (; e >> k & 1; ++k) v = joined(waiting[k], v);
      waiting[k] = v;
    }
    if (n & 2) waiting[1] = two(n & ~3);
    if (n & 1) waiting[0] = load(n - 1);
    int k = 0;
    while ((n >> k & 1) == 0) ++k;
    S v = waiting[k];
    for (++k; n >> k != 0; ++k) {
      if (n >> k & 1) v = joined(waiting[k], v);
    }
    return v;
  }

 private:
  struct Tree {
    A* nodes;
    int64_t columns, slots;
    A* level(int k, int64_t slot) const { return nodes + k * L::kPlanes * slots + slot; }
    // The last vector begins early, so that it ends with the last column; the overlap is computed twice.
    int64_t begin(int64_t slot) const { return slot + kElements <= columns ? slot : columns - kElements; }
  };

  // kLeaves leaves of `stripes` rows each (kOfLeaf, or any number where that is 0), and the nodes that they complete.
  template <int kLeaves, int kOfLeaf>
  TREDUCE_INLINE static void add(const In* const* rows, int stripes, int64_t leaves, const Tree& tree) {
    int depth = 0, top = 0;
    while (1 << depth < kLeaves) ++depth;
    for (top = depth; leaves >> top & 1; ++top) {
    }
    for (int64_t slot = 0; slot < tree.columns; slot += kElements) {
      const int64_t c = tree.begin(slot);
      Value v[kLeaves];
      if constexpr (kOfLeaf == 0) {
        v[0] = L::load(rows[0] + c);
#pragma GCC unroll 1
        for (int s = 1; s < stripes; ++s) v[0] = L::combine(v[0], L::load(rows[s] + c));
      } else {
#pragma GCC unroll 8
        for (int i = 0; i < kLeaves; ++i) {
          v[i] = L::load(rows[i * kOfLeaf] + c);
#pragma GCC unroll 8
          for (int s = 1; s < kOfLeaf; ++s) v[i] = L::combine(v[i], L::load(rows[i * kOfLeaf + s] + c));
        }
      }
#pragma GCC unroll 4
      for (int s = 1; s < kLeaves; s *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < kLeaves; i += 2 * s) v[i] = L::combine(v[i], v[i + s]);
      }
      for (int k = depth; k < top; ++k) v[0] = L::combine(L::get(tree.level(k, slot), tree.slots), v[0]);
      L::put(tree.level(top, slot), tree.slots, v[0]);
    }
  }

  static void finish(int64_t leaves, const Tree& tree, Acc* result) {
    int lowest = 0;
    while ((leaves >> lowest & 1) == 0) ++lowest;
    for (int64_t slot = 0; slot < tree.columns; slot += kElements) {
      Value v = L::get(tree.level(lowest, slot), tree.slots);
      for (int k = lowest + 1; leaves >> k != 0; ++k) {
        if (leaves >> k & 1) v = L::combine(L::get(tree.level(k, slot), tree.slots), v);
      }
      L::put_nodes(result + tree.begin(slot), v);
    }
  }

  // Rows that are leaves: for some vectors of columns, all of them one after another.
  static void few_leaves(const In* x, const int64_t* offsets, int64_t pitch, int64_t n, const Tree& tree, Acc* nodes) {
    if (offsets == nullptr && pitch < 2 * tree.columns) read_ahead(x, n * pitch);
    const In* rows[kLanes];
    for (int64_t e = 0; e < n; ++e) rows[e] = x + (offsets != nullptr ? offsets[e] : e * pitch);
    for (int64_t slot = 0; slot < tree.columns;) {
      const int64_t vectors = (tree.columns - slot + kElements - 1) / kElements;
      if (kSideBySide > 2 && vectors > 2) {
        leaves_of<kSideBySide>(rows, n, slot, tree, nodes);
        slot += kSideBySide * kElements;
      } else if (kSideBySide > 1 && vectors > 1) {
        leaves_of<2>(rows, n, slot, tree, nodes);
        slot += 2 * kElements;
      } else {
        leaves_of<1>(rows, n, slot, tree, nodes);
        slot += kElements;
      }
    }
  }
  template <int kVectors>
  TREDUCE_INLINE static void leaves_of(const In* const* rows, int64_t n, int64_t slot, const Tree& tree, Acc* nodes) {
    int64_t at[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) at[i] = tree.begin(slot + i * kElements);
    const auto v = down<kVectors>(n, [&](int64_t e) __attribute__((always_inline)) {
      Side<kVectors> leaf;
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) leaf.at[i] = L::load(rows[e] + at[i]);
      return leaf;
    });
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) L::put_nodes(nodes + at[i], v.at[i]);
  }

  // A few rows, each of them a leaf: no level of the tree is written. kRows: their number, or 0 for any from 5 on, whose
  // branches are the same for every vector.
  template <int kRows>
  static void few(const In* const* rows, int any, const Tree& tree, Acc* result) {
    const int n = kRows > 0 ? kRows : any;
    int64_t slot = 0;
    for (; slot + kSideBySide * kElements <= tree.columns; slot += kSideBySide * kElements) {
      node_of_few<kSideBySide>(rows, slot, n, result + slot);
    }
    for (; slot < tree.columns; slot += kElements) {
      const int64_t c = tree.begin(slot);
      node_of_few<1>(rows, c, n, result + c);
    }
  }
  template <int kVectors>
  TREDUCE_INLINE static void node_of_few(const In* const* rows, int64_t c, int n, Acc* result) {
    Side<kVectors> v = node_of_four<kVectors>(rows, c, n);
    if (n > 4) v.combine(node_of_four<kVectors>(rows + 4, c, n - 4));
    if (n > 8) {
      Side<kVectors> w = node_of_four<kVectors>(rows + 8, c, n - 8);
      if (n > 12) w.combine(node_of_four<kVectors>(rows + 12, c, n - 12));
      v.combine(w);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) L::put_nodes(result + i * kElements, v.at[i]);
  }
  // The node over the first four rows, or over fewer where `n` is less.
  template <int kVectors>
  TREDUCE_INLINE static Side<kVectors> node_of_four(const In* const* rows, int64_t c, int n) {
    Side<kVectors> v;
    v.load(rows[0] + c);
    if (n > 1) v.combine(rows[1] + c);
    if (n > 2) {
      Side<kVectors> w;
      w.load(rows[2] + c);
      if (n > 3) w.combine(rows[3] + c);
      v.combine(w);
    }
    return v;
  }
};

}  // namespace
}  // namespace treduce::reduce::cpu::TREDUCE_INSTRUCTIONS
