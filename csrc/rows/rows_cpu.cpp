// Idea: a row is taken in units of whole chunks. A unit is widened to accumulators, mapped in a loop that the compiler makes vectors of,
//       and folded by the kernels of reduce/pairwise_cpu.h; the nodes of units meet by neighbours.
//
// Mapping: a task is some rows. A row that fits a unit is widened once, and short ones are folded several at once.
#include "rows_cpu.h"

#include <algorithm>
#include <vector>

#include "../common/cpu_features.h"
#include "../common/parallel.h"
#include "../primitives/neighbours.h"
#include "../reduce/pairwise.h"
#include "../reduce/pairwise_cpu.h"
#include "ladder.h"
#include "loops_cpu.h"

namespace treduce::rows {
namespace {

constexpr int64_t kFittingUnit = 4 * reduce::Pairwise::kChunk;  // which a first cache holds, mapped too
static_assert(kFittingUnit <= reduce::kMostOfRun);
constexpr int64_t kMostAtOnce = 64;  // rows

const cpu::Table& table() {
  static const cpu::Table* const best = [] {
    switch (instruction_set()) {
#ifdef __x86_64__
      case InstructionSet::avx512: return cpu::avx512::table();
      case InstructionSet::avx2: return cpu::avx2::table();
#endif
      default: return cpu::baseline::table();
    }
  }();
  return *best;
}

// The rows of one task, of op O.
template <class O>
class Task {
  using A = typename O::Acc;
  using Values = typename O::Values;
  static_assert(kFittingUnit % kParts == 0 && reduce::kMostOfRun % kParts == 0);
  static constexpr bool kDouble = sizeof(A) == 8;
  static constexpr DType kAccumulator = kDouble ? DType::float64 : DType::float32;
  // What is mapped is wanted again: better from a second cache than by another exp.
  static constexpr int64_t kUnit = O::kMapsToElement ? reduce::kMostOfRun : kFittingUnit;

 public:
  Task(const Request& r, const Pointers& p)
      : r_(r),
        p_(p),
        problem_(r.problem),
        loops_(*table().loops(r.op, kDouble)),
        conversions_(*table().conversions(r.dtype)),
        size_(size_of(r.dtype)),
        unit_(std::min(kUnit, problem_.length)),
        at_once_(rows_at_once()),
        scratch_(static_cast<size_t>((O::kInputs + 2) * at_once_ * unit_ + 2 * unit_)) {
    A* next = scratch_.data();
    const auto take = [&](A*& buffer, int64_t rows) {
      buffer = next;
      next += rows * unit_;
    };
    for (int i = 0; i < O::kInputs; ++i) take(in_[i], at_once_);
    for (A** buffer : {&first_, &second_}) take(*buffer, at_once_);
    for (A** buffer : {&weights_, &biases_}) take(*buffer, 1);
  }

  void run(int64_t begin, int64_t end) {
    if (whole()) read_weights(0, problem_.length);
    for (int64_t row = begin; row < end; row += at_once_) several(row, std::min(at_once_, end - row));
  }

 private:
  bool whole() const { return problem_.length <= kUnit; }
  // Whether the elements of a row are read, or written, where they lie.
  bool in_place(const Layout& layout) const { return layout.element_stride == 1 && size_ == sizeof(A); }
  int64_t rows_at_once() const {
    for (int i = 0; i < O::kInputs; ++i) {
      if (problem_.inner > 1 && in_place(problem_.in[i])) return 1;  // rows of several strides
    }
    return std::clamp<int64_t>(kFittingUnit / problem_.length, 1, kMostAtOnce);
  }

  const char* row_of(int i, int64_t row) const {
    return static_cast<const char*>(p_.in[i]) + problem_.in[i].row(row, problem_.inner) * size_;
  }

  void several(int64_t row, int64_t rows) {
    Values values[kMostAtOnce] = {};
    for (int64_t r = 0; r < rows; ++r) {
      if constexpr (O::kRowInputs > 0) {
        const int lacking = has_mean(r_.op) ? 0 : 1;  // the mean comes first
        for (int i = lacking; i < O::kRowInputs; ++i) {
          O::begin(values[r], i, static_cast<const A*>(p_.row_in[i - lacking])[row + r]);
        }
      }
    }
    row_ = row;
    if (whole()) read(0, problem_.length, rows);
    const Constants<A> constants{static_cast<A>(problem_.eps), problem_.length, has_mean(r_.op), problem_.sums_alone};
    if (r_.row->is_online) {
      for (int64_t r = 0; r < rows; ++r) one_pass(r, values[r], constants);
    } else {
      stage<0>(values, rows, constants);
      if constexpr (O::kStages > 1) stage<1>(values, rows, constants);
    }
    for (int64_t r = 0; r < rows; ++r) write(row + r, r, values[r]);
  }

  void write(int64_t row, int64_t r, Values& values) {
    if constexpr (O::kHasElements) {
      if (wants_elements<O>(problem_)) write_elements(row, r, values);
      if constexpr (O::kRowOutputs > 0) {
        for (int i = 0; i < O::kRowOutputs; ++i) static_cast<A*>(p_.row_out[i])[row] = O::row_output(values, i);
      }
    } else {
      const A result = O::row_output(values, 0);
      conversions_.round(&result, 1, static_cast<char*>(p_.out) + problem_.out.row(row, problem_.inner) * size_, 1);
    }
  }

  void write_elements(int64_t row, int64_t r, Values& values) {
    char* const out = static_cast<char*>(p_.out) + problem_.out.row(row, problem_.inner) * size_;
    const int64_t step = problem_.out.element_stride;
    units(O::kWeight, [&](int64_t at, int64_t count) {
      const void* in[kMostInputs];
      if constexpr (O::kMapsToElement) {
        if (!whole() || r_.row->is_online) {
          held(r, in);
          loops_.map[O::kStages - 1](in, weight_, &values, count, first_ + r * count, second_);
        }
        in[0] = first_ + r * count;
      } else {
        held(r, in);
      }
      char* const to = out + at * step * size_;
      void* const result = in_place(problem_.out) ? static_cast<void*>(to) : second_;
      loops_.output(in, weight_, bias_, &values, count, result);
      if (result != to) conversions_.round(second_, count, to, step);
    });
  }

  // Reads `count` elements from `at` on of each input, of `rows` rows.
  void read(int64_t at, int64_t count, int64_t rows) {
    for (int i = 0; i < O::kInputs; ++i) {
      const Layout& layout = problem_.in[i];
      const int64_t from = at * layout.element_stride * size_;
      if (in_place(layout)) {
        held_[i] = row_of(i, row_) + from;
        stride_[i] = layout.outer_stride;
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        conversions_.widen(row_of(i, row_ + r) + from, layout.element_stride, count, in_[i] + r * count);
      }
      held_[i] = in_[i];
      stride_[i] = count;
    }
  }
  // Where row r of those that are held lies.
  void held(int64_t r, const void** in) const {
    for (int i = 0; i < O::kInputs; ++i) in[i] = static_cast<const A*>(held_[i]) + r * stride_[i];
  }
  void read_weights(int64_t at, int64_t count) {
    const auto read = [&](bool there, const void* from, A* to) -> const A* {
      if (!there) return nullptr;
      const char* const here = static_cast<const char*>(from) + at * size_;
      if (size_ == sizeof(A)) return reinterpret_cast<const A*>(here);
      conversions_.widen(here, 1, count, to);
      return to;
    };
    weight_ = read(problem_.has_weight, p_.weight, weights_);
    bias_ = read(problem_.has_bias, p_.bias, biases_);
  }

  // Calls body(first element, elements) for each unit of the row, once it is read, and where `weighted` what it is multiplied by.
  template <class Body>
  void units(bool weighted, Body body) {
    if (whole()) return body(0, problem_.length);
    for (int64_t at = 0; at < problem_.length; at += kUnit) {
      const int64_t count = std::min(kUnit, problem_.length - at);
      read(at, count, 1);
      if (weighted) read_weights(at, count);
      body(at, count);
    }
  }

  template <int kStage>
  void stage(Values* values, int64_t rows, const Constants<A>& constants) {
    using Fold = typename O::template Fold<kStage>;
    using Acc = typename Fold::Acc;
    static const reduce::FoldRuns fold =
        reduce::fold_runs(std::is_same_v<Fold, Max<A>> ? reduce::Op::amax : reduce::Op::sum, kAccumulator);
    Neighbours<Fold, 40> nodes;  // of a row of several units
    Acc of_rows[kMostAtOnce];
    units(O::kWeightFirst, [&](int64_t, int64_t count) {
      if constexpr (kStage < O::kPlainStages) {
        fold(held_[0], rows, stride_[0], count, of_rows);
      } else {
        for (int64_t r = 0; r < rows; ++r) {
          const void* in[kMostInputs];
          held(r, in);
          loops_.map[kStage](in, weight_, &values[r], count, first_ + r * count, second_ + r * count);
        }
        if constexpr (std::is_same_v<Fold, SumTwo<A>>) {
          A sums[2][kMostAtOnce] = {};
          if (constants.has_mean) fold(first_, rows, count, count, sums[0]);
          fold(second_, rows, count, count, sums[1]);
          for (int64_t r = 0; r < rows; ++r) of_rows[r] = {sums[0][r], sums[1][r]};
        } else {
          fold(first_, rows, count, count, of_rows);
        }
      }
      if (!whole()) nodes.push(of_rows[0]);
    });
    if (!whole()) of_rows[0] = nodes.value();
    for (int64_t r = 0; r < rows; ++r) {
      O::template result<kStage>(values[r]) = O::template finish<kStage>(values[r], of_rows[r], constants);
    }
  }

  // Row r of those that are held, in the order of online.h.
  void one_pass(int64_t r, Values& values, const Constants<A>& constants) {
    typename Online<O>::State parts[kParts];
    std::fill_n(parts, kParts, Online<O>::none());
    units(O::kWeightFirst, [&](int64_t, int64_t count) {
      const void* in[kMostInputs];
      held(r, in);
      loops_.meet(in, weight_, &values, count, parts);
    });
    loops_.meet_parts(parts, &constants, &values);
  }

  const Request& r_;
  const Pointers& p_;
  const Problem& problem_;
  const cpu::Loops& loops_;
  const cpu::Conversions& conversions_;
  const int64_t size_, unit_, at_once_;
  std::vector<A> scratch_;
  A* in_[kMostInputs] = {};
  A *weights_ = nullptr, *biases_ = nullptr, *first_ = nullptr, *second_ = nullptr;
  const A *weight_ = nullptr, *bias_ = nullptr;
  int64_t row_ = 0;  // the first of those that are held
  const void* held_[kMostInputs] = {};
  int64_t stride_[kMostInputs] = {};  // from one row that is held to the next
};

}  // namespace

void run_on_cpu(const Request& request, const Pointers& pointers) {
  const int64_t grain = std::max<int64_t>(kElementsATask / 4 / request.problem.length, 1);
  dispatch_op(request.op, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(0, request.problem.rows, grain, [&](int64_t begin, int64_t end) {
      if (request.dtype == DType::float64) {
        Task<typename T::template Of<double>>(request, pointers).run(begin, end);
      } else {
        Task<typename T::template Of<float>>(request, pointers).run(begin, end);
      }
    });
  });
}

namespace {

template <class A>
void apply(Function function, const A* from, int64_t count, A* to) {
  if (function == Function::exp) return (sizeof(A) == 8 ? table().exp_of_double : table().exp)(from, count, to);
  for (int64_t i = 0; i < count; ++i) {
    const A x = from[i];
    const A y = function == Function::log    ? elementary::log(x)
                : function == Function::sqrt ? elementary::square_root(x)
                                             : elementary::rsqrt(x);
    to[i] = canonical(y);
  }
}

}  // namespace

void apply_on_cpu(Function function, bool is_double, const void* from, int64_t count, void* to) {
  parallel_for(0, count, kElementsATask, [&](int64_t begin, int64_t end) {
    if (is_double) {
      apply(function, static_cast<const double*>(from) + begin, end - begin, static_cast<double*>(to) + begin);
    } else {
      apply(function, static_cast<const float*>(from) + begin, end - begin, static_cast<float*>(to) + begin);
    }
  });
}

}  // namespace treduce::rows
