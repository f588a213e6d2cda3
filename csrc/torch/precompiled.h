// What most files of this folder need of torch: each includes it first. setup.py copies it to build/config, where GCC parses it once
// for all of them; another compiler reads it as it is. A file still includes what it uses.
#pragma once

#include <torch/csrc/python_headers.h>
// Python's header must come before those of the standard library.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
