/* tests/cpp/active.cc - active messages: handlers, keeping, pulling, viewing, refusing, receives. */
#include "both.hpp"

#include <string>
#include <vector>

using namespace std::chrono_literals;

namespace
{

std::string text(std::span<const std::byte> s)
{
    return std::string(reinterpret_cast<const char *>(s.data()), s.size());
}

std::vector<std::uint32_t> numbers(std::uint32_t n)
{
    std::vector<std::uint32_t> v(n);
    for (std::uint32_t i = 0; i < n; i++)
        v[i] = i * 2654435761u;
    return v;
}

} // namespace

TEST(a_handler_sees_header_and_payload_and_can_answer)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        both b(mode);
        std::atomic<int> seen = 0;
        weft::handler h = b.rt[0].handle(7, [&](weft::message_ref m) {
            CHECK_EQ(m.id(), 7);
            CHECK(text(m.header()) == "head");
            CHECK(m.data() && text(*m.data()) == "payload");
            CHECK(m.reply());
            m.reply().post_am(8, "back");
            seen++;
        });
        CHECK_EQ(b.rt[0].try_handle(7, [](weft::message_ref) {}).status(), WEFT_ERR_STATE);
        b.run([](both *all) -> weft::task<> {
            for (int i = 0; i < 20; i++) {
                co_await all->ep[1].am(7, weft::am_options{.header = "head", .payload = "payload", .reply = true});
                weft::message m = co_await all->rt[1].take(8).timeout(30s);
                CHECK(text(m.header()) == "back" && !m.size());
            }
        }(&b));
        CHECK_EQ(seen, 20);
    }
}

TEST(a_large_payload_is_pulled_from_its_sender)
{
    both b;
    const std::vector<std::uint32_t> sent = numbers(1 << 20);
    b.run(
        [](weft::endpoint_ref ep, const std::vector<std::uint32_t> *v) -> weft::task<> {
            for (std::uint32_t id = 1; id <= 3; id++)
                co_await ep.am(id, "big", *v);
        }(b.ep[0], &sent),
        [](both *all, const std::vector<std::uint32_t> *v) -> weft::task<> {
            weft::message m = co_await all->ep[1].take(1).timeout(30s);
            CHECK(!m.data());
            CHECK_EQ(m.size(), v->size() * 4);
            std::vector<std::uint32_t> got(v->size());
            CHECK_EQ(co_await m.pull(got), m.size());
            CHECK(got == *v);
            m = co_await all->rt[1].take(2).timeout(30s);
            std::fill(got.begin(), got.end(), 0);
            std::span<std::uint32_t> two(got);
            CHECK_EQ(co_await m.pull(weft::pieces_to(two.subspan(0, 1000), two.subspan(1000))), m.size());
            CHECK(got == *v);
            m = co_await all->rt[1].take(3).timeout(30s);
            std::span<const std::byte> seen = co_await m.view();
            CHECK(seen.size() == m.size() && !memcmp(seen.data(), v->data(), seen.size()));
        }(&b, &sent));
}

TEST(a_refused_message_tells_its_sender)
{
    both b;
    weft::handler h = b.rt[0].handle(9, [](weft::message_ref m) { m.reject(42); });
    b.run([](weft::endpoint_ref ep) -> weft::task<> {
        CHECK_EQ((co_await ep.am(9, weft::am_options{.payload = "small", .confirm = true}).as_result()).status(),
                 WEFT_ERR_REJECTED);
    }(b.ep[1]));
}

TEST(what_a_handler_throws_refuses_the_message_and_the_next_is_handled)
{
    both b;
    weft_log_set_level(WEFT_LOG_NONE);
    int n = 0;
    weft::handler h = b.rt[0].handle(9, [&](weft::message_ref) {
        if (n++ % 2 == 0)
            throw std::runtime_error("not this one");
    });
    b.run([](weft::endpoint_ref ep) -> weft::task<> {
        for (int i = 0; i < 10; i++) {
            auto got = co_await ep.am(9, weft::am_options{.header = "x", .confirm = true}).as_result();
            CHECK_EQ(got.status(), i % 2 ? WEFT_OK : WEFT_ERR_REJECTED);
        }
    }(b.ep[1]));
    CHECK_EQ(n, 10);
}

TEST(a_handler_lives_until_it_is_not_called_any_more)
{
    struct counted {
        std::atomic<int> *alive;
        explicit counted(std::atomic<int> *n) : alive(n)
        {
            ++*alive;
        }
        counted(counted &&other) noexcept : alive(other.alive)
        {
            ++*alive;
        }
        ~counted()
        {
            --*alive;
        }
    };
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        std::atomic<int> alive = 0;
        weft::handler later;
        {
            both b(mode);
            for (int i = 0; i < 50; i++) {
                weft::handler h = b.rt[0].handle(9, [c = counted(&alive)](weft::message_ref) { CHECK(*c.alive > 0); });
                for (int k = 0; k < 5; k++)
                    b.ep[1].post_am(9, "x");
                b.rt[1].progress();
                b.rt[0].progress();
            }
            b.until([&] { return alive == 0; });
            later = b.rt[0].handle(10, [c = counted(&alive)](weft::message_ref) {});
            CHECK_EQ(alive, 1);
        }
        later = {}; /* after its runtime */
        CHECK_EQ(alive, 0);
    }
}

TEST(a_task_serves_each_message)
{
    both b(WEFT_PROGRESS_THREAD);
    weft::scope scope;
    std::atomic<std::uint64_t> sum = 0;
    {
        weft::handler h = weft::serve(b.rt[0], 5, scope, [&](weft::message m) -> weft::task<> {
            std::vector<std::uint32_t> v(m.size() / 4);
            co_await m.pull(v);
            for (std::uint32_t n : v)
                sum += n;
        });
        b.run([](weft::endpoint_ref ep) -> weft::task<> {
            for (std::uint32_t n : {10u, 100u, 100000u}) {
                std::vector<std::uint32_t> v(n, 1);
                co_await ep.am(5, weft::am_options{.payload = v, .confirm = true}).timeout(30s);
            }
        }(b.ep[1]));
    }
    weft::sync_wait(b.rt[0], scope.join());
    CHECK_EQ(sum, 100110);
}

TEST(a_receive_takes_header_and_payload_at_once)
{
    both b;
    b.run(
        [](weft::endpoint_ref ep) -> weft::task<> {
            co_await ep.am(3, "head", std::string_view("body"));
            co_await ep.am(4, "only");
            co_await ep.am(4, "longer", std::string_view("than that"));
        }(b.ep[0]),
        [](weft::endpoint_ref ep) -> weft::task<> {
            char head[16], body[16];
            weft::am_received got = co_await ep.recv_am(3, head, body).timeout(30s);
            CHECK(got.id == 3 && got.header_len == 4 && got.len == 4 && !memcmp(head, "head", 4) && !memcmp(body, "body", 4));
            got = co_await ep.recv_am(4, head, {}).timeout(30s);
            CHECK(got.header_len == 4 && !got.len);
            CHECK_EQ((co_await ep.recv_am(4, head, {}).timeout(30s).as_result()).status(), WEFT_ERR_TRUNCATED);
        }(b.ep[1]));
}
