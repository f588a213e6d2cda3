// Functions for torch_reduce.distributed that exchange and add in one call, because a small exchange is mostly host time.
#pragma once

struct PyMethodDef;

namespace treduce {

PyMethodDef gathered_method();
PyMethodDef gather_and_reduce_method();
PyMethodDef node_sum_method();
PyMethodDef packed_sum_method();
PyMethodDef blocks_sum_method();
PyMethodDef all_reduce_method();
PyMethodDef reduce_scatter_method();
PyMethodDef reduce_ranks_method();

}  // namespace treduce
