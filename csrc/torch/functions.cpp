// The ops as functions of Python. They call those of library.cpp through the dispatcher, as torch.ops.treduce does, and read their
// arguments in a tenth of the time, because they know the schema.
#include <precompiled.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/utils/object_ptr.h>

#include "collectives.h"
#include "functions.h"
#include "matmul_schema.h"
#include "reduce_schema.h"
#include "row_sums.h"
#include "rows_schema.h"
#include "without_lock.h"

namespace treduce {
namespace {

bool read(PyObject* object, int64_t& value) {
  int overflow = 0;
  if (PyLong_CheckExact(object)) {
    value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
  }
  // For example NumPy's integers. Like torch, this takes no bool for an int.
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
  if (text == nullptr) PyErr_Clear();  // a lone surrogate: torch.ops raises the error
  value = {text, static_cast<size_t>(length)};
  return text != nullptr;
}

bool read(PyObject* object, double& value) {
  if (!PyFloat_CheckExact(object)) return false;
  value = PyFloat_AS_DOUBLE(object);
  return true;
}

template <class T>
bool read(PyObject* object, std::optional<T>& value) {
  if (object == Py_None) return true;
  T known{};
  if (!read(object, known)) return false;
  value = known;
  return true;
}

template <class T>
using List = c10::SmallVector<T, 8>;

// An int counts as a list of one.
bool read(PyObject* object, List<int64_t>& list) {
  const bool tuple = PyTuple_Check(object);
  if (!tuple && !PyList_CheckExact(object)) return read(object, list.emplace_back());
  const Py_ssize_t count = tuple ? PyTuple_GET_SIZE(object) : PyList_GET_SIZE(object);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!read(tuple ? PyTuple_GET_ITEM(object, i) : PyList_GET_ITEM(object, i), list.emplace_back())) return false;
  }
  return true;
}

// Whether no function mode or tracer has to see the call first. Subclasses: see Argument.
bool is_plain() { return !at::impl::torch_function_mode_enabled() && !torch::jit::tracer::isTracing(); }

// An argument of an op, by the type in its schema.
template <class T>
struct Argument {
  T known{};
  bool take(PyObject* object) { return read(object, known); }
  T get() const { return known; }
};

template <>
struct Argument<const at::Tensor&> {
  const at::Tensor* known = nullptr;
  bool take(PyObject* object) {
    if (!THPVariable_CheckExact(object)) return false;
    known = &THPVariable_Unpack(object);
    return true;
  }
  const at::Tensor& get() const { return *known; }
};

template <>
struct Argument<const std::optional<at::Tensor>&> {
  std::optional<at::Tensor> known;
  bool take(PyObject* object) {
    if (object == Py_None) return true;
    if (!THPVariable_CheckExact(object)) return false;
    known = THPVariable_Unpack(object);
    return true;
  }
  const std::optional<at::Tensor>& get() const { return known; }
};

template <>
struct Argument<at::OptionalIntArrayRef> {
  std::optional<List<int64_t>> known;
  bool take(PyObject* object) { return object == Py_None || read(object, known.emplace()); }
  at::OptionalIntArrayRef get() const {
    return known.has_value() ? at::OptionalIntArrayRef(*known) : at::OptionalIntArrayRef();
  }
};

template <>
struct Argument<c10::SymIntArrayRef> {
  List<int64_t> known;
  bool take(PyObject* object) { return read(object, known); }
  c10::SymIntArrayRef get() const { return c10::fromIntArrayRefSlow(known); }
};

at::Tensor first_of(at::Tensor result) { return result; }
template <class... Tensors>
at::Tensor first_of(std::tuple<at::Tensor, Tensors...> results) {
  return std::get<0>(std::move(results));
}

PyObject* not_implemented() {
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

template <const char* kName, class Schema>
struct Function;

// All arguments by position, in the order of the schema; of several results the first. Returns NotImplemented for anything unusual:
// torch.ops knows what to do or to say.
template <const char* kName, class Result, class... Types>
struct Function<kName, Result(Types...)> {
  static PyObject* call(PyObject*, PyObject* const* objects, Py_ssize_t count) {
    return call(objects, count, std::index_sequence_for<Types...>{});
  }

  template <size_t... kIndex>
  static PyObject* call(PyObject* const* objects, Py_ssize_t count, std::index_sequence<kIndex...>) {
    HANDLE_TH_ERRORS
    if (count != sizeof...(Types) || !is_plain()) return not_implemented();
    std::tuple<Argument<Types>...> arguments;
    if (!(std::get<kIndex>(arguments).take(objects[kIndex]) && ...)) return not_implemented();
    static const auto op = reduce::find_op<Result(Types...)>(kName);
    at::Tensor result;
    {
      const WithoutLock unlocked;
      result = first_of(op.call(std::get<kIndex>(arguments).get()...));
    }
    return THPVariable_Wrap(std::move(result));
    END_HANDLE_TH_ERRORS
  }
};

template <const char* kName, class Schema>
PyMethodDef method() {
  const char* const name = kName + sizeof("treduce::") - 1;
  return {name,
          reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(
              static_cast<PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t)>(&Function<kName, Schema>::call))),
          METH_FASTCALL, nullptr};
}

constexpr char kSum[] = "treduce::sum", kMean[] = "treduce::mean", kAmax[] = "treduce::amax", kAmin[] = "treduce::amin";
constexpr char kMatmul[] = "treduce::matmul", kLinear[] = "treduce::linear";
constexpr char kSoftmax[] = "treduce::softmax", kLogSoftmax[] = "treduce::log_softmax";
constexpr char kLogSumExp[] = "treduce::logsumexp";
constexpr char kLayerNorm[] = "treduce::layer_norm", kRmsNorm[] = "treduce::rms_norm";

// (input, dim, keepdim, centred): the sum of the squares of the elements or, centred, of what they differ from their mean by, in the
// accumulator. NotImplemented where somebody has to see the steps, or the kernels do not read the input once (row_sums.h).
PyObject* row_squares(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Argument<const at::Tensor&> input;
  Argument<at::OptionalIntArrayRef> dim;
  Argument<bool> keepdim, centred;
  if (count != 4 || !is_plain() || c10::impl::TorchDispatchModeTLS::any_modes_set() || !input.take(objects[0]) ||
      !dim.take(objects[1]) || !keepdim.take(objects[2]) || !centred.take(objects[3])) {
    return not_implemented();
  }
  const at::Tensor& x = input.get();
  if ((x.requires_grad() && at::GradMode::is_enabled()) || x._fw_grad(/*level=*/0).defined()) return not_implemented();
  at::Tensor squares;
  {
    const WithoutLock unlocked;
    const at::AutoDispatchBelowADInplaceOrView unrecorded;
    squares = centred.get() ? std::get<1>(composed::moments_in_one_read(x, dim.get(), keepdim.get()))
                            : composed::squares_in_one_read(x, dim.get(), keepdim.get());
  }
  return squares.defined() ? THPVariable_Wrap(std::move(squares)) : not_implemented();
  END_HANDLE_TH_ERRORS
}

PyMethodDef row_squares_method() {
  return {"row_squares", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&row_squares)), METH_FASTCALL,
          nullptr};
}

}  // namespace

PyMethodDef* functions() {
  static PyMethodDef table[] = {method<kSum, reduce::SumSchema>(),
                                method<kMean, reduce::SumSchema>(),
                                method<kAmax, reduce::ExtremumSchema>(),
                                method<kAmin, reduce::ExtremumSchema>(),
                                method<kMatmul, matmul::MatmulSchema>(),
                                method<kLinear, matmul::LinearSchema>(),
                                method<kSoftmax, rows::SoftmaxSchema>(),
                                method<kLogSoftmax, rows::SoftmaxSchema>(),
                                method<kLogSumExp, rows::LogSumExpSchema>(),
                                method<kLayerNorm, rows::LayerNormSchema>(),
                                method<kRmsNorm, rows::RmsNormSchema>(),
                                row_squares_method(),
                                gathered_method(),
                                gather_and_reduce_method(),
                                node_sum_method(),
                                packed_sum_method(),
                                blocks_sum_method(),
                                all_reduce_method(),
                                reduce_scatter_method(),
                                reduce_ranks_method(),
                                {nullptr, nullptr, 0, nullptr}};
  return table;
}

}  // namespace treduce
