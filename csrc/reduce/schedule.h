// Who executes the order of additions (pairwise.h) on a GPU: threads, warps, blocks, and how many of them. Nothing here changes
// a bit of the result; it is chosen from the shape, the strides, the alignment and the chip. Host code, free of torch and CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "../common/dtypes.h"
#include "../common/prepared.h"
#include "geometry.h"
#include "pairwise.h"
#include "shapes.h"

namespace treduce::reduce {

// A launch, and what its kernel needs to know beside the geometry. Each rung's kernel says how it reads `tile`, `span` and
// `splits`; a block walks every grid-th tile.
struct Schedule : LaunchShape {
  bool vectors = false;    // 16 bytes a load; otherwise element by element
  bool shifted = false;    // vectors too, of rows that begin anywhere
  bool columns = false;    // made for the column kernels
  bool at_once = false;    // row_block: a block a row, with a warp for each chunk
  bool whole = false;      // row_block: all is one row, for which it has a smaller kernel
  bool in_groups = false;  // row_block: one long row, whose short blocks are folded in groups
  // row_block, column_thread: the next launch may come when elements are loaded. Otherwise, and of whole tensors, when all blocks but the
  // last have ended.
  bool early = false;
  int64_t tiles = 1;  // units of work, over the outputs and the splits
  int64_t tile = 1;   // outputs of a tile
  // Nodes of the tree (chunks, or groups of leaves) that a block or thread folds: a power of two. Of row_tile, batches of a tile;
  // of exact, elements of a split: any number.
  int64_t span = 1;
  int64_t splits = 1;  // blocks that share an output; above 1 the last of them to finish folds their partials

  int64_t partials = 0;         // accumulators of global memory that go with splits
  int64_t workspace_bytes = 0;  // where they are no accumulators: bytes of global memory, in place of `partials`
  int64_t counters = 0;         // counters, likewise: one for each group of blocks that shares outputs
};

bool operator==(const Schedule& a, const Schedule& b);

// The memory that a call reads: what a schedule may look at, and an order may not.
struct Memory {
  uint64_t address;     // of the first element
  DType dtype;          // as stored
  DType target;         // what an element counts as
  int64_t accumulator;  // bytes of one
  bool extremum, converting;
  Kernels kernels = Kernels::every;  // of the rung that is scheduled

  // A sum of a common float: it is read as it is stored.
  bool common_sum() const { return !extremum && !converting && is_common_float(dtype); }
  // There are kernels that read 16 bytes at once, of one reduced dim.
  bool vectors() const { return !converting && has_vectors(kernels, dtype, extremum); }
  // The result does not depend on the order of the elements.
  bool order_free() const { return extremum || is_integer(dtype); }
};

inline Memory make_memory(uint64_t address, DType dtype, DType target, int64_t accumulator, bool extremum,
                          bool converting, Kernels kernels = Kernels::every) {
  return {address, dtype, target, accumulator, extremum, converting, kernels};
}

// What a rung makes of a call. A rung that cannot take it leaves a sentence in `refusal`.
struct Scheduled {
  Schedule schedule;
  std::string refusal;
};

// `block`, `blocks` 0: chosen here. Both change the schedule and never the result.
struct Work {
  const Geometry& geometry;
  const Memory& memory;
  const Chip& chip;
  int block;
  int64_t blocks;
};

// Whether row_lanes reads several rows in one vector.
inline bool packs_rows(const Geometry& g, bool vectors, int64_t element_size) {
  const int64_t in_vector = 16 / element_size;
  return vectors && g.length > 1 && g.length < in_vector && in_vector % g.length == 0 && g.kept.count == 1 &&
         g.kept.stride[0] == g.length && g.kept_out.is_dense();
}

Scheduled schedule_thread(const Work& work);
Scheduled schedule_row_tile(const Work& work);
Scheduled schedule_row_lanes(const Work& work);
Scheduled schedule_row_warp(const Work& work);
Scheduled schedule_row_block(const Work& work);
Scheduled schedule_row_cluster(const Work& work);
Scheduled schedule_column_thread(const Work& work);
Scheduled schedule_column_narrow(const Work& work);
Scheduled schedule_column_block(const Work& work);
Scheduled schedule_exact(const Work& work);

// The name of the rung that `auto` takes; and of the one whose schedule `compensated` takes, which has fewer kernels.
const char* choose_rung(const Work& work);
const char* choose_block_rung(const Work& work);

}  // namespace treduce::reduce
