// Which levels an x86 processor can run: what it has, and what its system saves when it switches threads, or grants.
//
// CPUID is asked directly, because __builtin_cpu_supports needs a table out of the compiler's own libraries, which not every
// toolchain has, and knows an extension only years after the compiler's flags do.
#pragma once
#include <cpuid.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace glass {

class CpuFeatures {
  public:
    CpuFeatures() {
        uint32_t unused;
        if (!__get_cpuid(1, &unused, &unused, &leaf1_ecx, &unused)) return;
        if (has(leaf1_ecx, OSXSAVE)) {
            uint32_t low, high;
            __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
            saved_state = uint64_t(high) << 32 | low;
        }
        uint32_t last_subleaf = 0;
        __get_cpuid_count(7, 0, &last_subleaf, &leaf7_ebx, &leaf7_ecx, &leaf7_edx);
        if (last_subleaf >= 1) __get_cpuid_count(7, 1, &leaf7_1_eax, &unused, &unused, &unused);
    }

    bool avx2() const {
        return saves(AVX_STATE) && has(leaf1_ecx, FMA, F16C) && has(leaf7_ebx, AVX2, BMI2);
    }
    bool avxvnni() const { return avx2() && has(leaf7_1_eax, AVX_VNNI); }
    bool avx512vnni() const {
        return avx2() && saves(AVX512_STATE) && has(leaf7_ebx, AVX512F, AVX512DQ, AVX512BW, AVX512VL) &&
               has(leaf7_ecx, AVX512_VNNI);
    }

    bool amx() const {
        return avx512vnni() && saves(AMX_STATE) && has(leaf7_edx, AMX_BF16, AMX_TILE, AMX_INT8) && is_amx_granted();
    }

  private:
    enum { FMA = 12, OSXSAVE = 27, F16C = 29 };                                                // bits of leaf 1, ECX
    enum { AVX2 = 5, BMI2 = 8, AVX512F = 16, AVX512DQ = 17, AVX512BW = 30, AVX512VL = 31 };  // of leaf 7, EBX
    enum { AVX512_VNNI = 11 };                                                                 // of leaf 7, ECX
    enum { AMX_BF16 = 22, AMX_TILE = 24, AMX_INT8 = 25 };                                      // of leaf 7, EDX
    enum { AVX_VNNI = 4 };                                                                     // of leaf 7.1, EAX
    static constexpr uint64_t AVX_STATE = 0x6, AVX512_STATE = 0xe6, AMX_STATE = 0x60000;       // parts of XCR0

    // Linux gives the registers of AMX, eight kilobytes for each thread, to a process that asks for them; once is enough.
    static bool is_amx_granted() {
#if defined(__linux__)
        constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
        static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
        return granted;
#else
        return false;
#endif
    }

    template <class... Bits> static bool has(uint32_t word, Bits... bits) { return ((word >> bits & 1) && ...); }
    bool saves(uint64_t state) const { return (saved_state & state) == state; }

    uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0, leaf7_1_eax = 0;
    uint64_t saved_state = 0;
};

}  // namespace glass
