"""How fast threads read memory: a buffer of the size of a model's weights, each thread its own part of it, again and again.

    python bench/read_bandwidth.py --bytes 1200000000 -t 8

That is the limit of a decoded token, which needs every weight once. The loop is C++, compiled for this processor.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = r"""
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

int main(int, char **arguments) {
    const size_t threads = std::atoll(arguments[2]), part = std::atoll(arguments[1]) / threads / 64 * 8;
    const int passes = 1 + 4000000000 / (part * 8 * threads);
    std::atomic<size_t> ready{0}, checksum{0};
    std::vector<double> seconds(threads);
    auto read = [&](size_t thread) {
        std::vector<uint64_t> words(part, thread + 1);  // written by the thread that reads it, so that it lies near
        ++ready;
        while (ready < threads) {}
        const auto began = std::chrono::steady_clock::now();
        uint64_t sums[16] = {};
        for (int pass = 0; pass < passes; ++pass) {
            for (size_t at = 0; at + 16 <= part; at += 16)
                for (size_t lane = 0; lane < 16; ++lane) sums[lane] += words[at + lane];
            __asm__ volatile("" : : "r"(words.data()) : "memory");  // no pass is left out
        }
        seconds[thread] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        for (auto sum : sums) checksum += sum;
    };
    std::vector<std::thread> pool;
    for (size_t thread = 0; thread < threads; ++thread) pool.emplace_back(read, thread);
    for (auto &thread : pool) thread.join();
    double slowest = 0;
    for (double time : seconds) slowest = time > slowest ? time : slowest;
    std::printf("%.3f\n", checksum ? part * 8e-9 * threads * passes / slowest : 0);
}
"""


def read_bandwidth(size: int, threads: int) -> float:
    """Gigabytes per second."""
    compiler = shutil.which(os.environ.get("CXX") or "c++")
    if compiler is None:
        raise SystemExit("the read bandwidth is measured in C++, and there is no compiler: install one, or set CXX")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "read")
        flags = ["-std=c++17", "-O3", "-march=native", "-funroll-loops", "-pthread"]
        subprocess.run([compiler, *flags, "-x", "c++", "-", "-o", program], input=SOURCE, text=True, check=True)
        measured = subprocess.run([program, str(size), str(threads)], capture_output=True, text=True, check=True)
    return float(measured.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=1_200_000_000)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print(f"{read_bandwidth(options.bytes, options.threads):.1f} GB/s")


if __name__ == "__main__":
    main()
