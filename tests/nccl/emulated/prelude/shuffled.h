// The numbers below a count, each once, in an order that a seed chooses.
#pragma once

#include <numeric>

namespace emulated {

class Shuffled {
public:
    using Number = unsigned long long;

    Shuffled(Number count, Number seed) : count_(count) {
        if (count < 2) return;
        next_ = mixed(seed) % count;
        step_ = mixed(~seed) % count;
        while (std::gcd(step_, count) != 1) {
            step_ = (step_ + 1) % count;
        }
    }

    Number next() {
        const Number number = next_;
        next_ += step_;
        if (next_ >= count_) next_ -= count_;
        return number;
    }

private:
    // splitmix64, by Sebastiano Vigna (public domain).
    static Number mixed(Number x) {
        x += 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return x ^ (x >> 31);
    }

    Number count_;
    Number step_ = 0;            // has no divisor in common with the count
    Number next_ = 0;
};

}  // namespace emulated
