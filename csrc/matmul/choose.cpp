// Models of time, by which rungs choose among their shapes.
#include "choose.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "staged.h"

namespace treduce::matmul {
namespace {

int64_t tiles_of(const Problem& p, int tile_m, int tile_n) {
  return ceil_div(p.m, tile_m) * ceil_div(p.n, tile_n) * p.batches;
}

// Of both operands and the result.
int64_t elements_of(const Problem& p) { return (p.m * p.k + p.k * p.n + p.m * p.n) * p.batches; }

// Whether the operand with more lines lies along k.
bool longer_is_along_k(const Problem& p) { return (p.m > p.n ? p.a_column : p.b_row) == 1; }
// And is probably read in vectors.
bool longer_in_vectors(const Problem& p) { return longer_is_along_k(p) && p.k % 4 == 0; }

// The index of the entry with the least cost, the first of equals.
template <class Entry, size_t kCount, class Cost>
const Entry& cheapest(const Entry (&entries)[kCount], Cost cost) {
  const Entry* best = entries;
  auto least = cost(entries[0]);
  for (size_t i = 1; i < kCount; ++i) {
    const auto other = cost(entries[i]);
    if (other < least) {
      least = other;
      best = entries + i;
    }
  }
  return *best;
}

}  // namespace

namespace naive {

Index choose(const Problem& p) { return p.n <= 4 ? kNarrow : p.m <= 4 ? kFlat : kSquare; }

}  // namespace naive

namespace pipelined {

// How long a tile size takes, in outputs that a multiprocessor computes one after another: large tiles multiply at the highest
// rate, but small ones leave fewer multiprocessors idle at the end. The rates are the shares of multiply-adds among the
// instructions of each kernel, estimated for the smallest; not measured yet.
Index choose(const Problem& p, DType dtype, int tile, const Chip& chip) {
  struct Rate {
    Index index;
    int tile;
    int percent;
  };
  constexpr Rate kRates[] = {{kLarge, 128, 100}, {kMedium, 64, 92}, {kSmall, 32, 60}};
  const auto exists = [&](Index index) {
    return (index != kLarge || has_large(dtype, chip.capability)) &&
           shape(dtype, index).shared_bytes <= chip.shared_bytes();
  };
  // What the caller names, or the next smaller one that the chip has.
  for (const Rate& rate : kRates) {
    if (rate.tile <= tile && exists(rate.index)) return rate.index;
  }
  // Of short k a large tile's first copies and stores take as long as its multiplications, and one block is alone on its
  // multiprocessor: 1.02 to 1.5 times slower than medium ones at k of 1 and 64, 8 % faster at 120 (NVIDIA H200, 2026-11-22).
  constexpr int64_t kShort = 96;
  return cheapest(kRates,
                  [&](const Rate& rate) {
                    const bool wasted = rate.index == kLarge && p.k <= kShort;
                    if (wasted || !exists(rate.index)) return std::numeric_limits<int64_t>::max();
                    const TileShape s = shape(dtype, rate.index);
                    const int64_t rounds = ceil_div(tiles_of(p, s.tile_m, s.tile_n), chip.multiprocessors);
                    return rounds * s.tile_m * s.tile_n * 100 / rate.percent;
                  })
      .index;
}

}  // namespace pipelined

namespace short_k {
namespace {

// Nanoseconds that a shape takes, roughly: its tiles on the busiest multiprocessor and the wait of a block, or the waits of its rounds.
// Fitted to 106 products whose operands come from memory (NVIDIA H200, 2026-11-29), within 15 %; what is so chosen takes 1.013 of the
// fastest's time in the mean.
double nanoseconds(const Shape& s, const Problem& p, Way a, Way b, const Chip& chip) {
  constexpr double kThread = 1.1, kMultiply = 0.0042, kStore = 0.105;  // for a thread; a multiply-add; an output
  constexpr double kCopy[] = {0.136, 0.068, 0.068, 0.045, 0.2};        // for an element, by way
  constexpr double kWait = 1000, kCopyOfThread = 12.7;                 // of a block; for an element a thread
  constexpr double kLoads = 131;  // for each time that threads load what lies along k
  const auto k = static_cast<double>(p.k), outputs = static_cast<double>(s.tile_m * s.tile_n);
  const double copy = k * (s.tile_m * kCopy[static_cast<int>(a)] + s.tile_n * kCopy[static_cast<int>(b)]);
  const double tile = s.threads * kThread + copy + outputs * (k * kMultiply + kStore);
  const bool loads = is_along_k(a) || is_along_k(b);
  const double wait = kWait + kCopyOfThread * (s.tile_m + s.tile_n) * k / s.threads +
                      (loads ? kLoads * static_cast<double>(ceil_div(p.k, int64_t(s.depth()))) : 0);
  const int64_t tiles = ceil_div(tiles_of(p, s.tile_m, s.tile_n), int64_t(chip.multiprocessors));
  const int64_t rounds = ceil_div(tiles, std::clamp<int64_t>(chip.blocks_with(s.bytes(p.k)), 1, s.blocks));
  return std::max(static_cast<double>(tiles) * tile + wait, static_cast<double>(rounds) * wait);
}

}  // namespace

bool takes(const Problem& p, DType dtype, int tile) {
  constexpr int64_t kMost = 1 << 30;  // of lines and tiles, which it counts in 32 bits
  return dtype == DType::float32 && tile == 0 && p.k <= kMostK && p.m <= kMost && p.n <= kMost &&
         tiles_of(p, 16, 16) <= kMost && p.batches <= kMost;
}

int choose(const Problem& p, Way a, Way b, const Chip& chip) {
  const Shape& best = cheapest(kShapes, [&](const Shape& s) {
    return s.bytes(p.k) <= chip.shared_bytes() ? nanoseconds(s, p, a, b, chip)
                                               : std::numeric_limits<double>::infinity();
  });
  return static_cast<int>(&best - kShapes);
}

}  // namespace short_k

namespace {

// What is left of a shape's speed for an operand, by where its rows begin.
template <class Shares>
double share_left(const Shares& shares, const Boxes& boxes) {
  const RowsBegin begin = boxes.rows_begin();
  return begin == RowsBegin::at_lines ? 1 : begin == RowsBegin::at_sectors ? shares.at_sectors : shares.inside_sectors;
}

// Clock cycles of the launch that copies operands as their views say.
double cycles_to_copy(const View& a, const View& b, const Chip& chip) {
  constexpr double kCopyBytes = 16, kLaunch = 5000;  // a cycle and multiprocessor; cycles
  if (!a.is_copied() && !b.is_copied()) return 0;
  return 2 * static_cast<double>(a.copied_bytes + b.copied_bytes) / (kCopyBytes * chip.multiprocessors) + kLaunch;
}

}  // namespace

namespace long_k {

bool may_part(const Problem& p, DType dtype) {
  const int64_t groups = groups_of(p.k, dtype), bytes = size_of(dtype), sum_bytes = std::max<int64_t>(bytes, 4);
  return groups > 1 && groups * p.m * p.n * sum_bytes <= (p.m + p.n) * p.k * bytes / 2;
}

double cycles_to_read(const Problem& p, DType dtype, const Chip& chip) {
  constexpr double kBytes = 19;  // of memory, a cycle and multiprocessor
  return static_cast<double>((p.m + p.n) * p.k * p.batches * size_of(dtype)) / (kBytes * chip.multiprocessors);
}

namespace {

// Clock cycles of the launch that adds groups that are apart: a launch, and what it reads and its blocks wrote.
double cycles_to_add(const Problem& p, DType dtype, int multiprocessors) {
  // Both were not measured by themselves.
  constexpr double kLaunch = 3000, kBytes = 16;
  const double sums =
      static_cast<double>(groups_of(p.k, dtype) * p.batches * p.m * p.n) * std::max<double>(size_of(dtype), 4);
  return kLaunch + 2 * sums / (kBytes * multiprocessors);
}

// Tiles, or groups of k of tiles.
int64_t tasks_of(const Problem& p, DType dtype, const TileShape& s, bool apart) {
  return tiles_of(p, s.tile_m, s.tile_n) * (apart ? groups_of(p.k, dtype) : 1);
}

// Tasks of the busiest multiprocessor, the steps of k that it multiplies, and of these those of a block that has it for itself. Tasks are
// taken group after group, and the last group may be shorter.
struct Walked {
  int64_t tasks, steps, alone;
};
Walked walked_of(const Problem& p, DType dtype, const TileShape& s, bool apart, int multiprocessors) {
  const int64_t most = ceil_div(tasks_of(p, dtype, s, apart), int64_t(multiprocessors));
  if (!apart) return {most, most * p.k, most % s.blocks * p.k};
  const int64_t whole = groups_of(p.k, dtype) - 1, left = p.k - whole * kGroup;
  const int64_t wholes = ceil_div(tiles_of(p, s.tile_m, s.tile_n) * whole, int64_t(multiprocessors));
  const int64_t shorter = most - wholes;
  const int64_t alone =
      wholes % s.blocks > 0 ? std::max<int64_t>(kGroup - shorter * left, 0) : shorter % s.blocks * left;
  return {most, wholes * kGroup + shorter * left, alone};
}

// Clock cycles in which the L2 gives all tiles their parts of both operands. bytes: a cycle and multiprocessor.
double cycles_of_tiles_to_read(const Problem& p, DType dtype, const TileShape& s, double bytes, int multiprocessors) {
  const int64_t down = ceil_div(p.m, int64_t(s.tile_m)), across = ceil_div(p.n, int64_t(s.tile_n));
  const auto elements = static_cast<double>((p.m * across + p.n * down) * p.batches * p.k);
  return elements * static_cast<double>(size_of(dtype)) / (bytes * multiprocessors);
}

// Whether groups apart are faster, by the cycles of both. Where the memory bounds both, their sums are what is more to read and write.
bool pays_apart(const Problem& p, DType dtype, double apart, double whole, const Chip& chip) {
  const double memory = cycles_to_read(p, dtype, chip), finish = cycles_to_add(p, dtype, chip.multiprocessors);
  return std::max(apart, memory + finish) < std::max(whole, memory);
}

// The entry with the least cost(entry, apart), among tiles of all of k and, where they may be, groups of k that are apart.
template <class Entry, size_t kCount, class Cost>
Choice cheapest_of(const Problem& p, DType dtype, const Chip& chip, const Entry (&entries)[kCount], Cost cost) {
  const auto best_of = [&](bool apart) {
    const Entry& best = cheapest(entries, [&](const Entry& entry) { return cost(entry, apart); });
    return Choice{best.index, apart, cost(best, apart)};
  };
  const Choice whole = best_of(false);
  if (!may_part(p, dtype)) return whole;
  const Choice apart = best_of(true);
  return pays_apart(p, dtype, apart.cycles, whole.cycles, chip) ? apart : whole;
}

}  // namespace
}  // namespace long_k

namespace mma_f64 {
namespace {

// Clock cycles that a shape takes, roughly: the tensor cores' on the busiest multiprocessor, at a share `speed` of their 128
// multiply-adds a cycle, and the dependent multiplications of its tiles, of which s.blocks run side by side; or what all
// tiles read from the L2; and what a tile costs besides. Fitted to every shape's time on an NVIDIA H200, 2026-11-21: 1 to
// 512 rows by n and k of 4096 to 11008, squares of 128 to 4096, batches; within 15 %.
double cycles(const Problem& p, const Shape& s, int multiprocessors, double speed, bool apart) {
  const double latency = s.fours == 4 ? 21 : 40;  // of 4 steps of k
  constexpr double kBytes = 48;                   // from the L2 a cycle and multiprocessor
  constexpr double kBesides = 1500;               // of a tile
  const int64_t tasks = long_k::tasks_of(p, DType::float64, s, apart);
  const double most = static_cast<double>(ceil_div(tasks, multiprocessors));
  const double rounds = static_cast<double>(ceil_div(tasks, int64_t(multiprocessors) * s.blocks));
  const double k = static_cast<double>(apart ? long_k::kGroup : p.k);
  const double multiply = most * s.tile_m * s.tile_n * k / (128 * speed);
  const double wait = rounds * k / 4 * latency;
  const double read = long_k::cycles_of_tiles_to_read(p, DType::float64, s, kBytes, multiprocessors);
  const double finish = apart ? long_k::cycles_to_add(p, DType::float64, multiprocessors) : 0;
  return std::max(multiply + wait, read) + rounds * kBesides + finish;
}

}  // namespace

Choice choose(const Problem& p, const Chip& chip) {
  struct Speed {
    Index index;
    double speed;
  };
  constexpr Speed kSpeeds[] = {{kSquare128, 0.95}, {kSquare64, 0.92},  {kWide64, 0.83},   {kSquare32, 0.7},
                               {kRows16, 0.68},    {kColumns16, 0.68}, {kSquare16, 0.62}, {kDeep16, 0.63}};
  return long_k::cheapest_of(p, DType::float64, chip, kSpeeds, [&](const Speed& s, bool apart) {
    return cycles(p, kShapes[s.index], chip.multiprocessors, s.speed, apart);
  });
}

}  // namespace mma_f64

namespace {

// Of float64: the clock cycles of tiles' multiplications, with what both operands take to come from the L2, `l2_bytes` a cycle and
// multiprocessor, and from memory, which goes on meanwhile; and with what adds groups that are apart.
double with_reading(double multiply, const Problem& p, const TileShape& s, double l2_bytes, bool apart,
                    const Chip& chip) {
  constexpr double kMemory = 19.0 / 13;  // of the model of reading: between what an H100 and an H200 need
  constexpr double kAdd = 1.6;           // of the model of additions
  const double l2 = long_k::cycles_of_tiles_to_read(p, DType::float64, s, l2_bytes, chip.multiprocessors);
  const double memory = kMemory * long_k::cycles_to_read(p, DType::float64, chip);
  const auto fourth = [](double x) { return x * x * x * x; };
  return std::sqrt(std::sqrt(fourth(multiply) + fourth(l2) + fourth(memory))) +
         (apart ? kAdd * long_k::cycles_to_add(p, DType::float64, chip.multiprocessors) : 0);
}

}  // namespace

namespace specialized_f64 {
namespace {

// Shares of the tensor cores' 128 multiply-adds a cycle that a shape reaches, `alone` of a block that shares its multiprocessor with no
// other; cycles of a task besides; and what is left of the share for each operand whose rows begin at sectors, or inside these, while
// most multiprocessors read.
struct Cost {
  Index index;
  double speed, alone, besides, at_sectors, inside_sectors;
};
constexpr Cost kCosts[] = {{kSquare128, 1.01, 1, 10700, 0.99, 0.89}, {kWide96, 1, 1, 8400, 0.99, 0.96},
                           {kWide128, 0.96, 1, 5600, 0.99, 0.905},   {kRows64, 0.935, 1, 4300, 1, 0.955},
                           {kSquare64, 0.89, 0.64, 2700, 1, 0.93},   {kWide64, 0.83, 0.69, 1460, 0.955, 0.82},
                           {kSquare32, 0.71, 0.62, 830, 0.9, 0.77}};

// Whether so many tasks fill no round of blocks.
bool may_deal(const Shape& s, int64_t tasks, const Chip& chip) {
  const int64_t blocks = int64_t(chip.multiprocessors) * s.blocks;
  return s.deals() && tasks > blocks && tasks % blocks != 0 && blocks * s.threads / 32 <= kMostCounters;
}

// Clock cycles that a shape takes, roughly. With `dealt` blocks are dealt their last tasks by steps of k. Fitted to 7,000 times of 620 products
// that were drawn at random (lines of 17 to 8192, k of 64 to 8192, batches; NVIDIA H100 and H200, 2026-11-27): what is so chosen takes 1.02
// of the fastest one's time in the mean.
double cycles(const Problem& p, const Cost& cost, const View& a, const View& b, bool apart, bool dealt,
              const Chip& chip) {
  constexpr double kMost = 0.9;    // of the multiprocessors: from there on they wait for each other's requests
  constexpr double kL2Bytes = 71;  // from the L2, a cycle and multiprocessor
  constexpr double kGroup = 0.99;  // of an output, for a group's sum that is added where it lies
  constexpr double kDealt = 0.93, kHandOver = 4400, kHandBytes = 25;  // a share of the speed; cycles, and bytes a cycle
  const Shape& s = kShapes[cost.index];
  const int64_t groups = long_k::groups_of(p.k, DType::float64), tasks = long_k::tasks_of(p, DType::float64, s, apart);
  const double outputs = s.tile_m * s.tile_n, multiprocessors = chip.multiprocessors;
  const double busy = std::min(1.0, static_cast<double>(tasks) / (kMost * multiprocessors));
  const double rows = 1 - busy * (1 - share_left(cost, a.boxes) * share_left(cost, b.boxes));
  const double besides = cost.besides + (apart ? 0 : static_cast<double>(groups - 1) * kGroup * outputs);
  double multiply;
  if (dealt) {
    const double each = static_cast<double>(tasks) / multiprocessors;
    const double steps = static_cast<double>(tiles_of(p, s.tile_m, s.tile_n) * p.k) / multiprocessors;
    multiply = outputs / 128 * steps / (cost.speed * rows * kDealt) + each * besides + kHandOver +
               2 * outputs * static_cast<double>(sizeof(double)) * s.blocks / kHandBytes;
  } else {
    const long_k::Walked walked = long_k::walked_of(p, DType::float64, s, apart, chip.multiprocessors);
    const auto alone = static_cast<double>(walked.alone), shared = static_cast<double>(walked.steps) - alone;
    multiply = outputs / (128 * rows) * (shared / cost.speed + alone / cost.alone) +
               static_cast<double>(walked.tasks) * besides;
  }
  return with_reading(multiply, p, s, kL2Bytes, apart, chip);
}

}  // namespace

Choice choose(const Problem& p, const View& a, const View& b, const Chip& chip) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto cost_of = [&](const Cost& cost, bool apart, bool dealt) {
    const Shape& s = kShapes[cost.index];
    const bool can =
        s.takes(b.boxes.along_k) && (!dealt || may_deal(s, long_k::tasks_of(p, DType::float64, s, apart), chip));
    return can ? cycles(p, cost, a, b, apart, dealt, chip) : kInfinity;
  };
  Choice best = {0, false, kInfinity};
  const bool may_part = long_k::may_part(p, DType::float64);
  for (const Cost& cost : kCosts) {
    for (const bool apart : {false, true}) {
      if (apart && !may_part) continue;
      for (const bool dealt : {false, true}) {
        const double other = cost_of(cost, apart, dealt);
        if (other < best.cycles) best = {cost.index, apart, other, dealt};
      }
    }
  }
  best.cycles += cycles_to_copy(a, b, chip);
  return best;
}

}  // namespace specialized_f64

namespace small_f64 {
namespace {

// Clock cycles that a shape takes, roughly: of 16 steps of k, `alone` of a block that shares a multiprocessor with no other, and `busy` of
// each where they are several. Fitted to 4,500 times of the products that specialized_f64's were fitted to, and of 120 of 1 to 32 rows
// (NVIDIA H200). What is chosen of both takes 1.035 of the fastest one's time.
double cycles(const Problem& p, const Shape& s, const View& a, const View& b, const Chip& chip, double alone,
              double busy, bool apart) {
  constexpr double kL2Bytes = 76;                           // from the L2, a cycle and multiprocessor
  constexpr double kInside = 1.255;                         // of rows that begin inside sectors
  const double besides = 790 + 1.27 * s.tile_m * s.tile_n;  // of a round of tiles
  const auto of_operand = [](const View& view) {
    return view.boxes.rows_begin() == RowsBegin::inside_sectors ? kInside : 1;
  };
  const double rows = of_operand(a) * of_operand(b);
  const auto rounds = [&](int64_t tasks, int64_t k) {
    const int64_t most = ceil_div(tasks, int64_t(chip.multiprocessors));
    const auto slabs = static_cast<double>(ceil_div(k * kSlabs, int64_t(kStageDepth))) * rows;
    const auto round = [&](int64_t blocks) {
      return blocks == 0 ? 0.0 : besides + slabs * std::max(alone, static_cast<double>(blocks) * busy);
    };
    return static_cast<double>(most / s.blocks) * round(s.blocks) + round(most % s.blocks);
  };
  const int64_t tiles = tiles_of(p, s.tile_m, s.tile_n);
  if (!apart) return with_reading(rounds(tiles, p.k), p, s, kL2Bytes, apart, chip);
  // The last group may be shorter.
  const int64_t wholes = long_k::groups_of(p.k, DType::float64) - 1, left = p.k - wholes * long_k::kGroup;
  const double shorter = rounds(tiles * (wholes + 1), left) - rounds(tiles * wholes, left);
  return with_reading(rounds(tiles * wholes, long_k::kGroup) + std::max(shorter, 0.0), p, s, kL2Bytes, apart, chip);
}

}  // namespace

Choice choose(const Problem& p, const View& a, const View& b, const Chip& chip) {
  struct Speed {
    Index index;
    double alone, busy;
  };
  constexpr Speed kSpeeds[] = {{kSquare16, 107, 89},  {kRows16, 137, 135}, {kColumns16, 139, 139},
                               {kSquare32, 204, 185}, {kWide32, 380, 318}, {kTall32, 383, 338}};
  Choice best = long_k::cheapest_of(p, DType::float64, chip, kSpeeds, [&](const Speed& s, bool apart) {
    return cycles(p, kShapes[s.index], a, b, chip, s.alone, s.busy, apart);
  });
  best.cycles += cycles_to_copy(a, b, chip);
  return best;
}

bool pays(const Choice& small, const Choice& boxes) {
  constexpr double kBegin = 1900;  // what a block of the other takes longer to begin
  return small.cycles < boxes.cycles + kBegin;
}

}  // namespace small_f64

namespace small_tiles {

// One tile a matrix, and k short enough to wait for it. Measured on an NVIDIA H200, 2026-11-22: batches of 20,000 of 8 x 8 and
// 16 x 16 in 14 and 21 us, where of 32 x 32 tiles are read twice and take 106.
bool pays(const Problem& p, DType dtype) {
  if (dtype != DType::float16 && dtype != DType::bfloat16) return false;
  const bool small = p.m <= 16 && p.n <= 16 && p.k <= 64;
  return small || ((p.m <= 16 || p.n <= 16) && p.k <= 16);
}

}  // namespace small_tiles

namespace few_rows {
namespace {

// Those that leave the busiest multiprocessor the least; of equals the most, which read the rows fewest times.
Choice rows16(const Problem& p, const Chip& chip) {
  constexpr int kTileCost = 8;  // what a tile costs besides its columns, in columns
  int best = 0;
  int64_t least = INT64_MAX;
  for (int columns = kWarpColumns; columns <= kMostColumns; columns += kWarpColumns) {
    const int64_t cost = ceil_div(ceil_div(p.n, columns), int64_t(chip.multiprocessors)) * (columns + kTileCost);
    if (cost <= least) {
      least = cost;
      best = columns;
    }
  }
  return {-1, kRows, best, std::clamp(kRingBytes / stage_bytes(best), 2, kMostStages), 0};
}

// Clock cycles of a shape of few_outputs where w lies across k, roughly. A step of 16 of k takes what it waits for, what the copy engine takes
// for 16 rows of w and for x, and what all multiprocessors get of the L2. Rows of w take longer if they begin inside sectors, or if a line of the
// L2 has several. Fitted to 16,000 times of 2,100 products of 16 bits drawn at random (NVIDIA H200, 2026-12-01), half of them within 8 %: what is
// so chosen takes 1.023 of the fastest's time in the mean.
double cycles_across(const few_outputs::Shape& s, int rows, const Problem& p, const Boxes& x, const Boxes& w,
                     const Chip& chip) {
  constexpr double kStep = 7.4, kLine = 0.113, kLonger[] = {1, 1.39, 3.47}, kLineOfL2 = 0.57;
  constexpr struct {
    double at_sectors, inside_sectors, share_lines;
  } kOf16{9.6, 22, 25}, kOf32{14.3, 37.3, 30.6};  // columns
  const auto& of_w = s.columns == 16 ? kOf16 : kOf32;
  const double copy_w = w.pitch * w.element_bytes < kCacheLine        ? of_w.share_lines
                        : w.rows_begin() == RowsBegin::inside_sectors ? of_w.inside_sectors
                                                                      : of_w.at_sectors;
  const auto lines = static_cast<double>(round_up(rows, 8));
  const int64_t tiles = ceil_div(p.n, s.columns) * ceil_div(p.m, rows), places = chip.multiprocessors;
  const double running = static_cast<double>(std::min(tiles, places)) / static_cast<double>(places);
  const double step = kStep + copy_w + lines * kLine * kLonger[static_cast<int>(x.rows_begin())] +
                      (lines + s.columns) * kLineOfL2 * running;
  const int64_t steps = round_up(ceil_div(p.k, 16), s.slabs * 4);
  return static_cast<double>(ceil_div(tiles, places) * steps) * step;
}

// The same where both lie along k. A step of 32 bytes of k waits for the multiplication before it, or for what is copied,
// longer if rows begin inside sectors; and a tile begins and ends. Fitted to 300 times of 22 products: what is so chosen was the fastest of
// 20 (NVIDIA H100, 2026-11-26).
double cycles_along(int index, int rows, const Problem& p, DType dtype, const Boxes& x, const Boxes& w,
                    const Chip& chip) {
  constexpr double kChain[few_outputs::kShapeCount] = {24, 32, 34, 42, 46, 67}, kBytes = 41, kBesides = 900;
  constexpr double kLonger[] = {1, 1.15, 1.4};  // of rows, by where they begin
  const int columns = few_outputs::kShapes[index].columns;
  const int64_t tiles = ceil_div(p.n, columns) * ceil_div(p.m, rows);
  const auto bytes = [&](const Boxes& boxes, int64_t lines) {
    return static_cast<double>(lines * 32) * kLonger[static_cast<int>(boxes.rows_begin())];
  };
  const double copies = (bytes(x, round_up(rows, 8)) + bytes(w, columns)) / kBytes;
  const auto fourth = [](double x) { return x * x * x * x; };
  const double step = std::sqrt(std::sqrt(fourth(kChain[index]) + fourth(copies)));
  const double steps = static_cast<double>(p.k * static_cast<int64_t>(size_of(dtype))) / 32;
  return static_cast<double>(ceil_div(tiles, int64_t(chip.multiprocessors))) * (steps * step + kBesides);
}

Choice narrow(const Problem& p, DType dtype, const Boxes& x, const Boxes& w, const Chip& chip) {
  constexpr int kMostRowTiles = 8;
  Choice best = {0, 0, 0, 0, std::numeric_limits<double>::infinity()};
  for (int index = 0; index < few_outputs::kShapeCount; ++index) {
    const few_outputs::Shape& s = few_outputs::kShapes[index];
    if (!w.along_k && !s.takes_across()) continue;
    const int64_t fewest = ceil_div(p.m, kMostRows);
    int64_t copied = 0;  // rows of the tiles before
    for (int64_t row_tiles = fewest; row_tiles < fewest + kMostRowTiles && row_tiles <= p.m; ++row_tiles) {
      const int rows = static_cast<int>(ceil_div(p.m, row_tiles));
      if (round_up(rows, 8) == copied) continue;  // as much is copied for more tiles
      copied = round_up(rows, 8);
      const double other =
          w.along_k ? cycles_along(index, rows, p, dtype, x, w, chip) : cycles_across(s, rows, p, x, w, chip);
      if (other < best.cycles) best = {index, rows, s.columns, 0, other};
    }
  }
  const int bytes = few_outputs::kShapes[best.index].stage_bytes(best.rows);
  best.stages =
      std::clamp((chip.shared_bytes() - few_outputs::kBehind - hopper::kTileAlignment) / bytes, 2, kMostStages);
  return best;
}

}  // namespace

// One matrix, for batches were not measured, and x contiguous along k. Of w along k, too: of 16 bits up to 16 rows by many columns (NVIDIA
// H200, 2026-11-21: faster by 2 to 8 %; of more rows, tiles of 64 x 64 or 64 x 128 of persistent are); and where columns are few, and of more
// rows where both models say so, few_outputs: of 768 to 2048 columns it takes 0.7 to 0.95 of the time of multiplications by mma.sync (NVIDIA
// H100, 2026-11-26). Of w across k, which is of 16 bits, few_outputs where both models say so: it then takes 0.79 of the time of what was
// chosen before (478 products, NVIDIA H200, 2026-12-01).
std::optional<Choice> choose(const Problem& p, DType dtype, const Boxes& x, const Boxes& w, bool transposed,
                             const matmul::Choice& other, const Chip& chip) {
  const bool half = size_of(dtype) == 2;
  if (!half && dtype != DType::float32) return std::nullopt;
  if (!x.along_k || p.batches > 1) return std::nullopt;
  const auto if_faster = [&](double share) -> std::optional<Choice> {
    // Most products have more outputs than narrow tiles of all multiprocessors: no need to ask which of these is best.
    constexpr int64_t kMostOutputs = 4 * kMostRows * 64;
    if (p.m * p.n > kMostOutputs * chip.multiprocessors) return std::nullopt;
    const Choice best = narrow(p, dtype, x, w, chip);
    return best.cycles < share * other.cycles ? std::optional(best) : std::nullopt;
  };
  if (!w.along_k) {
    constexpr int64_t kLeastK = 512;
    return half && p.k >= kLeastK ? if_faster(0.9) : std::nullopt;
  }
  if (p.m > kMostRows) return transposed || p.n <= kMostRows ? std::nullopt : if_faster(0.95);
  const bool wide = half && (p.m <= 16 || transposed);  // the others have good tiles
  if (p.n <= (p.m > 32 ? 16 : wide ? 24 : 48) * int64_t(chip.multiprocessors)) {
    return narrow(p, dtype, x, w, chip);
  }
  return half && !transposed && p.m <= 16 ? std::optional(rows16(p, chip)) : std::nullopt;
}

}  // namespace few_rows

namespace persistent {

namespace {

// Cycles of a tile besides its multiplications. Shares of the tensor cores' speed that a shape reaches, where rows of both operands begin at
// lines of the L2; and what is left of that for each operand whose rows begin at sectors, or inside these, while most of the chip's blocks
// read. Blocks that share operands lose least then. Of B across k whole slabs are fetched, and what a tile lacks of them is lost as well.
// For elements of up to 16 bits, and of 32. Fitted to 217 products of 64 to 8192 rows, all shapes (NVIDIA H100, 2026-11-26); of 16 bits
// tiles of up to 128 x 128 anew, to 124 products (NVIDIA H200, 2026-11-27), of which what is so chosen takes 1.01 of the fastest's time in
// the mean.
struct Speed {
  double besides, at_lines, at_sectors, inside_sectors;
};
struct Cost {
  Index index;
  Speed up_to_16_bits, of_32_bits;
};
constexpr Cost kCosts[] = {{kLarge, {3300, 0.98, 0.945, 0.83}, {3300, 0.945, 0.9, 0.82}},
                           {kLong, {3300, 0.95, 0.945, 0.83}, {3300, 0.915, 0.9, 0.82}},
                           {kWide224, {2650, 0.98, 0.925, 0.705}, {2650, 1, 0.875, 0.705}},
                           {kWide, {2350, 1, 0.91, 0.71}, {2350, 0.97, 0.865, 0.715}},
                           {kWideTwo, {3000, 0.965, 0.935, 0.795}, {3000, 0.945, 0.855, 0.79}},
                           {kWide176, {2600, 0.965, 0.86, 0.68}, {2600, 0.97, 0.855, 0.675}},
                           {kMedium, {2360, 0.885, 0.895, 0.745}, {2050, 0.9, 0.815, 0.67}},
                           {kMediumFour, {4000, 1, 0.96, 0.9}, {3400, 0.935, 0.885, 0.83}},
                           {kMedium96, {1520, 0.82, 0.785, 0.565}, {1950, 0.81, 0.8, 0.69}},
                           {kMedium96Four, {2230, 0.77, 1.02, 0.825}, {}},
                           {kNarrow, {1250, 0.7, 0.825, 0.58}, {965, 0.705, 0.785, 0.61}},
                           {kNarrow96, {740, 0.59, 0.865, 0.635}, {870, 0.63, 0.8, 0.63}},
                           {kNarrow96Four, {1840, 0.675, 0.945, 0.855}, {}},
                           {kSquare, {690, 0.53, 0.84, 0.54}, {640, 0.495, 0.77, 0.685}},
                           {kSquareEight, {1660, 0.445, 0.875, 0.965}, {1140, 0.395, 0.98, 1}}};

// Clock cycles that a shape takes, roughly: its tiles, one after another on each multiprocessor, at a share of the tensor
// cores' 1024 multiply-adds of 32 bits a cycle (twice that for 16), and what a tile costs besides.
double cycles(const Problem& p, const Cost& cost, const Boxes& a, const Boxes& b, DType dtype, bool apart,
              const Chip& chip) {
  constexpr double kMost = 0.9;    // of the multiprocessors: from there on they wait for each other's requests
  constexpr double kLeast = 0.35;  // of that: one alone waits for its own
  const TileShape& s = kShapes[cost.index];
  const int64_t groups = apart ? long_k::groups_of(p.k, dtype) : 1;
  const int64_t tasks = tiles_of(p, s.cluster_m(), s.cluster_n()) * groups;
  const double rounds = static_cast<double>(ceil_div(tasks, int64_t(clusters_of(s.cluster, chip.multiprocessors))));
  const double blocks = static_cast<double>(tiles_of(p, s.tile_m, s.tile_n) * groups);
  const double busy = std::clamp(blocks / (kMost * chip.multiprocessors), kLeast, 1.0);
  const Speed& share = size_of(dtype) == 4 ? cost.of_32_bits : cost.up_to_16_bits;
  const double fetched = fetched_columns(s.tile_n, b.along_k);
  const double speed =
      share.at_lines * std::pow(share_left(share, a) * share_left(share, b), busy) * s.tile_n / fetched;
  const double depth = static_cast<double>(apart ? long_k::kGroup : p.k);
  const double finish = apart ? long_k::cycles_to_add(p, dtype, chip.multiprocessors) : 0;
  const double tile = double(s.tile_m) * s.tile_n * depth * static_cast<double>(size_of(dtype)) / (4096 * speed);
  return rounds * (tile + share.besides) + finish;
}

// The same of 16 bits, for clusters whose blocks may lie in several ways. A stage, 128 bytes of k, takes what tensor cores do and what the L2
// sends, to a multiprocessor or to all; of rows that do not begin at its lines that is longer. Clusters fetch what they share once, but begin
// later and wait for each other. Fitted to 13,700 times of 1,200 products of 130 to 4,500 rows and columns, k of 200 to 8,000, drawn at random
// (NVIDIA H200, 2026-11-30): half of them are met within 5 %.
double cycles_of_16_bits(const Problem& p, const TileShape& s, const Boxes& a, const Boxes& b, int64_t stages,
                         const Chip& chip) {
  constexpr double kSpeed64 = 1.51, kSpeed128 = 1.23, kSpeedWide = 1.06;  // of 2048 multiply-adds
  constexpr double kBytes = 190, kBytesOfEach = 72.5, kLonger[] = {1, 1.36, 2.36},
                   kLongerOfClusters[] = {1, 1.21, 1.76};
  constexpr double kStage = 81, kStageOfCluster = 99, kTile = 294, kTileOf128 = 429, kOutput = 0.089;
  constexpr double kBegin = -1120, kBeginCluster = 1376;  // beside what microseconds() has for a launch
  constexpr int kWideOutputs = 128 * 176;
  const int outputs = s.tile_m * s.tile_n;
  const bool clusters = s.cluster > 1;
  const auto longer = [&](const Boxes& boxes) {
    return (clusters ? kLongerOfClusters : kLonger)[static_cast<int>(boxes.rows_begin())];
  };
  const int64_t blocks = tiles_of(p, s.cluster_m(), s.cluster_n()) * s.cluster,
                places = places_of(s.cluster, chip.multiprocessors);
  const double speed = s.tile_m == 64 ? kSpeed64 : outputs < kWideOutputs ? kSpeed128 : kSpeedWide;
  const double multiply = outputs * 64 / (2048 * speed);
  const double bytes = hopper::kRowBytes * (double(s.tile_m) / s.beside * longer(a) +
                                            double(fetched_columns(s.tile_n, b.along_k)) / s.below() * longer(b));
  const double running = static_cast<double>(std::min(blocks, places)) / chip.multiprocessors;
  const double fetch = bytes * std::max(1 / kBytes, running / kBytesOfEach);
  const double step = std::sqrt(multiply * multiply + fetch * fetch) + kStage + (clusters ? kStageOfCluster : 0);
  const double tile = static_cast<double>(stages) * step + kTile + (s.tile_m > 64 ? kTileOf128 : 0) + kOutput * outputs;
  return static_cast<double>(ceil_div(blocks, places)) * tile + kBegin + (clusters ? kBeginCluster : 0);
}

// Large tiles that fill whole rounds of blocks, and a strip of smaller ones for what is left, in the place of what has been chosen, if that is
// faster: where it is taken it saves 4.4 % in the mean (68 products in float16 and as tfloat32, NVIDIA H200, 2026-12-01; 5 % lost to 16 %
// saved). Tiles smaller than those that were chosen are not asked: 24 of the products, which would have them, gained 0.7 %.
// time_of(cost): a shape's for the whole product.
template <class TimeOf>
Choice with_strip(const Problem& p, const Choice& chosen, DType dtype, const Boxes& a, const Boxes& b, const Chip& chip,
                  TimeOf&& time_of) {
  constexpr double kLaunch = 4000, kLeast = 40000;  // cycles
  constexpr double kFaster = 0.97, kNear = 1.3;  // shapes that take longer than what was chosen by that are not asked
  if (chosen.cycles < kLeast) return chosen;
  const auto outputs_of = [](int index) { return kShapes[index].tile_m * kShapes[index].tile_n; };
  const int least_outputs = std::max(128 * 128, outputs_of(chosen.index));
  Choice best = chosen;
  best.cycles *= kFaster;
  for (const Cost& cost : kCosts) {
    if (outputs_of(cost.index) < least_outputs || time_of(cost) > kNear * chosen.cycles) continue;
    const TileShape& s = kShapes[cost.index];
    const int64_t places = clusters_of(s.cluster, chip.multiprocessors);
    const int64_t rounds = tiles_of(p, s.cluster_m(), s.cluster_n()) / places;
    for (const bool of_rows : {false, true}) {
      const int64_t beside = ceil_div(of_rows ? p.n : p.m, int64_t(of_rows ? s.cluster_n() : s.cluster_m()));
      const int64_t first = rounds * places / (beside * p.batches) * (of_rows ? s.cluster_m() : s.cluster_n());
      Strip strip = {0, of_rows, first};
      if (first == 0 || first >= (of_rows ? p.m : p.n)) continue;
      const double before = cycles(strip.before(p), cost, a, b, dtype, false, chip) + kLaunch;
      if (before >= best.cycles) continue;
      const Problem alone = strip.alone(p);
      const auto time_of_strip = [&](const Cost& small) {
        return may_be_strip(small.index) ? cycles(alone, small, a, b, dtype, false, chip)
                                         : std::numeric_limits<double>::infinity();
      };
      const Cost& small = cheapest(kCosts, time_of_strip);
      strip.shape = small.index;
      const double time = before + time_of_strip(small);
      if (time < best.cycles) best = {cost.index, false, time, false, strip};
    }
  }
  return best.strip.exists() ? best : chosen;
}

// Of the shapes for few rows and columns.
int narrow_shape(const Problem& p, const Boxes& a) {
  if (a.along_k) {
    if (p.m <= 16) return kRows16;
    if (p.m <= 32) return kRows32;
  }
  return p.n <= 16 ? kColumns16 : p.n <= 32 ? kColumns32 : kShapeCount;
}

// Their clock cycles, roughly: what the thread that copies needs for a stage, 128 bytes of k of each line, whatever it has to copy.
double cycles_of_narrow(const Problem& p, int index, DType dtype, const Chip& chip) {
  constexpr int64_t kBesides = 500, kStage = 300;
  const int64_t rounds =
      ceil_div(tiles_of(p, kShapes[index].tile_m, kShapes[index].tile_n), int64_t(chip.multiprocessors));
  const int64_t stages = ceil_div(p.k * static_cast<int64_t>(size_of(dtype)), int64_t(hopper::kRowBytes));
  return static_cast<double>(rounds * (kBesides + stages * kStage));
}

// Clusters in the place of a shape that has been chosen, if they are so much faster: by times of 357 products drawn at random rows that begin at
// lines of the L2 are as fast, others take 0.98 of the time, 0.78 to 1.06 (NVIDIA H200, 2026-11-30).
Choice in_clusters(const Problem& p, const Choice& chosen, const Boxes& a, const Boxes& b, const Chip& chip) {
  constexpr double kFaster = 0.95;
  constexpr int64_t kMostLines = 4608;  // of what was measured; no batches, and no long k
  if (p.batches > 1 || std::max(p.m, p.n) > kMostLines || long_k::groups_of(p.k, DType::float16) > 1) return chosen;
  const int64_t stages = ceil_div(p.k * 2, int64_t(hopper::kRowBytes));
  const auto cycles = [&](int index) { return cycles_of_16_bits(p, kShapes[index], a, b, stages, chip); };
  const double before = cycles(chosen.index);
  Choice best = {chosen.index, false, kFaster * before};
  for (int index = kKernelCount; index < kShapeCount; ++index) {
    const double time = cycles(index);
    if (time < best.cycles) best = {index, false, time};
  }
  return best.index == chosen.index ? chosen : Choice{best.index, false, chosen.cycles * best.cycles / before};
}

}  // namespace

Choice choose(const Problem& p, DType dtype, const Boxes& a, const Boxes& b, const Chip& chip) {
  const bool may_be_apart = long_k::may_part(p, dtype);
  const int narrow = narrow_shape(p, a);
  if (narrow != kShapeCount) {
    // Tiles of 16 columns or of 64 fill the chip, or do not.
    const int64_t tiles = tiles_of(p, 64, 64) * (narrow == kRows16 ? 8 : 2);
    if (!may_be_apart || tiles > chip.multiprocessors) return {narrow, false, cycles_of_narrow(p, narrow, dtype, chip)};
  }
  const auto cost_of = [&](const Cost& cost, bool apart) {
    const bool in_groups = has_groups(result_dtype(dtype)) && long_k::groups_of(p.k, dtype) > 1;
    const bool can = for_16_bits_alone(cost.index) && size_of(dtype) != 2 ? false
                     : apart                                              ? takes_groups_apart(cost.index)
                     : cost.index == kLarge                               ? !in_groups
                     : cost.index == kLong                                ? in_groups
                     : in_groups                                          ? adds_groups(cost.index)
                                                                          : true;
    return can ? cycles(p, cost, a, b, dtype, apart, chip) : std::numeric_limits<double>::infinity();
  };
  const auto best_of = [&](bool apart) -> const Cost& {
    return cheapest(kCosts, [&](const Cost& cost) { return cost_of(cost, apart); });
  };
  const Cost& cost = best_of(false);
  Choice whole = {cost.index, false, cost_of(cost, false)};
  if (size_of(dtype) == 2) whole = in_clusters(p, whole, a, b, chip);
  whole = with_strip(p, whole, dtype, a, b, chip, [&](const Cost& c) { return cost_of(c, false); });
  if (may_be_apart) {
    const Cost& apart = best_of(true);
    const bool faster = long_k::pays_apart(p, dtype, cost_of(apart, true), whole.cycles, chip);
    if (narrow != kShapeCount || faster) return {apart.index, true, cost_of(apart, true)};
  }
  return whole;
}

double microseconds_to_copy(const View& a, const View& b) {
  constexpr double kCopy = 1.6, kBytes = 1.49e6;
  if (!a.is_copied() && !b.is_copied()) return 0;
  return kCopy + static_cast<double>(a.copied_bytes + b.copied_bytes) / kBytes;
}

// Of tiles whose rows of results begin inside 16 bytes, which leave by words, also what storing 128 bytes of each row takes. Fitted to 4,400
// products in 16 bits and as tfloat32 whose operands nearly all are copied, drawn at random (NVIDIA H200, 2026-11-29).
double microseconds(const Problem& p, DType dtype, const Way& way, const Chip& chip) {
  constexpr double kBegin = 2.26, kReadBytes = 3.75e6, kWrittenBytes = 1.24e6, kMegahertz = 1970;
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  const int64_t results = p.batches * p.m * p.n;
  const double memory = static_cast<double>((elements_of(p) - results) * bytes) / kReadBytes +
                        static_cast<double>(results * bytes) / kWrittenBytes;
  double time = kBegin + std::hypot(way.cycles / kMegahertz, memory) + microseconds_to_copy(way.a, way.b);
  if (way.tile != nullptr && p.n * bytes % kBoxAlignment != 0) {
    const double rows = bytes == 2 ? 1.23 : 0.3;
    const TileShape& s = *way.tile;
    const int64_t rounds = ceil_div(tiles_of(p, s.tile_m, s.tile_n), int64_t(chip.multiprocessors));
    time += static_cast<double>(rounds * ceil_div(std::min<int64_t>(s.tile_n, p.n) * bytes, kCacheLine)) * rows;
  }
  return time;
}

}  // namespace persistent

namespace register_operand {

// Clock cycles of a tile, roughly: the tensor cores', or what it reads of the L2; and what it costs besides. Measured on an NVIDIA
// H200, 2026-11-22: 4096^3 in 349 us, where persistent takes 340 and the copy 41.
Choice choose(const Problem& p, const Chip& chip) {
  constexpr double kSpeed = 0.97, kBytes = 48, kBesides = 3000;
  constexpr double kChain = 6.5;  // of few rows, a step of k
  const auto cycles = [&](const Shape& s, bool apart) {
    const int64_t tasks = tiles_of(p, s.rows, s.lines) * (apart ? long_k::groups_of(p.k, DType::float32) : 1);
    const double depth = static_cast<double>(apart ? long_k::kGroup : p.k);
    const double multiply = double(s.rows) * s.lines / (1024 * kSpeed), read = (s.rows + s.lines) * 4 / kBytes;
    // Of blocks that share a multiprocessor one works while another begins or ends.
    const bool few = s.rows <= kMostRows;
    const int blocks = few ? 1 : s.blocks;
    const double step = std::max({multiply, read, few ? kChain : 0});
    return static_cast<double>(ceil_div(tasks, int64_t(chip.multiprocessors) * blocks)) *
           (step * depth * blocks + kBesides);
  };
  int index = 0;
  while (kShapes[index].rows < p.m && index + 2 < kFewShapes) index += 2;
  const int64_t narrow = tiles_of(p, kShapes[index].rows, kShapes[index].lines);
  const bool apart = long_k::may_part(p, DType::float32) && narrow * 2 <= chip.multiprocessors;
  const int64_t tasks = narrow * (apart ? long_k::groups_of(p.k, DType::float32) : 1);
  // Two blocks a multiprocessor: narrow tiles where these are all at once.
  if (tasks > 2 * int64_t(chip.multiprocessors)) ++index;
  double least = cycles(kShapes[index], apart);
  if (p.m > kMostRows && !apart) {
    for (int i = index + 1; i < kShapeCount; ++i) {
      if (long_k::groups_of(p.k, DType::float32) > 1 && !kShapes[i].adds_groups()) continue;
      const double other = cycles(kShapes[i], false);
      if (other >= least) continue;
      least = other;
      index = i;
    }
  }
  return {index, apart, least};
}

// A block is a task. Of a batch where B need not be transposed tiles are small, and persistent has a block for many of them.
bool pays(const Problem& p, const Choice& choice, const Choice& other, const View& b, const Chip& chip) {
  const Shape& s = kShapes[choice.index];
  if (tiles_of(p, s.rows, s.lines) * long_k::groups_of(p.k, DType::float32) > INT32_MAX) return false;
  const bool gathered = b.reading == Reading::gathered;
  // B along k as well: 3 to 13 % faster than from shared memory where k is 4096, 5 % slower of 28672.
  constexpr int64_t kFewest = 32, kLong = 8192;
  if (b.reading == Reading::direct) return p.m <= kFewest && p.batches == 1 && p.k <= kLong;
  if (p.m <= kMostRows) return p.batches == 1 || gathered;
  constexpr int64_t kNarrow = 32;  // columns, of which persistent has tiles that are not compared
  return gathered && p.n > kNarrow && choice.cycles < other.cycles + cycles_to_copy(b, {}, chip);
}

}  // namespace register_operand

namespace narrow {
namespace {

// In microseconds. A multiplication of 8 steps of k waits for the one before, or for what is copied: lines along k, or rows across k, which
// are 8; longer if they begin inside lines of the L2, or if one of these has several rows, which all blocks ask for. Fitted to 18,600 times of
// 1,700 products drawn at random (4 to 1200 rows and columns, k of 400 to 16,000; NVIDIA H200, 2026-12-01): half are met within 6 %, and what
// is chosen takes 1.02 of the least. What is read was fitted to 3,100 others (up to 3,000 rows and columns, k to 40,000), half of them within 5 %.
double time_of(const Shape& s, bool of_a, bool apart, const Problem& p, const Boxes& a, const Boxes& b,
               const Chip& chip) {
  constexpr double kBegin = 2.06, kShared = 1, kBytes = 5e6, kAdd = 1.39, kAddBytes = 1.3e6, kMegahertz = 1950;
  // Clock cycles. kWarp: of 16 lines; by columns, and by where rows begin.
  constexpr double kTask = 760, kWarp = 4.3, kAcross = 2.1, kChain[] = {13.3, 16.6, 22.2}, kTurn[] = {11, 35, 83};
  constexpr double kAlong[] = {0.085, 0.188, 0.498}, kRow[] = {0, 0.48, 2.08}, kSharedRow = 0.055, kLineOfL2 = 0.352;
  const Boxes &w = of_a ? a : b, &x = of_a ? b : a;
  const int64_t lines = of_a ? p.m : p.n, columns = of_a ? p.n : p.m, groups = long_k::groups_of(p.k, DType::float32);
  const int64_t tiles = ceil_div(lines, int64_t(s.lines)) * ceil_div(columns, int64_t(s.columns));
  const int64_t tasks = tiles * (apart ? groups : 1), places = chip.multiprocessors;
  const double running = static_cast<double>(std::min(tasks, places)) / static_cast<double>(places);
  // Rows of a line of the L2, besides the first.
  const auto sharing = [](const Boxes& boxes) {
    const auto rows = static_cast<double>(kCacheLine) / static_cast<double>(boxes.pitch * boxes.element_bytes);
    return boxes.along_k ? 0 : std::max(rows - 1, 0.0);
  };
  const auto copy = [&](const Boxes& boxes, int count) {
    const auto begin = static_cast<int>(boxes.rows_begin());
    const double shared = sharing(boxes) * sharing(boxes) * kSharedRow * running;
    return boxes.along_k ? count * kAlong[begin] : 8 * ceil_div(count, 32) * (kRow[begin] + shared);
  };
  const int width = s.columns == 8 ? 0 : s.columns == 16 ? 1 : 2;
  const double chain =
      kChain[width] + kWarp * s.lines / 16 + (w.along_k ? 0 : kAcross) + (x.along_k ? 0 : kTurn[width]);
  const double copies = copy(w, s.lines) + copy(x, s.columns) + (s.lines + s.columns) * kLineOfL2 * running;
  const int64_t steps = round_up(apart ? long_k::kGroup : p.k, int64_t(s.depth())) / 8;
  const double task = static_cast<double>(steps) * std::hypot(chain, copies) + kTask;
  const double multiply = static_cast<double>(ceil_div(tasks, places)) * task / kMegahertz;
  const double read = static_cast<double>((p.m + p.n) * p.k * 4) / kBytes;
  const double shared = sharing(w) + sharing(x) > 0 ? kShared * running : 0;
  const double add = apart ? kAdd + static_cast<double>(p.m * p.n * groups * 4) / kAddBytes : 0;
  return kBegin + shared + std::hypot(multiply, read) + add;
}

}  // namespace

std::optional<Choice> choose(const Problem& p, DType dtype, const Operand& a, const Operand& b, const Chip& chip) {
  constexpr int64_t kLeastK = 384, kMostOutputs = 1536;  // of a multiprocessor
  if (dtype != DType::float32 || p.batches > 1 || p.k < kLeastK) return std::nullopt;
  if (p.m * p.n > kMostOutputs * chip.multiprocessors) return std::nullopt;
  // Where it lies, or if the copy engine cannot read it there, from a copy along k.
  const auto view = [](const Operand& o) {
    const View lies = view_of(o, true);
    return lies.is_copied() ? view_of(o, false) : lies;
  };
  Choice best = {0, false, false, std::numeric_limits<double>::infinity(), view(a), view(b)};
  const Boxes &of_a = best.a.boxes, &of_b = best.b.boxes;
  // Both along k, and one group: few_outputs is as fast, of more than some 16,000 outputs faster (1.02 in the mean of 300 products).
  if (of_a.along_k && of_b.along_k && long_k::groups_of(p.k, dtype) == 1) return std::nullopt;
  const bool may_part = long_k::may_part(p, dtype);
  for (int index = 0; index < kShapeCount; ++index) {
    for (const bool a_in_registers : {false, true}) {
      for (const bool apart : {false, true}) {
        if (apart && !may_part) continue;
        const double time = time_of(kShapes[index], a_in_registers, apart, p, of_a, of_b, chip);
        if (time >= best.time) continue;
        best.index = index;
        best.of_a = a_in_registers;
        best.apart = apart;
        best.time = time;
      }
    }
  }
  best.time += persistent::microseconds_to_copy(best.a, best.b);
  return best;
}

}  // namespace narrow

namespace in_place {
namespace {

// In microseconds. Of a shape: a multiprocessor's time for a tile besides its copies and multiplications; and what a tile takes while
// nothing else runs, besides its stages, and a stage besides its copies. Of all: a launch. Fitted to 15,000 times of 3,800 products drawn at
// random, half of them batches of up to 4096 (NVIDIA H200, 2026-11-30): half are met within 7 %, and what is chosen takes 1.016 of the least.
struct Times {
  struct OfShape {
    double tile, alone, stage;
  } of[kShapeCount];
  double launch;
};
constexpr Times kOf16Bits = {{{0.39, 1.02, 0.349}, {0.6, 1.31, 0.497}, {0.76, 1.06, 0.131}, {1.0, 1.32, 0.244}}, 0.63};
constexpr Times kOfFloats = {{{0.32, 0.03, 0.44}, {0.53, 0.36, 0.658}, {0.65, 0, 0.156}, {1.1, 0.29, 0.322}}, 1.3};
constexpr double kMultiply = 0.118;                  // of 64 x 64 outputs, a stage
constexpr double kShift = 0.57, kShiftApart = 0.24;  // of a stage, beside its time
constexpr double kBytes = 3.17e6;                    // a microsecond, of operands and results
constexpr double kAdd = 1.64;                        // of groups of k that are apart

// Of 64 lines of a stage.
struct Copying {
  double busy, waiting;  // of a multiprocessor, and of a block that nothing hides
};
Copying copying(const Access& access, int64_t lines, int bytes) {
  const Copying of = access.width == 16  ? Copying{0.087, 0.035}
                     : access.width == 8 ? Copying{0.124, 0.047}
                     : access.width == 4 ? Copying{0.159, 0.093}
                                         : Copying{0.242, 0};
  const double share = static_cast<double>(access.along_k ? lines : std::max<int64_t>(lines, kRowBytes / bytes)) / 64;
  return {of.busy * share, of.waiting * share};
}

double time_of(int index, const Problem& p, DType dtype, const Access& a, const Access& b, const Chip& chip) {
  const Shape& s = kShapes[index];
  const int bytes = static_cast<int>(size_of(dtype));
  const Times& all = bytes == 2 ? kOf16Bits : kOfFloats;
  const Times::OfShape& of = all.of[index];
  const int64_t down = ceil_div(p.m, int64_t(s.tile_m)), across = ceil_div(p.n, int64_t(s.tile_n));
  const int64_t groups = long_k::groups_of(p.k, dtype);
  const int64_t tiles = down * across * p.batches * groups;
  // That a tile has, in the mean.
  const int64_t rows = ceil_div(p.m, down), columns = ceil_div(p.n, across);
  const auto outputs = static_cast<double>(round_up(rows, s.warp_m) * round_up(columns, s.warp_n));
  const int64_t depth = groups > 1 ? long_k::kGroup : p.k;
  const auto stages = static_cast<double>(ceil_div(depth * bytes, int64_t(kRowBytes)));
  const double multiplied = static_cast<double>(ceil_div(depth * bytes, int64_t(kRowBytes / 2))) / 2;
  const Copying of_a = copying(a, rows, bytes), of_b = copying(b, columns, bytes);
  const double stage = of_a.busy + of_b.busy + kMultiply * outputs / (64 * 64);
  const double busy = static_cast<double>(tiles) / chip.multiprocessors * (of.tile + multiplied * stage);
  const bool apart = s.copy_warps > 0;  // both operands at a time
  const double copies = apart ? std::max(of_a.waiting, of_b.waiting) : of_a.waiting + of_b.waiting;
  const double shift = (apart ? kShiftApart : kShift) * (is_shifted(a.width) + is_shifted(b.width));
  const auto rounds = static_cast<double>(ceil_div(tiles, int64_t(chip.multiprocessors) * s.blocks));
  const double waiting = rounds * (of.alone + stages * (of.stage + copies + shift));
  const double memory = static_cast<double>(elements_of(p) * bytes) / kBytes;
  return all.launch + std::hypot(busy, waiting, memory) + (groups > 1 ? kAdd : 0);
}

}  // namespace

std::optional<Choice> choose(const Problem& p, DType dtype, const Operand& a, const Operand& b,
                             const persistent::Way& other, const Chip& chip) {
  const int bytes = static_cast<int>(size_of(dtype));
  if (dtype == DType::int8) return std::nullopt;
  // Where only the rows of the result begin inside 16 bytes, a block's longer walk along k soon costs more than storing them. Groups of k are as
  // many blocks whatever reads them, and tiles of 32 x 32 are more: where these take what could be read as it lies, 0.83 of the time in 16 bits
  // and 0.86 as tfloat32 (82 products of few outputs, NVIDIA H200, 2026-12-01).
  const bool direct = !other.a.is_copied() && !other.b.is_copied();
  const bool grouped = long_k::groups_of(p.k, dtype) > 1;
  constexpr int64_t kFewStages = 4;
  const bool stored_well = other.tile == nullptr || p.n * bytes % kBoxAlignment == 0;
  if (direct && !grouped && (stored_well || p.k * bytes > kFewStages * kRowBytes)) return std::nullopt;
  // A copy takes memory, too; and of many matrices of 16 bits it takes longer than is known of it.
  constexpr int64_t kMany = 32;
  const double faster = direct ? (grouped ? 1 : 0.9) : bytes == 2 && p.batches >= kMany ? 1.15 : 1.02;
  const Access access_a = access_of(a), access_b = access_of(b);
  if (access_a.width == 0 || access_b.width == 0) return std::nullopt;
  constexpr Index kAll[] = {kSquare32, kSquare64, kApart32, kApart64};
  const auto time = [&](Index index) { return time_of(index, p, dtype, access_a, access_b, chip); };
  const Index best = cheapest(kAll, time);
  const int64_t tiles = tiles_of(p, kShapes[best].tile_m, kShapes[best].tile_n) * long_k::groups_of(p.k, dtype);
  const bool fits = tiles <= INT32_MAX && p.k <= INT32_MAX;  // the kernel counts them so
  const Choice choice = {best, time(best)};
  const bool pays = choice.time < faster * persistent::microseconds(p, dtype, other, chip);
  return fits && pays ? std::optional(choice) : std::nullopt;
}

}  // namespace in_place

namespace {

// What a round of tiles takes: to begin and end, and for a segment of k. In microseconds, or in shares of what a shape takes.
struct Round {
  double tile, segment;
};
template <int kCount>
double rounds_of(const Problem& p, int index, bool apart, const Chip& chip, const TileShape (&shapes)[kCount]) {
  const TileShape& s = shapes[index];
  return static_cast<double>(ceil_div(tiles_of(p, s.cluster_m(), s.cluster_n()) * (apart ? groups_of(p.k) : 1),
                                      int64_t(clusters_of(s.cluster, chip.multiprocessors))));
}
template <int kCount>
double time_of(const Problem& p, int index, bool apart, const Chip& chip, const TileShape (&shapes)[kCount],
               const Round (&round)[kCount]) {
  const int64_t all = ceil_div(p.k, int64_t(kSegment)), segments = apart ? std::min<int64_t>(all, kGroupSegments) : all;
  return rounds_of(p, index, apart, chip, shapes) *
         (round[index].tile + round[index].segment * static_cast<double>(segments));
}

// The shape that takes the least time. From `narrow` on the widths ascend; of equals the last is taken. `large` is two blocks of the
// last that share what they read, which pays from two rounds on.
template <class Index, int kCount>
Index fastest_shape(const Problem& p, bool apart, const Chip& chip, const TileShape (&shapes)[kCount],
                    const Round (&round)[kCount], Index narrow, std::initializer_list<Index> widths,
                    std::optional<Index> large = std::nullopt) {
  const auto time = [&](Index i) { return time_of(p, i, apart, chip, shapes, round); };
  Index best = narrow;
  for (const Index i : widths) {
    if (time(i) <= time(best)) best = i;
  }
  if (large && p.m > 128 && rounds_of(p, widths.end()[-1], apart, chip, shapes) > 1 && time(*large) <= time(best)) {
    best = *large;
  }
  return best;
}

}  // namespace

namespace split_fp16 {
namespace {

constexpr int64_t kFewLines = 128;  // with so few rows or columns of C: a kernel of their own

// Few lines, but more than split_warps takes: of these larger products were measured, with operands in memory.
bool are_some(const Problem& p) {
  const int64_t lines = std::min(p.m, p.n);
  return lines > split_warps::kRows && lines <= kFewLines;
}

// Fitted to 139 products of 130 to 8192 lines, each in all shapes (NVIDIA H200, 2026-11-27), the last two to 540 of up to 3500
// (2026-11-28): what is so chosen takes 1.002 of the fastest shape's time.
constexpr Round kRounds[kShapeCount] = {{4.73, 0.78}, {4.3, 0.81},  {3.79, 0.72}, {3.2, 0.64},
                                        {3.51, 0.52}, {3.13, 0.48}, {2.5, 0.25},  {1.82, 0.185}};

}  // namespace

bool groups_apart(const Problem& p, const Chip& chip) {
  const int64_t groups = groups_of(p.k);
  if (groups == 1) return false;
  if (p.m <= kFewLines || p.n <= kFewLines) return true;
  // Where that leaves the chip idle for less of the time; of many tiles the sums would cost more to add than that.
  const int64_t tiles = tiles_of(p, 128, 128), at_once = chip.multiprocessors, rounds = ceil_div(tiles, at_once);
  return tiles < 4 * at_once && ceil_div(tiles * groups, at_once) < rounds * groups;
}

// Two launches in place of five: of 44 products of 130 to 2200 lines 0.87 of the time with normal numbers, 0.82 where all spread too far for
// pairs, 0.96 where one row does (NVIDIA H200, 2026-11-28). Of larger ones the tiles that have no room for it are as fast.
bool rest_in_one(const Problem& p, const Chip& chip) {
  constexpr int64_t kMost = 100, kBegin = 5;      // segments; and so many a block begins and ends in
  static_assert(kMost / (kBegin + 1) * 2 <= 32);  // tasks of a block, if tiles are half as large: see split_rest::Left
  const int64_t rounds = ceil_div(tiles_of(p, split::kFinishTile, split::kFinishTile), int64_t(chip.multiprocessors));
  return groups_of(p.k) == 1 && rounds * (kBegin + ceil_div(p.k, int64_t(kSegment))) <= kMost;
}

Index choose(const Problem& p, bool apart, const Chip& chip) {
  if (rest_in_one(p, chip)) {
    static_assert(computes_rest(kMedium96) && computes_rest(kNarrow) && computes_rest(kSquare64) &&
                  computes_rest(kNarrow32));
    return fastest_shape(p, apart, chip, kShapes, kRounds, kNarrow32, {kSquare64, kNarrow, kMedium96});
  }
  return fastest_shape(p, apart, chip, kShapes, kRounds, kNarrow32,
                       {kSquare64, kNarrow, kMedium80, kMedium96, kMedium112, kMedium}, {kLarge});
}

bool are_few_and_short(const Problem& p) {
  const int64_t lines = std::min(p.m, p.n);
  return lines <= kFewLines && p.k <= split_held::most_k(lines);
}

namespace {

double numbers(const Problem& p, int64_t lines) { return 1e-6 * static_cast<double>(p.batches * lines * p.k); }

// What products take in microseconds: launches, rounds of blocks, and numbers that are split before. If both operands are: fitted to 240 of
// 130 to 2500 lines, k of 128 to 8192 (NVIDIA H200, 2026-11-27), of which half are met within 3 %; of 200 of 9 to 128 lines, too, within 5 %
// (NVIDIA H100, 2026-11-28).
double time_split_first(const Problem& p, const Chip& chip) {
  const bool apart = groups_apart(p, chip);
  const double outputs = 1e-6 * static_cast<double>(p.batches * p.m * p.n);
  return (rest_in_one(p, chip) ? 5 : 8.9) + 1.07 * time_of(p, choose(p, apart, chip), apart, chip, kShapes, kRounds) +
         3.6 * numbers(p, p.m + p.n) + 0.9 * outputs;
}

// Whether the copy engine reads an operand, if it is aligned.
bool has_boxes(const Problem& p, bool of_a) {
  const int64_t row = of_a ? p.a_row : p.b_row, column = of_a ? p.a_column : p.b_column;
  return row == 1 ? column % 4 == 0 : column == 1 && row % 4 == 0;
}

// If one is split as it is read.
double time_as_read(const Problem& p, const Chip& chip) {
  const int64_t fewer = std::min(p.m, p.n), more = std::max(p.m, p.n), steps = ceil_div(p.k, int64_t(kSegment));
  const auto rounds = [&](int64_t tile_m, int64_t tile_n) {
    return static_cast<double>(ceil_div(tiles_of(p, tile_m, tile_n), int64_t(chip.multiprocessors)));
  };
  if (are_few_and_short(p)) {
    // Whether W is read as boxes decides between two constants. Fitted to 650 products, many of them batches (2026-11-26); of more lines than
    // split_warps takes anew to 88 larger ones, met within 10 % (2026-11-28).
    struct Times {
      double begin, x, tile[2], segment[2], w[2], output[2];
    };
    constexpr Times kOfFew = {6.9, 6, {2.2, 4.5}, {0.75, 0.24}, {2.35, 1.45}, {15, 6.5}},
                    kOfMore = {9.4, 9, {1.9, 3.5}, {0.73, 0.26}, {2.7, 1.4}, {17.5, 15}};
    const Times& t = fewer <= split_warps::kRows ? kOfFew : kOfMore;
    const bool boxes = has_boxes(p, p.m >= p.n);
    const double tiles = rounds(128, 128) * (t.tile[boxes] + t.segment[boxes] * static_cast<double>(steps));
    const double other =
        t.w[boxes] * numbers(p, more) + t.output[boxes] * 1e-6 * static_cast<double>(p.batches * p.m * p.n);
    // Of more lines of X it takes longer than that: factors from 1.1 to 1.5 choose alike (231 products, most of them batches; 2026-11-29).
    constexpr int64_t kMostNarrow = 64;
    const double wide = fewer > kMostNarrow ? 1.3 : 1;
    return wide * (t.begin + t.x * numbers(p, fewer) + std::sqrt(std::hypot(tiles * tiles, other * other)));
  }
  if (fewer > split_warps::kRows) {
    // Fitted to 63 of 9 to 128 lines (NVIDIA H200, 2026-11-29), met within 10 % in the mean; where W is read number by number, to 147 before
    // split_turns.
    const bool of_a = p.m > kFewLines, boxes = has_boxes(p, of_a);
    const split_rows::Choice rows = split_rows::choose(p, of_a ? p.m : p.n, of_a ? p.n : p.m, boxes, chip);
    const bool apart = rows.group_parts > 1;
    if (!boxes) return 6.6 + 0.85 * rows.time + (apart ? 5.6 : 0) + 10.7 * numbers(p, fewer) + 1.1 * numbers(p, more);
    return 9 + 0.75 * rows.time + (apart ? 3 : 0) + 9.7 * numbers(p, fewer) + 0.19 * numbers(p, more);
  }
  // The kernel for so few reads the other operand along k. Of few columns what bounds it is the latency of its steps. One row is fitted to 120
  // products, two to eight to 54 (NVIDIA H200, 2026-11-29); those across k to few.
  const double segments = static_cast<double>(std::min<int64_t>(steps, kGroupSegments)),
               further = static_cast<double>(std::max<int64_t>(p.k - kGroup, 0));
  if (!longer_is_along_k(p)) {
    return 10.2 + segments * (0.27 + 0.34 * rounds(64, 64)) + 10 * numbers(p, fewer) + 0.7 * numbers(p, more);
  }
  if (fewer == 1) {
    // Of more groups a block waits until the launch before says what X is like.
    const double waits = groups_of(p.k) > split_one::kMostWhole ? 5 : 0;
    return std::max(6.1 + 0.19 * segments + 0.0009 * further, 10.6 + waits + 0.97 * numbers(p, more));
  }
  return std::max(10.2 + 0.16 * segments + 0.0006 * further, 12.7 + 60 * numbers(p, fewer) + 1.05 * numbers(p, more));
}

// Which operand may be split as it is read.
AsRead readable(const Problem& p) {
  if (std::min(p.m, p.n) > kFewLines) return AsRead::neither;
  const bool of_a = p.m > kFewLines;
  const int64_t blocks = ceil_div(of_a ? p.m : p.n, 64) * p.batches * groups_of(p.k);
  constexpr int64_t kMostXTiles = kFewLines / split_rows::kShapes[0].rows;
  if (blocks > INT32_MAX / kMostXTiles) return AsRead::neither;
  return of_a ? AsRead::a : AsRead::b;
}

// The longest k that splitting before, or as it is read, was measured for.
constexpr int64_t kLongestFitted = 8192;

// Whether splitting both first was measured beside that.
bool may_be_first(const Problem& p) {
  return are_some(p) && p.k <= kLongestFitted && (p.batches == 1 || are_few_and_short(p));
}

Way first_or_as_read(const Problem& p, AsRead one, const Chip& chip) {
  // Of 200 products of 9 to 128 lines, k of 128 to 8192 (NVIDIA H100, 2026-11-28), what is so chosen takes 1.01 of the faster one's time with
  // normal numbers, and splitting first 0.69 of the other's time in the mean; with spread ones 1.0, with one line that spreads 1.06. Lines
  // that select cost it up to twice as much, so it has to be faster by some (NVIDIA H200, 108 products). Of batches short ones were
  // measured (88).
  constexpr double kFaster = 0.9;
  const double first = time_split_first(p, chip), as_read = time_as_read(p, chip);
  return first < kFaster * as_read ? Way{AsRead::neither, first, {}} : Way{one, as_read, {}};
}

}  // namespace

Way fastest(const Problem& p, const Chip& chip) {
  const AsRead one = readable(p);
  const Way best = one == AsRead::neither ? Way{one, time_split_first(p, chip), {}}
                   : may_be_first(p)      ? first_or_as_read(p, one, chip)
                                          : Way{one, time_as_read(p, chip), {}};
  const auto both = split_both::choose(p, chip);
  // Of longer k the times of lines that are split as they are read were fitted to wide operands; by few lines they take up to twice as long.
  constexpr double kLonger = 1.35;
  // Where pairs do not suit the lines, splitting both takes up to twice as long as if the fewer lines have been split before.
  constexpr double kFasterOfWide = 0.74;
  const double other = best.as_read == AsRead::neither ? best.time
                       : p.k > kLongestFitted          ? kLonger * best.time
                       : split_both::are_wide(p)       ? kFasterOfWide * best.time
                                                       : best.time;
  return both && both->time < other ? Way{AsRead::both, both->time, both} : best;
}

}  // namespace split_fp16

namespace split_bf16 {

Index choose(const Problem& p, bool apart, const Chip& chip) {
  // Fitted to 20 products of 100 to 2500 lines, k of 900 to 9000, each in all shapes (NVIDIA H200, 2026-11-30): what is so chosen takes 1.001
  // of the fastest shape's time.
  constexpr Round kRounds[kShapeCount] = {{8.1, 1.6},  {6.7, 1.63}, {4.6, 1.48}, {4.1, 1.22},
                                          {4.2, 1.03}, {3, 0.88},   {2.3, 0.5},  {1.4, 0.36}};
  return fastest_shape(p, apart, chip, kShapes, kRounds, kNarrow32,
                       {kSquare64, kNarrow, kMedium80, kMedium96, kMedium112, kMedium}, {kLarge});
}

}  // namespace split_bf16

namespace split_few {

// As many as there is memory for: they then take less time than tiles, which have to be split into parts in memory (NVIDIA H100,
// 2026-11-25: 1 to 256 columns that no pairs suit, at 512^3 to 4096^3, 300 x 3000 x 8192 and 256 x 8192 x 1024, take 0.63 to 1.1 of the
// time). Of batches nothing was measured.
int most_units_of(const Problem& p) {
  constexpr int64_t kMostLines = 32768;  // one block looks at all of them
  return p.batches == 1 && p.m + p.n <= kMostLines ? static_cast<int>(most_units(p.m, p.n)) : 0;
}

}  // namespace split_few

namespace split_rows {

Choice choose(const Problem& p, int64_t w_lines, int64_t x_lines, bool boxes, const Chip& chip) {
  // What a segment of a round of blocks takes, and how many a block's start and end take, which two blocks on a multiprocessor hide; and
  // of wide tiles, whose blocks stay, how many a tile's and how many a block's (NVIDIA H200, 2026-11-22; wide tiles of 128 lines of X
  // H100, 2026-11-25; k16 and k32 H200, 2026-11-29; wide tiles of 64 H200, 2026-11-30).
  // Blocks of few lines of X split W again, but fill the chip.
  constexpr double kSegmentTime[kShapeCount] = {1.55, 1.6, 0.66, 0.74, 1, 1.5, 1.75, 2.8}, kStart[3] = {0, 4, 1.5},
                   kWideTile = 1.5, kWideBlock = 2.5, kNotInTurns = 1.3;
  const int64_t segments = ceil_div(p.k, int64_t(kSegment));
  const auto w_tiles = [&](int index) { return ceil_div(w_lines, int64_t(kShapes[index].lines())) * p.batches; };
  const int64_t longest = std::min(segments, int64_t(kGroupSegments));
  const auto time = [&](int index, int parts) {
    const Shape& s = kShapes[index];
    // As if all groups of k were as long: short ones fill the gaps.
    const int64_t blocks = ceil_div(w_tiles(index) * segments * ceil_div(x_lines, int64_t(s.rows)) * parts, longest);
    const int64_t rounds = ceil_div(blocks, int64_t(chip.multiprocessors) * s.blocks());
    const double length = static_cast<double>(longest) / parts, start = is_wide(index) ? kWideTile : kStart[s.blocks()];
    const double segment = kSegmentTime[index] * (s.in_turns && !boxes ? kNotInTurns : 1);
    return segment * (static_cast<double>(rounds) * (length + start) + (is_wide(index) ? kWideBlock : 0));
  };
  // Whether groups may have several blocks: the sums of all segments are written and read.
  const auto may_part = [&](int index) {
    constexpr int64_t kMostBytes = 8 << 20;
    static_assert(kShapes[k64].rows == kMostPartRows && kMostByNumbers == k64);
    const int64_t outputs = w_tiles(index) * kLines * round_up(x_lines, int64_t(kShapes[index].rows));
    return segments > kGroupSegments && segments * outputs * 4 <= kMostBytes;
  };
  int best = boxes ? kWide128 : kMostByNumbers;
  for (int index = best - 1; index >= 0; --index) {
    const int rows = kShapes[index].rows;
    // A block of wide tiles has one tile of X.
    if (is_wide(index) && x_lines > rows) continue;
    const bool as_good = rows < kShapes[best].rows && x_lines <= rows;  // with less of X
    if (as_good || time(index, 1) < time(best, 1)) best = index;
  }
  Choice choice = {static_cast<Index>(best), 1, time(best, 1)};
  // What the launch that adds segments takes, in segments; and how much faster that has to be, for it was measured little.
  constexpr double kAdding = 4, kFaster = 1.5;
  constexpr int kMostParts = 4;
  double least = time(best, 1) / kFaster;
  for (int index = k64; index >= 0; --index) {
    if (!may_part(index)) continue;
    for (int parts = 2; parts <= kMostParts; parts *= 2) {
      const double other = time(index, parts) + kAdding;
      if (other < least) {
        least = other;
        choice = {static_cast<Index>(index), parts, other};
      }
    }
  }
  return choice;
}

}  // namespace split_rows

namespace split_both {
namespace {

constexpr int64_t kMost = 4 * kTile;

}  // namespace

// Up to 128 lines by more than it was made for: of 29 products of up to 1024, k to 8192, the times below are met within 4 % in the mean (NVIDIA
// H200, 2026-11-30).
bool are_wide(const Problem& p) {
  const int64_t more = std::max(p.m, p.n);
  return more > kMost && more <= 1024 && split_fp16::are_some(p) && p.batches == 1 && p.k <= split_fp16::kLongestFitted;
}

std::optional<Choice> choose(const Problem& p, const Chip& chip) {
  constexpr int64_t kFewest = split_warps::kRows + 1, kMostBytes = 64 << 20;
  const int64_t fewer = std::min(p.m, p.n), groups = groups_of(p.k);
  if (groups == 1 || fewer < kFewest) return std::nullopt;
  if (std::max(p.m, p.n) > kMost && !are_wide(p)) return std::nullopt;
  const int64_t tiles = tiles_of(p, kTile, kTile), segments = ceil_div(p.k, int64_t(kSegment));
  // Microseconds: to begin, end and launch; of a block's segment, and more by the share of a tile's lines that it splits; of a MB of sums.
  // Fitted to 150 times of 91 products (NVIDIA H200, 2026-11-29), of which half are met within 4 %.
  struct Times {
    double begin, segment, split;
  };
  constexpr Times kGroups = {7.2, 0.8, 0.7}, kRuns = {9.7, 1, 0.45};
  constexpr double kSums = 0.3;
  const double share = static_cast<double>(step_of(p.m) + step_of(p.n)) / (2 * kTile);
  const auto time = [&](const Times& t, int64_t steps) {
    return t.begin + static_cast<double>(steps) * (t.segment + t.split * share);
  };
  const int64_t rounds = ceil_div(tiles * groups, int64_t(chip.multiprocessors));
  const Choice whole = {kGroupSegments, false, time(kGroups, rounds * kGroupSegments)};
  const int64_t runs = chip.multiprocessors / tiles;
  const int64_t bytes = segments * tiles * sum_bytes_of(step_of(p.m), step_of(p.n));
  if (runs == 0 || bytes > kMostBytes) return whole;
  const int64_t length = ceil_div(segments, runs);
  const Choice parts = {static_cast<int>(length), true,
                        time(kRuns, length) + kSums * 1e-6 * static_cast<double>(bytes)};
  return parts.time < whole.time ? parts : whole;
}

}  // namespace split_both

namespace split_held {
namespace {

int64_t tiles_of_w(const Problem& p) { return ceil_div(std::max(p.m, p.n), int64_t(kTile)); }

// Blocks for which a multiprocessor has shared memory.
int64_t blocks_at_once(const Problem& p, const Chip& chip) {
  return chip.blocks_with(shared_bytes(ceil_div(p.k, int64_t(kSegment)), std::min(p.m, p.n)));
}

// Microseconds of a number of blocks a tile of X, comparable to those of split_direct. Blocks that share a multiprocessor take as long as one
// alone, or as all their instructions. For a block, a warp's octet of X, a segment of a tile of W, a tile; the last two and for eight octets
// of X. Fitted to 400 products of 1 to 128 lines by up to 8,000, k of 128 to 640, batches (NVIDIA H200, 2026-11-26): the number of blocks so
// chosen takes 1.003 of the fastest's time in the mean; up to 8 lines and k of 2048 as well (150 products). Of some lines to 120 larger
// products, many of them batches as attention has them, of which half are met within 6 % (2026-11-28).
double time_of(const Problem& p, int64_t shares, const Chip& chip) {
  struct Times {
    double block, octet, segment, segment_octets, tile, tile_octets;
    double of(double octets, double tiles, double segments, double share) const {
      return block + octets * octet +
             tiles * (segments * (segment + segment_octets * share) + tile + tile_octets * share);
    }
  };
  constexpr Times kAlone = {1.17, 0.57, 0.84, 0.12, 0.33, 1.9}, kAloneOfSome = {1.2, 0.93, 1, 0.13, 0.33, 2.6},
                  kBusy = {0.33, 0.11, 0.116, 0.111, 0.054, 0.054};
  const int64_t lines = std::min(p.m, p.n), segments = ceil_div(p.k, int64_t(kSegment));
  const bool some = split_fp16::are_some(p);
  const double launch = some ? 1.6 : 1.3, floats = some ? 0.355e6 : 0.55e6;  // of memory, a microsecond
  const int64_t octets = std::min(ceil_div(lines, int64_t(kOctet)), int64_t(kRows / kOctet)),
                tiles = ceil_div(tiles_of_w(p), shares);
  const double share = static_cast<double>(octets) * kOctet / kRows;
  const auto time = [&](const Times& t, double rounds) {
    return t.of(static_cast<double>(ceil_div(octets * segments, int64_t(kWarps))), rounds,
                static_cast<double>(segments), share);
  };
  const double alone = time(some ? kAloneOfSome : kAlone, static_cast<double>(ceil_div(tiles, int64_t(kWarps))));
  const double busy = time(kBusy, static_cast<double>(tiles) / kWarps);
  const int64_t at_once = std::clamp<int64_t>(blocks_at_once(p, chip), 1, blocks_of(lines));
  const int64_t blocks = ceil_div(x_tiles_of(p) * shares, int64_t(chip.multiprocessors)), left = blocks % at_once;
  const auto together = [&](int64_t count) { return std::max(alone, static_cast<double>(count) * busy); };
  const double all = static_cast<double>(blocks / at_once) * together(at_once) + (left > 0 ? together(left) : 0);
  // Tiles of X read W again, from the L2, and split it again.
  const double of_w = static_cast<double>(std::max(p.m, p.n) * p.k) *
                      (some ? std::sqrt(static_cast<double>(ceil_div(lines, int64_t(kRows)))) : 1);
  const double memory = (of_w + static_cast<double>(lines * p.k + p.m * p.n)) * static_cast<double>(p.batches) / floats;
  const double again = lines > 2 * kRows ? 1.2 : 1;
  return again * (launch + std::sqrt(std::hypot(all * all, memory * memory)));
}

}  // namespace

bool takes(const Problem& p, const Chip& chip) {
  constexpr int64_t kMostLines = 8 * kRows;
  const int64_t lines = std::min(p.m, p.n);
  return lines <= kMostLines && p.k <= most_k(lines) && blocks_at_once(p, chip) >= 1;
}

std::optional<Choice> choose(const Problem& p, const Chip& chip) {
  if (!takes(p, chip)) return std::nullopt;
  const int64_t tiles = tiles_of_w(p), most = ceil_div(tiles, int64_t(kWarps)),
                least = ceil_div(tiles, int64_t(kMostTiles));
  Choice best = {most, time_of(p, most, chip)};
  for (int64_t rounds = 2, shares = most; shares > least; ++rounds) {
    shares = std::max(ceil_div(most, rounds), least);
    const double time = time_of(p, shares, chip);
    if (time < best.time) best = {shares, time};
  }
  return best;
}

}  // namespace split_held

namespace split_single {
namespace {

// Microseconds, fitted to 310 products of 100 to 20,000 lines, k of 200 to 30,000, of which half are met within 5 % (NVIDIA H200,
// 2026-11-29); of these what is so chosen takes 1.005 of the fastest cluster's time. A warp has so many segments, one after another, of
// which two blocks that share a multiprocessor take longer.
double time_of(const Problem& p, int cluster, int64_t shared) {
  constexpr double kBegin = 2.44, kSegmentTime[] = {1.51, 2.15}, kOther = 1.36, kMeet = 0.12, kAdd = 0.015,
                   kNumbers = 0.84e6;
  const int64_t segments = ceil_div(p.k, int64_t(kSegment));
  const auto turns = static_cast<double>(ceil_div(ceil_div(segments, int64_t(cluster)), int64_t(kWarps)));
  const double blocks = kBegin + turns * kSegmentTime[shared - 1] + static_cast<double>(shared - 1) * kOther +
                        (cluster > 1 ? kMeet : 0) + kAdd * static_cast<double>(segments);
  const double memory = static_cast<double>(p.m * p.n * p.k) / kNumbers;
  return std::pow(std::pow(blocks, 4) + std::pow(memory, 4), 0.25);
}

}  // namespace

std::optional<Choice> choose(const Problem& p, const Chip& chip) {
  const int64_t segments = ceil_div(p.k, int64_t(kSegment)), tiles = ceil_div(std::max(p.m, p.n), int64_t(kLines));
  if (std::min(p.m, p.n) > 1 || p.batches > 1 || !longer_is_along_k(p) || segments > kMostSegments) return std::nullopt;
  std::optional<Choice> best;
  for (int cluster = 1; cluster <= kMostCluster && cluster <= segments; cluster *= 2) {
    // In more rounds of blocks split_one is faster.
    const int64_t shared = ceil_div(tiles * cluster, places_of(cluster, chip.multiprocessors));
    if (shared > kBlocks || shared * shared_bytes(segments, cluster) > chip.shared_bytes()) continue;
    const double time = time_of(p, cluster, shared);
    if (!best || time < best->time) best = {cluster, time};
  }
  return best;
}

}  // namespace split_single

namespace split_some {

// Microseconds, fitted to 4,900 times of 1,000 products of 9 to 128 lines by 200 to 3,500, k of 500 to 8,000, in all layouts (NVIDIA H200,
// 2026-11-30): half of them are met within 4 %. A warp has so many turns of a segment, and takes less of the last where others have none.
std::optional<Choice> choose(const Problem& p, const Chip& chip) {
  constexpr double kLaunch = 1.8, kBegin = 1.85, kFurther = 2.2, kTurn = 1.67, kTurnOctet = 0.4, kTurnX = 0.88,
                   kByPairs = 1.08, kByNumbers = 1.23, kXByNumbers = 1.45, kFull = 0.56, kAdd = 0.012,
                   kNumbers = 1.55e6;
  // Of more octets X is not multiplied by parts at once, which takes up to a quarter off where it has to be. So much slower is what may be
  // chosen for that.
  constexpr double kSlower = 1.06;
  // What was measured. And tiles of X: as few as there can be, and some more.
  constexpr int64_t kLeastSegments = 8, kFewestLines = 192, kMostLines = 4096;
  constexpr int kMoreTiles = 3;
  const int64_t segments = ceil_div(p.k, int64_t(kSegment)), more = std::max(p.m, p.n);
  if (!split_fp16::are_some(p) || p.batches > 1 || more < kFewestLines || more > kMostLines) return std::nullopt;
  if (segments < kLeastSegments || segments > kMostGroups * kGroupSegments) return std::nullopt;
  const int steps = static_cast<int>(segments), w_lines = static_cast<int>(more),
            x_lines = static_cast<int>(std::min(p.m, p.n)), fewest = ceil_div(x_lines, kMostOctets * kOctet);
  const bool of_a = split::longer_is_a(p), pairs = (of_a ? p.a_row : p.b_column) == 1 && more % 2 == 0;
  const bool x_in_vectors = (of_a ? p.b_row : p.a_column) == 1 && p.k % 4 == 0;
  const double of_turn = longer_in_vectors(p) ? 1
                         : pairs              ? kByPairs
                                              : kByNumbers,
               turn_x = kTurnX * (x_in_vectors ? 1 : kXByNumbers);
  const double apart = kLaunch + static_cast<double>(more * p.k) / kNumbers, add = kBegin + kAdd * steps;
  std::optional<Choice> best, best_at_once;
  for (int cluster = 1; cluster <= kMostCluster; cluster *= 2) {
    const int each = ceil_div(steps, cluster), places = static_cast<int>(places_of(cluster, chip.multiprocessors));
    int before = 0;
    for (int x_tiles = fewest; x_tiles <= fewest + kMoreTiles; ++x_tiles) {
      const int octets = ceil_div(ceil_div(x_lines, x_tiles), kOctet);
      if (octets == before) continue;
      before = octets;
      const double of_x = ceil_div(each, kWarps / octets) * turn_x, turn = (kTurn + kTurnOctet * octets) * of_turn;
      std::optional<Choice>& least = octets > kMostPartOctets ? best : best_at_once;
      for (int sets = 1; sets <= kMostSets; ++sets) {
        const int rounds = ceil_div(ceil_div(w_lines, sets * kSet) * x_tiles * cluster, places);
        const double filled = std::max(static_cast<double>(each * sets) / kWarps, 1.0);
        const double turns = kFull * filled + (1 - kFull) * ceil_div(each, kWarps / sets);
        const double time = apart + rounds * (add + turns * turn + of_x) + (rounds > 1 ? kFurther : 0);
        if ((!least || time < least->time) && shared_bytes(segments, sets, octets, cluster) <= chip.shared_bytes()) {
          least = {sets, octets, cluster, time};
        }
        if (rounds == 1) break;  // larger tiles take longer
      }
    }
  }
  return best && (!best_at_once || best_at_once->time > kSlower * best->time) ? best : best_at_once;
}

}  // namespace split_some

namespace split_direct {
namespace {

// Of each shape, what a block takes that has a multiprocessor for itself: to begin, and for as many segments as it splits at once; and
// two blocks that share one. In microseconds, fitted to 60 products on an NVIDIA H200, 2026-11-24: most are met within 5 %.
struct Times {
  double begin, segments, begin_two, segments_two;
};
constexpr double kLaunch = 1.2;
constexpr Times kTimes[kShapeCount] = {
    {3.3, 1.62, 0, 0}, {2.6, 1.12, 0, 0},   {1.5, 0.83, 2.2, 1.34}, {2, 1.34, 0, 0},     {1.6, 0.76, 2.1, 1.08},
    {2, 1.18, 0, 0},   {1.6, 0.6, 2, 0.95}, {1.6, 1.08, 0, 0},      {1.6, 0.6, 2, 0.95}, {1.6, 1.08, 0, 0}};

// What a cluster takes besides, to begin together and to meet, and for each segment of k, whose sums one block adds: fitted to 35 products
// on an NVIDIA H200, 2026-11-25; the shape and cluster so chosen are within 2 % of the fastest of each.
constexpr double kMeet = 1, kAddSegment = 0.03;

double time_of(int index, int cluster, const Problem& p, const Chip& chip) {
  const Shape& s = kShapes[index];
  const Times& t = kTimes[index];
  const int64_t tiles = tiles_of(p, s.tile_m(), s.tile_n()), segments = ceil_div(p.k, int64_t(kSegment));
  const int64_t each = ceil_div(tiles * cluster, places_of(cluster, chip.multiprocessors));
  const auto turns = static_cast<double>(ceil_div(ceil_div(segments, cluster), int64_t(s.segments_at_once())));
  const int64_t twos = each / s.blocks() * (s.blocks() - 1), ones = each - s.blocks() * twos;
  return kLaunch + static_cast<double>(ones) * (t.begin + t.segments * turns) +
         static_cast<double>(twos) * (t.begin_two + t.segments_two * turns) +
         (cluster > 1 ? kMeet + kAddSegment * static_cast<double>(segments) : 0);
}

// What a cluster's shared memory holds, and times were fitted to.
constexpr int64_t kMostDepth = int64_t(kMostCluster) * kMostChunk * kSegment;

struct Fastest {
  Choice choice;
  double time;
};
Fastest fastest_alone(const Problem& p, const Chip& chip) {
  const int64_t segments = ceil_div(p.k, int64_t(kSegment));
  Fastest best = {{k64x64, 1, 0}, time_of(k64x64, 1, p, chip)};
  for (int i = k64x64 + 1; i < kShapeCount; ++i) {
    const Shape& s = kShapes[i];
    // Those for few rows or columns are for these alone.
    if (s.s_lines <= kOctet && (s.of_a ? p.n : p.m) > kOctet) continue;
    for (int cluster = 1; cluster <= s.most_cluster(); cluster *= 2) {
      // As many blocks as fit at once, each with a segment.
      const int64_t blocks = tiles_of(p, s.tile_m(), s.tile_n()) * cluster;
      if (cluster > 1 && (blocks > places_of(cluster, chip.multiprocessors) * s.blocks() || cluster > segments)) break;
      const double time = time_of(i, cluster, p, chip);
      if (time < best.time) best = {{static_cast<Index>(i), cluster, 0}, time};
    }
  }
  const auto single = split_single::choose(p, chip);
  if (single && (single->time < best.time || p.k > kMostDepth)) {
    best = {{k64x64, single->cluster, 0, true}, single->time};
  }
  std::optional<split_held::Choice> held = split_held::choose(p, chip);
  if (!held) return best;
  // What is read from memory, which the times of tiles, fitted with more lines, have in them. That of split_held has it for some lines, but for
  // so much at most (231 products; 2026-11-29).
  constexpr double kMostOfHeld = 2.4;
  const double memory = static_cast<double>(elements_of(p)) * 1.2e-6;
  if (split_fp16::are_some(p)) {
    best.time += memory;
    held->time += std::min(memory, kMostOfHeld);
  } else if (std::min(p.m, p.n) > split_fp16::kFewLines) {
    held->time += memory;
  }
  if (held->time < best.time) best = {{k64x64, 1, held->shares}, held->time};
  return best;
}

// Few long lines by many, which have to be read, and not always along k: 147 products are met within 8 % in the mean (NVIDIA H200, 2026-11-28).
double time_of_long(const Problem& p, double time) {
  return (longer_in_vectors(p) ? 1.22 : 1.39) * time + 0.29 * split_fp16::numbers(p, std::max(p.m, p.n)) - 3.6;
}

// Of up to 256 lines by as many, no batch, k to 8192: of 50 products what is so chosen of this and split_both takes 1.01 of the faster
// one's time (NVIDIA H200, 2026-11-29).
double time_of_few_outputs(double time) { return 0.9 * time + 1.5 * std::max(time - 13, 0.0); }

bool are_long(const Problem& p, const Chip& chip) { return split_fp16::are_some(p) && !split_held::takes(p, chip); }

Fastest fastest(const Problem& p, const Chip& chip) {
  const Fastest alone = fastest_alone(p, chip);
  const auto some = split_some::choose(p, chip);
  if (!some) return alone;
  const double other = are_long(p, chip) ? time_of_long(p, alone.time) : alone.time;
  if (some->time > other && p.k <= kMostDepth) return alone;
  return {{k64x64, 1, 0, false, some}, some->time};
}

}  // namespace

Choice choose(const Problem& p, const Chip& chip) { return fastest(p, chip).choice; }

bool pays(const Problem& p, const Chip& chip) {
  // So much faster that it pays for lines that pairs do not suit as well: a block then splits and multiplies a second time. Checked on 380
  // products (NVIDIA H200, 2026-11-27): 1.01 of the faster one's time in the mean; few lines on 168 more, 129 to 512 lines of short k on 69,
  // many of them batches (2026-11-28), and 129 to 900 lines on 180 (2026-11-30): 1.005, with rows of softmax 1.009. Heads of attention by
  // split_held, where several of its blocks share a multiprocessor: of 140 with probabilities of four kinds (2026-11-30) 1.015, with normal
  // numbers 1.012, with causal ones 1.034; with the factor of others 1.023, 1.006 and 1.069.
  constexpr double kFaster = 0.95, kFasterOfFew = 0.78, kFasterOfHeads = 1.1;
  const Fastest best = fastest(p, chip);
  const bool few = std::min(p.m, p.n) <= split_fp16::kFewLines;
  const bool short_lines = split_held::takes(p, chip);
  const bool long_lines = are_long(p, chip);
  const bool single = best.choice.single;
  const split_fp16::Way other = split_fp16::fastest(p, chip);
  if (best.choice.some) {
    // X's parts that are multiplied beside halves cost less where X spreads, above all if split_some does not multiply them at once (600
    // products of 9 to 128 lines, k of 500 to 8,000; NVIDIA H200, 2026-11-30).
    constexpr double kFasterOfRows = 0.95, kFasterByHalves = 0.8;
    const bool rows = other.as_read == AsRead::a || other.as_read == AsRead::b;
    const bool at_once = best.choice.some->octets <= split_some::kMostPartOctets;
    return best.time < (!rows ? 1 : at_once ? kFasterOfRows : kFasterByHalves) * other.time;
  }
  if (p.k > kMostDepth) return single && best.time < kFaster * other.time;
  // Where that splits both operands as it reads them, it multiplies a second time, too.
  const bool as_both = other.as_read == AsRead::both;
  if (as_both && p.batches == 1) {
    return (split_both::are_wide(p) ? time_of_long(p, best.time) : time_of_few_outputs(best.time)) < other.time;
  }
  const bool measured = short_lines || long_lines || single || as_both;
  const bool heads = best.choice.shares > 0 && p.batches > 1 && split_held::blocks_at_once(p, chip) > 1;
  const double faster = heads ? kFasterOfHeads : few && !measured ? kFasterOfFew : kFaster;
  return (long_lines ? time_of_long(p, best.time) : best.time) < faster * other.time;
}

}  // namespace split_direct

}  // namespace treduce::matmul
