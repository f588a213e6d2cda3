// Idea: every addition is followed by the few that find out what it lost (two-sum), and the losses are summed beside the sum. The
// tree is the one of row_block and column_block with pairs for values; seven additions in place of one, which memory hides.
//
// After:   row_block and column_block, whose error grows with the logarithm of the length.
// Mapping: theirs.
// Bound:   memory bandwidth for large inputs: 7 float additions for 4 bytes, a third of what the chip can add meanwhile.
// Source:  Takeshi Ogita, Siegfried Rump and Shin'ichi Oishi, Accurate sum and dot product (2005).
#include "../columns.cuh"

namespace treduce::reduce::compensated {

template <class O, int kSize, class Source, class Layout>
__global__ void __launch_bounds__(512)
    rows_kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Layout layout, int64_t tiles,
                TREDUCE_GRID_CONSTANT Divider splits, int64_t span, int64_t length, typename O::Acc* partials,
                unsigned* counters, Result result) {
  rows::grid<O, kSize>(x, layout, tiles, splits, span, length, partials, counters, result);
}

template <class O, int kSize, class Source, class Layout>
__global__ void __launch_bounds__(256)
    columns_kernel(TREDUCE_GRID_CONSTANT Source x, TREDUCE_GRID_CONSTANT Layout layout, int64_t outputs, int64_t tiles,
                   TREDUCE_GRID_CONSTANT Divider splits, int span, int64_t length, typename O::Acc* partials,
                   unsigned* counters, Result result) {
  columns::grid<O, kSize>(x, layout, outputs, tiles, splits, span, length, partials, counters, result);
}

// The binding sends only sums of floats here.
template <class O>
constexpr bool is_wanted = carries_error<typename O::Acc>;

cudaError_t launch_one(const Call& call) {
  const Geometry& g = *call.geometry;
  const Schedule& s = *call.schedule;
  if (s.columns) {
    return columns::dispatch<Compensated>(call, [&](auto op, auto source, auto size, auto layout) -> cudaError_t {
      using O = decltype(op);
      if constexpr (!is_wanted<O>) {
        return cudaErrorInvalidValue;
      } else {
        return launch(&columns_kernel<O, size.value, decltype(source), decltype(layout)>, rows::shape_of(call), source,
                      layout, g.outputs, s.tiles, Divider(s.splits), static_cast<int>(s.span), g.length,
                      static_cast<typename O::Acc*>(call.workspace), call.counter, call.result);
      }
    });
  }
  return rows::dispatch<Compensated>(call, [&](auto op, auto source, auto size, auto layout) -> cudaError_t {
    using O = decltype(op);
    if constexpr (!is_wanted<O>) {
      return cudaErrorInvalidValue;
    } else {
      return launch(&rows_kernel<O, size.value, decltype(source), decltype(layout)>, rows::shape_of(call), source,
                    layout, s.tiles, Divider(s.splits), s.span, g.length, static_cast<typename O::Acc*>(call.workspace),
                    call.counter, call.result);
    }
  });
}

const Rung<launch_one> rung("compensated");

}  // namespace treduce::reduce::compensated
