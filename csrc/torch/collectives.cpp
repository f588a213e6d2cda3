// Exchanges through torch.distributed's process groups, and the sums of what they bring, as functions of Python. Tensors are
// contiguous and of a dtype that every backend sends; the caller has seen to it.
#include <torch/csrc/python_headers.h>
// The line above must come first.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <string>
#include <vector>

#include "../reduce/pairwise.h"
#include "collectives.h"
#include "reduce_schema.h"
#include "without_lock.h"

namespace treduce {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Gather = std::tuple<at::Tensor, c10::intrusive_ptr<c10d::Work>>(at::Tensor&, at::Tensor&, const Group&, bool,
                                                                      int64_t);
using ReduceRanks = void(const at::Tensor&, const at::Tensor&, std::string_view);

// (ranks, ...): `input` of each rank. On CUDA it runs on the current stream.
at::Tensor gather(const at::Tensor& input, const Group& group) {
  c10::SmallVector<int64_t, 6> sizes{group->getSize()};
  sizes.append(input.sizes().begin(), input.sizes().end());
  at::Tensor result = at::empty(sizes, input.options());
  // gloo wants tensors of as many dims.
  at::Tensor out = result.view({-1}), in = input.view({-1});
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("c10d::_allgather_base_", "").typed<Gather>();
  const auto work = std::get<1>(op.call(out, in, group, /*asyncOp=*/false, c10d::kUnsetTimeout.count()));
  if (work) work->wait();
  return result;
}

// Entries along dim 0 from and to each rank. On CUDA it runs beside the current stream, until it is waited for.
c10::intrusive_ptr<c10d::Work> exchange(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& take,
                                        std::vector<int64_t>& give, const Group& group) {
  c10d::AllToAllOptions options;
  options.asyncOp = true;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // the newer name is not in every torch
  return group->alltoall_base(out, in, take, give, options);
#pragma GCC diagnostic pop
}

at::Tensor reduce_first(std::string_view name, const at::Tensor& values, std::optional<at::ScalarType> dtype) {
  constexpr int64_t kFirst = 0;
  const at::IntArrayRef dim(&kFirst, 1);
  if (name == "sum" || name == "mean") {
    static const auto sum = reduce::find_op<reduce::SumSchema>("treduce::sum");
    static const auto mean = reduce::find_op<reduce::SumSchema>("treduce::mean");
    return (name == "sum" ? sum : mean).call(values, "auto", dim, false, dtype, std::nullopt, std::nullopt);
  }
  static const auto amax = reduce::find_op<reduce::ExtremumSchema>("treduce::amax");
  static const auto amin = reduce::find_op<reduce::ExtremumSchema>("treduce::amin");
  return (name == "amax" ? amax : amin).call(values, "auto", dim, false, std::nullopt, std::nullopt);
}

at::Tensor sum_along(const at::Tensor& values, int64_t along, std::optional<at::ScalarType> dtype = std::nullopt) {
  static const auto op = reduce::find_op<reduce::SumSchema>("treduce::sum");
  return op.call(values, "auto", at::IntArrayRef(&along, 1), false, dtype, std::nullopt, std::nullopt);
}

// {first, ..., sizes of the outputs}
c10::SmallVector<int64_t, 8> with_outputs(std::initializer_list<int64_t> first, at::IntArrayRef outputs) {
  c10::SmallVector<int64_t, 8> sizes(first);
  sizes.append(outputs.begin(), outputs.end());
  return sizes;
}

// (count, length, ...): groups of entries along dim 0
at::Tensor grouped(const at::Tensor& x, int64_t begin, int64_t count, int64_t length) {
  const int64_t step = x.stride(0);
  return x.as_strided(with_outputs({count, length}, x.sizes().slice(1)),
                      with_outputs({length * step, step}, x.strides().slice(1)), x.storage_offset() + begin * step);
}

// A tree of neighbours along dim 0, whose size is at most one chunk's lanes, or a multiple of it.
at::Tensor fold(at::Tensor values) {
  constexpr int64_t kLanes = reduce::Pairwise::kLanes;
  while (values.size(0) > kLanes) {
    values = sum_along(values.view(with_outputs({-1, kLanes}, values.sizes().slice(1))), 1);
  }
  return sum_along(values, 0);
}

// What a rank sends of a run that is cut anywhere, and how all put it together: torch_reduce/distributed/_sharded.py decides.
struct Packed {
  std::vector<int64_t> nodes;  // begin, count and length of groups of entries: a node each
  std::vector<int64_t> ends;   // begin and length of entries that are sent as they are
  at::Tensor padding;          // zeros behind them, so that messages are equally long
  at::Tensor blocks;           // of what came: the entries of the blocks that ranks cut
  int64_t cut;                 // so many blocks
  at::Tensor order;            // of what came, then the blocks' nodes: the run's nodes in order
};

at::Tensor packed_sum(const at::Tensor& x, const Packed& p, const Group& group) {
  const at::ScalarType acc = p.padding.scalar_type();
  const at::IntArrayRef outputs = x.sizes().slice(1);
  std::vector<at::Tensor> message;
  for (size_t i = 0; i < p.nodes.size(); i += 3) {
    message.push_back(sum_along(grouped(x, p.nodes[i], p.nodes[i + 1], p.nodes[i + 2]), 1, acc));
  }
  for (size_t i = 0; i < p.ends.size(); i += 2) message.push_back(x.narrow(0, p.ends[i], p.ends[i + 1]));
  message.push_back(p.padding.expand(with_outputs({-1}, outputs)));
  at::Tensor values = gather(at::cat(message), group).flatten(0, 1);
  if (p.cut > 0) {
    const at::Tensor cut = values.index_select(0, p.blocks).view(with_outputs({p.cut, -1}, outputs));
    values = at::cat({values, sum_along(cut, 1)});
  }
  return fold(values.index_select(0, p.order));
}

// The same where only the rank of a chunk gets the elements that others have of it.
struct Chunks {
  int64_t head;                     // so many entries belong to a rank before
  int64_t rest;                     // so many begin a chunk that others have entries of, or the last one
  std::vector<int64_t> take, give;  // entries, from and to each rank
  at::Tensor padding, order;        // as above
};

at::Tensor chunks_sum(const at::Tensor& x, const Chunks& c, const Group& group) {
  constexpr int64_t kChunk = reduce::Pairwise::kChunk;
  const at::ScalarType acc = c.padding.scalar_type();
  const at::IntArrayRef outputs = x.sizes().slice(1);
  int64_t taken = 0;
  for (const int64_t entries : c.take) taken += entries;
  at::Tensor received = at::empty(with_outputs({taken}, outputs), x.options());
  at::Tensor sent = x.narrow(0, 0, c.head).contiguous();
  std::vector<int64_t> take = c.take, give = c.give;              // the call wants references
  const auto work = exchange(received, sent, take, give, group);  // beside the sums of whole chunks
  std::vector<at::Tensor> message;
  const int64_t end = x.size(0) - c.rest;
  if (end > c.head) message.push_back(sum_along(grouped(x, c.head, (end - c.head) / kChunk, kChunk), 1, acc));
  work->wait();
  if (c.rest > 0) {
    message.push_back(sum_along(at::cat({x.narrow(0, end, c.rest), received}), 0, acc).unsqueeze(0));
  }
  message.push_back(c.padding.expand(with_outputs({-1}, outputs)));
  return fold(gather(at::cat(message), group).flatten(0, 1).index_select(0, c.order));
}

void reduce_ranks(const at::Tensor& out, const at::Tensor& values, std::string_view name) {
  static const auto op = reduce::find_op<ReduceRanks>("treduce::reduce_ranks_");
  op.call(out, values, name);
}

const at::Tensor& tensor_of(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a Tensor");
  return THPVariable_Unpack(object);
}

std::string text_of(PyObject* object) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &length);
  if (text == nullptr) throw python_error();
  return {text, static_cast<size_t>(length)};
}

void check_count(Py_ssize_t given, Py_ssize_t taken) {
  TORCH_CHECK_TYPE(given == taken, "expected ", taken, " arguments, got ", given);
}

// The tensor that compute() makes without Python's lock, as Python has it.
template <class Compute>
PyObject* computed(Compute compute) {
  at::Tensor result;
  {
    const WithoutLock unlocked;
    result = compute();
  }
  return THPVariable_Wrap(std::move(result));
}

// (input, name of the group) to (ranks, ...)
PyObject* gathered(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 2);
  const at::Tensor& input = tensor_of(arguments[0]);
  const std::string group = text_of(arguments[1]);
  return computed([&] { return gather(input, c10d::resolve_process_group(group)); });
  END_HANDLE_TH_ERRORS
}

// (input, name of the group, op, dtype or None, entries): `input` of all ranks along a new dim 0, reduced along it; with
// entries >= 0, all ranks' entries along dim 0, so many of them.
PyObject* gather_and_reduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 5);
  const at::Tensor& input = tensor_of(arguments[0]);
  const std::string group = text_of(arguments[1]), name = text_of(arguments[2]);
  std::optional<at::ScalarType> dtype;
  if (arguments[3] != Py_None) {
    TORCH_CHECK_TYPE(THPDtype_Check(arguments[3]), "expected a dtype");
    dtype = reinterpret_cast<THPDtype*>(arguments[3])->scalar_type;
  }
  const int64_t entries = PyLong_AsLongLong(arguments[4]);
  return computed([&] {
    at::Tensor values = gather(input, c10d::resolve_process_group(group));
    if (entries >= 0) values = values.flatten(0, 1).narrow(0, 0, entries);
    return reduce_first(name, values, dtype);
  });
  END_HANDLE_TH_ERRORS
}

std::vector<int64_t> numbers_of(PyObject* object) {
  TORCH_CHECK_TYPE(PyTuple_Check(object), "expected a tuple");
  std::vector<int64_t> numbers;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i)
    numbers.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(object, i)));
  return numbers;
}

// (entries, name of the group, and what Packed has)
PyObject* packed_sum_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 8);
  const at::Tensor& x = tensor_of(arguments[0]);
  const std::string group = text_of(arguments[1]);
  const Packed packed{numbers_of(arguments[2]), numbers_of(arguments[3]),        tensor_of(arguments[4]),
                      tensor_of(arguments[5]),  PyLong_AsLongLong(arguments[6]), tensor_of(arguments[7])};
  return computed([&] { return packed_sum(x, packed, c10d::resolve_process_group(group)); });
  END_HANDLE_TH_ERRORS
}

// (entries, name of the group, and what Chunks has)
PyObject* chunks_sum_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 8);
  const at::Tensor& x = tensor_of(arguments[0]);
  const std::string group = text_of(arguments[1]);
  const Chunks chunks{PyLong_AsLongLong(arguments[2]), PyLong_AsLongLong(arguments[3]), numbers_of(arguments[4]),
                      numbers_of(arguments[5]),        tensor_of(arguments[6]),         tensor_of(arguments[7])};
  return computed([&] { return chunks_sum(x, chunks, c10d::resolve_process_group(group)); });
  END_HANDLE_TH_ERRORS
}

// (tensor, name of the group, op): all gather the whole tensor, reduce it over the ranks, and write it.
PyObject* all_reduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 3);
  const at::Tensor& tensor = tensor_of(arguments[0]);
  const std::string group = text_of(arguments[1]), name = text_of(arguments[2]);
  {
    const WithoutLock unlocked;
    reduce_ranks(tensor, gather(tensor, c10d::resolve_process_group(group)), name);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (out, values, op): `values` reduced along dim 0, to `out`.
PyObject* reduce_ranks_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 3);
  const at::Tensor &out = tensor_of(arguments[0]), &values = tensor_of(arguments[1]);
  const std::string name = text_of(arguments[2]);
  {
    const WithoutLock unlocked;
    reduce_ranks(out, values, name);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

using Function = PyObject*(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef method(const char* name, Function* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

}  // namespace

PyMethodDef gathered_method() { return method("gathered", gathered); }
PyMethodDef gather_and_reduce_method() { return method("gather_and_reduce", gather_and_reduce); }
PyMethodDef packed_sum_method() { return method("packed_sum", packed_sum_function); }
PyMethodDef chunks_sum_method() { return method("chunks_sum", chunks_sum_function); }
PyMethodDef all_reduce_method() { return method("all_reduce", all_reduce); }
PyMethodDef reduce_ranks_method() { return method("reduce_ranks", reduce_ranks_function); }

}  // namespace treduce
