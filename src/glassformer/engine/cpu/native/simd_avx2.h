// AVX2 with FMA and F16C; with the dot-product instructions (VNNI) where the level has them.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

constexpr int W = 8;
constexpr int TOKENS = 4;
constexpr int ROWS = 2;
constexpr int PREFETCH_DISTANCE = 4096;
#ifdef __AVXVNNI__
constexpr bool TOKENS_SIDE_BY_SIDE = true;
constexpr bool SIGNED_CODES = false;
using I = __m256i;
#else
constexpr bool TOKENS_SIDE_BY_SIDE = false;
constexpr bool SIGNED_CODES = true;
struct I { __m256i narrow, wide; };  // sums of 16 bits, as long as they fit, and of 32
#endif

using F = __m256;
using B = __m256i;
struct Block { const int8_t* codes; };  // four of them are spread over a vector as they are loaded

inline F set(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F mul(F a, float b) { return mul(a, set(b)); }
inline F fma(F a, float b, F c) { return fma(a, set(b), c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
struct FourTimes {
    const float* numbers;
    explicit FourTimes(const float* p) : numbers(p) {}
    inline F operator[](int i) const {
        return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_set1_ps(numbers[2 * i])), _mm_set1_ps(numbers[2 * i + 1]), 1);
    }
};
inline float reduce_add(F a) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_max(F a) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline __m128i eight_words(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m128i eight_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
inline F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(eight_words(p)); }
#define HAS_STORE_F16
inline void store_f16(F x, uint16_t* p) {  // what is out of range becomes the largest; of two operands, NaN is kept in the second
    x = _mm256_min_ps(set(65504.0f), _mm256_max_ps(set(-65504.0f), x));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline F load_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight_words(p)), 16));
}
inline void load_two_bf16(const uint16_t* p, F* two) { two[0] = load_bf16(p), two[1] = load_bf16(p + W); }
inline F load_int8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p))); }
constexpr float BYTE_BIAS = 0.0f;
inline F biased_bytes(const uint8_t* tile, int vector) {
    const uint8_t* p = tile + vector * W;
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes(p)));
}
inline F signed_bytes(const uint8_t* tile, int vector) {
    return load_int8(reinterpret_cast<const int8_t*>(tile) + vector * W);
}
inline F low_bits_as_exponent(F x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }
inline F zero_below(F x, float least, F value) { return _mm256_and_ps(_mm256_cmp_ps(x, set(least), _CMP_NLT_UQ), value); }

#ifdef __AVXVNNI__
inline I zero_sum() { return _mm256_setzero_si256(); }
inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
inline I add_times_64(I x, I y) { return _mm256_add_epi32(x, _mm256_slli_epi32(y, 6)); }
inline B to_dot_codes(B x) { return _mm256_xor_si256(x, _mm256_set1_epi8(char(0x80))); }
#else
inline I zero_sum() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline __m256i widen(__m256i narrow, int16_t times = 1) { return _mm256_madd_epi16(narrow, _mm256_set1_epi16(times)); }
inline F to_float(I x) { return _mm256_cvtepi32_ps(_mm256_add_epi32(x.wide, widen(x.narrow))); }
inline I add_times_64(I x, I y) {
    return {x.narrow, _mm256_add_epi32(x.wide, _mm256_add_epi32(_mm256_slli_epi32(y.wide, 6), widen(y.narrow, 64)))};
}
inline B to_dot_codes(B x) { return x; }
#endif
inline B load_codes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
// There are no shifts of bytes: bits come in from the neighbour, and are masked; what is shifted to the left is small.
inline B bit_and(B x, uint8_t mask) { return _mm256_and_si256(x, _mm256_set1_epi8(char(mask))); }
template <int S> inline B right(B x) { return _mm256_srli_epi16(x, S); }
template <int S> inline B left(B x) { return _mm256_slli_epi16(x, S); }
inline B bit_or(B x, B y) { return _mm256_or_si256(x, y); }
inline B high_nibble(B x) { return bit_and(right<4>(x), 15); }
inline B look_up(B x, const uint8_t* table) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
}
inline B high_bits(B a, B b, B c) {
    return bit_or(bit_and(right<6>(a), 3), bit_or(bit_and(right<4>(b), 12), bit_and(right<2>(c), 48)));
}
inline Block load_block(const int8_t* codes) { return {codes}; }

#ifdef __AVXVNNI__
// Unsigned codes with signed inputs, summed in 32 bits.
template <int G, int BITS> inline I dot(I r, B x, const Block& a) {
    int32_t four;
    std::memcpy(&four, a.codes + 4 * G, 4);
    return _mm256_dpbusd_avx_epi32(r, x, _mm256_set1_epi32(four));
}
#else
// A barrier: compilers would reorder the sums, and run out of registers.
inline __m256i keep_order(__m256i x) {
    asm("" : "+x"(x));
    return x;
}

// Two neighbours' products are summed in 16 bits, which saturate. With inputs to ±127, those of small codes are far from
// that, and more sums fit: 8 of four bits, a whole block, 4 of five, 2 of six. Of signed codes the sign goes to the inputs;
// one sum fits, as -128 is the unsigned 128.
template <int G, int BITS> inline I dot(I r, B x, const Block& a) {
    static_assert(BITS == 4 || BITS == 5 || BITS == 6 || BITS == 8, "other code sizes need other limits");
    int32_t four;
    std::memcpy(&four, a.codes + 4 * G, 4);
    const __m256i inputs = _mm256_set1_epi32(four);
    if constexpr (BITS == 8) {
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(inputs, x));
        return {r.narrow, keep_order(_mm256_add_epi32(r.wide, widen(pairs)))};
    } else {
        constexpr int fit = 128 >> BITS;
        const __m256i pairs = keep_order(_mm256_add_epi16(r.narrow, _mm256_maddubs_epi16(x, inputs)));
        if constexpr (BITS == 4 || G % fit != fit - 1) return {pairs, r.wide};
        else return {_mm256_setzero_si256(), keep_order(_mm256_add_epi32(r.wide, widen(pairs)))};
    }
}
#endif

}  // namespace
