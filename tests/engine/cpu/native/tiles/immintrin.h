// AMX's instructions in plain numbers, so that the level amx can be run by any processor with AVX-512.
#pragma once
#include_next <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct Tiles {
    uint8_t palette = 0, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
    uint8_t numbers[8][16][64] = {};

    void configure(const void* config) { std::memcpy(static_cast<void*>(this), config, 64); }
    void load(int tile, const void* from, size_t stride) {
        std::memset(numbers[tile], 0, sizeof numbers[tile]);
        for (int row = 0; row < rows[tile]; ++row)
            std::memcpy(numbers[tile][row], static_cast<const char*>(from) + row * stride, bytes[tile]);
    }
    void store(int tile, void* to, size_t stride) const {
        for (int row = 0; row < rows[tile]; ++row)
            std::memcpy(static_cast<char*>(to) + row * stride, numbers[tile][row], bytes[tile]);
    }
    // Adds to each number of a tile what `product` makes of four bytes of a row of another and four of a column of a third.
    template <class Number, class Product> void multiply(int sums, int left, int right, Product product) {
        for (int row = 0; row < rows[sums]; ++row)
            for (int inner = 0; inner < bytes[left] / 4; ++inner)
                for (int column = 0; column < bytes[sums] / 4; ++column) {
                    Number sum;
                    uint8_t* const at = numbers[sums][row] + 4 * column;
                    std::memcpy(&sum, at, 4);
                    sum += product(numbers[left][row] + 4 * inner, numbers[right][inner] + 4 * column);
                    std::memcpy(at, &sum, 4);
                }
    }
};

inline thread_local Tiles tiles;

inline int32_t signed_times_unsigned(const uint8_t* left, const uint8_t* right) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += int8_t(left[i]) * int32_t(right[i]);
    return sum;
}

inline float bfloat16_products(const uint8_t* left, const uint8_t* right) {
    float sum = 0.0f;
    for (int i = 0; i < 4; i += 2) {
        const uint32_t bits[] = {uint32_t(left[i]) << 16 | uint32_t(left[i + 1]) << 24,
                                 uint32_t(right[i]) << 16 | uint32_t(right[i + 1]) << 24};
        float factors[2];
        std::memcpy(factors, bits, sizeof factors);
        sum += factors[0] * factors[1];
    }
    return sum;
}

}  // namespace

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) tiles.configure(config)
#define _tile_release() (tiles = Tiles())
#define _tile_zero(tile) std::memset(tiles.numbers[tile], 0, sizeof tiles.numbers[tile])
#define _tile_loadd(tile, from, stride) tiles.load(tile, from, stride)
#define _tile_stored(tile, to, stride) tiles.store(tile, to, stride)
#define _tile_dpbsud(sums, left, right) tiles.multiply<int32_t>(sums, left, right, signed_times_unsigned)
#define _tile_dpbf16ps(sums, left, right) tiles.multiply<float>(sums, left, right, bfloat16_products)
