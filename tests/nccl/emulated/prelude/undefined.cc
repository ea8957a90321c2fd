// What g++ calls where C++ leaves the outcome open and the host would do otherwise than a device.
//
// Kernels are compiled with -fsanitize=alignment,shift-exponent,integer-divide-by-zero and, for the
// least integer by -1, signed-integer-overflow: with -fwrapv it is about division alone.  These are
// the functions that g++ then calls, with the layouts of GCC's libsanitizer (ubsan_handlers.h).
// Misaligned accesses are errors: "CUDA C++ Programming Guide", Device Memory Accesses.
#include "threads.h"

#include <string>

namespace {

constexpr int misaligned_address = 716;              // cudaErrorMisalignedAddress
constexpr int launch_failure = 719;                  // cudaErrorLaunchFailure

struct Place {
    const char* file;
    unsigned line, column;
};

struct Type {
    unsigned short kind, info;
    char name[1];
};

struct Access {
    Place place;
    const Type* type;
    unsigned char log_alignment, kind;
};

[[noreturn]] void fail(int error, const Place& place, const std::string& what) {
    const std::string words =
        what + ", at " + place.file + ":" + std::to_string(place.line);
    emulated::fail(error, words.c_str());
}

}  // namespace

extern "C" {

void __ubsan_handle_type_mismatch_v1(const Access* access, unsigned long address) {
    const unsigned long alignment = 1ul << access->log_alignment;
    fail(misaligned_address, access->place,
         std::string("a misaligned address, ") + std::to_string(address % alignment) +
             " bytes behind a multiple of " + std::to_string(alignment) + ", of " +
             access->type->name);
}

void __ubsan_handle_divrem_overflow(const Place* place, unsigned long, unsigned long) {
    fail(launch_failure, *place, "a division of integers that overflows or is by zero, whose "
         "outcome is not emulated");
}

void __ubsan_handle_shift_out_of_bounds(const Place* place, unsigned long, unsigned long) {
    fail(launch_failure, *place, "a shift by as many bits as the number has, or by a negative "
         "number, whose outcome is not emulated");
}

}
