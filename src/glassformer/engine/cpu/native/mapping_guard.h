// Keeps the process alive when a mapped file loses pages that a pass is about to read.
//
// Reading a page beyond the end of a truncated file, or one that the disk cannot deliver, raises SIGBUS, which ends the
// process. For registered mappings the handler puts zeros in place of the lost pages, counts the fault and lets the read
// go on; whoever runs the pass asks for the count afterwards and throws the results away. Any other SIGBUS goes to the
// handler that was there before.
#pragma once
#include <cstdint>

#if !defined(_WIN32)
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#endif

namespace glass {

#if defined(_WIN32)  // where a mapped file cannot be truncated
inline int guard_mapping(const void*, uint64_t) { return -1; }
inline void unguard_mapping(int) {}
inline int mapping_faults(int) { return 0; }
#else

struct GuardedMapping {
    std::atomic<uintptr_t> begin{0}, end{0};  // whole pages; both zero where nothing is registered
    std::atomic<int> faults{0};
};

constexpr int MAX_MAPPINGS = 4096;
inline GuardedMapping guarded_mappings[MAX_MAPPINGS];
inline std::atomic<int> all_faults{0};
inline struct sigaction previous_action;
inline std::atomic<bool> passed_on{false};  // whether that one has a signal now
inline uintptr_t page_bytes = 0;

// Async-signal-safe: it reads atomics and makes one system call.
inline void replace_lost_pages(int number, siginfo_t* info, void* context) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    for (GuardedMapping& mapping : guarded_mappings) {
        const uintptr_t begin = mapping.begin.load(), end = mapping.end.load();
        if (at < begin || at >= end) continue;
        const uintptr_t page = at / page_bytes * page_bytes;
        void* zeros = mmap(reinterpret_cast<void*>(page), end - page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (zeros == MAP_FAILED) break;
        mapping.faults.fetch_add(1);
        all_faults.fetch_add(1);
        return;
    }
    if (passed_on.exchange(true)) previous_action = {};  // it comes back from there: the two would call each other for ever
    if (previous_action.sa_flags & SA_SIGINFO) previous_action.sa_sigaction(number, info, context);
    else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN)
        sigaction(number, &previous_action, nullptr);  // the read is tried again, and ends the process
    else previous_action.sa_handler(number);
    passed_on.store(false);
}

inline std::mutex& guard_lock() {
    static std::mutex lock;
    return lock;
}

// Let our handler be the first, also after another library has put its own there.
inline void install_handler() {
    struct sigaction current {}, action {};
    sigaction(SIGBUS, nullptr, &current);
    if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == replace_lost_pages) return;
    previous_action = current;
    action.sa_sigaction = replace_lost_pages;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

// The number of a newly guarded mapping, or -1 if there is no room for another.
inline int guard_mapping(const void* address, uint64_t size) {
    std::lock_guard<std::mutex> guard(guard_lock());
    page_bytes = uintptr_t(sysconf(_SC_PAGESIZE));
    install_handler();
    const uintptr_t first = reinterpret_cast<uintptr_t>(address);
    for (int number = 0; number < MAX_MAPPINGS; ++number) {
        GuardedMapping& mapping = guarded_mappings[number];
        if (mapping.end.load()) continue;
        mapping.faults.store(0);
        mapping.begin.store(first / page_bytes * page_bytes);
        mapping.end.store((first + size + page_bytes - 1) / page_bytes * page_bytes);
        return number;
    }
    return -1;
}

inline void unguard_mapping(int number) {
    std::lock_guard<std::mutex> guard(guard_lock());
    guarded_mappings[number].end.store(0);
    guarded_mappings[number].begin.store(0);
}

// The faults of one mapping; of all that there ever were, for -1.
inline int mapping_faults(int number) { return (number < 0 ? all_faults : guarded_mappings[number].faults).load(); }
#endif

}  // namespace glass
