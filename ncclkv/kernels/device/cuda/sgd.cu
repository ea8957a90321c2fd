// One step of stochastic gradient descent: kernels/host/update.py, operation for operation.

#include "blocks.cuh"
#include "elements.cuh"

struct Steps {
    ELEMENT* weights;
    const ELEMENT* gradients;
    WORKING* momenta;  // or null
    // Segment i is elements [start[i], start[i + 1]), with factors of its own.
    u64 start[MOST + 1];
    double lr_mult[MOST];
    double wd_mult[MOST];
    double learning_rate;
    double momentum;
    double weight_decay;
    double rescale;
    double clip;  // negative: there is none
    const double* learning_rate_at;  // or null: where the learning rate is, if it is not above
    const int* skip;                 // or null: where the number is that is 0 if all is to be done
    unsigned first[MOST + 1];
    unsigned count;
};
static_assert(sizeof(Steps) == ARGUMENT_BYTES, "not the layout that the launch fills");

// What 16 bytes of weights hold is loaded and stored at once.
constexpr int LANES = 16 / sizeof(ELEMENT);
template <class T>
struct alignas(16) Lanes {
    T lane[LANES];
};

__device__ inline double rate_of(const Steps& steps) {
    return steps.learning_rate_at ? *steps.learning_rate_at : steps.learning_rate;
}

// The numbers of a segment.  NumPy too rounds a number to the dtype of the array it meets.
struct Numbers {
    WORKING learning_rate, momentum, weight_decay, rescale, clip;
    bool decays, clips;

    __device__ Numbers(const Steps& steps, unsigned segment)
        : learning_rate(static_cast<WORKING>(rate_of(steps) * steps.lr_mult[segment])),
          momentum(static_cast<WORKING>(steps.momentum)),
          weight_decay(static_cast<WORKING>(steps.weight_decay * steps.wd_mult[segment])),
          rescale(static_cast<WORKING>(steps.rescale)),
          clip(static_cast<WORKING>(steps.clip)),
          decays(steps.weight_decay * steps.wd_mult[segment] != 0),
          clips(steps.clip >= 0) {}
};

template <bool MOMENTUM>
__device__ inline void update(const Numbers& n, ELEMENT& stored, ELEMENT gradient, WORKING& moment) {
    WORKING weight = widen(stored);
    WORKING change = widen(gradient) * n.rescale;
    if (n.clips) {
        // NaN passes: it compares false.
        change = change < -n.clip ? -n.clip : change > n.clip ? n.clip : change;
    }
    if (n.decays) {
        change = change + weight * n.weight_decay;
    }
    change = change * n.learning_rate;
    if (MOMENTUM) {
        moment = moment * n.momentum - change;
        weight = weight + moment;
    } else {
        weight = weight - change;
    }
    stored = narrow(weight);
}

template <bool MOMENTUM>
__device__ void update_range(const Numbers& n, ELEMENT* __restrict__ weights,
                             const ELEMENT* __restrict__ gradients, WORKING* __restrict__ momenta,
                             u64 size) {
    u64 done = 0;
    const u64 addresses = reinterpret_cast<u64>(weights) | reinterpret_cast<u64>(gradients) |
                          (MOMENTUM ? reinterpret_cast<u64>(momenta) : 0);
    if (addresses % 16 == 0) {
        const u64 groups = size / LANES;
        for (u64 i = threadIdx.x; i < groups; i += blockDim.x) {
            Lanes<ELEMENT> w = reinterpret_cast<Lanes<ELEMENT>*>(weights)[i];
            const Lanes<ELEMENT> g = reinterpret_cast<const Lanes<ELEMENT>*>(gradients)[i];
            Lanes<WORKING> m;
            if (MOMENTUM) {
                m = reinterpret_cast<Lanes<WORKING>*>(momenta)[i];
            }
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                update<MOMENTUM>(n, w.lane[lane], g.lane[lane], m.lane[lane]);
            }
            reinterpret_cast<Lanes<ELEMENT>*>(weights)[i] = w;
            if (MOMENTUM) {
                reinterpret_cast<Lanes<WORKING>*>(momenta)[i] = m;
            }
        }
        done = groups * LANES;
    }
    for (u64 i = done + threadIdx.x; i < size; i += blockDim.x) {
        WORKING unused = WORKING(0);
        update<MOMENTUM>(n, weights[i], gradients[i], MOMENTUM ? momenta[i] : unused);
    }
}

extern "C" __global__ void sgd(const __grid_constant__ Steps steps) {
    if (steps.skip && *steps.skip) {
        return;
    }
    const unsigned i = piece_of(steps.first, steps.count, blockIdx.x);
    const u64 low = steps.start[i] + u64(blockIdx.x - steps.first[i]) * PER_BLOCK;
    const u64 left = steps.start[i + 1] - low;
    const u64 size = left < PER_BLOCK ? left : PER_BLOCK;
    const Numbers numbers(steps, i);
    ELEMENT* weights = steps.weights + low;
    const ELEMENT* gradients = steps.gradients + low;
    if (steps.momenta) {
        update_range<true>(numbers, weights, gradients, steps.momenta + low, size);
    } else {
        update_range<false>(numbers, weights, gradients, nullptr, size);
    }
}
