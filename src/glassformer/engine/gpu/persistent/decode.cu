// One kernel decodes many tokens of up to ROWS sequences: weights in bfloat16 or float16 where they lie, greedy or with given ids.
//
// The stream. A token reads every weight once, so its time is the time of that read. Each block (one per multiprocessor) has
// some tiles of every matrix: eight rows. One producer thread per block copies them by tensor maps from the matrices as they
// are stored into a ring of slots in shared memory, across the borders of matrices, layers and tokens: it waits for free
// slots only, never for activations. A slot has 1,024 columns of a tile, in two halves with a barrier each, or a page of keys
// or values. Only FLIGHT halves are under way at a time while activations are exchanged, because exchanged words wait in the
// same queues of the L2 cache.
//
// The order of every sum is what engine/gpu/order.py says. A product is a sum over segments of 128 columns: each is one chain
// of m16n8k16 on the tensor cores, from zero, sixteen columns at a time; segments are added in order. A slot has eight
// segments, one for each of the eight consumer warps. Tokens are the sixteen rows of an instruction, of which eight are used,
// and a tile's rows its eight columns. Within sixteen columns the tensor cores do not care for the order, so a lane has four
// of them side by side.
//
// The exchange. What one block computes and others need travels as words of sixteen bytes, which are stored and loaded at
// once: four numbers in the weights' type, a float32 (where a norm follows, the sum of their squares before they were
// multiplied with the norm's weights and rounded), and a tag; or of eight bytes: a float32 and a tag. They are polled by those
// who need them. The tag is the number of the layer, counted on through tokens and launches. There is no grid barrier, and one
// buffer per exchange is enough: a block writes the next value of a word only after it has read values that depend, over any
// number of blocks, on everybody's having read the last one. That requires that every block has tiles of the QKV, the gate and
// up, and the head matrix, and that all blocks are resident. Who has rows of the output projection has the same rows of the down
// projection, and keeps their numbers of the residual.
//
// The phases of a layer, each the work between two exchanges:
//     residual    -> QKV projection, RMS factor                                  -> qkv        (float32)
//     qkv         -> head norms, RoPE, attention over one chunk of 256 keys      -> partial    (float32), if there are more
//     partial     -> merge of the chunks, in order                               -> attended
//     attended    -> output projection, + residual                               -> middle
//     middle      -> gate and up projections, RMS factor, SiLU                   -> gated
//     gated       -> down projection, + residual                                 -> residual
// After the last layer each block scores its rows of the head; the best score and id of each block are exchanged, and all
// blocks choose the same next ids.
//
// Attention. A unit is a row, a KV head and a chunk of its keys; units are dealt to blocks. Two warps have a page of 64 keys:
// its scores, their exponents relative to the page's maximum, and its values, on tensor cores; pages are merged in order.
// Who has the chunk of the current token also puts its key and value into the page, and stores them in the cache.
//
// Waiting. Every wait ends: by success, or because this block or another gave up. One thread of each block looks whether
// its consumers get on. Where they do not for longer than `patience` clocks, it writes an error code that those of all blocks
// see. A block that gave up runs on with wrong numbers, without waiting, to the end of the token, where all of its threads
// leave together.

#include "device.h"

constexpr int WARPS = 8;                     // consumers, two groups of four; of a third group one thread produces
constexpr int THREADS = 32 * WARPS, ALL_THREADS = THREADS + 128;
constexpr int TILE_ROWS = 8;
constexpr int PIECES = SEGMENT / 16;         // of a segment, what one instruction multiplies
constexpr int SLOT_COLUMNS = SEGMENT * WARPS;
constexpr int SLOT_BYTES = TILE_ROWS * SLOT_COLUMNS * 2;
constexpr int BLOCK_COLUMNS = 64;            // that lie side by side in a slot: 128 bytes of each row
constexpr int HALF_SLOT = SLOT_BYTES / 2;
constexpr int GROUP_PARTS = 4;               // slots of a tile whose inputs, and slots whose weights are in registers at once
constexpr int PAGE = 64;                     // tokens in a page of the KV cache: a block of keys
constexpr int CHUNK = PAGE * CHUNK_PAGES;
constexpr int PAGE_BYTES = PAGE * HEAD_SIZE * 2;
constexpr int QUERIES = HEADS / KV_HEADS;    // query heads of a KV head
constexpr int ATTENDED = HEADS * HEAD_SIZE;
constexpr int QKV_ROWS = ATTENDED + 2 * KV_HEADS * HEAD_SIZE;
constexpr int HALF = HEAD_SIZE / 2;          // RoPE turns value i with value i + HALF
constexpr int PARTIAL_WORDS = HEAD_SIZE + 2; // of a query head in a chunk: values, maximum, sum
constexpr int SCRATCH = 4096;                // sums of segments, of one round
constexpr float LOWEST = -1e30f;
constexpr int NO_ID = -1;                    // the scores are no numbers
#define INFINITE bits_float(0x7f800000u)

// In the order in which a lane's four registers are an operand of m16n8k16, whose rows from the eighth on are not used.
struct __align__(16) Word { u32 low, extra, high, tag; };

DEVICE constexpr int divided(int a, int b) { return (a + b - 1) / b; }
DEVICE constexpr int tree_width(int count) { return count <= 1 ? 1 : 2 * tree_width((count + 1) / 2); }

struct Launch;
struct Shared;

struct Block {
    const Launch &launch;
    Shared &shared;
    int index, thread, warp, lane;
    DEVICE int rows() const;
};

// One matrix of a layer, or the head. All of a layer's work is one loop over these, so that its code stays in the instruction
// cache: each kind of work stands in it once.
struct Matrix {
    int tiles, columns, turn;           // turn: how far its tiles move on among the blocks from layer to layer
    int from;                           // where the words of its input are
    int tile_rows;                      // of a tile, in the first dimension of its tensor map; of pairs half of them
    bool normed;                        // squares come with its input
    DEVICE constexpr int parts() const { return divided(columns, SLOT_COLUMNS); }
    DEVICE constexpr int parts_at_once() const { return least(parts(), GROUP_PARTS); }
    DEVICE constexpr int groups() const { return divided(parts(), GROUP_PARTS); }
    DEVICE constexpr int segments() const { return divided(columns, SEGMENT); }
    DEVICE constexpr int segments_at_once() const { return least(segments(), GROUP_PARTS * WARPS); }
    // Tiles whose sums are added up together: each thread has at most four numbers.
    DEVICE constexpr int round() const {
        return greatest(1, least(THREADS / 2 / ROWS, SCRATCH / (segments_at_once() * ROWS * TILE_ROWS)));
    }
};
DEVICE constexpr int batch_slots(int parts) { return greatest(1, GROUP_PARTS / parts) * parts; }
enum Phase { QKV, OUTPUT, GATE_UP, DOWN, HEAD };
constexpr int LAYER_MAPS = HEAD;

// Words of each exchange, for all rows, one after the other in one allocation.
constexpr int RESIDUAL_AT = 0;
constexpr int MIDDLE_AT = RESIDUAL_AT + ROWS * HIDDEN / 4;
constexpr int GATED_AT = MIDDLE_AT + ROWS * HIDDEN / 4;
constexpr int ATTENDED_AT = GATED_AT + ROWS * INNER / 4;
constexpr int QKV_AT = ATTENDED_AT + ROWS * ATTENDED / 4;
constexpr int BEST_AT = QKV_AT + ROWS * QKV_ROWS / 2;
constexpr int PARTIAL_AT = BEST_AT + ROWS * BLOCKS;

#define MATRICES \
    {QKV_ROWS / TILE_ROWS, HIDDEN, QKV_TURN, RESIDUAL_AT, TILE_ROWS, true}, \
    {HIDDEN / TILE_ROWS, ATTENDED, 0, ATTENDED_AT, TILE_ROWS, false}, \
    {INNER * 2 / TILE_ROWS, HIDDEN, GATE_UP_TURN, MIDDLE_AT, TILE_ROWS / 2, true}, \
    {HIDDEN / TILE_ROWS, INNER, 0, GATED_AT, TILE_ROWS, false}, \
    {divided(VOCABULARY, TILE_ROWS), HIDDEN, 0, RESIDUAL_AT, TILE_ROWS, true}
constexpr Matrix OF_PHASE[] = {MATRICES};
__constant__ const Matrix matrix_of_phase[] = {MATRICES};
constexpr int NORMED_SEGMENTS = OF_PHASE[QKV].segments(), RESIDUAL_TILES = divided(OF_PHASE[OUTPUT].tiles, BLOCKS);

#ifndef SIMULATED
struct alignas(64) TensorMap { char opaque[128]; };
#endif

struct Launch {                 // mirrored in row_decoder.py
    TensorMap cache;            // of the pool: (head_size / 64, tokens of all pages and planes, 64)
    const TensorMap *matrices;  // (LAYERS * LAYER_MAPS + 1)
    const u16 *embedding;       // (VOCABULARY, HIDDEN)
    const float *norms;         // (2 * LAYERS + 1, HIDDEN): before attention and before the MLP of each layer; the last
    const float *head_norms;    // (LAYERS, 2, HEAD_SIZE): of queries and of keys
    const float *qkv_bias;      // (LAYERS, QKV_ROWS)
    const float *rotation;      // (positions, 2, HALF): cosines, sines
    u16 *pool;                  // (pages, LAYERS, 2, KV_HEADS, PAGE, HEAD_SIZE)
    const int *page_table;      // (rows, row_pages)
    const int *starts;          // (rows): tokens in the cache
    Word *exchange;
    const int *given_ids;       // (given, rows): ids of the first steps; later ones are chosen
    int *chosen_ids;            // (steps, rows); NO_ID where scores are no numbers
    float *scores;              // (steps - scores_from, rows, VOCABULARY), or null
    float *residuals;           // (steps, rows, LAYERS, 2, HIDDEN): after attention and after the MLP, or null
    int *status;                // error, steps done, block that gave up
    long long patience;         // clocks
    int rows, row_pages, steps, given, scores_from;
    int most_chunks;            // of a row, for which there are words
    u32 tag;                    // the last one used
    int absent_block;           // leaves at once, so that the others time out: for tests; -1: none
};

constexpr int QUERY_WORDS = HEAD_SIZE / 2 + 4, WEIGHT_WORDS = PAGE / 2 + 4;  // padded: eight rows lie in different banks

struct Shared {
    char ring[SLOTS][SLOT_BYTES];       // at a multiple of 1,024 bytes, as swizzled tiles need it
    __align__(16) float scratch[2][SCRATCH];  // sums of segments, of two rounds in turn; of pages, values, maximum and sum
    __align__(16) float residual[RESIDUAL_TILES][ROWS][TILE_ROWS];
    float squares[ROWS][NORMED_SEGMENTS];     // of the residual's numbers
    __align__(16) u32 query[QUERIES][QUERY_WORDS];
    __align__(16) u32 weights[CHUNK_PAGES][QUERIES][WEIGHT_WORDS];
    __align__(16) u32 key[HALF];        // of the current token
    __align__(16) u32 value[HALF];
    float maximum[WARPS][QUERIES];
    float best_score[THREADS];
    int best_id[THREADS];
    int ids[ROWS], starts[ROWS];
    int more;                           // tokens follow
    volatile int halted;                // this block gave up, or is done
    volatile int progress;              // of the consumers: changes with each piece of work
    u64 full[SLOTS][2], empty[SLOTS], token_begun;
};

static_assert(sizeof(Shared) <= SHARED_BYTES, "row_schedule.py counts less shared memory");
static_assert(CHUNK_PAGES * QUERIES * PARTIAL_WORDS <= 2 * SCRATCH, "pages' values do not fit");
static_assert(SLOTS >= GROUP_PARTS, "a batch does not fit");

DEVICE int Block::rows() const { return ROWS == 1 ? 1 : launch.rows; }

// Primitives ---------------------------------------------------------------------------------------------------------------

#ifndef SIMULATED
DEVICE Shared &shared_memory() {
    extern __shared__ __align__(1024) char memory[];
    return *reinterpret_cast<Shared *>(memory);
}
// A box of a tensor map from a row and a block of 64 columns on; it lies in shared memory swizzled by 128 bytes.
DEVICE void copy_box(void *target, const TensorMap *map, int row, int column_block, u64 *barrier, u64 policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%2, %3, %2, %4}], [%5], %6;"
                 ::"r"(shared_address(target)), "l"(map), "r"(0), "r"(row), "r"(column_block),
                 "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
}
DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 224;"); }
DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 56;"); }
DEVICE void put(Word *word, u32 first, u32 second, u32 third, u32 tag) {
    asm volatile("{\n.reg .b64 l, h;\n.reg .b128 w;\nmov.b64 l, {%1, %2};\nmov.b64 h, {%3, %4};\nmov.b128 w, {l, h};\n"
                 "st.relaxed.gpu.global.b128 [%0], w;\n}"
                 ::"l"(word), "r"(first), "r"(second), "r"(third), "r"(tag) : "memory");
}
DEVICE uint4 get(const Word *word) {
    u64 low, high;
    asm volatile("{\n.reg .b128 w;\nld.relaxed.gpu.global.b128 w, [%2];\nmov.b128 {%0, %1}, w;\n}"
                 : "=l"(low), "=l"(high) : "l"(word) : "memory");
    return {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
}
DEVICE u32 of_lane(u32 value, int lane) { return __shfl_sync(~0u, value, lane); }
DEVICE void pause() { __nanosleep(2000); }
// sums (16, 8) += a (16, 16) * b (8, 16) transposed; lane l has of a the rows l / 4 and l / 4 + 8, in turn, of b the row l / 4, of
// the sums the rows l / 4 and l / 4 + 8 and the columns l % 4 * 2 and the next.
template <bool FLOAT16> DEVICE void multiply_tiles(float (&sums)[4], uint4 a, u32 b0, u32 b1) {
    if (FLOAT16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
DEVICE void opaque(int &value) { asm volatile("" : "+r"(value)); }  // the compiler does not know that it stays the same
// Four tiles of eight rows of sixteen bytes, the i-th at what the lanes 8 i to 8 i + 7 give, each transposed.
DEVICE uint4 load_transposed(const char *row) {
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(shared_address(row)) : "memory");
    return r;
}
DEVICE uint2 load_pair(const char *source) {  // in the order of the program, so that many loads are under way
    uint2 r;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(shared_address(source)) : "memory");
    return r;
}
DEVICE float power_of_two(float exponent) {
    float power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(exponent));
    return power;
}
DEVICE float quotient(float a, float b) {
    float value;
    asm("div.full.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
    return value;
}
DEVICE float reciprocal_root(float x) {
    float value;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}
#endif

DEVICE uint4 both_halves(u32 first, u32 second) { return {first, first, second, second}; }
template <bool FLOAT16> DEVICE u32 pair_of(float low, float high) {
    return FLOAT16 ? float16_pair(low, high) : bfloat16_pair(low, high);
}

// Waiting --------------------------------------------------------------------------------------------------------------

// Whether a wait has to end without what it waits for; asked at each try, and looks at every `often`th.
struct Patience {
    u32 tries = 0;
    DEVICE bool ended(const Block &block, u32 often = 64) { return ++tries % often == 0 && block.shared.halted; }
};

// A thread that does nothing else looks whether the consumers get on, and whether another block gave up.
DEVICE void watch_over(const Block &block) {
    Shared &shared = block.shared;
    int progress = -1;
    long long since = 0;
    while (!shared.halted) {
        pause();
        long long time = now();
        if (progress != shared.progress) progress = shared.progress, since = time;
        bool others_gave_up = load_status(block.launch.status) != NONE;
        if (!others_gave_up && time - since <= block.launch.patience) continue;
        if (claim_status(block.launch.status, TIMED_OUT)) block.launch.status[2] = block.index;
        shared.halted = 1;
    }
}

DEVICE bool wait_for(const Block &block, u64 *barrier, u32 parity) {
    Patience patience;
    while (!barrier_passed(barrier, parity))
        if (patience.ended(block, 16)) return false;
    return true;
}

// Who has what -----------------------------------------------------------------------------------------------------------

struct Share { int first, count; };  // tiles

DEVICE Share share_of(const Matrix &m, int block, int layer) {
    int turned = (block + layer * m.turn) % BLOCKS, each = m.tiles / BLOCKS, rest = m.tiles % BLOCKS, more = turned < rest;
    return {turned * each + (more ? turned : rest), each + more};
}

struct Unit {  // of attention
    int row, head, chunk, position;
    DEVICE int pages() const { return least(CHUNK_PAGES, position / PAGE + 1 - chunk * CHUNK_PAGES); }
    DEVICE bool current() const { return position / CHUNK == chunk; }
};

DEVICE int chunks_of(int position) { return position / CHUNK + 1; }

// Calls visit(unit) for a block's units of a layer: those of a chunk lie side by side, a head each.
template <class Visit> DEVICE void each_unit(const Block &block, int layer, int step, Visit visit) {
    int first = 0, own = (block.index + layer * ATTENTION_TURN) % BLOCKS;
    for (int row = 0; row < block.rows(); row++) {
        int position = block.shared.starts[row] + step, units = chunks_of(position) * KV_HEADS;
        for (; own < first + units; own += BLOCKS) visit(Unit{row, (own - first) % KV_HEADS, (own - first) / KV_HEADS, position});
        first += units;
    }
}

DEVICE int pool_plane(const Launch &launch, int row, int page, int layer, int kind, int head) {
    return ((launch.page_table[row * launch.row_pages + page] * LAYERS + layer) * 2 + kind) * KV_HEADS + head;
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

    // Copy one slot's content in two halves by copy(half, target, barrier); a half of no bytes is only counted.
    template <class Copy> DEVICE void send(int first_bytes, int second_bytes, Copy copy) {
        Shared &shared = block.shared;
        if (stopped) return;
        stopped = !wait_for(block, &shared.empty[slot], parity);
        if (stopped) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int bytes = half ? second_bytes : first_bytes;
            while (under_way >= most_under_way) await_oldest_copy();
            barrier_expect(&shared.full[slot][half], bytes);
            if (bytes) copy(half, shared.ring[slot] + (half ? first_bytes : 0), &shared.full[slot][half]);
            under_way++;
        }
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }

    DEVICE void send_matrix(int layer, int phase) {
        const Matrix &m = matrix_of_phase[phase];
        const TensorMap *map = block.launch.matrices + layer * LAYER_MAPS + phase % HEAD;
        Share share = share_of(m, block.index, layer);
        int round = m.round(), all_parts = m.parts();
        for (int first = 0; first < share.count; first += round)
            for (int first_part = 0; first_part < all_parts; first_part += GROUP_PARTS)
                for (int tile = first; tile < least(share.count, first + round); tile++)
                    for (int part = first_part; part < least(all_parts, first_part + GROUP_PARTS); part++) {
                        int column = part * SLOT_COLUMNS, row = (share.first + tile) * m.tile_rows;
                        int second = column + SLOT_COLUMNS / 2 < m.columns ? HALF_SLOT : 0;
                        send(HALF_SLOT, second, [&](int half, char *target, u64 *barrier) {
                            copy_box(target, map, row, (column + half * SLOT_COLUMNS / 2) / BLOCK_COLUMNS, barrier, policy);
                        });
                    }
    }

    DEVICE void send_pages(int layer, int step) {
        each_unit(block, layer, step, [&](const Unit &unit) {
            for (int kind = 0; kind < 2; kind++)
                for (int page = 0; page < unit.pages(); page++) {
                    int plane = pool_plane(block.launch, unit.row, unit.chunk * CHUNK_PAGES + page, layer, kind, unit.head);
                    send(PAGE_BYTES / 2, PAGE_BYTES / 2, [&](int half, char *target, u64 *barrier) {
                        copy_box(target, &block.launch.cache, plane * PAGE + half * PAGE / 2, 0, barrier, policy);
                    });
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
            for (int layer = 0; layer <= LAYERS; layer++)
                for (int phase = layer < LAYERS ? QKV : HEAD; phase <= (layer < LAYERS ? DOWN : HEAD); phase++) {
                    if (phase == OUTPUT) {
                        if (layer == 0) await_token(step);
                        send_pages(layer, step);
                    }
                    most_under_way = phase == HEAD ? HEAD_FLIGHT : FLIGHT;  // nothing is exchanged beside the head
                    send_matrix(layer, phase);
                }
        }
        while (under_way) await_oldest_copy();  // none may land after the block has ended
    }
};

// The consumers ------------------------------------------------------------------------------------------------------------

// Where a slot has sixteen bytes: lines of 128 bytes, whose eight pieces lie in another order in each of eight lines.
DEVICE int swizzled(int line, int piece) { return line * 128 + ((piece ^ (line & 7)) * 16); }

// The row of a tile that is the i-th column of an instruction: so that lanes which load together meet no bank twice.
DEVICE int tile_row(int i) { return i % 4 * 2 + i / 4; }

struct Softmax { float maximum, sum; };

// The factors of two parts of a softmax that become one: see order.py.
struct Merge {
    float first, second;
    DEVICE Merge(Softmax &state, const Softmax &other) {
        float maximum = fmaxf(state.maximum, other.maximum);
        first = power_of_two(state.maximum - maximum), second = power_of_two(other.maximum - maximum);
        state = {maximum, state.sum * first + other.sum * second};
    }
    DEVICE float operator()(float a, float b) const { return a * first + b * second; }
};

struct Consumer : Block {
    int slot = 0;
    u32 parity = 0;
    u32 tag;
    int step = 0;
    float best;     // score of this thread, and its id
    int best_id;
    int round = 0;  // of sums, which the two halves of the scratch memory take in turn

    DEVICE Consumer(const Block &block) : Block(block), tag(block.launch.tag) {}

    // What follows from the thread's number is computed anew in each phase, instead of being kept in registers, and then on the
    // stack, from phase to phase.
    DEVICE void forget() { opaque(index), opaque(thread), opaque(warp), opaque(lane); }

    // The ring -----------------------------------------------------------------------------------------------------------

    DEVICE int slot_ahead(int ahead) { return slot + ahead < SLOTS ? slot + ahead : slot + ahead - SLOTS; }
    DEVICE void await_half(int ahead, int half) {
        int at = slot_ahead(ahead);
        wait_for(*this, &shared.full[at][half], at < slot ? parity ^ 1 : parity);
    }
    DEVICE void release_slots(int count) {
        warp_sync();
        if (lane < count) barrier_arrive(&shared.empty[slot_ahead(lane)]);
        slot += count;
        if (slot >= SLOTS) slot -= SLOTS, parity ^= 1;
    }

    // The exchange -------------------------------------------------------------------------------------------------------

    // Waits for a warp's segments of a group of parts, and for the sums of squares that may come with them: for each part and
    // each sixteen of a segment's columns the word that a lane has of the row lane / 4. A single row's words are loaded side by
    // side, one by each lane, and handed out: fewer loads disturb the stream.
    template <int PARTS> DEVICE void gather(uint4 (&x)[PARTS][PIECES], const Matrix &m, u32 wanted, int group, int parts) {
        constexpr int LOADS = ROWS == 1 ? 1 : PIECES;
        int row = ROWS == 1 ? 0 : lane / 4;
        int column = (group * GROUP_PARTS * WARPS + warp) * SEGMENT + (ROWS == 1 ? lane : lane % 4) * 4;
        bool mine = row < rows();
        const Word *words = launch.exchange + m.from + (row * m.columns + column) / 4;
        Patience patience;
        bool complete;
        do {
            complete = true;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int i = 0; i < LOADS; i++) {
                    x[part][i] = {0, 0, 0, wanted};
                    if (mine && part < parts && column + part * SLOT_COLUMNS + 16 * i < m.columns)
                        x[part][i] = get(words + part * (SLOT_COLUMNS / 4) + 4 * i);
                }
#pragma unroll
            for (int part = 0; part < PARTS; part++)
#pragma unroll
                for (int i = 0; i < LOADS; i++) complete &= x[part][i].w == wanted;
        } while (!complete && !patience.ended(*this));
        warp_sync();
        if (m.normed) put_squares<PARTS>(x, group);
        if (ROWS > 1) return;
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            uint4 own = x[part][0];
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                x[part][i] = {of_lane(own.x, 4 * i + lane % 4), 0, of_lane(own.z, 4 * i + lane % 4), 0};
        }
    }

    // Of a group's segments the sums of squares, for norm_factor: of the eight sixteens of a segment, then of their four fours.
    template <int PARTS> DEVICE void put_squares(const uint4 (&x)[PARTS][PIECES], int group) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            float sum = bits_float(x[part][0].y);
            if (ROWS == 1) {
#pragma unroll
                for (int mask = 4; mask < 32; mask <<= 1) sum += from_lane_xor(sum, mask);
            } else {
                float of[PIECES];
#pragma unroll
                for (int i = 0; i < PIECES; i++) of[i] = bits_float(x[part][i].y);
                sum = ((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7]));
            }
            sum += from_lane_xor(sum, 1);
            sum += from_lane_xor(sum, 2);
            int row = ROWS == 1 ? 0 : lane / 4, segment = (group * GROUP_PARTS + part) * WARPS + warp;
            bool first = ROWS == 1 ? lane == 0 : lane % 4 == 0 && row < rows();
            if (first && segment < NORMED_SEGMENTS) shared.squares[row][segment] = sum;
        }
    }

    DEVICE void put_word(int at, uint2 four, float extra) { put(launch.exchange + at, four.x, float_bits(extra), four.y, tag); }
    DEVICE void put_floats(int at, float first, float second) {  // two words of eight bytes
        put(launch.exchange + at, float_bits(first), tag, float_bits(second), tag);
    }
    DEVICE uint4 await_floats(int at) {  // the two words there
        Patience patience;
        uint4 two;
        do two = get(launch.exchange + at);
        while ((two.y != tag || two.w != tag) && !patience.ended(*this));
        return two;
    }

    // 1 / RMS of a row's residual, once all warps have put their squares: the sum of the segments' is a binary tree.
    DEVICE float norm_factor(int row) {
        constexpr int SEGMENTS = NORMED_SEGMENTS;
        float sums[tree_width(SEGMENTS)];
#pragma unroll
        for (int i = 0; i < tree_width(SEGMENTS); i++) sums[i] = i < SEGMENTS ? shared.squares[row][i] : 0.f;
#pragma unroll
        for (int width = tree_width(SEGMENTS) / 2; width; width /= 2)
#pragma unroll
            for (int i = 0; i < width; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
        return reciprocal_root(sums[0] * (1.f / HIDDEN) + EPSILON);
    }

    // Four numbers of the residual: as the input of the matrix after a norm.
    DEVICE void put_residual(int at, int row, int column, float4 x, float4 weights) {
        uint2 four = {pair_of<WEIGHTS_FLOAT16>(x.x * weights.x, x.y * weights.y), pair_of<WEIGHTS_FLOAT16>(x.z * weights.z, x.w * weights.w)};
        put_word(at + (row * HIDDEN + column) / 4, four, (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w));
    }

    // Matrices -----------------------------------------------------------------------------------------------------------

    // The weights of some tiles' slots, for each sixteen columns of this warp's segment of each: read while words are awaited.
    template <int PARTS> DEVICE void load_weights(uint2 (&weights)[PIECES][batch_slots(PARTS)], int tiles, int parts) {
        int slots = tiles * parts;
        if (lane < slots) await_half(lane, warp / (WARPS / 2));
        warp_sync();
        int row = tile_row(lane / 4), piece = lane % 4 / 2;
        const char *sources[batch_slots(PARTS)];
#pragma unroll
        for (int b = 0; b < batch_slots(PARTS); b++) {
            bool missing = b / PARTS >= tiles || b % PARTS >= parts;  // what is multiplied then is not used
            sources[b] = shared.ring[slot_ahead(missing ? 0 : b / PARTS * parts + b % PARTS)] + warp * (SLOT_BYTES / WARPS) + lane % 2 * 8;
        }
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int b = 0; b < batch_slots(PARTS); b++)
                weights[i][b] = load_pair(sources[b] + swizzled(i / 4 * TILE_ROWS + row, i % 4 * 2 + piece));
        release_slots(slots);
    }

    // scratch[(tile, segment, row, row of the tile)] gets the segments' sums.
    template <int PARTS> DEVICE void multiply_batch(uint4 (&x)[PARTS][PIECES], const uint2 (&weights)[PIECES][batch_slots(PARTS)],
                                                    int tiles, int parts, int segments, float *scratch) {
        float sums[batch_slots(PARTS)][4];
#pragma unroll
        for (int b = 0; b < batch_slots(PARTS); b++) sums[b][0] = sums[b][1] = sums[b][2] = sums[b][3] = 0;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int b = 0; b < batch_slots(PARTS); b++)
                multiply_tiles<WEIGHTS_FLOAT16>(sums[b], x[b % PARTS][i], weights[i][b].x, weights[i][b].y);
            // A row that is not used waits for the last of these: the compiler would put the chains one behind the other.
            if (i + 1 < PIECES)
#pragma unroll
                for (int part = 0; part < PARTS; part++) x[part][i + 1].y = float_bits(sums[batch_slots(PARTS) - 1][2]);
        }
        float *target = scratch + lane / 4 * TILE_ROWS + tile_row(lane % 4 * 2);
#pragma unroll
        for (int b = 0; b < batch_slots(PARTS); b++) {
            int segment = b % PARTS * WARPS + warp;
            if (b / PARTS >= tiles || b % PARTS >= parts || segment >= segments || lane / 4 >= rows()) continue;
            float *of = target + (b / PARTS * segments + segment) * ROWS * TILE_ROWS;
            of[0] = sums[b][0], of[tile_row(1)] = sums[b][1];
        }
    }

    // Multiply this block's tiles of a matrix with its input, and do with each row's sums of each half of a tile what the
    // phase is for. PARTS: those at once; it is compiled for each number that there is.
    template <int PARTS> DEVICE void multiply(int layer, int phase) {
        constexpr int TILES = batch_slots(PARTS) / PARTS;
        forget();
        const Matrix &m = matrix_of_phase[phase];
        Share share = share_of(m, index, layer);
        if (thread == 0) shared.progress++;
        u32 wanted = m.from == RESIDUAL_AT ? tag - 1 : tag;
        int groups = m.groups(), segments = m.segments_at_once(), round_tiles = m.round();
        uint4 x[PARTS][PIECES] = {};
        float4 total = {}, constants = {};
        for (int first = 0; first < share.count; first += round_tiles) {
            int end = least(share.count, first + round_tiles);
            int half = thread % 2, row = thread / 2 % rows(), own = first + thread / 2 / rows();
            int column = (share.first + own) * TILE_ROWS + half * 4;
            bool live = own < end;
            if (live) constants = constants_of(layer, phase, column);
            for (int group = 0; group < groups; group++) {
                int parts = PARTS < GROUP_PARTS ? PARTS : least(m.parts() - group * GROUP_PARTS, GROUP_PARTS);
                float *scratch = shared.scratch[round ^= 1];
                for (int tile = first; tile < end; tile += TILES) {
                    uint2 weights[PIECES][batch_slots(PARTS)];
                    int tiles = least(TILES, end - tile);
                    load_weights<PARTS>(weights, tiles, parts);
                    if (tile == first && (first == 0 || groups > 1)) {
                        gather<PARTS>(x, m, wanted, group, parts);
                    }
                    multiply_batch<PARTS>(x, weights, tiles, parts, segments, scratch + (tile - first) * segments * ROWS * TILE_ROWS);
                }
                consumers_sync();
                if (group == 0) total = {0, 0, 0, 0};
                if (live) {
                    const float *source = scratch + ((own - first) * segments * ROWS + row) * TILE_ROWS + half * 4;
                    int count = least(m.segments() - group * GROUP_PARTS * WARPS, segments);
                    for (int done = 0; done < count; done += WARPS) {
                        float4 sums[WARPS];
#pragma unroll
                        for (int i = 0; i < WARPS; i++) sums[i] = *(const float4 *)(source + least(done + i, count - 1) * ROWS * TILE_ROWS);
#pragma unroll
                        for (int i = 0; i < WARPS; i++)
                            if (done + i < count) total = {total.x + sums[i].x, total.y + sums[i].y, total.z + sums[i].z, total.w + sums[i].w};
                    }
                }
                if (group + 1 == groups) finish(layer, phase, column, own, row, half, total, constants, live);
            }
        }
    }

    // What the sums of four rows of a matrix are finished with, and is read beforehand: the weights of the norm that follows, or
    // biases.
    DEVICE float4 constants_of(int layer, int phase, int column) {
        if (phase == OUTPUT || phase == DOWN) return *(const float4 *)(launch.norms + (2 * layer + (phase == DOWN ? 2 : 1)) * HIDDEN + column);
        if (QKV_BIAS && phase == QKV) return *(const float4 *)(launch.qkv_bias + layer * QKV_ROWS + column);
        return {};
    }

    // `own`: the number of the tile in this block; `live`: there are such sums, which is not so for all threads of a warp.
    DEVICE void finish(int layer, int phase, int column, int own, int row, int half, float4 x, float4 constants, bool live) {
        if (phase == OUTPUT || phase == DOWN) {
            if (live) add_to_residual(layer, phase, column, own, row, half, x, constants);
            return;
        }
        float factor = live ? norm_factor(row) : 0.f;
        x = {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
        if (phase == QKV) {
            if (QKV_BIAS) x = {x.x + constants.x, x.y + constants.y, x.z + constants.z, x.w + constants.w};
            int at = QKV_AT + (row * QKV_ROWS + column) / 2;
            if (live) put_floats(at, x.x, x.y), put_floats(at + 1, x.z, x.w);
        } else if (phase == GATE_UP) {
            float4 up = {from_lane_xor(x.x, 1), from_lane_xor(x.y, 1), from_lane_xor(x.z, 1), from_lane_xor(x.w, 1)};
            if (live && !half)
                put_word(GATED_AT + row * (INNER / 4) + column / TILE_ROWS,
                         {weights_pair(gated(x.x, up.x), gated(x.y, up.y)), weights_pair(gated(x.z, up.z), gated(x.w, up.w))}, 0.f);
        } else if (live) {
            keep_scores(column, row, x);
        }
    }

    static DEVICE u32 weights_pair(float low, float high) { return pair_of<WEIGHTS_FLOAT16>(low, high); }
    static DEVICE float gated(float gate, float up) {
        return gate * quotient(1.f, 1.f + power_of_two(-gate * 1.4426950408889634f)) * up;
    }

    DEVICE void add_to_residual(int layer, int phase, int column, int own, int row, int half, float4 x, float4 norm) {
        int site = phase == DOWN;  // after attention, or after the MLP
        float4 *kept = (float4 *)&shared.residual[own][row][half * 4];
        x = {kept->x + x.x, kept->y + x.y, kept->z + x.z, kept->w + x.w};
        *kept = x;
        put_residual(site ? RESIDUAL_AT : MIDDLE_AT, row, column, x, norm);
        if (launch.residuals)
            *(float4 *)(launch.residuals + (((u64)(step * rows() + row) * LAYERS + layer) * 2 + site) * HIDDEN + column) = x;
    }

    DEVICE void keep_scores(int column, int row, float4 x) {
        float of[4] = {x.x, x.y, x.z, x.w};
        bool watched = launch.scores && step >= launch.scores_from;
        float *scores = launch.scores + ((u64)(step - launch.scores_from) * rows() + row) * VOCABULARY;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int candidate = column + i;
            if (candidate >= VOCABULARY) continue;
            if (watched) scores[candidate] = of[i];
            bool number = fabsf(of[i]) < INFINITE;
            keep_better(best, best_id, number ? of[i] : INFINITE, number ? candidate : NO_ID);
        }
    }

    // This block's numbers of the embedding.
    DEVICE void embed() {
        Share share = share_of(matrix_of_phase[OUTPUT], index, 0);
        for (int i = thread; i < share.count * rows() * 2; i += THREADS) {
            int half = i % 2, row = i / 2 % rows(), own = i / 2 / rows(), column = (share.first + own) * TILE_ROWS + half * 4;
            uint2 four = *(const uint2 *)(launch.embedding + (u64)shared.ids[row] * HIDDEN + column);
            float4 x = {low(four.x), high(four.x), low(four.y), high(four.y)};
            if (WEIGHTS_FLOAT16)
                x = {float16_float((u16)four.x), float16_float((u16)(four.x >> 16)), float16_float((u16)four.y), float16_float((u16)(four.y >> 16))};
            *(float4 *)&shared.residual[own][row][half * 4] = x;
            put_residual(RESIDUAL_AT, row, column, x, *(const float4 *)(launch.norms + column));
        }
        consumers_sync();  // others than those who put them read them
    }

    // Attention ----------------------------------------------------------------------------------------------------------

    struct HeadPart { float2 first, second; };  // a lane's two values of each half of a head

    DEVICE HeadPart load_part(const float *head) {
        if (2 * lane >= HALF) return {};
        return {*(const float2 *)(head + 2 * lane), *(const float2 *)(head + HALF + 2 * lane)};
    }

    DEVICE HeadPart await_part(int at) {
        HeadPart part = {};
        if (2 * lane < HALF) {
            uint4 first, second;
            Patience patience;
            do first = get(launch.exchange + at + lane), second = get(launch.exchange + at + HALF / 2 + lane);
            while ((first.y != tag || first.w != tag || second.y != tag || second.w != tag) && !patience.ended(*this));
            part = {{bits_float(first.x), bits_float(first.z)}, {bits_float(second.x), bits_float(second.z)}};
        }
        warp_sync();
        return part;
    }

    // Squares of the two halves are added first, then neighbours.
    DEVICE HeadPart normed_part(HeadPart x, const HeadPart &norm) {
        float squares = (x.first.x * x.first.x + x.second.x * x.second.x) + (x.first.y * x.first.y + x.second.y * x.second.y);
#pragma unroll
        for (int mask = 1; mask < HALF / 2; mask <<= 1) squares += from_lane_xor(squares, mask);
        float factor = reciprocal_root(squares * (1.f / HEAD_SIZE) + EPSILON);
        return {{x.first.x * factor * norm.first.x, x.first.y * factor * norm.first.y},
                {x.second.x * factor * norm.second.x, x.second.y * factor * norm.second.y}};
    }

    // `rotation` has the cosines in its first half, the sines in its second.
    DEVICE HeadPart rotated_part(const HeadPart &x, const HeadPart &rotation) {
        float2 cosine = rotation.first, sine = rotation.second;
        return {{x.first.x * cosine.x - x.second.x * sine.x, x.first.y * cosine.y - x.second.y * sine.y},
                {x.second.x * cosine.x + x.first.x * sine.x, x.second.y * cosine.y + x.first.y * sine.y}};
    }

    DEVICE void store_part(u32 *head, const HeadPart &x) {
        if (2 * lane >= HALF) return;
        head[lane] = pair_of<CACHE_FLOAT16>(x.first.x, x.first.y);
        head[HALF / 2 + lane] = pair_of<CACHE_FLOAT16>(x.second.x, x.second.y);
    }

    // A unit's queries, and if it has the current token its key and value, into shared memory.
    DEVICE void gather_heads(const Unit &unit, int layer) {
        HeadPart rotation = load_part(launch.rotation + (u64)unit.position * HEAD_SIZE), norm = {};
        for (int head = warp; head < (unit.current() ? QUERIES + 2 : QUERIES); head += WARPS) {
            int kind = greatest(head - QUERIES + 1, 0);  // of a query, key or value
            int of_kind = kind == 0 ? unit.head * QUERIES + head : (kind == 1 ? HEADS : HEADS + KV_HEADS) + unit.head;
            if (HEAD_NORMS && kind < 2) norm = load_part(launch.head_norms + (2 * layer + kind) * HEAD_SIZE);
            HeadPart part = await_part(QKV_AT + (unit.row * QKV_ROWS + of_kind * HEAD_SIZE) / 2);
            if (HEAD_NORMS && kind < 2) part = normed_part(part, norm);
            if (kind < 2) part = rotated_part(part, rotation);
            store_part(kind == 0 ? shared.query[head] : kind == 1 ? shared.key : shared.value, part);
        }
        consumers_sync();
    }

    // Sixteen bytes of a key or value of a page, which was copied in two halves of 32 tokens.
    static DEVICE int page_at(int token, int piece) {
        return token / 32 * (PAGE_BYTES / 2) + swizzled(piece / 8 * 32 + token % 32, piece % 8);
    }

    // The scores of half of a page's keys, four tiles of eight: sums[tile][0 and 1] are those of query lane / 4.
    DEVICE void score_keys(const Unit &unit, int page, int half, float (&sums)[4][4]) {
        char *keys = shared.ring[slot_ahead(page)];
        await_half(page, half);
        int current = unit.position - (unit.chunk * CHUNK_PAGES + page) * PAGE;  // the place of the current token
        if (unit.current() && current / 32 == half && current < PAGE && lane < HEAD_SIZE / 8)
            *(uint4 *)(keys + page_at(current, lane)) = *(const uint4 *)(shared.key + 4 * lane);
        warp_sync();
#pragma unroll
        for (int i = 0; i < 16; i++) sums[i / 4][i % 4] = 0;
#pragma unroll
        for (int first = 0; first < HEAD_SIZE / 16; first += 4) {
            uint2 query[4], key[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                query[i] = load_pair((const char *)(shared.query[lane / 4 % QUERIES] + 8 * (first + i) + lane % 4 * 2));
#pragma unroll
                for (int t = 0; t < 4; t++)
                    key[i][t] = load_pair(keys + page_at(half * 32 + t * 8 + tile_row(lane / 4), 2 * (first + i) + lane % 4 / 2) + lane % 2 * 8);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int t = 0; t < 4; t++) multiply_tiles<CACHE_FLOAT16>(sums[t], both_halves(query[i].x, query[i].y), key[i][t].x, key[i][t].y);
        }
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                bool seen = half * 32 + t * 8 + tile_row(lane % 4 * 2 + e) <= current;
                sums[t][e] = seen ? sums[t][e] * QUERY_SCALE : -INFINITE;
            }
    }

    // Half of the values of a page, weighted: tiles of eight numbers of a head; then the sum of the weights.
    static constexpr int VALUE_TILES = HEAD_SIZE / 16;
    DEVICE void add_values(const Unit &unit, int ahead, int page, int half, float (&sums)[VALUE_TILES][4], float (&weight_sums)[4]) {
        constexpr int HEAD_PIECES = HEAD_SIZE / 16;  // of sixteen bytes, in half of a head
        constexpr u32 ONES = CACHE_FLOAT16 ? 0x3c003c00 : 0x3f803f80;
        char *values = shared.ring[slot_ahead(ahead)];
        await_half(ahead, 0), await_half(ahead, 1);
        int current = unit.position - (unit.chunk * CHUNK_PAGES + page) * PAGE;
        if (unit.current() && current < PAGE) {
            if (lane < HEAD_PIECES) *(uint4 *)(values + page_at(current, half * HEAD_PIECES + lane)) = *(const uint4 *)(shared.value + 4 * (half * HEAD_PIECES + lane));
            int end = (current / 16 + 1) * 16 * HEAD_PIECES;  // beyond it nothing is read
            for (int i = (current + 1) * HEAD_PIECES + lane; i < end; i += 32)  // what lies there may be no number
                *(uint4 *)(values + page_at(i / HEAD_PIECES, half * HEAD_PIECES + i % HEAD_PIECES)) = {0, 0, 0, 0};
        }
        warp_sync();
#pragma unroll
        for (int t = 0; t < VALUE_TILES; t++) sums[t][0] = sums[t][1] = sums[t][2] = sums[t][3] = 0;
        weight_sums[0] = weight_sums[1] = weight_sums[2] = weight_sums[3] = 0;
#pragma unroll
        for (int i = 0; i < PAGE / 16; i++) {
            if (16 * i > current) break;  // nobody looks there
            const u32 *row = shared.weights[page][lane / 4 % QUERIES] + 8 * i + lane % 4;
            uint4 weights = both_halves(row[0], row[4]);
            multiply_tiles<CACHE_FLOAT16>(weight_sums, weights, ONES, ONES);
#pragma unroll
            for (int t = 0; t < VALUE_TILES; t += 2) {
                uint4 two = load_transposed(values + page_at(16 * i + lane % 16, half * HEAD_PIECES + t + lane / 16));
                multiply_tiles<CACHE_FLOAT16>(sums[t], weights, two.x, two.y);
                multiply_tiles<CACHE_FLOAT16>(sums[t + 1], weights, two.z, two.w);
            }
        }
    }

    DEVICE float *page_values(int page, int query) { return &shared.scratch[0][0] + (page * QUERIES + query) * PARTIAL_WORDS; }
    DEVICE int partial_at(int row, int head, int chunk) {
        return PARTIAL_AT + ((row * HEADS + head) * launch.most_chunks + chunk) * (PARTIAL_WORDS / 2);
    }

    DEVICE void attend(const Unit unit, int layer) {
        forget();
        int page = warp / 2, half = warp % 2, pages = unit.pages(), query = lane / 4;
        bool busy = page < pages;
        if (thread == 0) shared.progress++;
        gather_heads(unit, layer);
        float scores[4][4];
        if (busy) {
            score_keys(unit, page, half, scores);
            float maximum = -INFINITE;
#pragma unroll
            for (int t = 0; t < 4; t++) maximum = fmaxf(maximum, fmaxf(scores[t][0], scores[t][1]));
            maximum = fmaxf(maximum, from_lane_xor(maximum, 1));
            maximum = fmaxf(maximum, from_lane_xor(maximum, 2));
            if (lane % 4 == 0 && query < QUERIES) shared.maximum[warp][query] = maximum;
        }
        release_slots(pages);
        consumers_sync();
        float maximum = 0;
        if (busy && query < QUERIES) {
            maximum = fmaxf(shared.maximum[2 * page][query], shared.maximum[2 * page + 1][query]);
            u16 *weights = (u16 *)shared.weights[page][query];
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    weights[half * 32 + t * 8 + tile_row(lane % 4 * 2 + e)] = (u16)pair_of<CACHE_FLOAT16>(power_of_two(scores[t][e] - maximum), 0.f);
        }
        consumers_sync();
        if (busy) {
            float values[VALUE_TILES][4], sums[4];
            add_values(unit, page, page, half, values, sums);
            if (query < QUERIES) {
                float *target = page_values(page, query);
#pragma unroll
                for (int t = 0; t < VALUE_TILES; t++)
                    *(float2 *)(target + half * HALF + 8 * t + lane % 4 * 2) = {values[t][0], values[t][1]};
                if (half == 0 && lane % 4 == 0) target[HEAD_SIZE] = maximum, target[HEAD_SIZE + 1] = sums[0];
            }
        }
        release_slots(pages);
        consumers_sync();
        put_values(unit, pages);
        if (unit.current()) store_key_and_value(unit, layer);
        consumers_sync();  // before other sums take the place of the values
    }

    // Merge the pages in order, and write the values, or with more than one chunk what merge_chunks needs.
    DEVICE void put_values(const Unit &unit, int pages) {
        for (int i = thread; i < QUERIES * HEAD_SIZE / 4; i += THREADS) {
            int query = i / (HEAD_SIZE / 4), at = i % (HEAD_SIZE / 4) * 4;
            const float *source = page_values(0, query);
            Softmax state = {source[HEAD_SIZE], source[HEAD_SIZE + 1]};
            float x[4] = {source[at], source[at + 1], source[at + 2], source[at + 3]};
            for (int page = 1; page < pages; page++) {
                source = page_values(page, query);
                Merge merged(state, {source[HEAD_SIZE], source[HEAD_SIZE + 1]});
#pragma unroll
                for (int e = 0; e < 4; e++) x[e] = merged(x[e], source[at + e]);
            }
            int head = unit.head * QUERIES + query;
            if (chunks_of(unit.position) == 1) {
                put_attended(unit.row, head, at, x, state.sum);
                continue;
            }
            int words = partial_at(unit.row, head, unit.chunk);
            put_floats(words + at / 2, x[0], x[1]), put_floats(words + at / 2 + 1, x[2], x[3]);
            if (at == 0) put_floats(words + HALF, state.maximum, state.sum);
        }
    }

    DEVICE void put_attended(int row, int head, int at, const float (&x)[4], float sum) {
        uint2 four = {pair_of<WEIGHTS_FLOAT16>(quotient(x[0], sum), quotient(x[1], sum)), pair_of<WEIGHTS_FLOAT16>(quotient(x[2], sum), quotient(x[3], sum))};
        put_word(ATTENDED_AT + (row * ATTENDED + head * HEAD_SIZE + at) / 4, four, 0.f);
    }

    // Keep the current key and value; nobody reads them before the next token.
    DEVICE void store_key_and_value(const Unit &unit, int layer) {
        if (thread >= HEAD_SIZE) return;
        int kind = thread / HALF, at = thread % HALF;
        u64 plane = pool_plane(launch, unit.row, unit.position / PAGE, layer, kind, unit.head);
        ((u32 *)(launch.pool + (plane * PAGE + unit.position % PAGE) * HEAD_SIZE))[at] = (kind ? shared.value : shared.key)[at];
    }

    // Merge slices of sixteen numbers of a head over its chunks, in order: a warp for each, eight chunks at a time.
    DEVICE void merge_chunks() {
        constexpr int SLICES = HEAD_SIZE / 16;
        forget();
        for (int i = index + BLOCKS * warp; i < rows() * HEADS * SLICES; i += BLOCKS * WARPS) {
            int row = i / (HEADS * SLICES), head = i / SLICES % HEADS, at = i % SLICES * 16 + lane % 4 * 4;
            int chunks = chunks_of(shared.starts[row] + step);
            if (chunks == 1) continue;
            Softmax state = {LOWEST, 0};
            float x[4] = {};
            for (int first = 0; first < chunks; first += 8) {
                int chunk = first + lane / 4;
                uint4 low = {0, 0, 0, 0}, high = low, sums = low;
                if (chunk < chunks) {
                    int words = partial_at(row, head, chunk);
                    low = await_floats(words + at / 2), high = await_floats(words + at / 2 + 1), sums = await_floats(words + HALF);
                }
                warp_sync();
                for (int c = 0; c < 8 && first + c < chunks; c++) {
                    int from = 4 * c + lane % 4;
                    Softmax of_chunk = {bits_float(of_lane(sums.x, from)), bits_float(of_lane(sums.z, from))};
                    float values[4] = {bits_float(of_lane(low.x, from)), bits_float(of_lane(low.z, from)),
                                       bits_float(of_lane(high.x, from)), bits_float(of_lane(high.z, from))};
                    bool begins = first + c == 0;
                    Merge merged(state, of_chunk);
                    if (begins) state = of_chunk;
#pragma unroll
                    for (int e = 0; e < 4; e++) x[e] = begins ? values[e] : merged(x[e], values[e]);
                }
            }
            if (lane < 4) put_attended(row, head, at, x, state.sum);
        }
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

    // Each row's best score of this block, for all.
    DEVICE void put_best() {
        shared.best_score[thread] = best, shared.best_id[thread] = best_id;
        consumers_sync();
        for (int row = warp; row < rows(); row += WARPS) {
            float of_row = -INFINITE;
            int of_row_id = VOCABULARY;
            for (int i = lane; i < THREADS; i += 32)
                if (i / 2 % rows() == row) keep_better(of_row, of_row_id, shared.best_score[i], shared.best_id[i]);
            best_of_warp(of_row, of_row_id);
            if (lane) continue;
            fence_for_copies();
            fence();  // the keys and values that this block stored, before the word that says so
            put(launch.exchange + BEST_AT + row * BLOCKS + index, float_bits(of_row), (u32)of_row_id, 0, tag);
        }
    }

    // Each row's best of all blocks.
    DEVICE void choose() {
        for (int row = warp; row < rows(); row += WARPS) {
            float best = -INFINITE;
            int id = VOCABULARY;
            for (int b = lane; b < BLOCKS; b += 32) {
                Patience patience;
                uint4 word;
                do word = get(launch.exchange + BEST_AT + row * BLOCKS + b);
                while (word.w != tag && !patience.ended(*this));
                keep_better(best, id, bits_float(word.x), (int)word.y);
            }
            fence();  // what the blocks stored before, before what follows
            warp_sync();
            best_of_warp(best, id);
            if (lane == 0) shared.ids[row] = id;
        }
        consumers_sync();
    }

    // All ---------------------------------------------------------------------------------------------------------------

    DEVICE void multiply_parts(int layer, int phase) {
        int parts = matrix_of_phase[phase].parts_at_once();
        if (is_needed(1) && parts == 1) multiply<1>(layer, phase);
        else if (is_needed(2) && parts == 2) multiply<2>(layer, phase);
        else if (is_needed(3) && parts == 3) multiply<3>(layer, phase);
        else if (is_needed(4)) multiply<4>(layer, phase);
    }
    static DEVICE constexpr bool is_needed(int parts) {
        return OF_PHASE[QKV].parts_at_once() == parts || OF_PHASE[OUTPUT].parts_at_once() == parts || OF_PHASE[DOWN].parts_at_once() == parts;
    }

    // The head is one more layer, of one phase.
    DEVICE void run_layers() {
        for (int layer = 0; layer <= LAYERS; layer++) {
            tag++;
            best = -INFINITE, best_id = VOCABULARY;
            for (int phase = layer < LAYERS ? QKV : HEAD; phase <= (layer < LAYERS ? DOWN : HEAD); phase++) {
                if (phase == OUTPUT) {
                    each_unit(*this, layer, step, [&](const Unit &unit) { attend(unit, layer); });
                    merge_chunks();
                }
                multiply_parts(layer, phase);
            }
        }
    }

    // Whether to go on after a token: thread 0 decides for its block, and all blocks alike unless they gave up.
    DEVICE bool finish_token() {
        if (thread == 0) {
            bool more = step + 1 < launch.steps && !shared.halted;
            for (int row = 0; row < rows(); row++) more &= rows() > 1 || shared.ids[row] != NO_ID;
            if (index == 0 && !shared.halted) {
                for (int row = 0; row < rows(); row++) launch.chosen_ids[step * rows() + row] = shared.ids[row];
                launch.status[1] = step + 1;
            }
            shared.more = more;
            if (!more) shared.halted = 1;
            for (int row = 0; row < rows(); row++) {
                if (step + 1 < launch.given) shared.ids[row] = launch.given_ids[(step + 1) * rows() + row];
                if (shared.ids[row] < 0) shared.ids[row] = 0;
            }
            barrier_arrive(&shared.token_begun);
        }
        consumers_sync();
        return shared.more;
    }

    DEVICE void run() {
        if (thread < rows()) shared.ids[thread] = launch.given_ids[thread];
        consumers_sync();
        for (bool more = true; more; step++) {
            embed();
            run_layers();
            put_best();
            choose();
            more = finish_token();
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
        shared.halted = shared.progress = 0;
        publish_barriers();
    }
    if (block.thread < block.rows()) shared.starts[block.thread] = block.launch.starts[block.thread];
    block_sync();
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) decode(const __grid_constant__ Launch launch) {
    int thread = thread_index();
    Block block{launch, shared_memory(), block_index(), thread, thread / 32, thread % 32};
    if (block.index == launch.absent_block) return;
    prepare(block);
    if (block.warp < WARPS) {
        take_registers();
        Consumer(block).run();
    } else {
        give_registers();
        if (block.thread == THREADS) Producer{block, evict_first()}.run();
        else if (block.thread == THREADS + 32) watch_over(block);
    }
}
