// Threads of the CPU, for host code that is free of torch. Whoever links the library says what they are: the extension takes
// torch's pool (torch/parallel.cpp), so that torch.set_num_threads counts here too.
#pragma once

#include <cstdint>
#include <type_traits>

namespace treduce {

constexpr int64_t kElementsATask = 32768;  // what a thread should get at least; torch's grain size too

int thread_count();

void run_ranges(int64_t begin, int64_t end, int64_t grain, void (*run)(void* body, int64_t begin, int64_t end),
                void* body);

// Calls body(first, last) for ranges that together are [begin, end), each of at least `grain` but for the last, on several
// threads where there are several ranges. An exception of one of them is thrown here.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  run_ranges(
      begin, end, grain, [](void* it, int64_t first, int64_t last) { (*static_cast<Plain*>(it))(first, last); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace treduce
