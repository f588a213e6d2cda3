#include "counters.h"

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

namespace treduce {
namespace {

// Counters lie a cache sector apart, so that two of them never contend for one.
constexpr size_t kStride = 32 / sizeof(unsigned);
constexpr size_t kCountersASlab = 4096;

// Allocating and clearing memory is forbidden to other streams while some stream of the process is captured in the default
// mode; none of it touches the captured stream, so this thread may say that it knows what it does.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The free counters of one device. Slabs are never returned: a few of them serve a process.
class Pool {
 public:
  cudaError_t take(unsigned** counter) {
    if (free_.empty()) {
      const RelaxedCapture relaxed;
      constexpr size_t bytes = kCountersASlab * kStride * sizeof(unsigned);
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
      for (size_t i = 0; i < kCountersASlab; ++i) free_.push_back(slab + i * kStride);
    }
    *counter = free_.front();
    free_.pop_front();
    return cudaSuccess;
  }
  void give_back(unsigned* counter) { free_.push_back(counter); }

 private:
  std::deque<unsigned*> free_;
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
  unsigned* counter;
};

// Called by CUDA when the last graph that holds the counter is gone; must not call CUDA.
void CUDART_CB end_lease(void* data) {
  Lease* lease = static_cast<Lease*>(data);
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().pools[lease->device].give_back(lease->counter);
  }
  delete lease;
}

}  // namespace

cudaError_t counter_for(int device, cudaStream_t stream, unsigned** counter) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr);
#else
  cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr);
#endif
  if (error != cudaSuccess) return error;

  const std::lock_guard<std::mutex> lock(state().mutex);
  Pool& pool = state().pools[device];
  if (status != cudaStreamCaptureStatusActive) {
    const bool per_thread = stream == cudaStreamPerThread;
    unsigned*& mine = state().of_stream[{device, stream, per_thread ? std::this_thread::get_id() : std::thread::id()}];
    if (mine == nullptr) error = pool.take(&mine);
    *counter = mine;
    return error;
  }
  error = pool.take(counter);
  if (error != cudaSuccess) return error;
  Lease* lease = new Lease{device, *counter};
  cudaUserObject_t object = nullptr;
  error = cudaUserObjectCreate(&object, lease, end_lease, 1, cudaUserObjectNoDestructorSync);
  if (error != cudaSuccess) {
    delete lease;
    pool.give_back(*counter);
    return error;
  }
  return cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
}

}  // namespace treduce
