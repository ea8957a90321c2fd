// Add the values of a sender to the elements that its indices name.

#include "blocks.cuh"

struct Adds {
    u64 payload[MAX_PIECES];  // the first byte of a key in the payload
    u64 kept[MAX_PIECES];     // the values of a key
    long long shift[MAX_PIECES];  // added to an index, it gives the place in `out`
    const unsigned char* bytes;
    float* out;
    u64 size;
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Adds) == ARGUMENT_BYTES, "not the layout that the launch fills");

extern "C" __global__ void top_add(const __grid_constant__ Adds adds) {
    const unsigned i = piece_of(adds.first, adds.count, blockIdx.x);
    const u64 begin = u64(blockIdx.x - adds.first[i]) * PER_BLOCK;
    const u64 end = begin + PER_BLOCK < adds.kept[i] ? begin + PER_BLOCK : adds.kept[i];
    const int* indices = reinterpret_cast<const int*>(adds.bytes + adds.payload[i]);
    const float* values = reinterpret_cast<const float*>(indices + adds.kept[i]);
    for (u64 j = begin + threadIdx.x; j < end; j += blockDim.x) {
        // A key of which `out` has a part has other elements, too.
        const long long place = adds.shift[i] + indices[j];
        if (place >= 0 && u64(place) < adds.size) {
            adds.out[place] += values[j];
        }
    }
}
