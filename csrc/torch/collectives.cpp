// Exchanges through torch.distributed's process groups, and the sums of what they bring, as functions of Python. Tensors are
// contiguous and of a dtype that every backend sends; the caller has seen to it.
#include <precompiled.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "../reduce/pairwise.h"
#include "collectives.h"
#include "nodes.h"
#include "reduce_schema.h"
#include "without_lock.h"

namespace treduce {
namespace {

using nodes::fold, nodes::lanes_of, nodes::sum_along, nodes::with_outputs;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Gather = std::tuple<at::Tensor, c10::intrusive_ptr<c10d::Work>>(at::Tensor&, at::Tensor&, const Group&, bool,
                                                                      int64_t);
using ReduceRanks = void(const at::Tensor&, const at::Tensor&, std::string_view);
using PackParts = void(const at::Tensor&, const at::Tensor&, at::IntArrayRef);
using FoldParts = void(const at::Tensor&, const at::Tensor&, const at::Tensor&, std::optional<int64_t>);
using SumTo = void(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t);

// Writes each rank's `input` to `result`, (ranks, ...). On CUDA it runs on the current stream.
void gather_to(const at::Tensor& result, const at::Tensor& input, const Group& group) {
  // gloo needs tensors of the same number of dims.
  at::Tensor out = result.view({-1}), in = input.view({-1});
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("c10d::_allgather_base_", "").typed<Gather>();
  const auto work = std::get<1>(op.call(out, in, group, /*asyncOp=*/false, c10d::kUnsetTimeout.count()));
  if (work) work->wait();
}

at::Tensor gather(const at::Tensor& input, const Group& group) {
  c10::SmallVector<int64_t, 6> sizes{group->getSize()};
  sizes.append(input.sizes().begin(), input.sizes().end());
  at::Tensor result = at::empty(sizes, input.options());
  gather_to(result, input, group);
  return result;
}

// Exchanges entries along dim 0 with each rank, on CUDA in the current stream: in a stream of its own, the exchange and the kernels
// beside it take longer together, and so does the host.
void exchange(at::Tensor out, at::Tensor in, std::vector<int64_t> take, std::vector<int64_t> give, const Group& group) {
  c10d::AllToAllOptions options;
  options.asyncOp = false;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // the newer name is not in every torch
  const auto work = group->alltoall_base(out, in, take, give, options);
#pragma GCC diagnostic pop
  if (work) work->wait();
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

// (count, length, ...): groups of entries along dim 0
at::Tensor grouped(const at::Tensor& x, int64_t begin, int64_t count, int64_t length) {
  const int64_t step = x.stride(0);
  return x.as_strided(with_outputs({count, length}, x.sizes().slice(1)),
                      with_outputs({length * step, step}, x.strides().slice(1)), x.storage_offset() + begin * step);
}

void sum_to(const at::Tensor& out, const at::Tensor& first, int64_t along,
            const std::optional<at::Tensor>& second = std::nullopt) {
  static const auto op = reduce::find_op<SumTo>("treduce::sum_to_");
  op.call(out, first, second, along);
}

// What a rank sends of a run that is cut anywhere, for fold_parts_, as torch_reduce/distributed/_sharded.py decides.
struct Packed {
  std::vector<int64_t>
      nodes;  // begin, count and length of entries, whose nodes are the first of the message; or nothing
  std::vector<int64_t> groups;   // of pack_parts_
  int64_t most;                  // entries of a message
  at::Tensor parts;              // what each rank sends
  std::optional<int64_t> count;  // of the elements, for a mean
};

at::Tensor packed_sum(const at::Tensor& x, const Packed& p, at::ScalarType acc, at::ScalarType dtype,
                      const Group& group) {
  const at::IntArrayRef outputs = x.sizes().slice(1);
  const at::Tensor message = at::empty(with_outputs({p.most}, outputs), x.options().dtype(acc));
  if (!p.nodes.empty()) {
    sum_to(message.narrow(0, 0, p.nodes[1]), grouped(x, p.nodes[0], p.nodes[1], p.nodes[2]), 1);
  }
  if (!p.groups.empty()) {
    static const auto pack = reduce::find_op<PackParts>("treduce::pack_parts_");
    pack.call(message, x, p.groups);
  }
  const at::Tensor result = at::empty(outputs, x.options().dtype(dtype).memory_format(std::nullopt));
  static const auto fold = reduce::find_op<FoldParts>("treduce::fold_parts_");
  fold.call(result, gather(message, group), p.parts, p.count);
  return result;
}

// The same in blocks of 2^i chunks. A block that lies on several ranks belongs to one of them. The others send it what it lacks:
// elements of a chunk that is cut, then nodes of whole chunks. After that every message consists of nodes of blocks.
struct Blocks {
  int64_t length;               // entries of a block
  int64_t head, tail;           // entries here of a block that began on a rank before, and of one that goes on after
  bool gives_head, gives_tail;  // to the rank that the block belongs to; where blocks are chunks
  int64_t before, elements;     // entries taken from ranks before; elements among those from ranks after
  std::vector<int64_t> take, give;  // from and to each rank
  int64_t most;                     // nodes that a rank has
  int64_t all;                      // nodes of all ranks
  std::optional<at::Tensor> order;  // of the nodes in what was gathered, unless they come first
};

at::Tensor blocks_sum(const at::Tensor& x, const Blocks& b, at::ScalarType acc, const Group& group) {
  constexpr int64_t kChunk = reduce::Pairwise::kChunk;
  const at::IntArrayRef outputs = x.sizes().slice(1);
  const auto in_acc = x.options().dtype(acc);
  int64_t taken = 0;
  for (const int64_t entries : b.take) taken += entries;
  const int64_t end = x.size(0) - b.tail, whole = (end - b.head) / b.length, after = taken - b.before;
  const at::Tensor head = x.narrow(0, 0, b.head), tail = x.narrow(0, end, b.tail);

  at::Tensor sent = b.gives_tail ? tail : head.narrow(0, 0, b.gives_head ? b.head % kChunk : 0);
  if (b.length > kChunk) {
    sent = sent.to(acc);
    const int64_t elements = b.head % kChunk, chunks = b.head / kChunk;
    if (chunks > 0) sent = at::cat({sent, sum_along(grouped(x, elements, chunks, kChunk), 1, acc)});
  } else if (b.gives_head && b.gives_tail) {
    sent = at::cat({head, tail});
  }
  sent = sent.contiguous();
  at::Tensor received = at::empty(with_outputs({taken}, outputs), sent.options());
  exchange(received, sent, b.take, b.give, group);
  at::Tensor message = at::empty(with_outputs({b.most}, outputs), in_acc);
  const int64_t first = b.before > 0, last = first + whole;
  if (whole > 0) sum_to(message.narrow(0, first, whole), grouped(x, b.head, whole, b.length), 1);
  if (b.tail > 0 && after == 0 && !b.gives_tail) sum_to(message.select(0, last), tail, 0);  // the run ends here
  if (after == 0 || b.length == kChunk) {
    if (b.before > 0) sum_to(message.select(0, 0), received.narrow(0, 0, b.before), 0, head);
    if (after > 0) sum_to(message.select(0, last), tail, 0, received.narrow(0, b.before, after));
  } else {
    const int64_t chunks = b.tail / kChunk, cut = b.tail % kChunk, more = taken - b.elements;
    const at::Tensor nodes = at::empty(with_outputs({chunks + (cut > 0) + more}, outputs), in_acc);
    if (chunks > 0) sum_to(nodes.narrow(0, 0, chunks), grouped(tail, 0, chunks, kChunk), 1);
    if (cut > 0) {
      const at::Tensor elements = received.narrow(0, 0, b.elements);
      sum_to(nodes.select(0, chunks), tail.narrow(0, chunks * kChunk, cut), 0, elements);
    }
    if (more > 0) nodes.narrow(0, chunks + (cut > 0), more).copy_(received.narrow(0, b.elements, more));
    sum_to(message.select(0, last), lanes_of(nodes), 0);
  }
  at::Tensor values = gather(message, group).flatten(0, 1);
  return fold(b.order.has_value() ? values.index_select(0, *b.order) : values.narrow(0, 0, b.all));
}

void reduce_ranks(const at::Tensor& out, const at::Tensor& values, std::string_view name) {
  static const auto op = reduce::find_op<ReduceRanks>("treduce::reduce_ranks_");
  op.call(out, values, name);
}

// Two ranks send each other the whole tensor, flat, and each reduces both, in place: of two values, either order gives the same bits.
void swap_and_reduce(const at::Tensor& tensor, std::string_view name, const Group& group) {
  const at::Tensor other = at::empty_like(tensor);
  std::vector<int64_t> counts(2, 0);
  counts[1 - group->getRank()] = tensor.numel();
  exchange(other, tensor, counts, counts, group);
  // Both as the rows of one tensor, whose stride is the distance between them.
  auto* const mine = static_cast<char*>(tensor.data_ptr());
  auto* const theirs = static_cast<char*>(other.data_ptr());
  const int64_t apart = std::abs(mine - theirs) / tensor.element_size();
  const at::Tensor rows = at::for_blob(std::min(mine, theirs), {2, tensor.numel()})
                              .strides({apart, 1})
                              .options(tensor.options())
                              .target_device(tensor.device())
                              .make_tensor();
  reduce_ranks(tensor, rows, name);
}

const at::Tensor& tensor_of(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a Tensor");
  return THPVariable_Unpack(object);
}

at::ScalarType dtype_of_object(PyObject* object) {
  TORCH_CHECK_TYPE(THPDtype_Check(object), "expected a dtype");
  return reinterpret_cast<THPDtype*>(object)->scalar_type;
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

// Calls compute() without Python's lock, and returns its tensor as a Python object.
template <class Compute>
PyObject* computed(Compute compute) {
  at::Tensor result;
  {
    const WithoutLock unlocked;
    // The result is new and nobody sees the tensors in between, so autograd need not track them: each call and view costs less.
    const at::AutoDispatchBelowADInplaceOrView unrecorded;
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
  if (arguments[3] != Py_None) dtype = dtype_of_object(arguments[3]);
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

// (part, dims, name of the group, dtype of a node): the sum of `part` along dims, and that of all ranks' sums.
PyObject* node_sum(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 4);
  const at::Tensor& part = tensor_of(arguments[0]);
  const std::vector<int64_t> dims = numbers_of(arguments[1]);
  const std::string group = text_of(arguments[2]);
  const at::ScalarType acc = dtype_of_object(arguments[3]);
  return computed([&] {
    const at::Tensor node = sum_along(part, dims, acc);
    return sum_along(gather(node, c10d::resolve_process_group(group)), 0);
  });
  END_HANDLE_TH_ERRORS
}

// (entries, name of the group, what Packed has, dtypes of a node and of the result)
PyObject* packed_sum_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 9);
  const at::Tensor& x = tensor_of(arguments[0]);
  const std::string group = text_of(arguments[1]);
  Packed packed{numbers_of(arguments[2]), numbers_of(arguments[3]), PyLong_AsLongLong(arguments[4]),
                tensor_of(arguments[5]), std::nullopt};
  if (arguments[6] != Py_None) packed.count = PyLong_AsLongLong(arguments[6]);
  const at::ScalarType acc = dtype_of_object(arguments[7]), dtype = dtype_of_object(arguments[8]);
  return computed([&] { return packed_sum(x, packed, acc, dtype, c10d::resolve_process_group(group)); });
  END_HANDLE_TH_ERRORS
}

// (entries, name of the group, what Blocks has, dtype of a node)
PyObject* blocks_sum_function(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 15);
  const at::Tensor& x = tensor_of(arguments[0]);
  const std::string group = text_of(arguments[1]);
  const auto number = [&](int i) { return static_cast<int64_t>(PyLong_AsLongLong(arguments[i])); };
  Blocks blocks{number(2),
                number(3),
                number(4),
                number(5) != 0,
                number(6) != 0,
                number(7),
                number(8),
                numbers_of(arguments[9]),
                numbers_of(arguments[10]),
                number(11),
                number(12)};
  if (arguments[13] != Py_None) blocks.order = tensor_of(arguments[13]);
  const at::ScalarType acc = dtype_of_object(arguments[14]);
  return computed([&] { return blocks_sum(x, blocks, acc, c10d::resolve_process_group(group)); });
  END_HANDLE_TH_ERRORS
}

// (tensor, name of the group, op, whether two ranks swap it): all gather the whole tensor, or swap it, reduce it over the ranks, and
// write it.
PyObject* all_reduce(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 4);
  const at::Tensor& tensor = tensor_of(arguments[0]);
  const std::string name = text_of(arguments[1]), op = text_of(arguments[2]);
  const bool swaps = arguments[3] == Py_True;
  {
    const WithoutLock unlocked;
    const Group group = c10d::resolve_process_group(name);
    if (swaps) {
      swap_and_reduce(tensor.view({-1}), op, group);
    } else {
      reduce_ranks(tensor, gather(tensor, group), op);
    }
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// (tensor, name of the group, op): this rank's piece of what the ranks' tensors, flat and shared evenly, are reduced to.
PyObject* reduce_scatter(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  check_count(count, 3);
  const at::Tensor& tensor = tensor_of(arguments[0]);
  const std::string name = text_of(arguments[1]), op = text_of(arguments[2]);
  return computed([&] {
    const Group group = c10d::resolve_process_group(name);
    const at::Tensor pieces = at::empty_like(tensor);
    exchange(pieces, tensor, {}, {}, group);
    return reduce_first(op, pieces.view({group->getSize(), -1}), tensor.scalar_type());
  });
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

using FastCall = PyObject*(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef method(const char* name, FastCall* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

}  // namespace

PyMethodDef gathered_method() { return method("gathered", gathered); }
PyMethodDef gather_and_reduce_method() { return method("gather_and_reduce", gather_and_reduce); }
PyMethodDef node_sum_method() { return method("node_sum", node_sum); }
PyMethodDef packed_sum_method() { return method("packed_sum", packed_sum_function); }
PyMethodDef blocks_sum_method() { return method("blocks_sum", blocks_sum_function); }
PyMethodDef all_reduce_method() { return method("all_reduce", all_reduce); }
PyMethodDef reduce_scatter_method() { return method("reduce_scatter", reduce_scatter); }
PyMethodDef reduce_ranks_method() { return method("reduce_ranks", reduce_ranks_function); }

}  // namespace treduce
