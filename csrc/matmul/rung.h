// What every rung of the matmul ladder shares: the call it receives, how blocks map to tiles of the output, and how a
// kernel file makes itself known. Free of torch.
#pragma once

#include "../common/launch.h"
#include "../common/launchers.h"
#include "decisions.h"

namespace treduce::matmul {

// The compute capability of the only chips that this code is for, times ten; 0: of any other. Kernels of shapes that `auto` does not
// take there are empty.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kOnlyCapability = 90;
#else
constexpr int kOnlyCapability = 0;
#endif

struct Pointers {
  const void* a;
  const void* b;
  void* c;
  const void* bias;    // see with_bias: n elements side by side; null: none, as always where k is 0
  void* workspace;     // prepared.workspace.bytes() bytes
  unsigned* counters;  // prepared.counters of them, zeroed and left zero
};

// What a rung's launcher gets: see launch() in launch.h.
struct Call : Pointers {
  const Decisions& prepared;
  const LaunchShape* launches;
  int launch_count;
  const Problem& problem;  // prepared.problem, of at least one output
  DType dtype;             // prepared.dtype
  cudaStream_t stream;

  // The prepared launch of that number, counted from the end where it is negative.
  Launch step(int i) const { return {launches[i < 0 ? launch_count + i : i], stream}; }
  // Where a region of the workspace begins.
  template <class T>
  T* region(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
  }
};

// Tells the ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <cudaError_t (*kLauncher)(const Call&)>
using Rung = RegisterRung<Call, kLauncher>;

// Row and column, in tiles, of a matrix's `tile`th tile of `down` x `across`: bands of kBand rows of tiles are walked one after
// another, each column by column. Tiles that are computed at the same time then form a block and not a line, and read fewer rows
// of A and columns of B among them.
template <class Index>
struct TilePlace {
  Index row, column;
};
template <int kBand, class Index>
TREDUCE_HOST_DEVICE TilePlace<Index> place_in_band(Index tile, Index down, Index across) {
  const Index first = tile / (kBand * across) * kBand, within = tile % (kBand * across);
  const Index height = down - first < kBand ? down - first : kBand;
  return {first + within % height, within / height};
}

// The outputs, cut into tiles of kTileM x kTileN and numbered: within a matrix (see place), then batch by
// batch. One number and not a 2-D grid, because gridDim.y ends at 65535.
template <int kTileM, int kTileN>
struct Tiles {
  int64_t across, down, count;

  explicit Tiles(const Problem& p)
      : across(ceil_div(p.n, kTileN)), down(ceil_div(p.m, kTileM)), count(p.batches * down * across) {}

  struct Place {
    int64_t batch, row, column;  // of the tile's first output
  };
  template <int kBand = 1>
  TREDUCE_HOST_DEVICE Place place(int64_t tile) const {
    if constexpr (kBand == 1) {  // as below, in fewer registers
      const int64_t line = tile / across;
      return {line / down, line % down * kTileM, tile % across * kTileN};
    } else {
      const int64_t batch = tile / (down * across);
      const auto at = place_in_band<kBand>(tile % (down * across), down, across);
      return {batch, at.row * kTileM, at.column * kTileN};
    }
  }
};

// Launches a kernel whose blocks compute such tiles.
template <class T, class Tiles, class Kernel>
cudaError_t launch_tiles(Kernel* kernel, const Call& call) {
  return launch(kernel, call.step(0), static_cast<const T*>(call.a), static_cast<const T*>(call.b),
                static_cast<Result<T>*>(call.c), static_cast<const Result<T>*>(call.bias), call.problem,
                Tiles(call.problem));
}

// Whether a kernel's numbers are those that prepare reads.
template <class C>
constexpr bool has_shape(const TileShape& s) {
  return C::kTileM == s.tile_m && C::kTileN == s.tile_n && C::kThreads == s.threads;
}

// Calls body with the prepared shape's index, of kCount, as a constant. Returns its error.
template <int... kIndices, class Body>
cudaError_t with_shape(std::integer_sequence<int, kIndices...>, int index, Body&& body) {
  cudaError_t error = cudaErrorInvalidValue;
  const bool found = (... || (index == kIndices && ((error = body(std::integral_constant<int, kIndices>{})), true)));
  return found ? error : cudaErrorInvalidValue;
}
template <int kCount, class Body>
cudaError_t with_shape(const Call& call, Body&& body) {
  return with_shape(std::make_integer_sequence<int, kCount>{}, call.prepared.shape, body);
}

// Calls body with whether either operand lies along k, as constants. kEither: an operand may lie across; else both lie along k. Returns its
// error.
template <bool kEither, class Body>
cudaError_t with_directions(bool a_along_k, bool b_along_k, Body&& body) {
  if constexpr (kEither) {
    if (!a_along_k && !b_along_k) return body(std::false_type{}, std::false_type{});
    if (!a_along_k) return body(std::false_type{}, std::true_type{});
    if (!b_along_k) return body(std::true_type{}, std::false_type{});
  }
  return body(std::true_type{}, std::true_type{});
}

// The column of an output, from its address, for kernels that have no register to keep it in their main loop. Past the edge it is
// some column.
template <class T>
TREDUCE_DEVICE int64_t column_of(const T* output, const T* c, int64_t n) {
  return (output - c) % n;
}

// True if pairs of outputs are aligned in every row.
template <class T>
TREDUCE_DEVICE bool aligned_pairs(const T* c, int64_t n) {
  return n % 2 == 0 && reinterpret_cast<uint64_t>(c) % (2 * sizeof(T)) == 0;
}

// Writes two neighbouring sums of a row: at once where pairs are aligned, else the second only if it `exists`.
template <class T, class Sum>
TREDUCE_DEVICE void store_pair(T* to, Sum first, Sum second, bool aligned, bool exists) {
  const T pair[2] = {round_to<T>(first), round_to<T>(second)};
  if (aligned) {
    using Pair = std::conditional_t<sizeof(T) == 2, uint32_t, std::conditional_t<sizeof(T) == 4, uint2, uint4>>;
    Pair word;
    memcpy(&word, pair, sizeof(word));
    *reinterpret_cast<Pair*>(to) = word;
  } else {
    to[0] = pair[0];
    if (exists) to[1] = pair[1];
  }
}

}  // namespace treduce::matmul
