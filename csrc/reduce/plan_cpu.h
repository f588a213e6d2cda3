// The plan of a classic rung, executed on the CPU: the same additions in the same order as the kernels, hence the same bits.
#pragma once

#include "plan.h"
#include "result.h"

namespace treduce::reduce {

// Reduces the plan's n elements of `dtype`, one of the ten that every rung takes.
void run_plan_on_cpu(Op op, DType dtype, const void* input, const Plan& plan, const Result& result);

}  // namespace treduce::reduce
