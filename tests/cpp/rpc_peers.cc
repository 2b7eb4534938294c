/* tests/cpp/rpc_peers.cc - C++ beside C and the command: the same wire and the same signatures, both ways; and peers that are
 * killed. */
#include "desk.hpp"

#include <sys/socket.h>
#include <thread>
#include <weft/function.h>

using namespace std::chrono_literals;

WEFT_FUNCTION(calc_add, "add", i32, (i32, a), (i32, b))
WEFT_FUNCTION(calc_split, "split", ((string, head), (string, tail)), (string, text), (u64, at))
WEFT_FUNCTION_IDEMPOTENT(calc_mean, "mean", f64, (f64s, values))
WEFT_FUNCTION_ONEWAY(calc_log, "log", (string, line))
WEFT_FUNCTION_GIVES_STREAM(calc_primes, "primes", u64, (u64, below))
WEFT_FUNCTION_TAKES_STREAM(calc_total, "total", f64, (f64, values), (f64, from))
WEFT_FUNCTION(calc_flags, "flags", bools, (bools, all), (bool, b), (i8, c), (u16, d), (f32, e))

namespace
{

struct api {
    static constexpr weft::function<int(int, int)> add{"add"};
    static constexpr weft::function<std::pair<std::string, std::string>(std::string_view, std::uint64_t)> split{"split"};
    static constexpr weft::function<double(std::span<const double>)> mean{"mean", weft::idempotent};
    static constexpr weft::function<void(std::string)> log{"log", weft::oneway};
    static constexpr weft::function<weft::stream<std::uint64_t>(std::uint64_t)> primes{"primes"};
    static constexpr weft::function<double(double, weft::stream<double>)> total{"total"};
    static constexpr weft::function<std::vector<bool>(std::vector<bool>, bool, std::int8_t, std::uint16_t, float)> flags{"flags"};
};

std::string logged; /* by either service */

/* --- a service in C ------------------------------------------------------------------------------------------------------ */

weft_code_t c_add(weft_request_t *, void *, int32_t a, int32_t b, int32_t *sum_out)
{
    *sum_out = a + b;
    return WEFT_CODE_OK;
}
weft_code_t c_split(weft_request_t *request, void *, weft_string_t text, uint64_t at, calc_split_result_t *out)
{
    if (at > text.n)
        return weft_failed(request, WEFT_CODE_OUT_OF_RANGE, "behind the end");
    *out = {weft_string_n(text.data, at), weft_string_n(text.data + at, text.n - at)};
    return WEFT_CODE_OK;
}
weft_code_t c_mean(weft_request_t *, void *, weft_f64s_t v, double *mean_out)
{
    for (size_t i = 0; i < v.n; i++)
        *mean_out += v.data[i] / static_cast<double>(v.n);
    return WEFT_CODE_OK;
}
weft_code_t c_log(weft_request_t *, void *, weft_string_t line)
{
    logged.append(line.data, line.n);
    return WEFT_CODE_OK;
}
weft_code_t c_primes(weft_request_t *request, void *, uint64_t below)
{
    for (uint64_t n = 2; n < below; n++)
        if (n % 2)
            CHECK_OK(calc_primes_give(request->stream, n, nullptr));
    return WEFT_CODE_OK;
}
weft_code_t c_flags(weft_request_t *, void *, weft_bools_t all, bool b, int8_t c, uint16_t d, float e, weft_bools_t *out)
{
    CHECK(b && c == -3 && d == 60000 && e == 2.5f);
    *out = all;
    return WEFT_CODE_OK;
}

/* --- a service in C++ ------------------------------------------------------------------------------------------------------ */

void serve(weft::service &calc)
{
    calc.add(api::add, [](int a, int b) { return a + b; });
    calc.add(api::split, [](std::string_view text, std::uint64_t at) {
        if (at > text.size())
            throw weft::call_error(weft::code::out_of_range, "behind the end");
        return std::pair(text.substr(0, at), text.substr(at));
    });
    calc.add(api::mean, [](std::span<const double> v) {
        double mean = 0;
        for (double x : v)
            mean += x / static_cast<double>(v.size());
        return mean;
    });
    calc.add(api::log, [](std::string_view line) { logged += line; });
    calc.add(api::primes, [](std::uint64_t below, weft::stream_out<std::uint64_t> out) -> weft::task<> {
        for (std::uint64_t n = 2; n < below; n++)
            if (n % 2)
                co_await out.send(n);
    });
    calc.add(api::total, [](double from, weft::stream_in<double> in) -> weft::task<double> {
        while (auto x = co_await in.next())
            from += *x;
        co_return from;
    });
    calc.add(api::flags, [](std::span<const bool> all, bool b, std::int8_t c, std::uint16_t d, float e) {
        CHECK(b && c == -3 && d == 60000 && e == 2.5f);
        return all;
    });
}

/* What a program printed, without the line's end. */
std::string said(const std::string &command, int *status_out)
{
    std::string text;
    FILE *f = popen((command + " 2>&1").c_str(), "r");
    CHECK(f);
    for (int c; (c = fgetc(f)) != EOF;)
        text += static_cast<char>(c);
    *status_out = WEXITSTATUS(pclose(f));
    while (!text.empty() && text.back() == '\n')
        text.pop_back();
    return text;
}

/* A process of its own that does what `child` says with one end of a pair of sockets; the other end here. */
template <class F> pid_t forked(int *socket_out, F child)
{
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(TEST_SECONDS);
        close(ends[0]);
        child(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    *socket_out = ends[0];
    return pid;
}
std::string heard(int socket)
{
    char buf[500];
    ssize_t n = read(socket, buf, sizeof buf);
    CHECK(n > 0);
    return {buf, static_cast<std::size_t>(n)};
}
void told(int socket, const std::string &text)
{
    CHECK(write(socket, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

} // namespace

TEST(a_service_in_c_is_called_from_cpp)
{
    desk d;
    weft_service_t *c = d.calc.native();
    CHECK_OK(calc_add_serve(c, c_add, nullptr, nullptr));
    CHECK_OK(calc_split_serve(c, c_split, nullptr, nullptr));
    CHECK_OK(calc_mean_serve(c, c_mean, nullptr, nullptr));
    CHECK_OK(calc_log_serve(c, c_log, nullptr, nullptr));
    CHECK_OK(calc_primes_serve(c, c_primes, nullptr, nullptr));
    CHECK_OK(calc_flags_serve(c, c_flags, nullptr, nullptr));
    CHECK_EQ(d.get(d.client.call(api::add, 25, 17)), 42);
    CHECK_EQ(d.get(d.client.call<int>("add", 25, 17)), 42);
    CHECK(d.get(d.client.call(api::split, "warpweft", 4u)) == std::pair(std::string("warp"), std::string("weft")));
    weft::call_failure why = d.fails(d.client.call(api::split, "warp", 5u));
    CHECK(why.code == weft::code::out_of_range && why.message == "behind the end");
    CHECK(d.get(d.client.call(api::mean, std::vector<double>(1000, 2.0))) - 2 < 1e-9);
    CHECK(d.get(d.client.call(api::flags, std::vector<bool>{true, false}, true, std::int8_t(-3), std::uint16_t(60000), 2.5f)) ==
          std::vector<bool>({true, false}));
    d.get(d.client.call(api::log, "line"));
    d.until([] { return logged == "line"; });
    d.run([](desk &d) -> weft::task<> {
        auto odd = d.client.open(api::primes, 20u);
        std::uint64_t sum = 0;
        while (auto x = co_await odd.next())
            sum += *x;
        CHECK_EQ(sum, 99);
    }(d));
}

TEST(a_service_in_cpp_is_called_from_c)
{
    desk d(WEFT_PROGRESS_THREAD);
    serve(d.calc);
    weft_client_t *c = d.client.native();
    int32_t sum;
    CHECK_OK(calc_add(c, 25, 17, &sum));
    CHECK_EQ(sum, 42);
    calc_split_result_t parts;
    weft_reply_t reply;
    CHECK_OK(calc_split(c, weft_string("warpweft"), 4, &parts, &reply));
    CHECK(std::string_view(parts.head.data, parts.head.n) == "warp" && std::string_view(parts.tail.data, parts.tail.n) == "weft");
    weft_reply_release(&reply);
    CHECK_EQ(calc_split(c, weft_string("warp"), 5, &parts, &reply), WEFT_ERR_CALL);
    CHECK_EQ(reply.code, WEFT_CODE_OUT_OF_RANGE);
    CHECK_STR(reply.message, "behind the end");
    weft_reply_release(&reply);
    const double values[] = {1, 2, 6};
    double mean;
    CHECK_OK(calc_mean(c, weft_f64s(values, 3), &mean));
    CHECK(mean == 3);
    CHECK_OK(calc_log(c, weft_string("text")));
    const bool flags[] = {false, true, true};
    weft_bools_t back;
    CHECK_OK(calc_flags(c, weft_bools(flags, 3), true, -3, 60000, 2.5f, &back, &reply));
    CHECK(back.n == 3 && !back.data[0] && back.data[2]);
    weft_reply_release(&reply);

    calc_primes_call_t call = WEFT_CALL_ZERO;
    CHECK_OK(calc_primes_open(c, 20, &call));
    uint64_t all = 0;
    for (;;) {
        weft_item_t item = WEFT_ITEM_INIT;
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_stream_recv(call.stream, &item, &op));
        CHECK_OK(weft_op_wait(&op, WEFT_FOREVER));
        if (op.len == 0)
            break;
        all += calc_primes_given(&item);
        weft_item_release(&item);
    }
    CHECK_EQ(all, 99);
    CHECK_OK(weft_op_wait(&call.op, WEFT_FOREVER));
    weft_stream_release(call.stream);
    weft_reply_release(&call.reply);
    d.calc.drain().wait();
    CHECK(logged == "text");
}

TEST(a_service_in_cpp_is_called_from_a_terminal)
{
    const char *command = getenv("TEST_WEFT_COMMAND");
    if (!command || access(command, X_OK))
        SKIP("TEST_WEFT_COMMAND is not set, or not built");
    desk d(WEFT_PROGRESS_THREAD);
    serve(d.calc);
    weft::listener door = d.rt[0].listen("tcp://127.0.0.1:0");
    std::thread doorman([&door] { /* endpoints are taken as they come */
                                  weft_ep_t *ep;
                                  while (!weft_listener_accept_wait(door.native(), WEFT_FOREVER, &ep))
                                      ;
    });
    const std::string uri(door.uri()), call = std::string(command) + " call " + uri + "/calc/";
    int status;
    CHECK(said(call + "add 25 17", &status) == "42");
    CHECK(said(call + "mean '[1, 2, 6]'", &status) == "3");
    CHECK(said(call + "primes 8", &status) == "3\n5\n7");
    std::string text = said(call + "split warp 5", &status);
    CHECK(status == 1 && text.find("behind the end") != std::string::npos);
    text = said(std::string(command) + " call --list " + uri, &status);
    CHECK(text.find("total(a0: f64, a1: stream f64) -> f64") != std::string::npos);
    door.close().wait();
    doorman.join();
}

TEST(a_server_that_is_killed_under_a_call)
{
    int socket;
    pid_t server = forked(&socket, [](int parent) {
        weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
        weft::service calc = weft::service::open(rt, "calc");
        std::vector<weft::pending<int>> held;
        calc.add("never", [&](weft::pending<int> p) {
            held.push_back(std::move(p));
            told(parent, "here");
        });
        weft::listener door = rt.listen("tcp://127.0.0.1:0");
        told(parent, door.uri());
        std::vector<weft::endpoint> all;
        for (;;)
            all.push_back(door.accept().wait());
    });
    weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
    weft::client client = weft::client::open(rt, heard(socket).c_str(), {.service = "calc"});
    auto call = client.call<int>("never");
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(call.post(&op));
    CHECK(heard(socket) == "here");
    kill(server, SIGKILL);
    CHECK_EQ(weft_op_wait(&op, WEFT_FOREVER), WEFT_ERR_PEER);
    const weft::call_failure why = call.spec().failed(op.status, "").failure();
    CHECK(why.code == weft::code::unavailable && why.ran == WEFT_MAY_HAVE_RUN && why.error() == weft::errc::peer);
    auto next = client.call<int>("never").timeout(100ms).wait_result(); /* nobody is there */
    CHECK(next.status() == WEFT_ERR_TIMEOUT && next.failure().ran == WEFT_NOT_RUN);
    waitpid(server, nullptr, 0);
}

TEST(a_caller_that_is_killed_stops_the_coroutine_that_answers_it)
{
    int socket;
    pid_t caller = forked(&socket, [](int parent) {
        weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
        weft::client client = weft::client::open(rt, heard(parent).c_str(), {.service = "calc"});
        (void)client.call<int>("sleep").wait_result();
    });
    weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
    weft::service calc = weft::service::open(rt, "calc");
    std::atomic<int> begun{0}, stopped{0};
    calc.add("sleep", [&]() -> weft::task<int> {
        begun++;
        auto slept = co_await rt.sleep_for(1h).as_result();
        stopped += slept.status() == WEFT_ERR_CANCELLED;
        co_return 1;
    });
    weft::listener door = rt.listen("tcp://127.0.0.1:0");
    told(socket, door.uri());
    weft::endpoint ep = door.accept().wait();
    TEST_UNTIL(begun == 1, 60);
    kill(caller, SIGKILL);
    TEST_UNTIL(stopped == 1, 60);
    waitpid(caller, nullptr, 0);
}
