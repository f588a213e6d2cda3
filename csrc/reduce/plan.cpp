// From an order class and a length to the passes of a plan.
#include "plan.h"

#include <algorithm>

#include "../common/round.h"

namespace treduce::reduce {
namespace {

// One block over n values: a loop with the block's width as its stride, then the tree.
Pass one_block(int64_t n, int block, Tree tree) {
  return {n, 1, block, 1, std::max<int64_t>(ceil_div(n, block), 1), 0, block, tree, false};
}

// Independent vector loads that a thread keeps in flight; a default grid gives each thread at least that much to do.
constexpr int64_t kLoadsInFlight = 4;

}  // namespace

Plan make_plan(const Order& order, DType dtype, int64_t n, int block, int64_t num_blocks) {
  Plan plan;
  plan.block = block;
  switch (order.load) {
    case Load::leaves: return plan;
    case Load::serial:
      plan.block = 1;
      plan.add({n, 1, 1, 1, n, 0, 1, Tree::none, false});
      return plan;
    case Load::one:
    case Load::pair: {
      const int64_t rows = order.load == Load::pair ? 2 : 1;
      do {
        const int64_t blocks = std::max<int64_t>(ceil_div(n, rows * block), 1);
        plan.add({n, blocks, block, 1, rows, rows * block, block, order.tree, false});
        n = blocks;
      } while (n > 1);
      return plan;
    }
    case Load::grid_stride:
    case Load::vector: {
      const int64_t vector = order.load == Load::vector ? vector_width(dtype) : 1;
      const int64_t lanes = block * vector;
      int64_t blocks = num_blocks;
      if (blocks == 0) {
        const int64_t work = order.load == Load::vector ? lanes * kLoadsInFlight : lanes;
        blocks = std::clamp<int64_t>(ceil_div(n, work), 1, std::max<int64_t>(kGridThreads / block, 1));
      }
      const bool clustered = order.finish == Finish::cluster;
      if (clustered) blocks = ceil_div(blocks, kClusterBlocks) * kClusterBlocks;
      const int64_t rows = std::max<int64_t>(ceil_div(n, blocks * lanes), 1);
      plan.add({n, blocks, lanes, vector, rows, lanes, blocks * lanes, order.tree, /*on_chip=*/clustered});
      if (clustered) {
        plan.add({blocks, blocks / kClusterBlocks, kClusterBlocks, 1, 1, kClusterBlocks, 0, Tree::sequential, false});
        blocks /= kClusterBlocks;
      }
      if (blocks > 1) plan.add(one_block(blocks, block, order.tree));
      return plan;
    }
  }
  return plan;
}

std::string to_string(const Plan& plan) {
  std::string text;
  for (int p = 0; p < plan.pass_count; ++p) {
    const Pass& pass = plan.passes[p];
    text += "pass " + std::to_string(p) + ": " + std::to_string(pass.n) + " values -> " + std::to_string(pass.blocks) +
            " blocks of " + std::to_string(pass.lanes) + " lanes (" + std::to_string(pass.vector) + " a thread) x " +
            std::to_string(pass.rows) + " rows, " + name_of(pass.tree) + " tree\n";
  }
  return text;
}

}  // namespace treduce::reduce
