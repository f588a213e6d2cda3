// Runs kernels on the emulator and prints the bytes that they wrote. Reads cases from standard input, a line each:
//
//   sum|mean|amax|amin VARIANT DTYPE N BLOCK_SIZE NUM_BLOCKS OFFSET INPUT SEED...
//   along sum|mean|amax|amin VARIANT DTYPE TARGET BLOCK_SIZE NUM_BLOCKS PROCESSORS OFFSET INPUT DIMS
//         (SIZE STRIDE REDUCED)... SEED...
//   vector_add VARIANT DTYPE N BLOCK_SIZE A_OFFSET B_OFFSET C_OFFSET A B SEED...
//   matmul VARIANT DTYPE TILE_SIZE PROCESSORS M N K BATCHES A_ROW A_COLUMN A_BATCH B_ROW B_COLUMN B_BATCH
//         A_OFFSET A B_OFFSET B BIAS_OFFSET BIAS SEED...
//   rows OP VARIANT DTYPE PROCESSORS CAPABILITY OUTER INNER LENGTH EPS INPUTS (OFFSET OUTER_STRIDE INNER_STRIDE ELEMENT_STRIDE INPUT)...
//         WEIGHT BIAS ROW_VALUES ROW_VALUES SEED...
//   attention CAPABILITY DTYPE BATCH HEADS GROUP LENGTH KEYS WIDTH VALUE_WIDTH CAUSAL SCALE QUERY KEY VALUE GRADIENTS
//         none|bool|float32 MASK SEED...
//   segments DTYPE COUNT WIDTH PLACES DIVIDE OFFSET INDEX ORDER SOURCE OUT SEED...
//   thread_indices GRID_X GRID_Y BLOCK_X BLOCK_Y SEED...
//   launches CASE
//
// `along` reduces the dims whose REDUCED is 1, outermost first; each element counts as TARGET, the result's dtype. PROCESSORS is what
// the chip is taken to have, where it is decided what to launch.
//
// `rows` gives the elements and then, each behind a multiple of 16 bytes, the values that a row has one of. Its files may be "none".
//
// `attention` takes contiguous tensors and gives results and gradients of query, key and value, one after another. The mask is that of
// (LENGTH, KEYS), which all batches and heads share; its file may be "none".
//
// INPUT, A, B and BIAS are files with the elements (BIAS: or "none"); A_ROW and so on are strides in elements. An offset puts the
// elements that far behind a 16-byte boundary; 0 for a size means the variant's own. What has counters is run twice for every seed with
// the same ones, as a captured graph is replayed. For every case one line comes back: "ok" and the bytes of each run in hexadecimal,
// "refused" and the sentence of a rung that does not take the geometry, or "error" and a sentence. `launches` gives the launches of a
// case in place of the bytes, and runs nothing. What is launched must be what was prepared, in every case. What the emulator and the
// sanitizers find ends the process: nothing in the memory can be trusted then.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../csrc/attention/attention.h"
#include "../../csrc/common/launch_log.h"
#include "../../csrc/elementwise/launch.h"
#include "../../csrc/lessons/thread_index.h"
#include "../../csrc/matmul/launch.h"
#include "../../csrc/reduce/launch.h"
#include "../../csrc/rows/launch.h"
#include "../../csrc/segments/segments.h"
#include "cuda_runtime.h"

namespace {

using namespace treduce;

// A heap block of exactly this size, so that AddressSanitizer sees the first byte too many. 0xff: a NaN in every float type,
// and in no sum by chance.
class Buffer {
 public:
  // hex() leaves out the first `skip` bytes.
  explicit Buffer(size_t bytes, size_t skip = 0) : bytes_(bytes), skip_(skip), data_(new unsigned char[bytes]) {
    poison();
  }
  void poison() { memset(data_.get(), 0xff, bytes_); }
  unsigned char* data() { return data_.get(); }
  std::string hex() const {
    std::string text;
    for (size_t i = skip_; i < bytes_; ++i) {
      text += "0123456789abcdef"[data_[i] >> 4];
      text += "0123456789abcdef"[data_[i] & 15];
    }
    return text;
  }

 private:
  size_t bytes_, skip_;
  std::unique_ptr<unsigned char[]> data_;
};

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Refused : Error {
  using Error::Error;
};

void check(cudaError_t error) {
  if (error != cudaSuccess) throw Error(cudaGetErrorString(error));
}

template <class T>
T next(std::istream& line) {
  T value;
  if (!(line >> value)) throw Error("a case with too few words");
  return value;
}

// 0 where the caller names none.
std::optional<int64_t> next_size(std::istream& line) {
  const auto size = next<int64_t>(line);
  return size == 0 ? std::nullopt : std::optional<int64_t>(size);
}

DType checked_dtype(const std::string& name) {
  if (const auto dtype = dtype_named(name)) return *dtype;
  throw Error("no dtype " + name);
}

// The whole file, `offset_bytes` behind the start of a buffer that ends where the file ends.
Buffer read_input(const std::string& path, int64_t offset_bytes = 0) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw Error("cannot read " + path);
  const auto bytes = static_cast<int64_t>(file.tellg());
  Buffer buffer(offset_bytes + bytes);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(buffer.data() + offset_bytes), bytes);
  return buffer;
}

// Runs `once` for every seed that is left on the line, twice where there are counters; returns what stands in `result` after each.
template <class Once>
std::string run_seeds(std::istream& line, Buffer& result, Once once, int64_t counters = 0) {
  std::string runs;
  for (uint64_t seed; line >> seed;) {
    emulator::seed(seed);
    for (int repeat = 0; repeat < (counters > 0 ? 2 : 1); ++repeat) {
      result.poison();
      once();
      runs += " " + result.hex();
    }
  }
  return runs;
}

reduce::Op op_named(const std::string& name) {
  if (name == "sum") return reduce::Op::sum;
  if (name == "mean") return reduce::Op::mean;
  if (name == "amax") return reduce::Op::amax;
  if (name == "amin") return reduce::Op::amin;
  throw Error("no op " + name);
}

// What prepare() says. It is an error if it says something else when it is asked again.
template <class Prepare>
auto prepared_by(Prepare prepare) {
  const auto first = prepare(), second = prepare();
  if (first == second) return first;
  std::string text = "a second call of prepare says something else: " + to_string(first) + "then: " + to_string(second);
  std::replace(text.begin(), text.end(), '\n', ';');  // an answer is one line
  throw Error(text);
}

std::vector<LaunchShape> launched;  // of the last case

// Calls `launch`. It is an error if what it launches is not what was prepared.
template <class Launch>
void launch_as_prepared(const Launches& prepared, Launch launch) {
  launched.clear();
  launch_log() = &launched;
  const auto error = static_cast<cudaError_t>(launch());
  launch_log() = nullptr;
  check(error);
  // Of a cooperative launch as many blocks as the machine holds: see csrc/reduce/kernels/cooperative.cu.
  const auto same = [](const LaunchShape& prepared, LaunchShape shape) {
    if (shape.cooperative && shape.grid < prepared.grid) shape.grid = prepared.grid;
    return prepared == shape;
  };
  if (std::equal(prepared.begin(), prepared.end(), launched.begin(), launched.end(), same)) return;
  std::string text = "what was launched is not what was prepared;";
  for (const LaunchShape& shape : launched) text += " launched " + to_string(shape) + ";";
  for (const LaunchShape& shape : prepared) text += " prepared " + to_string(shape) + ";";
  throw Error(text);
}

// A launch leaves its counters as it found them.
void check_counters(const unsigned* counters, int64_t count) {
  for (int64_t c = 0; c < count; ++c) {
    if (counters[c] != 0) throw Error("counter " + std::to_string(c) + " was left at " + std::to_string(counters[c]));
  }
}

// The launches of the last case: a word each, fields in the order of LaunchShape.
std::string launched_words() {
  std::ostringstream text;
  for (const LaunchShape& s : launched) {
    text << ' ' << s.kernel << ',' << s.grid << ',' << s.grid_y << ',' << s.block << ',' << s.block_y << ','
         << s.shared_bytes << ',' << s.cluster << ',' << s.cooperative << ',' << s.overlapping;
  }
  return text.str();
}

// Runs a prepared reduction of what lies at `request.address`.
std::string run_reduction(const reduce::Request& request, const Chip& chip, std::istream& line) {
  const reduce::Prepared prepared = prepared_by([&] { return reduce::prepare(request, chip); });
  if (prepared.refusal) throw Refused(prepared.refusal.sentence);
  const reduce::Row& row = *prepared.kernel;
  if (row.launcher == nullptr) throw Error(row.name + " has no kernel");
  Buffer result(request.geometry.outputs * size_of(request.target));
  Buffer workspace(prepared.workspace.bytes());
  const std::unique_ptr<unsigned[]> counters(new unsigned[prepared.counters]());
  const reduce::Pointers pointers{reinterpret_cast<const void*>(request.address), result.data(), workspace.data(),
                                  counters.get()};
  const auto once = [&] {
    workspace.poison();  // stale partials of the same input would be the right ones
    launch_as_prepared(prepared.launches, [&] { return reduce::launch(prepared, pointers, nullptr); });
    check_counters(counters.get(), prepared.counters);
  };
  return run_seeds(line, result, once, prepared.counters);
}

std::string reduction(reduce::Op op, std::istream& line) {
  const auto variant = next<std::string>(line);
  reduce::Request request;
  request.op = op;
  request.dtype = checked_dtype(next<std::string>(line));
  const bool integral = accumulator_size(request.dtype) == 8 && request.dtype != DType::float64;
  request.target = op == reduce::Op::sum && integral ? DType::int64 : request.dtype;
  request.geometry.length = next<int64_t>(line);
  const auto block_size = next_size(line);
  const auto num_blocks = next_size(line);
  request.take(reduce::resolve(variant, /*dims=*/false, block_size, num_blocks));
  const int64_t offset_bytes = next<int64_t>(line) * size_of(request.dtype);
  Buffer input = read_input(next<std::string>(line), offset_bytes);
  request.address = reinterpret_cast<uint64_t>(input.data() + offset_bytes);
  return run_reduction(request, Chip(), line);
}

reduce::Geometry next_geometry(std::istream& line) {
  std::vector<reduce::CallDim> dims(next<size_t>(line));
  for (reduce::CallDim& dim : dims) {
    dim.size = next<int64_t>(line);
    dim.stride = next<int64_t>(line);
    dim.reduced = next<int>(line) != 0;
  }
  int64_t out_stride = 1;
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    dim->out_stride = dim->reduced ? 0 : out_stride;
    if (!dim->reduced) out_stride *= dim->size;
  }
  return make_geometry(dims.data(), static_cast<int>(dims.size()));
}

std::string reduction_along_dims(std::istream& line) {
  reduce::Request request;
  request.op = op_named(next<std::string>(line));
  const auto variant = next<std::string>(line);
  request.dtype = checked_dtype(next<std::string>(line));
  request.target = checked_dtype(next<std::string>(line));
  request.converting = reduce::needs_conversion(request.dtype, request.target);
  const auto block_size = next_size(line);
  const auto num_blocks = next_size(line);
  const Chip chip{next<int>(line)};
  request.take(reduce::resolve(variant, /*dims=*/true, block_size, num_blocks));
  const int64_t offset_bytes = next<int64_t>(line) * size_of(request.dtype);
  Buffer input = read_input(next<std::string>(line), offset_bytes);
  request.address = reinterpret_cast<uint64_t>(input.data() + offset_bytes);
  request.geometry = next_geometry(line);
  if (!request.geometry.fits) throw Error("too many dims: the binding copies such an input first");
  return run_reduction(request, chip, line);
}

std::string matrix_product(std::istream& line) {
  const auto variant = next<std::string>(line);
  matmul::Request request;
  request.dtype = checked_dtype(next<std::string>(line));
  const matmul::Resolved resolved = matmul::resolve(variant, next_size(line));
  request.row = resolved.row;
  request.tile = resolved.tile;
  const Chip chip{next<int>(line)};
  matmul::Problem& p = request.problem;
  p = {};
  for (int64_t* field :
       {&p.m, &p.n, &p.k, &p.batches, &p.a_row, &p.a_column, &p.a_batch[0], &p.b_row, &p.b_column, &p.b_batch[0]}) {
    *field = next<int64_t>(line);
  }
  p.batch_dims = 1;
  p.batch_size[0] = p.batches;
  const int64_t a_bytes = next<int64_t>(line) * size_of(request.dtype);
  Buffer a = read_input(next<std::string>(line), a_bytes);
  const int64_t b_bytes = next<int64_t>(line) * size_of(request.dtype);
  Buffer b = read_input(next<std::string>(line), b_bytes);
  const int64_t bias_bytes = next<int64_t>(line) * size_of(matmul::result_dtype(request.dtype));
  const auto bias_path = next<std::string>(line);
  request.has_bias = bias_path != "none";
  Buffer bias = request.has_bias ? read_input(bias_path, bias_bytes) : Buffer(0);
  Buffer c(p.batches * p.m * p.n * size_of(matmul::result_dtype(request.dtype)));
  request.a = a.data() + a_bytes;
  request.b = b.data() + b_bytes;
  request.c = c.data();
  if (request.row->launcher == nullptr) throw Error(request.row->name + " has no kernel");
  const matmul::Prepared prepared = prepared_by([&] { return matmul::prepare(request, chip); });
  Buffer workspace(prepared.workspace.bytes());
  const std::unique_ptr<unsigned[]> counters(new unsigned[prepared.counters]());
  const matmul::Pointers pointers{request.a,        request.b,
                                  c.data(),         request.has_bias ? bias.data() + bias_bytes : nullptr,
                                  workspace.data(), counters.get()};
  const auto once = [&] {
    workspace.poison();
    launch_as_prepared(prepared.launches, [&] { return matmul::launch(prepared, pointers, nullptr); });
    check_counters(counters.get(), prepared.counters);
  };
  return run_seeds(line, c, once, prepared.counters);
}

std::string addition(std::istream& line) {
  const auto variant = next<std::string>(line);
  elementwise::Request request;
  request.dtype = checked_dtype(next<std::string>(line));
  request.n = next<int64_t>(line);
  const elementwise::Resolved resolved = elementwise::resolve(variant, next_size(line));
  request.row = resolved.row;
  request.block = resolved.block;
  const int64_t size = size_of(request.dtype);
  const int64_t a_bytes = next<int64_t>(line) * size, b_bytes = next<int64_t>(line) * size,
                c_bytes = next<int64_t>(line) * size;
  Buffer a = read_input(next<std::string>(line), a_bytes);
  Buffer b = read_input(next<std::string>(line), b_bytes);
  Buffer c(c_bytes + request.n * size, c_bytes);
  const auto address = [](Buffer& buffer, int64_t offset) {
    return reinterpret_cast<uint64_t>(buffer.data() + offset);
  };
  request.a = address(a, a_bytes);
  request.b = address(b, b_bytes);
  request.c = address(c, c_bytes);
  const elementwise::Prepared prepared = prepared_by([&] { return elementwise::prepare(request, Chip()); });
  const elementwise::Pointers pointers{a.data() + a_bytes, b.data() + b_bytes, c.data() + c_bytes};
  if (resolved.row->launcher == nullptr) throw Error(resolved.row->name + " has no kernel");
  return run_seeds(line, c, [&] {
    launch_as_prepared(prepared.launches, [&] { return elementwise::launch(prepared, pointers, nullptr); });
  });
}

rows::Op row_op_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(rows::Op::rms_norm_backward); ++i) {
    if (name == rows::name_of(static_cast<rows::Op>(i))) return static_cast<rows::Op>(i);
  }
  throw Error("no op " + name);
}

std::string row_operation(std::istream& line) {
  rows::Request request;
  request.op = row_op_named(next<std::string>(line));
  request.row = &rows::find(next<std::string>(line));
  request.dtype = checked_dtype(next<std::string>(line));
  const int64_t size = size_of(request.dtype), accumulator = accumulator_size(request.dtype);
  Chip chip;
  chip.multiprocessors = next<int>(line);
  chip.capability = next<int>(line);
  rows::Problem& p = request.problem;
  const auto outer = next<int64_t>(line);
  p.inner = next<int64_t>(line);
  p.rows = outer * p.inner;
  p.length = next<int64_t>(line);
  p.eps = next<double>(line);
  rows::Pointers pointers;
  std::vector<Buffer> held;
  held.reserve(8);
  const auto read = [&](int64_t offset, bool counts) -> void* {
    const auto path = next<std::string>(line);
    if (path == "none") return nullptr;
    held.push_back(read_input(path, offset));
    void* const address = held.back().data() + offset;
    if (counts) request.addresses |= reinterpret_cast<uint64_t>(address);
    return address;
  };
  const int inputs = next<int>(line);
  for (int i = 0; i < inputs; ++i) {
    const int64_t offset = next<int64_t>(line) * size;
    rows::Layout& l = p.in[i];
    for (int64_t* field : {&l.outer_stride, &l.inner_stride, &l.element_stride}) *field = next<int64_t>(line);
    pointers.in[i] = read(offset, true);
  }
  pointers.weight = read(0, true);
  pointers.bias = read(0, true);
  p.has_weight = pointers.weight != nullptr;
  p.has_bias = pointers.bias != nullptr;
  for (const void*& values : pointers.row_in) values = read(0, false);
  const bool a_row = request.op == rows::Op::logsumexp;
  const int64_t length = a_row ? 1 : p.length;
  p.out = {length * p.inner, 1, p.inner};
  const int64_t elements = round_up(p.rows * length * size, 16), values = round_up(p.rows * accumulator, 16);
  const int row_outputs = request.op == rows::Op::layer_norm ? 2 : request.op == rows::Op::rms_norm ? 1 : 0;
  Buffer result(elements + row_outputs * values);
  pointers.out = result.data();
  for (int i = 0; i < row_outputs; ++i) pointers.row_out[i] = result.data() + elements + i * values;
  const rows::Prepared prepared = prepared_by([&] { return rows::prepare(request, chip); });
  if (prepared.refusal) throw Refused(prepared.refusal.sentence);
  if (prepared.rung->launcher == nullptr) throw Error(prepared.rung->name + " has no kernel");
  return run_seeds(line, result, [&] {
    launch_as_prepared(prepared.launches, [&] { return rows::launch(prepared, pointers, nullptr); });
  });
}

std::string attention_of(std::istream& line) {
  const Chip chip{132, next<int>(line)};
  attention::Problem p;
  p.dtype = checked_dtype(next<std::string>(line));
  for (int64_t* field : {&p.batch, &p.heads, &p.group, &p.length, &p.keys}) *field = next<int64_t>(line);
  p.width = next<int>(line);
  p.value_width = next<int>(line);
  p.causal = next<int>(line) != 0;
  p.scale = next<float>(line);
  Buffer query = read_input(next<std::string>(line)), key = read_input(next<std::string>(line)),
         value = read_input(next<std::string>(line)), grads = read_input(next<std::string>(line));
  const auto kind = next<std::string>(line), path = next<std::string>(line);
  Buffer mask = kind == "none" ? Buffer(0) : read_input(path);
  if (kind != "none") p.mask = {mask.data(), kind == "bool", 0, 0, p.keys, 1};
  const auto matrices = [](void* data, int64_t heads, int64_t rows, int64_t width) {
    return attention::Matrices{data, heads * rows * width, rows * width, width};
  };
  const int64_t shared = p.heads / p.group, size = size_of(p.dtype);
  p.query = matrices(query.data(), p.heads, p.length, p.width);
  p.key = matrices(key.data(), shared, p.keys, p.width);
  p.value = matrices(value.data(), shared, p.keys, p.value_width);
  const int64_t of_out = p.batch * p.heads * p.length * p.value_width * size, of_query = p.batch * p.query.batch * size,
                of_key = p.batch * p.key.batch * size, of_value = p.batch * p.value.batch * size;
  Buffer result(of_out + of_query + of_key + of_value);
  unsigned char* const data = result.data();
  const attention::Matrices out = matrices(data, p.heads, p.length, p.value_width);
  attention::Gradients gradients{out, p.query, p.key, p.value};
  gradients.out.data = grads.data();
  gradients.query.data = data + of_out;
  gradients.key.data = data + of_out + of_query;
  gradients.value.data = data + of_out + of_query + of_key;
  const attention::Prepared forward = prepared_by([&] { return attention::prepare_forward(p, chip); }),
                            backward = prepared_by([&] { return attention::prepare_backward(p, chip); });
  Buffer workspace(std::max(forward.workspace.bytes(), backward.workspace.bytes()));
  return run_seeds(line, result, [&] {
    workspace.poison();
    launch_as_prepared(forward.launches,
                       [&] { return attention::launch_forward(p, forward, out, workspace.data(), nullptr); });
    workspace.poison();
    launch_as_prepared(backward.launches,
                       [&] { return attention::launch_backward(p, backward, gradients, workspace.data(), nullptr); });
  });
}

std::string add_segments(std::istream& line) {
  segments::Request r;
  r.dtype = checked_dtype(next<std::string>(line));
  for (int64_t* field : {&r.count, &r.width, &r.places}) *field = next<int64_t>(line);
  r.divide = next<int>(line) != 0;
  const int64_t offset = next<int64_t>(line) * size_of(r.dtype);
  Buffer index = read_input(next<std::string>(line)), order = read_input(next<std::string>(line)),
         source = read_input(next<std::string>(line), offset), before = read_input(next<std::string>(line));
  Buffer out(r.places * r.width * size_of(r.dtype));
  r.index = reinterpret_cast<const int64_t*>(index.data());
  r.order = reinterpret_cast<const int64_t*>(order.data());
  r.source = source.data() + offset;
  r.out = out.data();
  const segments::Prepared prepared = segments::prepare(r);
  return run_seeds(line, out, [&] {
    memcpy(out.data(), before.data(), r.places * r.width * size_of(r.dtype));
    launch_as_prepared(prepared.launches, [&] { return segments::launch_add(r, prepared, nullptr); });
  });
}

std::string thread_indices(std::istream& line) {
  lessons::ThreadGrid grid{};
  for (int64_t* field : {&grid.grid_x, &grid.grid_y, &grid.block_x, &grid.block_y}) *field = next<int64_t>(line);
  Buffer table(grid.threads() * lessons::kColumns * sizeof(int64_t));
  const auto data = reinterpret_cast<int64_t*>(table.data());
  Launches prepared;
  prepared.add(lessons::prepare(grid));
  return run_seeds(line, table, [&] {
    launch_as_prepared(prepared, [&] { return lessons::launch_thread_indices(grid, prepared[0], data, nullptr); });
  });
}

std::string run_case(std::istream& line) {
  const auto op = next<std::string>(line);
  if (op == "launches") {
    struct NothingRuns {
      NothingRuns() { emulator::runs_kernels() = false; }
      ~NothingRuns() { emulator::runs_kernels() = true; }
    } nothing_runs;
    run_case(line);
    return launched_words();
  }
  if (op == "along") return reduction_along_dims(line);
  if (op == "vector_add") return addition(line);
  if (op == "rows") return row_operation(line);
  if (op == "attention") return attention_of(line);
  if (op == "segments") return add_segments(line);
  if (op == "thread_indices") return thread_indices(line);
  if (op == "matmul") return matrix_product(line);
  return reduction(op_named(op), line);
}

}  // namespace

int main() {
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    try {
      const std::string runs = run_case(line);
      std::cout << "ok" << runs << std::endl;
    } catch (const Refused& refusal) {
      std::cout << "refused " << refusal.what() << std::endl;
    } catch (const Error& error) {
      std::cout << "error " << error.what() << std::endl;
    } catch (const BadArgument& error) {
      std::cout << "error " << error.message << std::endl;
    }
  }
}
