// persistent for up to 16 rows of 16 bits, where nearly all that is read is the other operand, the weights. The instruction is mma.sync of a
// warp, whose 16 rows are columns of C: tiles may be as narrow as fills the chip evenly, where those of a warp group have 64. Each output
// is still one chain of multiplications, 16 steps of k each, in every group of k.
//
// Order:   on an H200 mma.sync.m16n8k16 gives the bits of wgmma, as many products at a time and p ascending, so this is of the order
//          class of the rest of persistent. Tests compare the rows of small and large products.
// Mapping: a producer thread keeps a deep ring of tiles full; a warp has 16 columns of C. It loads the fragments of the next stage between
//          the multiplications of this one.
#pragma once

#include "../primitives/ptx/launch.cuh"
#include "../primitives/ptx/mma.cuh"
#include "few_outputs.cuh"
#include "groups.cuh"
#include "hopper.cuh"

namespace treduce::matmul::few_rows {

using namespace hopper;

constexpr int kFragmentRows = 8;  // outputs of one multiplication
constexpr int kRowFragments = kRows / kFragmentRows;
constexpr int kSteps = 4;                        // multiplications along the k of a stage, 16 each
constexpr int kThreads = threads(kMostColumns);  // at most

struct Work {
  int64_t n;
  int m;
  int steps, tiles;
  int group_steps;      // an even number, or all
  int columns, stages;  // of a block; of its ring
  bool transposed;      // rows here are columns of C
};

// The offset of the 16 bytes that this lane addresses for ldmatrix: of the 16 columns from `column` on in a tile of the weights,
// in step 0. An exclusive or gives the offsets of the other steps, because rows are swizzled.
TREDUCE_DEVICE uint32_t place_of_columns(int column) {
  const int lane = threadIdx.x % 32, line = column + lane % 16;
  return line * kRowBytes + (lane / 16 ^ line % 8) * 16;
}

// The fragments that a warp multiplies in a stage.
struct Fragments {
  uint32_t columns[kSteps][4];
  uint32_t rows[kSteps / 2][kRowFragments][4];  // of two steps
};

// Stores 16 columns from `column` on of 8 rows from `row` on. Nothing past the edges is written.
template <class Out>
TREDUCE_DEVICE void store(const float (&acc)[4], const Work& work, Out* c, const Out* bias, int row, int64_t column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + lane % 4 * 2 + i % 2;
    const int64_t j = column + lane / 4 + i / 2 * 8;
    if (r >= work.m || j >= work.n) continue;
    c[work.transposed ? j * work.m + r : r * work.n + j] =
        round_to<Out>(with_bias(acc[i], bias, work.transposed ? r : j));
  }
}

template <class T, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT CUtensorMap map_w, TREDUCE_GRID_CONSTANT CUtensorMap map_x, Work work, Out* c,
           const Out* bias) {
#ifdef TREDUCE_SM90A
  ptx::allow_launch_after();
  SHARED(Ring<kMostStages>, ring);
  char* const stages = aligned_tiles(dynamic_shared<char>());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int consumers = blockDim.x / 32 - 1;
  const int bytes_w = work.columns * kRowBytes, bytes = bytes_w + kRows * kRowBytes;  // of a stage

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&map_w);
    ptx::prefetch_tensor_map(&map_x);
    ring.init(consumers, work.stages);
  }
  __syncthreads();
  ptx::wait_for_launch_before();

  if (warp == consumers) {
    if (ptx::elect_one()) {
      RingPosition<kMostStages> position;
      for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        for (int step = 0; step < work.steps; ++step, position.next(work.stages)) {
          wait_to_overwrite(ring.empty + position.stage, position.parity ^ 1);
          uint64_t* const full = ring.full + position.stage;
          char* const tile_w = stages + position.stage * bytes;
          // Rows that a tile lacks are not asked for: whatever lies there reaches outputs that nobody stores.
          ptx::mbarrier_arrive_expect(full, bytes_w + work.m * kRowBytes);
          ptx::load_box(tile_w, &map_w, {step * kDepth<T>, tile * work.columns, 0, 0}, full);
          ptx::load_box(tile_w + bytes_w, &map_x, {step * kDepth<T>, 0, 0, 0}, full);
        }
      }
    }
  } else {
    const int column = warp * kWarpColumns;
    const uint32_t stage_0 = ptx::shared_address(stages), place_w = place_of_columns(column);
    const uint32_t place_x = bytes_w + lane % 8 * kRowBytes + (lane / 8 ^ lane % 8) * 16;

    RingPosition<kMostStages> position;
    const uint32_t full = ptx::kept_shared_address(ring.full), empty = ptx::kept_shared_address(ring.empty);
    uint32_t stage = 0;
    const auto wait_for_stage = [&] {
      ptx::mbarrier_wait(full + position.stage * 8, position.parity);
      stage = stage_0 + position.stage * bytes;
    };
    const auto load = [&](Fragments& to, int step) {
      if (step % 2 == 0) {
#pragma unroll
        for (int i = 0; i < kRowFragments; ++i) {
          ptx::load_matrices<false>(to.rows[step / 2][i],
                                    (stage + place_x ^ step * 32) + i * (kFragmentRows * kRowBytes));
        }
      }
      ptx::load_matrices<false>(to.columns[step], stage + place_w ^ step * 32);
    };
    float acc[kRowFragments][4], total[kRowFragments][4];
    const auto add_to_total = [&] {
#pragma unroll
      for (int j = 0; j < kRowFragments; ++j) add_group(total[j], acc[j]);
    };
    const auto clear = [](float (&sums)[kRowFragments][4]) {
#pragma unroll
      for (int j = 0; j < kRowFragments; ++j) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
    };
    const auto multiply = [&](const Fragments& from, int step) {
#pragma unroll
      for (int j = 0; j < kRowFragments; ++j) {
        const uint32_t (&words)[4] = from.rows[step / 2][j];
        ptx::multiply(T{}, acc[j], from.columns[step], words[step % 2 * 2], words[step % 2 * 2 + 1]);
      }
    };
    // The warp has loaded all of the stage and needs it no more.
    const auto release_loaded = [&] {
      __syncwarp();
      release<1>(empty + position.stage * 8);
      position.next(work.stages);
    };
    // A warp issues in order, and a multiplication waits for the one before it. The next stage's loads fill these waits.
    const auto multiply_and_load = [&](const Fragments& from, Fragments& to) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        multiply(from, step);
        if (step == 0) wait_for_stage();
        load(to, step);
      }
      release_loaded();
    };
    const auto multiply_last = [&](const Fragments& from) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) multiply(from, step);
    };

    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
      clear(acc);
      clear(total);
      Fragments even, odd;
      wait_for_stage();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) load(even, step);
      release_loaded();
      int left = work.steps - 1, of_group = work.group_steps;
      for (; left >= 2; left -= 2) {
        multiply_and_load(even, odd);
        multiply_and_load(odd, even);
        of_group -= 2;
        if (of_group == 0) {
          add_to_total();
          clear(acc);
          of_group = work.group_steps;
        }
      }
      if (left == 1) {
        multiply_and_load(even, odd);
        multiply_last(odd);
      } else {
        multiply_last(even);
      }
      if (work.steps > work.group_steps) add_to_total();
#pragma unroll
      for (int j = 0; j < kRowFragments; ++j) {
        store(acc[j], work, c, bias, j * kFragmentRows, int64_t(tile) * work.columns + column);
      }
    }
  }
#endif
}

// w and x: the boxes of B and A, or of A and B if the product is the transposed one.
template <class T, class Out>
cudaError_t launch_rows(const Call& call, const Boxes& w, const Boxes& x) {
  const bool transposed = call.prepared.few_columns;
  Problem p = call.problem;
  if (transposed) std::swap(p.m, p.n);
  const int columns = static_cast<int>(transposed ? call.prepared.tile_m : call.prepared.tile_n);
  CUtensorMap map_w, map_x;
  cudaError_t error = encode(w, kMapType<T>, kDepth<T>, columns, &map_w, Fetch::lines);
  if (error == cudaSuccess) error = encode(x, kMapType<T>, kDepth<T>, static_cast<int>(p.m), &map_x);
  if (error != cudaSuccess) return error;
  Work work;
  work.n = p.n;
  work.m = static_cast<int>(p.m);
  work.steps = static_cast<int>(ceil_div(p.k, kDepth<T>));
  work.tiles = static_cast<int>(ceil_div(p.n, columns));
  work.group_steps = groups_for(call, true, kDepth<T>).steps;
  work.columns = columns;
  work.stages = call.prepared.stages;
  work.transposed = transposed;
  return launch(&kernel<T, Out>, call.step(-1), map_w, map_x, work, static_cast<Out*>(call.c),
                static_cast<const Out*>(call.bias));
}

// What these kernels can do: both operands contiguous along k; of 16 bits and few outputs one may lie across.
template <class Form>
constexpr bool takes =
    kElementBytes<typename Form::T> == 2 ? Form::kAAlongK || Form::kBAlongK
                                         : kElementBytes<typename Form::T> == 4 && Form::kAAlongK && Form::kBAlongK;

template <class Form>
cudaError_t run(const Call& call, const Boxes& a, const Boxes& b) {
  using T = typename Form::T;
  using Out = typename Form::Out;
  constexpr bool kAlongK = Form::kAAlongK && Form::kBAlongK;
  const bool transposed = call.prepared.few_columns;
  const Boxes &w = transposed ? a : b, &x = transposed ? b : a;
  if (call.prepared.few_outputs) {
    return few_outputs::run<T, Out, kAlongK>(call, w, x);
  }
  if constexpr (kElementBytes<T> == 2 && kAlongK) {
    return launch_rows<T, Out>(call, w, x);
  } else {
    return cudaErrorInvalidValue;  // never prepared
  }
}

}  // namespace treduce::matmul::few_rows
