// The launchers that kernel files leave for their family's ladder. Apart from ladder.h, because every kernel file includes it:
// no header of the standard library.
#pragma once

namespace treduce {

// Returns a cudaError_t. Each family has a Call of its own.
template <class Call>
using Launcher = int (*)(const Call&);

// A list of what was registered.
template <class Call>
struct RegisteredLauncher {
  const char* name;
  Launcher<Call> launcher;
  const RegisteredLauncher* next;
};

template <class Call>
const RegisteredLauncher<Call>*& registered_launchers() {
  static const RegisteredLauncher<Call>* first = nullptr;
  return first;
}

// Tells a ladder which launcher belongs to the row of that name: a static object at the end of each kernel file.
template <class Call, auto kLauncher>
class RegisterRung {
 public:
  explicit RegisterRung(const char* name)
      : entry_{name, [](const Call& call) { return static_cast<int>(kLauncher(call)); }, registered_launchers<Call>()} {
    registered_launchers<Call>() = &entry_;
  }
  RegisterRung(const RegisterRung&) = delete;

 private:
  RegisteredLauncher<Call> entry_;
};

}  // namespace treduce
