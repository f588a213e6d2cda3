// The loops that copy and convert elements which lie apart.
#include "pairwise_cpu_gather.h"

#include <cstring>

#include "../common/cpu_features.h"
#include "elements.h"
#include "pairwise_cpu_kernels.h"
#include "pairwise_cpu_pages.h"

namespace treduce::reduce::cpu {
namespace {

constexpr int64_t kLongRow = 64;  // elements, so many that a call pays

EverySecond every_second_of(int size) {
  switch (instruction_set()) {
#ifdef __x86_64__
    case InstructionSet::avx512: return avx512::every_second(size);
    case InstructionSet::avx2: return avx2::every_second(size);
#endif
    default: return baseline::every_second(size);
  }
}

template <class T>
void copy_area(const void* x, const Area& area, DType, void* result) {
  const T* const from = static_cast<const T*>(x);
  T* to = static_cast<T*>(result);
  static const EverySecond pick = every_second_of(sizeof(T));
  const int64_t span = area.columns * area.column;
  const bool on_and_on = area.rows == 1 || (area.row > 0 && area.row <= 2 * span);
  for (int64_t i = 0; i < area.rows; ++i, to += area.pitch) {
    const T* const row = from + i * area.row;
    if (on_and_on) read_ahead(row, span);
    if (area.column == 1) {
      memcpy(to, row, area.columns * sizeof(T));
    } else if (area.column == 2 && area.columns >= kLongRow) {
      pick(row, area.columns, to);
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
        to[i * area.pitch + j] = convert_one(from[i * area.row + j * area.column]);
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

}  // namespace

Gather copier_of(int64_t size) {
  switch (size) {
    case 1: return copy_area<uint8_t>;
    case 2: return copy_area<uint16_t>;
    case 4: return copy_area<uint32_t>;
    case 8: return copy_area<uint64_t>;
    default: return copy_area<complex128>;
  }
}

Gather converter_of(DType from, DType target) {
  switch (target) {
    case DType::float64: return converter_to<double>(from);
    case DType::complex64: return converter_to<complex64>(from);
    case DType::complex128: return converter_to<complex128>(from);
    case DType::float32:
    case DType::float16:
    case DType::bfloat16: return converter_to<float>(from);
    default: return converter_to<int64_t>(from);
  }
}

}  // namespace treduce::reduce::cpu
