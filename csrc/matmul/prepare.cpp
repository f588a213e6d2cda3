// The launches and the workspace of a product, rung by rung.
#include "prepare.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "choose.h"
#include "staged.h"

namespace treduce::matmul {
namespace {

int64_t tiles_of(const Problem& p, int64_t tile_m, int64_t tile_n) {
  return ceil_div(p.m, tile_m) * ceil_div(p.n, tile_n) * p.batches;
}

int64_t grid_of(int64_t blocks) { return std::min<int64_t>(blocks, INT32_MAX); }

LaunchShape launch_of(const TileShape& s) {
  LaunchShape launch;
  launch.kernel = s.name;
  launch.block = s.threads;
  launch.block_y = s.threads_y;
  launch.shared_bytes = s.shared_bytes;
  launch.cluster = s.cluster;
  return launch;
}

// Clock cycles. Who reads longer from memory lost 2 to 10 % by overlapping (NVIDIA H200, 2026-11-27).
constexpr double kMostToRead = 30000;

// Lets a launch whose blocks there is room for at once, so many a multiprocessor, begin before the one before has ended. Blocks begin where
// there is room, so shared memory leaves room for an even share of them: else some multiprocessors get most, and short products took up
// to 1.6 times as long (NVIDIA H200, 2026-11-27).
void overlap(LaunchShape& launch, int blocks, const Chip& chip) {
  const int64_t share = ceil_div(launch.grid, places_of(launch.cluster, chip.multiprocessors));
  launch.overlapping = chip.capability >= 90 && share <= blocks;
  if (!launch.overlapping) return;
  launch.shared_bytes = std::max<int64_t>(launch.shared_bytes, chip.shared_bytes() / (share + 1) + 1);
}

// Deals out tasks that fill no round of persistent blocks by steps of k: see stream_k.cuh.
void deal_out(int64_t tasks, const LaunchShape& launch, Prepared& out) {
  out.dealt = tasks < 2 * launch.grid ? tasks : launch.grid + tasks % launch.grid;
  out.counters = launch.grid * (launch.block - hopper::kWarpGroup) / 32;
  out.accumulators = out.workspace.add("accumulators", launch.grid * out.tile_m * out.tile_n * size_of(out.dtype));
}

void set_tile(const TileShape& s, Prepared& out) {
  out.tile_m = s.transposed ? s.cluster_n() : s.cluster_m();
  out.tile_n = s.transposed ? s.cluster_m() : s.cluster_n();
  out.stages = s.stages;
}

// ---- operands as boxes: copies of those that cannot be read where they lie ----

void copy_operands(const View& a, const View& b, Prepared& out) {
  out.view_a = a;
  out.view_b = b;
  if (!a.is_copied() && !b.is_copied()) return;
  LaunchShape launch;
  launch.kernel = !b.is_copied() ? "copy A" : a.is_copied() ? "copy A and B" : "copy B";
  launch.block = kPackThreads;
  launch.grid = a.copy_blocks() + b.copy_blocks();
  out.launches.add(launch);
  if (a.is_copied()) out.copy_a = out.workspace.add("copy of A", a.copied_bytes);
  if (b.is_copied()) out.copy_b = out.workspace.add("copy of B", b.copied_bytes);
}

// For the copy engine.
void copy_for_boxes(const Request& r, Prepared& out) {
  const int bytes = static_cast<int>(size_of(r.dtype));
  copy_operands(view_a(r.problem, r.a, bytes), view_b(r.problem, r.b, bytes), out);
}

// ---- a warp's matrix instructions ----

// The launch that adds groups of k that are apart, behind their sums; some have more to do.
constexpr const char* kAddAndFinish = "add groups of k, finish";
void add_groups_apart(const Chip& chip, Prepared& out) {
  const Problem& p = out.problem;
  const int64_t outputs = p.batches * p.m * p.n;
  out.partials = out.workspace.add("groups of k", out.groups * outputs * std::max<int64_t>(size_of(out.dtype), 4));
  LaunchShape launch;
  launch.kernel = kAddAndFinish;
  launch.block = long_k::kAddThreads;
  launch.grid = grid_of(ceil_div(outputs, int64_t(long_k::kAddThreads)));
  launch.overlapping = chip.capability >= 90;
  out.launches.add(launch);
}

// `fixed`: the kernel knows its stages at compile time.
LaunchShape& prepare_staged(const Request& r, const Chip& chip, const TileShape& s, bool fixed, Prepared& out) {
  const int bytes = static_cast<int>(size_of(r.dtype));
  copy_operands(staged_a(r.problem, r.a, bytes), staged_b(r.problem, r.b, bytes), out);
  set_tile(s, out);
  if (!fixed) out.stages = std::min(s.stages, chip.shared_bytes() / s.stage_bytes);
  LaunchShape launch = launch_of(s);
  launch.grid = grid_of(tiles_of(r.problem, s.tile_m, s.tile_n) * (out.apart ? out.groups : 1));
  launch.shared_bytes = out.stages * s.stage_bytes;
  return out.launches.add(launch);
}

// `other_stride` is the one that is not 1.
bool reads_wide(const void* data, int64_t bytes, int64_t unit_stride, int64_t other_stride, const Problem& p,
                const int64_t* batch) {
  const auto aligned = [&](int64_t elements) { return elements * bytes % 16 == 0; };
  bool wide = unit_stride == 1 && aligned(other_stride) && reinterpret_cast<uint64_t>(data) % 16 == 0;
  for (int d = 0; d < p.batch_dims; ++d) wide = wide && aligned(batch[d]);
  return wide;
}

Way wmma_way(const void* data, int64_t bytes, int64_t line_stride, int64_t depth_stride, const Problem& p,
             const int64_t* batch) {
  if (depth_stride == 1 || line_stride != 1) {
    return reads_wide(data, bytes, depth_stride, line_stride, p, batch) ? Way::k_vectors : Way::k;
  }
  return reads_wide(data, bytes, line_stride, depth_stride, p, batch) ? Way::lines_vectors : Way::lines;
}

// ---- pipelined ----

constexpr int64_t kFloats = 16 / sizeof(float);  // that are copied at once

// How an operand is copied, for all its matrices. Copies of single elements take every operand: `k` where neighbours lie along
// k, `lines` otherwise. Only float32 has kernels for vectors as well.
Way pipelined_way(const void* data, DType dtype, int64_t stride, int64_t step, int64_t lines, const Problem& p,
                  const int64_t* batch) {
  if (step == 1) return Way::k;
  if (dtype != DType::float32) return Way::lines;
  return lines % kFloats == 0 && reads_wide(data, sizeof(float), stride, step, p, batch) ? Way::lines_vectors
                                                                                         : Way::lines;
}

// The same of short k, where neighbours along k are read 16 bytes at once too if whole rows are.
Way way_of_short_k(const void* data, int64_t stride, int64_t step, int64_t lines, const Problem& p,
                   const int64_t* batch) {
  if (step == 1) {
    return p.k % kFloats == 0 && reads_wide(data, sizeof(float), step, stride, p, batch) ? Way::k_vectors : Way::k;
  }
  return stride == 1 ? pipelined_way(data, DType::float32, stride, step, lines, p, batch) : Way::any;
}

// ---- split_fp16, split_bf16 ----

// Names of regions, for A and for B.
struct SplitNames {
  const char *halves, *scales, *units, *facts, *line_facts, *order, *parts;
};
constexpr SplitNames kSplitNames[] = {
    {"high and low A", "scales A", "units A", "facts A", "facts of rows", "order of rows", "parts of A"},
    {"high and low B", "scales B", "units B", "facts B", "facts of columns", "order of columns", "parts of B"}};

void add_split(const Operand& o, const SplitNames& names, SplitRegions& to, Prepared& out) {
  to.shape = halves_of(o);
  to.splitting = splitting_of(o, to.shape);
  const Halves& h = to.shape;
  if (to.has_halves) to.scales = out.workspace.add(names.scales, 4 * h.scales);
  if (!to.as_read) {
    to.units = out.workspace.add(names.units, 4 * h.units);
    to.facts = out.workspace.add(names.facts, 3 * h.scales);
  } else {
    to.splitting.blocks = 0;
  }
  to.line_facts = out.workspace.add(names.line_facts, sizeof(Facts) * (h.all_lines() + kLineWords + h.matrices));
  if (to.ordered) to.order = out.workspace.add(names.order, sizeof(uint32_t) * (2 * h.lines_padded + 1));
}

int64_t parts_bytes(const Halves& h, int64_t groups) {
  return kParts * 2 * h.matrices * h.lines * std::min(h.depth, groups * kGroup);
}

// Counters of runs, see kRunLines.
int64_t run_words(const Halves& h) { return 2 * h.matrices * runs_of(h.lines); }

// Parts take half more than the operands do. Of large products some groups of k are split at once, where the halves were before:
// then all is little more than the operands.
constexpr int64_t kSmallParts = int64_t(64) << 20;  // bytes

void choose_groups_at_once(Prepared& out) {
  const auto bytes = [&](int64_t groups) {
    return parts_bytes(out.split_a.shape, groups) + parts_bytes(out.split_b.shape, groups);
  };
  out.groups_at_once = out.groups;
  if (out.groups > 1 && bytes(out.groups) > kSmallParts) out.groups_at_once = ceil_div(out.groups, 2);
}

// Adds a launch of blocks of threads, which may overlap the product's launch before: the first of several that overlapped what had come
// before took 2 to 9 % longer (5 products of 16, NVIDIA H200, 2026-11-27).
LaunchShape& add_blocks(const char* kernel, int64_t grid, Prepared& out, int block = split::kThreads, int cluster = 1,
                        int64_t shared_bytes = 0) {
  LaunchShape launch;
  launch.kernel = kernel;
  launch.block = block;
  launch.grid = grid_of(grid);
  launch.cluster = cluster;
  launch.shared_bytes = shared_bytes;
  launch.overlapping = out.launches.size() > 0;
  return out.launches.add(launch);
}

// The same of persistent blocks, which walk so many tasks, tiles of shape `s`.
void add_walk(const TileShape& s, int64_t tasks, const Chip& chip, Prepared& out) {
  LaunchShape launch = launch_of(s);
  launch.grid = std::min<int64_t>(tasks, clusters_of(s.cluster, chip.multiprocessors)) * s.cluster;
  launch.overlapping = out.launches.size() > 0;
  out.launches.add(launch);
}

// Mostly the blocks of this launch end at once, so there are few, and each splits several blocks' share.
LaunchShape& add_split_into_parts(int64_t blocks, const Chip& chip, Prepared& out) {
  return add_blocks("split into parts", std::min<int64_t>(blocks, chip.multiprocessors * 8), out, split::kSplitThreads);
}

// The launches that split into parts and multiply them: those of split_fp16 for the outputs that are left, mostly none. overlapping: whether
// the first begins before the one before has ended.
void add_parts(const Problem& p, const Chip& chip, bool overlapping, Prepared& out) {
  out.parts_shape = split_bf16::choose(p, out.apart, chip);
  const TileShape& s = split_bf16::kShapes[out.parts_shape];
  for (int64_t group = 0; group < out.groups; group += out.groups_at_once) {
    const PartsRange range{group, std::min(out.groups_at_once, out.groups - group)};
    const int64_t segments = range.segments(out.split_a.shape.segments());
    const auto blocks = [&](const SplitRegions& r, const Operand& o) {
      return blocks_of(r.splitting, o, r.shape, segments);
    };
    const int64_t all = blocks(out.split_a, operand_a(p, nullptr, 4)) + blocks(out.split_b, operand_b(p, nullptr, 4));
    add_split_into_parts(all, chip, out).overlapping = overlapping;
    add_walk(s, tiles_of(p, s.cluster_m(), s.cluster_n()) * (out.apart ? range.groups : 1), chip, out);
  }
}

// The launches of split_both.
void add_split_both(const split_both::Choice& choice, Prepared& out) {
  using namespace split_both;
  const Halves& shape = out.split_a.shape;
  out.block_segments = choice.length;
  out.segment_sums = choice.sums;
  out.tile_m = out.tile_n = kTile;
  const bool boxes = has_boxes(out.view_a, out.view_b);
  out.stages = stages_of(boxes);
  static_assert(kTile == split::kFinishTile);
  const Problem& p = out.problem;
  const int64_t tiles = tiles_of(p, kTile, kTile), sum_bytes = sum_bytes_of(step_of(p.m), step_of(p.n));
  if (choice.sums) {
    out.split_a.halves = out.workspace.add("sums of segments", shape.segments() * tiles * sum_bytes);
    out.split_a.units = out.workspace.add("units of groups", out.groups * tiles * 2 * kTile * 4);
  }
  const int64_t runs = ceil_div(shape.segments(), int64_t(choice.length)), blocks = tiles * runs;
  out.split_a.facts = out.workspace.add("facts of runs", tiles * 2 * kTile * runs * sizeof(Facts));
  out.split_b.facts = out.workspace.add("lines for parts", blocks * kSplitWarps);
  add_blocks("split, multiply 64 x 64 tiles", blocks, out, threads_of(boxes), /*cluster=*/1, shared_bytes_of(boxes, 2));
  add_blocks("split, multiply parts, 64 x 64 tiles", blocks, out, threads_of(false), /*cluster=*/1,
             shared_bytes_of(false, kParts));
  const int64_t bytes = 16 * add_quads(out.groups);
  add_blocks(choice.sums ? "add segments and groups" : "add groups of k", tiles * ceil_div(sum_bytes, bytes), out,
             kAddThreads);
  // A block of the last launch has a group of a tile, and counts itself.
  out.split_b.halves = out.workspace.add("groups on plain cores", out.groups * p.batches * p.m * p.n * 4);
  out.split_b.units = out.workspace.add("blocks done", tiles * sizeof(uint32_t));
  add_blocks("finish", tiles * out.groups, out);
}

void add_finish(const Problem& p, const Chip& chip, Prepared& out) {
  const int64_t tiles = tiles_of(p, split::kFinishTile, split::kFinishTile);
  if (out.apart && !out.segment_sums) {
    // Of few tiles a block for a part of each.
    const int64_t shares = ceil_div(std::min<int64_t>(p.m, split::kFinishTile), split::kFinishRows);
    add_blocks(kAddAndFinish, tiles * shares <= 8 * chip.multiprocessors ? tiles * shares : tiles, out);
  } else {
    // Of few rows a block hardly ever has something to do.
    add_blocks("finish", std::min<int64_t>(tiles, (out.few ? 2 : 8) * chip.multiprocessors), out);
  }
}

}  // namespace

void prepare_tiles(const TileShape& s, Prepared& out) {
  set_tile(s, out);
  LaunchShape launch = launch_of(s);
  launch.grid = grid_of(tiles_of(out.problem, s.tile_m, s.tile_n));
  out.launches.add(launch);
}

void prepare_naive(const Request& r, const Chip&, Prepared& out) {
  out.shape = naive::choose(r.problem);
  prepare_tiles(naive::kShapes[out.shape], out);
}

void prepare_pipelined(const Request& r, const Chip& chip, Prepared& out) {
  const Problem& p = r.problem;
  if (short_k::takes(p, r.dtype, r.tile)) {
    out.short_k = true;
    out.way_a = way_of_short_k(r.a, p.a_row, p.a_column, p.m, p, p.a_batch);
    out.way_b = way_of_short_k(r.b, p.b_column, p.b_row, p.n, p, p.b_batch);
    out.shape = short_k::choose(p, out.way_a, out.way_b, chip);
    const short_k::Shape& s = short_k::kShapes[out.shape];
    set_tile(s, out);
    LaunchShape launch = launch_of(s);
    launch.grid = grid_of(tiles_of(p, s.tile_m, s.tile_n));
    launch.shared_bytes = s.bytes(p.k);
    overlap(launch, s.blocks, chip);
    out.launches.add(launch);
    return;
  }
  out.shape = pipelined::choose(p, r.dtype, r.tile, chip);
  out.way_a = pipelined_way(r.a, r.dtype, p.a_row, p.a_column, p.m, p, p.a_batch);
  out.way_b = pipelined_way(r.b, r.dtype, p.b_column, p.b_row, p.n, p, p.b_batch);
  prepare_tiles(pipelined::shape(r.dtype, out.shape), out);
}

void prepare_wmma(const Request& r, const Chip&, Prepared& out) {
  const Problem& p = r.problem;
  const int64_t bytes = size_of(r.dtype);
  out.way_a = wmma_way(r.a, bytes, p.a_row, p.a_column, p, p.a_batch);
  out.way_b = wmma_way(r.b, bytes, p.b_column, p.b_row, p, p.b_batch);
  prepare_tiles(wmma::shape(r.dtype, 0), out);
}

void prepare_staged_mma(const Request& r, const Chip& chip, Prepared& out) {
  prepare_staged(r, chip, mma::kShape, false, out);
}

void prepare_mma_f64(const Request& r, const Chip& chip, Prepared& out) {
  const Choice choice = mma_f64::choose(r.problem, chip);
  out.shape = choice.index;
  out.apart = choice.apart;
  out.groups = long_k::groups_of(r.problem.k, r.dtype);
  const mma_f64::Shape& s = mma_f64::kShapes[out.shape];
  overlap(prepare_staged(r, chip, s, s.fixed, out), s.blocks, chip);
  if (out.apart) add_groups_apart(chip, out);
}

void prepare_specialized_f64(const Request& r, const Chip& chip, Prepared& out) {
  const Problem& p = r.problem;
  if (p.k == 0) return;
  out.groups = long_k::groups_of(p.k, r.dtype);
  const View a = view_of(operand_a(p, r.a, 8), true), b = view_of(operand_b(p, r.b, 8), true);
  const View small_a = staged_a(p, r.a, 8), small_b = staged_b(p, r.b, 8);
  const Choice boxes = specialized_f64::choose(p, a, b, chip), small = small_f64::choose(p, small_a, small_b, chip);
  out.small = small_f64::pays(small, boxes);
  const Choice& choice = out.small ? small : boxes;
  out.shape = choice.index;
  out.apart = choice.apart;
  out.small ? copy_operands(small_a, small_b, out) : copy_operands(a, b, out);
  const TileShape& s =
      out.small ? static_cast<const TileShape&>(small_f64::kShapes[out.shape]) : specialized_f64::kShapes[out.shape];
  set_tile(s, out);
  LaunchShape launch = launch_of(s);
  const int64_t tasks = tiles_of(p, s.tile_m, s.tile_n) * (out.apart ? out.groups : 1);
  launch.grid = std::min<int64_t>(tasks, int64_t(chip.multiprocessors) * s.blocks);
  if (choice.dealt) deal_out(tasks, launch, out);
  if (out.small) {
    // As many stages as a block's tasks have, or as fit beside those of the other blocks that a multiprocessor has at once.
    const small_f64::Shape& small_shape = small_f64::kShapes[out.shape];
    const int64_t at_once = std::min<int64_t>(ceil_div(tasks, int64_t(chip.multiprocessors)), s.blocks);
    const int64_t steps = ceil_div(out.apart ? long_k::kGroup : p.k, int64_t(small_f64::kStageDepth));
    out.stages = static_cast<int>(std::min<int64_t>(steps * ceil_div(tasks, launch.grid), small_f64::kMostStages));
    while (out.stages > 2 && chip.blocks_with(small_shape.bytes(out.stages)) < at_once) --out.stages;
    // Copies of 8 bytes pass through the L1, which needs room for those under way.
    constexpr int64_t kBesideL1 = 132 * 1024;
    const bool narrow = !has_whole_chunks(out.view_a.boxes) || !has_whole_chunks(out.view_b.boxes);
    while (narrow && out.stages > 2 && at_once * small_shape.bytes(out.stages) > kBesideL1) --out.stages;
    launch.shared_bytes = small_shape.bytes(out.stages);
  }
  // Where blocks have several tasks each, or some multiprocessors several blocks, those that have most would meet at random.
  const bool even = tasks <= chip.multiprocessors || 4 * tasks >= 3 * int64_t(chip.multiprocessors) * s.blocks;
  if (tasks == launch.grid && even && long_k::cycles_to_read(p, r.dtype, chip) < kMostToRead) {
    overlap(launch, s.blocks, chip);
  }
  out.launches.add(launch);
  if (out.apart) add_groups_apart(chip, out);
}

void prepare_boxes(const TileShape& s, const Request& r, Prepared& out) {
  if (r.problem.k == 0) return;
  copy_for_boxes(r, out);
  set_tile(s, out);
  LaunchShape launch = launch_of(s);
  launch.grid = tiles_of(r.problem, s.tile_m, s.tile_n);
  out.launches.add(launch);
}

// The launches of in_place.cu.
void add_in_place(in_place::Index index, const Operand& a, const Operand& b, const Chip& chip, Prepared& out) {
  const Problem& p = out.problem;
  const in_place::Shape& s = in_place::kShapes[index];
  const int bytes = static_cast<int>(size_of(out.dtype));
  out.in_place = true;
  out.shape = index;
  set_tile(s, out);
  LaunchShape launch = launch_of(s);
  out.apart = out.groups > 1;
  const int64_t depth = out.apart ? long_k::kGroup : p.k, steps = ceil_div(depth * bytes, int64_t(in_place::kRowBytes));
  launch.grid = tiles_of(p, s.tile_m, s.tile_n) * out.groups;
  // As many stages as k has, and shared memory for the blocks that a multiprocessor is to have at once.
  const int64_t at_once = std::min<int64_t>(ceil_div(launch.grid, int64_t(chip.multiprocessors)), s.blocks);
  for (const int stages : in_place::kStages) {
    const int ring = static_cast<int>(std::min<int64_t>(steps, stages));
    const int64_t shared = s.bytes_of_block(bytes, ring, access_of(a), access_of(b));
    if (out.stages > 0 && (chip.blocks_with(shared) < at_once || out.stages > steps)) break;
    out.stages = stages;
    launch.shared_bytes = shared;
  }
  overlap(launch, s.blocks, chip);
  out.launches.add(launch);
  if (out.apart) add_groups_apart(chip, out);
}

// Tiles, or where groups of k are apart, groups of tiles; without those of a strip.
int64_t tasks_of(const Prepared& out) {
  return tiles_of(out.strip.before(out.problem), out.tile_m, out.tile_n) * (out.apart ? out.groups : 1);
}

// Adds the launch of a kernel for few rows or outputs, which begins before the launch before has ended where the operands are read soon; and
// what adds groups. blocks: on a multiprocessor.
void add_launch_of_few(LaunchShape launch, int blocks, const Chip& chip, Prepared& out) {
  if (long_k::cycles_to_read(out.problem, out.dtype, chip) < kMostToRead) overlap(launch, blocks, chip);
  out.launches.add(launch);
  if (out.apart) add_groups_apart(chip, out);
}

// The launches of narrow.cu.
void add_narrow(const narrow::Choice& choice, const Chip& chip, Prepared& out) {
  const narrow::Shape& s = narrow::kShapes[choice.index];
  const bool turns = !(choice.of_a ? choice.b : choice.a).boxes.along_k;
  copy_operands(choice.a, choice.b, out);
  out.narrow = true;
  out.few_columns = choice.of_a;
  out.shape = choice.index;
  out.apart = choice.apart;
  out.tile_m = choice.of_a ? s.lines : s.columns;
  out.tile_n = choice.of_a ? s.columns : s.lines;
  const int bytes = s.stage_bytes(turns);
  out.stages = std::min((chip.shared_bytes() - hopper::kTileAlignment) / bytes, few_rows::kMostStages);
  LaunchShape launch;
  launch.kernel = s.name;
  launch.block = narrow::threads(turns);
  launch.grid = std::min<int64_t>(tasks_of(out), chip.multiprocessors);
  launch.shared_bytes = out.stages * bytes + hopper::kTileAlignment;
  add_launch_of_few(launch, 1, chip, out);
}

// Of register_operand.cu. of_a: A is in registers.
void add_register_operand(const Choice& choice, bool of_a, const Chip& chip, Prepared& out) {
  const register_operand::Shape& s = register_operand::kShapes[choice.index];
  out.registers = true;
  out.shape = choice.index;
  out.apart = choice.apart;
  out.tile_m = of_a ? s.lines : s.rows;
  out.tile_n = of_a ? s.rows : s.lines;
  out.stages = s.stages;
  LaunchShape launch;
  launch.kernel = s.name;
  launch.block = s.threads();
  launch.grid = tasks_of(out);
  launch.shared_bytes = s.shared_bytes();
  add_launch_of_few(launch, s.blocks, chip, out);
}

// Few rows of C, or few columns.
struct Few {
  std::optional<few_rows::Choice> choice;
  bool columns = false;
};

// The launch of few_outputs.cuh or few_rows.cuh.
void add_few(const Few& found, const Chip& chip, Prepared& out) {
  const few_rows::Choice& few = *found.choice;
  out.few = true;
  out.few_outputs = few.index >= 0;
  out.few_columns = found.columns;
  out.tile_m = found.columns ? few.columns : few.rows;
  out.tile_n = found.columns ? few.rows : few.columns;
  out.stages = few.stages;
  LaunchShape launch;
  launch.grid = std::min<int64_t>(tasks_of(out), chip.multiprocessors);
  if (out.few_outputs) {
    out.shape = few.index;
    const few_outputs::Shape& s = few_outputs::kShapes[few.index];
    launch.kernel = s.name;
    launch.block = few_outputs::kThreads;
    launch.shared_bytes = out.stages * s.stage_bytes(few.rows) + few_outputs::kBehind + hopper::kTileAlignment;
  } else {
    launch.kernel = few_rows::kName;
    launch.block = few_rows::threads(few.columns);
    launch.shared_bytes = out.stages * few_rows::stage_bytes(few.columns) + hopper::kTileAlignment;
  }
  add_launch_of_few(launch, 1, chip, out);
}

// The launches of persistent's own kernels: of tiles, and of a strip.
void add_tiles(const Choice& choice, const Request& r, const Chip& chip, Prepared& out) {
  const Problem& p = r.problem;
  const TileShape& s = persistent::kShapes[choice.index];
  out.shape = choice.index;
  out.apart = choice.apart;
  out.strip = choice.strip;
  set_tile(s, out);
  // C in boxes, where its rows begin at multiples of 16 bytes.
  const DType result = result_dtype(r.dtype);
  out.boxes_c = !out.apart && persistent::stages_results(s.tile_n, s.transposed) && result != DType::int32 &&
                p.n * size_of(result) % kBoxAlignment == 0 && reinterpret_cast<uint64_t>(r.c) % kBoxAlignment == 0;
  const auto blocks_of = [&](const TileShape& t, int64_t all) {
    return std::min<int64_t>(all, clusters_of(t.cluster, chip.multiprocessors * t.blocks)) * t.cluster;
  };
  const int64_t tasks = tasks_of(out);
  LaunchShape launch = launch_of(s);
  launch.grid = blocks_of(s, tasks);
  // Large tiles of products that are not short lost 5 to 20 % by it (NVIDIA H200, 2026-11-27).
  const bool half = 2 * tasks <= chip.multiprocessors;
  const double most = half || out.launches.size() > 0 ? 20000 : 10000;  // cycles
  if (std::max(choice.cycles, long_k::cycles_to_read(p, r.dtype, chip)) < most) overlap(launch, s.blocks, chip);
  out.launches.add(launch);
  if (out.strip.exists()) {
    const TileShape& small = persistent::kShapes[out.strip.shape];
    LaunchShape strip = launch_of(small);
    strip.grid = blocks_of(small, tiles_of(out.strip.alone(p), small.tile_m, small.tile_n));
    strip.overlapping = true;
    out.launches.add(strip);
  }
  if (out.apart) add_groups_apart(chip, out);
}

// The launch of small_tiles.cuh.
void add_small_tiles(const Chip& chip, Prepared& out) {
  const TileShape& s = small_tiles::kShape;
  out.small = true;
  set_tile(s, out);
  LaunchShape launch = launch_of(s);
  launch.grid = grid_of(ceil_div(tiles_of(out.problem, s.tile_m, s.tile_n), int64_t(s.threads / 32)));
  overlap(launch, small_tiles::kBlocks, chip);
  out.launches.add(launch);
}

void prepare_persistent(const Request& r, const Chip& chip, Prepared& out) {
  const Problem& p = r.problem;
  if (p.k == 0) return;
  if (small_tiles::pays(p, r.dtype)) return add_small_tiles(chip, out);
  out.groups = long_k::groups_of(p.k, r.dtype);
  const int bytes = static_cast<int>(size_of(r.dtype));
  const Operand a = operand_a(p, r.a, bytes), b = operand_b(p, r.b, bytes);
  View read_a = view_a(p, r.a, bytes), read_b = view_b(p, r.b, bytes);
  Choice choice = persistent::choose(p, r.dtype, read_a.boxes, read_b.boxes, chip);
  Problem transposed = p;
  std::swap(transposed.m, transposed.n);
  const auto few_of = [&](const View& of_rows, const View& of_columns) {
    const auto rows = few_rows::choose(p, r.dtype, of_rows.boxes, of_columns.boxes, false, choice, chip);
    if (rows) return Few{rows, false};
    return Few{few_rows::choose(transposed, r.dtype, of_columns.boxes, of_rows.boxes, true, choice, chip), true};
  };
  Few few;
  if (!choice.apart && !read_a.is_copied() && !read_b.is_copied()) few = few_of(read_a, read_b);
  bool registers = false, of_a = false;  // of A and not of B
  if (r.dtype == DType::float32 && !few.choice) {
    Choice other = register_operand::choose(p, chip);
    registers = register_operand::pays(p, other, choice, read_b, chip);
    if (!registers && read_b.reading != Reading::gathered) {
      other = register_operand::choose(transposed, chip);
      registers = of_a = register_operand::kShapes[other.index].rows > register_operand::kMostRows &&
                         register_operand::pays(transposed, other, choice, read_a, chip);
    }
    if (registers) {
      choice = other;
      (of_a ? read_a : read_b) = view_of(of_a ? a : b, true);
    }
  }
  const TileShape* tile = few.choice || registers ? nullptr : &persistent::kShapes[choice.index];
  if (tile != nullptr && !persistent::stages_results(tile->tile_n, tile->transposed)) tile = nullptr;
  persistent::Way way{read_a, read_b, few.choice ? few.choice->cycles : choice.cycles, tile};
  const auto time = [&](const persistent::Way& w) { return persistent::microseconds(p, r.dtype, w, chip); };
  // What is copied may as well lie along k; and what lies across k may be copied.
  const View along_a = view_of(a, false), along_b = view_of(b, false);
  if (!choice.apart && (along_a.is_copied() || along_b.is_copied())) {
    const Few copied = few_of(along_a, along_b);
    const persistent::Way of_few{along_a, along_b, copied.choice ? copied.choice->cycles : 0, nullptr};
    const double faster = few.choice ? 1 : 0.95;
    if (copied.choice && copied.choice->index >= 0 && time(of_few) < faster * time(way)) {
      registers = false;
      few = copied;
      way = of_few;
    }
  }
  // Others take less time than is expected of them (7,000 products, NVIDIA H200, 2026-12-01).
  const bool grouped = out.groups > 1;
  const double of_others = grouped ? 0.85 : 0.8, of_in_place = 0.95;
  auto from_registers = narrow::choose(p, r.dtype, a, b, chip);
  if (from_registers && from_registers->time >= of_others * time(way)) from_registers.reset();
  // Groups of k are computed side by side, or not at all.
  const auto in_place = choice.apart == grouped ? in_place::choose(p, r.dtype, a, b, way, chip) : std::nullopt;
  if (in_place && (!from_registers || of_in_place * in_place->time <= from_registers->time)) {
    return add_in_place(in_place->index, a, b, chip, out);
  }
  if (from_registers) return add_narrow(*from_registers, chip, out);
  copy_operands(way.a, way.b, out);
  if (registers) return add_register_operand(choice, of_a, chip, out);
  few.choice ? add_few(few, chip, out) : add_tiles(choice, r, chip, out);
}

void prepare_split_bf16(const Request& r, const Chip& chip, Prepared& out) {
  const Problem& p = r.problem;
  if (p.k == 0) return;
  const Operand operands[] = {operand_a(p, r.a, 4), operand_b(p, r.b, 4)};
  SplitRegions* const splits[] = {&out.split_a, &out.split_b};
  out.groups = groups_of(p.k);
  out.apart = split_fp16::groups_apart(p, chip);
  for (int i = 0; i < 2; ++i) {
    splits[i]->has_parts = true;
    add_split(operands[i], kSplitNames[i], *splits[i], out);
  }
  choose_groups_at_once(out);
  for (int i = 0; i < 2; ++i) {
    splits[i]->parts = out.workspace.add(kSplitNames[i].parts, parts_bytes(splits[i]->shape, out.groups_at_once));
  }
  if (out.apart) out.partials = out.workspace.add("groups of k", out.groups * p.batches * p.m * p.n * 4);
  add_blocks("find facts", out.split_a.splitting.blocks + out.split_b.splitting.blocks, out, split::kSplitThreads);
  const int64_t lines = out.split_a.shape.all_lines() + out.split_b.shape.all_lines();
  add_blocks("join facts", ceil_div(lines, int64_t(split::kThreads)), out);
  add_parts(p, chip, /*overlapping=*/true, out);
  set_tile(split_bf16::kShapes[out.parts_shape], out);
  add_finish(p, chip, out);
}

void prepare_split_fp16(const Request& r, const Chip& chip, Prepared& out) {
  const Problem& p = r.problem;
  if (p.k == 0) return;
  const Operand operands[] = {operand_a(p, r.a, 4), operand_b(p, r.b, 4)};
  const auto& [a, b] = operands;
  SplitRegions* const splits[] = {&out.split_a, &out.split_b};
  out.view_a = view_of(a, true);
  out.view_b = view_of(b, true);
  const split_fp16::Way way = split_fp16::fastest(p, chip);
  const AsRead as_read = way.as_read;
  const auto& both = way.both;
  out.few = as_read != AsRead::neither;
  out.groups = groups_of(p.k);
  out.apart = both || split_fp16::groups_apart(p, chip);
  out.rest_in_one = !out.few && split_fp16::rest_in_one(p, chip);
  for (int i = 0; i < 2; ++i) {
    SplitRegions& s = *splits[i];
    s.as_read = both || as_read == (i == 0 ? AsRead::a : AsRead::b);
    s.has_halves = !s.as_read;
    s.has_parts = s.has_halves;
    s.knows_codes = true;
    // Of few tiles, not many can be spared by that.
    s.ordered = !out.few && p.batches == 1 && tiles_of(p, 128, 128) > 2 * chip.multiprocessors;
    add_split(operands[i], kSplitNames[i], s, out);
  }
  if (out.few) {
    for (int i = 0; i < 2; ++i) {
      SplitRegions& s = *splits[i];
      if (s.as_read) continue;
      s.halves = out.workspace.add(kSplitNames[i].halves, 4 * s.shape.values);
      s.parts = out.workspace.add(kSplitNames[i].parts, parts_bytes(s.shape, out.groups));
    }
  } else {
    choose_groups_at_once(out);
    if (!out.rest_in_one) out.few_units = split_few::most_units_of(p);
    if (out.few_units > 0) out.few_lines = out.workspace.add("lines for parts", split_few::lines_bytes(p));
    const Halves &h_a = out.split_a.shape, &h_b = out.split_b.shape;
    const int64_t halves_a = round_up(4 * h_a.values, Workspace::kAlignment);
    const int64_t parts_a = round_up(parts_bytes(h_a, out.groups_at_once), Workspace::kAlignment);
    const int64_t halves = halves_a + 4 * h_b.values, parts = parts_a + parts_bytes(h_b, out.groups_at_once);
    if (out.rest_in_one) {
      out.split_a.halves = out.workspace.add("halves of A and B", halves);
      out.split_a.parts = out.workspace.add("parts of A and B", parts);
    } else {
      out.split_a.halves = out.split_a.parts =
          out.workspace.add("halves of A and B, then parts", std::max(halves, parts));
    }
    out.split_b.halves = out.split_a.halves + halves_a;
    out.split_b.parts = out.split_a.parts + parts_a;
  }
  if (out.apart && !(both && both->sums)) {
    out.partials = out.workspace.add("groups of k", out.groups * p.batches * p.m * p.n * 4);
  }

  if (both) {
    add_split_both(*both, out);
    return;
  }
  if (out.few) {
    const bool of_a = as_read == AsRead::a;
    // A cluster for each line of X; and, to begin what is known of W, some more where that has many.
    constexpr int64_t kLinesBegun = 4096;
    SplitRegions &regions_w = of_a ? out.split_a : out.split_b, &regions_x = of_a ? out.split_b : out.split_a;
    const Halves &w_shape = regions_w.shape, &x_shape = regions_x.shape;
    const split::LineBlocks lines = split::line_blocks_of(x_shape, regions_x.splitting, chip.multiprocessors);
    regions_x.together = lines.together;
    const int64_t clusters =
        std::max(lines.clusters,
                 ceil_div(w_shape.all_lines(), kLinesBegun * lines.threads / split::kLineThreads * lines.blocks));
    add_blocks(of_a ? "split B" : "split A", clusters * lines.blocks, out, lines.threads, lines.blocks);
    const View& view = of_a ? out.view_a : out.view_b;
    const int64_t w_lines = of_a ? p.m : p.n, x_lines = of_a ? p.n : p.m;
    const split_rows::Choice choice = split_rows::choose(p, w_lines, x_lines, view.reading == Reading::direct, chip);
    out.shape = choice.index;
    const split_rows::Shape& s = split_rows::kShapes[out.shape];
    out.tile_m = of_a ? s.lines() : s.rows;
    out.tile_n = of_a ? s.rows : s.lines();
    out.stages = s.stages;
    LaunchShape multiply;
    multiply.kernel = s.name;
    multiply.block = s.in_turns && view.reading == Reading::direct ? s.threads_in_turns() : s.threads();
    const int64_t tiles = ceil_div(w_lines, int64_t(s.lines())) * ceil_div(x_lines, int64_t(s.rows)) * p.batches;
    // Blocks of wide tiles walk them.
    const int64_t most = split_rows::is_wide(choice.index) ? chip.multiprocessors : INT64_MAX;
    multiply.grid = std::min(tiles * out.groups * choice.group_parts, most);
    multiply.shared_bytes = s.shared_bytes(kSegment);
    multiply.overlapping = true;
    out.small = x_lines <= split_warps::kRows && view.reading == Reading::direct && view.boxes.along_k;
    if (out.small) {
      out.tile_m = of_a ? split_warps::kLines : split_warps::kRows;
      out.tile_n = of_a ? split_warps::kRows : split_warps::kLines;
      const bool one = split_one::suits(x_lines, out.groups, p.batches);
      out.stages = one ? split_one::kStages : split_warps::stages_of(x_lines);
      multiply.kernel = one ? of_a ? "multiply 16 x 1 tiles" : "multiply 1 x 16 tiles" : "multiply 16 x 8 tiles";
      multiply.block = split_warps::kThreads;
      const int64_t tasks = ceil_div(w_lines, int64_t(split_warps::kLines)) * p.batches;
      const int64_t room = int64_t(chip.multiprocessors) * split_warps::kBlocks;
      multiply.grid = one ? split_one::grid_of(tasks, out.groups, room) : std::min<int64_t>(tasks * out.groups, room);
      multiply.shared_bytes = one ? split_one::kSharedBytes : split_warps::shared_bytes_of(x_lines);
    }
    out.launches.add(multiply);
    if (!out.small && choice.group_parts > 1) {
      const int64_t outputs = tiles * split_rows::kLines * s.rows;
      regions_w.halves = out.workspace.add("sums of segments", w_shape.segments() * outputs * 4);
      regions_w.units = out.workspace.add("units of groups", out.groups * tiles * split_rows::kLines * 4);
      add_blocks("add segments", tiles * out.groups * split_rows::quads_of(s.rows), out, split_rows::kAddThreads);
    }
    if (split::parts_are_late(x_shape)) add_split_into_parts(regions_x.splitting.blocks, chip, out);
    if (out.small) {
      const int64_t all = ceil_div(w_lines, int64_t(split_left::kLines)) * p.batches;
      add_blocks(out.apart ? kAddAndFinish : "finish", std::min<int64_t>(all, chip.multiprocessors), out,
                 split_end::kThreads, /*cluster=*/1, split_left::sums_bytes_of(x_lines));
      return;
    }
    multiply.kernel = s.parts_name;  // what the first leaves
    multiply.block = s.threads();
    multiply.shared_bytes = s.shared_bytes(kSegment);
    multiply.grid = std::min(tiles * out.groups, most);
    if (p.batches == 1 && w_lines <= split_rows::kMostSharedLines && !split_rows::is_wide(choice.index)) {
      // Their sums take a quarter of what W does, at most.
      const int64_t room = w_shape.values / split_rows::shared_group_bytes(s.rows);
      out.shared_groups = std::min<int64_t>(split_rows::kMostSharedGroups, room);
    }
    if (out.shared_groups > 0) {
      multiply.grid = std::max<int64_t>(multiply.grid, chip.multiprocessors);
      out.left_words = split_rows::line_words(w_lines) + out.shared_groups;
      regions_w.runs = out.workspace.add("lines left, blocks done", sizeof(uint32_t) * out.left_words);
      out.shared_sums =
          out.workspace.add("sums of segments left", out.shared_groups * split_rows::shared_group_bytes(s.rows));
    }
    out.launches.add(multiply);
  } else {
    add_blocks("split A and B", out.split_a.splitting.blocks + out.split_b.splitting.blocks, out, split::kSplitThreads);
    out.shape = split_fp16::choose(p, out.apart, chip);
    const TileShape& s = split_fp16::kShapes[out.shape];
    set_tile(s, out);
    const int64_t tiles = tiles_of(p, out.tile_m, out.tile_n);
    add_walk(s, tiles * (out.apart ? out.groups : 1), chip, out);
    if (out.rest_in_one) {
      const int64_t words_a = run_words(out.split_a.shape), words_b = run_words(out.split_b.shape);
      out.left_words = words_a + words_b + 1 + tiles;
      out.split_a.runs = out.workspace.add("lines and tiles by parts", sizeof(uint32_t) * out.left_words);
      out.split_b.runs = out.split_a.runs + sizeof(uint32_t) * words_a;
      out.left_tiles = out.split_b.runs + sizeof(uint32_t) * words_b;
      return;
    }
    // Blocks that wait on multiprocessors where nothing is multiplied begin later than those of a new launch (NVIDIA H200, 2026-11-27: 5 to
    // 10 % of products to k of 2048).
    const bool room = out.groups == 1 && 4 * out.launches[1].grid <= 3 * chip.multiprocessors;
    if (out.split_a.ordered) add_blocks("order lines", 2, out, split::kOrderThreads);
    add_parts(p, chip, /*overlapping=*/!room, out);
  }
  add_finish(p, chip, out);
}

void prepare_split_direct(const Request& r, const Chip& chip, Prepared& out) {
  const Problem& p = r.problem;
  if (p.k == 0) return;
  out.groups = groups_of(p.k);
  out.split_a.as_read = out.split_b.as_read = true;
  const split_direct::Choice choice = split_direct::choose(p, chip);
  if (choice.shares > 0) {
    const bool of_a = split::longer_is_a(p);
    const int64_t segments = ceil_div(p.k, int64_t(kSegment)), lines = std::min(p.m, p.n);
    out.small = true;
    const bool few = lines <= split_held::kOctet;
    out.tile_m = of_a || !few ? split_held::kLines : split_held::kOctet;
    out.tile_n = of_a && few ? split_held::kOctet : split_held::kLines;
    const char* const name = !few ? "multiply 64 x 64 tiles" : of_a ? "multiply 64 x 8 tiles" : "multiply 8 x 64 tiles";
    overlap(add_blocks(name, choice.shares * split_held::x_tiles_of(p), out, split_held::kThreads, /*cluster=*/1,
                       split_held::shared_bytes(segments, lines)),
            split_held::blocks_of(lines), chip);
    return;
  }
  if (choice.single) {
    const bool of_a = p.n == 1;
    const int64_t segments = ceil_div(p.k, int64_t(kSegment)), tiles = ceil_div(of_a ? p.m : p.n, split_single::kLines);
    out.few = true;
    out.tile_m = of_a ? split_single::kLines : 1;
    out.tile_n = of_a ? 1 : split_single::kLines;
    overlap(add_blocks(of_a ? "multiply 16 x 1 tiles" : "multiply 1 x 16 tiles", tiles * choice.cluster, out,
                       split_single::kThreads, choice.cluster, split_single::shared_bytes(segments, choice.cluster)),
            split_single::kBlocks, chip);
    return;
  }
  if (choice.some) {
    const int sets = choice.some->sets, octets = choice.some->octets, cluster = choice.some->cluster;
    const bool of_a = split::longer_is_a(p);
    const int w_lines = sets * split_some::kSet, x_lines = octets * split_some::kOctet;
    out.some = true;
    out.tile_m = of_a ? w_lines : x_lines;
    out.tile_n = of_a ? x_lines : w_lines;
    const int64_t bytes = split_some::shared_bytes(ceil_div(p.k, int64_t(kSegment)), sets, octets, cluster);
    overlap(add_blocks("multiply tiles, clusters share k", tiles_of(p, out.tile_m, out.tile_n) * cluster, out,
                       split_some::kThreads, cluster, static_cast<int>(bytes)),
            /*blocks=*/1, chip);
    return;
  }
  out.shape = choice.index;
  const split_direct::Shape& s = split_direct::kShapes[out.shape];
  out.tile_m = s.tile_m();
  out.tile_n = s.tile_n();
  overlap(add_blocks(s.name, tiles_of(p, out.tile_m, out.tile_n) * choice.cluster, out, s.threads(), choice.cluster,
                     s.shared_bytes(ceil_div(ceil_div(p.k, int64_t(kSegment)), choice.cluster))),
          s.blocks(), chip);
}

Prepared prepare(const Request& r, const Chip& chip) {
  Prepared out;
  out.row = r.row;
  out.problem = r.problem;
  out.dtype = r.dtype;
  out.has_bias = r.has_bias;
  r.row->prepare(r, chip, out);

  const Problem& p = r.problem;
  const double products =
      static_cast<double>(p.batches) * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  out.operations = 2 * r.row->products * products;
  // Matrices that a batch shares are in memory once.
  int64_t a_matrices = 1, b_matrices = 1;
  for (int d = 0; d < p.batch_dims; ++d) {
    if (p.a_batch[d] != 0) a_matrices *= p.batch_size[d];
    if (p.b_batch[d] != 0) b_matrices *= p.batch_size[d];
  }
  const int64_t result_bytes = size_of(result_dtype(r.dtype));
  out.bytes_read =
      (a_matrices * p.m + b_matrices * p.n) * p.k * size_of(r.dtype) + (r.has_bias ? p.n * result_bytes : 0);
  out.bytes_written = p.batches * p.m * p.n * result_bytes;
  return out;
}

std::string to_string(const Prepared& prepared) {
  const std::string text =
      prepared.row->name + ": tiles of " + std::to_string(prepared.tile_m) + " x " + std::to_string(prepared.tile_n) +
      ", " + std::to_string(prepared.groups) + " groups of k" + (prepared.apart ? " apart" : "") +
      (prepared.dealt > 0 ? ", " + std::to_string(prepared.dealt) + " tasks dealt out by steps of k" : "") + "\n" +
      to_string(prepared.launches, prepared.workspace);
  return text + "computes " + std::to_string(prepared.operations) + " operations, moves " +
         std::to_string(prepared.bytes_read) + " bytes read, " + std::to_string(prepared.bytes_written) + " written\n";
}

bool operator==(const Prepared& a, const Prepared& b) {
  const auto split = [](const SplitRegions& s) {
    return std::make_tuple(s.as_read, s.has_halves, s.has_parts, s.knows_codes, s.ordered, s.splitting.blocks, s.halves,
                           s.scales, s.units, s.facts, s.line_facts, s.order, s.parts, s.runs);
  };
  const auto decided = [&](const Prepared& p) {
    return std::make_tuple(p.row, p.shape, p.few, p.few_outputs, p.few_columns, p.registers, p.narrow, p.in_place,
                           p.short_k, p.small, p.some, p.tile_m, p.tile_n, p.stages, p.way_a, p.way_b, p.view_a.reading,
                           p.view_b.reading, p.copy_a, p.copy_b, p.boxes_c, p.groups, p.groups_at_once, p.apart,
                           p.parts_shape, p.rest_in_one, p.block_segments, p.segment_sums, split(p.split_a),
                           split(p.split_b), p.partials, p.left_tiles, p.left_words, p.shared_groups, p.shared_sums,
                           p.dealt, p.accumulators, p.counters, p.operations, p.bytes_read, p.bytes_written);
  };
  return decided(a) == decided(b) && a.launches == b.launches && a.workspace == b.workspace;
}

}  // namespace treduce::matmul
