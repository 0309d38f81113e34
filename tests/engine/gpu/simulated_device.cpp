// kernel.cu as a program of the host: every CUDA thread is a fiber, and a seeded generator picks who runs next.
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
#include <initializer_list>
#include <memory>
#include <vector>

#define SIMULATED
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

struct Copy { char *target; const char *source; uint32_t bytes; uint64_t *barrier; };

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

inline Shared &shared_memory() { return *reinterpret_cast<Shared *>(fibers::block().memory.data()); }
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
        memcpy(copy.target, copy.source, copy.bytes);
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
inline void bulk_copy(void *target, const void *source, unsigned bytes, unsigned long long *barrier, unsigned long long) {
    if (bytes % 16 || (uintptr_t)source % 16 || (uintptr_t)target % 16) abort();
    fibers::block().copies.push_back({(char *)target, (const char *)source, bytes, (uint64_t *)barrier});
    memset(target, 0xff, bytes);  // whoever reads before it has landed reads no numbers
}
inline void consumers_sync() { fibers::meet(fibers::block().consumers, 0, {}); }
inline void block_sync() { fibers::meet(fibers::block().all, 0, {}); }
inline uint32_t from_lane(uint32_t value, int lane_mask) {
    int lane = fibers::current->thread % 32;
    return fibers::meet(fibers::block().warps[fibers::current->thread / 32], lane, {value})[lane ^ lane_mask][0];
}
inline void warp_sync() { from_lane(0, 0); }
inline void fence() {}
inline void fence_for_copies() {}
inline void put(Word *word, unsigned value, unsigned tag) {
    unsigned pair[2] = {value, tag};
    memcpy((void *)word, pair, 8);
}
inline uint4 get_two(const Word *words) {
    if ((uintptr_t)words % 16) abort();
    uint4 two;
    fibers::yield();
    memcpy(&two, words, 16);
    return two;
}
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
inline void multiply_tiles(float (&sums)[4], uint4 a, unsigned b0, unsigned b1) {
    int lane = fibers::current->thread % 32;
    auto of = fibers::meet(fibers::block().warps[fibers::current->thread / 32], lane, {a.x, a.y, a.z, a.w, b0, b1});
    for (int i = 0; i < 4; i++) {
        int lower = i / 2, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const uint32_t *row_of_a = of[lane / 4 * 4 + k % 8 / 2], *row_of_b = of[column * 4 + k % 8 / 2];
            sums[i] += half_of(row_of_a[lower + k / 8 * 2], k % 2) * half_of(row_of_b[4 + k / 8], k % 2);
        }
    }
}

#include "kernel.cu"

static const Launch *simulated_launch;

static void run_fiber() {
    decode(*simulated_launch);
    _longjmp(fibers::scheduler, 1);
}

static void resume(fibers::Fiber &fiber) {
    fibers::current = &fiber;
    if (_setjmp(fibers::scheduler)) return;
    if (fiber.begun) _longjmp(fiber.context, 1);
    fiber.begun = true;
    setcontext(&fiber.first);
}

// Runs a launch to its end; 0, or 1 if it was not over after `limit` switches.
extern "C" int simulate(const Launch *launch, uint64_t seed, uint64_t limit) {
    using namespace fibers;
    simulated_launch = launch, generator = seed * 2 + 1, clock_ticks = 0;
    blocks = std::vector<BlockState>(BLOCKS);
    std::vector<Fiber>(BLOCKS * (THREADS + 32)).swap(fibers::fibers);
    runnable.clear();
    for (auto &state : blocks) {
        state.memory.assign(SHARED_BYTES, (char)0xff);
        state.consumers.size = THREADS, state.all.size = THREADS + 32;
        for (auto &warp : state.warps) warp.size = 32;
    }
    for (auto &fiber : fibers::fibers) {
        fiber.number = (int)(&fiber - fibers::fibers.data());
        fiber.block = fiber.number / (THREADS + 32), fiber.thread = fiber.number % (THREADS + 32);
        fiber.stack = std::make_unique<char[]>(STACK);
        getcontext(&fiber.first);
        fiber.first.uc_stack = {fiber.stack.get(), 0, STACK};
        makecontext(&fiber.first, run_fiber, 0);
        runnable.push_back(fiber.number);
    }
    for (uint64_t switches = 0; !runnable.empty(); switches++) {
        if (switches > limit) return 1;
        std::swap(runnable[fibers::random() % runnable.size()], runnable.back());
        int number = runnable.back();
        runnable.pop_back();
        resume(fibers::fibers[number]);
    }
    return 0;
}

extern "C" int exchange_words() { return PARTIAL_AT + KV_HEADS * MEMBERS * QUERIES * PARTIAL_WORDS; }
extern "C" int launch_size() { return sizeof(Launch); }
