// Threads share thousands of steps: every piece must be run once, and a step must see all that the one before it wrote.
//
// The arguments: how many threads, and how many steps. The first failure is one line on stderr, and the end.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "threads.h"
#include "work_sharing.h"

namespace {

using namespace glass;

constexpr int PASSES = 20, MOST = 97;  // pieces of a step, at most

struct Pass {
    WorkSharing& sharing;
    std::vector<int> pieces;               // of each step
    std::vector<std::vector<int>> values;  // what each piece of each step writes: one more than all of the step before
};

void work(void* argument, int thread) {
    Pass& pass = *static_cast<Pass*>(argument);
    WorkSharing::Share share(pass.sharing, thread);
    for (size_t step = 0; step < pass.pieces.size(); ++step)
        share.parallel_for(pass.pieces[step], [&](int piece) {
            int total = 0;
            if (step)
                for (int before : pass.values[step - 1]) total += before;
            pass.values[step][piece] += total % 1000 + 1;
        });
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) return std::fputs("the arguments are numbers of threads and of steps\n", stderr), 2;
    const int threads = std::atoi(words[1]), steps = std::atoi(words[2]);
    ThreadPool pool(threads);
    WorkSharing sharing(threads);
    std::mt19937 source(2025);
    for (int number = 0; number < PASSES; ++number) {
        Pass pass{sharing, {}, {}};
        for (int step = 0; step < steps; ++step) {
            pass.pieces.push_back(source() % 5 ? int(source() % MOST) : int(source() % 3));
            pass.values.emplace_back(pass.pieces.back());
        }
        pool.run(work, &pass);
        sharing.finish_pass();
        int total = 0;
        for (int step = 0; step < steps; ++step) {
            const int expected = total % 1000 + 1;
            total = 0;
            for (int value : pass.values[step]) {
                if (value != expected) return std::fprintf(stderr, "pass %d, step %d: %d, not %d\n", number, step, value, expected), 1;
                total += value;
            }
        }
    }
    std::puts("all is well");
}
