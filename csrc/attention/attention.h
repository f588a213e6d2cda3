// Attention of 16-bit floats as kernels that keep no matrix of scores: the call, what is launched for it, and the launch. Host code,
// free of torch and CUDA.
#pragma once

#include "../common/dtypes.h"
#include "../common/prepared.h"

namespace treduce::attention {

// (batch, head, row, column): strides in elements. Columns lie side by side, and rows begin on 16-byte boundaries.
struct Matrices {
  void* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
};

// What is added to scores before softmax: float32, or bool, where false stands for minus infinity.
struct Mask {
  const void* data = nullptr;  // null: no mask
  bool is_bool = false;
  int64_t batch = 0, head = 0, row = 0, column = 0;  // strides; 0 where all share it
};

// A call after all checks: nothing of it is empty. `group` heads of the query share a head of key and value.
struct Problem {
  DType dtype = DType::bfloat16;
  int64_t batch = 1, heads = 1, group = 1, length = 1, keys = 1;  // heads: of the query
  int width = 0, value_width = 0;
  bool causal = false;  // query i attends the keys up to i
  float scale = 1;
  Mask mask;
  Matrices query, key, value;
};

// Whose results depend on them alone, so that one query has the same bits in all calls.
constexpr int kMostWidth = 128;
constexpr int kCapability = 80;
constexpr bool takes(DType dtype, int64_t width, int64_t value_width, int capability) {
  return (dtype == DType::float16 || dtype == DType::bfloat16) && width > 0 && width <= kMostWidth &&
         value_width <= kMostWidth && capability >= kCapability;
}

// Which kernels compute the forward. All give the same bits on one kind of chip.
enum class Way { warps, warp_groups, pieces };

struct Prepared {
  Launches launches;
  Workspace workspace;
  Way way = Way::warps;
};

bool operator==(const Prepared& a, const Prepared& b);
std::string to_string(const Prepared& prepared);

Prepared prepare_forward(const Problem& problem, const Chip& chip);
Prepared prepare_backward(const Problem& problem, const Chip& chip);

// Both return a cudaError_t; `stream` is a cudaStream_t. `workspace`: as prepared.
int launch_forward(const Problem& problem, const Prepared& prepared, const Matrices& out, void* workspace,
                   void* stream);

struct Gradients {
  Matrices out;  // given
  Matrices query, key, value;
};
int launch_backward(const Problem& problem, const Prepared& prepared, const Gradients& gradients, void* workspace,
                    void* stream);

}  // namespace treduce::attention
