// The inner loops, written once over the vectors that a level has (simd_*.h), and compiled once per level.
//
// What one token gets never depends on how many come with it: a result is always summed in the same order, tile by tile
// and block by block, so that a row alone equals the same row in a batch, bit for bit.
#include "kernels.h"

#include <cmath>
#include <cstring>

#define LEVEL_portable 1
#define LEVEL_neon 2
#define LEVEL_dotprod 2
#define LEVEL_avx2 3
#define LEVEL_avx512vnni 4
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define IS JOIN(LEVEL_, LEVEL)
#if IS == LEVEL_portable
#include "simd_portable.h"
#elif IS == LEVEL_neon
#include "simd_neon.h"
#elif IS == LEVEL_avx2
#include "simd_avx2.h"
#else
#include "simd_avx512.h"
#endif

namespace {

using namespace glass;

constexpr int VECTORS = TILE / W;  // of a tile's rows

inline void store_half(float x, uint16_t* p) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest >= 0x47800000) {  // beyond the range of a half, or not a number: the largest, or not a number
        *p = uint16_t(sign | (rest > 0x7f800000 ? 0x7e00 : 0x7bff));
    } else if (rest < 0x38800000) {  // a subnormal half: let the adder round
        float tiny;
        std::memcpy(&tiny, &rest, 4);
        tiny += 0.5f;
        std::memcpy(&bits, &tiny, 4);
        *p = uint16_t(sign | (bits - 0x3f000000));
    } else {
        const uint32_t rounded = rest + 0xfff + (rest >> 13 & 1) - (112u << 23);
        *p = uint16_t(sign | (rounded >> 13 > 0x7bff ? 0x7bff : rounded >> 13));
    }
}

inline void store_brain(float x, uint16_t* p) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) *p = uint16_t(bits >> 16 | 0x40);
    else *p = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Functions of vectors --------------------------------------------------------------------------------------------

// e^x within two units of the last place; what is below the smallest normal number gives 0.
inline F exponential(F x) {
    const F magic = set(12582912.0f);  // adding it rounds to a whole number
    F bounded = max(x, set(-88.0f));
    bounded = sub(set(0.0f), max(sub(set(0.0f), bounded), set(-88.0f)));
    const F n = sub(fma(bounded, set(1.44269504f), magic), magic);
    F r = fma(n, set(-0.693359375f), bounded);
    r = fma(n, set(2.12194440e-4f), r);
    F p = set(1.9875691500e-4f);
    p = fma(p, r, set(1.3981999507e-3f));
    p = fma(p, r, set(8.3334519073e-3f));
    p = fma(p, r, set(4.1665795894e-2f));
    p = fma(p, r, set(1.6666665459e-1f));
    p = fma(p, r, set(5.0000001201e-1f));
    p = fma(mul(r, r), p, add(r, set(1.0f)));
    return above(x, -87.0f, mul(p, power_of_two(n)));
}

inline float scalar_exponential(float x) {
    float lanes[W];
    store(lanes, exponential(set(x)));
    return lanes[0];
}

void norm(const Norm& norm, const float* in, int count, float* out) {
    float mean = 0.0f;
    const int whole = count / W * W;
    F total = set(0.0f);
    float rest = 0.0f;
    if (norm.how == LAYER) {
        for (int i = 0; i < whole; i += W) total = add(total, load(in + i));
        for (int i = whole; i < count; ++i) rest += in[i];
        mean = (sum(total) + rest) / float(count);
        total = set(0.0f);
        rest = 0.0f;
    }
    const F shift = set(-mean);
    for (int i = 0; i < whole; i += W) {
        const F x = add(load(in + i), shift);
        total = fma(x, x, total);
    }
    for (int i = whole; i < count; ++i) rest += (in[i] - mean) * (in[i] - mean);
    const float scale = 1.0f / std::sqrt((sum(total) + rest) / float(count) + norm.eps);
    const F scales = set(scale);
    for (int i = 0; i < whole; i += W) {
        const F x = mul(mul(add(load(in + i), shift), scales), load(norm.weight + i));
        store(out + i, norm.bias ? add(x, load(norm.bias + i)) : x);
    }
    for (int i = whole; i < count; ++i) {
        const float x = (in[i] - mean) * scale * norm.weight[i];
        out[i] = norm.bias ? x + norm.bias[i] : x;
    }
}

// Fourteen bits of each input: an upper part of eight and a lower one of six, each of which a dot instruction takes. Eight
// bits alone would lose a hundredth of what a product says, enough to change a word here and there.
void quantise(const float* in, int count, int8_t* codes, float* scales, float* sums) {
    for (int at = 0; at < count; at += BLOCK, in += BLOCK, codes += 2 * BLOCK, sums += 3) {
        F high = set(0.0f);
        for (int i = 0; i < BLOCK; i += W) {
            const F x = load(in + i);
            high = max(high, max(x, sub(set(0.0f), x)));
        }
        const float scale = highest(high) / 8159.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        *scales++ = scale;
        int32_t totals[2];
        for (int half = 0; half < 2; ++half) {
            int32_t total = 0;
            for (int i = half * 16; i < half * 16 + 16; ++i) {
                const float rounded = in[i] * inverse + 12582912.0f;  // a whole number in the low bits
                int32_t code;
                std::memcpy(&code, &rounded, 4);
                code -= 0x4b400000;
                const int32_t upper = (code + 32) >> 6;
                codes[i] = int8_t(upper);
                codes[BLOCK + i] = int8_t(code - (upper << 6));
                total += code;
            }
            totals[half] = total;
            sums[1 + half] = scale * float(total);
        }
        sums[0] = scale * float(totals[0] + totals[1]);
    }
}

// Products with packed matrices -----------------------------------------------------------------------------------
//
// A tile holds 16 rows. Its codes lie in groups of four inputs: 64 bytes with four neighbours of each row, so that one
// dot instruction serves W rows. Half bytes hold two groups: an even one below, the next one above.

template <int G> inline B nibbles(const uint8_t* codes) {
    const B pair = load_codes(codes + G / 2 * 64);
    return G % 2 ? upper(pair) : both(pair, 15);
}

inline F scale_at(const uint8_t* p, int vector) { return load_half(reinterpret_cast<const uint16_t*>(p) + vector * W); }

struct Packed4 {  // what kinds of four bits share
    static constexpr bool lifted = true;  // codes count from a minimum, not from zero
    static constexpr bool wide = false;   // sums of 32 products reach 2^22
    template <int G> static inline B codes(const uint8_t* p, int vector) { return nibbles<G>(p + vector * 4 * W); }
};

struct Q4_0Tile : Packed4 {
    static constexpr int bytes = 288, per = BLOCK, halves = 1, first = 32;
    static inline F scale(const uint8_t*, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const uint8_t*, const uint8_t*, int, int, F scale) { return mul(scale, set(-8.0f)); }
};

struct Q4_1Tile : Packed4 {
    static constexpr int bytes = 320, per = BLOCK, halves = 1, first = 64;
    static inline F scale(const uint8_t*, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const uint8_t*, const uint8_t* block, int vector, int, F) { return scale_at(block + 32, vector); }
};

struct Q8_0Tile {
    static constexpr int bytes = 544, per = BLOCK, halves = 1, first = 32;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        return lift(load_codes(p + G * 64 + vector * 4 * W));
    }
    static inline F scale(const uint8_t*, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const uint8_t*, const uint8_t*, int, int, F scale) { return mul(scale, set(-128.0f)); }
    static constexpr bool lifted = !SIGNED, wide = true;
};

struct Q4_KTile : Packed4 {
    static constexpr int bytes = 288, per = SUPER, halves = 1, first = 32, head = 64;
    static inline F scale(const uint8_t* outer, const uint8_t* block, int vector, int) {
        return mul(scale_at(outer, vector), load_bytes(block + vector * W));
    }
    static inline F minimum(const uint8_t* outer, const uint8_t* block, int vector, int, F) {
        return mul(scale_at(outer + 32, vector), load_bytes(block + 16 + vector * W));  // the outer one is stored negated
    }
};

struct Q5_KTile : Q4_KTile {
    static constexpr int bytes = 352, per = SUPER, halves = 1, first = 32, head = 64;
    static constexpr bool wide = true;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        const B fifth = both(right<G>(load_codes(p + 256 + vector * 4 * W)), 1);
        return either(nibbles<G>(p + vector * 4 * W), left<4>(fifth));
    }
};

struct Q6_KTile {
    static constexpr int bytes = 416, per = SUPER, halves = 2, first = 32, head = 32;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        const B upper = both(right<G % 4 * 2>(load_codes(p + 256 + G / 4 * 64 + vector * 4 * W)), 3);
        return either(nibbles<G>(p + vector * 4 * W), left<4>(upper));
    }
    static inline F scale(const uint8_t* outer, const uint8_t* block, int vector, int half) {
        return mul(scale_at(outer, vector), load_signed(reinterpret_cast<const int8_t*>(block) + half * 16 + vector * W));
    }
    static inline F minimum(const uint8_t*, const uint8_t*, int, int, F scale) { return mul(scale, set(-32.0f)); }
    static constexpr bool lifted = true, wide = true;
};

// Groups [G, E) of the codes of W rows, unpacked.
template <class Tile, int G, int E> inline void unpack(const uint8_t* codes, int vector, B* four) {
    if constexpr (G < E) {
        four[G] = Tile::template codes<G>(codes, vector);
        unpack<Tile, G + 1, E>(codes, vector, four);
    }
}

template <int G, int E> inline I dots(I total, const B* four, const Block& inputs) {
    if constexpr (G < E) return dots<G + 1, E>(dot<G>(total, four[G], inputs), four, inputs);
    else return total;
}

// The dot products of groups [G, E): the upper parts of the inputs, then the lower ones.
template <class Tile, int G, int E> inline F total(const B* four, const int8_t* inputs) {
    const I upper = dots<G, E>(Tile::wide ? nought() : nought_lifted(), four, load_block(inputs));
    const I both = dots<G, E>(times64(upper), four, load_block(inputs + BLOCK));
    return Tile::wide ? floats(both) : floats_lifted(both);
}

// The sums of N vectors of a tile's rows with T tokens, over all blocks.
template <class Tile, int T, int N>
inline void packed(const uint8_t* tile, int vector, int columns, const Quantised& in, int token, float* out) {
    F value[T][N];
    for (int t = 0; t < T; ++t)
        for (int v = 0; v < N; ++v) value[t][v] = set(0.0f);
    const int blocks = columns / BLOCK;
    const int8_t* inputs = in.codes + size_t(token) * 2 * columns;
    const float* scales = in.scales + size_t(token) * blocks;
    const float* sums = in.sums + size_t(token) * blocks * 3;
    const uint8_t* outer = tile;
    for (int at = 0; at < blocks; ++at, inputs += 2 * BLOCK, ++scales, sums += 3, tile += Tile::bytes) {
        if constexpr (Tile::per == SUPER) {
            if (at % (SUPER / BLOCK) == 0) {
                outer = tile;
                tile += Tile::head;
            }
        }
        for (int v = 0; v < N; ++v) {
            B four[8];
            unpack<Tile, 0, 8>(tile + Tile::first, vector + v, four);
            const F scale = Tile::scale(outer, tile, vector + v, 0);
            const F minimum = Tile::minimum(outer, tile, vector + v, 0, scale);
            if constexpr (Tile::halves == 1) {
                for (int t = 0; t < T; ++t) {
                    const F dot = total<Tile, 0, 8>(four, inputs + t * 2 * columns);
                    value[t][v] = fma(dot, mul(scale, set(scales[t * blocks])), value[t][v]);
                    if constexpr (Tile::lifted) value[t][v] = fma(minimum, set(sums[t * blocks * 3]), value[t][v]);
                }
            } else {
                const F second = Tile::scale(outer, tile, vector + v, 1);
                const F other = Tile::minimum(outer, tile, vector + v, 1, second);
                for (int t = 0; t < T; ++t) {
                    const F first_dot = total<Tile, 0, 4>(four, inputs + t * 2 * columns);
                    const F second_dot = total<Tile, 4, 8>(four, inputs + t * 2 * columns);
                    const F both = fma(first_dot, scale, mul(second_dot, second));
                    value[t][v] = fma(both, set(scales[t * blocks]), value[t][v]);
                    value[t][v] = fma(minimum, set(sums[t * blocks * 3 + 1]), value[t][v]);
                    value[t][v] = fma(other, set(sums[t * blocks * 3 + 2]), value[t][v]);
                }
            }
        }
    }
    for (int t = 0; t < T; ++t)
        for (int v = 0; v < N; ++v) store(out + (token + t) * TILE + (vector + v) * W, value[t][v]);
}

template <class Tile, int T> void packed_rows(const uint8_t* tile, int columns, const Quantised& in, int token, float* out) {
    constexpr int N = T == 1 ? VECTORS : VECTORS > 2 ? 2 : VECTORS;
    for (int vector = 0; vector < VECTORS; vector += N) packed<Tile, T, N>(tile, vector, columns, in, token, out);
}

template <class Tile> constexpr size_t tile_bytes(int columns) {
    if constexpr (Tile::per == SUPER) return size_t(columns / SUPER) * (Tile::head + SUPER / BLOCK * Tile::bytes);
    else return size_t(columns / BLOCK) * Tile::bytes;
}

template <class Tile> void packed_product(const Matrix& m, int tile, int tokens, const Quantised& in, float* out) {
    const uint8_t* data = m.data + size_t(tile) * tile_bytes<Tile>(m.columns);
    int token = 0;
    for (; token + TOKENS <= tokens; token += TOKENS) packed_rows<Tile, TOKENS>(data, m.columns, in, token, out);
    if constexpr (TOKENS > 2)
        for (; token + 2 <= tokens; token += 2) packed_rows<Tile, 2>(data, m.columns, in, token, out);
    for (; token < tokens; ++token) packed_rows<Tile, 1>(data, m.columns, in, token, out);
}

// Products with matrices of floats --------------------------------------------------------------------------------

struct AsFloat {
    using type = float;
    static inline F vector(const float* p) { return load(p); }
    static inline float one(const float* p) { return *p; }
};
struct AsHalf {
    using type = uint16_t;
    static inline F vector(const uint16_t* p) { return load_half(p); }
    static inline float one(const uint16_t* p) {
        uint16_t few[W] = {*p};
        float lanes[W];
        store(lanes, load_half(few));
        return lanes[0];
    }
};
struct AsBrain {
    using type = uint16_t;
    static inline F vector(const uint16_t* p) { return load_brain(p); }
    static inline float one(const uint16_t* p) {
        const uint32_t bits = uint32_t(*p) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    }
};

template <class As, int R, int T>
inline void float_rows(const typename As::type* data, int columns, const float* values, size_t stride, float* out) {
    F total[R][T];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) total[r][t] = set(0.0f);
    const int whole = columns / W * W;
    for (int i = 0; i < whole; i += W) {
        F x[T];
        for (int t = 0; t < T; ++t) x[t] = load(values + t * stride + i);
        for (int r = 0; r < R; ++r) {
            const F w = As::vector(data + size_t(r) * columns + i);
            for (int t = 0; t < T; ++t) total[r][t] = fma(w, x[t], total[r][t]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < T; ++t) {
            float rest = 0.0f;
            for (int i = whole; i < columns; ++i) rest += As::one(data + size_t(r) * columns + i) * values[t * stride + i];
            out[t * TILE + r] = sum(total[r][t]) + rest;
        }
}

template <class As, int T>
void float_tile(const typename As::type* data, int rows, int columns, const float* values, size_t stride, float* out) {
    constexpr int R = T == 1 ? 8 : 4;
    int row = 0;
    for (; row + R <= rows; row += R) float_rows<As, R, T>(data + size_t(row) * columns, columns, values, stride, out + row);
    for (; row < rows; ++row) float_rows<As, 1, T>(data + size_t(row) * columns, columns, values, stride, out + row);
}

template <class As> void float_product(const Matrix& m, int tile, int tokens, const float* values, size_t stride, float* out) {
    const auto* data = reinterpret_cast<const typename As::type*>(m.data) + size_t(tile) * TILE * m.columns;
    const int rows = m.rows - tile * TILE < TILE ? m.rows - tile * TILE : TILE;
    int token = 0;
    for (; token + TOKENS <= tokens; token += TOKENS)
        float_tile<As, TOKENS>(data, rows, m.columns, values + token * stride, stride, out + token * TILE);
    for (; token < tokens; ++token)
        float_tile<As, 1>(data, rows, m.columns, values + token * stride, stride, out + token * TILE);
}

void product(const Matrix& m, int tile, int tokens, const float* values, size_t stride, const Quantised& in, float* out) {
    switch (m.kind) {
        case F32: float_product<AsFloat>(m, tile, tokens, values, stride, out); break;
        case F16: float_product<AsHalf>(m, tile, tokens, values, stride, out); break;
        case BF16: float_product<AsBrain>(m, tile, tokens, values, stride, out); break;
        case Q8_0: packed_product<Q8_0Tile>(m, tile, tokens, in, out); break;
        case Q4_0: packed_product<Q4_0Tile>(m, tile, tokens, in, out); break;
        case Q4_1: packed_product<Q4_1Tile>(m, tile, tokens, in, out); break;
        case Q4_K: packed_product<Q4_KTile>(m, tile, tokens, in, out); break;
        case Q5_K: packed_product<Q5_KTile>(m, tile, tokens, in, out); break;
        case Q6_K: packed_product<Q6_KTile>(m, tile, tokens, in, out); break;
    }
    if (m.bias)
        for (int t = 0; t < tokens; ++t)
            for (int r = 0; r < TILE && tile * TILE + r < m.rows; ++r) out[t * TILE + r] += m.bias[tile * TILE + r];
}

// Activations -----------------------------------------------------------------------------------------------------

// 1 / (1 + e^-x), lane by lane; a division is exact on every level.
inline void sigmoids(const float* in, float* out) {
    float lanes[W];
    store(lanes, exponential(sub(set(0.0f), load(in))));
    for (int i = 0; i < W; ++i) out[i] = 1.0f / (1.0f + lanes[i]);
}

inline void activated(int how, const float* x, float* out) {
    float some[W], lanes[W];
    switch (how) {
        case SILU:
            sigmoids(x, lanes);
            for (int i = 0; i < W; ++i) out[i] = x[i] * lanes[i];
            break;
        case GELU:
            for (int i = 0; i < W; ++i) out[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
            break;
        case GELU_TANH:  // 0.5 (1 + tanh u) is the sigmoid of 2u
            for (int i = 0; i < W; ++i) some[i] = 1.5957691216f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
            sigmoids(some, lanes);
            for (int i = 0; i < W; ++i) out[i] = x[i] * lanes[i];
            break;
        case RELU:
            for (int i = 0; i < W; ++i) out[i] = x[i] < 0.0f ? 0.0f : x[i];
            break;
        default:
            for (int i = 0; i < W; ++i) out[i] = std::tanh(x[i]);
    }
}

// values = act(gates), times values where they are gated
void activate(int how, float* values, const float* gates, int count) {
    for (int at = 0; at < count; at += W) {
        float in[W] = {}, out[W];
        const int some = count - at < W ? count - at : W;
        const float* x = (gates ? gates : values) + at;
        for (int i = 0; i < some; ++i) in[i] = x[i];
        activated(how, in, out);
        for (int i = 0; i < some; ++i) values[at + i] = gates ? out[i] * values[at + i] : out[i];
    }
}

// RoPE: pairs lie half a head apart.
void rotate(const float* turns, int size, float* head) {
    const int half = size / 2;
    for (int i = 0; i < half; ++i) {
        const float a = head[i], b = head[i + half], cosine = turns[i], sine = turns[half + i];
        head[i] = a * cosine - b * sine;
        head[i + half] = b * cosine + a * sine;
    }
}

// Attention -------------------------------------------------------------------------------------------------------
//
// In a page, a plane holds the keys of 64 tokens lying across, (size, PAGE), so that one vector serves W keys; then their
// values, (PAGE, size); then, where they are of eight bits, a scale for each key and each value.

template <int S> struct Stored;
template <> struct Stored<STORE_F32> : AsFloat {
    static inline void put(float x, float, float* p) { *p = x; }
};
template <> struct Stored<STORE_F16> : AsHalf {
    static inline void put(float x, float, uint16_t* p) { store_half(x, p); }
};
template <> struct Stored<STORE_BF16> : AsBrain {
    static inline void put(float x, float, uint16_t* p) { store_brain(x, p); }
};
template <> struct Stored<STORE_Q8> {
    using type = int8_t;
    static inline F vector(const int8_t* p) { return load_signed(p); }
    static inline float one(const int8_t* p) { return float(*p); }
    static inline void put(float x, float inverse, int8_t* p) { *p = int8_t(std::nearbyint(x * inverse)); }
};

template <int S> struct Look {
    using type = typename Stored<S>::type;
    const type *keys, *values;
    const float *key_scales, *value_scales;
    Look(const Plane& plane, int page) {
        const uint8_t* at = plane.pages[page] + plane.offset;
        keys = reinterpret_cast<const type*>(at);
        values = keys + PAGE * plane.size;
        key_scales = reinterpret_cast<const float*>(values + PAGE * plane.size);
        value_scales = key_scales + PAGE;
    }
};

inline float inverse_scale(const float* x, int size, float* scale) {
    float high = 0.0f;
    for (int i = 0; i < size; ++i) high = std::fabs(x[i]) > high ? std::fabs(x[i]) : high;
    *scale = high / 127.0f;
    return *scale > 0.0f ? 1.0f / *scale : 0.0f;
}

template <int S> void remember_as(const Plane& plane, int slot, const float* key, const float* value) {
    const Look<S> look(plane, slot / PAGE);
    using type = typename Look<S>::type;
    type* keys = const_cast<type*>(look.keys) + slot % PAGE;
    type* values = const_cast<type*>(look.values) + slot % PAGE * plane.size;
    float by_key = 1.0f, by_value = 1.0f;
    if constexpr (S == STORE_Q8) {
        by_key = inverse_scale(key, plane.size, const_cast<float*>(look.key_scales) + slot % PAGE);
        by_value = inverse_scale(value, plane.size, const_cast<float*>(look.value_scales) + slot % PAGE);
    }
    for (int i = 0; i < plane.size; ++i) {
        Stored<S>::put(key[i], by_key, keys + size_t(i) * PAGE);
        Stored<S>::put(value[i], by_value, values + i);
    }
}

constexpr int ACROSS = 4 * W < PAGE ? 4 * W : PAGE;  // keys that are scored together
constexpr int AT_ONCE = ACROSS / W;

// Scores of R queries with ACROSS keys of a page.
template <int S, int R> inline void score(const Look<S>& look, int size, int key, const Query* query, float* const* scores) {
    F total[R][AT_ONCE];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < AT_ONCE; ++v) total[r][v] = set(0.0f);
    for (int i = 0; i < size; ++i) {
        const typename Look<S>::type* keys = look.keys + size_t(i) * PAGE + key;
        F k[AT_ONCE];
        for (int v = 0; v < AT_ONCE; ++v) k[v] = Stored<S>::vector(keys + v * W);
        for (int r = 0; r < R; ++r) {
            const F q = set(query[r].vector[i]);
            for (int v = 0; v < AT_ONCE; ++v) total[r][v] = fma(q, k[v], total[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < AT_ONCE; ++v) {
            F x = mul(total[r][v], set(query[r].scale));
            if constexpr (S == STORE_Q8) x = mul(x, load(look.key_scales + key + v * W));
            store(scores[r] + v * W, x);
        }
}

// Add biases, and hide what a query does not see: keys [first, first + count) of its row.
inline void hide(const Query& q, int first, int count, float* scores) {
    if (q.distances)
        for (int i = 0; i < count; ++i) {
            int away = first + i - q.position;
            away = away < -q.reach ? -q.reach : away > q.reach ? q.reach : away;
            scores[i] += q.distances[away];
        }
    for (int i = 0; i < count && first + i < q.low; ++i) scores[i] = -INFINITY;
    for (int i = q.high > first ? q.high - first : 0; i < count; ++i) scores[i] = -INFINITY;
    if (q.tree)
        for (int i = q.planted > first ? q.planted - first : 0; i < count && first + i < q.high; ++i) {
            const int key = first + i - q.planted;
            const bool near = q.window == 0 || q.position - q.places[key] < q.window;
            if (!q.tree[key] || !near) scores[i] = -INFINITY;
        }
}

template <int S> void score_chunk(const Plane& plane, int queries, const Query* query, int first, int count, float* scores) {
    for (int at = 0; at < count; at += ACROSS) {
        const Look<S> look(plane, (first + at) / PAGE);
        const int key = (first + at) % PAGE;
        int done = 0;
        float* out[ROWS];
        for (; done + ROWS <= queries; done += ROWS) {
            for (int r = 0; r < ROWS; ++r) out[r] = scores + (done + r) * CHUNK + at;
            score<S, ROWS>(look, plane.size, key, query + done, out);
        }
        for (int r = 0; done + r < queries; ++r) out[r] = scores + (done + r) * CHUNK + at;
        if constexpr (ROWS > 3)
            if (queries - done == 3) score<S, 3>(look, plane.size, key, query + done, out);
        if constexpr (ROWS > 2)
            if (queries - done == 2) score<S, 2>(look, plane.size, key, query + done, out);
        if (queries - done == 1) score<S, 1>(look, plane.size, key, query + done, out);
    }
}

// R queries' weights with the values of a chunk's keys, D vectors of a head at a time.
template <int S, int R, int D>
inline void gather(const Plane& plane, int first, int count, const float* weights, int column, Seen* seen) {
    F total[R][D];
    for (int r = 0; r < R; ++r)
        for (int d = 0; d < D; ++d) total[r][d] = set(0.0f);
    for (int at = 0; at < count; at += PAGE) {
        const Look<S> look(plane, (first + at) / PAGE);
        const int some = count - at < PAGE ? count - at : PAGE;
        for (int i = 0; i < some; ++i) {
            const typename Look<S>::type* values = look.values + size_t(i) * plane.size + column;
            F x[D];
            for (int d = 0; d < D; ++d) x[d] = Stored<S>::vector(values + d * W);
            for (int r = 0; r < R; ++r) {
                float weight = weights[r * CHUNK + at + i];
                if constexpr (S == STORE_Q8) weight *= look.value_scales[i];
                const F w = set(weight);
                for (int d = 0; d < D; ++d) total[r][d] = fma(w, x[d], total[r][d]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int d = 0; d < D; ++d) store(seen[r].values + column + d * W, total[r][d]);
}

template <int S>
inline void gather_rest(const Plane& plane, int first, int count, const float* weights, int column, Seen& seen) {
    float total = 0.0f;
    for (int at = 0; at < count; ++at) {
        const Look<S> look(plane, (first + at) / PAGE);
        const int i = (first + at) % PAGE;
        float weight = weights[at];
        if constexpr (S == STORE_Q8) weight *= look.value_scales[i];
        total += weight * Stored<S>::one(look.values + size_t(i) * plane.size + column);
    }
    seen.values[column] = total;
}

template <int S, int R> void gather_all(const Plane& plane, int first, int count, const float* weights, Seen* seen) {
    int column = 0;
    for (; column + 4 * W <= plane.size; column += 4 * W) gather<S, R, 4>(plane, first, count, weights, column, seen);
    for (; column + W <= plane.size; column += W) gather<S, R, 1>(plane, first, count, weights, column, seen);
    for (; column < plane.size; ++column)
        for (int r = 0; r < R; ++r) gather_rest<S>(plane, first, count, weights + r * CHUNK, column, seen[r]);
}

// scratch: (QUERIES, CHUNK)
template <int S> void attend_as(const Plane& plane, int queries, const Query* query, int first, Seen* seen, float* scratch) {
    int high = 0;
    for (int q = 0; q < queries; ++q) high = query[q].high > high ? query[q].high : high;
    const int count = high - first < CHUNK ? high - first : CHUNK;
    score_chunk<S>(plane, queries, query, first, count, scratch);
    const int padded = (count + ACROSS - 1) / ACROSS * ACROSS;
    for (int q = 0; q < queries; ++q) {
        float* scores = scratch + q * CHUNK;
        hide(query[q], first, padded, scores);
        F most = set(-INFINITY);
        for (int i = 0; i < padded; i += W) most = max(most, load(scores + i));
        seen[q].maximum = highest(most);
        const F shift = set(seen[q].maximum == -INFINITY ? 0.0f : -seen[q].maximum);
        F total = set(0.0f);
        for (int i = 0; i < padded; i += W) {
            const F weight = exponential(add(load(scores + i), shift));
            total = add(total, weight);
            store(scores + i, weight);
        }
        seen[q].total = sum(total);
    }
    int done = 0;
    for (; done + ROWS <= queries; done += ROWS)
        gather_all<S, ROWS>(plane, first, count, scratch + done * CHUNK, seen + done);
    if constexpr (ROWS > 3)
        if (queries - done == 3) gather_all<S, 3>(plane, first, count, scratch + done * CHUNK, seen + done);
    if constexpr (ROWS > 2)
        if (queries - done == 2) gather_all<S, 2>(plane, first, count, scratch + done * CHUNK, seen + done);
    if (queries - done == 1) gather_all<S, 1>(plane, first, count, scratch + done * CHUNK, seen + done);
}

// One query's weights, each of them divided by their sum: (keys); scratch: (CHUNK)
template <int S> void pattern_as(const Plane& plane, const Query& query, int keys, float* out, float* scratch) {
    float most = -INFINITY, total = 0.0f;
    for (int first = 0; first < keys; first += CHUNK) {
        const int count = keys - first < CHUNK ? keys - first : CHUNK;
        score_chunk<S>(plane, 1, &query, first, count, scratch);
        hide(query, first, count, scratch);
        for (int i = 0; i < count; ++i) {
            out[first + i] = scratch[i];
            most = scratch[i] > most ? scratch[i] : most;
        }
    }
    for (int i = 0; i < keys; ++i) total += out[i] = scalar_exponential(out[i] - most);
    for (int i = 0; i < keys; ++i) out[i] /= total;
}

template <int S> void mix_as(const Plane& plane, const float* pattern, int keys, float* out) {
    for (int i = 0; i < plane.size; ++i) out[i] = 0.0f;
    for (int key = 0; key < keys; ++key) {
        const Look<S> look(plane, key / PAGE);
        float weight = pattern[key];
        if constexpr (S == STORE_Q8) weight *= look.value_scales[key % PAGE];
        for (int i = 0; i < plane.size; ++i)
            out[i] += weight * Stored<S>::one(look.values + size_t(key % PAGE) * plane.size + i);
    }
}

#define BY_STORE(call)                         \
    switch (plane.store) {                     \
        case STORE_F32: call(STORE_F32); break; \
        case STORE_F16: call(STORE_F16); break; \
        case STORE_BF16: call(STORE_BF16); break; \
        default: call(STORE_Q8);               \
    }

void remember(const Plane& plane, int slot, const float* key, const float* value) {
#define CALL(S) remember_as<S>(plane, slot, key, value)
    BY_STORE(CALL)
#undef CALL
}
void attend(const Plane& plane, int queries, const Query* query, int first, Seen* seen, float* scratch) {
#define CALL(S) attend_as<S>(plane, queries, query, first, seen, scratch)
    BY_STORE(CALL)
#undef CALL
}
void pattern(const Plane& plane, const Query& query, int keys, float* out, float* scratch) {
#define CALL(S) pattern_as<S>(plane, query, keys, out, scratch)
    BY_STORE(CALL)
#undef CALL
}
void mix(const Plane& plane, const float* pattern, int keys, float* out) {
#define CALL(S) mix_as<S>(plane, pattern, keys, out)
    BY_STORE(CALL)
#undef CALL
}

// Two chunks of keys as one.
float join(Seen& into, const Seen& more, int size) {
    if (more.maximum == -INFINITY) return into.total;
    const float most = into.maximum > more.maximum ? into.maximum : more.maximum;
    const float a = scalar_exponential(into.maximum - most), b = scalar_exponential(more.maximum - most);
    into.maximum = most;
    into.total = into.total * a + more.total * b;
    for (int i = 0; i < size; ++i) into.values[i] = into.values[i] * a + more.values[i] * b;
    return into.total;
}

}  // namespace

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
namespace glass {
extern const Kernels JOIN(kernels_, LEVEL);
const Kernels JOIN(kernels_, LEVEL) = {TEXT(LEVEL), norm,    quantise, product, activate, rotate,
                                       remember,    attend,  pattern,  mix,     join};
}  // namespace glass
