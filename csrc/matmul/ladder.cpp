#include "ladder.h"

#include <algorithm>

#include "operand.h"
#include "staged.h"

namespace treduce::matmul {
namespace {

Row make_row(const char* name, const char* summary, const char* origin) {
  Row row;
  row.name = name;
  row.summary = summary;
  row.origin = origin;
  row.order = "k_order";
  row.order_text = "acc = fma(a[i][p], b[p][j], acc) for p = 0, 1, 2, ... from +0; rounded once";
  row.dtypes.assign(std::begin(kDTypes), std::end(kDTypes));
  return row;
}

Row with_tile(Row row, int standard) {
  row.size_default = standard;
  row.size_min = 8;
  row.size_max = 32;
  return row;
}

const char* const kGuide = "NVIDIA, CUDA Programming Guide: shared memory";

// A rung of warp-group multiplications, which only Hopper has.
Row make_hopper_row(const char* name, const char* summary, const char* origin) {
  Row row = make_row(name, summary, origin);
  row.order = "warp_group";
  row.order_text =
      "the tensor core adds 16 products at a time (8 of float32 read as tfloat32) to a float32 accumulator, "
      "p ascending; its sums are cut, not rounded. The CPU adds in k order instead";
  row.dtypes = {DType::float32, DType::float16, DType::bfloat16};
  row.capability = 90;
  row.one_chip = true;
  row.on_cpu = false;
  row.float32_bits = 11;
  row.workspace = &boxes_workspace;
  row.refusal = &boxes_refusal;
  return row;
}

// A rung of matrix instructions that a warp issues: sm_80 and later.
Row make_tensor_core_row(const char* name, const char* summary, const char* origin) {
  Row row = make_row(name, summary, origin);
  row.order = "tensor_core";
  row.order_text =
      "the tensor core adds 16 products at a time (8 of float32 read as tfloat32) to a float32 accumulator, "
      "p ascending, rounding as the chip does. The CPU adds in k order instead";
  row.dtypes = {DType::float32, DType::float16, DType::bfloat16};
  row.capability = 80;
  row.on_cpu = false;
  row.float32_bits = 11;
  return row;
}

Row with_stages(Row row) {
  row.workspace = &staged_workspace;
  row.refusal = &boxes_refusal;
  return row;
}

Row make_mma_f64_row() {
  Row row =
      with_stages(make_tensor_core_row("mma_f64", "float64 on tensor cores: fused multiply-adds, four steps of k each",
                                       "NVIDIA, PTX ISA: mma for float64; A. Kerr et al., CUTLASS"));
  row.order = "tensor_core_f64";
  row.order_text =
      "the tensor core adds 4 products at a time to a float64 accumulator, p ascending. "
      "The CPU adds in k order instead";
  row.dtypes = {DType::float64};
  row.float32_bits = 24;
  return row;
}

Row make_auto() {
  Row row = with_tile(make_row("auto", "picks the fastest that keeps what the dtype promises", "this project"), 0);
  row.order = "chosen";
  row.order_text = "that of the rung it picks, which for one dtype, k and GPU has one order class; on the CPU k order";
  row.on_cpu = false;
  return row;
}

// In teaching order.
std::vector<Row> make_ladder() {
  return {
      make_row("naive", "one thread an output; row and column straight from global memory", kGuide),
      with_tile(make_row("tiled", "a block stages tiles of A and B in shared memory", kGuide), 16),
      make_tensor_core_row("wmma", "the first tensor cores: 16 x 16 fragments of tiles in shared memory",
                           "NVIDIA, CUDA Programming Guide: warp matrix functions"),
      with_stages(make_tensor_core_row("mma",
                                       "ldmatrix and mma.sync behind cp.async, swizzled tiles, sums in registers",
                                       "NVIDIA, PTX ISA: mma and ldmatrix; A. Kerr et al., CUTLASS")),
      make_mma_f64_row(),
      make_hopper_row("wgmma", "the copy engine brings tiles, warp groups multiply them from shared memory",
                      "NVIDIA, PTX ISA: warpgroup-level matrix instructions"),
      make_hopper_row("warp_specialized", "one warp asks for tiles, two warp groups multiply; registers move to them",
                      "M. Bauer, H. Cook, B. Khailany, CudaDMA; V. Thakkar et al., CUTLASS 3"),
      make_hopper_row("persistent", "a block a multiprocessor walks the tiles; clusters share what they read",
                      "V. Thakkar et al., CUTLASS 3: persistent warp-specialised kernels"),
      make_auto(),
  };
}

// For each number of outputs up to `outputs`, what runs. All rungs give the same bits, so this may be tuned freely.
struct AutoRule {
  int64_t outputs;
  const char* row;
  int tile;
};
// Measured for float32 squares on an NVIDIA H200, 2026-11-21; `python benchmarks/run.py --suite matmul` measures it again.
constexpr AutoRule kAutoTable[] = {
    {256 * 256, "tiled", 16},
    {INT64_MAX, "tiled", 32},
};

const Ladder<Row>& table() {
  static const Ladder<Row> ladder("matmul", make_ladder());
  return ladder;
}

}  // namespace

const std::vector<Row>& ladder() { return table().rows(); }

const Row& find(std::string_view name) { return table().find(name); }

Resolved resolve(std::string_view variant, std::optional<int64_t> tile_size) {
  const Row& row = find(variant);
  return {&row, checked_size(row, "tile_size", tile_size.value_or(0), tile_size.has_value())};
}

Resolved choose(const Resolved& resolved, DType dtype, const Problem& problem, const Target& target) {
  if (resolved.row != &ladder().back()) return resolved;
  const bool half = dtype == DType::float16 || dtype == DType::bfloat16;
  const bool cores = half || (dtype == DType::float32 && target.tfloat32);
  if (cores) {
    const Row& row = find("persistent");
    if (runs_on(row, target.capability) && built_for(row) && row.refusal(problem) == nullptr) return {&row, 0};
  }
  const int64_t outputs = problem.batches * problem.m * problem.n;
  const AutoRule* rule = kAutoTable;
  while (outputs > rule->outputs) ++rule;
  const Row& row = find(rule->row);
  // A caller's tile size stands where the chosen rung has one.
  return {&row, row.size_max > 0 && resolved.tile > 0 ? resolved.tile : rule->tile};
}

}  // namespace treduce::matmul
