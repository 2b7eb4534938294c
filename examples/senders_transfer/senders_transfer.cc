/* examples/senders_transfer/senders_transfer.cc - the message transfer of execution-ucx, as senders: a server accepts a client
 * and receives one message, a client connects and sends it, and both run at once.
 *
 * It needs an implementation of senders: std::execution, or stdexec with -DSTDEXEC=DIR (CMakeLists.txt). The same without
 * senders, and more of it, is examples/transfer. */
#include <cstdio>
#include <numeric>
#include <vector>
#include <weft/execution_ucx.hpp>

namespace ex = weft::execution::impl; /* stdexec, or std::execution */
using weft::execution::accept_endpoint;
using weft::execution::connect_endpoint;
using weft::execution::connection_recv;
using weft::execution::connection_send;

namespace
{

constexpr std::uint32_t PARCEL = 1; /* the id of our messages */

struct data {
    std::vector<char> header, buffer;
};

/* Take the first client, and one message of it. */
auto server(weft::execution::scheduler sched, const weft::listener &door, data &received)
{
    return accept_endpoint(door) | ex::let_value([&received, sched](weft::endpoint &client) {
               std::printf("server: %s is here\n", client.info().peer_name);
               return connection_recv(sched, PARCEL, received.header, received.buffer) | ex::then([](weft::am_received message) {
                          std::printf("server: %zu bytes of header, %zu of data\n", message.header_len, message.len);
                      });
           });
}

/* Connect, and send: what is sent is borrowed until that is done. */
auto client(weft::execution::scheduler sched, const std::string &uri, const data &sent)
{
    return connect_endpoint(sched, uri) | ex::let_value([&sent](weft::endpoint &server) {
               return connection_send(server, PARCEL, sent.header, sent.buffer) |
                      ex::let_value([&server] { return weft::execution::sender(server.close()); }) |
                      ex::then([](std::uint64_t) { std::puts("client: sent, and closed"); });
           });
}

} // namespace

int main()
{
    try {
        weft::runtime here = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .name = "server"});
        weft::runtime there = weft::runtime::open({.progress = WEFT_PROGRESS_THREAD, .name = "client"});
        weft::listener door = here.listen("tcp://127.0.0.1:0");

        data sent{std::vector<char>(1024), std::vector<char>(1024)}, received = sent;
        std::iota(sent.header.begin(), sent.header.end(), char(0));
        std::iota(sent.buffer.begin(), sent.buffer.end(), char(1));

        using weft::execution::scheduler;
        weft::execution::sync_wait(
            scheduler(there), ex::when_all(server(scheduler(here), door, received), client(scheduler(there), door.uri(), sent)));
        if (received.header != sent.header || received.buffer != sent.buffer) {
            std::fputs("what came is not what was sent\n", stderr);
            return 1;
        }
        std::puts("transferred 1024 bytes");
        return 0;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
