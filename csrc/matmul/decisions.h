// What prepare decides and launchers read. Apart from prepare.h, because every kernel file includes it: no heavy header of the
// standard library. Host code, free of torch and CUDA.
#pragma once

#include "operand.h"
#include "shapes.h"
#include "split/split.h"

namespace treduce::matmul {

// split_fp16 and split_bf16: one operand, and where what it is split into lies in the workspace. Operands that are split as they
// are read have the facts of lines alone.
struct SplitRegions {
  Halves shape;
  Splitting splitting;
  bool as_read = false, has_halves = false, has_parts = false;
  bool knows_codes = false;  // which codes its lines have becomes known as a set
  bool ordered = false;      // its parts lie in an order of their own
  int together = 1;          // of few lines: those that a cluster splits
  // Offsets. Parts may lie where the halves were.
  int64_t halves = 0, scales = 0, units = 0, facts = 0, line_facts = 0, order = 0, parts = 0;
  int64_t runs = 0;  // counters, see kRunLines; of few rows, see split_rows.cuh; 0: there are none
};

// The last rows of C, or columns, from `first` on, which a launch of smaller tiles computes, because large ones would fill a part of a last
// round of blocks. shape: of persistent.
struct Strip {
  int shape = 0;
  bool of_rows = false;
  int64_t first = 0;  // 0: there is none

  bool exists() const { return first > 0; }
  // What is computed before it, all if there is none; and the strip itself.
  Problem before(const Problem& p) const {
    Problem most = p;
    if (exists()) (of_rows ? most.m : most.n) = first;
    return most;
  }
  Problem alone(const Problem& p) const {
    Problem rest = p;
    (of_rows ? rest.m : rest.n) -= first;
    return rest;
  }
};

// What a rung's launcher reads of a prepared product.
struct Decisions {
  Problem problem;
  DType dtype = DType::float32;

  // The outputs of a block, or of a cluster, and which entry of the rung's list in shapes.h that is. `few`: of the list of the
  // kernel for few rows (few_rows.cuh, split_rows.cuh; of split_direct split_single.cu), few_outputs: of few_outputs.cuh; few_columns: it
  // computes the transposed product; registers: of register_operand.cu; narrow: of narrow.cu, few_columns: with A in registers; in_place: of
  // in_place.cu; short_k: of short_k.cu.
  int shape = 0;
  bool few = false, few_outputs = false, few_columns = false, registers = false, narrow = false, in_place = false,
       short_k = false;
  // The kernel for small matrices (small_tiles.cuh), of small tiles (small_f64.cu), or for few lines (split_warps.cuh, split_held.cu). some:
  // that for some lines, of split_direct (split_some.cu).
  bool small = false, some = false;
  int64_t tile_m = 0, tile_n = 0;
  int stages = 0;  // of the ring in shared memory; 0: none

  // How operands are read: by which loads (pipelined, wmma), or as boxes, where they lie or in copies at these offsets.
  Way way_a = Way::k, way_b = Way::k;
  View view_a = {}, view_b = {};
  int64_t copy_a = 0, copy_b = 0;
  bool boxes_c = false;  // results leave as boxes
  Strip strip = {};

  // split_fp16 and split_bf16. Groups that are apart are computed side by side, and added afterwards from `partials`. Of parts so
  // many groups lie in the workspace at once; parts_shape: of the kernel that multiplies them; few_units, few_lines: see
  // split_few.cuh. rest_in_one: blocks that multiply compute what pairs leave, see split_rest.cuh.
  int64_t groups = 1, groups_at_once = 1;
  bool apart = false, rest_in_one = false;
  int parts_shape = 0;
  int few_units = 0;
  // Where both operands are split as they are read: the segments of a block, and whether their sums are added by another launch.
  int block_segments = 0;
  bool segment_sums = false;
  SplitRegions split_a = {}, split_b = {};
  bool both_as_read() const { return split_a.as_read && split_b.as_read; }
  int64_t partials = 0, few_lines = 0;  // offsets
  // Of rest_in_one: where the tiles that are left are told of. And the words that the first launch zeroes: `runs` of the operands, and these.
  int64_t left_tiles = 0, left_words = 0;

  // Of few rows: the groups whose segments blocks of the second launch may share out, see split_rows.cuh; and where their sums lie.
  int64_t shared_groups = 0, shared_sums = 0;

  // Tasks that blocks are dealt by steps of k, and where the accumulators lie that they hand over: see stream_k.cuh.
  int64_t dealt = 0, accumulators = 0;
  int64_t counters = 0;  // zeroed, and left zero
};

}  // namespace treduce::matmul
