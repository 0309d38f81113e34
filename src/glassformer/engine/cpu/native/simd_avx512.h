// AVX-512 with its dot-product instructions (VNNI).
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int W = 16;
constexpr int TOKENS = 8;
constexpr int ROWS = 4;
constexpr bool TOKENS_SIDE_BY_SIDE = true;
constexpr int PREFETCH_DISTANCE = 4096;
constexpr bool SIGNED_CODES = false;

using F = __m512;
using I = __m512i;
using B = __m512i;
struct Block { const int8_t* codes; };  // four of them are spread over a vector as they are loaded

inline F set(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F mul(F a, float b) { return mul(a, set(b)); }
inline F fma(F a, float b, F c) { return fma(a, set(b), c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline __m256 low_half(F a) { return _mm512_castps512_ps256(a); }
inline __m256 high_half(F a) { return _mm512_extractf32x8_ps(a, 1); }
struct FourTimes {
    const float* numbers;
    explicit FourTimes(const float* p) : numbers(p) {}
    inline F operator[](int i) const {
        const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        return _mm512_permutexvar_ps(quarter, _mm512_castps128_ps512(_mm_loadu_ps(numbers + 4 * i)));
    }
};
inline float reduce_add(F a) {
    const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F a) {
    const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline __m256i words(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m128i bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline F load_f16(const uint16_t* p) { return _mm512_cvtph_ps(words(p)); }
#define HAS_STORE_F16
inline void store_f16(F x, uint16_t* p) {  // what is out of range becomes the largest; of two operands, NaN is kept in the second
    x = _mm512_min_ps(set(65504.0f), _mm512_max_ps(set(-65504.0f), x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline F load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words(p)), 16));
}
inline void load_two_bf16(const uint16_t* p, F* two) { two[0] = load_bf16(p), two[1] = load_bf16(p + W); }
inline F load_int8(const int8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(p))); }
constexpr float BYTE_BIAS = 0.0f;
inline F biased_bytes(const uint8_t* tile, int vector) {
    const uint8_t* p = tile + vector * W;
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(p)));
}
inline F signed_bytes(const uint8_t* tile, int vector) {
    return load_int8(reinterpret_cast<const int8_t*>(tile) + vector * W);
}
inline F low_bits_as_exponent(F x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23)); }
inline F zero_below(F x, float least, F value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set(least), _CMP_NLT_UQ), value);
}

inline I zero_sum() { return _mm512_setzero_si512(); }
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline I add_times_64(I x, I y) { return _mm512_add_epi32(x, _mm512_slli_epi32(y, 6)); }
inline B load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline B to_dot_codes(B x) { return _mm512_xor_si512(x, _mm512_set1_epi8(char(0x80))); }
// There are no shifts of bytes: bits come in from the neighbour, and are masked; what is shifted to the left is small.
inline B bit_and(B x, uint8_t mask) { return _mm512_and_si512(x, _mm512_set1_epi8(char(mask))); }
template <int S> inline B right(B x) { return _mm512_srli_epi16(x, S); }
template <int S> inline B left(B x) { return _mm512_slli_epi16(x, S); }
inline B bit_or(B x, B y) { return _mm512_or_si512(x, y); }
inline B high_nibble(B x) { return bit_and(right<4>(x), 15); }
inline B look_up(B x, const uint8_t* table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
}
inline B high_bits(B a, B b, B c) {
    return bit_or(bit_and(right<6>(a), 3), bit_or(bit_and(right<4>(b), 12), bit_and(right<2>(c), 48)));
}
inline Block load_block(const int8_t* codes) { return {codes}; }

#define HAS_QUANTIZE_BLOCK
inline void store_bytes(int8_t* p, I x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }
template <int P> inline void quantize_block(const float* in, float inverse, int8_t* upper, int8_t* lower, int32_t* totals) {
    for (int half = 0; half < 2; ++half, in += W) {
        const I whole = _mm512_cvtps_epi32(mul(load(in), inverse));
        const I high = P == 2 ? _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(32)), 6) : whole;
        store_bytes(upper + half * W, high);
        if (P == 2) store_bytes(lower + half * W, _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 6)));
        totals[half] = _mm512_reduce_add_epi32(whole);
    }
}

// Unsigned codes with signed inputs, summed in 32 bits. Compilers would spread the inputs in an instruction of its own.
typedef int32_t __attribute__((may_alias, aligned(1))) FourCodes;
template <int G, int BITS> inline I dot(I r, B x, const Block& a) {
    const auto* four = reinterpret_cast<const FourCodes*>(a.codes + 4 * G);
#ifdef __AVX512VNNI__
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(r) : "v"(x), "m"(*four));
    return r;
#else
    return _mm512_dpbusd_epi32(r, x, _mm512_set1_epi32(*four));
#endif
}

}  // namespace
