// Pinning a thread to one logical processor, where the system can: on Linux. Elsewhere, and if the processor is not ours any
// more, the thread runs where the system puts it.
#pragma once
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace glass {

inline void pin_thread(std::thread& thread, int processor) {
#if defined(__linux__)
    cpu_set_t processors;
    CPU_ZERO(&processors);
    if (processor < 0 || processor >= CPU_SETSIZE) return;
    CPU_SET(processor, &processors);
    pthread_setaffinity_np(thread.native_handle(), sizeof processors, &processors);
#else
    (void)thread, (void)processor;
#endif
}

}  // namespace glass
