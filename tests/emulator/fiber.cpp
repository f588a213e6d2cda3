#include "fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
const size_t kGuardBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// Where a stack that does not run goes on. Of swapcontext each call would ask the kernel for the signal mask.
using Point = void* [5];

}  // namespace

struct Stack {
  char* memory;
  Point point;
};

namespace {

Point scheduler;
void* scheduler_fake_stack = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;
Fiber* running = nullptr;
std::deque<Stack> stacks;
std::vector<Stack*> free_stacks;

// Unknown to AddressSanitizer, which would take the jumps for returns down one stack.
[[noreturn, gnu::noinline, gnu::no_sanitize("address")]] void jump(Point& to) { __builtin_longjmp(to, 1); }
[[gnu::noinline, gnu::no_sanitize("address")]] void swap(Point& from, Point& to) {
  if (__builtin_setjmp(from) == 0) jump(to);
}
[[gnu::noinline, gnu::no_sanitize("address")]] void swap(Point& from, const ucontext_t& to) {
  if (__builtin_setjmp(from) == 0) setcontext(&to);
}

Stack* new_stack(void (*work)()) {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // A page that nobody may touch below each stack: an overflow stops here, not in a neighbour's stack.
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
    perror("emulator: no memory for another stack");
    abort();
  }
  stacks.push_back({static_cast<char*>(memory) + kGuardBytes, {}});
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks.back().memory;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, work, 0);
  swap(scheduler, context);  // until it waits for a fiber
  return &stacks.back();
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
  if (free_stacks.empty()) free_stacks.push_back(new_stack(&Fiber::work));
  stack_ = free_stacks.back();
  free_stacks.pop_back();
}

bool Fiber::resume() {
  running = this;
  leaving(&scheduler_fake_stack, stack_->memory, kStackBytes);
  swap(scheduler, stack_->point);
  arrived(scheduler_fake_stack, nullptr, nullptr);
  running = nullptr;
  if (finished_) free_stacks.push_back(stack_);
  return !finished_;
}

void Fiber::suspend() {
  leaving(&fake_stack_, scheduler_stack, scheduler_stack_bytes);
  swap(stack_->point, scheduler);
  arrived(fake_stack_, &scheduler_stack, &scheduler_stack_bytes);
}

// A stack's life: one fiber after another.
void Fiber::work() {
  Stack& stack = stacks.back();
  for (;;) {
    swap(stack.point, scheduler);
    arrived(nullptr, &scheduler_stack, &scheduler_stack_bytes);
    Fiber& self = *running;
    self.entry_();
    self.finished_ = true;
    leaving(nullptr, scheduler_stack, scheduler_stack_bytes);  // null: what it has of a fake stack is given back
  }
}

}  // namespace emulator
