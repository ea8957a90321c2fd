#include "arithmetic.h"

#include "halves.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace emulated_nccl {

namespace {

// Elements that are reduced at a time: what they add up to stays in the cache.
constexpr std::size_t block = 1024;

// How a type is stored, and what its sums are made in.  Integers wrap around, as unsigned ones do.
template <class Stored>
struct Number {
    using Wide = std::conditional_t<std::is_integral_v<Stored>, std::make_unsigned<Stored>,
                                    std::common_type<Stored>>;
    using Sum = typename Wide::type;
    static Sum load(Stored value) { return static_cast<Sum>(value); }
    static Stored store(Sum value) { return static_cast<Stored>(value); }
};

template <class Stored>
struct ShortNumber {
    using Sum = float;
    static Sum load(Stored value) { return widen(value); }
    static Stored store(Sum value) {
        Stored stored;
        narrow(value, stored);
        return stored;
    }
};

template <>
struct Number<Half> : ShortNumber<Half> {};
template <>
struct Number<Bfloat16> : ShortNumber<Bfloat16> {};

struct Add {
    template <class Sum>
    static Sum of(Sum a, Sum b) {
        return static_cast<Sum>(a + b);
    }
};

struct Multiply {
    template <class Sum>
    static Sum of(Sum a, Sum b) {
        if constexpr (std::is_integral_v<Sum>)  // two short ones would become signed, and overflow
            return static_cast<Sum>(std::uint64_t(a) * std::uint64_t(b));
        else
            return a * b;
    }
};

// Compared as what is stored: the sums of integers are unsigned.  NaN is dropped, as by fmax.
template <class Stored, bool is_max>
struct Extreme {
    template <class Sum>
    static Sum of(Sum a, Sum b) {
        if constexpr (std::is_floating_point_v<Sum>) {
            return is_max ? std::fmax(a, b) : std::fmin(a, b);
        } else {
            const auto x = static_cast<Stored>(a), y = static_cast<Stored>(b);
            return static_cast<Sum>(is_max ? std::max(x, y) : std::min(x, y));
        }
    }
};

struct Same {
    template <class Sum>
    Sum operator()(Sum value) const {
        return value;
    }
};

// Averages of floating-point numbers are sums of products with 1/n, which is rounded to the type,
// as each product is.
template <class Stored>
struct Scale {
    typename Number<Stored>::Sum factor;

    explicit Scale(std::size_t ranks)
        : factor(rounded(static_cast<decltype(factor)>(1.0 / static_cast<double>(ranks)))) {}
    decltype(factor) operator()(decltype(factor) value) const { return rounded(value * factor); }
    static decltype(factor) rounded(decltype(factor) value) {
        return Number<Stored>::load(Number<Stored>::store(value));
    }
};

// Averages of integers are sums that are divided, toward zero.
template <class Stored>
struct Divide {
    Stored divisor;

    template <class Sum>
    Sum operator()(Sum value) const {
        return static_cast<Sum>(static_cast<Stored>(value) / divisor);
    }
};

template <class Stored, class Op, class Before = Same, class After = Same>
void reduce_with(const std::vector<const char*>& inputs, std::size_t count, char* out,
                 Before before = Before(), After after = After()) {
    using Sum = typename Number<Stored>::Sum;
    Sum sums[block];
    for (std::size_t at = 0; at < count; at += block) {
        const std::size_t some = std::min(block, count - at);
        for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
            const Stored* input = reinterpret_cast<const Stored*>(inputs[rank]) + at;
            if (rank == 0)
                for (std::size_t i = 0; i < some; ++i)
                    sums[i] = before(Number<Stored>::load(input[i]));
            else
                for (std::size_t i = 0; i < some; ++i)
                    sums[i] = Op::of(sums[i], before(Number<Stored>::load(input[i])));
        }
        Stored* result = reinterpret_cast<Stored*>(out) + at;
        for (std::size_t i = 0; i < some; ++i) result[i] = Number<Stored>::store(after(sums[i]));
    }
}

template <class Stored>
void reduce_type(ncclRedOp_t op, const std::vector<const char*>& inputs, std::size_t count,
                 char* out) {
    switch (op) {
        case ncclProd: return reduce_with<Stored, Multiply>(inputs, count, out);
        case ncclMax: return reduce_with<Stored, Extreme<Stored, true>>(inputs, count, out);
        case ncclMin: return reduce_with<Stored, Extreme<Stored, false>>(inputs, count, out);
        case ncclAvg: break;
        default: return reduce_with<Stored, Add>(inputs, count, out);
    }
    if constexpr (std::is_integral_v<Stored>)
        reduce_with<Stored, Add>(inputs, count, out, Same(),
                                 Divide<Stored>{static_cast<Stored>(inputs.size())});
    else
        reduce_with<Stored, Add>(inputs, count, out, Scale<Stored>(inputs.size()));
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
    switch (static_cast<int>(type)) {
        case ncclInt8: case ncclUint8: case 10: case 11: return 1;  // 10 and 11 are fp8
        case ncclFloat16: case ncclBfloat16: return 2;
        case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
        case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
        default: return 0;
    }
}

void reduce(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& inputs,
            std::size_t count, char* out) {
    switch (static_cast<int>(type)) {
        case ncclInt8: return reduce_type<std::int8_t>(op, inputs, count, out);
        case ncclUint8: return reduce_type<std::uint8_t>(op, inputs, count, out);
        case ncclInt32: return reduce_type<std::int32_t>(op, inputs, count, out);
        case ncclUint32: return reduce_type<std::uint32_t>(op, inputs, count, out);
        case ncclInt64: return reduce_type<std::int64_t>(op, inputs, count, out);
        case ncclUint64: return reduce_type<std::uint64_t>(op, inputs, count, out);
        case ncclFloat16: return reduce_type<Half>(op, inputs, count, out);
        case ncclBfloat16: return reduce_type<Bfloat16>(op, inputs, count, out);
        case ncclFloat32: return reduce_type<float>(op, inputs, count, out);
        case ncclFloat64: return reduce_type<double>(op, inputs, count, out);
        default: return;
    }
}

}  // namespace emulated_nccl
