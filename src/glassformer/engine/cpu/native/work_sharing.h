// Divides the pieces of each step among threads, and lets them wait until all are done.
//
// Every thread has a stretch of neighbouring pieces of its own, and takes them one by one. Who is done waits; after a moment
// it takes pieces from the others' stretches, so that a thread which the system has suspended holds nobody up. A stretch that
// is done is reported to a group of four, a full group to all: on many cores, one counter for everybody would be the
// bottleneck. All counters only grow, so that nothing has to be reset between steps; every thread knows where each of them
// stood when a step began.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "threads.h"

namespace glass {

constexpr int MAX_THREADS = 256;

class WorkSharing {
    static constexpr int GROUP = 4;

    struct Progress {  // where the counters stood when a step began
        uint32_t taken[MAX_THREADS] = {}, groups[MAX_THREADS / GROUP] = {};
        uint32_t all = 0, step = 0;
    };

  public:
    explicit WorkSharing(int threads)
        : threads_(threads), stretches_(new Stretch[threads]), groups_(new Arrivals[groups_of(threads)]) {}

    // When a pass has ended on all threads.
    void finish_pass() { start_ = end_; }

    // One thread's view of the pass that is running. All threads must make the same calls in the same order.
    class Share {
      public:
        Share(WorkSharing& work, int thread) : work_(work), thread_(thread), at_(work.start_) {}

        ~Share() {
            if (thread_ == 0) work_.end_ = at_;  // thread 0 runs through every pass, others may miss one
        }
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;

        int thread() const { return thread_; }

        // function(piece) for all pieces, by all threads; returns when all are done.
        template <class Function> void parallel_for(int pieces, Function function) {
            if (work_.threads_ == 1) {
                for (int piece = 0; piece < pieces; ++piece) function(piece);
                return;
            }
            if (pieces <= 0) return;
            const Division division{pieces, std::min(pieces, work_.threads_)};
            ++at_.step;
            if (thread_ < division.stretches) run_stretch(thread_, division, function);
            wait(division, function);
            for (int s = 0; s < division.stretches; ++s) at_.taken[s] += division.count(s);
            for (int g = 0; g < groups_of(division.stretches); ++g) at_.groups[g] += division.members(g);
            at_.all += groups_of(division.stretches);
        }

      private:
        struct Division {  // of a step's pieces into stretches of nearly the same length
            int pieces, stretches;
            int count(int s) const { return pieces / stretches + (s < pieces % stretches); }
            int first(int s) const { return s * (pieces / stretches) + std::min(s, pieces % stretches); }
            int members(int group) const { return std::min(GROUP, stretches - group * GROUP); }
        };

        template <class Function> void run_stretch(int number, const Division& division, Function& function) {
            Stretch& stretch = work_.stretches_[number];
            const uint32_t begin = at_.taken[number], count = uint32_t(division.count(number));
            uint32_t taken = stretch.taken.load(std::memory_order_relaxed), done = 0;
            while (taken - begin < count) {
                if (!stretch.taken.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed)) continue;
                function(division.first(number) + int(taken - begin));
                ++done;
                taken = stretch.taken.load(std::memory_order_relaxed);
            }
            if (done && stretch.done.fetch_add(done, std::memory_order_acq_rel) + done == begin + count)
                report(number / GROUP, division);
        }

        void report(int group, const Division& division) {
            const uint32_t full = at_.groups[group] + uint32_t(division.members(group));
            if (work_.groups_[group].count.fetch_add(1, std::memory_order_acq_rel) + 1 != full) return;
            const uint32_t all = at_.all + uint32_t(groups_of(division.stretches));
            if (work_.all_.count.fetch_add(1, std::memory_order_acq_rel) + 1 != all) return;
            work_.done_.count.store(at_.step, std::memory_order_release);
        }

        bool is_done() const { return int32_t(work_.done_.count.load(std::memory_order_acquire) - at_.step) >= 0; }

        template <class Function> void wait(const Division& division, Function& function) {
            for (int spin = 1; !is_done(); ++spin) {
                if (spin % PATIENCE == 0)
                    for (int turn = 1; turn < work_.threads_; ++turn) {
                        const int other = (thread_ + turn) % work_.threads_;
                        if (other < division.stretches) run_stretch(other, division, function);
                    }
                if (spin > YIELD_AFTER) std::this_thread::yield();
                else if (spin > EAGER) cpu_pause();
            }
        }

        WorkSharing& work_;
        const int thread_;
        Progress at_;
    };

  private:
    static constexpr int EAGER = 32;          // turns of waiting without a pause, which takes longer than a short wait
    static constexpr int PATIENCE = 64;       // turns of waiting before a thread helps the others: one or two microseconds
    static constexpr int YIELD_AFTER = 4000;  // turns before it lets other programs run

    static int groups_of(int stretches) { return (stretches + GROUP - 1) / GROUP; }

    struct alignas(128) Stretch { std::atomic<uint32_t> taken{0}, done{0}; };  // pieces
    struct alignas(128) Arrivals { std::atomic<uint32_t> count{0}; };

    const int threads_;
    std::unique_ptr<Stretch[]> stretches_;
    std::unique_ptr<Arrivals[]> groups_;
    Arrivals all_, done_;  // full groups; the last step that is done
    Progress start_, end_;  // of the pass
};

}  // namespace glass
