// Which levels of vector instructions this library has and this processor and operating system can run.
#pragma once
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels.h"

namespace glass {

#ifdef LEVEL_dotprod
inline bool has_dot_products() {
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

#if defined(__x86_64__)
struct Features {  // of Intel's leaf 7, which compilers do not all know by name
    bool avx_vnni = false, amx = false;
    Features() {
        unsigned a, b, c, d, most;
        if (!__get_cpuid_count(7, 0, &most, &b, &c, &d)) return;
        amx = d >> 22 & 1 && d >> 24 & 1 && d >> 25 & 1;  // BF16, TILE, INT8
        if (most >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) avx_vnni = a >> 4 & 1;
    }
};

// Linux grants the registers of AMX, eight kilobytes for each thread, to a process that asks for them; once is enough.
inline bool granted_amx() {
#if defined(__linux__)
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return granted;
#else
    return false;
#endif
}
#endif

// Best first.
inline std::vector<const Kernels*> levels() {
    std::vector<const Kernels*> available;
#if defined(__x86_64__)
    const Features features;
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    (void)features, (void)avx512;
#ifdef LEVEL_amx
    if (avx512 && features.amx && granted_amx()) available.push_back(&kernels_amx);
#endif
#ifdef LEVEL_avx512vnni
    if (avx512) available.push_back(&kernels_avx512vnni);
#endif
#ifdef LEVEL_avxvnni
    if (avx2 && features.avx_vnni) available.push_back(&kernels_avxvnni);
#endif
#ifdef LEVEL_avx2
    if (avx2) available.push_back(&kernels_avx2);
#endif
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

}  // namespace glass
