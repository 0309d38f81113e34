// The plain C interface of the native engine, mirrored by library.py field by field.
//
// A program is a list of steps; a pass runs it over some tokens of some rows. Nothing is checked here: buffer numbers,
// matrix sizes, ids and positions must be valid.
#pragma once
#include <cstdint>

namespace glass {

constexpr int TILE = 16;    // rows of a packed matrix that lie together
constexpr int BLOCK = 32;   // inputs that are quantized together
constexpr int SUPER = 256;  // inputs that share the outer scales of a K kind
constexpr int PAGE = 64;    // tokens of a page of keys and values
constexpr int CHUNK = 256;  // keys of one online-softmax step; fixed, so that results do not depend on the batch

enum MatrixKind : int32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, MXFP4 };  // floats in rows, packed in tiles
enum KvDtype : int32_t { KV_F32, KV_F16, KV_BF16, KV_Q8 };                        // of cached keys and values
enum NormKind : int32_t { NO_NORM, RMS_NORM, LAYER_NORM, L2_NORM };
enum Activation : int32_t { SILU, GELU, GELU_TANH, RELU, TANH, QUICK_GELU, RELU2, SIGMOID, XIELU, NO_ACTIVATION, SCALE, CLIP };
enum Epilogue : int32_t { EPILOGUE_NONE, EPILOGUE_ADD, EPILOGUE_ACTIVATE, EPILOGUE_GATE };  // what a matmul is fused with
enum TokenScope : int32_t {  // which tokens a step computes
    ALL_TOKENS,
    SCORED_TOKENS,    // those that are scored, each in its own row
    GATHERED_TOKENS,  // the same, written without gaps
};
enum StepKind : int32_t {
    EMBED,              // token embeddings, and those of positions and token types
    NORM,
    MATMUL,             // up to three matrices of one input, with a norm before and an epilogue after
    ROPE,               // head norms and rotary positions of queries and keys, in place
    KV_STORE,           // keys and values to their pages
    ROPE_KV_STORE,      // both in one
    ATTENTION,
    ATTENTION_PATTERN,  // attention weights, for a watcher
    WEIGHTED_VALUES,    // heads from a changed pattern
    ADD,
    ACTIVATE,
    COPY,               // to the output's columns from output_offset on
    SUM_OVER_RANKS,     // of engines that run on several ranks; not here
    GATE,               // an activation of the input, times the second input's columns from `column` on
    HEAD_MATMUL,        // each head of the input, or the one that there is, with all rows that its part of a matrix has; what a
                        // head has beyond the matrix' columns comes after them, as it is
    ROUTE,              // a router's scores to each expert's share, 0 for those not chosen
    EXPERT_MATMUL,      // a product of each chosen expert, side by side in the output
    EXPERT_SUM,         // the sum of those, each times its share
    CAUSAL_CONV,        // a sum over each column's last values, weighted by how long ago they were; and an activation
    TIME_STEP,          // softplus(input + vector), cut at `least` and `most`
    DECAY,              // exp(-exp(vector) * input)
    RECUR,              // heads whose state decays by the second input, is written to by the third, and is read
    RECUR_PATTERN,      // how much of each token's value is in each output of such heads, for a watcher
    RECUR_VALUES,       // heads from a changed pattern of this kind
    MULTIPLY,           // each number times the vector's
    KEEP_TOP,           // what of each number is above the mean and `scale` standard deviations of all, or 0
    RESCALE,            // the input times the root of the second input's mean square by its own, which is at least `floor`
    MIX,                // to each vector of `width` numbers of the third input, those of the input times factors of the second
};
enum ActivationRounding : int32_t {  // of the inputs of packed matrices
    ROUND_Q14,    // to fourteen bits, in two parts
    ROUND_MIXED,  // to eight bits, and in the blocks that have outliers to seven more
    ROUND_Q8,     // to eight bits
};
// The numbers that MXFP4's codes stand for, doubled and raised by MXFP4_ZERO, so that all are whole and none is negative
constexpr int MXFP4_ZERO = 12;
constexpr uint8_t MXFP4_VALUES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr int NOT_NUMBERS = -1;  // in place of the best token
constexpr int NO_ROPE = -1;    // in place of a rope table's number
constexpr int NO_BUFFER = -1;  // in place of a buffer's
constexpr int NO_KEYS = -1;    // in place of the column where keys begin: there are queries alone

enum GlobalTokens { NO_GLOBAL_TOKENS, SEEN_BY_ALL, GLOBAL_ALONE };

struct Matrix {
    const uint8_t* data;
    const float* bias;  // may be null
    int32_t kind, rows, columns, unused;
};

struct Norm {
    const float* weight;
    const float* bias;  // may be null
    float eps;
    int32_t kind, groups, unused;  // groups: parts that are normed by themselves
};

struct Step {
    int32_t kind;
    int32_t input, output, second_input;  // numbers of buffers; second_input: the residual to add, a pattern, or shares
    int32_t scope;
    int32_t epilogue, activation;
    int32_t matrix_count;
    Matrix matrices[3];         // of a matmul, side by side in its output; or the tables of an embedding
    Norm norm;                  // before a matmul
    Norm query_norm, key_norm;  // of heads
    int32_t query_offset, key_offset, value_offset;  // columns where they begin in the input
    int32_t layer, heads, kv_heads, head_size;
    int32_t latent;             // values are the first so many numbers of the cached keys; 0: they are cached beside them
    int32_t kv_planes, kv_numbers;  // KV heads of the layers before in a page, and all numbers of their keys
    int32_t window, causal, cross_attention;  // window 0: none; cross_attention: keys and values of the source
    int32_t rope;               // number of a rope table, or NO_ROPE
    int32_t position_offset;    // the row that the first token has in a table of positions; -1: there is no such table
    int32_t max_distance;       // beyond it, all distances have the same bias
    int32_t output_offset;      // the column where a copy begins
    int32_t column, width;      // the columns that a norm reads and writes, or a copy reads; width 0: all; of a mix: of one vector
    int32_t query_distances, key_distances;  // buffers of distance scores, (heads, buckets) a token, or NO_BUFFER
    float scale;
    float softcap;              // of attention scores, or of a matmul's results: after their scale; 0: none
    const float* distance_bias;       // (heads, 2 * max_distance + 1); may be null
    const int32_t* distance_buckets;  // (2 * max_distance + 1): the bucket of each distance, query minus key; may be null
    const float* sinks;         // (heads): a score that takes its part of the weights, and has no value; may be null
    const Matrix* experts;      // (expert_count, matrix_count): of all experts, the matrices of each
    int32_t expert_count, chosen, normalized;  // how many are chosen, and whether their shares add up to one
    int32_t third_input;        // the residual to add to a sum of experts
    float gate_limit;           // gates are cut at it above, and what they are multiplied with at both sides; 0: nothing is
    float gate_offset;          // what is added to what gates are multiplied with
    float floor;                // what is added to the sum of the chosen experts' shares before they are divided by it
    int32_t sigmoid;            // shares are the sigmoid of each score, and not the softmax of all
    int32_t groups, kept_groups, group_best;  // of experts, the best of them, and how many experts say so; groups 0: one
    const float* correction;    // added to shares when experts are compared; may be null
    const float* slopes;        // (heads): what is added to a score for each position that its key is ahead of its query; may be null
    const float* activation_numbers;  // that an activation has learned; may be null
    float position_beta;        // scores grow with the position of the query: times 1 + beta * ln(1 + position / length)
    int32_t position_length;    // 0: they do not
    const float* kernel;        // of a convolution: (kernel_size, width), oldest first
    const float* kernel_bias;   // (width); may be null
    const float* vector;        // (width): of time steps and decays; (heads): how much of its own value a token's output has
    float least, most;          // of a time step, or of what is clipped
    int32_t kernel_size;
    int32_t state_offset;       // where a step's state begins among all that a row keeps
    int32_t key_size, delta;    // of a state, (heads, key_size, head_size); delta: what it has for a key is taken from the value
    int32_t state_norms;        // the buffer of a state's norms after each token, by head, or NO_BUFFER
    int32_t shares_inputs;      // experts get a token times its share, and what they make of it counts as it is
    int32_t chunk;              // tokens see none of another chunk of so many; 0: all
    int32_t position_first;     // the first token's, where scores grow with positions
    float factor;               // of the input, in a sum
    int32_t global_tokens;      // whether all see a feed's global tokens, or the step computes these alone: GlobalTokens
};

struct Feed {                           // one row's tokens of a pass
    const uint8_t* const* pages;        // of the row's own keys and values
    const uint8_t* const* source_pages;
    const uint8_t* tree_mask;           // (length, length): which of the feed's tokens each one sees; null: all before it
    const int32_t* tree_positions;      // in a tree: the position of each of the feed's tokens
    float* state;                       // of the row's layers that keep one; changed by the pass
    const uint8_t* global_tokens;       // (length): which of the feed's tokens are global; null: none
    int32_t start;                      // the row's length before the feed
    int32_t length;                     // of the feed, which may take several passes
    int32_t offset;                     // tokens of the feed in earlier passes
    int32_t first_token, token_count;   // in this pass
    int32_t source_length;
    int32_t scored_count;               // how many of this pass's tokens are scored: the last ones
    int32_t first_global, end_global;   // the first global token, and the end of the last one
    int32_t unused;
};

struct RopeTable {
    const float* frequencies;
    float* table;  // (tokens, 2, size / 2): cosines and sines, filled by the pass
    float scale;
    int32_t size;         // how many numbers of a head are rotated: the first ones
    int32_t interleaved;  // whether the numbers of a pair are neighbors, and not half of `size` apart
    int32_t unused;
};

struct Pass {
    const Step* steps;
    Feed* feeds;
    const RopeTable* rope_tables;
    int32_t* ids;
    int32_t* positions;
    const int32_t* scored;       // numbers of the tokens that are scored
    const int32_t* token_types;  // null: all zero
    float* const* buffers;
    const int32_t* widths;       // of the buffers
    int32_t end_step, feed_count, rope_count;
    int32_t token_count, scored_count;
    int32_t kv_dtype;
    int32_t activation_rounding;
    int32_t begin_step;          // a pass may stop for a watcher's change, and go on from there
};

struct Kept {          // what a buffer held after each of some passes
    float* values;     // (passes, tokens, width)
    int32_t buffer;
    int32_t unused;
};

}  // namespace glass
