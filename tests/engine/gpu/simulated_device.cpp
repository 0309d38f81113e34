// kernel.cu on the simulated device.

#include "simulated_device.h"

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
inline void bulk_copy(void *target, const void *source, unsigned bytes, unsigned long long *barrier, unsigned long long) {
    if (bytes % 16 || (uintptr_t)source % 16 || (uintptr_t)target % 16) abort();
    fibers::block().copies.push_back({[=] { memcpy(target, source, bytes); }, bytes, (uint64_t *)barrier});
    memset(target, 0xff, bytes);  // whoever reads before it has landed reads no numbers
}
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

constexpr int SIMULATED_THREADS = THREADS + 32;
#include "simulated_run.h"

extern "C" int exchange_words() { return PARTIAL_AT + KV_HEADS * MEMBERS * QUERIES * PARTIAL_WORDS; }
extern "C" int launch_size() { return sizeof(Launch); }
