// How many launches of which shape each rung of vector_add takes.
#include "prepare.h"

#include <algorithm>

#include "../common/round.h"
#include "ladder.h"

namespace treduce::elementwise {
namespace {

constexpr int64_t kMostX = INT32_MAX, kMostY = 65535;  // blocks of a grid

}  // namespace

void prepare_line(const Request& r, Prepared& p) {
  for (int64_t blocks = ceil_div(r.n, r.block); blocks > 0; blocks -= kMostX) {
    LaunchShape& shape = p.launches.add({r.row->name.c_str()});
    shape.grid = std::min(blocks, kMostX);
    shape.block = r.block;
  }
}

void prepare_rectangle(const Request& r, Prepared& p) {
  constexpr int64_t kMost = kMostY * kMostY;  // the first chips took no more in x either
  for (int64_t blocks = ceil_div(r.n, r.block); blocks > 0; blocks -= kMost) {
    const int64_t some = std::min(blocks, kMost);
    LaunchShape& shape = p.launches.add({r.row->name.c_str()});
    shape.grid_y = ceil_div(some, kMostY);
    shape.grid = ceil_div(some, shape.grid_y);  // no wider than its height asks for
    shape.block = r.block;
  }
}

void prepare_vectors(const Request& r, Prepared& p) {
  LaunchShape& shape = p.launches.add({r.row->name.c_str()});
  shape.grid = std::min(ceil_div(r.n, r.block * (16 / size_of(r.dtype))), kMostX);
  shape.block = r.block;
  p.vectors = (r.a | r.b | r.c) % 16 == 0;
}

Prepared prepare(const Request& request, const Chip& chip) {
  Prepared p(request);
  p.refusal = refused_by(chip, *request.row);
  if (!p.refusal) request.row->prepare(request, p);
  const int64_t size = size_of(request.dtype);
  p.bytes_read = (2 * request.n + request.copied_from) * size;
  p.bytes_written = (1 + request.copies) * request.n * size;
  return p;
}

bool operator==(const Prepared& a, const Prepared& b) {
  return a.launches == b.launches && a.vectors == b.vectors && a.bytes_read == b.bytes_read &&
         a.bytes_written == b.bytes_written && a.refusal == b.refusal;
}

std::string to_string(const Prepared& p) {
  if (p.refusal) return p.refusal.sentence + "\n";
  return "rung " + p.request.row->name + (p.vectors ? ", in vectors" : "") + "\n" + to_string(p.launches, Workspace()) +
         "moves " + std::to_string(p.bytes_read) + " bytes read, " + std::to_string(p.bytes_written) + " written\n";
}

}  // namespace treduce::elementwise
