// Runs a program over a pass: every thread walks through the same steps, takes its share of each, and waits for the others
// where the next step needs all of it.
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
#include "pack.h"
#include "threads.h"

namespace glass {

namespace {

#ifdef LEVEL_dotprod
bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // ASIMDDP
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) == 0 && found;
#else
    return false;
#endif
}
#endif

// The levels that this library has and this processor can run, best first.
std::vector<const Kernels*> levels() {
    std::vector<const Kernels*> found;
#ifdef LEVEL_avx2
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("bmi2");
#ifdef LEVEL_avx512vnni
    if (avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        found.push_back(&kernels_avx512vnni);
#endif
    if (avx2) found.push_back(&kernels_avx2);
#endif
#ifdef LEVEL_dotprod
    if (has_dot_products()) found.push_back(&kernels_dotprod);
#endif
#ifdef LEVEL_neon
    found.push_back(&kernels_neon);
#endif
    found.push_back(&kernels_portable);
    return found;
}

constexpr int FEW = 2;            // tokens whose inputs every thread prepares for itself
constexpr int TOGETHER = 32;      // tokens of one call of a product
constexpr int FLOATS = TOGETHER * TILE;

// Inputs of a product, prepared: normed, and quantised where a matrix is packed.
struct Prepared {
    std::vector<float> values, scales, sums;
    std::vector<int8_t> codes;

    void reserve(size_t tokens, size_t columns) {
        grow(values, tokens * columns);
        grow(scales, tokens * (columns / BLOCK + 1));
        grow(sums, tokens * (columns / BLOCK + 1) * 3);
        grow(codes, 2 * tokens * columns);
    }

    template <class T> static void grow(std::vector<T>& held, size_t size) {
        if (held.size() < size) held.resize(size);
    }
};

struct Worker {
    Prepared own;
    std::vector<float> scores;  // (QUERIES, CHUNK), and a page's keys or values
    std::vector<float> seen;    // (2, QUERIES, size)
};

class Engine {
  public:
    Engine(const Kernels& kernels, int threads) : k(kernels), team_(threads), workers_(threads) {}

    int run(const Pass& pass) {
        pass_ = &pass;
        plan();
        team_.run([](void* engine, int thread) { static_cast<Engine*>(engine)->work(thread); }, this);
        return 0;
    }

    void pack(int source, const uint8_t* file, int rows, int columns, const int32_t* order, uint8_t* out) {
        struct Job { Engine* engine; int source; const uint8_t* file; int rows, columns; const int32_t* order; uint8_t* out; };
        Job job{this, source, file, rows, columns, order, out};
        reset(1);
        team_.run([](void* what, int) {
            const Job& j = *static_cast<Job*>(what);
            const int tiles = (j.rows + TILE - 1) / TILE;
            j.engine->share(j.engine->counter(0), tiles, [&](int tile) {
                pack_tiles(j.source, j.file, j.rows, j.columns, j.order, tile, tile + 1, j.out);
            });
        }, &job);
    }

  private:
    // Make room for everything that the pass needs, so that no thread has to.
    void plan() {
        const Pass& p = *pass_;
        reset(p.step_count + 1);
        size_t columns = 0, size = 0, keys = 0;
        for (int i = p.begin; i < p.step_count; ++i) {
            const Step& s = p.steps[i];
            if (s.kind == PRODUCT) columns = std::max(columns, size_t(s.matrices[0].columns));
            if (s.kind == ATTEND || s.kind == PATTERN || s.kind == MIX) size = std::max(size, size_t(s.size));
        }
        for (int i = 0; i < p.feed_count; ++i)
            keys = std::max(keys, size_t(std::max(p.feeds[i].start + p.feeds[i].fed, p.feeds[i].sources)));
        shared_.reserve(std::max(p.token_count, p.wanted_count), columns);
        const size_t chunks = keys / CHUNK + 1;
        Prepared::grow(partial_, size_t(SPLIT) * team_.size() * chunks * QUERIES * size);
        if (measures_.size() < size_t(SPLIT) * team_.size() * chunks * QUERIES)
            measures_.resize(size_t(SPLIT) * team_.size() * chunks * QUERIES);
        chunks_ = int(chunks);
        for (Worker& worker : workers_) {
            worker.own.reserve(FEW, columns);
            Prepared::grow(worker.scores, size_t(QUERIES) * CHUNK + PAGE * size);
            Prepared::grow(worker.seen, 2 * size_t(QUERIES) * size);
        }
    }

    // Work in pieces ------------------------------------------------------------------------------------------------

    // Each step has a counter for each thread, and one for what comes before or after.
    void reset(int steps) {
        const size_t count = size_t(steps) * (team_.size() + 1);
        if (counters_.size() < count) counters_ = std::vector<Counter>(count);
        for (size_t i = 0; i < count; ++i) {
            counters_[i].next.store(0, std::memory_order_relaxed);
            counters_[i].done.store(0, std::memory_order_relaxed);
        }
    }

    Counter& counter(int step, int which = 0) { return counters_[size_t(step) * (team_.size() + 1) + which]; }
    Counter& beside(int step) { return counter(step, team_.size()); }
    static int take(Counter& counter) { return counter.next.fetch_add(1, std::memory_order_relaxed); }

    // Say that so many pieces were done here, and wait for the rest. Whoever has taken no piece has read nothing either.
    static void finish(Counter& counter, int pieces, int all) {
        if (pieces) counter.done.fetch_add(pieces, std::memory_order_acq_rel);
        until([&] { return counter.done.load(std::memory_order_acquire) >= all; });
    }

    template <class Each> static void share(Counter& counter, int all, Each each) {
        int pieces = 0;
        for (int piece; (piece = take(counter)) < all; ++pieces) each(piece);
        finish(counter, pieces, all);
    }

    void work(int thread) {
        const Pass& p = *pass_;
        if (p.begin == 0) turns();
        for (int i = p.begin; i < p.step_count; ++i) {
            const Step& s = p.steps[i];
            switch (s.kind) {
                case EMBED: embed(i, s); break;
                case NORMALISE: normalise(i, s); break;
                case PRODUCT: product(i, s, thread); break;
                case TURN:
                case REMEMBER:
                case PLACE: place(i, s); break;
                case ATTEND: attend(i, s, thread); break;
                case PATTERN: pattern(i, s, thread); break;
                case MIX: mix(i, s, thread); break;
                default: simple(i, s);
            }
        }
    }

    // A step's tokens, by number, and where each one's results lie.
    int tokens_of(const Step& s) const { return s.over == ALL ? pass_->token_count : pass_->wanted_count; }
    int token_of(const Step& s, int number) const { return s.over == ALL ? number : pass_->wanted[number]; }
    int place_of(const Step& s, int number) const { return s.over == SCORED ? pass_->wanted[number] : number; }

    float* row(int buffer, int number) { return pass_->buffers[buffer] + size_t(number) * pass_->widths[buffer]; }

    void turns() {
        const Pass& p = *pass_;
        share(counter(p.step_count), p.token_count * p.turn_count, [&](int piece) {
            const Turns& t = p.turns[piece % p.turn_count];
            const int half = t.size / 2, token = piece / p.turn_count;
            float* out = t.table + size_t(token) * t.size;
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
        share(counter(number), p.token_count, [&](int token) {
            float* out = row(s.output, token);
            row_of(s.matrices[0], p.ids[token], out);
            if (s.scale != 1.0f)
                for (int i = 0; i < width; ++i) out[i] *= s.scale;
            if (s.count == 1) return;
            std::vector<float> more(width);
            for (int table = 1; table < s.count; ++table) {  // positions, then types
                const int type = p.types ? p.types[token] : 0;
                row_of(s.matrices[table], table == 1 ? p.positions[token] + s.first : type, more.data());
                for (int i = 0; i < width; ++i) out[i] += more[i];
            }
        });
    }

    void normalise(int number, const Step& s) {
        share(counter(number), tokens_of(s), [&](int which) {
            const int token = token_of(s, which);
            k.norm(s.norm, row(s.input, token), pass_->widths[s.input], row(s.output, token));
        });
    }

    void simple(int number, const Step& s) {
        const int width = pass_->widths[s.output];
        share(counter(number), tokens_of(s), [&](int which) {
            const int token = token_of(s, which);
            float* out = row(s.output, token);
            const float* in = row(s.input, token);
            if (s.kind == ADD) {
                const float* other = row(s.other, token);
                for (int i = 0; i < width; ++i) out[i] = other[i] + in[i];
            } else {
                if (out != in) std::memcpy(out, in, size_t(width) * 4);
                if (s.kind == ACTIVATE) k.activate(s.activation, out, nullptr, width);
            }
        });
    }

    // Products ----------------------------------------------------------------------------------------------------

    struct Input {
        const float* values;
        size_t stride;
        Quantised packed;
    };

    struct Needs {  // what a step's matrices want of their input
        bool packed = false, plain = false, direct;
        explicit Needs(const Step& s) : direct(s.norm.how == NO_NORM && s.over == ALL) {
            for (int i = 0; i < s.count; ++i) (s.matrices[i].kind > BF16 ? packed : plain) = true;
        }
        bool prepared() const { return packed || !direct; }
    };

    void prepare(const Step& s, const Needs& needs, int token, Prepared& into) {
        const int columns = s.matrices[0].columns;
        const float* from = row(s.input, token_of(s, token));
        float* values = into.values.data() + size_t(token) * columns;
        if (s.norm.how != NO_NORM) {
            k.norm(s.norm, from, columns, values);
            from = values;
        } else if (needs.plain && !needs.direct) {
            std::memcpy(values, from, size_t(columns) * 4);
        }
        if (needs.packed)
            k.quantise(from, columns, pass_->parts, into.codes.data() + size_t(token) * pass_->parts * columns,
                       into.scales.data() + size_t(token) * (columns / BLOCK),
                       into.sums.data() + size_t(token) * (columns / BLOCK) * 3);
    }

    void product(int number, const Step& s, int thread) {
        const int tokens = tokens_of(s), columns = s.matrices[0].columns;
        if (!tokens) return;
        const Needs needs(s);
        const bool alone = tokens <= FEW;  // each thread prepares for itself, rather than wait for the others
        Prepared& into = alone ? workers_[thread].own : shared_;
        if (needs.prepared() && !alone)
            share(beside(number), tokens, [&](int token) { prepare(s, needs, token, into); });
        bool ready = !alone || !needs.prepared();
        const Input in = {needs.direct ? row(s.input, 0) : into.values.data(),
                          size_t(needs.direct ? pass_->widths[s.input] : columns),
                          {into.codes.data(), into.scales.data(), into.sums.data(), pass_->parts}};
        int tiles = 0, pieces = 0;
        for (int i = 0; i < (s.after == GATED ? 1 : s.count); ++i) tiles += tiles_of(s.matrices[i]);
        // Each thread reads on through its own share of the weights; who is done first helps the others.
        for (int turn = 0; turn < team_.size(); ++turn) {
            const int owner = (thread + turn) % team_.size();
            const int begin = int(int64_t(tiles) * owner / team_.size());
            const int end = int(int64_t(tiles) * (owner + 1) / team_.size());
            for (int at; (at = begin + take(counter(number, owner))) < end; ++pieces) {
                for (int token = 0; !ready && token < tokens; ++token) prepare(s, needs, token, into);
                ready = true;
                int matrix = 0, tile = at, column = 0;
                for (; tile >= tiles_of(s.matrices[matrix]); ++matrix) {
                    tile -= tiles_of(s.matrices[matrix]);
                    column += s.matrices[matrix].rows;
                }
                for (int first = 0; first < tokens; first += TOGETHER)
                    part(s, in, matrix, tile, column, first, std::min(TOGETHER, tokens - first));
            }
        }
        finish(counter(number), pieces, tiles);
    }

    static int tiles_of(const Matrix& m) { return (m.rows + TILE - 1) / TILE; }

    // One tile with a few tokens, and what follows it.
    void part(const Step& s, const Input& in, int matrix, int tile, int column, int first, int tokens) {
        alignas(64) float out[FLOATS], gates[FLOATS];
        const Matrix& m = s.matrices[matrix];
        const float* values = in.values + first * in.stride;
        const Quantised packed = {in.packed.codes + size_t(first) * in.packed.parts * m.columns,
                                  in.packed.scales + size_t(first) * (m.columns / BLOCK),
                                  in.packed.sums + size_t(first) * (m.columns / BLOCK) * 3, in.packed.parts};
        const int rows = std::min(TILE, m.rows - tile * TILE);
        if (rows < TILE) std::fill_n(out, FLOATS, 0.0f), std::fill_n(gates, FLOATS, 0.0f);
        if (s.after == GATED) {
            k.product(m, tile, tokens, values, in.stride, packed, gates);
            k.product(s.matrices[1], tile, tokens, values, in.stride, packed, out);
            k.activate(s.activation, out, gates, tokens * TILE);
        } else {
            k.product(m, tile, tokens, values, in.stride, packed, out);
        }
        if (s.scale != 1.0f)
            for (int i = 0; i < tokens * TILE; ++i) out[i] *= s.scale;
        if (s.after == ACTIVATED) k.activate(s.activation, out, nullptr, tokens * TILE);
        for (int token = 0; token < tokens; ++token) {
            const int place = place_of(s, first + token), at = column + tile * TILE;
            const float* other = s.after == ADDED ? row(s.other, place) + at : nullptr;
            if (rows == TILE) written(out + token * TILE, other, row(s.output, place) + at, TILE);
            else written(out + token * TILE, other, row(s.output, place) + at, rows);
        }
    }

    static inline void written(const float* from, const float* other, float* to, int count) {
        for (int i = 0; i < count; ++i) to[i] = other ? other[i] + from[i] : from[i];
    }

    // Attention ---------------------------------------------------------------------------------------------------

    Plane plane(const Feed& feed, const Step& s, int group) const {
        static constexpr int bytes[] = {4, 2, 2, 1};
        const size_t scales = pass_->store == STORE_Q8 ? 2 * PAGE * 4 : 0;
        const size_t one = 2 * size_t(PAGE) * s.size * bytes[pass_->store] + scales;
        return {s.memory ? feed.source : feed.pages, (size_t(s.layer) * s.groups + group) * one, s.size, pass_->store};
    }

    // Norms and turns of queries and keys, which are then remembered with the values.
    void place(int number, const Step& s) {
        const Pass& p = *pass_;
        each_token(number, [&](const Feed& f, int token) {
            float* at = row(s.input, token);
            const float* turns = s.rope < 0 ? nullptr : p.turns[s.rope].table + size_t(token) * s.size;
            if (s.kind != REMEMBER) {
                if (s.query >= 0) turned(s.query_norm, turns, s, s.heads, at + s.query);
                if (s.key >= 0) turned(s.key_norm, turns, s, s.groups, at + s.key);
            }
            if (s.kind == TURN || s.key < 0) return;
            const int slot = f.start + f.offset + token - f.first;
            for (int group = 0; group < s.groups; ++group)
                k.remember(plane(f, s, group), slot, at + s.key + group * s.size, at + s.value + group * s.size);
        });
    }

    void turned(const Norm& norm, const float* turns, const Step& s, int heads, float* at) {
        for (int head = 0; head < heads; ++head, at += s.size) {
            if (norm.how != NO_NORM) k.norm(norm, at, s.size, at);
            if (turns) k.rotate(turns, s.size, at);
        }
    }

    Query query(const Step& s, const Feed& f, int token, int head) {
        const int fed = f.offset + token - f.first, slot = f.start + fed, position = pass_->positions[token];
        Query q{};
        q.vector = row(s.input, token) + s.query + head * s.size;
        q.scale = s.scale;
        q.position = position;
        q.high = s.memory ? f.sources : s.causal ? slot + 1 : f.start + f.fed;
        q.low = s.window && !s.memory ? std::max(0, position + 1 - s.window) : 0;
        q.window = s.window;
        if (s.distances) {
            q.reach = s.reach;
            q.distances = s.distances + size_t(head) * (2 * s.reach + 1) + s.reach;
        }
        if (f.tree && !s.memory) {
            q.tree = f.tree + size_t(fed) * f.fed;
            q.places = f.places;
            q.planted = f.start;
            q.low = std::min(q.low, f.start);
        }
        return q;
    }

    struct Item {  // some queries that look at the same keys
        const Feed* feed;
        int group, head, heads, token, tokens;
    };

    // Walks through all items of a step; each thread sees the same ones in the same order.
    template <class Each> void items(const Step& s, Each each) {
        const int per = s.heads / s.groups, heads = std::min(per, QUERIES), tokens = std::max(1, QUERIES / heads);
        int number = 0;
        for (int feed = 0; feed < pass_->feed_count; ++feed) {
            const Feed& f = pass_->feeds[feed];
            for (int token = s.over == ALL ? 0 : f.count - f.scored; token < f.count; token += tokens)
                for (int group = 0; group < s.groups; ++group)
                    for (int head = 0; head < per; head += heads)
                        each(number++, Item{&f, group, group * per + head, std::min(heads, per - head), f.first + token,
                                            std::min(tokens, f.count - token)});
        }
    }

    int queries(const Step& s, const Item& item, Query* q) {
        int count = 0;
        for (int token = item.token; token < item.token + item.tokens; ++token)
            for (int head = item.head; head < item.head + item.heads; ++head) q[count++] = query(s, *item.feed, token, head);
        return count;
    }

    static void reach(const Query* q, int count, int* low, int* high) {
        *low = q[0].low;
        *high = q[0].high;
        for (int i = 1; i < count; ++i) {
            *low = std::min(*low, q[i].low);
            *high = std::max(*high, q[i].high);
        }
        *low = *low / CHUNK * CHUNK;
    }

    void attend(int number, const Step& s, int thread) {
        int count = 0, most = 0;
        items(s, [&](int, const Item& item) {
            ++count;
            const Feed& f = *item.feed;
            most = std::max(most, s.memory ? f.sources : f.start + f.fed);
        });
        if (count <= SPLIT * team_.size() && most > CHUNK && team_.size() > 1) {
            in_parts(number, s, thread, count);
            return;
        }
        Worker& worker = workers_[thread];
        int next = take(counter(number)), pieces = 0;
        items(s, [&](int item_number, const Item& item) {
            if (item_number != next) return;
            Query q[QUERIES]{};
            Seen all[QUERIES], some[QUERIES];
            const int queries = this->queries(s, item, q);
            for (int i = 0; i < queries; ++i) {
                all[i] = {-INFINITY, 0.0f, worker.seen.data() + size_t(i) * s.size};
                some[i] = {-INFINITY, 0.0f, worker.seen.data() + size_t(QUERIES + i) * s.size};
            }
            int low, high;
            reach(q, queries, &low, &high);
            const Plane keys = plane(*item.feed, s, item.group);
            for (int first = low; first < high; first += CHUNK) {
                k.attend(keys, queries, q, first, some, worker.scores.data());
                for (int i = 0; i < queries; ++i) joined(all[i], some[i], s.size);
            }
            divide(s, item, queries, all);
            ++pieces;
            next = take(counter(number));
        });
        finish(counter(number), pieces, count);
    }

    // A few queries and many keys: the threads share the keys, then put together what they saw.
    void in_parts(int number, const Step& s, int thread, int count) {
        Worker& worker = workers_[thread];
        int next = take(counter(number)), unit = 0, pieces = 0;
        items(s, [&](int item_number, const Item& item) {
            Query q[QUERIES]{};
            const int queries = this->queries(s, item, q);
            int low, high;
            reach(q, queries, &low, &high);
            for (int first = low; first < high; first += CHUNK) {
                if (unit++ != next) continue;
                Seen some[QUERIES];
                seen_at(item_number, first / CHUNK, queries, s.size, some);
                k.attend(plane(*item.feed, s, item.group), queries, q, first, some, worker.scores.data());
                for (int i = 0; i < queries; ++i)
                    measures_[seen_place(item_number, first / CHUNK) + i] = {some[i].maximum, some[i].total};
                ++pieces;
                next = take(counter(number));
            }
        });
        finish(counter(number), pieces, unit);
        int last = take(beside(number)), done = 0;
        items(s, [&](int item_number, const Item& item) {
            if (item_number != last) return;
            Query q[QUERIES]{};
            Seen all[QUERIES], some[QUERIES];
            const int queries = this->queries(s, item, q);
            for (int i = 0; i < queries; ++i) all[i] = {-INFINITY, 0.0f, worker.seen.data() + size_t(i) * s.size};
            int low, high;
            reach(q, queries, &low, &high);
            for (int first = low; first < high; first += CHUNK) {
                seen_at(item_number, first / CHUNK, queries, s.size, some);
                for (int i = 0; i < queries; ++i) {
                    const auto& measure = measures_[seen_place(item_number, first / CHUNK) + i];
                    some[i].maximum = measure.first;
                    some[i].total = measure.second;
                    joined(all[i], some[i], s.size);
                }
            }
            divide(s, item, queries, all);
            ++done;
            last = take(beside(number));
        });
        finish(beside(number), done, count);
    }

    size_t seen_place(int item, int chunk) const { return (size_t(item) * chunks_ + chunk) * QUERIES; }

    void seen_at(int item, int chunk, int queries, int size, Seen* seen) {
        for (int i = 0; i < queries; ++i) seen[i] = {-INFINITY, 0.0f, partial_.data() + (seen_place(item, chunk) + i) * size};
    }

    void joined(Seen& into, const Seen& more, int size) {
        if (into.maximum == -INFINITY) {
            into.maximum = more.maximum;
            into.total = more.total;
            std::memcpy(into.values, more.values, size_t(size) * 4);
        } else {
            k.join(into, more, size);
        }
    }

    void divide(const Step& s, const Item& item, int queries, const Seen* seen) {
        for (int i = 0; i < queries; ++i) {
            const int token = item.token + i / item.heads, head = item.head + i % item.heads;
            float* out = row(s.output, token) + size_t(head) * s.size;
            for (int n = 0; n < s.size; ++n) out[n] = seen[i].values[n] / seen[i].total;
        }
    }

    // What each token's heads look at, beside: (tokens, heads, keys); the output's width is heads * keys.
    void pattern(int number, const Step& s, int thread) {
        const int keys = pass_->widths[s.output] / s.heads, per = s.heads / s.groups;
        each_token(number, [&](const Feed& f, int token) {
            std::memset(row(s.output, token), 0, size_t(pass_->widths[s.output]) * 4);
            for (int head = 0; head < s.heads; ++head) {
                const int count = std::min(keys, s.memory ? f.sources : f.start + f.offset + f.count);
                k.pattern(plane(f, s, head / per), query(s, f, token, head), count, row(s.output, token) + size_t(head) * keys,
                          workers_[thread].scores.data());
            }
        });
    }

    // Heads out of a pattern that somebody changed.
    void mix(int number, const Step& s, int thread) {
        const int keys = pass_->widths[s.other] / s.heads, per = s.heads / s.groups;
        each_token(number, [&](const Feed& f, int token) {
            const int count = std::min(keys, s.memory ? f.sources : f.start + f.offset + f.count);
            for (int head = 0; head < s.heads; ++head)
                k.mix(plane(f, s, head / per), row(s.other, token) + size_t(head) * keys, count,
                      row(s.output, token) + size_t(head) * s.size, workers_[thread].scores.data());
        });
    }

    template <class Each> void each_token(int number, Each each) {
        int feed = 0;
        share(counter(number), pass_->token_count, [&](int token) {
            while (token >= pass_->feeds[feed].first + pass_->feeds[feed].count) ++feed;
            each(pass_->feeds[feed], token);
        });
    }

    static constexpr int SPLIT = 4;  // items per thread below which they are cut into parts

    const Kernels& k;
    Team team_;
    std::vector<Worker> workers_;
    Prepared shared_;
    std::vector<float> partial_;
    std::vector<std::pair<float, float>> measures_;
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

// The names of the levels that can run here, best first, with spaces between. Made once: any thread may ask.
PUBLIC const char* glass_levels() {
    static const std::string names = [] {
        std::string joined;
        for (const glass::Kernels* level : glass::levels()) joined += (joined.empty() ? "" : " ") + std::string(level->name);
        return joined;
    }();
    return names.c_str();
}

// An engine on a level; null if it cannot be had.
PUBLIC void* glass_open(const char* level, int32_t threads) {
    try {
        for (const glass::Kernels* found : glass::levels())
            if (!std::strcmp(found->name, level)) return new glass::Engine(*found, threads);
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
    return uint64_t((rows + glass::TILE - 1) / glass::TILE) * glass::tile_size(glass::shape_of(source).kind, columns);
}

PUBLIC int32_t glass_packed_kind(int32_t source) { return glass::shape_of(source).kind; }

PUBLIC void glass_pack(void* engine, int32_t source, const uint8_t* file, int32_t rows, int32_t columns, const int32_t* order,
                       uint8_t* out) {
    static_cast<glass::Engine*>(engine)->pack(source, file, rows, columns, order, out);
}

PUBLIC void glass_row(const glass::Matrix* matrix, int32_t number, float* out) { glass::row_of(*matrix, number, out); }

// Sizes of the structures, for whoever mirrors them.
PUBLIC int32_t glass_size(int32_t which) {
    const size_t sizes[] = {sizeof(glass::Matrix), sizeof(glass::Norm), sizeof(glass::Step), sizeof(glass::Feed),
                            sizeof(glass::Turns), sizeof(glass::Pass)};
    return which >= 0 && which < 6 ? int32_t(sizes[which]) : -1;
}
