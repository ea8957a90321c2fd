// Update weights and states by a program's header, as kernels/host/update.py does.

#include "blocks.cuh"
#include "elements.cuh"
#include "arithmetic.cuh"

struct Updates {
    ELEMENT* weights;
    const ELEMENT* gradients;
    WORKING* states[MAX_STATES];
    WORKING* master;  // null, or weights that `weights` are the rounding of
    // Segment i is elements [start[i], start[i + 1]), with row i of the scalars.
    u64 start[MAX_PIECES + 1];
    const double* scalars;
    const int* skip;  // null, or the address of a flag: update only if the flag is 0
    // Null, or sums of squares: those of the segments, and what global_scale reads.
    const double* sums;
    const double* total;
    unsigned first[MAX_PIECES + 1];
    unsigned count;
};
static_assert(sizeof(Updates) == ARGUMENT_BYTES, "not the layout that the launch fills");

#ifdef NORMS
constexpr int SUMS = NORMS;
#else
constexpr int SUMS = 0;
#endif

// The elements in 16 bytes of weights, loaded and stored at once.
constexpr int LANES = 16 / sizeof(ELEMENT);
template <class T>
struct alignas(16) Lanes {
    T lane[LANES];
};

// Only such weights can have a master.
constexpr bool NARROW = sizeof(ELEMENT) < sizeof(WORKING);

// C++ has no arrays of no elements.
constexpr int SLOTS = STATES > 0 ? STATES : 1;

__device__ inline void update_groups(const scalars& s, Lanes<ELEMENT>* weights,
                                     const Lanes<ELEMENT>* gradients,
                                     Lanes<WORKING>* const* states, Lanes<WORKING>* master,
                                     u64 groups) {
    for (u64 i = threadIdx.x; i < groups; i += blockDim.x) {
        Lanes<ELEMENT> w = weights[i];
        const Lanes<ELEMENT> g = gradients[i];
        Lanes<WORKING> wide;
        if (NARROW && master) {
            wide = master[i];
        } else {
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                wide.lane[lane] = widen(w.lane[lane]);
            }
        }
        Lanes<WORKING> old[SLOTS];
#pragma unroll
        for (int k = 0; k < STATES; ++k) {
            old[k] = states[k][i];
        }
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            WORKING state[SLOTS];
#pragma unroll
            for (int k = 0; k < STATES; ++k) {
                state[k] = old[k].lane[lane];
            }
            wide.lane[lane] = step(&s, wide.lane[lane], widen(g.lane[lane]), state);
            w.lane[lane] = narrow(wide.lane[lane]);
#pragma unroll
            for (int k = 0; k < STATES; ++k) {
                old[k].lane[lane] = state[k];
            }
        }
        weights[i] = w;
        if (NARROW && master) {
            master[i] = wide;
        }
#pragma unroll
        for (int k = 0; k < STATES; ++k) {
            states[k][i] = old[k];
        }
    }
}

extern "C" __global__ void PROGRAM(const __grid_constant__ Updates updates) {
    if (updates.skip && *updates.skip) {
        return;
    }
    const unsigned i = piece_of(updates.first, updates.count, blockIdx.x);
    const u64 low = updates.start[i] + u64(blockIdx.x - updates.first[i]) * PER_BLOCK;
    const u64 left = updates.start[i + 1] - low;
    const u64 size = left < PER_BLOCK ? left : PER_BLOCK;
    const double* sums = updates.sums ? updates.sums + u64(i) * SUMS : nullptr;
    const scalars s = read_adapted(updates.scalars + u64(i) * SCALARS, sums, updates.total);
    ELEMENT* weights = updates.weights + low;
    const ELEMENT* gradients = updates.gradients + low;
    WORKING* states[SLOTS];
    u64 addresses = reinterpret_cast<u64>(weights) | reinterpret_cast<u64>(gradients);
    for (int k = 0; k < STATES; ++k) {
        states[k] = updates.states[k] + low;
        addresses |= reinterpret_cast<u64>(states[k]);
    }
    WORKING* master = updates.master ? updates.master + low : nullptr;
    addresses |= reinterpret_cast<u64>(master);
    u64 done = 0;
    if (addresses % 16 == 0) {
        Lanes<WORKING>* groups[SLOTS];
        for (int k = 0; k < STATES; ++k) {
            groups[k] = reinterpret_cast<Lanes<WORKING>*>(states[k]);
        }
        update_groups(s, reinterpret_cast<Lanes<ELEMENT>*>(weights),
                      reinterpret_cast<const Lanes<ELEMENT>*>(gradients), groups,
                      reinterpret_cast<Lanes<WORKING>*>(master), size / LANES);
        done = size / LANES * LANES;
    }
    for (u64 j = done + threadIdx.x; j < size; j += blockDim.x) {
        WORKING state[SLOTS];
        for (int k = 0; k < STATES; ++k) {
            state[k] = states[k][j];
        }
        const WORKING old = NARROW && master ? master[j] : widen(weights[j]);
        const WORKING updated = step(&s, old, widen(gradients[j]), state);
        weights[j] = narrow(updated);
        if (NARROW && master) {
            master[j] = updated;
        }
        for (int k = 0; k < STATES; ++k) {
            states[k][j] = state[k];
        }
    }
}
