// The order of additions along dims, for every rung that reduces them and for `auto`. Host and device, free of torch and CUDA.
//
// The n elements of one output, in their order, are cut into chunks of 1024 elements: 8 stripes of 128 lanes. A leaf is one
// lane of one chunk: it adds its elements, 128 apart, one after another. Then neighbouring leaves are added, then neighbouring
// pairs, then neighbouring fours, until one value is left: lanes first, chunks after, for a leaf has the number
// chunk * 128 + lane. What lies past n is left out.
//
// The length is all that goes in. Whoever computes an aligned run of 2^k leaves holds a node of the tree, so a thread, a warp,
// a block or a grid may share the work in any way and get the same bits; that is the schedule's business (schedule.h), which
// this type cannot see. The depth is 7 + log2(n / 8) additions: the error bound of pairwise summation.
//
// Source: pairwise summation, Nicholas Higham, The accuracy of floating point summation (1993).
#pragma once

#include <cstdint>

#include "../common/macros.h"

namespace treduce::reduce {

struct Pairwise {
  static constexpr int kLanes = 128;
  static constexpr int kStripes = 8;
  static constexpr int kChunk = kLanes * kStripes;

  int64_t length;

  TREDUCE_HOST_DEVICE explicit Pairwise(int64_t n) : length(n) {}
  TREDUCE_HOST_DEVICE int64_t chunks() const { return length <= kChunk ? 1 : (length + kChunk - 1) / kChunk; }
  // Additions that an element goes through at most.
  int64_t depth() const {
    const int64_t stripes = length >= kChunk ? kStripes : (length + kLanes - 1) / kLanes;
    int64_t levels = 0, leaves = chunks() > 1 ? chunks() * kLanes : (length < kLanes ? length : kLanes);
    for (; leaves > 1; leaves = (leaves + 1) / 2) ++levels;
    return (stripes > 0 ? stripes - 1 : 0) + levels;
  }
};

}  // namespace treduce::reduce
