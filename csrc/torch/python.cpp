// What Python reads from the C++ side besides the ops: the ladders, the plans, device facts and how the build was made.
#include <torch/csrc/python_headers.h>
// The line above must come first.
#include <ATen/EmptyTensor.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "../common/variants.h"
#include "../elementwise/ladder.h"
#include "../matmul/ladder.h"
#include "functions.h"
#include "reduce.h"
#include "treduce_build.h"

#ifdef TREDUCE_WITH_CUDA
#include "../common/device.h"
#endif

namespace py = pybind11;

namespace treduce {
namespace {

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
  py::list dtypes;
  for (const DType dtype : variant.dtypes) dtypes.append(name_of(dtype));
  d["dtypes"] = py::tuple(dtypes);
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

template <class Rows>
py::list as_list(const Rows& rows) {
  py::list list;
  for (const auto& row : rows) list.append(as_dict(row));
  return list;
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : kEveryDType) {
    if (name == name_of(dtype)) return dtype;
  }
  throw py::value_error("unknown dtype '" + name + "'");
}

// The plan of a classic rung for this length and dtype.
py::dict reduce_plan(const std::string& variant, const std::string& dtype_name, int64_t n, std::optional<int64_t> block,
                     std::optional<int64_t> num_blocks) {
  const DType dtype = dtype_named(dtype_name);
  try {
    const reduce::Resolved r = reduce::resolve(variant, /*dims=*/false, block, num_blocks);
    if (r.row->along_dims) {
      throw py::value_error("variant '" + r.row->name +
                            "' has no list of passes: its order of additions is that of csrc/reduce/pairwise.h");
    }
    const reduce::Plan plan = reduce::make_plan(r.row->plan_order, dtype, n, r.block, r.num_blocks);
    py::dict d;
    d["variant"] = r.row->name;
    d["block_size"] = r.block;
    py::list passes;
    for (int p = 0; p < plan.pass_count; ++p) {
      const reduce::Pass& pass = plan.passes[p];
      py::dict q;
      q["n"] = pass.n;
      q["blocks"] = pass.blocks;
      q["lanes"] = pass.lanes;
      q["vector"] = pass.vector;
      q["rows"] = pass.rows;
      passes.append(q);
    }
    d["passes"] = passes;
    d["workspace_bytes"] = reduce::workspace_accumulators(*r.row, plan) * accumulator_size(dtype);
    d["text"] = reduce::to_string(plan);
    return d;
  } catch (const BadArgument& bad) {
    throw py::value_error(bad.message);
  }
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
  const matmul::Resolved asked = matmul::resolve("auto", std::nullopt);
  return matmul::choose(asked, dtype_named(dtype), p, {capability, tfloat32}).row->name;
}

void check_chip(const reduce::Row& row, const Chip& chip) {
  TORCH_CHECK_NOT_IMPLEMENTED(chip.capability >= row.capability, "variant '", row.name,
                              "' needs a GPU of compute capability ", row.capability / 10, ".", row.capability % 10,
                              " or later, this one has ", chip.capability / 10, ".", chip.capability % 10);
}

void add_plan(py::dict& d, const reduce::Request& r, const at::Tensor& self, const Chip& chip) {
  const reduce::Row& row = *r.row;
  check_chip(row, chip);
  const reduce::Plan plan = reduce::make_plan(row.plan_order, r.dtype, self.numel(), r.block, r.num_blocks);
  d["rung"] = row.name;
  d["copies"] = !reduce::flat_input(r.op, self).is_same(self);
  d["length"] = self.numel();
  d["outputs"] = 1;
  d["grid"] = plan.grid();
  d["block"] = py::make_tuple(std::max(r.block, 1), 1);
  d["workspace_bytes"] = reduce::workspace_accumulators(row, plan) * accumulator_size(r.dtype);
  d["counters"] = row.needs_counter && plan.grid() > 1 ? 1 : 0;
}

// As launch_by_schedule in reduce/cuda.cpp has it.
void add_schedule(py::dict& d, const reduce::Request& r, const at::Tensor& self, uint64_t address, const Chip& chip) {
  const reduce::Source source(self, r);
  const reduce::Geometry& geometry = source.geometry;
  const bool copies = source.tensor != &self;
  const int64_t accumulator = accumulator_size(r.target) * (r.arithmetic == reduce::Arithmetic::compensated ? 2 : 1);
  const bool extremum = r.op == reduce::Op::amax || r.op == reduce::Op::amin;
  const reduce::Memory memory = reduce::make_memory(copies ? 0 : address, r.dtype, accumulator, extremum, r.converting);
  const reduce::Work work{geometry, memory, chip, r.block, r.num_blocks};
  const reduce::Row& row = reduce::executor(*r.row, work);
  check_chip(row, chip);
  const reduce::Pairwise order(geometry.length);
  d["rung"] = row.name;
  d["copies"] = copies;
  d["length"] = geometry.length;
  d["outputs"] = geometry.outputs;
  d["reduced"] = as_tuple(geometry.reduced);
  d["kept"] = as_tuple(geometry.kept);
  d["chunks"] = order.chunks();
  d["depth"] = order.depth();
  if (self.numel() == 0) return;  // nothing is launched
  const reduce::Scheduled scheduled = row.schedule(work);
  if (!scheduled.refusal.empty()) C10_THROW_ERROR(ValueError, scheduled.refusal);
  const reduce::Schedule& s = scheduled.schedule;
  d["grid"] = s.grid;
  d["block"] = py::make_tuple(s.block, s.block_y);
  d["tiles"] = s.tiles;
  d["tile"] = s.tile;
  d["span"] = s.span;
  d["splits"] = s.splits;
  d["vectors"] = s.vectors;
  d["shifted"] = s.shifted;
  d["shared_bytes"] = s.shared_bytes;
  d["cluster"] = s.cluster;
  d["workspace_bytes"] = s.workspace_bytes > 0 ? s.workspace_bytes : s.partials * accumulator;
  d["counters"] = s.counters;
}

// What a call does on a chip, checked as the call is. Sizes, strides and the address stand for the tensor: nothing is read.
// `chip`: multiprocessors, ten times the compute capability, threads of a multiprocessor.
py::dict call_plan(const std::string& op, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                   at::ScalarType type, uint64_t address, const std::string& variant,
                   const std::optional<std::vector<int64_t>>& dim, bool keepdim, std::optional<at::ScalarType> dtype,
                   std::optional<int64_t> block_size, std::optional<int64_t> num_blocks,
                   const std::tuple<int, int, int>& chip) {
  const at::Tensor self = at::detail::empty_strided_meta(sizes, strides, type);
  at::OptionalIntArrayRef dims;
  if (dim.has_value()) dims = at::IntArrayRef(*dim);
  const reduce::Request r =
      reduce::request(reduction_named(op), self, {variant, dims, keepdim, dtype, block_size, num_blocks});
  py::dict d;
  d["order"] = r.row->order;
  d["order_text"] = r.row->order_text;
  const auto result_sizes = r.result_sizes(self.sizes());
  d["result_shape"] = py::tuple(py::cast(std::vector<int64_t>(result_sizes.begin(), result_sizes.end())));
  d["result_dtype"] = name_of(r.target);
  const Chip facts{std::get<0>(chip), std::get<1>(chip), std::get<2>(chip)};
  if (r.row->along_dims) {
    add_schedule(d, r, self, address, facts);
  } else {
    add_plan(d, r, self, facts);
  }
  return d;
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
  m.def("vector_add_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return elementwise::find(s); }, name);
  });
  m.def("reduce_plan", &reduce_plan, py::arg("variant"), py::arg("dtype"), py::arg("n"),
        py::arg("block_size") = py::none(), py::arg("num_blocks") = py::none());
  m.def("call_plan", torch::wrap_pybind_function(call_plan), py::arg("op"), py::arg("sizes"), py::arg("strides"),
        py::arg("type"), py::arg("address"), py::arg("variant"), py::arg("dim"), py::arg("keepdim"), py::arg("dtype"),
        py::arg("block_size"), py::arg("num_blocks"), py::arg("chip"));
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
