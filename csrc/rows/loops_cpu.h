// Loops over the elements of a row on the CPU, compiled for each instruction set: what is mapped, written out and converted. They add
// nothing up, so a compiler may make vectors of them and every set gives the same bits.
#pragma once

#include <cstdint>

#include "../common/dtypes.h"
#include "online.h"

namespace treduce::rows::cpu {

// Of an op and an accumulator type, which all the pointers point to. `values` is the op's Values; weight and bias may be null.
struct Loops {
  // What `count` elements are mapped to in a stage; second: where it gives two.
  void (*map[2])(const void* const* in, const void* weight, const void* values, int64_t count, void* first,
                 void* second);
  // Of online.h: `count` elements meet the states of kParts parts, which begin as none; the first element is of the first part. Then all
  // parts meet, and the row has its values.
  void (*meet)(const void* const* in, const void* weight, const void* values, int64_t count, void* parts);
  void (*meet_parts)(void* parts, const void* constants, void* values);
  // in: the elements, or, of an op that maps to them (kMapsToElement), what the last stage mapped them to.
  void (*output)(const void* const* in, const void* weight, const void* bias, const void* values, int64_t count,
                 void* out);
};

// Between a dtype and its accumulator: `count` elements, on the side of the dtype `stride` apart.
struct Conversions {
  void (*widen)(const void* from, int64_t stride, int64_t count, void* to);
  void (*round)(const void* from, int64_t count, void* to, int64_t stride);
};

// exp over float32 or float64, for tests of every value and for whoever wants no reduction.
using Map = void (*)(const void* from, int64_t count, void* to);

struct Table {
  const Loops* (*loops)(Op op, bool is_double);
  const Conversions* (*conversions)(DType dtype);
  Map exp, exp_of_double;
};

namespace baseline {
const Table* table();
}
#ifdef __x86_64__
namespace avx2 {
const Table* table();
}
namespace avx512 {
const Table* table();
}
#endif

}  // namespace treduce::rows::cpu
