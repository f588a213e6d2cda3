// Idea: the forward of forward.cu by warp groups. While the tensor cores multiply the next keys, and values by the probabilities of this
// step, a warp group takes exponentials; and while it does that, they multiply what other warp groups ask for.
//
// Order:   that of forward.cu: one wgmma adds as mma does.
// Mapping: a warp group 64 queries, whose sums, scores and probabilities are registers; a thread of one more group asks for keys and
//          values. What is added of the pieces before lies in shared memory, each thread's own.
// Bound:   the tensor cores at wide heads, exponentials at narrow ones.
// Source:  J. Shah et al., FlashAttention-3 (2024).
#include "../common/tensor_map.h"
#include "../primitives/ptx/tma.cuh"
#include "../primitives/ptx/wgmma.cuh"
#include "line_values.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TREDUCE_SM90A 1
#endif

namespace treduce::attention::warp_groups {
namespace {

constexpr int kGroup = 128;  // threads
constexpr int kRow = 128;    // bytes, of a swizzled tile: 64 elements
constexpr int kColumns = 64;

// Tensor maps, and which of their outer dims the operand is the same along.
struct Operand {
  CUtensorMap map;
  int by_head, by_batch;  // 0: the same for all

  TREDUCE_DEVICE void load(char* to, int column, int64_t row, int64_t head, int64_t batch, uint64_t* full) const {
    ptx::load_box(to, &map,
                  {column, static_cast<int>(row), static_cast<int>(head) * by_head, static_cast<int>(batch) * by_batch},
                  full);
  }
};

// The descriptor of a tile whose rows of 128 bytes lie side by side. `slab`: bytes from 64 columns to the next, of transposed operands.
TREDUCE_DEVICE uint64_t descriptor(const char* tile, int slab) {
  const uint64_t address = ptx::shared_address(tile) >> 4 & 0x3fff;
  return address | static_cast<uint64_t>(slab >> 4) << 16 | uint64_t{8 * kRow >> 4} << 32 | uint64_t{1} << 62;
}

// Where a step's tile lies in the ring, and the parity of its barriers.
template <int kStages>
struct Place {
  int stage;
  unsigned parity;
  TREDUCE_DEVICE explicit Place(int step) : stage(step % kStages), parity(step / kStages % 2) {}
};

template <class T, int kWidth>
__global__ void __launch_bounds__(groups_of(kWidth).threads(), 1)
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Operand query_map,
           TREDUCE_GRID_CONSTANT Operand key_map, TREDUCE_GRID_CONSTANT Operand value_map,
           TREDUCE_GRID_CONSTANT Matrices out, TREDUCE_GRID_CONSTANT LineValues lines) {
#ifdef TREDUCE_SM90A
  constexpr Groups kShape = groups_of(kWidth);
  constexpr int kStages = kShape.stages, kSlabs = kWidth / kColumns;
  constexpr int kSlab = kStep * kRow, kBytes = kSlabs * kSlab;  // of a step's keys or values, and of a group's queries
  static_assert(kStep == kTile && kBytes == kShape.stage_bytes(kWidth));
  __shared__ uint64_t queries_full, keys_full[kStages], keys_empty[kStages], values_full[kStages],
      values_empty[kStages];
  char* const begin = dynamic_shared<char>();
  char* const queries =
      begin + (Groups::kAlignment - ptx::shared_address(begin) % Groups::kAlignment) % Groups::kAlignment;
  char* const keys = queries + kShape.groups * kBytes;
  char* const values = keys + kStages * kBytes;

  // What takes longest begins first.
  const int64_t tiles = (p.length + kShape.queries() - 1) / kShape.queries(), all_heads = p.heads * p.batch;
  const int64_t first = (tiles - 1 - blockIdx.x / all_heads) * kShape.queries();
  const int64_t head = blockIdx.x % all_heads % p.heads, batch = blockIdx.x % all_heads / p.heads;
  const int64_t last = min(first + kShape.queries(), p.length);
  const int steps = static_cast<int>(((p.causal ? min(p.keys, last) : p.keys) + kStep - 1) / kStep);

  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&queries_full, 1);
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(keys_full + s, 1);
      ptx::mbarrier_init(values_full + s, 1);
      ptx::mbarrier_init(keys_empty + s, kShape.groups * 4);
      ptx::mbarrier_init(values_empty + s, kShape.groups * 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  const int group = static_cast<int>(threadIdx.x) / kGroup - 1;
  // ---- who copies ----
  if (group < 0) {
    ptx::release_registers<kShape.copier_registers()>();
    if (threadIdx.x != 0) return;
    ptx::mbarrier_arrive_expect(&queries_full, kShape.groups * kBytes);
    for (int g = 0; g < kShape.groups; ++g) {
      for (int i = 0; i < kSlabs; ++i) {
        query_map.load(queries + g * kBytes + i * kSlab, i * kColumns, first + g * kTile, head, batch, &queries_full);
      }
    }
    const auto load = [&](char* tiles, const Operand& operand, uint64_t* full, uint64_t* empty, int step) {
      const Place<kStages> at(step);
      ptx::mbarrier_wait(empty + at.stage, at.parity ^ 1);  // the first round waits for nobody
      ptx::mbarrier_arrive_expect(full + at.stage, kBytes);
      for (int i = 0; i < kSlabs; ++i) {
        operand.load(tiles + at.stage * kBytes + i * kSlab, i * kColumns, int64_t{step} * kStep, head / p.group, batch,
                     full + at.stage);
      }
    };
    for (int step = 0; step < steps; ++step) {
      load(keys, key_map, keys_full, keys_empty, step);
      load(values, value_map, values_full, values_empty, step);
    }
    return;
  }

  // ---- who multiply ----
  ptx::take_registers<kShape.registers()>();
  const int lane = threadIdx.x % warp::kLanes, thread = threadIdx.x % kGroup;
  const int64_t of_group = first + group * kTile, query = of_group + thread / warp::kLanes * kLines;
  const int64_t seen = of_group >= p.length ? 0 : p.causal ? min(p.keys, of_group + kTile) : p.keys;
  const int own = static_cast<int>((seen + kStep - 1) / kStep);
  const Scores scores(p, batch, head);
  const auto release = [&](uint64_t* empty, int step) {
    if (lane == 0) ptx::mbarrier_arrive(empty + Place<kStages>(step).stage);
  };

  float s[kStep / 8][4], result[kWidth / 8][4];
  auto& flat_s = reinterpret_cast<float (&)[kStep / 2]>(s);
  auto& flat_result = reinterpret_cast<float (&)[kWidth / 2]>(result);
  uint32_t of_p[kStep / 16][4];
  Lines line, total;
  float4* const own_totals =
      reinterpret_cast<float4*>(values + kStages * kBytes) + group * (kWidth / 8 * kGroup) + thread;
  const uint64_t of_queries = descriptor(queries + group * kBytes, kRow / 8);

  // Starts s = Q K^T.
  const auto start_scores = [&](int step) {
    const Place<kStages> at(step);
    ptx::mbarrier_wait(keys_full + at.stage, at.parity);
    const uint64_t of_keys = descriptor(keys + at.stage * kBytes, kRow / 8);
    ptx::wgmma_touch(flat_s);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      const uint64_t offset = (k / 4 * kSlab + k % 4 * 32) >> 4;
      ptx::Wgmma<T, kStep, false, false>::multiply(flat_s, of_queries + offset, of_keys + offset, k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_touch(flat_s);
  };
  // Starts result += P V; a piece begins with nothing.
  const auto start_values = [&](int step) {
    const Place<kStages> at(step);
    ptx::mbarrier_wait(values_full + at.stage, at.parity);
    const uint64_t of_values = descriptor(values + at.stage * kBytes, kSlab);
    const int goes_on = step % (kPiece / kStep) != 0;
    ptx::wgmma_touch(flat_result);
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) ptx::wgmma_touch(of_p[k]);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      ptx::WgmmaHeld<T, kWidth, true>::multiply(flat_result, of_p[k], of_values + (k * 16 * kRow >> 4),
                                                goes_on || k > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_touch(flat_result);
  };
  const auto exponentiate = [&](int step, float (&correction)[2]) {
    const int64_t key = int64_t{step} * kStep;
    score<false>(s, scores, query, key, scores.is_whole(query, key, kStep));
    return line.step(s, correction);
  };
  const auto round_probabilities = [&] {
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) of_p[k][i] = word_of<T>(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
    }
  };

  if (own > 0) {
    float correction[2];
    ptx::mbarrier_wait(&queries_full, 0);
    start_scores(0);
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(flat_s);
    release(keys_empty, 0);
    exponentiate(0, correction);
    round_probabilities();
    for (int step = 0; step + 1 < own; ++step) {
      const int next = step + 1;
      start_scores(next);
      start_values(step);
      ptx::wgmma_wait<1>();
      ptx::wgmma_touch(flat_s);
      release(keys_empty, next);
      const bool is_new = next % (kPiece / kStep) == 0;
      if (is_new) {
        ptx::wgmma_wait<0>();
        ptx::wgmma_touch(flat_result);
        end_piece<kGroup>(result, line, total, own_totals, next == kPiece / kStep, /*keep=*/true);
        line = Lines();
      }
      const bool corrects = exponentiate(next, correction);
      ptx::wgmma_wait<0>();
      ptx::wgmma_touch(flat_result);
      release(values_empty, step);
      if (corrects && !is_new) correct(result, correction);
      round_probabilities();
    }
    start_values(own - 1);
    ptx::wgmma_wait<0>();
    ptx::wgmma_touch(flat_result);
    release(values_empty, own - 1);
    end_piece<kGroup>(result, line, total, own_totals, own <= kPiece / kStep, /*keep=*/false);
  }
  // A stage is free when all groups say so, and each must wait for its turn.
  for (int step = own; step < steps; ++step) {
    const Place<kStages> at(step);
    ptx::mbarrier_wait(keys_full + at.stage, at.parity);
    release(keys_empty, step);
    ptx::mbarrier_wait(values_full + at.stage, at.parity);
    release(values_empty, step);
  }
  if (own == 0) {
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) result[j][i] = 0;
    }
  }
  finish<T, kWidth>(result, total, p, out, lines, batch, head, query);
#endif
}

cudaError_t describe(const Problem& p, const Matrices& m, int64_t heads, int64_t rows, int width, Operand& operand) {
  operand.by_head = m.head != 0;
  operand.by_batch = m.batch != 0;
  const auto type = p.dtype == DType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto bytes = [&](int64_t stride, int64_t otherwise) { return cuuint64_t(2 * (stride ? stride : otherwise)); };
  const int64_t pitch = round_up(width, 8);
  return describe_tensor(m.data, type,
                         {cuuint64_t(width), cuuint64_t(rows), cuuint64_t(operand.by_head ? heads : 1),
                          cuuint64_t(operand.by_batch ? p.batch : 1)},
                         {bytes(m.row, pitch), bytes(m.head, pitch), bytes(m.batch, pitch)}, {kColumns, kTile},
                         &operand.map);
}

}  // namespace

int launch_one(const Problem& p, const LaunchShape& prepared, const Matrices& out, const LineValues& lines,
               void* stream) {
  Operand query, key, value;
  cudaError_t error = describe(p, p.query, p.heads, p.length, p.width, query);
  if (error == cudaSuccess) error = describe(p, p.key, p.heads / p.group, p.keys, p.width, key);
  if (error == cudaSuccess) error = describe(p, p.value, p.heads / p.group, p.keys, p.value_width, value);
  if (error != cudaSuccess) return error;
  return dispatch_kernel(p, [&](auto type, auto width) {
    return launch(&kernel<decltype(type), decltype(width)::value>, Launch{prepared, static_cast<cudaStream_t>(stream)},
                  p, query, key, value, out, lines);
  });
}

}  // namespace treduce::attention::warp_groups
