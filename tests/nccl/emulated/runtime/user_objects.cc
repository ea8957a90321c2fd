// User objects: things of the user's that live as long as graphs refer to them.
#include "graphs.h"

namespace emulated {

References::References(const References&) {}
References::~References() = default;

}  // namespace emulated
