// One thread of execution with a stack of its own.
#pragma once

#include <cstddef>

namespace emulator {

struct Stack;

class Fiber {
 public:
  // Stacks are taken from a pool by start() and go back to it when the entry function returns.
  using Entry = void (*)();

  bool started() const { return stack_ != nullptr; }
  void start(Entry entry);

  // From the scheduler: runs the fiber until it suspends (true) or its entry function returns (false).
  bool resume();
  // From inside the running fiber: back to the scheduler.
  void suspend();

 private:
  static void work();

  Stack* stack_ = nullptr;
  Entry entry_ = nullptr;
  void* fake_stack_ = nullptr;  // AddressSanitizer's bookkeeping while this fiber does not run
  bool finished_ = false;
};

}  // namespace emulator
