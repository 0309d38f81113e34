// What both persistent kernels have of the device: types, barriers, fences, and numbers of two bytes. The simulated device has
// functions of its own in place of these.

#define DEVICE __device__ __forceinline__

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum Error { NONE = 0, TIMED_OUT = 1 };

DEVICE constexpr int greatest(int a, int b) { return a > b ? a : b; }
DEVICE constexpr int least(int a, int b) { return a < b ? a : b; }

#ifndef SIMULATED
DEVICE u32 shared_address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }
DEVICE void barrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
DEVICE void barrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE void barrier_expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
DEVICE bool barrier_passed(u64 *barrier, u32 parity) {  // may wait for a moment
    u32 passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return passed;
}
DEVICE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE u64 evict_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEVICE void consumers_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
DEVICE void block_sync() { __syncthreads(); }
DEVICE void warp_sync() { __syncwarp(); }
DEVICE void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEVICE void fence_for_copies() { asm volatile("fence.proxy.async;" ::: "memory"); }  // between stores and bulk copies
DEVICE int load_status(const int *status) {
    int value;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(status) : "memory");
    return value;
}
DEVICE bool claim_status(int *status, int error) { return atomicCAS(status, NONE, error) == NONE; }
DEVICE float from_lane_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
DEVICE int from_lane_xor(int value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
DEVICE long long now() { return clock64(); }
DEVICE int block_index() { return blockIdx.x; }
DEVICE int thread_index() { return threadIdx.x; }
DEVICE float bits_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_bits(float value) { return __float_as_uint(value); }
DEVICE u32 bfloat16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
DEVICE u32 float16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
DEVICE float float16_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
#endif

DEVICE float low(u32 pair) { return bits_float(pair << 16); }
DEVICE float high(u32 pair) { return bits_float(pair & 0xffff0000u); }
