// A pool of threads. Between passes a thread spins for a moment, because the next token comes soon; then it sleeps.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "affinity.h"

namespace glass {

inline void cpu_pause() {
#if defined(__aarch64__)
    __asm__ __volatile__("isb");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Spin until a condition holds; after a while, yield.
template <class Condition> inline void spin_until(Condition condition) {
    for (int spin = 0; !condition(); ++spin) {
        if (spin < 4000) cpu_pause();
        else std::this_thread::yield();
    }
}

class ThreadPool {
  public:
    using Work = void (*)(void* argument, int thread);

    // `processors`: the one that each thread is pinned to, or null. Thread 0 is the caller's own, and never pinned.
    explicit ThreadPool(int size, const int32_t* processors = nullptr) : size_(size) {
        try {
            for (int thread = 1; thread < size; ++thread) {
                workers_.emplace_back([this, thread] { serve(thread); });
                if (processors) pin_thread(workers_.back(), processors[thread]);
            }
        } catch (...) {  // the system allows no more of them
            stop();
            throw;
        }
    }

    ~ThreadPool() { stop(); }

    int size() const { return size_; }

    // Run a function on this thread and on all workers that wake in time; returns when it has ended on all of them.
    void run(Work work, void* argument) {
        if (size_ == 1) return work(argument, 0);
        work_ = work;
        argument_ = argument;
        {
            std::lock_guard<std::mutex> guard(lock_);
            accepting_.store(true);
            generation_.fetch_add(1);
        }
        if (sleeping_.load() > 0) wake_.notify_all();
        work(argument, 0);
        accepting_.store(false);
        spin_until([this] { return active_.load() == 0; });
    }

  private:
    void stop() {
        {
            std::lock_guard<std::mutex> guard(lock_);
            stopping_ = true;
            generation_.fetch_add(1);
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

    static constexpr int SPIN_TURNS = 150000;  // a few milliseconds

    void serve(int thread) {
        for (int generation = 0;;) {
            for (int spin = 0; spin < SPIN_TURNS && generation_.load() == generation; ++spin) cpu_pause();
            if (generation_.load() == generation) {
                std::unique_lock<std::mutex> guard(lock_);
                sleeping_.fetch_add(1);
                wake_.wait(guard, [&] { return generation_.load() != generation; });
                sleeping_.fetch_sub(1);
            }
            generation = generation_.load();
            if (stopping_) return;
            active_.fetch_add(1);
            if (accepting_.load()) work_(argument_, thread);
            active_.fetch_sub(1);
        }
    }

    const int size_;
    std::vector<std::thread> workers_;
    std::mutex lock_;
    std::condition_variable wake_;
    Work work_ = nullptr;
    void* argument_ = nullptr;
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<int> generation_{0};
    std::atomic<int> sleeping_{0};
    alignas(64) std::atomic<int> active_{0};
    std::atomic<bool> accepting_{false};
};

}  // namespace glass
