// What Python reads from the C++ side besides the ops: the ladders, the plans, device facts and how the build was made.
#include <precompiled.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_neg_view.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "../common/launch_log.h"
#include "../elementwise/ladder.h"
#include "../elementwise/prepare.h"
#include "../matmul/prepare.h"
#include "../rows/ladder.h"
#include "../rows/prepare.h"
#include "../rows/shapes.h"
#include "elementwise.h"
#include "functions.h"
#include "invariant.h"
#include "matmul.h"
#include "matmul_composed.h"
#include "reduce.h"
#include "reduce_stand_in.h"
#include "rows.h"
#include "treduce_build.h"

#ifdef TREDUCE_WITH_CUDA
#include "../common/device.h"
#endif

namespace py = pybind11;

namespace treduce {
namespace {

py::tuple names_of(const std::vector<DType>& dtypes) {
  py::list names;
  for (const DType dtype : dtypes) names.append(name_of(dtype));
  return py::tuple(names);
}

py::dict as_dict(const Variant& variant) {
  py::dict d;
  d["name"] = variant.name;
  d["aliases"] = py::tuple(py::cast(variant.aliases));
  d["summary"] = variant.summary;
  d["origin"] = variant.origin;
  d["order"] = variant.order;
  d["order_text"] = variant.order_text;
  d["deterministic"] = variant.deterministic;
  d["has_kernel"] = variant.cuda;
  d["capability"] = py::make_tuple(variant.capability / 10, variant.capability % 10);
  d["one_chip"] = variant.one_chip;
  d["on_cpu"] = variant.on_cpu;
  d["float32_bits"] = variant.float32_bits;
  d["dtypes"] = names_of(variant.dtypes);
  d["size_default"] = variant.size_default;
  d["size_min"] = variant.size_min;
  d["size_max"] = variant.size_max;
  d["takes_num_blocks"] = variant.takes_num_blocks;
  return d;
}

py::dict as_dict(const reduce::Row& row) {
  py::dict d = as_dict(static_cast<const Variant&>(row));
  d["along_dims"] = row.along_dims;
  return d;
}

py::dict as_dict(const matmul::Row& row) {
  py::dict d = as_dict(static_cast<const Variant&>(row));
  d["composed_dtypes"] = names_of(matmul::composed_dtypes(row));
  return d;
}

py::dict as_dict(const LaunchShape& shape) {
  py::dict d;
  d["kernel"] = shape.kernel;
  d["grid"] = py::make_tuple(shape.grid, shape.grid_y);
  d["block"] = py::make_tuple(shape.block, shape.block_y);
  d["shared_bytes"] = shape.shared_bytes;
  d["cluster"] = shape.cluster;
  d["cooperative"] = shape.cooperative;
  d["overlapping"] = shape.overlapping;
  return d;
}

py::dict as_dict(const Region& region) {
  py::dict d;
  d["name"] = region.name;
  d["offset"] = region.offset;
  d["bytes"] = region.bytes;
  return d;
}

template <class Items>
py::list as_list(const Items& items) {
  py::list list;
  for (const auto& item : items) list.append(as_dict(item));
  return list;
}

DType checked_dtype(const std::string& name) {
  if (const auto dtype = dtype_named(name)) return *dtype;
  throw py::value_error("unknown dtype '" + name + "'");
}

// Calls `body` and returns what this thread launched meanwhile, for tests.
py::list record_launches(const py::object& body) {
  std::vector<LaunchShape> log;
  struct Scope {
    std::vector<LaunchShape>* before = launch_log();
    ~Scope() { launch_log() = before; }
  } scope;
  launch_log() = &log;
  body();
  return as_list(log);
}

Chip chip_from(const std::tuple<int, int>& facts) { return {std::get<0>(facts), std::get<1>(facts)}; }

// What every prepared call says of its launches, its memory and what it moves.
template <class Prepared>
void add_launches(py::dict& d, const Prepared& prepared) {
  d["launches"] = as_list(prepared.launches);
  d["regions"] = as_list(prepared.workspace.regions());
  d["workspace_bytes"] = prepared.workspace.bytes();
  d["bytes_read"] = prepared.bytes_read;
  d["bytes_written"] = prepared.bytes_written;
}

void add_passes(py::dict& d, const reduce::Plan& plan) {
  py::list passes;
  for (int p = 0; p < plan.pass_count; ++p) {
    const reduce::Pass& pass = plan.passes[p];
    py::dict q;
    q["n"] = pass.n;
    q["blocks"] = pass.blocks;
    q["lanes"] = pass.lanes;
    q["vector"] = pass.vector;
    q["rows"] = pass.rows;
    q["block_step"] = pass.block_step;
    q["row_step"] = pass.row_step;
    q["tree"] = reduce::name_of(pass.tree);
    passes.append(q);
  }
  d["passes"] = passes;
  d["text"] = reduce::to_string(plan);
}

// The plan of a classic rung for this length and dtype.
py::dict reduce_plan(const std::string& variant, const std::string& dtype, int64_t n, std::optional<int64_t> block,
                     std::optional<int64_t> num_blocks) {
  const reduce::Resolved found =
      as_value_error([&] { return reduce::resolve(variant, /*dims=*/false, block, num_blocks); });
  TORCH_CHECK_VALUE(!found.row->along_dims, "variant '", found.row->name,
                    "' has no list of passes: its order of additions is that of csrc/reduce/pairwise.h");
  reduce::Request r;
  r.dtype = r.target = checked_dtype(dtype);
  r.geometry.length = n;
  r.take(found);
  const reduce::Prepared p = reduce::prepare(r, Chip());
  py::dict d;
  d["variant"] = p.rung->name;
  d["block_size"] = found.block;
  d["workspace_bytes"] = p.workspace.bytes();
  add_passes(d, p.plan);
  return d;
}

reduce::Op reduction_named(const std::string& name) {
  for (const reduce::Op op : {reduce::Op::sum, reduce::Op::mean, reduce::Op::amax, reduce::Op::amin}) {
    if (name == reduce::name_of(op)) return op;
  }
  throw py::value_error("unknown reduction '" + name + "'; there are sum, mean, amax and amin");
}

// Pairs of size and stride, outermost first.
py::tuple as_tuple(const reduce::Extents& extents) {
  py::tuple result(extents.count);
  for (int d = 0; d < extents.count; ++d) {
    result[d] = py::make_tuple(extents.size[d].divisor, extents.stride[d]);
  }
  return result;
}

// The rung that `auto` picks for contiguous matrices; capability: times ten, 0 for the CPU.
std::string matmul_choice(const std::string& dtype, int64_t m, int64_t n, int64_t k, int capability, bool tfloat32) {
  matmul::Problem p = {};
  p.m = m, p.n = n, p.k = k;
  p.a_row = k, p.a_column = 1, p.b_row = n, p.b_column = 1;
  p.batches = 1;
  const DType asked_dtype = checked_dtype(dtype);
  if (is_complex_dtype(asked_dtype)) p.m *= 2, p.n *= 2;
  const matmul::Resolved asked = matmul::resolve("auto", std::nullopt);
  Chip chip;
  chip.capability = capability;
  return matmul::choose(asked, matmul::multiplied_dtype(asked_dtype), p, {chip, tfloat32}).row->name;
}

rows::Op row_op_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(rows::Op::rms_norm_backward); ++i) {
    if (name == rows::name_of(static_cast<rows::Op>(i))) return static_cast<rows::Op>(i);
  }
  throw py::value_error("unknown row operation '" + name + "'");
}

// The rung that runs an operation on rows that lie one after another, and how; capability: times ten. `shift`: elements by which
// the first row misses the alignment of vectors.
py::dict row_plan(const std::string& op, const std::string& dtype, int64_t rows, int64_t length,
                  const std::string& variant, int capability, int64_t shift) {
  rows::Request r;
  r.op = row_op_named(op);
  r.dtype = checked_dtype(dtype);
  r.row = as_value_error([&] { return &rows::find(variant); });
  r.problem.rows = rows;
  r.problem.length = length;
  for (rows::Layout* l : {&r.problem.in[0], &r.problem.in[1], &r.problem.out}) *l = {length, 1, 1};
  r.addresses = static_cast<uint64_t>(shift * size_of(r.dtype));
  Chip chip;
  chip.capability = capability;
  const rows::Prepared p = rows::prepare(r, chip);
  check(p.refusal);
  py::dict d;
  d["rung"] = p.rung->name;
  d["reads"] = name_of(p.reads);
  add_launches(d, p);
  return d;
}

// What a call does on a chip, checked as the call is. Sizes, strides and the address stand for the tensor: nothing is read.
// `lazy`: the elements are conjugated or negated when they are read. `chip`: multiprocessors, ten times the compute capability.
py::dict call_plan(const std::string& op, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                   at::ScalarType type, uint64_t address, bool lazy, const std::string& variant,
                   const std::optional<std::vector<int64_t>>& dim, bool keepdim, std::optional<at::ScalarType> dtype,
                   std::optional<int64_t> block_size, std::optional<int64_t> num_blocks,
                   const std::tuple<int, int>& chip) {
  at::Tensor self = at::detail::empty_strided_meta(sizes, strides, type);
  if (lazy) self = at::_neg_view(self);
  at::OptionalIntArrayRef dims;
  if (dim.has_value()) dims = at::IntArrayRef(*dim);
  const reduce::StandIn stand_in(reduction_named(op), self, {variant, dims, keepdim, dtype, block_size, num_blocks});
  reduce::Reduction reduction(reduction_named(op), stand_in.self(), stand_in.arguments());
  reduce::Request& r = reduction.call.request;
  // Parts of complex numbers lie where these lie.
  const bool copies = !reduction.input->is_same(self) && !reduction.input->is_alias_of(self);
  r.address = copies ? 0 : address;
  const reduce::Prepared p = reduce::prepare(r, chip_from(chip));
  check(p.refusal);
  py::dict d;
  d["order"] = r.row->order;
  d["order_text"] = r.row->order_text;
  d["deterministic"] = p.deterministic;
  const at::Tensor result = stand_in.finished(reduction.output);
  d["result_shape"] = py::tuple(py::cast(result.sizes().vec()));
  d["result_dtype"] = result.scalar_type() == at::kComplexHalf ? "complex32" : name_of(r.target);
  d["rung"] = p.rung->name;
  d["copies"] = copies;
  d["length"] = r.geometry.length;
  d["outputs"] = r.geometry.outputs;
  if (r.row->along_dims) {
    const reduce::Pairwise order(r.geometry.length);
    d["reduced"] = as_tuple(r.geometry.reduced);
    d["kept"] = as_tuple(r.geometry.kept);
    d["chunks"] = order.chunks();
    d["depth"] = order.depth();
    d["tiles"] = p.schedule.tiles;
    d["tile"] = p.schedule.tile;
    d["span"] = p.schedule.span;
    d["splits"] = p.schedule.splits;
    d["vectors"] = p.schedule.vectors;
    d["shifted"] = p.schedule.shifted;
  } else {
    add_passes(d, p.plan);
  }
  add_launches(d, p);
  d["counters"] = p.counters;
  return d;
}

// An operand of a product that is planned: it has a place, but no element is read.
struct Planned {
  std::vector<int64_t> sizes, strides;
  uint64_t address = 0;
  bool lazy = false;

  explicit Planned(const py::tuple& t)
      : sizes(t[0].cast<std::vector<int64_t>>()),
        strides(t[1].cast<std::vector<int64_t>>()),
        address(t[2].cast<uint64_t>()),
        lazy(t[3].cast<bool>()) {}
  at::Tensor tensor(at::ScalarType type) const {
    const at::Tensor whole = at::detail::empty_strided_meta(sizes, strides, type);
    return lazy ? at::_neg_view(whole) : whole;
  }
};

const char* name_of(matmul::Reading reading) {
  return reading == matmul::Reading::direct ? "where it lies"
         : reading == matmul::Reading::rows ? "from a copy with aligned rows"
                                            : "from a copy along k";
}

// Which dtype the rung's instructions multiply, and on which cores: the two that name a peak throughput.
std::string unit_of(const matmul::Row& row, DType dtype) {
  if (row.on_cpu) {
    const bool narrow = dtype == DType::float16 || dtype == DType::bfloat16;
    return std::string(narrow ? "float32" : name_of(dtype)) + " on plain cores";
  }
  const char* const split = row.products == 6 ? "bfloat16" : row.products == 3 ? "float16" : nullptr;
  return std::string(split != nullptr          ? split
                     : dtype == DType::float32 ? "tfloat32"
                                               : name_of(dtype)) +
         " on tensor cores";
}

// As call_plan, of a row operation without weights: along dim `along[0]`, or, of norms, over the last dims, whose sizes are `along`.
py::dict row_call_plan(const std::string& op, const py::tuple& operand, at::ScalarType type,
                       const std::vector<int64_t>& along, const std::string& variant,
                       const std::tuple<int, int>& facts) {
  const rows::Op which = row_op_named(op);
  const Planned planned(operand);
  const at::Tensor self = planned.tensor(type);
  rows::checked_float(self, op.c_str());
  const rows::RowDims dims =
      rows::has_weight(which)
          ? rows::checked_norm(op.c_str(), self, c10::fromIntArrayRefSlow(along), std::nullopt, std::nullopt)
          : rows::checked_dim(self, along.at(0));
  rows::RowCall call(which, variant, self, dims);
  if (!call.copies(self)) call.request.addresses |= planned.address;
  const bool a_row = which == rows::Op::logsumexp;
  std::vector<int64_t> sizes = self.sizes().vec();
  if (a_row && self.dim() > 0) sizes.erase(sizes.begin() + dims.begin);
  call.set_output(at::detail::empty_strided_meta(sizes, at::detail::defaultStrides(sizes), type));
  const Chip chip = chip_from(facts);
  py::dict d;
  d["result_shape"] = py::tuple(py::cast(sizes));
  d["row_count"] = call.request.problem.rows;
  d["length"] = call.request.problem.length;
  d["copies"] = call.copies(self);
  rows::Prepared p;
  if (!call.is_empty()) {
    p = rows::prepare(call.request, chip);
    check(p.refusal);
  } else {
    p.rung = call.request.row;
  }
  d["rung"] = p.rung->name;
  d["order"] = p.rung->order;
  d["order_text"] = p.rung->order_text;
  d["reads"] = rows::name_of(p.reads);
  d["warps"] = p.warps;
  add_launches(d, p);
  return d;
}

// As call_plan, of a product; of treduce::linear where `linear`. `here`: what is planned may be called in this process, so this
// build must have the code. Operands: sizes, strides, address and whether they are lazy.
py::dict product_plan(bool linear, const py::tuple& left, const py::tuple& right, const std::optional<py::tuple>& bias,
                      at::ScalarType type, const std::string& variant, std::optional<int64_t> tile_size, bool tfloat32,
                      const std::tuple<int, int>& facts, bool here) {
  const Planned a(left), b(right);
  const at::Tensor self = a.tensor(type);
  at::Tensor other = b.tensor(type);
  if (linear) {
    std::optional<at::Tensor> added;
    if (bias.has_value()) added = Planned(*bias).tensor(matmul::result_type(type));
    matmul::checked_linear(self, other, added);
    other = other.t();
  }
  const Chip chip = chip_from(facts);
  const DType dtype = matmul::checked_operands({&self, &other});
  matmul::check_dtype(*as_value_error([&] { return matmul::resolve(variant, tile_size); }).row, dtype);
  const std::vector<c10::SymInt> sizes = matmul::result_sizes(self, other);
  const bool composed = matmul::is_composed(dtype);
  const matmul::Multiplied multiplied = composed ? matmul::multiplied(self, other) : matmul::Multiplied{self, other};
  matmul::TensorRequest r =
      matmul::request(multiplied.self, multiplied.other, variant, tile_size, {chip, tfloat32, /*planned=*/!here});
  check(refused_by(chip, *r.row));
  const bool copies_a = multiplied.copies_self || !r.self.is_same(multiplied.self);
  const bool copies_b = multiplied.copies_other || !r.other.is_same(multiplied.other);
  r.a = reinterpret_cast<const void*>(copies_a ? 0 : a.address);
  r.b = reinterpret_cast<const void*>(copies_b ? 0 : b.address);
  r.has_bias = bias.has_value() && !is_complex_dtype(dtype);  // which is added to what the outputs come to
  py::dict d;
  d["rung"] = r.row->name;
  d["order"] = r.row->order;
  d["order_text"] = r.row->order_text;
  d["result_shape"] = py::tuple(py::cast(C10_AS_INTARRAYREF_SLOW(sizes).vec()));
  d["result_dtype"] = name_of(matmul::result_dtype(dtype));
  d["made_of"] = matmul::composition_text(dtype);
  d["unit"] = unit_of(*r.row, r.dtype);
  const matmul::Problem& p = r.problem;
  d["m"] = p.m;
  d["n"] = p.n;
  d["k"] = p.k;
  d["batches"] = p.batches;
  // Nothing is launched for no outputs; nor for sums of nothing and a bias, which torch copies, or of nothing complex.
  matmul::Prepared prepared;
  if (r.result.numel() > 0 && (p.k > 0 || !(r.has_bias || is_complex_dtype(dtype)))) {
    prepared = matmul::prepare(r, chip);
  }
  if (composed) {
    prepared.bytes_read = prepared.bytes_read / size_of(r.dtype) * std::min(size_of(r.dtype), size_of(dtype));
    prepared.bytes_written = c10::multiply_integers(C10_AS_INTARRAYREF_SLOW(sizes)) * size_of(dtype);
  }
  const bool boxes = r.row->batch_dims == matmul::kBoxBatchDims;
  const auto reads = [&](bool copies, bool as_read, const matmul::View& view) -> std::string {
    if (copies) return "written out first";
    if (prepared.launches.size() == 0) return "not at all";
    if (r.row->products > 1) return as_read ? "split as it is read" : "split first";
    return boxes ? name_of(view.reading) : "through its strides";
  };
  d["reads_a"] = reads(copies_a, prepared.split_a.as_read, prepared.view_a);
  d["reads_b"] = reads(copies_b, prepared.split_b.as_read, prepared.view_b);
  d["tile"] = py::make_tuple(prepared.tile_m, prepared.tile_n);
  d["stages"] = prepared.stages;
  d["groups"] = prepared.groups;
  d["groups_apart"] = prepared.apart;
  d["tasks_dealt"] = prepared.dealt;
  const matmul::Problem strip = prepared.strip.exists() ? prepared.strip.alone(p) : matmul::Problem{};
  d["strip"] = py::make_tuple(strip.m, strip.n);
  add_launches(d, prepared);
  d["operations"] = prepared.operations;
  return d;
}

// As call_plan, of vector_add.
py::dict addition_plan(const py::tuple& left, at::ScalarType left_type, const py::tuple& right,
                       at::ScalarType right_type, const std::string& variant, std::optional<int64_t> block_size,
                       const std::tuple<int, int>& facts) {
  const Planned a(left), b(right);
  elementwise::Addition addition(a.tensor(left_type), b.tensor(right_type), variant, block_size);
  elementwise::Request& r = addition.request;
  if (!addition.copies_self) r.a = a.address;
  if (!addition.copies_other) r.b = b.address;
  const elementwise::Prepared p = r.n > 0 ? elementwise::prepare(r, chip_from(facts)) : elementwise::Prepared(r);
  check(p.refusal);
  py::dict d;
  d["result_shape"] = py::tuple(py::cast(addition.result.sizes().vec()));
  d["rung"] = r.row->name;
  d["order"] = r.row->order;
  d["order_text"] = r.row->order_text;
  d["elements"] = r.n;
  d["vectors"] = p.vectors;
  d["copies"] = py::make_tuple(addition.copies_self, addition.copies_other);
  d["launches"] = as_list(p.launches);
  d["bytes_read"] = p.bytes_read;
  d["bytes_written"] = p.bytes_written;
  return d;
}

// One dict an op that the mode knows: what it is, and how often it ran in the mode so far.
std::vector<py::dict> invariant_entries() {
  std::vector<py::dict> result;
  for (const invariant::Entry& entry : invariant::entries()) {
    py::dict d;
    d["op"] = entry.name;
    d["reason"] = entry.reason;
    d["covered"] = entry.kind != invariant::Kind::uncovered;
    d["ours"] = entry.ours.load();
    d["torchs"] = entry.torchs.load();
    d["uncovered"] = entry.uncovered.load();
    result.push_back(std::move(d));
  }
  return result;
}

// Of every op in that order, how often it ran: ours, torch's, uncovered.
std::vector<int64_t> invariant_counts() {
  std::vector<int64_t> result;
  for (const invariant::Entry& entry : invariant::entries()) {
    for (const auto* count : {&entry.ours, &entry.torchs, &entry.uncovered}) result.push_back(count->load());
  }
  return result;
}

template <class Find>
std::string canonical_name(Find find, const std::string& name) {
  try {
    return find(name).name;
  } catch (const BadArgument& bad) {
    throw py::value_error(bad.message);
  }
}

}  // namespace
}  // namespace treduce

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace treduce;
  m.doc() = "torch_reduce: tables and facts of the C++ side; the ops are in torch.ops.treduce";
  if (PyModule_AddFunctions(m.ptr(), functions()) != 0) throw py::error_already_set();
  m.def("reduce_variants", [] { return as_list(reduce::ladder()); });
  m.def("matmul_variants", [] { return as_list(matmul::ladder()); });
  m.def("vector_add_variants", [] { return as_list(elementwise::ladder()); });
  m.def("reduce_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return reduce::find(s); }, name);
  });
  m.def("matmul_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return matmul::find(s); }, name);
  });
  m.def("matmul_choice", &matmul_choice, py::arg("dtype"), py::arg("m"), py::arg("n"), py::arg("k"),
        py::arg("capability") = 0, py::arg("tfloat32") = false);
  m.def("row_variants", [] { return as_list(rows::ladder()); });
  m.def("row_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return rows::find(s); }, name);
  });
  m.def("row_plan", torch::wrap_pybind_function(row_plan), py::arg("op"), py::arg("dtype"), py::arg("rows"),
        py::arg("length"), py::arg("variant") = "auto", py::arg("capability") = 90, py::arg("shift") = 0);
  m.def("vector_add_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return elementwise::find(s); }, name);
  });
  m.def("record_launches", &record_launches, py::arg("body"));
  m.def("reduce_plan", torch::wrap_pybind_function(reduce_plan), py::arg("variant"), py::arg("dtype"), py::arg("n"),
        py::arg("block_size") = py::none(), py::arg("num_blocks") = py::none());
  m.def("call_plan", torch::wrap_pybind_function(call_plan), py::arg("op"), py::arg("sizes"), py::arg("strides"),
        py::arg("type"), py::arg("address"), py::arg("lazy"), py::arg("variant"), py::arg("dim"), py::arg("keepdim"),
        py::arg("dtype"), py::arg("block_size"), py::arg("num_blocks"), py::arg("chip"));
  m.def("row_call_plan", torch::wrap_pybind_function(row_call_plan), py::arg("op"), py::arg("operand"),
        py::arg("dtype"), py::arg("along"), py::arg("variant"), py::arg("facts"));
  m.def("product_plan", torch::wrap_pybind_function(product_plan), py::arg("linear"), py::arg("left"), py::arg("right"),
        py::arg("bias"), py::arg("type"), py::arg("variant"), py::arg("tile_size"), py::arg("tfloat32"),
        py::arg("chip"), py::arg("here"));
  m.def("addition_plan", torch::wrap_pybind_function(addition_plan), py::arg("left"), py::arg("left_type"),
        py::arg("right"), py::arg("right_type"), py::arg("variant"), py::arg("block_size"), py::arg("facts"));
  m.def("invariant_mode", [] { return static_cast<int>(invariant::mode()); });
  m.def("set_invariant_mode", [](int mode) { invariant::set(static_cast<invariant::Mode>(mode)); }, py::arg("mode"));
  m.def("invariant_entries", &invariant_entries);
  m.def("invariant_counts", &invariant_counts);
  m.def("pairwise_depth", [](int64_t n) { return reduce::Pairwise(n).depth(); }, py::arg("n"));
#ifdef TREDUCE_WITH_CUDA
  m.attr("cuda_version") = TREDUCE_CUDA_VERSION;
  m.attr("cuda_architectures") = TREDUCE_CUDA_ARCHITECTURES;
  m.def("device_facts", [](int device) {
    const DeviceFacts facts = device_facts(device);
    py::dict d;
    d["name"] = facts.name;
    for (const auto& [name, value] : facts.numbers) d[name.c_str()] = value;
    return d;
  });
#else
  m.attr("cuda_version") = py::none();
  m.attr("cuda_architectures") = "";
#endif
  m.attr("compiler") = __VERSION__;
  m.attr("cpp_standard") = static_cast<long>(__cplusplus);
}
