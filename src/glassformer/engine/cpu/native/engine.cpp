// Runs a program over a pass: every thread goes through the same steps, takes pieces of each, and waits for the others where
// the next step needs all of it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "kernels.h"
#include "mapping_guard.h"
#include "pack.h"
#include "threads.h"

namespace glass {

namespace {

#ifdef LEVEL_dotprod
bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // ASIMDDP
#elif defined(__APPLE__)
    int present = 0;
    size_t size = sizeof present;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &present, &size, nullptr, 0) == 0 && present;
#else
    return false;
#endif
}
#endif

// The levels that this library has and this processor can run, best first.
std::vector<const Kernels*> levels() {
    std::vector<const Kernels*> available;
#ifdef LEVEL_avx2
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("bmi2");
#ifdef LEVEL_avx512vnni
    if (avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        available.push_back(&kernels_avx512vnni);
#endif
    if (avx2) available.push_back(&kernels_avx2);
#endif
#ifdef LEVEL_dotprod
    if (has_dot_products()) available.push_back(&kernels_dotprod);
#endif
#ifdef LEVEL_neon
    available.push_back(&kernels_neon);
#endif
    available.push_back(&kernels_portable);
    return available;
}

constexpr int SMALL_BATCH = 2;     // tokens up to which every thread prepares the inputs for itself
constexpr int MATMUL_TOKENS = 32;  // of one call of the matmul kernel
constexpr int TILE_FLOATS = MATMUL_TOKENS * TILE;

// Inputs of a matmul, prepared: normed, and quantized where a matrix is packed.
struct PreparedInputs {
    std::vector<float> values, scales, sums;
    std::vector<int8_t> codes;

    void reserve(size_t tokens, size_t columns) {
        grow(values, tokens * columns);
        grow(scales, tokens * (columns / BLOCK + 1));
        grow(sums, tokens * (columns / BLOCK + 1) * 3);
        grow(codes, 2 * tokens * columns);
    }

    template <class T> static void grow(std::vector<T>& values, size_t size) {
        if (values.size() < size) values.resize(size);
    }
};

struct Worker {
    PreparedInputs own;
    std::vector<float> scores;  // (QUERIES, CHUNK), and a page's keys or values
    std::vector<float> states;  // (2, QUERIES, head_size)
};

class Engine {
  public:
    Engine(const Kernels& kernels, int threads) : k(kernels), pool_(threads), workers_(threads) {}

    int run(const Pass& pass) {
        pass_ = &pass;
        plan();
        pool_.run([](void* engine, int thread) { static_cast<Engine*>(engine)->work(thread); }, this);
        return 0;
    }

    void pack(int source, const uint8_t* file, int rows, int columns, const int32_t* order, uint8_t* out) {
        struct Job { Engine* engine; int source; const uint8_t* file; int rows, columns; const int32_t* order; uint8_t* out; };
        Job job{this, source, file, rows, columns, order, out};
        reset(1);
        pool_.run([](void* argument, int) {
            const Job& j = *static_cast<Job*>(argument);
            const int tiles = (j.rows + TILE - 1) / TILE;
            j.engine->parallel_for(j.engine->counter(0), tiles, [&](int tile) {
                pack_tiles(j.source, j.file, j.rows, j.columns, j.order, tile, tile + 1, j.out);
            });
        }, &job);
    }

  private:
    // Allocate everything that the pass needs, so that no thread has to.
    void plan() {
        const Pass& p = *pass_;
        reset(p.end_step + 1);
        size_t columns = 0, head_size = 0, keys = 0;
        for (int i = p.begin_step; i < p.end_step; ++i) {
            const Step& s = p.steps[i];
            if (s.kind == MATMUL) columns = std::max(columns, size_t(s.matrices[0].columns));
            if (s.kind == ATTENTION || s.kind == ATTENTION_PATTERN || s.kind == WEIGHTED_VALUES)
                head_size = std::max(head_size, size_t(s.head_size));
        }
        for (int i = 0; i < p.feed_count; ++i)
            keys = std::max(keys, size_t(std::max(p.feeds[i].start + p.feeds[i].length, p.feeds[i].source_length)));
        shared_inputs_.reserve(std::max(p.token_count, p.scored_count), columns);
        const size_t chunks = keys / CHUNK + 1;
        PreparedInputs::grow(chunk_values_, size_t(SPLIT) * pool_.size() * chunks * QUERIES * head_size);
        if (chunk_sums_.size() < size_t(SPLIT) * pool_.size() * chunks * QUERIES)
            chunk_sums_.resize(size_t(SPLIT) * pool_.size() * chunks * QUERIES);
        chunks_ = int(chunks);
        for (Worker& worker : workers_) {
            worker.own.reserve(SMALL_BATCH, columns);
            PreparedInputs::grow(worker.scores, size_t(QUERIES) * CHUNK + PAGE * head_size);
            PreparedInputs::grow(worker.states, 2 * size_t(QUERIES) * head_size);
        }
    }

    // Work in pieces ------------------------------------------------------------------------------------------------

    // Each step has a counter for each thread, and one more for a stage before or after.
    void reset(int steps) {
        const size_t count = size_t(steps) * (pool_.size() + 1);
        if (counters_.size() < count) counters_ = std::vector<Counter>(count);
        for (size_t i = 0; i < count; ++i) {
            counters_[i].next.store(0, std::memory_order_relaxed);
            counters_[i].done.store(0, std::memory_order_relaxed);
        }
    }

    Counter& counter(int step, int which = 0) { return counters_[size_t(step) * (pool_.size() + 1) + which]; }
    Counter& extra_counter(int step) { return counter(step, pool_.size()); }
    static int take_piece(Counter& counter) { return counter.next.fetch_add(1, std::memory_order_relaxed); }

    // Report so many pieces done, and wait for the rest. A thread that took no piece has read nothing either.
    static void wait_for_all(Counter& counter, int pieces, int all) {
        if (pieces) counter.done.fetch_add(pieces, std::memory_order_acq_rel);
        spin_until([&] { return counter.done.load(std::memory_order_acquire) >= all; });
    }

    template <class Function> static void parallel_for(Counter& counter, int all, Function function) {
        int pieces = 0;
        for (int piece; (piece = take_piece(counter)) < all; ++pieces) function(piece);
        wait_for_all(counter, pieces, all);
    }

    void work(int thread) {
        const Pass& p = *pass_;
        if (p.begin_step == 0) fill_rope_tables();
        for (int i = p.begin_step; i < p.end_step; ++i) {
            const Step& s = p.steps[i];
            switch (s.kind) {
                case EMBED: embed(i, s); break;
                case NORM: norm(i, s); break;
                case MATMUL: matmul(i, s, thread); break;
                case ROPE:
                case KV_STORE:
                case ROPE_KV_STORE: rope_kv_store(i, s); break;
                case ATTENTION: attention(i, s, thread); break;
                case ATTENTION_PATTERN: attention_pattern(i, s, thread); break;
                case WEIGHTED_VALUES: weighted_values(i, s, thread); break;
                default: elementwise(i, s);
            }
        }
    }

    // How many tokens a step has; of the n-th of them, the row of its input and that of its output.
    int token_count_of(const Step& s) const { return s.scope == ALL_TOKENS ? pass_->token_count : pass_->scored_count; }
    int input_row(const Step& s, int number) const { return s.scope == ALL_TOKENS ? number : pass_->scored[number]; }
    int output_row(const Step& s, int number) const { return s.scope == SCORED_TOKENS ? pass_->scored[number] : number; }

    float* row(int buffer, int number) { return pass_->buffers[buffer] + size_t(number) * pass_->widths[buffer]; }

    void fill_rope_tables() {
        const Pass& p = *pass_;
        parallel_for(counter(p.end_step), p.token_count * p.rope_count, [&](int piece) {
            const RopeTable& t = p.rope_tables[piece % p.rope_count];
            const int half = t.head_size / 2, token = piece / p.rope_count;
            float* out = t.table + size_t(token) * t.head_size;
            for (int i = 0; i < half; ++i) {
                const float angle = float(p.positions[token]) * t.frequencies[i];
                out[i] = std::cos(angle) * t.scale;
                out[half + i] = std::sin(angle) * t.scale;
            }
        });
    }

    void embed(int number, const Step& s) {
        const Pass& p = *pass_;
        const int width = s.matrices[0].columns;
        parallel_for(counter(number), p.token_count, [&](int token) {
            float* out = row(s.output, token);
            dequantize_row(s.matrices[0], p.ids[token], out);
            if (s.scale != 1.0f)
                for (int i = 0; i < width; ++i) out[i] *= s.scale;
            if (s.matrix_count == 1) return;
            std::vector<float> added(width);
            for (int table = 1; table < s.matrix_count; ++table) {  // positions, then types
                const int type = p.token_types ? p.token_types[token] : 0;
                dequantize_row(s.matrices[table], table == 1 ? p.positions[token] + s.position_offset : type, added.data());
                for (int i = 0; i < width; ++i) out[i] += added[i];
            }
        });
    }

    void norm(int number, const Step& s) {
        parallel_for(counter(number), token_count_of(s), [&](int which) {
            const int token = input_row(s, which);
            k.norm(s.norm, row(s.input, token), pass_->widths[s.input], row(s.output, token));
        });
    }

    void elementwise(int number, const Step& s) {
        const int width = pass_->widths[s.output];
        parallel_for(counter(number), token_count_of(s), [&](int which) {
            const int token = input_row(s, which);
            float* out = row(s.output, token);
            const float* in = row(s.input, token);
            if (s.kind == ADD) {
                const float* other = row(s.second_input, token);
                for (int i = 0; i < width; ++i) out[i] = other[i] + in[i];
            } else {
                if (out != in) std::memcpy(out, in, size_t(width) * 4);
                if (s.kind == ACTIVATE) k.activate(s.activation, out, nullptr, width);
            }
        });
    }

    // Matmul ------------------------------------------------------------------------------------------------------

    struct Input {
        const float* values;
        size_t stride;
        QuantizedInput packed;
    };

    struct InputNeeds {  // which forms of their input a step's matrices read
        bool packed = false, plain = false, direct;
        explicit InputNeeds(const Step& s) : direct(s.norm.kind == NO_NORM && s.scope == ALL_TOKENS) {
            for (int i = 0; i < s.matrix_count; ++i) (s.matrices[i].kind > BF16 ? packed : plain) = true;
        }
        bool prepared() const { return packed || !direct; }
    };

    void prepare(const Step& s, const InputNeeds& needs, int token, PreparedInputs& into) {
        const int columns = s.matrices[0].columns, parts = pass_->activation_parts;
        const float* from = row(s.input, input_row(s, token));
        float* values = into.values.data() + size_t(token) * columns;
        if (s.norm.kind != NO_NORM) {
            k.norm(s.norm, from, columns, values);
            from = values;
        } else if (needs.plain && !needs.direct) {
            std::memcpy(values, from, size_t(columns) * 4);
        }
        if (needs.packed)
            k.quantize(from, columns, parts, into.codes.data() + size_t(token) * parts * columns, into.scales.data() + size_t(token) * (columns / BLOCK),
                       into.sums.data() + size_t(token) * (columns / BLOCK) * 3);
    }

    void matmul(int number, const Step& s, int thread) {
        const int tokens = token_count_of(s), columns = s.matrices[0].columns;
        if (!tokens) return;
        const InputNeeds needs(s);
        const bool alone = tokens <= SMALL_BATCH;  // each thread prepares for itself, rather than wait for the others
        PreparedInputs& into = alone ? workers_[thread].own : shared_inputs_;
        if (needs.prepared() && !alone)
            parallel_for(extra_counter(number), tokens, [&](int token) { prepare(s, needs, token, into); });
        bool ready = !alone || !needs.prepared();
        const Input in = {needs.direct ? row(s.input, 0) : into.values.data(),
                          size_t(needs.direct ? pass_->widths[s.input] : columns),
                          {into.codes.data(), into.scales.data(), into.sums.data(), pass_->activation_parts}};
        int tiles = 0, pieces = 0;
        for (int i = 0; i < (s.epilogue == EPILOGUE_GATE ? 1 : s.matrix_count); ++i) tiles += tiles_of(s.matrices[i]);
        // Each thread reads its own stretch of the weights; who is done first helps the others.
        for (int turn = 0; turn < pool_.size(); ++turn) {
            const int owner = (thread + turn) % pool_.size();
            const int begin = int(int64_t(tiles) * owner / pool_.size());
            const int end = int(int64_t(tiles) * (owner + 1) / pool_.size());
            for (int at; (at = begin + take_piece(counter(number, owner))) < end; ++pieces) {
                for (int token = 0; !ready && token < tokens; ++token) prepare(s, needs, token, into);
                ready = true;
                int matrix = 0, tile = at, column = 0;
                for (; tile >= tiles_of(s.matrices[matrix]); ++matrix) {
                    tile -= tiles_of(s.matrices[matrix]);
                    column += s.matrices[matrix].rows;
                }
                for (int first = 0; first < tokens; first += MATMUL_TOKENS)
                    matmul_tile(s, in, matrix, tile, column, first, std::min(MATMUL_TOKENS, tokens - first));
            }
        }
        wait_for_all(counter(number), pieces, tiles);
    }

    static int tiles_of(const Matrix& m) { return (m.rows + TILE - 1) / TILE; }

    // One tile with a few tokens, and the epilogue.
    void matmul_tile(const Step& s, const Input& in, int matrix, int tile, int column, int first, int tokens) {
        alignas(64) float out[TILE_FLOATS], gates[TILE_FLOATS];
        const Matrix& m = s.matrices[matrix];
        const float* values = in.values + first * in.stride;
        const QuantizedInput packed = {in.packed.codes + size_t(first) * in.packed.parts * m.columns,
                                  in.packed.scales + size_t(first) * (m.columns / BLOCK),
                                  in.packed.sums + size_t(first) * (m.columns / BLOCK) * 3, in.packed.parts};
        const int rows = std::min(TILE, m.rows - tile * TILE);
        if (rows < TILE) std::fill_n(out, TILE_FLOATS, 0.0f), std::fill_n(gates, TILE_FLOATS, 0.0f);
        if (s.epilogue == EPILOGUE_GATE) {
            k.matmul(m, tile, tokens, values, in.stride, packed, gates);
            k.matmul(s.matrices[1], tile, tokens, values, in.stride, packed, out);
            k.activate(s.activation, out, gates, tokens * TILE);
        } else {
            k.matmul(m, tile, tokens, values, in.stride, packed, out);
        }
        if (s.scale != 1.0f)
            for (int i = 0; i < tokens * TILE; ++i) out[i] *= s.scale;
        if (s.epilogue == EPILOGUE_ACTIVATE) k.activate(s.activation, out, nullptr, tokens * TILE);
        for (int token = 0; token < tokens; ++token) {
            const int place = output_row(s, first + token), at = column + tile * TILE;
            const float* other = s.epilogue == EPILOGUE_ADD ? row(s.second_input, place) + at : nullptr;
            if (rows == TILE) write_row(out + token * TILE, other, row(s.output, place) + at, TILE);
            else write_row(out + token * TILE, other, row(s.output, place) + at, rows);
        }
    }

    static inline void write_row(const float* from, const float* other, float* to, int count) {
        for (int i = 0; i < count; ++i) to[i] = other ? other[i] + from[i] : from[i];
    }

    // Attention ---------------------------------------------------------------------------------------------------

    KvPlane plane(const Feed& feed, const Step& s, int group) const {
        static constexpr int bytes[] = {4, 2, 2, 1};
        const size_t scales = pass_->kv_dtype == KV_Q8 ? 2 * PAGE * 4 : 0;
        const size_t one = 2 * size_t(PAGE) * s.head_size * bytes[pass_->kv_dtype] + scales;
        const size_t offset = (size_t(s.layer) * s.kv_heads + group) * one;
        return {s.cross_attention ? feed.source_pages : feed.pages, offset, s.head_size, pass_->kv_dtype};
    }

    // Head norms and RoPE of queries and keys; then keys and values are stored in their pages.
    void rope_kv_store(int number, const Step& s) {
        const Pass& p = *pass_;
        for_each_token(number, [&](const Feed& f, int token) {
            float* at = row(s.input, token);
            const float* table = s.rope == NO_ROPE ? nullptr : p.rope_tables[s.rope].table + size_t(token) * s.head_size;
            if (s.kind != KV_STORE) {
                norm_and_rope(s.query_norm, table, s, s.heads, at + s.query_offset);
                norm_and_rope(s.key_norm, table, s, s.kv_heads, at + s.key_offset);
            }
            if (s.kind == ROPE) return;
            const int slot = f.start + f.offset + token - f.first_token;
            for (int group = 0; group < s.kv_heads; ++group)
                k.kv_store(plane(f, s, group), slot, at + s.key_offset + group * s.head_size,
                           at + s.value_offset + group * s.head_size);
        });
    }

    void norm_and_rope(const Norm& norm, const float* table, const Step& s, int heads, float* at) {
        for (int head = 0; head < heads; ++head, at += s.head_size) {
            if (norm.kind != NO_NORM) k.norm(norm, at, s.head_size, at);
            if (table) k.rope(table, s.head_size, at);
        }
    }

    Query query(const Step& s, const Feed& f, int token, int head) {
        const int fed = f.offset + token - f.first_token, slot = f.start + fed, position = pass_->positions[token];
        Query q{};
        q.vector = row(s.input, token) + s.query_offset + head * s.head_size;
        q.scale = s.scale;
        q.position = position;
        q.end_key = s.cross_attention ? f.source_length : s.causal ? slot + 1 : f.start + f.length;
        q.first_key = s.window && !s.cross_attention ? std::max(0, position + 1 - s.window) : 0;
        q.window = s.window;
        if (s.distance_bias) {
            q.max_distance = s.max_distance;
            q.distance_bias = s.distance_bias + size_t(head) * (2 * s.max_distance + 1) + s.max_distance;
        }
        if (f.tree_mask && !s.cross_attention) {
            q.tree_mask = f.tree_mask + size_t(fed) * f.length;
            q.tree_positions = f.tree_positions;
            q.tree_start = f.start;
            q.first_key = std::min(q.first_key, f.start);
        }
        return q;
    }

    struct QueryBlock {  // queries that attend to the same keys
        const Feed* feed;
        int group, head, heads, token, tokens;
    };

    // Visits all query blocks of a step; every thread sees the same ones in the same order.
    template <class Function> void each_query_block(const Step& s, Function function) {
        const int per = s.heads / s.kv_heads, heads = std::min(per, QUERIES), tokens = std::max(1, QUERIES / heads);
        int number = 0;
        for (int feed = 0; feed < pass_->feed_count; ++feed) {
            const Feed& f = pass_->feeds[feed];
            const int first = s.scope == ALL_TOKENS ? 0 : f.token_count - f.scored_count;
            for (int token = first; token < f.token_count; token += tokens)
                for (int group = 0; group < s.kv_heads; ++group)
                    for (int head = 0; head < per; head += heads)
                        function(number++, QueryBlock{&f, group, group * per + head, std::min(heads, per - head),
                                                      f.first_token + token, std::min(tokens, f.token_count - token)});
        }
    }

    int queries(const Step& s, const QueryBlock& item, Query* q) {
        int count = 0;
        for (int token = item.token; token < item.token + item.tokens; ++token)
            for (int head = item.head; head < item.head + item.heads; ++head) q[count++] = query(s, *item.feed, token, head);
        return count;
    }

    static void key_range(const Query* q, int count, int* low, int* high) {
        *low = q[0].first_key;
        *high = q[0].end_key;
        for (int i = 1; i < count; ++i) {
            *low = std::min(*low, q[i].first_key);
            *high = std::max(*high, q[i].end_key);
        }
        *low = *low / CHUNK * CHUNK;
    }

    void attention(int number, const Step& s, int thread) {
        int count = 0, most = 0;
        each_query_block(s, [&](int, const QueryBlock& item) {
            ++count;
            const Feed& f = *item.feed;
            most = std::max(most, s.cross_attention ? f.source_length : f.start + f.length);
        });
        if (count <= SPLIT * pool_.size() && most > CHUNK && pool_.size() > 1) {
            attention_by_chunks(number, s, thread, count);
            return;
        }
        Worker& worker = workers_[thread];
        int next = take_piece(counter(number)), pieces = 0;
        each_query_block(s, [&](int item_number, const QueryBlock& item) {
            if (item_number != next) return;
            Query q[QUERIES]{};
            AttentionState states[QUERIES], chunk[QUERIES];
            const int queries = this->queries(s, item, q);
            for (int i = 0; i < queries; ++i) {
                states[i] = {-INFINITY, 0.0f, worker.states.data() + size_t(i) * s.head_size};
                chunk[i] = {-INFINITY, 0.0f, worker.states.data() + size_t(QUERIES + i) * s.head_size};
            }
            int low, high;
            key_range(q, queries, &low, &high);
            const KvPlane keys = plane(*item.feed, s, item.group);
            for (int first = low; first < high; first += CHUNK) {
                k.attention(keys, queries, q, first, chunk, worker.scores.data());
                for (int i = 0; i < queries; ++i) merge_into(states[i], chunk[i], s.head_size);
            }
            write_heads(s, item, queries, states);
            ++pieces;
            next = take_piece(counter(number));
        });
        wait_for_all(counter(number), pieces, count);
    }

    // A few queries and many keys: threads share the chunks of keys, then merge their online softmaxes.
    void attention_by_chunks(int number, const Step& s, int thread, int count) {
        Worker& worker = workers_[thread];
        int next = take_piece(counter(number)), unit = 0, pieces = 0;
        each_query_block(s, [&](int item_number, const QueryBlock& item) {
            Query q[QUERIES]{};
            const int queries = this->queries(s, item, q);
            int low, high;
            key_range(q, queries, &low, &high);
            for (int first = low; first < high; first += CHUNK) {
                if (unit++ != next) continue;
                AttentionState chunk[QUERIES];
                chunk_states(item_number, first / CHUNK, queries, s.head_size, chunk);
                k.attention(plane(*item.feed, s, item.group), queries, q, first, chunk, worker.scores.data());
                for (int i = 0; i < queries; ++i)
                    chunk_sums_[state_index(item_number, first / CHUNK) + i] = {chunk[i].maximum, chunk[i].total};
                ++pieces;
                next = take_piece(counter(number));
            }
        });
        wait_for_all(counter(number), pieces, unit);
        int last = take_piece(extra_counter(number)), done = 0;
        each_query_block(s, [&](int item_number, const QueryBlock& item) {
            if (item_number != last) return;
            Query q[QUERIES]{};
            AttentionState states[QUERIES], chunk[QUERIES];
            const int queries = this->queries(s, item, q);
            for (int i = 0; i < queries; ++i) states[i] = {-INFINITY, 0.0f, worker.states.data() + size_t(i) * s.head_size};
            int low, high;
            key_range(q, queries, &low, &high);
            for (int first = low; first < high; first += CHUNK) {
                chunk_states(item_number, first / CHUNK, queries, s.head_size, chunk);
                for (int i = 0; i < queries; ++i) {
                    const auto& sums = chunk_sums_[state_index(item_number, first / CHUNK) + i];
                    chunk[i].maximum = sums.first;
                    chunk[i].total = sums.second;
                    merge_into(states[i], chunk[i], s.head_size);
                }
            }
            write_heads(s, item, queries, states);
            ++done;
            last = take_piece(extra_counter(number));
        });
        wait_for_all(extra_counter(number), done, count);
    }

    size_t state_index(int item, int chunk) const { return (size_t(item) * chunks_ + chunk) * QUERIES; }

    void chunk_states(int item, int chunk, int queries, int size, AttentionState* states) {
        float* values = chunk_values_.data() + state_index(item, chunk) * size;
        for (int i = 0; i < queries; ++i) states[i] = {-INFINITY, 0.0f, values + size_t(i) * size};
    }

    void merge_into(AttentionState& into, const AttentionState& chunk, int size) {
        if (into.maximum == -INFINITY) {
            into.maximum = chunk.maximum;
            into.total = chunk.total;
            std::memcpy(into.values, chunk.values, size_t(size) * 4);
        } else {
            k.merge(into, chunk, size);
        }
    }

    void write_heads(const Step& s, const QueryBlock& item, int queries, const AttentionState* states) {
        for (int i = 0; i < queries; ++i) {
            const int token = item.token + i / item.heads, head = item.head + i % item.heads;
            float* out = row(s.output, token) + size_t(head) * s.head_size;
            for (int n = 0; n < s.head_size; ++n) out[n] = states[i].values[n] / states[i].total;
        }
    }

    // The attention weights of each token: (tokens, heads, keys); the output's width is heads * keys.
    void attention_pattern(int number, const Step& s, int thread) {
        const int keys = pass_->widths[s.output] / s.heads, per = s.heads / s.kv_heads;
        for_each_token(number, [&](const Feed& f, int token) {
            std::memset(row(s.output, token), 0, size_t(pass_->widths[s.output]) * 4);
            for (int head = 0; head < s.heads; ++head) {
                const int count = std::min(keys, s.cross_attention ? f.source_length : f.start + f.offset + f.token_count);
                k.attention_pattern(plane(f, s, head / per), query(s, f, token, head), count,
                                    row(s.output, token) + size_t(head) * keys, workers_[thread].scores.data());
            }
        });
    }

    // Heads from a pattern that a watcher changed.
    void weighted_values(int number, const Step& s, int thread) {
        const int keys = pass_->widths[s.second_input] / s.heads, per = s.heads / s.kv_heads;
        for_each_token(number, [&](const Feed& f, int token) {
            const int count = std::min(keys, s.cross_attention ? f.source_length : f.start + f.offset + f.token_count);
            for (int head = 0; head < s.heads; ++head)
                k.weighted_values(plane(f, s, head / per), row(s.second_input, token) + size_t(head) * keys, count,
                                  row(s.output, token) + size_t(head) * s.head_size, workers_[thread].scores.data());
        });
    }

    template <class Function> void for_each_token(int number, Function function) {
        int feed = 0;
        parallel_for(counter(number), pass_->token_count, [&](int token) {
            while (token >= pass_->feeds[feed].first_token + pass_->feeds[feed].token_count) ++feed;
            function(pass_->feeds[feed], token);
        });
    }

    static constexpr int SPLIT = 4;  // query blocks per thread up to which their keys are split among threads

    const Kernels& k;
    ThreadPool pool_;
    std::vector<Worker> workers_;
    PreparedInputs shared_inputs_;
    std::vector<float> chunk_values_;
    std::vector<std::pair<float, float>> chunk_sums_;
    std::vector<Counter> counters_;
    const Pass* pass_ = nullptr;
    int chunks_ = 0;
};

}  // namespace
}  // namespace glass

#if defined(_WIN32)
#define PUBLIC extern "C" __declspec(dllexport)
#else
#define PUBLIC extern "C" __attribute__((visibility("default")))
#endif

// The names of the levels that can run here, best first, separated by spaces. Thread-safe.
PUBLIC const char* glass_levels() {
    static const std::string names = [] {
        std::string text;
        for (const glass::Kernels* level : glass::levels()) text += (text.empty() ? "" : " ") + std::string(level->name);
        return text;
    }();
    return names.c_str();
}

// An engine on a level; null if there is no such level, or no memory.
PUBLIC void* glass_open(const char* level, int32_t threads) {
    try {
        for (const glass::Kernels* kernels : glass::levels())
            if (!std::strcmp(kernels->name, level)) return new glass::Engine(*kernels, threads);
    } catch (...) {
    }
    return nullptr;
}

PUBLIC void glass_close(void* engine) { delete static_cast<glass::Engine*>(engine); }

// 0, or 1 if there is not enough memory.
PUBLIC int32_t glass_run(void* engine, const glass::Pass* pass) {
    try {
        return static_cast<glass::Engine*>(engine)->run(*pass);
    } catch (...) {
        return 1;
    }
}

PUBLIC uint64_t glass_packed_size(int32_t source, int32_t rows, int32_t columns) {
    return uint64_t((rows + glass::TILE - 1) / glass::TILE) * glass::tile_size(glass::file_block(source).kind, columns);
}

PUBLIC int32_t glass_packed_kind(int32_t source) { return glass::file_block(source).kind; }

PUBLIC void glass_pack(void* engine, int32_t source, const uint8_t* file, int32_t rows, int32_t columns, const int32_t* order,
                       uint8_t* out) {
    static_cast<glass::Engine*>(engine)->pack(source, file, rows, columns, order, out);
}

PUBLIC void glass_dequantize_row(const glass::Matrix* matrix, int32_t number, float* out) {
    glass::dequantize_row(*matrix, number, out);
}

// Guard a mapping against pages that its file loses; see mapping_guard.h. Thread-safe.
PUBLIC int32_t glass_guard_mapping(const void* address, uint64_t size) { return glass::guard_mapping(address, size); }

PUBLIC void glass_unguard_mapping(int32_t number) { glass::unguard_mapping(number); }

PUBLIC int32_t glass_mapping_faults(int32_t number) { return glass::mapping_faults(number); }

// Sizes of the structures, for a caller that mirrors them.
PUBLIC int32_t glass_size(int32_t which) {
    const size_t sizes[] = {sizeof(glass::Matrix), sizeof(glass::Norm), sizeof(glass::Step), sizeof(glass::Feed),
                            sizeof(glass::RopeTable), sizeof(glass::Pass)};
    return which >= 0 && which < 6 ? int32_t(sizes[which]) : -1;
}
