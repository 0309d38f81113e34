// The kernels of a level: inner loops, compiled once per instruction set, behind one table of functions.
#pragma once
#include <cmath>
#include <cstddef>

#include "glass.h"

namespace glass {

struct QuantizedInput {   // of some tokens, in blocks
    // (tokens, columns / BLOCK, parts, Kernels::part_bytes), each part BLOCK codes behind what a level has in front of them: the
    // upper eight bits, then the lower ones; with ROUND_MIXED all first parts of a token, then the second ones that it has.
    const int8_t* codes;
    const float* scales;   // (tokens / group, columns / BLOCK, group)
    const float* sums;     // (tokens / group, columns / BLOCK, 3, group): of a block's scaled codes, of its first half, of its
                           // second; for kinds that have a minimum
    const int32_t* refined;  // (tokens, columns / BLOCK + 1): with ROUND_MIXED, the blocks that have a second part, then
                             // columns / BLOCK
    int rounding;
    int group;             // tokens whose scales lie side by side: 1 for a token alone, else TILE; all can be read to their end
    const uint16_t* split = nullptr;  // what split_bf16 made of all tokens, for matrices of bfloat16
};

struct Query {                   // one head of one token, and the keys that it attends to
    const float* vector;
    const float* distance_bias;  // points at distance 0; may be null
    const float* query_distances;  // (buckets): its scores with the key of each distance; may be null
    const float* key_distances;  // (keys, key_stride), of each the first (buckets): the keys' with its query; may be null
    const int32_t* distance_buckets;  // points at distance 0; may be null
    size_t key_stride;
    const uint8_t* tree_mask;    // visibility of the keys from `tree_start` on; may be null
    const int32_t* tree_positions;  // of those keys
    const uint8_t* global_keys;  // of the keys in this range, which are seen beyond the window too; may be null
    int32_t first_key, end_key;
    int32_t window_first, window_end;  // of the keys that are seen without it
    int32_t position, tree_start, max_distance, window;
    float scale;
    float softcap;               // 0: none
    float slope;                 // added for each position that a key is ahead of the query
    float sink = -INFINITY;      // a score beside those of the keys, without a value; minus infinity: none
};

struct AttentionState {    // of an online softmax over a chunk of keys
    float maximum, total;  // of the scores, and of exp(score - maximum); a maximum of minus infinity: no key was visible
    float* values;         // (value size): the weighted sum of values, not yet divided by the total
};

struct KvPlane {           // keys and values of one layer and KV head, page by page
    const uint8_t* const* pages;
    size_t offset;         // of the plane in a page
    int32_t head_size, kv_dtype;
    int32_t latent;        // values are the first so many numbers of the keys; 0: they lie behind them

    int value_size() const { return latent ? latent : head_size; }
};

struct SoftmaxSums {  // of scores, each `depth` below the best of them
    double total;      // of exp(depth)
    double weighted;   // of exp(depth) · depth
    int64_t in_play;   // how many scores are above minus infinity
};

struct StateToken {        // what one token does to a head's state, and how it reads it
    float kept(int row) const { return decay[row * decay_step] > 0.0f ? decay[row * decay_step] : 0.0f; }

    const float* query;
    const float* key;      // (key_size)
    const float* decay;    // (key_size) numbers, `decay_step` apart; 0: one for all
    int32_t key_size, decay_step, delta;
    float write, scale;
    const float* value;    // of all columns
    float* out;
};

struct Kernels {
    const char* name;
    void (*norm)(const Norm& norm, const float* in, int count, float* out);
    // One token's inputs
    void (*quantize)(const float* in, int count, int rounding, int group, int8_t* codes, float* scales, float* sums,
                     int32_t* refined);
    // One token's inputs for matrices of bfloat16, in 32s; null where they are taken as they are
    void (*split_bf16)(const float* in, int count, uint16_t* planes);
    // TILE rows of a matrix with some tokens: out (tokens, TILE)
    void (*matmul)(const Matrix& matrix, int tile, int tokens, const float* values, size_t stride,
                   const QuantizedInput& inputs, float* out);
    // The gradients of a packed matrix' inputs from those of its outputs (tokens, rows), in some blocks of columns of out
    // (tokens, columns), which points at the first of them; at most GRADIENT_TOKENS and GRADIENT_BLOCKS
    void (*input_gradients)(const Matrix& matrix, int first, int blocks, int tokens, const float* gradients, float* out);
    void (*activate)(int activation, float* values, const float* gates, int count);
    void (*soft_cap)(float cap, float* values, int count);  // cap * tanh(value / cap)
    void (*rope)(const float* table, int size, bool interleaved, float* head);
    void (*kv_store)(const KvPlane& plane, int slot, const float* key, const float* value);
    void (*attention)(const KvPlane& plane, int queries, const Query* query, int first, AttentionState* states,
                      float* scratch);
    void (*attention_pattern)(const KvPlane& plane, int queries, const Query* query, int keys, float* const* out, float* scratch);
    void (*weighted_values)(const KvPlane& plane, const float* pattern, int keys, float* out, float* scratch);
    float (*merge)(AttentionState& into, const AttentionState& chunk, int head_size);
    SoftmaxSums (*softmax_sums)(const float* scores, int64_t count);
    // The first of the highest scores; NOT_NUMBERS if one is NaN, or if that one is infinite
    int32_t (*best)(const float* scores, int count);
    // Some columns of a convolution, from the last `size` tokens' rows; kernel: (size, stride), oldest first; bias may be null
    void (*causal_conv)(const float* const* rows, const float* kernel, size_t stride, const float* bias, int size, int count,
                        float* out);
    // What some tokens, one after the other, write to a head's state, (key_size, stride), and what they read there, in columns
    // [column, end). scratch: (key_size, STATE_SCRATCH), and a cache line
    void (*recur)(const StateToken* tokens, int count, float* state, size_t stride, int column, int end, float* scratch);
    int part_bytes;  // of quantized inputs
};

// Parts that have a place in the codes
constexpr int parts_of(int rounding) { return rounding == ROUND_Q8 ? 1 : 2; }

constexpr int STATE_TOKENS = 64;   // in one call of recur
constexpr int STATE_COLUMNS = 32;  // whose states lie side by side in recur's scratch
constexpr int STATE_ROW_NUMBERS = 3, STATE_SCRATCH = STATE_ROW_NUMBERS + STATE_COLUMNS;  // behind what each row has of tokens, on a cache line
constexpr int QUERIES = 48;      // at most, in one call of attention
constexpr int GRADIENT_TOKENS = 32, GRADIENT_BLOCKS = 4;  // at most, in one call of input_gradients
constexpr int SPLIT_TOKENS = 8;  // whose split_bf16 lie together

// The tables of the levels that are compiled in.
extern const Kernels kernels_portable;
#ifdef LEVEL_neon
extern const Kernels kernels_neon;
#endif
#ifdef LEVEL_dotprod
extern const Kernels kernels_dotprod;
#endif
#ifdef LEVEL_avx2
extern const Kernels kernels_avx2;
#endif
#ifdef LEVEL_avxvnni
extern const Kernels kernels_avxvnni;
#endif
#ifdef LEVEL_avx512vnni
extern const Kernels kernels_avx512vnni;
#endif
#ifdef LEVEL_amx
extern const Kernels kernels_amx;
#endif

}  // namespace glass
