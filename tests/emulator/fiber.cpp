#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
const size_t kGuardBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));

ucontext_t scheduler;
void* scheduler_fake_stack = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;
Fiber* running = nullptr;
std::vector<char*> free_stacks;

char* take_stack() {
  if (free_stacks.empty()) {
    void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // A page that nobody may touch below each stack: an overflow stops here, not in a neighbour's stack.
    if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
      perror("emulator: no memory for another stack");
      abort();
    }
    return static_cast<char*>(memory) + kGuardBytes;
  }
  char* stack = free_stacks.back();
  free_stacks.pop_back();
  return stack;
}

// AddressSanitizer must hear of every change of stack: before it, where we go, and after it, where we came from.
void leaving([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* to, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(fake_stack, to, bytes);
#endif
}
void arrived([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** from, [[maybe_unused]] size_t* bytes) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, from, bytes);
#endif
}

}  // namespace

void Fiber::start(Entry entry) {
  entry_ = entry;
  stack_ = take_stack();
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);  // what the fiber before left behind
#endif
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::trampoline, 0);
  // AddressSanitizer's swapcontext wipes its knowledge of a stack whose size it can read here.
  context_.uc_stack.ss_size = 0;
}

bool Fiber::resume() {
  running = this;
  leaving(&scheduler_fake_stack, stack_, kStackBytes);
  swapcontext(&scheduler, &context_);
  arrived(scheduler_fake_stack, nullptr, nullptr);
  running = nullptr;
  if (finished_) free_stacks.push_back(stack_);
  return !finished_;
}

void Fiber::suspend() {
  leaving(&fake_stack_, scheduler_stack, scheduler_stack_bytes);
  swapcontext(&context_, &scheduler);
  arrived(fake_stack_, &scheduler_stack, &scheduler_stack_bytes);
}

void Fiber::trampoline() {
  arrived(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  Fiber* self = running;
  self->entry_();
  self->finished_ = true;
  leaving(nullptr, scheduler_stack, scheduler_stack_bytes);  // null: this stack is not coming back
  setcontext(&scheduler);
}

}  // namespace emulator
