// What is done some time after a kernel has asked for it. Apart from emulator.h, which every kernel includes: std::function takes long to
// compile.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace emulator {

// What a thread has begun and not waited for yet, in groups, of which the last is open. It is done as late as is allowed: what is
// touched too early is then not there, and what is overwritten too early is read as it was overwritten.
class Begun {
 public:
  void add(std::function<void()> work) { groups_.back().push_back(std::move(work)); }
  void close() { groups_.emplace_back(); }
  void finish(size_t left);                       // all groups but the `left` youngest closed ones
  std::vector<std::function<void()>> take_all();  // leaves nothing begun
  bool empty() const;

 private:
  std::deque<std::vector<std::function<void()>>> groups_{1};
};
Begun& stores();           // of boxes in shared memory
Begun& multiplications();  // of warp groups

// Some time from now `data` arrives in block `rank`, whose barrier counts it.
void copy_bulk(uint32_t to, std::vector<unsigned char> data, uint32_t barrier, int rank = -1);

}  // namespace emulator
