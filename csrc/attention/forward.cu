// Idea: scores never leave registers. A block keeps 64 queries and walks the keys, 64 at a time, from the first on: it multiplies, takes
// the running maximum, corrects what it has added so far by it, and adds exp(scores) times values. After 512 keys it begins anew, and
// the sums of such pieces meet, so with few queries, blocks compute the pieces in parallel (pieces.cu).
//
// Order:   a query's result is a function of itself and of the keys that it attends. Keys that are masked behind those change neither
//          maximum nor sums: their exp is zero and the correction one.
// Mapping: a warp a fragment of 16 queries. The probabilities of a lane are the operand of its next product: no exchange. Values are
//          copied while keys are multiplied, and the next keys while values are.
// Bound:   the matrix instruction, and stalls on its results.
// Source:  T. Dao et al., FlashAttention (2022); M. Milakov and N. Gimelshein, Online normalizer calculation for softmax (2018).
#include "line_values.cuh"

namespace treduce::attention {
namespace forward {
namespace {

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    kernel(TREDUCE_GRID_CONSTANT Problem p, TREDUCE_GRID_CONSTANT Matrices out,
           TREDUCE_GRID_CONSTANT LineValues lines) {
  using Rows = Tile<kWidth, kTile>;
  static_assert(kStep == kTile);
  unsigned char* const shared = dynamic_shared<unsigned char>();
  const Rows queries{ptx::shared_address(shared)};
  const Rows keys{queries.begin + Rows::kBytes}, values{keys.begin + Rows::kBytes};
  float4* const totals = reinterpret_cast<float4*>(shared + 3 * Rows::kBytes) + threadIdx.x;
  const int64_t tiles = (p.length + kTile - 1) / kTile;
  const Place place(tiles, p.heads);
  const int64_t first = (tiles - 1 - place.tile) * kTile;  // what takes longest begins first
  const int64_t end = p.causal ? min(p.keys, first + kTile) : p.keys;
  const uint16_t* const key = matrix_of(p.key, place.batch, place.head / p.group);
  const uint16_t* const value = matrix_of(p.value, place.batch, place.head / p.group);
  const int warp = threadIdx.x / warp::kLanes;
  const int64_t query = first + warp * kLines;  // this warp's first
  const bool has_queries = query < p.length;
  const Scores<> scores(p, place.batch, place.head);

  float result[kWidth / 8][4] = {};
  Lines line, total;
  queries.copy(matrix_of(p.query, place.batch, place.head), p.query.row, first, p.length, p.width);
  keys.copy(key, p.key.row, 0, p.keys, p.width);
  ptx::commit_copies();
  for (int64_t k = 0; k < end; k += kStep) {
    ptx::wait_copies<0>();
    __syncthreads();  // keys are there, and nobody reads the values before any more
    values.copy(value, p.value.row, k, p.keys, p.value_width);
    ptx::commit_copies();
    float s[kStep / 8][4] = {};
    if (has_queries) multiply_lines<T>(s, queries, warp, keys, 0);
    ptx::wait_copies<0>();
    __syncthreads();  // values are there, and nobody reads the keys any more
    if (k + kStep < end) keys.copy(key, p.key.row, k + kStep, p.keys, p.width);
    ptx::commit_copies();
    if (!has_queries) continue;
    if (k > 0 && k % kPiece == 0) {
      end_piece<kThreads>(result, line, totals, k == kPiece, /*keep=*/true);
      line = Lines();
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) result[j][i] = 0;
      }
    }
    score<false>(s, scores, query, k, scores.is_whole(query, k, kStep));
    float correction[2];
    if (line.step(s, correction)) correct(result, correction);
    multiply_held<T, 2>(result, s, values, 0);
  }
  if (has_queries) total = end_piece<kThreads>(result, line, totals, end <= kPiece, /*keep=*/false);
  finish<T, kWidth>(result, total, p, out, lines, place.batch, place.head, query);
}

}  // namespace

int launch_one(const Problem& p, const LaunchShape& shape, const Matrices& out, const LineValues& lines, void* stream) {
  return dispatch_kernel(p, [&](auto type, auto width) {
    return launch(&kernel<decltype(type), decltype(width)::value>, Launch{shape, static_cast<cudaStream_t>(stream)}, p,
                  out, lines);
  });
}

}  // namespace forward

int launch_forward(const Problem& problem, const Prepared& prepared, const Matrices& to, void* workspace,
                   void* stream) {
  const Problem p = with_heads_as_lines(problem);
  const Matrices out = problem.length == 1 ? heads_as_lines(to, problem.group) : to;
  if (prepared.way == Way::pieces) return pieces::launch_both(p, prepared, out, workspace, stream);
  return launch_whole(p, prepared, out, LineValues{}, stream);
}

}  // namespace treduce::attention
