// The inner loops, written once over the vector operations of a level (simd_*.h), and compiled once per level.
//
// All of them are batch-invariant: a result is always summed in the same order, tile by tile and block by block, so that a
// row alone equals the same row in a batch, bit for bit.
#include "kernels.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#define LEVEL_portable 1
#define LEVEL_neon 2
#define LEVEL_dotprod 2
#define LEVEL_avx2 3
#define LEVEL_avxvnni 3
#define LEVEL_avx512vnni 4
#define LEVEL_amx 4
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define THIS_LEVEL JOIN(LEVEL_, LEVEL)
#if THIS_LEVEL == LEVEL_portable
#include "simd_portable.h"
#elif THIS_LEVEL == LEVEL_neon
#include "simd_neon.h"
#elif THIS_LEVEL == LEVEL_avx2
#include "simd_avx2.h"
#else
#include "simd_avx512.h"
#endif

namespace {

using namespace glass;

#define ALWAYS_INLINE inline __attribute__((always_inline))  // for recursions that must be flattened

constexpr int VECTORS = TILE / W;  // of a tile's rows

inline int min(int a, int b) { return a < b ? a : b; }

#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define ALWAYS_INLINE_LAMBDA __attribute__((always_inline))
// What follows is loaded later, not all at once into too few registers.
#define COMPILER_BARRIER __asm__ __volatile__("" ::: "memory")
#define NOINLINE __attribute__((noinline))  // so that inner loops keep their sums in registers

inline void store_f16(float x, uint16_t* p) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest >= 0x47800000) {  // beyond the range of a half, or NaN: the largest, or NaN
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

inline void store_bf16(float x, uint16_t* p) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) *p = uint16_t(bits >> 16 | 0x40);
    else *p = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Ask for the cache lines of some bytes that will be read soon; what lies behind a matrix does no harm.
template <int BYTES> inline void prefetch(const void* p) {
    if constexpr (PREFETCH_DISTANCE > 0)
        UNROLLED for (int at = 0; at < BYTES; at += 64) __builtin_prefetch(static_cast<const char*>(p) + at);
}

// Functions of vectors --------------------------------------------------------------------------------------------

// e^x within two units of the last place, for x from -88 to 88. Adding 1.5 · 2^23 rounds to an integer, which then is in the
// lowest bits; with 127 more, those are the exponent of its power of two.
inline F exp_in_range(F x) {
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
inline F vector_exp(F x) {
    const F high = sub(set(0.0f), max(sub(set(0.0f), x), set(-88.0f)));
    return zero_below(x, -87.0f, exp_in_range(max(high, set(-88.0f))));
}

// The same for x <= 0, as in a softmax; NaN stays NaN.
inline F softmax_exp(F x) { return zero_below(x, -87.0f, fma(x, set(0.0f), exp_in_range(max(x, set(-88.0f))))); }

inline float softmax_exp(float x) {
    float lanes[W];
    store(lanes, softmax_exp(set(x)));
    return lanes[0];
}

void norm_part(const Norm& norm, const float* weight, const float* in, int count, float* out) {
    float mean = 0.0f;
    const int whole = count / W * W;
    F total = set(0.0f);
    float rest = 0.0f;
    if (norm.kind == LAYER_NORM) {
        for (int i = 0; i < whole; i += W) total = add(total, load(in + i));
        for (int i = whole; i < count; ++i) rest += in[i];
        mean = (reduce_add(total) + rest) / float(count);
        total = set(0.0f);
        rest = 0.0f;
    }
    const F shift = set(-mean);
    for (int i = 0; i < whole; i += W) {
        const F x = add(load(in + i), shift);
        total = fma(x, x, total);
    }
    for (int i = whole; i < count; ++i) rest += (in[i] - mean) * (in[i] - mean);
    const float scale = 1.0f / std::sqrt((reduce_add(total) + rest) / (norm.kind == L2_NORM ? 1.0f : float(count)) + norm.eps);
    const F scales = set(scale);
    if (norm.kind == L2_NORM) {
        for (int i = 0; i < whole; i += W) store(out + i, mul(load(in + i), scales));
        for (int i = whole; i < count; ++i) out[i] = in[i] * scale;
        return;
    }
    for (int i = 0; i < whole; i += W) {
        const F x = mul(mul(add(load(in + i), shift), scales), load(weight + i));
        store(out + i, norm.bias ? add(x, load(norm.bias + i)) : x);
    }
    for (int i = whole; i < count; ++i) {
        const float x = (in[i] - mean) * scale * weight[i];
        out[i] = norm.bias ? x + norm.bias[i] : x;
    }
}

void norm(const Norm& norm, const float* in, int count, float* out) {
    const int size = norm.groups > 1 ? count / norm.groups : count;
    for (int first = 0; first < count; first += size) norm_part(norm, norm.weight + first, in + first, size, out + first);
}

// Layers that keep a state: each column is computed by itself, token after token, so that nothing depends on how a text is cut.

void causal_conv(const float* const* rows, const float* kernel, size_t stride, const float* bias, int size, int count, float* out) {
    const int whole = count / W * W;
    for (int i = 0; i < whole; i += W) {
        F total = bias ? load(bias + i) : set(0.0f);
        for (int row = 0; row < size; ++row) total = fma(load(rows[row] + i), load(kernel + row * stride + i), total);
        store(out + i, total);
    }
    for (int i = whole; i < count; ++i) {
        float total = bias ? bias[i] : 0.0f;
        for (int row = 0; row < size; ++row) total += rows[row][i] * kernel[row * stride + i];
        out[i] = total;
    }
}

// Calls function(row, parity) for all rows: their sums are two, of even and of odd ones, which need not wait for each other.
template <class Function> ALWAYS_INLINE void for_each_row(int rows, Function function) {
    int row = 0;
    for (; row + 2 <= rows; row += 2) {
        function(row, std::integral_constant<int, 0>());
        function(row + 1, std::integral_constant<int, 1>());
    }
    if (row < rows) function(row, std::integral_constant<int, 0>());
}

// What a token keeps of each row of a state, and its key times that
void weigh(const StateToken& t, float* kept, float* faded) {
    for (int row = 0; row < t.key_size; ++row) kept[row] = t.kept(row);
    for (int row = 0; row < t.key_size; ++row) faded[row] = t.key[row] * kept[row];
}

// One token's write to V vectors of columns, and what it reads there; with AHEAD also what the state then has for the next
// token's key, so that it need not be gone through once more.
template <int V, bool AHEAD>
NOINLINE void write_and_read(const StateToken& t, const float* kept, const float* faded, float* state, size_t stride, int column,
                             F (*known)[V]) {
    F written[V], read[2][V], ahead[2][V];
    const float *keys = t.key, *queries = t.query;
    UNROLLED for (int v = 0; v < V; ++v) {
        written[v] = mul(sub(load(t.value + column + v * W), add(known[0][v], known[1][v])), set(t.write));
        read[0][v] = read[1][v] = ahead[0][v] = ahead[1][v] = set(0.0f);
    }
    for_each_row(t.key_size, [&](int row, auto parity) ALWAYS_INLINE_LAMBDA {
        constexpr int P = decltype(parity)::value;
        const F decay = set(kept[row]), key = set(keys[row]), query = set(queries[row]);
        UNROLLED for (int v = 0; v < V; ++v) {
            float* at = state + row * stride + v * W;
            const F now = fma(key, written[v], mul(load(at), decay));
            store(at, now);
            read[P][v] = fma(query, now, read[P][v]);
            if constexpr (AHEAD) ahead[P][v] = fma(now, set(faded[row]), ahead[P][v]);
        }
    });
    UNROLLED for (int v = 0; v < V; ++v) {
        store(t.out + column + v * W, mul(add(read[0][v], read[1][v]), set(t.scale)));
        known[0][v] = ahead[0][v], known[1][v] = ahead[1][v];
    }
}

// Some tokens' writes and reads, one after the other, in V vectors of columns
template <int V>
void recur_vectors(const StateToken* tokens, int count, float* state, size_t stride, int column, float* scratch) {
    const int rows = tokens[0].key_size;
    float *kept = scratch, *next = scratch + rows, *faded = scratch + 2 * rows;
    F known[2][V];
    UNROLLED for (int v = 0; v < V; ++v) known[0][v] = known[1][v] = set(0.0f);
    weigh(tokens[0], kept, faded);
    if (tokens[0].delta)
        for_each_row(rows, [&](int row, auto parity) ALWAYS_INLINE_LAMBDA {
            constexpr int P = decltype(parity)::value;
            const F part = set(faded[row]);
            UNROLLED for (int v = 0; v < V; ++v) known[P][v] = fma(load(state + row * stride + v * W), part, known[P][v]);
        });
    for (int n = 0; n < count; ++n) {
        if (n + 1 < count) weigh(tokens[n + 1], next, faded);
        if (n + 1 < count && tokens[n].delta) write_and_read<V, true>(tokens[n], kept, faded, state, stride, column, known);
        else write_and_read<V, false>(tokens[n], kept, faded, state, stride, column, known);
        float* const other = kept;
        kept = next, next = other;
    }
}

// The same in a copy whose rows lie side by side: those of a state are so far apart that they compete for the same places of
// the cache.
template <int V>
void recur_copied(const StateToken* tokens, int count, float* state, size_t stride, int column, float* scratch) {
    const int rows = tokens[0].key_size;
    constexpr uintptr_t LINE = 64;  // bytes of a cache line, which no vector should cross
    float* copy = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch + STATE_ROW_NUMBERS * rows) + LINE - 1) / LINE * LINE);
    for (int row = 0; row < rows; ++row)
        UNROLLED for (int v = 0; v < V; ++v) store(copy + (row * V + v) * W, load(state + row * stride + v * W));
    recur_vectors<V>(tokens, count, copy, V * W, column, scratch);
    for (int row = 0; row < rows; ++row)
        UNROLLED for (int v = 0; v < V; ++v) store(state + row * stride + v * W, load(copy + (row * V + v) * W));
}

// One token in one column
void recur_column(const StateToken& t, float* state, size_t stride, int column) {
    float known[2] = {0.0f, 0.0f}, read[2] = {0.0f, 0.0f};
    for (int row = 0; t.delta && row < t.key_size; ++row) known[row % 2] += state[row * stride] * (t.key[row] * t.kept(row));
    const float written = (t.value[column] - (known[0] + known[1])) * t.write;
    for (int row = 0; row < t.key_size; ++row) {
        float& at = state[row * stride];
        at = at * t.kept(row) + t.key[row] * written;
        read[row % 2] += t.query[row] * at;
    }
    t.out[column] = (read[0] + read[1]) * t.scale;
}

void recur(const StateToken* tokens, int count, float* state, size_t stride, int column, int end, float* scratch) {
    constexpr int V = W == 4 ? 4 : 2, ROW = W == 16 ? 8 : V;  // vectors whose sums are in registers; for one token, with whole rows
    state += column;
    for (; count == 1 && column + ROW * W <= end; column += ROW * W, state += ROW * W)
        recur_vectors<ROW>(tokens, count, state, stride, column, scratch);
    for (; column + V * W <= end; column += V * W, state += V * W)
        (count == 1 ? recur_vectors<V> : recur_copied<V>)(tokens, count, state, stride, column, scratch);
    for (; column + W <= end; column += W, state += W) recur_vectors<1>(tokens, count, state, stride, column, scratch);
    for (; column < end; ++column, ++state)
        for (int n = 0; n < count; ++n) recur_column(tokens[n], state, stride, column);
}

#ifndef HAS_BIASED_SUMS
struct PartStart {};  // what is stored in front of a part's codes
inline PartStart part_start(float, int32_t) { return {}; }
// A small sum, below 2^22, of codes that count from -ZERO_POINT, or of the upper parts of two; and a small sum times a scale. If
// several vectors of rows SHARE a part, a pointer that differs tells one from the other.
template <int ZERO_POINT, bool SHARED> inline I biased_zero_sum(const int8_t*, const void*) { return zero_sum(); }
inline I biased_zero_upper_sum() { return zero_sum(); }
template <bool SHARED> inline F scale_biased(I sum, float scale, const int8_t*, const void*) { return mul(to_float(sum), scale); }
#endif
constexpr int START = std::is_empty_v<PartStart> ? 0 : sizeof(PartStart), PART = START + BLOCK;  // bytes

inline void write_start(int8_t* part, float scale, const int32_t* totals) {
    const PartStart start = part_start(scale, int32_t(uint32_t(totals[0]) + uint32_t(totals[1])));
    if constexpr (START > 0) std::memcpy(part, &start, sizeof start);
}

// A scale without its lowest two bits, so that levels can multiply it exactly by a number of two
inline float short_scale(float scale) {
    uint32_t bits;
    std::memcpy(&bits, &scale, 4);
    bits &= ~3u;
    std::memcpy(&scale, &bits, 4);
    return scale;
}

inline float safe_inverse(float scale) { return scale >= 1.17549435e-38f ? 1.0f / scale : 0.0f; }  // of less it would be infinite

#ifndef HAS_QUANTIZE_BLOCK
// A block's codes, of the upper parts and, if there are two, of the lower ones; and the totals of its halves.
template <int P> inline void quantize_block(const float* in, float inverse, int8_t* upper, int8_t* lower, int32_t* totals) {
    float rounded[BLOCK];
    int32_t code[BLOCK];
    uint32_t sums[2] = {0, 0};
    for (int i = 0; i < BLOCK; ++i) rounded[i] = in[i] * inverse + 12582912.0f;  // an integer in the low bits
    std::memcpy(code, rounded, sizeof code);
    for (int i = 0; i < BLOCK; ++i) {
        const int32_t whole = code[i] - 0x4b400000, high = P == 2 ? (whole + 32) >> 6 : whole;
        upper[i] = int8_t(high);
        if constexpr (P == 2) lower[i] = int8_t(whole - high * 64);
    }
    for (int i = 0; i < BLOCK / 2; ++i) {
        sums[0] += uint32_t(code[i]) - 0x4b400000u;
        sums[1] += uint32_t(code[BLOCK / 2 + i]) - 0x4b400000u;
    }
    std::memcpy(totals, sums, sizeof sums);
}
#endif

// Fourteen bits of each input: an upper part of eight and a lower one of six, each of which a dot instruction takes; or
// eight bits alone, which lose a hundredth of each product.
template <int P> inline void quantize_one(const float* in, int group, int8_t* part, float* scale, float* sums) {
    constexpr float most = P == 2 ? 8159.0f : 127.0f;
    F high = set(0.0f), zero = set(0.0f);
    for (int i = 0; i < BLOCK; i += W) {
        const F x = load(in + i);
        high = max(high, max(x, sub(set(0.0f), x)));
        zero = fma(x, set(0.0f), zero);  // NaN if one of them is: a maximum would hide it
    }
    *scale = short_scale(reduce_max(high) / most + reduce_add(zero));
    int32_t totals[2];
    quantize_block<P>(in, safe_inverse(*scale), part + START, part + PART + START, totals);
    write_start(part, *scale, totals);
    sums[0] = *scale * float(int32_t(uint32_t(totals[0]) + uint32_t(totals[1])));  // of NaNs they may overflow
    sums[group] = *scale * float(totals[0]);
    sums[2 * group] = *scale * float(totals[1]);
}

template <int P> void quantize_to(const float* in, int count, int group, int8_t* codes, float* scales, float* sums) {
    for (int at = 0; at < count; at += BLOCK, codes += P * PART, scales += group, sums += 3 * group)
        quantize_one<P>(in + at, group, codes, scales, sums);
}

constexpr float OUTLIER = 8.0f;  // times the root mean square of a token's inputs
constexpr float RESIDUAL_STEP = 1.0f / 128.0f;  // of a step of eight bits; what rounding leaves is at most 64 of these

// Eight bits of each input, and seven more of what that leaves in the blocks that have an outlier, which makes the steps of
// its whole block coarse: most of the error comes from those few.
void quantize_mixed(const float* in, int count, int group, int8_t* codes, float* scales, float* sums, int32_t* refined) {
    F squares = set(0.0f);
    for (int i = 0; i < count; i += W) squares = fma(load(in + i), load(in + i), squares);
    const float limit = OUTLIER / 127.0f * std::sqrt(reduce_add(squares) / float(count));
    const int blocks = count / BLOCK;
    int8_t* second = codes + blocks * PART;
    for (int block = 0; block < blocks; ++block, in += BLOCK, codes += PART, scales += group, sums += 3 * group) {
        quantize_one<1>(in, group, codes, scales, sums);
        if (!(*scales > limit)) continue;
        *refined++ = block;
        const float inverse = safe_inverse(*scales), step = *scales * RESIDUAL_STEP;
        float residual[BLOCK];
        for (int i = 0; i < BLOCK; ++i) residual[i] = in[i] * inverse - float(codes[START + i]);
        int32_t totals[2];
        quantize_block<1>(residual, 1.0f / RESIDUAL_STEP, second + START, nullptr, totals);
        write_start(second, step, totals);
        second += PART;
        sums[0] += step * float(totals[0] + totals[1]);
        sums[group] += step * float(totals[0]);
        sums[2 * group] += step * float(totals[1]);
    }
    *refined = blocks;
}

void quantize(const float* in, int count, int rounding, int group, int8_t* codes, float* scales, float* sums, int32_t* refined) {
    if (rounding == ROUND_MIXED) quantize_mixed(in, count, group, codes, scales, sums, refined);
    else (rounding == ROUND_Q14 ? quantize_to<2> : quantize_to<1>)(in, count, group, codes, scales, sums);
}

// Packed matmul -------------------------------------------------------------------------------------------------
//
// A tile holds 16 rows. Its codes lie in groups of four inputs: 64 bytes with four neighbours of each row, so that one
// dot instruction serves W rows. Nibbles hold two groups: an even one below, the next one above.

template <int G> inline B nibbles(const uint8_t* codes) {
    const B pair = load_codes(codes + G / 2 * 64);
    return G % 2 ? high_nibble(pair) : bit_and(pair, 15);
}

template <int S> inline B shift_bits(B x) {  // left if S > 0, else right; neighbours' bits may come in, and are masked
    if constexpr (S > 0) return left<S>(x);
    else if constexpr (S < 0) return right<-S>(x);
    else return x;
}

inline F scale_at(const uint8_t* p, int vector) { return load_f16(reinterpret_cast<const uint16_t*>(p) + vector * W); }

// The super-block scale and minimum of W rows, in K kinds: a factor for each block's bytes.
struct Factor {
    F by, unbias;  // unbias removes the BYTE_BIAS, exactly, as that is a power of two
    static inline Factor of(F by) { return {by, mul(by, -BYTE_BIAS)}; }
    inline F operator()(F biased) const { return fma(biased, by, unbias); }
};
struct SuperScales { Factor scale, minimum; };

struct Packed4 {  // common to kinds of four bits
    static constexpr int bits = 4, halves = 1;  // halves: parts of a block that have a scale each
    static constexpr int zero_point = 0;  // the code of zero, if sums of small codes can start from there
    static constexpr bool has_minimum = true;        // codes count from a minimum, not from zero
    template <int G> static inline B codes(const uint8_t* p, int vector) { return nibbles<G>(p + vector * 4 * W); }
};

struct Q4_0Tile : Packed4 {
    static constexpr int head = 0, bytes = 288, first = 32, zero_point = START > 0 ? 8 : 0;
    static inline F scale(const SuperScales&, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const SuperScales&, const uint8_t*, int, F scale) { return mul(scale, set(-8.0f)); }
};

struct Q4_1Tile : Packed4 {
    static constexpr int head = 0, bytes = 320, first = 64;
    static inline F scale(const SuperScales&, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const SuperScales&, const uint8_t* block, int vector, F) { return scale_at(block + 32, vector); }
};

struct MXFP4Tile : Packed4 {  // codes are looked up; a scale is any power of two, so it is a float
    static constexpr int head = 0, bytes = 320, first = 64, bits = 5;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        return look_up(nibbles<G>(p + vector * 4 * W), MXFP4_VALUES);
    }
    static inline F scale(const SuperScales&, const uint8_t* block, int vector, int) {
        return load(reinterpret_cast<const float*>(block) + vector * W);
    }
    static inline F minimum(const SuperScales&, const uint8_t*, int, F scale) { return mul(scale, set(float(-MXFP4_ZERO))); }
};

struct Q8_0Tile {
    static constexpr int head = 0, bytes = 544, first = 32, bits = 8, halves = 1, zero_point = 0;
    static constexpr bool has_minimum = !SIGNED_CODES;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        return to_dot_codes(load_codes(p + G * 64 + vector * 4 * W));
    }
    static inline F scale(const SuperScales&, const uint8_t* block, int vector, int) { return scale_at(block, vector); }
    static inline F minimum(const SuperScales&, const uint8_t*, int, F scale) { return mul(scale, set(-128.0f)); }
};

struct Q4_KTile : Packed4 {
    static constexpr int head = 64, bytes = 288, first = 32;
    static inline SuperScales open(const uint8_t* p, int vector) {
        return {Factor::of(scale_at(p, vector)), Factor::of(scale_at(p + 32, vector))};
    }
    static inline F scale(const SuperScales& outer, const uint8_t* block, int vector, int) {
        return outer.scale(biased_bytes(block, vector));
    }
    static inline F minimum(const SuperScales& outer, const uint8_t* block, int vector, F) {  // stored negated
        return outer.minimum(biased_bytes(block + 16, vector));
    }
};

struct Q5_KTile : Q4_KTile {
    static constexpr int bytes = 352, bits = 5;
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        const B fifth = bit_and(shift_bits<4 - G>(load_codes(p + 256 + vector * 4 * W)), 16);
        return bit_or(nibbles<G>(p + vector * 4 * W), fifth);
    }
};

struct Q6_KTile {
    static constexpr int head = 32, bytes = 416, first = 32, bits = 6, halves = 2, zero_point = 0;
    static constexpr bool has_minimum = true;
    // Of four groups, three lie in the lower six bits of a byte each, and the fourth in what is left above them.
    template <int G> static inline B codes(const uint8_t* p, int vector) {
        const uint8_t* three = p + G / 4 * 192 + vector * 4 * W;
        if constexpr (G % 4 < 3) return bit_and(load_codes(three + G % 4 * 64), 63);
        else return high_bits(load_codes(three), load_codes(three + 64), load_codes(three + 128));
    }
    static inline SuperScales open(const uint8_t* p, int vector) {
        return {Factor::of(scale_at(p, vector)), Factor::of(set(0.0f))};
    }
    static inline F scale(const SuperScales& outer, const uint8_t* block, int vector, int half) {
        return mul(outer.scale.by, signed_bytes(block + half * 16, vector));
    }
    static inline F minimum(const SuperScales&, const uint8_t*, int, F scale) { return mul(scale, set(-32.0f)); }
};

// Groups [G, E) of the codes of W rows, unpacked.
template <class Tile, int G, int E> ALWAYS_INLINE void unpack(const uint8_t* codes, int vector, B* four) {
    if constexpr (G < E) {
        four[G] = Tile::template codes<G>(codes, vector);
        unpack<Tile, G + 1, E>(codes, vector, four);
    }
}

template <int BITS, int G, int E> ALWAYS_INLINE I dots(I total, const B* four, const Block& inputs) {
    if constexpr (G < E) return dots<BITS, G + 1, E>(dot<G, BITS>(total, four[G], inputs), four, inputs);
    else return total;
}

template <class Tile, int P> constexpr bool fits_biased_sum = P == 1 || Tile::bits == 4;  // sums of 32 products are below 2^22

// Whether the sums of P parts already count from a kind's zero point, so that it has no minimum
template <class Tile, int P> constexpr bool starts_at_zero_point = P == 1 && Tile::zero_point > 0;

template <class Tile, int P, bool SHARED> inline I initial_sum(const int8_t* part, const void* differs) {
    if constexpr (!fits_biased_sum<Tile, P>) return zero_sum();
    else if constexpr (P == 2) return biased_zero_upper_sum();
    else return biased_zero_sum<Tile::zero_point, SHARED>(part, differs);
}
template <class Tile, int P, bool SHARED> inline F final_sum(I total, float scale, const int8_t* part, const void* differs) {
    if constexpr (fits_biased_sum<Tile, P>) return scale_biased<SHARED>(total, scale, part, differs);
    else return mul(to_float(total), scale);
}

// The dot products of groups [G, E) with an input's upper parts, and from there with its lower ones, if it has them.
template <class Tile, int P, int G, int E, bool SHARED>
inline I dot_groups(const B* four, const int8_t* part, const void* differs) {
    I total = dots<Tile::bits, G, E>(initial_sum<Tile, P, SHARED>(part, differs), four, load_block(part + START));
    if constexpr (P == 2) total = dots<Tile::bits, G, E>(add_times_64(zero_sum(), total), four, load_block(part + PART + START));
    return total;
}

// Groups [G, E) of N vectors of rows with T tokens, side by side, so that many sums are in flight at once.
template <class Tile, int P, int G, int E, int T, int N>
ALWAYS_INLINE void dot_side_by_side(const uint8_t* codes, int vector, const Block* upper, const Block* lower, I (*ups)[N],
                                    I (*lows)[N]) {
    if constexpr (G < E) {
        UNROLLED for (int v = 0; v < N; ++v) {
            const B four = Tile::template codes<G>(codes, vector + v);
            UNROLLED for (int t = 0; t < T; ++t) {
                ups[t][v] = dot<G, Tile::bits>(ups[t][v], four, upper[t]);
                if constexpr (P == 2) lows[t][v] = dot<G, Tile::bits>(lows[t][v], four, lower[t]);
            }
        }
        dot_side_by_side<Tile, P, G + 1, E, T, N>(codes, vector, upper, lower, ups, lows);
    }
}

template <int R> constexpr int summed_parts = R == ROUND_Q14 ? 2 : 1;  // parts of inputs that are summed as whole numbers

// Tokens whose sums are computed at once
template <class Tile, int P> constexpr int tokens_in_flight = P == 2 || Tile::halves == 2 ? 4 : 8;

// Whether all rows of a tile are computed with GRID tokens at once: pays where codes need no unpacking, and sums are not small
constexpr int GRID = 4;
template <class Tile, int R> constexpr bool in_grid = R == ROUND_Q14 && Tile::bits == 8 && VECTORS == 4 && TOKENS >= GRID;

template <int R> struct Inputs {  // a block of some tokens' inputs
    const int8_t* codes;
    const float *scales, *sums;
    int columns, group;

    static inline Inputs of(const QuantizedInput& in, int columns, int token) {
        const size_t blocks = columns / BLOCK, at = token % in.group, place = token / in.group * in.group * blocks;
        return {in.codes + token * blocks * parts_of(R) * PART, in.scales + place + at, in.sums + 3 * place + at, columns,
                in.group};
    }
    inline void next() { codes += summed_parts<R> * PART, scales += group, sums += 3 * group; }

    inline const int8_t* part(int number, int token) const {
        return codes + (token * (columns / BLOCK) * parts_of(R) + number) * PART;
    }
    // The sums that belong to a half of a block, or to all of it
    template <class Tile> inline const float* sums_of(int half) const {
        return sums + (Tile::halves == 2 ? (1 + half) * group : 0);
    }
};

#ifndef HAS_LANES
constexpr int LANES = 1;  // numbers of tokens that are loaded together and taken one at a time
template <int N> struct Lanes {
    const float* numbers;
    explicit Lanes(const float* p) : numbers(p) {}
    inline float operator[](int lane) const { return numbers[lane]; }
};
#endif

// The scales and minimums of W rows, in one half of a block or in all of it.
template <class Tile> struct RowScales {
    F scale, minimum;
    RowScales() = default;
    inline RowScales(const SuperScales& outer, const uint8_t* block, int vector, int half)
        : scale(Tile::scale(outer, block, vector, half)), minimum(Tile::minimum(outer, block, vector, scale)) {}
    // Adds a token's scaled dot products; sum is that of its inputs.
    template <int P> inline F add(F dot, float sum, F total) const {
        total = fma(dot, scale, total);
        if constexpr (Tile::has_minimum && !starts_at_zero_point<Tile, P>) total = fma(minimum, sum, total);
        return total;
    }
};

// Adds one half of a block (or all of it) to N vectors of rows, for T tokens whose sums are all in registers.
template <class Tile, int R, int H, int T, int N>
ALWAYS_INLINE void add_side_by_side(const uint8_t* tile, const SuperScales* outer, int vector, const Inputs<R>& in, F (*value)[N]) {
    constexpr int G = H * 8 / Tile::halves, E = (H + 1) * 8 / Tile::halves, P = summed_parts<R>;
    const float* sums = in.template sums_of<Tile>(H);
    I ups[T][N], lows[T][N];
    Block upper[T], lower[T];
    UNROLLED for (int t = 0; t < T; ++t) {
        upper[t] = load_block(in.part(0, t) + START);
        lower[t] = load_block(in.part(P - 1, t) + START);
        UNROLLED for (int v = 0; v < N; ++v) {
            ups[t][v] = initial_sum<Tile, P, T == 1>(in.part(0, t), tile + v);
            lows[t][v] = zero_sum();
        }
    }
    dot_side_by_side<Tile, P, G, E, T, N>(tile + Tile::first, vector, upper, lower, ups, lows);
    UNROLLED for (int v = 0; v < N; ++v) {
        const RowScales<Tile> rows(outer[v], tile, vector + v, H);
        UNROLLED for (int t = 0; t < T; ++t) {
            const I total = P == 2 ? add_times_64(lows[t][v], ups[t][v]) : ups[t][v];
            const F dot = final_sum<Tile, P, T == 1>(total, in.scales[t], in.part(0, t), tile + v);
            value[t][v] = rows.template add<P>(dot, sums[t], value[t][v]);
        }
    }
}

// The same, some tokens after the others.
template <class Tile, int R, int H, int T, int N>
ALWAYS_INLINE void add_in_turn(const uint8_t* tile, const SuperScales* outer, int vector, const Inputs<R>& in, F (*value)[N]) {
    constexpr int G = H * 8 / Tile::halves, E = (H + 1) * 8 / Tile::halves, P = summed_parts<R>;
    constexpr int in_flight = T < tokens_in_flight<Tile, P> ? T : tokens_in_flight<Tile, P>;
    constexpr int lanes = T < LANES || !fits_biased_sum<Tile, P> ? 1 : LANES;  // conversions leave time for scalars
    const float* sums = in.template sums_of<Tile>(H);
    UNROLLED for (int v = 0; v < N; ++v) {
        B four[8];
        unpack<Tile, G, E>(tile + Tile::first, vector + v, four);
        const RowScales<Tile> rows(outer[v], tile, vector + v, H);
        UNROLLED for (int first = 0; first < T; first += in_flight) {
            if (first) COMPILER_BARRIER;
            I dot[in_flight];
            UNROLLED for (int t = 0; t < in_flight; ++t) {
                const int8_t* part = in.part(0, first + t);
                dot[t] = dot_groups<Tile, P, G, E, false>(four, part, part);
            }
            UNROLLED for (int t = first; t < first + in_flight; ++t) {
                const int lane = t % lanes;
                const Lanes<lanes> scales(in.scales + t - lane), totals(sums + t - lane);
                const F scaled = final_sum<Tile, P, false>(dot[t - first], scales[lane], in.part(0, t), tile);
                value[t][v] = rows.template add<P>(scaled, totals[lane], value[t][v]);
            }
        }
    }
}

#ifndef HAS_RELOAD
inline I fresh_zero_sum(const void*) { return zero_sum(); }
#endif

// The same where the sums of all rows and tokens are in registers, and what they are added to is not: one part of the inputs
// after the other.
template <class Tile, int G, int T, int N>
ALWAYS_INLINE void dot_grid(const uint8_t* codes, int vector, const Block* inputs, I (*sums)[N]) {
    if constexpr (G < 8) {
        UNROLLED for (int v = 0; v < N; ++v) {
            const B four = Tile::template codes<G>(codes, vector + v);
            UNROLLED for (int t = 0; t < T; ++t) sums[t][v] = dot<G, Tile::bits>(sums[t][v], four, inputs[t]);
        }
        dot_grid<Tile, G + 1, T, N>(codes, vector, inputs, sums);
    }
}

template <class Tile, int R, int T, int N>
ALWAYS_INLINE void add_grid(const uint8_t* tile, const SuperScales* outer, int vector, const Inputs<R>& in, F (*value)[N]) {
    constexpr int P = summed_parts<R>;
    const float* totals = in.template sums_of<Tile>(0);
    I sums[T][N];
    UNROLLED for (int part = 0; part < P; ++part) {
        UNROLLED for (int t = 0; t < T; ++t)
            UNROLLED for (int v = 0; v < N; ++v) sums[t][v] = part ? add_times_64(zero_sum(), sums[t][v]) : fresh_zero_sum(tile + t * N + v);
        COMPILER_BARRIER;
        Block inputs[T];
        UNROLLED for (int t = 0; t < T; ++t) inputs[t] = load_block(in.part(part, t) + START);
        dot_grid<Tile, 0, T, N>(tile + Tile::first, vector, inputs, sums);
    }
    const Lanes<T> scales(in.scales);
    UNROLLED for (int v = 0; v < N; ++v) {
        const RowScales<Tile> rows(outer[v], tile, vector + v, 0);
        UNROLLED for (int t = 0; t < T; ++t)
            value[t][v] = rows.template add<P>(mul(to_float(sums[t][v]), scales[t]), totals[t], value[t][v]);
    }
}

// The same for one token, two vectors of rows at a time where four would need more registers than there are.
template <class Tile, int R, int H, int N>
ALWAYS_INLINE void add_one_token(const uint8_t* tile, const SuperScales* outer, int vector, const Inputs<R>& in, F (*value)[N]) {
    if constexpr (N == 4 && R == ROUND_Q14 && Tile::halves == 2) {
        UNROLLED for (int v = 0; v < N; v += 2) {
            F pair[1][2] = {{value[0][v], value[0][v + 1]}};
            add_side_by_side<Tile, R, H, 1, 2>(tile, outer + v, vector + v, in, pair);
            value[0][v] = pair[0][0], value[0][v + 1] = pair[0][1];
            COMPILER_BARRIER;
        }
    } else {
        add_side_by_side<Tile, R, H, 1, N>(tile, outer, vector, in, value);
    }
}

template <class Tile, int R, int H, int T, int N>
ALWAYS_INLINE void add_block(const uint8_t* tile, const SuperScales* outer, int vector, const Inputs<R>& in, F (*value)[N]) {
    if constexpr (T == 1) add_one_token<Tile, R, H, N>(tile, outer, vector, in, value);
    else if constexpr (in_grid<Tile, R> && T == GRID) add_grid<Tile, R, T, N>(tile, outer, vector, in, value);
    else if constexpr (TOKENS_SIDE_BY_SIDE) add_side_by_side<Tile, R, H, T, N>(tile, outer, vector, in, value);
    else add_in_turn<Tile, R, H, T, N>(tile, outer, vector, in, value);
}

// The sums of N vectors of a tile's rows with T tokens, over all blocks.
template <class Tile, int R, int T, int N>
NOINLINE void packed_block(const uint8_t* tile, int vector, int columns, const QuantizedInput& in, int token, float* out) {
    F value[T][N];
    UNROLLED for (int t = 0; t < T; ++t)
        UNROLLED for (int v = 0; v < N; ++v) value[t][v] = set(0.0f);
    const int blocks = columns / BLOCK;
    auto block = Inputs<R>::of(in, columns, token);
    constexpr int RUN = SUPER / BLOCK;
    for (int left = blocks; left > 0; left -= RUN) {
        SuperScales outer[N];
        if constexpr (Tile::head > 0) {
            UNROLLED for (int v = 0; v < N; ++v) outer[v] = Tile::open(tile, vector + v);
            tile += Tile::head;
        }
        const int run = Tile::head > 0 ? RUN : left < RUN ? left : RUN;
        for (int at = 0; at < run; ++at, tile += Tile::bytes) {
            if constexpr (T == 1) prefetch<Tile::bytes>(tile + PREFETCH_DISTANCE);
            add_block<Tile, R, 0, T, N>(tile, outer, vector, block, value);
            if constexpr (Tile::halves == 2) add_block<Tile, R, 1, T, N>(tile, outer, vector, block, value);
            block.next();
        }
    }
    UNROLLED for (int t = 0; t < T; ++t)
        UNROLLED for (int v = 0; v < N; ++v) store(out + (token + t) * TILE + (vector + v) * W, value[t][v]);
}

template <class Tile> constexpr size_t tile_bytes(int columns) {
    return size_t(columns / BLOCK) * Tile::bytes + size_t(columns / SUPER) * Tile::head;
}

// Adds one half of a block's second part (or all of it) to the sums of a tile's rows.
template <class Tile, int H = 0>
ALWAYS_INLINE void add_residual(const uint8_t* block, const SuperScales* outer, const int8_t* part, float scale, F* value) {
    constexpr int G = H * 8 / Tile::halves, E = (H + 1) * 8 / Tile::halves;
    UNROLLED for (int v = 0; v < VECTORS; ++v) {
        B four[8];
        unpack<Tile, G, E>(block + Tile::first, v, four);
        const I total = dot_groups<Tile, 1, G, E, true>(four, part, block + v);
        const F dot = final_sum<Tile, 1, true>(total, scale * RESIDUAL_STEP, part, block + v);
        value[v] = fma(dot, Tile::scale(outer[v], block, v, H), value[v]);  // minimums are in the inputs' sums already
    }
    if constexpr (H + 1 < Tile::halves) add_residual<Tile, H + 1>(block, outer, part, scale, value);
}

// Adds a token's second parts to its sums with a tile's rows, which are complete otherwise. They come from a list, since a
// branch in each block would be mispredicted too often.
template <class Tile> NOINLINE void add_residuals(const uint8_t* tile, int columns, const QuantizedInput& in, int token, float* out) {
    const int blocks = columns / BLOCK;
    const int32_t* refined = in.refined + size_t(token) * (blocks + 1);
    const int8_t* part = in.codes + (2 * size_t(token) + 1) * blocks * PART;
    const float* scales = Inputs<ROUND_MIXED>::of(in, columns, token).scales;
    F value[VECTORS];
    out += token * TILE;
    UNROLLED for (int v = 0; v < VECTORS; ++v) value[v] = load(out + v * W);
    for (; *refined < blocks; ++refined, part += PART) {
        const int number = *refined;
        SuperScales outer[VECTORS];
        if constexpr (Tile::head > 0) {
            const uint8_t* head = tile + tile_bytes<Tile>(number * BLOCK / SUPER * SUPER);
            UNROLLED for (int v = 0; v < VECTORS; ++v) outer[v] = Tile::open(head, v);
        }
        const uint8_t* block = tile + tile_bytes<Tile>(number * BLOCK) + Tile::head;
        add_residual<Tile>(block, outer, part, scales[number * in.group], value);
    }
    UNROLLED for (int v = 0; v < VECTORS; ++v) store(out + v * W, value[v]);
}

// One token takes all rows of a tile side by side; several share what is unpacked of a few rows, in enough sums to hide
// the latency.
template <class Tile, int R, int T>
void packed_rows(const uint8_t* tile, int columns, const QuantizedInput& in, int token, float* out) {
    constexpr bool few = T == 2 || (T == 4 && Tile::bits == 8);  // eight bits need no unpacking that would hide latency
    constexpr int N = T == 1 || (in_grid<Tile, R> && T == GRID) ? VECTORS : few && VECTORS > 1 ? 2 : 1;
    for (int vector = 0; vector < VECTORS; vector += N) packed_block<Tile, R, T, N>(tile, vector, columns, in, token, out);
    if constexpr (R == ROUND_MIXED)
        for (int t = token; t < token + T; ++t) add_residuals<Tile>(tile, columns, in, t, out);
}

// As many tokens at once as the registers of a level hold, then the rest in halves.
template <class Tile, int R, int T>
void packed_tokens(const uint8_t* tile, int columns, const QuantizedInput& in, int token, int tokens, float* out) {
    for (; token + T <= tokens; token += T) packed_rows<Tile, R, T>(tile, columns, in, token, out);
    if constexpr (T > 1) packed_tokens<Tile, R, T / 2>(tile, columns, in, token, tokens, out);
}

}  // namespace

#ifdef __AMX_BF16__
#include "amx.h"
#include "amx_packed.h"
#endif

namespace {

template <class Tile, int R> void packed_as(const uint8_t* tile, int columns, const QuantizedInput& in, int tokens, float* out) {
    int token = 0;
#ifdef __AMX_INT8__
    if constexpr (Tile::halves == 1) {
        token = amx_packed_tokens<Tile, R>(tile, columns, in, tokens, out);
        for (int t = 0; R == ROUND_MIXED && t < token; ++t) add_residuals<Tile>(tile, columns, in, t, out);
    }
#endif
    packed_tokens<Tile, R, in_grid<Tile, R> ? GRID : TOKENS>(tile, columns, in, token, tokens, out);
}

template <class Tile> void packed_matmul(const Matrix& m, int tile, int tokens, const QuantizedInput& in, float* out) {
    const auto run = in.rounding == ROUND_Q14  ? packed_as<Tile, ROUND_Q14>
                     : in.rounding == ROUND_Q8 ? packed_as<Tile, ROUND_Q8>
                                               : packed_as<Tile, ROUND_MIXED>;
    run(m.data + size_t(tile) * tile_bytes<Tile>(m.columns), m.columns, in, tokens, out);
}

// Float matmul ------------------------------------------------------------------------------------------------

struct AsF32 {
    using type = float;
    static inline void two(const float* p, F* out) { out[0] = load(p), out[1] = load(p + W); }
    static inline F vector(const float* p) { return load(p); }
    static inline float one(const float* p) { return *p; }
};
struct AsF16 {
    using type = uint16_t;
    static inline F vector(const uint16_t* p) { return load_f16(p); }
    static inline void two(const uint16_t* p, F* out) { out[0] = load_f16(p), out[1] = load_f16(p + W); }
    static inline float one(const uint16_t* p) {
        uint16_t few[W] = {*p};
        float lanes[W];
        store(lanes, load_f16(few));
        return lanes[0];
    }
};
struct AsBF16 {
    using type = uint16_t;
    static inline F vector(const uint16_t* p) { return load_bf16(p); }
    static inline void two(const uint16_t* p, F* out) { load_two_bf16(p, out); }
    static inline float one(const uint16_t* p) {
        const uint32_t bits = uint32_t(*p) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    }
};

// R rows with T tokens, each in two sums, of even and odd vectors.
template <class As, int R, int T>
NOINLINE void float_rows(const typename As::type* data, int columns, const float* values, size_t stride, float* out) {
    F total[R][T][2];
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int t = 0; t < T; ++t) total[r][t][0] = total[r][t][1] = set(0.0f);
    for (int i = 0; i + 2 * W <= columns; i += 2 * W) {
        F w[R][2];
        if constexpr (T == 1) prefetch<2 * W * sizeof(*data)>(reinterpret_cast<const char*>(data + i) + PREFETCH_DISTANCE);
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
        UNROLLED for (int t = 0; t < T; ++t) out[t * TILE + r] = reduce_add(add(total[r][t][0], total[r][t][1]));
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

template <class As> void float_matmul(const Matrix& m, int tile, int tokens, const float* values, size_t stride, float* out) {
    constexpr int T = ROWS;  // two rows with so many tokens fill the registers
    const auto* data = reinterpret_cast<const typename As::type*>(m.data) + size_t(tile) * TILE * m.columns;
    const int rows = m.rows - tile * TILE < TILE ? m.rows - tile * TILE : TILE;
    int token = 0;
    for (; token + T <= tokens; token += T)
        float_tile<As, T>(data, rows, m.columns, values + token * stride, stride, out + token * TILE);
    for (; token < tokens; ++token)
        float_tile<As, 1>(data, rows, m.columns, values + token * stride, stride, out + token * TILE);
}

void matmul(const Matrix& m, int tile, int tokens, const float* values, size_t stride, const QuantizedInput& in, float* out) {
    switch (m.kind) {
        case F32: float_matmul<AsF32>(m, tile, tokens, values, stride, out); break;
        case F16: float_matmul<AsF16>(m, tile, tokens, values, stride, out); break;
        case BF16:
#ifdef __AMX_BF16__
            if (in.split) {
                amx_split_matmul(m, tile, tokens, in.split, out);
                break;
            }
#endif
            float_matmul<AsBF16>(m, tile, tokens, values, stride, out);
            break;
        case Q8_0: packed_matmul<Q8_0Tile>(m, tile, tokens, in, out); break;
        case Q4_0: packed_matmul<Q4_0Tile>(m, tile, tokens, in, out); break;
        case Q4_1: packed_matmul<Q4_1Tile>(m, tile, tokens, in, out); break;
        case Q4_K: packed_matmul<Q4_KTile>(m, tile, tokens, in, out); break;
        case Q5_K: packed_matmul<Q5_KTile>(m, tile, tokens, in, out); break;
        case Q6_K: packed_matmul<Q6_KTile>(m, tile, tokens, in, out); break;
        case MXFP4: packed_matmul<MXFP4Tile>(m, tile, tokens, in, out); break;
    }
    if (m.bias)
        for (int t = 0; t < tokens; ++t)
            for (int r = 0; r < TILE && tile * TILE + r < m.rows; ++r) out[t * TILE + r] += m.bias[tile * TILE + r];
}

// Gradients of a packed matrix' inputs --------------------------------------------------------------------------------
//
// A block of a tile becomes floats once, for all tokens, and keeps its order: a vector has four columns of W / 4 rows. So
// W / 4 lanes have a part of each column's sum, and are added up at the end.

constexpr int GROUPS = BLOCK / 4, GROUP_FLOATS = 4 * TILE;

template <class Tile, int G = 0> ALWAYS_INLINE void unpack_bytes(const uint8_t* codes, uint8_t* out) {
    if constexpr (G < GROUPS) {
        for (int v = 0; v < VECTORS; ++v) {
            const B four = Tile::template codes<G>(codes, v);
            std::memcpy(out + G * GROUP_FLOATS + v * 4 * W, &four, sizeof four);
        }
        unpack_bytes<Tile, G + 1>(codes, out);
    }
}

// A block of a tile's rows as floats: (GROUPS, TILE, 4)
template <class Tile> NOINLINE void dequantize_block(const uint8_t* head, const uint8_t* block, float* out) {
    using Code = std::conditional_t<SIGNED_CODES, int8_t, uint8_t>;
    Code codes[BLOCK * TILE];
    unpack_bytes<Tile>(block + Tile::first, reinterpret_cast<uint8_t*>(codes));
    for (int half = 0; half < Tile::halves; ++half) {
        float scales[GROUP_FLOATS], minimums[GROUP_FLOATS];
        for (int v = 0; v < VECTORS; ++v) {
            SuperScales outer{};
            if constexpr (Tile::head > 0) outer = Tile::open(head, v);
            const RowScales<Tile> rows(outer, block, v, half);
            float scale[W], minimum[W];
            store(scale, rows.scale);
            store(minimum, rows.minimum);
            for (int i = 0; i < 4 * W; ++i) {
                scales[v * 4 * W + i] = scale[i / 4];
                minimums[v * 4 * W + i] = minimum[i / 4];
            }
        }
        const int first = half * GROUPS / Tile::halves, end = (half + 1) * GROUPS / Tile::halves;
        for (int at = first * GROUP_FLOATS; at < end * GROUP_FLOATS; at += GROUP_FLOATS)
            for (int i = 0; i < GROUP_FLOATS; ++i)
                if constexpr (Tile::has_minimum) out[at + i] = float(codes[at + i]) * scales[i] + minimums[i];
                else out[at + i] = float(codes[at + i]) * scales[i];
    }
}

// Adds a tile's rows, times T tokens' gradients, to their sums: (T, GROUPS, W)
template <int T> NOINLINE void add_rows(const float* rows, const float* gradients, size_t stride, float* sums) {
    constexpr int N = 4;  // groups at a time
    for (int group = 0; group < GROUPS; group += N) {
        F total[T][N];
        UNROLLED for (int t = 0; t < T; ++t)
            UNROLLED for (int n = 0; n < N; ++n) total[t][n] = load(sums + (t * GROUPS + group + n) * W);
        for (int first = 0; first < TILE; first += W) {
            UNROLLED for (int part = 0; part < 4; ++part) {
                F x[N];
                UNROLLED for (int n = 0; n < N; ++n) x[n] = load(rows + (group + n) * GROUP_FLOATS + first * 4 + part * W);
                UNROLLED for (int t = 0; t < T; ++t) {
                    const FourTimes gradient(gradients + t * stride + first);
                    UNROLLED for (int n = 0; n < N; ++n) total[t][n] = fma(x[n], gradient[part], total[t][n]);
                }
            }
        }
        UNROLLED for (int t = 0; t < T; ++t)
            UNROLLED for (int n = 0; n < N; ++n) store(sums + (t * GROUPS + group + n) * W, total[t][n]);
    }
}

template <class Tile>
void packed_input_gradients(const Matrix& m, int first, int blocks, int tokens, const float* gradients, float* out) {
    constexpr int T = W == 8 ? 2 : 4;  // tokens whose sums fit into the registers
    constexpr size_t SUMS = GROUPS * W;
    alignas(64) float rows[GROUPS * GROUP_FLOATS], sums[GRADIENT_BLOCKS * GRADIENT_TOKENS * SUMS], last[GRADIENT_TOKENS * TILE];
    std::memset(sums, 0, sizeof sums);
    const size_t size = tile_bytes<Tile>(m.columns);
    for (int tile = 0; tile * TILE < m.rows; ++tile) {
        const uint8_t* start = m.data + tile * size;
        const int count = min(TILE, m.rows - tile * TILE);
        const float* in = gradients + tile * TILE;
        size_t stride = m.rows;
        if (count < TILE) {  // nothing lies behind the last row
            std::memset(last, 0, sizeof last);
            for (int t = 0; t < tokens; ++t) std::memcpy(last + t * TILE, in + t * stride, size_t(count) * 4);
            in = last, stride = TILE;
        }
        for (int block = 0; block < blocks; ++block) {
            const int column = (first + block) * BLOCK;
            const uint8_t* place = start + tile_bytes<Tile>(column) + Tile::head;
            for (int at = 0; at < Tile::bytes; at += 64) __builtin_prefetch(place + size + at);  // the next tile's
            dequantize_block<Tile>(start + tile_bytes<Tile>(column / SUPER * SUPER), place, rows);
            float* total = sums + block * GRADIENT_TOKENS * SUMS;
            int t = 0;
            for (; t + T <= tokens; t += T) add_rows<T>(rows, in + t * stride, stride, total + t * SUMS);
            for (; t < tokens; ++t) add_rows<1>(rows, in + t * stride, stride, total + t * SUMS);
        }
    }
    for (int t = 0; t < tokens; ++t)
        for (int i = 0; i < blocks * BLOCK; ++i) {
            const float* lanes = sums + (i / BLOCK * GRADIENT_TOKENS + t) * SUMS + i % BLOCK / 4 * W + i % 4;
            float total = 0.0f;
            for (int n = 0; n < W; n += 4) total += lanes[n];
            out[size_t(t) * m.columns + i] = total;
        }
}

void input_gradients(const Matrix& m, int first, int blocks, int tokens, const float* gradients, float* out) {
    switch (m.kind) {
        case Q8_0: packed_input_gradients<Q8_0Tile>(m, first, blocks, tokens, gradients, out); break;
        case Q4_0: packed_input_gradients<Q4_0Tile>(m, first, blocks, tokens, gradients, out); break;
        case Q4_1: packed_input_gradients<Q4_1Tile>(m, first, blocks, tokens, gradients, out); break;
        case Q4_K: packed_input_gradients<Q4_KTile>(m, first, blocks, tokens, gradients, out); break;
        case Q5_K: packed_input_gradients<Q5_KTile>(m, first, blocks, tokens, gradients, out); break;
        case Q6_K: packed_input_gradients<Q6_KTile>(m, first, blocks, tokens, gradients, out); break;
        case MXFP4: packed_input_gradients<MXFP4Tile>(m, first, blocks, tokens, gradients, out); break;
    }
}

// Activations -----------------------------------------------------------------------------------------------------

inline F sigmoid(F x) { return div(set(1.0f), add(set(1.0f), vector_exp(sub(set(0.0f), x)))); }

// The error function, within 2e-7 (Abramowitz and Stegun, 7.1.26).
inline F vector_erf(F x) {
    const F away = max(x, sub(set(0.0f), x));
    const F t = div(set(1.0f), fma(away, set(0.3275911f), set(1.0f)));
    F p = set(1.061405429f);
    p = fma(p, t, set(-1.453152027f));
    p = fma(p, t, set(1.421413741f));
    p = fma(p, t, set(-0.284496736f));
    p = fma(p, t, set(0.254829592f));
    const F magnitude = sub(set(1.0f), mul(mul(p, t), vector_exp(sub(set(0.0f), mul(x, x)))));
    return sub(zero_below(x, 0.0f, add(magnitude, magnitude)), magnitude);  // with the sign of x
}

inline F activation_of(int activation, F x) {
    switch (activation) {
        case SILU: return mul(x, sigmoid(x));
        case GELU: return mul(mul(set(0.5f), x), add(set(1.0f), vector_erf(mul(x, set(0.70710678f)))));
        case GELU_TANH: {  // 0.5 (1 + tanh u) is the sigmoid of 2u
            const F cubed = mul(mul(mul(set(0.044715f), x), x), x);
            return mul(x, sigmoid(mul(set(1.5957691216f), add(x, cubed))));
        }
        case RELU: return max(x, set(0.0f));
        case QUICK_GELU: return mul(x, sigmoid(mul(set(1.702f), x)));
        case RELU2: {
            const F above = max(x, set(0.0f));
            return mul(above, above);
        }
        case SIGMOID: return sigmoid(x);
        case NO_ACTIVATION: return x;
        default: {
            const F half = sigmoid(add(x, x));
            return sub(add(half, half), set(1.0f));
        }
    }
}

// values = act(gates), times values where they are gated
void activate(int activation, float* values, const float* gates, int count) {
    const float* from = gates ? gates : values;
    int at = 0;
    for (; at + W <= count; at += W) {
        const F x = activation_of(activation, load(from + at));
        store(values + at, gates ? mul(x, load(values + at)) : x);
    }
    if (at < count) {
        float rest[W] = {};
        std::memcpy(rest, from + at, size_t(count - at) * 4);
        store(rest, activation_of(activation, load(rest)));
        for (int i = at; i < count; ++i) values[i] = gates ? rest[i - at] * values[i] : rest[i - at];
    }
}

// cap * tanh(value / cap), for whole vectors.
void soft_cap(float cap, float* values, int count) {
    for (int at = 0; at < count; at += W)
        store(values + at, mul(set(cap), activation_of(TANH, mul(set(1.0f / cap), load(values + at)))));
}

// RoPE: pairs are neighbors, or lie half of what is rotated apart.
void rope(const float* table, int size, bool interleaved, float* head) {
    const int half = size / 2;
    if (interleaved) {
        for (int i = 0; i < half; ++i) {
            const float a = head[2 * i], b = head[2 * i + 1], cosine = table[i], sine = table[half + i];
            head[2 * i] = a * cosine - b * sine;
            head[2 * i + 1] = b * cosine + a * sine;
        }
        return;
    }
    for (int i = 0; i < half; ++i) {
        const float a = head[i], b = head[i + half], cosine = table[i], sine = table[half + i];
        head[i] = a * cosine - b * sine;
        head[i + half] = b * cosine + a * sine;
    }
}

// Attention -------------------------------------------------------------------------------------------------------
//
// In a page, a plane holds the keys of 64 tokens transposed, (head_size, PAGE), so that one vector serves W keys; then their
// values, (PAGE, head_size); then, where they have eight bits, a scale for each key and each value. Of latents it has the keys
// alone: their first numbers are the values.

template <int S> struct KvElement;
template <> struct KvElement<KV_F32> : AsF32 {
    static inline void put(float x, float, float* p) { *p = x; }
};
template <> struct KvElement<KV_F16> : AsF16 {
    static inline void put(float x, float, uint16_t* p) { store_f16(x, p); }
};
template <> struct KvElement<KV_BF16> : AsBF16 {
    static inline void put(float x, float, uint16_t* p) { store_bf16(x, p); }
};
template <> struct KvElement<KV_Q8> {
    using type = int8_t;
    static inline F vector(const int8_t* p) { return load_int8(p); }
    static inline float one(const int8_t* p) { return float(*p); }
    static inline void put(float x, float inverse, int8_t* p) { *p = int8_t(inverse > 0.0f ? std::nearbyint(x * inverse) : 0.0f); }
};

template <int S> struct KvPage {
    using type = typename KvElement<S>::type;
    const type *keys, *values;
    const float *key_scales, *value_scales;
    KvPage(const KvPlane& plane, int page) {
        const uint8_t* at = plane.pages[page] + plane.offset;
        keys = reinterpret_cast<const type*>(at);
        values = keys + (plane.latent ? 0 : PAGE * plane.head_size);
        key_scales = reinterpret_cast<const float*>(values + PAGE * plane.head_size);
        value_scales = key_scales + (plane.latent ? 0 : PAGE);
    }
};

inline float inverse_scale(const float* x, int size, float* scale) {
    float high = 0.0f, zero = 0.0f;
    for (int i = 0; i < size; ++i) {
        high = std::fabs(x[i]) > high ? std::fabs(x[i]) : high;
        zero += x[i] * 0.0f;  // NaN if one of them is
    }
    *scale = high / 127.0f + zero;
    return safe_inverse(*scale);
}

template <int S> void kv_store_as(const KvPlane& plane, int slot, const float* key, const float* value) {
    const KvPage<S> page(plane, slot / PAGE);
    using type = typename KvPage<S>::type;
    type* keys = const_cast<type*>(page.keys) + slot % PAGE;
    if (plane.latent) {
        float inverse = 1.0f;
        if constexpr (S == KV_Q8) inverse = inverse_scale(key, plane.head_size, const_cast<float*>(page.key_scales) + slot % PAGE);
        for (int i = 0; i < plane.head_size; ++i) KvElement<S>::put(key[i], inverse, keys + size_t(i) * PAGE);
        return;
    }
    type* values = const_cast<type*>(page.values) + slot % PAGE * plane.head_size;
    float by_key = 1.0f, by_value = 1.0f;
    if constexpr (S == KV_Q8) {
        by_key = inverse_scale(key, plane.head_size, const_cast<float*>(page.key_scales) + slot % PAGE);
        by_value = inverse_scale(value, plane.head_size, const_cast<float*>(page.value_scales) + slot % PAGE);
    }
    int i = 0;
#ifdef HAS_STORE_F16
    if constexpr (S == KV_F16)
        for (; i + W <= plane.head_size; i += W) {
            uint16_t column[W];
            store_f16(load(key + i), column);
            store_f16(load(value + i), values + i);
            UNROLLED for (int n = 0; n < W; ++n) keys[size_t(i + n) * PAGE] = column[n];
        }
#endif
    for (; i < plane.head_size; ++i) {
        KvElement<S>::put(key[i], by_key, keys + size_t(i) * PAGE);
        KvElement<S>::put(value[i], by_value, values + i);
    }
}

// The numbers of a page as floats; the scales of eight-bit ones are applied to scores and weights instead.
template <int S> NOINLINE void expand(const typename KvElement<S>::type* numbers, int count, float* out) {
    for (int i = 0; i < count; i += W) store(out + i, KvElement<S>::vector(numbers + i));
}

#define BY_KV_DTYPE(function, ...)                           \
    switch (plane.kv_dtype) {                                \
        case KV_F32: return function<KV_F32>(__VA_ARGS__);   \
        case KV_F16: return function<KV_F16>(__VA_ARGS__);   \
        case KV_BF16: return function<KV_BF16>(__VA_ARGS__); \
        default: return function<KV_Q8>(__VA_ARGS__);        \
    }

void kv_store(const KvPlane& plane, int slot, const float* key, const float* value) {
    BY_KV_DTYPE(kv_store_as, plane, slot, key, value)
}

// Some queries' sums are kept in registers: each number of a page is loaded, and made a float, once for all of them. A sum is
// always taken in the order of its terms, so it does not depend on how many others there are.
constexpr int REGISTERS = W == 8 ? 16 : ROWS == 4 ? 32 : 12;
constexpr int QUERY_BLOCK = W == 8 ? 3 : ROWS;  // queries at a time
constexpr int vectors_for(int queries) {        // vectors of sums of each query: a power of two
    int vectors = 1;
    while (vectors < 8 && 2 * vectors * W <= PAGE && 2 * vectors * queries <= REGISTERS * 3 / 4) vectors *= 2;
    return vectors;
}
constexpr int loads_for(int queries, int vectors) {  // vectors of a page that are loaded ahead, to the registers that are left
    const int most = REGISTERS - queries * vectors > 4 ? 4 : 2;
    return vectors < most ? vectors : most;
}

inline int round_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

// Calls function(std::integral_constant<int, size>, first) for blocks of at most QUERY_BLOCK queries.
template <int R = QUERY_BLOCK, class Function> ALWAYS_INLINE void for_query_blocks(int queries, Function function, int first = 0) {
    for (; first + R <= queries; first += R) function(std::integral_constant<int, R>(), first);
    if constexpr (R > 1) for_query_blocks<R - 1>(queries, function, first);
}

// Scores of R queries with V vectors of a page's keys, which are transposed.
template <int S, int R, int V>
NOINLINE void score_keys(const typename KvElement<S>::type* keys, int size, const Query* query, float* scores) {
    constexpr int N = loads_for(R, V);
    F total[R][V];
    const float* vectors[R];
    UNROLLED for (int r = 0; r < R; ++r) {
        vectors[r] = query[r].vector;
        UNROLLED for (int v = 0; v < V; ++v) total[r][v] = set(0.0f);
    }
    for (int i = 0; i < size; ++i, keys += PAGE) {
        UNROLLED for (int first = 0; first < V; first += N) {
            F k[N];
            UNROLLED for (int n = 0; n < N; ++n) k[n] = KvElement<S>::vector(keys + (first + n) * W);
            UNROLLED for (int r = 0; r < R; ++r) {
                const float q = vectors[r][i];
                UNROLLED for (int n = 0; n < N; ++n) total[r][first + n] = fma(k[n], q, total[r][first + n]);
            }
            if constexpr (N < V) COMPILER_BARRIER;
        }
    }
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int v = 0; v < V; ++v) store(scores + r * CHUNK + v * W, mul(total[r][v], set(query[r].scale)));
}

// Scores of a page's first keys, and of some more: (queries, CHUNK)
template <int S>
void score_page(const typename KvElement<S>::type* keys, int size, int count, int queries, const Query* query, float* scores) {
    for_query_blocks(queries, [&](auto block, int first) {
        constexpr int R = block, V = vectors_for(R);
        for (int key = 0; key < count; key += V * W)
            score_keys<S, R, V>(keys + key, size, query + first, scores + first * CHUNK + key);
    });
}

// Adds values, times R queries' weights, to their states, D vectors of a head from a column on.
template <int S, int R, int D>
NOINLINE void accumulate(const typename KvElement<S>::type* values, int size, int count, const float* weights, int column,
                         AttentionState* states) {
    constexpr int N = loads_for(R, D);
    F total[R][D];
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int d = 0; d < D; ++d) total[r][d] = load(states[r].values + column + d * W);
    values += column;
    for (int i = 0; i < count; ++i, values += size) {
        UNROLLED for (int first = 0; first < D; first += N) {
            F x[N];
            UNROLLED for (int n = 0; n < N; ++n) x[n] = KvElement<S>::vector(values + (first + n) * W);
            UNROLLED for (int r = 0; r < R; ++r) {
                const float w = weights[r * CHUNK + i];
                UNROLLED for (int n = 0; n < N; ++n) total[r][first + n] = fma(x[n], w, total[r][first + n]);
            }
            if constexpr (N < D) COMPILER_BARRIER;
        }
    }
    UNROLLED for (int r = 0; r < R; ++r)
        UNROLLED for (int d = 0; d < D; ++d) store(states[r].values + column + d * W, total[r][d]);
}

// The same from a column on to the end of a head.
template <int S, int R, int D = vectors_for(R)>
inline void accumulate_head(const typename KvElement<S>::type* values, int size, int count, const float* weights, int column,
                            AttentionState* states) {
    for (; column + D * W <= size; column += D * W) accumulate<S, R, D>(values, size, count, weights, column, states);
    if constexpr (D > 1) return accumulate_head<S, R, D / 2>(values, size, count, weights, column, states);
    for (; column < size; ++column)
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < count; ++i)
                states[r].values[column] += weights[r * CHUNK + i] * KvElement<S>::one(values + i * size + column);
}

// Adds the values of a page's first keys, times the weights, (queries, CHUNK), to the states.
template <int S>
void accumulate_page(const typename KvElement<S>::type* values, int size, int count, int queries, const float* weights,
                     AttentionState* states) {
    for_query_blocks(queries, [&](auto block, int first) {
        accumulate_head<S, block>(values, size, count, weights + first * CHUNK, 0, states + first);
    });
}

// Columns of latents whose sums are in registers, so that none waits for the one before
constexpr int latents_for(int queries) { return 4 * queries <= REGISTERS / 2 ? 4 : 2 * queries <= REGISTERS / 2 ? 2 : 1; }

// The bits of a number, as whole numbers of its size
template <class T> using BitsOf = std::conditional_t<sizeof(T) == 1, uint8_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>>;

// R queries' sums over a chunk's keys in C columns of latents. columns: of each page, its first such column; of a vector of keys
// that is not full, last: the weights, (R, W); kept: the bits that its keys have, and none of others
template <int S, int R, int C>
NOINLINE void sum_latents(const typename KvElement<S>::type* const* columns, int count, const float* weights, const float* last,
                          const BitsOf<typename KvElement<S>::type>* kept, int column, AttentionState* states) {
    const int whole = count / W * W, rest = count - whole;
    F total[C][R];
    UNROLLED for (int c = 0; c < C; ++c)
        UNROLLED for (int r = 0; r < R; ++r) total[c][r] = set(0.0f);
    for (int at = 0; at < whole; at += W) {
        const auto* from = columns[at / PAGE] + size_t(column) * PAGE + at % PAGE;
        F x[C];
        UNROLLED for (int c = 0; c < C; ++c) x[c] = KvElement<S>::vector(from + c * PAGE);
        UNROLLED for (int r = 0; r < R; ++r) {
            const F w = load(weights + r * CHUNK + at);
            UNROLLED for (int c = 0; c < C; ++c) total[c][r] = fma(x[c], w, total[c][r]);
        }
    }
    if (rest) {  // what comes after it in the page need not be numbers
        const auto* from = columns[whole / PAGE] + size_t(column) * PAGE + whole % PAGE;
        UNROLLED for (int c = 0; c < C; ++c) {
            typename KvElement<S>::type numbers[W];
            BitsOf<typename KvElement<S>::type> bits[W];
            std::memcpy(bits, from + c * PAGE, sizeof bits);
            for (int i = 0; i < W; ++i) bits[i] &= kept[i];
            std::memcpy(numbers, bits, sizeof numbers);
            const F x = KvElement<S>::vector(numbers);
            UNROLLED for (int r = 0; r < R; ++r) total[c][r] = fma(x, load(last + r * W), total[c][r]);
        }
    }
    UNROLLED for (int c = 0; c < C; ++c)
        UNROLLED for (int r = 0; r < R; ++r) states[r].values[column + c] = reduce_add(total[c][r]);
}

// The same for values that are numbers of the keys, of a whole chunk: (CHUNK) numbers of one column after another. A key always
// has the same lane in the sums, so that these do not depend on how many keys there are.
template <int S, int R> void accumulate_latents(const KvPlane& plane, int first, int count, const float* weights, AttentionState* states) {
    const typename KvPage<S>::type* columns[CHUNK / PAGE];
    for (int at = 0; at < count; at += PAGE) columns[at / PAGE] = KvPage<S>(plane, (first + at) / PAGE).keys;
    const int whole = count / W * W;
    float last[R * W] = {};
    BitsOf<typename KvPage<S>::type> kept[W] = {};
    for (int i = whole; i < count; ++i) {
        kept[i - whole] = BitsOf<typename KvPage<S>::type>(-1);
        for (int r = 0; r < R; ++r) last[r * W + i - whole] = weights[r * CHUNK + i];
    }
    constexpr int C = latents_for(R);
    int column = 0;
    for (; column + C <= plane.latent; column += C) sum_latents<S, R, C>(columns, count, weights, last, kept, column, states);
    for (; column < plane.latent; ++column) sum_latents<S, R, 1>(columns, count, weights, last, kept, column, states);
}

// A few queries read a page as it is stored; for many it is expanded first, so that they need not do so again and again.
template <int S> constexpr bool read_in_place(int queries) { return S == KV_F32 || queries <= QUERY_BLOCK; }

inline void multiply_rows(int queries, int count, const float* scales, float* rows) {  // rows: (queries, CHUNK)
    for (int q = 0; q < queries; ++q)
        for (int i = 0; i < count; i += W) store(rows + q * CHUNK + i, mul(load(rows + q * CHUNK + i), load(scales + i)));
}

// Adds distance biases and masks invisible keys: the scores of keys [first, first + count) of a query's row.
inline void bias_and_mask(const Query& q, int first, int count, float* scores) {
    if (q.distance_bias)
        for (int i = 0; i < count; ++i) {
            int away = first + i - q.position;
            away = away < -q.max_distance ? -q.max_distance : away > q.max_distance ? q.max_distance : away;
            scores[i] += q.distance_bias[away];
        }
    if (q.slope != 0.0f)
        for (int i = 0; i < count && first + i < q.end_key; ++i) {
            const int key = first + i;
            const int position = q.tree_mask && key >= q.tree_start ? q.tree_positions[key - q.tree_start] : key;
            scores[i] += q.slope * float(position - q.position);
        }
    if (q.distance_buckets)
        for (int i = 0; i < count && first + i < q.end_key; ++i) {
            int away = q.position - first - i;
            away = away < -q.max_distance ? -q.max_distance : away > q.max_distance ? q.max_distance : away;
            const int bucket = q.distance_buckets[away];
            if (q.query_distances) scores[i] += q.query_distances[bucket];
            if (q.key_distances) scores[i] += q.key_distances[(first + i) * q.key_stride + bucket];
        }
    for (int i = 0; i < count && first + i < q.first_key; ++i) scores[i] = -INFINITY;
    for (int i = q.end_key > first ? q.end_key - first : 0; i < count; ++i) scores[i] = -INFINITY;
    if (q.global_keys)
        for (int i = q.first_key > first ? q.first_key - first : 0; i < count && first + i < q.end_key; ++i) {
            const int key = first + i;
            if ((key < q.window_first || key >= q.window_end) && !q.global_keys[key]) scores[i] = -INFINITY;
        }
    if (q.tree_mask)
        for (int i = q.tree_start > first ? q.tree_start - first : 0; i < count && first + i < q.end_key; ++i) {
            const int key = first + i - q.tree_start;
            const bool in_window = q.window == 0 || q.position - q.tree_positions[key] < q.window;
            if (!q.tree_mask[key] || !in_window) scores[i] = -INFINITY;
        }
}

constexpr int EXPS = 4;  // vectors of e^x that are computed side by side, since the steps of each wait for one another

// The masked scores of keys [first, first + count), and of some more for whole vectors: (queries, CHUNK)
template <int S>
void attention_scores(const KvPlane& plane, int queries, const Query* query, int first, int count, float* scores,
                      float* page_scratch) {
    const int size = plane.head_size;
    for (int at = 0; at < count; at += PAGE, scores += PAGE) {
        const KvPage<S> page(plane, (first + at) / PAGE);
        const int keys_here = round_up(min(PAGE, count - at), EXPS * W);
        if (read_in_place<S>(queries)) {
            score_page<S>(page.keys, size, keys_here, queries, query, scores);
        } else {
            expand<S>(page.keys, PAGE * size, page_scratch);
            score_page<KV_F32>(page_scratch, size, keys_here, queries, query, scores);
        }
        if constexpr (S == KV_Q8) multiply_rows(queries, keys_here, page.key_scales, scores);
        for (int q = 0; q < queries; ++q) {
            if (query[q].softcap) soft_cap(query[q].softcap, scores + q * CHUNK, keys_here);
            bias_and_mask(query[q], first + at, keys_here, scores + q * CHUNK);
        }
    }
}

// Scores to exp(score - maximum), in place; the maximum and the total to `state`.
void softmax_weights(float* scores, int count, AttentionState& state) {
    F most = set(-INFINITY), total = set(0.0f);
    for (int i = 0; i < count; i += W) most = max(most, load(scores + i));
    state.maximum = reduce_max(most);
    const F shift = set(state.maximum == -INFINITY ? 0.0f : -state.maximum);
    for (int at = 0; at < count; at += EXPS * W) {
        F weights[EXPS];
        UNROLLED for (int v = 0; v < EXPS; ++v) weights[v] = softmax_exp(add(load(scores + at + v * W), shift));
        UNROLLED for (int v = 0; v < EXPS; ++v) {
            total = add(total, weights[v]);
            store(scores + at + v * W, weights[v]);
        }
    }
    state.total = reduce_add(total);
}

// One chunk of an online softmax: keys from `first` on. scratch: (QUERIES, CHUNK), and (PAGE, head_size) for a page.
template <int S>
void attention_as(const KvPlane& plane, int queries, const Query* query, int first, AttentionState* states, float* scratch) {
    float* page_scratch = scratch + QUERIES * CHUNK;
    const int size = plane.value_size();
    int high = 0;
    for (int q = 0; q < queries; ++q) high = query[q].end_key > high ? query[q].end_key : high;
    const int count = min(CHUNK, high - first);
    attention_scores<S>(plane, queries, query, first, count, scratch, page_scratch);
    for (int q = 0; q < queries; ++q) {
        softmax_weights(scratch + q * CHUNK, round_up(count, EXPS * W), states[q]);
        for (int i = 0; i < size; ++i) states[q].values[i] = 0.0f;
    }
    if (plane.latent) {
        if constexpr (S == KV_Q8)
            for (int at = 0; at < count; at += PAGE)
                multiply_rows(queries, min(PAGE, count - at), KvPage<S>(plane, (first + at) / PAGE).value_scales, scratch + at);
        return for_query_blocks(queries, [&](auto block, int query_at) {
            accumulate_latents<S, block>(plane, first, count, scratch + query_at * CHUNK, states + query_at);
        });
    }
    for (int at = 0; at < count; at += PAGE) {
        const KvPage<S> page(plane, (first + at) / PAGE);
        const int keys_here = min(PAGE, count - at);
        if constexpr (S == KV_Q8) multiply_rows(queries, keys_here, page.value_scales, scratch + at);
        if (read_in_place<S>(queries)) {
            accumulate_page<S>(page.values, size, keys_here, queries, scratch + at, states);
        } else {
            expand<S>(page.values, keys_here * size, page_scratch);
            accumulate_page<KV_F32>(page_scratch, size, keys_here, queries, scratch + at, states);
        }
    }
}

void attention(const KvPlane& plane, int queries, const Query* query, int first, AttentionState* states, float* scratch) {
    BY_KV_DTYPE(attention_as, plane, queries, query, first, states, scratch)
}

// A softmax in place; `sink`: one more score, whose share is left out.
void softmax(float* scores, int count, float sink) {
    const int whole = count / W * W;
    F highest = set(-INFINITY), sum = set(0.0f);
    for (int i = 0; i < whole; i += W) highest = max(highest, load(scores + i));
    float most = reduce_max(highest);
    for (int i = whole; i < count; ++i) most = scores[i] > most ? scores[i] : most;
    for (int i = 0; i < whole; i += W) {
        const F weights = softmax_exp(sub(load(scores + i), set(most)));
        store(scores + i, weights);
        sum = add(sum, weights);
    }
    float total = reduce_add(sum);
    for (int i = whole; i < count; ++i) total += scores[i] = softmax_exp(scores[i] - most);
    if (sink > -INFINITY) total += std::exp(sink - most);
    for (int i = 0; i < whole; i += W) store(scores + i, div(load(scores + i), set(total)));
    for (int i = whole; i < count; ++i) scores[i] /= total;
}

// Some queries' softmaxes over the first keys: (keys) each
template <int S>
void attention_pattern_as(const KvPlane& plane, int queries, const Query* query, int keys, float* const* out, float* scratch) {
    for (int first = 0; first < keys; first += CHUNK) {
        const int count = min(CHUNK, keys - first);
        attention_scores<S>(plane, queries, query, first, count, scratch, scratch + QUERIES * CHUNK);
        for (int q = 0; q < queries; ++q) std::memcpy(out[q] + first, scratch + q * CHUNK, size_t(count) * 4);
    }
    for (int q = 0; q < queries; ++q) softmax(out[q], keys, query[q].sink);
}

void attention_pattern(const KvPlane& plane, int queries, const Query* query, int keys, float* const* out, float* scratch) {
    BY_KV_DTYPE(attention_pattern_as, plane, queries, query, keys, out, scratch)
}

// A head from given attention weights.
template <int S> void weighted_values_as(const KvPlane& plane, const float* pattern, int keys, float* out, float* scratch) {
    AttentionState state{0.0f, 1.0f, out};
    for (int i = 0; i < plane.value_size(); ++i) out[i] = 0.0f;
    if (plane.latent) {
        float *part = scratch + CHUNK, *weights = scratch;
        for (int first = 0; first < keys; first += CHUNK) {
            const int count = min(CHUNK, keys - first);
            std::memcpy(weights, pattern + first, size_t(count) * 4);
            for (int i = count; i < CHUNK; ++i) weights[i] = 0.0f;
            if constexpr (S == KV_Q8)
                for (int at = 0; at < count; at += PAGE)
                    multiply_rows(1, min(PAGE, count - at), KvPage<S>(plane, (first + at) / PAGE).value_scales, weights + at);
            AttentionState own{0.0f, 1.0f, part};
            accumulate_latents<S, 1>(plane, first, count, weights, &own);
            for (int i = 0; i < plane.latent; ++i) out[i] += part[i];
        }
        return;
    }
    for (int at = 0; at < keys; at += PAGE) {
        const KvPage<S> page(plane, at / PAGE);
        const int keys_here = min(PAGE, keys - at);
        std::memcpy(scratch, pattern + at, size_t(keys_here) * 4);
        if constexpr (S == KV_Q8) multiply_rows(1, keys_here, page.value_scales, scratch);
        accumulate_page<S>(page.values, plane.head_size, keys_here, 1, scratch, &state);
    }
}

void weighted_values(const KvPlane& plane, const float* pattern, int keys, float* out, float* scratch) {
    BY_KV_DTYPE(weighted_values_as, plane, pattern, keys, out, scratch)
}
#undef BY_KV_DTYPE

// Merges the online softmax of another chunk of keys.
float merge(AttentionState& into, const AttentionState& chunk, int head_size) {
    if (chunk.maximum == -INFINITY) return into.total;
    const float most = into.maximum > chunk.maximum ? into.maximum : chunk.maximum;
    const float a = softmax_exp(into.maximum - most), b = softmax_exp(chunk.maximum - most);
    into.maximum = most;
    into.total = into.total * a + chunk.total * b;
    for (int i = 0; i < head_size; ++i) into.values[i] = into.values[i] * a + chunk.values[i] * b;
    return into.total;
}

// What a softmax and its entropy are made of, for scores that are numbers or minus infinity. Short runs are summed in floats,
// and these in doubles; a run that is a good part of the whole is computed in doubles altogether.
SoftmaxSums softmax_sums(const float* scores, int64_t count) {
    constexpr int RUN = 8 * W;
    const int64_t whole = count / RUN * RUN;
    F highest[2] = {set(-INFINITY), set(-INFINITY)}, deepest = highest[0];
    for (int64_t i = 0; i < whole; i += 2 * W) {
        UNROLLED for (int v = 0; v < 2; ++v) {
            const F x = load(scores + i + v * W);
            highest[v] = max(highest[v], x);
            deepest = max(deepest, sub(set(0.0f), x));
        }
    }
    SoftmaxSums sums = {0.0, 0.0, count};
    float best = reduce_max(max(highest[0], highest[1]));
    bool complete = reduce_max(deepest) < INFINITY;
    for (int64_t i = whole; i < count; ++i) {
        best = scores[i] > best ? scores[i] : best;
        complete = complete && scores[i] > -INFINITY;
    }
    if (!complete) {
        sums.in_play = 0;
        for (int64_t i = 0; i < count; ++i) sums.in_play += scores[i] > -INFINITY;
        if (!sums.in_play) return sums;
    }
    constexpr float LEAST = -87.0f;  // where exp is as good as 0; 0 times minus infinity would be NaN
    const auto add_in_doubles = [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
            const double depth = double(scores[i]) - best;
            if (depth < LEAST) continue;
            const double weight = std::exp(depth);
            sums.total += weight;
            sums.weighted += weight * depth;
        }
    };
    for (int64_t first = 0; first < whole; first += RUN) {
        F total = set(0.0f), weighted = total;
        UNROLLED for (int v = 0; v < RUN; v += W) {
            const F depth = max(sub(load(scores + first + v), set(best)), set(LEAST)), weight = exp_in_range(depth);
            total = add(total, weight);
            weighted = fma(weight, depth, weighted);
        }
        if (const float run = reduce_add(total); run > sums.total / 16) {
            add_in_doubles(first, first + RUN);
        } else {
            sums.total += run;
            sums.weighted += reduce_add(weighted);
        }
    }
    add_in_doubles(whole, count);
    return sums;
}

int32_t best(const float* scores, int count) {
    constexpr int RUN = 16 * W;
    const int whole = count / RUN * RUN;
    float highest = -INFINITY;
    int first = 0;
    F zero = set(0.0f);  // NaN if a score is NaN or infinite
    for (int i = 0; i < whole; i += RUN) {
        F run[2] = {set(-INFINITY), set(-INFINITY)};
        UNROLLED for (int v = 0; v < RUN / W; ++v) {
            const F x = load(scores + i + v * W);
            run[v % 2] = max(run[v % 2], x);
            zero = fma(x, set(0.0f), zero);
        }
        const float high = reduce_max(max(run[0], run[1]));
        if (high > highest) highest = high, first = i;
    }
    if (whole == 0 || reduce_add(zero) != 0.0f) first = 0, highest = -INFINITY;  // one by one
    else while (scores[first] != highest) ++first;
    for (int i = highest == -INFINITY ? 0 : whole; i < count; ++i) {
        if (std::isnan(scores[i])) return NOT_NUMBERS;
        if (scores[i] > highest) highest = scores[i], first = i;
    }
    return std::isfinite(highest) ? first : NOT_NUMBERS;
}

}  // namespace

#ifdef __AMX_BF16__
#define SPLIT_BF16 split_bf16
#else
#define SPLIT_BF16 nullptr
#endif
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
namespace glass {
extern const Kernels JOIN(kernels_, LEVEL);
const Kernels JOIN(kernels_, LEVEL) = {
    TEXT(LEVEL), norm, quantize, SPLIT_BF16, matmul, input_gradients, activate, soft_cap, rope, kv_store, attention, attention_pattern,
    weighted_values, merge, softmax_sums, best, causal_conv, recur, PART};
}  // namespace glass
