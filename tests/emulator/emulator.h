// The machine behind cuda_runtime.h: runs a kernel's threads on the host, in a random order.
//
// Each CUDA thread is a fiber. A fiber runs until it waits at a barrier, reaches an atomic (where it may be overtaken) or
// leaves the kernel; which one runs next is drawn from a seeded generator. Several blocks are alive at once and interleave,
// as on a GPU. Whatever depends on an order that no barrier fixes therefore changes with the seed.
//
// What is asynchronous (copies, and multiplications of warp groups) happens at some time between where it was begun and where it is
// waited for, as late as possible where one thread begins and waits.
//
// What it cannot show: memory is seen by everyone at once, so a missing fence goes unnoticed; and a fiber is not
// interrupted between two plain loads or stores, so a race within one statement shows only through the order of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "vector_types.h"

namespace emulator {

// Where in a kernel a call stands. here() as a default argument names the line of the call.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

struct Grid {
  const void* kernel;  // for its name in messages
  dim3 blocks, threads;
  size_t dynamic_shared = 0;
  unsigned cluster = 1;
  bool cooperative = false;
};

// What a small GPU would have. Few resident blocks, so that a grid of some dozens comes and goes in waves.
constexpr int kProcessors = 3;
constexpr int kBlocksPerProcessor = 2;
constexpr int kWarpLanes = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxCluster = 8;
constexpr size_t kMaxSharedBytes = 48 * 1024;  // for a kernel that has not asked for more
constexpr size_t kMostSharedBytes = 227 * 1024;

// Dynamic shared memory: what the kernel may have from now on, and what it may have.
void allow_shared(const void* kernel, size_t bytes);
size_t allowed_shared(const void* kernel);

// The order of everything that follows depends on this number alone.
void seed(uint64_t value);

// Calls body(arguments) once for every thread of the grid; returns when all have left. A plain pointer, since each of some
// thousand kernels comes through here and std::function doubles the time to compile it.
void run(const Grid& grid, void (*body)(const void*), const void* arguments);

// Whether run() runs anything: it need not where a test asks only what is launched.
inline bool& runs_kernels() {
  static bool runs = true;
  return runs;
}

// What a thread can ask for while it runs.
void block_barrier(Site site);
int vote_of_block(bool mine, Site site);  // a barrier; how many threads said so
void cluster_barrier(Site site);
void grid_barrier(Site site);
void warp_barrier(unsigned mask, Site site);
void overtake();  // another thread may run before this one goes on

// Every lane of the warp gives `bytes` at `mine`; the answer holds those of lane l at [l * 8]. It is valid until this thread's
// next exchange but one. A lane that does not exist gives 0xff bytes.
const unsigned char* exchange(const void* mine, size_t bytes, unsigned mask, Site site);

// Addresses in shared memory as instructions take them: 32 bits, the same in each block of a grid. A place of `bytes` bytes lies in
// one array of block `rank` of the cluster, or this block's where `rank` is negative.
uint32_t shared_address(const void* place);
unsigned char* shared_place(uint32_t address, size_t bytes = 1, int rank = -1);

// Begins a copy. What is copied is read at once, for its address is checked here; where it goes to holds 0xff bytes from now until
// the copy is finished. The first `present` bytes are copied, the others become zero.
void copy_async(uint32_t to, const void* from, size_t bytes, size_t present);
void commit_copies();
void wait_copies(size_t left);

// Barriers in shared memory, which count arrivals and bytes (mbarrier): at `barrier` of block `rank` of the cluster.
void init_barrier(uint32_t barrier, unsigned arrivals);
void arrive(uint32_t barrier, Site site, unsigned expected_bytes = 0, int rank = -1);
void wait_for_phase(uint32_t barrier, unsigned parity, Site site);
bool has_ended(uint32_t barrier, unsigned parity, Site site);  // the phase of that parity, now
// Some time from now this thread's copies so far are finished, and then it arrives.
void arrive_when_copied(uint32_t barrier);

// Barriers of some of a block's threads, by number. Whether one of them said so; who does not wait is told nothing.
bool meet(int number, unsigned threads, bool says, bool waits, Site site);

void poll();  // another thread runs before this one, which waits for what that writes, looks again

int lane();
unsigned lanes();  // a bit for each lane of this warp that exists

// The block's array for this key: made on first use, filled with 0xff, of exactly this size, so that a step past its end is a
// step past a heap allocation.
void* shared_array(const void* key, size_t bytes);
void* dynamic_shared();
int cluster_rank();
void* shared_of(void* here, int rank, Site site);

// Ends the process with a sentence that names kernel, block and thread: a broken kernel has no state worth going on from.
[[noreturn]] void fail(const std::string& sentence, Site site);
void describe_current_thread();

}  // namespace emulator

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
