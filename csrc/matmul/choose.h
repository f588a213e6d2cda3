// Which of its shapes a rung takes: functions from a problem and a chip to a choice. No choice changes a bit of a result, so
// these may be tuned freely; each model stands beside its measurement. Host code, free of torch and CUDA.
#pragma once

#include <optional>

#include "../common/prepared.h"
#include "decisions.h"
#include "operand.h"
#include "shapes.h"
#include "split/split.h"
#include "split/split_launches.h"

namespace treduce::matmul {

namespace naive {
Index choose(const Problem& p);
}  // namespace naive

namespace pipelined {
// `tile`: the caller's tile_size; 0: none.
Index choose(const Problem& p, DType dtype, int tile, const Chip& chip);
}  // namespace pipelined

namespace short_k {
// Whether pipelined has a kernel for it: float32 of short k, where the caller names no tile.
bool takes(const Problem& p, DType dtype, int tile);
int choose(const Problem& p, Way a, Way b, const Chip& chip);
}  // namespace short_k

// Of a rung that cuts long k in groups. apart: they are computed side by side, and added afterwards: the additions are the same.
struct Choice {
  int index;
  bool apart;
  double cycles;       // roughly, where that is modelled; else 0
  bool dealt = false;  // blocks are dealt their last tasks by steps of k: see stream_k.cuh
  Strip strip = {};    // of persistent
};

namespace long_k {
// Whether groups may be apart: sums of groups take at most half of the operands' memory.
bool may_part(const Problem& p, DType dtype);
// Clock cycles in which the memory gives both operands.
double cycles_to_read(const Problem& p, DType dtype, const Chip& chip);
}  // namespace long_k

namespace mma_f64 {
Choice choose(const Problem& p, const Chip& chip);
}  // namespace mma_f64

namespace specialized_f64 {
// a and b: as the kernel reads them. With what copies operands.
Choice choose(const Problem& p, const View& a, const View& b, const Chip& chip);
}  // namespace specialized_f64

namespace small_f64 {
// The same.
Choice choose(const Problem& p, const View& a, const View& b, const Chip& chip);
// Whether it is faster than specialized_f64 by `boxes`.
bool pays(const Choice& small, const Choice& boxes);
}  // namespace small_f64

namespace persistent {
// a and b: as the kernel reads them.
Choice choose(const Problem& p, DType dtype, const Boxes& a, const Boxes& b, const Chip& chip);
// A kernel that reads boxes. tile: whose results leave by way of shared memory; null: of kernels whose do not.
struct Way {
  View a, b;
  double cycles;
  const TileShape* tile;
};
// Of what copies operands; and roughly of all, with it.
double microseconds_to_copy(const View& a, const View& b);
double microseconds(const Problem& p, DType dtype, const Way& way, const Chip& chip);
}  // namespace persistent

namespace in_place {
struct Choice {
  Index index;
  double time;  // in microseconds, roughly
};
// None: the kernel cannot, nothing keeps the copy engine from the operands and the result, or `other` is as fast.
std::optional<Choice> choose(const Problem& p, DType dtype, const Operand& a, const Operand& b,
                             const persistent::Way& other, const Chip& chip);
}  // namespace in_place

namespace small_tiles {
// Whether the kernel can, and is faster than those of persistent.
bool pays(const Problem& p, DType dtype);
}  // namespace small_tiles

namespace few_rows {
struct Choice {
  int index;    // of few_outputs; -1: tiles of 16 rows
  int rows;     // of a tile
  int columns;  // of a tile
  int stages;
  double cycles;  // roughly, of few_outputs; else 0
};
// None: the kernels cannot, or `other`, the choice of persistent, is faster. x: the few rows; w: the other operand; transposed: the product
// is C's transpose, so its rows are columns of C.
std::optional<Choice> choose(const Problem& p, DType dtype, const Boxes& x, const Boxes& w, bool transposed,
                             const matmul::Choice& other, const Chip& chip);
}  // namespace few_rows

namespace register_operand {
// An entry of kShapes, for tfloat32.
Choice choose(const Problem& p, const Chip& chip);
// Whether that is faster than `other`, the choice of persistent, which would read B as `b`.
bool pays(const Problem& p, const Choice& choice, const Choice& other, const View& b, const Chip& chip);
}  // namespace register_operand

namespace narrow {
struct Choice {
  int index;
  bool of_a;    // whether A is in the registers
  bool apart;   // groups of k are tasks
  double time;  // in microseconds, roughly, with what copies operands
  View a, b;    // as the kernel reads them
};
// None: the kernel cannot, or outputs are not few.
std::optional<Choice> choose(const Problem& p, DType dtype, const Operand& a, const Operand& b, const Chip& chip);
}  // namespace narrow

namespace split_both {
struct Choice {
  int length;   // segments of a block
  bool sums;    // whether it leaves their sums to another launch; else it has a group of k
  double time;  // in microseconds
};
// If it takes the product.
std::optional<Choice> choose(const Problem& p, const Chip& chip);
// Whether it has more lines one way than it was made for.
bool are_wide(const Problem&);

}  // namespace split_both

namespace split_fp16 {
// Which operand is split on its way to the tensor cores, where the other has few lines: most of the memory is then read once. Neither if
// there is so little of it that it is faster to split both before. And microseconds that the product takes.
struct Way {
  AsRead as_read;
  double time;
  std::optional<split_both::Choice> both;  // if both operands are
};
Way fastest(const Problem& p, const Chip& chip);
// Whether groups of k are computed side by side, and added afterwards: the additions are the same.
bool groups_apart(const Problem& p, const Chip& chip);
// Whether blocks compute what pairs leave of their tiles, in place of three launches, which take 4 us even if nothing is left.
bool rest_in_one(const Problem& p, const Chip& chip);
Index choose(const Problem& p, bool apart, const Chip& chip);
// Up to 128 rows or columns, and so short a k as split_held takes.
bool are_few_and_short(const Problem& p);
}  // namespace split_fp16

namespace split_bf16 {
Index choose(const Problem& p, bool apart, const Chip& chip);
}  // namespace split_bf16

namespace split_few {
// Up to so many units (see split_launches.h) of outputs by parts are computed without tiles.
int most_units_of(const Problem& p);
}  // namespace split_few

namespace split_rows {
struct Choice {
  Index index;
  int group_parts;  // blocks that share a group of k: see split_launches.h
  double time;      // in what blocks of 64 x 64 tiles take for a segment
};
// w_lines, x_lines: of the operand with many lines and of that with few. boxes: the copy engine reads the former.
Choice choose(const Problem& p, int64_t w_lines, int64_t x_lines, bool boxes, const Chip& chip);
}  // namespace split_rows

namespace split_held {
struct Choice {
  int64_t shares;  // blocks that share the lines of W of a product
  double time;     // in microseconds
};
bool takes(const Problem&, const Chip&);
// If it does.
std::optional<Choice> choose(const Problem&, const Chip&);
}  // namespace split_held

namespace split_single {
struct Choice {
  int cluster;
  double time;  // in microseconds
};
// None: the kernel cannot.
std::optional<Choice> choose(const Problem&, const Chip&);
}  // namespace split_single

namespace split_some {
struct Choice {
  int sets, octets, cluster;  // see split_launches.h
  double time;                // in microseconds
};
// None: the kernel cannot.
std::optional<Choice> choose(const Problem&, const Chip&);
}  // namespace split_some

namespace split_direct {
struct Choice {
  Index index;
  int cluster;          // blocks that share a tile's k: 1, 2, 4 or 8; of `some` its own
  int64_t shares;       // of split_held, if that is faster than tiles; else 0
  bool single = false;  // whether split_single is
  std::optional<split_some::Choice> some = std::nullopt;  // if that is
};
Choice choose(const Problem& p, const Chip& chip);
// Whether it is faster than split_fp16.
bool pays(const Problem& p, const Chip& chip);
}  // namespace split_direct

}  // namespace treduce::matmul
