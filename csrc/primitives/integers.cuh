// An array of integers whose dtype is looked up at each load, so that one kernel reads all six. They are accumulated in int64
// whatever their dtype, in any order.
// Any thread may call any of it, alone. Nothing uses shared memory or synchronises.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "functors.h"

namespace treduce {

struct Integers {
  const void* data;
  DType dtype;
  int element_size;

  Integers(const void* elements, DType of) : data(elements), dtype(of), element_size(static_cast<int>(size_of(of))) {}

  TREDUCE_DEVICE int64_t operator[](int64_t i) const {
    switch (dtype) {
      case DType::int8: return at<int8_t>(i);
      case DType::int16: return at<int16_t>(i);
      case DType::int32: return at<int32_t>(i);
      case DType::int64: return at<int64_t>(i);
      case DType::uint8: return at<uint8_t>(i);
      default: return at<boolean>(i);
    }
  }

  // The value of 16 bytes of them. Not inlined: loops that are unrolled have it in many places.
  template <class Op>
  static TREDUCE_NOINLINE int64_t fold(DType dtype, int4 bytes) {
    switch (dtype) {
      case DType::int8: return fold_of<Op, int8_t>(bytes);
      case DType::int16: return fold_of<Op, int16_t>(bytes);
      case DType::int32: return fold_of<Op, int32_t>(bytes);
      case DType::int64: return fold_of<Op, int64_t>(bytes);
      case DType::uint8: return fold_of<Op, uint8_t>(bytes);
      default: return fold_of<Op, boolean>(bytes);
    }
  }

 private:
  template <class T>
  TREDUCE_DEVICE int64_t at(int64_t i) const {
    return widen<int64_t>(static_cast<const T*>(data)[i]);
  }

  template <class Op, class T>
  static TREDUCE_HOST_DEVICE int64_t fold_of(int4 bytes) {
    // Bytes and shorts fold in 32 bits, which sixteen of them cannot overflow: half the instructions of 64 bits.
    using Narrow = typename Op::template As<std::conditional_t<sizeof(T) <= 2, int32_t, int64_t>>;
    using Acc = typename Narrow::Acc;
    T element[16 / sizeof(T)];
    memcpy(element, &bytes, sizeof(bytes));
    Acc value = widen<Acc>(element[0]);
#pragma unroll
    for (int c = 1; c < static_cast<int>(16 / sizeof(T)); ++c) value = Narrow::combine(value, widen<Acc>(element[c]));
    return value;
  }
};

}  // namespace treduce
