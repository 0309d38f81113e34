// Vectors in GCC's and Clang's extensions: what every level must offer, and what it means. Runs on any processor.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int W = 4;           // floats of a vector
constexpr int TOKENS = 2;      // tokens that share a weight in registers
constexpr int ROWS = 2;        // queries that share a key in registers, or rows that share tokens
constexpr bool TOKENS_SIDE_BY_SIDE = false;  // whether the registers hold the sums of all TOKENS at once
constexpr int PREFETCH_DISTANCE = 0;          // bytes ahead of what one token reads; 0: the processor does it
constexpr bool SIGNED_CODES = true;  // dot() takes signed codes; otherwise unsigned ones, with 128 added

typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
typedef uint8_t B __attribute__((vector_size(16)));  // codes: four neighbours of each of W rows
struct Block { const int8_t* codes; };               // 32 quantized inputs

inline F set(float x) { return F{x, x, x, x}; }
inline F load(const float* p) { F r; std::memcpy(&r, p, sizeof r); return r; }
inline void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
inline F fma(F a, F b, F c) { return a * b + c; }
inline F mul(F a, float b) { return a * b; }
inline F fma(F a, float b, F c) { return a * b + c; }
inline F max(F a, F b) { return a > b ? a : b; }
// Of W numbers, the i-th quarter, each four times
struct FourTimes {
    const float* numbers;
    explicit FourTimes(const float* p) : numbers(p) {}
    inline float operator[](int i) const { return numbers[i]; }
};
inline float reduce_add(F a) { return (a[0] + a[1]) + (a[2] + a[3]); }
inline float reduce_max(F a) {
    const float low = a[0] > a[1] ? a[0] : a[1], high = a[2] > a[3] ? a[2] : a[3];
    return low > high ? low : high;
}

inline float half(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t bits = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + (112u << 23));
    if (rest < 0x400) {
        const float tiny = float(rest) * 5.9604644775390625e-8f;
        std::memcpy(&bits, &tiny, 4);
        bits |= sign;
    }
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline F load_f16(const uint16_t* p) { return F{half(p[0]), half(p[1]), half(p[2]), half(p[3])}; }
inline F load_bf16(const uint16_t* p) {
    const I bits = {int32_t(uint32_t(p[0]) << 16), int32_t(uint32_t(p[1]) << 16), int32_t(uint32_t(p[2]) << 16),
                    int32_t(uint32_t(p[3]) << 16)};
    return F(bits);
}
inline void load_two_bf16(const uint16_t* p, F* two) { two[0] = load_bf16(p), two[1] = load_bf16(p + W); }
inline F load_int8(const int8_t* p) { return F{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }
// The bytes of W of a tile's 16 rows; unsigned ones with BYTE_BIAS added, a power of two, if that is quicker
constexpr float BYTE_BIAS = 0.0f;
inline F biased_bytes(const uint8_t* tile, int vector) {
    const uint8_t* p = tile + vector * W;
    return F{float(p[0]), float(p[1]), float(p[2]), float(p[3])};
}
inline F signed_bytes(const uint8_t* tile, int vector) {
    return load_int8(reinterpret_cast<const int8_t*>(tile) + vector * W);
}
inline F low_bits_as_exponent(F x) { return F(I(x) << 23); }
inline F zero_below(F x, float least, F value) { return F(~(x < set(least)) & I(value)); }    // 0 where x is below

inline I zero_sum() { return I{0, 0, 0, 0}; }                        // what dot() starts from
inline F to_float(I x) { return __builtin_convertvector(x, F); }     // its result
inline I add_times_64(I x, I y) { return x + y * 64; }
inline B load_codes(const uint8_t* p) { B r; std::memcpy(&r, p, sizeof r); return r; }
inline B to_dot_codes(B x) { return x; }                                   // signed codes as dot() takes them
template <int S> inline B right(B x) { return x >> S; }            // may bring in neighbours' bits, to be masked
template <int S> inline B left(B x) { return x << S; }
inline B bit_and(B x, uint8_t mask) { return x & mask; }
inline B bit_or(B x, B y) { return x | y; }
inline B high_nibble(B x) { return x >> 4; }                             // the upper half of each byte
inline B look_up(B x, const uint8_t* table) {                            // of numbers below 16
    B r;
    for (int i = 0; i < 16; ++i) r[i] = table[x[i]];
    return r;
}
inline B high_bits(B a, B b, B c) { return a >> 6 | (b >> 4 & 12) | (c >> 2 & 48); }  // the upper two bits of each
inline Block load_block(const int8_t* codes) { return {codes}; }
template <int G, int BITS> inline I dot(I r, B x, const Block& a) {          // each row's four codes with inputs 4G to 4G+3
    int8_t codes[16];
    std::memcpy(codes, &x, 16);
    const int8_t* in = a.codes + 4 * G;
    for (int row = 0; row < 4; ++row, in = a.codes + 4 * G)
        r[row] += codes[4 * row] * in[0] + codes[4 * row + 1] * in[1] + codes[4 * row + 2] * in[2] + codes[4 * row + 3] * in[3];
    return r;
}

}  // namespace
