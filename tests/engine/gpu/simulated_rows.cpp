// decode.cu on the simulated device.

#include "simulated_device.h"

struct alignas(64) TensorMap {  // as simulation.py writes it; sizes are counted from the dimension that lies side by side
    const char *data;
    uint64_t sizes[4], strides[3];
    uint32_t box[4];
    char unused[48];
};

inline void take_registers() {}
inline void give_registers() {}
inline void opaque(int &) {}
inline void pause() { fibers::yield(); }
// Rows of 128 bytes, the next pair of the third dimension, then of the fourth; pieces of sixteen bytes change places by their
// address. Beyond the tensor there are zeros.
inline void land_box(char *target, const TensorMap &map, unsigned row, unsigned column_block) {
    for (unsigned block = 0; block < map.box[3]; block++)
        for (unsigned half = 0; half < map.box[2]; half++)
            for (unsigned r = 0; r < map.box[1]; r++) {
                bool inside = row + r < map.sizes[1] && column_block + block < map.sizes[3];
                const char *source = map.data + (row + r) * map.strides[0] + half * map.strides[1] + (column_block + block) * map.strides[2];
                for (unsigned piece = 0; piece < 8; piece++) {
                    char *line = target + ((block * map.box[2] + half) * map.box[1] + r) * 128;
                    char *place = line + (piece ^ (uintptr_t)line / 128 % 8) * 16;
                    if (inside) memcpy(place, source + piece * 16, 16);
                    else memset(place, 0, 16);
                }
            }
}
inline void copy_box(void *target, const TensorMap *map, int row, int column_block, unsigned long long *barrier, unsigned long long) {
    unsigned bytes = map->box[0] * map->box[1] * map->box[2] * map->box[3] * 2;
    if (map->box[0] != 64 || (uintptr_t)target % 1024 || (uintptr_t)map % 64) abort();
    memset(target, 0xff, bytes);  // whoever reads before it has landed reads no numbers
    fibers::block().copies.push_back({[=] { land_box((char *)target, *map, row, column_block); }, bytes, (uint64_t *)barrier});
}
inline void put(Word *word, unsigned first, unsigned second, unsigned third, unsigned tag) {
    unsigned numbers[4] = {first, second, third, tag};
    memcpy((void *)word, numbers, 16);
}
inline uint4 get(const Word *word) {
    if ((uintptr_t)word % 16) abort();
    uint4 numbers;
    fibers::yield();
    memcpy(&numbers, word, 16);
    return numbers;
}
inline unsigned of_lane(unsigned value, int lane) {
    int own = fibers::current->thread % 32;
    return fibers::meet(fibers::block().warps[fibers::current->thread / 32], own, {value})[lane][0];
}
inline uint2 load_pair(const char *source) {
    uint2 pair;
    memcpy(&pair, source, 8);
    return pair;
}
inline uint4 load_transposed(const char *row) {
    int lane = fibers::current->thread % 32;
    auto address = (uintptr_t)row;
    auto of = fibers::meet(fibers::block().warps[fibers::current->thread / 32], lane, {(uint32_t)address, (uint32_t)(address >> 32)});
    unsigned result[4];
    for (int tile = 0; tile < 4; tile++) {
        unsigned short two[2];
        for (int i = 0; i < 2; i++) {
            const uint32_t *at = of[tile * 8 + lane % 4 * 2 + i];
            memcpy(two + i, (const char *)((uintptr_t)at[0] | (uintptr_t)at[1] << 32) + lane / 4 * 2, 2);
        }
        result[tile] = two[0] | (unsigned)two[1] << 16;
    }
    from_lane(0, 0);  // nobody overwrites what others still read
    return {result[0], result[1], result[2], result[3]};
}
template <bool FLOAT16> float number_of(unsigned pair, int half) {
    return FLOAT16 ? float16_float((unsigned short)(half ? pair >> 16 : pair)) : half_of(pair, half);
}
// Sixteen products are added one after the other. A tensor core adds them at once, and cuts bits off: its sums are others.
template <bool FLOAT16> inline void multiply_tiles(float (&sums)[4], uint4 a, unsigned b0, unsigned b1) {
    int lane = fibers::current->thread % 32;
    auto of = fibers::meet(fibers::block().warps[fibers::current->thread / 32], lane, {a.x, a.y, a.z, a.w, b0, b1});
    for (int i = 0; i < 2; i++)  // of the first eight rows
        for (int k = 0; k < 16; k++) {
            const uint32_t *row_of_a = of[lane / 4 * 4 + k % 8 / 2], *row_of_b = of[(lane % 4 * 2 + i) * 4 + k % 8 / 2];
            sums[i] += number_of<FLOAT16>(row_of_a[k / 8 * 2], k % 2) * number_of<FLOAT16>(row_of_b[4 + k / 8], k % 2);
        }
}
inline float reciprocal_root(float x) { return 1.f / sqrtf(x); }

#include "decode.cu"

constexpr int SIMULATED_THREADS = ALL_THREADS;
#include "simulated_run.h"

extern "C" int exchange_words(int chunks) { return PARTIAL_AT + ROWS * HEADS * chunks * (PARTIAL_WORDS / 2); }
extern "C" int launch_size() { return sizeof(Launch); }
