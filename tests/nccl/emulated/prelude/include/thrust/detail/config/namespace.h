// The namespace of Thrust, for CuPy's complex numbers; no more of Thrust is emulated.
#pragma once

#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }
