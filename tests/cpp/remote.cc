/* tests/cpp/remote.cc - remote memory: regions, keys, and every operation on a remote, mapped and checked. */
#include "both.hpp"

#include <string>
#include <vector>

using namespace std::chrono_literals;

namespace
{

struct point {
    double x, y;
};

weft::task<> uses(both *b, weft::region *region, weft_rma_path_t path)
{
    weft::region_key key = region->key();
    weft::remote r = co_await b->ep[1].attach(key, path).timeout(30s);
    CHECK_EQ(r.info().path, path);
    CHECK_EQ(r.info().len, 4096);

    const std::vector<int> values = {1, 2, 3, 4};
    co_await r.write(0, values);
    std::vector<int> got(4);
    co_await r.read(0, got);
    CHECK(got == values);
    co_await r.write(64, point{1.5, 2.5});
    point p = co_await r.read<point>(64);
    CHECK(p.x == 1.5 && p.y == 2.5);
    co_await r.write(128, weft::pieces(values, p));
    got.assign(4, 0);
    p = {};
    co_await r.read(128, weft::pieces_to(got, p));
    CHECK(got == values && p.y == 2.5);

    co_await r.write(256, std::uint64_t(40));
    CHECK_EQ(co_await r.fetch_add<std::uint64_t>(256, 2), 40);
    CHECK_EQ(co_await r.compare_swap<std::uint64_t>(256, 42, 7), 42);
    CHECK_EQ(co_await r.compare_swap<std::uint64_t>(256, 42, 8), 7);
    CHECK_EQ(co_await r.swap<std::uint64_t>(256, 0xf0), 7);
    CHECK_EQ(co_await r.fetch_or<std::uint64_t>(256, 0xf), 0xf0);
    CHECK_EQ(co_await r.fetch_and<std::uint64_t>(256, 0x3c), 0xff);
    CHECK_EQ(co_await r.fetch_xor<std::uint64_t>(256, 0x0c), 0x3c);
    CHECK_EQ(co_await r.read<std::uint64_t>(256), 0x30);
    co_await r.write(264, std::int32_t(-5));
    CHECK_EQ(co_await r.fetch_add<std::int32_t>(264, -1), -5);
    CHECK_EQ(co_await r.fetch_add<std::int32_t>(264, 10), -6);

    int one = 0, two = 0;
    weft_rma_item_t items[] = {weft::item_write(r, 512, values), weft::item_read(r, 512, one), weft::item_read(r, 516, two)};
    CHECK_EQ(co_await weft::batch(items), 3);
    CHECK(one == 1 && two == 2);
    r.fence();
    co_await r.flush();

    CHECK_EQ((co_await r.read(4092, got).as_result()).status(), WEFT_ERR_RANGE);
    try {
        co_await r.write(5000, values);
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK_EQ(e.status(), WEFT_ERR_RANGE);
    }
    weft::remote reads = co_await b->ep[1].attach(region->key({.len = 64, .rights = WEFT_RMA_READ}), path);
    CHECK_EQ((co_await reads.write(0, values).as_result()).status(), WEFT_ERR_RIGHTS);
    co_await region->revoke();
    CHECK_EQ((co_await r.read(0, got).as_result()).status(), WEFT_ERR_STALE);
    CHECK_EQ((co_await b->ep[1].attach(key).as_result()).status(), WEFT_ERR_STALE);
    weft::remote named = co_await b->ep[1].find("numbers");
    CHECK_EQ(co_await named.read<int>(0), 1);
    CHECK_EQ((co_await b->ep[1].find("letters").as_result()).status(), WEFT_ERR_NOTFOUND);
}

} // namespace

TEST(every_operation_on_a_remote_does_what_it_says)
{
    for (weft_progress_mode_t mode : {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD})
        for (weft_rma_path_t path : {WEFT_RMA_MAPPED, WEFT_RMA_CHECKED}) {
            both b(mode);
            weft::region region = b.rt[0].new_region({.len = 4096, .name = "numbers"});
            b.run(uses(&b, &region, path));
            b.run([](weft::region *r) -> weft::task<> { co_await r->free(); }(&region));
            CHECK(!region);
        }
}

TEST(memory_of_the_program_is_exposed_and_given_back)
{
    both b;
    std::vector<std::uint64_t> mine(512, 3);
    weft::region region = b.rt[0].new_region({.memory = mine});
    CHECK(region.data() == reinterpret_cast<std::byte *>(mine.data()));
    b.run([](both *all, weft::region *r) -> weft::task<> {
        weft::remote there = co_await all->ep[1].attach(r->key()).timeout(30s);
        CHECK_EQ(co_await there.read<std::uint64_t>(8), 3);
        co_await there.write(8, std::uint64_t(4));
        co_await r->free();
        CHECK_EQ((co_await there.read<std::uint64_t>(8).as_result()).status(), WEFT_ERR_STALE);
    }(&b, &region));
    CHECK_EQ(mine[1], 4);
}

TEST(the_owner_is_told_of_a_write_that_says_so)
{
    both b;
    static std::atomic<std::uint64_t> told;
    weft::region region = b.rt[0].new_region(
        {.len = 64, .notify = [](weft_region_t *, std::uint64_t, std::uint64_t, std::uint64_t value, weft_ep_id_t, void *) {
             told += value;
         }});
    b.run([](both *all, weft::region *r) -> weft::task<> {
        weft::remote there = co_await all->ep[1].attach(r->key()).timeout(30s);
        co_await there.write_notify(0, "x", 5);
        co_await there.write_notify(1, "y", 6);
    }(&b, &region));
    CHECK_EQ(told, 11);
}

TEST(a_mapped_read_is_awaited_without_suspending)
{
    both b;
    weft::region region = b.rt[0].new_region({.len = 64});
    weft::remote there;
    b.run([](both *all, weft::region *r, weft::remote *out) -> weft::task<> {
        *out = co_await all->ep[1].attach(r->key(), WEFT_RMA_MAPPED).timeout(30s);
    }(&b, &region, &there));
    auto reads = [](weft::remote_ref r) -> weft::task<std::uint64_t> {
        std::uint64_t sum = 0;
        for (int i = 0; i < 100; i++)
            sum += co_await r.read<std::uint64_t>(0) + co_await r.fetch_add<std::uint64_t>(8, 1);
        co_return sum;
    };
    weft::task<std::uint64_t> t = reads(there);
    struct nobody : weft::detail::listener_of_end {
        nobody()
            : listener_of_end{
                  [](listener_of_end *, std::coroutine_handle<>) noexcept -> std::coroutine_handle<> { FAIL("late"); }}
        {
        }
    } told;
    CHECK(t.promise().begin(t.frame(), &told));
    CHECK_EQ(t.promise().take(), 4950);
}
