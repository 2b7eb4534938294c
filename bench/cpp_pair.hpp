/* bench/cpp_pair.hpp - what cpp_cost and cpp_exec_cost have in common: two runtimes that talk to each other on one thread, and
 * the same work done in two ways, in turns. */
#ifndef BENCH_CPP_PAIR_HPP
#define BENCH_CPP_PAIR_HPP

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include <weft/weft.hpp>

#include "peers/peer.h"

namespace bench
{

constexpr unsigned ROUND = 500;

struct runtimes {
    weft::runtime rt[2];
    weft::listener door;
    weft::endpoint ep[2];
    weft::region region;
    weft::remote remote;

    void drive() noexcept
    {
        rt[0].progress();
        rt[1].progress();
    }
    void until(const weft_op_t &op) noexcept
    {
        while (!weft_op_done(&op))
            drive();
    }
};

/* End the program with a sentence if a call failed. */
inline void must(weft_status_t st, const char *what)
{
    if (!st)
        return;
    fprintf(stderr, "%s: %s\n", what, weft_last_error());
    exit(1);
}

/* ROUND times the same; nanoseconds of one. */
template <class Both> double round_ns(Both &b, void (*what)(Both &))
{
    const uint64_t start = peer_now_ns();
    what(b);
    return static_cast<double>(peer_now_ns() - start) / ROUND;
}

inline double median(std::vector<double> v)
{
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
}

struct figures {
    double c, cpp, over;
};

/* Medians of rounds that take turns, and of their differences. */
template <class Both> figures compare(Both &b, void (*c)(Both &), void (*cpp)(Both &), double seconds)
{
    std::vector<double> a, z, over;
    const uint64_t end = peer_now_ns() + static_cast<uint64_t>(seconds * 1e9);
    do {
        const bool first = a.size() % 2; /* who begins changes */
        double x = first ? round_ns(b, cpp) : round_ns(b, c), y = first ? round_ns(b, c) : round_ns(b, cpp);
        if (first)
            std::swap(x, y);
        a.push_back(x);
        z.push_back(y);
        over.push_back(y - x);
    } while (peer_now_ns() < end);
    return {median(a), median(z), median(over)};
}

} // namespace bench

#endif
