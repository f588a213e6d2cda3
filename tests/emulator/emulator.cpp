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

#include "asynchronous.h"
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

// Lanes of a warp that wait for each other and exchange values.
struct Lanes {
  Barrier barrier{"warp"};
  unsigned meetings = 0;
  // Two rows: a lane may write its value for the next exchange while another still reads this one. It cannot get further
  // ahead than that, for the next exchange has a barrier too.
  unsigned char exchanged[2][kWarpLanes * 8];

  Lanes() { memset(exchanged, 0xff, sizeof(exchanged)); }
};

struct Warp {
  Block* block;
  unsigned lanes = 0;  // a bit a lane
  Lanes all;
  std::map<unsigned, Lanes> some;  // by mask
  std::vector<Thread*> ready;
};

struct Thread {
  Block* block;
  Warp* warp;
  int lane;
  uint3 index;
  Site site{};  // where it waits
  Begun copies, stores, multiplications;
  bool told = false;  // what a barrier by number said
  Fiber fiber;
};

struct Array {
  Array(size_t bytes, uint32_t address) : bytes(bytes), address(address), data(new unsigned char[bytes]) {
    memset(data.get(), 0xff, bytes);
  }
  bool holds(const void* p) const { return p >= data.get() && p < data.get() + bytes; }
  size_t bytes;
  uint32_t address;
  std::unique_ptr<unsigned char[]> data;
};

// A barrier in shared memory, in its 64 bits: what a phase waits for, the arrivals of each, and whether the number of the phase is odd.
// Bytes may arrive before somebody expects them.
struct Phase {
  static constexpr int kBits = 20;
  static constexpr int64_t kZero = 1 << kBits;  // of the bytes that are expected and have not come

  explicit Phase(uint64_t word)
      : pending(word & (1u << kBits) - 1),
        arrivals(word >> kBits & (1u << kBits) - 1),
        bytes(static_cast<int64_t>(word >> 2 * kBits & (2u << kBits) - 1) - kZero),
        parity(word >> 61 & 1) {}
  static bool is_valid(uint64_t word) { return word >> 62 == 1; }  // 0xff bytes are not
  uint64_t word() const {
    return pending | uint64_t{arrivals} << kBits | static_cast<uint64_t>(bytes + kZero) << 2 * kBits |
           uint64_t{parity} << 61 | uint64_t{1} << 62;
  }

  unsigned pending, arrivals;
  int64_t bytes;
  unsigned parity;
};

// Threads that wait at a barrier in shared memory for the end of a phase.
struct Sleeper {
  Thread* thread;
  uint32_t barrier;
};

// A barrier of some of a block's threads.
struct Meeting {
  unsigned threads = 0, arrived = 0;
  bool said = false;
  std::vector<Thread*> waiting;
};

// What arrives some time from now.
struct Delivery {
  Block* to;
  std::function<void()> work;
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
  int votes[2] = {};                    // of this vote and of the one before, which some threads may still read
  unsigned meetings_of_all = 0;
  std::vector<Sleeper> sleepers;
  std::map<int, Meeting> meetings;  // by number
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
      if (!deliveries_.empty() && (ready_.empty() || random_.below(8) == 0)) {
        deliver();
        continue;
      }
      if (ready_.empty()) deadlock();
      step(pick());
      // Whoever looks again and again may look for what a block writes that waits for its turn.
      if (polls_ < kMostPolls * threads_in_block()) continue;
      polls_ = 0;
      if (pending.empty()) {
        if (++idle_rounds_ > kMostIdleRounds) deadlock();
        continue;
      }
      admit(pending.back());
      pending.pop_back();
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

  void poll() {
    ++polls_;
    last_block_ = nullptr;
    last_warp_ = nullptr;
    make_ready(*current);
    current->fiber.suspend();
  }

  // Where the array of this key lies in shared memory: in all blocks at the same place, dynamic shared memory first, where it is aligned
  // as little as the hardware promises.
  uint32_t address_of(const void* key, size_t bytes) {
    const auto [entry, made] = addresses_.try_emplace(key, next_address_);
    if (made) next_address_ = (next_address_ + bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
    return entry->second;
  }

  void deliver_later(Block& to, std::function<void()> work) { deliveries_.push_back({&to, std::move(work)}); }

  // What happens at a barrier in shared memory of a block.
  void arrive(Block& block, uint32_t barrier, Site site, unsigned arrivals, int64_t expected) {
    unsigned char* const place = place_in(block, barrier, 8);
    uint64_t word;
    memcpy(&word, place, 8);
    if (!Phase::is_valid(word)) fail("arrives at a barrier that nobody has initialised", site);
    Phase phase(word);
    if (phase.pending < arrivals) fail("arrives at a barrier that has all arrivals", site);
    phase.pending -= arrivals;
    phase.bytes += expected;
    if (phase.pending == 0 && phase.bytes == 0) {
      phase.pending = phase.arrivals;
      phase.parity ^= 1;
      auto& sleepers = block.sleepers;
      const auto woken = std::stable_partition(sleepers.begin(), sleepers.end(),
                                               [&](const Sleeper& sleeper) { return sleeper.barrier != barrier; });
      for (auto sleeper = woken; sleeper != sleepers.end(); ++sleeper) make_ready(*sleeper->thread);
      sleepers.erase(woken, sleepers.end());
    }
    word = phase.word();
    memcpy(place, &word, 8);
  }

  static unsigned char* place_in(Block& block, uint32_t address, size_t bytes) {
    for (auto& [key, array] : block.shared) {
      if (address < array.address || address >= array.address + array.bytes) continue;
      if (address - array.address + bytes > array.bytes) break;
      return array.data.get() + (address - array.address);
    }
    fail("names " + std::to_string(bytes) + " bytes of shared memory that are not in one of its arrays",
         Site{"shared address", static_cast<int>(address)});
  }

  const Grid& grid;
  Thread* current = nullptr;
  Barrier grid_barrier{"grid"};

 private:
  static constexpr size_t kMostPolls = 64, kMostIdleRounds = 1000;
  static constexpr uint32_t kAlignment = 128;

  size_t threads_in_block() const { return size_t{grid.threads.x} * grid.threads.y * grid.threads.z; }

  void deliver() {
    std::swap(deliveries_[random_.below(deliveries_.size())], deliveries_.back());
    const Delivery delivery = std::move(deliveries_.back());
    deliveries_.pop_back();
    delivery.work();
  }

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
      block.shared.try_emplace(nullptr, grid.dynamic_shared, address_of(nullptr, grid.dynamic_shared));
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
        ++warp.all.barrier.members;
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
    for (Barrier* barrier : {&thread.warp->all.barrier, &block.barrier, &cluster.barrier, &grid_barrier}) {
      ++barrier->left;
      if (!barrier->waiting.empty()) {
        fail("left the kernel, while " + std::to_string(barrier->waiting.size()) + " threads of its " + barrier->group +
                 " wait for it",
             barrier->site);
      }
    }
    if (!thread.stores.empty())
      fail("left the kernel before what it stores was read from shared memory", Site{"stores", 0});
    if (block.barrier.left < block.threads.size()) return;
    for (const Delivery& delivery : deliveries_) {
      if (delivery.to == &block) fail("left the kernel while copies to its block are under way", Site{"copies", 0});
    }
    block.left = true;
    block.shared.clear();
    if (--cluster.running > 0) return;
    clusters_.erase(std::find_if(clusters_.begin(), clusters_.end(), [&](auto& c) { return c.get() == &cluster; }));
  }

  [[noreturn]] void deadlock() {
    // Somebody who waits for the whole block or more waits for those who are stuck further inside: these first.
    std::vector<Thread*> stuck;
    const auto add = [&](const std::vector<Thread*>& waiting) {
      stuck.insert(stuck.end(), waiting.begin(), waiting.end());
    };
    const auto for_each_block = [&](auto of) {
      for (auto& cluster : clusters_) {
        for (Block& block : cluster->blocks) of(block);
      }
    };
    for_each_block([&](Block& block) {
      for (Warp& warp : block.warps) {
        add(warp.all.barrier.waiting);
        for (auto& [mask, some] : warp.some) add(some.barrier.waiting);
      }
    });
    for_each_block([&](Block& block) {
      for (const Sleeper& sleeper : block.sleepers) stuck.push_back(sleeper.thread);
      for (auto& [number, meeting] : block.meetings) add(meeting.waiting);
    });
    for_each_block([&](Block& block) { add(block.barrier.waiting); });
    for (auto& cluster : clusters_) add(cluster->barrier.waiting);
    add(grid_barrier.waiting);
    if (stuck.empty()) fail("looks for ever for what no thread of the grid writes", Site{"the grid", 0});
    std::map<std::string, int> places;
    for (Thread* thread : stuck) ++places[thread->site.file + (":" + std::to_string(thread->site.line))];
    std::string sentence = "waits for ever: deadlock, no thread of the grid can go on;";
    for (const auto& [place, count] : places) sentence += " " + std::to_string(count) + " wait at " + place + ",";
    sentence.pop_back();
    current = stuck.front();
    threadIdx = current->index;
    blockIdx = current->block->index;
    fail(sentence, current->site);
  }

  Random& random_;
  uint64_t change_warp_, change_block_;
  std::vector<std::unique_ptr<Cluster>> clusters_;  // the resident ones
  std::vector<Block*> ready_;                       // blocks with a ready thread
  std::vector<Delivery> deliveries_;
  std::map<const void*, uint32_t> addresses_;
  uint32_t next_address_ = 1024 + 16;
  size_t polls_ = 0, idle_rounds_ = 0;
  Block* last_block_ = nullptr;
  Warp* last_warp_ = nullptr;
};

Random generator;
Launch* launch = nullptr;

void (*kernel_body)(const void*) = nullptr;
const void* kernel_arguments = nullptr;

void entry() { kernel_body(kernel_arguments); }

// A block of this thread's cluster, whose shared memory it asks for.
Block& peer(int rank, Site site) {
  std::vector<Block>& blocks = launch->current->block->cluster->blocks;
  if (rank < 0 || rank >= static_cast<int>(blocks.size())) {
    fail("asks for shared memory of block " + std::to_string(rank) + " of its cluster, which has " +
             std::to_string(blocks.size()),
         site);
  }
  if (blocks[rank].left) fail("asks for shared memory of a block that has left", site);
  return blocks[rank];
}

// Negative: the thread's own.
Block& block_of(int rank, Site site) { return rank < 0 ? *launch->current->block : peer(rank, site); }

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

int vote_of_block(bool mine, Site site) {
  Block& block = *launch->current->block;
  int& votes = block.votes[block.meetings_of_all % 2];
  if (mine) ++votes;
  const bool last = block.barrier.waiting.size() + 1 == block.barrier.members;
  if (last) block.votes[++block.meetings_of_all % 2] = 0;  // of the next, which nobody has begun
  block_barrier(site);
  return votes;
}

void cluster_barrier(Site site) { launch->wait(launch->current->block->cluster->barrier, site); }

void grid_barrier(Site site) {
  if (!launch->grid.cooperative) fail("waits for its grid, which was not launched as a cooperative one", site);
  launch->wait(launch->grid_barrier, site);
}

// Lanes that do not exist may be named.
Lanes& lanes_of(unsigned mask) {
  Warp& warp = *launch->current->warp;
  if ((mask & warp.lanes) == warp.lanes) return warp.all;
  Lanes& some = warp.some[mask];
  some.barrier.members = __builtin_popcount(mask & warp.lanes);
  return some;
}

void warp_barrier(unsigned mask, Site site) {
  if ((mask & 1u << lane()) == 0) fail("waits for lanes of its warp and is none of them", site);
  Lanes& lanes = lanes_of(mask);
  if (lanes.barrier.waiting.size() + 1 == lanes.barrier.members) ++lanes.meetings;
  launch->wait(lanes.barrier, site);
}

void overtake() { launch->maybe_overtaken(); }

const unsigned char* exchange(const void* mine, size_t bytes, unsigned mask, Site site) {
  Lanes& lanes = lanes_of(mask);
  unsigned char* row = lanes.exchanged[lanes.meetings % 2];
  memcpy(row + 8 * lane(), mine, bytes);
  warp_barrier(mask, site);
  return row;
}

uint32_t shared_address(const void* place) {
  for (const auto& [key, array] : launch->current->block->shared) {
    // The place behind the last element is an address, too.
    if (array.holds(place) || place == array.data.get() + array.bytes) {
      return array.address + static_cast<uint32_t>(static_cast<const unsigned char*>(place) - array.data.get());
    }
  }
  fail("asks for the shared address of what is not in its block's shared memory", Site{"shared address", 0});
}

unsigned char* shared_place(uint32_t address, size_t bytes, int rank) {
  return launch->place_in(block_of(rank, Site{"shared address", 0}), address, bytes);
}

void Begun::finish(size_t left) {
  for (; groups_.size() > left + 1; groups_.pop_front()) {
    for (const auto& work : groups_.front()) work();
  }
}

std::vector<std::function<void()>> Begun::take_all() {
  std::vector<std::function<void()>> all;
  for (auto& group : groups_) {
    for (auto& work : group) all.push_back(std::move(work));
  }
  groups_.clear();
  groups_.emplace_back();
  return all;
}

bool Begun::empty() const {
  return std::all_of(groups_.begin(), groups_.end(), [](const auto& group) { return group.empty(); });
}

Begun& stores() { return launch->current->stores; }
Begun& multiplications() { return launch->current->multiplications; }

void copy_async(uint32_t to, const void* from, size_t bytes, size_t present) {
  unsigned char* const place = shared_place(to, bytes);
  if (to % bytes != 0 || (present > 0 && reinterpret_cast<uintptr_t>(from) % bytes != 0)) {
    fail("copies " + std::to_string(bytes) + " bytes between addresses that are not multiples of it",
         Site{"cp.async", 0});
  }
  std::vector<unsigned char> data(bytes);
  if (present > 0) memcpy(data.data(), from, present);
  launch->current->copies.add([place, data = std::move(data)] { memcpy(place, data.data(), data.size()); });
  memset(place, 0xff, bytes);
}

void commit_copies() { launch->current->copies.close(); }
void wait_copies(size_t left) { launch->current->copies.finish(left); }

void init_barrier(uint32_t barrier, unsigned arrivals) {
  Phase phase(0);
  phase.pending = phase.arrivals = arrivals;
  phase.bytes = 0;
  const uint64_t word = phase.word();
  memcpy(shared_place(barrier, 8), &word, 8);
}

void arrive(uint32_t barrier, Site site, unsigned expected_bytes, int rank) {
  overtake();
  launch->arrive(block_of(rank, site), barrier, site, 1, expected_bytes);
  overtake();
}

void arrive_when_copied(uint32_t barrier) {
  Block& block = *launch->current->block;
  launch->deliver_later(block, [barrier, &block, begun = launch->current->copies.take_all()] {
    for (const auto& work : begun) work();
    launch->arrive(block, barrier, Site{"cp.async", 0}, 1, 0);
  });
}

bool has_ended(uint32_t barrier, unsigned parity, Site site) {
  uint64_t word;
  memcpy(&word, shared_place(barrier, 8), 8);
  if (!Phase::is_valid(word)) fail("waits at a barrier that nobody has initialised", site);
  return Phase(word).parity != parity;
}

void wait_for_phase(uint32_t barrier, unsigned parity, Site site) {
  overtake();
  Thread& self = *launch->current;
  while (!has_ended(barrier, parity, site)) {
    self.site = site;
    self.block->sleepers.push_back({&self, barrier});
    self.fiber.suspend();
  }
}

void copy_bulk(uint32_t to, std::vector<unsigned char> data, uint32_t barrier, int rank) {
  Block& block = block_of(rank, Site{"copy engine", 0});
  unsigned char* const place = launch->place_in(block, to, data.size());
  memset(place, 0xff, data.size());
  launch->deliver_later(block, [place, barrier, &block, data = std::move(data)] {
    memcpy(place, data.data(), data.size());
    launch->arrive(block, barrier, Site{"copy engine", 0}, 0, -static_cast<int64_t>(data.size()));
  });
}

bool meet(int number, unsigned threads, bool says, bool waits, Site site) {
  Thread& self = *launch->current;
  Meeting& meeting = self.block->meetings[number];
  if (meeting.arrived > 0 && meeting.threads != threads) {
    fail("meets " + std::to_string(threads) + " threads at barrier " + std::to_string(number) + ", where " +
             std::to_string(meeting.threads) + " are expected",
         site);
  }
  meeting.threads = threads;
  meeting.said |= says;
  if (waits) meeting.waiting.push_back(&self);
  if (++meeting.arrived == threads) {
    for (Thread* thread : meeting.waiting) {
      thread->told = meeting.said;
      launch->make_ready(*thread);
    }
    meeting = {};
  }
  if (!waits) return false;
  self.site = site;
  self.fiber.suspend();
  return self.told;
}

void poll() { launch->poll(); }

int lane() { return launch->current->lane; }

unsigned lanes() { return launch->current->warp->lanes; }

void* shared_array(const void* key, size_t bytes) {
  Block& block = *launch->current->block;
  const auto [entry, made] = block.shared.try_emplace(key, bytes, launch->address_of(key, bytes));
  const size_t all = block.shared_bytes(), arrays = all - launch->grid.dynamic_shared;
  if (made && arrays > kMaxSharedBytes) fail("needs more than 48 KiB of shared memory", Site{"SHARED_ARRAY", 0});
  if (made && all > kMostSharedBytes) fail("needs more shared memory than a block may have", Site{"SHARED_ARRAY", 0});
  return entry->second.data.get();
}

void* dynamic_shared() { return launch->current->block->shared.at(nullptr).data.get(); }

int cluster_rank() { return launch->current->block->rank; }

void* shared_of(void* here, int rank, Site site) {
  Block &mine = *launch->current->block, &other = peer(rank, site);
  for (const auto& [key, array] : mine.shared) {
    if (!array.holds(here)) continue;
    const size_t offset = static_cast<unsigned char*>(here) - array.data.get();
    return other.shared.try_emplace(key, array.bytes, array.address).first->second.data.get() + offset;
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
