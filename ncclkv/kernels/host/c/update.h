/* Updates of arrays by one program.  Included once for each count of states, with

     PROGRAM  the name of its header in kernels/programs
     STATES   the count of states of each weight

   Both are undefined at the end. */

#define FUNCTION static inline __attribute__((always_inline))
#define STRING(x) #x
#define HEADER_OF(name) STRING(../../programs/name.h)
#define JOIN(name, program, states, real) name##_##program##_##states##_##real
#define NAMED(name, program, states, real) JOIN(name, program, states, real)

#define REAL float
#define ROOT sqrtf
#define ANY float_any
#define NAME(x) NAMED(x, PROGRAM, STATES, float)
#include "update_real.h"
#undef SCALARS
#undef NORMS
#undef MEASURED_STATES

#define REAL double
#define ROOT sqrt
#define ANY double_any
#define NAME(x) NAMED(x, PROGRAM, STATES, double)
#include "update_real.h"
enum { NAMED(count_of, PROGRAM, STATES, scalars) = SCALARS };
#undef SCALARS
#ifdef NORMS
enum { NAMED(count_of, PROGRAM, STATES, norms) = NORMS };
#undef NORMS
#undef MEASURED_STATES
#endif

#undef PROGRAM
#undef STATES
#undef FUNCTION
#undef STRING
#undef HEADER_OF
#undef JOIN
#undef NAMED
