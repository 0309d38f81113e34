// x86's intrinsics on any processor, as SIMDe (https://github.com/simd-everywhere/simde) states them, so that the level
// avx512vnni can be run where there is no such processor. What SIMDe 0.7 lacks is put together from halves.
#pragma once
#define SIMDE_NO_NATIVE  // this is x86's own header to it, where there is one
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cstring>

template <class Whole, class Half> inline Whole of_halves(Half low, Half high) {
    static_assert(sizeof(Whole) == 2 * sizeof(Half), "two of them");
    Whole whole;
    std::memcpy(static_cast<void*>(&whole), &low, sizeof low);
    std::memcpy(reinterpret_cast<char*>(&whole) + sizeof low, &high, sizeof high);
    return whole;
}
template <class Half, class Whole> inline Half half_of(const Whole& whole, int which) {
    static_assert(sizeof(Whole) == 2 * sizeof(Half), "two of them");
    Half half;
    std::memcpy(static_cast<void*>(&half), reinterpret_cast<const char*>(&whole) + which * sizeof half, sizeof half);
    return half;
}

#ifndef _mm512_extractf32x8_ps
inline __m256 _mm512_extractf32x8_ps(__m512 x, int which) { return half_of<__m256>(x, which); }
#endif
#ifndef _mm512_cvtph_ps
inline __m512 _mm512_cvtph_ps(__m256i x) {
    return of_halves<__m512>(_mm256_cvtph_ps(half_of<__m128i>(x, 0)), _mm256_cvtph_ps(half_of<__m128i>(x, 1)));
}
#endif
#ifndef _mm512_cvtepu16_epi32
inline __m512i _mm512_cvtepu16_epi32(__m256i x) {
    return of_halves<__m512i>(_mm256_cvtepu16_epi32(half_of<__m128i>(x, 0)), _mm256_cvtepu16_epi32(half_of<__m128i>(x, 1)));
}
#endif
#ifndef _mm512_cvtepu8_epi32
inline __m512i _mm512_cvtepu8_epi32(__m128i x) {
    return of_halves<__m512i>(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)));
}
#endif
#ifndef _mm512_cvtepi8_epi32
inline __m512i _mm512_cvtepi8_epi32(__m128i x) {
    return of_halves<__m512i>(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
}
#endif
#ifndef _mm512_cvtepi32_ps
inline __m512 _mm512_cvtepi32_ps(__m512i x) {
    return of_halves<__m512>(_mm256_cvtepi32_ps(half_of<__m256i>(x, 0)), _mm256_cvtepi32_ps(half_of<__m256i>(x, 1)));
}
#endif
#ifndef _mm512_cvtps_epi32
inline __m512i _mm512_cvtps_epi32(__m512 x) {
    return of_halves<__m512i>(_mm256_cvtps_epi32(half_of<__m256>(x, 0)), _mm256_cvtps_epi32(half_of<__m256>(x, 1)));
}
#endif
#ifndef _mm512_srai_epi32
inline __m512i _mm512_srai_epi32(__m512i x, int count) {
    return of_halves<__m512i>(_mm256_srai_epi32(half_of<__m256i>(x, 0), count), _mm256_srai_epi32(half_of<__m256i>(x, 1), count));
}
#endif
#ifndef _mm512_cvtepi32_epi8
inline __m128i _mm512_cvtepi32_epi8(__m512i x) {
    int32_t wide[16];
    int8_t narrow[16];
    std::memcpy(wide, &x, sizeof wide);
    for (int i = 0; i < 16; ++i) narrow[i] = int8_t(wide[i]);
    __m128i result;
    std::memcpy(&result, narrow, sizeof narrow);
    return result;
}
#endif
#ifndef _mm512_reduce_add_epi32
inline int32_t _mm512_reduce_add_epi32(__m512i x) {
    uint32_t lanes[16], total = 0;
    std::memcpy(lanes, &x, sizeof lanes);
    for (uint32_t lane : lanes) total += lane;
    return int32_t(total);
}
#endif
