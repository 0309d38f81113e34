// NEON; with the dot-product instructions where the level has them.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace {

constexpr int W = 4;
constexpr int TOKENS = 4;
constexpr int ROWS = 4;
constexpr bool SIGNED = true;

using F = float32x4_t;
using I = int32x4_t;
using B = uint8x16_t;
struct Block { int8x16_t first, second; };

inline F set(float x) { return vdupq_n_f32(x); }
inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F x) { vst1q_f32(p, x); }
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F max(F a, F b) { return vmaxnmq_f32(a, b); }
inline float sum(F a) { return vaddvq_f32(a); }
inline float highest(F a) { return vmaxnmvq_f32(a); }

inline F load_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline F load_brain(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline F load_bytes(const uint8_t* p) {
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))))));
}
inline F load_signed(const int8_t* p) {
    uint32_t four;
    __builtin_memcpy(&four, p, 4);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
}
inline F power_of_two(F n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
inline F above(F x, float least, F value) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value), vcgeq_f32(x, vdupq_n_f32(least))));
}

inline I nought() { return vdupq_n_s32(0); }
inline F floats(I x) { return vcvtq_f32_s32(x); }
inline I times64(I x) { return vshlq_n_s32(x, 6); }
// Small sums are counted from the bits of 1.5 · 2^23 (here still to be shifted), so that they are a float but for that number:
// a subtraction is four times as fast as a conversion, and as exact.
inline I nought_lifted() { return vdupq_n_s32(0x4b400000 >> 6); }
inline F floats_lifted(I x) { return vsubq_f32(vreinterpretq_f32_s32(x), vdupq_n_f32(12582912.0f)); }
inline B load_codes(const uint8_t* p) { return vld1q_u8(p); }
inline B lift(B x) { return x; }
template <int S> inline B right(B x) { return vshrq_n_u8(x, S); }
template <> inline B right<0>(B x) { return x; }
template <int S> inline B left(B x) { return vshlq_n_u8(x, S); }
inline B both(B x, uint8_t mask) { return vandq_u8(x, vdupq_n_u8(mask)); }
inline B either(B x, B y) { return vorrq_u8(x, y); }
inline B upper(B x) { return vshrq_n_u8(x, 4); }
inline Block load_block(const int8_t* codes) { return {vld1q_s8(codes), vld1q_s8(codes + 16)}; }

template <int G> inline I dot(I r, B x, const Block& a) {
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
