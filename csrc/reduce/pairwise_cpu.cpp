// Idea: the 128 lanes of pairwise.h are lanes of vectors here. What is near in memory is read together: rows chunk by chunk, many
//       columns at a time, few columns as one run. Elements that lie apart, or that must be converted, are first gathered into a
//       buffer, a chunk at a time.
//
// Mapping: a task is a tile of outputs (a row, or some columns) or a unit of one: an aligned run of 2^k chunks. The result of a
//          unit is a node of the tree, so the number of threads changes no bit.
#include "pairwise_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../common/cpu_features.h"
#include "../common/parallel.h"
#include "../common/round.h"
#include "pairwise_cpu_dims.h"
#include "pairwise_cpu_gather.h"
#include "pairwise_cpu_kernels.h"
#include "pairwise_cpu_nodes.h"

namespace treduce::reduce {
namespace cpu {
namespace {

constexpr int64_t kChunk = Pairwise::kChunk, kLanes = Pairwise::kLanes;
constexpr int64_t kGathered = 4096;  // elements of short rows that are gathered at once
constexpr int64_t kGatheredColumns = 16;
constexpr int64_t kUnitsTogether = 16;  // of a long row, to a call
constexpr int64_t kChunksOfRuns = 8;    // that are reduced at once where elements are runs
constexpr int64_t kShortRun = 256;      // elements: the end of a run cuts half of the stripes, or more
constexpr int64_t kAskedOfRun = 1024;   // bytes; then hardware has seen that it goes on
constexpr int64_t kTileBytes = 16384;   // of a row of nodes, so that several levels of the tree fit the L2
constexpr int64_t kLeastTile = 256;     // columns

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

const Kernels* find_kernels(Op op, Arithmetic arithmetic, DType dtype) {
  switch (instruction_set()) {
#ifdef __x86_64__
    case InstructionSet::avx512: return avx512::find(op, arithmetic, dtype);
    case InstructionSet::avx2: return avx2::find(op, arithmetic, dtype);
#endif
    default: return baseline::find(op, arithmetic, dtype);
  }
}

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
    } else if (is_complex_dtype(dtype)) {
      if (length_ == 1 || columns_are_nearer() ||
          find_kernels(op, arithmetic, dtype) == nullptr) {  // two numbers side by side
        kernel_dtype = accumulator_of(dtype);
        kept_.split_complex(true);
        reduced_.split_complex(false);
        outputs_ *= 2;
      }
    }
    kernels_ = find_kernels(op, arithmetic, kernel_dtype);
    if (!converting && kernels_ == nullptr) {  // widen first
      converting = true;
      target_ = kernel_dtype = accumulator_of(dtype);
      kernels_ = find_kernels(op, arithmetic, kernel_dtype);
    }
    element_size_ = converting ? static_cast<int>(size_of(dtype)) : kernels_->element_size;
    gather_ = converting ? converter_of(dtype, target_) : copier_of(element_size_);
    if (converting && is_complex_dtype(target_)) parts_ = 2;
    direct_ = !converting;
    // Complex results are written as what their parts are.
    if (result_.dtype == DType::complex64) result_.dtype = DType::float32;
    if (result_.dtype == DType::complex128) result_.dtype = DType::float64;
    ops_ = node_ops(op, arithmetic, kernel_dtype);
  }

  void run() {
    const int64_t across = kept_.inner_size();
    const bool side_by_side = kept_.count > 0 && kept_.inner_stride() == 1;
    const bool run = reduced_.count == 0 || reduced_.inner_stride() == 1;
    if (direct_ && run && reduced_.count <= 1) return rows();
    if (direct_ && !run && side_by_side) {
      const bool dense = reduced_.count == 1 && reduced_.inner_stride() == across;
      if (dense && across <= kernels_->narrow_columns) return narrow();
      if (across >= kernels_->width) return columns();
    }
    if (parts_ > 1 || columns_are_nearer()) return gathered_columns();
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

  // Whether elements of neighbouring outputs lie nearer to each other than those of an output.
  bool columns_are_nearer() const {
    const int64_t along = reduced_.inner_stride(), across = kept_.inner_stride();
    return along != 1 && kept_.count > 0 && across > 0 && (along == 0 || across < along);
  }

  const char* at(int64_t offset) const { return x_ + offset * element_size_; }

  // Elements of a unit, where there are `tiles` tiles of `width` outputs.
  int64_t unit_of(int64_t tiles, int64_t width) const {
    int64_t unit = kUnit;
    const int64_t enough = 8 * thread_count();
    while (unit > 8 * kChunk && tiles * ceil_div(length_, unit) < enough) unit /= 2;
    while (unit > kChunk && unit * width > 8 * kElementsATask && tiles * ceil_div(length_, unit) < enough) unit /= 2;
    return unit;
  }

  // Runs tasks on all threads: each is a unit of a tile. A thread calls reduce.start() once for its scratch;
  // reduce(scratch, tile, first element, elements, nodes) writes the nodes of `together` units, and store(tile, nodes) takes the
  // folded nodes of a tile.
  template <class Reduce, class Store>
  void split(int64_t tiles, int64_t width, const Reduce& reduce, const Store& store, int64_t together = 1) const {
    const int64_t unit = unit_of(tiles, width);
    const int64_t units = ceil_div(length_, unit);
    const int64_t node_bytes = width * ops_->node_size;
    const int64_t grain = std::max<int64_t>(kElementsATask / (std::min(unit, length_) * width), 1);
    if (units == 1) {
      parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
        const auto state = reduce.start();
        const Buffer nodes(node_bytes);
        for (int64_t tile = begin; tile < end; ++tile) {
          reduce(state, tile, 0, length_, nodes.data());
          store(tile, nodes.data());
        }
      });
      return;
    }
    const Buffer nodes(tiles * units * node_bytes);
    parallel_for(0, tiles * units, grain, [&](int64_t begin, int64_t end) {
      const auto state = reduce.start();
      for (int64_t t = begin; t < end;) {
        const int64_t tile = t / units, u = t - tile * units, here = std::min({together, units - u, end - t});
        reduce(state, tile, u * unit, std::min(here * unit, length_ - u * unit), nodes.data() + t * node_bytes);
        t += here;
      }
    });
    parallel_for(0, tiles, std::max<int64_t>(kElementsATask / (units * width), 1), [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile) {
        char* const mine = nodes.data() + tile * units * node_bytes;
        ops_->fold(mine, units, width);
        store(tile, mine);
      }
    });
  }

  // Calls body(place, count) for runs of outputs along the innermost kept dim, of `most` at most: where the first one lies, and
  // how many they are.
  template <class Body>
  void runs(int64_t begin, int64_t end, int64_t most, const Body& body) const {
    while (begin < end) {
      const StridedDims::Place place = kept_.place(begin);
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
    void operator()(const State& state, int64_t tile, int64_t first, int64_t count, char* nodes) const {
      body(state, tile, first, count, nodes);
    }
  };
  template <class Start, class Body>
  static Step<Start, Body> step(Start start, Body body) {
    return {start, body};
  }

  // Each output is one run of memory.
  void rows() const {
    const int64_t stride = kept_.inner_stride();
    if (length_ <= kUnit / 4 || (length_ <= kUnit && unit_of(outputs_, 1) == kUnit)) {  // no row is divided
      constexpr int64_t kAtOnce = 512;
      parallel_for(0, outputs_, std::max<int64_t>(kElementsATask / length_, 1), [&](int64_t begin, int64_t end) {
        alignas(64) char nodes[kAtOnce * 16];
        runs(begin, end, kAtOnce, [&](const StridedDims::Place& place, int64_t count) {
          kernels_->rows(at(place.offset), count, stride, length_, nodes);
          ops_->store(nodes, count, result_, place.out, kept_.inner_out_stride());
        });
      });
      return;
    }
    const int64_t unit = unit_of(outputs_, 1);
    split(
        outputs_, 1,
        step([] { return 0; },
             [&](int, int64_t output, int64_t first, int64_t count, char* nodes) {
               const char* const x = at(kept_.place(output).offset + first);
               const int64_t units = count / unit, rest = count % unit;
               kernels_->rows(x, units, unit, unit, nodes);
               if (rest == 0) return;
               kernels_->rows(x + units * unit * element_size_, 1, 0, rest, nodes + units * ops_->node_size);
             }),
        [&](int64_t output, const char* nodes) { ops_->store(nodes, 1, result_, kept_.place(output).out, 1); },
        kUnitsTogether);
  }

  // Few columns whose rows lie one after another.
  void narrow() const {
    const int64_t across = kept_.inner_size();
    split(outputs_ / across, across,
          step([&] { return Buffer(kernels_->narrow_scratch); },
               [&](const Buffer& scratch, int64_t tile, int64_t first, int64_t count, char* nodes) {
                 kernels_->narrow(at(kept_.place(tile * across).offset + first * across), count, across, scratch.data(),
                                  nodes);
               }),
          [&](int64_t tile, const char* nodes) {
            ops_->store(nodes, across, result_, kept_.place(tile * across).out, kept_.inner_out_stride());
          });
  }

  // Where row e of columns lies, for e from `first` on.
  void offsets(int64_t first, int64_t count, int64_t* result) const {
    const int64_t stride = reduced_.inner_stride();
    for (int64_t e = 0; e < count;) {
      const StridedDims::Place place = reduced_.place(first + e);
      const int64_t run = std::min(place.left, count - e);
      for (int64_t i = 0; i < run; ++i) result[e + i] = place.offset + i * stride;
      e += run;
    }
  }

  void columns() const {
    const int64_t across = kept_.inner_size(), runs = outputs_ / across;
    // Memory is read fastest in long runs; halve the tiles until each core has some.
    int64_t wanted = kTileBytes / ops_->node_size;
    const int64_t enough = 4 * thread_count();
    while (wanted > kLeastTile && runs * ceil_div(length_, kChunk) * (across / wanted) < enough) wanted /= 2;
    const int64_t tiles_a_run = std::max<int64_t>(across / wanted, 1);  // the last takes what is left, too
    const int64_t width = tiles_a_run == 1 ? across : wanted;
    const auto first_output = [&](int64_t tile, int64_t& count) {
      const int64_t in_run = tile % tiles_a_run;
      count = in_run + 1 < tiles_a_run ? width : across - in_run * width;
      return tile / tiles_a_run * across + in_run * width;
    };
    struct State {
      Buffer scratch, offsets;
    };
    const bool listed = reduced_.count > 1;
    const int64_t most = std::max(width, across - (tiles_a_run - 1) * width);
    split(runs * tiles_a_run, most,
          step(
              [&] {
                return State{Buffer(kernels_->columns_scratch(std::min(kUnit, length_), most)),
                             Buffer(listed ? std::min(kUnit, length_) * 8 : 0)};
              },
              [&](const State& state, int64_t tile, int64_t first, int64_t count, char* nodes) {
                int64_t here;
                const int64_t base = kept_.place(first_output(tile, here)).offset;
                if (listed) {
                  int64_t* const list = reinterpret_cast<int64_t*>(state.offsets.data());
                  offsets(first, count, list);
                  kernels_->columns(at(base), list, 0, count, here, state.scratch.data(), nodes);
                } else {
                  const int64_t pitch = reduced_.inner_stride();
                  kernels_->columns(at(base + first * pitch), nullptr, pitch, count, here, state.scratch.data(), nodes);
                }
              }),
          [&](int64_t tile, const char* nodes) {
            int64_t here;
            const int64_t first = first_output(tile, here);
            ops_->store(nodes, here, result_, kept_.place(first).out, kept_.inner_out_stride());
          });
  }

  // Elements first .. first + count of the `columns` outputs at `offset` of the innermost kept dim, row by row.
  void gather(int64_t offset, int64_t columns, int64_t column, int64_t first, int64_t count, char* to) const {
    const int64_t bytes = columns * parts_ * kernels_->element_size;
    for (int64_t e = 0; e < count;) {
      const StridedDims::Place place = reduced_.place(first + e);
      int64_t run = std::min(place.left, count - e);
      const int64_t inner = reduced_.inner_size();
      const int64_t whole = (count - e) / std::max<int64_t>(inner, 1);
      if (columns == 1 && reduced_.count > 1 && place.left == inner && whole > 1) {
        // Two dims at once.
        const int d = reduced_.count - 2;
        const int64_t left = reduced_.size[d] - (first + e) / inner % reduced_.size[d];
        const int64_t rows = std::min(whole, left);
        gather_(at(offset + place.offset), {rows, reduced_.stride[d], inner, reduced_.inner_stride(), inner}, target_,
                to);
        run = rows * inner;
      } else if (columns == 1) {
        gather_(at(offset + place.offset), {1, 0, run, reduced_.inner_stride(), run}, target_, to);
      } else {
        gather_(at(offset + place.offset), {run, reduced_.inner_stride(), columns, column, columns}, target_, to);
      }
      e += run;
      to += run * bytes;
    }
  }

  // Columns that are not side by side, or must be converted: tiles of a few columns and a chunk of rows.
  void gathered_columns() const {
    const int64_t across = kept_.inner_size();
    const int64_t width = std::min({across, kGatheredColumns, kernels_->narrow_columns / parts_});
    const int64_t tiles_a_run = ceil_div(across, width);
    struct State {
      Buffer elements, scratch, nodes;
    };
    const auto first_output = [&](int64_t tile, int64_t& count) {
      const int64_t in_run = tile % tiles_a_run;
      count = std::min(width, across - in_run * width);
      return tile / tiles_a_run * across + in_run * width;
    };
    const int64_t all = width * parts_;
    split(outputs_ / across * tiles_a_run, all,
          step(
              [&] {
                return State{Buffer(std::min(length_, kChunk) * all * kernels_->element_size),
                             Buffer(kernels_->narrow_scratch), Buffer(kUnit / kChunk * all * ops_->node_size)};
              },
              [&](const State& state, int64_t tile, int64_t first, int64_t count, char* nodes) {
                int64_t here;
                const int64_t base = kept_.place(first_output(tile, here)).offset;
                const int64_t bytes = here * parts_ * ops_->node_size;
                const int64_t chunks = ceil_div(count, kChunk);
                for (int64_t c = 0; c < chunks; ++c) {
                  const int64_t rows = std::min(kChunk, count - c * kChunk);
                  gather(base, here, kept_.inner_stride(), first + c * kChunk, rows, state.elements.data());
                  kernels_->narrow(state.elements.data(), rows, here * parts_, state.scratch.data(),
                                   state.nodes.data() + c * bytes);
                }
                ops_->fold(state.nodes.data(), chunks, here * parts_);
                std::copy_n(state.nodes.data(), bytes, nodes);
              }),
          [&](int64_t tile, const char* nodes) {
            int64_t here;
            const int64_t out = kept_.place(first_output(tile, here)).out * parts_;
            const int64_t stride = kept_.inner_out_stride() * parts_;
            if (parts_ == 1) {
              ops_->store(nodes, here, result_, out, stride);
            } else {
              for (int64_t c = 0; c < here; ++c) {
                ops_->store(nodes + c * parts_ * ops_->node_size, parts_, result_, out + c * stride, 1);
              }
            }
          });
  }

  // Copies elements together, and returns where they end.
  char* copy_runs(int64_t base, RunWalk& walk, int64_t elements, char* to) const {
    while (elements > 0) {
      const int64_t here = std::min(walk.left(), elements);
      memcpy(to, at(base + walk.offset()), here * element_size_);
      to += here * element_size_;
      elements -= here;
      walk.advance(here);
    }
    return to;
  }

  void whole_stripes(const char* from, int64_t count, Stripe* stripes) const {
    for (int64_t s = 0; s < count; ++s) stripes[s] = {from + s * kLanes * element_size_, nullptr, kLanes};
  }

  // The stripes of a chunk. The end of a run cuts one, whose other elements begin the next run.
  void stripes_of_runs(int64_t base, RunWalk& walk, Stripe* stripes) const {
    for (int64_t s = 0; s < Pairwise::kStripes;) {
      const char* const begin = at(base + walk.offset());
      const int64_t left = walk.left(), whole = std::min(left / kLanes, Pairwise::kStripes - s);
      if (whole > 0) {
        whole_stripes(begin, whole, stripes + s);
        walk.advance(whole * kLanes);
        s += whole;
      } else {
        walk.advance(left);
        stripes[s++] = {begin, at(base + walk.offset()), left};
        walk.advance(kLanes - left);
      }
    }
  }

  // The nodes of `count` elements of an output that are runs of memory. Chunks of short runs are copied together first; of others stripes are
  // read where they lie. Hardware does not know where the next runs begin, so their first lines are asked for.
  void in_runs(int64_t base, int64_t first, int64_t count, char* buffer, char* nodes) const {
    RunWalk walk(reduced_, first), ahead(reduced_, first);
    const auto ask = [&](int64_t elements) {
      while (elements > 0) {
        const int64_t left = ahead.left(), here = std::min(left, elements);
        if (left == reduced_.inner_size()) {
          const char* const run = at(base + ahead.offset());
          for (int64_t b = 0; b < std::min(left * element_size_, kAskedOfRun); b += 64)
            __builtin_prefetch(run + b, 0, 2);
        }
        ahead.advance(here);
        elements -= here;
      }
    };
    ask(std::min(count, kChunk));
    const bool short_runs = reduced_.inner_size() < kShortRun;
    int64_t done = 0;
    while (done + kChunk <= count) {
      Stripe stripes[kChunksOfRuns * Pairwise::kStripes];
      char* to = buffer;
      int64_t chunks = 0;
      for (; chunks < kChunksOfRuns && done + kChunk <= count; ++chunks, done += kChunk) {
        ask(std::min(kChunk, count - done - kChunk));
        Stripe* const of_chunk = stripes + chunks * Pairwise::kStripes;
        if (short_runs) {
          whole_stripes(to, Pairwise::kStripes, of_chunk);
          to = copy_runs(base, walk, kChunk, to);
        } else {
          stripes_of_runs(base, walk, of_chunk);
        }
      }
      kernels_->stripes(stripes, chunks, nodes);
      nodes += chunks * ops_->node_size;
    }
    if (done < count) {
      copy_runs(base, walk, count - done, buffer);
      kernels_->rows(buffer, 1, 0, count - done, nodes);
    }
  }

  // Rows whose elements are not one run, or must be converted: chunk by chunk, or many short ones at once.
  void gathered_rows() const {
    if (length_ <= kChunk) {
      const int64_t at_once = std::max<int64_t>(kGathered / length_, 1);
      parallel_for(0, outputs_, std::max<int64_t>(kElementsATask / length_, 1), [&](int64_t begin, int64_t end) {
        const Buffer elements(at_once * length_ * kernels_->element_size), nodes(at_once * ops_->node_size);
        runs(begin, end, at_once, [&](const StridedDims::Place& place, int64_t count) {
          if (reduced_.count <= 1) {
            gather_(at(place.offset), {count, kept_.inner_stride(), length_, reduced_.inner_stride(), length_}, target_,
                    elements.data());
          } else {
            // Run by run, of all rows: neighbouring outputs often lie side by side.
            RunWalk walk(reduced_, 0);
            for (int64_t e = 0; e < length_; e += reduced_.inner_size()) {
              gather_(at(place.offset + walk.offset()),
                      {count, kept_.inner_stride(), reduced_.inner_size(), reduced_.inner_stride(), length_}, target_,
                      elements.data() + e * kernels_->element_size);
              walk.advance(reduced_.inner_size());
            }
          }
          kernels_->rows(elements.data(), count, length_, length_, nodes.data());
          ops_->store(nodes.data(), count, result_, place.out, kept_.inner_out_stride());
        });
      });
      return;
    }
    struct State {
      Buffer elements, nodes;
    };
    const bool of_runs = direct_ && reduced_.inner_stride() == 1;
    const int64_t buffered = (of_runs ? kChunksOfRuns : 1) * kChunk * kernels_->element_size;
    split(outputs_, 1,
          step([&] { return State{Buffer(buffered), Buffer(kUnit / kChunk * ops_->node_size)}; },
               [&](const State& state, int64_t output, int64_t first, int64_t count, char* nodes) {
                 const int64_t base = kept_.place(output).offset, chunks = ceil_div(count, kChunk);
                 if (of_runs) {
                   in_runs(base, first, count, state.elements.data(), state.nodes.data());
                 } else {
                   for (int64_t c = 0; c < chunks; ++c) {
                     const int64_t elements = std::min(kChunk, count - c * kChunk);
                     gather(base, 1, 0, first + c * kChunk, elements, state.elements.data());
                     kernels_->rows(state.elements.data(), 1, 0, elements, state.nodes.data() + c * ops_->node_size);
                   }
                 }
                 ops_->fold(state.nodes.data(), chunks, 1);
                 std::copy_n(state.nodes.data(), ops_->node_size, nodes);
               }),
          [&](int64_t output, const char* nodes) { ops_->store(nodes, 1, result_, kept_.place(output).out, 1); });
  }

  const char* x_;
  StridedDims kept_, reduced_;
  int64_t length_, outputs_;
  DType target_;
  Result result_;
  int parts_;  // of an element that is gathered: 2 for complex numbers
  bool direct_;
  int element_size_;
  const Kernels* kernels_;
  const NodeOps* ops_;
  Gather gather_;
};

}  // namespace
}  // namespace cpu

void reduce_on_cpu(Op op, Arithmetic arithmetic, DType dtype, DType target, bool converting, const void* input,
                   const Geometry& geometry, const Result& result) {
  cpu::Reduction(op, arithmetic, dtype, target, converting, input, geometry, result).run();
}

FoldRuns fold_runs(Op op, DType accumulator) {
  static_assert(kMostOfRun == cpu::kUnit);
  return cpu::find_kernels(op, Arithmetic::plain, accumulator)->rows;
}

}  // namespace treduce::reduce
