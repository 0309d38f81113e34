// Every function of a level's table against a slow statement of what it means, in double precision.
//
// Linked with kernels.cpp of the levels that -DLEVEL_name=1 names, portable always among them; the argument is the level.
// The first failure is one line on stderr, and the end.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels.h"
#include "levels.h"
#include "pack.h"

namespace {

using namespace glass;
using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

const Kernels* const LEVELS[] = {
    &kernels_portable,
#ifdef LEVEL_neon
    &kernels_neon,
#endif
#ifdef LEVEL_dotprod
    &kernels_dotprod,
#endif
#ifdef LEVEL_avx2
    &kernels_avx2,
#endif
#ifdef LEVEL_avxvnni
    &kernels_avxvnni,
#endif
#ifdef LEVEL_avx512vnni
    &kernels_avx512vnni,
#endif
#ifdef LEVEL_amx
    &kernels_amx,
#endif
};
const Kernels* level = nullptr;  // the one under test

constexpr float INF = INFINITY;
constexpr double SMALLEST = 1.17549435e-38;  // normal number

// Saying what is wrong --------------------------------------------------------------------------------------------

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
    std::fprintf(stderr, "%s: ", level ? level->name : "kernels_test");
    va_list words;
    va_start(words, format);
    std::vfprintf(stderr, format, words);
    va_end(words);
    std::fputc('\n', stderr);
    std::exit(1);
}

__attribute__((format(printf, 1, 2))) std::string named(const char* format, ...) {
    char text[200];
    va_list words;
    va_start(words, format);
    std::vsnprintf(text, sizeof text, format, words);
    va_end(words);
    return text;
}

void near(const std::string& what, int place, double got, double expected, double within) {
    if (!(std::fabs(got - expected) <= within) && got != expected)
        fail("%s at %d: %.9g, not %.9g within %.3g", what.c_str(), place, got, expected, within);
}

void same(const std::string& what, const void* got, const void* expected, size_t bytes) {
    const auto *a = static_cast<const uint8_t*>(got), *b = static_cast<const uint8_t*>(expected);
    for (size_t i = 0; i < bytes; ++i)
        if (a[i] != b[i]) fail("%s: byte %zu is %d, not %d", what.c_str(), i, a[i], b[i]);
}

// Material --------------------------------------------------------------------------------------------------------

std::mt19937 source(2025);

int whole(int low, int high) { return low + int(source() % uint32_t(high - low + 1)); }
float real(double low, double high) { return float(low + (high - low) * (double(source()) / 4294967295.0)); }
Floats reals(size_t count, double low, double high) {
    Floats all(count);
    for (float& x : all) x = real(low, high);
    return all;
}

double from_f16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}
double from_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
}
uint16_t half_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }
void put_half(uint8_t* p, int bits) {
    p[0] = uint8_t(bits);
    p[1] = uint8_t(bits >> 8);
}
int some_half() {  // now and then nought, or subnormal
    const int kind = whole(0, 19), fraction = whole(0, 1023);
    return whole(0, 1) << 15 | (kind == 0 ? 0 : kind == 1 ? fraction : whole(8, 15) << 10 | fraction);
}

// Functions of vectors --------------------------------------------------------------------------------------------

// merge() multiplies by e^(into.maximum - most), which shows the exponential as it is.
float softmax_exp(float x) {
    float one = 1.0f, none = 0.0f;
    AttentionState into{x, 1.0f, &one};
    level->merge(into, AttentionState{0.0f, 0.0f, &none}, 1);
    return one;
}

void test_softmax_exp() {
    for (double x = -86.99; x <= 0.0; x += 0.0173)
        near("exponential", int(x), softmax_exp(float(x)), std::exp(double(float(x))), 2.4e-7 * std::exp(x));
    for (float x : {-INF, -3e38f, -1e30f, -1000.0f, -104.0f, -88.0f})
        near("exponential below", 0, softmax_exp(x), 0.0, SMALLEST);
    near("exponential", 0, softmax_exp(0.0f), 1.0, 0.0);
    near("exponential", 0, softmax_exp(-1e-38f), 1.0, 0.0);
}

void test_norm() {
    for (int how : {int(RMS_NORM), int(LAYER_NORM)})
        for (int count : {1, 3, 8, 17, 20, 64, 100, 576})
            for (int biased : {0, 1}) {
                const Floats in = reals(count, -2.0, 3.0), weight = reals(count, -2, 2), bias = reals(count, -1, 1);
                const Norm norm{weight.data(), biased ? bias.data() : nullptr, 1e-5f, how};
                Floats out(count), inside = in;
                level->norm(norm, in.data(), count, out.data());
                double mean = 0.0, square = 0.0;
                for (float x : in) mean += how == LAYER_NORM ? double(x) / count : 0.0;
                for (float x : in) square += (x - mean) * (x - mean) / count;
                const std::string what = named("norm %d of %d", how, count);
                for (int i = 0; i < count; ++i) {
                    const double x = (in[i] - mean) / std::sqrt(square + double(norm.eps)) * weight[i];
                    near(what, i, out[i], x + (biased ? bias[i] : 0.0f), 2e-5);
                }
                level->norm(norm, inside.data(), count, inside.data());
                same(what + " in its place", inside.data(), out.data(), count * sizeof(float));
            }
}

struct Inputs {  // tokens, quantized one by one
    const Kernels* by;
    int rounding, columns, parts = parts_of(rounding), part_bytes = by->part_bytes;
    std::vector<int8_t> codes;
    Floats scales, sums;
    std::vector<int32_t> refined;
    QuantizedInput from(int token) const {
        const size_t blocks = size_t(token) * (columns / BLOCK);
        return {codes.data() + blocks * parts * part_bytes, scales.data() + blocks, sums.data() + blocks * 3,
                refined.data() + blocks + token, rounding, 1};
    }
    // Which of its token's second parts a block has, or -1
    int refinement(size_t block) const {
        const int blocks = columns / BLOCK, number = int(block) % blocks;
        const int32_t* numbers = refined.data() + block / blocks * (blocks + 1);
        for (int i = 0; rounding == ROUND_MIXED && numbers[i] < blocks; ++i)
            if (numbers[i] == number) return i;
        return -1;
    }
    bool has_part(size_t block, int number) const { return number == 0 || rounding == ROUND_Q14 || refinement(block) >= 0; }
    double code(size_t i) const {  // in units of the scale
        const double upper = codes[place(i)], lower = parts == 2 && has_part(i / BLOCK, 1) ? codes[place(i, 1)] : 0;
        return rounding == ROUND_Q14 ? 64 * upper + lower : upper + lower / 128;
    }
    size_t part(size_t block, int number) const {  // where it begins
        const size_t blocks = columns / BLOCK, first = block / blocks * blocks * parts;
        if (rounding == ROUND_Q14) return (first + block % blocks * parts + number) * part_bytes;
        return (first + (number ? blocks + refinement(block) : block % blocks)) * part_bytes;
    }
    size_t place(size_t i, int number = 0) const { return part(i / BLOCK, number) + part_bytes - BLOCK + i % BLOCK; }
    Inputs(const Kernels* by, int rounding, size_t count, int columns)
        : by(by), rounding(rounding), columns(columns), codes(parts * (count / BLOCK) * part_bytes, 77), scales(count / BLOCK),
          sums(count / BLOCK * 3), refined(count / columns * (columns / BLOCK + 1), columns / BLOCK) {}
    Inputs(const Kernels* by, int rounding, const Floats& in, int columns) : Inputs(by, rounding, in.size(), columns) {
        for (size_t token = 0; token < in.size() / columns; ++token) {
            const size_t block = token * (columns / BLOCK);
            by->quantize(in.data() + token * columns, columns, rounding, 1, codes.data() + part(block, 0), scales.data() + block,
                         sums.data() + block * 3, refined.data() + block + token);
        }
    }
    // What quantize() writes in front of a part's codes: see PartStart in simd_neon.h
    void start_part(size_t block, float scale, int total) {
        if (part_bytes == BLOCK) return;
        const float unbias[4] = {-12582912.0f * scale, -12582912.0f * scale, -12582912.0f * scale, -12582912.0f * scale};
        const int32_t from = 0x4b400000 - 8 * total, from_minus_8[4] = {from, from, from, from};
        std::memcpy(codes.data() + part(block, 0), unbias, 16);
        std::memcpy(codes.data() + part(block, 0) + 16, from_minus_8, 16);
    }
};

struct GroupedInputs {  // the first of them, with the scales of 16 tokens side by side
    std::vector<int8_t> codes;
    Floats scales, sums;
    std::vector<int32_t> refined;
    int rounding;
    GroupedInputs(const Inputs& in, int tokens) : rounding(in.rounding) {
        const int blocks = in.columns / BLOCK, room = (tokens + TILE - 1) / TILE * TILE;
        const size_t token_bytes = size_t(blocks) * in.parts * in.part_bytes;
        codes.assign(in.codes.begin(), in.codes.begin() + tokens * token_bytes);
        codes.resize(room * token_bytes, 77);
        scales.resize(room * blocks, INF);
        sums.resize(room * blocks * 3, INF);
        refined.assign(in.refined.begin(), in.refined.begin() + tokens * (blocks + 1));
        for (int token = 0; token < tokens; ++token)
            for (int block = 0; block < blocks; ++block) {
                const int from = token * blocks + block, group = token / TILE * blocks + block, at = token % TILE;
                scales[group * TILE + at] = in.scales[from];
                for (int i = 0; i < 3; ++i) sums[(group * 3 + i) * TILE + at] = in.sums[from * 3 + i];
            }
    }
    QuantizedInput all() const { return {codes.data(), scales.data(), sums.data(), refined.data(), rounding, TILE}; }
};

// Some of them far above the others
Floats with_outliers(Floats all) {
    for (size_t i = 0; i < all.size(); ++i)
        if (source() % 150 == 0) all[i] *= real(10.0, 40.0);
    return all;
}

void test_quantize_in_groups(int rounding) {
    const int columns = 8 * BLOCK, tokens = 3;
    const Floats in = with_outliers(reals(tokens * columns, -3.0, 3.0));
    const Inputs alone(level, rounding, in, columns);
    const GroupedInputs expected(alone, tokens);
    Floats scales(expected.scales.size(), INF), sums(expected.sums.size(), INF);
    std::vector<int8_t> codes(expected.codes.size(), 77);
    std::vector<int32_t> refined(expected.refined.size(), columns / BLOCK);
    for (int token = 0; token < tokens; ++token)
        level->quantize(in.data() + token * columns, columns, rounding, TILE,
                        codes.data() + alone.part(size_t(token) * (columns / BLOCK), 0), scales.data() + token, sums.data() + token, refined.data() + token * (columns / BLOCK + 1));
    same("quantize in groups: codes", codes.data(), expected.codes.data(), codes.size());
    same("quantize in groups: scales", scales.data(), expected.scales.data(), scales.size() * 4);
    same("quantize in groups: sums", sums.data(), expected.sums.data(), sums.size() * 4);
    same("quantize in groups: refined", refined.data(), expected.refined.data(), refined.size() * 4);
}

void test_quantize(int rounding) {
    const float most = rounding == ROUND_Q14 ? 8159.0f : 127.0f;
    Floats in = reals(BLOCK * 40, -3.0, 3.0);
    const float sizes[] = {0.0f, 3e38f, 1e-30f, 1e-33f, 1e-34f, 2e-35f, 1e-38f, 1e-42f, 1e-45f};
    for (size_t i = 0; i < in.size(); ++i)
        if (i / BLOCK < 9) in[i] *= sizes[i / BLOCK] / 3.0f;
    for (int i = 0; i < BLOCK; ++i) in[BLOCK * 9 + i] = i == 5 ? -most : 0.5f + float(i - 16) * 3.0f;  // halves
    for (int i = 0; i < BLOCK; ++i) in[BLOCK * 10 + i] = i == 9 ? 8159.0f : float(i - 16) * 64.0f + float(i % 3 * 32 - 32);
    for (int i = 0; i < BLOCK; ++i) in[BLOCK * 11 + i] *= i == 17 ? 1.0f : 0.003f;  // an outlier of this block
    // Each block alone, and all together: what is an outlier depends on the rest.
    for (int columns : {BLOCK, 40 * BLOCK}) {
        const Inputs got(level, rounding, in, columns), portable(&kernels_portable, rounding, in, columns);
        for (size_t block = 0; block < got.scales.size(); ++block) {
            const float* x = in.data() + block * BLOCK;
            float high = 0.0f;
            for (int i = 0; i < BLOCK; ++i) high = std::fmax(high, std::fabs(x[i]));
            const float scale = got.scales[block];
            double totals[2] = {0, 0};
            near("quantize: scale", int(block), scale, high / most, std::fmax(std::ldexp(high / most, -21), 4.3e-45));
            uint32_t bits;
            std::memcpy(&bits, &scale, 4);
            if (bits % 4) fail("quantize: the scale of block %zu has all of its bits", block);
            for (int i = 0; i < BLOCK; ++i) {
                const size_t at = block * BLOCK + i;
                const int upper = got.codes[got.place(at)], lower = got.rounding == ROUND_Q14 ? got.codes[got.place(at, 1)] : 0;
                for (int part = 0; part < got.parts; ++part)
                    if (got.has_part(block, part) && portable.has_part(block, part) &&
                        got.codes[got.place(at, part)] != portable.codes[portable.place(at, part)])
                        fail("quantize: part %d of input %zu is not as in the portable level", part, at);
                const double code = got.code(block * BLOCK + i);
                if (upper < -127 || lower < -32 || lower > 31) fail("quantize: parts %d, %d in block %zu", upper, lower, block);
                totals[i / 16] += code;
                const double within = got.refinement(block) >= 0 ? 0.005 : 0.502;
                const double slack = scale >= SMALLEST ? within * scale : high;  // of tiny numbers nothing need be left
                near("quantize: code", int(block) * BLOCK + i, code * scale, x[i], slack);
            }
            const float* sums = got.sums.data() + block * 3;
            const double within = got.refinement(block) >= 0 ? 1e-3 * scale : 0.0;
            near("quantize: sum", int(block), sums[0], scale * float(totals[0] + totals[1]), within);
            for (int half : {0, 1})
                near("quantize: sum of a half", int(block), sums[1 + half], scale * float(totals[half]), within);
        }
        same("quantize as portable: scales", got.scales.data(), portable.scales.data(), got.scales.size() * 4);
        same("quantize as portable: sums", got.sums.data(), portable.sums.data(), got.sums.size() * 4);
        same("quantize as portable: refined", got.refined.data(), portable.refined.data(), got.refined.size() * 4);
    }
}

void test_outliers_are_refined() {
    Floats in(16 * BLOCK, 1.0f);
    in[3 * BLOCK + 7] = -30.0f;
    in[9 * BLOCK] = 0.0f;
    const Inputs got(level, ROUND_MIXED, in, int(in.size()));
    for (int block = 0; block < 16; ++block) near("outlier", block, got.refinement(block) >= 0, block == 3, 0.0);
    const Inputs plain(level, ROUND_Q8, in, int(in.size()));
    near("eight bits beside an outlier", 0, plain.code(3 * BLOCK) * plain.scales[3], 0.945, 0.001);
    near("refined beside an outlier", 0, got.code(3 * BLOCK) * got.scales[3], 1.0, 0.001);
}

double activated(int how, double x) {
    switch (how) {
        case SILU: return x / (1.0 + std::exp(-x));
        case GELU: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
        case GELU_TANH: return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
        case RELU: return x < 0.0 ? 0.0 : x;
        default: return std::tanh(x);
    }
}

void test_activate() {
    for (int how : {int(SILU), int(GELU), int(GELU_TANH), int(RELU), int(TANH)})
        for (int count : {1, 5, 16, 33, 100}) {
            Floats x = reals(count, -12.0, 12.0);
            const float extremes[] = {0.0f, -0.0f, 88.5f, -88.5f, 104.0f, -104.0f, 1e20f, -1e20f, 1e-40f, -1e-40f, 1e37f};
            for (int i = 0; i < count && i < 11; ++i) x[i] = count > 30 ? extremes[i] : x[i];
            const Floats other = reals(count, -3.0, 3.0);
            Floats plain = x, gated = other;
            level->activate(how, plain.data(), nullptr, count);
            level->activate(how, gated.data(), x.data(), count);
            const std::string what = named("activation %d of %d", how, count);
            for (int i = 0; i < count; ++i) {
                const double expected = activated(how, x[i]), within = 1e-6 * std::fabs(x[i]) + (how == TANH ? 2e-7 : 1e-15);
                near(what, i, plain[i], expected, within);
                near(what + ", gated", i, gated[i], expected * other[i], 4.0 * within);
            }
        }
}

void test_soft_cap() {
    for (float cap : {0.5f, 20.0f, 50.0f}) {
        Floats in = reals(64, -100.0, 100.0), out;
        in[0] = INF, in[1] = -INF, in[2] = 0.0f;
        out = in;
        level->soft_cap(cap, out.data(), int(out.size()));
        for (size_t i = 0; i < in.size(); ++i)
            near(named("soft cap %g", double(cap)), int(i), out[i] / cap, std::tanh(double(in[i]) / cap), 4e-7);
    }
}

void test_rope(bool interleaved) {
    constexpr int untouched = 6;  // numbers of the head after those that are rotated
    for (int size : {2, 8, 20, 64, 128, 256}) {
        const int half = size / 2;
        const Floats in = reals(size + untouched, -4.0, 4.0);
        Floats table(size), out = in;
        for (int i = 0; i < half; ++i) {
            const double angle = real(-4.0, 4.0);
            table[i] = float(std::cos(angle));
            table[half + i] = float(std::sin(angle));
        }
        level->rope(table.data(), size, interleaved, out.data());
        for (int i = 0; i < half; ++i) {
            const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
            const double a = in[first], b = in[second], cosine = table[i], sine = table[half + i];
            near(named("rope %d", size), first, out[first], a * cosine - b * sine, 2e-6);
            near(named("rope %d", size), second, out[second], b * cosine + a * sine, 2e-6);
        }
        for (int i = size; i < size + untouched; ++i) near(named("rope %d: the rest", size), i, out[i], in[i], 0.0);
    }
}

// Matmul ----------------------------------------------------------------------------------------------------------

constexpr int TOKENS = 37;  // at most, in one call
constexpr int HEIGHT = 37;  // rows: two whole tiles and a part

bool is_split(int kind, int columns) { return kind == BF16 && columns % BLOCK == 0 && level->split_bf16; }

struct Split {  // tokens' inputs for a matrix of bfloat16, eight together
    std::vector<uint16_t> all;
    Split(const Matrix& m, const float* values, size_t stride, int tokens) {
        if (!is_split(m.kind, m.columns)) return;
        all.resize(size_t(tokens + 7) / 8 * 16 * m.columns, 0x7fc0);  // what no token fills is NaN, and must not matter
        for (int token = 0; token < tokens; ++token)
            level->split_bf16(values + token * stride, m.columns, all.data() + size_t(token / 8) * 16 * m.columns + token % 8 * 2);
    }
    const uint16_t* planes() const { return all.empty() ? nullptr : all.data(); }
};

// `count` tokens at once must be what each is alone, and what is expected; expected and sizes: (tokens, TILE)
void check_matmul(const std::string& what, const Matrix& m, int tile, const Floats& values, size_t stride,
                    const Inputs& inputs, const std::vector<double>& expected, const std::vector<double>& within) {
    const int rows = std::min(TILE, m.rows - tile * TILE);
    Floats alone(TOKENS * TILE);
    for (int token = 0; token < TOKENS; ++token) {
        QuantizedInput input = inputs.from(token);
        const Split split(m, values.data() + token * stride, stride, 1);
        input.split = split.planes();
        level->matmul(m, tile, 1, values.data() + token * stride, stride, input, alone.data() + token * TILE);
    }
    for (int i = 0; i < TOKENS * TILE; ++i)
        if (i % TILE < rows) near(what, i, alone[i], expected[i], within[i]);
    for (int count : {2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 32, 33, TOKENS}) {
        Floats out(count * TILE);
        const bool packed = m.kind > BF16;
        const GroupedInputs grouped(inputs, packed ? count : 0);
        QuantizedInput input = grouped.all();
        const Split split(m, values.data(), stride, count);
        input.split = split.planes();
        level->matmul(m, tile, count, values.data(), stride, input, out.data());
        for (int token = 0; token < count; ++token)
            same(what + named(": token %d of %d beside itself alone", token, count), out.data() + token * TILE,
                 alone.data() + token * TILE, rows * sizeof(float));
    }
}

struct Layout {
    const char* name;
    int kind, head, inner, first, bits;  // head: bytes in front of 256 inputs; inner: of 32; first: where codes begin
};
const Layout LAYOUTS[] = {
    {"Q8_0", Q8_0, 0, 544, 32, 8},  {"Q4_0", Q4_0, 0, 288, 32, 4},  {"Q4_1", Q4_1, 0, 320, 64, 4},
    {"Q4_K", Q4_K, 64, 288, 32, 4}, {"Q5_K", Q5_K, 64, 352, 32, 5}, {"Q6_K", Q6_K, 32, 416, 32, 6},
};

struct Weight {
    double scale, minimum;  // it is scale * code + minimum
    int code, unsigned_code;
};

struct Tiles {
    const Layout& layout;
    int columns;
    Bytes data;

    Tiles(const Layout& of, int rows, int wide) : layout(of), columns(wide), data((rows + TILE - 1) / TILE * tile_bytes()) {
        for (uint8_t& byte : data) byte = uint8_t(source());
        each([&](uint8_t* outer, uint8_t* block) {
            for (int i = 0; i < layout.head; i += 2) put_half(outer + i, some_half());
            for (int i = 0; !layout.head && i < layout.first; i += 2) put_half(block + i, some_half());
            if (layout.kind == Q4_K || layout.kind == Q5_K)
                for (int i = 0; i < 32; ++i) block[i] &= 63;
        });
    }

    size_t tile_bytes() const { return size_t(columns / BLOCK) * layout.inner + size_t(columns / SUPER) * layout.head; }

    // All scales one and all minimums whole, so that every sum is a whole number; all codes' bytes as given.
    void make_whole(int byte) {
        each([&](uint8_t* outer, uint8_t* block) {
            for (int i = 0; i < layout.head; i += 2) put_half(outer + i, i < 32 ? 0x3c00 : 0xbc00);
            for (int i = 0; !layout.head && i < layout.first; i += 2) put_half(block + i, i < 32 ? 0x3c00 : 0xbc00);
            for (int i = 0; layout.head && i < layout.first; ++i) block[i] = 1;
            for (int i = layout.first; i < layout.inner; ++i) block[i] = uint8_t(byte < 0 ? int(source() & 255) : byte);
        });
    }

    template <class Visit> void each(Visit what) {
        uint8_t *outer = data.data(), *end = outer + data.size();
        for (uint8_t* at = outer; at < end;) {
            outer = at;
            at += layout.head;
            for (int i = 0; i < (layout.head ? SUPER / BLOCK : 1); ++i, at += layout.inner) what(outer, at);
        }
    }

    Weight weight(int row, int column) const {
        const int number = column / BLOCK, i = column % BLOCK, group = i / 4, r = row % TILE, place = r * 4 + i % 4;
        const int supers = layout.head ? column / SUPER + 1 : 0;
        const uint8_t* tile = data.data() + row / TILE * tile_bytes();
        const uint8_t* block = tile + size_t(number) * layout.inner + size_t(supers) * layout.head;
        const uint8_t* outer = block - number % (SUPER / BLOCK) * layout.inner - layout.head;
        const uint8_t* codes = block + layout.first;
        int code = codes[group / 2 * 64 + place] >> (group % 2 * 4) & 15;
        if (layout.bits == 5) code |= (codes[256 + place] >> group & 1) << 4;
        if (layout.bits == 6) {
            const uint8_t* three = codes + group / 4 * 192 + place;
            code = three[group % 4 * 64 % 192] & 63;
            if (group % 4 == 3) code = (three[0] & 192) / 64 + (three[64] & 192) / 16 + (three[128] & 192) / 4;
        }
        if (layout.bits == 8) code = int8_t(codes[group * 64 + place]);
        const double first = from_f16(half_at((layout.head ? outer : block) + 2 * r));
        switch (layout.kind) {
            case Q8_0: return {first, 0.0, code, code + 128};
            case Q4_0: return {first, -8.0 * first, code, code};
            case Q4_1: return {first, from_f16(half_at(block + 32 + 2 * r)), code, code};
            case Q6_K: {
                const double scale = first * int8_t(block[i / 16 * 16 + r]);
                return {scale, -32.0 * scale, code, code};
            }
            default: return {first * block[r], from_f16(half_at(outer + 32 + 2 * r)) * block[16 + r], code, code};
        }
    }
};

// What the sums must be, and how far floats may be from that: a share of all that is added up on the way.
void check_packed(const std::string& what, const Tiles& tiles, const Inputs& inputs, const Floats& bias, double share) {
    const Matrix m{tiles.data.data(), bias.empty() ? nullptr : bias.data(), tiles.layout.kind, HEIGHT, tiles.columns, 0};
    for (int tile = 0; tile * TILE < HEIGHT; ++tile) {
        std::vector<double> expected(TOKENS * TILE), within(TOKENS * TILE);
        for (int r = 0; r < TILE && tile * TILE + r < HEIGHT; ++r) {
            Floats row(tiles.columns);
            dequantize_row(m, tile * TILE + r, row.data());
            for (int column = 0; column < tiles.columns; ++column) {
                const Weight w = tiles.weight(tile * TILE + r, column);
                const double value = w.scale * w.code + w.minimum;
                const double added = std::fabs(w.scale * w.code) + std::fabs(w.minimum);
                near(what + ": dequantize_row", column, row[column], value, 1e-6 * added);
                for (int t = 0; t < TOKENS; ++t) {
                    const size_t at = size_t(t) * tiles.columns + column;
                    const double x = double(inputs.scales[at / BLOCK]) * inputs.code(at);
                    expected[t * TILE + r] += value * x;
                    within[t * TILE + r] += share * std::fabs(x) * (std::fabs(w.scale) * w.unsigned_code + std::fabs(w.minimum));
                }
            }
            for (int t = 0; t < TOKENS && m.bias; ++t) {
                expected[t * TILE + r] += m.bias[tile * TILE + r];
                within[t * TILE + r] += share * 4.0;
            }
        }
        check_matmul(what + named(", tile %d", tile), m, tile, {}, 0, inputs, expected, within);
    }
}

// Inputs whose parts, upper or lower, are as large as they get; with whole numbers sums must be exact.
int extreme(int parts, int token, size_t i) {
    const bool odd = i % 2;
    if (parts == 1) return token < 3 ? extreme(2, token, i) / 64 : whole(-127, 127);
    switch (token) {
        case 0: return 64 * 127;
        case 1: return 64 * -127;
        case 2: return 64 * (odd ? 127 : -127);
        case 3: return -32;
        case 4: return 31;
        case 5: return odd ? 31 : -32;
        case 6: return 64 * whole(-127, 127);
        case 7: return whole(-32, 31);
        default: return whole(-200, 200);
    }
}

void test_exact_sums(int rounding) {
    const int parts = rounding == ROUND_Q14 ? 2 : 1;
    for (const Layout& layout : LAYOUTS)
        for (int byte : {0x00, 0x7f, 0x80, 0xff, -1}) {
            Tiles tiles(layout, HEIGHT, SUPER);
            tiles.make_whole(byte);
            Inputs inputs(level, rounding, size_t(TOKENS) * SUPER, SUPER);
            for (size_t i = 0; i < size_t(TOKENS) * SUPER; ++i) {
                const int code = extreme(parts, int(i / SUPER), i);
                const int upper = parts == 1 ? code : int(std::floor((code + 32) / 64.0));
                inputs.codes[inputs.place(i)] = int8_t(upper);
                if (parts == 2) inputs.codes[inputs.place(i, 1)] = int8_t(code - 64 * upper);
                inputs.scales[i / BLOCK] = 1.0f;
                inputs.sums[i / BLOCK * 3] += float(code);
                inputs.sums[i / BLOCK * 3 + 1 + i % BLOCK / 16] += float(code);
            }
            for (size_t block = 0; block < inputs.scales.size(); ++block)
                inputs.start_part(block, 1.0f, int(inputs.sums[block * 3]));
            check_packed(named("%s with bytes %d, rounding %d, exactly", layout.name, byte, rounding), tiles, inputs, {}, 0.0);
        }
}

void test_packed_matmul(int rounding) {
    for (const Layout& layout : LAYOUTS)
        for (int columns : {32, 64, 160, 256, 512}) {
            if (layout.head && columns % SUPER) continue;
            const Tiles tiles(layout, HEIGHT, columns);
            const Inputs inputs(level, rounding, with_outliers(reals(size_t(TOKENS) * columns, -2.0, 3.0)), columns);
            const Floats bias = columns == 256 ? reals(HEIGHT, -2.0, 2.0) : Floats();
            check_packed(named("%s of %d columns, rounding %d", layout.name, columns, rounding), tiles, inputs, bias, 1e-6);
        }
}

void test_input_gradients() {
    constexpr int tokens = GRADIENT_TOKENS - 1;
    for (const Layout& layout : LAYOUTS)
        for (int columns : {32, 160, 512}) {
            if (layout.head && columns % SUPER) continue;
            const Tiles tiles(layout, HEIGHT, columns);
            const Matrix m{tiles.data.data(), nullptr, layout.kind, HEIGHT, columns, 0};
            const Floats gradients = reals(size_t(tokens) * HEIGHT, -2.0, 3.0);
            Floats out(size_t(tokens) * columns);
            for (int first = 0; first < columns / BLOCK; first += GRADIENT_BLOCKS)
                level->input_gradients(m, first, std::min(GRADIENT_BLOCKS, columns / BLOCK - first), tokens, gradients.data(),
                                       out.data() + first * BLOCK);
            for (int t = 0; t < tokens; ++t)
                for (int column = 0; column < columns; ++column) {
                    double expected = 0.0, within = 0.0;
                    for (int row = 0; row < HEIGHT; ++row) {
                        const Weight w = tiles.weight(row, column);
                        const double gradient = gradients[size_t(t) * HEIGHT + row];
                        expected += gradient * (w.scale * w.code + w.minimum);
                        within += 1e-6 * std::fabs(gradient) * (std::fabs(w.scale) * w.unsigned_code + std::fabs(w.minimum));
                    }
                    near(named("%s: gradient of input %d", layout.name, column), t, out[size_t(t) * columns + column], expected,
                         within);
                }
        }
}

double float_weight(int kind, const uint8_t* data, size_t at) {
    if (kind == F16) return from_f16(half_at(data + 2 * at));
    if (kind == BF16) return from_bf16(half_at(data + 2 * at));
    float x;
    std::memcpy(&x, data + 4 * at, 4);
    return x;
}

void test_float_matmul() {
    for (int kind : {int(F32), int(F16), int(BF16)})
        for (int columns : {1, 7, 32, 33, 100, 512}) {
            const int each = kind == F32 ? 4 : 2, stride = columns + 3;
            Bytes data(size_t(HEIGHT) * columns * each + 8);
            uint8_t* weights = data.data() + each;  // as in a file: at no round place
            for (int i = 0; i < HEIGHT * columns; ++i) {
                const float x = real(-2.0, 2.0);
                if (kind == F32) std::memcpy(weights + 4 * i, &x, 4);
                else if (kind == F16) put_half(weights + 2 * i, some_half());
                else std::memcpy(weights + 2 * i, reinterpret_cast<const char*>(&x) + 2, 2);
            }
            const Floats values = reals(size_t(TOKENS) * stride, -2.0, 2.0), bias = reals(HEIGHT, -1.0, 1.0);
            const Matrix m{weights, columns % 2 ? bias.data() : nullptr, kind, HEIGHT, columns, 0};
            const int padded = (columns + BLOCK - 1) / BLOCK * BLOCK;
            const Inputs none(level, ROUND_Q14, size_t(TOKENS) * padded, padded);
            for (int tile = 0; tile * TILE < HEIGHT; ++tile) {
                std::vector<double> expected(TOKENS * TILE), within(TOKENS * TILE);
                for (int i = 0; i < TOKENS * TILE; ++i) {
                    const int row = tile * TILE + i % TILE;
                    if (row >= HEIGHT) continue;
                    expected[i] = m.bias ? m.bias[row] : 0.0f;
                    within[i] = 1e-6;
                    for (int column = 0; column < columns; ++column) {
                        const double w = float_weight(kind, weights, size_t(row) * columns + column);
                        const double x = w * values[i / TILE * stride + column];
                        expected[i] += x;
                        within[i] += (is_split(kind, columns) ? 4e-6 : 1e-6) * std::fabs(x);
                    }
                }
                check_matmul(named("floats %d of %d columns, tile %d", kind, columns, tile), m, tile, values, stride, none,
                               expected, within);
            }
        }
}

// Attention -------------------------------------------------------------------------------------------------------

constexpr int KV_DTYPES[] = {KV_F32, KV_F16, KV_BF16, KV_Q8};

struct Pages {
    KvPlane plane;
    std::vector<Bytes> pages;
    std::vector<const uint8_t*> places;

    Pages(int size, int store, int keys) : plane{nullptr, 0, size, store} {
        plane.offset = 2 * size_t(PAGE) * size * bytes() + (store == KV_Q8 ? 2 * PAGE * 4 : 0);  // the second of two
        for (int i = 0; i * PAGE < keys; ++i) pages.emplace_back(2 * plane.offset, uint8_t(0xff));  // not a number
        for (const Bytes& page : pages) places.push_back(page.data());
        plane.pages = places.data();
    }
    Pages(const Pages&) = delete;

    Floats scratch() const { return Floats(size_t(QUERIES) * CHUNK + size_t(PAGE) * plane.head_size); }

    int bytes() const { return plane.kv_dtype == KV_F32 ? 4 : plane.kv_dtype == KV_Q8 ? 1 : 2; }

    double stored(int slot, bool value, int i) const {
        const size_t within = value ? size_t(slot % PAGE) * plane.head_size + i : size_t(i) * PAGE + slot % PAGE;
        const uint8_t* start = places[slot / PAGE] + plane.offset;
        const uint8_t* at = start + (size_t(value) * PAGE * plane.head_size + within) * bytes();
        switch (plane.kv_dtype) {
            case KV_F32: return float_weight(F32, at, 0);
            case KV_F16: return float_weight(F16, at, 0);
            case KV_BF16: return float_weight(BF16, at, 0);
            default: return double(int8_t(*at)) * scale(slot, value);
        }
    }
    double scale(int slot, bool value) const {
        const uint8_t* scales = places[slot / PAGE] + plane.offset + 2 * size_t(PAGE) * plane.head_size;
        return float_weight(F32, scales, (value ? PAGE : 0) + slot % PAGE);
    }
};

// What is stored must be the nearest that the store can hold.
void check_stored(const std::string& what, const Pages& pages, int slot, bool value, const float* x) {
    double high = 0.0;
    for (int i = 0; i < pages.plane.head_size; ++i) high = std::fmax(high, std::fabs(x[i]));
    for (int i = 0; i < pages.plane.head_size; ++i) {
        const double size = std::fabs(x[i]), got = pages.stored(slot, value, i);
        switch (pages.plane.kv_dtype) {
            case KV_F32: near(what, i, got, x[i], 0.0); break;
            case KV_F16:
                near(what, i, got, size > 65504.0 ? std::copysign(65504.0, x[i]) : x[i], size / 2048 + 3e-8);
                break;
            case KV_BF16: near(what, i, got, x[i], size / 256 + 5e-41); break;
            default: near(what, i, got, x[i], high / 127 >= SMALLEST ? 0.50002 * high / 127 : high);  // nothing need be left
        }
    }
}

void fill_pages(Pages& pages, int keys) {
    const int size = pages.plane.head_size;
    Pages portable(size, pages.plane.kv_dtype, keys);
    for (int slot = 0; slot < keys; ++slot) {
        Floats key = reals(size, -1.0, 1.0), value = reals(size, -2.0, 2.0);
        if (slot == 1) value = Floats(size, 0.0f);
        if (slot == 3)
            for (float& x : value) x *= 1e-40f;
        if (slot == 2)
            for (int i = 0; i < size; ++i) value[i] *= float(std::ldexp(1.0, -i % 32));  // down to halves that are subnormal
        level->kv_store(pages.plane, slot, key.data(), value.data());
        kernels_portable.kv_store(portable.plane, slot, key.data(), value.data());
        const std::string what = named("kv_store: store %d, size %d, slot %d", pages.plane.kv_dtype, size, slot);
        check_stored(what + ", key", pages, slot, false, key.data());
        check_stored(what + ", value", pages, slot, true, value.data());
    }
    for (size_t i = 0; i < pages.pages.size(); ++i)
        same(named("kv_store as portable: store %d, size %d", pages.plane.kv_dtype, size), pages.pages[i].data(),
             portable.pages[i].data(), pages.pages[i].size());
}

void test_kv_store_beyond_f16() {
    Pages pages(8, KV_F16, 1);
    const float key[8] = {65519.0f, 65520.0f, 1e6f, -1e30f, INF, -INF, 65504.0f, 2049.0f};
    const float value[8] = {1e-8f, -6e-8f, 0.0f};
    level->kv_store(pages.plane, 0, key, value);
    check_stored("kv_store: beyond halves", pages, 0, false, key);
    check_stored("kv_store: below halves", pages, 0, true, value);
    const float odd[8] = {NAN};
    level->kv_store(pages.plane, 0, odd, value);
    const uint16_t bits = half_at(pages.pages[0].data() + pages.plane.offset);
    if ((bits & 0x7c00) != 0x7c00 || !(bits & 0x3ff)) fail("kv_store: no number became half %04x", unsigned(bits));
}

void test_kv_store_rounds_ties_to_even() {
    const float key[8] = {2049.0f, 2051.0f, -2049.0f, -2051.0f, 257.0f, 259.0f, -257.0f, -259.0f};
    const double even[8] = {2048.0, 2052.0, -2048.0, -2052.0, 256.0, 260.0, -256.0, -260.0};
    Pages halves(8, KV_F16, 1), brains(8, KV_BF16, 1);
    level->kv_store(halves.plane, 0, key, key);
    level->kv_store(brains.plane, 0, key, key);
    for (int i = 0; i < 4; ++i) near("kv_store: halves between two", i, halves.stored(0, false, i), even[i], 0.0);
    for (int i = 4; i < 8; ++i) near("kv_store: brains between two", i, brains.stored(0, false, i), even[i], 0.0);
}

struct Queries {  // of every sort
    int reach = 6, tree_start, tree_length;
    std::vector<Floats> vectors, biases;
    std::vector<Bytes> trees;
    std::vector<int32_t> places;
    std::vector<Query> queries;

    Queries(int size, int keys) : tree_start(keys - std::min(keys, 12)), tree_length(keys - tree_start) {
        for (int i = 0; i < tree_length; ++i) places.push_back(tree_start + i / 2);  // two branches
        vectors.reserve(QUERIES);
        for (int i = 0; i < QUERIES; ++i) {
            vectors.push_back(reals(size, -2.0, 2.0));
            Query q{};
            q.vector = vectors.back().data();
            q.scale = float(1.5 / std::sqrt(double(size)));
            q.position = i == 0 ? keys - 1 : whole(0, keys - 1);
            q.end_key = i % 4 == 3 ? keys : q.position + 1;
            if (i % 3 == 1 || i == 14) {
                q.window = whole(1, keys);
                q.first_key = std::max(0, q.position + 1 - q.window);
            }
            if (i % 5 == 2) with_bias(q);
            if (i % 3 == 2) q.softcap = i % 2 ? 0.8f : 30.0f;
            if (i % 4 == 2) with_tree(q, whole(0, tree_length - 1));
            queries.push_back(q);
        }
    }
    Queries(const Queries&) = delete;

    void with_bias(Query& q) {
        biases.push_back(reals(2 * reach + 1, -3.0, 3.0));
        q.max_distance = reach;
        q.distance_bias = biases.back().data() + reach;
    }
    void with_tree(Query& q, int self) {
        trees.emplace_back(tree_length);
        for (int i = 0; i < tree_length; ++i) trees.back()[i] = uint8_t(i == self || (i < self && source() % 2));
        q.tree_mask = trees.back().data();
        q.tree_positions = places.data();
        q.tree_start = tree_start;
        q.position = places[self];
        q.end_key = tree_start + self + 1;
        if (q.window) q.window = whole(1, 4);
        q.first_key = q.window ? std::min(std::max(0, q.position + 1 - q.window), tree_start) : 0;
    }
};

bool sees(const Query& q, int key) {
    if (key < q.first_key || key >= q.end_key) return false;
    if (!q.tree_mask || key < q.tree_start) return true;
    const int place = q.tree_positions[key - q.tree_start];
    return q.tree_mask[key - q.tree_start] && (q.window == 0 || q.position - place < q.window);
}

struct Expected {
    double maximum = -INFINITY, total = 0.0;
    std::vector<double> weights, values;  // weights: of each key, not yet divided; values: divided

    Expected(const Pages& pages, const Query& q, int keys) : weights(keys), values(pages.plane.head_size) {
        std::vector<double> scores(keys, -INFINITY);
        for (int key = 0; key < keys; ++key) {
            if (!sees(q, key)) continue;
            double score = 0.0;
            for (int i = 0; i < pages.plane.head_size; ++i) score += double(q.vector[i]) * pages.stored(key, false, i);
            score *= q.scale;
            if (q.softcap) score = q.softcap * std::tanh(score / q.softcap);
            if (q.distance_bias) score += q.distance_bias[std::max(-q.max_distance, std::min(q.max_distance, key - q.position))];
            maximum = std::max(maximum, scores[key] = score);
        }
        for (int key = 0; key < keys; ++key) total += weights[key] = sees(q, key) ? std::exp(scores[key] - maximum) : 0.0;
        for (int key = 0; key < keys; ++key)
            for (int i = 0; i < pages.plane.head_size && weights[key] > 0.0; ++i)
                values[i] += weights[key] / total * pages.stored(key, true, i);
    }
};

struct Answer {
    float maximum = -INF, total = 0.0f;
    Floats values;
};

// What some queries see, chunk by chunk, joined.
std::vector<Answer> attended(const Pages& pages, int count, const Query* queries) {
    const int size = pages.plane.head_size;
    int high = 0;
    for (int q = 0; q < count; ++q) high = std::max(high, queries[q].end_key);
    std::vector<Answer> answers(count);
    for (Answer& answer : answers) answer.values.resize(size);
    for (int first = 0; first < high; first += CHUNK) {
        Floats scratch = pages.scratch(), values(size_t(count) * size);
        std::vector<AttentionState> seen(count);
        for (int q = 0; q < count; ++q) seen[q].values = values.data() + size_t(q) * size;
        level->attention(pages.plane, count, queries, first, seen.data(), scratch.data());
        for (int q = 0; q < count; ++q) {
            Answer& answer = answers[q];
            AttentionState into{answer.maximum, answer.total, answer.values.data()};
            answer.total = level->merge(into, seen[q], size);
            if (answer.total != into.total) fail("join gives %g, and keeps %g", answer.total, into.total);
            answer.maximum = into.maximum;
        }
    }
    return answers;
}

void check_attended(const std::string& what, const Pages& pages, const Queries& queries, int keys) {
    std::vector<Answer> alone;
    for (const Query& q : queries.queries) {
        const Expected expected(pages, q, keys);
        const std::string which = what + named(", query %d", int(alone.size()));
        alone.push_back(attended(pages, 1, &q)[0]);
        near(which + ": maximum", 0, alone.back().maximum, expected.maximum, 2e-5);
        near(which + ": total", 0, alone.back().total, expected.total, 4e-5 * expected.total);
        for (int i = 0; i < pages.plane.head_size; ++i)
            near(which, i, alone.back().values[i] / alone.back().total, expected.values[i], 4e-5);
    }
    for (int count = 2; count <= QUERIES; ++count) {
        const std::vector<Answer> together = attended(pages, count, queries.queries.data());
        for (int q = 0; q < count; ++q) {
            const std::string which = what + named(", query %d of %d beside itself alone", q, count);
            same(which + ": maximum", &together[q].maximum, &alone[q].maximum, 4);
            same(which + ": total", &together[q].total, &alone[q].total, 4);
            same(which, together[q].values.data(), alone[q].values.data(), alone[q].values.size() * 4);
        }
    }
}

void check_pattern(const std::string& what, const Pages& pages, const Query& q, int keys) {
    const Expected expected(pages, q, keys);
    Floats out(keys), scratch = pages.scratch(), mixed(pages.plane.head_size);
    Floats other(keys);
    float* const rows[] = {other.data(), out.data()};
    const Query both[] = {q, q};
    level->attention_pattern(pages.plane, 2, both, keys, rows, scratch.data());
    same(what + ": a pattern beside another", out.data(), other.data(), size_t(keys) * 4);
    level->attention_pattern(pages.plane, 1, &q, keys, rows, scratch.data());
    same(what + ": a pattern alone", out.data(), other.data(), size_t(keys) * 4);
    for (int key = 0; key < keys; ++key) {
        near(what + ": pattern", key, out[key], expected.weights[key] / expected.total, 2e-5);
        if (!sees(q, key) && out[key] != 0.0f) fail("%s: key %d is hidden, but weighs %g", what.c_str(), key, out[key]);
    }
    level->weighted_values(pages.plane, out.data(), keys, mixed.data(), scratch.data());
    for (int i = 0; i < pages.plane.head_size; ++i) near(what + ": weighted values", i, mixed[i], expected.values[i], 4e-5);
}

void test_attention() {
    for (int store : KV_DTYPES)
        for (int size : {8, 20, 64, 128, 256})
            for (int keys : {1, 70, 256, 300}) {
                if (keys == 256 && size > 20) continue;
                Pages pages(size, store, keys);
                fill_pages(pages, keys);
                const Queries queries(size, keys);
                const std::string what = named("attention: store %d, size %d, %d keys", store, size, keys);
                check_attended(what, pages, queries, keys);
                for (int q = 0; q < 6; ++q) check_pattern(what + named(", query %d", q), pages, queries.queries[q], keys);
            }
}

// A query that sees nothing of a chunk, and biases that are no usual numbers: e^x where it ends.
void test_attention_of_extreme_scores() {
    constexpr int size = 8, keys = 40, reach = 40;
    Pages pages(size, KV_F32, keys);
    fill_pages(pages, keys);
    const Floats none(size, 0.0f);
    Floats bias(2 * reach + 1, 0.0f);
    Query q{};
    q.vector = none.data();
    q.scale = 1.0f;
    q.end_key = keys;
    q.max_distance = reach;
    q.distance_bias = bias.data() + reach;
    for (float most : {0.0f, 1e30f, -1e30f, 80.0f}) {
        for (int i = 0; i < keys; ++i) bias[reach + i] = most - (i % 10 == 3 ? 1e35f : i % 10 == 4 ? INF : 2.7f * float(i));
        check_pattern(named("scores to %g", double(most)), pages, q, keys);
        const Answer answer = attended(pages, 1, &q)[0];
        near("extreme scores: maximum", 0, answer.maximum, most, 0.0);
        near("extreme scores: total", 0, answer.total, Expected(pages, q, keys).total, 1e-6);
    }
    q.first_key = q.end_key = 30;
    Floats values(size, 1.0f), scratch = pages.scratch();
    AttentionState blind{0.0f, 1.0f, values.data()};
    level->attention(pages.plane, 1, &q, 0, &blind, scratch.data());
    if (blind.maximum != -INF || blind.total != 0.0f) fail("attention: nothing seen, but %g of %g", blind.total, blind.maximum);
    for (float x : values) near("attention: nothing seen", 0, x, 0.0, 0.0);
}

void test_merge() {
    for (int size : {1, 8, 20, 64}) {
        const Floats a = reals(size, -2.0, 2.0), b = reals(size, -2.0, 2.0);
        for (float first : {-INF, -100.0f, -3.0f, 0.0f, 2.5f, 200.0f})
            for (float second : {-INF, -90.0f, -3.0f, 1.0f, 150.0f}) {
                Floats into = a, more = b;
                if (first == -INF) into.assign(size, 0.0f);
                AttentionState merge_into{first, first == -INF ? 0.0f : 1.5f, into.data()};
                const AttentionState other{second, second == -INF ? 0.0f : 2.5f, more.data()};
                const float before = merge_into.total, total = level->merge(merge_into, other, size);
                const double most = std::max(first, second), none = most == -INFINITY;
                const double p = none ? 1.0 : std::exp(first - most), r = second == -INF ? 0.0 : std::exp(second - most);
                const std::string what = named("merge of %g and %g", double(first), double(second));
                near(what + ": maximum", 0, merge_into.maximum, most, 0.0);
                near(what + ": total", 0, total, p * before + r * other.total, 2e-6);
                near(what + ": total kept", 0, merge_into.total, total, 0.0);
                for (int i = 0; i < size; ++i)
                    near(what, i, into[i], p * (first == -INF ? 0.0f : a[i]) + r * b[i], 2e-6);
            }
    }
}

void check_softmax_sums(const std::string& what, const Floats& scores) {
    double best = -INFINITY, total = 0.0, weighted = 0.0;
    int64_t in_play = 0;
    for (float score : scores) best = std::max(best, double(score));
    for (float score : scores)
        if (score > -INF) {
            total += std::exp(score - best);
            weighted += std::exp(score - best) * (score - best);
            ++in_play;
        }
    const SoftmaxSums sums = level->softmax_sums(scores.data(), int64_t(scores.size()));
    near(what + ": total", 0, sums.total, total, 5e-8 * total);
    near(what + ": weighted", 0, sums.weighted, weighted, 1e-7 * (total - weighted));
    if (sums.in_play != in_play) fail("%s: in play are %d, not %d", what.c_str(), int(sums.in_play), int(in_play));
}

void test_softmax_sums() {
    for (int count : {1, 3, 16, 31, 32, 128, 129, 1000, 49152})
        for (double spread : {0.0, 0.1, 3.0, 12.0, 90.0, 400.0}) {
            const std::string what = named("softmax sums of %d, spread %g", count, spread);
            Floats scores = reals(count, -spread, spread);
            check_softmax_sums(what, scores);
            scores[count / 2] += 9.0f;
            check_softmax_sums(what + ", with a peak", scores);
            for (int i = 0; i < count; i += 3) scores[i] = -INF;
            check_softmax_sums(what + ", some of them out", scores);
            scores.assign(count, -INF);
            check_softmax_sums(what + ", all of them out", scores);
            scores[count - 1] = -3e38f;
            check_softmax_sums(what + ", all but one out", scores);
        }
}

// The first of the highest, as a plain loop finds it
void test_best() {
    for (int count : {1, 2, 63, 64, 255, 256, 257, 1000, 4099})
        for (int round = 0; round < 12; ++round) {
            Floats scores = reals(count, -30.0, 30.0);
            if (round % 3 == 1) for (float& x : scores) x = std::round(x / 10.0f);  // many are alike
            if (round % 4 == 2) scores[whole(0, count - 1)] = -INFINITY;
            if (round == 6) scores.assign(count, -INFINITY);
            if (round == 7) scores[whole(0, count - 1)] = NAN;
            if (round == 8) scores[whole(0, count - 1)] = INFINITY;
            int expected = 0;
            for (int i = 1; i < count; ++i) expected = scores[i] > scores[expected] ? i : expected;
            if (round == 7 || !std::isfinite(scores[expected])) expected = NOT_NUMBERS;
            const int found = level->best(scores.data(), count);
            if (found != expected) fail("the best of %d scores, round %d: %d, not %d", count, round, found, expected);
        }
}

// A state after some tokens: all at once as one by one, and as a plain loop has it
void test_recur() {
    using Sizes = std::tuple<int, int, int>;
    for (const auto& [rows, columns, delta] : {Sizes(8, 128, 1), Sizes(5, 37, 1), Sizes(16, 70, 0), Sizes(3, 6, 1)})
        for (bool wide : {false, true}) {
            constexpr int count = 5;
            const Floats queries = reals(count * rows, -1.0, 1.0), keys = reals(count * rows, -0.5, 0.5);
            const Floats decays = reals(count * rows, 0.5, 1.0), values = reals(count * columns, -1.0, 1.0);
            const Floats before = reals(rows * columns, -1.0, 1.0);
            Floats together = before, alone = before, out(count * columns), each(count * columns);
            Floats scratch(rows * STATE_SCRATCH + TILE);
            std::vector<StateToken> tokens, single;
            for (int t = 0; t < count; ++t) {
                const int at = t * rows;
                tokens.push_back({queries.data() + at, keys.data() + at, decays.data() + at, rows, wide, delta, 0.7f, 0.3f,
                                  values.data() + t * columns, out.data() + t * columns});
                single.push_back(tokens.back());
                single.back().out = each.data() + t * columns;
            }
            const int middle = columns / 2;
            level->recur(tokens.data(), count, together.data(), columns, 0, middle, scratch.data());
            level->recur(tokens.data(), count, together.data(), columns, middle, columns, scratch.data());
            for (const StateToken& token : single) level->recur(&token, 1, alone.data(), columns, 0, columns, scratch.data());
            const std::string what = named("a state of %d rows, %d columns", rows, columns);
            std::vector<double> state(before.begin(), before.end());
            for (int t = 0; t < count; ++t)
                for (int column = 0; column < columns; ++column) {
                    double known = 0.0, read = 0.0;
                    for (int row = 0; delta && row < rows; ++row)
                        known += state[row * columns + column] * keys[t * rows + row] * decays[t * rows + (wide ? row : 0)];
                    for (int row = 0; row < rows; ++row) {
                        const double written = (values[t * columns + column] - known) * 0.7f;
                        double& at = state[row * columns + column];
                        at = at * decays[t * rows + (wide ? row : 0)] + keys[t * rows + row] * written;
                        read += queries[t * rows + row] * at;
                    }
                    near(what, t * columns + column, each[t * columns + column], read * 0.3f, 1e-5);
                }
            for (int i = 0; i < rows * columns; ++i) near(what, i, alone[i], state[i], 1e-5);
            // Columns that do not fill a vector are added up without fused steps, and where a call ends is one of them
            for (int i = 0; i < rows * columns; ++i) near(what + ", together", i, together[i], alone[i], 1e-5);
            for (int i = 0; i < count * columns; ++i) near(what + ", together", i, out[i], each[i], 1e-5);
            if (columns % 32 || middle % 32) continue;
            same(what + ": states", together.data(), alone.data(), together.size() * sizeof(float));
            same(what + ": reads", out.data(), each.data(), out.size() * sizeof(float));
        }
}

}  // namespace

int main(int count, char** words) {
    for (const Kernels* one : LEVELS)
        if (count == 2 && !std::strcmp(one->name, words[1])) level = one;
    if (!level) fail("the one argument is a level that is linked, and not %s", count == 2 ? words[1] : "nothing");
    levels();  // asks the system for what a level needs
    test_softmax_exp();
    test_norm();
    for (int rounding : {ROUND_Q14, ROUND_MIXED, ROUND_Q8}) {
        test_quantize(rounding);
        test_quantize_in_groups(rounding);
    }
    test_outliers_are_refined();
    test_activate();
    test_soft_cap();
    for (bool interleaved : {false, true}) test_rope(interleaved);
    for (int rounding : {ROUND_Q14, ROUND_MIXED, ROUND_Q8}) {
        test_exact_sums(rounding);
        test_packed_matmul(rounding);
    }
    test_input_gradients();
    test_float_matmul();
    test_kv_store_beyond_f16();
    test_kv_store_rounds_ties_to_even();
    test_attention();
    test_attention_of_extreme_scores();
    test_merge();
    test_recur();
    test_softmax_sums();
    test_best();
    std::printf("%s: all is well\n", level->name);
}
