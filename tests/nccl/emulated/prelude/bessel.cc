// Modified Bessel functions, compiled once and not with each kernel: they are most of <cmath>.
#include "bessel.h"

#include <cmath>

namespace emulated {

double bessel_i0(double x) { return std::cyl_bessel_i(0.0, std::fabs(x)); }
double bessel_i1(double x) { return std::copysign(std::cyl_bessel_i(1.0, std::fabs(x)), x); }

}  // namespace emulated
