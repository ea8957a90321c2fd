/* All programs with each number of states, as listed in ncclkv/kernels/programs/__init__.py. */

#define PROGRAM sgd
#define STATES 0
#include "update.h"

#define PROGRAM sgd
#define STATES 1
#include "update.h"

static const struct program programs[] = {ROW(sgd, 0), ROW(sgd, 1)};
