// The table of reductions, and the orders of the rungs that reduce whole tensors.
#include "ladder.h"

#include "prepare.h"

namespace treduce::reduce {
namespace {

// The order classes. Rungs of one class give the same bits for the same block size and number of blocks.
constexpr Order kSerial{"serial", Load::serial, Tree::none, Finish::none,
                        "x[0] + x[1] + x[2] + ..., one after another"};
constexpr Order kPairs{"pairs", Load::one, Tree::interleaved, Finish::again,
                       "blocks of T elements, neighbours first: strides 1, 2, 4, ..."};
constexpr Order kPairsFirstAdd{"pairs_first_add", Load::pair, Tree::interleaved, Finish::again,
                               "x[i] + x[i+T], then neighbours first"};
constexpr Order kHalves{"halves", Load::one, Tree::sequential, Finish::again,
                        "blocks of T elements, halves first: strides T/2, T/4, ..., 1"};
constexpr Order kHalvesFirstAdd{"halves_first_add", Load::pair, Tree::sequential, Finish::again,
                                "x[i] + x[i+T], then halves first"};
constexpr Order kStrideHalves{
    "stride_halves", Load::grid_stride, Tree::sequential, Finish::one_block,
    "each thread sums every G*T-th element, then halves first; one block adds the partials alike"};
constexpr Order kStrideWarps{
    "stride_warps", Load::grid_stride, Tree::warp, Finish::one_block,
    "each thread sums every G*T-th element, then lanes of a warp by halves, then warps by halves"};
constexpr Order kVectorWarps{"vector_warps", Load::vector, Tree::warp, Finish::one_block,
                             "as stride_warps over 16-byte vectors, with an accumulator a component"};
constexpr Order kVectorClusters{"vector_clusters", Load::vector, Tree::warp, Finish::cluster,
                                "as vector_warps, with the eight partials of a cluster folded first"};
constexpr Order kPairwise{"pairwise", Load::leaves, Tree::interleaved, Finish::none,
                          "chunks of 8 stripes of 128 lanes; lanes down their stripes, then neighbours first"};
constexpr Order kCompensated{"compensated", Load::leaves, Tree::interleaved, Finish::none,
                             "as pairwise, carrying the rounding error of every addition"};
constexpr Order kExact{"exact", Load::leaves, Tree::none, Finish::none,
                       "integers: no rounding before the last, so any order gives the same"};
constexpr Order kUnordered{"unordered", Load::vector, Tree::warp, Finish::one_block,
                           "as vector_warps, but partials are added in the order in which blocks finish"};

const char* const kHarris = "Mark Harris, Optimizing Parallel Reduction in CUDA (2007)";
const char* const kHigham = "Nicholas Higham, The accuracy of floating point summation (1993)";
const char* const kCub = "Duane Merrill, CUB: block load with transposition through shared memory (2013)";
const char* const kWilt = "Nicholas Wilt, The CUDA Handbook (2013)";
const char* const kLuitjens = "Justin Luitjens, Faster Parallel Reductions on Kepler (2014)";

struct RowBuilder {
  Row row;
  RowBuilder(const char* name, const Order& order, const char* summary, const char* origin) {
    row.name = name;
    row.plan_order = order;
    row.order = order.name;
    row.order_text = order.text;
    row.summary = summary;
    row.origin = origin;
    row.prepare = prepare_passes;
    row.dtypes.assign(std::begin(kAllDTypes), std::end(kAllDTypes));
  }
  RowBuilder& aliases(std::vector<std::string> names) { return row.aliases = std::move(names), *this; }
  RowBuilder& block(int standard, int least = 32, int most = 1024) {
    row.size_default = standard;
    row.size_min = least;
    row.size_max = most;
    return *this;
  }
  RowBuilder& num_blocks() { return row.takes_num_blocks = true, *this; }
  RowBuilder& prepared(void (*prepare)(int64_t, Prepared&)) { return row.prepare = prepare, *this; }
  RowBuilder& slots() { return prepared(prepare_passes_with_slots); }
  RowBuilder& unordered() { return row.deterministic = false, *this; }
  // Takes any dims, in the order of pairwise.h.
  RowBuilder& along_dims(Scheduled (*schedule)(const Work&)) {
    row.along_dims = true;
    row.prepare = nullptr;
    row.schedule = schedule;
    row.size_min = 32;
    row.size_max = 1024;
    row.takes_num_blocks = true;
    row.dtypes.assign(std::begin(kEveryDType), std::end(kEveryDType));
    return *this;
  }
  RowBuilder& arithmetic(Arithmetic a) { return row.arithmetic = a, *this; }
  RowBuilder& capability(int tenfold) { return row.capability = tenfold, *this; }
  operator Row() const { return row; }
};
using R = RowBuilder;

// In teaching order. Default block sizes: the stages that make one partial a block let a block cover 1024 elements, so that
// partials stay under one percent of the input for every dtype; the grid-stride rungs take 256 threads, as the literature does.
std::vector<Row> make_ladder() {
  return {
      R("serial", kSerial, "one thread walks the array", "the loop of every CPU program").block(0, 0, 0),
      R("global_memory", kPairs, "a tree in global memory: thread t with t % 2s == 0 adds element t + s", kHarris)
          .aliases({"global"})
          .block(1024)
          .prepared(prepare_copy_and_passes),
      R("interleaved_modulo", kPairs, "the same tree in shared memory", kHarris)
          .aliases({"v0", "shared"})
          .block(1024)
          .slots(),
      R("interleaved_bitmask", kPairs, "t & (2s - 1) in place of t % 2s", kHarris).aliases({"v1"}).block(1024).slots(),
      R("interleaved_strided", kPairs, "packed threads: thread t adds at 2st; bank conflicts", kHarris)
          .block(1024)
          .slots(),
      R("sequential", kHalves, "packed threads and consecutive addresses: t < s adds t + s", kHarris)
          .aliases({"v2"})
          .block(1024)
          .slots(),
      R("interleaved_first_add", kPairsFirstAdd, "two loads a thread, half the blocks, the modulo tree", kHarris)
          .aliases({"two_loads"})
          .block(512)
          .slots(),
      R("first_add", kHalvesFirstAdd, "two loads a thread, half the blocks, the sequential tree", kHarris)
          .aliases({"v3"})
          .block(512)
          .slots(),
      R("last_warp", kHalvesFirstAdd, "the last warp finishes by itself with __syncwarp", kHarris)
          .aliases({"v4"})
          .block(512)
          .slots(),
      R("unrolled", kHalvesFirstAdd, "the tree unrolled for a block size known at compile time", kHarris)
          .aliases({"v5"})
          .block(512)
          .slots(),
      R("two_pass", kStrideHalves, "a grid-stride loop, then one block adds the partials", kWilt)
          .aliases({"reduction1"})
          .block(256, 1)
          .slots()
          .num_blocks(),
      R("two_pass_last_warp", kStrideHalves, "its tree ends in a warp by itself", kWilt)
          .aliases({"reduction2"})
          .block(256, 1)
          .slots()
          .num_blocks(),
      R("two_pass_unrolled", kStrideHalves, "its tree unrolled for a block size known at compile time", kWilt)
          .aliases({"reduction3", "v6"})
          .block(256, 1)
          .slots()
          .num_blocks(),
      R("warp_shuffle", kStrideWarps, "lanes read each other's registers: no barrier within a warp", kLuitjens)
          .block(256)
          .num_blocks(),
      R("vectorized", kVectorWarps, "16-byte loads, four in flight a thread", kLuitjens).block(256).num_blocks(),
      R("atomic", kUnordered, "one atomic operation a block in place of partials", kWilt)
          .aliases({"reduction5"})
          .block(256)
          .num_blocks()
          .prepared(prepare_atomic)
          .unordered(),
      R("single_pass", kVectorWarps, "the last block to finish adds the partials, in their order", kWilt)
          .aliases({"reduction4"})
          .block(256)
          .num_blocks()
          .prepared(prepare_once),
      R("cooperative", kVectorWarps, "a barrier for the whole grid, then block 0 adds the partials",
        "Mark Harris and Kyrylo Perelygin, Cooperative Groups (2017)")
          .aliases({"cg"})
          .block(256)
          .num_blocks()
          .prepared(prepare_cooperative),
      R("cluster", kVectorClusters, "eight blocks fold through distributed shared memory",
        "NVIDIA, CUDA Programming Guide: thread block clusters")
          .block(256)
          .num_blocks()
          .prepared(prepare_clusters)
          .capability(90),
      R("thread", kPairwise, "along dims: one thread an output, whatever the strides", kHigham)
          .along_dims(schedule_thread),
      R("row_tile", kPairwise, "short rows of any length: a tile through shared memory, one thread a row", kCub)
          .along_dims(schedule_row_tile),
      R("row_lanes", kPairwise, "short rows in 16-byte loads: several rows a warp", kLuitjens)
          .along_dims(schedule_row_lanes),
      R("row_warp", kPairwise, "a warp a row", kLuitjens).along_dims(schedule_row_warp),
      R("row_block", kPairwise, "a block a row, or several: the last of them adds their partials", kWilt)
          .along_dims(schedule_row_block),
      R("row_cluster", kPairwise, "eight blocks a row, joined by distributed shared memory",
        "NVIDIA, CUDA Programming Guide: thread block clusters")
          .along_dims(schedule_row_cluster)
          .capability(90),
      R("column_thread", kPairwise, "many columns: a thread walks down vectors of them, nothing is shared", kHigham)
          .along_dims(schedule_column_thread),
      R("column_block", kPairwise, "a tile of columns: vectors of columns in x, leaves in y",
        "Mark Harris, An Efficient Matrix Transpose in CUDA (2013)")
          .along_dims(schedule_column_block),
      R("column_narrow", kPairwise, "few columns: rows of them read as contiguous memory", "this project")
          .along_dims(schedule_column_narrow),
      R("compensated", kCompensated, "every addition keeps its rounding error: twice the precision",
        "Takeshi Ogita, Siegfried Rump and Shin'ichi Oishi, Accurate sum and dot product (2005)")
          .along_dims(nullptr)
          .arithmetic(Arithmetic::compensated),
      R("exact", kExact, "integer accumulators over the whole exponent range: the exact sum, rounded once",
        "Radford Neal, Fast exact summation using small and large superaccumulators (2015)")
          .along_dims(schedule_exact)
          .arithmetic(Arithmetic::exact),
      R("auto", kPairwise, "picks the fastest that keeps the pairwise order", "this project").along_dims(nullptr),
  };
}

const Ladder<Row>& table() {
  static const Ladder<Row> ladder("the reductions", make_ladder());
  return ladder;
}

}  // namespace

const std::vector<Row>& ladder() { return table().rows(); }

const Row& find(std::string_view name) { return table().find(name); }

Resolved resolve(std::string_view variant, bool dims, std::optional<int64_t> block_size,
                 std::optional<int64_t> num_blocks) {
  const Row& row = find(variant);
  if (dims && !row.along_dims) {
    throw BadArgument{
        "variant '" + row.name +
        "' reduces whole tensors; along dims there are auto, row_warp, row_block, column_block and others "
        "(torch_reduce.variants() lists all)"};
  }
  Resolved r{&row, checked_size(row, "block_size", block_size.value_or(0), block_size.has_value()),
             num_blocks.value_or(0)};
  if (num_blocks.has_value()) {
    if (!row.takes_num_blocks) throw BadArgument{"variant '" + row.name + "' takes no num_blocks"};
    if (*num_blocks < 1 || *num_blocks > kMostBlocks) {
      throw BadArgument{"num_blocks must be from 1 to " + std::to_string(kMostBlocks) + ", got " +
                        std::to_string(*num_blocks)};
    }
  }
  return r;
}

const Row& executor(const Row& row, const Work& work) {
  if (row.schedule != nullptr) return row;
  const std::string_view name = row.arithmetic == Arithmetic::compensated ? choose_block_rung(work) : choose_rung(work);
  // Ten rows: faster than by their hash, and every call of `auto` asks.
  static const std::vector<const Row*> scheduled = [] {
    std::vector<const Row*> rows;
    for (const Row& r : ladder()) {
      if (r.schedule != nullptr) rows.push_back(&r);
    }
    return rows;
  }();
  for (const Row* r : scheduled) {
    if (r->name == name) return *r;
  }
  return find(name);
}

}  // namespace treduce::reduce
