// What each level has: the inner loops, compiled once per instruction set, behind one table of functions.
#pragma once
#include <cstddef>

#include "glass.h"

namespace glass {

struct Quantised {         // some tokens' inputs, in blocks: of fourteen bits in two parts, or of eight in one
    const int8_t* codes;   // (tokens, columns / BLOCK, parts, BLOCK): the upper eight bits, then the lower six
    const float* scales;   // (tokens, columns / BLOCK)
    const float* sums;     // (tokens, columns / BLOCK, 3): of scaled codes, for kinds that have a minimum: of both halves
                           // of a block, and of each
    int parts;
};

struct Query {             // one head of one token, looking at a range of keys
    const float* vector;
    const float* distances;   // bias by distance, at distance 0; may be null
    const uint8_t* tree;      // visibility of the keys from `planted` on; may be null
    const int32_t* places;    // positions of those keys
    int32_t low, high;        // keys [low, high) are seen
    int32_t position, planted, reach, window;
    float scale;
};

struct Seen {              // what a query took from a chunk of keys
    float maximum, total;  // a maximum of minus infinity: it saw nothing
    float* values;         // (size), not yet divided by the total
};

struct Plane {             // the keys and values of one layer and group, page by page
    const uint8_t* const* pages;
    size_t offset;         // of the plane in a page
    int32_t size, store;
};

struct Kernels {
    const char* name;
    void (*norm)(const Norm& norm, const float* in, int count, float* out);
    void (*quantise)(const float* in, int count, int parts, int8_t* codes, float* scales, float* sums);
    // TILE rows of a matrix with some tokens: out (tokens, TILE)
    void (*product)(const Matrix& matrix, int tile, int tokens, const float* values, size_t stride, const Quantised& input,
                    float* out);
    void (*activate)(int how, float* values, const float* gated_by_this, int count);
    void (*rotate)(const float* turns, int size, float* head);
    void (*remember)(const Plane& plane, int slot, const float* key, const float* value);
    void (*attend)(const Plane& plane, int queries, const Query* query, int first, Seen* seen, float* scratch);
    void (*pattern)(const Plane& plane, const Query& query, int keys, float* out, float* scratch);
    void (*mix)(const Plane& plane, const float* pattern, int keys, float* out, float* scratch);
    float (*join)(Seen& into, const Seen& more, int size);
};

constexpr int QUERIES = 24;  // at most, in one call of attend

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
#ifdef LEVEL_avx512vnni
extern const Kernels kernels_avx512vnni;
#endif

}  // namespace glass
