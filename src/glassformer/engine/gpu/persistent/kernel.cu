// One kernel decodes many tokens of one sequence: batch 1, greedy or with given ids, weights in bfloat16 or packed.
//
// The stream. Decoding one token reads every weight once, so the time of a token is the time of that read. Each block
// (one per multiprocessor) owns some rows of every matrix; at load they are packed into one contiguous piece per block,
// in the order of use. One producer thread per block copies that piece into a ring of slots in shared memory with bulk
// copies, across the borders of matrices, layers and tokens: it waits for free slots only, never for activations. Only
// FLIGHT copies are under way at a time while activations are exchanged, because exchanged words wait in the same queues
// of the L2 cache. The pages of the KV cache travel through the same ring.
//
// The unit of the stream is a group: some rows of a matrix, in one or more parts of some columns. A slot holds one part,
// of which each of the eight consumer warps multiplies an eighth of the columns with tensor cores, or one page of keys or
// values. It is copied in two halves, each with its own barrier, for the warps 0-3 and 4-7. Rows are multiplied eight at a
// time (a pass, of one or more groups or a piece of one). Inputs in float32 are split into two bfloat16, the value and its
// rest, and the two products are added.
//
// Tensor cores multiply matrices of 16 and of 8 rows. Weights in bfloat16 are the eight rows; of the sixteen rows of inputs
// the first and the ninth are used. Packed weights are codes of eight bits or less, with a scale for some columns (see
// formats.py). Two passes of them are the sixteen rows. Codes become bfloat16 two at a time by one instruction: as the lowest
// bits of 128, so that they are 128 too large, which is taken off the sums. Of the eight rows of inputs, each scale's columns
// have two to themselves, values and rests, which are zero elsewhere: thus each lane gets one scale's sum of a row, in
// float32.
//
// The exchange. What one block computes and others need travels as words of eight bytes, value and tag, each written by
// one store and polled by those who need it. The tag is the number of the layer, counted on through tokens and launches.
// There is no grid barrier, and one buffer per exchange is enough: a block writes the next value of a word only after it
// has read values that depend, over any number of blocks, on everybody's having read the last one. That requires that
// every block owns at least one group of every matrix (schedule.py) and that all blocks are resident (decoder.py).
//
// The phases of a layer, each the multiplication or attention between two exchanges:
//     residual    -> RMS norm, QKV projection                                    -> qkv          (float32, one per word)
//     qkv         -> head norms, RoPE, attention over some chunks of the cache   -> partial      (float32)
//     partial     -> merge of the chunks, in order                               -> attended     (bfloat16, two per word)
//     attended    -> output projection, + residual                               -> middle       (float32)
//     middle      -> RMS norm, gate and up projections, SiLU                     -> gated        (bfloat16, two per word)
//     gated       -> down projection, + middle                                   -> residual     (float32)
// While the context is one chunk, attention writes `attended` itself; while it is at most DIRECT_CHUNKS, everybody
// merges the chunks while gathering them for the output projection. After the last layer each block scores its rows of
// the head; the best score and id of each block are exchanged, and all blocks choose the same next id.
//
// Attention. The blocks are divided among the KV heads: block b is member b / KV_HEADS of the head b % KV_HEADS. The
// context is cut into chunks of CHUNK_PAGES pages; chunk c belongs to member (c + layer) % MEMBERS, so that short
// contexts load all blocks evenly. Whoever has the chunk of the current token also adds its key and value and stores
// them in the cache.
//
// Waiting. Every wait ends: by success, or because this block or another gave up. Who has waited for longer than
// `patience` clocks writes an error code that every waiting block looks at now and then. A block that gave up runs on
// with wrong numbers, without waiting, to the end of the token, where all of its threads leave together.
//
// All sums are taken in an order that depends on the position alone: results are equal bit for bit, watched or not.

#include "device.h"

constexpr int WARPS = 8;                     // consumers; one more warp produces
constexpr int THREADS = 32 * WARPS;
constexpr int PAGE = 64;                     // tokens in a page of the KV cache
constexpr int PAGE_BYTES = PAGE * HEAD_SIZE * 2;
constexpr int QUERIES = HEADS / KV_HEADS;    // query heads of a KV head
constexpr int QUERY_VALUES = QUERIES * HEAD_SIZE;
constexpr int ATTENDED = HEADS * HEAD_SIZE;
constexpr int KV_VALUES = KV_HEADS * HEAD_SIZE;
constexpr int QKV_ROWS = ATTENDED + 2 * KV_VALUES;
constexpr int SLICE = QUERY_VALUES / MERGERS;  // values that one member merges
static_assert(DIRECT_CHUNKS <= 4, "gather_chunks merges two, three or four chunks");
constexpr float LOWEST = -1e30f;
constexpr int NO_ID = -1;  // the scores are no numbers
#define INFINITE bits_float(0x7f800000u)

struct __align__(8) Word { u32 value, tag; };


struct Launch;
struct Shared;

struct Block {
    const Launch &launch;
    Shared &shared;
    int index, thread, warp, lane;
};

constexpr int TILE_ROWS = 8;                   // most rows of a pass
constexpr int ROUND_ROWS = 64;                 // rows whose products are summed over the warps at a time

// How weights are stored; formats.py.
enum Format {
    BFLOAT16, BITS_8, BITS_4, BITS_4_AND_MINIMUMS, K_BITS_4_AND_MINIMUMS, K_BITS_6, K_BITS_6_AND_MINIMUMS
};

template <int NUMBER> struct Codes {
    static constexpr bool PACKED = NUMBER != BFLOAT16;
    static constexpr bool K = NUMBER >= K_BITS_4_AND_MINIMUMS;  // scales are bytes, times the float16 of 256 columns
    static constexpr bool MINIMUMS =
        NUMBER == BITS_4_AND_MINIMUMS || NUMBER == K_BITS_4_AND_MINIMUMS || NUMBER == K_BITS_6_AND_MINIMUMS;
    static constexpr int BITS = NUMBER == BFLOAT16 ? 16 : NUMBER == BITS_8 ? 8 : NUMBER >= K_BITS_6 ? 6 : 4;
    static constexpr int ZERO = BITS == 8 ? 128 : BITS == 6 ? 32 : NUMBER == BITS_4 ? 8 : 0;  // the code of zero
    static constexpr int SCALE_COLUMNS = BITS == 6 ? 16 : 32;
    static constexpr int WORDS = NUMBER == BITS_4_AND_MINIMUMS || NUMBER == K_BITS_6_AND_MINIMUMS ? 2 : 1;  // of scales
    static constexpr int CELL = PACKED ? 64 : 32;              // columns that four lanes read at once
    static constexpr int CELL_BYTES = BITS >= 8 ? 64 : 32;     // of a row, without upper bits
    static constexpr int PASSES_AT_ONCE = PACKED ? 2 : 4;      // at most; packed ones are many instructions
};

// What a block multiplies of one matrix. A group is stored as (PARTS, 2 halves), and half a part as (cells, ROWS, bytes) of
// the codes, then of their upper bits, and of the scales. BUNDLE groups stay together.
template <int GROUP_COUNT, int GROUP_ROWS, int PADDED_COLUMNS, int GROUPS_TOGETHER, int FIRST_TURN, int PART_COUNT, int FORMAT>
struct Matrix : Codes<FORMAT> {
    using Code = Codes<FORMAT>;
    static constexpr int ROWS = GROUP_ROWS, COLUMNS = PADDED_COLUMNS, BUNDLE = GROUPS_TOGETHER, TURN = FIRST_TURN;
    static constexpr int BUNDLES = GROUP_COUNT / BUNDLE, EACH = BUNDLES / BLOCKS, REST = BUNDLES % BLOCKS;
    static constexpr int MOST = (EACH + (REST > 0)) * BUNDLE;               // groups of a block
    static constexpr int PARTS = PART_COUNT, PART_COLUMNS = COLUMNS / PARTS;
    static constexpr int CELLS = PART_COLUMNS / WARPS / Code::CELL;         // of one warp, in a part

    static constexpr int TILE_GROUPS = ROWS < TILE_ROWS && PARTS == 1 ? TILE_ROWS / ROWS : 1;
    static constexpr int PASS_GROUPS = least(TILE_GROUPS, greatest(SLOTS / 3, 1));
    static constexpr int PASS_ROWS = least(TILE_ROWS, PASS_GROUPS * ROWS);
    static constexpr int ROUND_GROUPS = ROUND_ROWS / ROWS;
    // Units of a round: groups that make a pass, or one group of several passes. As many at once as leave the ring room
    // for others, as even as they go.
    static constexpr int UNIT_PASSES = greatest(ROWS / TILE_ROWS, 1);
    static constexpr int UNITS = (least(MOST, ROUND_GROUPS) + PASS_GROUPS - 1) / PASS_GROUPS;
    static constexpr int UNITS_AT_ONCE =
        PARTS > 1 ? 1 : greatest(least(Code::PASSES_AT_ONCE / UNIT_PASSES, SLOTS / 3 / PASS_GROUPS), 1);
    static constexpr int BATCHES = (UNITS + UNITS_AT_ONCE - 1) / UNITS_AT_ONCE;
    static constexpr int BATCH_UNITS = (UNITS + BATCHES - 1) / BATCHES;
    static constexpr int BATCH = BATCH_UNITS * UNIT_PASSES, BATCH_GROUPS = BATCH_UNITS * PASS_GROUPS;

    static constexpr int HALF_CELLS = PART_COLUMNS / 2 / Code::CELL;
    static constexpr int UPPER_AT = HALF_CELLS * ROWS * Code::CELL_BYTES;
    static constexpr int SCALES_AT = UPPER_AT + (Code::BITS == 6 ? HALF_CELLS * ROWS * 16 : 0);
    static constexpr int OUTER_AT = SCALES_AT + (Code::PACKED ? HALF_CELLS * ROWS * 4 * Code::WORDS : 0);
    static constexpr int HALF_BYTES = (OUTER_AT + (Code::K ? HALF_CELLS / 4 * ROWS * 4 : 0) + 15) / 16 * 16;

    static constexpr int WARP_COLUMNS = PART_COLUMNS / WARPS;
    // The column of one of a warp's columns in all parts, COLUMNS / WARPS of them.
    static DEVICE int column(int warp, int at) {
        return at / WARP_COLUMNS * PART_COLUMNS + warp * WARP_COLUMNS + at % WARP_COLUMNS;
    }
    // Where in its half of a slot a lane finds what it needs of a row, in one of the cells of its warp.
    static DEVICE int cell_row(const Block &block, int cell, int row) {
        return (block.warp % (WARPS / 2) * CELLS + cell) * ROWS + row;
    }
    static DEVICE int codes_at(const Block &block, int cell, int row) {
        return cell_row(block, cell, row) * Code::CELL_BYTES + block.lane % 4 * (Code::CELL_BYTES / 4);
    }
    static DEVICE int upper_bits_at(const Block &block, int cell, int row) {
        return UPPER_AT + cell_row(block, cell, row) * 16 + block.lane % 4 * 4;
    }
    static DEVICE int scales_at(const Block &block, int cell, int row) {
        return SCALES_AT + cell_row(block, cell, row) * 4 * Code::WORDS;
    }
    static DEVICE int outer_scales_at(const Block &block, int cell, int row) {
        return OUTER_AT + ((block.warp % (WARPS / 2) * CELLS + cell) / 4 * ROWS + row) * 4;
    }
};
using Qkv = Matrix<QKV_GROUPS, QKV_GROUP_ROWS, QKV_COLUMNS, 1, QKV_TURN, QKV_PARTS, QKV_FORMAT>;
using Output = Matrix<OUTPUT_GROUPS, OUTPUT_GROUP_ROWS, OUTPUT_COLUMNS, 1, OUTPUT_TURN, OUTPUT_PARTS, OUTPUT_FORMAT>;
using GateUp = Matrix<GATE_UP_GROUPS, GATE_UP_GROUP_ROWS, GATE_UP_COLUMNS, GATE_UP_BUNDLE, GATE_UP_TURN, GATE_UP_PARTS,
                      GATE_UP_FORMAT>;
using Down = Matrix<DOWN_GROUPS, DOWN_GROUP_ROWS, DOWN_COLUMNS, 1, DOWN_TURN, DOWN_PARTS, DOWN_FORMAT>;
using Head = Matrix<HEAD_GROUPS, HEAD_GROUP_ROWS, HEAD_COLUMNS, 1, HEAD_TURN, HEAD_PARTS, HEAD_FORMAT>;

constexpr int SLOT_BYTES = 2 * greatest(greatest(greatest(Qkv::HALF_BYTES, Output::HALF_BYTES), PAGE_BYTES / 2),
                                        greatest(greatest(GateUp::HALF_BYTES, Down::HALF_BYTES), Head::HALF_BYTES));
constexpr int NORMED = greatest(Qkv::COLUMNS, greatest(GateUp::COLUMNS, Head::COLUMNS));
constexpr int SCRATCH = greatest(2 * ROUND_ROWS * WARPS, WARPS * QUERY_VALUES);

// Words of each exchange, one after the other in one allocation.
constexpr int PARTIAL_WORDS = HEAD_SIZE + 2;  // of a query head: values, maximum, sum
constexpr int RESIDUAL_AT = 0;
constexpr int MIDDLE_AT = RESIDUAL_AT + HIDDEN;
constexpr int QKV_AT = MIDDLE_AT + HIDDEN;
constexpr int ATTENDED_AT = QKV_AT + QKV_ROWS;
constexpr int GATED_AT = ATTENDED_AT + ATTENDED / 2;
constexpr int BEST_AT = GATED_AT + INNER / 2;
constexpr int PARTIAL_AT = BEST_AT + 2 * BLOCKS;

struct Launch {                 // mirrored in kernel.py
    const char *stream;         // (BLOCKS, stream_stride) bytes
    u64 stream_stride;
    const void *embedding;      // (VOCABULARY, HIDDEN) in bfloat16; or codes, with the next three: see packed_matmul.py
    const u32 *embedding_scales, *embedding_outer_scales;
    const unsigned char *embedding_high_bits;
    const float *norms;         // (2 * LAYERS + 1, HIDDEN): before attention and before the MLP of each layer; the last
    const float *head_norms;    // (LAYERS, 2, HEAD_SIZE): of queries and of keys
    const float *qkv_bias;      // (LAYERS, QKV_ROWS)
    const float *rotation;      // (positions, 2, HEAD_SIZE / 2): cosines, sines
    u16 *pool;                  // (pages, LAYERS, 2, KV_HEADS, PAGE, HEAD_SIZE)
    const int *page_table;      // (pages of this sequence)
    Word *exchange;
    const int *given_ids;       // ids of the first `given` steps; later ones are chosen
    const int *stop_ids;
    int *chosen_ids;            // (steps); NO_ID ends them where scores are no numbers
    float *scores;              // (steps - scores_from, VOCABULARY), or null
    float *residuals;           // (steps, LAYERS, 2, HIDDEN): after attention and after the MLP, or null
    int *status;                // error, steps done, block that gave up
    long long patience;         // clocks
    int start;                  // tokens in the cache
    int steps, given, stops, scores_from;
    u32 tag;                    // the last one used
    int absent_block;           // leaves at once, so that the others time out: for tests; -1: none
};

// The input of a matrix, as tensor cores take it ----------------------------------------------------------------------------

template <int COLUMNS> struct SplitInput { uint2 pairs[COLUMNS / 2]; };  // values and their rests
template <int COLUMNS> struct PlainInput { uint4 eights[COLUMNS / 8]; };  // pairs in the order 0, 2, 1, 3

struct Shared {
    char ring[SLOTS][SLOT_BYTES];
    float residual[HIDDEN];
    SplitInput<NORMED> normed;          // residual * norm weight; 1 / RMS is applied to the products
    PlainInput<Output::COLUMNS> attended;
    PlainInput<Down::COLUMNS> gated;
    float scratch[SCRATCH];             // products of (round % 2, row, warp); in attention, values of (warp, query head)
    float query[QUERY_VALUES];
    u16 key[HEAD_SIZE], value[HEAD_SIZE];  // of the current token
    float maximum[WARPS][QUERIES], sum[WARPS][QUERIES];
    float merged[MEMBERS][SLICE + 2];
    float squares[WARPS];
    float best_score[WARPS], chosen_score[WARPS];
    int best_id[WARPS], chosen_id[WARPS];
    int more;                           // tokens follow
    volatile int halted;                // this block gave up, or is done
    volatile int exchanging;            // the consumers wait for words, or are about to
    u64 full[SLOTS][2], empty[SLOTS], token_begun;
};

static_assert(sizeof(Shared) <= SHARED_BYTES, "schedule.py counts less shared memory");

// Primitives ---------------------------------------------------------------------------------------------------------------

#ifndef SIMULATED
DEVICE Shared &shared_memory() {
    extern __shared__ __align__(128) char memory[];
    return *reinterpret_cast<Shared *>(memory);
}
DEVICE bool barrier_is_past(u64 *barrier, u32 parity) {  // at this moment
    u32 past;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(past) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return past;
}
DEVICE void bulk_copy(void *target, const void *source, u32 bytes, u64 *barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(target)), "l"(source), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
}
DEVICE void put(Word *word, u32 value, u32 tag) {
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(word), "r"(value), "r"(tag) : "memory");
}
DEVICE uint4 get_two(const Word *words) {
    uint4 r;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(words) : "memory");
    return r;
}
// sums (16, 8) += a (16, 16) * b (8, 16) transposed; lane l has of a the rows l / 4 and l / 4 + 8, of b the row l / 4, of the
// sums the rows l / 4 and l / 4 + 8 and the columns l % 4 * 2 and the next.
DEVICE void multiply_tiles(float (&sums)[4], uint4 a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
DEVICE float power_of_two(float exponent) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}
DEVICE float quotient(float a, float b) { return __fdividef(a, b); }
DEVICE u32 masked_or(u32 bits, u32 mask, u32 others) {  // (bits & mask) | others, which the compiler makes two of
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(bits), "r"(mask), "r"(others));
    return result;
}
#endif


DEVICE float warp_sum(float value) {
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) value += from_lane_xor(value, mask);
    return value;
}

// Keys and values are bfloat16 or float16.
DEVICE void unpack(uint4 pairs, float *values) {
    u32 words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = CACHE_FLOAT16 ? float16_float((u16)words[i]) : low(words[i]);
        values[2 * i + 1] = CACHE_FLOAT16 ? float16_float((u16)(words[i] >> 16)) : high(words[i]);
    }
}
DEVICE u32 cache_pair(float low, float high) {
    return CACHE_FLOAT16 ? float16_pair(low, high) : bfloat16_pair(low, high);
}

DEVICE float dot8(uint4 pairs, const float *x, float sum) {
    float w[8];
    unpack(pairs, w);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(w[i], x[i], sum);
    return sum;
}

// Waiting --------------------------------------------------------------------------------------------------------------

struct Patience {  // of one wait
    long long since = 0;
    u32 tries = 0;
};

// Whether a wait has to end without what it waits for; looks closer at every `often`th try.
DEVICE bool gave_up(const Block &block, Patience &patience, u32 often = 64) {
    if (++patience.tries % often) return false;
    if (block.shared.halted) return true;
    long long time = now();
    if (!patience.since) patience.since = time;
    bool others_gave_up = load_status(block.launch.status) != NONE;
    if (!others_gave_up && time - patience.since <= block.launch.patience) return false;
    if (claim_status(block.launch.status, TIMED_OUT)) block.launch.status[2] = block.index;
    block.shared.halted = 1;
    return true;
}

DEVICE bool wait_for(const Block &block, u64 *barrier, u32 parity) {
    Patience patience;
    while (!barrier_passed(barrier, parity))
        if (gave_up(block, patience, 16)) return false;
    return true;
}

struct Share { int first, count; };  // groups

template <class M> DEVICE Share share_of(int block, int layer) {
    int turned = (block + layer * LAYER_TURN + M::TURN) % BLOCKS;
    int more = turned < M::REST;
    return {(turned * M::EACH + (more ? turned : M::REST)) * M::BUNDLE, (M::EACH + more) * M::BUNDLE};
}

struct AttentionShare {
    int head, member;
    int chunk;          // the first of this member; the next are MEMBERS apart
    int chunks;         // of the context
    bool active;        // this member has a chunk
    bool current;       // and it has the current token's

    DEVICE AttentionShare(int block, int layer, int position) {
        head = block % KV_HEADS, member = block / KV_HEADS;
        chunk = (member + LAYERS * MEMBERS - layer) % MEMBERS;
        chunks = position / (PAGE * CHUNK_PAGES) + 1;
        active = member < MEMBERS && chunk < chunks;
        current = active && (chunks - 1) % MEMBERS == chunk;
    }
    DEVICE int partials() const { return chunks < MEMBERS ? chunks : MEMBERS; }
    DEVICE bool merged_by_all() const { return partials() > 1 && partials() <= DIRECT_CHUNKS; }
    DEVICE bool merged_by_members() const { return partials() > 1 && partials() > DIRECT_CHUNKS; }
    // Calls visit(page) for this member's pages that hold tokens before `position`.
    template <class Visit> DEVICE void each_page(int position, Visit visit) const {
        if (!active) return;
        int pages = (position + PAGE - 1) / PAGE;
        for (int c = chunk; c < chunks; c += MEMBERS)
            for (int page = c * CHUNK_PAGES; page < (c + 1) * CHUNK_PAGES && page < pages; page++) visit(page);
    }
};

DEVICE u64 page_offset(const Launch &launch, int page, int layer, int kind, int head) {
    u64 number = launch.page_table[page];
    return (((number * LAYERS + layer) * 2 + kind) * KV_HEADS + head) * (u64)(PAGE * HEAD_SIZE);
}

// The producer -------------------------------------------------------------------------------------------------------------

struct Producer {
    const Block &block;
    u64 policy;
    int slot = 0, landing = 0;          // landing: the oldest half under way
    u32 parity = 1, landing_parity = 0;
    int under_way = 0, most_under_way = FLIGHT;
    bool stopped = false;

    DEVICE void await_oldest_copy() {
        while (!barrier_passed(&block.shared.full[landing / 2][landing % 2], landing_parity)) {}  // it needs nobody else
        if (++landing == 2 * SLOTS) landing = 0, landing_parity ^= 1;
        under_way--;
    }

    // Whether fewer slots than that wait for the consumers.
    DEVICE bool fewer_filled_than(int slots) {
        int at = slot >= slots ? slot - slots : slot - slots + SLOTS;
        return barrier_is_past(&block.shared.empty[at], at < slot ? parity ^ 1 : parity);
    }

    // Let exchanged words pass first, as long as there are weights for the next multiplication.
    DEVICE void pause_for_exchange() {
        Patience patience;
        while (block.shared.exchanging && !fewer_filled_than(PAUSE_SLOTS) && !gave_up(block, patience)) {}
    }

    // Copy one slot's content in two halves.
    DEVICE void send(const char *source, int half_bytes) {
        Shared &shared = block.shared;
        if (stopped) return;
        stopped = !wait_for(block, &shared.empty[slot], parity);
        if (stopped) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            while (under_way >= most_under_way) await_oldest_copy();
            if (PAUSE_SLOTS) pause_for_exchange();
            barrier_expect(&shared.full[slot][half], half_bytes);
            int at = half * half_bytes;
            bulk_copy(shared.ring[slot] + at, source + at, half_bytes, &shared.full[slot][half], policy);
            under_way++;
        }
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }

    template <class M> DEVICE void send_matrix(const char *&source, int layer) {
        Share share = share_of<M>(block.index, layer);
        for (int i = 0; i < share.count * M::PARTS; i++, source += 2 * M::HALF_BYTES) send(source, M::HALF_BYTES);
    }

    DEVICE void send_pages(int layer, int position) {
        AttentionShare share(block.index, layer, position);
        share.each_page(position, [&](int page) {
            for (int kind = 0; kind < 2; kind++) {
                u64 offset = page_offset(block.launch, page, layer, kind, share.head);
                send((const char *)(block.launch.pool + offset), PAGE_BYTES / 2);
            }
        });
    }

    // The pages have the keys of the last token once the block has begun this one.
    DEVICE void await_token(int step) {
        if (step > 0 && !stopped) stopped = !wait_for(block, &block.shared.token_begun, (step - 1) & 1);
        fence_for_copies();
    }

    DEVICE void run() {
        for (int step = 0; step < block.launch.steps && !stopped; step++) {
            const char *source = block.launch.stream + block.launch.stream_stride * block.index;
            for (int layer = 0; layer < LAYERS; layer++) {
                send_matrix<Qkv>(source, layer);
                if (layer == 0) await_token(step);
                send_pages(layer, block.launch.start + step);
                send_matrix<Output>(source, layer);
                send_matrix<GateUp>(source, layer);
                send_matrix<Down>(source, layer);
            }
            most_under_way = HEAD_FLIGHT;  // nothing is exchanged meanwhile
            send_matrix<Head>(source, LAYERS);
            most_under_way = FLIGHT;
        }
        while (under_way) await_oldest_copy();  // none may land after the block has ended
    }
};

// The consumers ------------------------------------------------------------------------------------------------------------

// What a lane holds of the input of a matrix: `STEPS` of them make the columns that a warp multiplies of a part.
template <class M, class Input, bool PACKED = M::PACKED> struct Fragment;

// Where a lane finds its row of a pass: the half of a slot, and the row in it.
struct PassRow { const char *half; int row; };

// Of bfloat16: eight columns, as the inputs of two multiplications of tiles, of which the first and the ninth row are used;
// only the lanes 0-3 have columns. Of a split input the two have four columns each, the values in the first row and the
// rests in the ninth. A plain one is the same for both: the first row has the first four columns, the ninth the others,
// and of each product the other half is not used.
template <class M, class Part> struct BfloatFragment {
    static constexpr int STEPS = M::CELLS, STEP_COLUMNS = M::CELL;
    static constexpr int CHAINS = M::BATCH > 1 ? 1 : 2;  // sums that do not wait for each other
    struct Sums { float tiles[CHAINS][2][4]; };

    static DEVICE void multiply(const Part &x, int step, const Block &block, const PassRow (&rows)[M::BATCH], Sums (&sums)[M::BATCH]) {
#pragma unroll
        for (int b = 0; b < M::BATCH; b++) {
            uint4 w = *(const uint4 *)(rows[b].half + M::codes_at(block, step, rows[b].row));
            multiply_tiles(sums[b].tiles[step % CHAINS][0], x.first, w.x, w.y);
            multiply_tiles(sums[b].tiles[step % CHAINS][1], x.second, w.z, w.w);
        }
    }
    // put(row, this warp's part of its product) for the rows of a pass: the lanes 0-3 have two each.
    template <class Put> static DEVICE void put_products(const Sums &sums, const Block &block, Put put) {
        if (2 * block.lane >= TILE_ROWS) return;
        float2 product = {0, 0};
#pragma unroll
        for (int c = 0; c < CHAINS; c++) {
            product.x += Part::sum(sums.tiles[c][0], sums.tiles[c][1], 0);
            product.y += Part::sum(sums.tiles[c][0], sums.tiles[c][1], 1);
        }
        put(2 * block.lane, product.x), put(2 * block.lane + 1, product.y);
    }
};
template <class M, int COLUMNS> struct Fragment<M, SplitInput<COLUMNS>, false> : BfloatFragment<M, Fragment<M, SplitInput<COLUMNS>>> {
    uint4 first = {}, second = {};
    DEVICE Fragment() {}
    DEVICE Fragment(const SplitInput<COLUMNS> &input, int column, int, int lane) {
        if (lane >= 4) return;
        const uint4 *source = (const uint4 *)(input.pairs + column / 2) + 2 * lane;
        first = source[0], second = source[1];
    }
    static DEVICE float sum(const float *of_first, const float *of_second, int i) {
        return (of_first[i] + of_first[i + 2]) + (of_second[i] + of_second[i + 2]);
    }
};
template <class M, int COLUMNS> struct Fragment<M, PlainInput<COLUMNS>, false> : BfloatFragment<M, Fragment<M, PlainInput<COLUMNS>>> {
    union { uint4 first, second; };
    DEVICE Fragment() : first{} {}
    DEVICE Fragment(const PlainInput<COLUMNS> &input, int column, int, int lane) : first{} {
        if (lane < 4) first = input.eights[column / 8 + lane];
    }
    static DEVICE float sum(const float *of_first, const float *of_second, int i) { return of_first[i] + of_second[i + 2]; }
};

// Four columns of an input as two pairs: the values, or the rests.
template <int COLUMNS> DEVICE uint2 load_pairs(const SplitInput<COLUMNS> &input, int column, bool rests) {
    uint4 pairs = *(const uint4 *)(input.pairs + column / 2);
    return rests ? uint2{pairs.y, pairs.w} : uint2{pairs.x, pairs.z};
}
template <int COLUMNS> DEVICE uint2 load_pairs(const PlainInput<COLUMNS> &input, int column, bool rests) {
    const u32 *pairs = (const u32 *)(input.eights + column / 8) + column % 8 / 4;
    return rests ? uint2{0, 0} : uint2{pairs[0], pairs[2]};
}

// The sixteen codes of a cell that a lane has of one row: of each sixteen columns, four.
template <class M> struct CellCodes {
    uint4 words = {};
    u32 upper_bits = 0;

    DEVICE CellCodes() {}
    DEVICE CellCodes(const Block &block, int cell, const PassRow &row) {
        const char *source = row.half + M::codes_at(block, cell, row.row);
        if (M::BITS == 8) {
            words = *(const uint4 *)source;
        } else {
            uint2 two = *(const uint2 *)source;
            words.x = two.x, words.y = two.y;
        }
        if (M::BITS == 6) upper_bits = *(const u32 *)(row.half + M::upper_bits_at(block, cell, row.row));
    }

    // A pair (0 or 1) of the `sixteen`th columns, each 128 too large. Those of eight bits are the sum of two such terms.
    DEVICE u32 pair(int sixteen, int pair, int term) const {
        constexpr u32 OF_128 = 0x43004300;
        if (M::BITS == 8) {
            u32 word = sixteen == 0 ? words.x : sixteen == 1 ? words.y : sixteen == 2 ? words.z : words.w;
            return masked_or(word >> 8 * pair, term ? 0x00800080 : 0x007f007f, OF_128);
        }
        int number = sixteen % 2 * 2 + pair;
        u32 codes = masked_or((sixteen < 2 ? words.x : words.y) >> 4 * number, 0x000f000f, OF_128);
        if (M::BITS == 4) return codes;
        int shift = sixteen / 2 * 8 + number * 2 - 4;
        return masked_or(shift < 0 ? upper_bits << -shift : upper_bits >> shift, 0x00300030, codes);
    }
};

// Of packed weights: the lanes 8 i to 8 i + 3 have the values of the i-th of four scales' columns, the next four the rests.
template <class M, class Input> struct Fragment<M, Input, true> {
    static constexpr int SIXTEENS = M::SCALE_COLUMNS / 16, STEP_COLUMNS = 4 * M::SCALE_COLUMNS;
    static constexpr int STEP_CELLS = STEP_COLUMNS / M::CELL, STEPS = (M::CELLS + STEP_CELLS - 1) / STEP_CELLS;
    static constexpr int TERMS = M::BITS == 8 ? 2 : 1;         // of a code
    static constexpr int OFFSET = 128 * TERMS + M::ZERO;       // what the sum of a code's terms is too large by
    uint2 pairs[SIXTEENS];
    float offset;                                              // of a row's products: -OFFSET times the sum of the inputs
    struct Sums { float row; };

    DEVICE Fragment() {}
    DEVICE Fragment(const Input &input, int column, int step, int lane) {
        int at = lane / 8 * M::SCALE_COLUMNS;
        bool inside = M::CELLS % STEP_CELLS == 0 || step * STEP_COLUMNS + at < M::CELLS * M::CELL;
        float sums[4] = {};
        u32 codes = bfloat16_pair(-OFFSET, -OFFSET);
#pragma unroll
        for (int i = 0; i < SIXTEENS; i++) {
            pairs[i] = load_pairs(input, column + (inside ? at : 0) + 16 * i + lane % 4 * 4, lane & 4);
            if (!inside) pairs[i] = {0, 0};
            multiply_tiles(sums, {codes, codes, codes, codes}, pairs[i].x, pairs[i].y);
        }
        offset = sums[0] + sums[1];
    }

    // The scale of a row's columns, of which those of this lane's sums are the `number`th of a cell; and the minimum.
    static DEVICE float2 scales(const Block &block, int cell, int number, const PassRow &row) {
        const char *words = row.half + M::scales_at(block, cell, row.row);
        u32 scales = *(const u32 *)words, minimums = M::WORDS == 2 ? *(const u32 *)(words + 4) : 0;
        if (!M::K) return {float16_float((u16)(scales >> 16 * number)), float16_float((u16)(minimums >> 16 * number))};
        u32 outer = *(const u32 *)(row.half + M::outer_scales_at(block, cell, row.row));
        float scale = float16_float((u16)outer), minimum = M::MINIMUMS ? float16_float((u16)(outer >> 16)) : 0.f;
        if (M::BITS == 4) return {scale * (float)(scales >> 16 * number & 255), minimum * (float)(scales >> 16 * number + 8 & 255)};
        return {scale * (float)(signed char)(scales >> 8 * number), minimum * (float)(minimums >> number / 2 * 16 & 255)};
    }

    static DEVICE void multiply(const Fragment &x, int step, const Block &block, const PassRow (&rows)[M::BATCH],
                                Sums (&sums)[M::BATCH]) {
        constexpr int TILES = (M::BATCH + 1) / 2, CHAINS = 2;  // sums that do not wait for each other
        float tiles[TILES][CHAINS][4];
#pragma unroll
        for (int i = 0; i < TILES * CHAINS * 4; i++) tiles[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
        for (int of_step = 0; of_step < least(STEP_CELLS, M::CELLS); of_step++) {
            int cell = step * STEP_CELLS + of_step;
            if (M::CELLS % STEP_CELLS && cell >= M::CELLS) break;
            CellCodes<M> codes[2 * TILES];
#pragma unroll
            for (int b = 0; b < M::BATCH; b++) codes[b] = CellCodes<M>(block, cell, rows[b]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bool mine = block.lane / 8 == of_step * (4 / SIXTEENS) + i / SIXTEENS;
                uint2 inputs = x.pairs[i % SIXTEENS];
                if (!mine) inputs = {0, 0};
#pragma unroll
                for (int t = 0; t < TILES; t++)
#pragma unroll
                    for (int term = 0; term < TERMS; term++) {
                        const CellCodes<M> &first = codes[2 * t], &second = codes[2 * t + 1];
                        bool both = 2 * t + 1 < M::BATCH;
                        uint4 a = {first.pair(i, 0, term), both ? second.pair(i, 0, term) : 0,
                                   first.pair(i, 1, term), both ? second.pair(i, 1, term) : 0};
                        multiply_tiles(tiles[t][(i + term) % CHAINS], a, inputs.x, inputs.y);
                    }
            }
        }
        constexpr int SCALES = M::CELL / M::SCALE_COLUMNS;     // of a cell
        int number = block.lane % 4, cell = least(step * STEP_CELLS + number / SCALES, M::CELLS - 1);
#pragma unroll
        for (int b = 0; b < M::BATCH; b++) {
            float2 of_row = scales(block, cell, number % SCALES, rows[b]);
            const auto &tile = tiles[b / 2];
            int at = b % 2 * 2;
            float products = (tile[0][at] + tile[1][at]) + (tile[0][at + 1] + tile[1][at + 1]) + x.offset;
            sums[b].row = fmaf(of_row.x, products, sums[b].row);
            if (M::MINIMUMS) sums[b].row = fmaf(of_row.y, x.offset * (-1.f / OFFSET), sums[b].row);
        }
    }

    template <class Put> static DEVICE void put_products(const Sums &sums, const Block &block, Put put) {
        float product = sums.row;
        product += from_lane_xor(product, 1);
        product += from_lane_xor(product, 2);
        if (block.lane % 4 == 0) put(block.lane / 4, product);
    }
};

struct Consumer : Block {
    int slot = 0;
    u32 parity = 0;
    u32 tag;
    int step = 0;
    bool odd_round = false;  // of products, which the two halves of the scratch memory take in turn

    DEVICE Consumer(const Block &block) : Block(block), tag(block.launch.tag) {}

    // The ring -----------------------------------------------------------------------------------------------------------

    DEVICE int slot_ahead(int ahead) { return slot + ahead < SLOTS ? slot + ahead : slot + ahead - SLOTS; }
    DEVICE const char *await_slot(int ahead = 0) {
        int at = slot_ahead(ahead);
        wait_for(*this, &shared.full[at][warp / (WARPS / 2)], at < slot ? parity ^ 1 : parity);
        return shared.ring[at];
    }
    DEVICE void await_slots(int count) {  // a lane for each
        if (lane < count) await_slot(lane);
        warp_sync();
    }
    DEVICE void release_slots(int count = 1) {
        warp_sync();
        if (lane < count) barrier_arrive(&shared.empty[slot_ahead(lane)]);
        slot += count;
        if (slot >= SLOTS) slot -= SLOTS, parity ^= 1;
    }

    // The exchange -------------------------------------------------------------------------------------------------------

    // Calls visit(i, column) for this lane's i-th run of WIDTH columns of the first COUNT: a warp has the columns that it
    // multiplies, so that no warp has to wait for what another one gathers.
    template <class M, int COUNT, int WIDTH> static constexpr int RUNS_EACH = (M::COLUMNS / WARPS / WIDTH + 31) / 32;
    template <class M, int COUNT, int WIDTH, class Visit> DEVICE void each_run(Visit visit) {
        constexpr int RUNS = M::COLUMNS / WARPS / WIDTH;
#pragma unroll
        for (int i = 0; i < RUNS_EACH<M, COUNT, WIDTH>; i++) {
            int run = lane + 32 * i, column = M::column(warp, run * WIDTH);
            if ((RUNS % 32 == 0 || run < RUNS) && (M::COLUMNS == COUNT || column < COUNT)) visit(i, column);
        }
    }

    // Wait for the words at `from`, two for each run; then store(i, column, two words).
    template <class M, int COUNT, int WIDTH, class Store> DEVICE void gather(int from, Store store) {
        uint4 two[RUNS_EACH<M, COUNT, WIDTH>];
        const Word *words = launch.exchange + from;
        Patience patience;
        bool complete;
        do {
            complete = true;
            each_run<M, COUNT, WIDTH>([&](int i, int column) { two[i] = get_two(words + column / WIDTH * 2); });
            each_run<M, COUNT, WIDTH>([&](int i, int) { complete &= (two[i].y == tag) & (two[i].w == tag); });
        } while (!complete && !gave_up(*this, patience));
        each_run<M, COUNT, WIDTH>([&](int i, int column) { store(i, column, two[i]); });
        warp_sync();
    }

    DEVICE uint4 await_two(const Word *words) {
        Patience patience;
        uint4 two;
        do two = get_two(words);
        while ((two.y != tag || two.w != tag) && !gave_up(*this, patience));
        return two;
    }

    DEVICE void put_at(int at, u32 value) { put(launch.exchange + at, value, tag); }
    DEVICE void put_at(int at, float value) { put_at(at, float_bits(value)); }

    // The residual and its norm ------------------------------------------------------------------------------------------

    template <class M> struct NormWeights { float2 pairs[RUNS_EACH<M, HIDDEN, 2>]; };  // read before waiting for words

    template <class M> DEVICE NormWeights<M> load_norm(int number) {
        NormWeights<M> weights;
        const float *source = launch.norms + number * HIDDEN;
        each_run<M, HIDDEN, 2>([&](int i, int column) { weights.pairs[i] = *(const float2 *)(source + column); });
        return weights;
    }

    DEVICE float keep_pair(int column, float first, float second, float2 weights) {
        *(float2 *)(shared.residual + column) = {first, second};
        keep(shared.normed, column, first * weights.x, second * weights.y);
        return fmaf(first, first, second * second);
    }

    template <int COLUMNS> DEVICE void keep(SplitInput<COLUMNS> &input, int column, float first, float second) {
        u32 rounded = bfloat16_pair(first, second);
        input.pairs[column / 2] = {rounded, bfloat16_pair(first - low(rounded), second - high(rounded))};
    }
    template <int COLUMNS> DEVICE void keep(PlainInput<COLUMNS> &input, int column, u32 first, u32 second) {
        u32 *pairs = (u32 *)(input.eights + column / 8) + column % 8 / 4;
        pairs[0] = first, pairs[2] = second;
    }

    DEVICE void put_squares(float squares) {
        squares = warp_sum(squares);
        if (lane == 0) shared.squares[warp] = squares;
    }

    // 1 / RMS of the residual, once all warps have put their squares.
    DEVICE float norm_scale() {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shared.squares[w];
        return rsqrtf(sum * (1.f / HIDDEN) + EPSILON);
    }

    // A value of a token's row of the embedding.
    DEVICE float embedded(int id, int column) {
        if (EMBEDDING_BITS == 16) return bits_float((u32)((const u16 *)launch.embedding)[(u64)id * HIDDEN + column] << 16);
        constexpr int CELLS = (HIDDEN + 63) / 64, UPPER = EMBEDDING_BITS > 4 ? EMBEDDING_BITS - 4 : 1, UPPER_BYTES = 8 * UPPER;
        u64 cell = (u64)id * CELLS + column / 64;
        int above = column % 64 / 32, at = column % 32, code;
        if (EMBEDDING_BITS == 8) {
            code = ((const signed char *)launch.embedding)[cell * 64 + column % 64];
        } else {
            code = ((const unsigned char *)launch.embedding)[cell * 32 + at] >> 4 * above & 15;
            if (EMBEDDING_BITS > 4) {
                int upper = launch.embedding_high_bits[cell * UPPER_BYTES + at % UPPER_BYTES] >> at / UPPER_BYTES * 2 * UPPER;
                code |= (upper >> above * UPPER & ((1 << UPPER) - 1)) << 4;
            }
        }
        u32 word = launch.embedding_scales[cell], outer = 0;
        if (EMBEDDING_SCALES == 1) outer = launch.embedding_outer_scales[cell];
        if (EMBEDDING_SCALES >= 2) outer = launch.embedding_outer_scales[(u64)id * (CELLS / 4) + column / 256];
        float value = (float)(code - EMBEDDING_ZERO);
        if (EMBEDDING_SCALES == 3) return value * float16_float((u16)outer) * (float)((int)(word << (24 - column % 64 / 16 * 8)) >> 24);
        u32 half = word >> 16 * above;
        if (EMBEDDING_SCALES == 2)
            return value * (float16_float((u16)outer) * (float)(half & 255)) + float16_float((u16)(outer >> 16)) * (float)(half >> 8 & 255);
        return value * float16_float((u16)half) + (EMBEDDING_SCALES == 1 ? float16_float((u16)(outer >> 16 * above)) : 0.f);
    }

    DEVICE void embed(int id) {
        float squares = 0;
#pragma unroll 1
        for (int at = 2 * lane; at < Qkv::COLUMNS / WARPS && Qkv::column(warp, at) < HIDDEN; at += 2 * 32) {
            int column = Qkv::column(warp, at);
            float2 weights = *(const float2 *)(launch.norms + column);
            squares += keep_pair(column, embedded(id, column), embedded(id, column + 1), weights);
        }
        warp_sync();
        put_squares(squares);
    }

    template <class M> DEVICE void gather_residual(int from, int norm) {
        NormWeights<M> weights = load_norm<M>(norm);
        float squares = 0;
        gather<M, HIDDEN, 2>(from, [&](int i, int column, uint4 two) {
            squares += keep_pair(column, bits_float(two.x), bits_float(two.z), weights.pairs[i]);
        });
        put_squares(squares);
    }

    template <class M, int COUNT, class Input> DEVICE void gather_activations(int from, Input &input) {
        gather<M, COUNT, 4>(from, [&](int, int column, uint4 two) { keep(input, column, two.x, two.z); });
    }

    // Matrices -----------------------------------------------------------------------------------------------------------

    // The half of a slot and the row in it of a pass's row; the rows of missing groups are multiplied and not used.
    template <class M> DEVICE const char *locate(int pass, int row, int groups, int &row_of_group) {
        int of_batch = pass * M::PASS_ROWS + row, group = M::BATCH_GROUPS == 1 ? 0 : of_batch / M::ROWS;
        bool missing = (M::BATCH_GROUPS > 1 && group >= groups) || (M::PASS_ROWS < TILE_ROWS && row >= M::PASS_ROWS);
        row_of_group = missing ? 0 : of_batch - group * M::ROWS;
        return shared.ring[slot_ahead(missing ? 0 : group)] + warp / (WARPS / 2) * M::HALF_BYTES;
    }

    template <class M> DEVICE PassRow pass_row(int pass, int groups) {
        PassRow row;
        row.half = locate<M>(pass, lane / 4, groups, row.row);
        return row;
    }

    // Multiply up to BATCH_GROUPS groups; products[row * WARPS] gets this warp's part of each row's product.
    template <class M, class Piece, class Fragments>
    DEVICE void multiply_batch(Fragments fragment, int groups, float *products) {
        typename Piece::Sums sums[M::BATCH] = {};
        for (int part = 0; part < M::PARTS; part++) {
            PassRow rows[M::BATCH];
#pragma unroll
            for (int b = 0; b < M::BATCH; b++) rows[b] = pass_row<M>(b, groups);
            if (M::BATCH_GROUPS == 1) await_slot();
            else await_slots(groups);
#pragma unroll (M::PACKED ? 1 : Piece::STEPS)
            for (int step = 0; step < Piece::STEPS; step++) Piece::multiply(fragment(part, step), step, *this, rows, sums);
            release_slots(groups);
        }
#pragma unroll
        for (int b = 0; b < M::BATCH; b++)
            Piece::put_products(sums[b], *this, [&](int row, float product) {
                int end = least(M::PASS_ROWS, groups * M::ROWS - b * M::PASS_ROWS);
                if (row < end) products[(b * M::PASS_ROWS + row) * WARPS] = product;
            });
    }

    // Multiply this block's rows of a matrix with an input and call finish(first row, number of rows, their products) once
    // for every ROUND_ROWS rows at most.
    template <class M, class Input, class Finish> DEVICE void multiply(const Input &input, int layer, Finish finish) {
        using Piece = Fragment<M, Input>;
        constexpr bool IN_REGISTERS = M::PARTS == 1 && (M::PACKED ? Piece::STEPS == 1 : Piece::STEPS * sizeof(Piece) <= 256);
        Share share = share_of<M>(index, layer);
        auto load = [&](int part, int step) {
            int column = part * M::PART_COLUMNS + warp * M::CELLS * M::CELL + step * Piece::STEP_COLUMNS;
            return Piece(input, column, step, lane);
        };
        Piece kept[IN_REGISTERS ? Piece::STEPS : 1];
        if (IN_REGISTERS)
#pragma unroll
            for (int step = 0; step < Piece::STEPS; step++) kept[step] = load(0, step);
        auto fragment = [&](int part, int step) { return IN_REGISTERS ? kept[step] : load(part, step); };
        if (PAUSE_SLOTS && thread == 0) shared.exchanging = 0;
        for (int first = 0; first < share.count; first += M::ROUND_GROUPS, odd_round = !odd_round) {
            float *products = shared.scratch + (odd_round ? ROUND_ROWS * WARPS : 0);
            int end = least(share.count, first + M::ROUND_GROUPS);
            for (int g = first; g < end; g += M::BATCH_GROUPS) {
                int groups = least(M::BATCH_GROUPS, end - g);
                multiply_batch<M, Piece>(fragment, groups, products + (g - first) * M::ROWS * WARPS + warp);
            }
            consumers_sync();
            finish((share.first + first) * M::ROWS, (end - first) * M::ROWS, products);
        }
        if (PAUSE_SLOTS && thread == 0) shared.exchanging = 1;
    }

    DEVICE float product(const float *products, int row) {
        float4 a = *(const float4 *)(products + row * WARPS), b = *(const float4 *)(products + row * WARPS + 4);
        return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
    }

    DEVICE void project_qkv(int layer) {
        multiply<Qkv>(shared.normed, layer, [&](int first, int rows, const float *products) {
            int row = first + thread;
            if (thread >= rows || row >= QKV_ROWS) return;
            float bias = QKV_BIAS ? launch.qkv_bias[layer * QKV_ROWS + row] : 0.f;
            put_at(QKV_AT + row, fmaf(product(products, thread), norm_scale(), bias));
        });
    }

    // A projection back to the residual, which is added; `site` is 0 after attention, 1 after the MLP.
    template <class M, class Input> DEVICE void project_back(const Input &input, int layer, int site, int at) {
        multiply<M>(input, layer, [&](int first, int rows, const float *products) {
            int row = first + thread;
            if (thread >= rows || row >= HIDDEN) return;
            float value = product(products, thread) + shared.residual[row];
            put_at(at + row, value);  // who overwrites the residual waits for this word, which needs what was read
            if (launch.residuals) launch.residuals[((u64)(step * LAYERS + layer) * 2 + site) * HIDDEN + row] = value;
        });
    }

    // A group holds as many rows of the gate as of the up projection.
    DEVICE float gated_unit(const float *products, int unit, float scale) {
        constexpr int UNITS = GateUp::ROWS / 2;
        int gate_row = unit / UNITS * GateUp::ROWS + unit % UNITS;
        float gate = product(products, gate_row) * scale, up = product(products, gate_row + UNITS) * scale;
        return quotient(gate, 1.f + __expf(-gate)) * up;
    }

    DEVICE void project_gate_up(int layer) {
        multiply<GateUp>(shared.normed, layer, [&](int first, int rows, const float *products) {
            int unit = first / 2 + 2 * thread;
            if (4 * thread >= rows || unit >= INNER) return;
            float scale = norm_scale(), first_unit = gated_unit(products, 2 * thread, scale);
            put_at(GATED_AT + unit / 2, bfloat16_pair(first_unit, gated_unit(products, 2 * thread + 1, scale)));
        });
    }

    // Attention ----------------------------------------------------------------------------------------------------------

    static constexpr int KEY_LANES = HEAD_SIZE / 8;      // lanes that read one key, 16 bytes each
    static constexpr int KEYS_AT_ONCE = 32 / KEY_LANES;
    static constexpr int KEY_STEPS = PAGE / WARPS / KEYS_AT_ONCE;
    static constexpr int HALF = HEAD_SIZE / 2;           // RoPE turns value i with value i + HALF

    struct Softmax {                                     // of one warp's keys, over a lane's eight values
        float query[QUERIES][8], value[QUERIES][8], maximum[QUERIES], sum[QUERIES];
    };

    // STEPS * KEYS_AT_ONCE keys, of which this lane's are valid as valid(step) says.
    template <int STEPS, class Valid, class Keys, class Values>
    DEVICE void attend(Softmax &state, Valid valid, Keys keys, Values values) {
        float score[QUERIES][STEPS];
        keys([&](int i, uint4 pairs) {
#pragma unroll
            for (int q = 0; q < QUERIES; q++) score[q][i] = dot8(pairs, state.query[q], 0.f);
        });
#pragma unroll
        for (int q = 0; q < QUERIES; q++) {
            float maximum = state.maximum[q];
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
#pragma unroll
                for (int mask = 1; mask < KEY_LANES; mask <<= 1) score[q][i] += from_lane_xor(score[q][i], mask);
                if (valid(i)) maximum = fmaxf(maximum, score[q][i]);
            }
#pragma unroll
            for (int mask = KEY_LANES; mask < 32; mask <<= 1) maximum = fmaxf(maximum, from_lane_xor(maximum, mask));
            float shrink = power_of_two(state.maximum[q] - maximum);
            state.maximum[q] = maximum;
            state.sum[q] *= shrink;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                score[q][i] = valid(i) ? power_of_two(score[q][i] - maximum) : 0.f;
                state.sum[q] += score[q][i];
            }
#pragma unroll
            for (int e = 0; e < 8; e++) state.value[q][e] *= shrink;
        }
        values([&](int i, uint4 pairs) {
            float value[8];
            unpack(pairs, value);
            if (!valid(i)) return;  // what a page holds beyond its tokens may be anything
#pragma unroll
            for (int q = 0; q < QUERIES; q++)
#pragma unroll
                for (int e = 0; e < 8; e++) state.value[q][e] = fmaf(score[q][i], value[e], state.value[q][e]);
        });
    }

    DEVICE void attend_page(Softmax &state, int tokens) {
        auto read_slot = [&](auto use) {
            const char *segment = await_slot() + warp * (PAGE_BYTES / WARPS) + lane * 16;
#pragma unroll
            for (int i = 0; i < KEY_STEPS; i++) use(i, *(const uint4 *)(segment + i * 512));
            release_slots();
        };
        int first = warp * (PAGE / WARPS) + lane / KEY_LANES;
        attend<KEY_STEPS>(state, [&](int i) { return first + i * KEYS_AT_ONCE < tokens; }, read_slot, read_slot);
    }

    DEVICE void attend_current(Softmax &state) {
        int at = lane % KEY_LANES * 8;
        attend<1>(state, [&](int) { return lane < KEY_LANES; }, [&](auto use) { use(0, *(const uint4 *)(shared.key + at)); },
                  [&](auto use) { use(0, *(const uint4 *)(shared.value + at)); });
    }

    struct HeadPart { float2 first, second; };  // a lane's two values of each half of a head

    DEVICE HeadPart load_part(const float *head) {
        if (2 * lane >= HALF) return {};
        return {*(const float2 *)(head + 2 * lane), *(const float2 *)(head + HALF + 2 * lane)};
    }

    DEVICE HeadPart await_part(int at) {
        HeadPart part = {};
        if (2 * lane < HALF) {
            const Word *words = launch.exchange + at + 2 * lane;
            uint4 first, second;
            Patience patience;
            do first = get_two(words), second = get_two(words + HALF);
            while ((first.y != tag || first.w != tag || second.y != tag || second.w != tag) && !gave_up(*this, patience));
            part = {{bits_float(first.x), bits_float(first.z)}, {bits_float(second.x), bits_float(second.z)}};
        }
        warp_sync();
        return part;
    }

    DEVICE HeadPart normed_part(HeadPart x, const HeadPart &norm) {
        if (!HEAD_NORMS) return x;
        float squares = fmaf(x.first.x, x.first.x, x.first.y * x.first.y);
        squares += fmaf(x.second.x, x.second.x, x.second.y * x.second.y);
        float factor = rsqrtf(warp_sum(squares) * (1.f / HEAD_SIZE) + EPSILON);
        return {{x.first.x * (factor * norm.first.x), x.first.y * (factor * norm.first.y)},
                {x.second.x * (factor * norm.second.x), x.second.y * (factor * norm.second.y)}};
    }

    // `rotation` has the cosines in its first half, the sines in its second.
    DEVICE HeadPart rotated_part(const HeadPart &x, const HeadPart &rotation) {
        float2 cosine = rotation.first, sine = rotation.second;
        return {{x.first.x * cosine.x - x.second.x * sine.x, x.first.y * cosine.y - x.second.y * sine.y},
                {x.second.x * cosine.x + x.first.x * sine.x, x.second.y * cosine.y + x.first.y * sine.y}};
    }

    DEVICE void store_part(float *head, const HeadPart &x, float factor) {
        if (2 * lane >= HALF) return;
        *(float2 *)(head + 2 * lane) = {x.first.x * factor, x.first.y * factor};
        *(float2 *)(head + HALF + 2 * lane) = {x.second.x * factor, x.second.y * factor};
    }

    DEVICE void store_part(u16 *head, const HeadPart &x) {
        if (2 * lane >= HALF) return;
        *(u32 *)(head + 2 * lane) = cache_pair(x.first.x, x.first.y);
        *(u32 *)(head + HALF + 2 * lane) = cache_pair(x.second.x, x.second.y);
    }

    // This head's queries, and if it is this member's the current token's key and value, into shared memory.
    DEVICE void gather_heads(const AttentionShare &share, int layer, int position) {
        HeadPart rotation = load_part(launch.rotation + (u64)position * HEAD_SIZE), norm = {};
        for (int head = warp; head < (share.current ? QUERIES + 2 : QUERIES); head += WARPS) {
            int kind = greatest(head - QUERIES + 1, 0);  // of a query, key or value
            int of_kind = kind == 0 ? share.head * QUERIES + head : (kind == 1 ? HEADS : HEADS + KV_HEADS) + share.head;
            if (HEAD_NORMS && kind < 2) norm = load_part(launch.head_norms + (2 * layer + kind) * HEAD_SIZE);
            HeadPart part = await_part(QKV_AT + of_kind * HEAD_SIZE);
            if (kind < 2) part = rotated_part(normed_part(part, norm), rotation);
            if (kind == 0) store_part(shared.query + head * HEAD_SIZE, part, QUERY_SCALE);
            else store_part(kind == 1 ? shared.key : shared.value, part);
        }
        consumers_sync();
    }

    // What this warp attended to, into shared memory.
    DEVICE void leave_values(Softmax &state) {
#pragma unroll
        for (int q = 0; q < QUERIES; q++) {
#pragma unroll
            for (int mask = KEY_LANES; mask < 32; mask <<= 1) {
                state.sum[q] += from_lane_xor(state.sum[q], mask);
#pragma unroll
                for (int e = 0; e < 8; e++) state.value[q][e] += from_lane_xor(state.value[q][e], mask);
            }
            float *target = shared.scratch + warp * QUERY_VALUES + q * HEAD_SIZE + lane * 8;
            if (lane < KEY_LANES)
#pragma unroll
                for (int e = 0; e < 8; e++) target[e] = state.value[q][e];
            if (lane == 0) shared.maximum[warp][q] = state.maximum[q], shared.sum[warp][q] = state.sum[q];
        }
        consumers_sync();
    }

    DEVICE int partial_at(int head, int chunk, int query) {
        return PARTIAL_AT + ((head * MEMBERS + chunk) * QUERIES + query) * PARTIAL_WORDS;
    }

    // Merge the warps, and write the values, or with more than one chunk what gather_chunks or merge_chunks needs.
    DEVICE void put_values(const AttentionShare &share) {
        for (int i = 2 * thread; i < QUERY_VALUES; i += 2 * THREADS) {
            int query = i / HEAD_SIZE, at = i % HEAD_SIZE;
            float maximum = LOWEST, sum = 0, first = 0, second = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) maximum = fmaxf(maximum, shared.maximum[w][query]);
#pragma unroll 2
            for (int w = 0; w < WARPS; w++) {
                float weight = power_of_two(shared.maximum[w][query] - maximum);
                float2 values = *(const float2 *)(shared.scratch + w * QUERY_VALUES + i);
                sum = fmaf(weight, shared.sum[w][query], sum);
                first = fmaf(weight, values.x, first), second = fmaf(weight, values.y, second);
            }
            float factor = quotient(1.f, sum);
            if (share.partials() == 1) {
                put_at(ATTENDED_AT + (share.head * QUERY_VALUES + i) / 2, bfloat16_pair(first * factor, second * factor));
                continue;
            }
            int words = partial_at(share.head, share.chunk, query);
            if (share.merged_by_all()) {
                put_at(words + at / 2, bfloat16_pair(first * factor, second * factor));
                if (at == 0) put_at(words + HALF, maximum), put_at(words + HALF + 1, sum);
                continue;
            }
            put_at(words + at, first), put_at(words + at + 1, second);
            if (at == 0) put_at(words + HEAD_SIZE, maximum), put_at(words + HEAD_SIZE + 1, sum);
        }
    }

    // Keep the current key and value; nobody reads them before the next token.
    DEVICE void store_key_and_value(u64 key_offset) {
        if (thread >= HEAD_SIZE) return;
        int kind = thread / HALF, at = thread % HALF;
        u32 *row = (u32 *)(launch.pool + key_offset + kind * (KV_HEADS * PAGE * HEAD_SIZE));
        row[at] = ((const u32 *)(kind ? shared.value : shared.key))[at];
    }

    // Merge this member's slice of the head's values over the chunks, in order.
    DEVICE void merge_chunks(const AttentionShare &share) {
        constexpr int LOADS = SLICE / 2 + 1;  // the last is the maximum and the sum
        int first = share.member * SLICE, query = first / HEAD_SIZE;
        for (int i = thread; i < share.partials() * LOADS; i += THREADS) {
            int chunk = i / LOADS, load = i % LOADS;
            int at = load < SLICE / 2 ? first % HEAD_SIZE + 2 * load : HEAD_SIZE;
            uint4 two = await_two(launch.exchange + partial_at(share.head, chunk, query) + at);
            shared.merged[chunk][2 * load] = bits_float(two.x), shared.merged[chunk][2 * load + 1] = bits_float(two.z);
        }
        consumers_sync();
        if (thread >= SLICE / 2) return;
        float maximum = LOWEST, sum = 0, low = 0, high = 0;
        for (int c = 0; c < share.partials(); c++) maximum = fmaxf(maximum, shared.merged[c][SLICE]);
        for (int c = 0; c < share.partials(); c++) {
            const float *partial = shared.merged[c];
            float factor = power_of_two(partial[SLICE] - maximum);
            sum = fmaf(factor, partial[SLICE + 1], sum);
            low = fmaf(factor, partial[2 * thread], low), high = fmaf(factor, partial[2 * thread + 1], high);
        }
        put_at(ATTENDED_AT + (share.head * QUERY_VALUES + first) / 2 + thread, bfloat16_pair(quotient(low, sum), quotient(high, sum)));
    }

    // Four values of all heads' of few chunks, merged in order.
    template <int CHUNKS> DEVICE uint2 merged_chunks(int part) {
        int head = part * 4 / HEAD_SIZE, at = part * 4 % HEAD_SIZE / 2;
        uint4 values[CHUNKS], weights[CHUNKS];
        Patience patience;
        bool complete;
        do {
            complete = true;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const Word *words = launch.exchange + partial_at(head / QUERIES, c, head % QUERIES);
                values[c] = get_two(words + at), weights[c] = get_two(words + HALF);
            }
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                complete &= (values[c].y == tag) & (values[c].w == tag) & (weights[c].y == tag) & (weights[c].w == tag);
        } while (!complete && !gave_up(*this, patience));
        float maximum = LOWEST, sum = 0, x[4] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) maximum = fmaxf(maximum, bits_float(weights[c].x));
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            float weight = power_of_two(bits_float(weights[c].x) - maximum) * bits_float(weights[c].z);
            sum += weight;
            x[0] = fmaf(weight, low(values[c].x), x[0]), x[1] = fmaf(weight, high(values[c].x), x[1]);
            x[2] = fmaf(weight, low(values[c].z), x[2]), x[3] = fmaf(weight, high(values[c].z), x[3]);
        }
        float factor = quotient(1.f, sum);
        return {bfloat16_pair(x[0] * factor, x[1] * factor), bfloat16_pair(x[2] * factor, x[3] * factor)};
    }

    template <int CHUNKS> DEVICE void gather_chunks() {
#pragma unroll 1
        for (int at = 4 * lane; at < Output::COLUMNS / WARPS; at += 4 * 32) {
            int column = Output::column(warp, at);
            if (column >= ATTENDED) break;
            uint2 four = merged_chunks<CHUNKS>(column / 4);
            keep(shared.attended, column, four.x, four.y);
        }
        warp_sync();
    }

    DEVICE void gather_attended(const AttentionShare &share) {
        if (!share.merged_by_all()) gather_activations<Output, ATTENDED>(ATTENDED_AT, shared.attended);
        else if (share.partials() == 2) gather_chunks<2>();
        else if (share.partials() == 3) gather_chunks<3>();
        else gather_chunks<4>();
    }

    DEVICE void attention(int layer, int position) {
        AttentionShare share(index, layer, position);
        if (share.active) {
            u64 key_offset = page_offset(launch, position / PAGE, layer, 0, share.head) + position % PAGE * HEAD_SIZE;
            gather_heads(share, layer, position);
            Softmax state;
#pragma unroll
            for (int q = 0; q < QUERIES; q++) {
                const float *query = shared.query + q * HEAD_SIZE + lane % KEY_LANES * 8;
                state.maximum[q] = LOWEST, state.sum[q] = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) state.query[q][e] = query[e], state.value[q][e] = 0;
            }
            share.each_page(position, [&](int page) { attend_page(state, position - page * PAGE); });
            if (share.current && warp == 0) attend_current(state);
            leave_values(state);
            put_values(share);
            if (share.current) store_key_and_value(key_offset);
            consumers_sync();  // before products take the place of the values
        }
        if (share.merged_by_members() && share.member < MERGERS) merge_chunks(share);
        gather_attended(share);
    }

    // The head -----------------------------------------------------------------------------------------------------------

    static DEVICE void keep_better(float &score, int &id, float other_score, int other_id) {
        if (other_score > score || (other_score == score && other_id < id)) score = other_score, id = other_id;
    }
    static DEVICE void best_of_warp(float &score, int &id) {
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) {
            float other = from_lane_xor(score, mask);
            int other_id = from_lane_xor(id, mask);
            keep_better(score, id, other, other_id);
        }
    }

    // Score this block's rows; thread 0 writes the best one for all.
    DEVICE void score_rows() {
        bool watched = launch.scores && step >= launch.scores_from;
        float *scores = watched ? launch.scores + (u64)(step - launch.scores_from) * VOCABULARY : 0;
        float best = -INFINITE;
        int id = VOCABULARY;
        multiply<Head>(shared.normed, LAYERS, [&](int first, int rows, const float *products) {
            int row = first + thread;
            if (thread >= rows || row >= VOCABULARY) return;
            float score = product(products, thread) * norm_scale();
            if (scores) scores[row] = score;
            bool number = fabsf(score) < INFINITE;
            keep_better(best, id, number ? score : INFINITE, number ? row : NO_ID);
        });
        best_of_warp(best, id);
        if (lane == 0) shared.best_score[warp] = best, shared.best_id[warp] = id;
        consumers_sync();
        if (thread) return;
        for (int w = 1; w < WARPS; w++) keep_better(best, id, shared.best_score[w], shared.best_id[w]);
        fence_for_copies();
        fence();  // the keys and values that this block stored, before the words that say so
        put_at(BEST_AT + 2 * index, best), put_at(BEST_AT + 2 * index + 1, (u32)id);
    }

    // The best of all blocks, the same for all threads.
    DEVICE int choose() {
        float best = -INFINITE;
        int id = VOCABULARY;
        for (int b = thread; b < BLOCKS; b += THREADS) {
            uint4 two = await_two(launch.exchange + BEST_AT + 2 * b);
            keep_better(best, id, bits_float(two.x), (int)two.z);
        }
        fence();  // what the blocks stored before, before what follows
        warp_sync();
        best_of_warp(best, id);
        if (lane == 0) shared.chosen_score[warp] = best, shared.chosen_id[warp] = id;
        consumers_sync();
        best = shared.chosen_score[0], id = shared.chosen_id[0];
#pragma unroll
        for (int w = 1; w < WARPS; w++) keep_better(best, id, shared.chosen_score[w], shared.chosen_id[w]);
        return id;
    }

    // All ---------------------------------------------------------------------------------------------------------------

    DEVICE void run_layers(int position) {
        for (int layer = 0; layer < LAYERS; layer++) {
            if (layer > 0) gather_residual<Qkv>(RESIDUAL_AT, 2 * layer);
            tag++;
            project_qkv(layer);
            attention(layer, position);
            project_back<Output>(shared.attended, layer, 0, MIDDLE_AT);
            gather_residual<GateUp>(MIDDLE_AT, 2 * layer + 1);
            project_gate_up(layer);
            gather_activations<Down, INNER>(GATED_AT, shared.gated);
            project_back<Down>(shared.gated, layer, 1, RESIDUAL_AT);
        }
        gather_residual<Head>(RESIDUAL_AT, 2 * LAYERS);
    }

    // Whether to go on after a token: thread 0 decides for its block, and all blocks alike unless they gave up.
    DEVICE bool finish_token(int id) {
        if (thread == 0) {
            bool more = step + 1 < launch.steps && id != NO_ID && !shared.halted;
            if (index == 0 && !shared.halted) {
                launch.chosen_ids[step] = id;
                launch.status[1] = step + 1;
            }
            if (step + 1 >= launch.given)
                for (int i = 0; i < launch.stops; i++) more &= launch.stop_ids[i] != id;
            shared.more = more;
            if (!more) shared.halted = 1;
            barrier_arrive(&shared.token_begun);
        }
        consumers_sync();
        return shared.more;
    }

    DEVICE void run() {
        int id = launch.given_ids[0];
        for (bool more = true; more; step++) {
            embed(id);
            run_layers(launch.start + step);
            tag++;
            score_rows();
            id = choose();
            more = finish_token(id);
            if (step + 1 < launch.given) id = launch.given_ids[step + 1];
        }
    }
};

DEVICE void prepare(const Block &block) {
    Shared &shared = block.shared;
    if (block.thread == 0) {
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(&shared.full[i][0], 1), barrier_init(&shared.full[i][1], 1);
            barrier_init(&shared.empty[i], WARPS);
        }
        barrier_init(&shared.token_begun, 1);
        shared.halted = shared.exchanging = 0;
        publish_barriers();
    }
    // The columns of padding, whose weights are zero, must be numbers.
    u32 *inputs = (u32 *)&shared.normed, *end = (u32 *)(&shared.gated + 1);
    for (u32 *word = inputs + block.thread; word < end; word += THREADS + 32) *word = 0;
    block_sync();
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) decode(const __grid_constant__ Launch launch) {
    int thread = thread_index();
    Block block{launch, shared_memory(), block_index(), thread, thread / 32, thread % 32};
    if (block.index == launch.absent_block) return;
    prepare(block);
    if (block.warp < WARPS) Consumer(block).run();
    else if (block.lane == 0) Producer{block, evict_first()}.run();
}
