// What each op computes of a row: its reductions, one after another, and its elements. Host and device compile the same lines.
//
// A stage maps every element of the row, and reduces what it is mapped to: a maximum, which no order changes, or a sum in the order
// of reduce/pairwise.h. map() may replace the element by what the next stage, or the output, begins with; finish() makes of the sum
// what later steps want of the row, which they find in result(). Everything is computed in the accumulator A: float32 for dtypes of up
// to 32 bits, float64 for float64; an output is rounded once.
//
// A map of its own is how an op has its elements changed on their way in: a functor that is applied as they are loaded, as libraries of
// reductions take one, is a row of this table. So are the sums of `norm` and of `var`: those of rms_norm and layer_norm, asked for alone.
#pragma once

#include "../primitives/elementary.h"
#include "../primitives/functors.h"

namespace treduce::rows {

enum class Op : int8_t {
  softmax,
  log_softmax,
  logsumexp,
  layer_norm,
  rms_norm,
  softmax_backward,
  log_softmax_backward,
  layer_norm_backward,
  rms_norm_backward,
};

// The gradient of the RMS norm is that of the layer norm with a mean of zero, and shares its kernels. (Softmax, log_softmax and
// logsumexp in one kernel, or both norms: up to 15 % slower, NVIDIA H200, 2026-11-25.)
constexpr bool has_mean(Op op) { return op != Op::rms_norm_backward; }

// Two sums at once.
template <class A>
struct Two {
  A first, second;
};
template <class A>
struct SumTwo {
  using Acc = Two<A>;
  TREDUCE_HOST_DEVICE static Acc identity() { return {A(0), A(0)}; }
  TREDUCE_HOST_DEVICE static Acc combine(Acc a, Acc b) { return {a.first + b.first, a.second + b.second}; }
};

// The same for all rows of a call.
template <class A>
struct Constants {
  A eps;
  int64_t length;
  bool has_mean;
  bool sums_alone;
};

// What ops have in common, and what most of them do not have.
template <class A, int kInputTensors, int kReductions>
struct RowOp {
  using Acc = A;
  static constexpr int kInputs = kInputTensors, kStages = kReductions;
  static constexpr bool kHasElements = true;             // an output for each element
  static constexpr bool kWeight = false;                 // one for each place in a row
  static constexpr bool kWeightFirst = false;            // it enters the stages, and not the output
  static constexpr bool kBias = false;                   // one for each place in a row, beside the weight
  static constexpr int kRowInputs = 0, kRowOutputs = 0;  // accumulators, one a row
  static constexpr int kPlainStages = 0;                 // the first ones, which reduce the first input as it is
  static constexpr bool kMapsToElement = false;          // what the last stage adds is what the output begins with
  static constexpr int kExpStage = -1;                   // whose map() takes exp of the element less the maximum
  static constexpr bool kExpOutput = false;              // output() takes exp of the last input
  static constexpr bool kKnowsNumbers = false;           // are_numbers() tells whether no output is NaN
  template <int kStage>
  using Fold = Sum<A>;

 protected:
  // Of a nonpositive number, which is_usual() was asked about.
  template <bool kUsual>
  TREDUCE_ALWAYS_INLINE static A exp_of(A x) {
    return kUsual ? elementary::exp_of_usual(x) : elementary::exp_of_nonpositive(x);
  }
};

template <class A>
TREDUCE_ALWAYS_INLINE A mean_of(A sum, int64_t length) {
  return (sum + A(0)) / static_cast<A>(length);
}

// A sum as `sum` stores it.
template <class A>
TREDUCE_ALWAYS_INLINE A sum_of(A sum) {
  return canonical(sum + A(0));
}

// exp(x - max) / sum
template <class A>
struct Softmax : RowOp<A, 1, 2> {
  static constexpr int kPlainStages = 1, kExpStage = 1;
  static constexpr bool kMapsToElement = true;
  template <int kStage>
  using Fold = std::conditional_t<kStage == 0, Max<A>, Sum<A>>;
  struct Values {
    A max, scale;
  };
  template <int kStage, bool kUsual = false>
  TREDUCE_ALWAYS_INLINE static A map(A (&x)[1], A, const Values& row) {
    if constexpr (kStage == 1) x[0] = Softmax::template exp_of<kUsual>(x[0] - row.max);
    return x[0];
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A& result(Values& row) {
    return kStage == 0 ? row.max : row.scale;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A finish(const Values&, A value, const Constants<A>&) {
    return kStage == 0 ? value : A(1) / value;
  }
  template <bool = false>
  TREDUCE_ALWAYS_INLINE static A output(const A (&e)[1], bool, A, bool, A, const Values& row) {
    return elementary::multiply(e[0], row.scale);
  }
  static constexpr bool kKnowsNumbers = true;  // a NaN makes the sum one
  TREDUCE_ALWAYS_INLINE static bool are_numbers(const Values& row) { return row.scale == row.scale; }
};

// x - max - log(sum)
template <class A>
struct LogSoftmax : RowOp<A, 1, 2> {
  static constexpr int kPlainStages = 1, kExpStage = 1;
  template <int kStage>
  using Fold = std::conditional_t<kStage == 0, Max<A>, Sum<A>>;
  struct Values {
    A max, log_sum;
  };
  template <int kStage, bool kUsual = false>
  TREDUCE_ALWAYS_INLINE static A map(A (&x)[1], A, const Values& row) {
    if constexpr (kStage == 0) return x[0];
    x[0] = x[0] - row.max;
    return LogSoftmax::template exp_of<kUsual>(x[0]);
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A& result(Values& row) {
    return kStage == 0 ? row.max : row.log_sum;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A finish(const Values&, A value, const Constants<A>&) {
    return kStage == 0 ? value : elementary::log(value);
  }
  template <bool = false>
  TREDUCE_ALWAYS_INLINE static A output(const A (&d)[1], bool, A, bool, A, const Values& row) {
    return d[0] - row.log_sum;
  }
  static constexpr bool kKnowsNumbers = true;  // a NaN makes the sum one
  TREDUCE_ALWAYS_INLINE static bool are_numbers(const Values& row) { return row.log_sum == row.log_sum; }
};

// max + log(sum of exp(x - max)): a value a row. An infinite maximum is the result.
template <class A>
struct LogSumExp : RowOp<A, 1, 2> {
  static constexpr int kPlainStages = 1, kExpStage = 1;
  static constexpr bool kHasElements = false;
  static constexpr int kRowOutputs = 1;
  template <int kStage>
  using Fold = std::conditional_t<kStage == 0, Max<A>, Sum<A>>;
  struct Values {
    A max, result;
  };
  template <int kStage, bool kUsual = false>
  TREDUCE_ALWAYS_INLINE static A map(A (&x)[1], A, const Values& row) {
    return kStage == 0 ? x[0] : LogSumExp::template exp_of<kUsual>(x[0] - row.max);
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A& result(Values& row) {
    return kStage == 0 ? row.max : row.result;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A finish(const Values& row, A value, const Constants<A>&) {
    if constexpr (kStage == 0) return value;
    const bool infinite = row.max - row.max != A(0) && row.max == row.max;
    return infinite ? row.max : row.max + elementary::log(value);
  }
  TREDUCE_ALWAYS_INLINE static A row_output(const Values& row, int) { return row.result; }
};

// The weight and the bias of a norm, each where there is one.
template <class A>
TREDUCE_ALWAYS_INLINE A affine(A h, bool has_weight, A weight, bool has_bias, A bias) {
  if (has_weight && has_bias) return elementary::multiply_add(h, weight, bias);
  if (has_weight) return elementary::multiply(h, weight);
  return has_bias ? h + bias : h;
}

// (x - mean) rsqrt(variance + eps) weight + bias, with the variance from a second pass over x - mean
template <class A>
struct LayerNorm : RowOp<A, 1, 2> {
  static constexpr int kPlainStages = 1;
  static constexpr bool kWeight = true, kBias = true;
  static constexpr int kRowOutputs = 2;
  struct Values {
    A mean, rstd;
  };
  template <int kStage, bool = false>
  TREDUCE_ALWAYS_INLINE static A map(A (&x)[1], A, const Values& row) {
    if constexpr (kStage == 0) return x[0];
    x[0] = x[0] - row.mean;
    return elementary::multiply(x[0], x[0]);
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A& result(Values& row) {
    return kStage == 0 ? row.mean : row.rstd;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A finish(const Values&, A value, const Constants<A>& c) {
    const A mean = mean_of(value, c.length);
    if (c.sums_alone) return kStage == 0 ? canonical(mean) : sum_of(value);
    return kStage == 0 ? mean : elementary::rsqrt(mean + c.eps);
  }
  template <bool = false>
  TREDUCE_ALWAYS_INLINE static A output(const A (&d)[1], bool has_weight, A weight, bool has_bias, A bias,
                                        const Values& row) {
    return affine(elementary::multiply(d[0], row.rstd), has_weight, weight, has_bias, bias);
  }
  TREDUCE_ALWAYS_INLINE static A row_output(const Values& row, int i) { return i == 0 ? row.mean : row.rstd; }
};

// x rsqrt(mean of x^2 + eps) weight
template <class A>
struct RmsNorm : RowOp<A, 1, 1> {
  static constexpr bool kWeight = true;
  static constexpr int kRowOutputs = 1;
  struct Values {
    A rstd;
  };
  template <int kStage, bool = false>
  TREDUCE_ALWAYS_INLINE static A map(A (&x)[1], A, const Values&) {
    return elementary::multiply(x[0], x[0]);
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A& result(Values& row) {
    return row.rstd;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A finish(const Values&, A value, const Constants<A>& c) {
    if (c.sums_alone) return sum_of(value);
    return elementary::rsqrt(mean_of(value, c.length) + c.eps);
  }
  template <bool = false>
  TREDUCE_ALWAYS_INLINE static A output(const A (&x)[1], bool has_weight, A weight, bool has_bias, A bias,
                                        const Values& row) {
    return affine(elementary::multiply(x[0], row.rstd), has_weight, weight, has_bias, bias);
  }
  TREDUCE_ALWAYS_INLINE static A row_output(const Values& row, int) { return row.rstd; }
};

// Of the gradient g and the output y: (g - sum of g y) y
template <class A>
struct SoftmaxBackward : RowOp<A, 2, 1> {
  struct Values {
    A sum;
  };
  template <int kStage, bool = false>
  TREDUCE_ALWAYS_INLINE static A map(A (&gy)[2], A, const Values&) {
    return elementary::multiply(gy[0], gy[1]);
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A& result(Values& row) {
    return row.sum;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A finish(const Values&, A value, const Constants<A>&) {
    return value + A(0);
  }
  template <bool = false>
  TREDUCE_ALWAYS_INLINE static A output(const A (&gy)[2], bool, A, bool, A, const Values& row) {
    return elementary::multiply(gy[0] - row.sum, gy[1]);
  }
  static constexpr bool kKnowsNumbers = true;  // then all products are finite, and no difference overflows
  TREDUCE_ALWAYS_INLINE static bool are_numbers(const Values& row) { return row.sum > A(-1e30) && row.sum < A(1e30); }
};

// Of the gradient g and the output y: g - exp(y) sum of g
template <class A>
struct LogSoftmaxBackward : RowOp<A, 2, 1> {
  static constexpr int kPlainStages = 1;
  static constexpr bool kExpOutput = true;
  struct Values {
    A sum;
  };
  template <int kStage, bool = false>
  TREDUCE_ALWAYS_INLINE static A map(A (&gy)[2], A, const Values&) {
    return gy[0];
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A& result(Values& row) {
    return row.sum;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static A finish(const Values&, A value, const Constants<A>&) {
    return value + A(0);
  }
  template <bool kUsual = false>
  TREDUCE_ALWAYS_INLINE static A output(const A (&gy)[2], bool, A, bool, A, const Values& row) {
    const A e = kUsual ? elementary::exp_of_usual(gy[1]) : elementary::exp(gy[1]);
    return elementary::multiply_add(-e, row.sum, gy[0]);
  }
  static constexpr bool kKnowsNumbers = true;  // then all gradients are finite; of outputs whose exp is usual
  TREDUCE_ALWAYS_INLINE static bool are_numbers(const Values& row) { return row.sum > A(-1e30) && row.sum < A(1e30); }
};

// Of the gradient g and the input x, with h = (x - mean) rstd and g w: rstd (g w - mean of g w - h mean of g w h). Of the RMS norm both
// means but the last are zero, which changes no bit of what they are subtracted from.
template <class A>
struct LayerNormBackward : RowOp<A, 2, 1> {
  static constexpr bool kWeight = true, kWeightFirst = true;
  static constexpr int kRowInputs = 2;
  template <int kStage>
  using Fold = SumTwo<A>;
  struct Values {
    A mean, rstd;
    Two<A> means;  // of the gradient, and of its product with h
  };
  TREDUCE_ALWAYS_INLINE static void begin(Values& row, int i, A value) { (i == 0 ? row.mean : row.rstd) = value; }
  template <int kStage, bool = false>
  TREDUCE_ALWAYS_INLINE static Two<A> map(A (&gx)[2], A weight, const Values& row) {
    gx[0] = elementary::multiply(gx[0], weight);
    gx[1] = elementary::multiply(gx[1] - row.mean, row.rstd);
    return {gx[0], elementary::multiply(gx[0], gx[1])};
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static Two<A>& result(Values& row) {
    return row.means;
  }
  template <int kStage>
  TREDUCE_ALWAYS_INLINE static Two<A> finish(const Values&, Two<A> value, const Constants<A>& c) {
    return {c.has_mean ? mean_of(value.first, c.length) : A(0), mean_of(value.second, c.length)};
  }
  template <bool = false>
  TREDUCE_ALWAYS_INLINE static A output(const A (&gh)[2], bool, A, bool, A, const Values& row) {
    return elementary::multiply(elementary::multiply_add(-gh[1], row.means.second, gh[0] - row.means.first), row.rstd);
  }
};

// An op's template as a value.
template <template <class> class RowOp>
struct Tag {
  template <class A>
  using Of = RowOp<A>;
};

// Calls body(Tag<RowOp>{}) for an op.
template <class Body>
auto dispatch_op(Op op, Body&& body) {
  switch (op) {
    case Op::softmax: return body(Tag<Softmax>{});
    case Op::log_softmax: return body(Tag<LogSoftmax>{});
    case Op::logsumexp: return body(Tag<LogSumExp>{});
    case Op::layer_norm: return body(Tag<LayerNorm>{});
    case Op::rms_norm: return body(Tag<RmsNorm>{});
    case Op::softmax_backward: return body(Tag<SoftmaxBackward>{});
    case Op::log_softmax_backward: return body(Tag<LogSoftmaxBackward>{});
    default: return body(Tag<LayerNormBackward>{});
  }
}

inline const char* name_of(Op op) {
  constexpr const char* names[] = {
      "softmax",          "log_softmax",          "logsumexp",           "layer_norm",       "rms_norm",
      "softmax_backward", "log_softmax_backward", "layer_norm_backward", "rms_norm_backward"};
  return names[static_cast<int>(op)];
}

}  // namespace treduce::rows
