// vector_add on the CPU: a loop for each dtype, on all threads.
#include "add_cpu.h"

#include "../common/parallel.h"
#include "add.h"

namespace treduce::elementwise {
namespace {

template <class T>
void add_range(const T* __restrict a, const T* __restrict b, T* __restrict c, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) c[i] = add(a[i], b[i]);
}

}  // namespace

void add_on_cpu(DType dtype, const void* a, const void* b, void* c, int64_t n) {
  dispatch(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    parallel_for(0, n, kElementsATask, [&](int64_t begin, int64_t end) {
      add_range(static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(c), begin, end);
    });
  });
}

}  // namespace treduce::elementwise
