// What prepare decides and launchers read. Apart from prepare.h, because every kernel file includes it: no heavy header of the
// standard library. Host code, free of torch and CUDA.
#pragma once

#include "operand.h"
#include "shapes.h"
#include "split.h"

namespace treduce::matmul {

// split_fp16: one operand, and where its parts lie in the workspace. Operands that are split as they are read have flags alone.
struct SplitRegions {
  Halves shape;
  Splitting splitting;
  bool as_read = false;
  // Offsets; `units` where neither operand is split as it is read.
  int64_t halves = 0, scales = 0, units = 0, flags = 0;
};

// What a rung's launcher reads of a prepared product.
struct Decisions {
  Problem problem;
  DType dtype = DType::float32;

  // The outputs of a block, or of a cluster, and which entry of the rung's list in shapes.h that is. `few`: of the list of the
  // kernel for few rows (few_rows.cuh, split_rows.cuh).
  int shape = 0;
  bool few = false;
  int64_t tile_m = 0, tile_n = 0;
  int stages = 0;  // of the ring in shared memory; 0: none

  // How operands are read: by which loads (pipelined, wmma), or as boxes, where they lie or in copies at these offsets.
  Way way_a = Way::k, way_b = Way::k;
  View view_a = {}, view_b = {};
  int64_t copy_a = 0, copy_b = 0;
  bool boxes_c = false;  // results leave as boxes

  // split_fp16. Groups that are apart are computed side by side, and added afterwards from `partials`.
  int64_t groups = 1;
  bool apart = false;
  SplitRegions split_a = {}, split_b = {};
  int64_t partials = 0;  // an offset
  int finish_tile = 0;
};

}  // namespace treduce::matmul
