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

#define FLAT inline __attribute__((always_inline))  // recursions that are to be one piece of code

constexpr int VECTORS = TILE / W;  // of a tile's rows

#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define THEN __asm__ __volatile__("" ::: "memory")  // what follows is loaded later, not all at once into too few registers
#define APART __attribute__((noinline))  // inner loops keep their sums in registers if nothing else is around them

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

// e^x within two units of the last place, for x from -88 to 88. Adding 1.5 · 2^23 rounds to a whole number, which then lies in
// the lowest bits; with 127 more, those are the exponent of its power of two.
inline F power(F x) {
    const F raised = set(12582912.0f + 127.0f), whole = fma(x, set(1.44269504f), raised), n = sub(whole, raised);
    F r = fma(n, set(-0.693359375f), x);
    r = fma(n, set(2.12194440e-4f), r);
    F p = set(1.9875691500e-4f);
    p = fma(p, r, set(1.3981999507e-3f));
    p = fma(p, r, set(8.3334519073e-3f));
    p = fma(p, r, set(4.1665795894e-2f));
    p = fma(p, r, set(1.6666665459e-1f));
    p = fma(p, r, set(5.0000001201e-1f));
    p = fma(mul(r, r), p, add(r, set(1.0f)));
    return mul(p, low_bits_as_exponent(whole));
}

// e^x; what is below the smallest normal number gives 0.
inline F exponential(F x) {
    const F high = sub(set(0.0f), max(sub(set(0.0f), x), set(-88.0f)));
    return above(x, -87.0f, power(max(high, set(-88.0f))));
}

// The same of what is not above 0, as a softmax has it; what is no number stays none.
inline F falling(F x) { return above(x, -87.0f, fma(x, set(0.0f), power(max(x, set(-88.0f))))); }

inline float falling(float x) {
    float lanes[W];
    store(lanes, falling(set(x)));
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

inline float inverse_of(float scale) { return scale >= 1.17549435e-38f ? 1.0f / scale : 0.0f; }  // that of less is infinite

// Fourteen bits of each input: an upper part of eight and a lower one of six, each of which a dot instruction takes. Eight
// bits alone, for who asks for them, lose a hundredth of what a product says, enough to change a word here and there.
template <int P> void quantise_to(const float* in, int count, int8_t* codes, float* scales, float* sums) {
    constexpr float most = P == 2 ? 8159.0f : 127.0f;
    for (int at = 0; at < count; at += BLOCK, in += BLOCK, codes += P * BLOCK, sums += 3) {
        F high = set(0.0f), zero = set(0.0f);
        for (int i = 0; i < BLOCK; i += W) {
            const F x = load(in + i);
            high = max(high, max(x, sub(set(0.0f), x)));
            zero = fma(x, set(0.0f), zero);  // not a number, if one of them is none: a maximum would hide it
        }
        const float scale = highest(high) / most + sum(zero), inverse = inverse_of(scale);
        float rounded[BLOCK];
        int32_t code[BLOCK];
        uint32_t totals[2] = {0, 0};  // of what is no number they may run over
        for (int i = 0; i < BLOCK; ++i) rounded[i] = in[i] * inverse + 12582912.0f;  // a whole number in the low bits
        std::memcpy(code, rounded, sizeof code);
        for (int i = 0; i < BLOCK; ++i) {
            const int32_t whole = code[i] - 0x4b400000, upper = P == 2 ? (whole + 32) >> 6 : whole;
            codes[i] = int8_t(upper);
            if constexpr (P == 2) codes[BLOCK + i] = int8_t(whole - upper * 64);
        }
        for (int i = 0; i < BLOCK / 2; ++i) {
            totals[0] += uint32_t(code[i]) - 0x4b400000u;
            totals[1] += uint32_t(code[BLOCK / 2 + i]) - 0x4b400000u;
        }
        *scales++ = scale;
        sums[0] = scale * float(int32_t(totals[0] + totals[1]));
        sums[1] = scale * float(int32_t(totals[0]));
        sums[2] = scale * float(int32_t(totals[1]));
    }
}

void quantise(const float* in, int count, int parts, int8_t* codes, float* scales, float* sums) {
    (parts == 2 ? quantise_to<2> : quantise_to<1>)(in, count, codes, scales, sums);
}

// Products with packed matrices -----------------------------------------------------------------------------------
//
// A tile holds 16 rows. Its codes lie in groups of four inputs: 64 bytes with four neighbours of each row, so that one
// dot instruction serves W rows. Half bytes hold two groups: an even one below, the next one above.

template <int G> inline B nibbles(const uint8_t* codes) {
    const B pair = load_codes(codes + G / 2 * 64);
    return G % 2 ? upper(pair) : both(pair, 15);
}

template <int S> inline B moved(B x) {  // to the left, or to the right; strange bits may come in, and are masked
    if constexpr (S > 0) return left<S>(x);
    else if constexpr (S < 0) return right<-S>(x);
    else return x;
}

inline F scale_at(const uint8_t* p, int vector) { return load_half(reinterpret_cast<const uint16_t*>(p) + vector * W); }

// What 256 inputs of W rows share, in K kinds: a factor for each block's bytes.
struct Factor {
    F by, less;  // less takes off that they are raised, and nothing is rounded on the way, as that is a power of two
    static inline Factor of(F by) { return {by, mul(by, -RAISED)}; }
    inline F operator()(F raised) const { return fma(raised, by, less); }
};
struct Outer { Factor scale, minimum; };

struct Packed4 {  // what kinds of four bits share
    static constexpr int bits = 4, halves = 1;  // halves: parts of a block that have a scale each
    static constexpr bool lifted = true;        // codes count from a minimum, not from zero
    template <int G> static inline B codes(const uint8_t* p, int vector) { return nibbles<G>(p + vector * 4 * W); }
};

struct Q4_0Tile : Packed4 {
    static constexpr int head = 0, bytes = 288, first = 32;
    static inline F scale(const Outer&, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const Outer&, const uint8_t*, int, F scale) { return mul(scale, set(-8.0f)); }
};

struct Q4_1Tile : Packed4 {
    static constexpr int head = 0, bytes = 320, first = 64;
    static inline F scale(const Outer&, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const Outer&, const uint8_t* block, int vector, F) { return scale_at(block + 32, vector); }
};

struct Q8_0Tile {
    static constexpr int head = 0, bytes = 544, first = 32, bits = 8, halves = 1;
    static constexpr bool lifted = !SIGNED;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        return lift(load_codes(p + G * 64 + vector * 4 * W));
    }
    static inline F scale(const Outer&, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const Outer&, const uint8_t*, int, F scale) { return mul(scale, set(-128.0f)); }
};

struct Q4_KTile : Packed4 {
    static constexpr int head = 64, bytes = 288, first = 32;
    static inline Outer open(const uint8_t* p, int vector) {
        return {Factor::of(scale_at(p, vector)), Factor::of(scale_at(p + 32, vector))};
    }
    static inline F scale(const Outer& outer, const uint8_t* block, int vector, int) {
        return outer.scale(raised_bytes(block, vector));
    }
    static inline F minimum(const Outer& outer, const uint8_t* block, int vector, F) {  // the outer one is stored negated
        return outer.minimum(raised_bytes(block + 16, vector));
    }
};

struct Q5_KTile : Q4_KTile {
    static constexpr int bytes = 352, bits = 5;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        const B fifth = both(moved<4 - G>(load_codes(p + 256 + vector * 4 * W)), 16);
        return either(nibbles<G>(p + vector * 4 * W), fifth);
    }
};

struct Q6_KTile {
    static constexpr int head = 32, bytes = 416, first = 32, bits = 6, halves = 2;
    static constexpr bool lifted = true;
    // Of four groups, three lie in the lower six bits of a byte each, and the fourth in what is left above them.
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        const uint8_t* three = p + G / 4 * 192 + vector * 4 * W;
        if constexpr (G % 4 < 3) return both(load_codes(three + G % 4 * 64), 63);
        else return tops(load_codes(three), load_codes(three + 64), load_codes(three + 128));
    }
    static inline Outer open(const uint8_t* p, int vector) { return {Factor::of(scale_at(p, vector)), Factor::of(set(0.0f))}; }
    static inline F scale(const Outer& outer, const uint8_t* block, int vector, int half) {
        return mul(outer.scale.by, signed_bytes(block + half * 16, vector));
    }
    static inline F minimum(const Outer&, const uint8_t*, int, F scale) { return mul(scale, set(-32.0f)); }
};

// Groups [G, E) of the codes of W rows, unpacked.
template <class Tile, int G, int E> FLAT void unpack(const uint8_t* codes, int vector, B* four) {
    if constexpr (G < E) {
        four[G] = Tile::template codes<G>(codes, vector);
        unpack<Tile, G + 1, E>(codes, vector, four);
    }
}

template <int BITS, int G, int E> FLAT I dots(I total, const B* four, const Block& inputs) {
    if constexpr (G < E) return dots<BITS, G + 1, E>(dot<G, BITS>(total, four[G], inputs), four, inputs);
    else return total;
}

template <class Tile, int P> constexpr bool small = P == 1 || Tile::bits == 4;  // sums of 32 products are below 2^22

template <class Tile, int P> inline I start() { return small<Tile, P> ? nought_lifted<P>() : nought(); }
template <class Tile, int P> inline F ended(I total) { return small<Tile, P> ? floats_lifted(total) : floats(total); }

// The dot products of groups [G, E) with an input's upper parts, and from there with its lower ones, if it has them.
template <class Tile, int P, int G, int E> inline F dotted(const B* four, const int8_t* inputs) {
    I total = dots<Tile::bits, G, E>(start<Tile, P>(), four, load_block(inputs));
    if constexpr (P == 2) total = dots<Tile::bits, G, E>(plus64(nought(), total), four, load_block(inputs + BLOCK));
    return ended<Tile, P>(total);
}

// Groups [G, E) of all rows of a tile with one token, side by side, so that many sums are under way at once.
template <class Tile, int P, int G, int E, int N>
FLAT void group(const uint8_t* codes, const Block& upper, const Block& lower, I* ups, I* lows) {
    if constexpr (G < E) {
        UNROLLED for (int v = 0; v < N; ++v) {
            const B four = Tile::template codes<G>(codes, v);
            ups[v] = dot<G, Tile::bits>(ups[v], four, upper);
            if constexpr (P == 2) lows[v] = dot<G, Tile::bits>(lows[v], four, lower);
        }
        group<Tile, P, G + 1, E, N>(codes, upper, lower, ups, lows);
    }
}

constexpr int BESIDE = 4;  // tokens whose sums are under way at once

struct Inputs {  // a block of some tokens' inputs, and how far apart the tokens are
    const int8_t* codes;
    const float *scales, *sums;
    int columns;
};

// What one half of a block (or all of it) adds to N vectors of rows, for T tokens.
template <class Tile, int P, int H, int T, int N>
FLAT void add_block(const uint8_t* tile, const Outer* outer, int vector, const Inputs& in, F (*value)[N]) {
    constexpr int G = H * 8 / Tile::halves, E = (H + 1) * 8 / Tile::halves;
    const int blocks = in.columns / BLOCK;
    const uint8_t* codes = tile + Tile::first;
    B four[8];
    I ups[N], lows[N];
    if constexpr (T == 1) {
        UNROLLED for (int v = 0; v < N; ++v) ups[v] = start<Tile, P>(), lows[v] = nought();
        group<Tile, P, G, E, N>(codes, load_block(in.codes), load_block(in.codes + (P - 1) * BLOCK), ups, lows);
    }
    UNROLLED for (int v = 0; v < N; ++v) {
        if constexpr (T > 1) unpack<Tile, G, E>(codes, vector + v, four);
        const F scale = Tile::scale(outer[v], tile, vector + v, H);
        const F minimum = Tile::minimum(outer[v], tile, vector + v, scale);
        UNROLLED for (int t = 0; t < T; ++t) {
            if (t && t % BESIDE == 0) THEN;
            F dot;
            if constexpr (T == 1) dot = ended<Tile, P>(P == 2 ? plus64(lows[v], ups[v]) : ups[v]);
            else dot = dotted<Tile, P, G, E>(four, in.codes + t * P * in.columns);
            value[t][v] = fma(dot, mul(scale, in.scales[t * blocks]), value[t][v]);
            if constexpr (Tile::lifted) {
                const float sum = in.sums[t * blocks * 3 + (Tile::halves == 2 ? 1 + H : 0)];
                value[t][v] = fma(minimum, sum, value[t][v]);
            }
        }
    }
}

// The sums of N vectors of a tile's rows with T tokens, over all blocks.
template <class Tile, int P, int T, int N>
APART void packed(const uint8_t* tile, int vector, int columns, const Quantised& in, int token, float* out) {
    F value[T][N];
    UNROLLED for (int t = 0; t < T; ++t)
        UNROLLED for (int v = 0; v < N; ++v) value[t][v] = set(0.0f);
    const int blocks = columns / BLOCK;
    Inputs block = {in.codes + size_t(token) * P * columns, in.scales + size_t(token) * blocks,
                    in.sums + size_t(token) * blocks * 3, columns};
    constexpr int RUN = SUPER / BLOCK;
    for (int left = blocks; left > 0; left -= RUN) {
        Outer outer[N];
        if constexpr (Tile::head > 0) {
            UNROLLED for (int v = 0; v < N; ++v) outer[v] = Tile::open(tile, vector + v);
            tile += Tile::head;
        }
        const int run = Tile::head > 0 ? RUN : left < RUN ? left : RUN;
        for (int at = 0; at < run; ++at, tile += Tile::bytes) {
            add_block<Tile, P, 0, T, N>(tile, outer, vector, block, value);
            if constexpr (Tile::halves == 2) add_block<Tile, P, 1, T, N>(tile, outer, vector, block, value);
            block.codes += P * BLOCK, block.scales += 1, block.sums += 3;
        }
    }
    UNROLLED for (int t = 0; t < T; ++t)
        UNROLLED for (int v = 0; v < N; ++v) store(out + (token + t) * TILE + (vector + v) * W, value[t][v]);
}

// One token takes all rows of a tile side by side; more share what is unpacked of a few rows, in enough sums to keep going.
template <class Tile, int P, int T>
void packed_rows(const uint8_t* tile, int columns, const Quantised& in, int token, float* out) {
    constexpr bool few = T == 2 || (T == 4 && Tile::bits == 8);  // eight bits need no unpacking that would fill the gaps
    constexpr int N = T == 1 ? VECTORS : few && VECTORS > 1 ? 2 : 1;
    for (int vector = 0; vector < VECTORS; vector += N) packed<Tile, P, T, N>(tile, vector, columns, in, token, out);
}

template <class Tile> constexpr size_t tile_bytes(int columns) {
    return size_t(columns / BLOCK) * Tile::bytes + size_t(columns / SUPER) * Tile::head;
}

// As many tokens at once as a level can hold, then what is left of them in halves.
template <class Tile, int P, int T>
void packed_tokens(const uint8_t* tile, int columns, const Quantised& in, int token, int tokens, float* out) {
    for (; token + T <= tokens; token += T) packed_rows<Tile, P, T>(tile, columns, in, token, out);
    if constexpr (T > 1) packed_tokens<Tile, P, T / 2>(tile, columns, in, token, tokens, out);
}

template <class Tile> void packed_product(const Matrix& m, int tile, int tokens, const Quantised& in, float* out) {
    const auto run = in.parts == 2 ? packed_tokens<Tile, 2, TOKENS> : packed_tokens<Tile, 1, TOKENS>;
    run(m.data + size_t(tile) * tile_bytes<Tile>(m.columns), m.columns, in, 0, tokens, out);
}

// Products with matrices of floats --------------------------------------------------------------------------------

struct AsFloat {
    using type = float;
    static inline void two(const float* p, F* out) { out[0] = load(p), out[1] = load(p + W); }
    static inline F vector(const float* p) { return load(p); }
    static inline float one(const float* p) { return *p; }
};
struct AsHalf {
    using type = uint16_t;
    static inline F vector(const uint16_t* p) { return load_half(p); }
    static inline void two(const uint16_t* p, F* out) { out[0] = load_half(p), out[1] = load_half(p + W); }
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
    static inline void two(const uint16_t* p, F* out) { load_brains(p, out); }
    static inline float one(const uint16_t* p) {
        const uint32_t bits = uint32_t(*p) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    }
};

// R rows with T tokens, each summed in two parts, vector by vector in turn.
template <class As, int R, int T>
APART void float_rows(const typename As::type* data, int columns, const float* values, size_t stride, float* out) {
    F total[R][T][2];
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int t = 0; t < T; ++t) total[r][t][0] = total[r][t][1] = set(0.0f);
    for (int i = 0; i + 2 * W <= columns; i += 2 * W) {
        F w[R][2];
        UNROLLED for (int r = 0; r < R; ++r) As::two(data + size_t(r) * columns + i, w[r]);
        UNROLLED for (int t = 0; t < T; ++t) {
            const F first = load(values + t * stride + i), second = load(values + t * stride + i + W);
            UNROLLED for (int r = 0; r < R; ++r) {
                total[r][t][0] = fma(w[r][0], first, total[r][t][0]);
                total[r][t][1] = fma(w[r][1], second, total[r][t][1]);
            }
        }
    }
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int t = 0; t < T; ++t) out[t * TILE + r] = sum(add(total[r][t][0], total[r][t][1]));
}

// One token reads memory in one stream, row after row; several share what they load.
template <class As, int T>
void float_tile(const typename As::type* data, int rows, int columns, const float* values, size_t stride, float* out) {
    constexpr int R = T > 1 ? 2 : 1;
    int row = 0;
    for (; row + R <= rows; row += R) float_rows<As, R, T>(data + size_t(row) * columns, columns, values, stride, out + row);
    for (; row < rows; ++row) float_rows<As, 1, T>(data + size_t(row) * columns, columns, values, stride, out + row);
    for (int i = columns / (2 * W) * 2 * W; i < columns; ++i)  // what does not fill two vectors
        for (int r = 0; r < rows; ++r)
            for (int t = 0; t < T; ++t)
                out[t * TILE + r] += As::one(data + size_t(r) * columns + i) * values[t * stride + i];
}

template <class As> void float_product(const Matrix& m, int tile, int tokens, const float* values, size_t stride, float* out) {
    constexpr int T = ROWS;  // two rows with so many tokens fill the registers
    const auto* data = reinterpret_cast<const typename As::type*>(m.data) + size_t(tile) * TILE * m.columns;
    const int rows = m.rows - tile * TILE < TILE ? m.rows - tile * TILE : TILE;
    int token = 0;
    for (; token + T <= tokens; token += T)
        float_tile<As, T>(data, rows, m.columns, values + token * stride, stride, out + token * TILE);
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

inline F sigmoid(F x) { return div(set(1.0f), add(set(1.0f), exponential(sub(set(0.0f), x)))); }

// The error function, within 2e-7 (Abramowitz and Stegun, 7.1.26).
inline F error(F x) {
    const F away = max(x, sub(set(0.0f), x));
    const F t = div(set(1.0f), fma(away, set(0.3275911f), set(1.0f)));
    F p = set(1.061405429f);
    p = fma(p, t, set(-1.453152027f));
    p = fma(p, t, set(1.421413741f));
    p = fma(p, t, set(-0.284496736f));
    p = fma(p, t, set(0.254829592f));
    const F found = sub(set(1.0f), mul(mul(p, t), exponential(sub(set(0.0f), mul(x, x)))));
    return sub(above(x, 0.0f, add(found, found)), found);  // its sign is that of x
}

inline F activated(int how, F x) {
    switch (how) {
        case SILU: return mul(x, sigmoid(x));
        case GELU: return mul(mul(set(0.5f), x), add(set(1.0f), error(mul(x, set(0.70710678f)))));
        case GELU_TANH: {  // 0.5 (1 + tanh u) is the sigmoid of 2u
            const F cubed = mul(mul(mul(set(0.044715f), x), x), x);
            return mul(x, sigmoid(mul(set(1.5957691216f), add(x, cubed))));
        }
        case RELU: return max(x, set(0.0f));
        default: {
            const F both = sigmoid(add(x, x));
            return sub(add(both, both), set(1.0f));
        }
    }
}

// values = act(gates), times values where they are gated
void activate(int how, float* values, const float* gates, int count) {
    const float* from = gates ? gates : values;
    int at = 0;
    for (; at + W <= count; at += W) {
        const F x = activated(how, load(from + at));
        store(values + at, gates ? mul(x, load(values + at)) : x);
    }
    if (at < count) {
        float some[W] = {};
        std::memcpy(some, from + at, size_t(count - at) * 4);
        store(some, activated(how, load(some)));
        for (int i = at; i < count; ++i) values[i] = gates ? some[i - at] * values[i] : some[i - at];
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
    static inline void put(float x, float inverse, int8_t* p) { *p = int8_t(inverse > 0.0f ? std::nearbyint(x * inverse) : 0.0f); }
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
    float high = 0.0f, zero = 0.0f;
    for (int i = 0; i < size; ++i) {
        high = std::fabs(x[i]) > high ? std::fabs(x[i]) : high;
        zero += x[i] * 0.0f;  // not a number, if one of them is none
    }
    *scale = high / 127.0f + zero;
    return inverse_of(*scale);
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

// A page's first keys, (size, PAGE), or values, (PAGE, size), as floats: where they lie, or put into `room`.
template <int S> inline const float* open_keys(const Plane& plane, int page, int count, float* room) {
    const Look<S> look(plane, page);
    if constexpr (S == STORE_F32) return look.keys;
    else {
        for (int i = 0; i < plane.size; ++i)
            for (int key = 0; key < count; key += W) {
                F x = Stored<S>::vector(look.keys + size_t(i) * PAGE + key);
                if constexpr (S == STORE_Q8) x = mul(x, load(look.key_scales + key));
                store(room + size_t(i) * PAGE + key, x);
            }
        return room;
    }
}

template <int S> inline const float* open_values(const Plane& plane, int page, int count, float* room) {
    const Look<S> look(plane, page);
    if constexpr (S == STORE_F32) return look.values;
    else {
        const int whole = plane.size / W * W;
        for (int key = 0; key < count; ++key) {
            const auto* values = look.values + size_t(key) * plane.size;
            float* out = room + size_t(key) * plane.size;
            const float scale = S == STORE_Q8 ? look.value_scales[key] : 1.0f;
            for (int i = 0; i < whole; i += W) {
                F x = Stored<S>::vector(values + i);
                if constexpr (S == STORE_Q8) x = mul(x, set(scale));
                store(out + i, x);
            }
            for (int i = whole; i < plane.size; ++i) out[i] = Stored<S>::one(values + i) * scale;
        }
        return room;
    }
}

#define BY_STORE(call)                            \
    switch (plane.store) {                        \
        case STORE_F32: return call<STORE_F32>;   \
        case STORE_F16: return call<STORE_F16>;   \
        case STORE_BF16: return call<STORE_BF16>; \
        default: return call<STORE_Q8>;           \
    }
using Open = const float* (*)(const Plane&, int, int, float*);
using Remember = void (*)(const Plane&, int, const float*, const float*);
inline Open keys_of(const Plane& plane) { BY_STORE(open_keys) }
inline Open values_of(const Plane& plane) { BY_STORE(open_values) }
inline Remember remember_in(const Plane& plane) { BY_STORE(remember_as) }
#undef BY_STORE

void remember(const Plane& plane, int slot, const float* key, const float* value) {
    remember_in(plane)(plane, slot, key, value);
}

constexpr int ACROSS = 4 * W < PAGE ? 4 * W : PAGE;  // keys that are scored together
constexpr int AT_ONCE = ACROSS / W;

inline int smaller(int a, int b) { return a < b ? a : b; }
inline int padded(int count) { return (count + ACROSS - 1) / ACROSS * ACROSS; }

// Scores of R queries with ACROSS keys of a page, which lie across.
template <int R> APART void score(const float* keys, int size, const Query* query, float* scores) {
    F total[R][AT_ONCE];
    const float* vectors[R];
    UNROLLED for (int r = 0; r < R; ++r) {
        vectors[r] = query[r].vector;
        UNROLLED for (int v = 0; v < AT_ONCE; ++v) total[r][v] = set(0.0f);
    }
    for (int i = 0; i < size; ++i, keys += PAGE) {
        F k[AT_ONCE];
        UNROLLED for (int v = 0; v < AT_ONCE; ++v) k[v] = load(keys + v * W);
        UNROLLED for (int r = 0; r < R; ++r) {
            const float q = vectors[r][i];
            UNROLLED for (int v = 0; v < AT_ONCE; ++v) total[r][v] = fma(k[v], q, total[r][v]);
        }
    }
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int v = 0; v < AT_ONCE; ++v) store(scores + r * CHUNK + v * W, mul(total[r][v], set(query[r].scale)));
}

// R queries' weights with the values of a page's first keys, added to what they have, D vectors of a head at a time.
template <int R, int D>
APART void gather(const float* values, int size, int count, const float* weights, int column, Seen* seen) {
    F total[R][D];
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int d = 0; d < D; ++d) total[r][d] = load(seen[r].values + column + d * W);
    values += column;
    for (int i = 0; i < count; ++i, values += size) {
        F x[D];
        UNROLLED for (int d = 0; d < D; ++d) x[d] = load(values + d * W);
        UNROLLED for (int r = 0; r < R; ++r) {
            const float w = weights[r * CHUNK + i];
            UNROLLED for (int d = 0; d < D; ++d) total[r][d] = fma(x[d], w, total[r][d]);
        }
    }
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int d = 0; d < D; ++d) store(seen[r].values + column + d * W, total[r][d]);
}

template <int R> inline void gather_all(const float* values, int size, int count, const float* weights, Seen* seen) {
    int column = 0;
    for (; column + 4 * W <= size; column += 4 * W) gather<R, 4>(values, size, count, weights, column, seen);
    for (; column + W <= size; column += W) gather<R, 1>(values, size, count, weights, column, seen);
    for (; column < size; ++column)
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < count; ++i) seen[r].values[column] += weights[r * CHUNK + i] * values[i * size + column];
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

// The scores of keys [first, first + count), hidden ones among them: (queries, CHUNK)
void score_all(const Plane& plane, int queries, const Query* query, int first, int count, float* scores, float* room) {
    const Open open = keys_of(plane);
    for (int at = 0; at < count; at += PAGE) {
        const int some = padded(smaller(PAGE, count - at));
        const float* keys = open(plane, (first + at) / PAGE, some, room);
        for (int key = 0; key < some; key += ACROSS) {
            int done = 0;
            float* out = scores + at + key;
            for (; done + ROWS <= queries; done += ROWS) score<ROWS>(keys + key, plane.size, query + done, out + done * CHUNK);
            if constexpr (ROWS > 3)
                if (queries - done == 3) score<3>(keys + key, plane.size, query + done, out + done * CHUNK);
            if constexpr (ROWS > 2)
                if (queries - done == 2) score<2>(keys + key, plane.size, query + done, out + done * CHUNK);
            if (queries - done == 1) score<1>(keys + key, plane.size, query + done, out + done * CHUNK);
        }
    }
    for (int q = 0; q < queries; ++q) hide(query[q], first, padded(count), scores + q * CHUNK);
}

// Scores to weights, not yet divided by their total.
void weigh(float* scores, int count, Seen& seen) {
    F most = set(-INFINITY), total = set(0.0f);
    for (int i = 0; i < count; i += W) most = max(most, load(scores + i));
    seen.maximum = highest(most);
    const F shift = set(seen.maximum == -INFINITY ? 0.0f : -seen.maximum);
    for (int i = 0; i < count; i += W) {
        const F weight = falling(add(load(scores + i), shift));
        total = add(total, weight);
        store(scores + i, weight);
    }
    seen.total = sum(total);
}

// What some queries take from the keys of a chunk, beginning at `first`; scratch: (QUERIES, CHUNK) and a page's (PAGE, size).
void attend(const Plane& plane, int queries, const Query* query, int first, Seen* seen, float* scratch) {
    float* room = scratch + QUERIES * CHUNK;
    int high = 0;
    for (int q = 0; q < queries; ++q) high = query[q].high > high ? query[q].high : high;
    const int count = smaller(CHUNK, high - first);
    score_all(plane, queries, query, first, count, scratch, room);
    for (int q = 0; q < queries; ++q) {
        weigh(scratch + q * CHUNK, padded(count), seen[q]);
        for (int i = 0; i < plane.size; ++i) seen[q].values[i] = 0.0f;
    }
    const Open open = values_of(plane);
    for (int at = 0; at < count; at += PAGE) {
        const int some = smaller(PAGE, count - at);
        const float* values = open(plane, (first + at) / PAGE, some, room);
        int done = 0;
        for (; done + ROWS <= queries; done += ROWS)
            gather_all<ROWS>(values, plane.size, some, scratch + done * CHUNK + at, seen + done);
        if constexpr (ROWS > 3)
            if (queries - done == 3) gather_all<3>(values, plane.size, some, scratch + done * CHUNK + at, seen + done);
        if constexpr (ROWS > 2)
            if (queries - done == 2) gather_all<2>(values, plane.size, some, scratch + done * CHUNK + at, seen + done);
        if (queries - done == 1) gather_all<1>(values, plane.size, some, scratch + done * CHUNK + at, seen + done);
    }
}

// One query's weights, divided by their total: (keys)
void pattern(const Plane& plane, const Query& query, int keys, float* out, float* scratch) {
    float most = -INFINITY, total = 0.0f;
    for (int first = 0; first < keys; first += CHUNK) {
        const int count = smaller(CHUNK, keys - first);
        score_all(plane, 1, &query, first, count, scratch, scratch + QUERIES * CHUNK);
        std::memcpy(out + first, scratch, size_t(count) * 4);
    }
    for (int i = 0; i < keys; ++i) most = out[i] > most ? out[i] : most;
    for (int i = 0; i < keys; ++i) total += out[i] = falling(out[i] - most);
    for (int i = 0; i < keys; ++i) out[i] /= total;
}

// A head out of weights that somebody gives.
void mix(const Plane& plane, const float* pattern, int keys, float* out, float* scratch) {
    const Open open = values_of(plane);
    for (int i = 0; i < plane.size; ++i) out[i] = 0.0f;
    for (int at = 0; at < keys; at += PAGE) {
        const int some = smaller(PAGE, keys - at);
        const float* values = open(plane, at / PAGE, some, scratch + QUERIES * CHUNK);
        for (int key = 0; key < some; ++key)
            for (int i = 0; i < plane.size; ++i) out[i] += pattern[at + key] * values[key * plane.size + i];
    }
}

// Two chunks of keys as one.
float join(Seen& into, const Seen& more, int size) {
    if (more.maximum == -INFINITY) return into.total;
    const float most = into.maximum > more.maximum ? into.maximum : more.maximum;
    const float a = falling(into.maximum - most), b = falling(more.maximum - most);
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
