// The types behind every ladder: what a row of a table says, and how a name finds its row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtypes.h"
#include "prepared.h"

namespace treduce {

// What callers are told about a variant. Each op family adds columns of its own, and the launcher.
struct Variant {
  std::string name;
  std::vector<std::string> aliases;
  std::string summary;  // one line: the idea
  std::string origin;   // where the idea is known from
  // The order class. Variants of one class give the same bits for the same arguments on one kind of device; `unordered` and
  // `chosen` promise nothing.
  std::string order;
  std::string order_text;
  bool deterministic = true;
  bool cuda = true;       // has a kernel of its own (`auto` borrows one)
  int capability = 75;    // compute capability needed, times ten
  bool one_chip = false;  // later chips cannot run it either: its instructions are this architecture's alone
  bool on_cpu = true;     // the CPU gives the same bits; else it computes in an order of its own
  int float32_bits = 24;  // how many bits of float32 operands' significands enter the products
  std::vector<DType> dtypes;
  // The size argument (block_size or tile_size): values from min to max that are powers of two. 0: takes none.
  int size_default = 0, size_min = 0, size_max = 0;
  bool takes_num_blocks = false;
};

constexpr DType kAllDTypes[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int8,
                                DType::uint8,   DType::int16,   DType::int32,   DType::int64,    DType::boolean};

constexpr DType kEveryDType[] = {DType::float32,   DType::float64,   DType::float16,       DType::bfloat16,
                                 DType::int8,      DType::uint8,     DType::int16,         DType::int32,
                                 DType::int64,     DType::boolean,   DType::float8_e4m3fn, DType::float8_e5m2,
                                 DType::complex64, DType::complex128};

inline std::optional<DType> dtype_named(std::string_view name) {
  for (const DType dtype : kEveryDType) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

inline bool runs_on(const Variant& variant, int capability) {
  return variant.one_chip ? capability == variant.capability : capability >= variant.capability;
}

// The refusal of a chip that the variant does not run on; none where it does.
Refusal refused_by(const Chip& chip, const Variant& variant);

// Whether this build has code for a variant of one chip; the others run from PTX too.
bool built_for(const Variant& variant);

// Thrown for an argument that no variant could take; the binding turns it into a Python ValueError.
struct BadArgument {
  std::string message;
};

// "unknown variant 'wrap_shuffle' of sum; the closest names are 'warp_shuffle', ... (torch_reduce.variants() lists all)"
std::string unknown_variant(std::string_view family, std::string_view given, const std::vector<std::string>& names);

// Checks a block_size or tile_size against the row and returns it, or the row's default when `given` is 0.
int checked_size(const Variant& variant, const char* what, int64_t given, bool was_given);

}  // namespace treduce
