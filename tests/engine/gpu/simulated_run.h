// Runs the blocks of a kernel that was included before, all of whose threads are fibers.

static const Launch *simulated_launch;

static void run_fiber() {
    decode(*simulated_launch);
    _longjmp(fibers::scheduler, 1);
}

static void resume(fibers::Fiber &fiber) {
    fibers::current = &fiber;
    if (_setjmp(fibers::scheduler)) return;
    if (fiber.begun) _longjmp(fiber.context, 1);
    fiber.begun = true;
    setcontext(&fiber.first);
}

// Runs a launch to its end; 0, or 1 if it was not over after `limit` switches.
extern "C" int simulate(const Launch *launch, uint64_t seed, uint64_t limit) {
    using namespace fibers;
    simulated_launch = launch, generator = seed * 2 + 1, clock_ticks = 0;
    blocks = std::vector<BlockState>(BLOCKS);
    std::vector<Fiber>(BLOCKS * (SIMULATED_THREADS)).swap(fibers::fibers);
    runnable.clear();
    for (auto &state : blocks) {
        state.memory.assign(SHARED_BYTES + SHARED_ALIGNMENT, (char)0xff);
        state.consumers.size = THREADS, state.all.size = SIMULATED_THREADS;
        for (auto &warp : state.warps) warp.size = 32;
    }
    for (auto &fiber : fibers::fibers) {
        fiber.number = (int)(&fiber - fibers::fibers.data());
        fiber.block = fiber.number / (SIMULATED_THREADS), fiber.thread = fiber.number % (SIMULATED_THREADS);
        fiber.stack = std::make_unique<char[]>(STACK);
        getcontext(&fiber.first);
        fiber.first.uc_stack = {fiber.stack.get(), 0, STACK};
        makecontext(&fiber.first, run_fiber, 0);
        runnable.push_back(fiber.number);
    }
    for (uint64_t switches = 0; !runnable.empty(); switches++) {
        if (switches > limit) return 1;
        std::swap(runnable[fibers::random() % runnable.size()], runnable.back());
        int number = runnable.back();
        runnable.pop_back();
        resume(fibers::fibers[number]);
    }
    return 0;
}

