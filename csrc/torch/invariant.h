// The batch-invariant mode: aten ops that reduce become ours while a bit is set in the thread's dispatch keys. Their kernels
// lie below autograd, so torch's derivative formulas stay, and the sums and products in them are ours too.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>

namespace treduce::invariant {

// Every call passes this key: below autograd and tracing, above the backends. Torch itself uses it only for factory functions, which
// have no tensor to dispatch on.
constexpr c10::DispatchKey kKey = c10::DispatchKey::BackendSelect;

// A thread's mode is kept in two bits of its included dispatch keys, because torch copies those to autograd's threads. The bits are
// autocast keys of devices other than CPU and CUDA. Autocast keys are also in the excluded set until that device's autocast is
// entered, so the bits change no dispatch.
constexpr c10::DispatchKey kActive = c10::DispatchKey::AutocastIPU;
constexpr c10::DispatchKey kStrict = c10::DispatchKey::AutocastHPU;

enum class Mode { off, warns, strict };
Mode mode();  // of this thread
void set(Mode mode);

inline bool active() { return c10::impl::tls_local_dispatch_key_set().included_.has(kActive); }

enum class Kind {
  ours,       // computed here
  torchs,     // torch's kernel keeps the promise, for the given reason
  on_cpu,     // likewise on a CPU; the one on CUDA is not covered
  uncovered,  // reduces in an order that torch does not promise
};

// An op that the mode knows, and how often it ran in the mode since the process began.
struct Entry {
  std::string name;
  Kind kind;
  std::string reason;
  bool contiguous = false;  // torch's kernel is given contiguous tensors: of others it takes other loops
  std::atomic<int64_t> ours{0}, torchs{0}, uncovered{0};
  std::atomic<bool> warned{false};

  Entry(std::string name_, Kind kind_, std::string reason_)
      : name(std::move(name_)), kind(kind_), reason(std::move(reason_)) {}
};
std::deque<Entry>& entries();
Entry& entry_of(const c10::OperatorHandle& op);  // which is there
Entry& add_entry(const char* name, Kind kind, const char* reason);

// Raises in the strict mode, else warns once for each op. Torch's warnings name the line of Python that made the call.
void report_uncovered(Entry& entry);

// Register the ops of each file: all of them, when the mode is first entered.
void replace_reductions(torch::Library& m);
void replace_elementwise(torch::Library& m);
void replace_scans(torch::Library& m);
void replace_index(torch::Library& m);
void replace_convolution(torch::Library& m);
void replace_attention(torch::Library& m);
void replace_above_autograd(torch::Library& m);
void replace_whole_vectors(torch::Library& m);
void leave_to_torch(torch::Library& m);

constexpr c10::DispatchKeySet below(c10::DispatchKey key) {
  return c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key);
}

}  // namespace treduce::invariant
