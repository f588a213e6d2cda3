// The table of products, and what `auto` takes.
#include "ladder.h"

#include "choose.h"
#include "operand.h"
#include "prepare.h"

namespace treduce::matmul {
namespace {

using Prepare = void (*)(const Request&, const Chip&, Prepared&);

Row make_row(const char* name, const char* summary, const char* origin, Prepare prepare) {
  Row row;
  row.name = name;
  row.summary = summary;
  row.origin = origin;
  row.prepare = prepare;
  row.order = "k_order";
  row.order_text = "acc = fma(a[i][p], b[p][j], acc) for p = 0, 1, 2, ... from +0; rounded once";
  row.dtypes.assign(std::begin(kDTypes), std::end(kDTypes));
  return row;
}

Row with_tile(Row row, int standard, int least, int most) {
  row.size_default = standard;
  row.size_min = least;
  row.size_max = most;
  return row;
}

const char* const kGuide = "NVIDIA, CUDA Programming Guide: shared memory";
const char* const kVolkov = "V. Volkov and J. Demmel, Benchmarking GPUs to Tune Dense Linear Algebra";
const char* const kBoehm = "S. Boehm, How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance: a Worklog";
const char* const kCutlass = "NVIDIA, CUTLASS documentation: Efficient GEMM in CUDA";

// A rung of matrix instructions that a warp issues: sm_80 and later.
Row make_tensor_core_row(const char* name, const char* summary, const char* origin, Prepare prepare) {
  Row row = make_row(name, summary, origin, prepare);
  row.order = "tensor_core";
  row.order_text =
      "the tensor core adds 16 products at a time (8 of float32 read as tfloat32) to a float32 accumulator, "
      "p ascending, rounding as the chip does. The CPU adds in k order instead. Sums of int8 are the same in any order";
  row.dtypes = {DType::float32, DType::float16, DType::bfloat16, DType::int8};
  row.capability = 80;
  row.on_cpu = false;
  row.float32_bits = 11;
  return row;
}

// Its kernel reads operands as boxes, for some of which it needs copies.
Row with_boxes(Row row) {
  row.refusal = &boxes_refusal;
  row.batch_dims = kBoxBatchDims;
  return row;
}

// A rung of warp-group multiplications, which only Hopper has.
Row make_hopper_row(const char* name, const char* summary, const char* origin, Prepare prepare) {
  Row row = with_boxes(make_tensor_core_row(name, summary, origin, prepare));
  row.order = "warp_group";
  row.order_text =
      "the tensor core adds 16 products at a time (8 of float32 read as tfloat32) to a float32 accumulator, "
      "p ascending; its sums are cut, not rounded. The CPU adds in k order instead. Sums of int8 are the same in any "
      "order";
  row.capability = 90;
  row.one_chip = true;
  return row;
}

Row make_persistent_row() {
  Row row = make_hopper_row("persistent", "a block a multiprocessor walks the tiles; clusters share what they read",
                            "V. Thakkar et al., CUTLASS 3: persistent warp-specialised kernels", &prepare_persistent);
  row.order = "warp_group_long";
  row.order_text =
      "to k = 8192 that of warp_group; longer k in groups of 2048 steps, each such a sum from zero, added in float32 "
      "one after another. The CPU adds in k order instead. Sums of int8 are the same in any order";
  return row;
}

Row make_wmma_row() {
  Row row = make_tensor_core_row("wmma", "the first tensor cores: 16 x 16 fragments of tiles in shared memory",
                                 "NVIDIA, CUDA Programming Guide: warp matrix functions", &prepare_wmma);
  row.order = "wmma";
  row.order_text =
      "the tensor core adds a fragment's products to a float32 accumulator, p ascending, in the steps that the "
      "compiler "
      "makes of a fragment. The CPU adds in k order instead";
  row.dtypes = {DType::float32, DType::float16, DType::bfloat16};
  return row;
}

Row make_mma_f64_row() {
  Row row =
      with_boxes(make_tensor_core_row("mma_f64", "float64 on tensor cores: fused multiply-adds, four steps of k each",
                                      "NVIDIA, PTX ISA: mma for float64; A. Kerr et al., CUTLASS", &prepare_mma_f64));
  row.order = "tensor_core_f64";
  row.order_text =
      "to k = 2048 the tensor core adds 4 products at a time to a float64 accumulator, p ascending; longer k in groups "
      "of as many steps, each such a sum from zero, added one after another. The CPU adds in k order instead";
  row.dtypes = {DType::float64};
  row.float32_bits = 24;
  return row;
}

Row make_specialized_f64_row() {
  Row row = make_mma_f64_row();
  row.name = "specialized_f64";
  row.summary = "float64 tiles by the copy engine; warps that multiply do not copy";
  row.origin = "V. Thakkar et al., CUTLASS 3: persistent warp-specialised kernels";
  row.prepare = &prepare_specialized_f64;
  row.capability = 90;
  row.one_chip = true;
  return row;
}

// float32 as several numbers of 16 bits each: `products` of these make up one of float32, of `bits` bits.
Row make_split_row(const char* name, const char* summary, const char* origin, Prepare prepare, const char* terms,
                   int products, int bits) {
  Row row = make_hopper_row(name, summary, origin, prepare);
  row.order = name;
  row.order_text = std::string(terms) +
                   ", summed over 64 steps of k by the tensor core; these sums are added in float32, "
                   "p ascending, then every 2048 steps of k. The CPU adds in k order instead";
  row.dtypes = {DType::float32};
  row.float32_bits = bits;
  row.products = products;
  return row;
}

// Blocks find their tile by 32 bits, and numbers by 32 bits of bytes between steps of k.
const char* direct_refusal(const Problem& p) {
  constexpr int64_t kMostStep = INT32_MAX / sizeof(float);
  if (boxes_refusal(p) != nullptr) return boxes_refusal(p);
  if (p.batches > 0 && ceil_div(p.m, 8) * ceil_div(p.n, 8) > INT32_MAX / p.batches)
    return "fewer than 2^31 tiles of 8 x 8 outputs";
  return p.a_column <= kMostStep && p.b_row <= kMostStep ? nullptr : "steps along k of less than 2^31 bytes";
}

// The bits of split_fp16.
Row make_split_direct_row(const Row& split) {
  Row row = split;
  row.name = "split_direct";
  row.summary = "split_fp16 of small products: a block splits what it multiplies, in one launch";
  row.origin = "this project";
  row.prepare = &prepare_split_direct;
  row.refusal = &direct_refusal;
  return row;
}

Row make_auto() {
  Row row = with_tile(make_row("auto", "picks the fastest that keeps what the dtype promises", "this project", nullptr),
                      0, 8, 128);
  row.order = "chosen";
  row.order_text = "that of the rung it picks, which for one dtype, k and GPU has one order class; on the CPU k order";
  row.on_cpu = false;
  return row;
}

// In teaching order.
std::vector<Row> make_ladder() {
  const Row split_fp16 =
      make_split_row("split_fp16", "float32 as pairs of float16 on tensor cores, sums of 64 products in float32",
                     "H. Ootomo, R. Yokota, Recovering single precision accuracy from Tensor Cores",
                     &prepare_split_fp16, "three products of float16 pairs", 3, 22);
  return {
      make_row("naive", "one thread an output; row and column straight from global memory", kGuide, &prepare_naive),
      with_tile(
          make_row("tiled", "a block stages tiles of A and B in shared memory", kGuide, &prepare_threads<tiled::shape>),
          16, 8, 32),
      make_row("tiled_1d", "a thread keeps a column of eight outputs in registers", kVolkov,
               &prepare_threads<tiled_1d::shape>),
      make_row("tiled_2d", "a thread keeps a rectangle of outputs in registers", kVolkov,
               &prepare_threads<square_of_outputs>),
      make_row("vectorized", "16-byte loads; A transposed in shared memory", kBoehm,
               &prepare_threads<square_of_outputs>),
      make_row("warp_tiled", "a tile for the block, for each warp and for each thread", kCutlass,
               &prepare_threads<square_of_outputs>),
      // The rows of a block's tile; 0: as large as the number of outputs allows.
      with_tile(make_row("pipelined", "copies the next tiles while it multiplies these", kCutlass, &prepare_pipelined),
                0, 32, 128),
      make_wmma_row(),
      with_boxes(make_tensor_core_row("mma", "ldmatrix and mma.sync behind cp.async, swizzled tiles, sums in registers",
                                      "NVIDIA, PTX ISA: mma and ldmatrix; A. Kerr et al., CUTLASS",
                                      &prepare_staged_mma)),
      make_mma_f64_row(),
      make_hopper_row("wgmma", "the copy engine brings tiles, warp groups multiply them from shared memory",
                      "NVIDIA, PTX ISA: warpgroup-level matrix instructions", &prepare_block_a_tile<wgmma::kShape>),
      make_hopper_row("warp_specialized", "one warp asks for tiles, two warp groups multiply; registers move to them",
                      "M. Bauer, H. Cook, B. Khailany, CudaDMA; V. Thakkar et al., CUTLASS 3",
                      &prepare_block_a_tile<warp_specialized::kShape>),
      make_specialized_f64_row(),
      make_persistent_row(),
      make_split_row("split_bf16", "float32 as three bfloat16 parts on tensor cores, sums of 64 products in float32",
                     "G. Henry, P. T. P. Tang, A. Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype",
                     &prepare_split_bf16, "six products of bfloat16 parts", 6, 24),
      split_fp16,
      make_split_direct_row(split_fp16),
      make_auto(),
  };
}

// For each number of outputs up to `outputs`, what runs. All rungs give the same bits, so this may be tuned freely.
struct AutoRule {
  int64_t outputs;
  const char* row;
  int tile;
};
// Where `pipelined` has no kernel of short k. `tiled` was measured for float32 squares on an NVIDIA H200, 2026-11-21; where `pipelined`
// takes over is a guess.
// `python benchmarks/run.py --suite matmul` measures it again.
constexpr AutoRule kAutoTable[] = {
    {128 * 128, "tiled", 16},
    {INT64_MAX, "pipelined", 0},
};

// float32 with fewer steps of k than that: k order is as accurate there, and as fast.
constexpr int64_t kSplitDepth = 128;

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
  const auto runs = [&](const Row& row) {
    return runs_on(row, target.chip.capability) && (target.planned || built_for(row)) &&
           row.refusal(problem) == nullptr;
  };
  const bool bytes = dtype == DType::int8;  // the same bits everywhere: any rung will do
  static const Row &persistent = find("persistent"), &split = find("split_fp16"), &split_small = find("split_direct"),
                   &doubles = find("mma_f64"), &doubles_by_boxes = find("specialized_f64");
  const bool by_boxes = dtype == DType::float64 && runs(doubles_by_boxes);
  const Row* const cores = half || bytes || (dtype == DType::float32 && target.tfloat32) ? &persistent
                           : dtype == DType::float32 && problem.k >= kSplitDepth         ? &split
                           : dtype == DType::float64 ? (by_boxes ? &doubles_by_boxes : &doubles)
                                                     : nullptr;
  if (cores == &split && runs(split_small) && split_direct::pays(problem, target.chip)) return {&split_small, 0};
  if (cores != nullptr && runs(*cores)) return {cores, 0};
  if (bytes && runs(find("mma"))) return {&find("mma"), 0};
  if (target.chip.capability > 0 && short_k::takes(problem, dtype, resolved.tile)) return {&find("pipelined"), 0};
  // Of a square of threads most would have no output.
  const bool narrow = problem.m <= 4 || problem.n <= 4;
  constexpr int64_t kNarrowDepth =
      32;  // longer rows a thread each are read apart: measured on an NVIDIA H200, 2026-11-22
  if (narrow && problem.k <= kNarrowDepth && resolved.tile == 0) return {&find("naive"), 0};
  // As many outputs may be small matrices, which fill no larger tile.
  const bool small = problem.m <= 16 && problem.n <= 16;
  const int64_t outputs = small ? problem.m * problem.n : problem.batches * problem.m * problem.n;
  const AutoRule* rule = kAutoTable;
  while (outputs > rule->outputs) ++rule;
  const Row& row = find(rule->row);
  // A caller's tile size stands where the chosen rung has it.
  const bool takes = resolved.tile >= row.size_min && resolved.tile <= row.size_max && resolved.tile > 0;
  return {&row, takes ? resolved.tile : rule->tile};
}

}  // namespace treduce::matmul
