// A team of threads that share the work of a pass.
//
// Nobody waits for a thread that does not come: work is taken piece by piece, and a step is done when all of its pieces are,
// whoever did them. So a machine that is busy with something else costs its share, and no more. Between passes a thread
// waits awake for a moment, for the next token comes soon; then it sleeps.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace glass {

inline void breathe() {
#if defined(__aarch64__)
    __asm__ __volatile__("isb");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Wait awake until something is so; in the end let others run.
template <class So> inline void until(So so) {
    for (int turn = 0; !so(); ++turn) {
        if (turn < 4000) breathe();
        else std::this_thread::yield();
    }
}

struct alignas(64) Counter {  // of pieces: the next one to take, and how many are done
    std::atomic<int> next{0}, done{0};
};

class Team {
  public:
    using Work = void (*)(void* what, int thread);

    explicit Team(int size) : size_(size) {
        for (int thread = 1; thread < size; ++thread) others_.emplace_back([this, thread] { serve(thread); });
    }

    ~Team() {
        {
            std::lock_guard<std::mutex> held(lock_);
            over_ = true;
            round_.fetch_add(1);
        }
        wake_.notify_all();
        for (std::thread& other : others_) other.join();
    }

    int size() const { return size_; }

    // Run a function on this thread and on all others that come in time; back when it is done everywhere.
    void run(Work work, void* what) {
        if (size_ == 1) return work(what, 0);
        work_ = work;
        what_ = what;
        {
            std::lock_guard<std::mutex> held(lock_);
            open_.store(true);
            round_.fetch_add(1);
        }
        if (asleep_.load() > 0) wake_.notify_all();
        work(what, 0);
        open_.store(false);
        until([this] { return inside_.load() == 0; });
    }

  private:
    static constexpr int AWAKE = 150000;  // turns, a few milliseconds

    void serve(int thread) {
        for (int seen = 0;;) {
            for (int turn = 0; turn < AWAKE && round_.load() == seen; ++turn) breathe();
            if (round_.load() == seen) {
                std::unique_lock<std::mutex> held(lock_);
                asleep_.fetch_add(1);
                wake_.wait(held, [&] { return round_.load() != seen; });
                asleep_.fetch_sub(1);
            }
            seen = round_.load();
            if (over_) return;
            inside_.fetch_add(1);
            if (open_.load()) work_(what_, thread);
            inside_.fetch_sub(1);
        }
    }

    const int size_;
    std::vector<std::thread> others_;
    std::mutex lock_;
    std::condition_variable wake_;
    Work work_ = nullptr;
    void* what_ = nullptr;
    std::atomic<bool> over_{false};
    alignas(64) std::atomic<int> round_{0};
    std::atomic<int> asleep_{0};
    alignas(64) std::atomic<int> inside_{0};
    std::atomic<bool> open_{false};
};

}  // namespace glass
