// All decisions of a product's launches, made once: from a request and a chip to a value that says which rung computes it, in
// tiles of which shape, what is launched in which order, and what lies where in the workspace. launch() in launch.h then
// decides nothing. Host code, free of torch and CUDA.
#pragma once

#include <string>

#include "../common/prepared.h"
#include "decisions.h"
#include "ladder.h"
#include "shapes.h"

namespace treduce::matmul {

struct Request {
  Problem problem;  // at least one output
  DType dtype = DType::float32;
  const Row* row = nullptr;  // `auto` has chosen
  int tile = 0;              // of rungs that take a tile_size
  // Where operands and result begin. Of these only the alignment matters.
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  bool has_bias = false;
};

struct Prepared : Decisions {
  const Row* row = nullptr;
  bool has_bias = false;

  // None where k is 0 and the rung has no kernel for that: then C is filled with zeros.
  Launches launches;
  Workspace workspace;

  // What bounds the time from below: the operations of the instructions that the rung uses, and the bytes that have to be read
  // and written at least once. Copies and halves are not among these: the L2 may hold them.
  double operations = 0;
  int64_t bytes_read = 0, bytes_written = 0;
};

// The chip is one that the rung runs on, and the problem one that it takes: see Row.
Prepared prepare(const Request& request, const Chip& chip);

// Of one rung each: ladder.cpp names them in its rows.
void prepare_naive(const Request&, const Chip&, Prepared&);
void prepare_staged_mma(const Request&, const Chip&, Prepared&);
void prepare_mma_f64(const Request&, const Chip&, Prepared&);
void prepare_specialized_f64(const Request&, const Chip&, Prepared&);
void prepare_pipelined(const Request&, const Chip&, Prepared&);
void prepare_wmma(const Request&, const Chip&, Prepared&);
void prepare_persistent(const Request&, const Chip&, Prepared&);
void prepare_split_bf16(const Request&, const Chip&, Prepared&);
void prepare_split_fp16(const Request&, const Chip&, Prepared&);
void prepare_split_direct(const Request&, const Chip&, Prepared&);

// One launch with a block for each tile of the shape; past what a grid holds, blocks take several.
void prepare_tiles(const TileShape& shape, Prepared& out);
template <TileShape (*kShape)(DType, int)>
void prepare_threads(const Request& request, const Chip&, Prepared& out) {
  prepare_tiles(kShape(request.dtype, request.tile), out);
}

// The same for tiles that the copy engine brings, one a block.
void prepare_boxes(const TileShape& shape, const Request& request, Prepared& out);
template <const TileShape& kShape>
void prepare_block_a_tile(const Request& request, const Chip&, Prepared& out) {
  prepare_boxes(kShape, request, out);
}

// A line for each thing that was decided.
std::string to_string(const Prepared& prepared);

bool operator==(const Prepared& a, const Prepared& b);

}  // namespace treduce::matmul
