/* examples/calc_cpp/calc.cc - a service with typed functions in C++, and a client of it.
 *
 *     calc_cpp                         a server and a client, in two processes of this machine
 *     calc_cpp tcp://192.0.2.7:13337   the client, of a server that runs
 *
 * calc.hpp declares the functions, once for both. */
#include "calc.hpp"

#include <cctype>
#include <chrono>
#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/rpc.hpp>
#include <weft/service.hpp>
#include <weft/task.hpp>

using namespace std::chrono_literals;

static void check(bool good, const char *what)
{
    if (!good) {
        std::fprintf(stderr, "%s\n", what);
        std::exit(1);
    }
}

/* --- the server ---------------------------------------------------------------------------------------------------------- */

static void add_functions(weft::service &service, weft::runtime_ref rt)
{
    service.add(calc::add, [](int a, int b) { return a + b; });
    service.add(calc::divide, [](int a, int b) {
        if (b == 0)
            throw weft::call_error(weft::code::invalid_argument, "b is 0");
        return std::pair(a / b, a % b);
    });
    service.add(calc::mean, [](std::span<const double> values) {
        double sum = 0;
        for (double v : values)
            sum += v;
        return sum / static_cast<double>(values.size());
    });
    service.add(calc::upper, [](std::string text) {
        for (char &c : text)
            c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
        return text;
    });
    service.add(calc::scale, [](std::vector<float> pixels, float by) {
        for (float &p : pixels)
            p *= by;
        return pixels; /* sent from where it is, and freed when it has left */
    });
    service.add(calc::log, [](std::string_view line) {
        std::printf("server: a client says: %.*s\n", static_cast<int>(line.size()), line.data());
    });

    /* A coroutine: it answers when it ends, and is stopped when nobody waits any more. */
    service.add(calc::sleep, [rt](std::uint64_t ms) -> weft::task<> {
        co_await rt.sleep_for(std::chrono::milliseconds(ms)); /* throws then, and ends it */
    });
    service.add(calc::primes, [](std::uint64_t below, weft::stream_out<std::uint64_t> out) -> weft::task<> {
        for (std::uint64_t n = 2; n < below; n++) {
            bool prime = true;
            for (std::uint64_t f = 2; prime && f <= n / f; f++)
                prime = n % f != 0;
            if (prime)
                co_await out.send(n);
        }
    });
    service.add(calc::total, [](weft::stream_in<double> values) -> weft::task<double> {
        double sum = 0;
        while (auto v = co_await values.next())
            sum += *v;
        co_return sum;
    });

    /* On a thread of the service it may take as long as it likes. */
    auto factor = [](weft::request &request, std::uint64_t of) {
        for (std::uint64_t f = 2; f <= of / f; f++) {
            if (of % f == 0)
                return f;
            if (f % 65536 == 0 && request.cancelled())
                throw weft::call_error(weft::code::cancelled);
        }
        return of;
    };
    service.add(calc::factor, factor, {.threads = true});
}

/* Serve until the pipe `until` is closed. */
static void serve(int tell, int until)
{
    weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
    weft::service service = weft::service::open(rt, "calc", {.threads = 2, .requests = 10000});
    add_functions(service, rt);
    weft_listen_opts_t taking = WEFT_LISTEN_OPTS_INIT;
    taking.accept = [](weft_listener_t *, weft_ep_t *, void *) {}; /* services answer over every endpoint */
    weft_listener_t *door;
    weft::check(weft_listen(rt.native(), "tcp://127.0.0.1:0", &taking, &door));
    if (dprintf(tell, "%s", weft_listener_uri(door)) > 0)
        close(tell);
    char end;
    if (read(until, &end, 1) < 0)
        std::perror("read");
    service.drain().timeout(10s).wait(); /* no new calls; those under way may end */
    std::printf("server: %llu calls, %llu of them failed\n", static_cast<unsigned long long>(service.stats().requests),
                static_cast<unsigned long long>(service.stats().failed));
}

/* --- the client ---------------------------------------------------------------------------------------------------------- */

static void calls_that_wait(weft::client &client)
{
    int sum = client.call(calc::add, 25, 17).wait();
    std::printf("client: 25 + 17 = %d\n", sum);
    check(sum == 42, "that is not the sum");
    check(client.call<int>("add", 1, 2).wait() == 3, "by name it is the same function");

    auto [quotient, rest] = calc::divide(client, 100, 7).wait();
    std::printf("client: 100 / 7 = %d, and %d is left\n", quotient, rest);
    std::string loud = client.call(calc::upper, "warp and weft").wait();
    std::printf("client: %s\n", loud.c_str());
    client.call(calc::log, "that was easy").wait(); /* returns when it is on its way */

    std::vector<float> image(512 * 1024, 1.f);
    weft::reply<std::span<const float>> brighter =
        client.call<weft::reply<std::span<const float>>>(calc::scale, image, 1.5f).wait();
    for (float pixel : *brighter) /* in memory of the reply, without a copy */
        check(pixel == 1.5f, "a pixel is wrong");
}

static void failures(weft::client &client)
{
    try {
        client.call(calc::divide, 1, 0).wait();
        check(false, "nobody divides by 0");
    } catch (const weft::call_error &e) {
        std::printf("client: %s\n", e.what()); /* INVALID_ARGUMENT: b is 0 */
        check(e.call_code() == weft::code::invalid_argument && e.ran() == WEFT_RAN, "the function itself said so");
    }
    weft::call_result<void> late = client.call(calc::sleep, 60000u).timeout(50ms).wait_result();
    std::printf("client: %s\n", weft::code_name(late.code()));
    check(late.error() == weft::errc::timeout, "that was a long sleep");
}

/* In a coroutine, calls, streams and everything else are awaited. */
static weft::task<double> in_a_coroutine(weft::client &client)
{
    const double values[] = {1, 2, 3, 4};
    double mean = co_await client.call(calc::mean, values);
    std::uint64_t factor = co_await client.with({.timeout = 10s}).call(calc::factor, 1000003u);
    std::printf("client: on average %g; 1000003 is divided by %llu\n", mean, static_cast<unsigned long long>(factor));

    auto primes = client.open(calc::primes, 30u);
    std::printf("client: primes:");
    while (auto prime = co_await primes.next())
        std::printf(" %llu", static_cast<unsigned long long>(*prime));
    std::printf("\n");

    auto total = client.open(calc::total);
    for (double value : values)
        co_await total.send(value);
    co_await total.end();
    co_return co_await total.result();
}

static void call(const char *uri)
{
    weft::runtime rt = weft::runtime::open();
    weft::client client = weft::client::open(rt, uri, {.service = "calc", .timeout = 10s});
    calls_that_wait(client);
    failures(client);
    double total = weft::sync_wait(rt, in_a_coroutine(client));
    std::printf("client: the total is %g\n", total);
    check(total == 10, "the total is wrong");
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        call(argv[1]);
        return 0;
    }
    int uri[2], until[2], status = 1;
    check(!pipe(uri) && !pipe(until), "no pipes");
    std::fflush(stdout);
    pid_t server = fork();
    check(server >= 0, "no process");
    if (server == 0) {
        close(uri[0]);
        close(until[1]);
        serve(uri[1], until[0]);
        return 0;
    }
    close(uri[1]);
    close(until[0]);
    char address[500];
    ssize_t n = read(uri[0], address, sizeof address - 1);
    check(n > 0, "the server did not start");
    address[n] = 0;
    call(address);
    close(until[1]);
    waitpid(server, &status, 0);
    return status ? 1 : 0;
}
