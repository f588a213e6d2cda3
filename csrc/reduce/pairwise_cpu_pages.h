// Memory that will be read soon, asked for in time.
#pragma once

#include <cstdint>

namespace treduce::reduce::cpu {

// Hardware prefetches within a page alone: at the next one it waits for the address, then for memory. So whoever reads on and on says
// what it reads, and at the beginning of each page the first lines of what lies 8 pages later are asked for. To ask for every line
// would cost time where the data is in the third cache. 8 pages and 4 lines: AMD EPYC with AVX-512, 2026-11-22.
//
// x[0 .. count) is read next.
template <class T>
inline __attribute__((always_inline)) void read_ahead(const T* x, int64_t count) {
  constexpr uintptr_t kPage = 4096, kPages = 8, kLine = 64;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(x), end = begin + count * sizeof(T);
  for (uintptr_t page = (begin + kPage - 1) / kPage * kPage; page < end; page += kPage) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      __builtin_prefetch(reinterpret_cast<const void*>(page + kPages * kPage + i * kLine), 0, 2);
  }
}

}  // namespace treduce::reduce::cpu
