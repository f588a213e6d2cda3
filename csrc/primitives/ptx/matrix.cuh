// Moves between the registers of a warp and 8 x 8 matrices of 16-bit elements in shared memory (sm_90 for stores). One
// wrapper an instruction; all 32 lanes call, converged. A row is 16 bytes, four words, whatever the size of its elements: wider ones
// can be loaded too.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#ifdef TREDUCE_EMULATOR
#include "emulator_mma.h"
#else
#include "mbarrier.cuh"

namespace treduce::ptx {

// Stores four matrices: matrix i comes from words[i], of which lane l holds row l / 4, columns l % 4 * 2 and one more; its
// row r goes to the 16 bytes that lane 8 i + r names.
TREDUCE_DEVICE void store_matrices(void* row, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Loads four matrices: row r of matrix i from the 16 bytes that lane 8 i + r names, and lane l gets, in words[i], word l % 4
// of row l / 4. kTransposed: of 16-bit elements, rows l % 4 * 2 and one more of column l / 4.
template <bool kTransposed>
TREDUCE_DEVICE void load_matrices(uint32_t (&words)[4], uint32_t row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
  }
}

}  // namespace treduce::ptx
#endif
