// Copy many arrays.

#include "blocks.cuh"

struct Copies {
    const char* source[MAX_PIECES];
    char* destination[MAX_PIECES];
    u64 nbytes[MAX_PIECES];
    const int* skip;  // null, or the address of a flag: copy only if the flag is 0
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Copies) == ARGUMENT_BYTES, "not the layout that the launch fills");

// Loads of a thread that are in flight at once: a store may wait for its load, no load for a store.
static const int TOGETHER = 4;

template <class Word>
__device__ inline void copy_words(const char* source, char* destination, u64 nbytes) {
    const Word* __restrict__ from = reinterpret_cast<const Word*>(source);
    Word* __restrict__ to = reinterpret_cast<Word*>(destination);
    const u64 words = nbytes / sizeof(Word);
    u64 i = threadIdx.x;
    for (; i + (TOGETHER - 1) * blockDim.x < words; i += TOGETHER * blockDim.x) {
        Word kept[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            kept[k] = from[i + k * blockDim.x];
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
            to[i + k * blockDim.x] = kept[k];
        }
    }
    for (; i < words; i += blockDim.x) {
        to[i] = from[i];
    }
    for (u64 j = words * sizeof(Word) + threadIdx.x; j < nbytes; j += blockDim.x) {
        destination[j] = source[j];
    }
}

extern "C" __global__ void copy(const __grid_constant__ Copies copies) {
    if (copies.skip && *copies.skip) {
        return;
    }
    const unsigned i = piece_of(copies.first, copies.count, blockIdx.x);
    const u64 done = u64(blockIdx.x - copies.first[i]) * PER_BLOCK;
    const u64 left = copies.nbytes[i] - done;
    const u64 nbytes = left < PER_BLOCK ? left : PER_BLOCK;
    const char* source = copies.source[i] + done;
    char* destination = copies.destination[i] + done;
    const u64 addresses = reinterpret_cast<u64>(source) | reinterpret_cast<u64>(destination);
    if (addresses % 16 == 0) {
        copy_words<uint4>(source, destination, nbytes);
    } else if (addresses % 8 == 0) {
        copy_words<u64>(source, destination, nbytes);
    } else if (addresses % 4 == 0) {
        copy_words<unsigned>(source, destination, nbytes);
    } else if (addresses % 2 == 0) {
        copy_words<unsigned short>(source, destination, nbytes);
    } else {
        copy_words<char>(source, destination, nbytes);
    }
}
