// The additions of segments.h on the CPU, a few columns at a time.
#include <algorithm>

#include "../primitives/functors.h"
#include "../primitives/neighbours.h"
#include "segments.h"

namespace treduce::segments {
namespace {

constexpr int64_t kColumns = 16;  // whose trees grow side by side

template <class T>
void add(const Request& r, int64_t begin, int64_t end) {
  using Acc = Accumulator<T>;
  const auto* const source = static_cast<const T*>(r.source);
  for (int64_t first = begin; first < end; ++first) {
    const int64_t place = r.index[first];
    if (place < 0 || place >= r.places || (first > 0 && r.index[first - 1] == place)) continue;
    int64_t last = first + 1;
    while (last < r.count && r.index[last] == place) ++last;
    T* const out = static_cast<T*>(r.out) + place * r.width;
    for (int64_t column = 0; column < r.width; column += kColumns) {
      const int64_t columns = std::min(kColumns, r.width - column);
      Acc sum[kColumns];
      if (last == first + 1) {
        for (int64_t c = 0; c < columns; ++c) sum[c] = static_cast<Acc>(source[r.order[first] * r.width + column + c]);
      } else {
        Neighbours<Sum<Acc>, 40> nodes[kColumns];
        for (int64_t i = first; i < last; ++i) {
          const T* const row = source + r.order[i] * r.width + column;
          for (int64_t c = 0; c < columns; ++c) nodes[c].push(static_cast<Acc>(row[c]));
        }
        for (int64_t c = 0; c < columns; ++c) sum[c] = nodes[c].value();
      }
      for (int64_t c = 0; c < columns; ++c) {
        if (r.divide) sum[c] = sum[c] / static_cast<Acc>(last - first);
        out[column + c] = round_to<T>(static_cast<Acc>(out[column + c]) + sum[c]);
      }
    }
  }
}

}  // namespace

void add_on_cpu(const Request& r, int64_t begin, int64_t end) {
  switch (r.dtype) {
    case DType::float64: return add<double>(r, begin, end);
    case DType::float16: return add<float16>(r, begin, end);
    case DType::bfloat16: return add<bfloat16>(r, begin, end);
    default: return add<float>(r, begin, end);
  }
}

}  // namespace treduce::segments
