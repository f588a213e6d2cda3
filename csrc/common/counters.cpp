// Pools of counters: one for each stream, and for each captured graph its own.
#include "counters.h"

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

namespace treduce {
namespace {

// Counters are handed out in runs of 2^3, 2^4, ... 2^12. The shortest fills a cache sector, so that two launches never contend
// for one; the longest is what a stream has.
constexpr int kShortest = 3, kLongest = 12;
static_assert(kMostCounters == 1 << kLongest);
constexpr int kRunsASlab = 8;

// Length of the shortest run that holds `count`, as a power of two.
int length_for(int64_t count) {
  int length = kShortest;
  while (int64_t{1} << length < count) ++length;
  return length;
}

// Allocating and clearing memory is forbidden to other streams while some stream of the process is captured in the default
// mode; none of it touches the captured stream, so this thread opts out of that rule.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The free runs of one device, by length. Slabs are never returned: a few of them serve a process.
class Pool {
 public:
  cudaError_t take(int length, unsigned** first) {
    if (free_[length].empty()) {
      const cudaError_t error = length == kLongest ? add_slab() : split(length + 1);
      if (error != cudaSuccess) return error;
    }
    *first = free_[length].front();
    free_[length].pop_front();
    return cudaSuccess;
  }
  void give_back(int length, unsigned* first) { free_[length].push_back(first); }

 private:
  cudaError_t split(int length) {
    unsigned* run = nullptr;
    const cudaError_t error = take(length, &run);
    if (error != cudaSuccess) return error;
    free_[length - 1].push_back(run);
    free_[length - 1].push_back(run + (size_t{1} << (length - 1)));
    return cudaSuccess;
  }

  cudaError_t add_slab() {
    const RelaxedCapture relaxed;
    constexpr size_t bytes = kRunsASlab * kMostCounters * sizeof(unsigned);
    unsigned* slab = nullptr;
    cudaError_t error = cudaMalloc(reinterpret_cast<void**>(&slab), bytes);
    if (error != cudaSuccess) return error;
    // On a stream of its own: the legacy default stream would wait for, or break, a capture.
    cudaStream_t stream = nullptr;
    error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaMemsetAsync(slab, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (stream != nullptr) cudaStreamDestroy(stream);
    if (error != cudaSuccess) return error;
    for (int i = 0; i < kRunsASlab; ++i) free_[kLongest].push_back(slab + i * kMostCounters);
    return cudaSuccess;
  }

  std::deque<unsigned*> free_[kLongest + 1];
};

struct State {
  std::mutex mutex;
  std::map<int, Pool> pools;
  // cudaStreamPerThread is one handle for a stream in each thread, hence the thread in the key; it is empty for the others.
  std::map<std::tuple<int, cudaStream_t, std::thread::id>, unsigned*> of_stream;
};

State& state() {
  static State* const instance = new State;  // never destroyed: graphs may outlive static destructors
  return *instance;
}

struct Lease {
  int device;
  int length;
  unsigned* first;
};

// Called by CUDA when the last graph that holds the counters is gone; must not call CUDA.
void CUDART_CB end_lease(void* data) {
  Lease* lease = static_cast<Lease*>(data);
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().pools[lease->device].give_back(lease->length, lease->first);
  }
  delete lease;
}

}  // namespace

cudaError_t counters_for(int device, cudaStream_t stream, int64_t count, unsigned** first) {
  if (count < 1 || count > kMostCounters) return cudaErrorInvalidValue;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr);
#else
  cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr);
#endif
  if (error != cudaSuccess) return error;

  if (status != cudaStreamCaptureStatusActive) {
    // A thread mostly stays on one stream: what it was given last needs no lock.
    struct Last {
      int device;
      cudaStream_t stream;
      unsigned* first;
    };
    static thread_local Last last{-1, nullptr, nullptr};
    if (last.device != device || last.stream != stream) {
      const std::lock_guard<std::mutex> lock(state().mutex);
      const bool per_thread = stream == cudaStreamPerThread;
      unsigned*& mine =
          state().of_stream[{device, stream, per_thread ? std::this_thread::get_id() : std::thread::id()}];
      if (mine == nullptr) error = state().pools[device].take(kLongest, &mine);
      if (error != cudaSuccess) return error;
      last = {device, stream, mine};
    }
    *first = last.first;
    return cudaSuccess;
  }

  const std::lock_guard<std::mutex> lock(state().mutex);
  Pool& pool = state().pools[device];
  const int length = length_for(count);
  error = pool.take(length, first);
  if (error != cudaSuccess) return error;
  Lease* lease = new Lease{device, length, *first};
  cudaUserObject_t object = nullptr;
  error = cudaUserObjectCreate(&object, lease, end_lease, 1, cudaUserObjectNoDestructorSync);
  if (error != cudaSuccess) {
    delete lease;
    pool.give_back(length, *first);
    return error;
  }
  return cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
}

}  // namespace treduce
