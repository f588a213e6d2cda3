// What one pass over a row keeps of it, and how what two parts of the row gave meets. Host and device compile the same lines.
//
// Source: Maxim Milakov and Natalia Gimelshein, Online normalizer calculation for softmax (2018), for sums of exp; B. P. Welford, Note on
// a method for calculating corrected sums of squares (1962), and Tony Chan, Gene Golub and Randall LeVeque, Updating formulae and a
// pairwise algorithm for computing sample variances (1979), for variances.
#pragma once

#include "ops.h"

namespace treduce::rows {

// Parts of a row: element e belongs to part e % kParts. A thread has four, kPartThreads apart: what one part does next waits for what it did
// before, so others fill the gaps.
constexpr int kPartThreads = 256, kPartsOfThread = 4, kParts = kPartThreads * kPartsOfThread;

// An op of one reduction: there is nothing to correct.
template <class O>
struct Online {
  using A = typename O::Acc;
  using Values = typename O::Values;
  using State = typename O::template Fold<0>::Acc;
  TREDUCE_ALWAYS_INLINE static State none() { return O::template Fold<0>::identity(); }
  TREDUCE_ALWAYS_INLINE static State of(A (&x)[O::kInputs], A weight, const Values& row) {
    return O::template map<0>(x, weight, row);
  }
  TREDUCE_ALWAYS_INLINE static State meet(State a, State b) { return O::template Fold<0>::combine(a, b); }
  TREDUCE_ALWAYS_INLINE static void finish(Values& row, State all, const Constants<A>& constants) {
    O::template result<0>(row) = O::template finish<0>(row, all, constants);
  }
};

// The maximum so far, and the sum of exp(x - max): where the maximum rises, the sum is scaled.
template <class O>
struct ScaledSum {
  using A = typename O::Acc;
  using Values = typename O::Values;
  struct State {
    A max, sum;
  };
  TREDUCE_ALWAYS_INLINE static State none() { return {-elementary::infinity_of<A>(), A(0)}; }
  TREDUCE_ALWAYS_INLINE static State of(A (&x)[1], A, const Values&) { return {x[0], A(1)}; }
  TREDUCE_ALWAYS_INLINE static State meet(State a, State b) {
    const bool rises = b.max > a.max;
    const State high = rises ? b : a, low = rises ? a : b;
    const A scale = elementary::exp_of_nonpositive(low.max - high.max);
    const A sum = elementary::multiply_add(low.sum, scale, high.sum);
    // What has a maximum of -inf adds nothing, and the difference of two infinities is NaN.
    return {Max<A>::combine(a.max, b.max), b.max == none().max ? a.sum : a.max == none().max ? b.sum : sum};
  }
  TREDUCE_ALWAYS_INLINE static void finish(Values& row, State all, const Constants<A>& constants) {
    O::template result<0>(row) = all.max;
    const A sum = all.sum + (all.max - all.max);  // of an infinite maximum NaN, as exp(inf - inf)
    O::template result<1>(row) = O::template finish<1>(row, sum, constants);
  }
};

// How many elements there were, their mean, and the sum of squares of what they differ from it by.
template <class O>
struct Moments {
  using A = typename O::Acc;
  using Values = typename O::Values;
  struct State {
    A count, mean, squares;
  };
  TREDUCE_ALWAYS_INLINE static State none() { return {A(0), A(0), A(0)}; }
  TREDUCE_ALWAYS_INLINE static State of(A (&x)[1], A, const Values&) { return {A(1), x[0], A(0)}; }
  TREDUCE_ALWAYS_INLINE static State meet(State a, State b) {
    const A count = a.count + b.count, share = b.count / count, difference = b.mean - a.mean;
    const A moved = elementary::multiply(difference, share);
    const A between = elementary::multiply(elementary::multiply(difference, moved), a.count);
    if (b.count == A(0)) return a;
    return {count, a.mean + moved, a.squares + b.squares + between};
  }
  TREDUCE_ALWAYS_INLINE static void finish(Values& row, State all, const Constants<A>& constants) {
    O::template result<0>(row) = all.mean;
    O::template result<1>(row) = O::template finish<1>(row, all.squares, constants);
  }
};

template <class A>
struct Online<Softmax<A>> : ScaledSum<Softmax<A>> {};
template <class A>
struct Online<LogSoftmax<A>> : ScaledSum<LogSoftmax<A>> {};
template <class A>
struct Online<LogSumExp<A>> : ScaledSum<LogSumExp<A>> {};
template <class A>
struct Online<LayerNorm<A>> : Moments<LayerNorm<A>> {};

}  // namespace treduce::rows
