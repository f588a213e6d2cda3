// Idea: as many blocks as the chip holds walk over the tiles. While the consumers of a block write one tile, its producer
// already fetches the next; and two blocks of a cluster, one below the other, each fetch half of the columns of B that
// both multiply (multicast).
//
// After:   warp_specialized; the same multiplications in the same order, hence the same bits.
// Mapping: tiles in bands (see Grid). The tile's shape is chosen by the number of tiles, 128 x 256 for many of them down to
//          64 x 16; for few rows the product is transposed, because a multiplication has 64 rows, filled or not. Up to 64
//          rows of 16 bits have a kernel of their own: see few_rows.cuh. Results of 16 bits leave through shared memory: as
//          boxes by the copy engine, or where rows are not aligned as words.
// Bound:   the tensor cores, and the power that they may draw; for few rows the memory, and where k is short of 8192 the
//          chain of dependent multiplications, which the order of k does not allow to cut.
// Source:  V. Thakkar et al., CUTLASS 3: persistent warp-specialised kernels.
#include "../few_rows.cuh"
#include "../hopper.cuh"

namespace treduce::matmul::persistent {

using namespace hopper;

// kTransposed: tiles of the transposed product, for few rows: columns of C fill the 64 rows that a multiplication has.
template <int kTileM_, int kTileN_, int kStages_, int kCluster_, int kBlocks_, bool kTransposed_ = false>
struct Shape {
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_;
  static constexpr int kCluster = kCluster_;  // blocks below each other that share their part of B
  static constexpr int kBlocks = kBlocks_;    // a multiprocessor
  static constexpr bool kTransposed = kTransposed_;
  static constexpr int kConsumers = kTileM / 64;
  static constexpr int kThreads = (kConsumers + 1) * kWarpGroup;
  static constexpr int kStageBytes = (kTileM + kTileN) * kRowBytes;
  static constexpr bool kBoxesC = !kTransposed && kTileN % kStagingColumns == 0;
  static constexpr int kRegisters = kBlocks == 2 ? 216 : 232;  // of a consumer; what 40 a producer leave
};

template <class T, class Out, class S, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_a, TREDUCE_GRID_CONSTANT CUtensorMap map_b,
           TREDUCE_GRID_CONSTANT CUtensorMap map_c, bool boxes_c, Grid grid, Broadcast broadcast_a,
           Broadcast broadcast_b, Out* c, const Out* bias) {
#ifdef TREDUCE_SM90A
  using TileA = Tile<T, S::kTileM, kAAlongK>;
  using PartB = Tile<T, S::kTileN / S::kCluster, kBAlongK>;  // what one block of the cluster fetches for all
  using TileB = Tile<T, S::kTileN, kBAlongK>;
  __shared__ Ring<S::kStages> ring;
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int group = threadIdx.x / kWarpGroup;
  const int rank = S::kCluster > 1 ? cluster::rank() : 0;
  const int steps = (grid.depth + kDepth<T> - 1) / kDepth<T>;
  const int64_t first = blockIdx.x / S::kCluster, stride = gridDim.x / S::kCluster;

  begin<S::kCluster, S::kConsumers>(ring, map_a, map_b);

  if (group == 0) {
    ptx::release_registers<40>();
    if (threadIdx.x == 0) {
      Turn<S::kStages> turn;
      for (int64_t tile = first; tile < grid.count; tile += stride) {
        const auto place = grid.place(tile, S::kTileM * S::kCluster, S::kTileN);
        const int2 batch_a = broadcast_a.of(place.batch), batch_b = broadcast_b.of(place.batch);
        for (int step = 0; step < steps; ++step, turn.next()) {
          ptx::mbarrier_wait(ring.empty + turn.stage, turn.parity ^ 1);
          uint64_t* const full = ring.full + turn.stage;
          char* const tile_a = stages + turn.stage * S::kStageBytes;
          char* const tile_b = tile_a + TileA::kBytes;
          ptx::mbarrier_arrive_expect(full, S::kStageBytes);
          TileA::load(tile_a, &map_a, place.row + rank * S::kTileM, step * kDepth<T>, batch_a, full);
          PartB::template load<S::kCluster>(tile_b + rank * PartB::kBytes, &map_b,
                                            place.column + rank * (S::kTileN / S::kCluster), step * kDepth<T>, batch_b,
                                            full);
        }
      }
    }
  } else {
    ptx::take_registers<S::kRegisters>();
    const int consumer = group - 1;
    Turn<S::kStages> turn;
    for (int64_t tile = first; tile < grid.count; tile += stride) {
      const auto place = grid.place(tile, S::kTileM * S::kCluster, S::kTileN);
      Acc<T> acc[S::kTileN / 2];
      int last = -1;
      for (int step = 0; step < steps; ++step, turn.next()) {
        ptx::mbarrier_wait(ring.full + turn.stage, turn.parity);
        const char* const tile_a = stages + turn.stage * S::kStageBytes;
        const char* const tile_b = tile_a + TileA::kBytes;
        multiply_stage<TileA, TileB>(acc, tile_a, tile_b, consumer * 64, step);
        ptx::wgmma_wait<1>();
        if (last >= 0) release<S::kCluster>(ring.empty + last);
        last = turn.stage;
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(acc);
      release<S::kCluster>(ring.empty + last);
      const int row = place.row + rank * S::kTileM + consumer * 64;
      Out* const matrix = c + place.index * grid.m * grid.n;
      if constexpr (S::kTransposed) {
        add_bias_transposed(acc, bias, row, grid.m);
      } else {
        add_bias(acc, bias, place.column, grid.n);
      }
      if constexpr (sizeof(Out) == 2 && S::kBoxesC) {
        char* const staging = stages + S::kStages * S::kStageBytes + consumer * kStagingBytes;
        if (boxes_c) {
          store_boxes<Out, S::kTileN>(acc, &map_c, staging, row, place.column, static_cast<int>(place.index), group);
        } else {
          store_rows<Out, S::kTileN>(acc, matrix, staging, row, place.column, grid.m, grid.n, group);
        }
      } else if constexpr (S::kTransposed) {
        store_transposed<Out, S::kTileN>(acc, matrix, row, place.column, grid.n, grid.m);
      } else {
        store_registers<Out, S::kTileN>(acc, matrix, row, place.column, grid.m, grid.n);
      }
    }
    ptx::wait_stores_read<0>();  // a block must not leave while its results lie in its shared memory
  }
  // A block must not leave while others copy into its shared memory or arrive at its barriers.
  if constexpr (S::kCluster > 1) cluster::sync();
#endif
}

using Large = Shape<128, 256, 4, 2, 1>;
using Wide = Shape<128, 192, 4, 1, 1>;
using Medium = Shape<128, 128, 6, 1, 1>;
using Narrow = Shape<64, 128, 4, 1, 2>;
using Square = Shape<64, 64, 6, 1, 2>;
using Strip32 = Shape<64, 32, 8, 1, 2>;
using Strip16 = Shape<64, 16, 10, 1, 2>;
using Rows128 = Shape<64, 128, 6, 2, 1, true>;
using Rows32 = Shape<64, 32, 8, 1, 2, true>;
using Rows16 = Shape<64, 16, 10, 1, 2, true>;

// `a` and `b`: the operands of the kernel, exchanged where it computes the transposed product.
template <class T, class Out, class S, bool kAAlongK, bool kBAlongK>
cudaError_t launch_shape(const Call& call, const Boxes& a, const Boxes& b) {
  using TileA = Tile<T, S::kTileM, kAAlongK>;
  using PartB = Tile<T, S::kTileN / S::kCluster, kBAlongK>;
  CUtensorMap map_a, map_b;
  cudaError_t error = encode_tiles<TileA>(a, &map_a);
  if (error == cudaSuccess) error = encode_tiles<PartB>(b, &map_b);
  if (error != cudaSuccess) return error;

  const Problem& p = call.problem;
  Problem shown = p;
  if (S::kTransposed) std::swap(shown.m, shown.n);
  const Grid grid = grid_of(shown, S::kTileM * S::kCluster, S::kTileN);

  // C in boxes, where its rows begin at multiples of 16 bytes.
  CUtensorMap map_c = map_a;
  const bool boxes_c =
      S::kBoxesC && sizeof(Out) == 2 && p.n % 8 == 0 && reinterpret_cast<uint64_t>(call.c) % kBoxAlignment == 0;
  if (boxes_c) {
    const Boxes c{call.c, sizeof(Out), true, p.n, p.m, p.n, {1, p.batches}, {p.n, p.m * p.n}};
    error = encode(c, kMapType<T>, kStagingColumns, 64, true, &map_c);
    if (error != cudaSuccess) return error;
  }

  const auto function = &kernel<T, Out, S, kAAlongK, kBAlongK>;
  Launch shape;
  shape.block = S::kThreads;
  shape.cluster = S::kCluster;
  const int slots = call.multiprocessors * S::kBlocks / S::kCluster;
  shape.grid = std::min<int64_t>(grid.count, slots) * S::kCluster;
  shape.shared_bytes = S::kStages * S::kStageBytes + (S::kBoxesC ? S::kConsumers * kStagingBytes : 0) + kTileAlignment;
  shape.stream = call.stream;
  return launch(function, shape, map_a, map_b, map_c, boxes_c, grid, broadcast_of(a), broadcast_of(b),
                static_cast<Out*>(call.c), static_cast<const Out*>(call.bias));
}

template <class Form, class S>
cudaError_t launch_layout(const Call& call, const Boxes& a, const Boxes& b) {
  using T = typename Form::T;
  using Out = typename Form::Out;
  if constexpr (S::kTransposed) {
    return launch_shape<T, Out, S, Form::kBAlongK, true>(call, b, a);
  } else {
    return launch_shape < T, Out, S, Form::kAAlongK, Form::kBAlongK || S::kTileN<kSlabLines>(call, a, b);
  }
}

// Shares of the tensor cores' speed that a shape reaches where rows of all matrices begin at lines of the L2; what is left
// of it for each operand of which they do not, and if those of C do not; for elements of up to 16 bits, and of 32. Measured
// on an NVIDIA H200, 2026-11-21: squares of 256 to 4096 and layers of 64 to 2048 rows, every shape.
struct Speed {
  double aligned, skewed_operand, skewed_result;
};

// Clock cycles that a shape takes, roughly: its tiles, one after another on each multiprocessor, at a share of the tensor
// cores' 1024 multiply-adds of 32 bits a cycle (twice that for 16), and what a tile costs besides.
template <class S>
double cycles(const Problem& p, int multiprocessors, int element_bytes, double speed, double besides) {
  const Grid grid = grid_of(p, S::kTileM * S::kCluster, S::kTileN);
  const int64_t slots = multiprocessors / S::kCluster;
  const double rounds = static_cast<double>(ceil_div(grid.count, slots));
  return rounds * (double(S::kTileM) * S::kTileN * p.k * element_bytes / (4096 * speed) + besides);
}

template <class Form>
cudaError_t launch_best(const Call& call, const Boxes& a, const Boxes& b) {
  const Problem& p = call.problem;
  if constexpr (few_rows::takes<Form>) {
    if (few_rows::pays(p, call.multiprocessors)) {
      return few_rows::run<typename Form::T, typename Form::Out>(call, a, b);
    }
  }
  if constexpr (Form::kAAlongK) {
    if (p.m <= 16) return launch_layout<Form, Rows16>(call, a, b);
    if (p.m <= 32) return launch_layout<Form, Rows32>(call, a, b);
    // Long columns of which each multiprocessor has one tile: two share what they read of A.
    constexpr int64_t kLong = 16384;
    const bool one_round = ceil_div(p.n, 64) * p.batches <= call.multiprocessors;
    if (p.m > 64 && p.m <= 128 && p.k >= kLong && one_round) return launch_layout<Form, Rows128>(call, a, b);
  }
  if (p.n <= 16) return launch_layout<Form, Strip16>(call, a, b);
  if (p.n <= 32) return launch_layout<Form, Strip32>(call, a, b);
  constexpr int kBytes = kElementBytes<typename Form::T>;
  const auto skewed = [](int64_t pitch, int64_t bytes) { return pitch * bytes % kCacheLine == 0 ? 0 : 1; };
  const int operands = skewed(a.pitch, kBytes) + skewed(b.pitch, kBytes);
  const int result = skewed(p.n, sizeof(typename Form::Out));
  struct Choice {
    double cycles;
    cudaError_t (*launch)(const Call&, const Boxes&, const Boxes&);
  };
  const auto choice = [&](auto shape, double besides, const Speed& up_to_16_bits, const Speed& of_32_bits) {
    using S = decltype(shape);
    const Speed& s = kBytes == 4 ? of_32_bits : up_to_16_bits;
    const double speed = s.aligned * std::pow(s.skewed_operand, operands) * std::pow(s.skewed_result, result);
    return Choice{cycles<S>(p, call.multiprocessors, kBytes, speed, besides), &launch_layout<Form, S>};
  };
  const Choice choices[] = {choice(Large{}, 2500, {1.0, 0.94, 0.9}, {1.0, 0.98, 0.945}),
                            choice(Wide{}, 2200, {0.97, 0.77, 0.92}, {0.99, 0.92, 0.96}),
                            choice(Medium{}, 2000, {0.94, 0.68, 0.845}, {0.93, 0.83, 0.8}),
                            choice(Narrow{}, 1000, {0.65, 0.72, 0.83}, {0.56, 0.89, 0.87}),
                            choice(Square{}, 700, {0.5, 0.72, 0.83}, {0.45, 0.89, 0.87})};
  const auto less = [](const Choice& x, const Choice& y) { return x.cycles < y.cycles; };
  return std::min_element(std::begin(choices), std::end(choices), less)->launch(call, a, b);
}

cudaError_t launch_one(const Call& call) {
  return launch_form(
      call, [&](auto form, const Boxes& a, const Boxes& b) { return launch_best<decltype(form)>(call, a, b); });
}

const Rung<launch_one> rung("persistent");

}  // namespace treduce::matmul::persistent
