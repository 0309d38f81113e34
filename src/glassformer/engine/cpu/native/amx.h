// AMX for matrices of bfloat16: one instruction multiplies 32 inputs of 16 rows with several tokens.
//
// A token's inputs are split into two bfloat16 numbers each, whose sum has sixteen bits; their products with the weights are
// added up in float32. This is done for any number of tokens, one too, so that a token's results do not depend on it.
#pragma once
#include <initializer_list>

namespace {

struct alignas(64) AmxConfig {  // the sizes of the registers
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int number, int row_count, int row_bytes) {
        rows[number] = uint8_t(row_count);
        bytes[number] = uint16_t(row_bytes);
    }
};

constexpr int SPLIT_GROUPS = 4;  // of SPLIT_TOKENS, which one instruction multiplies, whose sums are in registers

inline __m512i nearest_bf16(__m512 x) {  // in the upper halves; NaN stays NaN
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i nearest = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
    return _mm512_and_si512(nearest, _mm512_set1_epi32(int(0xffff0000)));
}

inline __m512i places_of_rows() {  // in numbers of four bytes, where a row has TILE of them
    return _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 4);
}

inline __m256i upper_halves(__m512i x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)); }

// planes: (columns / 2, 2 planes, SPLIT_TOKENS, 2 neighbours), from this token's place on
void split_bf16(const float* in, int count, uint16_t* planes) {
    const __m512i places = places_of_rows();
    for (int at = 0; at < count; at += 2 * W, in += 2 * W, planes += 4 * TILE * W / 2) {
        __m256i high[2], low[2];
        for (int half = 0; half < 2; ++half) {
            const __m512 x = load(in + half * W);
            const __m512i upper = nearest_bf16(x);
            const __m512 rest = sub(x, _mm512_castsi512_ps(upper));  // NaN if x is infinite
            high[half] = upper_halves(upper);
            low[half] = upper_halves(nearest_bf16(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q), rest)));
        }
        _mm512_i32scatter_epi32(planes, places, _mm512_inserti64x4(_mm512_castsi256_si512(high[0]), high[1], 1), 4);
        _mm512_i32scatter_epi32(planes + TILE, places, _mm512_inserti64x4(_mm512_castsi256_si512(low[0]), low[1], 1), 4);
    }
}

// 16 rows with G groups of tokens. The weights are taken as they are in the file, 32 inputs of each row at a time; what
// follows them is fetched meanwhile.
template <int G>
inline void amx_split_groups(const uint16_t* weights, int columns, const uint16_t* planes, float (*sums)[TILE][TILE],
                             bool prefetched) {
    const size_t stride = size_t(columns) * 2, group = size_t(columns) * 2 * SPLIT_TOKENS;
    _tile_zero(0);
    if constexpr (G > 1) _tile_zero(1);
    if constexpr (G > 2) _tile_zero(2);
    if constexpr (G > 3) _tile_zero(3);
    for (int at = 0; at < columns; at += 2 * TILE, weights += 2 * TILE, planes += 2 * TILE * TILE) {
        if (!prefetched) {
            const char* next = reinterpret_cast<const char*>(weights - at) + TILE * stride + size_t(at) * 2 * TILE;
            UNROLLED for (int line = 0; line < TILE; ++line) __builtin_prefetch(next + line * 64, 0, 2);
        }
        _tile_loadd(4, weights, stride);
        _tile_loadd(5, planes, 4 * TILE);
        _tile_dpbf16ps(0, 4, 5);
        if constexpr (G > 1) {
            _tile_loadd(5, planes + group, 4 * TILE);
            _tile_dpbf16ps(1, 4, 5);
        }
        if constexpr (G > 2) {
            _tile_loadd(5, planes + 2 * group, 4 * TILE);
            _tile_dpbf16ps(2, 4, 5);
        }
        if constexpr (G > 3) {
            _tile_loadd(5, planes + 3 * group, 4 * TILE);
            _tile_dpbf16ps(3, 4, 5);
        }
    }
    _tile_stored(0, sums[0], 4 * TILE);
    if constexpr (G > 1) _tile_stored(1, sums[1], 4 * TILE);
    if constexpr (G > 2) _tile_stored(2, sums[2], 4 * TILE);
    if constexpr (G > 3) _tile_stored(3, sums[3], 4 * TILE);
    COMPILER_BARRIER;
}

// The rows of a tile with some tokens
void amx_split_matmul(const Matrix& m, int tile, int tokens, const uint16_t* planes, float* out) {
    const int rows = m.rows - tile * TILE < TILE ? m.rows - tile * TILE : TILE;
    const auto* weights = reinterpret_cast<const uint16_t*>(m.data) + size_t(tile) * TILE * m.columns;
    AmxConfig config;  // registers 0 to 3 are sums, 4 weights, 5 inputs
    for (int sum : {0, 1, 2, 3}) config.set(sum, rows, 4 * TILE);
    config.set(4, rows, 4 * TILE);
    config.set(5, TILE, 4 * TILE);
    _tile_loadconfig(&config);
    alignas(64) float sums[SPLIT_GROUPS][TILE][TILE] = {};
    constexpr decltype(&amx_split_groups<1>) multiply[] = {amx_split_groups<1>, amx_split_groups<2>, amx_split_groups<3>,
                                                           amx_split_groups<4>};
    const __m512i places = places_of_rows();
    for (int first = 0; first < tokens; first += SPLIT_GROUPS * SPLIT_TOKENS) {
        const int count = tokens - first < SPLIT_GROUPS * SPLIT_TOKENS ? tokens - first : SPLIT_GROUPS * SPLIT_TOKENS;
        const int groups = (count + SPLIT_TOKENS - 1) / SPLIT_TOKENS;
        COMPILER_BARRIER;
        multiply[groups - 1](weights, m.columns, planes + size_t(first) * 2 * m.columns, sums, first > 0);
        for (int t = 0; t < count; ++t) {
            const float* column = sums[t / SPLIT_TOKENS][0] + t % SPLIT_TOKENS;
            const F high = _mm512_i32gather_ps(places, column, 4), low = _mm512_i32gather_ps(places, column + SPLIT_TOKENS, 4);
            store(out + (first + t) * TILE, add(high, low));
        }
    }
    _tile_release();
}

}  // namespace
