// A team of threads that run one function together, and meet at barriers inside it.
//
// Between passes a thread waits awake for a moment, for the next token comes soon; then it sleeps.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace glass {

inline void breathe() {
#if defined(__aarch64__)
    __asm__ __volatile__("yield");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Team {
  public:
    using Work = void (*)(void* what, int thread);

    explicit Team(int size) : size_(size) {
        for (int thread = 1; thread < size; ++thread) others_.emplace_back([this, thread] { serve(thread); });
    }

    ~Team() {
        {
            std::lock_guard<std::mutex> held(lock_);
            work_ = nullptr;
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        for (std::thread& other : others_) other.join();
    }

    int size() const { return size_; }

    // Run a function on every thread, this one among them; back when all are done.
    void run(Work work, void* what) {
        work_ = work;
        what_ = what;
        if (size_ > 1) {
            {
                std::lock_guard<std::mutex> held(lock_);
                round_.fetch_add(1, std::memory_order_release);
            }
            wake_.notify_all();
        }
        work(what, 0);
        meet();
    }

    // Wait for all.
    void meet() {
        if (size_ == 1) return;
        const int meeting = meeting_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            meeting_.store(meeting + 1, std::memory_order_release);
            return;
        }
        for (int turn = 0; meeting_.load(std::memory_order_acquire) == meeting; ++turn) {
            if (turn < PATIENCE) breathe();
            else std::this_thread::yield();
        }
    }

  private:
    static constexpr int PATIENCE = 20000;

    void serve(int thread) {
        for (int seen = 0;;) {
            for (int turn = 0; turn < PATIENCE && round_.load(std::memory_order_acquire) == seen; ++turn) breathe();
            if (round_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> held(lock_);
                wake_.wait(held, [&] { return round_.load(std::memory_order_acquire) != seen; });
            }
            ++seen;
            if (work_ == nullptr) return;
            work_(what_, thread);
            meet();
        }
    }

    const int size_;
    std::vector<std::thread> others_;
    std::mutex lock_;
    std::condition_variable wake_;
    Work work_ = nullptr;
    void* what_ = nullptr;
    alignas(64) std::atomic<int> round_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> meeting_{0};
};

}  // namespace glass
