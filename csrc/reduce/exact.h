// Exact sums of floats: integer arithmetic over the whole range of exponents, and one rounding at the end. Host and
// device, free of torch and the CUDA runtime.
//
// A superaccumulator is a number in digits of radix 2^kBits, each an int64 with room to spare: cell r counts multiples
// of 2^(kUnit + r * kBits), and may be negative or larger than the radix. Additions touch the one or two cells that an
// element's exponent names; carries move on rarely (`settle`), and two superaccumulators are added cell by cell.
// Nothing is ever rounded, so the order of the additions is free: any schedule, and any permutation of the elements,
// gives the same bits.
//
// Sources: Radford Neal, Fast exact summation using small and large superaccumulators (2015); Ulrich Kulisch, Computer
// Arithmetic and Validity (2008).
#pragma once

#include "geometry.h"
#include "result.h"

namespace treduce::reduce::exact {

// A result format: `precision` bits of mantissa, and the exponent of the smallest subnormal.
struct Format {
  int precision, least, sign;
  uint64_t infinity, nan;
};

// Of a component, where the dtype is complex.
TREDUCE_HOST_DEVICE Format format_of(DType dtype) {
  switch (dtype) {
    case DType::float16: return {11, -24, 15, 0x7c00, 0x7e00};
    case DType::bfloat16: return {8, -133, 15, 0x7f80, 0x7fc0};
    case DType::float64:
    case DType::complex128: return {53, -1074, 63, 0x7ff0000000000000, 0x7ff8000000000000};
    default: return {24, -149, 31, 0x7f800000, 0x7fc00000};
  }
}

// Every `stride`-th int64 from `cells` on: on a GPU threads keep theirs side by side, so that no two meet in a bank.
struct Column {
  int64_t* cells;
  int stride;
  TREDUCE_HOST_DEVICE int64_t& operator[](int row) const { return cells[row * stride]; }
};

// What infinities and NaNs leave in the cell behind the digits: numbers that can be added up a million times and tell
// which kinds there were.
constexpr int64_t kPositive = 1, kNegative = int64_t{1} << 20, kNan = int64_t{1} << 40;

TREDUCE_HOST_DEVICE int64_t kind_of(double not_finite) {
  return not_finite != not_finite ? kNan : (not_finite > 0 ? kPositive : kNegative);
}

// The part of a cell that belongs to the next one; what stays is from -radix / 2 to radix / 2. Rounding to the nearest
// rather than down keeps the cells above a small negative number at zero.
template <int kBits>
TREDUCE_HOST_DEVICE int64_t carry_of(int64_t cell) {
  return (cell + (int64_t{1} << (kBits - 1))) >> kBits;
}
template <int kBits>
TREDUCE_HOST_DEVICE int64_t rest_of(int64_t cell) {
  return cell - carry_of<kBits>(cell) * (int64_t{1} << kBits);
}

template <class Real>
struct Bins;

// Floats of up to 32 bits. A cell takes all elements of 16 neighbouring exponents: integers below 2^39 of its unit. So
// their sum fits a double without rounding, and while elements come in, a cell holds a double: the addition needs no
// shift, no sign and no implicit bit, and infinities and NaNs find their own way.
template <>
struct Bins<float> {
  static constexpr int kBits = 16, kUnit = -150;
  static constexpr int kDigits = 18;          // 16 and two for carries: any sum of fewer than 2^56 elements
  static constexpr int kAdditions = 1 << 13;  // until a cell must be settled: 2^13 * 2^39 + 2^38 is below 2^53

  TREDUCE_HOST_DEVICE static void add(const Column& column, float x) {
    accumulate(column[static_cast<int>(bit_cast<uint32_t>(x) >> 27 & 15)], x);
  }

  // A sum of up to 4096 elements whose last place is 2^-24 and that are below 2^16: float16 and the 8-bit floats. It
  // spans two cells.
  TREDUCE_HOST_DEVICE static void add_narrow(const Column& column, double sum) {
    constexpr int kHigh = (-22 - kUnit) / kBits;
    if (!(sum - sum == 0)) return accumulate(column[15], sum);
    const double high = multiple(sum, kHigh);
    accumulate(column[kHigh], high);
    accumulate(column[kHigh - 1], sum - high);
    settle(column);
  }

  // Afterwards no cell holds more than 2^38 units.
  TREDUCE_HOST_DEVICE static void settle(const Column& column) {
    for (int r = kDigits - 2; r >= 0; --r) {
      const double sum = bit_cast<double>(column[r]);
      if (!(sum - sum == 0)) continue;
      const double high = multiple(sum, r + 1);
      column[r] = bit_cast<int64_t>(sum - high);
      accumulate(column[r + 1], high);
    }
  }

  // The cells become integers of up to 2^53; to be called once, after the last addition.
  TREDUCE_HOST_DEVICE static void close(const Column& column) {
    for (int r = 0; r < kDigits; ++r) {
      double sum = bit_cast<double>(column[r]);
      if (!(sum - sum == 0)) {
        column[kDigits] += kind_of(sum);
        sum = 0;
      }
      column[r] = static_cast<int64_t>(sum * two_to(-kUnit - r * kBits));
    }
  }

 private:
  TREDUCE_HOST_DEVICE static double two_to(int exponent) {
    return bit_cast<double>(static_cast<uint64_t>(1023 + exponent) << 52);
  }
  TREDUCE_HOST_DEVICE static void accumulate(int64_t& cell, double x) {
    cell = bit_cast<int64_t>(bit_cast<double>(cell) + x);
  }
  // `sum` (below 2^51 units of cell `row`) rounded to a multiple of that unit: adding 1.5 * 2^52 units makes it the last
  // place of the double.
  TREDUCE_HOST_DEVICE static double multiple(double sum, int row) {
    const double shift = 1.5 * two_to(52 + kUnit + row * kBits);
    return (sum + shift) - shift;
  }
};

// A double spans up to 84 bits when it is aligned to cells of 32, so it goes into two of them as an integer: the low 32
// bits into one, the others, with the sign, into the next.
template <>
struct Bins<double> {
  static constexpr int kBits = 32, kUnit = -1075;
  static constexpr int kDigits = 67;          // 65 and two for carries: any sum of fewer than 2^63 elements
  static constexpr int kAdditions = 1 << 10;  // until a cell must be settled: 2^10 * 2^52 is far below 2^63

  TREDUCE_HOST_DEVICE static bool is_finite(double x) { return (bit_cast<uint64_t>(x) >> 52 & 0x7ff) != 0x7ff; }

  // What is not finite leaves digits that mean nothing; see Sink::not_finite_.
  TREDUCE_HOST_DEVICE static void add(const Column& column, double x) {
    const auto word = bit_cast<uint64_t>(x);
    const int exponent = static_cast<int>(word >> 52 & 0x7ff);
    const auto magnitude = static_cast<int64_t>((word & 0xfffffffffffff) | (exponent != 0 ? uint64_t{1} << 52 : 0));
    const int64_t mantissa = static_cast<int64_t>(word) < 0 ? -magnitude : magnitude;
    const int shift = (exponent != 0 ? exponent : 1) & 31;  // a subnormal has the exponent of the smallest normals
    int64_t& low = column[exponent >> 5];
    int64_t& high = column[(exponent >> 5) + 1];
    const int64_t low_sum = low + static_cast<int64_t>(static_cast<uint32_t>(mantissa) << shift);
    const int64_t high_sum = high + (mantissa >> (32 - shift));
    low = low_sum;
    high = high_sum;
  }

  // Afterwards no cell but the last holds more than 2^33.
  TREDUCE_HOST_DEVICE static void settle(const Column& column) {
    for (int r = kDigits - 2; r >= 0; --r) {
      const int64_t carry = carry_of<kBits>(column[r]);
      column[r] -= carry * (int64_t{1} << kBits);
      column[r + 1] += carry;
    }
  }

  TREDUCE_HOST_DEVICE static void close(const Column& column) { settle(column); }
};

// Which bins take the elements of a type, and how many components it has.
template <class Element>
struct Traits {
  using Real =
      std::conditional_t<std::is_same_v<Element, double> || std::is_same_v<Element, complex128>, double, float>;
  using Bins = exact::Bins<Real>;
  static constexpr int kParts = is_complex<Element> ? 2 : 1;
  static constexpr int kPartRows = Bins::kDigits + 1;  // the digits, and a cell for infinities and NaNs
  static constexpr int kRows = kPartRows * kParts;     // row r * kParts + p belongs to component p
  // Formats so narrow that a double holds the sum of thousands: they add in a register.
  static constexpr bool kNarrow = std::is_same_v<Element, float16> || std::is_same_v<Element, float8_e4m3fn> ||
                                  std::is_same_v<Element, float8_e5m2>;
  static constexpr int kAdditions = kNarrow ? 4096 : Bins::kAdditions;
};

// Threads whose superaccumulators fit the 48 KiB of shared memory that a block has for the asking, a power of two.
template <class Element>
constexpr int kThreadsOfBlock = 256 / (sizeof(typename Traits<Element>::Real) == 8 ? 4 : 1) / Traits<Element>::kParts;
template <class Element>
constexpr int64_t kBytesOfThread = int64_t{Traits<Element>::kRows} * static_cast<int>(sizeof(int64_t));

// Threads of an SM for which kernels ask room.
constexpr int kThreadsAnSm = 1024;

// Rows of a partial in global memory: the cells', and one that says which of them are not zero.
constexpr int rows_of_partial(int cell_rows) { return cell_rows + 1; }

// The cells of component `part`, where `cells` points to the first cell of a superaccumulator.
template <class Element>
TREDUCE_HOST_DEVICE Column part_of(int64_t* cells, int stride, int part) {
  return {cells + part * stride, stride * Traits<Element>::kParts};
}

// The superaccumulator of one thread while it takes elements. The cells are zeroed here, and hold integers after
// close().
template <class Element>
class Sink {
  using Traits = exact::Traits<Element>;
  using Bins = typename Traits::Bins;

 public:
  TREDUCE_HOST_DEVICE Sink(int64_t* cells, int stride) : cells_(cells), stride_(stride) {
    for (int r = 0; r < Traits::kRows; ++r) cells[r * stride] = 0;
  }

  // Before up to `count` calls of add(), of kAdditions at most.
  TREDUCE_HOST_DEVICE void reserve(int count) {
    room_ -= count;
    if (room_ < 0) {
      settle();
      room_ = Traits::kAdditions - count;
    }
  }

  TREDUCE_HOST_DEVICE void add(Element x) {
    if constexpr (Traits::kNarrow) {
      narrow_ += static_cast<float>(x);
    } else if constexpr (is_complex<Element>) {
      add_real(x.re, 0);
      add_real(x.im, 1);
    } else {
      add_real(static_cast<typename Traits::Real>(x), 0);
    }
  }

  TREDUCE_HOST_DEVICE void close() {
    if constexpr (Traits::kNarrow) settle();
    for (int p = 0; p < Traits::kParts; ++p) {
      Bins::close(part(p));
      if (kIntegers && not_finite_[p] != 0) part(p)[Bins::kDigits] = kind_of(not_finite_[p]);
    }
  }

 private:
  static constexpr bool kIntegers = std::is_same_v<typename Traits::Real, double>;

  TREDUCE_HOST_DEVICE void add_real(typename Traits::Real x, int p) {
    Bins::add(part(p), x);
    if constexpr (kIntegers) {
      if (!Bins::is_finite(x)) not_finite_[p] += x;
    }
  }

  TREDUCE_HOST_DEVICE Column part(int p) const { return part_of<Element>(cells_, stride_, p); }

  TREDUCE_HOST_DEVICE void settle() {
    if constexpr (Traits::kNarrow) {
      Bins::add_narrow(part(0), narrow_);
      narrow_ = 0;
    } else {
      for (int p = 0; p < Traits::kParts; ++p) Bins::settle(part(p));
    }
  }

  int64_t* cells_;
  int stride_;
  int room_ = Traits::kAdditions;
  double narrow_ = 0;
  // Integers know no infinity: the sum of the elements that are not finite, or 0.
  double not_finite_[Traits::kParts] = {};
};

// What row `row` holds after carries have moved by one cell. Cells of up to 2^62 become so small that thousands of them
// can be added.
template <class Element>
TREDUCE_HOST_DEVICE int64_t carried(const int64_t* cells, int stride, int row) {
  using Traits = exact::Traits<Element>;
  constexpr int kBits = Traits::Bins::kBits, kDigits = Traits::Bins::kDigits;
  const int digit = row / Traits::kParts;
  const int64_t cell = cells[row * stride];
  if (digit == kDigits) return cell;
  const int64_t carry = digit > 0 ? carry_of<kBits>(cells[(row - Traits::kParts) * stride]) : 0;
  return (digit == kDigits - 1 ? cell : rest_of<kBits>(cell)) + carry;
}

TREDUCE_HOST_DEVICE int highest_bit(uint64_t value) {
#ifdef __CUDA_ARCH__
  return 63 - __clzll(static_cast<long long>(value));
#else
  return 63 - __builtin_clzll(value);
#endif
}

// The leading 64 bits of a positive number, and whether anything lies below them.
struct Leading {
  uint64_t bits;  // the highest is 1
  int position;   // of the highest, in units
  bool more;
};

// Of a number whose digits `high` down to 0 are carried; digits below `low` are zero.
template <int kBits>
TREDUCE_HOST_DEVICE Leading leading(const Column& digits, int high, int low) {
  const auto first = static_cast<uint64_t>(digits[high]);
  const int bit = highest_bit(first);
  Leading result{first << (63 - bit), high * kBits + bit, false};
  int room = 63 - bit;
  for (int r = high - 1; r >= low; --r) {
    const auto digit = static_cast<uint64_t>(digits[r]);
    if (room >= kBits) {
      room -= kBits;
      result.bits |= digit << room;
    } else {
      result.bits |= digit >> (kBits - room);
      result.more |= (digit & ((uint64_t{1} << (kBits - room)) - 1)) != 0;
      room = 0;
    }
  }
  return result;
}

// Of the same number divided by `divisor`: long division, bit by bit, until 64 bits of the quotient are known. Bits
// below the unit are not worked out: every result format's last place is at least two units.
template <int kBits>
TREDUCE_HOST_DEVICE Leading leading_of_quotient(const Column& digits, int high, uint64_t divisor) {
  uint64_t quotient = 0, remainder = 0;
  int r = high, k = highest_bit(static_cast<uint64_t>(digits[high]));
  for (;;) {
    remainder = remainder << 1 | (static_cast<uint64_t>(digits[r]) >> k & 1);
    quotient <<= 1;
    if (remainder >= divisor) {
      remainder -= divisor;
      quotient |= 1;
    }
    if (quotient >> 63 != 0 || (r == 0 && k == 0)) break;
    if (--k < 0) {
      k = kBits - 1;
      --r;
    }
  }
  bool more = remainder != 0 || (static_cast<uint64_t>(digits[r]) & ((uint64_t{1} << k) - 1)) != 0;
  for (int below = r - 1; below >= 0 && !more; --below) more = digits[below] != 0;
  if (quotient == 0) return {0, -1, more};
  const int bit = highest_bit(quotient);
  return {quotient << (63 - bit), r * kBits + k + bit, more};
}

// The bits of a positive number in a format, without the sign: rounded once, to nearest, ties to even.
template <int kUnit>
TREDUCE_HOST_DEVICE uint64_t round_leading(const Leading& number, const Format& format) {
  // The mantissa's last place, and how many bits stay: fewer than the precision for a subnormal.
  int last = number.position - format.precision + 1 + kUnit;
  if (last < format.least) last = format.least;
  const int keep = number.position + kUnit - last + 1;
  if (keep < 0 || number.bits == 0) return 0;
  uint64_t mantissa = keep > 0 ? number.bits >> (64 - keep) : 0;
  const uint64_t rest = number.bits << keep;
  const bool below = (rest << 1) != 0 || number.more;
  if (rest >> 63 != 0 && (below || (mantissa & 1) != 0)) ++mantissa;
  // The implicit bit counts as one step of the exponent, and so does a mantissa that was rounded up to the next power
  // of two.
  const uint64_t bits = (static_cast<uint64_t>(last - format.least) << (format.precision - 1)) + mantissa;
  return bits < format.infinity ? bits : format.infinity;
}

// The sum in one component's cells, divided by `count` if `divide`, as the bits of the format. Cells may hold up to
// 2^62 each; they are overwritten.
template <class Bins>
TREDUCE_HOST_DEVICE uint64_t round_sum(const Column& cells, const Format& format, bool divide, int64_t count) {
  constexpr int kBits = Bins::kBits, kDigits = Bins::kDigits;
  if (divide && count == 0) return format.nan;
  if (const int64_t kinds = cells[kDigits]; kinds != 0) {
    const bool positive = kinds % kNegative != 0, negative = kinds / kNegative % (kNan / kNegative) != 0;
    if (kinds >= kNan || (positive && negative)) return format.nan;
    return format.infinity | static_cast<uint64_t>(negative) << format.sign;
  }
  int low = kDigits, high = -1;
  for (int r = 0; r < kDigits; ++r) {
    if (cells[r] != 0) {
      high = r;
      if (low == kDigits) low = r;
    }
  }
  if (high < 0) return 0;

  // Carries: every digit from `low` on below the radix, the highest keeps what is left, and with it the sign.
  const auto carry = [&] {
    int64_t more = 0;
    for (int r = low; r < high; ++r) {
      const int64_t cell = cells[r] + more;
      cells[r] = cell & ((int64_t{1} << kBits) - 1);
      more = cell >> kBits;
    }
    cells[high] += more;
  };
  carry();
  const bool negative = cells[high] < 0;
  if (negative) {
    for (int r = low; r <= high; ++r) cells[r] = -cells[r];
    carry();
  }
  while (high > low && cells[high] == 0) --high;
  if (cells[high] == 0) return 0;

  const Leading number = divide && count > 1 ? leading_of_quotient<kBits>(cells, high, static_cast<uint64_t>(count))
                                             : leading<kBits>(cells, high, low);
  return round_leading<Bins::kUnit>(number, format) | static_cast<uint64_t>(negative) << format.sign;
}

// Rounds the superaccumulator whose first cell is `cells`, and writes output `i`.
template <class Element>
TREDUCE_HOST_DEVICE void store(const Result& result, int64_t* cells, int stride, int64_t i) {
  using Traits = exact::Traits<Element>;
  const Format format = format_of(result.dtype);
  for (int p = 0; p < Traits::kParts; ++p) {
    const uint64_t bits =
        round_sum<typename Traits::Bins>(part_of<Element>(cells, stride, p), format, result.divide, result.count);
    const int64_t at = i * Traits::kParts + p;
    switch (format.sign) {
      case 15: static_cast<uint16_t*>(result.data)[at] = static_cast<uint16_t>(bits); break;
      case 31: static_cast<uint32_t*>(result.data)[at] = static_cast<uint32_t>(bits); break;
      default: static_cast<uint64_t*>(result.data)[at] = bits;
    }
  }
}

// Whether neighbouring outputs lie closer together in memory than the elements of one output.
inline bool outputs_side_by_side(const Geometry& g) {
  return g.kept.count > 0 && (g.reduced.count == 0 || g.kept.inner_stride() < g.reduced.inner_stride());
}

}  // namespace treduce::reduce::exact
