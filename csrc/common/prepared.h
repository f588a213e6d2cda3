// What a prepared call is made of: launches, and memory beside operands and result. Values that can be printed and compared.
// Host code, free of torch and CUDA.
//
// Every family has a prepare(request, chip) that decides all of a call, and a launch(prepared, pointers, stream) that decides
// nothing. The bindings, plan(), the emulator and the tests call the same prepare.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "launch_shape.h"
#include "round.h"

namespace treduce {

// What prepare may ask about a GPU. Orders of additions may not.
struct Chip {
  int multiprocessors = 132;
  int capability = 90;  // times ten
  int threads_per_multiprocessor = 2048;
};

inline bool operator==(const LaunchShape& a, const LaunchShape& b) {
  return a.grid == b.grid && a.grid_y == b.grid_y && a.block == b.block && a.block_y == b.block_y &&
         a.shared_bytes == b.shared_bytes && a.cluster == b.cluster && a.cooperative == b.cooperative &&
         a.overlapping == b.overlapping && std::string_view(a.kernel) == b.kernel;
}

// A list with a place for each element: nothing is allocated for a call.
template <class T, int kMost>
class FixedList {
 public:
  T& add(const T& value) {
    if (count_ == kMost) throw std::length_error("a FixedList is full");
    return items_[count_++] = value;
  }
  int size() const { return count_; }
  const T& operator[](int i) const { return items_[i]; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + count_; }

 private:
  T items_[kMost] = {};
  int count_ = 0;
};

using Launches = FixedList<LaunchShape, 8>;

// A named part of the workspace.
struct Region {
  const char* name = "";
  int64_t offset = 0, bytes = 0;
};

// Global memory that a call needs beside its operands and its result, laid out once: for its size and for its pointers.
class Workspace {
 public:
  static constexpr int64_t kAlignment = 256;  // of every region

  // The offset of a new region; one of no bytes is left out.
  int64_t add(const char* name, int64_t bytes) {
    const int64_t offset = bytes_;
    if (bytes > 0) regions_.add({name, offset, bytes});
    bytes_ = round_up(offset + bytes, kAlignment);
    return offset;
  }
  int64_t bytes() const { return bytes_; }
  const FixedList<Region, 12>& regions() const { return regions_; }

 private:
  FixedList<Region, 12> regions_;
  int64_t bytes_ = 0;
};

}  // namespace treduce
