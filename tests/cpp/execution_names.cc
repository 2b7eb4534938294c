/* tests/cpp/execution_names.cc - the names of execution-ucx: what their example does, in each form that they have.
 * ctest: label=thread */
#include "both.hpp"
#include "kit/checking.hpp"
#include <numeric>
#include <weft/execution_ucx.hpp>

namespace we = weft::execution;
using namespace std::chrono_literals;

namespace
{

struct label {
    std::uint64_t number;
};

std::vector<int> counted(std::size_t n)
{
    std::vector<int> v(n);
    std::iota(v.begin(), v.end(), 0);
    return v;
}

template <class... S> auto wait(S &&...s)
{
    return ex::sync_wait(ex::when_all(std::forward<S>(s)...)).value();
}

weft::runtime threaded()
{
    return weft::runtime::open({.progress = WEFT_PROGRESS_THREAD});
}

} // namespace

TEST(a_connect_and_an_accept_meet)
{
    weft::runtime here = threaded(), there = threaded();
    weft::listener door = here.listen(ports_tcp());
    auto [accepted, connected] = wait(we::accept_endpoint(door), we::connect_endpoint(we::scheduler(there), door.uri()));
    CHECK(accepted.state() == WEFT_EP_UP && connected.state() == WEFT_EP_UP);

    /* nobody is there */
    const std::string nobody = "tcp://127.0.0.1:" + std::to_string(ports_take());
    try {
        wait(we::connect_endpoint(we::scheduler(there), nobody, {.source = "127.0.0.1", .no_retry = true}));
        FAIL("nobody answered, and it is connected");
    } catch (const std::system_error &e) {
        CHECK(e.code() == weft::errc::refused);
    }
}

TEST(a_connect_by_the_address_of_a_worker)
{
    weft::runtime here = threaded(), there = threaded();
    std::atomic<bool> came{false};
    weft_listen_opts_t opts = WEFT_LISTEN_OPTS_INIT;
    opts.user = &came;
    opts.accept = [](weft_listener_t *, weft_ep_t *, void *user) { *static_cast<std::atomic<bool> *>(user) = true; };
    std::vector<std::byte> address(4096);
    std::size_t n = address.size();
    CHECK_OK(weft_runtime_address(here.native(), &opts, address.data(), &n));
    address.resize(n);
    auto [ep] = wait(we::connect_endpoint(we::scheduler(there), std::move(address)));
    CHECK(ep.state() == WEFT_EP_UP);
    TEST_UNTIL(came.load(), 30);
}

TEST(messages_go_borrowed_owned_and_in_pieces)
{
    both b(WEFT_PROGRESS_THREAD);
    we::scheduler here(b.rt[0]);
    for (std::size_t n : {std::size_t(10), std::size_t(500000)}) { /* along with the header, and pulled */
        const std::vector<int> all = counted(n);
        const label borrowed{1};
        std::vector<int> into(n);
        label head{};

        auto [got] = wait(we::connection_recv(here, 7, head, into), we::connection_send(b.ep[1], 7, borrowed, all));
        CHECK(got.len == n * sizeof(int) && got.header_len == sizeof head && head.number == 1 && into == all);

        into.assign(n, 0);
        auto sending = we::connection_send(b.ep[1], 7, label{2}, counted(n)); /* both are in it */
        wait(we::connection_recv(here, 7, head, into), std::move(sending));
        CHECK(head.number == 2 && into == all);

        into.assign(n, 0);
        const std::span<const int> first(all.data(), n / 2), second(all.data() + n / 2, n - n / 2);
        wait(we::connection_recv(here, 7, head, into), we::connection_send(b.ep[1], 7, label{3}, weft::pieces(first, second)));
        CHECK(head.number == 3 && into == all);
        into.assign(n, 0);
        const auto iov = weft::pieces(first, second);
        wait(we::connection_recv(here, 7, head, into),
             we::connection_send(b.ep[1], 7, label{4}, weft::piece_span(iov.data(), iov.size())));
        CHECK(head.number == 4 && into == all);

        auto [made] = wait(we::connection_recv(here, 7, head, nullptr), we::connection_send(b.ep[1], 7, label{5}, all));
        CHECK(head.number == 5 && made.data.size() == n * sizeof(int) && made.message.len == made.data.size());
        CHECK(!memcmp(made.data.data(), all.data(), made.data.size()));
    }
}

TEST(a_header_first_and_then_its_payload)
{
    both b(WEFT_PROGRESS_THREAD);
    we::scheduler here(b.rt[0]);
    const std::vector<int> all = counted(500000);
    std::vector<int> into(all.size());
    for (int form = 0; form < 3; form++) {
        into.assign(all.size(), 0);
        checking::attempt sends(we::connection_send(b.ep[1], 9, label{17}, all));
        sends.start();
        auto [m] = wait(we::connection_recv_header(here, 9));
        CHECK(m.header().size() == sizeof(label) && m.size() == all.size() * sizeof(int) && !m.data());
        CHECK(!sends.over());
        std::size_t n = 0;
        if (form == 0) {
            std::tie(n) = wait(we::connection_recv_buffer(m, into));
        } else if (form == 1) {
            const std::span<int> first(into.data(), 1000), second(into.data() + 1000, into.size() - 1000);
            std::tie(n) = wait(we::connection_recv_buffer(m, weft::pieces_to(first, second)));
        } else {
            auto [made] = wait(we::connection_recv_buffer(m, weft_mem_host()));
            n = made.size();
            memcpy(into.data(), made.data(), n);
        }
        CHECK(n == all.size() * sizeof(int) && into == all);
        CHECK(sends.wait() == checking::how::value);
    }

    checking::attempt unwanted(we::connection_send(b.ep[1], 9, label{18}, all));
    unwanted.start();
    wait(we::connection_recv_header(here, 9) | ex::then([](weft::message m) noexcept { weft_am_reject(m.native(), 5); }));
    CHECK(unwanted.wait() == checking::how::error && unwanted.rec.error == weft::errc::rejected);
}

TEST(a_handler_of_errors_is_asked)
{
    weft::runtime here = threaded(), there = threaded();
    weft::listener door = here.listen(ports_tcp());
    std::atomic<int> asked{0};
    std::atomic<weft_ep_id_t> who{0};
    auto handler = [&](weft_ep_id_t id, std::error_code why) noexcept {
        who = id;
        asked += why == weft::errc::peer;
        return false;
    };
    auto [accepted, connected] =
        wait(we::accept_endpoint(door),
             we::connect_endpoint(we::scheduler(there), door.uri(), {.hooks = we::handle_error_connection(handler)}));
    const weft_ep_id_t id = connected.id();
    wait(we::sender(accepted.abort()));
    TEST_UNTIL(asked.load() == 1, 30);
    CHECK(who == id);
    there.close(); /* nobody calls the handler after this */
}

/* Where completions are inside each other so often that the next one comes from the runtime: it comes with what the post gave. */
TEST(a_connect_in_completions_that_nest)
{
    weft::runtime here = threaded(), there = threaded();
    weft::listener door = here.listen(ports_local("nest"));
    const std::string uri = door.uri();
    for (int i = 0; i < 100; i++) {
        checking::attempt accepts(we::accept_endpoint(door));
        accepts.start();
        weft_ep_state_t state = WEFT_EP_GONE;
        checking::attempt connects(we::connect_endpoint(we::scheduler(there), uri) |
                                   ex::then([&](weft::endpoint ep) noexcept { state = ep ? ep.state() : WEFT_EP_GONE; }));
        const unsigned before = std::exchange(weft::execution::detail::nested, weft::execution::detail::most_nested);
        connects.start();
        weft::execution::detail::nested = before;
        CHECK(connects.wait() == checking::how::value && !connects.rec.inside);
        CHECK(state == WEFT_EP_UP || state == WEFT_EP_PEER_CLOSED); /* whoever was accepted goes at once */
        CHECK(accepts.wait() == checking::how::value);
    }
}
