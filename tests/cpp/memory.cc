/* tests/cpp/memory.cc - pools and kinds as std::pmr::memory_resource, and a memory_resource as a kind.
 * ctest: label=thread */
#include "test.h"
#include <atomic>
#include <list>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include <weft/memory.hpp>
#include <weft/weft.h>

namespace
{

weft_runtime_t *runtime()
{
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.progress = WEFT_PROGRESS_CALLER;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    return rt;
}

/* counts, and throws when it is told to */
struct source final : std::pmr::memory_resource {
    std::atomic<int> out{0}, calls{0};
    int throws = 0;

  private:
    void *do_allocate(std::size_t n, std::size_t align) override
    {
        calls++;
        if (throws == 1)
            throw std::bad_alloc();
        if (throws == 2)
            throw std::runtime_error("the shelf fell down");
        if (throws == 3)
            throw 7;
        CHECK_EQ(align, 64);
        out++;
        return ::operator new(n, std::align_val_t(align));
    }
    void do_deallocate(void *p, std::size_t n, std::size_t align) override
    {
        out--;
        (void)n;
        ::operator delete(p, std::align_val_t(align));
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
        return this == &other;
    }
};

bool aligned(const void *p, std::size_t to)
{
    return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

} // namespace

TEST(containers_live_in_a_pool_and_give_back_what_they_took)
{
    weft_runtime_t *rt = runtime();
    {
        weft::pool pool(rt, {.max_bytes = 64u << 20});
        weft::pool_resource from(pool);
        {
            std::pmr::vector<int> numbers(&from);
            for (int i = 0; i < 100000; i++)
                numbers.push_back(i);
            std::pmr::map<int, std::pmr::string> names(&from);
            for (int i = 0; i < 300; i++)
                names[i] = "a name that is too long to be kept within the string";
            std::pmr::list<double> more(500, 1.5, &from);
            CHECK_EQ(numbers[99999], 99999);
            CHECK(pool.stats().used > 1000);
            CHECK_EQ(pool.close().status(), WEFT_ERR_STATE); /* it is as it was */
        }
        CHECK_EQ(pool.stats().used, 0);
        CHECK(pool.trim() > 0);
        weft::pool moved = std::move(pool);
        CHECK(moved && !pool);
        CHECK(moved.close().has_value());
        CHECK(!moved);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(what_is_in_a_pool_is_sent_from_there)
{
    weft_runtime_t *rt = runtime();
    {
        weft::pool pool(rt);
        weft::pool_resource from(pool);
        std::pmr::vector<std::uint32_t> out(300000, &from), in(300000, &from);
        for (std::size_t i = 0; i < out.size(); i++)
            out[i] = static_cast<std::uint32_t>(i * 2654435761u);
        weft_listener_t *listener;
        weft_ep_t *ep;
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", nullptr, &listener));
        CHECK_OK(weft_ep_open(rt, weft_listener_uri(listener), nullptr, nullptr, &ep));
        CHECK_OK(weft_msg_recv_any(rt, in.data(), in.size() * sizeof in[0], 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(ep, out.data(), out.size() * sizeof out[0], 1, &send));
        CHECK_OK(weft_op_wait(&recv, 30 * WEFT_SECOND));
        CHECK_OK(weft_op_wait(&send, 30 * WEFT_SECOND));
        CHECK_EQ(recv.len, out.size() * sizeof out[0]);
        CHECK(in == out);
        CHECK_OK(weft_ep_abort(ep, nullptr));
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(an_exhausted_pool_throws_and_goes_on)
{
    weft_runtime_t *rt = runtime();
    {
        weft::pool pool(rt, {.max_bytes = 1u << 20, .arena_bytes = 256u << 10});
        weft::pool_resource from(pool);
        std::vector<void *> held;
        try {
            for (int i = 0; i < 100; i++)
                held.push_back(from.allocate(64u << 10));
            FAIL("nothing was thrown");
        } catch (const std::bad_alloc &) {
            CHECK_EQ(weft_last_error_status(), WEFT_ERR_LIMIT);
        }
        CHECK(held.size() >= 8 && held.size() <= 16);
        from.deallocate(held.back(), 64u << 10);
        held.back() = from.allocate(64u << 10);
        for (std::size_t n : {SIZE_MAX, SIZE_MAX - 64, SIZE_MAX - 4096})
            for (std::size_t align : {std::size_t(8), std::size_t(4096)})
                try {
                    (void)from.allocate(n, align);
                    FAIL("nothing was thrown");
                } catch (const std::bad_alloc &) {
                }
        for (void *p : held)
            from.deallocate(p, 64u << 10);
        CHECK_EQ(pool.stats().used, 0);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(memory_is_aligned_as_asked)
{
    weft_runtime_t *rt = runtime();
    {
        weft::pool pool(rt);
        weft::pool_resource from(pool);
        weft::kind_resource host(weft_mem_host());
        for (std::pmr::memory_resource *r :
             {static_cast<std::pmr::memory_resource *>(&from), static_cast<std::pmr::memory_resource *>(&host)}) {
            std::vector<std::pair<void *, std::size_t>> held;
            for (std::size_t align = 1; align <= 65536; align *= 2)
                for (std::size_t n : {std::size_t(0), std::size_t(1), std::size_t(100), std::size_t(5000)}) {
                    void *p = r->allocate(n, align);
                    CHECK(p && aligned(p, align) && aligned(p, 64));
                    memset(p, 0xa5, n);
                    held.emplace_back(p, align);
                }
            std::size_t i = 0;
            for (std::size_t align = 1; align <= 65536; align *= 2)
                for (std::size_t n : {std::size_t(0), std::size_t(1), std::size_t(100), std::size_t(5000)})
                    r->deallocate(held[i++].first, n, align);
        }
        CHECK_EQ(pool.stats().used, 0);
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(resources_of_one_kind_are_equal)
{
    weft_runtime_t *rt = runtime();
    {
        weft::pool one(rt), two(rt);
        weft::pool_resource a(one), b(one.native()), c(two);
        weft::kind_resource d(one.kind()), host(weft_mem_host()), none(nullptr);
        CHECK(a.is_equal(b) && a.is_equal(d) && !a.is_equal(c) && !a.is_equal(host));
        CHECK(!a.is_equal(*std::pmr::new_delete_resource()));
        std::pmr::vector<int> from(1000, 7, &a), to(&b);
        const int *at = from.data();
        to = std::move(from);
        CHECK(to.data() == at); /* no copy between equals */
        try {
            (void)none.allocate(1);
            FAIL("nothing was thrown");
        } catch (const std::bad_alloc &) {
        }
    }
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_pool_that_cannot_be_made_says_why)
{
    weft::result<weft::pool> none = weft::pool::try_open(static_cast<weft_runtime_t *>(nullptr));
    CHECK_EQ(none.status(), WEFT_ERR_INVALID);
    try {
        weft::pool pool(static_cast<weft_runtime_t *>(nullptr));
        FAIL("nothing was thrown");
    } catch (const weft::error &e) {
        CHECK_EQ(e.status(), WEFT_ERR_INVALID);
    }
}

/* --- a kind over a resource ------------------------------------------------------------------------------------------------- */

TEST(a_resource_is_a_kind_of_which_pools_are_made)
{
    weft_runtime_t *rt = runtime();
    source from;
    {
        weft::resource_kind kind("shelf", &from);
        CHECK(!weft_mem_kind_find("shelf"));
        kind.add();
        CHECK(weft_mem_kind_find("shelf") == kind.native());
        weft::resource_kind again("shelf", &from);
        CHECK_EQ(again.try_add().status(), WEFT_ERR_STATE);
        {
            weft::pool pool(rt, {.kind = kind.native(), .arena_bytes = 1u << 20});
            weft::pool_resource in_pool(pool);
            std::pmr::vector<int> numbers(1000, 3, &in_pool);
            CHECK(from.out > 0);
        }
        CHECK_EQ(from.out, 0);
        void *p;
        CHECK_OK(weft_mem_alloc(kind.native(), 100, &p));
        CHECK(aligned(p, 64));
        CHECK_OK(weft_mem_copy(p, kind.native(), "some text", nullptr, 10));
        CHECK_STR(static_cast<char *>(p), "some text");
        weft_mem_free(kind.native(), p, 100);
        CHECK_EQ(from.out, 0);
    }
    CHECK(!weft_mem_kind_find("shelf"));
    weft::resource_kind long_name("a-name-with-more-than-thirty-one-letters", &from);
    CHECK_EQ(strlen(long_name.native()->name), 31);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(what_a_resource_throws_is_a_status)
{
    weft_runtime_t *rt = runtime();
    source from;
    weft::resource_kind kind("fails", &from);
    void *p = &from;
    from.throws = 1;
    CHECK_EQ(weft_mem_alloc(kind.native(), 100, &p), WEFT_ERR_NOMEM);
    from.throws = 2;
    CHECK_EQ(weft_mem_alloc(kind.native(), 100, &p), WEFT_ERR_SYSTEM);
    CHECK(strstr(weft_last_error(), "\"fails\""));
    from.throws = 3;
    CHECK_EQ(weft_mem_alloc(kind.native(), 100, &p), WEFT_ERR_SYSTEM);
    CHECK(p == &from);
    {
        from.throws = 1;
        weft::pool pool(rt, {.kind = kind.native()});
        weft::pool_resource in_pool(pool);
        try {
            std::pmr::vector<int> numbers(1000, &in_pool);
            FAIL("nothing was thrown");
        } catch (const std::bad_alloc &) {
        }
        from.throws = 0;
        std::pmr::vector<int> numbers(1000, &in_pool);
    }
    CHECK_EQ(from.out, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(threads_share_a_pool)
{
    weft_runtime_t *rt = runtime();
    {
        weft::pool pool(rt);
        weft::pool_resource from(pool);
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; t++)
            threads.emplace_back([&from, t] {
                for (std::size_t i = 1; i < 300; i++) {
                    std::pmr::vector<int> numbers(i * 7, t, &from);
                    CHECK_EQ(numbers.back(), t);
                }
            });
        for (std::thread &t : threads)
            t.join();
        CHECK_EQ(pool.stats().used, 0);
    }
    CHECK_OK(weft_runtime_close(rt));
}
