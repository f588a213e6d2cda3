// Columns: neighbouring outputs lie side by side in memory, and the elements of an output a row apart. Where a thread's columns
// lie, how a row of them is read, and how their results are written.
#pragma once

#include "reads.h"
#include "store.cuh"

namespace treduce::reduce::columns {

// Columns that a thread reads as one vector.
template <class Source>
constexpr int vector_columns =
    static_cast<int>(column_bytes(sizeof(typename Source::Type)) / sizeof(typename Source::Type));

// The columns of a thread: kSize neighbours that one load brings, or kSize single ones, as many columns apart as there are threads
// side by side. Either way a warp reads one run of memory.
template <int kColumns, bool kOneLoad>
struct Columns {
  static constexpr int kSize = kColumns;
  static constexpr bool kVector = kOneLoad;
  // Which column of the tile is the c-th of thread t.
  TREDUCE_DEVICE static int column(int c, int t, int threads) { return kVector ? t * kSize + c : c * threads + t; }
};

// The kept dims, innermost first, so that what most calls need lies together: kernel parameters come from memory, line by line.
struct Kept {
  struct Dim {
    int64_t stride, out_stride;
    Divider size;
  };
  int count = 1;
  Dim dim[kMaxDims];

  explicit Kept(const Geometry& g) {
    for (int d = 0; d < g.kept.count; ++d) {
      const int from = g.kept.count - 1 - d;
      dim[d] = {g.kept.stride[from], g.kept_out.stride[from], g.kept.size[from]};
    }
    if (g.kept.count > 1) count = g.kept.count;
  }
  TREDUCE_DEVICE int64_t offset(int64_t column) const { return sum<&Dim::stride>(column); }
  TREDUCE_DEVICE int64_t out(int64_t column) const { return sum<&Dim::out_stride>(column); }

 protected:
  template <int64_t Dim::* kStride>
  TREDUCE_DEVICE int64_t sum(int64_t i) const {
    int64_t total = 0;
#pragma unroll 1
    for (int d = 0; d + 1 < count; ++d) {
      const int64_t q = dim[d].size.quotient(i);
      total += (i - q * dim[d].size.divisor) * (dim[d].*kStride);
      i = q;
    }
    return total + i * (dim[count - 1].*kStride);
  }
};

// The same for kernels that find columns for few loads: divisions of 32 bits where numbers of columns fit, and none for results that lie
// one after another.
struct KeptOfThread : Kept {
  bool dense_out, is_small;

  explicit KeptOfThread(const Geometry& g)
      : Kept(g), dense_out(g.kept_out.is_dense()), is_small(g.outputs <= INT32_MAX) {}
  TREDUCE_DEVICE int64_t offset(int64_t column) const {
    return is_small ? small<&Dim::stride>(column) : Kept::offset(column);
  }
  TREDUCE_DEVICE int64_t out(int64_t column) const {
    return dense_out ? column : is_small ? small<&Dim::out_stride>(column) : Kept::out(column);
  }

 private:
  template <int64_t Dim::* kStride>
  TREDUCE_DEVICE int64_t small(int64_t column) const {
    int64_t total = 0;
    auto i = static_cast<uint32_t>(column);
#pragma unroll 1
    for (int d = 0; d + 1 < count; ++d) {
      const uint32_t q = dim[d].size.quotient_of_small(i);
      total += static_cast<int64_t>(i - q * static_cast<uint32_t>(dim[d].size.divisor)) * (dim[d].*kStride);
      i = q;
    }
    return total + static_cast<int64_t>(i) * (dim[count - 1].*kStride);
  }
};

// Where the rows lie, counted from the begin of a column. No division stands among the loads: neighbouring rows are found by
// stepping.
template <bool kEven>
struct Rows {
  int64_t stride;
  explicit Rows(const Geometry& g) : stride(g.reduced.stride[0]) {}

  // The offsets of rows first, first + 1, ...
  template <int kCount>
  TREDUCE_DEVICE void find(int64_t first, int64_t (&offset)[kCount]) const {
    offset[0] = first * stride;
#pragma unroll
    for (int r = 1; r < kCount; ++r) offset[r] = offset[r - 1] + stride;
  }
};

// Several reduced dims: a division at the first row, and a multiplication wherever the innermost dim begins again.
template <>
struct Rows<false> {
  int64_t stride, outer_stride;
  Divider size;  // of the innermost
  Extents outer;
  explicit Rows(const Geometry& g)
      : stride(g.reduced.stride[0]), outer_stride(g.reduced.stride[0]), size(g.reduced.size[0]), outer(g.reduced) {
    if (outer.count > 0) --outer.count;
    stride = g.reduced.stride[outer.count];
    size = g.reduced.size[outer.count];
  }

  template <int kCount>
  TREDUCE_DEVICE void find(int64_t first, int64_t (&offset)[kCount]) const {
    int64_t q = size.quotient(first);
    const int64_t rest = first - q * size.divisor;
    int wrap = size.divisor - rest < kCount ? static_cast<int>(size.divisor - rest) : kCount;
    offset[0] = begin(q) + rest * stride;
#pragma unroll
    for (int r = 1; r < kCount; ++r) {
      offset[r] = offset[r - 1] + stride;
      if (r == wrap) {
        offset[r] = begin(++q);
        wrap = size.divisor < kCount ? r + static_cast<int>(size.divisor) : kCount;
      }
    }
  }

 private:
  TREDUCE_DEVICE int64_t begin(int64_t q) const {
    return outer.count <= 1 ? q * outer_stride : offset_of_dims(outer, q);
  }
};

template <bool kEven, class KeptDims = Kept>
struct Placement {
  static constexpr bool kIsEven = kEven;
  Rows<kEven> rows;
  KeptDims kept;
  explicit Placement(const Geometry& g) : rows(g), kept(g) {}
};

// Where the columns of a thread begin, and how a row of them is read.
template <class Source, class Columns>
struct OwnColumns {
  using Raw = typename Source::Raw;
  using Row = std::conditional_t<Columns::kVector, Pack<Raw, Columns::kSize>, Several<Raw, Columns::kSize>>;
  static constexpr int kBegins = Columns::kVector ? 1 : Columns::kSize;
  int64_t begin[kBegins];

  // Of the tile that begins with column `first`. Past the last column they are clamped to it, so loads need no branch.
  template <class KeptDims>
  TREDUCE_DEVICE OwnColumns(const KeptDims& kept, int64_t first, int64_t columns, int thread, int threads) {
    const int64_t last = columns - Columns::kSize / kBegins;
#pragma unroll
    for (int b = 0; b < kBegins; ++b) {
      const int64_t mine = first + Columns::column(b, thread, threads);
      begin[b] = kept.offset(mine < last ? mine : last);
    }
  }

  TREDUCE_DEVICE Row load(const Source& x, int64_t row) const {
    if constexpr (Columns::kVector) {
      return load_pack<Columns::kSize>(x, begin[0] + row);
    } else {
      Row loaded;
#pragma unroll
      for (int b = 0; b < kBegins; ++b) loaded.at[b] = x.at(begin[b] + row);
      return loaded;
    }
  }
};

// Finishes and writes the columns of a thread, of the tile that begins with column `first`: in 16-byte stores where results lie side
// by side.
template <class O, class Columns, class Source, class KeptDims>
TREDUCE_DEVICE void store(const typename O::Acc (&value)[Columns::kSize], const MappedResult& result,
                          const KeptDims& kept, int64_t first, int64_t columns, int thread, int threads) {
  using Acc = typename O::Acc;
  constexpr int kSize = Columns::kSize;
  Acc finished[kSize];
  finish<O>(value, result, finished);
  const int64_t column = first + Columns::column(0, thread, threads);
  if constexpr (Columns::kVector) {
    if (column >= columns) return;
    const int64_t out = kept.out(column), step = kept.dim[0].out_stride;
    as_stored<Source, Acc>(result.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* const to = static_cast<T*>(result.data) + out;
      if (step == 1) return store_run(to, finished);
#pragma unroll
      for (int c = 0; c < kSize; ++c) to[c * step] = round_to<T>(finished[c]);
    });
  } else {
    int64_t out[kSize];
#pragma unroll
    for (int c = 0; c < kSize; ++c) {
      const int64_t mine = first + Columns::column(c, thread, threads);
      out[c] = mine < columns ? kept.out(mine) : -1;
    }
    as_stored<Source, Acc>(result.dtype, [&](auto zero) {
      using T = decltype(zero);
#pragma unroll
      for (int c = 0; c < kSize; ++c) {
        if (out[c] >= 0) static_cast<T*>(result.data)[out[c]] = round_to<T>(finished[c]);
      }
    });
  }
}

// Columns that a thread takes one by one.
template <class Source, int kMost>
constexpr int singles_of =
    single_columns(sizeof(typename Source::Type)) < kMost ? single_columns(sizeof(typename Source::Type)) : kMost;

// Calls body(functor, source, Columns, Placement) for what the schedule reads. kMostSingles: columns that a thread takes one by one.
template <Kernels kKernels = Kernels::every, template <class> class SumOp = Sum, int kMostSingles = 4,
          class KeptDims = Kept, class Body>
cudaError_t dispatch(const Call& call, Body body) {
  const Geometry& g = call.request.geometry;
  const bool vectors = call.prepared.schedule.vectors;
  if (g.reduced.count <= 1) {
    const Placement<true, KeptDims> placement(g);
    if (vectors) {
      return dispatch_vectors<kKernels, SumOp>(call, [&](auto op, auto source) {
        return body(op, source, Columns<vector_columns<decltype(source)>, true>{}, placement);
      });
    }
    if (reads_common_sum(call) && has_singles(kKernels, size_of(call.request.dtype))) {
      return dispatch_common_sum<SumOp>(call, [&](auto op, auto source) -> cudaError_t {
        if constexpr (has_singles(kKernels, sizeof(typename decltype(source)::Type))) {
          constexpr int kSize = singles_of<decltype(source), kMostSingles>;
          return body(op, source, Columns<kSize, false>{}, placement);
        }
        return cudaErrorInvalidValue;
      });
    }
  } else if (reads_common_sum(call)) {
    if constexpr (has_several_dims(kKernels)) {
      const Placement<false, KeptDims> placement(g);
      return dispatch_common_sum<SumOp>(call, [&](auto op, auto source) {
        constexpr int kSize = singles_of<decltype(source), kMostSingles>;
        return vectors ? body(op, source, Columns<vector_columns<decltype(source)>, true>{}, placement)
                       : body(op, source, Columns<kSize, false>{}, placement);
      });
    }
  }
  return dispatch_looked_up<SumOp>(
      call, [&](auto op, auto source) { return body(op, source, Columns<1, false>{}, Placement<false, KeptDims>(g)); });
}

}  // namespace treduce::reduce::columns
