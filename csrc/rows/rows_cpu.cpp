// Idea: a row is taken in units of whole chunks. A unit is widened to accumulators, mapped in a loop that the compiler makes vectors of,
//       and folded by the kernels of reduce/pairwise_cpu.h; the nodes of units meet by neighbours.
//
// Mapping: a task is some rows. A row that fits a unit is widened once.
#include "rows_cpu.h"

#include <algorithm>
#include <vector>

#include "../common/cpu_features.h"
#include "../common/parallel.h"
#include "../primitives/neighbours.h"
#include "../reduce/pairwise.h"
#include "../reduce/pairwise_cpu.h"
#include "loops_cpu.h"

namespace treduce::rows {
namespace {

constexpr int64_t kUnit = 4 * reduce::Pairwise::kChunk;
static_assert(kUnit <= reduce::kMostOfRun);

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
  static constexpr bool kDouble = sizeof(A) == 8;
  static constexpr DType kAccumulator = kDouble ? DType::float64 : DType::float32;

 public:
  Task(const Request& r, const Pointers& p)
      : r_(r),
        p_(p),
        problem_(r.problem),
        loops_(*table().loops(r.op, kDouble)),
        conversions_(*table().conversions(r.dtype)),
        size_(size_of(r.dtype)),
        unit_(std::min(kUnit, problem_.length)),
        scratch_(static_cast<size_t>((O::kInputs + 4) * unit_)) {
    A* next = scratch_.data();
    const auto take = [&](A*& buffer) {
      buffer = next;
      next += unit_;
    };
    for (int i = 0; i < O::kInputs; ++i) take(in_[i]);
    for (A** buffer : {&weight_, &bias_, &first_, &second_}) take(*buffer);
  }

  void run(int64_t begin, int64_t end) {
    if (problem_.length <= kUnit) read_weights(0, problem_.length);
    for (int64_t row = begin; row < end; ++row) one(row);
  }

 private:
  void one(int64_t row) {
    Values values = {};
    if constexpr (O::kRowInputs > 0) {
      for (int i = 0; i < O::kRowInputs; ++i) O::begin(values, i, static_cast<const A*>(p_.row_in[i])[row]);
    }
    for (int i = 0; i < O::kInputs; ++i) {
      rows_[i] = static_cast<const char*>(p_.in[i]) + problem_.in[i].row(row, problem_.inner) * size_;
    }
    if (problem_.length <= kUnit) read(0, problem_.length);
    const Constants<A> constants{static_cast<A>(problem_.eps), problem_.length};
    stage<0>(values, constants);
    if constexpr (O::kStages > 1) stage<1>(values, constants);
    if constexpr (O::kHasElements) {
      char* const out = static_cast<char*>(p_.out) + problem_.out.row(row, problem_.inner) * size_;
      const int64_t step = problem_.out.element_stride;
      units([&](int64_t at, int64_t count) {
        loops_.output(held_, weight(), problem_.has_bias ? bias_ : nullptr, &values, count, first_);
        conversions_.round(first_, count, out + at * step * size_, step);
      });
      if constexpr (O::kRowOutputs > 0) {
        for (int i = 0; i < O::kRowOutputs; ++i) static_cast<A*>(p_.row_out[i])[row] = O::row_output(values, i);
      }
    } else {
      const A result = O::row_output(values, 0);
      conversions_.round(&result, 1, static_cast<char*>(p_.out) + problem_.out.row(row, problem_.inner) * size_, 1);
    }
  }

  const A* weight() const { return problem_.has_weight ? weight_ : nullptr; }

  // Reads `count` elements from `at` on of each input.
  void read(int64_t at, int64_t count) {
    for (int i = 0; i < O::kInputs; ++i) {
      const int64_t step = problem_.in[i].element_stride;
      const char* const from = rows_[i] + at * step * size_;
      if (step == 1 && size_ == sizeof(A)) {
        held_[i] = from;
      } else {
        conversions_.widen(from, step, count, in_[i]);
        held_[i] = in_[i];
      }
    }
  }
  void read_weights(int64_t at, int64_t count) {
    const auto widen = [&](const void* from, A* to) {
      conversions_.widen(static_cast<const char*>(from) + at * size_, 1, count, to);
    };
    if (problem_.has_weight) widen(p_.weight, weight_);
    if (problem_.has_bias) widen(p_.bias, bias_);
  }

  // Calls body(first element, elements) for each unit of the row, once it is read.
  template <class Body>
  void units(Body body) {
    if (problem_.length <= kUnit) return body(0, problem_.length);
    for (int64_t at = 0; at < problem_.length; at += kUnit) {
      const int64_t count = std::min(kUnit, problem_.length - at);
      read(at, count);
      read_weights(at, count);
      body(at, count);
    }
  }

  template <int kStage>
  void stage(Values& values, const Constants<A>& constants) {
    using Fold = typename O::template Fold<kStage>;
    constexpr bool kMax = std::is_same_v<Fold, Max<A>>;
    static const reduce::FoldRuns fold = reduce::fold_runs(kMax ? reduce::Op::amax : reduce::Op::sum, kAccumulator);
    Neighbours<Fold, 40> nodes;
    units([&](int64_t, int64_t count) {
      if constexpr (kMax) {  // of the elements as they are
        A node;
        fold(held_[0], 1, 0, count, &node);
        nodes.push(node);
      } else {
        loops_.map[kStage](held_, weight(), &values, count, first_, second_);
        if constexpr (std::is_same_v<Fold, SumTwo<A>>) {
          Two<A> node;
          fold(first_, 1, 0, count, &node.first);
          fold(second_, 1, 0, count, &node.second);
          nodes.push(node);
        } else {
          A node;
          fold(first_, 1, 0, count, &node);
          nodes.push(node);
        }
      }
    });
    O::template result<kStage>(values) = O::template finish<kStage>(values, nodes.value(), constants);
  }

  const Request& r_;
  const Pointers& p_;
  const Problem& problem_;
  const cpu::Loops& loops_;
  const cpu::Conversions& conversions_;
  const int64_t size_, unit_;
  std::vector<A> scratch_;
  A* in_[kMostInputs] = {};
  A *weight_ = nullptr, *bias_ = nullptr, *first_ = nullptr, *second_ = nullptr;
  const char* rows_[kMostInputs] = {};
  const void* held_[kMostInputs] = {};
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
    to[i] = canonical(function == Function::log ? elementary::log(from[i]) : elementary::rsqrt(from[i]));
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
