// AMX: one instruction multiplies 16 rows of a tile with 16 tokens. For prompts and batches of rows.
//
// The sums are whole numbers, hence the same as those of the dot instructions; what follows is done by the same RowScales, so
// that a token's results are the same either way, bit for bit.
#pragma once

namespace {

constexpr int AMX_TOKENS = 32;       // at most, in one call: two groups of 16
constexpr int AMX_LEAST_TOKENS = 17;  // fewer are faster by dot instructions
constexpr int AMX_BLOCKS = 4;        // blocks whose sums are kept at once

struct alignas(64) AmxConfig {  // of the registers: 0 to 3 sums, 4 and 5 inputs, 6 codes
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    AmxConfig(int tokens, int inputs) {
        const uint8_t first = uint8_t(tokens < TILE ? tokens : TILE), second = uint8_t(tokens - first);
        for (int i = 0; i < 4; ++i) set(i, i < 2 ? first : second, 4 * TILE);
        set(4, first, inputs);
        set(5, second, inputs);
        set(6, uint8_t(inputs / 4), 4 * TILE);
    }
    void set(int number, uint8_t row_count, int row_bytes) {
        rows[number] = row_count;
        bytes[number] = uint16_t(row_count ? row_bytes : 0);
    }
};

// The sums of some blocks' products, or of their halves': of each upper and lower part with each token and row.
template <class Tile, int P> struct AmxSums {
    alignas(64) int32_t of[AMX_BLOCKS * Tile::halves][AMX_TOKENS / TILE][P][TILE][TILE];
};

// The products of one block, or half of one, with all tokens.
template <class Tile, int P>
inline void amx_multiply(const uint8_t* codes, const int8_t* inputs, size_t stride, bool second_group, int32_t (*out)[P][TILE][TILE]) {
    _tile_loadd(6, codes, 4 * TILE);
    _tile_zero(0);
    _tile_loadd(4, inputs, stride);
    _tile_dpbsud(0, 4, 6);
    if (second_group) {
        _tile_zero(2);
        _tile_loadd(5, inputs + TILE * stride, stride);
        _tile_dpbsud(2, 5, 6);
    }
    if constexpr (P == 2) {
        _tile_zero(1);
        _tile_loadd(4, inputs + BLOCK, stride);
        _tile_dpbsud(1, 4, 6);
        if (second_group) {
            _tile_zero(3);
            _tile_loadd(5, inputs + BLOCK + TILE * stride, stride);
            _tile_dpbsud(3, 5, 6);
        }
    }
    _tile_stored(0, out[0][0], 4 * TILE);
    if constexpr (P == 2) _tile_stored(1, out[0][P - 1], 4 * TILE);
    if (second_group) {
        _tile_stored(2, out[1][0], 4 * TILE);
        if constexpr (P == 2) _tile_stored(3, out[1][P - 1], 4 * TILE);
    }
}

// Adds the scaled sums of some blocks to the results of tokens from `token` on, T at a time, then the rest in halves.
template <class Tile, int P, int T>
void amx_add_sums(const AmxSums<Tile, P>& sums, const SuperScales& outer, const uint8_t* tile, int count, const Inputs& in,
                  int token, int tokens, float* out) {
    const int blocks = in.columns / BLOCK;
    for (; token + T <= tokens; token += T) {
        F value[T];
        UNROLLED for (int t = 0; t < T; ++t) value[t] = load(out + (token + t) * TILE);
        const float *scales = in.scales + token * blocks, *input_sums = in.sums + token * blocks * 3;
        for (int unit = 0; unit < count * Tile::halves; ++unit) {
            const int block = unit / Tile::halves;
            const RowScales<Tile> rows(outer, tile + block * Tile::bytes, 0, unit % Tile::halves);
            const auto& of = sums.of[unit][token / TILE];
            UNROLLED for (int t = 0; t < T; ++t) {
                const I upper = _mm512_load_si512(of[0][token % TILE + t]);
                const I total = P == 2 ? add_times_64(_mm512_load_si512(of[P - 1][token % TILE + t]), upper) : upper;
                value[t] = rows.add(to_float(total), scales[t * blocks + block], input_sums + (t * blocks + block) * 3, value[t]);
            }
        }
        UNROLLED for (int t = 0; t < T; ++t) store(out + (token + t) * TILE, value[t]);
    }
    if constexpr (T > 1) amx_add_sums<Tile, P, T / 2>(sums, outer, tile, count, in, token, tokens, out);
}

// All rows of a tile with up to AMX_TOKENS tokens.
template <class Tile, int P> NOINLINE void amx_tokens(const uint8_t* tile, int columns, const QuantizedInput& input, int tokens, float* out) {
    constexpr int K = BLOCK / Tile::halves;  // inputs that share a scale
    const AmxConfig config(tokens, K);
    _tile_loadconfig(&config);
    std::memset(out, 0, size_t(tokens) * TILE * 4);
    AmxSums<Tile, P> sums;
    alignas(64) uint8_t codes[AMX_BLOCKS][BLOCK][TILE];
    SuperScales outer{};
    Inputs in = {input.codes, input.scales, input.sums, columns};
    const int blocks = columns / BLOCK;
    for (int first = 0; first < blocks; first += AMX_BLOCKS) {
        if constexpr (Tile::head > 0)
            if (first % (SUPER / BLOCK) == 0) {
                outer = Tile::open(tile, 0);
                tile += Tile::head;
            }
        const int count = blocks - first < AMX_BLOCKS ? blocks - first : AMX_BLOCKS;
        for (int b = 0; b < count; ++b) {
            B four[8];
            unpack<Tile, 0, 8>(tile + b * Tile::bytes + Tile::first, 0, four);
            UNROLLED for (int g = 0; g < 8; ++g) _mm512_store_si512(codes[b][4 * g], four[g]);
        }
        COMPILER_BARRIER;  // the compiler does not know what tile instructions read and write
        for (int unit = 0; unit < count * Tile::halves; ++unit)
            amx_multiply<Tile, P>(codes[0][unit * K], in.codes + unit / Tile::halves * P * BLOCK + unit % Tile::halves * K,
                                  size_t(P) * columns, tokens > TILE, sums.of[unit]);
        COMPILER_BARRIER;
        amx_add_sums<Tile, P, TILE>(sums, outer, tile, count, in, 0, tokens, out);
        tile += count * Tile::bytes;
        in.codes += count * P * BLOCK, in.scales += count, in.sums += count * 3;
    }
    _tile_release();
}

template <class Tile, int P>
void amx_matmul(const uint8_t* tile, int columns, QuantizedInput in, int tokens, float* out) {
    for (int token = 0; token < tokens; token += AMX_TOKENS) {
        const int count = tokens - token < AMX_TOKENS ? tokens - token : AMX_TOKENS;
        amx_tokens<Tile, P>(tile, columns, in, count, out + token * TILE);
        in.codes += size_t(count) * P * columns, in.scales += size_t(count) * (columns / BLOCK), in.sums += size_t(count) * (columns / BLOCK) * 3;
    }
}

}  // namespace
