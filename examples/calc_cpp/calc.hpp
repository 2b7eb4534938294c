/* examples/calc_cpp/calc.hpp - the functions of the service "calc", declared once for its server and its clients. */
#ifndef CALC_HPP
#define CALC_HPP

#include <weft/call.hpp>

struct calc {
    static constexpr weft::function<int(int, int)> add{"add"};
    static constexpr weft::function<std::pair<int, int>(int, int)> divide{"divide"};
    static constexpr weft::function<double(std::span<const double>)> mean{"mean", weft::idempotent};
    static constexpr weft::function<std::string(std::string_view)> upper{"upper"};
    static constexpr weft::function<std::vector<float>(std::span<const float>, float)> scale{"scale"};
    static constexpr weft::function<void(std::string_view)> log{"log", weft::oneway};
    static constexpr weft::function<void(std::uint64_t)> sleep{"sleep"};
    static constexpr weft::function<std::uint64_t(std::uint64_t)> factor{"factor"};
    static constexpr weft::function<weft::stream<std::uint64_t>(std::uint64_t)> primes{"primes"};
    static constexpr weft::function<double(weft::stream<double>)> total{"total"};
};

#endif
