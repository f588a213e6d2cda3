// The reductions as functions of Python. They call the ops of library.cpp through the dispatcher, as torch.ops.treduce does,
// and read their arguments in a tenth of the time, because they know the schema.
#include <torch/csrc/python_headers.h>
// The line above must come first.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/utils/object_ptr.h>

#include "collectives.h"
#include "functions.h"
#include "reduce_schema.h"
#include "without_lock.h"

namespace treduce {
namespace {

bool read(PyObject* object, int64_t& value) {
  int overflow = 0;
  if (PyLong_CheckExact(object)) {
    value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
  }
  // NumPy's integers, for one. torch takes no bool for an int.
  if (PyBool_Check(object) || !PyIndex_Check(object)) return false;
  THPObjectPtr index(PyNumber_Index(object));
  if (index) value = PyLong_AsLongLongAndOverflow(index.get(), &overflow);
  if (!index) PyErr_Clear();
  return index && overflow == 0;
}

bool read(PyObject* object, bool& value) {
  value = object == Py_True;
  return value || object == Py_False;
}

bool read(PyObject* object, at::ScalarType& value) {
  if (!THPDtype_Check(object)) return false;
  value = reinterpret_cast<THPDtype*>(object)->scalar_type;
  return true;
}

bool read(PyObject* object, std::string_view& value) {
  if (!PyUnicode_CheckExact(object)) return false;
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &length);
  if (text == nullptr) PyErr_Clear();  // a lone surrogate: torch.ops says so
  value = {text, static_cast<size_t>(length)};
  return text != nullptr;
}

template <class T>
bool read(PyObject* object, std::optional<T>& value) {
  if (object == Py_None) return true;
  T known{};
  if (!read(object, known)) return false;
  value = known;
  return true;
}

using DimList = c10::SmallVector<int64_t, 8>;

// An int stands for a list of one.
bool read(PyObject* object, std::optional<DimList>& dims) {
  if (object == Py_None) return true;
  dims.emplace();
  const bool tuple = PyTuple_Check(object);
  if (!tuple && !PyList_CheckExact(object)) return read(object, dims->emplace_back());
  const Py_ssize_t count = tuple ? PyTuple_GET_SIZE(object) : PyList_GET_SIZE(object);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!read(tuple ? PyTuple_GET_ITEM(object, i) : PyList_GET_ITEM(object, i), dims->emplace_back())) return false;
  }
  return true;
}

// Whether a call means what it says: no subclass, mode or tracer wants to see it first.
bool is_plain(PyObject* input) {
  return THPVariable_CheckExact(input) && !at::impl::torch_function_mode_enabled() && !torch::jit::tracer::isTracing();
}

PyObject* not_implemented() {
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

constexpr char kSum[] = "treduce::sum", kMean[] = "treduce::mean", kAmax[] = "treduce::amax", kAmin[] = "treduce::amin";

// (input, dim, keepdim, dtype, variant, block_size, num_blocks), the reductions that have no dtype without it, all of them by
// position. Returns NotImplemented for anything unusual: torch.ops knows what to do or to say.
template <const char* kName, bool kHasDType>
PyObject* reduce_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  constexpr Py_ssize_t kCount = kHasDType ? 7 : 6;
  if (count != kCount || !is_plain(arguments[0])) return not_implemented();
  std::optional<DimList> dims;
  bool keepdim = false;
  std::optional<at::ScalarType> dtype;
  std::string_view variant;
  std::optional<int64_t> block_size, num_blocks;
  PyObject* const* const last = arguments + kCount - 3;
  if (!read(arguments[1], dims) || !read(arguments[2], keepdim) || (kHasDType && !read(arguments[3], dtype)) ||
      !read(last[0], variant) || !read(last[1], block_size) || !read(last[2], num_blocks)) {
    return not_implemented();
  }
  const at::Tensor& input = THPVariable_Unpack(arguments[0]);
  const at::OptionalIntArrayRef dim = dims.has_value() ? at::OptionalIntArrayRef(*dims) : std::nullopt;
  at::Tensor result;
  {
    const WithoutLock unlocked;
    if constexpr (kHasDType) {
      static const auto op = reduce::find_op<reduce::SumSchema>(kName);
      result = op.call(input, variant, dim, keepdim, dtype, block_size, num_blocks);
    } else {
      static const auto op = reduce::find_op<reduce::ExtremumSchema>(kName);
      result = op.call(input, variant, dim, keepdim, block_size, num_blocks);
    }
  }
  return THPVariable_Wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

template <const char* kName, bool kHasDType>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&reduce_function<kName, kHasDType>)),
          METH_FASTCALL, nullptr};
}

}  // namespace

PyMethodDef* functions() {
  static PyMethodDef table[] = {method<kSum, true>("sum"),
                                method<kMean, true>("mean"),
                                method<kAmax, false>("amax"),
                                method<kAmin, false>("amin"),
                                gathered_method(),
                                gather_and_reduce_method(),
                                packed_sum_method(),
                                blocks_sum_method(),
                                all_reduce_method(),
                                reduce_ranks_method(),
                                {nullptr, nullptr, 0, nullptr}};
  return table;
}

}  // namespace treduce
