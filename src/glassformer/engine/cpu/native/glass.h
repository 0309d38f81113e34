// The plain C interface of the native engine, mirrored by library.py field by field.
//
// A program is a list of steps; a pass runs it over some tokens of some rows. Everything is checked before it comes
// here: numbers of buffers, sizes of matrices, ids and positions are taken as they are.
#pragma once
#include <cstdint>

namespace glass {

constexpr int TILE = 16;    // rows of a packed matrix that lie together
constexpr int BLOCK = 32;   // inputs that are quantised together
constexpr int SUPER = 256;  // inputs that share the outer scales of a K kind
constexpr int PAGE = 64;    // tokens of a page of keys and values
constexpr int CHUNK = 256;  // keys that are attended to at once; part of what a result is, whatever the batch

enum Kind : int32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K };  // how a matrix lies
enum Store : int32_t { STORE_F32, STORE_F16, STORE_BF16, STORE_Q8 };         // how keys and values lie
enum How : int32_t { NO_NORM, RMS, LAYER };
enum Activation : int32_t { SILU, GELU, GELU_TANH, RELU, TANH };
enum After : int32_t { NOTHING, ADDED, ACTIVATED, GATED };  // what follows a product
enum Do : int32_t { EMBED, NORMALISE, PRODUCT, TURN, REMEMBER, PLACE, ATTEND, PATTERN, MIX, ADD, ACTIVATE, COPY };
// PLACE is TURN (norms and RoPE of queries and keys) and REMEMBER (keys and values into their pages) in one
enum Over : int32_t { ALL, SCORED, GATHERED };  // a step's tokens: all, those that are scored, or those, one after another

struct Matrix {
    const uint8_t* data;  // floats lie row after row, packed kinds in tiles
    const float* bias;    // may be null
    int32_t kind, rows, columns, unused;
};

struct Norm {
    const float* weight;
    const float* bias;  // may be null
    float eps;
    int32_t how;
};

struct Step {
    int32_t kind;
    int32_t input, output, other;  // numbers of buffers; other: the residual to add, or a pattern
    int32_t over;                  // which tokens
    int32_t after, activation;
    int32_t count;                 // of matrices
    Matrix matrices[3];            // products of one input, side by side; or the tables of an embedding
    Norm norm;                     // before a product
    Norm query_norm, key_norm;     // of heads
    int32_t query, key, value;     // where they begin in their buffer; -1: they are not in it
    int32_t layer, heads, groups, size;
    int32_t window, causal, memory;  // window 0: none; memory: the source's keys and values, not the row's own
    int32_t rope;                  // number of the table of turns; -1: none
    int32_t first;                 // the first token's row of a table of positions
    int32_t reach;                 // distances that have a bias of their own
    float scale;
    float unused;
    const float* distances;        // (heads, 2 * reach + 1): a bias for each distance; may be null
};

struct Feed {                      // one row's share of a pass
    const uint8_t* const* pages;   // of the row's own keys and values
    const uint8_t* const* source;  // of its source's
    const uint8_t* tree;           // (fed, fed): which of the feed's tokens each one sees; null: all before it
    const int32_t* places;         // a tree: the position of each of the feed's tokens
    int32_t start;                 // tokens of the row before the feed
    int32_t fed;                   // tokens of the feed
    int32_t offset;                // tokens of the feed in earlier passes
    int32_t first, count;          // tokens of this pass
    int32_t sources;               // tokens of the source
    int32_t scored;                // the last tokens of this pass, that are scored
};

struct Turns {                     // RoPE
    const float* frequencies;
    float* table;                  // (tokens, 2, size / 2): cosines and sines, filled by the pass
    float scale;
    int32_t size;
};

struct Pass {
    const Step* steps;
    const Feed* feeds;
    const Turns* turns;
    const int32_t* ids;
    const int32_t* positions;
    const int32_t* wanted;         // tokens that are scored
    const int32_t* types;          // which of its texts each token belongs to; null: all to the first
    float* const* buffers;
    const int32_t* widths;         // of the buffers
    int32_t step_count, feed_count, turn_count;
    int32_t token_count, wanted_count;
    int32_t store;
    int32_t parts;                 // of an input that meets a packed matrix: two make fourteen bits, one has eight
    int32_t begin;                 // the first step to run: a pass may stop for somebody to look, and go on
};

}  // namespace glass
