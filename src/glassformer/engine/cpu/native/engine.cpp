// Runs a program over a pass: every thread goes through the same steps, does its share of each, and waits for the others.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels.h"
#include "levels.h"
#include "mapping_guard.h"
#include "pack.h"
#include "threads.h"
#include "work_sharing.h"

namespace glass {

namespace {

constexpr int SMALL_BATCH = 2;     // tokens up to which every thread prepares the inputs for itself
constexpr int MATMUL_TOKENS = 64;  // of one call of the matmul kernel
constexpr int TILE_FLOATS = MATMUL_TOKENS * TILE;
constexpr int MAX_KERNEL = 64;     // tokens that a convolution reads

// Inputs of a matmul, prepared: normed, and quantized where a matrix is packed.
struct PreparedInputs {
    std::vector<float> values, scales, sums;
    std::vector<int8_t> codes;
    std::vector<int32_t> refined;
    std::vector<uint16_t> split;

    void reserve(size_t tokens, size_t columns, const Kernels& k) {
        tokens = (tokens + TILE - 1) / TILE * TILE;
        if (k.split_bf16) grow(split, 2 * tokens * columns);
        grow(values, tokens * columns);
        grow(scales, tokens * (columns / BLOCK + 1));
        grow(sums, tokens * (columns / BLOCK + 1) * 3);
        grow(refined, tokens * (columns / BLOCK + 1));
        grow(codes, 2 * tokens * (columns / BLOCK) * k.part_bytes);
    }

    template <class T> static void grow(std::vector<T>& values, size_t size) {
        if (values.size() < size) values.resize(size);
    }
};

// Which tokens of a step go to which expert. An entry is a token and the slot that it has for that expert; entries are sorted by
// expert, and where inputs are prepared, those of an expert begin at a multiple of TILE.
struct ExpertPlan {
    std::vector<int32_t> active;  // the experts that have entries
    std::vector<int32_t> first, place;  // (experts + 1): an expert's first entry, and where its inputs begin
    std::vector<int32_t> entries;  // token * slots + slot
    std::vector<int32_t> chosen;   // (tokens, slots): experts
    int active_count = 0;

    void reserve(size_t experts, size_t tokens, size_t slots) {
        PreparedInputs::grow(active, experts);
        PreparedInputs::grow(first, experts + 1);
        PreparedInputs::grow(place, experts + 1);
        PreparedInputs::grow(entries, tokens * slots);
        PreparedInputs::grow(chosen, tokens * slots);
    }
};

struct Worker {
    PreparedInputs own;
    ExpertPlan plan;
    std::vector<float> scores;  // (QUERIES, CHUNK), and a page's keys or values
    std::vector<float> states;  // (2, QUERIES, head_size)
};

class Engine {
  public:
    Engine(const Kernels& kernels, int threads, const int32_t* processors)
        : k(kernels), pool_(threads, processors), sharing_(threads), workers_(threads) {}

    int run(const Pass& pass) {
        best_.clear();
        run_pass(pass);
        return 0;
    }

    // A pass of one token a row, again and again: each time with the best token that followed. best: (rows, count); kept: what
    // some buffers held after each pass, (count, rows, width) each
    int decode(Pass& pass, int scores, int count, int32_t* best, const Kept* kept, int kept_count) {
        best_.assign(pass.token_count, 0);
        best_of_ = scores;
        for (int step = 0; step < count; ++step) {
            run_pass(pass);
            for (int i = 0; i < kept_count; ++i) {
                const size_t size = size_t(pass.token_count) * pass.widths[kept[i].buffer];
                std::memcpy(kept[i].values + step * size, pass.buffers[kept[i].buffer], size * sizeof(float));
            }
            for (int row = 0; row < pass.token_count; ++row) {
                const bool broken = step > 0 && best[row * count + step - 1] == NOT_NUMBERS;
                best[row * count + step] = broken ? NOT_NUMBERS : best_[row];
                pass.ids[row] = std::max(best_[row], 0);
                ++pass.positions[row];
                ++pass.feeds[row].start;
            }
        }
        return 0;
    }

    // A matrix with some tokens: inputs (tokens, columns) to out (tokens, rows)
    int matmul(const Matrix& matrix, int rounding, int tokens, float* inputs, float* out) {
        Step step{};
        step.kind = MATMUL, step.output = 1, step.scale = 1.0f, step.matrix_count = 1, step.matrices[0] = matrix;
        float* const buffers[] = {inputs, out};
        const int32_t widths[] = {matrix.columns, matrix.rows};
        Pass pass{};
        pass.steps = &step, pass.end_step = 1, pass.buffers = buffers, pass.widths = widths;
        pass.token_count = tokens, pass.activation_rounding = rounding;
        return run(pass);
    }

    // The gradients of its inputs from those of its outputs
    void input_gradients(const Matrix& matrix, int tokens, const float* gradients, float* out) {
        const int blocks = matrix.columns / BLOCK, share_of = 2 * pool_.size();
        const int at_once = std::clamp((blocks + share_of - 1) / share_of, 1, GRADIENT_BLOCKS);
        run_on_all_threads([&](Share& share) {
            share.parallel_for((blocks + at_once - 1) / at_once, [&](int piece) {
                const int block = piece * at_once;
                for (int token = 0; token < tokens; token += GRADIENT_TOKENS)
                    k.input_gradients(matrix, block, std::min(at_once, blocks - block), std::min(GRADIENT_TOKENS, tokens - token),
                                      gradients + size_t(token) * matrix.rows,
                                      out + size_t(token) * matrix.columns + block * BLOCK);
            });
        });
    }

    SoftmaxSums softmax_sums(const float* scores, int64_t count) const { return k.softmax_sums(scores, count); }

    void pack(int source, const uint8_t* file, int rows, int columns, const int32_t* order, uint8_t* out) {
        run_on_all_threads([=](Share& share) {
            share.parallel_for(tiles_of(rows), [=](int tile) {
                pack_tiles(source, file, rows, columns, order, tile, tile + 1, out);
            });
        });
    }

  private:
    using Share = WorkSharing::Share;

    template <class Function> void run_on_all_threads(Function function) {
        struct Job { Engine* engine; Function* function; } job{this, &function};
        pool_.run([](void* argument, int thread) {
            const Job& j = *static_cast<Job*>(argument);
            Share share(j.engine->sharing_, thread);
            (*j.function)(share);
        }, &job);
        sharing_.finish_pass();
    }

    void run_pass(const Pass& pass) {
        pass_ = &pass;
        plan();
        run_on_all_threads([this](Share& share) { work(share); });
    }

    // Allocate everything that the pass needs, so that no thread has to.
    void plan() {
        const Pass& p = *pass_;
        size_t columns = 0, head_size = 0, keys = 0;
        const int tokens = std::max(p.token_count, p.scored_count);
        for (int i = p.begin_step; i < p.end_step; ++i) {
            const Step& s = p.steps[i];
            if (s.kind == MATMUL) columns = std::max(columns, size_t(s.matrices[0].columns));
            if (s.kind == EXPERT_MATMUL) reserve_experts(s, tokens);
            if (s.kind == ROUTE)
                for (Worker& worker : workers_) {
                    PreparedInputs::grow(worker.plan.chosen, s.chosen);
                    PreparedInputs::grow(worker.scores, size_t(s.groups) + s.expert_count);
                }
            if (s.kind == RECUR)
                for (Worker& worker : workers_) PreparedInputs::grow(worker.scores, size_t(s.key_size) * STATE_SCRATCH + TILE);
            if (s.kind == ATTENTION || s.kind == ATTENTION_PATTERN || s.kind == WEIGHTED_VALUES)
                head_size = std::max(head_size, size_t(s.head_size));
        }
        for (int i = 0; i < p.feed_count; ++i)
            keys = std::max(keys, size_t(std::max(p.feeds[i].start + p.feeds[i].length, p.feeds[i].source_length)));
        shared_inputs_.reserve(tokens, columns, k);
        const size_t chunks = keys / CHUNK + 1;
        PreparedInputs::grow(chunk_values_, size_t(SPLIT) * pool_.size() * chunks * QUERIES * head_size);
        if (chunk_sums_.size() < size_t(SPLIT) * pool_.size() * chunks * QUERIES)
            chunk_sums_.resize(size_t(SPLIT) * pool_.size() * chunks * QUERIES);
        chunks_ = int(chunks);
        for (Worker& worker : workers_) {
            worker.own.reserve(SMALL_BATCH, columns, k);
            PreparedInputs::grow(worker.scores, size_t(QUERIES) * CHUNK + PAGE * head_size);
            PreparedInputs::grow(worker.states, 2 * size_t(QUERIES) * head_size);
        }
    }

    void reserve_experts(const Step& s, int tokens) {
        const size_t entries = size_t(tokens) * s.chosen, columns = s.experts[0].columns;
        shared_plan_.reserve(s.expert_count, tokens, s.chosen);
        if (tokens > 1) shared_inputs_.reserve(entries + (TILE - 1) * std::min(entries, size_t(s.expert_count)), columns, k);
        for (Worker& worker : workers_) {
            worker.plan.reserve(s.expert_count, 1, s.chosen);
            worker.own.reserve(s.chosen, columns, k);
        }
    }

    void work(Share& share) {
        const Pass& p = *pass_;
        if (p.begin_step == 0) fill_rope_tables(share);
        for (int i = p.begin_step; i < p.end_step; ++i) {
            const Step& s = p.steps[i];
            switch (s.kind) {
                case EMBED: embed(share, s); break;
                case NORM: norm(share, s); break;
                case MATMUL: matmul(share, s); break;
                case HEAD_MATMUL: head_matmul(share, s); break;
                case ROPE:
                case KV_STORE: rope_kv_store(share, s); break;
                case ROPE_KV_STORE:
                    if (i + 1 < p.end_step && attention_includes(s, p.steps[i + 1])) attention(share, p.steps[++i], &s);
                    else rope_kv_store(share, s);
                    break;
                case ATTENTION: attention(share, s); break;
                case ATTENTION_PATTERN: attention_pattern(share, s); break;
                case WEIGHTED_VALUES: weighted_values(share, s); break;
                case ROUTE: route(share, s); break;
                case EXPERT_MATMUL: expert_matmul(share, s); break;
                case EXPERT_SUM: expert_sum(share, s); break;
                case CAUSAL_CONV: causal_conv(share, s); break;
                case RECUR: recur(share, s); break;
                case RECUR_PATTERN: recur_pattern(share, s); break;
                case RECUR_VALUES: recur_values(share, s); break;
                case MIX: mix(share, s); break;
                default: elementwise(share, s);
            }
        }
        if (!best_.empty())
            share.parallel_for(p.scored_count, [&](int which) {
                best_[which] = k.best(row(best_of_, which), p.widths[best_of_]);
            });
    }

    // How many tokens a step has; of the n-th of them, the row of its input and that of its output.
    int token_count_of(const Step& s) const { return s.scope == ALL_TOKENS ? pass_->token_count : pass_->scored_count; }
    int input_row(const Step& s, int number) const { return s.scope == ALL_TOKENS ? number : pass_->scored[number]; }
    int output_row(const Step& s, int number) const { return s.scope == SCORED_TOKENS ? pass_->scored[number] : number; }

    float* row(int buffer, int number) { return pass_->buffers[buffer] + size_t(number) * pass_->widths[buffer]; }

    void fill_rope_tables(Share& share) {
        const Pass& p = *pass_;
        share.parallel_for(p.token_count * p.rope_count, [&](int piece) {
            const RopeTable& t = p.rope_tables[piece % p.rope_count];
            const int half = t.size / 2, token = piece / p.rope_count;
            float* out = t.table + size_t(token) * t.size;
            for (int i = 0; i < half; ++i) {
                const float angle = float(p.positions[token]) * t.frequencies[i];
                out[i] = std::cos(angle) * t.scale;
                out[half + i] = std::sin(angle) * t.scale;
            }
        });
    }

    void embed(Share& share, const Step& s) {
        const Pass& p = *pass_;
        const int width = s.matrices[0].columns;
        share.parallel_for(p.token_count, [&](int token) {
            float* out = row(s.output, token);
            if (s.epilogue == EPILOGUE_ADD) {  // positions alone, added to what is there
                const float* before = row(s.second_input, token);
                dequantize_row(s.matrices[0], p.positions[token] + s.position_offset, out);
                for (int i = 0; i < width; ++i) out[i] += before[i];
                return;
            }
            const int id = p.ids[token];  // those beyond a table of blocks' own have its first row
            dequantize_row(s.matrices[0], id < s.matrices[0].rows ? id : 0, out);
            if (s.scale != 1.0f)
                for (int i = 0; i < width; ++i) out[i] *= s.scale;
            if (s.matrix_count == 1) return;
            std::vector<float> added(width);
            for (int table = 1; table < s.matrix_count; ++table) {  // positions, if there are any, then types
                const bool positions = table == 1 && s.position_offset >= 0;
                const int type = p.token_types ? p.token_types[token] : 0;
                dequantize_row(s.matrices[table], positions ? p.positions[token] + s.position_offset : type, added.data());
                for (int i = 0; i < width; ++i) out[i] += added[i];
            }
        });
    }

    void norm(Share& share, const Step& s) {
        const int width = s.width ? s.width : pass_->widths[s.input];
        share.parallel_for(token_count_of(s), [&](int which) {
            const int token = input_row(s, which);
            k.norm(s.norm, row(s.input, token) + s.column, width, row(s.output, token) + s.column);
        });
    }

    void elementwise(Share& share, const Step& s) {
        const int width = s.kind == COPY && s.width ? s.width : pass_->widths[s.kind == GATE ? s.output : s.input];
        share.parallel_for(token_count_of(s), [&](int which) {
            const int token = input_row(s, which);
            float* out = row(s.output, token) + s.output_offset;
            const float* in = row(s.input, token) + (s.kind == COPY ? s.column : 0);
            if (s.kind == ADD) {
                const float* other = row(s.second_input, token);
                for (int i = 0; i < width; ++i) out[i] = (other[i] + s.factor * in[i]) * s.scale;
            } else if (s.kind == GATE) {
                const float* other = row(s.second_input, token) + s.column;
                if (pass_->widths[s.input] > 1) {
                    std::memcpy(out, other, size_t(width) * 4);
                    k.activate(s.activation, out, in, width);
                } else {  // one gate for all
                    float open = in[0];
                    k.activate(s.activation, &open, nullptr, 1);
                    for (int i = 0; i < width; ++i) out[i] = open * other[i];
                }
            } else if (s.kind == TIME_STEP) {
                for (int i = 0; i < width; ++i) {
                    const float x = in[i] + s.vector[i];
                    out[i] = std::clamp(x > 20.0f ? x : std::log1p(std::exp(x)), s.least, s.most);
                }
            } else if (s.kind == DECAY) {
                for (int i = 0; i < width; ++i) out[i] = std::exp(-std::exp(s.vector[i]) * in[i]);
            } else if (s.kind == MULTIPLY) {
                for (int i = 0; i < width; ++i) out[i] = in[i] * s.vector[i];
            } else if (s.kind == KEEP_TOP) {
                const double mean = sum(in, width) / width;
                double squares = 0;
                for (int i = 0; i < width; ++i) squares += (in[i] - mean) * (in[i] - mean);
                const float threshold = float(mean + s.scale * std::sqrt(squares / width));
                for (int i = 0; i < width; ++i) out[i] = std::max(in[i] - threshold, 0.0f);
            } else if (s.kind == RESCALE) {
                const double own = std::max(mean_square(in, width), double(s.floor));
                const float factor = float(std::sqrt(mean_square(row(s.second_input, token), width) / own));
                for (int i = 0; i < width; ++i) out[i] = in[i] * factor;
            } else {
                if (out != in) std::memcpy(out, in, size_t(width) * 4);
                if (s.kind == ACTIVATE && s.activation == XIELU) xielu(s.activation_numbers, out, width);
                else if (s.kind == ACTIVATE && s.activation == SCALE)
                    for (int i = 0; i < width; ++i) out[i] *= s.activation_numbers[0];
                else if (s.kind == ACTIVATE && s.activation == CLIP)
                    for (int i = 0; i < width; ++i) out[i] = std::clamp(out[i], s.least, s.most);
                else if (s.kind == ACTIVATE) k.activate(s.activation, out, nullptr, width);
            }
        });
    }

    static double sum(const float* x, int count) {
        double total = 0;
        for (int i = 0; i < count; ++i) total += x[i];
        return total;
    }

    static double mean_square(const float* x, int count) {
        double total = 0;
        for (int i = 0; i < count; ++i) total += double(x[i]) * x[i];
        return total / count;
    }

    // Streams of `width` numbers side by side: to each of the base's, all of the input's times factors of the token's own.
    void mix(Share& share, const Step& s) {
        const int size = s.width, streams = pass_->widths[s.input] / size, results = pass_->widths[s.output] / size;
        share.parallel_for(token_count_of(s), [&](int which) {
            const int token = input_row(s, which);
            const float* factors = row(s.second_input, token);
            for (int result = 0; result < results; ++result) {
                float* out = row(s.output, token) + size_t(result) * size;
                std::memcpy(out, row(s.third_input, token) + size_t(result) * size, size_t(size) * 4);
                for (int stream = 0; stream < streams; ++stream) {
                    const float factor = factors[result * streams + stream] + s.gate_offset;
                    const float* in = row(s.input, token) + size_t(stream) * size;
                    for (int i = 0; i < size; ++i) out[i] += factor * in[i];
                }
            }
        });
    }

    // x times itself, or e to the x less one less x, times a learned number, and a part of x. numbers: above 0, below, the part of
    // x, and where the exponent is cut
    static void xielu(const float* numbers, float* x, int count) {
        for (int i = 0; i < count; ++i) {
            const float curved = x[i] > 0.0f ? numbers[0] * x[i] * x[i]
                                             : (std::expm1(std::min(x[i], numbers[3])) - x[i]) * numbers[1];
            x[i] = curved + numbers[2] * x[i];
        }
    }

    // Matmul ------------------------------------------------------------------------------------------------------

    struct Input {
        const float* values;
        size_t stride;
        QuantizedInput packed;
    };

    struct InputNeeds {  // which forms of their input a step's matrices read
        bool packed = false, split = false, plain = false, direct;  // direct: they are read where they are
        InputNeeds(const Matrix* matrices, int count, bool splits, bool direct) : direct(direct) {
            for (int i = 0; i < count; ++i) {
                const Matrix& m = matrices[i];
                (m.kind > BF16 ? packed : splits && m.kind == BF16 && m.columns % BLOCK == 0 ? split : plain) = true;
            }
        }
        bool prepared() const { return packed || split || !direct; }
    };

    // One token's inputs of a step, to a place among those that are prepared.
    void prepare(const Step& s, const InputNeeds& needs, const float* from, int columns, int token, PreparedInputs& into) {
        const int rounding = pass_->activation_rounding;
        float* values = into.values.data() + size_t(token) * columns;
        if (s.norm.kind != NO_NORM) {
            k.norm(s.norm, from, columns, values);
            from = values;
        } else if (needs.plain && !needs.direct) {
            std::memcpy(values, from, size_t(columns) * 4);
        }
        if (needs.split) k.split_bf16(from, columns, split_of(into, token, columns));
        if (needs.packed) {
            const int group = input_group(s);
            const size_t blocks = columns / BLOCK, place = token / group * group * blocks;
            k.quantize(from, columns, rounding, group, into.codes.data() + token * blocks * parts_of(rounding) * k.part_bytes,
                       into.scales.data() + place + token % group, into.sums.data() + 3 * place + token % group,
                       into.refined.data() + token * (blocks + 1));
        }
    }

    static uint16_t* split_of(PreparedInputs& inputs, int token, int columns) {
        return inputs.split.data() + size_t(token / SPLIT_TOKENS) * 2 * SPLIT_TOKENS * columns + token % SPLIT_TOKENS * 2;
    }

    int input_group(const Step& s) const { return token_count_of(s) == 1 ? 1 : TILE; }

    Input input(const Step& s, const InputNeeds& needs, const PreparedInputs& prepared, const float* direct, size_t stride,
                int columns) const {
        return {needs.direct ? direct : prepared.values.data(), needs.direct ? stride : size_t(columns),
                {prepared.codes.data(), prepared.scales.data(), prepared.sums.data(), prepared.refined.data(),
                 pass_->activation_rounding, input_group(s), needs.split ? prepared.split.data() : nullptr}};
    }

    void matmul(Share& share, const Step& s) {
        const int tokens = token_count_of(s), columns = s.matrices[0].columns;
        if (!tokens) return;
        const bool in_place = s.norm.kind == NO_NORM && s.scope == ALL_TOKENS;
        const InputNeeds needs(s.matrices, s.matrix_count, k.split_bf16, in_place);
        const auto prepare_token = [&](int token, PreparedInputs& into) {
            prepare(s, needs, row(s.input, input_row(s, token)), columns, token, into);
        };
        const bool alone = tokens <= SMALL_BATCH;  // each thread prepares for itself, rather than wait for the others
        PreparedInputs& into = alone ? workers_[share.thread()].own : shared_inputs_;
        if (needs.prepared() && !alone)
            share.parallel_for(tokens, [&](int token) { prepare_token(token, into); });
        bool ready = !alone || !needs.prepared();
        const Input in = input(s, needs, into, row(s.input, 0), pass_->widths[s.input], columns);
        int tiles = 0;
        for (int i = 0; i < (s.epilogue == EPILOGUE_GATE ? 1 : s.matrix_count); ++i) tiles += tiles_of(s.matrices[i].rows);
        share.parallel_for(tiles, [&](int tile) {
            for (int token = 0; !ready && token < tokens; ++token) prepare_token(token, into);
            ready = true;
            int matrix = 0, column = 0;
            for (; tile >= tiles_of(s.matrices[matrix].rows); ++matrix) {
                tile -= tiles_of(s.matrices[matrix].rows);
                column += s.matrices[matrix].rows;
            }
            for (int first = 0; first < tokens; first += MATMUL_TOKENS)
                matmul_tile(s, in, matrix, tile, column, first, std::min(MATMUL_TOKENS, tokens - first));
        });
    }

    static int tiles_of(int rows) { return (rows + TILE - 1) / TILE; }

    // One tile of a matrix, or of a gate and what it is multiplied with, for a few tokens from `first` on: out (tokens, TILE).
    // shares: by which each token's products are multiplied before that; may be null
    void product_tile(const Step& s, const Matrix* matrices, const Input& in, int tile, int first, int tokens, float* out,
                      const float* shares = nullptr) {
        const Matrix& m = matrices[0];
        const float* values = in.values + first * in.stride;
        const size_t blocks = size_t(first) * (m.columns / BLOCK);
        const QuantizedInput packed = {in.packed.codes + blocks * parts_of(in.packed.rounding) * k.part_bytes,
                                       in.packed.scales + blocks, in.packed.sums + blocks * 3, in.packed.refined + blocks + first,
                                       in.packed.rounding, in.packed.group,
                                       in.packed.split ? in.packed.split + size_t(first) * 2 * m.columns : nullptr};
        const bool whole = m.rows - tile * TILE >= TILE;
        if (!whole) std::fill_n(out, TILE_FLOATS, 0.0f);
        if (s.epilogue != EPILOGUE_GATE) return k.matmul(m, tile, tokens, values, in.stride, packed, out);
        alignas(64) float gates[TILE_FLOATS];
        if (!whole) std::fill_n(gates, TILE_FLOATS, 0.0f);
        k.matmul(m, tile, tokens, values, in.stride, packed, gates);
        k.matmul(matrices[1], tile, tokens, values, in.stride, packed, out);
        for (int n = 0; shares && n < tokens; ++n)
            for (int i = n * TILE; i < (n + 1) * TILE; ++i) gates[i] *= shares[n], out[i] *= shares[n];
        if (s.gate_limit > 0.0f)
            for (int i = 0; i < tokens * TILE; ++i) {
                gates[i] = std::min(gates[i], s.gate_limit);
                out[i] = std::clamp(out[i], -s.gate_limit, s.gate_limit);
            }
        if (s.gate_offset != 0.0f)
            for (int i = 0; i < tokens * TILE; ++i) out[i] += s.gate_offset;
        k.activate(s.activation, out, gates, tokens * TILE);
    }

    // One tile with a few tokens, and the epilogue.
    void matmul_tile(const Step& s, const Input& in, int matrix, int tile, int column, int first, int tokens) {
        alignas(64) float out[TILE_FLOATS];
        product_tile(s, s.matrices + matrix, in, tile, first, tokens, out);
        const int rows = std::min(TILE, s.matrices[matrix].rows - tile * TILE);
        if (s.scale != 1.0f)
            for (int i = 0; i < tokens * TILE; ++i) out[i] *= s.scale;
        if (s.softcap) k.soft_cap(s.softcap, out, tokens * TILE);
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

    // Experts -----------------------------------------------------------------------------------------------------
    //
    // How many pieces a step has must follow from its tokens alone: a thread that lags behind may read what a later step has
    // written. So there are pieces for as many experts as can be chosen, and those without a token do nothing.

    // Of each token, the softmax of the router's scores, or the sigmoid of each, and 0 for all but the best; of two that are
    // equal, the first is better.
    void route(Share& share, const Step& s) {
        share.parallel_for(token_count_of(s), [&](int which) {
            const int token = input_row(s, which), count = s.expert_count;
            const float* scores = row(s.input, token);
            float* shares = row(s.output, token);
            float most = -INFINITY, total = 0.0f, best = 0.0f;
            for (int e = 0; e < count; ++e) most = scores[e] > most ? scores[e] : most;
            for (int e = 0; !s.sigmoid && e < count; ++e) total += std::exp(scores[e] - most);
            const auto share_of = [&](int e) {
                return s.sigmoid ? 1.0f / (1.0f + std::exp(-scores[e])) : std::exp(scores[e] - most) / total;
            };
            const bool compares_scores = !s.sigmoid && !s.correction;
            float checked = total;
            for (int e = 0; e < count; ++e) {  // what is compared
                shares[e] = compares_scores ? scores[e] : share_of(e) + (s.correction ? s.correction[e] : 0.0f);
                if (!compares_scores) checked += shares[e];
            }
            if (!(std::fabs(checked) < INFINITY)) {  // a score is no number
                std::fill_n(shares, count, NAN);
                return;
            }
            if (s.groups) drop_groups(s, shares, workers_[share.thread()].scores.data());
            std::vector<int32_t>& chosen = workers_[share.thread()].plan.chosen;
            float last = INFINITY;  // what was chosen last, and its expert: the next one comes after it
            int after = -1;
            for (int n = 0; n < s.chosen; ++n) {
                int next = -1;
                for (int e = 0; e < count; ++e)
                    if ((shares[e] < last || (shares[e] == last && e > after)) && (next < 0 || shares[e] > shares[next])) next = e;
                last = shares[next], after = next;
                chosen[n] = next;
            }
            std::fill_n(shares, count, 0.0f);
            for (int n = 0; n < s.chosen; ++n) best += shares[chosen[n]] = share_of(chosen[n]);
            const float divisor = s.normalized ? best + s.floor : 1.0f;
            for (int n = 0; n < s.chosen; ++n) shares[chosen[n]] = shares[chosen[n]] / divisor * s.scale;
        });
    }

    // Minus infinity for the experts of all groups but the best. `worth`: room for a number of each group and expert.
    static void drop_groups(const Step& s, float* preferences, float* worth) {
        const int size = s.expert_count / s.groups;
        float* best = worth + s.groups;
        for (int group = 0; group < s.groups; ++group) {
            std::copy_n(preferences + group * size, size, best);
            std::partial_sort(best, best + s.group_best, best + size, [](float a, float b) { return a > b; });
            worth[group] = 0.0f;
            for (int n = 0; n < s.group_best; ++n) worth[group] += best[n];
        }
        for (int group = 0; group < s.groups; ++group) {
            int better = 0;
            for (int other = 0; other < s.groups; ++other)
                better += worth[other] > worth[group] || (worth[other] == worth[group] && other < group);
            if (better >= s.kept_groups) std::fill_n(preferences + group * size, size, -INFINITY);
        }
    }

    // The experts that a token goes to, by number; if more than fit have a share, those with the largest. How many there are.
    static int chosen_experts(const Step& s, const float* shares, int32_t* chosen) {
        int count = 0;
        for (int e = 0; e < s.expert_count; ++e) {
            if (shares[e] == 0.0f) continue;
            if (count == s.chosen) {
                const auto size = [&](int32_t expert) { return std::isnan(shares[expert]) ? INFINITY : std::fabs(shares[expert]); };
                int32_t* least = std::min_element(chosen, chosen + count, [&](int a, int b) { return size(a) < size(b); });
                if (!(size(e) > size(*least))) continue;
                std::copy(least + 1, chosen + count, least);
                --count;
            }
            chosen[count++] = e;
        }
        return count;
    }

    void plan_experts(const Step& s, int tokens, ExpertPlan& plan) {
        std::fill_n(plan.first.data(), s.expert_count + 1, 0);
        for (int token = 0; token < tokens; ++token) {
            int32_t* chosen = plan.chosen.data() + size_t(token) * s.chosen;
            const int count = chosen_experts(s, row(s.second_input, input_row(s, token)), chosen);
            std::fill(chosen + count, chosen + s.chosen, -1);
            if (count < s.chosen) {  // slots that nobody writes
                float* out = row(s.output, output_row(s, token)) + size_t(count) * s.experts[0].rows;
                std::fill_n(out, size_t(s.chosen - count) * s.experts[0].rows, 0.0f);
            }
            for (int slot = 0; slot < count; ++slot) ++plan.first[chosen[slot] + 1];
        }
        plan.active_count = 0;
        for (int e = 0, place = 0; e < s.expert_count; ++e) {
            const int count = plan.first[e + 1];
            if (count) plan.active[plan.active_count++] = e;
            plan.place[e] = place;
            place += (count + TILE - 1) / TILE * TILE;
            plan.first[e + 1] += plan.first[e];
        }
        for (int entry = 0; entry < tokens * s.chosen; ++entry)  // moves each expert's first entry to the next one's
            if (plan.chosen[entry] >= 0) plan.entries[plan.first[plan.chosen[entry]]++] = entry;
        for (int e = s.expert_count; e > 0; --e) plan.first[e] = plan.first[e - 1];
        plan.first[0] = 0;
    }

    static bool reads_token(const Step& s) { return s.epilogue == EPILOGUE_GATE || s.epilogue == EPILOGUE_ACTIVATE; }

    // The input of a token's slot: what makes neurons reads the token itself, other products that slot's neurons.
    const float* expert_input(const Step& s, int entry) {
        const int slot = reads_token(s) ? 0 : entry % s.chosen;
        return row(s.input, input_row(s, entry / s.chosen)) + size_t(slot) * s.experts[0].columns;
    }

    void expert_matmul(Share& share, const Step& s) {
        const int tokens = token_count_of(s), columns = s.experts[0].columns, rows = s.experts[0].rows;
        if (!tokens) return;
        const bool alone = tokens == 1;  // its slots' inputs lie side by side as they are, and each thread prepares for itself
        const InputNeeds needs(s.experts, s.expert_count * s.matrix_count, k.split_bf16, alone);
        ExpertPlan& plan = alone ? workers_[share.thread()].plan : shared_plan_;
        PreparedInputs& into = alone ? workers_[share.thread()].own : shared_inputs_;
        const int inputs = !alone ? tokens * s.chosen : reads_token(s) ? 1 : s.chosen;
        const auto prepare_slot = [&](int slot) { prepare(s, needs, expert_input(s, slot), columns, slot, into); };
        if (!alone) {
            share.parallel_for(1, [&](int) { plan_experts(s, tokens, plan); });
            share.parallel_for(inputs, [&](int number) {
                if (number >= plan.first[s.expert_count]) return;
                const auto after = std::upper_bound(plan.first.begin(), plan.first.begin() + s.expert_count + 1, number);
                const int expert = int(after - plan.first.begin()) - 1;
                const int place = plan.place[expert] + number - plan.first[expert];
                prepare(s, needs, expert_input(s, plan.entries[number]), columns, place, into);
            });
        }
        bool ready = !alone;
        const Input in = input(s, needs, into, expert_input(s, 0), columns, columns);
        const int tiles = tiles_of(rows);
        share.parallel_for(std::min(s.expert_count, tokens * s.chosen) * tiles, [&](int piece) {
            if (!ready) {
                plan_experts(s, tokens, plan);
                for (int slot = 0; needs.prepared() && slot < inputs; ++slot) prepare_slot(slot);
                ready = true;
            }
            if (piece / tiles >= plan.active_count) return;
            const int expert = plan.active[piece / tiles], tile = piece % tiles, first = plan.first[expert];
            const Matrix* matrices = s.experts + size_t(expert) * s.matrix_count;
            const int end = plan.first[expert + 1], width = std::min(TILE, rows - tile * TILE);
            for (int at = first; at < end; at += MATMUL_TOKENS) {
                alignas(64) float out[TILE_FLOATS];
                const int count = std::min(MATMUL_TOKENS, end - at);
                const int place = !alone ? plan.place[expert] + at - first : inputs == 1 ? 0 : plan.entries[at];
                float shares[MATMUL_TOKENS];
                for (int n = 0; s.shares_inputs && n < count; ++n)
                    shares[n] = row(s.second_input, input_row(s, plan.entries[at + n] / s.chosen))[expert];
                product_tile(s, matrices, in, tile, place, count, out, s.shares_inputs ? shares : nullptr);
                if (s.epilogue == EPILOGUE_ACTIVATE) k.activate(s.activation, out, nullptr, count * TILE);
                for (int n = 0; n < count; ++n) {
                    const int entry = plan.entries[at + n], token = output_row(s, entry / s.chosen);
                    float* to = row(s.output, token) + size_t(entry % s.chosen) * rows + tile * TILE;
                    write_row(out + n * TILE, nullptr, to, width);
                }
            }
        });
    }

    void expert_sum(Share& share, const Step& s) {
        const int width = pass_->widths[s.output];
        share.parallel_for(token_count_of(s), [&](int which) {
            const int token = input_row(s, which);
            const float *products = row(s.input, token), *shares = row(s.second_input, token);
            float* out = row(s.output, token);
            const float* residual = s.epilogue == EPILOGUE_ADD ? row(s.third_input, token) : nullptr;
            std::vector<int32_t>& chosen = workers_[share.thread()].plan.chosen;
            const int count = chosen_experts(s, shares, chosen.data());
            for (int i = 0; i < width; ++i) {
                float total = 0.0f;
                for (int slot = 0; slot < count; ++slot)
                    total += (s.shares_inputs ? 1.0f : shares[chosen[slot]]) * products[size_t(slot) * width + i];
                out[i] = residual ? residual[i] + total : total;
            }
        });
    }

    // Attention ---------------------------------------------------------------------------------------------------

    // Each head of all tokens with the rows of its own part of a matrix, scaled.
    void head_matmul(Share& share, const Step& s) {
        const Matrix& all = s.matrices[0];
        const int rows = all.rows / s.heads, tiles = tiles_of(rows), rest = s.head_size - all.columns;
        share.parallel_for(s.heads * tiles, [&](int piece) {
            alignas(64) float out[TILE_FLOATS];
            const int head = piece / tiles, tile = piece % tiles, count = std::min(TILE, rows - tile * TILE);
            const size_t from = s.query_offset + size_t(s.kv_heads == 1 ? 0 : head) * s.head_size, to = size_t(head) * (rows + rest);
            Matrix own = all;
            own.data += size_t(head) * rows * all.columns * sizeof(float);
            own.rows = rows;
            for (int first = 0; first < pass_->token_count; first += MATMUL_TOKENS) {
                const int tokens = std::min(MATMUL_TOKENS, pass_->token_count - first);
                k.matmul(own, tile, tokens, row(s.input, first) + from, pass_->widths[s.input], {}, out);
                for (int token = first; token < first + tokens; ++token) {
                    float* made = row(s.output, token) + to;
                    for (int i = 0; i < count; ++i) made[tile * TILE + i] = out[(token - first) * TILE + i] * s.scale;
                    if (rest && !tile) std::memcpy(made + rows, row(s.input, token) + from + all.columns, size_t(rest) * 4);
                }
            }
        });
    }

    KvPlane plane(const Feed& feed, const Step& s, int group) const {
        static constexpr int bytes[] = {4, 2, 2, 1};
        const size_t vectors = (s.latent ? 1 : 2) * size_t(PAGE), number = vectors * bytes[pass_->kv_dtype];
        const size_t scales = pass_->kv_dtype == KV_Q8 ? vectors * 4 : 0;
        const size_t offset = number * (s.kv_numbers + size_t(group) * s.head_size) + scales * (s.kv_planes + group);
        return {s.cross_attention ? feed.source_pages : feed.pages, offset, s.head_size, pass_->kv_dtype, s.latent};
    }

    static int value_size(const Step& s) { return s.latent ? s.latent : s.head_size; }

    // Head norms and RoPE of queries and keys; then keys and values are stored in their pages.
    void rope_kv_store(Share& share, const Step& s) {
        for_each_token(share, [&](const Feed& f, int token) {
            for (int group = 0; group < s.kv_heads; ++group) rope_kv_store(s, f, token, group);
        });
    }

    // The same for one token and one KV head, with the queries that belong to it.
    void rope_kv_store(const Step& s, const Feed& f, int token, int group) {
        float *at = row(s.input, token), *key = at + s.key_offset + size_t(group) * s.head_size;
        const int heads = s.heads / s.kv_heads;
        if (s.kind != KV_STORE) {
            norm_and_rope(s.query_norm, token, s, heads, at + s.query_offset + size_t(group) * heads * s.head_size);
            if (s.key_offset != NO_KEYS) norm_and_rope(s.key_norm, token, s, 1, key);
        }
        if (s.kind == ROPE) return;
        const int slot = f.start + f.offset + token - f.first_token;
        k.kv_store(plane(f, s, group), slot, key, at + s.value_offset + size_t(group) * s.head_size);
    }

    void norm_and_rope(const Norm& norm, int token, const Step& s, int heads, float* at) {
        const RopeTable* rope = s.rope == NO_ROPE ? nullptr : &pass_->rope_tables[s.rope];
        for (int head = 0; head < heads; ++head, at += s.head_size) {
            if (norm.kind != NO_NORM) k.norm(norm, at, s.head_size, at);
            if (rope) k.rope(rope->table + size_t(token) * rope->size, rope->size, rope->interleaved, at);
        }
    }

    Query query(const Step& s, const Feed& f, int token, int head) {
        const int fed = f.offset + token - f.first_token, slot = f.start + fed, position = pass_->positions[token];
        Query q{};
        q.vector = row(s.input, token) + s.query_offset + head * s.head_size;
        q.scale = s.scale;
        q.softcap = s.softcap;
        q.slope = s.slopes ? s.slopes[head] : 0.0f;
        if (s.position_length) q.scale *= 1.0f + s.position_beta * std::log1p(float((position + s.position_first) / s.position_length));
        q.sink = s.sinks ? s.sinks[head] : -INFINITY;
        q.position = position;
        q.end_key = s.cross_attention ? f.source_length : s.causal ? slot + 1 : f.start + f.length;
        const int window = s.chunk ? position % s.chunk + 1 : s.window;  // back to where a chunk begins
        if (window && !s.causal && !s.cross_attention) q.end_key = std::min(q.end_key, position + window);
        q.first_key = window && !s.cross_attention ? std::max(0, position + 1 - window) : 0;
        q.window = window;
        if (s.global_tokens == SEEN_BY_ALL && f.global_tokens) {
            q.global_keys = f.global_tokens;
            q.window_first = q.first_key;
            q.window_end = q.end_key;
            q.first_key = std::min(q.first_key, f.first_global);
            q.end_key = std::max(q.end_key, f.end_global);
        }
        if (s.distance_bias) {
            q.max_distance = s.max_distance;
            q.distance_bias = s.distance_bias + size_t(head) * (2 * s.max_distance + 1) + s.max_distance;
        }
        if (s.distance_buckets) {
            q.max_distance = s.max_distance;
            q.distance_buckets = s.distance_buckets + s.max_distance;
            const auto of_head = [&](int buffer, int number) {
                return row(buffer, number) + size_t(head) * (pass_->widths[buffer] / s.heads);
            };
            if (s.query_distances != NO_BUFFER) q.query_distances = of_head(s.query_distances, token);
            if (s.key_distances != NO_BUFFER) {  // all keys of such a row are tokens of this pass
                q.key_distances = of_head(s.key_distances, f.first_token);
                q.key_stride = pass_->widths[s.key_distances];
            }
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

    struct BlockShape {  // the heads of a KV head that are in one block, and how many tokens
        int heads, tokens, per_group;
        explicit BlockShape(const Step& s) {
            const int all = s.heads / s.kv_heads;
            heads = std::min(all, QUERIES);
            tokens = std::max(1, QUERIES / heads);
            per_group = (all + heads - 1) / heads;
        }
    };

    int first_query(const Step& s, const Feed& f) const { return s.scope == ALL_TOKENS ? 0 : f.token_count - f.scored_count; }

    int query_blocks_of(const Step& s, const BlockShape& shape, const Feed& f) const {
        return (f.token_count - first_query(s, f) + shape.tokens - 1) / shape.tokens * s.kv_heads * shape.per_group;
    }

    int query_block_count(const Step& s) const {
        const BlockShape shape(s);
        int count = 0;
        for (int feed = 0; feed < pass_->feed_count; ++feed) count += query_blocks_of(s, shape, pass_->feeds[feed]);
        return count;
    }

    QueryBlock query_block(const Step& s, int number) const {
        const BlockShape shape(s);
        const Feed* f = pass_->feeds;
        for (int count; number >= (count = query_blocks_of(s, shape, *f)); ++f) number -= count;
        const int in_group = number % shape.per_group, group = number / shape.per_group % s.kv_heads;
        const int token = first_query(s, *f) + number / shape.per_group / s.kv_heads * shape.tokens;
        const int per = s.heads / s.kv_heads, head = in_group * shape.heads;
        return {f, group, group * per + head, std::min(shape.heads, per - head), f->first_token + token,
                std::min(shape.tokens, f->token_count - token)};
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

    // Whether any of these queries sees one of a chunk's keys: between their windows and global tokens may be none.
    static bool reaches(const Query* q, int count, int first) {
        if (!q[0].global_keys) return true;
        int end = 0;
        for (int i = 0; i < count; ++i) {
            if (q[i].window_first < first + CHUNK && q[i].window_end > first) return true;
            end = std::max(end, q[i].end_key);
        }
        return std::any_of(q[0].global_keys + std::min(first, end), q[0].global_keys + std::min(first + CHUNK, end),
                           [](uint8_t is_global) { return is_global != 0; });
    }

    // Whether a step computes a token's heads: some compute those of global tokens alone.
    static bool computes(const Step& s, const Feed& f, int token) {
        return s.global_tokens != GLOBAL_ALONE || (f.global_tokens && f.global_tokens[f.offset + token - f.first_token]);
    }

    static bool computes(const Step& s, const QueryBlock& block) {
        for (int token = block.token; token < block.token + block.tokens; ++token)
            if (computes(s, *block.feed, token)) return true;
        return false;
    }

    // How many chunks of keys the longest row of a step has.
    int chunks_of(const Step& s) const {
        int keys = 0;
        for (int i = 0; i < pass_->feed_count; ++i) {
            const Feed& f = pass_->feeds[i];
            keys = std::max(keys, s.cross_attention ? f.source_length : f.start + f.length);
        }
        return (keys + CHUNK - 1) / CHUNK;
    }

    bool splits_keys(int blocks, int chunks) const {
        return blocks <= SPLIT * pool_.size() && chunks > 1 && pool_.size() > 1;
    }

    // Whether an attention step can do the RoPE step before it: then each query block needs no other token's keys of this pass,
    // and threads wait for each other once less.
    bool attention_includes(const Step& rope, const Step& next) const {
        const Pass& p = *pass_;
        if (next.kind != ATTENTION || next.layer != rope.layer || next.cross_attention || next.input != rope.input) return false;
        if (next.scope != ALL_TOKENS && p.scored_count != p.token_count) return false;
        for (int i = 0; i < p.feed_count; ++i)
            if (p.feeds[i].token_count != 1 || p.feeds[i].tree_mask) return false;
        return BlockShape(next).per_group == 1 && !splits_keys(query_block_count(next), chunks_of(next));
    }

    void attention(Share& share, const Step& s, const Step* rope = nullptr) {
        const int count = query_block_count(s), chunks = chunks_of(s);
        if (splits_keys(count, chunks)) return attention_by_chunks(share, s, count, chunks);
        Worker& worker = workers_[share.thread()];
        share.parallel_for(count, [&](int number) {
            const QueryBlock block = query_block(s, number);
            if (rope) rope_kv_store(*rope, *block.feed, block.token, block.group);
            if (!computes(s, block)) return;
            Query q[QUERIES]{};
            AttentionState states[QUERIES], chunk[QUERIES];
            const int queries = this->queries(s, block, q);
            for (int i = 0; i < queries; ++i) {
                states[i] = {-INFINITY, 0.0f, worker.states.data() + size_t(i) * value_size(s)};
                chunk[i] = {-INFINITY, 0.0f, worker.states.data() + size_t(QUERIES + i) * value_size(s)};
            }
            int low, high;
            key_range(q, queries, &low, &high);
            const KvPlane keys = plane(*block.feed, s, block.group);
            for (int first = low; first < high; first += CHUNK) {
                if (!reaches(q, queries, first)) continue;
                k.attention(keys, queries, q, first, chunk, worker.scores.data());
                for (int i = 0; i < queries; ++i) merge_into(states[i], chunk[i], value_size(s));
            }
            write_heads(s, block, queries, states);
        });
    }

    // A few queries and many keys: threads share the chunks of keys, then merge their online softmaxes.
    void attention_by_chunks(Share& share, const Step& s, int count, int chunks) {
        Worker& worker = workers_[share.thread()];
        share.parallel_for(count * chunks, [&](int piece) {
            const int number = piece / chunks, first = piece % chunks * CHUNK;
            const QueryBlock block = query_block(s, number);
            if (!computes(s, block)) return;
            Query q[QUERIES]{};
            const int queries = this->queries(s, block, q);
            int low, high;
            key_range(q, queries, &low, &high);
            if (first < low || first >= high || !reaches(q, queries, first)) return;
            AttentionState chunk[QUERIES];
            chunk_states(number, first / CHUNK, queries, value_size(s), chunk);
            k.attention(plane(*block.feed, s, block.group), queries, q, first, chunk, worker.scores.data());
            for (int i = 0; i < queries; ++i)
                chunk_sums_[state_index(number, first / CHUNK) + i] = {chunk[i].maximum, chunk[i].total};
        });
        share.parallel_for(count, [&](int number) {
            const QueryBlock block = query_block(s, number);
            if (!computes(s, block)) return;
            Query q[QUERIES]{};
            AttentionState states[QUERIES], chunk[QUERIES];
            const int queries = this->queries(s, block, q);
            for (int i = 0; i < queries; ++i) states[i] = {-INFINITY, 0.0f, worker.states.data() + size_t(i) * value_size(s)};
            int low, high;
            key_range(q, queries, &low, &high);
            for (int first = low; first < high; first += CHUNK) {
                if (!reaches(q, queries, first)) continue;
                chunk_states(number, first / CHUNK, queries, value_size(s), chunk);
                for (int i = 0; i < queries; ++i) {
                    const auto& sums = chunk_sums_[state_index(number, first / CHUNK) + i];
                    chunk[i].maximum = sums.first;
                    chunk[i].total = sums.second;
                    merge_into(states[i], chunk[i], value_size(s));
                }
            }
            write_heads(s, block, queries, states);
        });
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
            if (!computes(s, *item.feed, token)) continue;
            float* out = row(s.output, token) + size_t(head) * value_size(s);
            const float sink = s.sinks ? std::exp(s.sinks[head] - states[i].maximum) : 0.0f, total = states[i].total + sink;
            for (int n = 0; n < value_size(s); ++n) out[n] = states[i].values[n] / total;
        }
    }

    // The attention weights of each token: (tokens, heads, keys); the output's width is heads * keys.
    void attention_pattern(Share& share, const Step& s) {
        const int keys = pass_->widths[s.output] / s.heads;
        share.parallel_for(query_block_count(s), [&](int number) {
            const QueryBlock block = query_block(s, number);
            Query q[QUERIES]{};
            float* out[QUERIES];
            const int queries = this->queries(s, block, q);
            int low, high;
            key_range(q, queries, &low, &high);
            if (s.global_tokens == GLOBAL_ALONE) return global_patterns(share, s, block, queries, q, keys);
            for (int i = 0; i < queries; ++i) {
                out[i] = row(s.output, block.token + i / block.heads) + size_t(block.head + i % block.heads) * keys;
                std::fill(out[i] + high, out[i] + keys, 0.0f);
            }
            k.attention_pattern(plane(*block.feed, s, block.group), queries, q, high, out, workers_[share.thread()].scores.data());
        });
    }

    // The same of a block's global tokens alone, each in place of what it has.
    void global_patterns(Share& share, const Step& s, const QueryBlock& block, int queries, const Query* q, int keys) {
        for (int i = 0; i < queries; ++i) {
            const int token = block.token + i / block.heads;
            if (!computes(s, *block.feed, token)) continue;
            float* out = row(s.output, token) + size_t(block.head + i % block.heads) * keys;
            std::fill(out + q[i].end_key, out + keys, 0.0f);
            k.attention_pattern(plane(*block.feed, s, block.group), 1, q + i, q[i].end_key, &out, workers_[share.thread()].scores.data());
        }
    }

    // Heads from a pattern that a watcher changed.
    void weighted_values(Share& share, const Step& s) {
        const int keys = pass_->widths[s.second_input] / s.heads, per = s.heads / s.kv_heads;
        for_each_token(share, [&](const Feed& f, int token) {
            if (!computes(s, f, token)) return;
            const int count = std::min(keys, s.cross_attention ? f.source_length : f.start + f.offset + f.token_count);
            for (int head = 0; head < s.heads; ++head)
                k.weighted_values(plane(f, s, head / per), row(s.second_input, token) + size_t(head) * keys, count,
                                  row(s.output, token) + size_t(head) * value_size(s), workers_[share.thread()].scores.data());
        });
    }

    // Layers that keep a state --------------------------------------------------------------------------------------

    // A piece is some columns of one feed, all its tokens in order; then its last inputs are kept.
    void causal_conv(Share& share, const Step& s) {
        constexpr int COLUMNS = 256;
        const int before = s.kernel_size - 1, blocks = (s.width + COLUMNS - 1) / COLUMNS;
        share.parallel_for(pass_->feed_count * blocks, [&](int piece) {
            const Feed& f = pass_->feeds[piece / blocks];
            const int first = piece % blocks * COLUMNS, count = std::min(COLUMNS, s.width - first);
            float* kept = f.state + s.state_offset + first;
            const auto input_of = [&](int token) {  // those before the feed's first one are negative
                return token < 0 ? kept + size_t(token + before) * s.width : row(s.input, f.first_token + token) + first;
            };
            const float* rows[MAX_KERNEL];
            for (int token = 0; token < f.token_count; ++token) {
                for (int i = 0; i < s.kernel_size; ++i) rows[i] = input_of(token - before + i);
                float* out = row(s.output, f.first_token + token) + first;
                k.causal_conv(rows, s.kernel + first, s.width, s.kernel_bias ? s.kernel_bias + first : nullptr, s.kernel_size,
                              count, out);
                if (s.activation != NO_ACTIVATION) k.activate(s.activation, out, nullptr, count);
            }
            for (int i = 0; i < before; ++i) {
                const float* from = input_of(f.token_count - before + i);
                std::memmove(kept + size_t(i) * s.width, from, size_t(count) * 4);
            }
        });
    }

    StateToken state_token(const Step& s, int token, int head) {
        const float* in = row(s.input, token);
        const size_t shared = size_t(head / (s.heads / s.kv_heads)) * s.key_size, own = size_t(head) * s.head_size;
        const bool wide = pass_->widths[s.second_input] > s.heads;  // each of a key's numbers has a decay of its own
        const float* decay = row(s.second_input, token) + size_t(head) * (wide ? s.key_size : 1);
        return {in + s.query_offset + shared, in + s.key_offset + shared, decay, s.key_size, wide, s.delta,
                row(s.third_input, token)[head], s.scale, in + s.value_offset + own, row(s.output, token) + own};
    }

    // A piece is some columns of one head of one feed; all columns, where norms are measured, and where each feed has one token,
    // whose time is that of reading the state, so that it is read from its begin to its end.
    void recur(Share& share, const Step& s) {
        const bool measured = s.state_norms != NO_BUFFER, single = pass_->token_count == pass_->feed_count;
        const int columns = measured || single ? s.head_size : STATE_COLUMNS, blocks = (s.head_size + columns - 1) / columns;
        float* scratch = workers_[share.thread()].scores.data();
        share.parallel_for(pass_->feed_count * s.heads * blocks, [&](int piece) {
            const Feed& f = pass_->feeds[piece / (s.heads * blocks)];
            const int head = piece / blocks % s.heads, first = piece % blocks * columns;
            const int end = std::min(first + columns, s.head_size), after = f.first_token + f.token_count;
            float* state = f.state + s.state_offset + size_t(head) * s.key_size * s.head_size;
            StateToken tokens[STATE_TOKENS];
            for (int token = f.first_token, count; token < after; token += count) {
                count = measured ? 1 : std::min(STATE_TOKENS, after - token);
                for (int n = 0; n < count; ++n) tokens[n] = state_token(s, token + n, head);
                k.recur(tokens, count, state, s.head_size, first, end, scratch);
                for (int n = 0; s.vector && n < count; ++n)
                    for (int i = first; i < end; ++i) tokens[n].out[i] += s.vector[head] * tokens[n].value[i];
                if (!measured) continue;
                float total = 0.0f;
                for (int i = 0; i < s.key_size * s.head_size; ++i) total += state[i] * state[i];
                row(s.state_norms, token)[head] = std::sqrt(total);
            }
        });
    }

    // From a token back: what it reads of what each token wrote, and what of its query is left for those before.
    void recur_pattern(Share& share, const Step& s) {
        const int keys = pass_->widths[s.output] / s.heads;
        for_each_token(share, [&](const Feed& f, int token) {
            std::vector<float> reading(s.key_size);
            for (int head = 0; head < s.heads; ++head) {
                float* weights = row(s.output, token) + size_t(head) * keys;
                std::fill_n(weights, keys, 0.0f);
                const float* query = state_token(s, token, head).query;
                for (int i = 0; i < s.key_size; ++i) reading[i] = query[i] * s.scale;
                for (int place = token; place >= f.first_token; --place) {
                    const StateToken t = state_token(s, place, head);
                    float found = 0.0f;
                    for (int i = 0; i < s.key_size; ++i) found += reading[i] * t.key[i];
                    found *= t.write;
                    weights[place - f.first_token] = found;
                    for (int i = 0; i < s.key_size; ++i)
                        reading[i] = (reading[i] - (s.delta ? found * t.key[i] : 0.0f)) * t.kept(i);
                }
                if (s.vector) weights[token - f.first_token] += s.vector[head];
            }
        });
    }

    void recur_values(Share& share, const Step& s) {
        const int keys = pass_->widths[s.second_input] / s.heads;
        for_each_token(share, [&](const Feed& f, int token) {
            for (int head = 0; head < s.heads; ++head) {
                const float* weights = row(s.second_input, token) + size_t(head) * keys;
                float* out = row(s.output, token) + size_t(head) * s.head_size;
                std::fill_n(out, s.head_size, 0.0f);
                for (int place = 0; place < f.token_count; ++place) {
                    const float* value = row(s.input, f.first_token + place) + s.value_offset + size_t(head) * s.head_size;
                    for (int i = 0; i < s.head_size; ++i) out[i] += weights[place] * value[i];
                }
            }
        });
    }

    template <class Function> void for_each_token(Share& share, Function function) {
        share.parallel_for(pass_->token_count, [&](int token) {
            int feed = 0;
            while (token >= pass_->feeds[feed].first_token + pass_->feeds[feed].token_count) ++feed;
            function(pass_->feeds[feed], token);
        });
    }

    static constexpr int SPLIT = 4;  // query blocks per thread up to which their keys are split among threads

    const Kernels& k;
    ThreadPool pool_;
    WorkSharing sharing_;
    std::vector<Worker> workers_;
    PreparedInputs shared_inputs_;
    ExpertPlan shared_plan_;
    std::vector<float> chunk_values_;
    std::vector<std::pair<float, float>> chunk_sums_;
    const Pass* pass_ = nullptr;
    std::vector<int32_t> best_;  // of each scored token, where it is asked for
    int best_of_ = 0;            // the buffer of the scores
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

// An engine on a level; null if there is no such level, or no memory. `processors`: which one each thread is pinned to, or null.
PUBLIC void* glass_open(const char* level, int32_t threads, const int32_t* processors) {
    try {
        for (const glass::Kernels* kernels : glass::levels())
            if (!std::strcmp(kernels->name, level)) return new glass::Engine(*kernels, threads, processors);
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

// The same, if a row's keys have pages for all of it.
PUBLIC int32_t glass_decode(void* engine, glass::Pass* pass, int32_t scores, int32_t count, int32_t* best, const glass::Kept* kept,
                            int32_t kept_count) {
    try {
        return static_cast<glass::Engine*>(engine)->decode(*pass, scores, count, best, kept, kept_count);
    } catch (...) {
        return 1;
    }
}

// A matrix with some tokens: 0, or 1 if there is not enough memory.
PUBLIC int32_t glass_matmul(void* engine, const glass::Matrix* matrix, int32_t rounding, int32_t tokens, float* inputs, float* out) {
    try {
        return static_cast<glass::Engine*>(engine)->matmul(*matrix, rounding, tokens, inputs, out);
    } catch (...) {
        return 1;
    }
}

// The gradients of a packed matrix' inputs (tokens, columns) from those of its outputs (tokens, rows).
PUBLIC void glass_input_gradients(void* engine, const glass::Matrix* matrix, int32_t tokens, const float* gradients, float* out) {
    static_cast<glass::Engine*>(engine)->input_gradients(*matrix, tokens, gradients, out);
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

// Thread-safe.
PUBLIC glass::SoftmaxSums glass_softmax_sums(void* engine, const float* scores, int64_t count) {
    return static_cast<glass::Engine*>(engine)->softmax_sums(scores, count);
}

// Guard a mapping against pages that its file loses; see mapping_guard.h. Thread-safe.
PUBLIC int32_t glass_guard_mapping(const void* address, uint64_t size) { return glass::guard_mapping(address, size); }

PUBLIC void glass_unguard_mapping(int32_t number) { glass::unguard_mapping(number); }

PUBLIC int32_t glass_mapping_faults(int32_t number) { return glass::mapping_faults(number); }

// Sizes of the structures, for a caller that mirrors them.
PUBLIC int32_t glass_size(int32_t which) {
    const size_t sizes[] = {sizeof(glass::Matrix), sizeof(glass::Norm), sizeof(glass::Step), sizeof(glass::Feed),
                            sizeof(glass::RopeTable), sizeof(glass::Pass), sizeof(glass::Kept)};
    return which >= 0 && which < 7 ? int32_t(sizes[which]) : -1;
}
