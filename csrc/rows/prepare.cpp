#include "prepare.h"

#include <algorithm>

#include "../common/round.h"
#include "ladder.h"
#include "shapes.h"

namespace treduce::rows {
namespace {

using reduce::Pairwise;

constexpr int64_t kMostBlocks = INT32_MAX;
constexpr int kUsualWarps = kShortThreads / kWarp;  // of a block whose rows are short
// Warps of a row in one block where a cluster could share it. Smaller blocks overlap the loads of one row with the stores of another.
constexpr int kWarpsOfBlock = 8;

int64_t power_of_two(int64_t least) {
  int64_t power = 1;
  while (power < least) power *= 2;
  return power;
}

// Warps that hold a row, a chunk each.
int64_t warps_of(const Request& r) { return power_of_two(ceil_div(r.problem.length, Pairwise::kChunk)); }

int64_t most_warps(const Request& r, bool vectors) {
  return most_threads(inputs_of(r.op), has_weight(r.op), r.dtype == DType::float64, vectors) / kWarp;
}

bool is_adjacent(const Request& r) {
  if (r.dtype == DType::float64) return false;
  for (int i = 0; i < inputs_of(r.op); ++i) {
    if (r.problem.in[i].element_stride != 1) return false;
  }
  return r.op == Op::logsumexp || r.problem.out.element_stride == 1;
}

bool takes_vectors(const Request& r) {
  const int size = vector_of(r.dtype);
  const Problem& p = r.problem;
  if (p.length % size != 0 || r.addresses % static_cast<uint64_t>(size * size_of(r.dtype)) != 0) return false;
  const auto fits = [&](const Layout& l) {  // a stride of one row is nobody's
    return l.element_stride == 1 && (p.rows == p.inner || l.outer_stride % size == 0) &&
           (p.inner == 1 || l.inner_stride % size == 0);
  };
  for (int i = 0; i < inputs_of(r.op); ++i) {
    if (!fits(p.in[i])) return false;
  }
  return r.op == Op::logsumexp || fits(p.out);
}

LaunchShape& add_launch(const Request& r, Prepared& p, int64_t rows_a_block, int64_t warps, int64_t cluster = 1) {
  LaunchShape& shape = p.launches.add({name_of(r.op)});
  shape.grid = std::min(ceil_div(r.problem.rows, rows_a_block), kMostBlocks / cluster) * cluster;
  shape.block = static_cast<int>(warps * kWarp);
  shape.cluster = static_cast<int>(cluster);
  return shape;
}

}  // namespace

void prepare_three_pass(const Request& r, Prepared& p) {
  p.warps = static_cast<int>(std::min({warps_of(r), most_warps(r, p.vectors), int64_t{16}}));
  add_launch(r, p, 1, p.warps);
}

void prepare_registers(const Request& r, Prepared& p) {
  const int64_t warps = warps_of(r);
  if (warps > most_warps(r, p.vectors)) {
    p.refusal.sentence = "variant 'row_registers' holds rows of up to " +
                         std::to_string(most_warps(r, p.vectors) * Pairwise::kChunk) + " elements, got " +
                         std::to_string(r.problem.length) + "; row_cluster holds longer ones, three_pass reads any";
    return;
  }
  p.warps = static_cast<int>(warps);
  const bool is_double = r.dtype == DType::float64;
  const int64_t stripes = power_of_two(ceil_div(r.problem.length, Pairwise::kLanes));
  if (!is_double && (p.vectors ? stripes < Pairwise::kStripes : stripes == 1)) p.stripes = static_cast<int>(stripes);
  if (p.stripes == 1) p.adjacent = false;  // the kernel for several rows a warp takes any stride
  if (p.stripes == 1 && p.vectors) p.lanes = static_cast<int>(power_of_two(ceil_div(r.problem.length, 4)));
  const int64_t block = std::max<int64_t>(warps, kUsualWarps);
  add_launch(r, p, block / warps * (Pairwise::kStripes / p.stripes) * (kWarp / p.lanes), block);
}

void prepare_cluster(const Request& r, Prepared& p) {
  const int64_t warps = warps_of(r), most = most_warps(r, p.vectors);
  int64_t blocks = 2;
  while (blocks < kMostClusterBlocks && warps / blocks > std::min<int64_t>(kWarpsOfBlock, most)) blocks *= 2;
  const int64_t each = std::max<int64_t>(warps / blocks, 1);
  if (each > most) {
    p.refusal.sentence = "variant 'row_cluster' holds rows of up to " +
                         std::to_string(blocks * most * Pairwise::kChunk) + " elements, got " +
                         std::to_string(r.problem.length) + "; three_pass reads any";
    return;
  }
  p.warps = static_cast<int>(each);
  add_launch(r, p, 1, each, blocks);
}

const char* choose(const Request& r, const Chip& chip) {
  const int64_t warps = warps_of(r), most = most_warps(r, takes_vectors(r));
  const bool clusters = runs_on(find("row_cluster"), chip.capability);
  if (clusters && warps > kWarpsOfBlock && warps <= kMostClusterBlocks * most) return "row_cluster";
  return warps <= most ? "row_registers" : "three_pass";
}

Prepared prepare(const Request& r, const Chip& chip) {
  Prepared p;
  p.rung = r.row->prepare != nullptr ? r.row : &find(choose(r, chip));
  p.vectors = takes_vectors(r);
  p.adjacent = is_adjacent(r);
  p.refusal = refused_by(chip, *p.rung);
  if (!p.refusal) p.rung->prepare(r, p);
  const int64_t elements = r.problem.rows * r.problem.length, size = size_of(r.dtype);
  p.bytes_read = elements * size * inputs_of(r.op);
  p.bytes_written = (r.op == Op::logsumexp ? r.problem.rows : elements) * size;
  return p;
}

bool operator==(const Prepared& a, const Prepared& b) {
  return a.rung == b.rung && a.launches == b.launches && a.vectors == b.vectors && a.adjacent == b.adjacent &&
         a.stripes == b.stripes && a.lanes == b.lanes && a.warps == b.warps && a.refusal == b.refusal;
}

}  // namespace treduce::rows
