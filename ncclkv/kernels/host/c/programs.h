/* All programs with each number of states, as listed in ncclkv/kernels/programs/__init__.py. */

#define PROGRAM sgd
#define STATES 0
#include "update.h"

#define PROGRAM sgd
#define STATES 1
#include "update.h"

#define PROGRAM adam
#define STATES 2
#include "update.h"

#define PROGRAM nag
#define STATES 0
#include "update.h"

#define PROGRAM nag
#define STATES 1
#include "update.h"

#define PROGRAM rmsprop
#define STATES 1
#include "update.h"

#define PROGRAM rmsprop
#define STATES 3
#include "update.h"

#define PROGRAM adagrad
#define STATES 1
#include "update.h"

#define PROGRAM ftrl
#define STATES 2
#include "update.h"

#define PROGRAM signum
#define STATES 0
#include "update.h"

#define PROGRAM signum
#define STATES 1
#include "update.h"

#define PROGRAM test
#define STATES 1
#include "update.h"

#define PROGRAM adamax
#define STATES 2
#include "update.h"

#define PROGRAM nadam
#define STATES 2
#include "update.h"

#define PROGRAM adadelta
#define STATES 2
#include "update.h"

#define PROGRAM ftml
#define STATES 3
#include "update.h"

#define PROGRAM lion
#define STATES 1
#include "update.h"

#define PROGRAM lars
#define STATES 0
#include "update.h"

#define PROGRAM lars
#define STATES 1
#include "update.h"

#define PROGRAM lamb
#define STATES 2
#include "update.h"

#define PROGRAM squares
#define STATES 0
#include "update.h"

static const struct program programs[] = {
    ROW(sgd, 0), ROW(sgd, 1), ROW(adam, 2), ROW(nag, 0), ROW(nag, 1), ROW(rmsprop, 1),
    ROW(rmsprop, 3), ROW(adagrad, 1), ROW(ftrl, 2), ROW(signum, 0), ROW(signum, 1),
    ROW(test, 1), ROW(adamax, 2), ROW(nadam, 2), ROW(adadelta, 2), ROW(ftml, 3), ROW(lion, 1),
    NORM_ROW(lars, 0), NORM_ROW(lars, 1), NORM_ROW(lamb, 2), NORM_ROW(squares, 0),
};
