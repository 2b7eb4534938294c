/* tests/cpp/messages.cc - tag messages, awaited: what the sender gave comes out at the other side. */
#include "both.hpp"

#include <string>
#include <vector>

namespace
{

struct point {
    int x, y;
};

weft::task<> sends(weft::endpoint_ref ep)
{
    const std::vector<int> numbers = {1, 2, 3};
    const point p = {4, 5};
    co_await ep.send(numbers, 1);
    co_await ep.send(p, 2);
    co_await ep.send("literal", 3);
    co_await ep.send(std::string_view("view"), 4);
    co_await ep.send(weft::pieces(numbers, p, "end"), 5);
    co_await ep.send(weft::const_bytes(), 6);
    ep.post("posted", 7);
}

weft::task<> receives(weft::endpoint_ref ep)
{
    int numbers[4] = {};
    weft::received got = co_await ep.recv(numbers, 1);
    CHECK_EQ(got.len, 3 * sizeof(int));
    CHECK_EQ(got.tag, 1);
    CHECK_EQ(got.from, ep.id());
    CHECK(numbers[0] == 1 && numbers[1] == 2 && numbers[2] == 3 && !numbers[3]);
    point p = co_await ep.recv<point>(2);
    CHECK(p.x == 4 && p.y == 5);
    weft::arrived text = co_await ep.recv_alloc(3);
    CHECK(text.data.text() == "literal");
    std::string view(10, '?');
    got = co_await ep.recv(view, 4);
    CHECK(view.substr(0, got.len) == "view");
    std::vector<int> again(3);
    char end[3];
    got = co_await ep.recv(weft::pieces_to(again, p, end), 5);
    CHECK_EQ(got.len, 3 * sizeof(int) + sizeof p + 3);
    CHECK(again[2] == 3 && p.y == 5 && !memcmp(end, "end", 3));
    text = co_await ep.recv_alloc(6);
    CHECK(text.data.empty());
    text = co_await ep.recv_alloc(0, WEFT_TAG_ANY);
    CHECK(text.data.text() == "posted" && text.tag == 7);
}

weft::task<int> adds(int a, int b)
{
    co_return a + b;
}

weft::task<int> adds_more()
{
    int sum = 0;
    for (int i = 0; i < 100000; i++)
        sum += co_await adds(i & 1, 1);
    co_return sum;
}

} // namespace

TEST(messages_of_every_shape_come_out_as_they_went_in)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD}) {
        both b(mode);
        b.run(sends(b.ep[0]), receives(b.ep[1]));
        b.run(sends(b.ep[1]), receives(b.ep[0]));
    }
}

TEST(a_task_is_waited_for_from_outside)
{
    weft::runtime rt = weft::runtime::open();
    CHECK_EQ(weft::sync_wait(rt, adds(2, 3)), 5);
    weft::sync_wait(rt, [](weft::runtime_ref in) -> weft::task<> { co_await in.sleep_for(std::chrono::milliseconds(2)); }(rt));
}

TEST(a_loop_over_tasks_that_end_at_once_does_not_grow_the_stack)
{
    weft::runtime rt = weft::runtime::open();
    CHECK_EQ(weft::sync_wait(rt, adds_more()), 150000);
}
