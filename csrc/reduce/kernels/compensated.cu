// Idea: every addition is followed by the few that find out what it lost (two-sum), and the losses are summed beside the sum. The
// tree is the one of row_block and column_block with pairs for values; seven additions in place of one, which memory hides.
//
// After:   row_block and column_block, whose error grows with the logarithm of the length.
// Mapping: theirs.
// Bound:   memory bandwidth for large inputs: 7 float additions for 4 bytes, a third of what the chip can add meanwhile.
// Next:    exact has no rounding error but the last.
// Source:  Takeshi Ogita, Siegfried Rump and Shin'ichi Oishi, Accurate sum and dot product (2005).
#include "../columns.cuh"

namespace treduce::reduce::compensated {

template <class Team, class O, class Source, class Layout>
__global__ void __launch_bounds__(256)
    rows_kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT rows::Shares shares, typename O::Acc* partials,
                unsigned* counters, TREDUCE_GRID_CONSTANT Result result, TREDUCE_GRID_CONSTANT Layout layout) {
  rows::grid<Team, O>(x, shares, partials, counters, result, layout);
}

template <class O, class Held, class Source, class Placement>
__global__ void __launch_bounds__(256)
    columns_kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT columns::Tiling<O> tiling,
                   TREDUCE_GRID_CONSTANT Placement placement) {
  columns::grid<O, Held>(x, tiling, placement);
}

// The binding sends only sums of floats here.
template <class O>
constexpr bool is_wanted = carries_error<typename O::Acc>;

cudaError_t launch_one(const Call& call) {
  const Schedule& s = call.prepared.schedule;
  if (s.columns) {
    return columns::dispatch<Compensated>(call, [&](auto op, auto source, auto held, auto placement) -> cudaError_t {
      using O = decltype(op);
      if constexpr (!is_wanted<O>) {
        return cudaErrorInvalidValue;
      } else {
        return launch(&columns_kernel<O, decltype(held), decltype(source), decltype(placement)>, call.shape(), source,
                      columns::Tiling<O>(call), placement);
      }
    });
  }
  return rows::dispatch<Compensated>(
      call, [&](auto op, auto source, auto size, auto shifted, auto layout) -> cudaError_t {
        using O = decltype(op);
        using Source = decltype(source);
        if constexpr (!is_wanted<O>) {
          return cudaErrorInvalidValue;
        } else {
          return launch(&rows_kernel<Team<O, Source, size.value, shifted.value>, O, Source, decltype(layout)>,
                        call.shape(), source, rows::shares_of(call), static_cast<typename O::Acc*>(call.workspace),
                        call.counter, call.result, layout);
        }
      });
}

const Rung<launch_one> rung("compensated");

}  // namespace treduce::reduce::compensated
