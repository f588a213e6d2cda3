// The launches, workspace and counters of a reduction: of whole tensors by its plan, along dims by its schedule.
#include "prepare.h"

#include "ladder.h"

namespace treduce::reduce {
namespace {

// Elements in memory: an expanded dim is there once.
int64_t stored(const Geometry& g) {
  int64_t count = g.length == 0 || g.outputs == 0 ? 0 : 1;
  for (const Extents* dims : {&g.reduced, &g.kept}) {
    for (int d = 0; d < dims->count; ++d) count *= dims->stride[d] == 0 ? 1 : dims->size[d].divisor;
  }
  return count;
}

void count_bytes(const Request& r, Prepared& p) {
  const int64_t element = size_of(r.dtype);
  p.bytes_read = (stored(r.geometry) + r.copied_from) * element;
  p.bytes_written = r.geometry.outputs * size_of(r.target) + (r.copied_from > 0 ? r.numel() * element : 0);
}

LaunchShape shape(const char* kernel, int64_t grid, int block) {
  LaunchShape s;
  s.kernel = kernel;
  s.grid = grid;
  s.block = block;
  return s;
}

void add_partials(int64_t accumulator, Prepared& p) { p.workspace.add("partials", p.plan.partials() * accumulator); }

void add_passes(int64_t shared_bytes, Prepared& p) {
  for (int i = 0; i < p.plan.pass_count; ++i) {
    p.launches.add(shape(p.kernel->name.c_str(), p.plan.passes[i].blocks, p.plan.block)).shared_bytes = shared_bytes;
  }
}

Prepared prepare_whole(const Request& r, const Chip& chip) {
  Prepared p(r);
  p.kernel = p.rung = r.row;
  p.deterministic = r.row->deterministic || !r.rounds();
  p.refusal = refused_by(chip, *r.row);
  if (p.refusal) return p;
  count_bytes(r, p);
  p.plan = make_plan(r.row->plan_order, r.dtype, r.geometry.length, r.block, r.num_blocks);
  r.row->prepare(accumulator_size(r.dtype), p);
  return p;
}

// A rung along dims: its own schedule, or that of the rung which it borrows.
Prepared prepare_along_dims(const Request& r, const Chip& chip) {
  Prepared p(r);
  const bool pairs = r.arithmetic == Arithmetic::compensated;  // of a sum and its error
  const int64_t partial = accumulator_size(r.target) * (pairs ? 2 : 1);
  const Memory memory = make_memory(r.address, r.dtype, r.target, partial, is_extremum(r.op), r.converting,
                                    pairs ? Kernels::compensated : Kernels::every);
  const Work work{r.geometry, memory, chip, r.block, r.num_blocks};
  p.rung = &executor(*r.row, work);
  p.kernel = r.arithmetic == Arithmetic::plain ? p.rung : r.row;
  p.refusal = refused_by(chip, *p.rung);
  if (p.refusal) return p;
  count_bytes(r, p);
  if (r.is_empty()) return p;
  Scheduled scheduled = p.rung->schedule(work);
  p.refusal.sentence = std::move(scheduled.refusal);
  const Schedule& s = p.schedule = scheduled.schedule;
  p.launches.add(s).kernel = p.kernel->name.c_str();
  p.workspace.add("partials", s.partials * partial);
  p.workspace.add("cells", s.workspace_bytes);
  p.counters = s.counters;
  return p;
}

}  // namespace

void prepare_passes(int64_t accumulator, Prepared& p) {
  add_partials(accumulator, p);
  add_passes(0, p);
}

void prepare_passes_with_slots(int64_t accumulator, Prepared& p) {
  add_partials(accumulator, p);
  add_passes(p.plan.block * accumulator, p);
}

void prepare_copy_and_passes(int64_t accumulator, Prepared& p) {
  add_partials(accumulator, p);
  p.workspace.add("copy", p.plan.first().n * accumulator);
  p.launches.add(shape("copy", p.plan.grid(), p.plan.block));
  add_passes(0, p);
}

void prepare_once(int64_t accumulator, Prepared& p) {
  add_partials(accumulator, p);
  p.launches.add(shape(p.kernel->name.c_str(), p.plan.grid(), p.plan.block));
  p.counters = p.plan.grid() > 1 ? 1 : 0;
}

void prepare_clusters(int64_t accumulator, Prepared& p) {
  add_partials(accumulator, p);
  p.launches.add(shape(p.kernel->name.c_str(), p.plan.grid(), p.plan.block)).cluster = kClusterBlocks;
  p.counters = p.plan.grid() > kClusterBlocks ? 1 : 0;
}

void prepare_cooperative(int64_t accumulator, Prepared& p) {
  p.workspace.add("partials", p.plan.grid() * accumulator);
  p.launches.add(shape(p.kernel->name.c_str(), p.plan.grid(), p.plan.block)).cooperative = true;
}

void prepare_atomic(int64_t accumulator, Prepared& p) {
  p.workspace.add("total", accumulator);
  p.launches.add(shape("begin", 1, 1));
  p.launches.add(shape(p.kernel->name.c_str(), p.plan.grid(), p.plan.block));
  p.launches.add(shape("end", 1, 1));
}

void Request::take(const Resolved& found) {
  row = found.row;
  block = found.block;
  num_blocks = found.num_blocks;
  arithmetic = rounds() ? row->arithmetic : Arithmetic::plain;
  if (arithmetic != row->arithmetic) row = &find("auto");
}

Prepared prepare(const Request& request, const Chip& chip) {
  return request.row->along_dims ? prepare_along_dims(request, chip) : prepare_whole(request, chip);
}

bool operator==(const Prepared& a, const Prepared& b) {
  return a.kernel == b.kernel && to_string(a.plan) == to_string(b.plan) && a.deterministic == b.deterministic &&
         a.rung == b.rung && a.launches == b.launches && a.workspace == b.workspace && a.counters == b.counters &&
         a.bytes_read == b.bytes_read && a.bytes_written == b.bytes_written && a.refusal == b.refusal &&
         a.schedule == b.schedule;
}

std::string to_string(const Prepared& p) {
  if (p.refusal) return p.refusal.sentence + "\n";
  std::string text = "rung " + p.rung->name + "\n" + to_string(p.launches, p.workspace);
  if (p.counters > 0) text += "counters " + std::to_string(p.counters) + "\n";
  return text + "moves " + std::to_string(p.bytes_read) + " bytes read, " + std::to_string(p.bytes_written) +
         " written\n";
}

}  // namespace treduce::reduce
