// The launches of the forward's kernels, one function a file.
#pragma once

#include "shapes.h"

namespace treduce::attention {

// Of the backward: for each query the logarithm of its sum, and its results times their gradients, summed.
struct LineValues {
  float* log_sums = nullptr;
  float* along = nullptr;
};

namespace forward {
int launch_one(const Problem& p, const LaunchShape& shape, const Matrices& out, const LineValues& lines, void* stream);
}
namespace warp_groups {
int launch_one(const Problem& p, const LaunchShape& shape, const Matrices& out, const LineValues& lines, void* stream);
}
namespace backward_groups {
int launch_both(const Problem& p, const Prepared& prepared, const Gradients& gradients, const LineValues& lines,
                void* stream);
}
namespace pieces {
int launch_both(const Problem& p, const Prepared& prepared, const Matrices& out, void* workspace, void* stream);
}

// The first launch of what was prepared for a whole prompt, where results or, if asked for, the values of lines come from.
inline int launch_whole(const Problem& p, const Prepared& prepared, const Matrices& out, const LineValues& lines,
                        void* stream) {
  if (prepared.way == Way::warp_groups) return warp_groups::launch_one(p, prepared.launches[0], out, lines, stream);
  return forward::launch_one(p, prepared.launches[0], out, lines, stream);
}

}  // namespace treduce::attention
