// What Python reads from the C++ side besides the ops: the ladders, the plans, device facts and how the build was made.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "common/variants.h"
#include "elementwise/ladder.h"
#include "matmul/ladder.h"
#include "reduce/ladder.h"

#ifdef TREDUCE_WITH_CUDA
#include "common/device.h"
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
  py::list dtypes;
  for (const DType dtype : variant.dtypes) dtypes.append(name_of(dtype));
  d["dtypes"] = py::tuple(dtypes);
  d["size_default"] = variant.size_default;
  d["size_min"] = variant.size_min;
  d["size_max"] = variant.size_max;
  d["takes_num_blocks"] = variant.takes_num_blocks;
  return d;
}

template <class Rows>
py::list as_list(const Rows& rows) {
  py::list list;
  for (const auto& row : rows) list.append(as_dict(row));
  return list;
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : kAllDTypes) {
    if (name == name_of(dtype)) return dtype;
  }
  throw py::value_error("unknown dtype '" + name + "'");
}

// The rung that runs for this length and dtype, and its plan.
py::dict reduce_plan(const std::string& variant, const std::string& dtype_name, int64_t n, std::optional<int64_t> block,
                     std::optional<int64_t> num_blocks) {
  const DType dtype = dtype_named(dtype_name);
  try {
    const reduce::Resolved r = reduce::resolve(variant, dtype, n, block, num_blocks);
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
  m.def("reduce_variants", [] { return as_list(reduce::ladder()); });
  m.def("matmul_variants", [] { return as_list(matmul::ladder()); });
  m.def("vector_add_variants", [] { return as_list(elementwise::ladder()); });
  m.def("reduce_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return reduce::find(s); }, name);
  });
  m.def("matmul_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return matmul::find(s); }, name);
  });
  m.def("vector_add_name", [](const std::string& name) {
    return canonical_name([](const std::string& s) -> const Variant& { return elementwise::find(s); }, name);
  });
  m.def("reduce_plan", &reduce_plan, py::arg("variant"), py::arg("dtype"), py::arg("n"),
        py::arg("block_size") = py::none(), py::arg("num_blocks") = py::none());
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
