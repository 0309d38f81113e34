// NEON; with the dot-product instructions where the level has them.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace {

constexpr int W = 4;
constexpr int TOKENS = 8;
constexpr int ROWS = 4;
constexpr bool TOKENS_SIDE_BY_SIDE = false;
constexpr int PREFETCH_DISTANCE = 0;
constexpr bool SIGNED_CODES = true;

using F = float32x4_t;
using I = int32x4_t;
using B = uint8x16_t;
struct Block { int8x16_t first, second; };

// What an instruction adds to is overwritten. Compilers load it once and copy it each time, which takes a dot instruction's
// place; to load it each time takes nothing's. They do so if it seems to depend on something else, too, that differs.
#define HAS_RELOAD
template <class V> inline V reload(const void* p, const void* differs) {
    V x;
    __asm__("ldr %q0, %1" : "=w"(x) : "m"(*static_cast<const V*>(p)), "m"(*static_cast<const uint8_t*>(differs)));
    return x;
}

inline F set(float x) { return vdupq_n_f32(x); }
inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F x) { vst1q_f32(p, x); }
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F div(F a, F b) { return vdivq_f32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F mul(F a, float b) { return vmulq_n_f32(a, b); }
inline F fma(F a, float b, F c) { return vfmaq_n_f32(c, a, b); }
inline F max(F a, F b) { return vmaxnmq_f32(a, b); }
#define HAS_LANES
constexpr int LANES = 4;
// Numbers of which an instruction takes one at a time: four in a register take less room than in four.
template <int N> struct Lanes {
    const float* numbers;
    explicit Lanes(const float* p) : numbers(p) {}
    inline float operator[](int lane) const { return numbers[lane]; }
};
template <> struct Lanes<4> {
    F numbers;
    explicit Lanes(const float* p) : numbers(load(p)) {}
    inline float operator[](int lane) const { return numbers[lane]; }
};
using FourTimes = Lanes<4>;
inline float reduce_add(F a) { return vaddvq_f32(a); }
inline float reduce_max(F a) { return vmaxnmvq_f32(a); }

inline F load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
#define HAS_STORE_F16
inline void store_f16(F x, uint16_t* p) {  // what is out of range becomes the largest; NaN stays NaN
    x = vminq_f32(vmaxq_f32(x, set(-65504.0f)), set(65504.0f));
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
inline F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline void load_two_bf16(const uint16_t* p, F* two) {
    const uint16x8_t eight = vld1q_u16(p);
    two[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(eight), 16));
    two[1] = vreinterpretq_f32_u32(vshll_high_n_u16(eight, 16));
}
// Bytes as floats: each above the bits of 2^23, which is a float but for that number. (A conversion is slower.)
constexpr float BYTE_BIAS = 8388608.0f;
inline F byte_lanes_biased(uint8x16_t bytes, int vector) {
    static const uint8_t places[4][16] = {
        {0, 16, 16, 17, 1, 16, 16, 17, 2, 16, 16, 17, 3, 16, 16, 17},
        {4, 16, 16, 17, 5, 16, 16, 17, 6, 16, 16, 17, 7, 16, 16, 17},
        {8, 16, 16, 17, 9, 16, 16, 17, 10, 16, 16, 17, 11, 16, 16, 17},
        {12, 16, 16, 17, 13, 16, 16, 17, 14, 16, 16, 17, 15, 16, 16, 17},
    };
    const uint8x16x2_t table = {{bytes, vreinterpretq_u8_u16(vdupq_n_u16(0x4b00))}};
    return vreinterpretq_f32_u8(vqtbl2q_u8(table, vld1q_u8(places[vector])));
}
inline F biased_bytes(const uint8_t* tile, int vector) { return byte_lanes_biased(vld1q_u8(tile), vector); }
inline F signed_to_float(uint8x16_t bytes, int vector) {
    return vsubq_f32(byte_lanes_biased(veorq_u8(bytes, vdupq_n_u8(0x80)), vector), vdupq_n_f32(BYTE_BIAS + 128.0f));
}
inline F signed_bytes(const uint8_t* tile, int vector) { return signed_to_float(vld1q_u8(tile), vector); }
inline F load_int8(const int8_t* p) {
    float four;
    __builtin_memcpy(&four, p, 4);
    return signed_to_float(vreinterpretq_u8_f32(vsetq_lane_f32(four, vdupq_n_f32(0.0f), 0)), 0);
}
inline F low_bits_as_exponent(F x) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(x), 23)); }
inline F zero_below(F x, float least, F value) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), vcltq_f32(x, vdupq_n_f32(least))));
}

inline I zero_sum() { return vdupq_n_s32(0); }
alignas(16) constexpr int32_t ZERO[4] = {};
inline I fresh_zero_sum(const void* differs) { return reload<I>(ZERO, differs); }
inline F to_float(I x) { return vcvtq_f32_s32(x); }
inline I add_times_64(I x, I y) { return vaddq_s32(x, vshlq_n_s32(y, 6)); }
// Small sums start from the bits of 1.5 · 2^23 (upper parts of two, which are yet to be multiplied, from a 64th of them), so
// that they are a float but for that number, which is removed as they are scaled: a conversion would take four times as long.
// What they start from and what removes it is stored with each part.
#define HAS_BIASED_SUMS
constexpr float SUM_BIAS = 12582912.0f;
constexpr int32_t SUM_BIAS_BITS = 0x4b400000;
struct PartStart {
    float unbias[4];          // minus the bias times the scale: exact, as the scale's lowest two bits are zero
    int32_t from_minus_8[4];  // what sums of codes start from that count from -8
};
inline PartStart part_start(float scale, int32_t total) {
    const float unbias = -SUM_BIAS * scale;
    const int32_t from = int32_t(uint32_t(SUM_BIAS_BITS) - 8 * uint32_t(total));
    return {{unbias, unbias, unbias, unbias}, {from, from, from, from}};
}
alignas(16) constexpr int32_t BIASED_ZERO[4] = {SUM_BIAS_BITS, SUM_BIAS_BITS, SUM_BIAS_BITS, SUM_BIAS_BITS};
template <int ZERO_POINT, bool SHARED> inline I biased_zero_sum(const int8_t* part, const void* differs) {
    static_assert(ZERO_POINT == 0 || ZERO_POINT == 8, "only these are stored");
    if (!ZERO_POINT) return reload<I>(BIASED_ZERO, differs);
    const int32_t* from = reinterpret_cast<const PartStart*>(part)->from_minus_8;
    return SHARED ? reload<I>(from, differs) : vld1q_s32(from);
}
inline I biased_zero_upper_sum() { return vdupq_n_s32(SUM_BIAS_BITS >> 6); }
template <bool SHARED> inline F scale_biased(I sum, float scale, const int8_t* part, const void* differs) {
    const float* unbias = reinterpret_cast<const PartStart*>(part)->unbias;
    return vfmaq_n_f32(SHARED ? reload<F>(unbias, differs) : load(unbias), vreinterpretq_f32_s32(sum), scale);
}
inline B load_codes(const uint8_t* p) { return vld1q_u8(p); }
inline B to_dot_codes(B x) { return x; }
template <int S> inline B right(B x) { return vshrq_n_u8(x, S); }
template <int S> inline B left(B x) { return vshlq_n_u8(x, S); }
inline B bit_and(B x, uint8_t mask) { return vandq_u8(x, vdupq_n_u8(mask)); }
inline B bit_or(B x, B y) { return vorrq_u8(x, y); }
inline B high_nibble(B x) { return vshrq_n_u8(x, 4); }
inline B look_up(B x, const uint8_t* table) { return vqtbl1q_u8(vld1q_u8(table), x); }
inline B high_bits(B a, B b, B c) { return vsriq_n_u8(vsriq_n_u8(vshrq_n_u8(c, 2), b, 4), a, 6); }
inline Block load_block(const int8_t* codes) { return {vld1q_s8(codes), vld1q_s8(codes + 16)}; }

template <int G, int BITS> inline I dot(I r, B x, const Block& a) {
    const int8x16_t inputs = G < 4 ? a.first : a.second;
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_laneq_s32(r, vreinterpretq_s8_u8(x), inputs, G % 4);
#else
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(inputs), G % 4));
    const int8x16_t codes = vreinterpretq_s8_u8(x);
    const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(four));
    const int16x8_t high = vmull_high_s8(codes, four);
    return vaddq_s32(r, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

}  // namespace
