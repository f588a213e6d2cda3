// Idea: the order of pairwise.h has 128 lanes, which are lanes of vectors here. What is near in memory is read together: rows
//       chunk by chunk, columns many at a time, few columns as one run. Elements that lie apart, or that must be converted, are
//       gathered into a buffer first, a chunk at a time, and reduced from there.
//
// Mapping: a task is a row, or a tile of columns, or a unit of one: an aligned run of 2^k chunks. Its node is a node of the tree,
//          so the number of threads changes no bit.
#include "pairwise_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "../common/parallel.h"
#include "../common/round.h"
#include "elements.h"
#include "exact_cpu.h"
#include "pairwise_cpu_kernels.h"

namespace treduce::reduce {
namespace cpu {
namespace {

constexpr int64_t kChunk = Pairwise::kChunk;
constexpr int64_t kGathered = 4096;  // elements of short rows that are gathered at once
constexpr int64_t kGatheredColumns = 16;
constexpr int64_t kLongRun = 128;      // elements of a run that need not be gathered
constexpr int64_t kStripedChunks = 8;  // that are reduced at once where runs are long
constexpr int64_t kTileBytes = 16384;  // of nodes, a row of them; several levels of the tree fit a second-level cache
constexpr int64_t kLeastTile = 256;    // columns

// Memory that needs no constructor.
class Buffer {
 public:
  explicit Buffer(int64_t bytes) : data_(bytes > 0 ? std::malloc(static_cast<size_t>(bytes)) : nullptr, std::free) {
    if (bytes > 0 && data_ == nullptr) throw std::bad_alloc();
  }
  char* data() const { return static_cast<char*>(data_.get()); }

 private:
  std::unique_ptr<void, void (*)(void*)> data_;
};

// What happens to nodes after the kernels.
struct Ends {
  int node_size;
  // nodes[k * width + c], k < count: neighbours in k, for each c, into nodes[c].
  void (*fold)(void* nodes, int64_t count, int64_t width);
  // nodes[i], i < count, to element at + i * stride of the result.
  void (*store)(const void* nodes, int64_t count, const Result& result, int64_t at, int64_t stride);
  // The node over nothing.
  void (*none)(void* node);
};

// Finishes nodes side by side, in a loop that compilers turn into vectors.
template <class O, class To, class Convert>
void store_run(const typename O::Acc* nodes, int64_t count, const Result& result, int64_t at, const Convert& convert) {
  To* const to = static_cast<To*>(result.data) + at;
  const int64_t n = result.count;
  if (result.divide) {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(O::finish(nodes[i], true, n));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(O::finish(nodes[i], false, n));
  }
}

template <class O>
const Ends* ends() {
  using Acc = typename O::Acc;
  static constexpr auto fold = [](void* data, int64_t count, int64_t width) {
    Acc* const nodes = static_cast<Acc*>(data);
    while (count > 1) {
      const int64_t pairs = count / 2;
      for (int64_t t = 0; t < pairs; ++t) {
        const Acc* const a = nodes + 2 * t * width;
        for (int64_t c = 0; c < width; ++c) nodes[t * width + c] = O::combine(a[c], a[width + c]);
      }
      if (count % 2 != 0) std::copy_n(nodes + (count - 1) * width, width, nodes + pairs * width);
      count -= pairs;
    }
  };
  static constexpr auto store = [](const void* data, int64_t count, const Result& result, int64_t at, int64_t stride) {
    const Acc* const nodes = static_cast<const Acc*>(data);
    using Out = decltype(O::finish(Acc{}, false, 1));
    if (stride == 1 && count > 1) {
      if constexpr (std::is_same_v<Out, int64_t>) {
        if (result.dtype == DType::int64) {
          return store_run<O, int64_t>(nodes, count, result, at, [](int64_t value) { return value; });
        }
      } else if constexpr (std::is_same_v<Out, float>) {
        const auto narrow = [](auto half) {
          using Half = decltype(half);
          return [](float value) { return Half::from(value); };
        };
        switch (result.dtype) {
          case DType::float16: return store_run<O, float16>(nodes, count, result, at, narrow(float16{}));
          case DType::bfloat16: return store_run<O, bfloat16>(nodes, count, result, at, narrow(bfloat16{}));
          default: return store_run<O, float>(nodes, count, result, at, canonical<float>);
        }
      } else {
        return store_run<O, Out>(nodes, count, result, at, canonical<Out>);
      }
    }
    for (int64_t i = 0; i < count; ++i) result.store<O>(nodes[i], at + i * stride);
  };
  static constexpr auto none = [](void* data) { *static_cast<Acc*>(data) = O::identity(); };
  static constexpr Ends table{sizeof(Acc), fold, store, none};
  return &table;
}

template <class A>
const Ends* ends_of(Op op, Arithmetic arithmetic) {
  if (op == Op::amax) return ends<Max<A>>();
  if (op == Op::amin) return ends<Min<A>>();
  return arithmetic == Arithmetic::compensated ? ends<Compensated<A>>() : ends<Sum<A>>();
}

// Copies element (i, j), at i * row + j * column, to place i * columns + j; as an accumulator's element where it is converted.
struct Area {
  int64_t rows, row, columns, column;
};
using Gather = void (*)(const void* x, const Area& area, DType target, void* result);

template <class T>
void copy_area(const void* x, const Area& area, DType, void* result) {
  const T* const from = static_cast<const T*>(x);
  T* to = static_cast<T*>(result);
  for (int64_t i = 0; i < area.rows; ++i, to += area.columns) {
    const T* const row = from + i * area.row;
    if (area.column == 1) {
      memcpy(to, row, area.columns * sizeof(T));
    } else if (area.column == 2) {  // a loop of vectors
      for (int64_t j = 0; j < area.columns; ++j) to[j] = row[2 * j];
    } else {
      for (int64_t j = 0; j < area.columns; ++j) to[j] = row[j * area.column];
    }
  }
}

template <class Acc, class From>
void convert_area(const void* x, const Area& area, DType target, void* result) {
  const From* const from = static_cast<const From*>(x);
  Acc* const to = static_cast<Acc*>(result);
  const auto all = [&](auto convert_one) {
    for (int64_t i = 0; i < area.rows; ++i) {
      for (int64_t j = 0; j < area.columns; ++j) {
        to[i * area.columns + j] = convert_one(from[i * area.row + j * area.column]);
      }
    }
  };
  if constexpr (std::is_same_v<Acc, int64_t>) {
    if (target == DType::boolean) return all([](From value) { return static_cast<int64_t>(is_nonzero(value)); });
  }
  if constexpr (std::is_same_v<Acc, float>) {
    const auto rounded = [](auto half) {
      using Half = decltype(half);
      return [](From value) { return static_cast<float>(Half::from(convert<float>(value))); };
    };
    if (target == DType::float16) return all(rounded(float16{}));
    if (target == DType::bfloat16) return all(rounded(bfloat16{}));
  }
  all([](From value) { return convert<Acc>(value); });
}

template <class Acc>
Gather converter_to(DType from) {
  return dispatch_all(from, [](auto type) -> Gather { return convert_area<Acc, typename decltype(type)::type>; });
}

Gather copier_of(int64_t size) {
  switch (size) {
    case 1: return copy_area<uint8_t>;
    case 2: return copy_area<uint16_t>;
    case 4: return copy_area<uint32_t>;
    case 8: return copy_area<uint64_t>;
    default: return copy_area<complex128>;
  }
}

using Find = const Kernels* (*)(Op op, Arithmetic arithmetic, DType dtype);

// The kernels for what this CPU has; TORCH_REDUCE_CPU=baseline or avx2 asks for less, so that a test can compare.
Find best_kernels() {
#ifdef __x86_64__
  const char* const variable = std::getenv("TORCH_REDUCE_CPU");
  const std::string_view most = variable != nullptr ? variable : "";
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  const bool has_avx2 = has_f16c && __builtin_cpu_supports("avx2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && most != "avx2" && most != "baseline") return avx512::find;
  if (has_avx2 && most != "baseline") return avx2::find;
#endif
  return baseline::find;
}

const Kernels* find_kernels(Op op, Arithmetic arithmetic, DType dtype) {
  static const Find find = best_kernels();
  return find(op, arithmetic, dtype);
}

// Dims of either kind. Complex tensors are real ones with a dim more.
struct Dims {
  int count = 0;
  int64_t size[kMaxDims + 1], stride[kMaxDims + 1], out_stride[kMaxDims + 1];

  Dims(const Extents& extents, const Extents* out) : count(extents.count) {
    for (int d = 0; d < count; ++d) {
      size[d] = extents.size[d].divisor;
      stride[d] = extents.stride[d];
      out_stride[d] = out != nullptr ? out->stride[d] : 0;
    }
  }
  void split_complex(bool kept) {
    for (int d = 0; d < count; ++d) {
      stride[d] *= 2;
      out_stride[d] *= 2;
    }
    if (!kept) return;
    if (count > 0 && stride[count - 1] == 2 && out_stride[count - 1] == 2) {
      size[count - 1] *= 2;
      stride[count - 1] = out_stride[count - 1] = 1;
    } else {
      size[count] = 2;
      stride[count] = out_stride[count] = 1;
      ++count;
    }
  }
  int64_t inner_size() const { return count > 0 ? size[count - 1] : 1; }
  int64_t inner_stride() const { return count > 0 ? stride[count - 1] : 1; }
  int64_t inner_out_stride() const { return count > 0 ? out_stride[count - 1] : 1; }

  struct Place {
    int64_t offset, out;
    int64_t left;  // steps along the innermost dim, this one included
  };
  Place place(int64_t i) const {
    Place p{0, 0, 1};
    for (int d = count - 1; d >= 0; --d) {
      const int64_t q = i / size[d], k = i - q * size[d];
      if (d == count - 1) p.left = size[d] - k;
      p.offset += k * stride[d];
      p.out += k * out_stride[d];
      i = q;
    }
    return p;
  }
};

// Walks the runs along the innermost of some dims, without a division for each.
class Walk {
 public:
  Walk(const Dims& dims, int64_t first) : dims_(dims), offset_(0), left_(1) {
    for (int d = dims.count - 1; d >= 0; --d) {
      const int64_t q = first / dims.size[d];
      index_[d] = first - q * dims.size[d];
      offset_ += index_[d] * dims.stride[d];
      first = q;
    }
    if (dims.count > 0) left_ = dims.inner_size() - index_[dims.count - 1];
  }
  int64_t offset() const { return offset_; }
  int64_t left() const { return left_; }  // of the run
  void advance(int64_t steps) {           // at most to the end of the run
    offset_ += steps * dims_.inner_stride();
    left_ -= steps;
    if (left_ > 0) return;
    left_ = dims_.inner_size();
    offset_ -= left_ * dims_.inner_stride();
    for (int d = dims_.count - 2; d >= 0; --d) {
      offset_ += dims_.stride[d];
      if (++index_[d] < dims_.size[d]) return;
      offset_ -= dims_.size[d] * dims_.stride[d];
      index_[d] = 0;
    }
  }

 private:
  const Dims& dims_;
  int64_t index_[kMaxDims + 1];
  int64_t offset_, left_;
};

class Reduction {
 public:
  Reduction(Op op, Arithmetic arithmetic, DType dtype, DType target, bool converting, const void* input,
            const Geometry& geometry, const Result& result)
      : x_(static_cast<const char*>(input)),
        kept_(geometry.kept, &geometry.kept_out),
        reduced_(geometry.reduced, nullptr),
        length_(geometry.length),
        outputs_(geometry.outputs),
        target_(target),
        result_(result) {
    DType kernel_dtype = dtype;
    parts_ = 1;
    if (converting) {
      kernel_dtype = accumulator_of(target);
    } else if ((dtype == DType::complex64 || dtype == DType::complex128) && length_ > 1 &&
               reduced_.inner_stride() == 1 && find_kernels(op, arithmetic, dtype) != nullptr) {
      // Rows of complex numbers.
    } else if (dtype == DType::complex64 || dtype == DType::complex128) {
      kernel_dtype = accumulator_of(dtype);
      kept_.split_complex(true);
      reduced_.split_complex(false);
      outputs_ *= 2;
    }
    kernels_ = find_kernels(op, arithmetic, kernel_dtype);
    if (!converting && kernels_ == nullptr) {  // widen first
      converting = true;
      target_ = kernel_dtype = accumulator_of(dtype);
      kernels_ = find_kernels(op, arithmetic, kernel_dtype);
    }
    element_size_ = converting ? static_cast<int>(size_of(dtype)) : kernels_->element_size;
    if (converting) {
      switch (target_) {
        case DType::float64: gather_ = converter_to<double>(dtype); break;
        case DType::complex64: gather_ = converter_to<complex64>(dtype); break;
        case DType::complex128: gather_ = converter_to<complex128>(dtype); break;
        case DType::float32:
        case DType::float16:
        case DType::bfloat16: gather_ = converter_to<float>(dtype); break;
        default: gather_ = converter_to<int64_t>(dtype);
      }
      if (target_ == DType::complex64 || target_ == DType::complex128) parts_ = 2;
    } else {
      gather_ = copier_of(element_size_);
    }
    direct_ = !converting;
    // Complex results are written as what their parts are.
    if (result_.dtype == DType::complex64) result_.dtype = DType::float32;
    if (result_.dtype == DType::complex128) result_.dtype = DType::float64;
    switch (kernel_dtype) {
      case DType::complex64: ends_ = ends<Sum<complex64>>(); break;
      case DType::complex128: ends_ = ends<Sum<complex128>>(); break;
      case DType::float64: ends_ = ends_of<double>(op, arithmetic); break;
      case DType::float32:
      case DType::float16:
      case DType::bfloat16: ends_ = ends_of<float>(op, arithmetic); break;
      default: ends_ = ends_of<int64_t>(op, arithmetic);
    }
  }

  void run() {
    if (outputs_ == 0) return;
    if (length_ == 0) return nothing();
    const int64_t across = kept_.inner_size();
    const bool side_by_side = kept_.count > 0 && kept_.inner_stride() == 1;
    const bool run = reduced_.count == 0 || reduced_.inner_stride() == 1;
    if (direct_ && run && reduced_.count <= 1) return rows();
    if (direct_ && !run && side_by_side) {
      const bool dense = reduced_.count == 1 && reduced_.inner_stride() == across;
      if (dense && across <= kernels_->narrow_columns) return narrow();
      if (across >= kernels_->width) return columns();
    }
    const bool columns_are_nearer = kept_.count > 0 && kept_.inner_stride() > 0 &&
                                    (reduced_.inner_stride() == 0 || kept_.inner_stride() < reduced_.inner_stride());
    if (parts_ > 1 || (columns_are_nearer && !run)) return gathered_columns();
    gathered_rows();
  }

 private:
  static DType accumulator_of(DType dtype) {
    switch (dtype) {
      case DType::float64:
      case DType::complex128: return DType::float64;
      case DType::float32:
      case DType::float16:
      case DType::bfloat16:
      case DType::float8_e4m3fn:
      case DType::float8_e5m2:
      case DType::complex64: return DType::float32;
      default: return DType::int64;
    }
  }

  const char* at(int64_t offset) const { return x_ + offset * element_size_; }

  void nothing() const {
    alignas(16) char node[16];
    ends_->none(node);
    for (int64_t o = 0; o < outputs_; ++o) {
      const int64_t out = kept_.place(o).out * parts_;
      for (int k = 0; k < parts_; ++k) ends_->store(node, 1, result_, out + k, 1);
    }
  }

  // Tasks are `groups` of outputs, of `width` each, and the units of their elements. reduce(group, first element, elements, node)
  // gives the nodes of one, store(group, nodes) takes those of a whole group.
  template <class Reduce, class Store>
  void split(int64_t groups, int64_t width, const Reduce& reduce, const Store& store) const {
    int64_t unit = kUnit;
    const int64_t enough = 8 * thread_count();
    while (unit > 8 * kChunk && groups * ceil_div(length_, unit) < enough) unit /= 2;
    while (unit > kChunk && unit * width > 8 * kElementsATask && groups * ceil_div(length_, unit) < enough) unit /= 2;
    const int64_t units = ceil_div(length_, unit);
    const int64_t node_bytes = width * ends_->node_size;
    const int64_t grain = std::max<int64_t>(kElementsATask / (std::min(unit, length_) * width), 1);
    if (units == 1) {
      parallel_for(0, groups, grain, [&](int64_t begin, int64_t end) {
        const auto state = reduce.start();
        const Buffer nodes(node_bytes);
        for (int64_t g = begin; g < end; ++g) {
          reduce(state, g, 0, length_, nodes.data());
          store(g, nodes.data());
        }
      });
      return;
    }
    const Buffer nodes(groups * units * node_bytes);
    parallel_for(0, groups * units, grain, [&](int64_t begin, int64_t end) {
      const auto state = reduce.start();
      for (int64_t t = begin; t < end; ++t) {
        const int64_t g = t / units, first = (t - g * units) * unit;
        reduce(state, g, first, std::min(unit, length_ - first), nodes.data() + t * node_bytes);
      }
    });
    parallel_for(0, groups, std::max<int64_t>(kElementsATask / (units * width), 1), [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        char* const mine = nodes.data() + g * units * node_bytes;
        ends_->fold(mine, units, width);
        store(g, mine);
      }
    });
  }

  // Calls body(place, outputs, first of them) for runs of outputs along the innermost kept dim, of at most `most`.
  template <class Body>
  void runs(int64_t begin, int64_t end, int64_t most, const Body& body) const {
    while (begin < end) {
      const Dims::Place place = kept_.place(begin);
      const int64_t count = std::min({end - begin, place.left, most});
      body(place, count);
      begin += count;
    }
  }

  template <class Start, class Body>
  struct Step {
    Start start;
    Body body;
    template <class State>
    void operator()(const State& state, int64_t group, int64_t first, int64_t count, char* nodes) const {
      body(state, group, first, count, nodes);
    }
  };
  template <class Start, class Body>
  static Step<Start, Body> step(Start start, Body body) {
    return {start, body};
  }

  // Each output is one run of memory.
  void rows() const {
    const int64_t stride = kept_.inner_stride();
    if (length_ <= kUnit / 4) {
      constexpr int64_t kAtOnce = 512;
      parallel_for(0, outputs_, std::max<int64_t>(kElementsATask / length_, 1), [&](int64_t begin, int64_t end) {
        alignas(64) char nodes[kAtOnce * 16];
        runs(begin, end, kAtOnce, [&](const Dims::Place& place, int64_t count) {
          kernels_->rows(at(place.offset), count, stride, length_, nodes);
          ends_->store(nodes, count, result_, place.out, kept_.inner_out_stride());
        });
      });
      return;
    }
    split(outputs_, 1,
          step([] { return 0; },
               [&](int, int64_t group, int64_t first, int64_t count, char* nodes) {
                 kernels_->rows(at(kept_.place(group).offset + first), 1, 0, count, nodes);
               }),
          [&](int64_t group, const char* nodes) { ends_->store(nodes, 1, result_, kept_.place(group).out, 1); });
  }

  // Few columns whose rows lie one after another.
  void narrow() const {
    const int64_t across = kept_.inner_size();
    split(outputs_ / across, across,
          step([&] { return Buffer(kernels_->narrow_scratch); },
               [&](const Buffer& scratch, int64_t group, int64_t first, int64_t count, char* nodes) {
                 kernels_->narrow(at(kept_.place(group * across).offset + first * across), count, across,
                                  scratch.data(), nodes);
               }),
          [&](int64_t group, const char* nodes) {
            ends_->store(nodes, across, result_, kept_.place(group * across).out, kept_.inner_out_stride());
          });
  }

  // Where row e of columns lies, for e from `first` on.
  void offsets(int64_t first, int64_t count, int64_t* result) const {
    const int64_t stride = reduced_.inner_stride();
    for (int64_t e = 0; e < count;) {
      const Dims::Place place = reduced_.place(first + e);
      const int64_t run = std::min(place.left, count - e);
      for (int64_t i = 0; i < run; ++i) result[e + i] = place.offset + i * stride;
      e += run;
    }
  }

  void columns() const {
    const int64_t across = kept_.inner_size(), runs = outputs_ / across;
    // Memory is read fastest in long runs, but every core wants some.
    int64_t tile = kTileBytes / ends_->node_size;
    const int64_t enough = 4 * thread_count();
    while (tile > kLeastTile && runs * ceil_div(length_, kChunk) * (across / tile) < enough) tile /= 2;
    const int64_t tiles = std::max<int64_t>(across / tile, 1);  // the last takes what is left, too
    const int64_t width = tiles == 1 ? across : tile;
    const auto tile_of = [&](int64_t group, int64_t& count) {
      const int64_t tile = group % tiles;
      count = tile + 1 < tiles ? width : across - tile * width;
      return group / tiles * across + tile * width;
    };
    struct State {
      Buffer scratch, offsets;
    };
    const bool listed = reduced_.count > 1;
    const int64_t most = std::max(width, across - (tiles - 1) * width);
    split(runs * tiles, most,
          step(
              [&] {
                return State{Buffer(kernels_->columns_scratch(std::min(kUnit, length_), most)),
                             Buffer(listed ? std::min(kUnit, length_) * 8 : 0)};
              },
              [&](const State& state, int64_t group, int64_t first, int64_t count, char* nodes) {
                int64_t here;
                const int64_t base = kept_.place(tile_of(group, here)).offset;
                if (listed) {
                  int64_t* const list = reinterpret_cast<int64_t*>(state.offsets.data());
                  offsets(first, count, list);
                  kernels_->columns(at(base), list, 0, count, here, state.scratch.data(), nodes);
                } else {
                  const int64_t pitch = reduced_.inner_stride();
                  kernels_->columns(at(base + first * pitch), nullptr, pitch, count, here, state.scratch.data(), nodes);
                }
              }),
          [&](int64_t group, const char* nodes) {
            int64_t here;
            const int64_t first = tile_of(group, here);
            ends_->store(nodes, here, result_, kept_.place(first).out, kept_.inner_out_stride());
          });
  }

  // Elements first .. first + count of the `columns` outputs at `offset` of the innermost kept dim, row by row.
  void gather(int64_t offset, int64_t columns, int64_t column, int64_t first, int64_t count, char* to) const {
    const int64_t bytes = columns * parts_ * kernels_->element_size;
    for (int64_t e = 0; e < count;) {
      const Dims::Place place = reduced_.place(first + e);
      int64_t run = std::min(place.left, count - e);
      const int64_t inner = reduced_.inner_size();
      const int64_t whole = (count - e) / std::max<int64_t>(inner, 1);
      if (columns == 1 && reduced_.count > 1 && place.left == inner && whole > 1) {
        // Two dims at once.
        const int d = reduced_.count - 2;
        const int64_t left = reduced_.size[d] - (first + e) / inner % reduced_.size[d];
        const int64_t rows = std::min(whole, left);
        gather_(at(offset + place.offset), {rows, reduced_.stride[d], inner, reduced_.inner_stride()}, target_, to);
        run = rows * inner;
      } else if (columns == 1) {
        gather_(at(offset + place.offset), {1, 0, run, reduced_.inner_stride()}, target_, to);
      } else {
        gather_(at(offset + place.offset), {run, reduced_.inner_stride(), columns, column}, target_, to);
      }
      e += run;
      to += run * bytes;
    }
  }

  // Columns that are not side by side, or must be converted: tiles of a few columns and a chunk of rows.
  void gathered_columns() const {
    const int64_t across = kept_.inner_size();
    const int64_t width = std::min({across, kGatheredColumns, kernels_->narrow_columns / parts_});
    const int64_t tiles = ceil_div(across, width);
    struct State {
      Buffer elements, scratch, nodes;
    };
    const auto tile_of = [&](int64_t group, int64_t& count) {
      const int64_t tile = group % tiles;
      count = std::min(width, across - tile * width);
      return group / tiles * across + tile * width;
    };
    const int64_t all = width * parts_;
    split(outputs_ / across * tiles, all,
          step(
              [&] {
                return State{Buffer(std::min(length_, kChunk) * all * kernels_->element_size),
                             Buffer(kernels_->narrow_scratch), Buffer(kUnit / kChunk * all * ends_->node_size)};
              },
              [&](const State& state, int64_t group, int64_t first, int64_t count, char* nodes) {
                int64_t here;
                const int64_t base = kept_.place(tile_of(group, here)).offset;
                const int64_t bytes = here * parts_ * ends_->node_size;
                const int64_t chunks = ceil_div(count, kChunk);
                for (int64_t c = 0; c < chunks; ++c) {
                  const int64_t rows = std::min(kChunk, count - c * kChunk);
                  gather(base, here, kept_.inner_stride(), first + c * kChunk, rows, state.elements.data());
                  kernels_->narrow(state.elements.data(), rows, here * parts_, state.scratch.data(),
                                   state.nodes.data() + c * bytes);
                }
                ends_->fold(state.nodes.data(), chunks, here * parts_);
                std::copy_n(state.nodes.data(), bytes, nodes);
              }),
          [&](int64_t group, const char* nodes) {
            int64_t here;
            const int64_t out = kept_.place(tile_of(group, here)).out * parts_;
            const int64_t stride = kept_.inner_out_stride() * parts_;
            if (parts_ == 1) {
              ends_->store(nodes, here, result_, out, stride);
            } else {
              for (int64_t c = 0; c < here; ++c) {
                ends_->store(nodes + c * parts_ * ends_->node_size, parts_, result_, out + c * stride, 1);
              }
            }
          });
  }

  // The nodes of whole chunks of an output whose elements are long runs: only stripes that a run's end cuts are copied.
  void striped(int64_t base, Walk& walk, int64_t chunks, char* buffer, char* nodes) const {
    constexpr int64_t kLanes = Pairwise::kLanes;
    const void* begins[kStripedChunks * Pairwise::kStripes];
    for (int64_t s = 0; s < chunks * Pairwise::kStripes; ++s) {
      if (walk.left() >= kLanes) {
        begins[s] = at(base + walk.offset());
        walk.advance(kLanes);
        continue;
      }
      begins[s] = buffer;
      for (int64_t l = 0; l < kLanes;) {
        const int64_t count = std::min(walk.left(), kLanes - l);
        memcpy(buffer, at(base + walk.offset()), count * element_size_);
        buffer += count * element_size_;
        l += count;
        walk.advance(count);
      }
    }
    kernels_->stripes(begins, chunks, nodes);
  }

  // Rows whose elements are not one run, or must be converted: chunk by chunk, or many short ones at once.
  void gathered_rows() const {
    if (length_ <= kChunk) {
      const int64_t at_once = std::max<int64_t>(kGathered / length_, 1);
      parallel_for(0, outputs_, std::max<int64_t>(kElementsATask / length_, 1), [&](int64_t begin, int64_t end) {
        const Buffer elements(at_once * length_ * kernels_->element_size), nodes(at_once * ends_->node_size);
        runs(begin, end, at_once, [&](const Dims::Place& place, int64_t count) {
          if (reduced_.count <= 1) {
            gather_(at(place.offset), {count, kept_.inner_stride(), length_, reduced_.inner_stride()}, target_,
                    elements.data());
          } else {
            for (int64_t r = 0; r < count; ++r) {
              gather(place.offset + r * kept_.inner_stride(), 1, 0, 0, length_,
                     elements.data() + r * length_ * kernels_->element_size);
            }
          }
          kernels_->rows(elements.data(), count, length_, length_, nodes.data());
          ends_->store(nodes.data(), count, result_, place.out, kept_.inner_out_stride());
        });
      });
      return;
    }
    struct State {
      Buffer elements, nodes;
    };
    const bool in_runs = direct_ && reduced_.inner_stride() == 1 && reduced_.inner_size() >= kLongRun;
    const int64_t buffered = (in_runs ? kStripedChunks : 1) * kChunk * kernels_->element_size;
    split(outputs_, 1,
          step([&] { return State{Buffer(buffered), Buffer(kUnit / kChunk * ends_->node_size)}; },
               [&](const State& state, int64_t group, int64_t first, int64_t count, char* nodes) {
                 const int64_t base = kept_.place(group).offset, chunks = ceil_div(count, kChunk);
                 int64_t c = 0;
                 const auto node = [&] { return state.nodes.data() + c * ends_->node_size; };
                 if (in_runs) {
                   for (Walk walk(reduced_, first); (c + 1) * kChunk <= count;) {
                     const int64_t here = std::min(count / kChunk - c, kStripedChunks);
                     striped(base, walk, here, state.elements.data(), node());
                     c += here;
                   }
                 }
                 for (; c < chunks; ++c) {
                   const int64_t elements = std::min(kChunk, count - c * kChunk);
                   gather(base, 1, 0, first + c * kChunk, elements, state.elements.data());
                   kernels_->rows(state.elements.data(), 1, 0, elements, node());
                 }
                 ends_->fold(state.nodes.data(), chunks, 1);
                 std::copy_n(state.nodes.data(), ends_->node_size, nodes);
               }),
          [&](int64_t group, const char* nodes) { ends_->store(nodes, 1, result_, kept_.place(group).out, 1); });
  }

  const char* x_;
  Dims kept_, reduced_;
  int64_t length_, outputs_;
  DType target_;
  Result result_;
  int parts_;  // of an element that is gathered: 2 for complex numbers
  bool direct_;
  int element_size_;
  const Kernels* kernels_;
  const Ends* ends_;
  Gather gather_;
};

}  // namespace
}  // namespace cpu

void reduce_on_cpu(Op op, Arithmetic arithmetic, DType dtype, DType target, bool converting, const void* input,
                   const Geometry& geometry, const Result& result) {
  if (arithmetic == Arithmetic::exact) {
    reduce_exactly_on_cpu(op, dtype, target, converting, input, geometry, result);
  } else {
    cpu::Reduction(op, arithmetic, dtype, target, converting, input, geometry, result).run();
  }
}

}  // namespace treduce::reduce
