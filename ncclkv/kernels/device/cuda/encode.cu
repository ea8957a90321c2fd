// Encode gradients with their residuals, as kernels/host/c/quantise.h does.
//
// A thread has the codes of a byte.

#include "codes.cuh"

// What a block has found: the sum of its gradients' squares, and its residuals beyond the bound.
struct Found {
    double squares;
    u64 beyond;
};

struct Encodings {
    float* residual[MAX_PIECES];
    u64 start[MAX_PIECES];  // the first gradient of a piece: that of a whole word of the payload
    u64 size[MAX_PIECES];
    const float* gradients;
    unsigned char* payload;
    Found* found;     // one for each block
    const int* skip;  // null, or the address of a flag: encode only if the flag is 0
    float threshold;
    float bound;
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Encodings) == ARGUMENT_BYTES, "not the layout that the launch fills");
static_assert(PER_BLOCK % (4 * PER_BYTE) == 0, "a block begins at a whole word");

// 11: the threshold; 10: its negative; 00: nothing.
__device__ inline unsigned quantise_2bit(float& sum, float threshold) {
    if (sum >= threshold) {
        sum -= threshold;
        return 3;
    }
    if (sum <= -threshold) {
        sum += threshold;
        return 2;
    }
    return 0;
}

// 1: one; 0: its negative.
__device__ inline unsigned quantise_1bit(float& sum, float threshold) {
    const bool up = sum > threshold;
    sum -= up ? 1.0f : -1.0f;
    return up;
}

// The gradients and residuals of one byte, of which the last has fewer.
struct Tile {
    alignas(16) float gradient[PER_BYTE];
    alignas(16) float residual[PER_BYTE];

    __device__ void load(const float* gradients, const float* residuals, int count, bool aligned) {
        if (aligned && count == PER_BYTE) {
            copy_lanes(gradients, gradient);
            copy_lanes(residuals, residual);
            return;
        }
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            if (k < count) {
                gradient[k] = gradients[k];
                residual[k] = residuals[k];
            }
        }
    }

    __device__ void store(float* residuals, int count, bool aligned) const {
        if (aligned && count == PER_BYTE) {
            copy_lanes(residual, residuals);
            return;
        }
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            if (k < count) {
                residuals[k] = residual[k];
            }
        }
    }
};

// Write the sum of what the threads of a block have found.
__device__ inline void write_total(const Found& found, Found* out) {
    __shared__ Found all[THREADS];
    all[threadIdx.x] = found;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            all[threadIdx.x].squares += all[threadIdx.x + half].squares;
            all[threadIdx.x].beyond += all[threadIdx.x + half].beyond;
        }
    }
    if (threadIdx.x == 0) {
        *out = all[0];
    }
}

extern "C" __global__ void encode(const __grid_constant__ Encodings encodings) {
    if (encodings.skip && *encodings.skip) {
        return;
    }
    const unsigned i = piece_of(encodings.first, encodings.count, blockIdx.x);
    const u64 done = u64(blockIdx.x - encodings.first[i]) * PER_BLOCK;
    const u64 left = encodings.size[i] - done;
    const u64 size = left < PER_BLOCK ? left : PER_BLOCK;
    const u64 begin = encodings.start[i] + done;
    const float* gradients = encodings.gradients + begin;
    float* residuals = encodings.residual[i] + done;
    unsigned char* bytes = encodings.payload + begin / PER_BYTE;
    const u64 addresses = reinterpret_cast<u64>(gradients) | reinterpret_cast<u64>(residuals);
    const bool aligned = addresses % 16 == 0;
    const u64 words = (size + 4 * PER_BYTE - 1) / (4 * PER_BYTE);
    Found found = {};
    for (u64 j = threadIdx.x; j < 4 * words; j += blockDim.x) {
        const u64 low = j * PER_BYTE;
        const int count = low >= size ? 0 : size - low < PER_BYTE ? int(size - low) : PER_BYTE;
        Tile tile;
        tile.load(gradients + low, residuals + low, count, aligned);
        unsigned byte = 0;
#pragma unroll
        for (int k = 0; k < PER_BYTE; ++k) {
            unsigned code = 0;
            if (k < count) {
                float sum = tile.residual[k] + tile.gradient[k];
                code = QUANTISE(sum, encodings.threshold);
                tile.residual[k] = sum;
                found.beyond += fabsf(sum) > encodings.bound;
                found.squares += double(tile.gradient[k]) * double(tile.gradient[k]);
            }
            byte = byte << BITS | code;
        }
        tile.store(residuals + low, count, aligned);
        bytes[j] = static_cast<unsigned char>(byte);
    }
    write_total(found, encodings.found + blockIdx.x);
}
