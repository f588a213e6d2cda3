// The kernels of split_fp16 that split_as_read.h names.
#include "split_as_read.h"

#include "split_both.cuh"
#include "split_end.cuh"
#include "split_one.cuh"
#include "split_rows.cuh"
#include "split_turns.cuh"
#include "split_warps.cuh"
#include "split_wide.h"

namespace treduce::matmul::split_as_read {

using split::Operand16;

cudaError_t run(const Call& call, const Operand& a, const Operand& b, const Operand16& split_a,
                const Operand16& split_b, float* partials) {
  if (call.prepared.both_as_read()) return split_both::run(call, a, b, split_a, split_b, partials);
  const bool of_a = call.prepared.split_a.as_read;
  const Operand &w = of_a ? a : b, &x = of_a ? b : a;
  const Operand16 &split_w = of_a ? split_a : split_b, &split_x = of_a ? split_b : split_a;
  const cudaError_t error = split_rows::run(
      call, of_a, w, x, split_w, split_x, partials,
      [&](const Boxes& boxes) {
        CUtensorMap map_w;
        const cudaError_t encoded =
            hopper::encode(boxes, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32, split_warps::kLines, &map_w, Fetch::lines);
        if (encoded != cudaSuccess) return encoded;
        const auto [c, bias] = split::results_of(call, partials);
        if (split_one::suits(x.lines, call.prepared.groups, call.problem.batches)) {
          return launch(of_a ? &split_one::kernel<true> : &split_one::kernel<false>, call.step(1), map_w, split_x,
                        split_w, split_one::work_of(call, w, x, split_x.shape), c, bias);
        }
        return launch(of_a ? &split_warps::kernel<true> : &split_warps::kernel<false>, call.step(1), map_w, split_x,
                      split_w, split_warps::work_of(call, boxes, w, x, split_x.shape), c, bias);
      },
      [&](auto index, const Boxes& boxes) {
        return split_turns::run<index()>(call, boxes, of_a, w, x, split_w, split_x, partials);
      },
      [&](const Boxes& boxes, bool first) {
        const bool few = call.prepared.shape == split_rows::kWide64;
        const auto run =
            few ? &split_wide::run_shape<split_rows::kWide64> : &split_wide::run_shape<split_rows::kWide128>;
        return run(call, of_a, boxes, w, x, split_w, split_x, partials, first);
      });
  if (error != cudaSuccess || !call.prepared.small) return error;
  return split_end::run(call, of_a, w, x, split_w, split_x, partials);
}

}  // namespace treduce::matmul::split_as_read
