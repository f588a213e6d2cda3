// Idea: few queries and many keys, one query with a cache for instance: a block takes one piece of the keys, and a second kernel lets the
// pieces of a query meet, from the first to the last.
//
// Order:   that of forward.cu, whose steps of a piece follow each other. Here their maxima are known before any exponential is taken, so
//          warps take different steps, and later different columns of the values, and add what one warp would have added.
// Mapping: a block 16 queries and a piece. A warp copies what it reads itself, all of it at once: two steps of keys, then a quarter of
//          the columns of all values.
// Bound:   memory.
// Source:  T. Dao et al., Flash-Decoding for long-context inference (2023).
#include "../primitives/ptx/launch.cuh"
#include "line_values.cuh"

namespace treduce::attention::pieces {
namespace {

constexpr int kSteps = kPiece / kStep, kOwn = kSteps / kWarps;  // steps; of a warp
static_assert(kOwn == 2, "a warp has memory for two steps of keys");

// What a piece gives: sums of a line's values, and the maximum and the sum of its scores' exponentials.
struct Partial {
  float *sums, *most, *sum;
};

// Where the parts of a query lie: pieces follow each other.
TREDUCE_DEVICE int64_t place_of(const Problem& p, int64_t batch, int64_t head, int64_t query, int64_t piece) {
  return ((batch * p.heads + head) * p.length + query) * pieces_of(p.keys) + piece;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out, Partial partial) {
  constexpr int kColumns = kWidth / kWarps;  // of the values, that a warp adds
  using Queries = Tile<kWidth, kLines>;
  using Keys = Tile<kWidth, kStep>;
  using Values = Tile<kColumns, kStep>;
  using Probabilities = Tile<kPiece, kLines>;
  static_assert(Keys::kBytes == kWarps * Values::kBytes && kSteps == 2 * kWarps);
  const int warp = threadIdx.x / warp::kLanes, lane = threadIdx.x % warp::kLanes;
  float* const most = dynamic_shared<float>();  // of the lines of a step
  float* const added = most + kSteps * kLines;  // by the lanes of a step, to either line
  const Queries queries{ptx::shared_address(added + kSteps * 2 * warp::kLanes)};
  const Probabilities probabilities{queries.begin + Queries::kBytes};
  const ptx::SharedAddress own = probabilities.begin + Probabilities::kBytes + warp * 3 * Keys::kBytes;
  const auto keys = [&](int i) { return Keys{own + i * Keys::kBytes}; };
  // The second half of the values lies where the first keys lay.
  const auto values = [&](int step) {
    return Values{own + (step < kWarps ? 2 * Keys::kBytes : 0) + step % kWarps * Values::kBytes};
  };

  const int64_t tiles = (p.length + kLines - 1) / kLines, all_pieces = pieces_of(p.keys);
  const int64_t piece = blockIdx.x % all_pieces, tile = blockIdx.x / all_pieces % tiles;
  const int64_t head = blockIdx.x / all_pieces / tiles % p.heads, batch = blockIdx.x / all_pieces / tiles / p.heads;
  const int64_t query = tile * kLines, begin = piece * kPiece;
  const int64_t end = min(min(begin + kPiece, p.keys), p.causal ? query + kLines : p.keys);
  const int steps = begin < end ? static_cast<int>((end - begin + kStep - 1) / kStep) : 0;
  const uint16_t* const key = matrix_of(p.key, batch, head / p.group);
  const uint16_t* const value = matrix_of(p.value, batch, head / p.group) + warp * kColumns;
  const int value_width = p.value_width - warp * kColumns;
  const auto copy_values = [&](int first) {
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      if (first + i < steps) {
        values(first + i).template copy<warp::kLanes>(value, p.value.row, begin + (first + i) * kStep, p.keys,
                                                      value_width);
      }
    }
    ptx::commit_copies();
  };

  queries.copy(matrix_of(p.query, batch, head), p.query.row, query, p.length, p.width);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int step = warp + i * kWarps;
    if (step < steps) keys(i).template copy<warp::kLanes>(key, p.key.row, begin + step * kStep, p.keys, p.width);
    ptx::commit_copies();
  }
  copy_values(0);

  // ---- scores, and the maxima of steps ----
  const Scores<> scores(p, batch, head);
  float s[kOwn][kStep / 8][4] = {};
  ptx::wait_copies<kOwn>();
  __syncthreads();  // queries are there
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int step = warp + i * kWarps;
    if (i > 0) ptx::wait_copies<kOwn>();  // the values behind these keys, first and second half, may be under way
    __syncwarp();
    float tallest[2] = {kNever, kNever};
    if (step < steps) {
      multiply_lines<T>(s[i], queries, 0, keys(i), 0);
      const int64_t first = begin + step * kStep;
      score<false>(s[i], scores, query, first, scores.is_whole(query, first, kStep));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < kStep / 8; ++j) {
          tallest[half] = fmaxf(tallest[half], fmaxf(s[i][j][half * 2], s[i][j][half * 2 + 1]));
        }
        tallest[half] = most_of_line(tallest[half]);
      }
    }
    if (lane % 4 == 0) {
      most[step * kLines + lane / 4] = tallest[0];
      most[step * kLines + lane / 4 + 8] = tallest[1];
    }
    __syncwarp();
    if (i == 0) copy_values(kWarps);
  }
  __syncthreads();

  // ---- probabilities ----
  const auto most_until = [&](int step, float (&result)[2]) {  // of both lines, of the steps before and this one
    result[0] = result[1] = kNever;
    for (int i = 0; i <= step; ++i) {
      result[0] = fmaxf(result[0], most[i * kLines + lane / 4]);
      result[1] = fmaxf(result[1], most[i * kLines + lane / 4 + 8]);
    }
  };
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int step = warp + i * kWarps;
    if (step >= steps) continue;
    float tallest[2];
    most_until(step, tallest);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      added[(step * 2 + half) * warp::kLanes + lane] = exponentiate(s[i], half, offset_of(tallest[half]));
    }
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t place = Probabilities::place_of(lane / 4 + half * 8, step * (kStep / 8) + j) + lane % 4 * 4;
        ptx::store_shared(probabilities.begin + place, word_of<T>(s[i][j][half * 2], s[i][j][half * 2 + 1]));
      }
    }
  }
  ptx::wait_copies<0>();
  __syncthreads();

  // ---- values ----
  float result[kColumns / 8][4] = {};
  Lines line;
  for (int step = 0; step < steps; ++step) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float tallest = fmaxf(line.most[half], most[step * kLines + lane / 4 + half * 8]);
      factor[half] = ptx::exp2(line.most[half] - offset_of(tallest));
      line.most[half] = tallest;
      line.sum[half] =
          elementary::multiply_add(line.sum[half], factor[half], added[(step * 2 + half) * warp::kLanes + lane]);
    }
    correct(result, factor);
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
      uint32_t of_p[4];
      probabilities.template load<false>(of_p, 0, step * (kStep / 16) + k);
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        uint32_t words[4];
        values(step).template load<true>(words, k, j);
        ptx::multiply(T{}, result[2 * j], of_p, words[0], words[1]);
        ptx::multiply(T{}, result[2 * j + 1], of_p, words[2], words[3]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) line.sum[half] = sum_of_line(line.sum[half]);
  if (all_pieces == 1) {
    Matrices columns = out;
    columns.data = static_cast<T*>(out.data) + warp * kColumns;
    const float inverse[2] = {inverse_of(line.sum[0]), inverse_of(line.sum[1])};
    store_lines<T, kColumns>(result, inverse, columns, batch, head, query, p.length, value_width);
    return;
  }
  ptx::allow_launch_after();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t l = query + lane / 4 + half * 8;
    if (l >= p.length) continue;
    const int64_t at = place_of(p, batch, head, l, piece);
    if (warp == 0 && lane % 4 == 0) {
      partial.most[at] = line.most[half];
      partial.sum[at] = line.sum[half];
    }
    float* const row = partial.sums + at * kWidth + warp * kColumns + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      *reinterpret_cast<float2*>(row + j * 8) = make_float2(result[j][half * 2], result[j][half * 2 + 1]);
    }
  }
}

// A block a query, a thread a column.
template <class T, int kWidth>
__global__ void __launch_bounds__(kWidth, 8)
    meet(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out, Partial partial) {
  const int64_t query = blockIdx.x % p.length, head = blockIdx.x / p.length % p.heads,
                batch = blockIdx.x / p.length / p.heads, begin = place_of(p, batch, head, query, 0);
  const int column = threadIdx.x;
  ptx::wait_for_launch_before();
  float most = partial.most[begin], sum = partial.sum[begin], result = partial.sums[begin * kWidth + column];
#pragma unroll 8
  for (int64_t piece = 1; piece < pieces_of(p.keys); ++piece) {
    const int64_t at = begin + piece;
    const Meeting meeting(most, partial.most[at]);
    most = meeting.most;
    sum = meeting.join(sum, partial.sum[at]);
    result = meeting.join(result, partial.sums[at * kWidth + column]);
  }
  if (column < p.value_width) {
    T* const row = static_cast<T*>(out.data) + batch * out.batch + head * out.head + query * out.row;
    row[column] = round_to<T>(elementary::multiply_add(result, inverse_of(sum), 0.0f));
  }
}

}  // namespace

int launch_both(const Problem& p, const Prepared& prepared, const Matrices& out, void* workspace, void* stream) {
  const Partial partial{prepared.workspace.find<float>(kSums, workspace),
                        prepared.workspace.find<float>(kMost, workspace),
                        prepared.workspace.find<float>(kSum, workspace)};
  const auto shape = [&](int i) { return Launch{prepared.launches[i], static_cast<cudaStream_t>(stream)}; };
  return dispatch_kernel(p, [&](auto type, auto width) {
    using T = decltype(type);
    constexpr int kWidth = decltype(width)::value;
    const cudaError_t error = launch(&kernel<T, kWidth>, shape(0), p, out, partial);
    if (error != cudaSuccess || prepared.launches.size() == 1) return error;
    return launch(&meet<T, kWidth>, shape(1), p, out, partial);
  });
}

}  // namespace treduce::attention::pieces
