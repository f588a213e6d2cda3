#include "emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

bool operator!=(const Site& a, const Site& b) {
  return a.line != b.line || (a.file != b.file && strcmp(a.file, b.file) != 0);
}

// xorshift64*: small, fast and the same everywhere.
class Random {
 public:
  void seed(uint64_t value) { state_ = (value + 1) * 0x9e3779b97f4a7c15u | 1; }
  uint64_t below(uint64_t limit) {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545f4914f6cdd1du >> 32) % limit;
  }

 private:
  uint64_t state_ = 1;
};

struct Thread;
struct Block;

// Threads that wait for each other. All of them must come, and all at the same line.
struct Barrier {
  explicit Barrier(const char* group) : group(group) {}
  const char* group;  // for messages
  size_t members = 0;
  size_t left = 0;  // members that have left the kernel
  std::vector<Thread*> waiting;
  Site site{};
};

struct Warp {
  Block* block;
  unsigned lanes = 0;  // a bit a lane
  Barrier barrier{"warp"};
  std::vector<Thread*> ready;
  // Two rows: a lane may write its value for the next exchange while another still reads this one. It cannot get further
  // ahead than that, for the next exchange has a barrier too.
  unsigned char exchanged[2][kWarpLanes * 8];
};

struct Copy {
  void* to;
  std::vector<unsigned char> data;
};

struct Thread {
  Block* block;
  Warp* warp;
  int lane;
  uint3 index;
  unsigned exchanges = 0;
  Site site{};                              // where it waits
  std::deque<std::vector<Copy>> copies{1};  // under way, by group; the last is open
  Fiber fiber;
};

struct Array {
  explicit Array(size_t bytes) : bytes(bytes), data(new unsigned char[bytes]) { memset(data.get(), 0xff, bytes); }
  bool holds(const void* p) const { return p >= data.get() && p < data.get() + bytes; }
  size_t bytes;
  std::unique_ptr<unsigned char[]> data;
};

struct Cluster;

struct Block {
  Cluster* cluster;
  int rank;
  uint3 index;
  Barrier barrier{"block"};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warp*> ready;             // those with a ready thread
  std::map<const void*, Array> shared;  // by call site; dynamic shared memory is at null
  bool left = false;

  size_t shared_bytes() const {
    size_t sum = 0;
    for (const auto& [key, array] : shared) sum += array.bytes;
    return sum;
  }
};

struct Cluster {
  Barrier barrier{"cluster"};
  std::vector<Block> blocks;
  size_t running;  // blocks that have not left
};

void entry();

// One launch.
class Launch {
 public:
  Launch(const Grid& grid, Random& random) : grid(grid), random_(random) {
    // A reluctant scheduler lets one warp, or one block, run far ahead of the others; an eager one keeps all abreast. Both
    // find races that the other does not, so each launch draws how often it changes its mind, in 256ths.
    constexpr uint64_t kChange[] = {256, 16, 1, 0};
    change_warp_ = kChange[random_.below(4)];
    change_block_ = kChange[random_.below(4)];
  }

  void run() {
    const size_t clusters = size_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z / grid.cluster;
    std::vector<size_t> pending(clusters);
    for (size_t c = 0; c < clusters; ++c) pending[c] = c;
    for (size_t c = clusters; c > 1; --c) std::swap(pending[c - 1], pending[random_.below(c)]);
    grid_barrier.members = clusters * grid.cluster * threads_in_block();

    // A cooperative grid is all there from the start; otherwise one to six clusters are, and the next comes when one leaves.
    const size_t resident =
        grid.cooperative ? clusters
                         : 1 + random_.below(size_t{kProcessors} * kBlocksPerProcessor / (grid.cluster > 1 ? 3 : 1));
    while (!pending.empty() || !clusters_.empty()) {
      while (!pending.empty() && clusters_.size() < resident) {
        admit(pending.back());
        pending.pop_back();
      }
      if (ready_.empty()) deadlock();
      step(pick());
    }
  }

  void make_ready(Thread& thread) {
    Warp& warp = *thread.warp;
    Block& block = *thread.block;
    if (warp.ready.empty()) {
      if (block.ready.empty()) ready_.push_back(&block);
      block.ready.push_back(&warp);
    }
    warp.ready.push_back(&thread);
  }

  void wait(Barrier& barrier, Site site) {
    current->site = site;
    if (barrier.left > 0) {
      fail("waits for its " + std::string(barrier.group) + ", but " + std::to_string(barrier.left) +
               " of its threads have left the kernel",
           site);
    }
    if (barrier.waiting.empty()) {
      barrier.site = site;
    } else if (barrier.site != site) {
      fail("waits for its " + std::string(barrier.group) + ", of which " + std::to_string(barrier.waiting.size()) +
               " threads wait at " + barrier.site.file + ":" + std::to_string(barrier.site.line),
           site);
    }
    barrier.waiting.push_back(current);
    if (barrier.waiting.size() == barrier.members) {
      for (Thread* thread : barrier.waiting) make_ready(*thread);
      barrier.waiting.clear();
    }
    current->fiber.suspend();
  }

  void maybe_overtaken() {
    if (random_.below(4) != 0) return;
    last_block_ = nullptr;  // rather by another block, which may then run far ahead
    last_warp_ = nullptr;   // or by another warp, for which this one may be waiting
    make_ready(*current);
    current->fiber.suspend();
  }

  const Grid& grid;
  Thread* current = nullptr;
  Barrier grid_barrier{"grid"};

 private:
  size_t threads_in_block() const { return size_t{grid.threads.x} * grid.threads.y * grid.threads.z; }

  void admit(size_t number) {
    const size_t threads = threads_in_block();
    clusters_.push_back(std::make_unique<Cluster>());
    Cluster& cluster = *clusters_.back();
    cluster.blocks.resize(grid.cluster);
    cluster.running = grid.cluster;
    cluster.barrier.members = grid.cluster * threads;
    for (unsigned rank = 0; rank < grid.cluster; ++rank) {
      const size_t b = number * grid.cluster + rank;
      Block& block = cluster.blocks[rank];
      block.cluster = &cluster;
      block.rank = static_cast<int>(rank);
      block.index = {static_cast<unsigned>(b % grid.blocks.x), static_cast<unsigned>(b / grid.blocks.x % grid.blocks.y),
                     static_cast<unsigned>(b / grid.blocks.x / grid.blocks.y)};
      block.barrier.members = threads;
      block.shared.try_emplace(nullptr, grid.dynamic_shared);
      block.warps.resize((threads + kWarpLanes - 1) / kWarpLanes);
      block.threads.resize(threads);
      for (size_t t = 0; t < threads; ++t) {
        Warp& warp = block.warps[t / kWarpLanes];
        Thread& thread = block.threads[t];
        thread.block = &block;
        thread.warp = &warp;
        thread.lane = static_cast<int>(t % kWarpLanes);
        thread.index = {static_cast<unsigned>(t % grid.threads.x),
                        static_cast<unsigned>(t / grid.threads.x % grid.threads.y),
                        static_cast<unsigned>(t / grid.threads.x / grid.threads.y)};
        warp.block = &block;
        warp.lanes |= 1u << thread.lane;
        ++warp.barrier.members;
        memset(warp.exchanged, 0xff, sizeof(warp.exchanged));
        make_ready(thread);
      }
    }
  }

  // Draws one of the items; mostly the one that was drawn last, if it is still among them. (`last` may be long gone: it is
  // looked for, never looked at.)
  template <class T>
  T* draw(const std::vector<T*>& items, T*& last, uint64_t change) {
    if (random_.below(256) < change || std::find(items.begin(), items.end(), last) == items.end()) {
      last = items[random_.below(items.size())];
    }
    return last;
  }

  Thread& pick() {
    Block& block = *draw(ready_, last_block_, change_block_);
    Warp& warp = *draw(block.ready, last_warp_, change_warp_);
    std::swap(warp.ready[random_.below(warp.ready.size())], warp.ready.back());
    Thread& thread = *warp.ready.back();
    warp.ready.pop_back();
    if (warp.ready.empty()) block.ready.erase(std::find(block.ready.begin(), block.ready.end(), &warp));
    if (block.ready.empty()) ready_.erase(std::find(ready_.begin(), ready_.end(), &block));
    return thread;
  }

  void step(Thread& thread) {
    current = &thread;
    threadIdx = thread.index;
    blockIdx = thread.block->index;
    if (!thread.fiber.started()) thread.fiber.start(entry);
    if (!thread.fiber.resume()) leave(thread);
    current = nullptr;
  }

  void leave(Thread& thread) {
    Block& block = *thread.block;
    Cluster& cluster = *block.cluster;
    for (Barrier* barrier : {&thread.warp->barrier, &block.barrier, &cluster.barrier, &grid_barrier}) {
      ++barrier->left;
      if (!barrier->waiting.empty()) {
        fail("left the kernel, while " + std::to_string(barrier->waiting.size()) + " threads of its " + barrier->group +
                 " wait for it",
             barrier->site);
      }
    }
    if (block.barrier.left < block.threads.size()) return;
    block.left = true;
    block.shared.clear();
    if (--cluster.running > 0) return;
    clusters_.erase(std::find_if(clusters_.begin(), clusters_.end(), [&](auto& c) { return c.get() == &cluster; }));
  }

  [[noreturn]] void deadlock() {
    // Somebody who waits at a barrier of the whole block or more waits for those who are stuck further inside.
    Thread* stuck = nullptr;
    for (auto& cluster : clusters_) {
      for (Block& block : cluster->blocks) {
        for (Warp& warp : block.warps) {
          if (stuck == nullptr && !warp.barrier.waiting.empty()) stuck = warp.barrier.waiting.front();
        }
      }
    }
    for (auto& cluster : clusters_) {
      for (Block& block : cluster->blocks) {
        if (stuck == nullptr && !block.barrier.waiting.empty()) stuck = block.barrier.waiting.front();
      }
    }
    if (stuck == nullptr) fail("deadlock: every thread waits", Site{"the grid", 0});
    current = stuck;
    threadIdx = stuck->index;
    blockIdx = stuck->block->index;
    fail("waits for ever: deadlock, no thread of the grid can go on", stuck->site);
  }

  Random& random_;
  uint64_t change_warp_, change_block_;
  std::vector<std::unique_ptr<Cluster>> clusters_;  // the resident ones
  std::vector<Block*> ready_;                       // blocks with a ready thread
  Block* last_block_ = nullptr;
  Warp* last_warp_ = nullptr;
};

Random generator;
Launch* launch = nullptr;

void (*kernel_body)(const void*) = nullptr;
const void* kernel_arguments = nullptr;

void entry() { kernel_body(kernel_arguments); }

std::map<const void*, size_t>& allowances() {
  static std::map<const void*, size_t> map;
  return map;
}

std::string kernel_name() {
  Dl_info info;
  if (launch == nullptr || dladdr(launch->grid.kernel, &info) == 0 || info.dli_sname == nullptr) return "kernel";
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), free);
  return status == 0 ? name.get() : info.dli_sname;
}

}  // namespace

void allow_shared(const void* kernel, size_t bytes) { allowances()[kernel] = bytes; }

size_t allowed_shared(const void* kernel) {
  const auto found = allowances().find(kernel);
  return found == allowances().end() ? kMaxSharedBytes : std::max(found->second, kMaxSharedBytes);
}

void seed(uint64_t value) { generator.seed(value); }

void run(const Grid& grid, void (*body)(const void*), const void* arguments) {
  if (!runs_kernels()) return;
  kernel_body = body;
  kernel_arguments = arguments;
  blockDim = grid.threads;
  gridDim = grid.blocks;
  Launch this_launch(grid, generator);
  launch = &this_launch;
  this_launch.run();
  launch = nullptr;
}

void block_barrier(Site site) { launch->wait(launch->current->block->barrier, site); }

void cluster_barrier(Site site) { launch->wait(launch->current->block->cluster->barrier, site); }

void grid_barrier(Site site) {
  if (!launch->grid.cooperative) fail("waits for its grid, which was not launched as a cooperative one", site);
  launch->wait(launch->grid_barrier, site);
}

void warp_barrier(unsigned mask, Site site) {
  // Lanes that do not exist may be named. A mask that leaves some out would need a barrier of its own; no kernel does that.
  if ((mask & lanes()) != lanes()) fail("names only some lanes of its warp, which the emulator does not support", site);
  launch->wait(launch->current->warp->barrier, site);
}

void overtake() { launch->maybe_overtaken(); }

const unsigned char* exchange(const void* mine, size_t bytes, unsigned mask, Site site) {
  Thread& self = *launch->current;
  unsigned char* row = self.warp->exchanged[self.exchanges++ % 2];
  memcpy(row + 8 * self.lane, mine, bytes);
  warp_barrier(mask, site);
  return row;
}

void copy_async(void* to, const void* from, size_t bytes, size_t present) {
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) {
    fail("copies " + std::to_string(bytes) + " bytes between addresses that are not multiples of it",
         Site{"cp.async", 0});
  }
  const auto first = static_cast<const unsigned char*>(from);
  std::vector<unsigned char> data(first, first + present);
  data.resize(bytes);
  launch->current->copies.back().push_back({to, std::move(data)});
  memset(to, 0xff, bytes);
}

void commit_copies() { launch->current->copies.emplace_back(); }

void wait_copies(size_t left) {
  auto& groups = launch->current->copies;
  for (; groups.size() > left + 1; groups.pop_front()) {
    for (const Copy& copy : groups.front()) memcpy(copy.to, copy.data.data(), copy.data.size());
  }
}

int lane() { return launch->current->lane; }

unsigned lanes() { return launch->current->warp->lanes; }

void* shared_array(const void* key, size_t bytes) {
  Block& block = *launch->current->block;
  const auto [entry, made] = block.shared.try_emplace(key, bytes);
  const size_t all = block.shared_bytes(), arrays = all - launch->grid.dynamic_shared;
  if (made && arrays > kMaxSharedBytes) fail("needs more than 48 KiB of shared memory", Site{"SHARED_ARRAY", 0});
  if (made && all > kMostSharedBytes) fail("needs more shared memory than a block may have", Site{"SHARED_ARRAY", 0});
  return entry->second.data.get();
}

void* dynamic_shared() { return launch->current->block->shared.at(nullptr).data.get(); }

int cluster_rank() { return launch->current->block->rank; }

void* shared_of(void* here, int rank, Site site) {
  Block& mine = *launch->current->block;
  if (rank < 0 || rank >= static_cast<int>(mine.cluster->blocks.size())) {
    fail("asks for shared memory of block " + std::to_string(rank) + " of its cluster, which has " +
             std::to_string(mine.cluster->blocks.size()),
         site);
  }
  Block& other = mine.cluster->blocks[rank];
  if (other.left) fail("asks for shared memory of a block that has left", site);
  for (const auto& [key, array] : mine.shared) {
    if (!array.holds(here)) continue;
    const size_t offset = static_cast<unsigned char*>(here) - array.data.get();
    return other.shared.try_emplace(key, array.bytes).first->second.data.get() + offset;
  }
  fail("maps an address that is not in its block's shared memory", site);
}

void describe_current_thread() {
  if (launch == nullptr || launch->current == nullptr) return;
  fprintf(stderr, "emulator: in %s, block (%u, %u, %u), thread (%u, %u, %u)\n", kernel_name().c_str(), blockIdx.x,
          blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

void fail(const std::string& sentence, Site site) {
  fprintf(stderr, "emulator: %s:%d: block (%u, %u, %u), thread (%u, %u, %u) of %s %s\n", site.file, site.line,
          blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, kernel_name().c_str(),
          sentence.c_str());
  fflush(nullptr);
  _Exit(3);
}

}  // namespace emulator

// AddressSanitizer calls this before it prints: its report says which line, this says which thread.
extern "C" void __asan_on_error() { emulator::describe_current_thread(); }
