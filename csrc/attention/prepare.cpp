// Which kernels compute attention, in blocks of which shape, and what lies in the workspace between them.
#include "shapes.h"

namespace treduce::attention {
namespace {

// A block a tile of lines of a head.
LaunchShape& add(Prepared& prepared, const char* kernel, const Problem& p, int64_t lines, int tile, int64_t heads,
                 int threads, int64_t shared_bytes) {
  LaunchShape& shape = prepared.launches.add({kernel});
  shape.grid = ceil_div(lines, tile) * heads * p.batch;
  shape.block = threads;
  shape.shared_bytes = shared_bytes;
  return shape;
}

// Of so many lines of 16-bit elements.
int64_t bytes_of(const Problem& p, int lines) { return int64_t{2} * lines * compiled_width(p); }

void add_forward(Prepared& prepared, const char* kernel, const Problem& p, const Chip& chip) {
  const int width = compiled_width(p);
  if (chip.capability == 90) {  // the copy engine and the instructions are those of sm_90 alone
    prepared.way = Way::warp_groups;
    const Groups& groups = groups_of(width, p.mask.data != nullptr);
    add(prepared, kernel, p, p.length, groups.lines(), p.heads, groups.threads(),
        bytes_of(p, forward_lines(groups)) + totals_bytes(groups.lines(), width) + kTileAlignment);
  } else {
    prepared.way = Way::warps;
    add(prepared, kernel, p, p.length, kTile, p.heads, kThreads, bytes_of(p, 3 * kTile) + totals_bytes(kTile, width));
  }
}

void add_pieces(Prepared& prepared, const Problem& p, const Chip& chip) {
  prepared.way = Way::pieces;
  const int width = compiled_width(p);
  const int64_t pieces = pieces_of(p.keys);
  add(prepared, "pieces", p, p.length, kLines, p.heads * pieces, kThreads, piece_bytes(width));
  if (pieces == 1) return;
  add(prepared, "meet", p, p.length, 1, p.heads, width, 0).overlapping = chip.capability >= 90;
  const int64_t parts = p.batch * p.heads * p.length * pieces * static_cast<int64_t>(sizeof(float));
  prepared.workspace.add(kSums, parts * width);
  prepared.workspace.add(kMost, parts);
  prepared.workspace.add(kSum, parts);
}

}  // namespace

Prepared prepare_forward(const Problem& problem, const Chip& chip) {
  const Problem p = with_heads_as_lines(problem);
  Prepared prepared;
  const bool is_few = problem.length == 1 || p.length <= kLines;
  if (is_few && piece_bytes(compiled_width(p)) <= chip.shared_bytes()) {
    add_pieces(prepared, p, chip);
  } else {
    add_forward(prepared, "attention", p, chip);
  }
  return prepared;
}

Prepared prepare_backward(const Problem& p, const Chip& chip) {
  Prepared prepared;
  add_forward(prepared, "log_sums", p, chip);
  const bool by_groups = prepared.way == Way::warp_groups;
  const auto add_gradients = [&](const char* kernel, int64_t lines, int64_t heads, int tiles) {
    if (by_groups) {
      add(prepared, kernel, p, lines, kBackward.lines(), heads, kBackward.threads(),
          bytes_of(p, backward_lines(kBackward)) + kTileAlignment);
    } else {
      add(prepared, kernel, p, lines, kTile, heads, kThreads, bytes_of(p, tiles * kTile));
    }
  };
  add_gradients("query_gradients", p.length, p.heads, 4);
  add_gradients("key_gradients", p.keys, p.heads / p.group, 6);
  for (const char* name : {kLogSums, kAlong}) {
    prepared.workspace.add(name, p.batch * p.heads * padded_length(p.length) * static_cast<int64_t>(sizeof(float)));
  }
  return prepared;
}

bool operator==(const Prepared& a, const Prepared& b) {
  return a.way == b.way && a.launches == b.launches && a.workspace == b.workspace;
}

std::string to_string(const Prepared& p) {
  constexpr const char* kWays[] = {"warps", "warp_groups", "pieces"};
  return std::string("by ") + kWays[static_cast<int>(p.way)] + "\n" + to_string(p.launches, p.workspace);
}

}  // namespace treduce::attention
