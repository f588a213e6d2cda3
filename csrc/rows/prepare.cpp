// How rows are read, which rung `auto` takes, and what each rung launches.
#include "prepare.h"

#include <algorithm>

#include "../common/bit_ceil.h"
#include "../common/round.h"
#include "ladder.h"
#include "online.h"
#include "shapes.h"

namespace treduce::rows {
namespace {

using reduce::Pairwise;

constexpr int64_t kMostBlocks = INT32_MAX;
constexpr int kUsualWarps = kShortThreads / kWarp;  // of a block whose rows are short
// Warps of a row in one block where a cluster could share it. Smaller blocks overlap the loads of one row with the stores of another.
constexpr int kWarpsOfBlock = 8;

// Warps that hold a row, a chunk each.
int64_t warps_of(const Request& r) { return bit_ceil(ceil_div(r.problem.length, Pairwise::kChunk)); }

int64_t most_warps(const Request& r, Reads reads) {
  const bool vectors = reads >= Reads::shifted;
  return most_threads(inputs_of(r.op), has_weight(r.op), r.dtype == DType::float64, vectors) / kWarp;
}

bool is_adjacent(const Request& r) {
  if (r.dtype == DType::float64 || r.problem.inner > 1) return false;
  for (int i = 0; i < inputs_of(r.op); ++i) {
    if (r.problem.in[i].element_stride != 1) return false;
  }
  return r.op == Op::logsumexp || r.problem.out.element_stride == 1;
}

bool takes_vectors(const Request& r, int size) {
  const Problem& p = r.problem;
  if (p.inner > 1 || p.length % size != 0 || r.addresses % static_cast<uint64_t>(size * size_of(r.dtype)) != 0) {
    return false;
  }
  // With one row, its stride is never used.
  const auto fits = [&](const Layout& l) {
    return l.element_stride == 1 && (p.rows == 1 || l.outer_stride % size == 0);
  };
  for (int i = 0; i < inputs_of(r.op); ++i) {
    if (!fits(p.in[i])) return false;
  }
  return r.op == Op::logsumexp || fits(p.out);
}

// Rows side by side that begin anywhere, all tensors' at the same place of a vector. Weights have no such rows.
bool is_shifted(const Request& r) {
  const int size = vector_of(r.dtype);
  const Problem& p = r.problem;
  if (!is_adjacent(r) || has_weight(r.op) || r.addresses % static_cast<uint64_t>(size * size_of(r.dtype)) != 0)
    return false;
  const auto like_first = [&](const Layout& l) {
    return p.rows == 1 || (l.outer_stride - p.in[0].outer_stride) % size == 0;
  };
  for (int i = 1; i < inputs_of(r.op); ++i) {
    if (!like_first(p.in[i])) return false;
  }
  return r.op == Op::logsumexp || like_first(p.out);
}

Reads reads_of(const Request& r) {
  if (takes_vectors(r, vector_of(r.dtype))) return Reads::vectors;
  if (is_shifted(r)) return Reads::shifted;
  return is_adjacent(r) ? Reads::adjacent : Reads::single;
}

LaunchShape& add_launch(const Request& r, Prepared& p, int64_t rows_a_block, int64_t warps, int64_t cluster = 1) {
  LaunchShape& shape = p.launches.add({name_of(r.op)});
  shape.grid = std::min(ceil_div(r.problem.rows, rows_a_block), kMostBlocks / cluster) * cluster;
  shape.block = static_cast<int>(warps * kWarp);
  shape.cluster = static_cast<int>(cluster);
  return shape;
}

}  // namespace

void prepare_three_pass(const Request& r, const Chip&, Prepared& p) {
  if (p.reads < Reads::vectors) p.reads = Reads::single;
  p.warps = static_cast<int>(std::min({warps_of(r), most_warps(r, p.reads), int64_t{16}}));
  add_launch(r, p, 1, p.warps);
}

void prepare_online(const Request& r, const Chip&, Prepared& p) {
  p.reads = Reads::single;
  p.warps = kPartThreads / kWarp;
  add_launch(r, p, 1, p.warps);
}

void prepare_registers(const Request& r, const Chip&, Prepared& p) {
  if (p.reads == Reads::shifted) p.reads = Reads::adjacent;
  const int64_t warps = warps_of(r);
  if (warps > most_warps(r, p.reads)) {
    p.refusal.sentence = "variant 'row_registers' holds rows of up to " +
                         std::to_string(most_warps(r, p.reads) * Pairwise::kChunk) + " elements, got " +
                         std::to_string(r.problem.length) + "; row_cluster holds longer ones, three_pass reads any";
    return;
  }
  p.warps = static_cast<int>(warps);
  const auto stripes = static_cast<int>(bit_ceil(ceil_div(r.problem.length, Pairwise::kLanes)));
  const bool is_short = r.dtype != DType::float64 && stripes < (p.reads == Reads::single ? 2 : Pairwise::kStripes);
  const int64_t block = std::max<int64_t>(warps, kUsualWarps);
  int at_once = 1;
  if (is_short) {
    p.stripes = stripes;
    if (size_of(r.dtype) == 2 && takes_vectors(r, kWide)) p.reads = Reads::wide;
    const int size = p.reads == Reads::wide ? kWide : p.reads == Reads::vectors ? vector_of(r.dtype) : 1;
    at_once = rows_at_once(size, stripes);
    p.lanes = threads_of_stripe(size);
    if (stripes == 1 && size > 1) {  // as many as a row has vectors, but one for each row that they finish
      p.lanes = static_cast<int>(bit_ceil(std::max<int64_t>(ceil_div(r.problem.length, size), at_once)));
    }
  }
  add_launch(r, p, block / warps * at_once * (kWarp / p.lanes), block);
}

void prepare_cluster(const Request& r, const Chip&, Prepared& p) {
  if (p.reads == Reads::shifted) p.reads = Reads::adjacent;
  const int64_t warps = warps_of(r), most = most_warps(r, p.reads);
  int64_t blocks = 2;
  while (blocks < kMostClusterBlocks && warps / blocks > std::min<int64_t>(kWarpsOfBlock, most)) blocks *= 2;
  const int64_t each = std::max<int64_t>(warps / blocks, 1);
  if (each > most) {
    p.refusal.sentence = "variant 'row_cluster' holds rows of up to " +
                         std::to_string(blocks * most * Pairwise::kChunk) + " elements, got " +
                         std::to_string(r.problem.length) + "; three_pass reads any";
    return;
  }
  p.warps = static_cast<int>(each);
  add_launch(r, p, 1, each, blocks);
}

namespace {

// How a row lies in shared memory: chunks of a block, blocks of a cluster. No chunks: it does not fit.
struct Sharing {
  int64_t chunks = 0, blocks = 1;
};

int64_t shared_bytes(const Request& r, int64_t chunks) {  // elements; nodes of chunks, and that of the block, in turn
  return chunks * Pairwise::kChunk * size_of(r.dtype) * inputs_of(r.op) +
         (chunks + 1) * kTurns * 2 * accumulator_size(r.dtype);
}

bool fits_shared(const Request& r, int64_t chunks, int64_t most) {
  return chunks <= kMostSharedChunks && shared_bytes(r, chunks) <= most;
}

// Bytes that a block may take alone, or when two share an SM.
int64_t most_shared(const Chip& chip) { return chip.shared_bytes() - kOwnShared; }
int64_t half_shared(const Chip& chip) { return (chip.shared_bytes() - 1024) / 2 - kOwnShared; }

// As few blocks as leave half of the SM to a second one, which computes while this one loads.
Sharing sharing_of(const Request& r, const Chip& chip) {
  const int64_t chunks = ceil_div(r.problem.length, Pairwise::kChunk);
  Sharing s{chunks};
  while (!fits_shared(r, s.chunks, half_shared(chip)) && s.blocks < kMostClusterBlocks) {
    s.blocks *= 2;
    s.chunks = bit_ceil(chunks) / s.blocks;
  }
  return fits_shared(r, s.chunks, most_shared(chip)) ? s : Sharing{};
}

}  // namespace

void prepare_shared(const Request& r, const Chip& chip, Prepared& p) {
  if (p.reads == Reads::single) {
    p.refusal.sentence =
        "variant 'row_shared' takes rows whose elements lie side by side (float64 in aligned pairs); three_pass reads "
        "any";
    return;
  }
  const Sharing s = sharing_of(r, chip);
  if (s.chunks == 0) {
    int64_t most = 1;
    while (fits_shared(r, most * 2, most_shared(chip))) most *= 2;
    p.refusal.sentence = "variant 'row_shared' holds rows of up to " +
                         std::to_string(most * kMostClusterBlocks * Pairwise::kChunk) + " elements, got " +
                         std::to_string(r.problem.length) + "; three_pass reads any";
    return;
  }
  p.chunks = static_cast<int>(s.chunks);
  const int64_t rounds =
      ceil_div(s.chunks, shared_threads(inputs_of(r.op), has_weight(r.op), r.dtype == DType::float64) / kWarp);
  p.warps = static_cast<int>(ceil_div(s.chunks, rounds));
  add_launch(r, p, 1, p.warps, s.blocks).shared_bytes = shared_bytes(r, s.chunks);
}

// As measured (H200, 2026-11-25): registers win as long as they suffice. A cluster's registers beat shared memory where exp would be
// computed twice, if rows fill its warps; not for 16-bit rows that begin anywhere, which kernels of shared memory read in vectors.
const char* choose(const Request& r, const Chip& chip) {
  const Reads reads = reads_of(r);
  const int64_t warps = warps_of(r), most = most_warps(r, reads == Reads::shifted ? Reads::adjacent : reads),
                chunks = ceil_div(r.problem.length, Pairwise::kChunk);
  const bool has_cluster = runs_on(find("row_cluster"), chip.capability) && warps <= kMostClusterBlocks * most;
  const bool has_shared =
      runs_on(find("row_shared"), chip.capability) && reads != Reads::single && sharing_of(r, chip).chunks > 0;
  // 32 warps have an SM for themselves: nobody computes while their row is read, nor do those that have no chunk.
  const bool is_narrow = size_of(r.dtype) == 2, has_idle = 5 * chunks <= 4 * warps;
  const bool is_alone = warps == 32 && r.problem.rows > chip.multiprocessors &&
                        ((is_narrow && r.op == Op::log_softmax) || (has_idle && (!is_narrow || r.op == Op::logsumexp)));
  if (warps <= most && !(is_alone && has_shared)) return "row_registers";
  const bool exp_once = r.op == Op::log_softmax || r.op == Op::logsumexp;
  const bool prefers_shared = r.op == Op::layer_norm || r.op == Op::rms_norm ||
                              (is_narrow && (exp_once || reads < Reads::vectors)) ||
                              8 * chunks < 5 * warps + (is_narrow || reads < Reads::vectors ? 1 : 0);
  if (has_shared && (prefers_shared || !has_cluster)) return "row_shared";
  return has_cluster ? "row_cluster" : "three_pass";
}

Prepared prepare(const Request& r, const Chip& chip) {
  Prepared p(r);
  p.rung = r.row->prepare != nullptr ? r.row : &find(choose(r, chip));
  p.reads = reads_of(r);
  p.refusal = refused_by(chip, *p.rung);
  if (!p.refusal) {
    p.rung->prepare(r, chip, p);
    Launches launches;
    for (const LaunchShape& shape : p.launches) launches.add(shape).overlapping = chip.capability >= 90;
    p.launches = launches;
  }
  const int64_t elements = r.problem.rows * r.problem.length, size = size_of(r.dtype);
  p.bytes_read = elements * size * inputs_of(r.op);
  const int64_t row_values = r.problem.rows * accumulator_size(r.dtype) * (r.op == Op::layer_norm ? 2 : 1);
  p.bytes_written = r.problem.sums_alone ? row_values : (r.op == Op::logsumexp ? r.problem.rows : elements) * size;
  return p;
}

bool operator==(const Prepared& a, const Prepared& b) {
  return a.rung == b.rung && a.launches == b.launches && a.reads == b.reads && a.stripes == b.stripes &&
         a.lanes == b.lanes && a.warps == b.warps && a.chunks == b.chunks && a.bytes_read == b.bytes_read &&
         a.bytes_written == b.bytes_written && a.refusal == b.refusal;
}

std::string to_string(const Prepared& p) {
  if (p.refusal) return p.refusal.sentence + "\n";
  return "rung " + p.rung->name + ": reads " + name_of(p.reads) + ", stripes " + std::to_string(p.stripes) +
         ", lanes " + std::to_string(p.lanes) + ", warps " + std::to_string(p.warps) + ", chunks " +
         std::to_string(p.chunks) + "\n" + to_string(p.launches, p.workspace) + "moves " +
         std::to_string(p.bytes_read) + " bytes read, " + std::to_string(p.bytes_written) + " written\n";
}

}  // namespace treduce::rows
