/* examples/asio_gateway/asio_gateway.cc - an HTTP server on Asio whose handlers call a Weft service: one io_context, no thread.
 *
 *     asio_gateway          asks itself a few things, prints the answers, and ends
 *     asio_gateway 8080     serves until Ctrl-C:  curl 'http://127.0.0.1:8080/divide?a=42&b=5'
 *
 * The service is in this process too, so that the example is one program; for the gateway its address is just a string.
 *
 * Asio finds out whether the compiler has coroutines. With clang before 17 it needs to be told:
 * -DASIO_HAS_CO_AWAIT -DASIO_HAS_STD_COROUTINE. */
#include <array>
#include <asio.hpp>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <weft/asio.hpp>
#include <weft/runtime.hpp>
#include <weft/weft.h>

using namespace std::chrono_literals;

/* --- the service: C functions, called in the progress of the runtime, which is inside io_context::run() --------------- */

static void divide(weft_request_t *request, void *)
{
    const int a = request->args[0].i32, b = request->args[1].i32;
    if (b == 0 || (a == INT32_MIN && b == -1)) {
        weft_request_fail(request, WEFT_CODE_INVALID_ARGUMENT, "that has no result");
        return;
    }
    const weft_value_t results[] = {weft_i32(a / b), weft_i32(a % b)};
    weft_request_reply(request, results, 2);
}

/* --- a call of it, as an action ----------------------------------------------------------------------------------------- */

/* How to post it, and what to take when it has succeeded. The arguments and the reply are the caller's. */
struct call_spec {
    using value_type = void;
    weft_method_t *method;
    const weft_value_t *args;
    size_t n;
    weft_reply_t *reply;
    weft_status_t post(weft_op_t *op) noexcept
    {
        return weft_call(method, args, n, reply, op);
    }
    void take(weft_op_t &) noexcept
    {
    }
};

/* --- the gateway -------------------------------------------------------------------------------------------------------- */

struct answer {
    int status;
    std::string text;
};

static answer explain(std::error_code code, const weft_reply_t &reply)
{
    if (code == weft::errc::timeout)
        return {504, "the service took too long\n"};
    if (code == weft::errc::call && reply.code == WEFT_CODE_INVALID_ARGUMENT)
        return {400, reply.message + std::string("\n")};
    return {503, code.message() + "\n"};
}

static asio::awaitable<answer> ask(weft_method_t *method, int a, int b)
{
    const std::array<weft_value_t, 2> args = {weft_i32(a), weft_i32(b)};
    weft_reply_t reply = WEFT_REPLY_INIT;
    std::error_code code;
    co_await weft::async(weft::action(call_spec{method, args.data(), args.size(), &reply}).timeout(2s),
                         asio::redirect_error(asio::use_awaitable, code));
    answer result =
        code ? explain(code, reply)
             : answer{200, std::to_string(reply.values[0].i32) + " rest " + std::to_string(reply.values[1].i32) + "\n"};
    weft_reply_release(&reply);
    co_return result;
}

/* "GET /divide?a=1&b=2 HTTP/1.1": the two numbers. */
static bool read_request(std::string_view line, int &a, int &b)
{
    constexpr std::string_view begin = "GET /divide?a=", middle = "&b=", end = " HTTP/1.";
    if (!line.starts_with(begin))
        return false;
    const char *last = line.data() + line.size();
    auto [rest, wrong] = std::from_chars(line.data() + begin.size(), last, a);
    if (wrong != std::errc() || !std::string_view(rest, last).starts_with(middle))
        return false;
    auto [more, wrong_too] = std::from_chars(rest + middle.size(), last, b);
    return wrong_too == std::errc() && std::string_view(more, last).starts_with(end);
}

/* One request of one connection. Whoever sends more than 4 KiB of head, or takes longer than ten seconds, is cut off. */
static asio::awaitable<void> serve(asio::ip::tcp::socket socket, weft_method_t *method)
{
    asio::steady_timer limit(socket.get_executor(), 10s);
    limit.async_wait([&socket](std::error_code cancelled) {
        if (!cancelled)
            socket.close(cancelled);
    });
    std::string head;
    std::error_code failed;
    const size_t n = co_await asio::async_read_until(socket, asio::dynamic_buffer(head, 4096), "\r\n\r\n",
                                                     asio::redirect_error(asio::use_awaitable, failed));
    answer result{404, "GET /divide?a=NUMBER&b=NUMBER is all there is\n"};
    int a, b;
    if (!failed && read_request(std::string_view(head).substr(0, n), a, b))
        result = co_await ask(method, a, b);
    if (!failed) {
        const std::string text = "HTTP/1.1 " + std::to_string(result.status) +
                                 " -\r\nConnection: close\r\nContent-Length: " + std::to_string(result.text.size()) + "\r\n\r\n" +
                                 result.text;
        co_await asio::async_write(socket, asio::buffer(text), asio::redirect_error(asio::use_awaitable, failed));
    }
    limit.cancel();
    co_await asio::post(socket.get_executor(),
                        asio::use_awaitable); /* the timer's handler names the socket, and runs before this */
}

static asio::awaitable<void> accept(asio::ip::tcp::acceptor &acceptor, weft_method_t *method)
{
    for (std::error_code failed; !failed;) {
        asio::ip::tcp::socket socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, failed));
        if (!failed)
            asio::co_spawn(acceptor.get_executor(), serve(std::move(socket), method), asio::detached);
    }
}

/* What a user would do with curl. */
static asio::awaitable<void> try_it(asio::ip::tcp::acceptor &acceptor)
{
    for (std::string_view path : {"/divide?a=42&b=5", "/divide?a=-7&b=2", "/divide?a=1&b=0", "/multiply"}) {
        asio::ip::tcp::socket socket(acceptor.get_executor());
        co_await socket.async_connect(acceptor.local_endpoint(), asio::use_awaitable);
        const std::string request = "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
        co_await asio::async_write(socket, asio::buffer(request), asio::use_awaitable);
        std::string text;
        std::error_code end;
        co_await asio::async_read(socket, asio::dynamic_buffer(text), asio::redirect_error(asio::use_awaitable, end));
        std::printf("%s: %.3s: %s", std::string(path).c_str(), text.c_str() + 9, text.c_str() + text.find("\r\n\r\n") + 4);
    }
    acceptor.close();
}

int main(int argc, char **argv)
{
    const auto port = static_cast<unsigned short>(argc > 1 ? std::atoi(argv[1]) : 0);
    weft::runtime rt = weft::runtime::open({.progress = WEFT_PROGRESS_LOOP});
    asio::io_context io(1);
    weft::asio_driver driver(io, rt);

    weft_service_t *service;
    weft_listener_t *listener;
    weft_client_t *client;
    weft_method_t *method;
    weft::check(weft_service_open(rt.native(), "calc", nullptr, &service));
    weft::check(weft_service_add(service, "divide(a: i32, b: i32) -> (quotient: i32, rest: i32)", divide, nullptr, nullptr));
    weft::check(weft_listen(rt.native(), "tcp://127.0.0.1:0", nullptr, &listener));
    weft::check(weft_client_open(rt.native(), weft_listener_uri(listener), nullptr, &client));
    weft::check(weft_client_method(client, "divide(a: i32, b: i32) -> (quotient: i32, rest: i32)", &method));

    asio::ip::tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), port});
    asio::co_spawn(io, accept(acceptor, method), asio::detached);
    asio::signal_set signals(io, SIGINT, SIGTERM);
    if (argc > 1)
        signals.async_wait([&](std::error_code, int) { acceptor.close(); });
    else
        asio::co_spawn(io, try_it(acceptor), asio::detached);
    io.run(); /* until the acceptor is closed and the last request answered */
    return 0;
}
