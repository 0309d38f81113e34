// What the order of sums in engine/gpu/order.py costs a prompt's products: wgmma with K in segments, beside one chain, and
// whether every bit equals mma.sync's in the same order. On a Hopper GPU:
//
//     nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -o segments bench/segments.cu && ./segments
//
// Products are tokens (M, K) times weights (N, K) transposed, in bfloat16. One thread loads tiles of 128 tokens and TILE weights, 64
// columns at a time, with the copy engine; two groups of four warps multiply 64 tokens each. A tile's weights may be
// multiplied in PARTS, so that sums of a segment and totals fit the registers.

#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

typedef __nv_bfloat16 Number;
#define CHECK(call) \
    do { \
        if (auto error = call) printf("error %d in line %d\n", (int)error, __LINE__), exit(1); \
    } while (0)

constexpr int TOKENS = 128, STEP = 64, THREADS = 384;  // of a tile; columns of a stage; one group produces, two multiply

// Barriers, copies and tensor cores ------------------------------------------------------------------------------------------

__device__ uint32_t address(const void *pointer) { return (uint32_t)__cvta_generic_to_shared(pointer); }
__device__ void barrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals) : "memory");
}
__device__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ void barrier_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}
__device__ void barrier_wait(uint64_t *barrier, int parity) {
    uint32_t passed = 0;
    while (!passed)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(passed) : "r"(address(barrier)), "r"(parity) : "memory");
}
__device__ void load_tile(void *target, const CUtensorMap *map, int column, int row, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(address(target)), "l"(map), "r"(column), "r"(row), "r"(address(barrier)) : "memory");
}
// Rows of 128 bytes, swizzled, eight to a group; sixteen columns further are two units of sixteen bytes.
__device__ uint64_t descriptor(const void *tile) {
    return (uint64_t)(address(tile) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
template <int ROWS> struct Multiply;  // sums (64, ROWS) += tokens (64, 16) * weights (ROWS, 16) transposed; or = if not `keep`
template <> struct Multiply<64> {
    static __device__ void run(float (&sums)[32], uint64_t tokens, uint64_t weights, int keep) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
                     "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, "
                     "1, 0, 0;\n}" : SIXTEEN(0), SIXTEEN(16) : "l"(tokens), "l"(weights), "r"(keep));
    }
};
template <> struct Multiply<128> {
    static __device__ void run(float (&sums)[64], uint64_t tokens, uint64_t weights, int keep) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
                     "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
                     "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
                     "%57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0;\n}"
                     : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48) : "l"(tokens), "l"(weights), "r"(keep));
    }
};
__device__ void begin_multiplying() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void end_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ void await_groups() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }

// The product ------------------------------------------------------------------------------------------------------------------

// SEGMENT: columns of a chain; 0: all of them.
template <int TILE, int PARTS, int SEGMENT, int STAGES>
__global__ void __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ CUtensorMap tokens_map, const __grid_constant__ CUtensorMap weights_map, Number *out, int m, int n,
            int k) {
    extern __shared__ __align__(1024) char memory[];
    constexpr int TOKEN_BYTES = TOKENS * STEP * 2, WEIGHT_BYTES = TILE * STEP * 2, ROWS = TILE / PARTS;
    char *tokens = memory, *weights = memory + STAGES * TOKEN_BYTES;
    uint64_t *full = (uint64_t *)(weights + STAGES * WEIGHT_BYTES), *empty = full + STAGES;
    int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + i, 1), barrier_init(empty + i, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int token_tiles = (m + TOKENS - 1) / TOKENS, tiles = token_tiles * ((n + TILE - 1) / TILE), steps = k / STEP;
    int stage = 0, parity = 0;
    auto next = [&] {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    };
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread == 0)
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
                for (int step = 0; step < steps; step++, next()) {
                    barrier_wait(empty + stage, parity ^ 1);
                    barrier_expect(full + stage, TOKEN_BYTES + WEIGHT_BYTES);
                    load_tile(tokens + stage * TOKEN_BYTES, &tokens_map, step * STEP, tile % token_tiles * TOKENS, full + stage);
                    load_tile(weights + stage * WEIGHT_BYTES, &weights_map, step * STEP, tile / token_tiles * TILE, full + stage);
                }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    auto multiply = [&](float (&sums)[ROWS / 2], int part, bool first) {  // a stage
        const char *own = tokens + stage * TOKEN_BYTES + (group - 1) * 64 * STEP * 2;
        const char *of_part = weights + stage * WEIGHT_BYTES + part * ROWS * STEP * 2;
        begin_multiplying();
        for (int i = 0; i < STEP / 16; i++)
            Multiply<ROWS>::run(sums, descriptor(own) + 2 * i, descriptor(of_part) + 2 * i, !first || i > 0);
        end_group();
    };
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float totals[PARTS][ROWS / 2] = {};
        if constexpr (SEGMENT == 0) {
            int last = -1;
            for (int step = 0; step < steps; step++) {
                barrier_wait(full + stage, parity);
                multiply(totals[0], 0, step == 0);
                await_groups<1>();
                if (last >= 0 && thread == 0) barrier_arrive(empty + last);
                last = stage, next();
            }
            await_groups<0>();
            if (thread == 0) barrier_arrive(empty + last);
        } else {
            for (int step = 0; step < steps; step += SEGMENT / STEP) {
                int first_stage = stage, first_parity = parity;
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    float sums[ROWS / 2];
                    stage = first_stage, parity = first_parity;
#pragma unroll
                    for (int i = 0; i < SEGMENT / STEP; i++, next()) {
                        if (part == 0) barrier_wait(full + stage, parity);
                        multiply(sums, part, i == 0);
                    }
                    await_groups<0>();
                    if (part == PARTS - 1 && thread == 0)
                        for (int i = 0; i < SEGMENT / STEP; i++) barrier_arrive(empty + (first_stage + i) % STAGES);
#pragma unroll
                    for (int i = 0; i < ROWS / 2; i++) totals[part][i] += sums[i];
                }
            }
        }
        int lane = thread % 32, token = tile % token_tiles * TOKENS + (group - 1) * 64 + thread / 32 * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < TILE / 8; i++) {
            int column = tile / token_tiles * TILE + i * 8 + lane % 4 * 2;
            const float *sums = totals[i * 8 / ROWS] + i * 8 % ROWS / 2;
            for (int half = 0; half < 2; half++)
                if (column < n && token + 8 * half < m)
                    *(__nv_bfloat162 *)(out + (size_t)(token + 8 * half) * n + column) =
                        __floats2bfloat162_rn(sums[2 * half], sums[2 * half + 1]);
        }
    }
}

// The same by mma.sync, a warp for each sixteen tokens and eight weights.
__global__ void reference(const Number *tokens, const Number *weights, Number *out, int n, int k, int segment) {
    int row = threadIdx.x / 4, pair = threadIdx.x % 4 * 2, token = blockIdx.y * 16, weight = blockIdx.x * 8;
    float totals[4] = {};
    auto two = [&](const Number *matrix, int r, int column) { return *(const uint32_t *)(matrix + (size_t)r * k + column); };
    for (int first = 0; first < k; first += segment) {
        float sums[4] = {};
        for (int column = first; column < first + segment && column < k; column += 16)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                         "{%0, %1, %2, %3};" : FOUR(0)
                         : "r"(two(tokens, token + row, column + pair)), "r"(two(tokens, token + row + 8, column + pair)),
                           "r"(two(tokens, token + row, column + pair + 8)), "r"(two(tokens, token + row + 8, column + pair + 8)),
                           "r"(two(weights, weight + row, column + pair)), "r"(two(weights, weight + row, column + pair + 8)));
        for (int i = 0; i < 4; i++) totals[i] += sums[i];
    }
    for (int i = 0; i < 4; i++) out[(size_t)(token + row + i / 2 * 8) * n + weight + pair + i % 2] = __float2bfloat16(totals[i]);
}

// Races ------------------------------------------------------------------------------------------------------------------------

__global__ void fill(Number *numbers, size_t count, uint32_t seed) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    uint32_t hash = ((uint32_t)i ^ seed) * 2654435761u;
    hash ^= hash >> 16, hash *= 0x85ebca6bu, hash ^= hash >> 13;
    if (i < count) numbers[i] = __float2bfloat16(((int)(hash & 0xffff) - 32768) / 32768.f);
}

decltype(&cuTensorMapEncodeTiled) encode;

struct Race {
    Number *tokens, *weights, *out, *expected;
    int m, n, k;

    CUtensorMap map(Number *matrix, int rows, int tile_rows) const {
        CUtensorMap map;
        cuuint64_t sizes[2] = {(cuuint64_t)k, (cuuint64_t)rows}, strides[1] = {(cuuint64_t)k * 2};
        cuuint32_t box[2] = {STEP, (cuuint32_t)tile_rows}, steps[2] = {1, 1};
        CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
        return map;
    }

    template <int TILE, int PARTS, int SEGMENT, int STAGES> void run() {
        static_assert(SEGMENT / STEP <= STAGES, "a segment's stages are held until it is added");
        auto kernel = product<TILE, PARTS, SEGMENT, STAGES>;
        int bytes = STAGES * (TOKENS + TILE) * STEP * 2 + 1024, tiles = (m + TOKENS - 1) / TOKENS * ((n + TILE - 1) / TILE), blocks;
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
        CUtensorMap of_tokens = map(tokens, m, TOKENS), of_weights = map(weights, n, TILE);
        auto launch = [&] { kernel<<<std::min(blocks, tiles), THREADS, bytes>>>(of_tokens, of_weights, out, m, n, k); };
        CHECK(cudaMemset(out, 0xff, (size_t)m * n * 2));
        launch();
        reference<<<dim3(n / 8, m / 16), 32>>>(tokens, weights, expected, n, k, SEGMENT ? SEGMENT : k);
        CHECK(cudaDeviceSynchronize());
        std::vector<uint16_t> bits((size_t)m * n), wanted(bits.size());
        cudaMemcpy(bits.data(), out, bits.size() * 2, cudaMemcpyDeviceToHost);
        cudaMemcpy(wanted.data(), expected, bits.size() * 2, cudaMemcpyDeviceToHost);
        std::vector<float> times;
        cudaEvent_t begin, end;
        cudaEventCreate(&begin), cudaEventCreate(&end);
        for (int round = 0; round < 7; round++) {
            float milliseconds;
            cudaEventRecord(begin);
            for (int i = 0; i < 20; i++) launch();
            cudaEventRecord(end);
            CHECK(cudaEventSynchronize(end));
            cudaEventElapsedTime(&milliseconds, begin, end);
            times.push_back(milliseconds / 20);
        }
        std::sort(times.begin(), times.end());
        printf("  tiles of %3d in %d, segments of %3d, %d stages: %4.0f TFLOP/s, %s\n", TILE, PARTS, SEGMENT, STAGES,
               2.0 * m * n * k / times[3] / 1e9, bits == wanted ? "the bits of mma.sync" : "OTHER BITS");
    }
};

int main() {
    cudaDriverEntryPointQueryResult found;
    cudaFree(0);
    CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", (void **)&encode, cudaEnableDefault, &found));
    Race race;
    size_t most = (size_t)8192 * 4096;
    for (auto matrix : {&race.tokens, &race.weights, &race.out, &race.expected}) CHECK(cudaMalloc(matrix, most * 2));
    fill<<<(most + 255) / 256, 256>>>(race.tokens, most, 1), fill<<<(most + 255) / 256, 256>>>(race.weights, most, 2);
    int sizes[][3] = {{2048, 4096, 1024}, {2048, 6144, 1024}, {2048, 1024, 2048}, {2048, 1024, 3072}, {2048, 4096, 4096}, {8192, 4096, 4096}};
    for (auto [m, n, k] : sizes) {
        race.m = m, race.n = n, race.k = k;
        printf("%d tokens, %d rows, %d columns\n", m, n, k);
        race.run<64, 1, 128, 8>(), race.run<128, 1, 0, 6>(), race.run<128, 1, 128, 6>(), race.run<128, 1, 256, 6>(), race.run<256, 2, 128, 4>();
    }
}
