// AMX for packed matrices: one instruction multiplies a block of 16 rows, 32 inputs each, with 16 tokens.
//
// The sums are the whole numbers that dot instructions give, and are scaled and added up in the same order. So a token's results
// are the same bits whether it comes with enough others to fill a register or not.
#pragma once

namespace {

constexpr int AMX_RUN = SUPER / BLOCK;  // blocks that are unpacked at once
// Blocks whose sums are on their way to memory while those of another are added up: what AMX stores can be loaded only when all
// that came before it is done, so that waiting for it would take longer than the products.
constexpr int AMX_AHEAD = 2;

template <class Tile> struct AmxRun {  // of a tile's rows
    alignas(64) uint8_t codes[AMX_RUN][BLOCK * TILE];
    RowScales<Tile> scales[AMX_RUN];

    inline void unpack_block(int number, const SuperScales& outer, const uint8_t* block) {
        B four[8];
        unpack<Tile, 0, 8>(block + Tile::first, 0, four);
        UNROLLED for (int g = 0; g < 8; ++g) _mm512_store_si512(codes[number] + g * 64, four[g]);
        scales[number] = RowScales<Tile>(outer, block, 0, 0);
    }
};

using AmxSums = int32_t[2][TILE * TILE];  // of the inputs' upper and lower parts: (tokens, rows)

// The sums of a block. Registers are named in the instructions, so there are two of this, which need not wait for each other.
#define AMX_BLOCK(name, upper, lower, inputs, weights)                                                         \
    template <int P> inline void name(const int8_t* part, size_t stride, const uint8_t* codes, AmxSums sums) { \
        _tile_zero(upper);                                                                                     \
        _tile_loadd(weights, codes, 64);                                                                       \
        _tile_loadd(inputs, part, stride);                                                                     \
        _tile_dpbsud(upper, inputs, weights);                                                                  \
        _tile_stored(upper, sums[0], 64);                                                                      \
        if constexpr (P == 2) {                                                                                \
            _tile_zero(lower);                                                                                 \
            _tile_loadd(inputs, part + PART, stride);                                                          \
            _tile_dpbsud(lower, inputs, weights);                                                              \
            _tile_stored(lower, sums[1], 64);                                                                  \
        }                                                                                                      \
    }
AMX_BLOCK(amx_even_block, 0, 1, 2, 3)
AMX_BLOCK(amx_odd_block, 4, 5, 6, 7)
#undef AMX_BLOCK

// Adds a block's sums to those of TILE tokens.
template <class Tile, int R>
ALWAYS_INLINE void add_amx_sums(const AmxSums sums, const RowScales<Tile>& rows, const Inputs<R>& in, F* value) {
    constexpr int P = summed_parts<R>;
    UNROLLED for (int t = 0; t < TILE; ++t) {
        const I upper = _mm512_load_si512(sums[0] + t * TILE);
        const I total = P == 2 ? add_times_64(_mm512_load_si512(sums[1] + t * TILE), upper) : upper;
        const F dot = final_sum<Tile, P, false>(total, in.scales[t], nullptr, nullptr);
        value[t] = rows.template add<P>(dot, in.sums[t], value[t]);
    }
}

// TILE tokens with some unpacked blocks; `in` points at the first of these.
template <class Tile, int R>
NOINLINE void amx_blocks(const AmxRun<Tile>& run, int count, Inputs<R> in, size_t stride, bool first, float* out) {
    constexpr int P = summed_parts<R>;
    alignas(64) AmxSums sums[AMX_AHEAD + 1];
    F value[TILE];
    UNROLLED for (int t = 0; t < TILE; ++t) value[t] = first ? set(0.0f) : load(out + t * TILE);
    const int8_t* part = in.codes;
    int to = 0, from = 0;
    for (int at = 0; at < count + AMX_AHEAD; ++at, part += P * PART) {
        if (at < count) {
            if (at % 2) amx_odd_block<P>(part, stride, run.codes[at], sums[to]);
            else amx_even_block<P>(part, stride, run.codes[at], sums[to]);
            to = to == AMX_AHEAD ? 0 : to + 1;
        }
        if (at < AMX_AHEAD) continue;
        add_amx_sums<Tile, R>(sums[from], run.scales[at - AMX_AHEAD], in, value);
        from = from == AMX_AHEAD ? 0 : from + 1;
        in.next();
    }
    UNROLLED for (int t = 0; t < TILE; ++t) store(out + t * TILE, value[t]);
}

// The rows of a tile with as many tokens as fill registers; how many these are.
template <class Tile, int R> int amx_packed_tokens(const uint8_t* tile, int columns, const QuantizedInput& in, int tokens, float* out) {
    if (tokens < TILE) return 0;
    AmxConfig config;
    for (int number = 0; number < 8; ++number) config.set(number, TILE, 4 * TILE);
    for (int inputs : {2, 6}) config.set(inputs, TILE, BLOCK);
    for (int weights : {3, 7}) config.set(weights, BLOCK / 4, 4 * TILE);
    _tile_loadconfig(&config);
    const int blocks = columns / BLOCK, end = tokens / TILE * TILE;
    const size_t stride = size_t(blocks) * parts_of(R) * PART;
    AmxRun<Tile> run;
    for (int done = 0; done < blocks; done += AMX_RUN) {
        const int count = min(AMX_RUN, blocks - done);
        SuperScales outer{};
        if constexpr (Tile::head > 0) {
            outer = Tile::open(tile, 0);
            tile += Tile::head;
        }
        for (int at = 0; at < count; ++at, tile += Tile::bytes) run.unpack_block(at, outer, tile);
        COMPILER_BARRIER;
        for (int token = 0; token < end; token += TILE) {
            auto inputs = Inputs<R>::of(in, columns, token);
            inputs.codes += size_t(done) * summed_parts<R> * PART;
            inputs.scales += size_t(done) * inputs.group;
            inputs.sums += size_t(done) * 3 * inputs.group;
            amx_blocks<Tile, R>(run, count, inputs, stride, done == 0, out + token * TILE);
        }
    }
    _tile_release();
    return end;
}

}  // namespace
