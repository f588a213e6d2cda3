// Exact sums on the CPU: superaccumulators of threads, added and rounded once.
#include "exact_cpu.h"

#include <algorithm>
#include <vector>

#include "../common/parallel.h"
#include "../common/round.h"
#include "elements.h"
#include "exact.h"

namespace treduce::reduce {
namespace {

// Superaccumulators that one core feeds side by side: neighbouring outputs, or parts of one output. Additions to one
// cell wait for each other, additions to several do not.
constexpr int kSinks = 8;
constexpr int64_t kAtOnce = 1024;  // elements between two looks at the sinks' room
constexpr int64_t kElementsATask = 32768;

template <class Source>
class Run {
  using Element = typename Source::Element;
  static constexpr int kRows = exact::Traits<Element>::kRows;
  using Cells = std::vector<int64_t>;  // row r of sink s at r * kSinks + s

 public:
  Run(const Source& x, const Geometry& g, const Result& result) : x_(x), g_(g), result_(result) {
    columns_ = exact::outputs_side_by_side(g);
    outputs_a_tile_ = columns_ ? kSinks : 1;
  }

  void operator()() {
    const int64_t tiles = ceil_div(g_.outputs, outputs_a_tile_);
    const int64_t work = std::max<int64_t>(g_.length * outputs_a_tile_, 1);
    // Long outputs are split where there are too few of them for the cores.
    int64_t splits = 1;
    const int64_t cores = thread_count();
    if (tiles > 0 && tiles < 4 * cores) {
      splits = std::max<int64_t>(std::min(ceil_div(4 * cores, tiles), work / kElementsATask), 1);
    }
    const int64_t span = ceil_div(g_.length, splits);
    std::vector<Cells> partials(splits > 1 ? tiles * splits : 0);
    const int64_t grain = std::max<int64_t>(kElementsATask / std::max<int64_t>(work / splits, 1), 1);
    parallel_for(0, tiles * splits, grain, [&](int64_t begin, int64_t end) {
      Cells cells(kRows * kSinks);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t tile = task / splits, first = task % splits * span;
        gather(tile * outputs_a_tile_, first, std::min(first + span, g_.length), cells.data());
        if (splits == 1) {
          finish(tile, cells.data());
        } else {
          Cells& partial = partials[task];
          partial.resize(kRows * kSinks);
          for (int s = 0; s < kSinks; ++s) {
            for (int r = 0; r < kRows; ++r) {
              partial[r * kSinks + s] = exact::carried<Element>(cells.data() + s, kSinks, r);
            }
          }
        }
      }
    });
    if (splits == 1) return;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      Cells& total = partials[tile * splits];
      for (int64_t split = 1; split < splits; ++split) {
        for (int c = 0; c < kRows * kSinks; ++c) total[c] += partials[tile * splits + split][c];
      }
      finish(tile, total.data());
    }
  }

 private:
  // Elements begin .. end of the outputs from `output` on, into one sink each; or of one output into all sinks in turn.
  void gather(int64_t output, int64_t begin, int64_t end, int64_t* cells) {
    exact::Sink<Element> sinks[kSinks] = {{cells, kSinks},     {cells + 1, kSinks}, {cells + 2, kSinks},
                                          {cells + 3, kSinks}, {cells + 4, kSinks}, {cells + 5, kSinks},
                                          {cells + 6, kSinks}, {cells + 7, kSinks}};
    const int64_t inner = g_.reduced.inner_size(), stride = g_.reduced.count > 0 ? g_.reduced.inner_stride() : 0;
    const int outputs = static_cast<int>(std::min<int64_t>(outputs_a_tile_, g_.outputs - output));
    int64_t base[kSinks];
    for (int s = 0; s < outputs; ++s) base[s] = g_.kept.offset(output + s);
    for (int64_t e = begin; e < end;) {
      const int64_t count = std::min({inner - e % inner, end - e, kAtOnce});
      const int64_t offset = g_.reduced.offset(e);
      for (auto& sink : sinks) sink.reserve(static_cast<int>(columns_ ? count : count / kSinks + kSinks));
      if (columns_) {
        for (int64_t i = 0; i < count; ++i) {
          for (int s = 0; s < outputs; ++s) sinks[s].add(x_.at(base[s] + offset + i * stride));
        }
      } else {
        int64_t i = 0;
        for (; i + kSinks <= count; i += kSinks) {
          for (int s = 0; s < kSinks; ++s) sinks[s].add(x_.at(base[0] + offset + (i + s) * stride));
        }
        for (; i < count; ++i) sinks[0].add(x_.at(base[0] + offset + i * stride));
      }
      e += count;
    }
    for (auto& sink : sinks) sink.close();
  }

  void finish(int64_t tile, int64_t* cells) {
    if (!columns_) {
      for (int r = 0; r < kRows; ++r) {
        for (int s = 1; s < kSinks; ++s) cells[r * kSinks] += cells[r * kSinks + s];
      }
    }
    const int64_t first = tile * outputs_a_tile_;
    for (int64_t o = first; o < std::min(first + outputs_a_tile_, g_.outputs); ++o) {
      exact::store<Element>(result_, cells + (o - first), kSinks, g_.kept_out.offset(o));
    }
  }

  const Source& x_;
  const Geometry& g_;
  const Result& result_;
  bool columns_;
  int64_t outputs_a_tile_;
};

template <class Source>
void run(const Source& x, const Geometry& g, const Result& result) {
  Run<Source>(x, g, result)();
}

}  // namespace

void reduce_exactly_on_cpu(Op, DType dtype, DType target, bool converting, const void* input, const Geometry& geometry,
                           const Result& result) {
  if (converting) {
    switch (target) {
      case DType::float64: return run(Converted<double>{input, dtype, target}, geometry, result);
      case DType::complex64: return run(Converted<complex64>{input, dtype, target}, geometry, result);
      case DType::complex128: return run(Converted<complex128>{input, dtype, target}, geometry, result);
      default: return run(Converted<float>{input, dtype, target}, geometry, result);
    }
  }
  dispatch_all(dtype, [&](auto type) {
    using In = typename decltype(type)::type;
    if constexpr (!std::is_integral_v<Accumulator<In>>) {
      run(Elements<In>{static_cast<const In*>(input)}, geometry, result);
    }
  });
}

}  // namespace treduce::reduce
