// The threads of common/parallel.h: torch's.
#include <precompiled.h>

#include "../common/parallel.h"

#include <ATen/Parallel.h>

namespace treduce {

int thread_count() { return at::get_num_threads(); }

void run_ranges(int64_t begin, int64_t end, int64_t grain, void (*run)(void*, int64_t, int64_t), void* body) {
  at::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) { run(body, first, last); });
}

}  // namespace treduce
