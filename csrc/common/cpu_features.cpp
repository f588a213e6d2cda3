// Asks the CPU for its vector instructions.
#include "cpu_features.h"

#include <cstdlib>
#include <string_view>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace treduce {
namespace {

InstructionSet detect() {
#ifdef __x86_64__
  const char* const variable = std::getenv("TORCH_REDUCE_CPU");
  const std::string_view most = variable != nullptr ? variable : "";
  if (most == "baseline") return InstructionSet::baseline;
  unsigned a = 0, b = 0, c = 0, d = 0;  // __builtin_cpu_supports does not know F16C in every compiler
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  if (!f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return InstructionSet::baseline;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 && most != "avx2" ? InstructionSet::avx512 : InstructionSet::avx2;
#else
  return InstructionSet::baseline;
#endif
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet best = detect();
  return best;
}

}  // namespace treduce
