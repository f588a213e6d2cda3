// Which vector instructions the CPU has, for code that is compiled for several sets and picks one when it runs.
#pragma once

namespace treduce {

// avx2 stands for AVX2, FMA and F16C, which came together; avx512 for these and AVX-512 F, BW, DQ and VL.
enum class InstructionSet { baseline, avx2, avx512 };

// The best set of this CPU, queried once. TORCH_REDUCE_CPU=baseline or avx2 lowers it, so that tests can compare.
InstructionSet instruction_set();

}  // namespace treduce
