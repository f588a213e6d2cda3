// The schedules of the rungs along dims, and which of them `auto` takes.
#include "schedule.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "../common/bit_ceil.h"
#include "../common/round.h"
#include "plan.h"
#include "tuning.h"

namespace treduce::reduce {
namespace {

Scheduled refused(std::string why) { return {{}, std::move(why)}; }

int64_t element_size(const Work& w) { return size_of(w.memory.dtype); }

// Whether every vector of `bytes` that a kernel asks for is aligned: the run that vectors go along is `inner`, the dims beside it
// are `outer`.
bool aligned(const Work& w, const Extents& inner, const Extents& outer, int64_t bytes) {
  const int64_t size = element_size(w);
  if (!w.memory.vectors() || inner.count == 0 || inner.inner_stride() != 1) return false;
  if (w.geometry.reduced.count > 1 && !(w.memory.common_sum() && has_several_dims(w.memory.kernels))) return false;
  if (w.memory.address % static_cast<uint64_t>(bytes) != 0) return false;
  for (int d = 0; d + 1 < inner.count; ++d) {
    if (inner.stride[d] * size % bytes != 0 || inner.inner_size() * size % bytes != 0) return false;
  }
  for (int d = 0; d < outer.count; ++d) {
    if (outer.stride[d] * size % bytes != 0) return false;
  }
  return true;
}

bool row_vectors(const Work& w) { return aligned(w, w.geometry.reduced, w.geometry.kept, 16); }

// Whether rows that begin anywhere can be read in vectors all the same: their elements lie one after another.
bool row_shifted(const Work& w) {
  return w.memory.vectors() && w.geometry.reduced.count == 1 && w.geometry.reduced.inner_stride() == 1 &&
         (w.memory.order_free() || (w.memory.common_sum() && has_shifted(w.memory.kernels)));
}

// How the teams of row_warp, row_block and row_cluster read.
void read_rows(const Work& w, Schedule& s) {
  s.vectors = row_vectors(w);
  s.shifted = !s.vectors && row_shifted(w);
}

Memory with_kernels(Memory memory, Kernels kernels) {
  memory.kernels = kernels;
  return memory;
}

// Bytes that a thread of the column kernels takes at once.
int64_t column_bytes(const Work& w) { return reduce::column_bytes(element_size(w)); }

bool column_vectors(const Work& w) {
  return aligned(w, w.geometry.kept, w.geometry.reduced, column_bytes(w)) &&
         w.geometry.kept.inner_size() * element_size(w) % column_bytes(w) == 0;
}

int64_t columns_of_thread(const Work& w) {
  if (column_vectors(w)) return column_bytes(w) / element_size(w);
  const bool has_kernel = w.geometry.reduced.count <= 1 ? has_singles(w.memory.kernels, element_size(w))
                                                        : has_several_dims(w.memory.kernels);
  return w.memory.common_sum() && has_kernel ? single_columns(element_size(w)) : 1;
}

int64_t team_threads(const Work& w, const Schedule& s) {
  return reduce::team_threads(s.vectors || s.shifted ? 16 / element_size(w) : 1);
}

int64_t chunks_of(const Work& w) { return Pairwise(w.geometry.length).chunks(); }

// Whether row_block takes its kernel for whole tensors.
bool is_whole(const Work& w) {
  const Geometry& g = w.geometry;
  return g.outputs == 1 && g.reduced.count == 1 && g.length > 0 && g.length <= kWholeMost && w.blocks == 0 &&
         w.memory.kernels == Kernels::every && w.memory.common_sum() && row_vectors(w);
}

// Whether row_block takes rows at once, a block a row, with a warp for each chunk: rows that vectors fit, as many as the chip holds such
// blocks, and of float32, whose blocks read most, fewer of the large ones. But of it also very many: a warp that ends makes no other wait
// for its next chunk.
bool takes_vectors_at_once(const Work& w) {
  const Geometry& g = w.geometry;
  if (w.memory.kernels != Kernels::every || w.block > 0 || w.blocks > 0 || g.outputs > kMostBlocks) return false;
  if (g.reduced.count != 1 || g.kept.count > 1 || !g.kept_out.is_dense()) return false;
  const int64_t most = block_row_threads(w.memory.accumulator), threads = chunks_of(w) * kWarp;
  const bool is_float = element_size(w) == 4 && w.memory.accumulator == 4;
  const bool large = is_float && threads >= tuning::kRowsAtOnceLeast;
  const bool many = g.outputs > tuning::kBlocksAnSm * w.chip.multiprocessors;
  const int64_t an_sm = large ? tuning::kRowsAtOnceAnSm : most;  // threads
  const bool fits = g.outputs * threads <= an_sm * w.chip.multiprocessors && !(many && threads == kWarp);
  return has_kernel_at_once(element_size(w)) && threads <= most &&
         (fits || (large && many && threads <= tuning::kRowsAtOnceMost)) && row_vectors(w);
}

// The same of rows of any strides, element by element: few enough that the sectors of 32 bytes around elements do not count.
bool takes_elements_at_once(const Work& w) {
  const Geometry& g = w.geometry;
  const int64_t threads = chunks_of(w) * kWarp;
  return w.memory.kernels == Kernels::every && w.block == 0 && w.blocks == 0 && w.memory.common_sum() && g.length > 0 &&
         has_short_steps(g.reduced) && threads <= kElementsThreads &&
         g.outputs <= tuning::kBlocksAnSm * w.chip.multiprocessors && g.outputs * g.length <= tuning::kElementsAtOnce &&
         !row_vectors(w);
}

bool takes_rows_at_once(const Work& w) { return takes_vectors_at_once(w) || takes_elements_at_once(w); }

// Whether results are sums of integers, of eight bytes mostly.
bool has_wide_results(const Memory& memory) { return is_integer(memory.dtype) && !memory.extremum; }

// Whether rows are so short that a vector holds several.
bool lanes_pack(const Work& w) {
  return w.memory.vectors() && w.memory.address % 16 == 0 && w.geometry.reduced.count == 1 &&
         w.geometry.reduced.inner_stride() == 1 && packs_rows(w.geometry, true, element_size(w));
}

// Whether a whole tensor is too long for one block and fits a cluster.
bool is_whole_of_cluster(const Work& w, int64_t team) {
  const int64_t bytes = w.geometry.length * element_size(w);
  return is_whole(w) && w.block == 0 && chunks_of(w) * team > whole_threads(element_size(w)) &&
         bytes <= tuning::kWholeClusterBytes && ceil_div(chunks_of(w), kClusterBlocks) * team <= kWholeClusterThreads;
}

// Limits the grid to what the caller asked for.
void limit_grid(const Work& w, Schedule& s) {
  s.grid = std::min(s.grid, kMostBlocks);
  if (w.blocks > 0) s.grid = std::min(s.grid, w.blocks);
}

// A launch may come before the one before has ended; kernels that are launched so wait for it by themselves.
bool can_overlap(const Work& w) { return w.chip.capability >= 90; }

// Whether it may come while blocks of the one before still fold what they have loaded. Not where few blocks share all of memory's
// rate: they would be placed unevenly over SMs, two on one and none on another.
bool may_overlap(const Work& w, const Schedule& s) {
  const int64_t bytes = w.geometry.outputs * w.geometry.length * element_size(w);
  return can_overlap(w) &&
         (bytes <= tuning::kOverlapBytes || s.grid >= tuning::kOverlapBlocksAnSm * w.chip.multiprocessors);
}

// row_tile and column_narrow read batches of `length` x `columns` elements that lie one after another in memory. Returns the number
// of columns, or 0 where the tensor has no such form.
int64_t dense_columns(const Geometry& g) {
  if (g.reduced.count > 1 || g.kept.count > 2) return 0;
  const bool rows = g.reduced.count == 0 || g.reduced.inner_stride() == 1;
  if (rows) {
    if (g.kept.count == 0) return 1;
    return g.kept.count == 1 && g.kept.inner_stride() == g.length ? 1 : 0;
  }
  const int64_t columns = g.kept.inner_size();
  if (g.kept.count == 0 || g.kept.inner_stride() != 1 || g.reduced.inner_stride() != columns) return 0;
  return g.kept.count == 1 || g.kept.stride[0] == g.length * columns ? columns : 0;
}

// Whether neighbouring elements in memory belong to one output.
bool reduces_inner(const Geometry& g) {
  if (g.reduced.count == 0) return g.kept.count == 0 || g.kept.inner_stride() != 1;
  if (g.kept.count == 0) return true;
  const auto key = [](int64_t stride) { return stride == 0 ? INT64_MAX : stride; };
  return key(g.reduced.inner_stride()) <= key(g.kept.inner_stride());
}

bool tile_accepts(const Work& w) {
  const int64_t columns = dense_columns(w.geometry);
  return w.memory.vectors() && columns > 0 && w.geometry.length <= Pairwise::kLanes &&
         w.geometry.length * columns * element_size(w) + 16 <= tuning::kTileBytes;
}

bool narrow_accepts(const Work& w) {
  const Geometry& g = w.geometry;
  if (g.reduced.count != 1 || g.kept.count == 0 || g.kept.inner_stride() != 1) return false;
  const int64_t columns = g.kept.inner_size();
  return g.reduced.inner_stride() == columns && columns <= tuning::kNarrowColumns &&
         with_fold_room(Pairwise::kLanes) * columns * w.memory.accumulator <= tuning::kNarrowBytes &&
         g.outputs / columns <= kMostCounters;
}

// Whether column_narrow reads vectors: a matrix is one run, so it need only begin on one.
bool narrow_vectors(const Work& w) {
  const Extents& kept = w.geometry.kept;
  bool vectors = w.memory.vectors() && w.memory.address % static_cast<uint64_t>(column_bytes(w)) == 0;
  for (int d = 0; d + 1 < kept.count; ++d) {
    vectors = vectors && kept.stride[d] * element_size(w) % column_bytes(w) == 0;
  }
  return vectors;
}

}  // namespace

bool operator==(const Schedule& a, const Schedule& b) {
  const auto rest = [](const Schedule& s) {
    return std::tie(s.vectors, s.shifted, s.columns, s.at_once, s.whole, s.in_groups, s.early, s.tiles, s.tile, s.span,
                    s.splits, s.partials, s.workspace_bytes, s.counters);
  };
  return static_cast<const LaunchShape&>(a) == b && rest(a) == rest(b);
}

Scheduled schedule_thread(const Work& w) {
  Schedule s;
  s.block = w.block > 0 ? w.block : 128;
  s.grid = s.tiles = ceil_div(w.geometry.outputs, s.block);
  limit_grid(w, s);
  return {s, ""};
}

Scheduled schedule_row_tile(const Work& w) {
  if (!tile_accepts(w)) {
    return refused(
        "variant 'row_tile' takes up to " + std::to_string(Pairwise::kLanes) +
        " elements an output, of rows (or short columns) that lie one after another, without conversion; 'row_warp' "
        "and 'column_block' take any");
  }
  Schedule s;
  const int64_t columns = dense_columns(w.geometry);
  const int64_t batch_bytes = std::max<int64_t>(w.geometry.length, 1) * columns * element_size(w);
  const int64_t batches = w.geometry.outputs / columns;
  s.vectors = true;
  s.tile = columns;
  const bool is_short = tuning::kTileShort >= 128 * batch_bytes / columns;
  int64_t most = std::max<int64_t>((is_short ? tuning::kTileShort : tuning::kTileLong) / batch_bytes, 1);
  if (is_short && columns == 1 && most > tuning::kTileRows) most -= most % tuning::kTileRows;
  const int64_t few = ceil_div(batches, tuning::kTilesAnSm * w.chip.multiprocessors);
  s.span = std::clamp(few, std::min(most, ceil_div(tuning::kTileLeast, batch_bytes)), most);
  s.block = w.block > 0 ? std::min(w.block, kTileThreads) : is_short ? 128 : kTileThreads;
  s.shared_bytes = tile_shared_bytes(s.span * batch_bytes);
  s.grid = s.tiles = ceil_div(batches, s.span);
  limit_grid(w, s);
  s.overlapping = may_overlap(w, s);
  return {s, ""};
}

Scheduled schedule_row_lanes(const Work& work) {
  const Memory memory = with_kernels(work.memory, Kernels::short_rows);
  const Work w{work.geometry, memory, work.chip, work.block, work.blocks};
  if (w.geometry.length > tuning::kLaneElements) {
    return refused("variant 'row_lanes' takes up to " + std::to_string(tuning::kLaneElements) +
                   " elements an output, got " + std::to_string(w.geometry.length) + "; 'row_warp' takes any number");
  }
  Schedule s;
  s.vectors = row_vectors(w);
  const int64_t pack = s.vectors ? 16 / element_size(w) : 1;
  s.block = w.block > 0 ? std::min(w.block, kRowThreads) : kRowThreads;
  s.span = std::min<int64_t>(bit_ceil(ceil_div(w.geometry.length, pack)), team_threads(w, s));
  const bool even = s.vectors && w.geometry.reduced.count <= 1, at_once = even && w.geometry.length > Pairwise::kLanes;
  if (even && !at_once && w.memory.common_sum() && element_size(w) < 8 &&
      lanes_take_three(ceil_div(w.geometry.length, pack))) {
    s.span /= 4;
  }
  const bool two = lanes_take_two_stripes(w.geometry.length, w.memory.common_sum());
  const int64_t rows_a_team = !at_once ? kLanesRows : two ? kLanesRowsOfTwo : kLanesRowsOfFour;
  s.grid = s.tiles = ceil_div(ceil_div(w.geometry.outputs, kWarp / s.span * rows_a_team), s.block / kWarp);
  if (lanes_pack(w)) {
    s.vectors = true;
    s.span = 1;
    const bool wide = has_wide_results(w.memory);
    const int64_t vector = packed_elements(w.geometry.length, element_size(w), wide);
    s.grid = s.tiles = ceil_div(w.geometry.outputs * w.geometry.length, vector * packs_a_thread(wide) * s.block);
  }
  limit_grid(w, s);
  s.overlapping = may_overlap(w, s);
  return {s, ""};
}

Scheduled schedule_row_warp(const Work& w) {
  Schedule s;
  read_rows(w, s);
  const int64_t warps = ceil_div(w.geometry.outputs, kWarp / team_threads(w, s));
  s.block = w.block > 0 ? std::min(w.block, kRowThreads)
                        : static_cast<int>(std::min<int64_t>(bit_ceil(warps), kRowThreads / kWarp) * kWarp);
  s.grid = s.tiles = ceil_div(warps, s.block / kWarp);
  limit_grid(w, s);
  s.overlapping = may_overlap(w, s);
  return {s, ""};
}

// Warps for a row that is `work` warps' chunks: that many, or of five to eight those that leave the fewest idle in the last round.
int64_t row_warps(int64_t work) {
  constexpr int64_t kMost = kRowThreads / kWarp;
  if (work <= kMost) return std::max<int64_t>(work, 1);
  int64_t best = kMost;
  for (int64_t warps = kMost - 1; warps > kMost / 2; --warps) {
    if (ceil_div(work, warps) * warps < ceil_div(work, best) * best) best = warps;
  }
  return best;
}

// Chunks that a block folds where rows are too few for the chip, and its threads. `all` chunks are in all rows.
void share_rows(const Work& w, int64_t all, int64_t team, Schedule& s) {
  const int64_t at_once = kRowThreads / team;  // chunks, one a team
  s.span = bit_ceil(ceil_div(2 * all, w.chip.multiprocessors));
  if (s.span <= at_once) {
    // Latency is the bound: a chunk a team, and no more blocks than that takes.
    s.span = std::max<int64_t>(s.span, 2);
  } else {
    // Two blocks an SM, all at once; or three, where two would leave SMs with one.
    s.span = std::max(at_once, bit_ceil(ceil_div(all, 2 * w.chip.multiprocessors)));
    const bool alone = s.span >= chunks_of(w);
    const int64_t blocks = alone ? w.geometry.outputs : ceil_div(all, s.span);
    const int64_t an_sm = ceil_div(blocks, w.chip.multiprocessors);
    if (!s.whole && blocks * 10 < 9 * an_sm * w.chip.multiprocessors && s.span > at_once) s.span /= 2;
    // A long row: more short blocks than fit the chip at once. The last wave is then a small part of them.
    const int64_t chunk_bytes = Pairwise::kChunk * element_size(w);
    const int64_t short_blocks = ceil_div(all * chunk_bytes, tuning::kShortSpanBytes);
    if (w.geometry.outputs == 1 && s.vectors && w.geometry.reduced.count == 1 && w.block == 0 && w.blocks == 0 &&
        w.memory.kernels == Kernels::every && all * chunk_bytes >= tuning::kLongBytes &&
        short_blocks <= kRowGroup * kRowGroup &&
        !(s.whole && element_size(w) == 4 && s.span * chunk_bytes <= tuning::kWholeSpanBytes)) {
      s.whole = false;
      s.in_groups = true;
      s.span = tuning::kShortSpanBytes / chunk_bytes;
      // One group, where its blocks stay short enough: its fold is the last.
      const int64_t one_group = bit_ceil(ceil_div(all, kRowGroup));
      if (one_group * chunk_bytes <= tuning::kOneGroupSpanBytes && one_group <= kWholeValues)
        s.span = std::max(s.span, one_group);
    } else if (s.span * chunk_bytes > tuning::kMostSpanBytes) {
      s.span = tuning::kSpanBytes / chunk_bytes;
    }
  }
  s.block = static_cast<int>(std::clamp<int64_t>(s.span * team, 2 * kWarp,
                                                 s.whole && element_size(w) < 8 ? tuning::kWholeThreads : kRowThreads));
}

Scheduled schedule_row_block(const Work& w) {
  const int64_t outputs = w.geometry.outputs, chunks = chunks_of(w);
  Schedule s;
  read_rows(w, s);
  const int64_t team = team_threads(w, s);
  s.span = bit_ceil(chunks);
  if (takes_rows_at_once(w)) {
    s.at_once = true;
    s.vectors = takes_vectors_at_once(w);
    s.shifted = false;
    s.block = static_cast<int>(chunks * kWarp);
    s.grid = s.tiles = outputs;
    s.overlapping = may_overlap(w, s);
    return {s, ""};
  }
  s.whole = is_whole(w);
  const int most_threads = s.whole ? whole_threads(element_size(w)) : kRowThreads;
  if (s.whole && w.geometry.length * element_size(w) <= tuning::kWholeBlockBytes && chunks * team <= most_threads) {
    s.block = w.block > 0 ? std::min(w.block, most_threads) : static_cast<int>(ceil_div(chunks * team, kWarp) * kWarp);
    s.overlapping = may_overlap(w, s);
    return {s, ""};
  }
  s.block = static_cast<int>(row_warps(ceil_div(chunks * team, kWarp)) * kWarp);
  if (outputs < tuning::kBlocksAnSm * w.chip.multiprocessors && outputs <= kMostCounters &&
      chunks * team > 2 * kRowThreads) {
    share_rows(w, outputs * chunks, team, s);
    if (s.whole && (s.span > kWholeValues || ceil_div(chunks, s.span) > kWholeValues)) {
      s.whole = false;
      share_rows(w, outputs * chunks, team, s);
    }
    if (s.span >= chunks) {
      s.span = bit_ceil(chunks);
      s.block = static_cast<int>(row_warps(ceil_div(chunks * team, kWarp)) * kWarp);
    }
  }
  if (w.block > 0) s.block = std::min(w.block, kRowThreads);
  s.splits = ceil_div(chunks, s.span);
  s.grid = s.tiles = outputs * s.splits;
  if (s.splits > 1) {
    const int64_t groups = row_groups(s.splits);
    s.partials = s.in_groups ? group_partial(s.splits, groups) : s.tiles;
    s.counters = s.in_groups ? group_counter(groups) : outputs;
  }
  limit_grid(w, s);
  s.overlapping = can_overlap(w);
  s.early = may_overlap(w, s);
  return {s, ""};
}

Scheduled schedule_row_cluster(const Work& work) {
  const Memory memory = with_kernels(work.memory, Kernels::cluster);
  const Work w{work.geometry, memory, work.chip, work.block, work.blocks};
  Schedule s;
  read_rows(w, s);
  s.cluster = kClusterBlocks;
  s.span = bit_ceil(ceil_div(chunks_of(w), kClusterBlocks));
  if (const int64_t team = team_threads(work, s); is_whole_of_cluster(work, team)) {
    s.whole = true;
    s.block = static_cast<int>(round_up(s.span * team, kWarp));
    s.grid = s.tiles = kClusterBlocks;
    s.overlapping = may_overlap(w, s);
    return {s, ""};
  }
  s.block =
      static_cast<int>(std::clamp<int64_t>(w.block > 0 ? w.block : s.span * team_threads(w, s), kWarp, kRowThreads));
  s.grid = s.tiles = w.geometry.outputs * kClusterBlocks;
  limit_grid(w, s);
  s.grid = std::max<int64_t>(s.grid / kClusterBlocks, 1) * kClusterBlocks;
  s.overlapping = may_overlap(w, s);
  return {s, ""};
}

Scheduled schedule_column_thread(const Work& w) {
  if (w.geometry.length > Pairwise::kChunk) {
    return refused("variant 'column_thread' takes up to " + std::to_string(Pairwise::kChunk) +
                   " elements an output, got " + std::to_string(w.geometry.length) +
                   "; 'column_block' takes any number");
  }
  Schedule s;
  // Few kernels are compiled for more than one stripe: `auto` takes column_block there.
  const bool has_kernel = w.geometry.length <= Pairwise::kLanes || w.memory.order_free() || w.memory.common_sum();
  s.vectors = has_kernel && column_vectors(w);
  s.columns = true;
  const int64_t singles = has_kernel ? std::min<int64_t>(columns_of_thread(w), kColumnThreadSingles) : 1;
  const int64_t a_thread = s.vectors ? columns_of_thread(w) : singles;
  s.block = w.block > 0 ? std::min(w.block, kColumnThreadThreads)
                        : static_cast<int>(std::clamp<int64_t>(bit_ceil(ceil_div(w.geometry.outputs, a_thread)), kWarp,
                                                               tuning::kColumnThreadBlock));
  s.tile = s.block * a_thread;
  s.grid = s.tiles = ceil_div(w.geometry.outputs, s.tile);
  limit_grid(w, s);
  s.overlapping = can_overlap(w);
  s.early = s.grid <= tuning::kColumnThreadEarly;
  return {s, ""};
}

Scheduled schedule_column_narrow(const Work& w) {
  if (!narrow_accepts(w)) {
    return refused("variant 'column_narrow' takes up to " + std::to_string(tuning::kNarrowColumns) +
                   " columns whose rows lie one after another, and at most " + std::to_string(kMostCounters) +
                   " such matrices; 'column_block' takes any");
  }
  const Geometry& g = w.geometry;
  const int64_t columns = g.kept.inner_size(), chunks = chunks_of(w), batches = g.outputs / columns;
  Schedule s;
  s.tile = columns;
  s.vectors = narrow_vectors(w);
  // A vector of several rows is one node of their tree.
  const int64_t pack = s.vectors ? column_bytes(w) / element_size(w) : 1;
  const int64_t rows_of_vector = pack % columns == 0 ? pack / columns : 1;
  const int64_t bytes = with_fold_room(Pairwise::kLanes / rows_of_vector) * columns * w.memory.accumulator;
  s.span = 1;
  while (s.span * 2 * bytes <= tuning::kNarrowBytes && s.span < chunks &&
         batches * ceil_div(chunks, s.span * 2) >= 4 * w.chip.multiprocessors) {
    s.span *= 2;
  }
  s.shared_bytes = s.span * bytes;
  s.splits = ceil_div(chunks, s.span);
  // One block an SM: all the threads that the kernel is compiled for; fewer, where the last round would leave many without a vector.
  const int64_t most = batches * s.splits <= w.chip.multiprocessors ? kNarrowThreads : kNarrowThreads / 2;
  const int64_t items = s.span * Pairwise::kLanes * columns / pack, rounds = ceil_div(items, most);
  s.block =
      static_cast<int>(w.block > 0 ? std::min(w.block, kNarrowThreads) : round_up(ceil_div(items, rounds), kWarp));
  s.grid = s.tiles = batches * s.splits;
  if (s.splits > 1) {
    s.partials = s.tiles * columns;
    s.counters = batches;
  }
  limit_grid(w, s);
  s.overlapping = can_overlap(w);
  return {s, ""};
}

// The nodes of a thread at most, the threads of blocks that share columns, and threads side by side where columns are so short that a
// block has all of their rows.
constexpr int64_t kMostSpan = 16, kMostSharing = 160, kShortRun = 4;
constexpr int64_t kMostWarps = kColumnBlocksAnSm * kColumnBlockThreads / kWarp;  // of an SM, by their registers

Scheduled schedule_column_block(const Work& w) {
  const Geometry& g = w.geometry;
  Schedule s;
  s.vectors = column_vectors(w);
  const int64_t pack = columns_of_thread(w);
  const int64_t vectors = ceil_div(g.outputs, pack);
  const int64_t groups =
      g.length <= Pairwise::kLanes
          ? std::max<int64_t>(ceil_div(g.length, kShortGroup), 1)
          : chunks_of(w) *
                (Pairwise::kLanes / (takes_low_groups(pack) && g.length <= kLowRows ? kLowGroup : kTallGroup));
  const int64_t threads = w.block > 0 ? std::min(w.block, kColumnBlockThreads) : tuning::kColumnThreads;
  // Many rows: few x's and many y's, so that few partials are left to fold. Few rows: as many y's as there are groups. Single
  // columns: a warp side by side, fewer where that would leave much of the last tile empty.
  const bool may_choose = s.vectors && w.block == 0 && groups > 32;
  const auto is_full = [&](int64_t side) { return 3 * round_up(vectors, side) <= 4 * vectors; };  // nearly
  int64_t x = std::min<int64_t>(tuning::kColumnSide, bit_ceil(vectors));
  int64_t y = std::clamp<int64_t>(threads / x, 1, bit_ceil(groups));
  if (s.vectors) {
    if (groups <= 32) {
      while (y > 1 && ceil_div(vectors, threads / y) >= 8 * w.chip.multiprocessors) y /= 2;
    }
    x = std::min(threads / y, bit_ceil(vectors));
    if (may_choose && !is_full(x)) {
      x = ceil_div(vectors, ceil_div(vectors, 2 * x));
      y = bit_floor(std::min(kColumnBlockThreads / x, bit_ceil(groups)));
    }
  } else {
    const auto empty = [&](int64_t side) { return ceil_div(g.outputs, side * pack) * side * pack - g.outputs; };
    x = std::min<int64_t>(kWarp, bit_ceil(vectors));
    while (x > 8 && empty(x) > g.outputs / 8) x /= 2;
    y = std::min(y, threads / x);
  }
  // The nodes of a block, and room for the first round of their fold. A group is four leaves, or eight: see Grouping.
  const auto bytes = [&](int64_t x, int64_t y, int64_t span) {
    return with_fold_room(span * y) * x * pack * w.memory.accumulator;
  };
  // The blocks of a wave, by the registers of their warps and by their shared memory.
  const auto at_once = [&](int64_t x, int64_t y, int64_t span) {
    const int64_t by_memory = w.chip.shared_bytes() / (bytes(x, y, span) + 1024);
    return std::min(kMostWarps / ceil_div(x * y, kWarp), by_memory) * w.chip.multiprocessors;
  };
  const auto span_of = [&](int64_t x, int64_t y, int64_t tenfold) {
    int64_t span = std::min(ceil_div(bit_ceil(groups), y), kMostSpan);
    while (span > 1 && (bytes(x, y, span) > tuning::kColumnBytes ||
                        10 * ceil_div(vectors, x) * ceil_div(groups, y * span) < tenfold * w.chip.multiprocessors)) {
      span /= 2;
    }
    return span;
  };
  int64_t tenfold = tuning::kColumnBlocksTenfold;
  // Columns that blocks share: fewer threads, twice as wide, so that runs of memory are longer and folds shorter. But blocks that
  // share nothing, where there is about one an SM and few of their nodes are past the end.
  const int64_t size = element_size(w), nodes = bit_ceil(groups);
  const bool of_bytes = size == 1 && vectors >= 2 * x;
  const bool shares =
      may_choose && ((w.memory.common_sum() && size <= 4) || of_bytes) && y * span_of(x, y, tenfold) < groups;
  const bool one_an_sm = size == 4 && 10 * ceil_div(vectors, x) >= 9 * w.chip.multiprocessors &&
                         ceil_div(vectors, x) <= w.chip.multiprocessors && 4 * groups >= 3 * nodes && nodes <= 16 * y &&
                         bytes(x, y, nodes / y) <= tuning::kColumnBytes;
  // Nor where few are so short that the y's of a block are enough.
  const bool alone = shares && size <= 4 && nodes * kShortRun <= kColumnBlockThreads &&
                     ceil_div(vectors, kShortRun) <= at_once(kShortRun, nodes, 1);
  if (shares && one_an_sm) {
    tenfold = 9;
  } else if (alone) {
    x = kShortRun;
    y = nodes;
  } else if (shares) {
    if (is_full(2 * x)) x *= 2;
    y = bit_floor(kMostSharing / x);
    tenfold = tuning::kSharedBlocksTenfold;
    // Half as many blocks, of all threads, where the last one would have many partials to fold.
    const int64_t splits = ceil_div(groups, y * span_of(x, y, tenfold));
    if (splits * pack > tuning::kColumnPartials * y) {
      if (2 * x * y <= kColumnBlockThreads) y *= 2;
      tenfold /= 2;
    }
  }
  // One chunk of very many columns: wide blocks of half the threads.
  constexpr int64_t kWide = kColumnBlockThreads / 4;
  const bool wide = s.vectors && w.block == 0 && groups == 32 && chunks_of(w) == 1 && y > 4 &&
                    10 * ceil_div(vectors, kWide) >= tuning::kWideBlocksTenfold * w.chip.multiprocessors;
  if (wide) {
    x = kWide;
    y = 2;
  }
  s.columns = true;
  s.span = span_of(x, y, tenfold);
  s.splits = ceil_div(groups, y * s.span);
  // One wave of blocks, not two or three of which the last is nearly empty: blocks twice as wide, or with fewer y's of more nodes.
  const auto blocks = [&](int64_t side) { return ceil_div(vectors, side) * s.splits; };
  if (w.block == 0 && !wide && !shares && s.vectors && blocks(x) > at_once(x, y, s.span)) {
    int64_t side = x, down = y, span = s.span;
    if (y > 1 && blocks(2 * x) <= at_once(2 * x, y / 2, 2 * s.span) &&
        bytes(2 * x, y / 2, 2 * s.span) <= tuning::kColumnBytes) {
      side *= 2;
      down /= 2;
      span *= 2;
    }
    while (blocks(side) > at_once(side, down, span) && side * down > kWarp && down > 1 && span < kMostSpan) {
      down /= 2;
      span *= 2;
    }
    // Wide accumulators of narrow elements take instructions: the wave has to have most of the warps that there is room for.
    const int64_t warps = blocks(side) * ceil_div(side * down, kWarp);
    const bool enough = w.memory.accumulator < 8 || size == 8 || 4 * warps >= 3 * kMostWarps * w.chip.multiprocessors;
    if (enough && blocks(side) <= at_once(side, down, span)) {
      x = side;
      y = down;
      s.span = span;
    }
  }
  s.tile = x * pack;
  const int64_t tiles = ceil_div(vectors, x);
  s.block = static_cast<int>(x);
  s.block_y = static_cast<int>(y);
  if (s.splits > 1 && tiles > kMostCounters) {
    return refused("variant 'column_block' shares long columns of at most " + std::to_string(kMostCounters) +
                   " tiles, this input has " + std::to_string(tiles) + "; 'thread' takes any");
  }
  s.shared_bytes = bytes(x, y, s.span);
  s.grid = s.tiles = tiles * s.splits;
  if (s.splits > 1) {
    s.partials = s.tiles * s.tile;
    s.counters = tiles;
  }
  limit_grid(w, s);
  s.overlapping = can_overlap(w);
  return {s, ""};
}

const char* choose_block_rung(const Work& w) { return reduces_inner(w.geometry) ? "row_block" : "column_block"; }

const char* choose_rung(const Work& w) {
  const Geometry& g = w.geometry;
  const int64_t chunks = chunks_of(w);
  if (reduces_inner(g)) {
    const bool vectors = row_vectors(w);
    // Few rows, a warp each, are one wave: latency is the bound, and row_warp has the fewest instructions in a row.
    const bool few = g.outputs <= tuning::kFewRowsAnSm * w.chip.multiprocessors;
    if (g.length <= (vectors ? tuning::kLaneElements : Pairwise::kLanes) && !few) {
      if (!vectors && !lanes_pack(w) && g.length <= tuning::kTileElements && tile_accepts(w)) return "row_tile";
      return "row_lanes";
    }
    if (g.length < tuning::kTinyElements && !is_whole(w) && tile_accepts(w)) return "row_tile";
    // Not of halves and integers of more than a byte that nearly fill a chunk: 1.8 us in place of 1.7 (NVIDIA H200, 2026-11-23).
    const bool light =
        g.length <= Pairwise::kChunk / 2 || w.memory.accumulator == element_size(w) || element_size(w) == 1;
    if (takes_rows_at_once(w) && (chunks > 1 || light || !takes_vectors_at_once(w))) return "row_block";
    if (chunks == 1) return "row_warp";
    if (w.chip.capability >= 90 && g.outputs * kClusterBlocks <= w.chip.multiprocessors) {
      // Elements of up to two bytes: too long for one block, and short enough for a cluster.
      Schedule s;
      read_rows(w, s);
      if (is_whole_of_cluster(w, team_threads(w, s))) return "row_cluster";
      const int64_t threads = chunks * team_threads(w, s);
      if (element_size(w) <= 2 && has_vectors(Kernels::cluster, w.memory.dtype, w.memory.extremum) &&
          threads > 2 * kRowThreads && threads <= kClusterBlocks * kRowThreads) {
        return "row_cluster";
      }
    }
    return "row_block";
  }
  const bool thread = g.length <= tuning::kColumnRows && g.outputs > w.chip.multiprocessors;
  if (takes_elements_at_once(w) && !thread) return "row_block";
  const int64_t run = g.kept.inner_size() * element_size(w);
  // Several matrices of few columns that fit no vectors: by rows, one by one, whose sectors the caches keep for the others, if they are
  // not too short. But not where they are long and column_narrow reads them in vectors.
  if (run < tuning::kNarrowRun && !column_vectors(w) && g.kept.count == 2 && w.memory.common_sum()) {
    const bool is_short = g.length <= tuning::kNarrowShort;
    if (is_short && g.length > Pairwise::kLanes && !narrow_vectors(w)) return "column_block";
    if (!is_short && (!narrow_vectors(w) || g.outputs * g.length * element_size(w) <= tuning::kNarrowBatchBytes)) {
      return g.outputs >= tuning::kRowWarpsAnSm * w.chip.multiprocessors ? "row_warp" : "row_block";
    }
  }
  if (run <= tuning::kNarrowRun) {
    // Rows of one vector, or that fit none, are faster with column_block, except where one block takes them all.
    const bool short_way = g.length <= Pairwise::kChunk, two_vectors = run == 32 && column_vectors(w);
    if (g.length > Pairwise::kLanes && (run < 16 || two_vectors || short_way) && narrow_accepts(w))
      return "column_narrow";
    if (tile_accepts(w)) return "row_tile";
  }
  // Rows that fit no vectors: read as one run they are vectors all the same. Sums of many columns are faster with column_block all
  // the same, which needs no tree in shared memory.
  const bool many = w.memory.common_sum() && g.kept.inner_size() > tuning::kNarrowSums &&
                    (element_size(w) > 2 || g.outputs * g.length * element_size(w) <= tuning::kNarrowHalvesBytes);
  if (g.length > Pairwise::kChunk && !column_vectors(w) && narrow_accepts(w) && narrow_vectors(w) && !many) {
    return "column_narrow";
  }
  const int64_t warps = ceil_div(g.outputs, columns_of_thread(w) * kWarp);
  if (g.length <= tuning::kColumnRows ||
      (g.length <= Pairwise::kLanes && warps >= tuning::kColumnWarps * w.chip.multiprocessors)) {
    // Matrices that fit a tile lie one after another: read as one run.
    if (g.length > tuning::kColumnRows && g.kept.count == 2 && tile_accepts(w)) return "row_tile";
    return "column_thread";
  }
  return schedule_column_block(w).refusal.empty() ? "column_block" : "thread";
}

}  // namespace treduce::reduce
