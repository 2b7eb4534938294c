/* tests/cpp/rpc_types.cc - arguments and results of every type there and back, and the signatures that the compiler makes. */
#include "desk.hpp"

#include <limits>
#include <numeric>

namespace
{

struct api {
    static constexpr weft::function<int(int, int)> add{"add"};
    static constexpr weft::function<double(std::span<const double>)> mean{"mean", weft::idempotent};
    static constexpr weft::function<void(std::string)> log{"log", weft::oneway};
    static constexpr weft::function<std::tuple<int, std::string>(bool, std::uint8_t)> divide{"calc.divide"};
    static constexpr weft::function<weft::stream<std::uint64_t>(std::uint64_t)> primes{"primes"};
    static constexpr weft::function<float(std::int8_t, weft::stream<std::string>)> total{"total"};
    static constexpr weft::function<weft_tensor_t(const weft_tensor_t &, float)> scale{"scale"};
    static constexpr weft::function<std::string_view(std::string_view)> upper{"upper"};
};

static_assert(api::add.signature() == "add(a0: i32, a1: i32) -> i32");
static_assert(api::mean.signature() == "mean(a0: [f64]) -> f64 idempotent");
static_assert(api::log.signature() == "log(a0: string) -> void oneway");
static_assert(api::divide.signature() == "calc.divide(a0: bool, a1: u8) -> (r0: i32, r1: string)");
static_assert(api::primes.signature() == "primes(a0: u64) -> stream u64");
static_assert(api::total.signature() == "total(a0: i8, a1: stream string) -> f32");
static_assert(api::scale.signature() == "scale(a0: tensor, a1: f32) -> tensor");
static_assert(weft::function<long(long, long long, unsigned long, short)>("w").signature() ==
              "w(a0: i64, a1: i64, a2: u64, a3: i16) -> i64");
static_assert(weft::function<void(std::span<const weft_tensor_t>, std::vector<std::byte>, std::vector<bool>)>("v").signature() ==
              "v(a0: [tensor], a1: [u8], a2: [bool]) -> void");
static_assert(weft::function<void(int, int, int, int, int, int, int, int, int, int, int)>("many").signature().view().ends_with(
    "a9: i32, a10: i32) -> void"));

/* What does not travel, and what does. */
enum class colour { red };
struct point {
    int x, y;
};
static_assert(!weft::value<char> && !weft::value<wchar_t> && !weft::value<colour> && !weft::value<point> && !weft::value<int *> &&
              !weft::value<long double> && !weft::value<std::vector<std::string>> && !weft::value<std::vector<char>>);
static_assert(weft::value<const std::string &> && weft::value<std::vector<float>> && weft::value<unsigned>);

/* Handlers that do not fit their declaration are refused by the compiler: this asks it which signature it sees. */
template <class F> constexpr std::string_view seen_in(const F &)
{
    return weft::detail::handler_shape<F>::part::text.view();
}
constexpr auto takes_request = [](weft::request &, const std::string &, std::span<const float>) { return std::pair(1, 2u); };
constexpr auto is_coroutine = [](std::string_view) -> weft::task<std::vector<int>> { co_return std::vector<int>(); };
constexpr auto is_late = [](weft::pending<bool>, int) {};
constexpr auto has_streams = [](weft::stream_out<double>, int, weft::stream_in<int>) -> weft::task<> { co_return; };
static_assert(seen_in(takes_request) == "(a0: string, a1: [f32]) -> (r0: i32, r1: u32)");
static_assert(seen_in(is_coroutine) == "(a0: string) -> [i32]");
static_assert(seen_in(is_late) == "(a0: i32) -> bool");
static_assert(seen_in(has_streams) == "(a0: i32, a1: stream i32) -> stream f64");

/* A value goes to a function that gives it back. */
#define BACK(d, name, T, ...) \
    do { \
        const T there = __VA_ARGS__; \
        (d).calc.add(name, [](T x) { return x; }); \
        CHECK((d).get((d).client.call<T>(name, there)) == there); \
        CHECK((d).get((d).client.call<T>(name, static_cast<T>(there))) == there); \
    } while (0)

} // namespace

TEST(every_type_goes_there_and_back)
{
    desk d;
    BACK(d, "bool", bool, true);
    BACK(d, "i8", std::int8_t, -128);
    BACK(d, "u8", std::uint8_t, 255);
    BACK(d, "i16", short, -32768);
    BACK(d, "u16", unsigned short, 65535);
    BACK(d, "i32", int, std::numeric_limits<int>::min());
    BACK(d, "u32", unsigned, 0xfedcba98u);
    BACK(d, "i64", long, std::numeric_limits<long>::min());
    BACK(d, "ll", long long, -1);
    BACK(d, "u64", unsigned long long, ~0ull);
    BACK(d, "f32", float, -1.5e-30f);
    BACK(d, "f64", double, 1e300);
    BACK(d, "string", std::string, "warp and weft \xc3\xbc");
    BACK(d, "empty", std::string, "");
    BACK(d, "long", std::string, std::string(100000, 'x'));
    BACK(d, "i8s", std::vector<std::int8_t>, {-1, 2});
    BACK(d, "u16s", std::vector<std::uint16_t>, {1, 65535});
    BACK(d, "i32s", std::vector<int>, {1, -2, 3});
    BACK(d, "i64s", std::vector<long>, std::vector<long>(5000, -7));
    BACK(d, "f32s", std::vector<float>, {1.5f});
    BACK(d, "f64s", std::vector<double>, {});
    BACK(d, "bytes", std::vector<std::byte>, {std::byte(1), std::byte(255)});
    CHECK_EQ(d.calc.stats().failed, 0);
}

TEST(bools_are_copied_out_of_a_vector_of_bits)
{
    desk d;
    d.calc.add("flip", [](std::span<const bool> x) {
        auto flipped = std::make_unique<bool[]>(x.size());
        for (std::size_t i = 0; i < x.size(); i++)
            flipped[i] = !x[i];
        return weft::owned(std::span<const bool>(flipped.get(), x.size()), std::move(flipped));
    });
    const std::vector<bool> there = {true, false, true}, back = {false, true, false};
    CHECK(d.get(d.client.call<std::vector<bool>>("flip", there)) == back);
    CHECK(d.get(d.client.call<std::vector<bool>>("flip", std::array<bool, 3>{true, false, true})) == back);
}

TEST(no_arguments_many_and_several_results)
{
    desk d;
    int resets = 0;
    d.calc.add("reset", [&resets] { resets++; });
    d.calc.add("nine", [](int a, int b, int c, int e, int f, int g, int h, int i, std::string j) {
        return std::tuple(a + b + c + e + f + g + h + i, j, j.size() == 4);
    });
    d.calc.add("pair", [](double x) { return std::pair(x, "text"); });
    d.get(d.client.call<void>("reset"));
    CHECK_EQ(resets, 1);
    auto [sum, text, four] = d.get(d.client.call<std::tuple<int, std::string, bool>>("nine", 1, 2, 3, 4, 5, 6, 7, 8, "nine"));
    CHECK(sum == 36 && text == "nine" && four);
    CHECK(d.get(d.client.call<std::pair<double, std::string>>("pair", 0.5)) == std::pair(0.5, std::string("text")));
}

TEST(a_declared_function_takes_what_converts_to_its_types)
{
    desk d;
    d.calc.add(api::mean, [](std::span<const double> v) {
        return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
    });
    d.calc.add(api::divide, [](auto negative, auto by) { return std::tuple((negative ? -100 : 100) / by, std::to_string(by)); });
    std::vector<double> values = {1, 2, 3, 6};
    const double array[] = {2, 4};
    CHECK(d.get(d.client.call(api::mean, values)) == 3);
    CHECK(d.get(d.client.call(api::mean, array)) == 3);
    CHECK(d.get(d.client.call(api::mean, std::array<double, 1>{7})) == 7);
    CHECK(d.get(d.client.call(api::mean, std::move(values))) == 3);
    CHECK(d.get(api::divide(d.client, true, std::uint8_t(7))) == std::tuple(-14, std::string("7")));
}

TEST(what_is_moved_in_lives_as_long_as_the_call)
{
    desk d;
    d.calc.add("sizes", [](const std::string &small, std::span<const int> many) {
        return std::pair(small, std::accumulate(many.begin(), many.end(), 0l));
    });
    std::string small = "small";
    std::vector<int> many(10000, 2);
    auto call = d.client.call<std::pair<std::string, long>>("sizes", std::move(small), std::move(many));
    small.assign("other");
    many.assign(10000, 3);
    auto moved = std::move(call); /* a small string's bytes move with it */
    CHECK(d.get(std::move(moved)) == std::pair(std::string("small"), 20000l));
}

/* The reply after it was in memory that is overwritten since. */
template <class T> static weft::reply<T> moved_about(weft::reply<T> &&r)
{
    alignas(weft::reply<T>) static unsigned char room[sizeof(weft::reply<T>)];
    auto *there = new (room) weft::reply<T>(std::move(r));
    weft::reply<T> back(std::move(*there));
    there->~reply();
    memset(room, 0xee, sizeof room);
    return back;
}

TEST(a_result_can_be_viewed_in_its_reply)
{
    desk d;
    d.calc.add(api::upper, [](std::string_view text) {
        std::string loud(text);
        for (char &c : loud)
            c = static_cast<char>(std::toupper(c));
        return loud;
    });
    d.calc.add("both", [](std::string_view a) { return std::pair(a, a); });
    for (std::size_t n : {0u, 5u, 90u, 100u, 5000u, 300000u}) {
        const std::string text(n, 'a'), loud(n, 'A');
        weft::reply<std::string_view> given = d.get(d.client.call(api::upper, text)); /* declared as a view */
        (void)d.get(d.client.call(api::upper, std::string(n, 'z')));                  /* in the memory of the one before */
        CHECK(*given == loud);
        weft::reply<std::string_view> moved = moved_about(std::move(given));
        CHECK(*moved == loud);
        moved = d.get(d.client.call<weft::reply<std::string_view>>("upper", text));
        CHECK(moved.value() == loud);
        CHECK(d.get(d.client.call<std::string>(api::upper, text)) == loud); /* and as a copy */
        auto two = d.get(d.client.call<weft::reply<std::pair<std::string_view, std::string_view>>>("both", text));
        auto also = moved_about(std::move(two));
        CHECK((*also).first == text && (*also).second == text);
    }
}

TEST(tensors_go_there_and_back)
{
    desk d;
    d.calc.add(api::scale, [](const weft_tensor_t &image, float by) {
        const auto *from = static_cast<const float *>(image.data);
        std::vector<float> pixels(from, from + image.shape[0] * image.shape[1]);
        for (float &p : pixels)
            p *= by;
        weft_tensor_t scaled = image;
        scaled.data = pixels.data();
        return weft::owned(scaled, std::move(pixels));
    });
    d.calc.add("count", [](std::span<const weft_tensor_t> all) { return all.size(); });
    std::int64_t shape[] = {64, 100};
    std::vector<float> pixels(6400, 2.f);
    weft_tensor_t image = {};
    image.data = pixels.data();
    image.device_type = 1;
    image.ndim = 2;
    image.code = 2;
    image.bits = 32;
    image.lanes = 1;
    image.shape = shape;
    auto bright = d.get(d.client.call(api::scale, image, 1.5f));
    const weft_tensor_t &result = *bright;
    CHECK(result.ndim == 2 && result.shape[0] == 64 && result.shape[1] == 100);
    for (std::size_t i = 0; i < 6400; i++)
        CHECK(static_cast<const float *>(result.data)[i] == 3.f);

    std::vector<float> into(6400 + 16);
    auto there = d.get(d.client.with({.into = std::as_writable_bytes(std::span(into))}).call(api::scale, image, 2.f));
    CHECK((*there).data == into.data() && into[6399] == 4.f);
    const weft_tensor_t two[] = {image, image};
    CHECK_EQ(d.get(d.client.call<std::size_t>("count", two)), 2);
}

TEST(a_name_that_only_the_program_knows)
{
    desk d;
    d.calc.add("add", [](int a, int b) { return a + b; });
    std::string name = "ad";
    name += 'd';
    weft::method<int(int, int)> add = d.client.method<int(int, int)>(name);
    CHECK_EQ(d.get(add(20, 22)), 42);
    CHECK(d.client.try_method<int()>("not a name").error() == weft::errc::invalid);
}
