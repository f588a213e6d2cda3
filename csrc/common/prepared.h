// What a prepared call is made of: launches, and memory beside operands and result. Values that can be printed and compared.
// Host code, free of torch and CUDA.
//
// Every family has a prepare(request, chip) that decides all of a call, and a launch(prepared, pointers, stream) that decides
// nothing. The bindings, plan(), the emulator and the tests call the same prepare.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "launch_shape.h"
#include "round.h"

namespace treduce {

// What prepare may ask about a GPU. Orders of additions may not.
struct Chip {
  int multiprocessors = 132;
  int capability = 90;  // times ten

  // Dynamic shared memory that a block may ask for: CUDA Programming Guide, technical specifications. Blocks that share a multiprocessor
  // have as much together, less 1 KB for each after the first.
  int shared_bytes() const {
    switch (capability) {
      case 75: return 64 * 1024;
      case 80:
      case 87: return 163 * 1024;
      case 90:
      case 100:
      case 103: return 227 * 1024;
      default: return 99 * 1024;
    }
  }
  // How many blocks that ask for so much the shared memory of a multiprocessor holds.
  int64_t blocks_with(int64_t bytes) const {
    constexpr int kReserved = 1024;  // for each
    return (shared_bytes() + kReserved) / (bytes + kReserved);
  }
};

constexpr int64_t kMostCounters = 4096;  // of one launch, see counters.h

inline bool operator==(const LaunchShape& a, const LaunchShape& b) {
  return a.grid == b.grid && a.grid_y == b.grid_y && a.block == b.block && a.block_y == b.block_y &&
         a.shared_bytes == b.shared_bytes && a.cluster == b.cluster && a.cooperative == b.cooperative &&
         a.overlapping == b.overlapping && std::string_view(a.kernel) == b.kernel;
}

// "row_block: grid 264, block 256", and every other field that is not at its default.
std::string to_string(const LaunchShape& shape);

// A list of fixed capacity: it allocates nothing, and leaves unused places uninitialised.
template <class T, int kMost>
class FixedList {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  FixedList() {}
  T& add(const T& value) {
    if (count_ == kMost) throw std::length_error("a FixedList is full");
    return *new (&items_[count_++]) T(value);
  }
  int size() const { return count_; }
  const T& operator[](int i) const { return items_[i]; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + count_; }

  friend bool operator==(const FixedList& a, const FixedList& b) {
    if (a.size() != b.size()) return false;
    for (int i = 0; i < a.size(); ++i) {
      if (!(a[i] == b[i])) return false;
    }
    return true;
  }

 private:
  union {
    T items_[kMost];
  };
  int count_ = 0;
};

using Launches = FixedList<LaunchShape, 16>;

// A named part of the workspace.
struct Region {
  const char* name = "";
  int64_t offset = 0, bytes = 0;
};

inline bool operator==(const Region& a, const Region& b) {
  return a.offset == b.offset && a.bytes == b.bytes && std::string_view(a.name) == b.name;
}

// Global memory that a call needs beside its operands and its result, laid out once: for its size and for its pointers.
class Workspace {
 public:
  static constexpr int64_t kAlignment = 256;  // of every region

  // The offset of a new region; one of no bytes is left out.
  int64_t add(const char* name, int64_t bytes) {
    const int64_t offset = round_up(bytes_, kAlignment);
    if (bytes > 0) bytes_ = regions_.add({name, offset, bytes}).bytes + offset;
    return offset;
  }
  int64_t bytes() const { return bytes_; }
  const FixedList<Region, 16>& regions() const { return regions_; }

  // The region of that name in the memory at `begin`, or null.
  template <class T>
  T* find(std::string_view name, void* begin) const {
    for (const Region& region : regions_) {
      if (name == region.name) return reinterpret_cast<T*>(static_cast<char*>(begin) + region.offset);
    }
    return nullptr;
  }

  friend bool operator==(const Workspace& a, const Workspace& b) { return a.regions_ == b.regions_; }

 private:
  FixedList<Region, 16> regions_;
  int64_t bytes_ = 0;
};

// A line for each launch and region.
std::string to_string(const Launches& launches, const Workspace& workspace);

// Why a call is refused. The sentence is empty if it is not.
struct Refusal {
  std::string sentence;
  bool by_chip = false;  // Python's NotImplementedError; otherwise the arguments are at fault, a ValueError

  explicit operator bool() const { return !sentence.empty(); }
};

inline bool operator==(const Refusal& a, const Refusal& b) {
  return a.sentence == b.sentence && a.by_chip == b.by_chip;
}

}  // namespace treduce
