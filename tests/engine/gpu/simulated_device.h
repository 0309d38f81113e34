// A persistent kernel as a program of the host: every CUDA thread is a fiber, and a seeded generator picks who runs next.
//
// Shared memory, mbarriers, bulk copies, shuffles and tagged words do here what they do on the device, with every wait a
// switch to another fiber, so that each order of the threads that a seed makes is a test of the exchange. Memory is
// sequentially consistent; what the device's fences are for is not tested.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#define SIMULATED
#define __noinline__
#define __constant__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

struct Shared;
struct Word;

namespace fibers {

constexpr size_t STACK = 64 << 10;

struct Collective {  // a barrier of `size` fibers that carries one value of each
    size_t size = 0;
    int round = 0;
    std::vector<int> waiting;
    uint32_t values[2][32][6];
};

struct Copy { std::function<void()> land; uint32_t bytes; uint64_t *barrier; };

struct BlockState {
    std::vector<char> memory;
    Collective warps[16], consumers, all;
    std::vector<Copy> copies;
};

struct Fiber {
    jmp_buf context;
    ucontext_t first;  // enters the fiber once; later switches are jumps, which need no system call
    std::unique_ptr<char[]> stack;
    int number, block, thread;
    bool begun = false;
};

std::vector<Fiber> fibers;
std::vector<BlockState> blocks;
std::vector<int> runnable;
Fiber *current;
jmp_buf scheduler;
uint64_t generator, clock_ticks;

uint64_t random() {
    generator ^= generator << 13, generator ^= generator >> 7, generator ^= generator << 17;
    return generator;
}

void suspend() {
    if (!_setjmp(current->context)) _longjmp(scheduler, 1);
}

void yield() {  // to be picked again at any time
    clock_ticks++;
    runnable.push_back(current->number);
    suspend();
}

BlockState &block() { return blocks[current->block]; }

typedef const uint32_t (*Values)[6];

Values meet(Collective &collective, int place, std::initializer_list<uint32_t> own) {
    auto values = collective.values[collective.round];
    std::copy(own.begin(), own.end(), values[place]);
    if (collective.waiting.size() + 1 < collective.size) {
        collective.waiting.push_back(current->number);
        suspend();
    } else {
        runnable.insert(runnable.end(), collective.waiting.begin(), collective.waiting.end());
        collective.waiting.clear();
        collective.round ^= 1;
    }
    return values;
}

}  // namespace fibers

// An mbarrier: the count of arrivals, those still pending, bytes still to come, and the phase, 16 bits each but the bytes.
struct SimulatedBarrier {
    uint8_t count, pending, phase, unused;
    int32_t bytes;
    void settle() {
        if (pending == 0 && bytes == 0) pending = count, phase ^= 1;
    }
};

constexpr size_t SHARED_ALIGNMENT = 1024;
inline Shared &shared_memory() {
    auto address = (uintptr_t)fibers::block().memory.data();
    return *reinterpret_cast<Shared *>((address + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT);
}
inline void barrier_init(unsigned long long *barrier, unsigned arrivals) {
    *(SimulatedBarrier *)barrier = {(uint8_t)arrivals, (uint8_t)arrivals, 0, 0, 0};
}
inline void barrier_arrive(unsigned long long *barrier) {
    auto &state = *(SimulatedBarrier *)barrier;
    if (state.pending == 0) abort();  // more arrivals than the barrier counts
    state.pending--, state.settle();
}
inline void barrier_expect(unsigned long long *barrier, unsigned bytes) {
    auto &state = *(SimulatedBarrier *)barrier;
    if (state.pending == 0) abort();
    state.bytes += bytes, state.pending--, state.settle();
}
inline bool barrier_passed(unsigned long long *barrier, unsigned parity) {
    auto &state = *(SimulatedBarrier *)barrier;
    if (state.phase != parity) return true;
    fibers::yield();
    auto &copies = fibers::block().copies;
    if (!copies.empty() && fibers::random() % 4 == 0) {  // some copy lands, not always the oldest
        size_t i = fibers::random() % copies.size();
        fibers::Copy copy = copies[i];
        copies.erase(copies.begin() + i);
        copy.land();
        auto &landed = *(SimulatedBarrier *)copy.barrier;
        landed.bytes -= copy.bytes, landed.settle();
    }
    return state.phase != parity;
}
inline bool barrier_is_past(unsigned long long *barrier, unsigned parity) {
    fibers::yield();
    return ((SimulatedBarrier *)barrier)->phase != parity;
}
inline void publish_barriers() {}
inline unsigned long long evict_first() { return 0; }
inline void consumers_sync() { fibers::meet(fibers::block().consumers, 0, {}); }
inline void block_sync() { fibers::meet(fibers::block().all, 0, {}); }
inline uint32_t from_lane(uint32_t value, int lane_mask) {
    int lane = fibers::current->thread % 32;
    return fibers::meet(fibers::block().warps[fibers::current->thread / 32], lane, {value})[lane ^ lane_mask][0];
}
inline void warp_sync() { from_lane(0, 0); }
inline void fence() {}
inline void fence_for_copies() {}
inline int load_status(const int *status) { return *status; }
inline bool claim_status(int *status, int error) { return *status ? false : (*status = error, true); }
inline float bits_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline unsigned float_bits(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
inline float from_lane_xor(float value, int mask) { return bits_float(from_lane(float_bits(value), mask)); }
inline int from_lane_xor(int value, int mask) { return (int)from_lane((uint32_t)value, mask); }
inline long long now() { return (long long)++fibers::clock_ticks; }
inline int block_index() { return fibers::current->block; }
inline int thread_index() { return fibers::current->thread; }
inline unsigned bfloat16_bits(float value) {
    unsigned bits = float_bits(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned bfloat16_pair(float low, float high) { return bfloat16_bits(low) | bfloat16_bits(high) << 16; }
inline float rsqrtf(float value) { return 1.f / sqrtf(value); }
inline float __expf(float value) { return expf(value); }
inline float float16_float(unsigned short bits) {  // without infinities
    unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent ? ldexpf(1024 + fraction, (int)exponent - 25) : ldexpf(fraction, -24);
    return bits & 0x8000 ? -value : value;
}
inline unsigned float16_bits(float value) {  // of numbers that are neither large nor tiny
    if (value == 0) return 0;
    int exponent;
    unsigned fraction = (unsigned)lrintf(ldexpf(frexpf(fabsf(value), &exponent), 11));
    if (exponent < -13) return 0;
    return (value < 0 ? 0x8000 : 0) + ((unsigned)(exponent + 14) << 10) + fraction - 1024;
}
inline float power_of_two(float exponent) { return exp2f(exponent); }
inline float quotient(float a, float b) { return a / b; }
inline unsigned masked_or(unsigned bits, unsigned mask, unsigned others) { return (bits & mask) | others; }
inline unsigned float16_pair(float low, float high) { return float16_bits(low) | float16_bits(high) << 16; }
inline float half_of(unsigned pair, int half) { return bits_float(half ? pair & 0xffff0000u : pair << 16); }
