// Which levels of vector instructions this library has and this machine can run.
#pragma once
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__x86_64__)
#include "cpu_features.h"
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

// Best first.
inline std::vector<const Kernels*> levels() {
    std::vector<const Kernels*> available;
#if defined(__x86_64__)
    [[maybe_unused]] const CpuFeatures cpu;
#endif
#ifdef LEVEL_amx
    if (cpu.amx()) available.push_back(&kernels_amx);
#endif
#ifdef LEVEL_avx512vnni
    if (cpu.avx512vnni()) available.push_back(&kernels_avx512vnni);
#endif
#ifdef LEVEL_avxvnni
    if (cpu.avxvnni()) available.push_back(&kernels_avxvnni);
#endif
#ifdef LEVEL_avx2
    if (cpu.avx2()) available.push_back(&kernels_avx2);
#endif
#ifdef LEVEL_dotprod
    if (has_dot_products()) available.push_back(&kernels_dotprod);
#endif
#ifdef LEVEL_neon
    available.push_back(&kernels_neon);
#endif
#ifdef LEVEL_portable
    available.push_back(&kernels_portable);
#endif
    return available;
}

}  // namespace glass
