// Modified Bessel functions of bessel.cc.
#pragma once

namespace emulated {

double bessel_i0(double x);
double bessel_i1(double x);

}  // namespace emulated
