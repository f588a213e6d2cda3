// The functions that torch_reduce._C has besides pybind11's.
#pragma once

struct PyMethodDef;

namespace treduce {

PyMethodDef* functions();

}  // namespace treduce
